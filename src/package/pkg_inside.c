/* Where links of a package lead. See pkg_inside.h. */
#include "package/pkg_inside.h"

#include "base/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A path with every link followed; the caller frees it. name is what messages call it. */
static strata_err resolve(const char *path, const char *name, char **out, struct strata_errmsg *em) {
    char *real = realpath(path, NULL);
    if (!real && errno == ENOMEM) return err_nomem(em, "a path");
    bool absent = errno == ENOENT || errno == ENOTDIR;
    if (!real) return err_sys(em, absent ? STRATA_ENOENT : STRATA_EIO, errno, "cannot follow %s", name);
    *out = real;
    return STRATA_OK;
}

/* Both are absolute and without links. */
static bool is_below(const char *dir, size_t len, const char *path) {
    return strncmp(dir, path, len) == 0 && path[len] == '/' && path[len + 1] != '\0';
}

/* The length of <repo>/blobs at the start of path, when dir is <repo>/snapshots/<revision> and path is below that. */
static size_t in_hub_cache(const char *dir, const char *path) {
    static const char snapshots[] = "/snapshots", blobs[] = "/blobs/";
    const char *revision = strrchr(dir, '/');
    size_t len = (size_t)(revision - dir), tail = sizeof snapshots - 1;
    if (len < tail || memcmp(revision - tail, snapshots, tail) != 0) return 0;
    len -= tail;
    if (strncmp(dir, path, len) != 0 || strncmp(path + len, blobs, sizeof blobs - 1) != 0) return 0;
    return len + sizeof blobs - 2;
}

/* *real is dir/name with every link followed, which the caller frees; its first *base bytes are the folder that it may
 * lie in. *inside is false, and *real not set, when it lies elsewhere. */
static strata_err locate(const char *dir, const char *name, char **real, size_t *base, bool *inside,
                         struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    char *real_dir = NULL, *real_path = NULL;
    strata_err rc = path_join(path, sizeof path, dir, name, em);
    if (!rc) rc = resolve(dir, dir, &real_dir, em);
    if (!rc) rc = resolve(path, name, &real_path, em);
    if (rc) goto out;
    size_t len = strcmp(real_dir, "/") == 0 ? 0 : strlen(real_dir);
    if (!is_below(real_dir, len, real_path)) len = in_hub_cache(real_dir, real_path);
    *inside = len > 0 || strcmp(real_dir, "/") == 0;
    if (!*inside) goto out;
    *base = len;
    *real = real_path;
    real_path = NULL;
out:
    free(real_dir);
    free(real_path);
    return rc;
}

strata_err pkg_inside(const char *dir, const char *name, bool *inside, struct strata_errmsg *em) {
    char *real = NULL;
    size_t base;
    strata_err rc = locate(dir, name, &real, &base, inside, em);
    free(real);
    return rc;
}

static strata_err outside(const char *name, struct strata_errmsg *em) {
    return err_set(em, STRATA_EAUTH, "%.200s is, or is below, a link that leads out of the package", name);
}

/* Opens the file `leaf` of the folder at; a FIFO or a device is not even opened. */
static strata_err open_leaf(int at, const char *leaf, const char *name, int *fd, struct strata_errmsg *em) {
    struct stat st;
    if (fstatat(at, leaf, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return err_sys(em, errno == ENOENT ? STRATA_ENOENT : STRATA_EIO, errno, "cannot look at %s", name);
    if (S_ISLNK(st.st_mode)) return outside(name, em);
    if (!S_ISREG(st.st_mode)) return err_set(em, STRATA_EINVAL, "%s is not a regular file", name);
    int got = openat(at, leaf, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (got < 0 && errno == ELOOP) return outside(name, em);
    if (got < 0) return err_sys(em, STRATA_EIO, errno, "cannot open %s", name);
    *fd = got;
    return STRATA_OK;
}

/* real is dir/name without links; the walk starts after its first `base` bytes. Takes real apart. */
static strata_err walk(char *real, size_t base, const char *name, int *fd, struct strata_errmsg *em) {
    enum { FOLDER = O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW };
    strata_err rc = STRATA_OK;
    char *part = real + base + 1, *slash;
    part[-1] = '\0';
    int at = open(base ? real : "/", FOLDER);
    while (at >= 0 && (slash = strchr(part, '/'))) {
        *slash = '\0';
        int next = openat(at, part, FOLDER);
        int e = errno;
        close(at);
        errno = e;
        at = next;
        part = slash + 1;
    }
    if (at < 0 && (errno == ELOOP || errno == ENOTDIR))
        rc = outside(name, em); /* it was a folder a moment ago */
    else if (at < 0)
        rc = err_sys(em, errno == ENOENT ? STRATA_ENOENT : STRATA_EIO, errno, "cannot open %s", name);
    else
        rc = open_leaf(at, part, name, fd, em);
    if (at >= 0) close(at);
    return rc;
}

strata_err pkg_inside_open(const char *dir, const char *name, int *fd, struct strata_errmsg *em) {
    char *real = NULL;
    size_t base;
    bool inside;
    strata_err rc = locate(dir, name, &real, &base, &inside, em);
    if (!rc && !inside) rc = outside(name, em);
    if (!rc) rc = walk(real, base, name, fd, em);
    free(real);
    return rc;
}
