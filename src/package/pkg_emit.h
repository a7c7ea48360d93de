/*
 * Writes the pieces of a cut, and copies files beside them: in parallel, hashed in the same pass, each under a
 * temporary name until it is whole and on the disk.
 *
 * Nothing is removed when something fails or the work is cancelled: what stands under a final name is whole, and a
 * later run with `resume` keeps it. Temporary files never stay.
 */
#ifndef PKG_EMIT_H
#define PKG_EMIT_H

#include "base/digest.h"
#include "package/pkg_cut.h"

#include <stdio.h>

struct pkg_emit_options {
    const char *out_dir;       /* exists */
    unsigned jobs;             /* threads; 0: as many as there are processors */
    bool resume;               /* a file that is right already, byte for byte, is kept */
    const char *after_command; /* program to run after each file, or NULL; see docs/packages.md */
    FILE *progress;            /* where a bar is drawn, or NULL */
    bool (*cancelled)(void);   /* asked between pieces of work, or NULL */
};

/* A file to be copied beside the pieces. */
struct pkg_copy {
    const char *from;
    char path[300]; /* relative to the output folder */
};

struct pkg_emitted {
    uint64_t tensor_count, tensor_bytes, artifact_bytes;
    uint8_t sha256[DIGEST_BYTES];
    bool kept; /* it was there already */
};

struct pkg_emit_job {
    const struct pkg_cut *cut;
    const struct pkg_copy *copies;
    size_t n_copies;
    const struct gguf_source *hash_source;  /* hashed meanwhile, or NULL */
    uint8_t (*source_sha256)[DIGEST_BYTES]; /* one for each shard; filled when hash_source is given */
    struct pkg_emitted *pieces;             /* filled: one for each piece of the cut */
    struct pkg_emitted *copied;             /* filled: one for each copy */
};

/* Bytes that all files of the job will take. */
strata_err pkg_emit_size(const struct pkg_emit_job *job, uint64_t *bytes, struct strata_errmsg *em);

strata_err pkg_emit_run(const struct pkg_emit_job *job, const struct pkg_emit_options *opt, struct strata_errmsg *em);

#endif
