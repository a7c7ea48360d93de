/* What the files of model_rows share. */
#ifndef MODEL_ROWS_PRIV_H
#define MODEL_ROWS_PRIV_H

#include "model/model_own.h"
#include "model/model_rows.h"
#include "model/model_rows_pace.h"

#include <stdint.h>

/* A product in a graph, in its context. */
struct model_rows_product {
    const struct model_rows_kernel *kernel;
    struct model_own_share share;
    struct model_rows_pace pace;
};

struct model_rows_product *model_rows_begin(struct ggml_context *ctx, const struct model_rows_kernel *k);

/* Rows in a piece of a matrix, a multiple of step, so that there are at least n_pieces, of so many bytes at most. */
int64_t model_rows_piece(const struct ggml_tensor *w, int64_t step, int64_t n_pieces, int64_t most_bytes);

/* Asks for bytes that will be read soon. Beyond the end of the matrix that has no effect: a prefetch cannot fail. */
void model_rows_ask(const uint8_t *row, size_t bytes);

enum {
    MODEL_ROWS_PIECES = 4, /* for each thread, at least */
    MODEL_ROWS_PIECE_BYTES = 1 << 16
};

/* w x for a kernel that widens, whatever the number of columns; NULL: rows are too long. */
struct ggml_tensor *model_rows_many(struct ggml_context *ctx, const struct model_rows_kernel *k, struct ggml_tensor *w,
                                    struct ggml_tensor *x);

/* See struct model_rows_kernel. Q5_0 as Q8_0. */
void model_rows_widen_q5_0(const void *row, void *out, int64_t n);

#endif
