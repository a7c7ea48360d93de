/*
 * Preflight: everything that can be known about a package without running it, every fault listed.
 *
 * Looks at the manifest, at each file's presence, size and (unless told otherwise) SHA-256, at each fragment's GGUF
 * header, and at what must agree between them. Nothing is changed.
 */
#ifndef PKG_CHECK_H
#define PKG_CHECK_H

#include "package/pkg_manifest.h"

#include <stdio.h>

struct pkg_check_options {
    bool skip_digests;
    FILE *progress;          /* where a bar is drawn, or NULL */
    bool (*cancelled)(void); /* asked between files, or NULL */
};

struct pkg_check_item {
    const struct pkg_artifact *artifact; /* view into the report's manifest */
    bool present;
    uint64_t actual_bytes;
    bool digest_checked, digest_ok;
};

struct pkg_check_report {
    char *dir;                     /* owned */
    struct pkg_manifest *manifest; /* owned; NULL when it could not be read at all */
    struct pkg_faults faults;
    struct pkg_check_item *items; /* owned; one for each artifact of the manifest */
    size_t n_items;
    uint64_t checked_bytes; /* of the files that are there */
};

/*
 * path: a package's folder or its model-package.json. An unsound package is a report with errors, not a failure of this
 * function. The report must be freed with pkg_check_deinit after success.
 */
strata_err pkg_check_run(const char *path, const struct pkg_check_options *opt, struct pkg_check_report *out,
                         struct strata_errmsg *em);
void pkg_check_deinit(struct pkg_check_report *r);

bool pkg_check_is_valid(const struct pkg_check_report *r);

/* A new JSON object; the caller frees it with json_decref. */
strata_err pkg_check_to_json(const struct pkg_check_report *r, json_t **out, struct strata_errmsg *em);

#endif
