/*
 * Runs one layer range for many sequences. See engine.h.
 *
 * Owns the backend, the weights' wrappers, the state, the graphs, the input staging and copied results; borrows the
 * package. Refuses batches that do not fit a sequence, the pool, the range's place in the chain, or the vocabulary.
 */
#include "engine/engine.h"

#include "engine/engine_input.h"
#include "engine/engine_internal.h"
#include "engine/engine_profile.h"
#include "engine/engine_result.h"
#include "model/model.h"
#include "model/model_numbers.h"
#include "model/model_team.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_CTX = 4096, DEFAULT_BATCH = 512, MAX_BATCH = 1 << 14 };

/* How far a sequence can go back where layers keep a window only. */
struct reach {
    uint32_t high; /* positions that were ever written: what they overwrote in rings is gone, even when they are too */
    uint32_t low;  /* first position to go on from: what was restored from saved rows is whole only from here on */
};

struct engine {
    struct engine_info info;
    const struct pkg_model *pkg; /* borrowed */
    struct model_backend backend;
    struct model model;
    struct model_state state;
    struct engine_graphs graphs;
    struct engine_inputs inputs;
    struct engine_result result;
    uint32_t *n_past; /* positions of each sequence */
    struct reach *reach;
    uint32_t n_used; /* sum of n_past */
    uint32_t max_logits;
    struct engine_profile *profile; /* NULL: not wanted */
    bool bound;                     /* the threads of the one that made it */
};

static const struct {
    const char *name;
    enum ggml_type type;
} kv_types[ENGINE_KV_COUNT] = {[ENGINE_KV_F16] = {"f16", GGML_TYPE_F16},
                               [ENGINE_KV_F32] = {"f32", GGML_TYPE_F32},
                               [ENGINE_KV_BF16] = {"bf16", GGML_TYPE_BF16},
                               [ENGINE_KV_Q8_0] = {"q8_0", GGML_TYPE_Q8_0},
                               [ENGINE_KV_Q4_0] = {"q4_0", GGML_TYPE_Q4_0}};

const char *engine_kv_name(enum engine_kv_type t) {
    return kv_types[t].name;
}

bool engine_kv_parse(const char *name, enum engine_kv_type *out) {
    for (int i = 0; i < ENGINE_KV_COUNT; i++)
        if (strcmp(kv_types[i].name, name) == 0) {
            *out = (enum engine_kv_type)i;
            return true;
        }
    return false;
}

/* ---- making one ---- */

static strata_err resolve(const struct engine_options *opt, const struct model_hparams *hp, struct engine_info *info,
                          struct strata_errmsg *em) {
    info->n_ctx = opt->n_ctx ? opt->n_ctx : hp->n_ctx_train < DEFAULT_CTX ? hp->n_ctx_train : DEFAULT_CTX;
    info->n_batch = opt->n_batch ? opt->n_batch : DEFAULT_BATCH;
    info->n_seq = opt->n_seq ? opt->n_seq : 1;
    if (info->n_ctx > MODEL_MAX_CTX)
        return err_set(em, STRATA_EINVAL, "a context of %u positions is over the limit of %d", (unsigned)info->n_ctx,
                       (int)MODEL_MAX_CTX);
    if (info->n_batch > MAX_BATCH)
        return err_set(em, STRATA_EINVAL, "a batch of %u tokens is over the limit of %d", (unsigned)info->n_batch,
                       (int)MAX_BATCH);
    if (info->n_seq > MODEL_STATE_MAX_SLOTS)
        return err_set(em, STRATA_EINVAL, "%u sequences are over the limit of %d", (unsigned)info->n_seq,
                       (int)MODEL_STATE_MAX_SLOTS);
    uint64_t pool = (uint64_t)info->n_ctx * info->n_seq;
    if (opt->n_pool && opt->n_pool < pool) pool = opt->n_pool;
    info->n_pool = pool < UINT32_MAX ? (uint32_t)pool : UINT32_MAX;
    if (info->n_batch > info->n_pool) info->n_batch = info->n_pool;
    return STRATA_OK;
}

/* For the largest result, and for the hidden states of a whole batch, which are looked at when something goes wrong. */
static uint64_t result_floats(const struct engine *e) {
    uint64_t hidden = (uint64_t)e->info.n_batch * e->model.hp.n_embd;
    uint64_t logits = e->model.is_last ? (uint64_t)e->max_logits * e->model.hp.n_vocab : 0;
    return hidden > logits ? hidden : logits;
}

/* The buffers that graphs are computed in, where their inputs are made ready, and where a device's results go. */
static void note_scratch(struct engine *e) {
    struct engine_info *i = &e->info;
    i->scratch_bytes = e->graphs.scratch +
                       engine_inputs_bytes(i->n_batch, e->state.n_rows, e->model.hp.n_embd, e->model.is_first) +
                       engine_result_bytes(&e->backend, result_floats(e));
    i->device_scratch_bytes = e->graphs.device_scratch;
}

/* Before anything is taken there. */
static void note_device(struct engine *e) {
    const struct model_backend *b = &e->backend;
    e->info.is_apart = !b->in_place && b->dev != b->host_dev;
    e->info.device_free = e->info.is_apart ? model_backend_memory_free(b) : UINT64_MAX;
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
    i->repacked_bytes = m->weights.repacked_bytes;
    i->device_bytes = m->weights.uploaded_bytes;
    i->both_bytes = m->weights.both_bytes;
    i->token_bytes = model_token_bytes(m);
    i->kv_bytes = e->state.pool_bytes;
    note_scratch(e);
    snprintf(i->device, sizeof i->device, "%s", ggml_backend_dev_name(e->backend.dev));
    model_backend_describe(&e->backend, i->backend, sizeof i->backend);
}

static strata_err make_state(struct engine *e, enum engine_kv_type type, struct strata_errmsg *em) {
    const struct engine_info *i = &e->info;
    const struct model_state_options opt = {.n_ctx = i->n_ctx,
                                            .n_slots = i->n_seq,
                                            .n_batch = i->n_batch < i->n_ctx ? i->n_batch : i->n_ctx,
                                            .n_pool = i->n_pool,
                                            .type = kv_types[type].type};
    return model_state_init(&e->state, e->model.arch, &e->model.hp, e->model.range, &e->backend, &opt, em);
}

/* A device also says that it cannot compute what is only too large for it: memory that lacks is the better answer. */
static strata_err make_graphs(struct engine *e, const struct engine_limits *max, struct strata_errmsg *em) {
    struct strata_errmsg lacks;
    strata_err rc = engine_graphs_init(&e->graphs, &e->model, &e->state, &e->backend, max, em);
    if (rc && rc != STRATA_EUNSUPPORTED) return rc;
    describe(e);
    if (!rc || !engine_info_fits(&e->info, true, UINT64_MAX, &lacks)) return rc;
    *em = lacks;
    return lacks.code;
}

/* Everything whose size matters, by the backend: made, or only measured. */
static strata_err prepare(struct engine *e, const struct pkg_model *m, const struct engine_options *opt,
                          struct strata_errmsg *em) {
    e->pkg = m;
    note_device(e);
    strata_err rc = model_init(&e->model, m, &e->backend, em);
    if (!rc) rc = resolve(opt, &e->model.hp, &e->info, em);
    if (!rc) rc = make_state(e, opt->kv_type, em);
    if (rc) return rc;
    uint32_t n = e->info.n_batch;
    e->max_logits = opt->max_logits && opt->max_logits < n ? opt->max_logits : n;
    /* Stages before the last hand on every row, whatever the number of logits. */
    const struct engine_limits max = {
        .n_ctx = e->info.n_ctx, .n_seq = e->info.n_seq, .n_batch = n, .n_out = e->model.is_last ? e->max_logits : n};
    return make_graphs(e, &max, em);
}

/* The backend stays the caller's. */
static strata_err measure(const struct model_backend *backend, const struct pkg_model *m,
                          const struct engine_options *opt, struct engine_info *out, struct strata_errmsg *em) {
    struct engine *e = calloc(1, sizeof *e);
    if (!e) return err_nomem(em, "an engine");
    e->backend = *backend;
    e->backend.dry = true;
    strata_err rc = prepare(e, m, opt, em);
    if (!rc) *out = e->info;
    e->backend.handle = e->backend.host = NULL;
    engine_free(e);
    return rc;
}

/*
 * Decides what is copied and when, and measures the engine that comes of it. Copies as the file has them make decoding
 * faster by a twentieth to a seventh: worth memory that nothing else needs, but not that each start reads the disk.
 * Those in another order of rows are worth that.
 */
static strata_err plan_memory(struct model_backend *backend, const struct pkg_model *m,
                              const struct engine_options *opt, struct engine_info *out, struct strata_errmsg *em) {
    bool mapped = opt->keep_mapped || opt->over_memory;
    backend->copies = mapped ? MODEL_BACKEND_MAPPED : MODEL_BACKEND_COPIED;
    backend->settle_later = opt->settle_later;
    strata_err rc = measure(backend, m, opt, out, em);
    if (rc || mapped || !backend->in_place) return rc;
    if (engine_info_fits_twice(out, model_backend_memory_available())) return rc;
    backend->copies = MODEL_BACKEND_PACKED;
    return measure(backend, m, opt, out, em);
}

strata_err engine_measure(const struct pkg_model *m, const struct engine_options *opt, struct engine_info *out,
                          struct strata_errmsg *em) {
    struct model_backend backend;
    strata_err rc = model_backend_init(&backend, opt->backend_dir, opt->device, opt->n_threads, em);
    if (rc) return rc;
    rc = plan_memory(&backend, m, opt, out, em);
    model_backend_deinit(&backend);
    return rc;
}

strata_err engine_new(const struct pkg_model *m, const struct engine_options *opt, struct engine **out,
                      struct strata_errmsg *em) {
    struct engine_info want;
    struct engine *e = calloc(1, sizeof *e);
    if (!e) return err_nomem(em, "an engine");
    strata_err rc = model_backend_init(&e->backend, opt->backend_dir, opt->device, opt->n_threads, em);
    e->backend.progress = opt->progress;
    if (!rc) rc = plan_memory(&e->backend, m, opt, &want, em);
    if (!rc) rc = engine_info_fits(&want, opt->over_memory, model_backend_memory_available(), em);
    if (!rc) rc = prepare(e, m, opt, em);
    if (!rc)
        rc =
            engine_inputs_init(&e->inputs, e->info.n_batch, e->state.n_rows, e->model.hp.n_embd, e->model.is_first, em);
    if (!rc) rc = engine_result_init(&e->result, &e->backend, result_floats(e), em);
    if (rc) goto out;
    e->n_past = calloc(e->info.n_seq, sizeof *e->n_past);
    e->reach = calloc(e->info.n_seq, sizeof *e->reach);
    if (!rc && (!e->n_past || !e->reach)) rc = err_nomem(em, "an engine");
    if (!rc && opt->profile) rc = engine_profile_new(&e->backend, &e->profile, em);
    if (rc) goto out;
    e->graphs.name_parts = opt->profile;
    e->bound = e->backend.in_place && model_team_bind(e->info.n_threads);
    *out = e;
out:
    if (rc) engine_free(e);
    return rc;
}

void engine_free(struct engine *e) {
    if (!e) return;
    if (e->bound) model_team_release(e->info.n_threads);
    engine_profile_free(e->profile);
    engine_graphs_deinit(&e->graphs);
    engine_inputs_deinit(&e->inputs);
    engine_result_deinit(&e->result);
    model_state_deinit(&e->state);
    model_deinit(&e->model);
    model_backend_deinit(&e->backend);
    free(e->n_past);
    free(e->reach);
    free(e);
}

const struct engine_info *engine_info(const struct engine *e) {
    return &e->info;
}

struct engine_profile *engine_profile(const struct engine *e) {
    return e->profile;
}

bool engine_settle(struct engine *e, uint64_t bytes) {
    struct model_weights *w = &e->model.weights;
    if (model_weights_settle(w, e->backend.n_threads, bytes)) engine_graphs_forget(&e->graphs);
    return !model_weights_are_settled(w);
}

/* ---- checking a run ---- */

static strata_err check_tokens(const struct engine_info *i, const struct engine_batch *b, struct strata_errmsg *em) {
    if (i->is_first && (!b->tokens || b->hidden)) return err_set(em, STRATA_EINVAL, "the first stage takes token ids");
    if (!i->is_first && (!b->hidden || b->tokens))
        return err_set(em, STRATA_EINVAL, "a stage after the first takes hidden states");
    for (uint32_t t = 0; b->tokens && t < b->n_tokens; t++)
        if (b->tokens[t] < 0 || (uint32_t)b->tokens[t] >= i->n_vocab)
            return err_set(em, STRATA_EINVAL, "token id %d at position %u is outside the vocabulary of %u",
                           b->tokens[t], (unsigned)(b->pos + t), (unsigned)i->n_vocab);
    return STRATA_OK;
}

static strata_err check_batch(const struct engine *e, const struct engine_batch *b, struct strata_errmsg *em) {
    const struct engine_info *i = &e->info;
    if (b->seq >= i->n_seq)
        return err_set(em, STRATA_EINVAL, "sequence %u; this engine has %u", (unsigned)b->seq, (unsigned)i->n_seq);
    if (b->n_tokens == 0 || b->n_tokens > i->n_batch)
        return err_set(em, STRATA_EINVAL, "a batch of %u tokens; from 1 to %u can be run at once",
                       (unsigned)b->n_tokens, (unsigned)i->n_batch);
    if (b->pos != e->n_past[b->seq])
        return err_set(em, STRATA_EINVAL, "the batch starts at position %u, but the cache holds %u positions",
                       (unsigned)b->pos, (unsigned)e->n_past[b->seq]);
    if (b->n_tokens > i->n_ctx - b->pos)
        return err_set(em, STRATA_ELIMIT,
                       "%u more tokens do not fit the context of %u: %u positions are taken; start with a larger one",
                       (unsigned)b->n_tokens, (unsigned)i->n_ctx, (unsigned)b->pos);
    return check_tokens(i, b, em);
}

static uint32_t rows_wanted(const struct engine *e, const struct engine_batch *b) {
    if (!e->info.is_last || b->want == ENGINE_OUT_ALL) return b->n_tokens;
    return b->want == ENGINE_OUT_LAST ? 1 : 0;
}

static strata_err check_run(const struct engine *e, const struct engine_batch *b, uint32_t n,
                            struct strata_errmsg *em) {
    uint32_t tokens = 0, rows = 0;
    if (n == 0 || n > ENGINE_MAX_BATCHES)
        return err_set(em, STRATA_EINVAL, "%u sequences at once; from 1 to %d can be run", (unsigned)n,
                       ENGINE_MAX_BATCHES);
    for (uint32_t i = 0; i < n; i++) {
        strata_err rc = check_batch(e, &b[i], em);
        if (rc) return rc;
        for (uint32_t k = 0; k < i; k++)
            if (b[k].seq == b[i].seq)
                return err_set(em, STRATA_EINVAL, "sequence %u is in the run twice", (unsigned)b[i].seq);
        tokens += b[i].n_tokens; /* at most 64 times a bounded number */
        rows += rows_wanted(e, &b[i]);
    }
    if (tokens > e->info.n_batch)
        return err_set(em, STRATA_EINVAL, "a batch of %u tokens; from 1 to %u can be run at once", (unsigned)tokens,
                       (unsigned)e->info.n_batch);
    if (tokens > e->info.n_pool - e->n_used)
        return err_set(em, STRATA_ELIMIT, "%u more tokens do not fit: all sequences together have %u of %u positions",
                       (unsigned)tokens, (unsigned)e->n_used, (unsigned)e->info.n_pool);
    if (e->info.is_last && rows > e->max_logits)
        return err_set(em, STRATA_EINVAL, "logits of %u tokens; this engine was made for at most %u at once",
                       (unsigned)rows, (unsigned)e->max_logits);
    return STRATA_OK;
}

/* ---- running ---- */

static void shape_of(const struct engine *e, const struct engine_batch *b, uint32_t n, struct engine_shape *s) {
    *s = (struct engine_shape){.n_spans = n};
    for (uint32_t i = 0; i < n; i++) {
        uint32_t end = b[i].pos + b[i].n_tokens;
        s->span[i] = (struct model_span){.slot = b[i].seq,
                                         .n = b[i].n_tokens,
                                         .n_out = rows_wanted(e, &b[i]),
                                         .end = (end + MODEL_STATE_STEP - 1) / MODEL_STATE_STEP * MODEL_STATE_STEP};
    }
}

static strata_err compute(struct engine *e, struct engine_graph *g, const struct engine_batch *b,
                          struct strata_errmsg *em) {
    engine_inputs_set(&e->inputs, g, b);
    if (e->profile)
        return engine_profile_compute(e->profile, g->b.graph, g->offload ? g->offload->sched : NULL, g->b.n_tokens, em);
    enum ggml_status status = engine_graphs_compute(&e->graphs, g);
    if (status == GGML_STATUS_SUCCESS) return STRATA_OK;
    return err_set(em, status == GGML_STATUS_ALLOC_FAILED ? STRATA_ENOMEM : STRATA_EINTERNAL,
                   "computing a batch of %u tokens failed: %s", (unsigned)g->b.n_tokens, ggml_status_to_string(status));
}

static bool all_finite(const float *x, int64_t n) {
    return model_numbers_finite(GGML_TYPE_F32, x, (size_t)n * sizeof *x);
}

/* See struct model_build. */
static bool stored_finite(const struct engine_graph *g) {
    float sum = 0;
    if (g->b.stored) ggml_backend_tensor_get(g->b.stored, &sum, 0, sizeof sum);
    return isfinite(sum);
}

/* Runs the batch once more, layer by layer in sight, and names the first layer that gives something else than numbers.
 */
static strata_err explain_non_finite(struct engine *e, const struct engine_shape *shape, const struct engine_batch *b,
                                     struct strata_errmsg *em) {
    struct engine_probe p;
    struct strata_errmsg why;
    uint32_t first = e->model.range.first, n = e->model.range.end - first, il = 0;
    strata_err rc = engine_graphs_probe(&e->graphs, shape, &p, &why);
    if (rc)
        return err_set(em, STRATA_EFORMAT, "layers %u..%u gave results that are no numbers", (unsigned)first,
                       (unsigned)e->model.range.end);
    rc = compute(e, &p.graph, b, &why);
    while (!rc && il < n &&
           (!p.layer[il] || all_finite(engine_result_read(&e->result, p.layer[il]), ggml_nelements(p.layer[il]))))
        il++;
    if (!rc && il == n && !stored_finite(&p.graph)) il = n - 1;
    engine_graphs_unprobe(&p);
    const char *damaged = model_weights_damaged(&e->model.weights, il < n ? first + il : MODEL_NO_LAYER);
    char where[32] = "the output";
    if (il < n) snprintf(where, sizeof where, "layer %u", (unsigned)(first + il));
    if (damaged)
        return err_set(em, STRATA_EFORMAT,
                       "%s gave results that are no numbers: tensor %s holds NaN or infinite values, so the file is "
                       "damaged",
                       where, damaged);
    return err_set(em, STRATA_EFORMAT,
                   "%s gave results that are no numbers (NaN or infinite): they outgrow the types that are computed "
                   "with; a wider cache type may help",
                   where);
}

/* Where each batch's rows are in the result. */
static void hand_out(const struct engine_graph *g, const float *at, const float **out) {
    for (uint32_t i = 0; i < g->b.n_spans; i++) {
        out[i] = g->b.span[i].n_out ? at : NULL;
        if (at) at += (size_t)g->b.span[i].n_out * (size_t)g->out->ne[0];
    }
}

static void note_written(struct engine *e, uint32_t seq, uint32_t end) {
    if (e->reach[seq].high < end) e->reach[seq].high = end;
}

static void note_run(struct engine *e, const struct engine_graph *g) {
    note_scratch(e);
    e->info.ops = g->offload ? g->offload->ops : 0;
    e->info.host_ops = g->offload ? g->offload->host_ops : 0;
}

strata_err engine_run_many(struct engine *e, const struct engine_batch *batches, uint32_t n, const float **out,
                           struct strata_errmsg *em) {
    struct engine_graph *g;
    struct engine_shape shape;
    strata_err rc = check_run(e, batches, n, em);
    if (rc) return rc;
    shape_of(e, batches, n, &shape);
    for (uint32_t i = 0; i < n; i++) note_written(e, batches[i].seq, batches[i].pos + batches[i].n_tokens);
    rc = engine_graphs_get(&e->graphs, &shape, &g, em);
    if (!rc) rc = compute(e, g, batches, em);
    if (rc) return rc;
    note_run(e, g);
    const float *rows = g->out ? engine_result_read(&e->result, g->out) : NULL;
    if ((rows && !all_finite(rows, ggml_nelements(g->out))) || !stored_finite(g)) {
        rc = explain_non_finite(e, &shape, batches, em);
        for (uint32_t i = 0; i < n; i++)
            model_state_wipe(&e->state, batches[i].seq, batches[i].pos, batches[i].pos + batches[i].n_tokens);
        return rc;
    }
    for (uint32_t i = 0; i < n; i++) {
        e->n_past[batches[i].seq] += batches[i].n_tokens;
        e->n_used += batches[i].n_tokens;
    }
    hand_out(g, rows, out);
    return STRATA_OK;
}

strata_err engine_run(struct engine *e, const struct engine_batch *b, const float **out, struct strata_errmsg *em) {
    return engine_run_many(e, b, 1, out, em);
}

/* ---- sequences ---- */

uint32_t engine_pos(const struct engine *e, uint32_t seq) {
    return seq < e->info.n_seq ? e->n_past[seq] : 0;
}

static void set_pos(struct engine *e, uint32_t seq, uint32_t pos) {
    e->n_used = e->n_used - e->n_past[seq] + pos;
    e->n_past[seq] = pos;
}

static bool has_rings(const struct engine *e) {
    for (size_t i = 0; i < (size_t)(e->state.range.end - e->state.range.first) * MODEL_STATE_PLANES; i++) {
        const struct model_plane *p = &e->state.layer[i / MODEL_STATE_PLANES][i % MODEL_STATE_PLANES];
        if (p->t && p->rows < e->state.n_rows) return true;
    }
    return false;
}

/* Whether the state at position pos is still whole. */
static strata_err check_reach(const struct engine *e, uint32_t seq, uint32_t pos, struct strata_errmsg *em) {
    const struct reach *r = &e->reach[seq];
    if (r->high - pos > e->state.slack && has_rings(e))
        return err_set(em, STRATA_EINVAL,
                       "position %u is out of reach: %u were computed, and layers with a window go back by at most %u",
                       (unsigned)pos, (unsigned)r->high, (unsigned)e->state.slack);
    if (pos < r->low)
        return err_set(em, STRATA_EINVAL,
                       "position %u is out of reach: the sequence was restored at %u, and layers with a window cannot "
                       "go back from there",
                       (unsigned)pos, (unsigned)r->low);
    return STRATA_OK;
}

strata_err engine_truncate(struct engine *e, uint32_t seq, uint32_t pos, struct strata_errmsg *em) {
    if (seq >= e->info.n_seq)
        return err_set(em, STRATA_EINVAL, "sequence %u; this engine has %u", (unsigned)seq, (unsigned)e->info.n_seq);
    uint32_t have = e->n_past[seq];
    if (pos > have)
        return err_set(em, STRATA_EINVAL, "position %u cannot be gone back to: the cache holds %u", (unsigned)pos,
                       (unsigned)have);
    strata_err rc = pos > 0 && pos < have ? check_reach(e, seq, pos, em) : STRATA_OK;
    if (rc) return rc;
    if (pos == 0) {
        if (e->reach[seq].high > 0) model_state_clear(&e->state, seq, e->reach[seq].high);
        e->reach[seq] = (struct reach){.high = 0};
    }
    set_pos(e, seq, pos);
    return STRATA_OK;
}

uint64_t engine_rows_bytes(const struct engine *e, uint32_t first, uint32_t end) {
    return model_state_rows_bytes(&e->state, first, end);
}

strata_err engine_save_rows(const struct engine *e, uint32_t seq, uint32_t first, uint32_t end, void *out,
                            struct strata_errmsg *em) {
    if (seq >= e->info.n_seq || first >= end || end > e->n_past[seq])
        return err_set(em, STRATA_EINVAL, "positions %u..%u of sequence %u cannot be saved", (unsigned)first,
                       (unsigned)end, (unsigned)seq);
    strata_err rc = end < e->n_past[seq] ? check_reach(e, seq, end, em) : STRATA_OK;
    if (rc) return rc;
    model_state_save(&e->state, seq, first, end, out);
    return STRATA_OK;
}

strata_err engine_load_rows(struct engine *e, uint32_t seq, uint32_t first, uint32_t end, const void *in,
                            struct strata_errmsg *em) {
    if (first != engine_pos(e, seq))
        return err_set(em, STRATA_EINVAL, "positions %u..%u of sequence %u cannot be loaded: it has %u",
                       (unsigned)first, (unsigned)end, (unsigned)seq, (unsigned)engine_pos(e, seq));
    strata_err rc = engine_check_restore(e, seq, first, end, em);
    if (rc) return rc;
    model_state_load(&e->state, seq, first, end, in);
    engine_note_restored(e, seq, end, model_state_whole_from(&e->state, first, end) > first ? end : 0);
    return STRATA_OK;
}

/* ---- for the other files of this folder ---- */

const struct model_state *engine_state(const struct engine *e) {
    return &e->state;
}

struct model_state *engine_state_mut(struct engine *e) {
    return &e->state;
}

const struct pkg_model *engine_package(const struct engine *e) {
    return e->pkg;
}

const struct model *engine_model(const struct engine *e) {
    return &e->model;
}

uint32_t engine_reach(const struct engine *e, uint32_t seq) {
    const struct reach *r = &e->reach[seq];
    uint32_t ring = has_rings(e) && r->high > e->state.slack ? r->high - e->state.slack : 0;
    return ring > r->low ? ring : r->low;
}

strata_err engine_check_restore(const struct engine *e, uint32_t seq, uint32_t first, uint32_t end,
                                struct strata_errmsg *em) {
    if (seq >= e->info.n_seq || first >= end || end > e->info.n_ctx || first > e->n_past[seq])
        return err_set(em, STRATA_EINVAL, "positions %u..%u of sequence %u cannot be loaded", (unsigned)first,
                       (unsigned)end, (unsigned)seq);
    uint32_t others = e->n_used - (e->n_past[seq] - first);
    if (end - first > e->info.n_pool - others)
        return err_set(em, STRATA_ELIMIT, "%u more positions do not fit: all sequences together have %u of %u",
                       (unsigned)(end - first), (unsigned)others, (unsigned)e->info.n_pool);
    return STRATA_OK;
}

void engine_note_restored(struct engine *e, uint32_t seq, uint32_t end, uint32_t low) {
    if (low > e->reach[seq].low) e->reach[seq].low = low;
    note_written(e, seq, end);
    set_pos(e, seq, end);
}

const char *engine_architectures(void) {
    return arch_names();
}
