/* Response objects. See api_json.h. */
#include "serve/api_json.h"

#include "base/jsonx.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum { ID_RANDOM = 24 };

strata_err api_json_id(const char *prefix, char *out, size_t cap, struct strata_errmsg *em) {
    static const char digits[] = "0123456789abcdefghijklmnopqrstuv"; /* 32, so that a byte maps evenly */
    uint8_t bytes[ID_RANDOM];
    size_t n = strlen(prefix);
    if (cap < n + ID_RANDOM + 1) return err_set(em, STRATA_EINTERNAL, "an id does not fit %zu bytes", cap);
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return err_set(em, STRATA_EIO, "the system gives no random numbers");
    memcpy(out, prefix, n);
    for (size_t i = 0; i < ID_RANDOM; i++) out[n + i] = digits[bytes[i] & 31];
    out[n + ID_RANDOM] = '\0';
    return STRATA_OK;
}

/* Takes the object (NULL: it could not be made) and appends it, between `before` and `after`. */
static strata_err emit(json_t *o, const char *before, const char *after, struct buf *out, struct strata_errmsg *em) {
    if (!o) return err_set(em, STRATA_EINTERNAL, "a response object could not be made");
    strata_err rc = buf_append_str(out, before, em);
    if (!rc) rc = jsonx_dump(o, false, out, em);
    if (!rc) rc = buf_append_str(out, after, em);
    json_decref(o);
    return rc;
}

static strata_err emit_event(json_t *o, struct buf *out, struct strata_errmsg *em) {
    return emit(o, "data: ", "\n\n", out, em);
}

static json_t *error_object(const struct api_problem *p) {
    /* Messages may quote foreign bytes and may have been cut inside a character. */
    json_t *message = json_string(p->em.text);
    if (!message) message = json_string("the request failed, and its message is not valid UTF-8");
    return json_pack("{s:{s:o, s:s, s:s?, s:s?}}", "error", "message", message, "type",
                     p->status >= 500 ? "server_error" : "invalid_request_error", "param",
                     p->param[0] ? p->param : NULL, "code", p->code);
}

strata_err api_json_error(const struct api_problem *p, struct buf *out, struct strata_errmsg *em) {
    return emit(error_object(p), "", "", out, em);
}

strata_err api_json_chunk_error(const struct api_problem *p, struct buf *out, struct strata_errmsg *em) {
    return emit_event(error_object(p), out, em);
}

strata_err api_json_model(const char *model, int64_t created, bool list, struct buf *out, struct strata_errmsg *em) {
    json_t *m = json_pack("{s:s, s:s, s:I, s:s}", "id", model, "object", "model", "created", (json_int_t)created,
                          "owned_by", "strata");
    if (m && list) m = json_pack("{s:s, s:[o]}", "object", "list", "data", m);
    return emit(m, "", "", out, em);
}

static json_t *usage_object(const struct api_usage *u) {
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)u->prompt, "completion_tokens",
                     (json_int_t)u->completion, "total_tokens", (json_int_t)u->prompt + (json_int_t)u->completion,
                     "prompt_tokens_details", "cached_tokens", (json_int_t)u->cached);
}

/* The outer object; takes choices. */
static json_t *answer_object(const struct api_answer *a, const char *kind, json_t *choices) {
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", a->id, "object", kind, "created", (json_int_t)a->created,
                     "model", a->model, "choices", choices);
}

strata_err api_json_answer(const struct api_answer *a, const char *text, size_t len, const char *finish,
                           const struct api_usage *usage, struct buf *out, struct strata_errmsg *em) {
    json_t *choices;
    if (a->endpoint == API_CHAT)
        choices = json_pack("[{s:i, s:{s:s, s:s%, s:n}, s:n, s:s}]", "index", 0, "message", "role", "assistant",
                            "content", text, len, "refusal", "logprobs", "finish_reason", finish);
    else
        choices =
            json_pack("[{s:i, s:s%, s:n, s:s}]", "index", 0, "text", text, len, "logprobs", "finish_reason", finish);
    json_t *o = answer_object(a, a->endpoint == API_CHAT ? "chat.completion" : "text_completion", choices);
    if (o && json_object_set_new(o, "usage", usage_object(usage)) != 0) {
        json_decref(o);
        o = NULL;
    }
    return emit(o, "", "", out, em);
}

static strata_err emit_chunk(const struct api_answer *a, json_t *choices, json_t *usage, struct buf *out,
                             struct strata_errmsg *em) {
    json_t *o = answer_object(a, a->endpoint == API_CHAT ? "chat.completion.chunk" : "text_completion", choices);
    if (!o || !a->usage_field) {
        json_decref(usage);
    } else if (json_object_set_new(o, "usage", usage) != 0) {
        json_decref(o);
        o = NULL;
    }
    return emit_event(o, out, em);
}

strata_err api_json_chunk_role(const struct api_answer *a, struct buf *out, struct strata_errmsg *em) {
    if (a->endpoint != API_CHAT) return STRATA_OK;
    json_t *choices = json_pack("[{s:i, s:{s:s, s:s}, s:n, s:n}]", "index", 0, "delta", "role", "assistant", "content",
                                "", "logprobs", "finish_reason");
    return emit_chunk(a, choices, json_null(), out, em);
}

strata_err api_json_chunk_text(const struct api_answer *a, const char *text, size_t len, struct buf *out,
                               struct strata_errmsg *em) {
    json_t *choices;
    if (a->endpoint == API_CHAT)
        choices = json_pack("[{s:i, s:{s:s%}, s:n, s:n}]", "index", 0, "delta", "content", text, len, "logprobs",
                            "finish_reason");
    else
        choices = json_pack("[{s:i, s:s%, s:n, s:n}]", "index", 0, "text", text, len, "logprobs", "finish_reason");
    return emit_chunk(a, choices, json_null(), out, em);
}

strata_err api_json_chunk_finish(const struct api_answer *a, const char *finish, struct buf *out,
                                 struct strata_errmsg *em) {
    json_t *choices;
    if (a->endpoint == API_CHAT)
        choices = json_pack("[{s:i, s:{}, s:n, s:s}]", "index", 0, "delta", "logprobs", "finish_reason", finish);
    else
        choices = json_pack("[{s:i, s:s, s:n, s:s}]", "index", 0, "text", "", "logprobs", "finish_reason", finish);
    return emit_chunk(a, choices, json_null(), out, em);
}

strata_err api_json_chunk_usage(const struct api_answer *a, const struct api_usage *usage, struct buf *out,
                                struct strata_errmsg *em) {
    return emit_chunk(a, json_array(), usage_object(usage), out, em);
}
