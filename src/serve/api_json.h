/*
 * What the API answers: JSON objects in OpenAI's shapes, and SSE frames. No I/O.
 *
 * Each function appends one document to out, which the caller owns; a failure leaves a part of it there.
 */
#ifndef API_JSON_H
#define API_JSON_H

#include "base/buf.h"
#include "serve/api_request.h"

#include <stdbool.h>
#include <stdint.h>

/* What every object of one answer has in common. Views. */
struct api_answer {
    enum api_endpoint endpoint;
    const char *id; /* "chatcmpl-..." or "cmpl-..." */
    const char *model;
    int64_t created;  /* seconds since 1970 */
    bool usage_field; /* chunks carry "usage": null, as they do when usage is asked for */
};

struct api_usage {
    uint32_t prompt;
    uint32_t completion;
    uint32_t cached; /* of the prompt: not computed, because the prefix cache had them */
};

/* A random id, prefix + 24 letters and digits, into out. */
strata_err api_json_id(const char *prefix, char *out, size_t cap, struct strata_errmsg *em);

/* {"error": {"message", "type", "param", "code"}} */
strata_err api_json_error(const struct api_problem *p, struct buf *out, struct strata_errmsg *em);
/* One model, or with `list` a list of one. */
strata_err api_json_model(const char *model, int64_t created, bool list, struct buf *out, struct strata_errmsg *em);
/* A whole answer. text is UTF-8. */
strata_err api_json_answer(const struct api_answer *a, const char *text, size_t len, const char *finish,
                           const struct api_usage *usage, struct buf *out, struct strata_errmsg *em);

/* SSE events of a streamed answer: `data: ...` and an empty line. */
strata_err api_json_chunk_role(const struct api_answer *a, struct buf *out, struct strata_errmsg *em);
strata_err api_json_chunk_text(const struct api_answer *a, const char *text, size_t len, struct buf *out,
                               struct strata_errmsg *em);
strata_err api_json_chunk_finish(const struct api_answer *a, const char *finish, struct buf *out,
                                 struct strata_errmsg *em);
strata_err api_json_chunk_usage(const struct api_answer *a, const struct api_usage *usage, struct buf *out,
                                struct strata_errmsg *em);
strata_err api_json_chunk_error(const struct api_problem *p, struct buf *out, struct strata_errmsg *em);

#endif
