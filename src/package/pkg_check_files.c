/* Preflight: what lies in a package's folder that nothing uses, and misleading names. See pkg_check.h. Owns nothing. */
#include "package/pkg_check_priv.h"

#include "base/path.h"
#include "gguf/gguf_index.h"
#include "gguf/gguf_source.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_DEPTH = 16, MAX_LISTED = 50, MAX_ENTRIES = 1000000 };

struct walk {
    struct pkg_check_report *r;
    struct gguf_index used; /* paths of the manifest */
    size_t n_entries, n_strays;
    char path[PATH_MAX_LEN]; /* relative, of what is looked at */
    struct strata_errmsg *em;
};

/* What a publisher puts beside the parts: a card, a licence, a signature, a validation result, a hub's own files. */
static bool is_expected(const char *path) {
    static const char *const whole[] = {PKG_MANIFEST_FILE, PKG_SIGN_FILE, PKG_CHECK_VALIDATION_FILE};
    static const char *const start[] = {"README", "LICENSE", "LICENCE", "NOTICE"};
    if (strchr(path, '/')) return false;
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        if (strcmp(path, whole[i]) == 0) return true;
    for (size_t i = 0; i < sizeof start / sizeof start[0]; i++)
        if (strncmp(path, start[i], strlen(start[i])) == 0) return true;
    return false;
}

static void stray(struct walk *w) {
    if (++w->n_strays <= MAX_LISTED)
        pkg_faults_add(&w->r->faults, PKG_FAULT_STRAY_FILE, w->path, "%.200s is not a part of the package", w->path);
}

static strata_err walk_folder(struct walk *w, int fd, size_t len, unsigned depth);

/* One entry of the folder open at fd; its path is in w->path. */
static strata_err walk_entry(struct walk *w, int fd, const char *name, size_t len, unsigned depth) {
    struct stat st;
    if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0) return STRATA_OK; /* gone meanwhile */
    if (!S_ISDIR(st.st_mode)) {
        /* A link to a folder may hold parts, and is then their fault. */
        bool link = S_ISLNK(st.st_mode) && fstatat(fd, name, &st, 0) == 0 && S_ISDIR(st.st_mode);
        if (!link && !is_expected(w->path) && gguf_index_get(&w->used, w->path) == GGUF_INDEX_NONE) stray(w);
        return STRATA_OK;
    }
    if (depth == MAX_DEPTH) {
        stray(w);
        return STRATA_OK;
    }
    int sub = openat(fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return sub < 0 ? STRATA_OK : walk_folder(w, sub, len, depth + 1);
}

/* Takes fd. What cannot be opened is passed over: parts in it are reported as such. */
static strata_err walk_folder(struct walk *w, int fd, size_t len, unsigned depth) {
    strata_err rc = STRATA_OK;
    DIR *d = fdopendir(fd);
    if (!d) {
        int e = errno;
        close(fd);
        return e == ENOMEM ? err_nomem(w->em, "a folder") : STRATA_OK;
    }
    const struct dirent *e = NULL;
    while (!rc && !(rc = file_dir_next(d, w->r->dir, &e, w->em)) && e) {
        if (e->d_name[0] == '.' || ++w->n_entries > MAX_ENTRIES) continue;
        int n = snprintf(w->path + len, sizeof w->path - len, "%s%s", len ? "/" : "", e->d_name);
        if (n > 0 && (size_t)n < sizeof w->path - len) rc = walk_entry(w, dirfd(d), e->d_name, len + (size_t)n, depth);
    }
    w->path[len] = '\0';
    closedir(d);
    return rc;
}

static int by_path(const void *a, const void *b) {
    return strcmp(((const struct pkg_fault *)a)->path, ((const struct pkg_fault *)b)->path);
}

static strata_err find_strays(struct pkg_check_report *r, struct strata_errmsg *em) {
    struct walk w = {.r = r, .em = em};
    strata_err rc = gguf_index_init(&w.used, r->n_items, em);
    for (size_t i = 0; i < r->n_items && !rc; i++)
        if (r->items[i].artifact->path) gguf_index_put(&w.used, r->items[i].artifact->path, i);
    size_t before = r->faults.n;
    int fd = rc ? -1 : open(r->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) rc = walk_folder(&w, fd, 0, 0);
    /* Folders have no order of their own, but reports should. */
    if (r->faults.n > before) qsort(r->faults.list + before, r->faults.n - before, sizeof *r->faults.list, by_path);
    if (!rc && w.n_strays > MAX_LISTED)
        pkg_faults_add(&r->faults, PKG_FAULT_STRAY_FILE, NULL, "%zu more files are not parts of the package",
                       w.n_strays - MAX_LISTED);
    gguf_index_deinit(&w.used);
    return rc;
}

/* Other programs take such a file for one of a split set, and look for its siblings. */
static void check_names(struct pkg_check_report *r) {
    for (size_t i = 0; i < r->n_items; i++) {
        const char *path = r->items[i].artifact->path;
        if (path && gguf_source_is_split_name(path))
            pkg_faults_add(&r->faults, PKG_FAULT_SPLIT_NAMED_ARTIFACT, path,
                           "%.200s is named like a part of a split model", path);
    }
}

strata_err pkg_check_files(struct pkg_check_report *r, struct strata_errmsg *em) {
    check_names(r);
    return find_strays(r, em);
}
