/*
 * Products of matrices with few vectors, with the rows to come on their way from memory.
 *
 * A token that is decoded reads every weight once and computes little with it, so it can be no faster than memory.
 * ggml's kernels for one row leave fetching to the processor, which does not look far enough ahead: they get about half
 * of what memory gives on some machines. Here the same kernels, ggml's own, are called for a few rows at a time, each
 * time after asking for bytes some way ahead, unless that turns out to be slower (model_rows_pace.h). Not one bit
 * differs from ggml_mul_mat's result (or ggml_mul_mat_id's), which call the same kernels with the same numbers.
 *
 * The kernels are looked up in the CPU backend that ggml has loaded, and one that is not part of ggml's headers is used
 * only after it has computed what ggml computes. Where one is missing ggml's own operation remains.
 */
#ifndef MODEL_ROWS_H
#define MODEL_ROWS_H

#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

struct model_backend;

/* The product of n_rows rows in an order of the kernels' own, from `rows` on, with one vector of n numbers: as many
 * floats in out. The other numbers matter to several vectors only. */
typedef void model_rows_packed_fn(int n, float *out, size_t out_stride, const void *rows, const void *vectors,
                                  int n_vectors, int n_rows);

/* Makes a row of n numbers one of a wider type. */
typedef void model_rows_widen_fn(const void *row, void *out, int64_t n);

/* How the rows of a type are multiplied. */
struct model_rows_kernel {
    ggml_from_float_t convert;  /* of a vector to what the kernels take; NULL: they take F32 */
    enum ggml_type vector_type; /* that */
    ggml_vec_dot_t dot;         /* for one row in the file's order; NULL: not known */
    int64_t most, most_apart;   /* vectors: of one sequence, of several; for more, ggml has faster kernels */
    /* For MODEL_ROWS_PACK rows in a buffer of the type packed_in; NULL: none, or not known. */
    model_rows_packed_fn *packed;
    ggml_backend_buffer_type_t packed_in;
    /* For more than `most` vectors: rows in another type, with the same numbers and to the same result; or NULL. */
    model_rows_widen_fn *widen;
    enum ggml_type wide_type;
    ggml_vec_dot_t wide_dot;
};

enum { MODEL_ROWS_PACK = 8 };

/* Part of struct model_backend; graphs point into it. */
struct model_rows {
    struct model_rows_kernel kernel[GGML_TYPE_COUNT];
};

/* b: the CPU, opened, with its number of threads set. Kernels that cannot be found stay unknown. */
void model_rows_find(struct model_rows *r, const struct model_backend *b);

/*
 * w x, F32 [rows of w, n], for w [k, rows] and F32 x [k, n] with contiguous columns; or NULL when that is not for this
 * module: the caller takes ggml_mul_mat. It is for few columns of matrices in main memory, and kernels that are known.
 * apart: the columns belong to several sequences, so that they had better be rounded as each would be alone; those of
 * one sequence keep the rounding that ggml_mul_mat gives them.
 */
struct ggml_tensor *model_rows_multiply(struct ggml_context *ctx, const struct model_rows *r, struct ggml_tensor *w,
                                        struct ggml_tensor *x, bool apart);

/* The same with one of a stack of matrices for each vector: w [k, rows, experts], x [k, 1 or n_used, T] and I32 ids
 * [n_used, T] give [rows, n_used, T]; or NULL: the caller takes ggml_mul_mat_id. */
struct ggml_tensor *model_rows_multiply_id(struct ggml_context *ctx, const struct model_rows *r, struct ggml_tensor *w,
                                           struct ggml_tensor *x, struct ggml_tensor *ids, bool apart);

/* Bytes that each product takes of its graph's context at most, beside its tensor. */
size_t model_rows_overhead(void);

#endif
