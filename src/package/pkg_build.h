/*
 * Builds the document of model-package.json from what was written. The inverse of pkg_manifest.
 *
 * Keys stand in the order of the standard's example, so that the same facts give the same bytes.
 */
#ifndef PKG_BUILD_H
#define PKG_BUILD_H

#include "package/pkg_emit.h"
#include "package/pkg_manifest.h"

struct pkg_build {
    const char *model_id;
    struct pkg_source_model source; /* path, digests, files; texts may be NULL */
    const struct pkg_cut *cut;
    const struct pkg_emitted *pieces; /* one for each piece of the cut */
    const struct pkg_copy *copies;    /* projectors */
    const struct pkg_emitted *copied;
    size_t n_copies;
    uint32_t activation_width;
    const json_t *generation; /* or NULL */
    const char *abi_version;
    uint64_t created_at;
};

/* Schema 1. *out is freed by json_decref. */
strata_err pkg_build_manifest(const struct pkg_build *b, json_t **out, struct strata_errmsg *em);
/* Schema 2, in pkg_build2.c; generator is "name version". */
strata_err pkg_build_manifest2(const struct pkg_build *b, const char *generator, json_t **out,
                               struct strata_errmsg *em);

/* The document as the file's text: indented by two, one line feed at the end. text must be empty, with a maximum of
 * PKG_MANIFEST_MAX_BYTES. */
strata_err pkg_build_text(const json_t *manifest, struct buf *text, struct strata_errmsg *em);

/*
 * Ends a package: writes the model card (with_card) and then the manifest, each atomically. The manifest's text is read
 * back first: what a reader would refuse must not be published. The card names the manifest's digest, hence is made
 * from that text, too.
 */
strata_err pkg_build_finish(const json_t *manifest, const char *dir, bool with_card, char sha256[DIGEST_HEX],
                            uint64_t *bytes, struct strata_errmsg *em);

/* Seconds since 1970 for created_at: SOURCE_DATE_EPOCH when set, else the clock. */
strata_err pkg_build_time(uint64_t *out, struct strata_errmsg *em);

/* For the builders: sets key to a string (nothing when it is NULL or empty), a number, a digest. */
strata_err pkg_build_str(json_t *obj, const char *key, const char *text, struct strata_errmsg *em);
strata_err pkg_build_num(json_t *obj, const char *key, uint64_t v, struct strata_errmsg *em);
strata_err pkg_build_hex(json_t *obj, const char *key, const uint8_t sum[DIGEST_BYTES], struct strata_errmsg *em);
/* Puts a new child under key (or at the end of an array, with key NULL) and returns it as a view; NULL without memory.
 */
json_t *pkg_build_nest(json_t *parent, const char *key, json_t *child);

#endif
