/*
 * One event loop on a thread of its own, and the payload buffers that its links share.
 *
 * Life cycle: wire_loop_start, then work is handed over with wire_loop_post (any thread, never allocates, never fails)
 * or wire_loop_call (any other thread, waits until it has run). Before wire_loop_stop the owner closes its own handles
 * on the loop thread; wire_loop_stop then runs the loop until nothing is open, and joins the thread.
 */
#ifndef WIRE_LOOP_H
#define WIRE_LOOP_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

/*
 * A thread that waits for something that comes with an event can run the loop itself meanwhile: then it is the one that
 * the event wakes. "Loop thread" means, here and elsewhere, whoever runs the loop: one at a time.
 */
struct wire_loop;

/* Embedded in the object that it works for. Posting a task that waits to run already does nothing more. */
struct wire_task {
    void (*fn)(void *ctx);
    void *ctx;
    struct wire_task *next; /* the loop's own use, as is the next field */
    bool queued;
};

strata_err wire_loop_start(struct wire_loop **out, struct strata_errmsg *em);
void wire_loop_stop(struct wire_loop *loop);
uv_loop_t *wire_loop_uv(struct wire_loop *loop);
/* The task must stay alive until it has run, or until wire_loop_stop returns. */
void wire_loop_post(struct wire_loop *loop, struct wire_task *task);
void wire_loop_call(struct wire_loop *loop, void (*fn)(void *ctx), void *ctx);

/* A thread other than the loop's own, and not from a callback: from wire_loop_take on it alone runs the loop, by calls
 * of wire_loop_turn, each of which waits for events for up to max_ms and then runs what is ready. */
void wire_loop_take(struct wire_loop *loop);
void wire_loop_turn(struct wire_loop *loop, uint32_t max_ms);
/* Ends that. `returns`: this thread will be back, most likely within 20 ms; until then events wait (tasks do not), and
 * when it is later, the loop's own thread takes over. */
void wire_loop_give(struct wire_loop *loop, bool returns);
/* Makes a wire_loop_turn that waits, or the next one, return. Any thread. */
void wire_loop_wake(struct wire_loop *loop);

/* A payload buffer. Released ones are kept for the next frame, so that a steady stream allocates nothing. */
struct wire_buf {
    uint8_t *data;
    size_t len; /* bytes of payload */
    size_t cap;
    struct wire_loop *home;
    struct wire_buf *next;
};

/* NULL when memory is short. Any thread. */
struct wire_buf *wire_buf_get(struct wire_loop *loop, size_t len);
/* Gives the buffer back; NULL is allowed. Any thread, before wire_loop_stop. */
void wire_buf_release(struct wire_buf *b);

#endif
