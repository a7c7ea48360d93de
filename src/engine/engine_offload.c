/* Graphs on a device. See engine_offload.h. Owns the scheduler. Refuses operations that nobody can compute: ggml would
 * end the process. */
#include "engine/engine_offload.h"

#include "base/progress.h"

#include <string.h>

static size_t count_tensors(struct ggml_context *ctx) {
    size_t n = 0;
    for (struct ggml_tensor *t = ggml_get_first_tensor(ctx); t; t = ggml_get_next_tensor(ctx, t)) n++;
    return n;
}

bool engine_offload_computes(const struct ggml_tensor *t) {
    switch (t->op) {
    case GGML_OP_NONE:
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE: return false;
    default: return true;
    }
}

void engine_offload_init(struct engine_offload *o, const struct model_backend *backend, const struct model *model,
                         const struct model_state *state) {
    *o = (struct engine_offload){.backend = backend,
                                 .n_fixed = count_tensors(model->weights.ctx) + count_tensors(state->ctx)};
}

void engine_offload_deinit(struct engine_offload *o) {
    if (o->sched) ggml_backend_sched_free(o->sched);
    o->sched = NULL;
    o->capacity = 0;
}

/* An operation that writes into the state must be computed where that lies. */
static strata_err check_operation(const struct engine_offload *o, const struct ggml_tensor *t,
                                  struct strata_errmsg *em) {
    const struct model_backend *b = o->backend;
    const struct ggml_tensor *a = t->src[0];
    bool writes_there = t->view_src && t->view_src->buffer && !ggml_backend_buffer_is_host(t->view_src->buffer);
    if (ggml_backend_dev_supports_op(b->dev, t)) return STRATA_OK;
    if (!writes_there && ggml_backend_dev_supports_op(b->host_dev, t)) return STRATA_OK;
    return err_set(em, STRATA_EUNSUPPORTED,
                   "%s cannot compute %s of %s into %s%s; choose another type of cache, or --device cpu",
                   ggml_backend_dev_name(b->dev), ggml_op_desc(t), a ? ggml_type_name(a->type) : "nothing",
                   ggml_type_name(t->type), writes_there ? ", which has to be done there" : ", nor can the CPU");
}

/* Room for all tensors of a graph: its operations, and what they read from outside. The scheduler is made anew, and its
 * buffers with it, when it is too small: only against expectation after engine_offload_reserve. */
static strata_err make_room(struct engine_offload *o, size_t n_nodes, struct strata_errmsg *em) {
    enum { INPUTS = 16 + MODEL_BUILD_SPANS * (MODEL_BUILD_WINDOWS + 2) };
    ggml_backend_t sides[ENGINE_OFFLOAD_SIDES] = {o->backend->handle, o->backend->host};
    ggml_backend_buffer_type_t bufts[ENGINE_OFFLOAD_SIDES] = {o->backend->buft,
                                                              ggml_backend_dev_buffer_type(o->backend->host_dev)};
    size_t need = n_nodes + o->n_fixed + INPUTS;
    if (o->sched && need <= o->capacity) {
        ggml_backend_sched_reset(o->sched);
        return STRATA_OK;
    }
    engine_offload_deinit(o);
    /* Weights that lie with the CPU are of types that the device cannot use: they must not be sent there. */
    o->sched = ggml_backend_sched_new(sides, bufts, ENGINE_OFFLOAD_SIDES, need, false, false);
    if (!o->sched) return err_nomem(em, "the scheduler of the device");
    o->capacity = need;
    return STRATA_OK;
}

static strata_err prepare(struct engine_offload *o, struct ggml_cgraph *graph, size_t n_nodes,
                          struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    for (int i = 0; i < ggml_graph_n_nodes(graph) && !rc; i++) {
        const struct ggml_tensor *t = ggml_graph_node(graph, i);
        if (engine_offload_computes(t)) rc = check_operation(o, t, em);
    }
    return rc ? rc : make_room(o, n_nodes, em);
}

strata_err engine_offload_need(struct engine_offload *o, struct ggml_cgraph *graph, size_t need[ENGINE_OFFLOAD_SIDES],
                               struct strata_errmsg *em) {
    strata_err rc = prepare(o, graph, (size_t)ggml_graph_n_nodes(graph), em);
    if (rc) return rc;
    ggml_backend_sched_reserve_size(o->sched, graph, need);
    ggml_backend_sched_reset(o->sched);
    /* Sides of one kind of memory share a buffer, which is reported for both. */
    if (ggml_backend_dev_buffer_type(o->backend->host_dev) == o->backend->buft) need[ENGINE_OFFLOAD_HOST] = 0;
    return STRATA_OK;
}

strata_err engine_offload_reserve(struct engine_offload *o, struct ggml_cgraph *graph, size_t need, size_t n_nodes,
                                  uint32_t n_tokens, struct strata_errmsg *em) {
    char want[32], have[32];
    strata_err rc = prepare(o, graph, n_nodes, em);
    if (rc) return rc;
    uint64_t available = model_backend_memory_free(o->backend), had = engine_offload_bytes(o, ENGINE_OFFLOAD_DEVICE);
    bool is_short = need > had && need - had > available;
    if (is_short || !ggml_backend_sched_reserve(o->sched, graph))
        return err_set(em, STRATA_ENOMEM,
                       "computing %u tokens at once needs %s of the memory of %s for scratch, which has %s free; lower "
                       "the batch or the context length",
                       (unsigned)n_tokens, progress_bytes(want, sizeof want, need),
                       ggml_backend_dev_name(o->backend->dev), progress_bytes(have, sizeof have, available));
    return STRATA_OK;
}

static void count_operations(struct engine_offload *o, struct ggml_cgraph *graph) {
    o->ops = o->host_ops = 0;
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        struct ggml_tensor *t = ggml_graph_node(graph, i);
        if (!engine_offload_computes(t)) continue;
        o->ops++;
        if (ggml_backend_sched_get_tensor_backend(o->sched, t) == o->backend->host) o->host_ops++;
    }
}

strata_err engine_offload_place(struct engine_offload *o, struct ggml_cgraph *graph, uint32_t n_tokens,
                                struct strata_errmsg *em) {
    strata_err rc = prepare(o, graph, (size_t)ggml_graph_n_nodes(graph), em);
    if (rc) return rc;
    if (!ggml_backend_sched_alloc_graph(o->sched, graph))
        return err_set(em, STRATA_ENOMEM, "%s has no scratch memory for a batch of %u tokens; lower the batch",
                       ggml_backend_dev_name(o->backend->dev), (unsigned)n_tokens);
    count_operations(o, graph);
    return STRATA_OK;
}

enum ggml_status engine_offload_compute(struct engine_offload *o, struct ggml_cgraph *graph) {
    return ggml_backend_sched_graph_compute(o->sched, graph);
}

size_t engine_offload_bytes(const struct engine_offload *o, enum engine_offload_side side) {
    if (!o->sched) return 0;
    return ggml_backend_sched_get_buffer_size(o->sched,
                                              side == ENGINE_OFFLOAD_DEVICE ? o->backend->handle : o->backend->host);
}
