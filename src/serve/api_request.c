/*
 * Request bodies: bounded parsing, and one check per field. See api_request.h.
 *
 * Refuses bodies whose values would take much more memory than their text, before they are parsed.
 */
#include "serve/api_request.h"

#include "base/jsonx.h"

#include <float.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

strata_err api_problem_set(struct api_problem *p, strata_err rc, unsigned status, const char *code, const char *param,
                           const char *fmt, ...) {
    char text[STRATA_ERRMSG_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    *p = (struct api_problem){.status = status, .code = code};
    snprintf(p->param, sizeof p->param, "%s", param ? param : "");
    return err_set(&p->em, rc, "%s", text);
}

/* A getter filled p->em; the rest of the problem follows from the field. */
static strata_err bad_field(struct api_problem *p, const char *param) {
    p->status = p->em.code == STRATA_ENOMEM ? 500 : 400;
    p->code = "invalid_value";
    p->retry_after_s = 0;
    snprintf(p->param, sizeof p->param, "%s", param);
    return p->em.code;
}

static strata_err invalid(struct api_problem *p, const char *param, const char *text) {
    return api_problem_set(p, STRATA_EFORMAT, 400, "invalid_value", param, "%s", text);
}

static strata_err no_memory(struct api_problem *p) {
    return api_problem_set(p, STRATA_ENOMEM, 500, "internal_error", NULL, "out of memory for a request");
}

/* Counts values and nesting without parsing: what stands outside of strings. */
static strata_err check_bulk(const char *data, size_t len, struct api_problem *p) {
    size_t containers = 0, commas = 0, depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = data[i];
        if (in_string) {
            if (c == '\\') i++;
            if (c == '"') in_string = false;
            continue;
        }
        if (c == '"') in_string = true;
        if (c == ',') commas++;
        if (c == '[' || c == '{') {
            containers++;
            depth++;
        }
        if ((c == ']' || c == '}') && depth) depth--;
        if (depth > API_MAX_DEPTH)
            return api_problem_set(p, STRATA_ELIMIT, 400, "invalid_json", NULL,
                                   "the request body nests values more than %d deep", API_MAX_DEPTH);
        if (containers > API_MAX_CONTAINERS || commas > API_MAX_VALUES)
            return api_problem_set(p, STRATA_ELIMIT, 400, "invalid_json", NULL,
                                   "the request body has more than %d arrays and objects, or more than %d values",
                                   API_MAX_CONTAINERS, API_MAX_VALUES);
    }
    return STRATA_OK;
}

static strata_err parse_body(const char *data, size_t len, json_t **out, struct api_problem *p) {
    size_t i = 0;
    while (i < len && strchr(" \t\r\n", data[i]) && data[i]) i++;
    if (i == len)
        return api_problem_set(p, STRATA_EFORMAT, 400, "invalid_json", NULL,
                               "the request body is empty; send a JSON object");
    strata_err rc = check_bulk(data, len, p);
    if (rc) return rc;
    json_t *root = NULL;
    struct strata_errmsg em;
    if (jsonx_parse(data, len, &root, &em))
        return api_problem_set(p, STRATA_EFORMAT, 400, "invalid_json", NULL, "the request body is %s", em.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return api_problem_set(p, STRATA_EFORMAT, 400, "invalid_json", NULL,
                               "the request body must be a JSON object, not an array");
    }
    *out = root;
    return STRATA_OK;
}

/* ---- Fields whose effect Strata does not have: only their neutral value passes. ---- */

enum neutral {
    NEUTRAL_NUMBER, /* a number equal to `number` */
    NEUTRAL_OFF,    /* false */
    NEUTRAL_EMPTY,  /* "", [] or {} */
    NEUTRAL_WORDS,  /* one of `words`, which are separated by '|' */
    NEUTRAL_TYPE    /* an object whose type is "text" */
};

struct unsupported {
    const char *name;
    enum neutral kind;
    double number;
    const char *words;
};

static const struct unsupported unsupported_fields[] = {
    {"n", NEUTRAL_NUMBER, 1, NULL},
    {"best_of", NEUTRAL_NUMBER, 1, NULL},
    {"presence_penalty", NEUTRAL_NUMBER, 0, NULL},
    {"frequency_penalty", NEUTRAL_NUMBER, 0, NULL},
    {"top_logprobs", NEUTRAL_NUMBER, 0, NULL},
    {"logprobs", NEUTRAL_OFF, 0, NULL},
    {"echo", NEUTRAL_OFF, 0, NULL},
    {"logit_bias", NEUTRAL_EMPTY, 0, NULL},
    {"tools", NEUTRAL_EMPTY, 0, NULL},
    {"functions", NEUTRAL_EMPTY, 0, NULL},
    {"suffix", NEUTRAL_EMPTY, 0, NULL},
    {"grammar", NEUTRAL_EMPTY, 0, NULL},
    {"json_schema", NEUTRAL_EMPTY, 0, NULL},
    {"audio", NEUTRAL_EMPTY, 0, NULL},
    {"prediction", NEUTRAL_EMPTY, 0, NULL},
    {"web_search_options", NEUTRAL_EMPTY, 0, NULL},
    {"tool_choice", NEUTRAL_WORDS, 0, "none|auto"},
    {"function_call", NEUTRAL_WORDS, 0, "none|auto"},
    {"response_format", NEUTRAL_TYPE, 0, NULL},
};

static bool one_of(const char *word, const char *words) {
    size_t len = strlen(word);
    for (const char *w = words; *w;) {
        size_t n = strcspn(w, "|");
        if (n == len && memcmp(w, word, n) == 0) return true;
        w += n + (w[n] == '|');
    }
    return false;
}

static bool is_empty(const json_t *v) {
    if (json_is_string(v)) return json_string_length(v) == 0;
    if (json_is_array(v)) return json_array_size(v) == 0;
    return json_is_object(v) && json_object_size(v) == 0;
}

static bool is_neutral(const json_t *v, const struct unsupported *f) {
    switch (f->kind) {
    case NEUTRAL_NUMBER: {
        double n = json_number_value(v);
        return json_is_number(v) && n >= f->number && n <= f->number;
    }
    case NEUTRAL_OFF: return json_is_false(v);
    case NEUTRAL_EMPTY: return is_empty(v);
    case NEUTRAL_WORDS: return json_is_string(v) && one_of(json_string_value(v), f->words);
    case NEUTRAL_TYPE: {
        const char *type = json_string_value(json_object_get(v, "type"));
        return type && strcmp(type, "text") == 0;
    }
    }
    return false;
}

static strata_err check_unsupported(const json_t *root, struct api_problem *p) {
    for (size_t i = 0; i < sizeof unsupported_fields / sizeof unsupported_fields[0]; i++) {
        const struct unsupported *f = &unsupported_fields[i];
        const json_t *v = json_object_get(root, f->name);
        if (!v || json_is_null(v) || is_neutral(v, f)) continue;
        double number;
        if (f->kind == NEUTRAL_NUMBER && jsonx_get_f64(root, "", f->name, false, -DBL_MAX, DBL_MAX, &number, &p->em))
            return bad_field(p, f->name);
        if (f->kind == NEUTRAL_NUMBER)
            return api_problem_set(p, STRATA_EUNSUPPORTED, 400, "unsupported_parameter", f->name,
                                   "%s is not supported yet, except as %g; leave it out", f->name, f->number);
        return api_problem_set(p, STRATA_EUNSUPPORTED, 400, "unsupported_parameter", f->name,
                               "%s is not supported yet; leave it out", f->name);
    }
    return STRATA_OK;
}

/* ---- Messages ---- */

/* Joins text parts; other kinds of part are refused by name. The result is a new string. */
static strata_err join_parts(const json_t *parts, const char *where, json_t **out, struct api_problem *p) {
    struct buf text;
    buf_init(&text, API_MAX_BODY);
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < json_array_size(parts) && !rc; i++) {
        const json_t *part = json_array_get(parts, i);
        char here[API_PARAM_MAX];
        snprintf(here, sizeof here, "%s.content[%zu]", where, i);
        const char *type = NULL, *s = NULL;
        if (!json_is_object(part)) {
            rc = api_problem_set(p, STRATA_EFORMAT, 400, "invalid_value", here, "%s must be an object", here);
        } else if (jsonx_get_str(part, here, "type", true, &type, &p->em)) {
            rc = bad_field(p, here);
        } else if (strcmp(type, "text") != 0) {
            rc = api_problem_set(p, STRATA_EUNSUPPORTED, 400, "unsupported_parameter", here,
                                 "%s has type \"%.40s\"; only text parts are supported", here, type);
        } else if (jsonx_get_str(part, here, "text", true, &s, &p->em)) {
            rc = bad_field(p, here);
        } else if ((i && buf_append_str(&text, "\n", &p->em)) || buf_append_str(&text, s, &p->em)) {
            rc = bad_field(p, here);
        }
    }
    if (!rc) {
        *out = json_stringn(buf_cstr(&text), text.len);
        if (!*out) rc = no_memory(p);
    }
    buf_deinit(&text);
    return rc;
}

/* The content of a message as a new string. An assistant's null content is an empty turn; nobody else may leave it out.
 */
static strata_err read_content(const json_t *msg, const char *where, bool assistant, json_t **out,
                               struct api_problem *p) {
    json_t *v = json_object_get(msg, "content");
    if (json_is_array(v)) return join_parts(v, where, out, p);
    const char *text = "";
    if (jsonx_get_str(msg, where, "content", !assistant, &text, &p->em)) return bad_field(p, where);
    *out = json_string(text);
    return *out ? STRATA_OK : no_memory(p);
}

static strata_err read_role(const json_t *msg, const char *where, const char **role, struct api_problem *p) {
    if (jsonx_get_str(msg, where, "role", true, role, &p->em)) return bad_field(p, where);
    if (strcmp(*role, "developer") == 0) *role = "system";
    if (!one_of(*role, "system|user|assistant|tool"))
        return api_problem_set(p, STRATA_EFORMAT, 400, "invalid_value", where,
                               "%s.role is \"%.40s\"; it must be system, developer, user, assistant or tool", where,
                               *role);
    return STRATA_OK;
}

/* Copies an optional string field that templates may use. */
static strata_err copy_optional(const json_t *msg, const char *where, const char *key, json_t *to,
                                struct api_problem *p) {
    const char *s = NULL;
    if (jsonx_get_str(msg, where, key, false, &s, &p->em)) return bad_field(p, where);
    if (s && json_object_set_new(to, key, json_string(s)) != 0) return no_memory(p);
    return STRATA_OK;
}

static strata_err read_message(const json_t *msg, size_t index, json_t *out, struct api_problem *p) {
    char where[40];
    snprintf(where, sizeof where, "messages[%zu]", index);
    if (!json_is_object(msg))
        return api_problem_set(p, STRATA_EFORMAT, 400, "invalid_value", where, "%s must be an object", where);
    const char *role = NULL;
    json_t *content = NULL;
    strata_err rc = read_role(msg, where, &role, p);
    if (rc) return rc;
    static const char *const calls[] = {"tool_calls", "function_call"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_object_get(msg, calls[i]);
        if (v && !json_is_null(v) && !is_empty(v))
            return api_problem_set(p, STRATA_EUNSUPPORTED, 400, "unsupported_parameter", where,
                                   "%s.%s is not supported yet", where, calls[i]);
    }
    rc = read_content(msg, where, strcmp(role, "assistant") == 0, &content, p);
    if (rc) return rc;
    json_t *m = json_pack("{s:s, s:o}", "role", role, "content", content);
    if (!m) return no_memory(p);
    rc = copy_optional(msg, where, "name", m, p);
    if (!rc) rc = copy_optional(msg, where, "tool_call_id", m, p);
    if (rc) {
        json_decref(m);
        return rc;
    }
    return json_array_append_new(out, m) == 0 ? STRATA_OK : no_memory(p);
}

static strata_err read_messages(struct api_request *r, struct api_problem *p) {
    json_t *list = NULL;
    if (jsonx_get_array(r->root, "", "messages", true, &list, &p->em)) return bad_field(p, "messages");
    if (json_array_size(list) == 0) return invalid(p, "messages", "messages is empty; send at least one message");
    r->messages = json_array();
    if (!r->messages) return no_memory(p);
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < json_array_size(list) && !rc; i++)
        rc = read_message(json_array_get(list, i), i, r->messages, p);
    return rc;
}

/* ---- Prompt ---- */

static strata_err read_prompt_ids(struct api_request *r, const json_t *list, struct api_problem *p) {
    size_t n = json_array_size(list);
    r->prompt_ids = calloc(n, sizeof *r->prompt_ids);
    if (!r->prompt_ids) return no_memory(p);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
            return api_problem_set(p, STRATA_EFORMAT, 400, "invalid_value", "prompt",
                                   "prompt[%zu] is not a token id: an array of ids must hold only whole numbers of at "
                                   "least 0",
                                   i);
        r->prompt_ids[i] = (int32_t)id;
    }
    r->n_prompt_ids = n;
    return STRATA_OK;
}

static strata_err read_prompt(struct api_request *r, struct api_problem *p) {
    const json_t *v = json_object_get(r->root, "prompt");
    if (json_is_array(v)) {
        if (json_array_size(v) == 0) return invalid(p, "prompt", "prompt is empty");
        const json_t *first = json_array_get(v, 0);
        if (json_is_integer(first)) return read_prompt_ids(r, v, p);
        if (json_array_size(v) > 1)
            return api_problem_set(p, STRATA_EUNSUPPORTED, 400, "unsupported_parameter", "prompt",
                                   "prompt holds %zu prompts; send one prompt per request", json_array_size(v));
        if (json_is_array(first) && json_is_integer(json_array_get(first, 0))) return read_prompt_ids(r, first, p);
        if (!json_is_string(first))
            return invalid(p, "prompt", "prompt must be a string, an array of one string, or an array of token ids");
        v = first;
    } else if (jsonx_get_str(r->root, "", "prompt", true, &r->prompt, &p->em)) {
        return bad_field(p, "prompt");
    }
    r->prompt = json_string_value(v);
    r->prompt_len = json_string_length(v);
    return STRATA_OK;
}

/* ---- Everything else ---- */

static strata_err read_max_tokens(struct api_request *r, struct api_problem *p) {
    static const char *const names[] = {"max_tokens", "max_completion_tokens"}; /* the newer name wins */
    for (size_t i = 0; i < 2; i++) {
        uint64_t n = UINT64_MAX;
        if (jsonx_get_u64(r->root, "", names[i], false, INT64_MAX, &n, &p->em)) return bad_field(p, names[i]);
        if (n == UINT64_MAX) continue;
        if (n == 0)
            return api_problem_set(p, STRATA_EFORMAT, 400, "invalid_value", names[i], "%s is 0; it must be at least 1",
                                   names[i]);
        r->max_tokens = n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
    }
    return STRATA_OK;
}

static strata_err read_float(const struct api_request *r, const char *key, double lo, double hi, float *out,
                             struct api_problem *p) {
    double v = (double)*out;
    if (jsonx_get_f64(r->root, "", key, false, lo, hi, &v, &p->em)) return bad_field(p, key);
    *out = (float)v;
    return STRATA_OK;
}

static strata_err read_u32(const struct api_request *r, const char *key, uint32_t max, uint32_t *out,
                           struct api_problem *p) {
    uint64_t v = *out;
    if (jsonx_get_u64(r->root, "", key, false, max, &v, &p->em)) return bad_field(p, key);
    *out = (uint32_t)v;
    return STRATA_OK;
}

static strata_err read_seed(struct api_request *r, struct api_problem *p) {
    const json_t *v = json_object_get(r->root, "seed");
    if (!v || json_is_null(v)) return STRATA_OK;
    if (!json_is_integer(v)) {
        /* Only for its message: the getter would refuse negative seeds. */
        uint64_t unused;
        return jsonx_get_u64(r->root, "", "seed", false, UINT64_MAX, &unused, &p->em)
                   ? bad_field(p, "seed")
                   : invalid(p, "seed", "seed must be a whole number");
    }
    r->sampling.seed = (uint64_t)json_integer_value(v);
    r->has_seed = true;
    return STRATA_OK;
}

static strata_err read_sampling(struct api_request *r, struct api_problem *p) {
    struct sampler_params *s = &r->sampling;
    *s = (struct sampler_params){.temperature = 1, .top_p = 1, .repeat_penalty = 1, .repeat_last_n = 64};
    const json_t *k = json_object_get(r->root, "top_k");
    bool k_off = json_is_integer(k) && json_integer_value(k) == -1; /* how some clients say "off" */
    strata_err rc = read_float(r, "temperature", 0, 2, &s->temperature, p);
    if (!rc) rc = read_float(r, "top_p", 0, 1, &s->top_p, p);
    if (!rc) rc = read_float(r, "min_p", 0, 1, &s->min_p, p);
    if (!rc) rc = read_float(r, "repeat_penalty", 0.01, 100, &s->repeat_penalty, p);
    if (!rc && !k_off) rc = read_u32(r, "top_k", INT32_MAX, &s->top_k, p);
    if (!rc) rc = read_u32(r, "repeat_last_n", API_MAX_LOOK_BACK, &s->repeat_last_n, p);
    if (!rc) rc = read_seed(r, p);
    /* The sampler wants a top_p above 0; the smallest one keeps just the likeliest token, which is what 0 means. */
    if (s->top_p < 1e-6f) s->top_p = 1e-6f;
    return rc;
}

static strata_err add_stop(struct api_request *r, const json_t *v, struct api_problem *p) {
    if (!json_is_string(v)) return invalid(p, "stop", "stop must be a string or an array of strings");
    size_t len = json_string_length(v);
    if (len == 0) return invalid(p, "stop", "a stop string is empty; leave stop out, or send null");
    if (len > API_MAX_STOP_BYTES)
        return api_problem_set(p, STRATA_ELIMIT, 400, "invalid_value", "stop",
                               "a stop string has %zu bytes; at most %d are allowed", len, API_MAX_STOP_BYTES);
    if (r->n_stop == API_MAX_STOPS)
        return api_problem_set(p, STRATA_ELIMIT, 400, "invalid_value", "stop", "at most %d stop strings are allowed",
                               API_MAX_STOPS);
    r->stop[r->n_stop++] = json_string_value(v);
    return STRATA_OK;
}

static strata_err read_stop(struct api_request *r, struct api_problem *p) {
    const json_t *v = json_object_get(r->root, "stop");
    if (!v || json_is_null(v)) return STRATA_OK;
    if (!json_is_array(v)) return add_stop(r, v, p);
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < json_array_size(v) && !rc; i++) rc = add_stop(r, json_array_get(v, i), p);
    return rc;
}

static strata_err read_flags(struct api_request *r, struct api_problem *p) {
    json_t *options = NULL;
    if (jsonx_get_bool(r->root, "", "stream", false, &r->stream, &p->em)) return bad_field(p, "stream");
    if (jsonx_get_bool(r->root, "", "ignore_eos", false, &r->ignore_eos, &p->em)) return bad_field(p, "ignore_eos");
    if (jsonx_get_obj(r->root, "", "stream_options", false, &options, &p->em)) return bad_field(p, "stream_options");
    if (!options) return STRATA_OK;
    if (!r->stream) return invalid(p, "stream_options", "stream_options is allowed only when stream is true");
    if (jsonx_get_bool(options, "stream_options", "include_usage", false, &r->include_usage, &p->em))
        return bad_field(p, "stream_options");
    return STRATA_OK;
}

strata_err api_request_parse(enum api_endpoint endpoint, const char *data, size_t len, struct api_request **out,
                             struct api_problem *p) {
    struct api_request *r = calloc(1, sizeof *r);
    if (!r) return no_memory(p);
    r->endpoint = endpoint;
    r->model = "";
    *p = (struct api_problem){0};
    strata_err rc = parse_body(data, len, &r->root, p);
    if (!rc && jsonx_get_str(r->root, "", "model", false, &r->model, &p->em)) rc = bad_field(p, "model");
    if (!rc) rc = endpoint == API_CHAT ? read_messages(r, p) : read_prompt(r, p);
    if (!rc) rc = read_max_tokens(r, p);
    if (!rc) rc = read_sampling(r, p);
    if (!rc) rc = read_stop(r, p);
    if (!rc) rc = read_flags(r, p);
    if (!rc) rc = check_unsupported(r->root, p);
    if (!rc) {
        *out = r;
        r = NULL;
    }
    api_request_free(r);
    return rc;
}

void api_request_free(struct api_request *r) {
    if (!r) return;
    json_decref(r->root);
    json_decref(r->messages);
    free(r->prompt_ids);
    free(r);
}
