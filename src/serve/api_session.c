/* Generation of one answer. See api_session.h. */
#include "serve/api_session.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    MAX_PROMPT_TEXT = 4 * API_MAX_BODY, /* what a template may make of a body */
    MAX_PIECE = 1 << 20                 /* text of one token */
};

strata_err api_model_init(struct api_model *m, struct strata_errmsg *em) {
    struct vocab_ids ids = {0};
    strata_err rc = vocab_encode(m->vocab, "", 0, VOCAB_ADD_SPECIAL, &ids, em);
    if (!rc) m->add_bos = ids.len > 0 && ids.id[0] == vocab_bos(m->vocab);
    vocab_ids_deinit(&ids);
    return rc;
}

/* Our own failure: nothing that the client could have done better. */
static strata_err internal(struct api_problem *p, const struct strata_errmsg *em) {
    return api_problem_set(p, em->code, 500, "internal_error", NULL, "%s", em->text);
}

/* What a failure of the generator means to the client. */
static strata_err gen_failed(struct api_problem *p, const struct strata_errmsg *em) {
    switch (em->code) {
    case STRATA_EPEER:
    case STRATA_EAUTH:
    case STRATA_EIO:
    case STRATA_ETIMEOUT:
        api_problem_set(p, em->code, 503, "stage_lost", NULL, "%s", em->text);
        p->retry_after_s = 5;
        return em->code;
    case STRATA_ELIMIT:
    case STRATA_EBUSY:
        api_problem_set(p, em->code, 503, "overloaded", NULL, "%s", em->text);
        p->retry_after_s = 1;
        return em->code;
    case STRATA_ECANCELLED:
        api_problem_set(p, em->code, 503, "shutting_down", NULL, "%s", em->text);
        p->retry_after_s = 5;
        return em->code;
    case STRATA_EINVAL: return api_problem_set(p, em->code, 400, "invalid_value", NULL, "%s", em->text);
    default: return internal(p, em);
    }
}

static strata_err push_id(struct vocab_ids *ids, int32_t id, struct api_problem *p) {
    if (ids->len == ids->cap) {
        size_t cap = ids->cap ? 2 * ids->cap : 64;
        int32_t *grown = realloc(ids->id, cap * sizeof *grown);
        if (!grown) return api_problem_set(p, STRATA_ENOMEM, 500, "internal_error", NULL, "out of memory for a prompt");
        ids->id = grown;
        ids->cap = cap;
    }
    ids->id[ids->len++] = id;
    return STRATA_OK;
}

/* The template writes BOS itself or leaves it to the vocabulary: one BOS either way. */
static strata_err chat_prompt(const struct api_model *m, const struct api_request *r, struct vocab_ids *ids,
                              struct api_problem *p) {
    if (!m->chat)
        return api_problem_set(p, STRATA_EUNSUPPORTED, 400, "no_chat_template", NULL,
                               "model %.200s has no chat template; use /v1/completions", m->id);
    struct chat_inputs in = {.messages = r->messages,
                             .add_generation_prompt = true,
                             .bos_token = m->bos_text ? m->bos_text : "",
                             .eos_token = m->eos_text ? m->eos_text : ""};
    struct buf text;
    buf_init(&text, MAX_PROMPT_TEXT);
    struct strata_errmsg em;
    struct vocab_ids body = {0};
    struct text_spans own = {0}; /* what the messages say: it never becomes a control token */
    strata_err rc = chat_template_render_marked(m->chat, &in, &text, &own, &em);
    if (rc) {
        rc = rc == STRATA_EINVAL || rc == STRATA_EUNSUPPORTED || rc == STRATA_ELIMIT
                 ? api_problem_set(p, rc, 400, "invalid_value", "messages", "the chat template: %s", em.text)
                 : internal(p, &em);
        goto out;
    }
    rc = vocab_encode_marked(m->vocab, buf_cstr(&text), text.len, &own, VOCAB_PARSE_SPECIAL, &body, &em);
    if (rc) {
        internal(p, &em);
        goto out;
    }
    int32_t bos = vocab_bos(m->vocab);
    if (m->add_bos && (body.len == 0 || body.id[0] != bos)) rc = push_id(ids, bos, p);
    for (size_t i = 0; i < body.len && !rc; i++) rc = push_id(ids, body.id[i], p);
out:
    vocab_ids_deinit(&body);
    text_spans_deinit(&own);
    buf_deinit(&text);
    return rc;
}

/* A raw prompt is the client's own template: text of control tokens in it becomes these tokens. */
static strata_err raw_prompt(const struct api_model *m, const struct api_request *r, struct vocab_ids *ids,
                             struct api_problem *p) {
    struct strata_errmsg em;
    if (r->prompt) {
        unsigned flags = VOCAB_ADD_SPECIAL | VOCAB_PARSE_SPECIAL;
        return vocab_encode(m->vocab, r->prompt, r->prompt_len, flags, ids, &em) ? internal(p, &em) : STRATA_OK;
    }
    uint32_t n_vocab = vocab_size(m->vocab);
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < r->n_prompt_ids && !rc; i++) {
        int32_t id = r->prompt_ids[i];
        if (id < 0 || (uint32_t)id >= n_vocab)
            return api_problem_set(p, STRATA_EINVAL, 400, "invalid_value", "prompt",
                                   "prompt[%zu] is token %d; the model has tokens 0 to %u", i, (int)id, n_vocab - 1);
        rc = push_id(ids, id, p);
    }
    return rc;
}

static strata_err submit(struct api_session *s, const struct api_request *r, const char *id,
                         const struct vocab_ids *ids, struct api_problem *p) {
    const struct api_model *m = s->model;
    const char *field = r->endpoint == API_CHAT ? "messages" : "prompt";
    uint32_t n_ctx = m->gen->ops->n_ctx(m->gen);
    if (ids->len == 0)
        return api_problem_set(p, STRATA_EINVAL, 400, "invalid_value", field, "%s holds no tokens; send some text",
                               field);
    if (ids->len >= n_ctx)
        return api_problem_set(p, STRATA_ELIMIT, 400, "context_length_exceeded", field,
                               "the prompt has %zu tokens, and the context holds %u, answer included; shorten it",
                               ids->len, n_ctx);
    s->usage.prompt = (uint32_t)ids->len;
    uint32_t room = n_ctx - s->usage.prompt;
    struct gen_request req = {.id = id,
                              .prompt = ids->id,
                              .n_prompt = ids->len,
                              .max_tokens = r->max_tokens && r->max_tokens < room ? r->max_tokens : room,
                              .sampling = r->sampling};
    if (!r->ignore_eos) req.stop_ids = vocab_eog(m->vocab, &req.n_stop_ids);
    if (!r->has_seed && getrandom(&req.sampling.seed, sizeof req.sampling.seed, 0) != sizeof req.sampling.seed)
        return api_problem_set(p, STRATA_EIO, 500, "internal_error", NULL, "the system gives no random numbers");
    struct strata_errmsg em;
    return m->gen->ops->submit(m->gen, &req, &s->job, &em) ? gen_failed(p, &em) : STRATA_OK;
}

strata_err api_session_new(const struct api_model *m, const struct api_request *r, const char *id,
                           struct api_session **out, struct api_problem *p) {
    struct strata_errmsg em;
    struct vocab_ids ids = {0};
    struct api_session *s = calloc(1, sizeof *s);
    if (!s) return api_problem_set(p, STRATA_ENOMEM, 500, "internal_error", NULL, "out of memory for an answer");
    s->model = m;
    detok_init(&s->detok, m->vocab, false);
    buf_init(&s->text, MAX_PIECE);
    strata_err rc = api_stop_init(&s->stop, r->stop, r->n_stop, &em);
    if (rc) internal(p, &em);
    if (!rc) rc = r->endpoint == API_CHAT ? chat_prompt(m, r, &ids, p) : raw_prompt(m, r, &ids, p);
    if (!rc) rc = submit(s, r, id, &ids, p);
    vocab_ids_deinit(&ids);
    if (rc) {
        api_session_free(s);
        return rc;
    }
    *out = s;
    return STRATA_OK;
}

static void end_job(struct api_session *s) {
    struct gen *g = s->model->gen;
    if (s->job) g->ops->job_free(g, s->job);
    s->job = NULL;
}

void api_session_free(struct api_session *s) {
    if (!s) return;
    end_job(s);
    detok_deinit(&s->detok);
    api_stop_deinit(&s->stop);
    buf_deinit(&s->text);
    free(s);
}

/* Text of a token, through the stop strings. A match ends the job at once. */
static strata_err take_token(struct api_session *s, int32_t token, struct buf *out, struct strata_errmsg *em) {
    s->usage.completion++;
    if (vocab_is_eog(s->model->vocab, token)) return STRATA_OK;
    buf_clear(&s->text);
    strata_err rc = detok_push(&s->detok, token, &s->text, em);
    if (!rc) rc = api_stop_push(&s->stop, buf_cstr(&s->text), s->text.len, out, em);
    if (!rc && s->stop.matched) {
        end_job(s);
        s->finish = "stop";
    }
    return rc;
}

static strata_err take_end(struct api_session *s, const struct gen_event *end, struct buf *out,
                           struct strata_errmsg *em) {
    s->usage.cached = end->n_cached;
    buf_clear(&s->text);
    strata_err rc = detok_flush(&s->detok, &s->text, em);
    if (!rc) rc = api_stop_push(&s->stop, buf_cstr(&s->text), s->text.len, out, em);
    if (!rc) rc = api_stop_flush(&s->stop, out, em);
    if (rc) return rc;
    s->finish = end->finish == GEN_FINISH_LENGTH && !s->stop.matched ? "length" : "stop";
    end_job(s);
    return STRATA_OK;
}

strata_err api_session_step(struct api_session *s, uint64_t deadline_ns, struct buf *out, struct api_problem *p) {
    struct strata_errmsg em;
    struct gen_event ev;
    if (s->finish) return STRATA_OK;
    if (!s->job) return api_problem_set(p, STRATA_EINTERNAL, 500, "internal_error", NULL, "the answer has failed");
    strata_err rc = s->model->gen->ops->next(s->model->gen, s->job, deadline_ns, &ev, &em);
    if (rc == STRATA_ETIMEOUT) return rc;
    if (rc) {
        gen_failed(p, &em);
    } else {
        rc = ev.kind == GEN_TOKEN ? take_token(s, ev.token, out, &em) : take_end(s, &ev, out, &em);
        if (rc) internal(p, &em);
    }
    if (rc) end_job(s);
    return rc;
}
