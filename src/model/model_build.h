/*
 * Building blocks of graphs, shared by all architectures.
 *
 * A model_build describes one graph under construction: its shape (tokens of the batch, cells of the cache that it
 * looks at, rows of output wanted) and its inputs. An architecture's build_layer calls these blocks in the order of its
 * own layer. Everything was validated when the weights were loaded; ggml aborts on shapes that do not fit, so nothing
 * here may depend on numbers that were not checked.
 */
#ifndef MODEL_BUILD_H
#define MODEL_BUILD_H

#include "model/model_hparams.h"
#include "model/model_kv.h"
#include "model/model_weights.h"

#include <ggml.h>

struct model_build {
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    const struct model_hparams *hp;
    const struct model_weights *w;
    const struct model_kv *kv;
    int rope_mode;               /* GGML_ROPE_TYPE_* of the architecture */
    struct ggml_tensor *factors; /* frequency factors of the rotation, or NULL */
    uint32_t n_tokens;
    uint32_t n_kv;  /* cells looked at: a multiple of MODEL_KV_STEP */
    uint32_t n_out; /* rows that leave the last layer: n_tokens, 1 or 0 */
    /* Inputs: */
    struct ggml_tensor *tokens; /* I32 [n_tokens], first stage */
    struct ggml_tensor *hidden; /* F32 [n_embd, n_tokens], other stages */
    struct ggml_tensor *pos;    /* I32 [n_tokens] */
    struct ggml_tensor *cells;  /* I64 [n_tokens]: where keys and values go */
    struct ggml_tensor *mask;   /* F16 [n_kv, n_tokens]: 0 visible, -infinity not */
};

/* rms(x) * w. */
struct ggml_tensor *model_build_norm(struct model_build *b, struct ggml_tensor *x, struct ggml_tensor *w);
/* w x * scale + bias. */
struct ggml_tensor *model_build_linear(struct model_build *b, const struct model_linear *l, struct ggml_tensor *x);
/* [dim * n_head, T] (rows may be strided) seen as heads: [dim, n_head, T]. */
struct ggml_tensor *model_build_heads(struct model_build *b, struct ggml_tensor *x, uint32_t dim, uint32_t n_head);
/* Rotates heads [dim, n_head, T], which stand at the batch's positions, or at its last ones when T is below n_tokens.
 */
struct ggml_tensor *model_build_rope(struct model_build *b, struct ggml_tensor *x);

/*
 * Whether fewer rows are wanted after layer il's attention than went in: only in the model's last layer, and so always
 * on the last stage, whatever the cut. model_build_last_rows gives the wanted rows of x (a view).
 */
bool model_build_drops_rows(const struct model_build *b, uint32_t il);
struct ggml_tensor *model_build_last_rows(struct model_build *b, struct ggml_tensor *x);

/* Writes k [dim_k, n_head_kv, T] and v [dim_v, n_head_kv, T] into layer il's cache. */
void model_build_kv_store(struct model_build *b, uint32_t il, struct ggml_tensor *k, struct ggml_tensor *v);
/*
 * Attention of q [dim_k, n_head, T'] over the cache; T' is n_tokens, or n_out for the last rows. [dim_v * n_head, T'].
 * An F16 cache is read by ggml's fused attention, twice as fast on long batches; an F32 cache, which is there for exact
 * comparisons, by separate products and softmax in F32.
 */
struct ggml_tensor *model_build_attention(struct model_build *b, uint32_t il, struct ggml_tensor *q);
/* down(silu(gate x) * up x); each product takes its bias before its scale. */
struct ggml_tensor *model_build_ffn_swiglu(struct model_build *b, const struct model_layer *l, struct ggml_tensor *x);

#endif
