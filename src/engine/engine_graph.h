/*
 * Graphs of a layer range, built once per shape and kept.
 *
 * The shapes of a run are few: the full prompt batch, its remainder, and single tokens, each for a number of cache
 * steps. All graphs share one compute buffer, reserved for the largest shape when the engine is made; a kept graph
 * costs its tensor table only. The least recently used one goes when the cache is full.
 */
#ifndef ENGINE_GRAPH_H
#define ENGINE_GRAPH_H

#include "model/model.h"

#include <ggml-alloc.h>

enum { ENGINE_GRAPH_SLOTS = 12 };

struct engine_graph {
    struct ggml_context *ctx; /* NULL: the slot is free */
    struct model_build b;     /* shape and inputs */
    struct ggml_tensor *out;  /* NULL when no rows are wanted */
    uint64_t used;            /* time stamp for replacement */
};

struct engine_graphs {
    const struct model *model; /* borrowed, as are the next two */
    const struct model_kv *kv;
    const struct model_backend *backend;
    uint32_t n_ctx;
    ggml_gallocr_t alloc;
    size_t scratch; /* bytes of the compute buffer */
    uint64_t clock;
    struct engine_graph slot[ENGINE_GRAPH_SLOTS];
};

/* Reserves the compute buffer for batches of n_batch tokens with n_out rows of output over the whole context. */
strata_err engine_graphs_init(struct engine_graphs *g, const struct model *model, const struct model_kv *kv,
                              const struct model_backend *backend, uint32_t n_ctx, uint32_t n_batch, uint32_t n_out,
                              struct strata_errmsg *em);
void engine_graphs_deinit(struct engine_graphs *g);

/* The graph of a shape, allocated; valid until the next call. */
strata_err engine_graphs_get(struct engine_graphs *g, uint32_t n_tokens, uint32_t n_kv, uint32_t n_out,
                             struct engine_graph **out, struct strata_errmsg *em);

#endif
