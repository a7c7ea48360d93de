/*
 * Files: read-only maps, bounded reads, and atomic writes.
 *
 * An atomic file is written under a temporary name beside its final one. file_atomic_commit flushes it to the disk
 * and renames it; anything else, a crash included, leaves no file under the final name.
 */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include "base/buf.h"
#include "base/err.h"
#include "base/path.h"

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A whole file, mapped read-only. data is NULL when the file is empty. */
struct file_map {
    const uint8_t *data;
    size_t size;
};

/* Maps a regular file. On failure *out is untouched. */
strata_err file_map_open(const char *path, struct file_map *out, struct strata_errmsg *em);
/* The same of a file that is open: what was looked at through fd is what gets mapped. fd stays the caller's and need
 * not stay open; name is for messages. */
strata_err file_map_fd(int fd, const char *name, struct file_map *out, struct strata_errmsg *em);
void file_map_close(struct file_map *map);

/*
 * For passes over maps larger than the memory. at and len may be anywhere inside a map.
 * file_map_fetch reads the pages now: a disk that fails, or a file that was cut short meanwhile, is an EIO here, where
 * touching the page would be a signal. (On kernels that cannot, it does nothing.)
 * file_map_ahead starts reading them and returns at once. file_map_drop gives them back; they come again when touched.
 */
strata_err file_map_fetch(const void *at, size_t len, const char *name, struct strata_errmsg *em);
void file_map_ahead(const void *at, size_t len);
void file_map_drop(const void *at, size_t len);

/* Appends the content of a regular file of at most max bytes to out. */
strata_err file_read_all(const char *path, size_t max, struct buf *out, struct strata_errmsg *em);

struct file_atomic {
    int fd; /* -1 when nothing is open */
    unsigned mode;
    char path[PATH_MAX_LEN];
    char tmp[PATH_MAX_LEN];
};

/* Opens a temporary file beside path, with permission bits `mode` (for example 0644, or 0600 for a secret). */
strata_err file_atomic_begin(struct file_atomic *f, const char *path, unsigned mode, struct strata_errmsg *em);
strata_err file_atomic_write(struct file_atomic *f, const void *data, size_t len, struct strata_errmsg *em);
/* Flushes, renames, and flushes the folder. On failure the temporary file is removed; when only the last of the three
 * failed, the new file stands under its name, whole. */
strata_err file_atomic_commit(struct file_atomic *f, struct strata_errmsg *em);
/* Removes the temporary file; harmless after a commit or a failed begin. */
void file_atomic_abort(struct file_atomic *f);

/* Writes a whole file atomically. */
strata_err file_write_all(const char *path, const void *data, size_t len, unsigned mode, struct strata_errmsg *em);

/* Makes a folder and its parents; an existing folder is fine. */
strata_err file_mkdirs(const char *path, unsigned mode, struct strata_errmsg *em);

/* Whether path names a folder / a regular file (symbolic links followed). */
bool file_is_dir(const char *path);
bool file_is_regular(const char *path);

/* The next entry of a folder, or NULL at its end; a folder that cannot be read on is an error. path is for messages. */
strata_err file_dir_next(DIR *d, const char *path, const struct dirent **out, struct strata_errmsg *em);

/* Whether a folder has no entries; a folder that does not exist counts as empty. */
strata_err file_dir_is_empty(const char *path, bool *empty, struct strata_errmsg *em);

#endif
