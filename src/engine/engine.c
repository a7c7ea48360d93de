/*
 * Runs one layer range. See engine.h.
 *
 * Owns the backend, the weights' wrappers, the KV cache, the graphs and the input staging; borrows the package. Refuses
 * batches that do not fit the cache, the range's place in the chain, or the vocabulary.
 */
#include "engine/engine.h"

#include "engine/engine_graph.h"
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_CTX = 4096, DEFAULT_BATCH = 512, MAX_BATCH = 1 << 14 };

struct engine {
    struct engine_info info;
    struct model_backend backend;
    struct model model;
    struct model_kv kv;
    struct engine_graphs graphs;
    uint32_t n_past; /* positions in the cache */
    uint32_t max_logits;
    int32_t *pos; /* staging for inputs, n_batch entries each */
    int64_t *cells;
    ggml_fp16_t *mask; /* n_batch rows of at most n_cells */
};

static strata_err resolve(const struct engine_options *opt, const struct model_hparams *hp, struct engine_info *info,
                          struct strata_errmsg *em) {
    info->n_ctx = opt->n_ctx ? opt->n_ctx : hp->n_ctx_train < DEFAULT_CTX ? hp->n_ctx_train : DEFAULT_CTX;
    info->n_batch = opt->n_batch ? opt->n_batch : DEFAULT_BATCH;
    if (info->n_ctx > MODEL_MAX_CTX)
        return err_set(em, STRATA_EINVAL, "a context of %u positions is over the limit of %d", (unsigned)info->n_ctx,
                       (int)MODEL_MAX_CTX);
    if (info->n_batch > MAX_BATCH)
        return err_set(em, STRATA_EINVAL, "a batch of %u tokens is over the limit of %d", (unsigned)info->n_batch,
                       (int)MAX_BATCH);
    if (info->n_batch > info->n_ctx) info->n_batch = info->n_ctx;
    return STRATA_OK;
}

static void describe(struct engine *e) {
    const struct model *m = &e->model;
    struct engine_info *i = &e->info;
    snprintf(i->arch, sizeof i->arch, "%s", m->hp.arch);
    i->layer_count = m->hp.n_layer;
    i->range = m->range;
    i->is_first = m->is_first;
    i->is_last = m->is_last;
    i->n_embd = m->hp.n_embd;
    i->n_vocab = m->hp.n_vocab;
    i->n_ctx_train = m->hp.n_ctx_train;
    i->n_threads = e->backend.n_threads;
    i->weight_bytes = m->weights.bytes;
    i->copied_bytes = m->weights.copied_bytes;
    i->kv_bytes = e->kv.bytes;
    i->scratch_bytes = e->graphs.scratch;
    model_backend_describe(&e->backend, i->backend, sizeof i->backend);
}

strata_err engine_new(const struct pkg_model *m, const struct engine_options *opt, struct engine **out,
                      struct strata_errmsg *em) {
    struct engine *e = calloc(1, sizeof *e);
    if (!e) return err_nomem(em, "an engine");
    enum ggml_type kv_type = opt->kv_type == ENGINE_KV_F32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
    strata_err rc = model_backend_init(&e->backend, opt->backend_dir, opt->n_threads, em);
    if (!rc) rc = model_init(&e->model, m, &e->backend, em);
    if (!rc) rc = resolve(opt, &e->model.hp, &e->info, em);
    if (!rc) rc = model_kv_init(&e->kv, &e->model.hp, e->model.range, &e->backend, e->info.n_ctx, kv_type, em);
    if (rc) goto out;
    uint32_t n = e->info.n_batch;
    e->max_logits = opt->max_logits && opt->max_logits < n ? opt->max_logits : n;
    /* Stages before the last hand on every row, whatever the number of logits. */
    rc = engine_graphs_init(&e->graphs, &e->model, &e->kv, &e->backend, e->info.n_ctx, n,
                            e->model.is_last ? e->max_logits : n, em);
    if (rc) goto out;
    e->pos = malloc(n * sizeof *e->pos);
    e->cells = malloc(n * sizeof *e->cells);
    e->mask = malloc((size_t)n * e->kv.n_cells * sizeof *e->mask);
    if (!e->pos || !e->cells || !e->mask) {
        rc = err_nomem(em, "the inputs of a batch");
        goto out;
    }
    describe(e);
    *out = e;
out:
    if (rc) engine_free(e);
    return rc;
}

void engine_free(struct engine *e) {
    if (!e) return;
    engine_graphs_deinit(&e->graphs);
    model_kv_deinit(&e->kv);
    model_deinit(&e->model);
    model_backend_deinit(&e->backend);
    free(e->pos);
    free(e->cells);
    free(e->mask);
    free(e);
}

const struct engine_info *engine_info(const struct engine *e) {
    return &e->info;
}

static strata_err check_batch(const struct engine *e, const struct engine_batch *b, struct strata_errmsg *em) {
    const struct engine_info *i = &e->info;
    if (b->n_tokens == 0 || b->n_tokens > i->n_batch)
        return err_set(em, STRATA_EINVAL, "a batch of %u tokens; from 1 to %u can be run at once",
                       (unsigned)b->n_tokens, (unsigned)i->n_batch);
    if (b->pos != e->n_past)
        return err_set(em, STRATA_EINVAL, "the batch starts at position %u, but the cache holds %u positions",
                       (unsigned)b->pos, (unsigned)e->n_past);
    if (b->n_tokens > i->n_ctx - e->n_past)
        return err_set(em, STRATA_ELIMIT,
                       "%u more tokens after %u do not fit the context of %u; shorten the prompt or raise the context "
                       "length",
                       (unsigned)b->n_tokens, (unsigned)e->n_past, (unsigned)i->n_ctx);
    if (i->is_first && (!b->tokens || b->hidden)) return err_set(em, STRATA_EINVAL, "the first stage takes token ids");
    if (!i->is_first && (!b->hidden || b->tokens))
        return err_set(em, STRATA_EINVAL, "a stage after the first takes hidden states");
    for (uint32_t t = 0; b->tokens && t < b->n_tokens; t++)
        if (b->tokens[t] < 0 || (uint32_t)b->tokens[t] >= i->n_vocab)
            return err_set(em, STRATA_EINVAL, "token id %d at position %u is outside the vocabulary of %u",
                           b->tokens[t], (unsigned)(b->pos + t), (unsigned)i->n_vocab);
    if (i->is_last && b->want == ENGINE_OUT_ALL && b->n_tokens > e->max_logits)
        return err_set(em, STRATA_EINVAL, "logits of %u tokens; this engine was made for at most %u at once",
                       (unsigned)b->n_tokens, (unsigned)e->max_logits);
    return STRATA_OK;
}

static uint32_t rows_wanted(const struct engine *e, const struct engine_batch *b) {
    if (!e->info.is_last || b->want == ENGINE_OUT_ALL) return b->n_tokens;
    return b->want == ENGINE_OUT_LAST ? 1 : 0;
}

/* Each token sees the cells of its own and of all earlier positions. 0 is 0.0, the other is minus infinity. */
static void fill_mask(ggml_fp16_t *mask, uint32_t pos, uint32_t n_tokens, uint32_t n_kv) {
    const ggml_fp16_t hidden = 0xFC00;
    for (uint32_t t = 0; t < n_tokens; t++) {
        ggml_fp16_t *row = mask + (size_t)t * n_kv;
        uint32_t visible = pos + t + 1;
        memset(row, 0, visible * sizeof *row);
        for (uint32_t c = visible; c < n_kv; c++) row[c] = hidden;
    }
}

static void set_inputs(struct engine *e, const struct engine_batch *b, const struct engine_graph *g) {
    uint32_t n = b->n_tokens;
    for (uint32_t t = 0; t < n; t++) {
        e->pos[t] = (int32_t)(b->pos + t);
        e->cells[t] = (int64_t)b->pos + t;
    }
    fill_mask(e->mask, b->pos, n, g->b.n_kv);
    if (g->b.tokens) ggml_backend_tensor_set(g->b.tokens, b->tokens, 0, n * sizeof(int32_t));
    if (g->b.hidden) ggml_backend_tensor_set(g->b.hidden, b->hidden, 0, (size_t)n * e->info.n_embd * sizeof(float));
    ggml_backend_tensor_set(g->b.pos, e->pos, 0, n * sizeof(int32_t));
    ggml_backend_tensor_set(g->b.cells, e->cells, 0, n * sizeof(int64_t));
    /* With no output wanted the last layer only stores keys and values, and a one-layer range uses no mask at all. */
    if (g->b.mask->buffer) ggml_backend_tensor_set(g->b.mask, e->mask, 0, (size_t)n * g->b.n_kv * sizeof *e->mask);
}

strata_err engine_run(struct engine *e, const struct engine_batch *b, const float **out, struct strata_errmsg *em) {
    struct engine_graph *g;
    strata_err rc = check_batch(e, b, em);
    if (rc) return rc;
    uint32_t n_kv = (b->pos + b->n_tokens + MODEL_KV_STEP - 1) / MODEL_KV_STEP * MODEL_KV_STEP;
    rc = engine_graphs_get(&e->graphs, b->n_tokens, n_kv, rows_wanted(e, b), &g, em);
    if (rc) return rc;
    e->info.scratch_bytes = e->graphs.scratch;
    set_inputs(e, b, g);
    enum ggml_status status = ggml_backend_graph_compute(e->backend.handle, g->b.graph);
    if (status != GGML_STATUS_SUCCESS)
        return err_set(em, status == GGML_STATUS_ALLOC_FAILED ? STRATA_ENOMEM : STRATA_EINTERNAL,
                       "computing a batch of %u tokens failed: %s", (unsigned)b->n_tokens,
                       ggml_status_to_string(status));
    e->n_past += b->n_tokens;
    *out = g->out ? ggml_get_data_f32(g->out) : NULL;
    return STRATA_OK;
}

uint32_t engine_pos(const struct engine *e) {
    return e->n_past;
}

strata_err engine_truncate(struct engine *e, uint32_t pos, struct strata_errmsg *em) {
    if (pos > e->n_past)
        return err_set(em, STRATA_EINVAL, "position %u cannot be gone back to: the cache holds %u", (unsigned)pos,
                       (unsigned)e->n_past);
    e->n_past = pos;
    return STRATA_OK;
}

const char *engine_architectures(void) {
    return arch_names();
}
