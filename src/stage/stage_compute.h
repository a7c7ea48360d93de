/*
 * The compute thread of a stage: one queue of work, one engine, as many requests as there are slots.
 *
 * The loop thread puts checked frames in; the compute thread takes them in order and sends results on the session's
 * links itself. The first stage collects what its requests have ready and makes the batches (stage_batch.h); every
 * other stage computes the batches that come to it, as they are. A session is known here by its generation, a number
 * that grows: what a dropped session left in the queue is thrown away. Faults of one request go to the coordinator as
 * ERROR frames with the request's seq, and end that request alone.
 */
#ifndef STAGE_COMPUTE_H
#define STAGE_COMPUTE_H

#include "base/log.h"
#include "stage/stage_backend.h"
#include "wire/wire_link.h"

struct stage_compute;

/* Told on the compute thread; both must only hand the news to the loop. */
struct stage_compute_events {
    /* A load has ended: stage_compute_load_result tells how. */
    void (*on_load)(void *ctx);
    /* The queue is short again after stage_compute_hidden had said that it is full. */
    void (*on_room)(void *ctx);
    void *ctx;
};

/* While there is no work the thread runs the loop, which must outlive it: it is the one to whom frames bring some. */
strata_err stage_compute_start(const struct stage_backend *backend, struct wire_loop *loop,
                               const struct stage_compute_events *events, const struct log *log,
                               struct stage_compute **out, struct strata_errmsg *em);
/* Ends the thread after the work in hand. False when that takes longer than max_ms: the thread and *c then live on. */
bool stage_compute_stop(struct stage_compute *c, uint32_t max_ms);

/* All that follow are for the loop thread. */

/* Starts a session: loads its range. control is where results and faults go. */
strata_err stage_compute_load(struct stage_compute *c, uint64_t generation, const struct wire_msg_assign *assign,
                              struct wire_link *control, struct strata_errmsg *em);
/* The outcome of the latest load: its generation, and info or the reason in *em (and as the result). */
strata_err stage_compute_load_result(struct stage_compute *c, uint64_t *generation, struct stage_unit_info *info,
                                     struct strata_errmsg *em);
/* The link to the next stage (from the last stage: to the first). */
strata_err stage_compute_connect(struct stage_compute *c, uint64_t generation, struct wire_link *next,
                                 struct strata_errmsg *em);
/* Drops the session: its queued work goes, its unit is freed when the work in hand is done. */
void stage_compute_drop(struct stage_compute *c);

/* A request begins. Takes over the arrays of *begin and the payload, on failure too. */
strata_err stage_compute_begin(struct stage_compute *c, uint32_t seq, struct wire_msg_begin *begin,
                               struct wire_buf *payload, struct strata_errmsg *em);
/* A piece of a prompt, at the first stage. Takes over the payload, as the next two do. */
strata_err stage_compute_tokens(struct stage_compute *c, const struct wire_frame *f, struct wire_buf *payload,
                                struct strata_errmsg *em);
/* A batch, at every other stage. *full: hold the sender back until on_room. */
strata_err stage_compute_hidden(struct stage_compute *c, const struct wire_frame *f, struct wire_buf *payload,
                                bool *full, struct strata_errmsg *em);
/* Decode steps at the first stage. */
strata_err stage_compute_steps(struct stage_compute *c, const struct wire_frame *f, struct wire_buf *payload,
                               struct strata_errmsg *em);
/* The request is over: what is queued of it is skipped, and its memory given back. */
strata_err stage_compute_cancel(struct stage_compute *c, uint32_t seq, struct strata_errmsg *em);
strata_err stage_compute_forget(struct stage_compute *c, const struct wire_msg_forget *m, struct strata_errmsg *em);

#endif
