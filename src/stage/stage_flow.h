/*
 * The order in which a stage accepts the frames of requests: a state machine without I/O.
 *
 * A request is BEGIN, which gives it a slot, then rows that continue its sequence without a gap: at the first stage the
 * tokens of the prompt in pieces, elsewhere spans of a batch, of which the one that ends the prompt, and every one
 * after it, is to be sampled. At the first stage of several, decode steps are started by the token that comes back from
 * the last stage. seq grows strictly from BEGIN to BEGIN; what belongs to a request that is over is dropped silently,
 * because it may have been on its way; anything else that is out of order is the sender's fault.
 */
#ifndef STAGE_FLOW_H
#define STAGE_FLOW_H

#include "wire/wire_msg.h"
#include "wire/wire_rows.h"

#include <stdbool.h>
#include <stdint.h>

/* Where a frame came from. */
enum stage_source { STAGE_FROM_COORDINATOR, STAGE_FROM_NEIGHBOUR };

enum stage_verdict {
    STAGE_TAKE, /* process it */
    STAGE_DROP, /* ignore it */
    STAGE_DONE  /* stage_flow_token only: the request has ended with it */
};

/* Requests whose CANCEL overtook their BEGIN; more than a coordinator that keeps to its slots can have. */
enum { STAGE_FLOW_EARLY = 256 };

struct stage_flow {
    /* Fixed for a session. */
    uint32_t index, count;
    uint32_t n_ctx, n_batch, n_vocab, n_seq;
    /* The requests. */
    uint32_t last_seq; /* of the latest BEGIN; 0 before the first */
    struct {
        uint32_t seq; /* 0: the slot is free */
        uint32_t n_prompt;
        uint32_t next_pos; /* position of the next row */
        bool ended;        /* its FINAL token has passed */
    } slot[WIRE_MAX_SPANS];
    uint32_t early[STAGE_FLOW_EARLY]; /* cancelled before they began; a ring */
    uint32_t n_early;
};

/* Whether a stage in this place takes frames of this type from there at all. EPEER when not. */
strata_err stage_flow_source(const struct stage_flow *s, enum stage_source from, uint8_t type,
                             struct strata_errmsg *em);
/* A slot that another request holds is taken from it: its CANCEL, or its end, is still on its way. */
strata_err stage_flow_begin(struct stage_flow *s, uint32_t seq, const struct wire_msg_begin *m, enum stage_verdict *v,
                            struct strata_errmsg *em);
/* TOKENS at the first stage: a piece of the prompt. */
strata_err stage_flow_prompt(struct stage_flow *s, const struct wire_frame *f, const int32_t *ids,
                             enum stage_verdict *v, struct strata_errmsg *em);
/* One span of HIDDEN. */
strata_err stage_flow_span(struct stage_flow *s, const struct wire_span *span, enum stage_verdict *v,
                           struct strata_errmsg *em);
/* One token of TOKEN at the first stage. */
strata_err stage_flow_token(struct stage_flow *s, const struct wire_token *t, enum stage_verdict *v,
                            struct strata_errmsg *em);
/* Request seq is over, begun or not. */
void stage_flow_cancel(struct stage_flow *s, uint32_t seq);

#endif
