/* Computes products a few rows at a time. See model_rows.h. Owns nothing: what a product needs lies in its graph. */
#include "model/model_rows_priv.h"

enum {
    LINE = 64,            /* bytes that memory delivers at once */
    AHEAD = 4096,         /* bytes between what is computed and what is asked for */
    LONG_BYTES = 1 << 20, /* of rows that a thread takes at a time, at most, where it does not ask for any */
    LONG_BLOCK = 16,      /* rows that a vector meets one after the other, in the same case */
    VECTOR_BYTES = 1 << 16,
    COLUMNS = 128,
    PACKED_COLUMNS = 3 /* from 4 on ggml has kernels for four at once */
};

/* A product as a thread sees it. Columns of the result that belong to one matrix are a run. */
struct task {
    const struct model_rows_kernel *kernel;
    struct ggml_tensor *t;
    bool packed;
    bool asks;              /* for rows to come */
    const uint8_t *vectors; /* as the kernels take them */
    size_t vector_stride;
    uint32_t column[COLUMNS]; /* of the result, ordered by run */
    uint32_t begin[COLUMNS + 1], n_runs;
    int64_t piece; /* rows */
    int n_pieces;  /* of a run */
};

/* ---- what all products share ---- */

void model_rows_ask(const uint8_t *row, size_t bytes) {
    for (size_t i = 0; i < bytes; i += LINE) __builtin_prefetch(row + AHEAD + i);
}

int64_t model_rows_piece(const struct ggml_tensor *w, int64_t step, int64_t n_pieces, int64_t most_bytes) {
    int64_t piece = w->ne[1] / n_pieces, most = most_bytes / (int64_t)w->nb[1];
    if (piece > most) piece = most;
    piece -= piece % step;
    return piece < step ? step : piece;
}

struct model_rows_product *model_rows_begin(struct ggml_context *ctx, const struct model_rows_kernel *k) {
    struct model_rows_product *p = ggml_new_buffer(ctx, sizeof *p);
    *p = (struct model_rows_product){.kernel = k};
    return p;
}

/* ---- one piece ---- */

static int32_t expert_of(const struct ggml_tensor *ids, uint32_t column) {
    const char *row = (const char *)ids->data + (column / (size_t)ids->ne[0]) * ids->nb[1];
    return ((const int32_t *)row)[column % (size_t)ids->ne[0]];
}

/* Rows that a kernel takes at once. */
static int64_t step_of(const struct task *k) {
    return k->packed ? MODEL_ROWS_PACK : 1;
}

/* The vector that a column of the result is made of: one for all experts of a token, or one for each. */
static const uint8_t *vector_of(const struct task *k, uint32_t column) {
    const struct ggml_tensor *ids = k->t->src[2], *x = k->t->src[1];
    size_t i = ids && x->ne[1] == 1 ? column / (size_t)ids->ne[0] : column;
    return k->vectors + i * k->vector_stride;
}

/* A row, or those that are packed together, from `row` on, and one vector. */
static void multiply(const struct task *k, float *out, const uint8_t *row, const uint8_t *vector) {
    int n = (int)k->t->src[0]->ne[0];
    if (k->packed)
        k->kernel->packed(n, out, (size_t)k->t->ne[0], row, vector, 1, MODEL_ROWS_PACK);
    else
        k->kernel->dot(n, out, 0, row, 0, vector, 0, 1);
}

/* Rows [first, end) with all vectors of a run. */
static void multiply_block(const struct task *k, uint32_t run, const uint8_t *matrix, int64_t first, int64_t end) {
    size_t row = k->t->src[0]->nb[1];
    int64_t step = step_of(k);
    for (uint32_t c = k->begin[run]; c < k->begin[run + 1]; c++) {
        float *out = (float *)((char *)k->t->data + k->column[c] * k->t->nb[1]);
        const uint8_t *vector = vector_of(k, k->column[c]);
        for (int64_t i = first; i < end; i += step) multiply(k, out + i, matrix + (size_t)i * row, vector);
    }
}

static void multiply_piece(const struct task *k, int piece) {
    const struct ggml_tensor *w = k->t->src[0], *ids = k->t->src[2];
    uint32_t run = (uint32_t)(piece / k->n_pieces);
    /* Where rows are asked for each meets all vectors at once, else a vector some rows that follow one another. */
    int64_t block = k->asks ? step_of(k) : LONG_BLOCK, first = piece % k->n_pieces * k->piece, end = first + k->piece;
    const uint8_t *matrix = w->data;
    if (ids) matrix += (size_t)expert_of(ids, k->column[k->begin[run]]) * w->nb[2];
    if (end > w->ne[1]) end = w->ne[1];
    for (int64_t i = first; i < end; i += block) {
        if (k->asks) model_rows_ask(matrix + (size_t)i * w->nb[1], (size_t)block * w->nb[1]);
        multiply_block(k, run, matrix, i, i + block < end ? i + block : end);
    }
}

/* ---- what is to be done ---- */

/* Orders the columns by expert, those of one expert as they come. */
static void sort_columns(struct task *k, uint32_t n) {
    const struct ggml_tensor *ids = k->t->src[2];
    int32_t expert[COLUMNS];
    for (uint32_t c = 0; c < n; c++) {
        int32_t e = ids ? expert_of(ids, c) : 0;
        uint32_t at = c;
        for (; at > 0 && expert[at - 1] > e; at--) {
            expert[at] = expert[at - 1];
            k->column[at] = k->column[at - 1];
        }
        expert[at] = e;
        k->column[at] = c;
    }
    for (uint32_t c = 0; c < n; c++)
        if (c == 0 || expert[c] != expert[c - 1]) k->begin[k->n_runs++] = c;
    k->begin[k->n_runs] = n;
}

/* Each thread converts for itself: of few vectors that is sooner done than waiting for each other. */
static void convert(struct task *k, uint8_t *to) {
    const struct ggml_tensor *x = k->t->src[1];
    k->vectors = x->data;
    k->vector_stride = x->nb[1]; /* x is contiguous where there are ids */
    if (!k->kernel->convert) return;
    k->vectors = to;
    k->vector_stride = ggml_row_size(k->kernel->vector_type, x->ne[0]);
    for (int64_t i = 0; i < x->ne[1] * x->ne[2]; i++)
        k->kernel->convert((const float *)((const char *)x->data + (size_t)i * x->nb[1]),
                           to + (size_t)i * k->vector_stride, x->ne[0]);
}

static void divide(struct task *k, int n_threads) {
    const struct ggml_tensor *w = k->t->src[0];
    int64_t wanted = ((int64_t)n_threads * MODEL_ROWS_PIECES + k->n_runs - 1) / k->n_runs;
    k->piece = model_rows_piece(w, step_of(k), wanted, k->asks ? MODEL_ROWS_PIECE_BYTES : LONG_BYTES);
    k->n_pieces = (int)((w->ne[1] + k->piece - 1) / k->piece);
}

static bool is_packed(const struct ggml_tensor *w, const struct model_rows_kernel *k) {
    return k->packed && w->buffer && ggml_backend_buffer_get_type(w->buffer) == k->packed_in;
}

static void compute(struct ggml_tensor *t, int ith, int nth, void *user) {
    _Alignas(64) uint8_t converted[VECTOR_BYTES];
    struct model_rows_product *p = user;
    struct task k = {.kernel = p->kernel, .t = t, .packed = is_packed(t->src[0], p->kernel)};
    k.asks = p->pace.way == MODEL_ROWS_ASKING;
    if (ith == 0) model_rows_pace_begin(&p->pace);
    convert(&k, converted);
    sort_columns(&k, (uint32_t)(t->ne[1] * t->ne[2]));
    divide(&k, nth);
    for (int i; (i = model_own_take(&p->share)) < (int)k.n_runs * k.n_pieces;) multiply_piece(&k, i);
    if (model_own_leave(&p->share, nth)) model_rows_pace_end(&p->pace);
}

/* ---- graphs ---- */

/* Whether there are kernels for w, where it lies, and x. */
static bool fits(const struct model_rows_kernel *k, const struct ggml_tensor *w, const struct ggml_tensor *x) {
    bool here = w->buffer && (is_packed(w, k) || (k->dot && ggml_backend_buffer_is_host(w->buffer)));
    return here && ggml_is_contiguous(w) && x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float);
}

/* Whether n columns of the result, made of x, are few enough for a thread's own memory. */
static bool few(const struct model_rows_kernel *k, const struct ggml_tensor *x, int64_t n) {
    int64_t n_vectors = x->ne[1] * x->ne[2] * x->ne[3];
    return n <= COLUMNS && (size_t)n_vectors * ggml_row_size(k->vector_type, x->ne[0]) <= VECTOR_BYTES;
}

static struct ggml_tensor *make(struct ggml_context *ctx, const struct model_rows_kernel *k, struct ggml_tensor **args,
                                int64_t n, int64_t n_tokens) {
    struct model_rows_product *p = model_rows_begin(ctx, k);
    p->pace =
        model_rows_pace_of((int)args[0]->type, is_packed(args[0], k), args[0]->ne[0], args[0]->ne[1], n * n_tokens);
    return ggml_custom_4d(ctx, GGML_TYPE_F32, args[0]->ne[1], n, n_tokens, 1, args, args[2] ? 3 : 2, compute,
                          GGML_N_TASKS_MAX, p);
}

/* How many vectors one matrix may have. */
static int64_t most_of(const struct model_rows_kernel *k, bool apart) {
    return apart ? k->most_apart : k->most;
}

struct ggml_tensor *model_rows_multiply(struct ggml_context *ctx, const struct model_rows *r, struct ggml_tensor *w,
                                        struct ggml_tensor *x, bool apart) {
    const struct model_rows_kernel *k = &r->kernel[w->type];
    int64_t n = x->ne[1], most = is_packed(w, k) ? PACKED_COLUMNS : most_of(k, apart);
    bool flat = w->ne[2] * w->ne[3] * x->ne[2] * x->ne[3] == 1;
    if (!flat || !fits(k, w, x)) return NULL;
    if (n > most && k->widen && !is_packed(w, k)) return model_rows_many(ctx, k, w, x);
    if (n > most || !few(k, x, n)) return NULL;
    return make(ctx, k, (struct ggml_tensor *[]){w, x, NULL}, n, 1);
}

struct ggml_tensor *model_rows_multiply_id(struct ggml_context *ctx, const struct model_rows *r, struct ggml_tensor *w,
                                           struct ggml_tensor *x, struct ggml_tensor *ids, bool apart) {
    const struct model_rows_kernel *k = &r->kernel[w->type];
    /* All tokens may have chosen the same expert. In its own orders ggml multiplies one vector at a time here. */
    bool enough = is_packed(w, k) || ids->ne[1] <= most_of(k, apart);
    if (!enough || !ggml_is_contiguous(x) || !fits(k, w, x) || !few(k, x, ids->ne[0] * ids->ne[1])) return NULL;
    return make(ctx, k, (struct ggml_tensor *[]){w, x, ids}, ids->ne[0], ids->ne[1]);
}

size_t model_rows_overhead(void) {
    enum { OBJECT = 64 }; /* of ggml's list, with its padding */
    return 2 * (sizeof(struct model_rows_product) + OBJECT) + ggml_tensor_overhead();
}
