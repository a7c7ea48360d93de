/*
 * Graphs of a layer range, built once per shape and kept.
 *
 * The shapes of a run are few: the full prompt batch, its remainder, single tokens, and the sequences that decode
 * together, each for a number of steps of state. All graphs share one compute buffer, reserved for the largest shape
 * when the engine is made, as it is with settled weights; a kept graph costs its tensor table only. The least recently
 * used one goes when the cache is full. On a device with memory of its own only the last graph is kept.
 */
#ifndef ENGINE_GRAPH_H
#define ENGINE_GRAPH_H

#include "engine/engine_offload.h"
#include "model/model.h"

#include <ggml-alloc.h>

enum { ENGINE_GRAPH_SLOTS = 16 };

/* What distinguishes graphs. */
struct engine_shape {
    struct model_span span[MODEL_BUILD_SPANS];
    uint32_t n_spans;
};

struct engine_graph {
    struct ggml_context *ctx;       /* NULL: the slot is free */
    struct model_build b;           /* shape and inputs */
    struct ggml_tensor *out;        /* NULL when no rows are wanted */
    struct engine_offload *offload; /* where it is computed; NULL: by the CPU, in place */
    uint64_t used;                  /* time stamp for replacement */
};

struct engine_graphs {
    const struct model *model; /* borrowed, as are the next two */
    const struct model_state *state;
    const struct model_backend *backend;
    uint32_t n_ctx;
    bool name_parts;      /* see struct model_build; set after engine_graphs_init */
    ggml_gallocr_t alloc; /* in place; else NULL, and: */
    struct engine_offload offload;
    size_t scratch;        /* bytes of the compute buffers */
    size_t device_scratch; /* of these, on a device with memory of its own */
    uint64_t clock;
    struct engine_graph slot[ENGINE_GRAPH_SLOTS];
};

/* What the compute buffer must do for. */
struct engine_limits {
    uint32_t n_ctx;   /* positions of a sequence */
    uint32_t n_seq;   /* sequences */
    uint32_t n_batch; /* tokens in one graph */
    uint32_t n_out;   /* of these, rows that leave the last layer */
};

/* Reserves the compute buffers; with a backend that only measures, g->scratch tells what they would have been. On a
 * device they grow when a shape turns up that needs more. */
strata_err engine_graphs_init(struct engine_graphs *g, const struct model *model, const struct model_state *state,
                              const struct model_backend *backend, const struct engine_limits *max,
                              struct strata_errmsg *em);
/* Bytes of the compute buffers that the graph of a shape needs. */
strata_err engine_graphs_need(struct engine_graphs *g, const struct engine_shape *shape, size_t *out,
                              struct strata_errmsg *em);
void engine_graphs_deinit(struct engine_graphs *g);

/* The graph of a shape, allocated; valid until the next call. */
strata_err engine_graphs_get(struct engine_graphs *g, const struct engine_shape *shape, struct engine_graph **out,
                             struct strata_errmsg *em);

/* Forgets all graphs: those of weights that lie elsewhere now must not be computed any more. */
void engine_graphs_forget(struct engine_graphs *g);

/* Computes a graph that engine_graphs_get or engine_graphs_probe gave, with the inputs that were set. */
enum ggml_status engine_graphs_compute(const struct engine_graphs *g, const struct engine_graph *s);

/*
 * A graph of its own for a shape, with the result of every layer as an output: layer[i] for layer range.first + i.
 * Freed by engine_graphs_unprobe. For finding out where a result went wrong.
 */
struct engine_probe {
    struct engine_graph graph;
    ggml_gallocr_t alloc;
    struct engine_offload offload;
    struct ggml_tensor **layer;
};
strata_err engine_graphs_probe(const struct engine_graphs *g, const struct engine_shape *shape,
                               struct engine_probe *out, struct strata_errmsg *em);
void engine_graphs_unprobe(struct engine_probe *p);

#endif
