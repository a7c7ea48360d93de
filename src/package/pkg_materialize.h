/*
 * Merges the parts that a layer range needs into one GGUF file: a derived cache for programs that load single files. It
 * is never a part of a package, never a member of a split set, and never published.
 *
 * Tensors are copied byte for byte, after every part was verified against the manifest. Metadata is that of the
 * metadata part, pair by pair and in its order, without what a fragment says about itself (skippy.slice.*,
 * skippy.package.*), and with skippy.package.materialized = true and skippy.package.part_count at the end. Tensors
 * stand in the order of the carrier (schema 2), or in one that keeps each part's own (schema 1).
 */
#ifndef PKG_MATERIALIZE_H
#define PKG_MATERIALIZE_H

#include "base/digest.h"
#include "package/pkg_model.h"

struct pkg_materialize_options {
    struct pkg_range range;
    const char *out;         /* atomic: it appears when it is whole, over what was there */
    FILE *progress;          /* where bars are drawn, or NULL */
    bool (*cancelled)(void); /* asked between pieces of work, or NULL */
};

struct pkg_materialize_result {
    struct pkg_range range; /* resolved */
    size_t part_count;      /* merged parts, the metadata included */
    size_t tensor_count;
    uint64_t tensor_bytes, file_bytes;
    char sha256[DIGEST_HEX];
};

/* package: a folder, or its model-package.json. */
strata_err pkg_materialize(const char *package, const struct pkg_materialize_options *opt,
                           struct pkg_materialize_result *out, struct strata_errmsg *em);

#endif
