/*
 * Building blocks that look at the state: attention and convolution. See model_build.h.
 *
 * Each span looks at the contiguous rows of its slot, and what a sequence computes depends neither on the other
 * sequences of the batch nor on where they lie. With one span nothing is added to what a model of one sequence needs.
 */
#include "model/model_build.h"

static const struct model_plane *planes_of(const struct model_build *b, uint32_t il) {
    return b->state->layer[il - b->state->range.first];
}

/* The inputs that belong to a plane: those of its window. */
static const struct model_window *window_of(const struct model_build *b, const struct model_plane *p) {
    for (uint32_t i = 0; i < b->n_windows; i++)
        if (b->window[i].window == p->window && b->window[i].rows == p->rows) return &b->window[i];
    return NULL; /* model_graph made one for each plane */
}

/* Rows that are stored and lead to no result would hide what is no number in them, until a later run looks at them. */
static void sum_up(struct model_build *b, const struct model_plane *p, struct ggml_tensor *rows) {
    if (p->t->type == GGML_TYPE_F16) /* as they are stored: some may be too large for it */
        rows = ggml_cast(b->ctx, ggml_cast(b->ctx, rows, GGML_TYPE_F16), GGML_TYPE_F32);
    struct ggml_tensor *sum = ggml_sum(b->ctx, rows);
    b->stored = b->stored ? ggml_add(b->ctx, b->stored, sum) : sum;
    ggml_set_output(b->stored);
    ggml_build_forward_expand(b->graph, b->stored);
}

static void store(struct model_build *b, uint32_t il, const struct model_plane *p, struct ggml_tensor *x) {
    struct ggml_tensor *rows = ggml_view_2d(b->ctx, x, p->t->ne[0], x->ne[2], x->nb[2], 0);
    ggml_build_forward_expand(b->graph, ggml_set_rows(b->ctx, p->t, rows, window_of(b, p)->cells));
    if (model_build_drops_rows(b, il)) sum_up(b, p, rows);
}

/* One value after the other, as a balanced tree: each element is copied log2(n) times. */
static struct ggml_tensor *join(struct model_build *b, struct ggml_tensor **parts, uint32_t n) {
    while (n > 1) {
        uint32_t k = 0;
        for (uint32_t i = 0; i + 1 < n; i += 2) parts[k++] = ggml_concat(b->ctx, parts[i], parts[i + 1], 1);
        if (n % 2) parts[k++] = parts[n - 1];
        n = k;
    }
    return parts[0];
}

/* ---- attention ---- */

/* Fused attention sums the cells that one token of one sequence sees in as many parts as there are threads once it
 * looks at this many, and those of several sequences in one go. */
enum { SUMMED_IN_PARTS = 512 };

/*
 * Whether b can go on a group that ends with a. One operation for many sequences saves threads that meet, and each
 * thread then has the whole of a sequence to itself: divided by heads, both would fetch the same pages, each every
 * other piece of them. Where a span's rows are not all kept, masks would have gaps, which fused attention does not
 * take.
 */
static bool goes_on(const struct model_span *a, const struct model_span *b) {
    bool whole = b->n_out == b->n || b->n_out == 0;
    bool same = a->n == b->n && a->n_out == b->n_out && a->end == b->end;
    return same && whole && b->slot == a->slot + 1 && (b->n > 1 || b->end < SUMMED_IN_PARTS);
}

/* The exact form keeps its products in memory, which separate operations use one after the other. */
void model_build_group(struct model_build *b) {
    bool fuses = b->state->type != GGML_TYPE_F32;
    b->n_groups = 0;
    for (uint32_t i = 0; i < b->n_spans; i++) {
        if (fuses && i > 0 && goes_on(&b->span[i - 1], &b->span[i]))
            b->group[b->n_groups - 1].n++;
        else
            b->group[b->n_groups++] = (struct model_group){.first = i, .n = 1};
    }
}

/* The rows of a plane that a group's spans look at, as heads: [dim, n_kv, n_head_kv, spans]. */
static struct ggml_tensor *heads_of_plane(struct model_build *b, const struct model_plane *p,
                                          const struct model_group *g, uint32_t dim, uint32_t head_width,
                                          uint32_t n_head_kv) {
    const struct model_span *s = &b->span[g->first];
    size_t slot = p->rows * p->t->nb[1];
    return ggml_view_4d(b->ctx, p->t, dim, model_state_visible(p, s->end), n_head_kv, g->n, p->t->nb[1],
                        ggml_row_size(p->t->type, head_width), slot, s->slot * slot);
}

/* One fused operation: fast, but for few queries it rounds more coarsely than the exact form. */
static struct ggml_tensor *fused(struct model_build *b, const struct model_attn_args *a) {
    struct ggml_tensor *out = model_attn(b->ctx, b->attn, a);
    if (out) return out;
    out = ggml_flash_attn_ext(b->ctx, a->q, a->k, a->v, a->mask, a->scale, 0.0f, a->softcap);
    ggml_prec_set_acc(out, GGML_PREC_F32);
    if (a->sinks) ggml_flash_attn_ext_add_sinks(out, a->sinks);
    return out;
}

/* Softmax of products, all of it in F32. */
static struct ggml_tensor *exact(struct model_build *b, const struct model_attn_args *a) {
    float scale = a->scale, cap = a->softcap;
    struct ggml_tensor *kq = ggml_mul_mat(b->ctx, a->k, a->q); /* [n_kv, n, n_head, spans] */
    ggml_prec_set_acc(kq, GGML_PREC_F32);
    if (cap != 0) {
        kq = ggml_tanh(b->ctx, ggml_scale(b->ctx, kq, scale / cap));
        kq = ggml_scale(b->ctx, kq, cap);
        scale = 1.0f;
    }
    kq = ggml_soft_max_ext_inplace(b->ctx, kq, a->mask, scale, 0.0f);
    if (a->sinks) ggml_soft_max_add_sinks(kq, a->sinks);
    struct ggml_tensor *columns = ggml_cont(b->ctx, ggml_transpose(b->ctx, a->v)); /* [n_kv, dim_v, n_head_kv, spans] */
    struct ggml_tensor *out = ggml_mul_mat(b->ctx, columns, kq);                   /* [dim_v, n, n_head, spans] */
    return ggml_cont(b->ctx, ggml_permute(b->ctx, out, 0, 2, 1, 3));
}

/* The last n columns of a group's mask. */
static struct ggml_tensor *mask_of(struct model_build *b, struct ggml_tensor *m, int64_t n) {
    if (m->ne[1] == n) return m;
    return ggml_view_2d(b->ctx, m, m->ne[0], n, m->nb[1], (size_t)(m->ne[1] - n) * m->nb[1]);
}

/* One group, n rows of each of its spans, in `a->q` from row `first` on. */
static struct ggml_tensor *attend(struct model_build *b, uint32_t il, const struct model_attention *a, uint32_t i,
                                  int64_t first, int64_t n) {
    const struct model_plane *p = planes_of(b, il);
    const struct model_group *g = &b->group[i];
    uint32_t n_head_kv = (uint32_t)a->k->ne[1], dim_k = (uint32_t)a->k->ne[0];
    struct model_attn_args f = {.sinks = a->sinks, .scale = a->scale, .softcap = b->hp->attn_softcap};
    f.k = heads_of_plane(b, &p[0], g, dim_k, dim_k, n_head_kv);
    f.v = a->v ? heads_of_plane(b, &p[1], g, a->dim_v, a->dim_v, n_head_kv)
               : heads_of_plane(b, &p[0], g, a->dim_v, dim_k, n_head_kv);
    size_t row = a->q->nb[2];
    struct ggml_tensor *q = ggml_view_4d(b->ctx, a->q, a->q->ne[0], a->q->ne[1], n, g->n, a->q->nb[1], row,
                                         (size_t)n * row, (size_t)first * row);
    f.q = ggml_permute(b->ctx, q, 0, 2, 1, 3);
    f.mask = mask_of(b, window_of(b, &p[0])->mask[i], n);
    struct ggml_tensor *out = p[0].t->type == GGML_TYPE_F32 ? exact(b, &f) : fused(b, &f);
    return ggml_reshape_2d(b->ctx, out, out->ne[0] * out->ne[1], n * g->n); /* [dim_v, n_head, n, spans] before */
}

struct ggml_tensor *model_build_attention(struct model_build *b, uint32_t il, const struct model_attention *a) {
    const struct model_plane *p = planes_of(b, il);
    struct ggml_tensor *parts[MODEL_BUILD_SPANS];
    bool drops = model_build_drops_rows(b, il);
    uint32_t n = 0;
    int64_t at = 0;
    store(b, il, &p[0], a->k);
    if (a->v) store(b, il, &p[1], a->v);
    if (!a->q) return NULL;
    for (uint32_t i = 0; i < b->n_groups; i++) {
        const struct model_span *s = &b->span[b->group[i].first];
        int64_t rows = drops ? s->n_out : s->n;
        if (rows) parts[n++] = attend(b, il, a, i, at, rows);
        at += rows * b->group[i].n;
    }
    return join(b, parts, n);
}

/* ---- convolution ---- */

/* One span: the rows before it from the ring, its own from bx. */
static struct ggml_tensor *convolve(struct model_build *b, uint32_t il, struct ggml_tensor *bx, struct ggml_tensor *w,
                                    uint32_t i, int64_t first) {
    const struct model_span *s = &b->span[i];
    struct ggml_tensor *before = ggml_get_rows(b->ctx, planes_of(b, il)[0].t, b->conv_rows[i]); /* [n, conv_len - 1] */
    before = ggml_mul(b->ctx, before, b->conv_keep[i]);
    struct ggml_tensor *now = ggml_view_2d(b->ctx, bx, bx->ne[0], s->n, bx->nb[1], (size_t)first * bx->nb[1]);
    struct ggml_tensor *all = ggml_concat(b->ctx, before, now, 1);
    struct ggml_tensor *time = ggml_cont(b->ctx, ggml_transpose(b->ctx, all)); /* [conv_len - 1 + T, n] */
    struct ggml_tensor *y = ggml_ssm_conv(b->ctx, ggml_reshape_3d(b->ctx, time, time->ne[0], time->ne[1], 1), w);
    return ggml_reshape_2d(b->ctx, y, y->ne[0], s->n); /* [n, T, 1] before */
}

struct ggml_tensor *model_build_conv(struct model_build *b, uint32_t il, struct ggml_tensor *bx,
                                     struct ggml_tensor *w) {
    const struct model_plane *p = planes_of(b, il);
    struct ggml_tensor *parts[MODEL_BUILD_SPANS];
    bool drops = model_build_drops_rows(b, il);
    int64_t at = 0;
    for (uint32_t i = 0; i < b->n_spans; i++) {
        parts[i] = convolve(b, il, bx, w, i, at);
        at += b->span[i].n;
    }
    struct ggml_tensor *out = join(b, parts, b->n_spans);
    /* The old rows must have been read before the ring is written: they may be the same ones. */
    ggml_build_forward_expand(b->graph, out);
    store(b, il, p, ggml_reshape_3d(b->ctx, bx, bx->ne[0], 1, bx->ne[1]));
    if (!drops) return out;
    return b->n_out ? model_build_kept(b, out) : NULL;
}
