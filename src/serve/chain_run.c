/* Requests on a standing chain: starting the next one, its tokens, its end. Loop thread; jobs are under the lock. */
#include "serve/chain_priv.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

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
    struct gen_job *active = c->active;
    c->active = NULL;
    if (active) finish_job(active, em->code, em);
    while (c->queue) {
        struct gen_job *job = c->queue;
        c->queue = job->next;
        finish_job(job, em->code, em);
    }
    c->queue_end = &c->queue;
    c->n_queued = 0;
}

static void cancel(struct chain *c, uint32_t seq) {
    struct wire_frame f = {.type = WIRE_CANCEL, .seq = seq};
    for (uint32_t i = 0; i < c->n_stages; i++)
        if (c->stages[i].link) wire_link_send(c->stages[i].link, &f, NULL, 0, NULL);
}

/* The tokens that the repeat penalty looks back on. */
static void fill_begin(const struct gen_job *job, struct wire_msg_begin *m) {
    uint32_t n = job->sampling.repeat_penalty == 1.0f ? 0 : job->sampling.repeat_last_n;
    if (n > job->n_prompt) n = job->n_prompt;
    *m = (struct wire_msg_begin){.sampling = job->sampling,
                                 .max_tokens = job->max_tokens,
                                 .n_prompt = job->n_prompt,
                                 .stop_ids = job->stop_ids,
                                 .n_stop_ids = job->n_stop_ids,
                                 .history = job->prompt + (job->n_prompt - n),
                                 .n_history = n};
}

static strata_err send_request(struct chain *c, const struct gen_job *job, struct strata_errmsg *em) {
    struct wire_link *first = c->stages[0].link;
    struct wire_msg_begin m;
    struct buf json;
    fill_begin(job, &m);
    buf_init(&json, WIRE_FRAME_MAX_CONTROL);
    strata_err rc = wire_msg_begin_encode(&m, &json, em);
    if (!rc) {
        struct wire_frame f = {.type = WIRE_BEGIN, .seq = job->seq, .payload = (uint32_t)json.len};
        rc = wire_link_send(first, &f, buf_cstr(&json), 0, em);
    }
    buf_deinit(&json);
    for (uint32_t pos = 0; pos < job->n_prompt && !rc;) {
        uint32_t n = job->n_prompt - pos < c->opt.n_batch ? job->n_prompt - pos : c->opt.n_batch;
        struct wire_frame f = {.type = WIRE_TOKENS, .seq = job->seq, .pos = pos, .n_rows = n, .payload = n * 4};
        if (pos + n == job->n_prompt) f.flags = WIRE_FLAG_SAMPLE;
        rc = wire_link_send(first, &f, job->prompt + pos, 0, em);
        pos += n;
    }
    return rc;
}

/* The first waiting job becomes the active one, when nothing runs. */
static struct gen_job *take_next(struct chain *c) {
    pthread_mutex_lock(&c->lock);
    struct gen_job *job = c->state == CHAIN_READY && !c->active ? c->queue : NULL;
    if (job) {
        c->queue = job->next;
        if (!c->queue) c->queue_end = &c->queue;
        c->n_queued--;
        job->next = NULL;
        job->state = JOB_ACTIVE;
        job->begun_ns = clock_now_ns();
        job->seq = ++c->seq;
        c->active = job;
    }
    pthread_mutex_unlock(&c->lock);
    return job;
}

/* Lets go of an active job whose owner is gone. */
static void drop_orphan(struct chain *c) {
    pthread_mutex_lock(&c->lock);
    struct gen_job *job = c->active && c->active->orphan ? c->active : NULL;
    if (job) c->active = NULL;
    pthread_mutex_unlock(&c->lock);
    if (!job) return;
    log_event(c->opt.log, LOG_LEVEL_INFO, "request-cancelled", "id=%s seq=%u tokens=%u", job->id, job->seq,
              job->n_tokens);
    cancel(c, job->seq);
    chain_job_delete(job);
}

void chain_pump(void *chain) {
    struct chain *c = chain;
    struct strata_errmsg em;
    drop_orphan(c);
    struct gen_job *job = take_next(c);
    if (!job) return;
    log_event(c->opt.log, LOG_LEVEL_DEBUG, "request-begin", "id=%s seq=%u prompt=%u max=%u", job->id, job->seq,
              job->n_prompt, job->max_tokens);
    /* A failed send closes the link, and that ends the job; what else can fail concerns this request alone. */
    if (send_request(c, job, &em) && em.code != STRATA_EPEER && em.code != STRATA_ETIMEOUT)
        chain_on_fault(&c->stages[0], job->seq, &em);
}

/* The active job when it is this request, else NULL. Only the loop thread ends active jobs, so it stays valid. */
static struct gen_job *active_job(struct chain *c, uint32_t seq) {
    pthread_mutex_lock(&c->lock);
    struct gen_job *job = c->active && c->active->seq == seq ? c->active : NULL;
    pthread_mutex_unlock(&c->lock);
    return job;
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
    cancel(c, seq);
    pthread_mutex_lock(&c->lock);
    c->active = NULL;
    finish_job(job, em.code, &em);
    pthread_mutex_unlock(&c->lock);
    wire_loop_post(c->loop, &c->pump_task);
}

static strata_err check_token(const struct stage *s, const struct gen_job *job, const struct wire_frame *f, int32_t id,
                              struct strata_errmsg *em) {
    const struct chain *c = s->chain;
    if (s->index + 1 != c->n_stages) return err_set(em, STRATA_EPEER, "it sent a token, but is not the last stage");
    if (f->pos != job->n_prompt + job->n_tokens)
        return err_set(em, STRATA_EPEER, "it sent a token for position %u, where %u comes next", f->pos,
                       job->n_prompt + job->n_tokens);
    if (id < 0 || (uint32_t)id >= s->loaded.n_vocab)
        return err_set(em, STRATA_EPEER, "it sent token id %d, which is not in the vocabulary", id);
    if (job->n_tokens >= job->cap) return err_set(em, STRATA_EPEER, "it sent more tokens than were asked for");
    return STRATA_OK;
}

void chain_on_token(struct stage *s, const struct wire_frame *f, const struct wire_buf *payload) {
    struct chain *c = s->chain;
    struct strata_errmsg em;
    const uint8_t *b = payload->data;
    int32_t id = (int32_t)((uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24);
    struct gen_job *job = active_job(c, f->seq);
    if (!job) return; /* of a request that is over */
    if (check_token(s, job, f, id, &em)) {
        chain_on_fault(s, f->seq, &em);
        return;
    }
    bool final = f->flags & WIRE_FLAG_FINAL;
    /* Read before the job is given up: its owner may free it at once. */
    struct gen_job copy = {.n_tokens = job->n_tokens + 1, .begun_ns = job->begun_ns};
    memcpy(copy.id, job->id, sizeof copy.id);
    pthread_mutex_lock(&c->lock);
    job->tokens[job->n_tokens++] = id;
    job->finish = f->flags & WIRE_FLAG_EOG ? GEN_FINISH_STOP : GEN_FINISH_LENGTH;
    if (final) {
        c->active = NULL;
        finish_job(job, STRATA_OK, NULL);
    } else {
        pthread_cond_broadcast(&job->changed);
    }
    pthread_mutex_unlock(&c->lock);
    if (!final) return;
    log_event(c->opt.log, LOG_LEVEL_DEBUG, "request-end", "id=%s seq=%u tokens=%u seconds=%.3f", copy.id, f->seq,
              copy.n_tokens, clock_since_s(copy.begun_ns));
    wire_loop_post(c->loop, &c->pump_task);
}
