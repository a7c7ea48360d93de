/*
 * Building blocks of graphs, shared by all architectures.
 *
 * A model_build describes one graph under construction: its shape and its inputs. A batch is a list of spans, runs of
 * tokens of one sequence each. Everything but attention and convolution works on all tokens at once; those two look at
 * each sequence's own rows of the state, and attention takes neighbours of one form together (a group). An
 * architecture's build_layer calls these blocks in the order of its own layer. Everything was validated when the
 * weights were loaded; ggml aborts on shapes that do not fit, so nothing here may depend on numbers that were not
 * checked.
 *
 * Shapes: T is the number of tokens of the batch, or of the rows that are kept in the last layer.
 */
#ifndef MODEL_BUILD_H
#define MODEL_BUILD_H

#include "model/model_hparams.h"
#include "model/model_rows.h"
#include "model/model_state.h"
#include "model/model_weights.h"

#include <ggml.h>

enum { MODEL_BUILD_SPANS = 64, MODEL_BUILD_WINDOWS = 4 };

/* A run of tokens of one sequence. */
struct model_span {
    uint32_t slot;  /* whose rows of the state */
    uint32_t n;     /* tokens */
    uint32_t n_out; /* of these, the last n_out leave the model's last layer */
    uint32_t end; /* position after the last token, rounded up to MODEL_STATE_STEP: rows of state that are looked at */
};

/* Spans that attention takes in one operation: of one form, in slots that follow one another. */
struct model_group {
    uint32_t first, n; /* spans [first, first + n) */
};

/* Inputs that depend on a window: where rows go, and what each token sees. */
struct model_window {
    uint32_t window, rows;     /* as in struct model_plane */
    struct ggml_tensor *cells; /* I64 [T]: rows of the plane */
    /* Of each group, F16 [rows looked at, tokens of a span, 1, spans]: 0 visible, -infinity not. */
    struct ggml_tensor *mask[MODEL_BUILD_SPANS];
};

struct model_build {
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    const struct model_hparams *hp;
    const struct model_weights *w;
    const struct model_state *state;
    const struct model_rows *rows; /* kernels for products of few columns; none on a device */
    const struct model_attn *attn; /* and for attention of many queries */
    int rope_mode;                 /* GGML_ROPE_TYPE_* of the architecture */
    struct ggml_tensor *factors;   /* frequency factors of the rotation, or NULL */
    struct model_span span[MODEL_BUILD_SPANS];
    uint32_t n_spans;
    struct model_group group[MODEL_BUILD_SPANS]; /* made of the spans by model_build_group */
    uint32_t n_groups;
    uint32_t n_tokens;
    uint32_t n_out;                 /* rows that leave the last layer: the sum of the spans' */
    struct ggml_tensor **layer_out; /* filled with each layer's result, as outputs of the graph; NULL: not wanted */
    /* An operation that does nothing begins each layer: devices compute some neighbours as one, with another rounding,
     * and those of two layers are neighbours only where no cut is. */
    bool borders;
    /* Only to measure: matrices are multiplied as they will be when all weights have settled. */
    bool settled;
    bool name_parts; /* tensors get the name of their part: "input", "blk.<layer>", "output" */
    /* Inputs: */
    struct ggml_tensor *tokens;   /* I32 [n_tokens], first stage */
    struct ggml_tensor *hidden;   /* F32 [n_embd, n_tokens], other stages */
    struct ggml_tensor *pos;      /* I32 [n_tokens] */
    struct ggml_tensor *out_rows; /* I32 [n_out]: which tokens are kept; NULL when all are, or none */
    struct ggml_tensor *out_pos;  /* I32 [n_out]: their positions */
    /* F32 [1], an output: a sum over what the model's last layer stores, which is a number only if all of it is. NULL
     * unless rows are dropped there, for all others show in the result. */
    struct ggml_tensor *stored;
    struct model_window window[MODEL_BUILD_WINDOWS];
    uint32_t n_windows;
    /* Convolution: rows of the plane at the conv_len - 1 positions before each span, and 1 for those that exist. */
    struct ggml_tensor *conv_rows[MODEL_BUILD_SPANS]; /* I32 [conv_len - 1] */
    struct ggml_tensor *conv_keep[MODEL_BUILD_SPANS]; /* F32 [1, conv_len - 1] */
    uint32_t conv_plane_rows;                         /* rows of one slot of that plane */
};

/* rms(x) * w, over rows of x of any rank. */
struct ggml_tensor *model_build_norm(struct model_build *b, struct ggml_tensor *x, struct ggml_tensor *w);
/* w x * scale + bias. */
struct ggml_tensor *model_build_linear(struct model_build *b, const struct model_linear *l, struct ggml_tensor *x);
/* A feed-forward product: (w x + bias) * scale. */
struct ggml_tensor *model_build_ffn_linear(struct model_build *b, const struct model_linear *l, struct ggml_tensor *x);
/* [dim * n_head, T] (rows may be strided) seen as heads: [dim, n_head, T]. */
struct ggml_tensor *model_build_heads(struct model_build *b, struct ggml_tensor *x, uint32_t dim, uint32_t n_head);
/* n elements of each row of x [.., T] from element `from` on, as a view [n, T]. */
struct ggml_tensor *model_build_columns(struct model_build *b, struct ggml_tensor *x, uint32_t from, uint32_t n);
/* Rotates heads [dim, n_head, T] of layer il, at the positions of the batch or of its kept rows. */
struct ggml_tensor *model_build_rope(struct model_build *b, uint32_t il, struct ggml_tensor *x);

/*
 * Whether fewer rows are wanted after layer il's attention than went in: only in the model's last layer, and so always
 * on the last stage, whatever the cut. model_build_kept gives the kept rows of x [.., T]; n_out must be above 0.
 */
bool model_build_drops_rows(const struct model_build *b, uint32_t il);
struct ggml_tensor *model_build_kept(struct model_build *b, struct ggml_tensor *x);

/* Divides the spans into groups; the result of none of them depends on it. */
void model_build_group(struct model_build *b);

/* What attention works on. */
struct model_attention {
    struct ggml_tensor
        *q; /* [dim_k, n_head, T or kept rows]; NULL when no row is kept: then only the state is written */
    struct ggml_tensor *k; /* [dim_k, n_head_kv, T] */
    struct ggml_tensor *v; /* [dim_v, n_head_kv, T]; NULL: values are the first dim_v numbers of the keys' rows */
    uint32_t dim_v;
    float scale;               /* of q*k */
    struct ggml_tensor *sinks; /* F32 [n_head], or NULL */
};

/*
 * Writes keys and values into layer il's planes, and lets the queries look at them: [dim_v * n_head, T], or NULL
 * without queries. A cache of F32, which is there for exact comparisons, is read by separate products and softmax in
 * F32; any other one by ggml's fused attention, twice as fast on long batches.
 */
struct ggml_tensor *model_build_attention(struct model_build *b, uint32_t il, const struct model_attention *a);

/* Projections of a layer, as heads, biased, not yet rotated; q is NULL when no row is kept, else of the kept rows. */
struct model_qkv {
    struct ggml_tensor *q, *k, *v;
};
/* x is the normed input [n_embd, T]. Uses whichever of qkv, q, k, v the layer has, and q_norm, k_norm per head. */
struct model_qkv model_build_qkv(struct model_build *b, uint32_t il, struct ggml_tensor *x);

/*
 * An ordinary attention part: x is the normed input; project, norm heads, rotate, attend, project back (without the
 * residual). NULL when no row is kept.
 */
struct ggml_tensor *model_build_self_attention(struct model_build *b, uint32_t il, struct ggml_tensor *x);

enum model_act { MODEL_ACT_SILU, MODEL_ACT_GELU, MODEL_ACT_SWIGLU_OAI };

/* down(act(gate x) * up x); each product takes its bias before its scale. */
struct ggml_tensor *model_build_ffn(struct model_build *b, const struct model_layer *l, struct ggml_tensor *x,
                                    enum model_act act);

/* Routed experts, and the shared one when the layer has it. The router's rules are those of hp->moe. */
struct ggml_tensor *model_build_moe(struct model_build *b, const struct model_layer *l, struct ggml_tensor *x,
                                    enum model_act act);

/*
 * The rest of layer il once its attention, or what stands in its place, has made a of x: x + a, then x +
 * feed-forward(norm(x)), with experts where the layer has a router. Where the layer has attn_post_norm and
 * ffn_post_norm, both parts are normed before they are added. NULL when a is: no row is kept.
 */
struct ggml_tensor *model_build_rest(struct model_build *b, uint32_t il, struct ggml_tensor *x, struct ggml_tensor *a,
                                     enum model_act act);

/*
 * The layer of Llama and most others: x + attention(norm(x)), then x + feed-forward(norm(x)), with SwiGLU, or experts
 * of it where the layer has a router. Fits struct arch's build_layer.
 */
struct ggml_tensor *model_build_plain_layer(struct model_build *b, uint32_t il, struct ggml_tensor *x);

/*
 * Depthwise causal convolution over hp->conv_len positions of each sequence: bx [n, T] in, w [conv_len, n]; the rows
 * of bx are kept in layer il's plane 0. Out: [n, T], or only the kept rows, or NULL when none is kept.
 */
struct ggml_tensor *model_build_conv(struct model_build *b, uint32_t il, struct ggml_tensor *bx, struct ggml_tensor *w);

#endif
