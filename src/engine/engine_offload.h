/*
 * Graphs on a device with memory of its own, with the CPU for what the device cannot compute.
 *
 * ggml's scheduler cuts a graph into runs of operations for either side and copies between them what the other one
 * needs. One graph at a time has its places in the compute buffers: placing another one takes them from it.
 *
 * Life cycle: engine_offload_init, engine_offload_reserve with the largest graphs, then engine_offload_place and any
 * number of engine_offload_compute for each graph, engine_offload_deinit.
 */
#ifndef ENGINE_OFFLOAD_H
#define ENGINE_OFFLOAD_H

#include "model/model.h"

/* ggml wants the CPU last. */
enum engine_offload_side { ENGINE_OFFLOAD_DEVICE, ENGINE_OFFLOAD_HOST, ENGINE_OFFLOAD_SIDES };

struct engine_offload {
    const struct model_backend *backend; /* borrowed */
    size_t n_fixed;                      /* tensors of weights and state, which a graph reads from outside */
    ggml_backend_sched_t sched;
    size_t capacity; /* tensors that the scheduler has room for */
    /* Of the graph placed last: operations, and those of them that the CPU computes. */
    uint32_t ops, host_ops;
};

/* Whether a tensor of a graph is computed, and not only another way to look at one. */
bool engine_offload_computes(const struct ggml_tensor *t);

void engine_offload_init(struct engine_offload *o, const struct model_backend *backend, const struct model *model,
                         const struct model_state *state);
void engine_offload_deinit(struct engine_offload *o);

/*
 * The scheduler puts copies of its own into a graph that it cuts, and frees them with the next one: each of these three
 * takes a new graph, which may go to none of them again.
 */
/* Bytes of compute buffers that a graph needs on either side. None is taken; graphs that were placed lose their places.
 */
strata_err engine_offload_need(struct engine_offload *o, struct ggml_cgraph *graph, size_t need[ENGINE_OFFLOAD_SIDES],
                               struct strata_errmsg *em);
/* Takes compute buffers for a graph of n_tokens tokens that needs `need` bytes on the device, and room for graphs of up
 * to n_nodes operations. EUNSUPPORTED names an operation that neither side can compute there, ENOMEM tells how much is
 * wanted. */
strata_err engine_offload_reserve(struct engine_offload *o, struct ggml_cgraph *graph, size_t need, size_t n_nodes,
                                  uint32_t n_tokens, struct strata_errmsg *em);
/* Gives a graph its places. */
strata_err engine_offload_place(struct engine_offload *o, struct ggml_cgraph *graph, uint32_t n_tokens,
                                struct strata_errmsg *em);
enum ggml_status engine_offload_compute(struct engine_offload *o, struct ggml_cgraph *graph);
/* Bytes of the compute buffers of a side. */
size_t engine_offload_bytes(const struct engine_offload *o, enum engine_offload_side side);

#endif
