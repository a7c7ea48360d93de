/*
 * Runs one layer range of a model on ggml.
 *
 * The first stage takes token ids, every other one takes hidden states; the last stage gives logits, every other one
 * gives hidden states. Hidden states are f32, row-major [n_tokens][n_embd]: the frame format between stages.
 * One engine holds one sequence (its KV cache) and is used by one thread at a time. A model cut at any layer computes
 * bit for bit what the uncut model computes, provided that the same tokens are fed in the same batches.
 */
#ifndef ENGINE_H
#define ENGINE_H

#include "package/pkg_model.h"

#include <stdbool.h>
#include <stdint.h>

enum engine_kv_type { ENGINE_KV_F16, ENGINE_KV_F32 };

struct engine_options {
    uint32_t n_ctx;      /* positions in the KV cache; 0: the model's context length, at most 4096 */
    uint32_t n_batch;    /* most tokens in one run; 0: 512 */
    uint32_t max_logits; /* most rows of logits from one run of the last stage; 0: n_batch. 1 saves scratch memory */
    uint32_t n_threads;  /* 0: all cores */
    enum engine_kv_type kv_type;
    const char *backend_dir; /* folder with ggml's backends; NULL: the one Strata was built with */
};

/* What a loaded range is and what it costs, in bytes. */
struct engine_info {
    char arch[32];
    uint32_t layer_count; /* layers of the whole model that are run (trunk) */
    struct pkg_range range;
    bool is_first, is_last;
    uint32_t n_embd, n_vocab, n_ctx, n_ctx_train, n_batch, n_threads;
    uint64_t weight_bytes; /* tensors of this range, mapped or copied */
    uint64_t copied_bytes; /* of these, copied because their place in the file is not aligned */
    uint64_t kv_bytes;
    uint64_t scratch_bytes; /* compute buffers */
    /* The device and the instruction sets that its kernels were built for, such as "CPU AVX2=1 FMA=1": processors for
     * which this text is the same round the same way. */
    char backend[256];
};

struct engine;

/* Borrows m, which must outlive the engine. Everything is validated before ggml is called. */
strata_err engine_new(const struct pkg_model *m, const struct engine_options *opt, struct engine **out,
                      struct strata_errmsg *em);
void engine_free(struct engine *e);
const struct engine_info *engine_info(const struct engine *e);

enum engine_output { ENGINE_OUT_NONE, ENGINE_OUT_LAST, ENGINE_OUT_ALL };

struct engine_batch {
    uint32_t pos;          /* position of the first token; must be the number of positions already in the cache */
    uint32_t n_tokens;     /* 1 to n_batch */
    const int32_t *tokens; /* n_tokens ids, first stage only; else NULL */
    const float *hidden;   /* n_tokens * n_embd floats, other stages only; else NULL */
    enum engine_output
        want; /* last stage: logits of no, the last or every token. Other stages always give all hidden states. */
};

/*
 * Runs a batch. *out is a view into the engine, valid until the next call: logits [rows][n_vocab] on the last stage
 * (rows is 0, 1 or n_tokens), hidden states [n_tokens][n_embd] elsewhere.
 */
strata_err engine_run(struct engine *e, const struct engine_batch *b, const float **out, struct strata_errmsg *em);

/* Positions in the cache, and forgetting those from `pos` on (0: start afresh). */
uint32_t engine_pos(const struct engine *e);
strata_err engine_truncate(struct engine *e, uint32_t pos, struct strata_errmsg *em);

/* Names of the architectures that can be run, comma-separated. */
const char *engine_architectures(void);

#endif
