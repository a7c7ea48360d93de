/*
 * One answer, from a checked request to text: prompt, submission, tokens, characters, stop strings.
 *
 * Life cycle: api_session_new submits the job; api_session_step until s->finish is set or a step fails;
 * api_session_free cancels the job if it still runs. Used by one thread at a time.
 */
#ifndef API_SESSION_H
#define API_SESSION_H

#include "serve/api_json.h"
#include "serve/api_stop.h"
#include "serve/gen.h"
#include "text/chat.h"
#include "text/detok.h"
#include "text/vocab.h"

/* What is served; borrowed, and read-only while sessions run. */
struct api_model {
    const char *id;
    const struct vocab *vocab;
    const struct chat_template *chat; /* NULL: no chat completions */
    const char *bos_text;
    const char *eos_text;
    struct gen *gen;
    bool add_bos; /* the vocabulary puts BOS before a prompt; see api_model_init */
    int64_t created;
};

/* Finds out what the vocabulary adds to a prompt; the other fields must be set. */
strata_err api_model_init(struct api_model *m, struct strata_errmsg *em);

struct api_session {
    const struct api_model *model;
    struct gen_job *job;
    struct detok detok;
    struct api_stop stop;
    struct buf text; /* characters of the current token */
    struct api_usage usage;
    const char *finish; /* NULL while running, then "stop" or "length" */
};

/* id names the request in logs. Fails with a problem that fits an HTTP answer. */
strata_err api_session_new(const struct api_model *m, const struct api_request *r, const char *id,
                           struct api_session **out, struct api_problem *p);
void api_session_free(struct api_session *s);

/*
 * Waits until deadline_ns for one token, and appends the text that became certain (maybe none) to out.
 * STRATA_ETIMEOUT leaves the session as it was and *p untouched; any other error ends it.
 */
strata_err api_session_step(struct api_session *s, uint64_t deadline_ns, struct buf *out, struct api_problem *p);

#endif
