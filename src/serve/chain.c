/*
 * The chain: start, stop, and the struct gen side that HTTP threads call. See chain.h.
 *
 * Owns the loop, the stages' links and the jobs that are queued or running. Refuses requests that do not fit the
 * context, and more than CHAIN_QUEUE_MAX waiting ones.
 */
#include "serve/chain_priv.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const state_names[] = {"preparing", "dialling", "loading", "linking",
                                          "ready",     "degraded", "stopped"};

const char *chain_stage_name(const struct stage *s, char out[CHAIN_NAME]) {
    char addr[WIRE_ADDR_TEXT];
    snprintf(out, CHAIN_NAME, "stage %u of %u (%s, layers %u..%u)", s->index + 1, s->chain->n_stages,
             wire_addr_text(&s->addr, addr), s->first, s->end);
    return out;
}

/* ---- struct gen ---- */

void chain_job_delete(struct gen_job *job) {
    if (!job) return;
    pthread_cond_destroy(&job->changed);
    free(job->prompt);
    free(job->stop_ids);
    free(job->tokens);
    free(job);
}

static strata_err check_request(const struct chain *c, const struct gen_request *req, struct strata_errmsg *em) {
    if (req->n_prompt == 0 || req->max_tokens == 0)
        return err_set(em, STRATA_EINVAL, "a request needs a prompt and room for at least one token");
    if (req->n_prompt >= c->opt.n_ctx)
        return err_set(em, STRATA_ELIMIT, "the prompt has %zu tokens; the context of %u holds at most %u and an answer",
                       req->n_prompt, c->opt.n_ctx, c->opt.n_ctx - 1);
    if (req->n_stop_ids > WIRE_MSG_STOP_IDS)
        return err_set(em, STRATA_ELIMIT, "%zu stop tokens; at most %d are accepted", req->n_stop_ids,
                       WIRE_MSG_STOP_IDS);
    if (req->sampling.repeat_penalty != 1.0f && req->sampling.repeat_last_n > WIRE_MSG_HISTORY)
        return err_set(em, STRATA_EINVAL, "repeat_last_n is %u; it must be from 0 to %d", req->sampling.repeat_last_n,
                       WIRE_MSG_HISTORY);
    return sampler_check(&req->sampling, em);
}

static int32_t *copy_ids(const int32_t *ids, size_t n) {
    int32_t *out = malloc((n ? n : 1) * sizeof *out);
    if (out && n) memcpy(out, ids, n * sizeof *out);
    return out;
}

static strata_err job_new(const struct chain *c, const struct gen_request *req, struct gen_job **out,
                          struct strata_errmsg *em) {
    struct gen_job *job = calloc(1, sizeof *job);
    if (!job) return err_nomem(em, "a request");
    clock_cond_init(&job->changed);
    snprintf(job->id, sizeof job->id, "%s", req->id ? req->id : "");
    job->n_prompt = (uint32_t)req->n_prompt;
    job->max_tokens = req->max_tokens;
    job->sampling = req->sampling;
    job->n_stop_ids = (uint32_t)req->n_stop_ids;
    job->cap = c->opt.n_ctx - job->n_prompt;
    if (job->cap > req->max_tokens) job->cap = req->max_tokens;
    job->prompt = copy_ids(req->prompt, req->n_prompt);
    job->stop_ids = copy_ids(req->stop_ids, req->n_stop_ids);
    job->tokens = malloc(job->cap * sizeof *job->tokens);
    if (!job->prompt || !job->stop_ids || !job->tokens) {
        chain_job_delete(job);
        return err_nomem(em, "a request");
    }
    *out = job;
    return STRATA_OK;
}

static strata_err submit(struct gen *g, const struct gen_request *req, struct gen_job **out, struct strata_errmsg *em) {
    struct chain *c = (struct chain *)g;
    struct gen_job *job = NULL;
    strata_err rc = check_request(c, req, em);
    if (!rc) rc = job_new(c, req, &job, em);
    if (rc) return rc;
    pthread_mutex_lock(&c->lock);
    if (c->state != CHAIN_READY)
        rc = err_set(em, STRATA_EPEER, "the model cannot be served now: %s",
                     c->em.text[0] ? c->em.text : "the stages are still being set up");
    else if (c->n_queued >= CHAIN_QUEUE_MAX)
        rc = err_set(em, STRATA_ELIMIT, "%d requests are waiting already; try again later", CHAIN_QUEUE_MAX);
    else {
        *c->queue_end = job;
        c->queue_end = &job->next;
        c->n_queued++;
        wire_loop_post(c->loop, &c->pump_task);
    }
    pthread_mutex_unlock(&c->lock);
    if (rc)
        chain_job_delete(job);
    else
        *out = job;
    return rc;
}

static strata_err next(struct gen *g, struct gen_job *job, uint64_t deadline_ns, struct gen_event *out,
                       struct strata_errmsg *em) {
    struct chain *c = (struct chain *)g;
    strata_err rc = STRATA_OK;
    pthread_mutex_lock(&c->lock);
    bool in_time = true;
    while (job->n_read == job->n_tokens && job->state != JOB_DONE && in_time)
        in_time = clock_cond_wait(&job->changed, &c->lock, deadline_ns);
    if (job->n_read < job->n_tokens) {
        *out = (struct gen_event){.kind = GEN_TOKEN, .token = job->tokens[job->n_read++]};
    } else if (job->state != JOB_DONE) {
        rc = err_set(em, STRATA_ETIMEOUT, "no token came in time");
    } else if (job->rc) {
        rc = job->rc;
        if (em) *em = job->em;
    } else {
        *out = (struct gen_event){
            .kind = GEN_DONE, .finish = job->finish, .n_cached = job->prefix.n_restored * PREFIX_BLOCK};
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static void unqueue(struct chain *c, struct gen_job *job) {
    struct gen_job **p = &c->queue;
    while (*p && *p != job) p = &(*p)->next;
    if (!*p) return;
    *p = job->next;
    if (!*p) c->queue_end = p;
    c->n_queued--;
}

static void job_free(struct gen *g, struct gen_job *job) {
    struct chain *c = (struct chain *)g;
    if (!job) return;
    pthread_mutex_lock(&c->lock);
    bool ours = job->state != JOB_ACTIVE;
    if (job->state == JOB_QUEUED) unqueue(c, job);
    if (!ours) {
        job->orphan = true;
        wire_loop_post(c->loop, &c->pump_task);
    }
    pthread_mutex_unlock(&c->lock);
    if (ours) chain_job_delete(job);
}

static uint32_t n_ctx(struct gen *g) {
    return ((struct chain *)g)->opt.n_ctx;
}

static json_t *stage_health(const struct stage *s, bool ready) {
    char addr[WIRE_ADDR_TEXT];
    const struct wire_msg_loaded *l = &s->loaded;
    return json_pack("{s:i, s:s, s:[i,i], s:s, s:I, s:I, s:I, s:I, s:I}", "stage", (int)s->index + 1, "address",
                     wire_addr_text(&s->addr, addr), "layers", (int)s->first, (int)s->end, "state",
                     ready ? "ready" : "not ready", "weight_bytes", (json_int_t)l->weight_bytes, "kv_bytes",
                     (json_int_t)l->kv_bytes, "scratch_bytes", (json_int_t)l->scratch_bytes, "resident_bytes",
                     (json_int_t)l->rss_bytes, "cache_bytes", (json_int_t)l->cache_bytes);
}

static bool health(struct gen *g, json_t **status) {
    struct chain *c = (struct chain *)g;
    pthread_mutex_lock(&c->lock);
    bool ready = c->state == CHAIN_READY;
    const struct prefix_stats *x = &c->prefix_stats;
    json_t *o = json_pack(
        "{s:s, s:s, s:I, s:I, s:i, s:{s:I, s:I, s:I, s:I, s:I, s:I}}", "status", ready ? "ok" : "degraded", "chain",
        state_names[c->state], "queued", (json_int_t)c->n_queued, "running", (json_int_t)c->n_active, "slots",
        (int)c->opt.n_seq, "prefix_cache", "hits", (json_int_t)x->hits, "misses", (json_int_t)x->misses,
        "reused_tokens", (json_int_t)x->reused_positions, "evictions", (json_int_t)x->evictions, "tokens",
        (json_int_t)x->blocks * PREFIX_BLOCK, "max_tokens", (json_int_t)c->opt.cache_blocks * PREFIX_BLOCK);
    json_t *list = json_array();
    for (uint32_t i = 0; i < c->n_stages; i++) json_array_append_new(list, stage_health(&c->stages[i], ready));
    if (o) json_object_set(o, "stages", list);
    json_decref(list);
    if (o && !ready && c->em.text[0]) json_object_set_new(o, "reason", json_string(c->em.text));
    pthread_mutex_unlock(&c->lock);
    *status = o;
    return ready;
}

static const struct gen_ops ops = {submit, next, job_free, n_ctx, health};

struct gen *chain_gen(struct chain *c) {
    return &c->gen;
}

void chain_stage_info(struct chain *c, uint32_t index, struct chain_stage_info *out) {
    const struct stage *s = &c->stages[index];
    pthread_mutex_lock(&c->lock);
    *out = (struct chain_stage_info){.addr = s->addr, .first = s->first, .end = s->end, .loaded = s->loaded};
    pthread_mutex_unlock(&c->lock);
}

/* ---- start and stop ---- */

static void start_on_loop(void *ctx) {
    struct chain *c = ctx;
    uv_timer_init(wire_loop_uv(c->loop), &c->tick);
    uv_timer_init(wire_loop_uv(c->loop), &c->backoff);
    uv_timer_init(wire_loop_uv(c->loop), &c->verdict);
    c->tick.data = c->backoff.data = c->verdict.data = c;
    c->timers = true;
    c->ticked_ns = clock_now_ns();
    uv_timer_start(&c->tick, chain_on_tick, CHAIN_TICK_MS, CHAIN_TICK_MS);
    /* By way of the timer: a failure of the very first step is then reported like any other. */
    uv_timer_start(&c->backoff, chain_on_backoff, 0, 0);
}

static void stop_on_loop(void *ctx) {
    struct chain *c = ctx;
    struct strata_errmsg em;
    err_set(&em, STRATA_ECANCELLED, "the server is stopping");
    pthread_mutex_lock(&c->lock);
    c->state = CHAIN_STOPPED;
    c->em = em;
    chain_end_jobs(c, &em);
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    chain_close_links(c);
    if (c->working && c->opt.abort) c->opt.abort(c->opt.prepare_ctx);
    if (c->timers) {
        uv_close((uv_handle_t *)&c->tick, NULL);
        uv_close((uv_handle_t *)&c->backoff, NULL);
        uv_close((uv_handle_t *)&c->verdict, NULL);
    }
}

static strata_err check_options(const struct chain_options *opt, struct strata_errmsg *em) {
    if (opt->n_seq == 0 || opt->n_seq > WIRE_MAX_SPANS || opt->n_seq > opt->n_batch)
        return err_set(em, STRATA_EINVAL,
                       "%u requests at once; from 1 to %d are possible, and each needs a row of a batch of %u",
                       opt->n_seq, WIRE_MAX_SPANS, opt->n_batch);
    if (opt->n_pool < opt->n_ctx || opt->n_pool > INT32_MAX)
        return err_set(em, STRATA_EINVAL, "%u positions for all requests; one alone may need %u", opt->n_pool,
                       opt->n_ctx);
    if (opt->cache_blocks > WIRE_MSG_CACHE_BLOCKS - WIRE_MAX_SPANS)
        return err_set(em, STRATA_EINVAL, "a prefix cache of %u blocks; at most %d are possible", opt->cache_blocks,
                       WIRE_MSG_CACHE_BLOCKS - WIRE_MAX_SPANS);
    return STRATA_OK;
}

static strata_err copy_options(struct chain *c, const struct chain_options *opt, struct strata_errmsg *em) {
    uint32_t n = opt->n_stages;
    strata_err rc = check_options(opt, em);
    if (rc) return rc;
    if (n == 0 || n > WIRE_MSG_STAGES)
        return err_set(em, STRATA_EINVAL, "a chain has 1 to %d stages, not %u", WIRE_MSG_STAGES, n);
    c->opt = *opt;
    snprintf(c->manifest_sha256, sizeof c->manifest_sha256, "%s", opt->manifest_sha256);
    c->n_stages = n;
    c->stages = calloc(n, sizeof *c->stages);
    c->addrs = calloc(n, sizeof *c->addrs);
    if (opt->key_dir) c->key_dir = strdup(opt->key_dir);
    if (!c->stages || !c->addrs || (opt->key_dir && !c->key_dir)) return err_nomem(em, "the chain");
    for (uint32_t i = 0; i < n; i++) {
        c->stages[i] = (struct stage){.chain = c,
                                      .index = i,
                                      .addr = opt->stages[i].addr,
                                      .first = opt->stages[i].first,
                                      .end = opt->stages[i].end};
        c->addrs[i] = opt->stages[i].addr;
    }
    for (size_t i = 0; !opt->key_dir && opt->trust && i < opt->trust->n && !rc; i++) {
        const struct wire_trust_entry *e = &opt->trust->entries[i];
        rc = wire_trust_add(&c->trust, &e->pub, e->name[0] ? e->name : NULL, em);
    }
    return rc;
}

strata_err chain_start(const struct chain_options *opt, struct chain **out, struct strata_errmsg *em) {
    struct chain *c = calloc(1, sizeof *c);
    if (!c) return err_nomem(em, "the chain");
    c->gen.ops = &ops;
    c->queue_end = &c->queue;
    c->backoff_ms = CHAIN_BACKOFF_MIN_MS;
    c->pump_task = (struct wire_task){.fn = chain_pump, .ctx = c};
    pthread_mutex_init(&c->lock, NULL);
    clock_cond_init(&c->changed);
    strata_err rc = copy_options(c, opt, em);
    if (!rc && opt->cache_blocks) rc = prefix_new(opt->cache_blocks, chain_forget_blocks, c, &c->prefix, em);
    if (!rc) rc = wire_tls_new(opt->key, &c->tls, em);
    if (!rc) rc = wire_loop_start(&c->loop, em);
    if (rc) {
        chain_stop(c);
        return rc;
    }
    wire_loop_call(c->loop, start_on_loop, c);
    *out = c;
    return STRATA_OK;
}

strata_err chain_wait(struct chain *c, uint64_t deadline_ns, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    bool in_time = true;
    pthread_mutex_lock(&c->lock);
    while (!c->stood && c->state != CHAIN_DEGRADED && c->state != CHAIN_STOPPED && in_time)
        in_time = clock_cond_wait(&c->changed, &c->lock, deadline_ns);
    if (!c->stood && !c->em.text[0]) {
        rc = err_set(em, STRATA_ETIMEOUT, "the chain is still being built");
    } else if (!c->stood) {
        /* A stage that timed out is final; ETIMEOUT alone means "ask again". */
        rc = c->em.code == STRATA_ETIMEOUT ? STRATA_EPEER : c->em.code;
        if (em) {
            *em = c->em;
            em->code = rc;
        }
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

void chain_stop(struct chain *c) {
    if (!c) return;
    if (c->loop) wire_loop_call(c->loop, stop_on_loop, c);
    wire_loop_stop(c->loop);
    wire_tls_free(c->tls);
    prefix_free(c->prefix);
    wire_trust_deinit(&c->trust);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->changed);
    free(c->stages);
    free(c->addrs);
    free(c->key_dir);
    free(c);
}
