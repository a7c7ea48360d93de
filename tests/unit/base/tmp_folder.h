/* A folder for one test, and its removal. */
#ifndef TMP_FOLDER_H
#define TMP_FOLDER_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tmp_folder {
    char path[256];
};

static inline void tmp_folder_make(struct tmp_folder *t) {
    const char *base = getenv("TMPDIR");
    snprintf(t->path, sizeof t->path, "%s/strata-test-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(t->path)) {
        perror("mkdtemp");
        exit(1);
    }
}

static inline int tmp_folder_unlink(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

static inline void tmp_folder_remove(const char *path) {
    nftw(path, tmp_folder_unlink, 16, FTW_DEPTH | FTW_PHYS);
}

/* folder/name in one of 64 rotating buffers: the 65th call overwrites the first result. */
static inline const char *tmp_path(const struct tmp_folder *t, const char *name) {
    static char out[64][512];
    static unsigned turn;
    char *p = out[turn++ % 64];
    snprintf(p, sizeof out[0], "%s/%s", t->path, name);
    return p;
}

#endif
