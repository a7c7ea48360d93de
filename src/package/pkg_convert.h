/*
 * Turns a package of one schema into one of the other.
 *
 * Every part of the source package is verified against its manifest first. Each tensor is copied byte for byte; the
 * source's identity, the digests of its source files and the generation block go along, as far as the other schema has
 * a place for them. The time of creation stays that of the source package, so that the same package gives the same
 * bytes; a package that Strata wrote, converted and converted back, has its own fragments again, byte for byte.
 */
#ifndef PKG_CONVERT_H
#define PKG_CONVERT_H

#include "base/digest.h"
#include "base/jsonx.h"
#include "package/pkg_write.h"

struct pkg_convert_options {
    struct pkg_write_how how;
    const char *out_dir;                        /* must be absent or empty, unless resumed; not inside a package */
    unsigned to_schema;                         /* 1 or 2; not that of the source */
    uint64_t max_artifact_bytes;                /* to schema 2; 0: PKG_WRITE_MAX_ARTIFACT */
    bool slim;                                  /* to schema 1; see pkg_write_options */
    bool no_card;                               /* leave README.md out */
    void (*note)(void *user, const char *text); /* told what is left behind, or NULL */
    void *note_user;
};

struct pkg_convert_result {
    unsigned from_schema;
    size_t file_count;    /* fragments, projectors and the manifest */
    uint64_t total_bytes; /* of all of them */
    char manifest_sha256[DIGEST_HEX];
    json_t *manifest; /* owned by the caller: json_decref */
};

/* package: a folder, or its model-package.json. */
strata_err pkg_convert(const char *package, const struct pkg_convert_options *opt, struct pkg_convert_result *out,
                       struct strata_errmsg *em);

#endif
