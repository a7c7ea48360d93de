/*
 * Cuts a GGUF model into a layer package of schema version 1.
 *
 * Each source byte is read from the map of its own shard and written once; fragments are hashed while they are written,
 * the shards by a second thread meanwhile. Every file appears under its final name only when it is whole and on the
 * disk, the manifest last: a folder with a manifest is a complete package. On failure all that was written is
 * removed again. The same source and options give the same bytes, apart from created_at_unix_secs, for which
 * SOURCE_DATE_EPOCH is honoured.
 */
#ifndef PKG_WRITE_H
#define PKG_WRITE_H

#include "base/digest.h"
#include "base/jsonx.h"
#include "package/pkg_identity.h"

#include <stdio.h>

struct pkg_write_options {
    const char *out_dir; /* must be absent or empty */
    struct pkg_identity_request identity;
    FILE *progress;          /* where a bar is drawn, or NULL */
    bool (*cancelled)(void); /* asked between pieces of work, or NULL */
};

struct pkg_write_result {
    struct pkg_identity identity;
    uint32_t layer_count;
    size_t file_count;         /* the manifest included */
    uint64_t total_bytes;      /* of all files, the manifest included */
    uint64_t replicated_bytes; /* payload of tensors that every part holds, beyond the first copy */
    char manifest_sha256[DIGEST_HEX];
    json_t *manifest; /* owned by the caller: json_decref */
};

/* source: a GGUF file or any member of a split set. */
strata_err pkg_write(const char *source, const struct pkg_write_options *opt, struct pkg_write_result *out,
                     struct strata_errmsg *em);

#endif
