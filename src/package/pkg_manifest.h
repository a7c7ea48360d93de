/*
 * model-package.json of schema version 1 or 2: bytes in, struct out.
 *
 * One parser serves both callers: a check that lists every fault (pkg_manifest_check), and a loader that wants a
 * package without any (pkg_manifest_parse, pkg_manifest_load). Both are pure but for the latter, which reads the file.
 * Keys that are not known are ignored in schema 1, as the standard asks (a note tells of them), and errors in schema 2.
 * All strings are views into the JSON document, which the manifest owns; nothing outlives pkg_manifest_free.
 *
 * Both schemas become one list of artifacts. They differ in how the tensors outside the layers are kept: schema 1 has
 * an embeddings and an output part, schema 2 one or more common parts; and in schema 2 a large layer may have several
 * parts.
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

enum pkg_role {
    PKG_ROLE_METADATA,   /* exactly one, the first artifact */
    PKG_ROLE_EMBEDDINGS, /* schema 1 */
    PKG_ROLE_OUTPUT,     /* schema 1 */
    PKG_ROLE_COMMON,     /* schema 2: every tensor that is in no layer */
    PKG_ROLE_LAYER,
    PKG_ROLE_PROJECTOR,
    PKG_ROLE_PUBLISHER /* schema 2: a file of the publisher's, such as config.json; no GGUF */
};
enum { PKG_SHARED_COUNT = 3 }; /* schema 1: the first three roles are single files */

const char *pkg_role_name(enum pkg_role role);

struct pkg_artifact {
    enum pkg_role role;
    uint32_t layer;   /* of PKG_ROLE_LAYER */
    const char *id;   /* of schema 2, else NULL */
    const char *kind; /* of PKG_ROLE_PROJECTOR */
    const char *path; /* relative to the package's folder; NULL when the entry is missing or unsafe */
    bool has_counts;  /* the next two are stated (schema 1) */
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
    const char *path; /* schema 2 has none: its primary_file */
    uint8_t sha256[DIGEST_BYTES];
    const char *repo, *revision, *primary_file, *canonical_ref, *distribution_id; /* NULL when absent */
    struct pkg_source_file *files;
    size_t n_files;
};

struct pkg_manifest {
    json_t *root;
    char sha256[DIGEST_HEX]; /* of the file's bytes, lower-case */
    unsigned schema;         /* 1 or 2 */
    const char *package_id;  /* schema 2, else NULL */
    const char *model_id;
    struct pkg_source_model source;
    uint32_t layer_count;
    uint32_t activation_width; /* 0 when absent */
    const json_t *generation;  /* view, or NULL: pkg_generation interprets it */
    /* Ordered by role, then layer, then part. Schema 1 has an entry for each shared part and each layer, even one that
     * the document lacks (its path is NULL then). */
    struct pkg_artifact *artifacts;
    size_t n_artifacts;
    size_t *layer_at; /* layer_count + 1 indices into artifacts: where each layer's parts start, and the end */
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

/* The first artifact of a role other than PKG_ROLE_LAYER, or NULL. */
const struct pkg_artifact *pkg_manifest_shared(const struct pkg_manifest *m, enum pkg_role role);

/* The parts of a layer (one in schema 1; none when the document lacks it), which must be below layer_count. */
const struct pkg_artifact *pkg_manifest_layer(const struct pkg_manifest *m, uint32_t layer, size_t *n_parts);

#endif
