/*
 * Generation as the HTTP API sees it: submit a prompt, take tokens as they come, cancel.
 *
 * An interface with two implementations: the chain of stages (serve/chain.c), and a scripted one in the tests.
 * All functions are thread-safe. Several requests may run at once, and more may be queued.
 */
#ifndef GEN_H
#define GEN_H

#include "base/err.h"
#include "decode/sampler.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gen_request {
    const char *id;        /* request id for logs, at most 63 bytes; copied */
    const int32_t *prompt; /* at least one token; copied */
    size_t n_prompt;
    uint32_t max_tokens; /* at least 1 */
    struct sampler_params sampling;
    const int32_t *stop_ids; /* tokens that end generation (the vocabulary's end-of-generation set); copied */
    size_t n_stop_ids;
};

enum gen_event_kind {
    GEN_TOKEN, /* one token; the last one may be an end-of-generation token, which is not text */
    GEN_DONE   /* no more: finish tells why */
};
enum gen_finish { GEN_FINISH_STOP, GEN_FINISH_LENGTH };

struct gen_event {
    enum gen_event_kind kind;
    int32_t token;
    enum gen_finish finish;
    uint32_t n_cached; /* GEN_DONE: tokens of the prompt that the prefix cache saved */
};

struct gen_job;
struct gen;

struct gen_ops {
    /* Fails at once with EPEER when no chain stands, ELIMIT when the prompt and one token do not fit the context or the
     * queue is full. */
    strata_err (*submit)(struct gen *g, const struct gen_request *req, struct gen_job **out, struct strata_errmsg *em);
    /* Waits until deadline_ns (clock_now_ns) for the next event. ETIMEOUT leaves the job as it was; any other error
     * (EPEER: a stage was lost) ends it. */
    strata_err (*next)(struct gen *g, struct gen_job *job, uint64_t deadline_ns, struct gen_event *out,
                       struct strata_errmsg *em);
    /* Cancels when unfinished, and frees. NULL is allowed. */
    void (*job_free)(struct gen *g, struct gen_job *job);
    /* Context length in tokens, prompt and answer together. */
    uint32_t (*n_ctx)(struct gen *g);
    /* Whether requests can be served now; *status is a new object for /health: {"status": "ok" | "degraded", "stages":
     * [...]}. */
    bool (*health)(struct gen *g, json_t **status);
};

/* Implementations put this first in their own struct. */
struct gen {
    const struct gen_ops *ops;
};

#endif
