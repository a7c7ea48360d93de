/*
 * One pass over a mapped file: its SHA-256, and its tensors compared byte for byte with others.
 *
 * However large the file, a few MiB of it are resident at a time: pages are read ahead, used, and given back. A disk
 * that fails, or a file that is cut short meanwhile, is an error here and not a signal.
 */
#ifndef PKG_SCAN_H
#define PKG_SCAN_H

#include "base/digest.h"
#include "base/file.h"
#include "base/progress.h"
#include "gguf/gguf_reader.h"

#include <stdbool.h>

/* A tensor of the file, and one of as many bytes that it should equal. Both are views. */
struct pkg_scan_pair {
    const struct gguf_tensor *have, *want;
    bool differs;   /* filled */
    uint64_t first; /* filled: the first byte that differs, counted from the tensor's start */
};

struct pkg_scan {
    struct file_map map; /* view */
    const char *name;    /* of the file, for messages */
    const char *other;   /* of where the wanted tensors lie, for messages; may be NULL without pairs */
    bool hash;           /* else only the pairs' bytes are read */
    uint8_t sha256[DIGEST_BYTES];
    struct pkg_scan_pair *pairs; /* sorted by place when the scan begins */
    size_t n_pairs;
    struct progress *progress; /* advanced by the file's bytes, or NULL */
    bool (*cancelled)(void);   /* asked every few milliseconds, or NULL */
};

/* EIO when a file cannot be read, ECANCELLED, ENOMEM. Tensors that differ are no failure. */
strata_err pkg_scan_run(struct pkg_scan *s, struct strata_errmsg *em);

#endif
