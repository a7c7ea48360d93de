/* The cache of built graphs. See engine_graph.h. Owns their contexts and the compute buffers they share. */
#include "engine/engine_graph.h"

#include "base/progress.h"

#include <stdlib.h>
#include <string.h>

static void drop(struct engine_graph *s) {
    if (s->ctx) ggml_free(s->ctx);
    *s = (struct engine_graph){.ctx = NULL};
}

static strata_err build(const struct engine_graphs *g, const struct engine_shape *shape, struct ggml_tensor **probe,
                        struct engine_graph *s, struct strata_errmsg *em) {
    size_t nodes = model_graph_nodes(g->model, shape->n_spans);
    struct ggml_init_params params = {
        .mem_size = model_graph_tensors(g->model, shape->n_spans) * ggml_tensor_overhead() +
                    ggml_graph_overhead_custom(nodes, false),
        .no_alloc = true,
    };
    struct engine_graph m = {.ctx = ggml_init(params)};
    if (!m.ctx) return err_nomem(em, "a graph");
    m.b = (struct model_build){.ctx = m.ctx,
                               .state = g->state,
                               .n_spans = shape->n_spans,
                               .layer_out = probe,
                               .name_parts = g->name_parts,
                               .borders = !g->backend->in_place};
    memcpy(m.b.span, shape->span, shape->n_spans * sizeof *shape->span);
    for (uint32_t i = 0; i < shape->n_spans; i++) {
        m.b.n_tokens += shape->span[i].n;
        m.b.n_out += shape->span[i].n_out;
    }
    m.b.graph = ggml_new_graph_custom(m.ctx, nodes, false);
    strata_err rc = model_graph(g->model, &m.b, g->n_ctx, &m.out, em);
    m.b.layer_out = NULL;
    if (rc) {
        drop(&m);
        return rc;
    }
    *s = m;
    return STRATA_OK;
}

/* Asks how much the largest shape needs before taking it: ggml itself would only say that it failed. */
static strata_err reserve(struct engine_graphs *g, uint32_t n_batch, uint32_t n_out, struct strata_errmsg *em) {
    struct engine_graph worst = {.ctx = NULL};
    char want[32], have[32];
    size_t need = 0;
    const struct engine_shape shape = {.span = {{.n = n_batch, .n_out = n_out, .end = g->state->n_rows}}, .n_spans = 1};
    strata_err rc = build(g, &shape, NULL, &worst, em);
    if (rc) return rc;
    ggml_gallocr_reserve_n_size(g->alloc, worst.b.graph, NULL, NULL, &need);
    uint64_t available = model_backend_memory_available();
    if (need > available) {
        rc = err_set(em, STRATA_ENOMEM,
                     "computing %u tokens at once needs %s of scratch memory, and %s is available; lower the batch or "
                     "the context length",
                     (unsigned)n_batch, progress_bytes(want, sizeof want, need),
                     progress_bytes(have, sizeof have, available));
    } else if (!ggml_gallocr_reserve(g->alloc, worst.b.graph)) {
        rc = err_set(em, STRATA_ENOMEM,
                     "the system does not give the %s of scratch memory that %u tokens at once need; lower the batch",
                     progress_bytes(want, sizeof want, need), (unsigned)n_batch);
    }
    drop(&worst);
    g->scratch = ggml_gallocr_get_buffer_size(g->alloc, 0);
    return rc;
}

/* The same on a device, whose scheduler is told the number of operations as well: that of the most sequences. */
static strata_err reserve_offload(struct engine_graphs *g, uint32_t n_batch, uint32_t n_out, struct strata_errmsg *em) {
    enum { PER_SPAN = 16 }; /* operations more where a span's tokens are not one but many */
    const struct engine_shape largest = {.span = {{.n = n_batch, .n_out = n_out, .end = g->state->n_rows}},
                                         .n_spans = 1};
    struct engine_shape many = {.n_spans = g->state->n_slots};
    struct engine_graph graph = {.ctx = NULL};
    if (many.n_spans > MODEL_BUILD_SPANS) many.n_spans = MODEL_BUILD_SPANS;
    for (uint32_t i = 0; i < many.n_spans; i++)
        many.span[i] = (struct model_span){.slot = i, .n = 1, .n_out = 1, .end = g->state->n_rows};
    strata_err rc = build(g, &many, NULL, &graph, em);
    if (rc) return rc;
    size_t n_nodes = (size_t)ggml_graph_n_nodes(graph.b.graph) + (size_t)many.n_spans * PER_SPAN;
    drop(&graph);
    rc = build(g, &largest, NULL, &graph, em);
    if (!rc) rc = engine_offload_reserve(&g->offload, graph.b.graph, n_nodes, n_batch, em);
    drop(&graph);
    g->scratch = engine_offload_bytes(&g->offload);
    return rc;
}

strata_err engine_graphs_init(struct engine_graphs *g, const struct model *model, const struct model_state *state,
                              const struct model_backend *backend, uint32_t n_ctx, uint32_t n_batch, uint32_t n_out,
                              struct strata_errmsg *em) {
    *g = (struct engine_graphs){.model = model, .state = state, .backend = backend, .n_ctx = n_ctx};
    if (backend->in_place) {
        g->alloc = ggml_gallocr_new(backend->buft);
        if (!g->alloc) return err_nomem(em, "the graph allocator");
    } else {
        engine_offload_init(&g->offload, backend, model, state);
    }
    return g->alloc ? reserve(g, n_batch, n_out, em) : reserve_offload(g, n_batch, n_out, em);
}

void engine_graphs_deinit(struct engine_graphs *g) {
    for (size_t i = 0; i < ENGINE_GRAPH_SLOTS; i++) drop(&g->slot[i]);
    if (g->alloc) ggml_gallocr_free(g->alloc);
    g->alloc = NULL;
    engine_offload_deinit(&g->offload);
}

/* Gives a new graph its places in the compute buffer. */
static strata_err place(struct engine_graphs *g, struct engine_graph *s, struct strata_errmsg *em) {
    if (!g->alloc) {
        strata_err rc = engine_offload_place(&g->offload, s->b.graph, s->b.n_tokens, em);
        s->offload = &g->offload;
        g->scratch = engine_offload_bytes(&g->offload);
        return rc;
    }
    if (!ggml_gallocr_alloc_graph(g->alloc, s->b.graph))
        return err_set(em, STRATA_ENOMEM, "no scratch memory for a batch of %u tokens; lower the batch",
                       (unsigned)s->b.n_tokens);
    size_t size = ggml_gallocr_get_buffer_size(g->alloc, 0);
    if (size != g->scratch) {
        /* The buffer moved, against expectation: every other graph points into the old one. */
        for (size_t i = 0; i < ENGINE_GRAPH_SLOTS; i++)
            if (&g->slot[i] != s) drop(&g->slot[i]);
        g->scratch = size;
    }
    return STRATA_OK;
}

static bool has_shape(const struct engine_graph *s, const struct engine_shape *shape) {
    return s->ctx && s->b.n_spans == shape->n_spans &&
           memcmp(s->b.span, shape->span, shape->n_spans * sizeof *shape->span) == 0;
}

strata_err engine_graphs_get(struct engine_graphs *g, const struct engine_shape *shape, struct engine_graph **out,
                             struct strata_errmsg *em) {
    struct engine_graph *oldest = &g->slot[0];
    /* A device's scheduler knows one graph at a time. */
    for (size_t i = 0; i < (g->alloc ? ENGINE_GRAPH_SLOTS : 1); i++) {
        struct engine_graph *s = &g->slot[i];
        if (has_shape(s, shape)) {
            s->used = ++g->clock;
            *out = s;
            return STRATA_OK;
        }
        if (s->used < oldest->used) oldest = s;
    }
    drop(oldest);
    strata_err rc = build(g, shape, NULL, oldest, em);
    if (!rc) rc = place(g, oldest, em);
    if (rc) {
        drop(oldest);
        return rc;
    }
    oldest->used = ++g->clock;
    *out = oldest;
    return STRATA_OK;
}

enum ggml_status engine_graphs_compute(const struct engine_graphs *g, const struct engine_graph *s) {
    if (s->offload) return engine_offload_compute(s->offload, s->b.graph);
    return ggml_backend_graph_compute(g->backend->handle, s->b.graph);
}

strata_err engine_graphs_probe(const struct engine_graphs *g, const struct engine_shape *shape,
                               struct engine_probe *out, struct strata_errmsg *em) {
    struct engine_probe *p = out;
    *p = (struct engine_probe){.alloc = g->alloc ? ggml_gallocr_new(g->backend->buft) : NULL};
    p->layer = calloc(g->state->range.end - g->state->range.first, sizeof *p->layer);
    bool have = p->layer && (p->alloc || !g->alloc);
    strata_err rc = have ? build(g, shape, p->layer, &p->graph, em) : err_nomem(em, "a graph");
    if (!rc && g->alloc && !ggml_gallocr_alloc_graph(p->alloc, p->graph.b.graph)) rc = err_nomem(em, "a graph");
    if (!rc && !g->alloc) {
        p->offload = (struct engine_offload){.backend = g->backend, .n_fixed = g->offload.n_fixed};
        p->graph.offload = &p->offload;
        rc = engine_offload_place(&p->offload, p->graph.b.graph, p->graph.b.n_tokens, em);
    }
    if (rc) engine_graphs_unprobe(p);
    return rc;
}

void engine_graphs_unprobe(struct engine_probe *p) {
    drop(&p->graph);
    if (p->alloc) ggml_gallocr_free(p->alloc);
    engine_offload_deinit(&p->offload);
    free(p->layer);
    *p = (struct engine_probe){.alloc = NULL};
}
