/*
 * The order in which a stage accepts the frames of requests: a state machine without I/O.
 *
 * A request is BEGIN, then rows that continue the sequence without a gap: the prompt in chunks of at most n_batch rows,
 * the last of them marked SAMPLE, then one row at a time. At the first stage of several, decode steps are started by
 * the TOKEN that comes back from the last stage. seq grows strictly; what belongs to an older or a cancelled request is
 * dropped silently, because it may have been on its way; anything else that is out of order is the sender's fault.
 */
#ifndef STAGE_FLOW_H
#define STAGE_FLOW_H

#include "wire/wire_frame.h"

#include <stdbool.h>
#include <stdint.h>

/* Where a frame came from. */
enum stage_source { STAGE_FROM_COORDINATOR, STAGE_FROM_NEIGHBOUR };

enum stage_verdict {
    STAGE_TAKE, /* process it */
    STAGE_DROP, /* ignore it */
    STAGE_DONE  /* TOKEN only: the request has ended with it */
};

struct stage_flow {
    /* Fixed for a session. */
    uint32_t index, count;
    uint32_t n_ctx, n_batch, n_vocab;
    /* The request. */
    uint32_t seq;       /* of the latest BEGIN; 0 before the first */
    uint32_t cancelled; /* this request and all before it are over */
    uint32_t n_prompt;
    uint32_t next_pos; /* position of the next row */
    bool ended;        /* the FINAL token of seq has passed */
};

/* Whether a stage in this place takes frames of this type from there at all. EPEER when not. */
strata_err stage_flow_source(const struct stage_flow *s, enum stage_source from, uint8_t type,
                             struct strata_errmsg *em);
strata_err stage_flow_begin(struct stage_flow *s, uint32_t seq, uint32_t n_prompt, enum stage_verdict *v,
                            struct strata_errmsg *em);
/* TOKENS (with its ids) or HIDDEN (ids NULL). */
strata_err stage_flow_rows(struct stage_flow *s, const struct wire_frame *f, const int32_t *ids, enum stage_verdict *v,
                           struct strata_errmsg *em);
/* TOKEN at the first stage. */
strata_err stage_flow_token(struct stage_flow *s, const struct wire_frame *f, int32_t id, enum stage_verdict *v,
                            struct strata_errmsg *em);
void stage_flow_cancel(struct stage_flow *s, uint32_t seq);

#endif
