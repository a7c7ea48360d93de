/*
 * Attention of many queries on the CPU: a prompt's, or a part of one.
 *
 * ggml's fused operation brings keys into the order of its kernels anew for each head and each 64 queries, one number
 * after the other. Here keys and values are made floats once for all heads that share them and for hundreds of
 * queries, and nothing is computed for cells that no query of a block sees (model_attn_kernel.h has the inner part).
 * Not one bit differs from ggml's result: a kernel is used only after it has computed what ggml computes.
 */
#ifndef MODEL_ATTN_H
#define MODEL_ATTN_H

#include <ggml.h>
#include <stdint.h>

struct model_backend;
struct model_attn_kernel;

/* Part of struct model_backend. */
struct model_attn {
    const struct model_attn_kernel *kernel; /* NULL: none for this processor */
    uint32_t n_threads;                     /* that compute, at most */
};

/* What is looked at, as ggml_flash_attn_ext takes it. */
struct model_attn_args {
    struct ggml_tensor *q;     /* F32 [dim_k, n, n_head, spans], in any order of memory but for the first */
    struct ggml_tensor *k;     /* [dim_k, n_kv, n_head_kv, spans] */
    struct ggml_tensor *v;     /* [dim_v, n_kv, n_head_kv, spans] */
    struct ggml_tensor *mask;  /* F16 [n_kv, n, 1, spans]: 0 visible, -infinity not */
    struct ggml_tensor *sinks; /* F32 [n_head] or NULL */
    float scale;               /* of q*k */
    float softcap;             /* of scores; 0: none */
};

/* b: the CPU, opened, with its number of threads set. */
void model_attn_find(struct model_attn *a, const struct model_backend *b);

/*
 * F32 [dim_v, n_head, n, spans], or NULL when that is not for this module: the caller takes ggml_flash_attn_ext. It is
 * for as many queries as ggml takes its own tiles for, and a cache of F16.
 */
struct ggml_tensor *model_attn(struct ggml_context *ctx, const struct model_attn *a,
                               const struct model_attn_args *args);
/* Bytes that each takes of its graph's context at most, beside a tensor. */
size_t model_attn_overhead(void);

#endif
