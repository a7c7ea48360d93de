/*
 * Products with many vectors, for a type that costs more to unpack than to multiply. See model_rows.h.
 *
 * ggml's kernel unpacks a row for each vector. Here it is unpacked once, into a type that has the same numbers in a
 * plainer form, and multiplied with all vectors by that type's kernel. A few rows at a time, so that they and a vector
 * stay in the first cache.
 */
#include "model/model_rows_priv.h"

#include <string.h>

enum { BLOCK_BYTES = 16 << 10, BLOCK_ROWS = 16 };

/* ---- widening ---- */

/* Eight bits as eight bytes: 0 for a bit that is set, 0xf0 for one that is not. */
static uint64_t spread(uint64_t bits) {
    const uint64_t ones = 0x0101010101010101u, tops = ones << 7;
    uint64_t own = bits * ones & 0x8040201008040201u; /* in byte i bit i alone */
    uint64_t clear = ~(own + (tops - ones)) & tops;   /* a byte that is not 0 carries into its top bit */
    return (clear >> 7) * 0xf0;
}

/*
 * A block of Q5_0 is a factor, the fifth bits of 32 numbers, and their low halves: number i and i + 16 in byte i; 16 is
 * to be taken away. Of Q8_0 it is the factor and 32 numbers of 8 bits. A fifth bit that is not set makes a number
 * negative: its upper half is then all ones.
 */
void model_rows_widen_q5_0(const void *row, void *out, int64_t n) {
    enum { BLOCK = 32, IN = 22, OUT = 34 };
    const uint64_t low = 0x0f0f0f0f0f0f0f0fu;
    const uint8_t *in = row;
    uint8_t *to = out;
    for (int64_t i = 0; i < n / BLOCK; i++, in += IN, to += OUT) {
        uint64_t halves[2], numbers[4];
        memcpy(halves, in + 6, sizeof halves);
        numbers[0] = (halves[0] & low) | spread(in[2]);
        numbers[1] = (halves[1] & low) | spread(in[3]);
        numbers[2] = (halves[0] >> 4 & low) | spread(in[4]);
        numbers[3] = (halves[1] >> 4 & low) | spread(in[5]);
        memcpy(to, in, 2);
        memcpy(to + 2, numbers, sizeof numbers);
    }
}

/* ---- computing ---- */

/* [bytes of a vector as kernels take it, n] of x [k, n]. */
static void convert(struct ggml_tensor *t, int ith, int nth, void *user) {
    const struct model_rows_product *p = user;
    const struct ggml_tensor *x = t->src[0];
    for (int64_t i = ith; i < x->ne[1]; i += nth)
        p->kernel->convert((const float *)((const char *)x->data + (size_t)i * x->nb[1]),
                           (char *)t->data + (size_t)i * t->nb[1], x->ne[0]);
}

static int64_t block_rows(const struct model_rows_kernel *k, int64_t width) {
    int64_t n = BLOCK_BYTES / (int64_t)ggml_row_size(k->wide_type, width);
    return n < BLOCK_ROWS ? n : BLOCK_ROWS;
}

/* Rows [first, end) with all vectors; wide: room for as many. */
static void multiply_block(struct ggml_tensor *t, const struct model_rows_kernel *k, int64_t first, int64_t end,
                           uint8_t *wide) {
    const struct ggml_tensor *w = t->src[0], *v = t->src[1];
    size_t row = ggml_row_size(k->wide_type, w->ne[0]);
    for (int64_t i = first; i < end; i++) {
        const uint8_t *packed = (const uint8_t *)w->data + (size_t)i * w->nb[1];
        model_rows_ask(packed, w->nb[1]);
        k->widen(packed, wide + (size_t)(i - first) * row, w->ne[0]);
    }
    for (int64_t c = 0; c < v->ne[1]; c++) {
        const uint8_t *vector = (const uint8_t *)v->data + (size_t)c * v->nb[1];
        float *out = (float *)((char *)t->data + (size_t)c * t->nb[1]);
        for (int64_t i = first; i < end; i++)
            k->wide_dot((int)w->ne[0], out + i, 0, wide + (size_t)(i - first) * row, 0, vector, 0, 1);
    }
}

static void compute(struct ggml_tensor *t, int ith, int nth, void *user) {
    _Alignas(64) uint8_t wide[BLOCK_BYTES];
    struct model_rows_product *p = user;
    int64_t rows = t->ne[0], step = block_rows(p->kernel, t->src[0]->ne[0]);
    int64_t piece = model_rows_piece(t->src[0], step, (int64_t)nth * MODEL_ROWS_PIECES, MODEL_ROWS_PIECE_BYTES), first;
    (void)ith;
    while ((first = model_own_take(&p->share) * piece) < rows)
        for (int64_t i = first; i < first + piece && i < rows; i += step)
            multiply_block(t, p->kernel, i, i + step < rows ? i + step : rows, wide);
    model_own_leave(&p->share, nth);
}

struct ggml_tensor *model_rows_many(struct ggml_context *ctx, const struct model_rows_kernel *k, struct ggml_tensor *w,
                                    struct ggml_tensor *x) {
    if (block_rows(k, w->ne[0]) < 1) return NULL;
    int64_t n = x->ne[1], vector = (int64_t)ggml_row_size(k->vector_type, x->ne[0]);
    struct ggml_tensor *args[] = {w, NULL};
    args[1] =
        ggml_custom_4d(ctx, GGML_TYPE_I8, vector, n, 1, 1, &x, 1, convert, GGML_N_TASKS_MAX, model_rows_begin(ctx, k));
    return ggml_custom_4d(ctx, GGML_TYPE_F32, w->ne[1], n, 1, 1, args, 2, compute, GGML_N_TASKS_MAX,
                          model_rows_begin(ctx, k));
}
