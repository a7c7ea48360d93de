/*
 * What a stage needs from an engine, as a small table: the real one (stage_engine.h) runs layers on ggml, tests put a
 * scripted one in its place. All functions are called on the stage's compute thread, but `probe`.
 */
#ifndef STAGE_BACKEND_H
#define STAGE_BACKEND_H

#include "engine/engine.h"
#include "wire/wire_msg.h"

/* What the stage holds, before anything is loaded. */
struct stage_probe {
    char model_id[WIRE_MSG_MODEL];
    char manifest_sha256[WIRE_MSG_DIGEST];
    uint32_t layer_count;
};

struct stage_load {
    uint32_t first, end; /* half-open */
    uint32_t n_ctx, n_batch, n_seq, n_pool;
    enum engine_kv_type kv_type;
};

/* A loaded range; sizes in bytes. */
struct stage_unit_info {
    uint32_t n_embd, n_vocab, n_ctx, n_batch, n_threads;
    uint64_t weight_bytes, copied_bytes /* of these, not in the file's pages */, kv_bytes, scratch_bytes;
    uint64_t cache_bytes; /* of the prefix cache when it is full; filled in by the compute thread */
};

struct stage_backend {
    strata_err (*probe)(void *self, struct stage_probe *out, struct strata_errmsg *em);
    /* Loads a range, with digests verified. *unit is freed by `free`. */
    strata_err (*load)(void *self, const struct stage_load *req, void **unit, struct stage_unit_info *info,
                       struct strata_errmsg *em);
    /* As the engine_ functions of the same names. */
    strata_err (*run_many)(void *unit, const struct engine_batch *b, uint32_t n, const float **out,
                           struct strata_errmsg *em);
    strata_err (*truncate)(void *unit, uint32_t seq, uint32_t pos, struct strata_errmsg *em);
    uint64_t (*rows_bytes)(const void *unit, uint32_t first, uint32_t end);
    strata_err (*save_rows)(const void *unit, uint32_t seq, uint32_t first, uint32_t end, void *out,
                            struct strata_errmsg *em);
    strata_err (*load_rows)(void *unit, uint32_t seq, uint32_t first, uint32_t end, const void *in,
                            struct strata_errmsg *em);
    void (*free)(void *unit);
    void *self;
};

#endif
