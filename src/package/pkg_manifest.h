/*
 * model-package.json of schema version 1: bytes in, struct out.
 *
 * One parser serves both callers: a check that lists every fault (pkg_manifest_check), and a loader that wants a
 * package without any (pkg_manifest_parse, pkg_manifest_load). Both are pure but for the latter, which reads the file.
 * Keys that are not known are ignored, as the standard asks. All strings are views into the JSON document, which
 * the manifest owns; nothing outlives pkg_manifest_free.
 */
#ifndef PKG_MANIFEST_H
#define PKG_MANIFEST_H

#include "base/digest.h"
#include "package/pkg_fault.h"

#include <stdint.h>

#define PKG_MANIFEST_FILE "model-package.json"
#define PKG_MANIFEST_FORMAT "layer-package"

enum {
    PKG_MANIFEST_MAX_BYTES = 16 << 20, /* the standard's limit for transfers, used everywhere */
    PKG_MANIFEST_MAX_LAYERS = 100000   /* what five digits can number */
};

/*
 * The version of the fragment layout. 0.1.25 is the oldest that readers of schema 1 are known to accept, so packages
 * that carry it are read by all of them; a reader accepts an equal major and an equal or lower minor number.
 */
#define PKG_MANIFEST_ABI "0.1.25"
enum { PKG_MANIFEST_ABI_MAJOR = 0, PKG_MANIFEST_ABI_MINOR = 1 };

enum pkg_role { PKG_ROLE_METADATA, PKG_ROLE_EMBEDDINGS, PKG_ROLE_OUTPUT, PKG_ROLE_LAYER, PKG_ROLE_PROJECTOR };
enum { PKG_SHARED_COUNT = 3 }; /* the first three roles are single files */

const char *pkg_role_name(enum pkg_role role);

struct pkg_artifact {
    enum pkg_role role;
    uint32_t layer;   /* of PKG_ROLE_LAYER */
    const char *kind; /* of PKG_ROLE_PROJECTOR */
    const char *path; /* relative to the package's folder; NULL when the entry is missing or unsafe */
    uint64_t tensor_count;
    uint64_t tensor_bytes; /* payload without padding */
    uint64_t artifact_bytes;
    bool has_sha256;
    uint8_t sha256[DIGEST_BYTES];
};

struct pkg_source_file {
    const char *path;
    bool has_size, has_sha256;
    uint64_t size_bytes;
    uint8_t sha256[DIGEST_BYTES];
};

struct pkg_source_model {
    const char *path;
    uint8_t sha256[DIGEST_BYTES];
    const char *repo, *revision, *primary_file, *canonical_ref, *distribution_id; /* NULL when absent */
    struct pkg_source_file *files;
    size_t n_files;
};

struct pkg_manifest {
    json_t *root;
    char sha256[DIGEST_HEX]; /* of the file's bytes, lower-case */
    const char *model_id;
    struct pkg_source_model source;
    uint32_t layer_count;
    uint32_t activation_width; /* 0 when absent */
    const json_t *generation;  /* view, or NULL: carried along, not interpreted here */
    struct pkg_artifact shared[PKG_SHARED_COUNT];
    struct pkg_artifact *layers; /* layer_count of them, by index */
    struct pkg_artifact *projectors;
    size_t n_projectors;
    const char *abi_version;
    uint64_t created_at; /* seconds since 1970; 0 when absent */
};

/*
 * Parses and adds every fault to `faults`. *out is set (and must be freed) when the document is an object of a known
 * schema version, else NULL; with errors in the list, fields may be NULL or 0 and entries may lack a path.
 * The result is an error only when memory runs out.
 */
strata_err pkg_manifest_check(const void *data, size_t len, struct pkg_faults *faults, struct pkg_manifest **out,
                              struct strata_errmsg *em);

/* Parses and refuses any fault of severity error. name is for messages. */
strata_err pkg_manifest_parse(const void *data, size_t len, const char *name, struct pkg_manifest **out,
                              struct strata_errmsg *em);

/* Reads and parses <dir>/model-package.json. */
strata_err pkg_manifest_load(const char *dir, struct pkg_manifest **out, struct strata_errmsg *em);

void pkg_manifest_free(struct pkg_manifest *m);

/* All artifacts as one sequence: shared, layers, projectors. NULL at the end. */
const struct pkg_artifact *pkg_manifest_artifact(const struct pkg_manifest *m, size_t i);

#endif
