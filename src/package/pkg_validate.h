/*
 * Validates slices against the model they were cut from: together they must hold every owned tensor once, and what each
 * holds must be the model's, type, shape, bytes and metadata.
 *
 * An owned tensor may be in several slices only where each of them needs it: the token embeddings of a tied model, in
 * the first and in the last one. Every fault is listed, and a slice that cannot be read is a fault, not the end. Life
 * cycle: pkg_validate_run, pkg_validate_deinit.
 */
#ifndef PKG_VALIDATE_H
#define PKG_VALIDATE_H

#include "package/pkg_compare.h"

#include <stdio.h>

struct pkg_validate_options {
    unsigned jobs;           /* threads; 0: as many as there are processors */
    FILE *progress;          /* where a bar is drawn, or NULL */
    bool (*cancelled)(void); /* asked every few milliseconds, or NULL */
};

struct pkg_validate_slice {
    const char *path; /* view: the caller's */
    bool opened;      /* its header could be read */
    uint64_t bytes;   /* of the file; 0 when it could not be opened */
    struct pkg_compared facts;
    uint32_t first, end; /* the range of its layer tensors; empty when it has none */
};

struct pkg_validate_report {
    size_t full_tensor_count, required_owned_count;
    uint32_t layer_count;
    json_t *missing, *duplicate; /* owned; arrays of names, sorted */
    struct pkg_validate_slice *slices;
    size_t n_slices;
    size_t compared_count;
    uint64_t compared_bytes, read_bytes; /* the latter: of all slices */
    struct pkg_faults faults;
};

/* Fails when the model itself cannot be read, without memory, or when cancelled. slices must outlive the report. */
strata_err pkg_validate_run(const char *full, const char *const *slices, size_t n_slices,
                            const struct pkg_validate_options *opt, struct pkg_validate_report *out,
                            struct strata_errmsg *em);
void pkg_validate_deinit(struct pkg_validate_report *r);

bool pkg_validate_is_valid(const struct pkg_validate_report *r);

/* A new JSON object; older: exactly the keys of the tool that schema 1 comes from. */
strata_err pkg_validate_to_json(const struct pkg_validate_report *r, bool older, json_t **out,
                                struct strata_errmsg *em);

#endif
