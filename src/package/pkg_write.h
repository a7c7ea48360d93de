/*
 * Turns a GGUF model into a layer package, stage files, or one slice.
 *
 * Each source byte is read from the map of its own shard and written once; files are hashed while they are written, in
 * parallel, and the shards by one more thread meanwhile. Every file appears under its final name only when it is whole
 * and on the disk, the manifest last: a folder with a manifest is a complete package. When the work fails or is
 * cancelled, what is whole stays, and the same call with `resume` finishes it. The same source and options give the
 * same bytes, apart from created_at_unix_secs, for which SOURCE_DATE_EPOCH is honoured.
 */
#ifndef PKG_WRITE_H
#define PKG_WRITE_H

#include "base/digest.h"
#include "base/jsonx.h"
#include "package/pkg_identity.h"
#include "package/pkg_select.h"

#include <stdio.h>

enum { PKG_WRITE_PROJECTORS = 16 };
#define PKG_WRITE_MAX_ARTIFACT ((uint64_t)8 << 30) /* schema 2's default */

/* What all three share. */
struct pkg_write_how {
    unsigned jobs;           /* threads; 0: one for each processor */
    bool resume;             /* the folder may hold a part of the work: what is right is kept */
    FILE *progress;          /* where a bar is drawn, or NULL */
    bool (*cancelled)(void); /* asked between pieces of work, or NULL */
};

struct pkg_write_options {
    struct pkg_write_how how;
    const char *out_dir; /* must be absent or empty, unless resumed */
    struct pkg_identity_request identity;
    unsigned schema;             /* 1 or 2; 0 means 1 */
    uint64_t max_artifact_bytes; /* schema 2; 0: PKG_WRITE_MAX_ARTIFACT */
    bool slim;                   /* schema 1: only shared/metadata.gguf carries the whole metadata */
    const char *abi_version;     /* NULL: PKG_MANIFEST_ABI */
    const char *generation_file; /* a publisher's own block; NULL: what the model's metadata and tensors prove */
    const char *projectors[PKG_WRITE_PROJECTORS];
    size_t n_projectors;
    const char *after_command;                  /* run after each file, or NULL */
    bool no_card;                               /* leave README.md out */
    void (*note)(void *user, const char *text); /* told what the publisher should know, or NULL */
    void *note_user;
};

struct pkg_write_result {
    struct pkg_identity identity;
    uint32_t layer_count;
    size_t file_count;         /* fragments, projectors and the manifest */
    size_t kept_count;         /* of these, how many were there already */
    uint64_t total_bytes;      /* of all of them */
    uint64_t replicated_bytes; /* payload of tensors that every part holds, beyond the first copy */
    char manifest_sha256[DIGEST_HEX];
    json_t *manifest; /* owned by the caller: json_decref */
};

/* source: a GGUF file or any member of a split set. */
strata_err pkg_write(const char *source, const struct pkg_write_options *opt, struct pkg_write_result *out,
                     struct strata_errmsg *em);

/* One slice of a model as one file. */
struct pkg_write_slice {
    struct pkg_range range;
    uint32_t stage_index;
    bool embeddings, output; /* also implied by a range that starts at 0 or ends with the last layer */
    const char *out;         /* never a name of a split set's member; never the source */
    const char *manifest;    /* a one-stage slice manifest is written here, or NULL */
};

strata_err pkg_write_slice(const char *source, const struct pkg_write_slice *slice, const struct pkg_write_how *how,
                           json_t **report, struct strata_errmsg *em);

/* stage-NNN.gguf for each range, and slice-manifest.json, in out_dir. *manifest is that document (json_decref). */
strata_err pkg_write_stages(const char *source, const struct pkg_range *ranges, uint32_t n_stages, const char *out_dir,
                            const struct pkg_write_how *how, json_t **manifest, struct strata_errmsg *em);

#endif
