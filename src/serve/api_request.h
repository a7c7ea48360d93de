/*
 * What a client asks for: bytes of a request body to a checked struct, without I/O.
 *
 * Fields are read strictly: a wrong type, a value out of range, or a field whose effect Strata does not have is an
 * error that names the field. Fields that only describe the request (user, metadata, ...) and unknown ones are ignored.
 */
#ifndef API_REQUEST_H
#define API_REQUEST_H

#include "base/err.h"
#include "decode/sampler.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    API_MAX_BODY = 8 << 20,     /* bytes of a request body */
    API_MAX_STOPS = 4,          /* stop strings */
    API_MAX_STOP_BYTES = 1024,  /* bytes of one stop string */
    API_MAX_CONTAINERS = 65536, /* arrays and objects in a body: each costs far more memory than its two characters */
    API_MAX_VALUES = 1 << 20,   /* values in a body */
    API_MAX_LOOK_BACK = 8192,   /* tokens for the repeat penalty: they travel to the stages in one message */
    API_MAX_DEPTH = 64,         /* nesting of a body */
    API_PARAM_MAX = 96
};

/* An error as the client sees it. Functions that fill one return its em.code, never STRATA_OK. */
struct api_problem {
    unsigned status;           /* HTTP status */
    const char *code;          /* constant text, or NULL */
    char param[API_PARAM_MAX]; /* the field at fault, or "" */
    unsigned retry_after_s;    /* 0: no Retry-After header */
    struct strata_errmsg em;
};

/* Fills p. code and param may be NULL. Returns rc. */
strata_err api_problem_set(struct api_problem *p, strata_err rc, unsigned status, const char *code, const char *param,
                           const char *fmt, ...) __attribute__((format(printf, 6, 7)));

enum api_endpoint { API_CHAT, API_COMPLETIONS };

struct api_request {
    enum api_endpoint endpoint;
    json_t *root;       /* owned; the views below point into it */
    const char *model;  /* view; "" when not given */
    json_t *messages;   /* owned; chat: array of {"role", "content", ...} with content as one string */
    const char *prompt; /* view; completions: the text, or NULL when token ids were given */
    size_t prompt_len;
    int32_t *prompt_ids; /* owned; each at least 0, the upper bound is the session's to check */
    size_t n_prompt_ids;
    uint32_t max_tokens; /* 0: as many as the context holds */
    struct sampler_params sampling;
    bool has_seed;                   /* otherwise sampling.seed is 0 and the session draws one */
    const char *stop[API_MAX_STOPS]; /* views */
    size_t n_stop;
    bool stream;
    bool include_usage;
    bool ignore_eos;
};

strata_err api_request_parse(enum api_endpoint endpoint, const char *data, size_t len, struct api_request **out,
                             struct api_problem *p);
void api_request_free(struct api_request *r);

#endif
