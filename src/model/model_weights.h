/*
 * The weights of one layer range, as ggml tensors.
 *
 * Nothing ever writes to the pages that pkg_model mapped; model_place.h says what stays there and what is copied. An
 * architecture claims each tensor by name with the shape it must have; what is claimed is checked (presence, type,
 * shape) before ggml sees it, and a tensor of the range that nobody claimed is an error, because ignoring a weight
 * gives wrong numbers without a word.
 */
#ifndef MODEL_WEIGHTS_H
#define MODEL_WEIGHTS_H

#include "base/progress.h"
#include "model/model_backend.h"
#include "model/model_hparams.h"
#include "package/pkg_model.h"

#include <ggml.h>

#define MODEL_NO_LAYER UINT32_MAX

/* A product with its bias and its per-tensor scale; NULL when the file has none. */
struct model_linear {
    struct ggml_tensor *w;
    struct ggml_tensor *b;
    struct ggml_tensor *scale;
    bool wide; /* sums overflow half precision: devices that would add up in it must not */
};

/* Slots of one layer; each architecture fills those it has. */
struct model_layer {
    struct ggml_tensor *attn_norm, *attn_post_norm;
    struct ggml_tensor *ffn_norm, *ffn_post_norm;
    struct model_linear q, k, v, qkv, o;
    struct ggml_tensor *q_norm, *k_norm; /* per head, before the rotation */
    struct ggml_tensor *sinks;           /* one logit a head that takes part in the softmax and has no value */
    struct model_linear gate, up, down;
    /* Mixture of experts: */
    struct model_linear router;
    struct ggml_tensor *router_bias; /* counts for the selection, not for the weights */
    struct model_linear gate_exps, up_exps, down_exps;
    struct model_linear gate_up_exps; /* instead of gate_exps and up_exps: the rows of the gate come first */
    struct model_linear gate_shared, up_shared, down_shared;
    /* Multi-head latent attention: */
    struct model_linear q_a, q_b, kv_a, kv_b;
    struct ggml_tensor *q_a_norm, *kv_a_norm, *k_b, *v_b;
    /* Short convolution: */
    struct model_linear conv_in, conv_out;
    struct ggml_tensor *conv;
    /* Matrices that lie side by side, seen as one: one product instead of two. qkv holds q's rows, and then k's, v's or
     * both; it is a file's own when there is no q beside it. To be used only where model_weights_are_joined. */
    struct ggml_tensor *gate_up, *gate_up_shared;
    bool qkv_has_k, qkv_has_v;
};

struct model_placed; /* a tensor and where its bytes are */
struct model_copy;   /* one that was copied */

struct model_weights {
    struct pkg_range range;
    struct model_layer *layer;       /* range.end - range.first entries */
    struct ggml_tensor *token_embd;  /* first stage, and last when tied; else NULL */
    struct ggml_tensor *output_norm; /* last stage */
    struct model_linear output;      /* last stage; token_embd when tied */
    struct ggml_tensor *rope_freqs, *rope_long, *rope_short;
    uint64_t bytes;          /* of all claimed tensors */
    uint64_t copied_bytes;   /* of these, copied as they are */
    uint64_t repacked_bytes; /* of these, copied in the kernels' order; see model_repack.h */
    uint64_t uploaded_bytes; /* of these, copied to a device with memory of its own */
    uint64_t both_bytes;     /* of these, on the device and in main memory: the table of a tied model */
    struct model_copy *copy; /* those that are made at load, then those that wait, layer by layer */
    size_t n_copies;
    size_t n_settled; /* of these, those that the tensors lie in */
    size_t n_pieces;  /* pieces that were made of the next ones */
    /* Owned: */
    struct ggml_context *ctx;
    ggml_backend_buffer_t *buffers;
    size_t n_buffers;
};

/* While loading: what an architecture's load function works with. */
struct model_loader {
    const struct pkg_model *pkg;
    struct pkg_range range; /* of layers that are run: blocks beyond the trunk are left out */
    const struct model_hparams *hp;
    const struct model_backend *backend;
    struct model_weights *weights;
    struct model_placed *placed;
    size_t n_placed, cap_placed;
    size_t max_tensors;       /* room in ctx */
    struct progress progress; /* of looking at and copying what stays in main memory */
    bool is_first, is_last;
};

/* Prepares an empty set for a range that lies inside that of pkg. */
strata_err model_weights_begin(struct model_loader *ld, struct model_weights *w, const struct pkg_model *pkg,
                               struct pkg_range range, const struct model_hparams *hp,
                               const struct model_backend *backend, struct strata_errmsg *em);
/*
 * Checks that every tensor was claimed, and that all values are numbers (a NaN is refused by the tensor's name); places
 * the bytes. Call model_loader_deinit whatever happens. With a backend that only measures, the bytes are counted and
 * not looked at, and the tensors cannot be computed with.
 */
strata_err model_weights_finish(struct model_loader *ld, struct strata_errmsg *em);
void model_loader_deinit(struct model_loader *ld);
void model_weights_deinit(struct model_weights *w);
/*
 * With a backend that settles later, weights that are copied as they are stay in the file's pages at first, where they
 * give the same numbers: a first token need not wait for their copies. model_weights_settle makes some more of them,
 * about `bytes`, layer by layer, and at last those of what lies outside the layers. Returns whether a layer became
 * whole: its tensors lie elsewhere then, and matrices are joined, so that graphs that were built before must not be
 * computed any more.
 */
bool model_weights_settle(struct model_weights *w, uint32_t n_threads, uint64_t bytes);
bool model_weights_are_settled(const struct model_weights *w);

/* The name of a tensor of a layer (MODEL_NO_LAYER: outside the layers) that holds NaN or infinite values, or NULL.
 * Reads them all. */
const char *model_weights_damaged(const struct model_weights *w, uint32_t layer);

/* Claims. `name` is completed to "blk.<layer>.<name>", or taken as it is with MODEL_NO_LAYER. */

/* An F32 vector of n elements. */
strata_err model_weights_vector(struct model_loader *ld, uint32_t layer, const char *name, uint64_t n, bool required,
                                struct ggml_tensor **out, struct strata_errmsg *em);
/* An F32 table of n rows of `width` numbers. */
strata_err model_weights_table(struct model_loader *ld, uint32_t layer, const char *name, uint64_t width, uint64_t n,
                               bool required, struct ggml_tensor **out, struct strata_errmsg *em);
/* A matrix of any type that the backend can use: for products, or (rows) for look-ups, which the CPU does. */
strata_err model_weights_matrix(struct model_loader *ld, uint32_t layer, const char *name, uint64_t n_in,
                                uint64_t n_out, bool rows, bool required, struct ggml_tensor **out,
                                struct strata_errmsg *em);
/* "<name>.weight", and when there are "<name>.bias" and "<name>.scale"; "<name>.input_scale" is checked and left
 * unused: it matters only to kernels that also quantize their input, which ggml's CPU backend has none of. */
strata_err model_weights_linear(struct model_loader *ld, uint32_t layer, const char *name, uint64_t n_in,
                                uint64_t n_out, bool required, struct model_linear *out, struct strata_errmsg *em);
/* A matrix for each of n (heads, say): [n_in, n_out, n]. */
strata_err model_weights_stack(struct model_loader *ld, uint32_t layer, const char *name, uint64_t n_in, uint64_t n_out,
                               uint64_t n, bool required, struct ggml_tensor **out, struct strata_errmsg *em);
/* "<name>.weight" [n_in, n_out, n_expert], and when there are "<name>.bias" [n_out, n_expert] and "<name>.scale"
 * [n_expert]. */
strata_err model_weights_experts(struct model_loader *ld, uint32_t layer, const char *name, uint64_t n_in,
                                 uint64_t n_out, uint64_t n_expert, bool required, struct model_linear *out,
                                 struct strata_errmsg *em);
/* A tensor that files carry and the architecture has no use for; no error when absent. */
strata_err model_weights_ignore(struct model_loader *ld, uint32_t layer, const char *name, struct strata_errmsg *em);

/*
 * Sees n matrices, 2 or 3, as one with the rows of all: when all are of one type and without scales, and lie side by
 * side in the file or can be copied so. NULL when they cannot be joined, or are to be copied to a device. Row by row
 * the products are the same, bit for bit; biases stay with the parts.
 */
struct ggml_tensor *model_weights_join(struct model_loader *ld, const struct model_linear *const *part, int n);
/* Whether `all`, from model_weights_join or NULL, can be multiplied with: its parts, of which `first` is the first one,
 * may wait in the file's pages for their copies. A file's own matrix of several has no first part (NULL). */
bool model_weights_are_joined(const struct ggml_tensor *all, const struct ggml_tensor *first);

#endif
