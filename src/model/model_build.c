/* Building blocks of graphs. See model_build.h. Owns nothing: tensors belong to the graph's context. */
#include "model/model_build.h"

struct ggml_tensor *model_build_norm(struct model_build *b, struct ggml_tensor *x, struct ggml_tensor *w) {
    return ggml_mul(b->ctx, ggml_rms_norm(b->ctx, x, b->hp->norm_eps), w);
}

struct ggml_tensor *model_build_linear(struct model_build *b, const struct model_linear *l, struct ggml_tensor *x) {
    struct ggml_tensor *y = ggml_mul_mat(b->ctx, l->w, x);
    if (l->scale) y = ggml_mul(b->ctx, y, l->scale);
    if (l->b) y = ggml_add(b->ctx, y, l->b);
    return y;
}

struct ggml_tensor *model_build_heads(struct model_build *b, struct ggml_tensor *x, uint32_t dim, uint32_t n_head) {
    return ggml_view_3d(b->ctx, x, dim, n_head, x->ne[1], ggml_row_size(x->type, dim), x->nb[1], 0);
}

struct ggml_tensor *model_build_rope(struct model_build *b, struct ggml_tensor *x) {
    const struct model_rope *r = &b->hp->rope;
    struct ggml_tensor *pos = b->pos;
    if (x->ne[2] != pos->ne[0])
        pos = ggml_view_1d(b->ctx, pos, x->ne[2], (size_t)(pos->ne[0] - x->ne[2]) * sizeof(int32_t));
    return ggml_rope_ext(b->ctx, x, pos, b->factors, (int)r->n_rot, b->rope_mode, (int)r->n_ctx_orig, r->freq_base,
                         r->freq_scale, r->ext_factor, r->attn_factor, r->beta_fast, r->beta_slow);
}

bool model_build_drops_rows(const struct model_build *b, uint32_t il) {
    return il + 1 == b->hp->n_layer && b->n_out < b->n_tokens;
}

struct ggml_tensor *model_build_last_rows(struct model_build *b, struct ggml_tensor *x) {
    return ggml_view_2d(b->ctx, x, x->ne[0], b->n_out, x->nb[1], (size_t)(x->ne[1] - b->n_out) * x->nb[1]);
}

void model_build_kv_store(struct model_build *b, uint32_t il, struct ggml_tensor *k, struct ggml_tensor *v) {
    const struct model_kv_layer *l = &b->kv->layer[il - b->kv->range.first];
    struct ggml_tensor *k_rows = ggml_view_2d(b->ctx, k, l->k->ne[0], k->ne[2], k->nb[2], 0);
    struct ggml_tensor *v_rows = ggml_view_2d(b->ctx, v, l->v->ne[0], v->ne[2], v->nb[2], 0);
    ggml_build_forward_expand(b->graph, ggml_set_rows(b->ctx, l->k, k_rows, b->cells));
    ggml_build_forward_expand(b->graph, ggml_set_rows(b->ctx, l->v, v_rows, b->cells));
}

/* The first n_kv cells of one plane, [dim, n_kv, n_head_kv]. */
static struct ggml_tensor *cache_view(struct model_build *b, struct ggml_tensor *plane, uint32_t dim,
                                      uint32_t n_head_kv) {
    return ggml_view_3d(b->ctx, plane, dim, b->n_kv, n_head_kv, plane->nb[1], ggml_row_size(plane->type, dim), 0);
}

/* One fused operation: fast, but it rounds more coarsely than the exact form. */
static struct ggml_tensor *flash_attention(struct model_build *b, struct ggml_tensor *q, struct ggml_tensor *k,
                                           struct ggml_tensor *v, struct ggml_tensor *mask) {
    struct ggml_tensor *out = ggml_flash_attn_ext(b->ctx, q, k, v, mask, b->hp->attn_scale, 0.0f, 0.0f);
    ggml_prec_set_acc(out, GGML_PREC_F32);
    return out;
}

/* Softmax of products, all of it in F32. */
static struct ggml_tensor *exact_attention(struct model_build *b, struct ggml_tensor *q, struct ggml_tensor *k,
                                           struct ggml_tensor *v, struct ggml_tensor *mask) {
    struct ggml_tensor *kq = ggml_mul_mat(b->ctx, k, q); /* [n_kv, T, n_head] */
    ggml_prec_set_acc(kq, GGML_PREC_F32);
    kq = ggml_soft_max_ext_inplace(b->ctx, kq, mask, b->hp->attn_scale, 0.0f);
    struct ggml_tensor *v_columns = ggml_cont(b->ctx, ggml_transpose(b->ctx, v)); /* [n_kv, dim_v, n_head_kv] */
    struct ggml_tensor *out = ggml_mul_mat(b->ctx, v_columns, kq);                /* [dim_v, T, n_head] */
    return ggml_cont(b->ctx, ggml_permute(b->ctx, out, 0, 2, 1, 3));
}

struct ggml_tensor *model_build_attention(struct model_build *b, uint32_t il, struct ggml_tensor *q) {
    const struct model_kv_layer *l = &b->kv->layer[il - b->kv->range.first];
    uint32_t n_head_kv = b->hp->layer[il].n_head_kv;
    int64_t rows = q->ne[2];
    struct ggml_tensor *k = cache_view(b, l->k, b->hp->head_dim_k, n_head_kv);
    struct ggml_tensor *v = cache_view(b, l->v, b->hp->head_dim_v, n_head_kv);
    struct ggml_tensor *mask = b->mask;
    if (rows != mask->ne[1])
        mask = ggml_view_2d(b->ctx, mask, mask->ne[0], rows, mask->nb[1], (size_t)(mask->ne[1] - rows) * mask->nb[1]);
    q = ggml_permute(b->ctx, q, 0, 2, 1, 3);
    struct ggml_tensor *out =
        l->k->type == GGML_TYPE_F32 ? exact_attention(b, q, k, v, mask) : flash_attention(b, q, k, v, mask);
    return ggml_reshape_2d(b->ctx, out, out->ne[0] * out->ne[1], rows); /* [dim_v, n_head, T] before */
}

/*
 * A feed-forward product: (w x + bias) * scale. The order differs from that of the attention's products; both are the
 * orders in which files with scales are run elsewhere (established by experiment, see docs/engine.md).
 */
static struct ggml_tensor *ffn_linear(struct model_build *b, const struct model_linear *l, struct ggml_tensor *x) {
    struct ggml_tensor *y = ggml_mul_mat(b->ctx, l->w, x);
    if (l->b) y = ggml_add(b->ctx, y, l->b);
    return l->scale ? ggml_mul(b->ctx, y, l->scale) : y;
}

struct ggml_tensor *model_build_ffn_swiglu(struct model_build *b, const struct model_layer *l, struct ggml_tensor *x) {
    struct ggml_tensor *h;
    if (l->gate_up) {
        h = ggml_swiglu(b->ctx, ggml_mul_mat(b->ctx, l->gate_up, x)); /* the first half is the gate */
    } else {
        struct ggml_tensor *gate = ffn_linear(b, &l->gate, x);
        h = ggml_swiglu_split(b->ctx, gate, ffn_linear(b, &l->up, x));
    }
    return ffn_linear(b, &l->down, h);
}
