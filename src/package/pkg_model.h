/*
 * A model opened for one half-open layer range: the one door through which the engine sees weights.
 *
 * The path is a layer package (a folder, or its model-package.json) or a plain GGUF file (or a member of a split set).
 * From a package of either schema only the parts that the range needs are opened and mapped (see pkg_select.h): in
 * schema 1 metadata, the layers of the range, embeddings for the first stage (and where else they are used), output for
 * the last stage; in schema 2 the carrier, and the parts where it places a tensor of the range. From a plain file
 * everything is mapped, and the lookups below still answer only for tensors that belong to the range, so that a stage
 * behaves the same for both. Sizes are always checked against the manifest; digests when PKG_MODEL_VERIFY is given.
 */
#ifndef PKG_MODEL_H
#define PKG_MODEL_H

#include "base/digest.h"
#include "base/progress.h"
#include "gguf/gguf_reader.h"
#include "package/pkg_select.h" /* struct pkg_range */
#include "package/pkg_sign.h"

struct pkg_model;

enum {
    PKG_MODEL_VERIFY = 1,       /* hash every selected part and compare with the manifest */
    PKG_MODEL_METADATA_ONLY = 2 /* identity and metadata, no tensors; the range is not looked at and stays empty */
};

struct pkg_model_options {
    struct pkg_range range;
    unsigned flags;
    FILE *progress; /* where a verification bar is drawn, or NULL */
    /* Refuse anything but a package with a good signature by this key, or NULL. Implies PKG_MODEL_VERIFY: the signature
     * covers the parts through the digests in the manifest. */
    const struct ed25519_pub *require_signature;
};

/* Errors name the file and, for a bad range, the number of layers there are. */
strata_err pkg_model_open(const char *path, const struct pkg_model_options *opt, struct pkg_model **out,
                          struct strata_errmsg *em);
void pkg_model_free(struct pkg_model *m);

/* Metadata: of the plain file's first shard, or of shared/metadata.gguf. */
const struct gguf_reader *pkg_model_meta(const struct pkg_model *m);
/* Blocks in the whole model (highest blk index + 1), and the range that was opened, resolved. */
uint32_t pkg_model_layer_count(const struct pkg_model *m);
struct pkg_range pkg_model_range(const struct pkg_model *m);
bool pkg_model_is_package(const struct pkg_model *m);
/* Parts of a package that are open, the metadata included. */
size_t pkg_model_part_count(const struct pkg_model *m);
/* View; NULL for a plain file. */
const struct pkg_manifest *pkg_model_manifest(const struct pkg_model *m);
/* Identity for the hand-shake of stages: SHA-256 of model-package.json, lower-case hex; "" for a plain file. */
const char *pkg_model_manifest_sha256(const struct pkg_model *m);
/*
 * The same for both kinds, and whatever range is open: SHA-256 of model-package.json, which has the digest of every
 * part; of a plain file's shards the headers, sizes, and 64 samples of the weights, which tells models apart that
 * differ in nothing but their training.
 */
strata_err pkg_model_identity(const struct pkg_model *m, uint8_t out[DIGEST_BYTES], struct strata_errmsg *em);
/* What the package's signature turned out to be; NULL for a plain file. */
const struct pkg_signature *pkg_model_signature(const struct pkg_model *m);
/* A name for people and for the API: model_id of a package, general.name or the file's stem of a plain file. */
const char *pkg_model_id(const struct pkg_model *m);

/* A tensor of the range, or NULL. Its data is a view into a read-only map that lives as long as m. */
const struct gguf_tensor *pkg_model_find(const struct pkg_model *m, const char *name);
size_t pkg_model_tensor_count(const struct pkg_model *m);
const struct gguf_tensor *pkg_model_tensor(const struct pkg_model *m, size_t i);
/* Payload bytes of the tensors of the range: this stage's share of the weights. */
uint64_t pkg_model_tensor_bytes(const struct pkg_model *m);

/*
 * Weight bytes of every layer of the whole model (from the manifest, or the tensor table), without opening the parts:
 * what a coordinator cuts by. sizes has layer_count entries; embedding / output bytes are what the first / last stage
 * adds.
 */
strata_err pkg_model_layer_sizes(const char *path, uint64_t **sizes, uint32_t *layer_count, uint64_t *embedding_bytes,
                                 uint64_t *output_bytes, struct strata_errmsg *em);

#endif
