/*
 * The inner part of attention (see model_attn.h): queries look at cells, some of each at a time.
 *
 * Every number of a query lies in a lane of its own, beside the same number of 31 others: products, the largest score,
 * exponentials and sums then go lane by lane. Keys and values stay as the cache has them, a row a cell.
 *
 * All is rounded as ggml rounds it when it looks at a tile of 64 cells with 64 queries or more, on the same processor:
 * products of keys are summed number by number and then scaled; exponentials are by a polynomial; they are summed by
 * halves over as many cells as a register of ggml's has numbers, and then in double precision; values are summed cell
 * by cell; what was summed before is multiplied by the C library's expf when a larger score comes.
 */
#ifndef MODEL_ATTN_KERNEL_H
#define MODEL_ATTN_KERNEL_H

#include <stddef.h>

/* Queries of a block, cells of a tile, and what the cells that are looked at and dim_v must be multiples of. */
enum { MODEL_ATTN_LANES = 32, MODEL_ATTN_CELLS = 64, MODEL_ATTN_STEP = 16 };

/* A block of queries and a tile of cells. Lanes are MODEL_ATTN_LANES numbers, one for each query. */
struct model_attn_step {
    size_t dim_k, dim_v;
    size_t first, end;         /* the cells of the tile that are looked at; the others count nothing */
    float scale;               /* of scores */
    const float *q;            /* [dim_k] lanes */
    const float *k, *v;        /* [MODEL_ATTN_CELLS] rows of that many numbers */
    size_t k_stride, v_stride; /* from row to row */
    const float *mask;         /* [MODEL_ATTN_CELLS] lanes to be added to the scores, 0 or -infinity; NULL: all 0 */
    float *scores;             /* room for [MODEL_ATTN_CELLS] lanes */
    /* So far, and with these cells afterwards: the largest score (-infinity before the first), the sum of e^(score -
     * largest), and [dim_v] lanes of the values' sum with these weights. */
    float *max, *sum, *out;
};

struct model_attn_kernel {
    const char *name;
    void (*step)(const struct model_attn_step *s);
    /* n numbers of half precision in the width of float. */
    void (*widen)(const void *half, float *out, size_t n);
};

/* The i-th of those that this processor can run, the best first; NULL: there are no more. */
const struct model_attn_kernel *model_attn_kernel(int i);

#endif
