/* Server-sent events of one answer. See api_stream.h. */
#include "serve/api_stream.h"

#include "base/clock.h"

#include <stdlib.h>

enum {
    MAX_PENDING = 8 << 20, /* bytes of events that wait for the client */
    KEEP_ALIVE_S = 5
};

strata_err api_stream_new(struct api_session *session, const struct api_answer *answer, struct api_stream **out,
                          struct api_problem *p) {
    struct api_stream *s = calloc(1, sizeof *s);
    if (!s) return api_problem_set(p, STRATA_ENOMEM, 500, "internal_error", NULL, "out of memory for a stream");
    s->session = session;
    s->answer = *answer;
    s->last_ns = clock_now_ns();
    buf_init(&s->text, MAX_PENDING / 8);
    buf_init(&s->out, MAX_PENDING);
    strata_err rc = api_json_chunk_role(&s->answer, &s->out, &p->em);
    if (rc) {
        api_problem_set(p, rc, 500, "internal_error", NULL, "a stream could not be started");
        api_stream_free(s);
        return rc;
    }
    *out = s;
    return STRATA_OK;
}

void api_stream_free(struct api_stream *s) {
    if (!s) return;
    buf_deinit(&s->text);
    buf_deinit(&s->out);
    free(s);
}

/* Events for what the session gave. */
static strata_err put_events(struct api_stream *s, struct strata_errmsg *em) {
    const struct api_session *g = s->session;
    strata_err rc = STRATA_OK;
    if (s->text.len) rc = api_json_chunk_text(&s->answer, buf_cstr(&s->text), s->text.len, &s->out, em);
    buf_clear(&s->text);
    if (!rc && g->finish) {
        rc = api_json_chunk_finish(&s->answer, g->finish, &s->out, em);
        if (!rc && s->answer.usage_field) rc = api_json_chunk_usage(&s->answer, &g->usage, &s->out, em);
        if (!rc) rc = buf_append_str(&s->out, "data: [DONE]\n\n", em);
        s->ended = true;
    }
    if (s->out.len) s->last_ns = clock_now_ns();
    return rc;
}

strata_err api_stream_first(struct api_stream *s, uint64_t deadline_ns, struct api_problem *p) {
    strata_err rc = api_session_step(s->session, deadline_ns, &s->text, p);
    if (rc) return rc;
    rc = put_events(s, &p->em);
    return rc ? api_problem_set(p, rc, 500, "internal_error", NULL, "a stream could not be started") : rc;
}

strata_err api_stream_fail(struct api_stream *s, const struct api_problem *p, struct strata_errmsg *em) {
    s->ended = s->failed = true;
    return api_json_chunk_error(p, &s->out, em);
}

strata_err api_stream_pull(struct api_stream *s, uint64_t deadline_ns, struct strata_errmsg *em) {
    struct api_problem p;
    if (s->ended) return STRATA_OK;
    strata_err rc = api_session_step(s->session, deadline_ns, &s->text, &p);
    if (rc == STRATA_ETIMEOUT) {
        uint64_t now = clock_now_ns();
        if (now - s->last_ns < KEEP_ALIVE_S * CLOCK_NS_PER_S) return STRATA_OK;
        s->last_ns = now;
        return buf_append_str(&s->out, ": keep-alive\n\n", em);
    }
    return rc ? api_stream_fail(s, &p, em) : put_events(s, em);
}
