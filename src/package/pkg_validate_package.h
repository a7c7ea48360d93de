/*
 * Validates a package against the model it was cut from: everything that preflight checks, and then every tensor's
 * name, type, shape and bytes, every pair of metadata, and the digests of the source's own files.
 *
 * A package that cannot be read is a report with errors, as far as it goes. One pass over the package and one over the
 * source; a few MiB of them are in memory at a time.
 * Life cycle: pkg_validate_package_run, any number of questions, pkg_validate_package_deinit.
 */
#ifndef PKG_VALIDATE_PACKAGE_H
#define PKG_VALIDATE_PACKAGE_H

#include "package/pkg_check.h"
#include "package/pkg_compare.h"

#include <stdio.h>

struct pkg_validate_package_options {
    unsigned jobs;                 /* threads; 0: as many as there are processors */
    const char *const *projectors; /* files that the package's projectors must be copies of, or NULL */
    size_t n_projectors;
    FILE *progress;          /* where a bar is drawn, or NULL */
    bool (*cancelled)(void); /* asked every few milliseconds, or NULL */
};

/* A file of the source. */
struct pkg_validate_source {
    char *name; /* owned; without its folder */
    uint64_t bytes;
    uint8_t sha256[DIGEST_BYTES];
};

struct pkg_validate_package_report {
    struct pkg_check_report check;  /* preflight's; all faults are in its list */
    struct pkg_compared *artifacts; /* owned; one for each item of check */
    size_t full_tensor_count, required_owned_count;
    uint32_t source_layer_count;
    uint32_t source_width; /* 0: the source does not state one */
    bool layer_count_matches, width_matches, source_sha256_matches;
    json_t *missing, *duplicate;               /* owned; arrays of names, sorted */
    json_t *missing_layers, *duplicate_layers; /* owned; arrays of numbers */
    struct pkg_validate_source *source;        /* owned */
    size_t n_source;
    size_t compared_count; /* tensors of the package, copies included */
    uint64_t compared_bytes;
};

/* Fails when the source itself cannot be read, without memory, or when cancelled. */
strata_err pkg_validate_package_run(const char *full, const char *package,
                                    const struct pkg_validate_package_options *opt,
                                    struct pkg_validate_package_report *out, struct strata_errmsg *em);
void pkg_validate_package_deinit(struct pkg_validate_package_report *r);

bool pkg_validate_package_is_valid(const struct pkg_validate_package_report *r);

/* A new JSON object; older: exactly the keys of the tool that schema 1 comes from. */
strata_err pkg_validate_package_to_json(const struct pkg_validate_package_report *r, bool older, json_t **out,
                                        struct strata_errmsg *em);

/*
 * Writes the result into the package as validation.json (PKG_CHECK_VALIDATION_FILE), atomically; a result is a result,
 * valid or not. EINVAL when the package has no manifest to speak of. No path of this machine gets into it:
 *   schema_version          1
 *   tool                    "strata 0.1.0"
 *   command                 "validate-package"
 *   created_at_unix_secs    SOURCE_DATE_EPOCH, or the time
 *   manifest_sha256         of the model-package.json that was validated
 *   valid                   bool
 *   layer_count, full_tensor_count, required_owned_tensor_count
 *   checked_artifact_count, checked_projector_count
 *   compared_tensor_count, compared_bytes    every one of these tensors was compared byte for byte
 *   source_files            [{path, size_bytes, sha256}]
 *   error_count, issue_count, issues         as in preflight's report
 */
strata_err pkg_validate_package_record(const struct pkg_validate_package_report *r, struct strata_errmsg *em);

#endif
