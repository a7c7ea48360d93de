/*
 * Attention of many queries. See model_attn.h.
 *
 * The work is divided into units: the queries of some neighbouring tokens, of all heads that share keys. A thread that
 * takes one has room for it behind the result's rows, in the same tensor.
 */
#include "model/model_attn.h"

#include "model/model_attn_kernel.h"
#include "model/model_own.h"

#include <math.h>
#include <string.h>

enum {
    LANES = MODEL_ATTN_LANES,
    CELLS = MODEL_ATTN_CELLS,
    LEAST_QUERIES = 64,     /* of a sequence: for fewer ggml rounds otherwise */
    UNIT_LANES = 256,       /* of a unit, at most: keys are made floats once for as many queries */
    UNIT_FLOATS = 96 << 10, /* of queries and results: they should stay in the second cache */
    UNITS_A_THREAD = 4,     /* at least, so that all are done at about the same time */
    GAP = 16,               /* floats between rows of a tile, lest rows fall upon each other in the first cache */
    ALIGN = 64 / sizeof(float)
};

/* In the graph's context. */
struct attn {
    const struct model_attn_kernel *kernel;
    float scale;
    uint32_t n_rooms; /* for as many threads */
    struct model_own_share share;
};

/* A thread's room. */
struct room {
    float *q, *out;       /* [blocks][dim] lanes */
    float *max, *sum;     /* [blocks] lanes */
    float *k, *v;         /* a tile */
    float *scores, *mask; /* [CELLS] lanes */
};

/* The operation as a thread sees it, and the unit that it works on. */
struct work {
    const struct attn *op;
    const struct ggml_tensor *t, *q, *k, *v, *m, *sinks;
    int64_t n_share; /* heads that share keys */
    int64_t unit;    /* tokens of one, at most */
    int64_t n_chunks, n_units;
    struct room room;
    /* Of the unit: */
    int64_t first, n, n_blocks; /* tokens, and blocks of their queries */
    int64_t head_kv, span;
    uint64_t sees[UNIT_LANES]; /* of each token, the cells of the tile: the first in the lowest bit */
};

/* ---- sizes ---- */

static int64_t padded(int64_t n) {
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static int64_t tile_stride(const struct ggml_tensor *rows) {
    return padded(rows->ne[0]) + GAP;
}

/* Queries of a unit at most, by what they take: whole blocks. */
static int64_t most_lanes(const struct ggml_tensor *k, const struct ggml_tensor *v) {
    int64_t n = UNIT_FLOATS / (k->ne[0] + v->ne[0]) / LANES * LANES;
    return n > UNIT_LANES ? UNIT_LANES : n < LANES ? LANES : n;
}

static int64_t tokens_of(int64_t lanes, int64_t n_share) {
    return lanes > n_share ? lanes / n_share : 1;
}

/* Lanes of the largest unit. */
static int64_t room_lanes(const struct ggml_tensor *q, const struct ggml_tensor *k, const struct ggml_tensor *v) {
    int64_t n_share = q->ne[2] / k->ne[2], lanes = tokens_of(most_lanes(k, v), n_share) * n_share;
    return (lanes + LANES - 1) / LANES * LANES;
}

static int64_t take(int64_t *at, int64_t n) {
    int64_t begin = *at;
    *at += padded(n);
    return begin;
}

/* Floats of a thread's room; `base` given, its parts as well. */
static int64_t make_room(const struct ggml_tensor *q, const struct ggml_tensor *k, const struct ggml_tensor *v,
                         float *base, struct room *r) {
    int64_t at = 0, lanes = room_lanes(q, k, v);
    int64_t of_q = take(&at, lanes * k->ne[0]), of_out = take(&at, lanes * v->ne[0]);
    int64_t of_max = take(&at, lanes), of_sum = take(&at, lanes);
    int64_t of_k = take(&at, CELLS * tile_stride(k)), of_v = take(&at, CELLS * tile_stride(v));
    int64_t of_scores = take(&at, CELLS * LANES), of_mask = take(&at, CELLS * LANES);
    if (base)
        *r = (struct room){.q = base + of_q,
                           .out = base + of_out,
                           .max = base + of_max,
                           .sum = base + of_sum,
                           .k = base + of_k,
                           .v = base + of_v,
                           .scores = base + of_scores,
                           .mask = base + of_mask};
    return at;
}

/* ---- what a unit begins and ends with ---- */

static const float *query(const struct work *w, int64_t lane) {
    const struct ggml_tensor *q = w->q;
    int64_t token = w->first + lane / w->n_share, head = w->head_kv * w->n_share + lane % w->n_share;
    return (const float *)((const char *)q->data + (size_t)token * q->nb[1] + (size_t)head * q->nb[2] +
                           (size_t)w->span * q->nb[3]);
}

/* Lanes without a query are 0, and see what any other sees: nothing becomes of them. */
static void begin_unit(struct work *w) {
    struct room *r = &w->room;
    int64_t dim = w->q->ne[0], lanes = w->n * w->n_share, all;
    w->n_blocks = (lanes + LANES - 1) / LANES;
    all = w->n_blocks * LANES;
    for (int64_t lane = 0; lane < all; lane++) {
        float *to = r->q + lane / LANES * LANES * dim + lane % LANES;
        const float *from = lane < lanes ? query(w, lane) : NULL;
        for (int64_t d = 0; d < dim; d++) to[d * LANES] = from ? from[d] : 0;
        r->max[lane] = -INFINITY;
    }
    memset(r->sum, 0, (size_t)all * sizeof *r->sum);
    memset(r->out, 0, (size_t)(all * w->v->ne[0]) * sizeof *r->out);
}

/* A sink has a weight and no value. keep: what is to be kept of the sum of values because it is larger than all. */
static float weights_of(const struct work *w, int64_t lane, int64_t head, float *keep) {
    float max = w->room.max[lane], sum = w->room.sum[lane];
    *keep = 1.0f;
    if (!w->sinks) return sum;
    float sink = ((const float *)w->sinks->data)[head];
    if (sink <= max) return sum + expf(sink - max);
    *keep = expf(max - sink);
    return fmaf(sum, *keep, 1.0f);
}

static void end_unit(const struct work *w) {
    int64_t dim = w->v->ne[0], n_head = w->q->ne[2], n = w->q->ne[1];
    for (int64_t lane = 0; lane < w->n * w->n_share; lane++) {
        int64_t token = w->first + lane / w->n_share, head = w->head_kv * w->n_share + lane % w->n_share;
        const float *from = w->room.out + lane / LANES * LANES * dim + lane % LANES;
        float *to = (float *)w->t->data + ((w->span * n + token) * n_head + head) * dim, keep;
        float sum = weights_of(w, lane, head, &keep), by = sum == 0 ? 0 : 1.0f / sum;
        for (int64_t d = 0; d < dim; d++) to[d] = from[d * LANES] * keep * by;
    }
}

/* ---- tiles ---- */

/* Which of n cells a row of the mask shows. Mostly it is all or none. */
static uint64_t visible(const uint16_t *mask, int64_t n) {
    uint64_t any = 0, hidden = 0, out = 0;
    if (n == CELLS) {
        for (int i = 0; i < CELLS; i += 4) {
            uint64_t four;
            memcpy(&four, mask + i, sizeof four);
            any |= four;
            hidden |= four ^ 0xfc00fc00fc00fc00u; /* four times -infinity */
        }
        if (any == 0) return UINT64_MAX;
        if (hidden == 0) return 0;
    }
    for (int64_t i = 0; i < n; i++) out |= (uint64_t)(mask[i] == 0) << i;
    return out;
}

/* Looks at the mask for the tile from cell `cell` on; what any token of the unit sees. */
static uint64_t look(struct work *w, int64_t cell) {
    const struct ggml_tensor *m = w->m;
    int64_t n = w->k->ne[1] - cell;
    uint64_t any = 0;
    const char *row = (const char *)m->data + (size_t)w->span * m->nb[3] + (size_t)w->first * m->nb[1];
    for (int64_t t = 0; t < w->n; t++, row += m->nb[1]) {
        w->sees[t] = visible((const uint16_t *)row + cell, n < CELLS ? n : CELLS);
        any |= w->sees[t];
    }
    return any;
}

/* Rows of the cache as floats. Those that nobody sees may hold anything, and are 0 instead. */
static void widen_tile(const struct work *w, const struct ggml_tensor *rows, int64_t cell, uint64_t any, float *to) {
    const char *row = (const char *)rows->data + (size_t)cell * rows->nb[1] + (size_t)w->head_kv * rows->nb[2] +
                      (size_t)w->span * rows->nb[3];
    size_t dim = (size_t)rows->ne[0];
    for (int i = 0; i < CELLS; i++, row += rows->nb[1], to += tile_stride(rows)) {
        if (any >> i & 1)
            w->op->kernel->widen(row, to, dim);
        else
            memset(to, 0, dim * sizeof *to);
    }
}

/* The tokens of a block: [*first, *end) of the unit's. */
static void tokens_of_block(const struct work *w, int64_t block, int64_t *first, int64_t *end) {
    *first = block * LANES / w->n_share;
    *end = ((block + 1) * LANES - 1) / w->n_share + 1;
    if (*end > w->n) *end = w->n;
}

/* 0 or -infinity for the lanes of a block, cell by cell. */
static void fill_mask(const struct work *w, int64_t block, size_t first, size_t end) {
    for (size_t c = first; c < end; c++) {
        float *to = w->room.mask + c * LANES;
        for (int64_t i = 0; i < LANES; i++) {
            int64_t token = (block * LANES + i) / w->n_share;
            to[i] = token >= w->n || (w->sees[token] >> c & 1) ? 0 : -INFINITY;
        }
    }
}

static void attend_block(const struct work *w, int64_t block) {
    const struct room *r = &w->room;
    int64_t dim_k = w->k->ne[0], dim_v = w->v->ne[0], first, end;
    uint64_t any = 0, all = UINT64_MAX;
    tokens_of_block(w, block, &first, &end);
    for (int64_t t = first; t < end; t++) {
        any |= w->sees[t];
        all &= w->sees[t];
    }
    if (!any) return;
    struct model_attn_step s = {.dim_k = (size_t)dim_k,
                                .dim_v = (size_t)dim_v,
                                .first = (size_t)__builtin_ctzll(any) / MODEL_ATTN_STEP * MODEL_ATTN_STEP,
                                .end = (size_t)(CELLS - __builtin_clzll(any) / MODEL_ATTN_STEP * MODEL_ATTN_STEP),
                                .q = r->q + block * LANES * dim_k,
                                .k = r->k,
                                .v = r->v,
                                .k_stride = (size_t)tile_stride(w->k),
                                .v_stride = (size_t)tile_stride(w->v),
                                .scale = w->op->scale,
                                .scores = r->scores,
                                .max = r->max + block * LANES,
                                .sum = r->sum + block * LANES,
                                .out = r->out + block * LANES * dim_v};
    uint64_t looked_at = (UINT64_MAX >> (CELLS - (s.end - s.first))) << s.first;
    if (~all & looked_at) {
        fill_mask(w, block, s.first, s.end);
        s.mask = r->mask;
    }
    w->op->kernel->step(&s);
}

/* ---- units ---- */

static void attend_unit(struct work *w, int64_t unit) {
    /* The last tokens see most: they come first, so that what is left at the end is short. */
    int64_t n_pairs = w->k->ne[2] * w->k->ne[3], pair = unit % n_pairs, chunk = w->n_chunks - 1 - unit / n_pairs;
    w->head_kv = pair % w->k->ne[2];
    w->span = pair / w->k->ne[2];
    w->first = chunk * w->unit;
    w->n = w->q->ne[1] - w->first < w->unit ? w->q->ne[1] - w->first : w->unit;
    begin_unit(w);
    for (int64_t cell = 0; cell < w->k->ne[1]; cell += CELLS) {
        uint64_t any = look(w, cell);
        if (!any) continue;
        widen_tile(w, w->k, cell, any, w->room.k);
        widen_tile(w, w->v, cell, any, w->room.v);
        for (int64_t b = 0; b < w->n_blocks; b++) attend_block(w, b);
    }
    end_unit(w);
}

/* Units as large as they may be, and small enough that there are some for each thread. */
static void divide(struct work *w, int n_threads) {
    int64_t lanes = most_lanes(w->k, w->v), n_pairs = w->k->ne[2] * w->k->ne[3];
    for (;; lanes = lanes / 2 / LANES * LANES) {
        w->unit = tokens_of(lanes, w->n_share);
        w->n_chunks = (w->q->ne[1] + w->unit - 1) / w->unit;
        w->n_units = w->n_chunks * n_pairs;
        if (lanes < 2 * LANES || w->n_units >= (int64_t)n_threads * UNITS_A_THREAD) break;
    }
}

static float *rooms_of(const struct ggml_tensor *t, const struct ggml_tensor *q) {
    float *end = (float *)t->data + t->ne[0] * q->ne[1] * q->ne[3];
    return (float *)GGML_PAD((uintptr_t)end, ALIGN * sizeof(float));
}

static void compute(struct ggml_tensor *t, int ith, int nth, void *user) {
    struct attn *op = user;
    struct work w = {
        .op = op, .t = t, .q = t->src[0], .k = t->src[1], .v = t->src[2], .m = t->src[3], .sinks = t->src[4]};
    w.n_share = w.q->ne[2] / w.k->ne[2];
    divide(&w, nth);
    if (ith < (int)op->n_rooms) {
        int64_t size = make_room(w.q, w.k, w.v, NULL, NULL);
        make_room(w.q, w.k, w.v, rooms_of(t, w.q) + ith * size, &w.room);
        for (int i; (i = model_own_take(&op->share)) < (int)w.n_units;) attend_unit(&w, i);
    }
    model_own_leave(&op->share, nth);
}

/* ---- graphs ---- */

/* Where ggml takes its tiles as well, and rounds like us. */
static bool fits(const struct model_attn *a, const struct model_attn_args *x) {
    bool halves = x->k->type == GGML_TYPE_F16 && x->v->type == GGML_TYPE_F16;
    return a->kernel && halves && x->softcap == 0 && x->q->ne[1] >= LEAST_QUERIES && x->v->ne[0] % MODEL_ATTN_STEP == 0;
}

struct ggml_tensor *model_attn(struct ggml_context *ctx, const struct model_attn *a, const struct model_attn_args *x) {
    if (!fits(a, x)) return NULL;
    struct attn *op = ggml_new_buffer(ctx, sizeof *op);
    *op = (struct attn){.kernel = a->kernel, .scale = x->scale, .n_rooms = a->n_threads};
    int64_t dim = x->v->ne[0], n_head = x->q->ne[2], n = x->q->ne[1], n_spans = x->q->ne[3], width = dim * n_head;
    int64_t floats = ALIGN + a->n_threads * make_room(x->q, x->k, x->v, NULL, NULL);
    struct ggml_tensor *args[] = {x->q, x->k, x->v, x->mask, x->sinks};
    struct ggml_tensor *t = ggml_custom_4d(ctx, GGML_TYPE_F32, width, n * n_spans + (floats + width - 1) / width, 1, 1,
                                           args, x->sinks ? 5 : 4, compute, GGML_N_TASKS_MAX, op);
    size_t row = (size_t)dim * sizeof(float), token = t->nb[1];
    return ggml_view_4d(ctx, t, dim, n_head, n, n_spans, row, token, (size_t)n * token, 0);
}

size_t model_attn_overhead(void) {
    enum { OBJECT = 64 }; /* of ggml's list, with its padding */
    return sizeof(struct attn) + OBJECT + ggml_tensor_overhead();
}
