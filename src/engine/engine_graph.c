/* The cache of built graphs. See engine_graph.h. Owns their contexts and the compute buffers they share. */
#include "engine/engine_graph.h"

#include "base/progress.h"
#include "model/model_own.h"

#include <stdlib.h>
#include <string.h>

static void drop(struct engine_graph *s) {
    if (s->ctx) ggml_free(s->ctx);
    *s = (struct engine_graph){.ctx = NULL};
}

/* settled: see struct model_build. */
static strata_err build(const struct engine_graphs *g, const struct engine_shape *shape, bool settled,
                        struct ggml_tensor **probe, struct engine_graph *s, struct strata_errmsg *em) {
    size_t nodes = model_graph_nodes(g->model, shape->n_spans);
    struct ggml_init_params params = {
        .mem_size =
            (model_graph_tensors(g->model, shape->n_spans) + 1) * (ggml_tensor_overhead() + model_own_overhead()) +
            ggml_graph_overhead_custom(nodes, false),
        .no_alloc = true,
    };
    struct engine_graph m = {.ctx = ggml_init(params)};
    if (!m.ctx) return err_nomem(em, "a graph");
    m.b = (struct model_build){.ctx = m.ctx,
                               .state = g->state,
                               .rows = &g->backend->rows,
                               .attn = &g->backend->attn,
                               .n_spans = shape->n_spans,
                               .layer_out = probe,
                               .settled = settled,
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

/* The shapes among those asked about that need most, on either side: in place all is on the first one. */
struct worst {
    struct engine_shape shape[ENGINE_OFFLOAD_SIDES];
    size_t need[ENGINE_OFFLOAD_SIDES];
    size_t nodes;
};

static strata_err consider(struct engine_graphs *g, const struct engine_shape *shape, struct worst *w,
                           struct strata_errmsg *em) {
    struct engine_graph s = {.ctx = NULL};
    size_t need[ENGINE_OFFLOAD_SIDES] = {0}, nodes;
    strata_err rc = build(g, shape, true, NULL, &s, em);
    if (rc) return rc;
    if (g->alloc)
        ggml_gallocr_reserve_n_size(g->alloc, s.b.graph, NULL, NULL, need);
    else
        rc = engine_offload_need(&g->offload, s.b.graph, need, em);
    nodes = (size_t)ggml_graph_n_nodes(s.b.graph);
    drop(&s);
    if (rc) return rc;
    if (nodes > w->nodes) w->nodes = nodes;
    for (int i = 0; i < ENGINE_OFFLOAD_SIDES; i++) {
        if (need[i] <= w->need[i]) continue;
        w->need[i] = need[i];
        w->shape[i] = *shape;
    }
    return STRATA_OK;
}

strata_err engine_graphs_need(struct engine_graphs *g, const struct engine_shape *shape, size_t *out,
                              struct strata_errmsg *em) {
    struct worst w = {.nodes = 0};
    strata_err rc = consider(g, shape, &w, em);
    if (!rc) *out = w.need[ENGINE_OFFLOAD_DEVICE] + w.need[ENGINE_OFFLOAD_HOST];
    return rc;
}

/* Makes the compute buffer as large as the worst shape needs, and `margin` bytes; with a backend that only measures,
 * notes how large it would be. */
static strata_err reserve(struct engine_graphs *g, const struct worst *w, size_t margin, struct strata_errmsg *em) {
    struct engine_graph s = {.ctx = NULL};
    char want[32];
    size_t need = 0;
    strata_err rc = build(g, &w->shape[0], true, NULL, &s, em);
    if (rc) return rc;
    if (margin) {
        struct ggml_tensor *pad = ggml_new_tensor_1d(s.ctx, GGML_TYPE_I8, (int64_t)margin);
        ggml_set_input(pad); /* nobody else may use its place */
        ggml_build_forward_expand(s.b.graph, pad);
    }
    ggml_gallocr_reserve_n_size(g->alloc, s.b.graph, NULL, NULL, &need);
    if (!g->backend->dry && !ggml_gallocr_reserve(g->alloc, s.b.graph))
        rc =
            err_set(em, STRATA_ENOMEM,
                    "the system does not give the %s of scratch memory that batches of this size need; lower the batch",
                    progress_bytes(want, sizeof want, need));
    drop(&s);
    g->scratch = g->backend->dry ? need : ggml_gallocr_get_buffer_size(g->alloc, 0);
    return rc;
}

static void note_offload(struct engine_graphs *g) {
    g->device_scratch = engine_offload_bytes(&g->offload, ENGINE_OFFLOAD_DEVICE);
    g->scratch = g->device_scratch + engine_offload_bytes(&g->offload, ENGINE_OFFLOAD_HOST);
}

/* The same on a device: for the shape that needs most of its memory, and for the one that needs most of the host's. Its
 * scheduler is told the number of operations as well. No margin: the scheduler's buffers grow when they must. */
static strata_err reserve_offload(struct engine_graphs *g, const struct worst *w, uint32_t most,
                                  struct strata_errmsg *em) {
    enum { PER_SPAN = 16 }; /* operations more where a span's tokens are not all wanted */
    size_t nodes = w->nodes + (most > 1 ? (size_t)most * PER_SPAN : 0);
    g->device_scratch = w->need[ENGINE_OFFLOAD_DEVICE];
    g->scratch = g->device_scratch + w->need[ENGINE_OFFLOAD_HOST];
    for (int i = 0; i < ENGINE_OFFLOAD_SIDES && !g->backend->dry; i++) {
        struct engine_graph s = {.ctx = NULL};
        if (w->need[i] == 0) continue;
        strata_err rc = build(g, &w->shape[i], true, NULL, &s, em);
        if (!rc) rc = engine_offload_reserve(&g->offload, s.b.graph, g->device_scratch, nodes, s.b.n_tokens, em);
        drop(&s);
        if (rc) return rc;
    }
    if (!g->backend->dry) note_offload(g);
    return STRATA_OK;
}

/*
 * The largest shape with n_spans sequences, all over the whole context: as many tokens as may be, of which n_out leave
 * the last layer, divided evenly; or, lopsided, one token for each sequence but the last, as when a prompt is computed
 * beside sequences that decode.
 */
static struct engine_shape largest(const struct engine_graphs *g, const struct engine_limits *max, uint32_t n_spans,
                                   bool lopsided) {
    struct engine_shape shape = {.n_spans = n_spans};
    uint32_t left = max->n_batch, out_left = max->n_out;
    for (uint32_t i = 0; i < n_spans; i++) {
        uint32_t rest = n_spans - i, n = lopsided && rest > 1 ? 1 : left / rest;
        if (n > max->n_ctx) n = max->n_ctx;
        uint32_t share = (out_left + rest - 1) / rest, n_out = share < n ? share : n;
        shape.span[i] = (struct model_span){.n = n, .n_out = n_out, .end = g->state->n_rows};
        left -= n;
        out_left -= n_out;
    }
    return shape;
}

/* Rows that are dropped have to be picked first: with one row less than there are tokens, more is built. */
static strata_err consider_both(struct engine_graphs *g, struct engine_shape shape, struct worst *w,
                                struct strata_errmsg *em) {
    strata_err rc = consider(g, &shape, w, em);
    uint32_t tokens = 0, rows = 0;
    for (uint32_t i = 0; i < shape.n_spans; i++) {
        tokens += shape.span[i].n;
        rows += shape.span[i].n_out;
    }
    if (rc || !g->model->is_last || rows < tokens || rows < 2) return rc;
    shape.span[0].n_out--;
    return consider(g, &shape, w, em);
}

strata_err engine_graphs_init(struct engine_graphs *g, const struct model *model, const struct model_state *state,
                              const struct model_backend *backend, const struct engine_limits *max,
                              struct strata_errmsg *em) {
    *g = (struct engine_graphs){.model = model, .state = state, .backend = backend, .n_ctx = max->n_ctx};
    if (backend->in_place) {
        g->alloc = ggml_gallocr_new(backend->buft);
        if (!g->alloc) return err_nomem(em, "the graph allocator");
    } else {
        engine_offload_init(&g->offload, backend, model, state);
    }
    struct worst w = {.nodes = 0};
    uint32_t most = max->n_seq < MODEL_BUILD_SPANS ? max->n_seq : MODEL_BUILD_SPANS;
    if (most > max->n_batch) most = max->n_batch;
    strata_err rc = consider_both(g, largest(g, max, 1, false), &w, em);
    for (uint32_t n = 2, last = 1; !rc && last < most; last = n, n *= 2) {
        if (n > most) n = most;
        rc = consider_both(g, largest(g, max, n, false), &w, em);
        if (!rc && n < max->n_batch) rc = consider_both(g, largest(g, max, n, true), &w, em);
    }
    if (rc) return rc;
    if (!g->alloc) return reserve_offload(g, &w, most, em);
    /* How tensors of other sizes find their places among each other is not quite in proportion: with many sequences
     * some shapes need up to 2 % more than the largest one (measured). */
    return reserve(g, &w, most > 1 ? w.need[0] / 32 : 0, em);
}

void engine_graphs_forget(struct engine_graphs *g) {
    for (size_t i = 0; i < ENGINE_GRAPH_SLOTS; i++) drop(&g->slot[i]);
}

void engine_graphs_deinit(struct engine_graphs *g) {
    engine_graphs_forget(g);
    if (g->alloc) ggml_gallocr_free(g->alloc);
    g->alloc = NULL;
    engine_offload_deinit(&g->offload);
}

/* Gives a new graph its places in the compute buffer. */
static strata_err place(struct engine_graphs *g, struct engine_graph *s, struct strata_errmsg *em) {
    if (!g->alloc) {
        strata_err rc = engine_offload_place(&g->offload, s->b.graph, s->b.n_tokens, em);
        s->offload = &g->offload;
        note_offload(g);
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
    strata_err rc = build(g, shape, false, NULL, oldest, em);
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
    strata_err rc = have ? build(g, shape, false, p->layer, &p->graph, em) : err_nomem(em, "a graph");
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
