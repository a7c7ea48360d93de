/*
 * Operations of our own in ggml's graphs, for which ggml has one that is called custom: products (model_rows.h) and
 * attention (model_attn.h). What they have in common.
 */
#ifndef MODEL_OWN_H
#define MODEL_OWN_H

#include <ggml.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What a tensor is the result of. A product that was made here, src[0] the matrix or the stack, src[1] the vectors and
 * src[2] the ids, is MUL_MAT or MUL_MAT_ID, vectors that were converted for one are a CPY, and attention, with the
 * operands of ggml's, is FLASH_ATTN_EXT; else as ggml says. */
enum ggml_op model_own_op(const struct ggml_tensor *t);

/* Bytes that each tensor takes of its graph's context at most, beside itself. */
size_t model_own_overhead(void);

/* Numbers from -1 to 1 for trials: different everywhere, and the same each time. */
static inline float model_own_number(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / (float)(1 << 23) - 1.0f;
}

/* How the threads that compute an operation share its work: each takes the next piece until none is left. In the
 * graph's context, 0 at first. */
struct model_own_share {
    atomic_int next, done;
};

static inline int model_own_take(struct model_own_share *s) {
    return atomic_fetch_add(&s->next, 1);
}

/* Once by each thread, when it takes no more: the last one makes all ready for the next time, and is told so. */
static inline bool model_own_leave(struct model_own_share *s, int n_threads) {
    if (atomic_fetch_add(&s->done, 1) + 1 < n_threads) return false;
    atomic_store(&s->done, 0);
    atomic_store(&s->next, 0);
    return true;
}

#endif
