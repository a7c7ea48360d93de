/* Building blocks that work on all tokens at once. See model_build.h. Owns nothing: tensors belong to the graph. */
#include "model/model_build.h"

#include <math.h>

struct ggml_tensor *model_build_norm(struct model_build *b, struct ggml_tensor *x, struct ggml_tensor *w) {
    return ggml_mul(b->ctx, ggml_rms_norm(b->ctx, x, b->hp->norm_eps), w);
}

/* w x; wide: see struct model_linear. */
static struct ggml_tensor *multiply(struct model_build *b, struct ggml_tensor *w, struct ggml_tensor *x, bool wide) {
    struct ggml_tensor *y = model_rows_multiply(b->ctx, b->rows, w, x, b->n_spans > 1);
    if (y) return y;
    y = ggml_mul_mat(b->ctx, w, x);
    if (wide) ggml_prec_set_acc(y, GGML_PREC_F32);
    return y;
}

static struct ggml_tensor *product(struct model_build *b, const struct model_linear *l, struct ggml_tensor *x) {
    return multiply(b, l->w, x, l->wide);
}

struct ggml_tensor *model_build_linear(struct model_build *b, const struct model_linear *l, struct ggml_tensor *x) {
    struct ggml_tensor *y = product(b, l, x);
    if (l->scale) y = ggml_mul(b->ctx, y, l->scale);
    if (l->b) y = ggml_add(b->ctx, y, l->b);
    return y;
}

/*
 * The order differs from that of the attention's products; both are the orders in which files with scales are run
 * elsewhere (established by experiment, see docs/engine.md).
 */
struct ggml_tensor *model_build_ffn_linear(struct model_build *b, const struct model_linear *l, struct ggml_tensor *x) {
    struct ggml_tensor *y = product(b, l, x);
    if (l->b) y = ggml_add(b->ctx, y, l->b);
    return l->scale ? ggml_mul(b->ctx, y, l->scale) : y;
}

struct ggml_tensor *model_build_heads(struct model_build *b, struct ggml_tensor *x, uint32_t dim, uint32_t n_head) {
    return ggml_view_3d(b->ctx, x, dim, n_head, x->ne[1], ggml_row_size(x->type, dim), x->nb[1], 0);
}

struct ggml_tensor *model_build_columns(struct model_build *b, struct ggml_tensor *x, uint32_t from, uint32_t n) {
    return ggml_view_2d(b->ctx, x, n, x->ne[1], x->nb[1], from * ggml_element_size(x));
}

struct ggml_tensor *model_build_rope(struct model_build *b, uint32_t il, struct ggml_tensor *x) {
    bool local = b->hp->layer[il].window > 0;
    const struct model_rope *r = local ? &b->hp->rope_window : &b->hp->rope;
    struct ggml_tensor *pos = x->ne[2] == b->pos->ne[0] ? b->pos : b->out_pos;
    return ggml_rope_ext(b->ctx, x, pos, b->factors, (int)r->n_rot, b->rope_mode, (int)r->n_ctx_orig, r->freq_base,
                         r->freq_scale, r->ext_factor, r->attn_factor, r->beta_fast, r->beta_slow);
}

bool model_build_drops_rows(const struct model_build *b, uint32_t il) {
    return il + 1 == b->hp->n_layer && b->n_out < b->n_tokens;
}

struct ggml_tensor *model_build_kept(struct model_build *b, struct ggml_tensor *x) {
    return ggml_get_rows(b->ctx, x, b->out_rows);
}

/* ---- projections ---- */

static struct ggml_tensor *kept_linear(struct model_build *b, uint32_t il, const struct model_linear *l,
                                       struct ggml_tensor *x) {
    if (!model_build_drops_rows(b, il)) return model_build_linear(b, l, x);
    return b->n_out ? model_build_linear(b, l, model_build_kept(b, x)) : NULL;
}

/* n columns of a product with several matrices, from *at on, with the bias of one of them. */
static struct ggml_tensor *next_part(struct model_build *b, struct ggml_tensor *all, uint32_t *at, uint32_t n,
                                     const struct model_linear *l) {
    struct ggml_tensor *y = model_build_columns(b, all, *at, n);
    *at += n;
    return l->b ? ggml_add(b->ctx, y, l->b) : y;
}

/* Whether several matrices, of which w is the first one, are to be multiplied as one. */
static bool takes_joined(const struct model_build *b, const struct ggml_tensor *all, const struct ggml_tensor *w) {
    return b->settled ? all != NULL : model_weights_are_joined(all, w);
}

struct model_qkv model_build_qkv(struct model_build *b, uint32_t il, struct ggml_tensor *x) {
    const struct model_layer *l = &b->w->layer[il - b->w->range.first];
    const struct model_layer_dims *d = &b->hp->layer[il];
    uint32_t dk = b->hp->head_dim_k, dv = b->hp->head_dim_v, at = 0;
    uint32_t n_q = d->n_head * dk, n_k = d->n_head_kv * dk, n_v = d->n_head_kv * dv;
    /* Where few rows are kept, queries of the others are not worth one product less. */
    bool drops = model_build_drops_rows(b, il);
    bool joined = takes_joined(b, l->qkv.w, l->q.w) && (!drops || !l->q.w);
    struct model_qkv r = {.q = NULL};
    if (joined) {
        struct ggml_tensor *all = model_build_linear(b, &l->qkv, x);
        r.q = next_part(b, all, &at, n_q, &l->q);
        if (l->qkv_has_k) r.k = next_part(b, all, &at, n_k, &l->k);
        if (l->qkv_has_v) r.v = next_part(b, all, &at, n_v, &l->v);
        if (drops) r.q = b->n_out ? model_build_kept(b, r.q) : NULL;
    } else {
        r.q = kept_linear(b, il, &l->q, x);
    }
    if (!r.k) r.k = model_build_linear(b, &l->k, x);
    if (!r.v) r.v = model_build_linear(b, &l->v, x);
    r.k = model_build_heads(b, r.k, dk, d->n_head_kv);
    r.v = model_build_heads(b, r.v, dv, d->n_head_kv);
    if (r.q) r.q = model_build_heads(b, r.q, dk, d->n_head);
    if (l->q_norm && r.q) r.q = model_build_norm(b, r.q, l->q_norm);
    if (l->k_norm) r.k = model_build_norm(b, r.k, l->k_norm);
    return r;
}

struct ggml_tensor *model_build_self_attention(struct model_build *b, uint32_t il, struct ggml_tensor *x) {
    const struct model_layer *l = &b->w->layer[il - b->w->range.first];
    struct model_qkv p = model_build_qkv(b, il, x);
    struct model_attention a = {.q = p.q ? model_build_rope(b, il, p.q) : NULL,
                                .k = model_build_rope(b, il, p.k),
                                .v = p.v,
                                .dim_v = b->hp->head_dim_v,
                                .scale = b->hp->attn_scale,
                                .sinks = l->sinks};
    if (b->hp->scale_queries) {
        if (a.q) a.q = ggml_scale(b->ctx, a.q, a.scale);
        a.scale = 1.0f;
    }
    struct ggml_tensor *y = model_build_attention(b, il, &a);
    return y ? model_build_linear(b, &l->o, y) : NULL;
}

/* ---- feed-forward ---- */

static struct ggml_tensor *activate(struct model_build *b, enum model_act act, struct ggml_tensor *gate,
                                    struct ggml_tensor *up) {
    switch (act) {
    case MODEL_ACT_GELU: return ggml_geglu_split(b->ctx, gate, up);
    case MODEL_ACT_SWIGLU_OAI: return ggml_swiglu_oai(b->ctx, gate, up, 1.702f, 7.0f);
    default: return ggml_swiglu_split(b->ctx, gate, up);
    }
}

struct ggml_tensor *model_build_ffn(struct model_build *b, const struct model_layer *l, struct ggml_tensor *x,
                                    enum model_act act) {
    bool joined = takes_joined(b, l->gate_up, l->gate.w);
    struct ggml_tensor *h;
    if (joined && act == MODEL_ACT_SILU) {
        h = ggml_swiglu(b->ctx, multiply(b, l->gate_up, x, false)); /* the first half is the gate */
    } else if (joined && act == MODEL_ACT_GELU) {
        h = ggml_geglu(b->ctx, multiply(b, l->gate_up, x, false));
    } else {
        struct ggml_tensor *gate = model_build_ffn_linear(b, &l->gate, x);
        h = activate(b, act, gate, model_build_ffn_linear(b, &l->up, x));
    }
    return model_build_ffn_linear(b, &l->down, h);
}

/* The expert that every token uses: an ordinary feed-forward part. */
static struct ggml_tensor *shared_expert(struct model_build *b, const struct model_layer *l, struct ggml_tensor *x,
                                         enum model_act act) {
    const struct model_layer part = {
        .gate = l->gate_shared, .up = l->up_shared, .down = l->down_shared, .gate_up = l->gate_up_shared};
    return model_build_ffn(b, &part, x, act);
}

/*
 * Only the best groups stay in the race: scores of the others become -infinity. A group is as good as the sum of its
 * n_best best experts.
 */
static struct ggml_tensor *limit_groups(struct model_build *b, struct ggml_tensor *scores, int n_best) {
    const struct model_moe *m = &b->hp->moe;
    int64_t per = m->n_expert / m->n_group, n = scores->ne[1];
    struct ggml_tensor *s = ggml_reshape_3d(b->ctx, scores, per, m->n_group, n);
    struct ggml_tensor *best = ggml_argsort_top_k(b->ctx, s, n_best); /* [n_best, n_group, T] */
    struct ggml_tensor *cells = ggml_reshape_4d(b->ctx, s, 1, per, m->n_group, n);
    struct ggml_tensor *sums = ggml_get_rows(b->ctx, cells, best); /* [1, n_best, n_group, T] */
    sums = ggml_sum_rows(b->ctx, ggml_reshape_3d(b->ctx, sums, n_best, m->n_group, n));
    struct ggml_tensor *groups =
        ggml_argsort_top_k(b->ctx, ggml_reshape_2d(b->ctx, sums, m->n_group, n), (int)m->n_group_used);
    struct ggml_tensor *kept = ggml_get_rows(b->ctx, s, groups); /* [per, n_group_used, T] */
    struct ggml_tensor *out = ggml_fill(b->ctx, s, -INFINITY);
    out = ggml_set_rows(b->ctx, out, kept, groups);
    return ggml_reshape_2d(b->ctx, out, m->n_expert, n);
}

/* Each product of the chosen experts [.., n_used, T], with bias and scale per expert. */
static struct ggml_tensor *expert_linear(struct model_build *b, const struct model_linear *l, struct ggml_tensor *x,
                                         struct ggml_tensor *ids) {
    struct ggml_tensor *y = model_rows_multiply_id(b->ctx, b->rows, l->w, x, ids, b->n_spans > 1);
    if (!y) y = ggml_mul_mat_id(b->ctx, l->w, x, ids);
    if (l->b) y = ggml_add_id(b->ctx, y, l->b, ids);
    if (l->scale) {
        struct ggml_tensor *s = ggml_reshape_3d(b->ctx, l->scale, 1, l->scale->ne[0], 1);
        s = ggml_repeat_4d(b->ctx, s, 1, l->scale->ne[0], ids->ne[1], 1);
        y = ggml_mul(b->ctx, y, ggml_get_rows(b->ctx, s, ids));
    }
    return y;
}

/* Weights of the chosen experts, [1, n_used, T]. */
static struct ggml_tensor *expert_weights(struct model_build *b, struct ggml_tensor *logits, struct ggml_tensor *probs,
                                          struct ggml_tensor *ids) {
    const struct model_moe *m = &b->hp->moe;
    int64_t n = ids->ne[1];
    struct ggml_tensor *from = m->gating == MODEL_GATING_SOFTMAX_SELECTED ? logits : probs;
    struct ggml_tensor *w = ggml_get_rows(b->ctx, ggml_reshape_3d(b->ctx, from, 1, m->n_expert, n), ids);
    w = ggml_reshape_2d(b->ctx, w, m->n_used, n);
    if (m->gating == MODEL_GATING_SOFTMAX_SELECTED) w = ggml_soft_max(b->ctx, w);
    if (m->norm) {
        /* The least normal half-precision number keeps a sum of nothing from dividing by zero. */
        struct ggml_tensor *sum = ggml_clamp(b->ctx, ggml_sum_rows(b->ctx, w), 6.103515625e-5f, INFINITY);
        w = ggml_div(b->ctx, w, sum);
    }
    if (m->scale != 1.0f) w = ggml_scale(b->ctx, w, m->scale);
    return ggml_reshape_3d(b->ctx, w, 1, m->n_used, n);
}

/* act(gate x) * up x of the chosen experts: [n_ff, n_used, T]. */
static struct ggml_tensor *expert_hidden(struct model_build *b, const struct model_layer *l, struct ggml_tensor *x,
                                         struct ggml_tensor *ids, enum model_act act) {
    struct ggml_tensor *gate, *up;
    if (l->gate_up_exps.w) {
        struct ggml_tensor *both = expert_linear(b, &l->gate_up_exps, x, ids);
        int64_t n = both->ne[0] / 2;
        gate = ggml_view_3d(b->ctx, both, n, both->ne[1], both->ne[2], both->nb[1], both->nb[2], 0);
        up = ggml_view_3d(b->ctx, both, n, both->ne[1], both->ne[2], both->nb[1], both->nb[2], (size_t)n * both->nb[0]);
    } else {
        gate = expert_linear(b, &l->gate_exps, x, ids);
        up = expert_linear(b, &l->up_exps, x, ids);
    }
    return activate(b, act, gate, up);
}

struct ggml_tensor *model_build_moe(struct model_build *b, const struct model_layer *l, struct ggml_tensor *x,
                                    enum model_act act) {
    const struct model_moe *m = &b->hp->moe;
    int64_t n = x->ne[1];
    struct ggml_tensor *logits = model_build_linear(b, &l->router, x), *probs = logits;
    if (m->gating == MODEL_GATING_SOFTMAX) probs = ggml_soft_max(b->ctx, logits);
    if (m->gating == MODEL_GATING_SIGMOID) probs = ggml_sigmoid(b->ctx, logits);
    struct ggml_tensor *scores = l->router_bias ? ggml_add(b->ctx, probs, l->router_bias) : probs;
    /* Routers that are kept balanced by a bias judge groups by two experts (DeepSeek-V3), others by one (V2). */
    if (m->n_group > 1) scores = limit_groups(b, scores, l->router_bias ? 2 : 1);
    struct ggml_tensor *ids = ggml_argsort_top_k(b->ctx, scores, (int)m->n_used); /* I32 [n_used, T] */
    struct ggml_tensor *w = expert_weights(b, logits, probs, ids);
    ggml_build_forward_expand(b->graph, w);
    struct ggml_tensor *x3 = ggml_reshape_3d(b->ctx, x, x->ne[0], 1, n);
    struct ggml_tensor *h = expert_hidden(b, l, x3, ids, act);
    struct ggml_tensor *y = ggml_mul(b->ctx, expert_linear(b, &l->down_exps, h, ids), w); /* [n_embd, n_used, T] */
    ggml_build_forward_expand(b->graph, y);
    struct ggml_tensor *sum = NULL;
    for (uint32_t i = 0; i < m->n_used; i++) {
        struct ggml_tensor *one = ggml_view_2d(b->ctx, y, y->ne[0], n, y->nb[2], i * y->nb[1]);
        sum = sum ? ggml_add(b->ctx, sum, one) : one;
    }
    if (m->n_used == 1) sum = ggml_cont(b->ctx, sum);
    return l->up_shared.w ? ggml_add(b->ctx, sum, shared_expert(b, l, x, act)) : sum;
}

/* ---- the most common layer ---- */

struct ggml_tensor *model_build_rest(struct model_build *b, uint32_t il, struct ggml_tensor *x, struct ggml_tensor *a,
                                     enum model_act act) {
    const struct model_layer *l = &b->w->layer[il - b->w->range.first];
    if (!a) return NULL;
    if (l->attn_post_norm) a = model_build_norm(b, a, l->attn_post_norm);
    if (model_build_drops_rows(b, il)) x = model_build_kept(b, x);
    x = ggml_add(b->ctx, a, x);
    struct ggml_tensor *f = model_build_norm(b, x, l->ffn_norm);
    f = l->router.w ? model_build_moe(b, l, f, act) : model_build_ffn(b, l, f, act);
    if (l->ffn_post_norm) f = model_build_norm(b, f, l->ffn_post_norm);
    return ggml_add(b->ctx, f, x);
}

struct ggml_tensor *model_build_plain_layer(struct model_build *b, uint32_t il, struct ggml_tensor *x) {
    const struct model_layer *l = &b->w->layer[il - b->w->range.first];
    struct ggml_tensor *a = model_build_self_attention(b, il, model_build_norm(b, x, l->attn_norm));
    return model_build_rest(b, il, x, a, MODEL_ACT_SILU);
}
