/*
 * Requests on a standing chain: starting them, their tokens, their end. Loop thread; jobs are under the lock.
 *
 * As many run at once as there are slots, and as the pool of positions holds when each takes all that it may; they
 * start in the order they came. The state of a request's prefix is taken from the prefix cache where the stages have
 * it, and what it computes is kept there.
 */
#include "serve/chain_priv.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

/* ---- frames to the stages ---- */

static void send_all(struct chain *c, const struct wire_frame *f, const void *payload) {
    for (uint32_t i = 0; i < c->n_stages; i++)
        if (c->stages[i].link) wire_link_send(c->stages[i].link, f, payload, 0, NULL);
}

/* The request is over: its slots are free at once. */
static void send_cancel(struct chain *c, uint32_t seq) {
    send_all(c, &(struct wire_frame){.type = WIRE_CANCEL, .seq = seq}, NULL);
}

void chain_forget_blocks(void *chain, uint64_t first, uint32_t count) {
    const struct wire_msg_forget m = {first, count};
    struct buf json;
    if (count == 0) return;
    buf_init(&json, WIRE_FRAME_MAX_CONTROL);
    if (!wire_msg_forget_encode(&m, &json, NULL))
        send_all(chain, &(struct wire_frame){.type = WIRE_FORGET, .payload = (uint32_t)json.len}, buf_cstr(&json));
    buf_deinit(&json);
}

/* ---- the prefix cache ---- */

/* Positions that the request may come to have. */
static uint32_t positions(const struct gen_job *job) {
    return job->n_prompt + job->cap;
}

/* Finds what can be restored, and makes room for what the prompt adds. */
static void take_prefix(struct chain *c, struct gen_job *job, bool cached) {
    struct job_prefix *x = &job->prefix;
    /* At least one token has to be computed. */
    uint32_t whole = (job->n_prompt - 1) / PREFIX_BLOCK;
    *x = (struct job_prefix){.tip = NULL};
    if (!c->prefix || !cached) return;
    if (whole > WIRE_MSG_RESTORE) whole = WIRE_MSG_RESTORE;
    x->tip = prefix_match(c->prefix, job->prompt, whole, &x->n_restored);
    x->n_known = x->n_restored;
    uint32_t more = job->n_prompt / PREFIX_BLOCK - x->n_restored;
    if (!prefix_reserve(c->prefix, more)) return;
    x->n_reserved = more;
    /* One number for each block of the sequence, those that are restored included. */
    x->base = prefix_numbers(c->prefix, positions(job) / PREFIX_BLOCK + 1);
}

/* Block k of the job, which the stages have, becomes known; false when there is no room for it. */
static bool keep_block(struct chain *c, struct gen_job *job, uint32_t k) {
    struct job_prefix *x = &job->prefix;
    int32_t tokens[PREFIX_BLOCK];
    if (x->cut_off || (x->n_reserved == 0 && !prefix_reserve(c->prefix, 1))) return false;
    if (x->n_reserved) x->n_reserved--;
    for (uint32_t i = 0; i < PREFIX_BLOCK; i++) {
        uint32_t at = k * PREFIX_BLOCK + i;
        tokens[i] = at < job->n_prompt ? job->prompt[at] : job->tokens[at - job->n_prompt];
    }
    struct prefix_node *tip = prefix_extend(c->prefix, x->tip, tokens, x->base + k);
    if (tip) x->tip = tip;
    return tip != NULL;
}

/* The stages have computed `pos` positions: what is complete becomes known, or goes at once, so that one block at most
 * of each request takes room at the stages that nobody accounts for. */
static void keep_prefix(struct chain *c, struct gen_job *job, uint32_t pos) {
    struct job_prefix *x = &job->prefix;
    for (; x->base && (x->n_known + 1) * PREFIX_BLOCK <= pos; x->n_known++) {
        if (keep_block(c, job, x->n_known)) continue;
        x->cut_off = true;
        chain_forget_blocks(c, x->base + x->n_known, 1);
    }
}

/* Ends a request's part in the cache. Blocks that the stages may have kept, but nobody knows, are forgotten: they may
 * have come further than their tokens have. */
static void release_prefix(struct chain *c, struct gen_job *job) {
    struct job_prefix *x = &job->prefix;
    if (!c->prefix) return;
    uint32_t all = positions(job) / PREFIX_BLOCK + 1;
    if (x->base && all > x->n_known) chain_forget_blocks(c, x->base + x->n_known, all - x->n_known);
    prefix_unreserve(c->prefix, x->n_reserved);
    prefix_release(c->prefix, x->tip);
    *x = (struct job_prefix){.n_restored = x->n_restored};
}

/* Any thread may ask for the numbers, the cache itself is the loop's. */
static void note_stats(struct chain *c) {
    pthread_mutex_lock(&c->lock);
    if (c->prefix) prefix_stats(c->prefix, &c->prefix_stats);
    pthread_mutex_unlock(&c->lock);
}

/* ---- starting ---- */

/* The tokens that the repeat penalty looks back on. */
static void fill_begin(const struct gen_job *job, uint64_t *restore, struct wire_msg_begin *m) {
    uint32_t n = job->sampling.repeat_penalty == 1.0f ? 0 : job->sampling.repeat_last_n;
    if (n > job->n_prompt) n = job->n_prompt;
    prefix_ids(job->prefix.tip, restore, job->prefix.n_restored);
    *m = (struct wire_msg_begin){.slot = job->slot,
                                 .store_base = job->prefix.base,
                                 .n_restore = job->prefix.n_restored,
                                 .restore = restore,
                                 .sampling = job->sampling,
                                 .max_tokens = job->max_tokens,
                                 .n_prompt = job->n_prompt,
                                 .stop_ids = job->stop_ids,
                                 .n_stop_ids = job->n_stop_ids,
                                 .history = job->prompt + (job->n_prompt - n),
                                 .n_history = n};
}

static strata_err send_request(struct chain *c, const struct gen_job *job, struct strata_errmsg *em) {
    struct wire_link *first = c->stages[0].link;
    uint64_t *restore = malloc((job->prefix.n_restored + 1) * sizeof *restore);
    struct wire_msg_begin m;
    struct buf json;
    if (!restore) return err_nomem(em, "a request");
    fill_begin(job, restore, &m);
    buf_init(&json, WIRE_FRAME_MAX_CONTROL);
    strata_err rc = wire_msg_begin_encode(&m, &json, em);
    if (!rc) {
        struct wire_frame f = {.type = WIRE_BEGIN, .seq = job->seq, .payload = (uint32_t)json.len};
        rc = wire_link_send(first, &f, buf_cstr(&json), 0, em);
    }
    buf_deinit(&json);
    free(restore);
    for (uint32_t pos = job->prefix.n_restored * PREFIX_BLOCK; pos < job->n_prompt && !rc;) {
        uint32_t n = job->n_prompt - pos < c->opt.n_batch ? job->n_prompt - pos : c->opt.n_batch;
        struct wire_frame f = {.type = WIRE_TOKENS, .seq = job->seq, .pos = pos, .n_rows = n, .payload = n * 4};
        rc = wire_link_send(first, &f, job->prompt + pos, 0, em);
        pos += n;
    }
    return rc;
}

/* Sends a job that has its slot. */
static void start(struct chain *c, struct gen_job *job, bool cached) {
    struct strata_errmsg em;
    take_prefix(c, job, cached);
    note_stats(c);
    log_event(c->opt.log, LOG_LEVEL_DEBUG, "request-begin", "id=%s seq=%u slot=%u prompt=%u cached=%u max=%u", job->id,
              job->seq, job->slot, job->n_prompt, job->prefix.n_restored * PREFIX_BLOCK, job->max_tokens);
    /* A failed send closes the link, and that ends the job; what else can fail concerns this request alone. */
    if (send_request(c, job, &em) && em.code != STRATA_EPEER && em.code != STRATA_ETIMEOUT)
        chain_on_fault(&c->stages[0], job->seq, &em);
}

static uint32_t free_slot(const struct chain *c) {
    uint32_t i = 0;
    while (i < c->opt.n_seq && c->active[i]) i++;
    return i;
}

/* The first waiting job gets a slot, when there is one and the pool has room for all that the job may come to need.
 * Nobody overtakes it: a small request cannot make a large one wait for ever. */
static struct gen_job *take_next(struct chain *c) {
    pthread_mutex_lock(&c->lock);
    uint32_t slot = free_slot(c);
    struct gen_job *job = c->state == CHAIN_READY && slot < c->opt.n_seq ? c->queue : NULL;
    if (job && positions(job) > c->opt.n_pool - c->n_pool_taken) job = NULL;
    if (job) {
        c->queue = job->next;
        if (!c->queue) c->queue_end = &c->queue;
        c->n_queued--;
        job->next = NULL;
        job->state = JOB_ACTIVE;
        job->begun_ns = clock_now_ns();
        job->seq = ++c->seq;
        job->slot = slot;
        c->n_pool_taken += positions(job);
        c->active[slot] = job;
        c->n_active++;
    }
    pthread_mutex_unlock(&c->lock);
    return job;
}

/* ---- ending ---- */

/* Under the lock: the job's slot and its part of the pool are free. */
static void vacate(struct chain *c, struct gen_job *job) {
    c->active[job->slot] = NULL;
    c->n_active--;
    c->n_pool_taken -= positions(job);
}

/* Under the lock. The job leaves the chain; whoever holds it learns how it ended. */
static void finish_job(struct gen_job *job, strata_err rc, const struct strata_errmsg *em) {
    job->state = JOB_DONE;
    job->rc = rc;
    if (rc && em) job->em = *em;
    if (job->orphan)
        chain_job_delete(job);
    else
        pthread_cond_broadcast(&job->changed);
}

void chain_end_jobs(struct chain *c, const struct strata_errmsg *em) {
    for (uint32_t i = 0; i < c->opt.n_seq; i++) {
        struct gen_job *job = c->active[i];
        if (!job) continue;
        vacate(c, job);
        finish_job(job, em->code, em);
    }
    if (c->prefix) prefix_clear(c->prefix);
    while (c->queue) {
        struct gen_job *job = c->queue;
        c->queue = job->next;
        finish_job(job, em->code, em);
    }
    c->queue_end = &c->queue;
    c->n_queued = 0;
}

/* An active job is over: the stages hear it, and the next one may start. */
static void end_active(struct chain *c, struct gen_job *job, strata_err rc, const struct strata_errmsg *em) {
    send_cancel(c, job->seq);
    release_prefix(c, job);
    note_stats(c);
    pthread_mutex_lock(&c->lock);
    vacate(c, job);
    finish_job(job, rc, em);
    pthread_mutex_unlock(&c->lock);
    wire_loop_post(c->loop, &c->pump_task);
}

/* Lets go of active jobs whose owners are gone. */
static void drop_orphans(struct chain *c) {
    for (uint32_t i = 0; i < c->opt.n_seq; i++) {
        pthread_mutex_lock(&c->lock);
        struct gen_job *job = c->active[i] && c->active[i]->orphan ? c->active[i] : NULL;
        pthread_mutex_unlock(&c->lock);
        if (!job) continue;
        log_event(c->opt.log, LOG_LEVEL_INFO, "request-cancelled", "id=%s seq=%u tokens=%u", job->id, job->seq,
                  job->n_tokens);
        end_active(c, job, STRATA_ECANCELLED, NULL);
    }
}

void chain_pump(void *chain) {
    struct chain *c = chain;
    struct gen_job *job;
    drop_orphans(c);
    while ((job = take_next(c)) != NULL) start(c, job, true);
}

/* ---- what the stages say ---- */

/* The active job of this request, else NULL. Only the loop thread ends active jobs, so it stays valid. */
static struct gen_job *active_job(struct chain *c, uint32_t seq) {
    struct gen_job *job = NULL;
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < c->opt.n_seq && !job; i++)
        if (c->active[i] && c->active[i]->seq == seq) job = c->active[i];
    pthread_mutex_unlock(&c->lock);
    return job;
}

/* A stage lacks a block that we believed it to have: the request starts again, from nothing. */
static void start_uncached(struct chain *c, struct gen_job *job) {
    struct job_prefix x = job->prefix;
    send_cancel(c, job->seq);
    job->prefix.tip = NULL;
    release_prefix(c, job);
    prefix_discard(c->prefix, x.tip);
    pthread_mutex_lock(&c->lock);
    job->seq = ++c->seq;
    pthread_mutex_unlock(&c->lock);
    start(c, job, false);
}

void chain_on_fault(struct stage *s, uint32_t seq, const struct strata_errmsg *why) {
    struct chain *c = s->chain;
    struct strata_errmsg em;
    char name[CHAIN_NAME], quoted[600];
    struct gen_job *job = active_job(c, seq);
    if (!job) return;
    err_set(&em, why->code, "%s: %s", chain_stage_name(s, name), why->text);
    log_event(c->opt.log, LOG_LEVEL_WARN, "request-failed", "id=%s seq=%u error=%s", job->id, seq,
              log_quote(quoted, sizeof quoted, em.text));
    if (why->code == STRATA_ENOENT && job->prefix.n_restored && job->n_tokens == 0)
        start_uncached(c, job);
    else
        end_active(c, job, em.code, &em);
}

static strata_err check_token(const struct stage *s, const struct gen_job *job, const struct wire_token *t,
                              struct strata_errmsg *em) {
    if (t->pos != job->n_prompt + job->n_tokens)
        return err_set(em, STRATA_EPEER, "it sent a token for position %u, where %u comes next", t->pos,
                       job->n_prompt + job->n_tokens);
    if ((uint32_t)t->id >= s->loaded.n_vocab)
        return err_set(em, STRATA_EPEER, "it sent token id %d, which is not in the vocabulary", t->id);
    if (job->n_tokens >= job->cap) return err_set(em, STRATA_EPEER, "it sent more tokens than were asked for");
    return STRATA_OK;
}

static void on_token(struct stage *s, const struct wire_token *t) {
    struct chain *c = s->chain;
    struct strata_errmsg em;
    struct gen_job *job = active_job(c, t->seq);
    if (!job) return; /* of a request that is over */
    if (check_token(s, job, t, &em)) {
        chain_on_fault(s, t->seq, &em);
        return;
    }
    pthread_mutex_lock(&c->lock);
    job->tokens[job->n_tokens++] = t->id;
    job->finish = t->flags & WIRE_TOKEN_EOG ? GEN_FINISH_STOP : GEN_FINISH_LENGTH;
    pthread_mutex_unlock(&c->lock);
    /* Not under the lock, which those who wake want at once. The job stays: it is active, and only this thread ends it.
     */
    pthread_cond_broadcast(&job->changed);
    keep_prefix(c, job, t->pos);
    if (!(t->flags & WIRE_TOKEN_FINAL)) return;
    log_event(c->opt.log, LOG_LEVEL_DEBUG, "request-end", "id=%s seq=%u tokens=%u seconds=%.3f", job->id, job->seq,
              job->n_tokens, clock_since_s(job->begun_ns));
    end_active(c, job, STRATA_OK, NULL);
}

strata_err chain_on_tokens(struct stage *s, const struct wire_frame *f, const struct wire_buf *payload,
                           struct strata_errmsg *em) {
    struct wire_token t[WIRE_MAX_SPANS];
    if (s->index + 1 != s->chain->n_stages)
        return err_set(em, STRATA_EPEER, "it sent a token, but is not the last stage");
    strata_err rc = wire_tokens_decode(f, payload->data, t, em);
    for (uint32_t i = 0; i < f->n_rows && !rc; i++) on_token(s, &t[i]);
    return rc;
}
