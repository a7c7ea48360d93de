/* Output folders. See pkg_outdir.h. Owns nothing. */
#include "package/pkg_outdir.h"

#include "base/file.h"
#include "base/path.h"
#include "package/pkg_manifest.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const subs[] = {"shared", "layers", "projectors"};
enum { N_SUBS = sizeof subs / sizeof subs[0] };

static bool same_file(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

strata_err pkg_outdir_not_source(const char *path, const struct gguf_source *src, struct strata_errmsg *em) {
    struct stat out, shard;
    if (!src || stat(path, &out) != 0) return STRATA_OK;
    for (size_t i = 0; i < gguf_source_shard_count(src); i++)
        if (stat(gguf_source_shard_path(src, i), &shard) == 0 && same_file(&out, &shard))
            return err_set(em, STRATA_EINVAL, "%s is the source model itself: name another place", path);
    return STRATA_OK;
}

strata_err pkg_outdir_check(const char *dir, const struct gguf_source *src, bool resume, struct strata_errmsg *em) {
    struct stat out;
    bool empty = false;
    strata_err rc = pkg_outdir_not_source(dir, src, em);
    if (rc) return rc;
    if (stat(dir, &out) == 0 && !S_ISDIR(out.st_mode))
        return err_set(em, STRATA_EINVAL, "%s exists and is not a folder: name a new folder", dir);
    rc = file_dir_is_empty(dir, &empty, em);
    if (!rc && !empty && !resume)
        rc = err_set(em, STRATA_EINVAL,
                     "folder %s is not empty: name a new folder, or give --resume to finish what a broken-off run left",
                     dir);
    return rc;
}

strata_err pkg_outdir_sub(const char *dir, const char *name, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    struct stat st;
    strata_err rc = path_join(path, sizeof path, dir, name, em);
    if (rc) return rc;
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return err_sys(em, STRATA_EIO, errno, "cannot create folder %s", path);
    if (lstat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        return err_set(em, STRATA_EINVAL, "%s exists and is not a folder of its own: name a new folder", path);
    return STRATA_OK;
}

/* "<name>.tmp-XXXXXX", as file_atomic_begin names them. */
static bool is_temporary(const char *name) {
    const char *mark = strstr(name, ".tmp-");
    return mark && strlen(mark) == strlen(".tmp-XXXXXX");
}

static void remove_temporaries(const char *folder) {
    char path[PATH_MAX_LEN];
    DIR *d = opendir(folder);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
        if (is_temporary(e->d_name) && path_join(path, sizeof path, folder, e->d_name, NULL) == STRATA_OK) unlink(path);
    if (d) closedir(d);
}

strata_err pkg_outdir_reopen(const char *dir, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    remove_temporaries(dir);
    for (size_t i = 0; i < N_SUBS; i++)
        if (path_join(path, sizeof path, dir, subs[i], NULL) == STRATA_OK) remove_temporaries(path);
    strata_err rc = path_join(path, sizeof path, dir, PKG_MANIFEST_FILE, em);
    if (!rc && unlink(path) != 0 && errno != ENOENT) rc = err_sys(em, STRATA_EIO, errno, "cannot remove %s", path);
    return rc;
}

void pkg_outdir_explain(const char *dir, strata_err rc, struct strata_errmsg *em) {
    if (!em || rc == STRATA_ENOMEM || rc == STRATA_ELIMIT) return;
    if (rc == STRATA_ECANCELLED)
        err_set(em, rc, "interrupted: the same command with --resume finishes %s", dir);
    else if (!strstr(em->text, "--resume")) {
        char text[STRATA_ERRMSG_MAX];
        memcpy(text, em->text, sizeof text);
        err_set(em, rc, "%.600s (what is whole stays in the folder; --resume goes on)", text);
    }
}

void pkg_outdir_tidy(const char *dir, bool existed) {
    char path[PATH_MAX_LEN];
    for (size_t i = 0; i < N_SUBS; i++)
        if (path_join(path, sizeof path, dir, subs[i], NULL) == STRATA_OK) rmdir(path);
    if (!existed) rmdir(dir);
}
