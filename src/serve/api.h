/*
 * The OpenAI-compatible HTTP API over a struct gen.
 *
 * Life cycle: api_start opens the port and serves from threads of its own, one per connection; api_stop refuses new
 * connections, ends running answers, and joins every thread. All that api_options points to is borrowed and must
 * outlive api_stop. Logs carry a request id, sizes and times, never a prompt, an answer or a key.
 */
#ifndef API_H
#define API_H

#include "base/log.h"
#include "serve/gen.h"
#include "text/chat.h"
#include "text/vocab.h"

struct api_options {
    const char *host;     /* address to listen on; NULL: 127.0.0.1 */
    uint16_t port;        /* 0: any free one, see api_port */
    const char *model_id; /* the name that /v1/models gives */
    const struct vocab *vocab;
    const struct chat_template *chat; /* NULL: /v1/chat/completions answers that the model has no template */
    const char *bos_text;             /* for the template; NULL counts as "" */
    const char *eos_text;
    struct gen *gen;
    const char *api_key;      /* NULL: anyone may ask */
    const struct log *log;    /* NULL: silent */
    uint32_t max_connections; /* 0: 128; see api_watch_make_room for more */
    /* Seconds; 0 takes the default in brackets. A client that is slower is cut off. */
    uint32_t header_timeout_s; /* from the connection's start to the end of the headers [20] */
    uint32_t body_timeout_s;   /* from there to the end of the body [60] */
    uint32_t idle_timeout_s;   /* between two requests of a connection [60] */
    uint32_t send_timeout_s;   /* for taking one piece of an answer [30] */
};

struct api;

/* EBUSY: the port is in use; EINVAL: the host is no address of this machine, or an option is missing. */
strata_err api_start(const struct api_options *opts, struct api **out, struct strata_errmsg *em);
/* The port that is really listened on. */
uint16_t api_port(const struct api *api);
/* Stops and frees; takes at most a few seconds while answers end. NULL is allowed. */
void api_stop(struct api *api);

#endif
