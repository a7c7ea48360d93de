/*
 * The requests that a stage works on, one in each slot, and what the first and the last stage need to know of them.
 * Used by the compute thread alone.
 */
#ifndef STAGE_REQUESTS_H
#define STAGE_REQUESTS_H

#include "decode/sampler.h"
#include "wire/wire_msg.h"
#include "wire/wire_rows.h"

#include <stdbool.h>

struct stage_request {
    uint32_t seq; /* 0: the slot is free */
    uint32_t slot;
    struct wire_msg_begin begin;
    uint32_t pos;         /* of the next row to be computed */
    uint32_t n_kept;      /* blocks of the prefix cache that need not be kept any more: they are, or came from there */
    uint32_t n_generated; /* last stage */
    struct sampler *sampler; /* last stage */
    /* First stage: */
    int32_t *prompt; /* room for all of it; what came so far ends at n_came */
    uint32_t n_came;
    int32_t step; /* the token at pos, when has_step */
    bool has_step;
    bool over;       /* its last token came */
    uint64_t served; /* the turn of its latest batch */
    /* For the log: */
    uint32_t runs;
    uint64_t begun_ns, compute_ns;
};

struct stage_requests {
    struct stage_request slot[WIRE_MAX_SPANS];
    uint32_t n_slots;
    bool first, last; /* of the chain */
    uint32_t n_vocab, n_ctx;
};

/* Starts a request in its slot, which must be free. Takes over the arrays of *begin, on failure too. */
strata_err stage_requests_begin(struct stage_requests *rs, uint32_t seq, struct wire_msg_begin *begin,
                                struct stage_request **out, struct strata_errmsg *em);
/* Frees the slot. */
void stage_requests_end(struct stage_request *r);
void stage_requests_end_all(struct stage_requests *rs);
/* NULL when the request is over. */
struct stage_request *stage_requests_find(struct stage_requests *rs, uint32_t seq);

/* First stage: more of the prompt. */
void stage_requests_add_prompt(struct stage_request *r, uint32_t pos, const int32_t *ids, uint32_t n);
/* First stage: whether the request has rows to be computed; decoding or not. */
bool stage_requests_ready(const struct stage_request *r);
bool stage_requests_decoding(const struct stage_request *r);
/* First stage: batches whose tokens have not come back from the last stage. */
uint32_t stage_requests_in_flight(const struct stage_requests *rs);

/* Last stage: samples after the row at pos - 1. */
strata_err stage_requests_pick(struct stage_requests *rs, struct stage_request *r, const float *logits,
                               struct wire_token *out, struct strata_errmsg *em);

#endif
