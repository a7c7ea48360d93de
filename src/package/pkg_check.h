/*
 * Preflight: everything that can be known about a package without running it, every fault listed.
 *
 * Looks at the manifest; at each file's place, presence, size and (unless told otherwise) SHA-256; at each fragment's
 * header, tensors and slice keys; at what must agree between fragments, with the manifest and with the generation
 * block; at the signature; and at files that nothing uses. Nothing is changed. Files are looked at in parallel;
 * whatever the size of the package, a few MiB of it are in memory at a time.
 *
 * Life cycle: pkg_check_run, any number of questions, pkg_check_deinit.
 */
#ifndef PKG_CHECK_H
#define PKG_CHECK_H

#include "package/pkg_carrier.h"
#include "package/pkg_inventory.h"
#include "package/pkg_manifest.h"
#include "package/pkg_part.h"
#include "package/pkg_select.h"
#include "package/pkg_sign.h"

#include <stdio.h>

/* What a publisher may put beside the parts: a validation result, see pkg_validate_package.h. */
#define PKG_CHECK_VALIDATION_FILE "validation.json"

enum { PKG_CHECK_TENSOR_NAME = 64, PKG_CHECK_NAME = 128 };

struct pkg_check_options {
    bool skip_digests;
    unsigned jobs;                               /* threads; 0: as many as there are processors */
    const struct ed25519_pub *require_signature; /* a fault unless this key signed the package; or NULL */
    FILE *progress;                              /* where a bar is drawn, or NULL */
    bool (*cancelled)(void);                     /* asked every few milliseconds, or NULL */
};

struct pkg_check_item {
    const struct pkg_artifact *artifact; /* view into the report's manifest */
    bool present;
    bool opened; /* its header could be read */
    bool has_slice_keys;
    uint64_t actual_bytes;
    bool digest_checked, digest_ok;
    struct gguf_tensor *tensors; /* owned; without data, for the file is closed; offset counts from its start */
    char (*names)[PKG_CHECK_TENSOR_NAME]; /* owned; what the tensors' names point to */
    size_t n_tensors;
};

struct pkg_check_stage {
    struct pkg_range range;
    bool embeddings, output; /* among its parts are the embeddings, the output; in schema 2: it needs such tensors */
    size_t *parts;           /* owned; items, in the order in which they are listed */
    size_t n_parts;
    uint64_t bytes; /* of those parts that are there */
};

struct pkg_check_report {
    char *dir;                     /* owned */
    struct pkg_manifest *manifest; /* owned; NULL when it could not be read at all */
    struct pkg_faults faults;
    struct pkg_check_item *items; /* owned; one for each artifact of the manifest */
    size_t n_items;
    uint64_t checked_bytes;     /* of the files that are there */
    struct pkg_part meta;       /* the first item, kept open; its reader is NULL when it could not be read */
    struct pkg_carrier carrier; /* schema 2; its reader is NULL when it is faulty */
    struct pkg_inventory inv;   /* every tensor of the model that could be found; its meta is NULL without any */
    struct pkg_select select;   /* what the tensors say: tied embeddings, MTP layers */
    bool complete;              /* every part of the model could be read */
    struct pkg_signature signature;
    json_t *generation;             /* owned; the generation block as reports show it, or NULL */
    struct pkg_check_stage *stages; /* owned; see pkg_check_stages */
    size_t n_stages;
};

/*
 * path: a package's folder or its model-package.json. An unsound package, or none at all, is a report with errors, not
 * a failure of this function, which fails without memory or when it is cancelled. The report must be freed with
 * pkg_check_deinit after success.
 */
strata_err pkg_check_run(const char *path, const struct pkg_check_options *opt, struct pkg_check_report *out,
                         struct strata_errmsg *em);
void pkg_check_deinit(struct pkg_check_report *r);

bool pkg_check_is_valid(const struct pkg_check_report *r);

/* Whether the package can be cut into so many stages; adds the fault when not. */
bool pkg_check_can_divide(struct pkg_check_report *r, uint64_t n_stages);
/* Lists what each of the ranges, which cover the model, needs: fills r->stages. */
strata_err pkg_check_stages(struct pkg_check_report *r, const struct pkg_range *ranges, size_t n,
                            struct strata_errmsg *em);
/* "metadata", "embeddings", "output", "layer:7", "projector"; in schema 2 the artifact's id. Returns out. */
const char *pkg_check_part_name(const struct pkg_check_report *r, size_t item, char out[PKG_CHECK_NAME]);

/* A new JSON object; the caller frees it with json_decref. older: exactly the keys of the tool that schema 1 comes
 * from, and errors alone, for it knows no other severity. */
strata_err pkg_check_to_json(const struct pkg_check_report *r, bool older, json_t **out, struct strata_errmsg *em);

#endif
