/*
 * The queue between a stage's loop thread and its compute thread.
 *
 * Items are put in by the loop thread and taken by the compute thread, in order. The queue tells when it is full (rows
 * wait that take long to compute), and when there is room again, so that the sender can be held back; it never refuses
 * an item but for want of memory.
 */
#ifndef STAGE_QUEUE_H
#define STAGE_QUEUE_H

#include "wire/wire_link.h"
#include "wire/wire_msg.h"

#include <stdbool.h>

enum stage_item_kind {
    STAGE_ITEM_LOAD,
    STAGE_ITEM_UNLOAD,
    STAGE_ITEM_CONNECT,
    STAGE_ITEM_BEGIN,
    STAGE_ITEM_TOKENS, /* a piece of a prompt */
    STAGE_ITEM_HIDDEN, /* a batch */
    STAGE_ITEM_STEPS,  /* sampled tokens */
    STAGE_ITEM_CANCEL,
    STAGE_ITEM_FORGET
};

/* What an item owns is freed by stage_item_deinit. */
struct stage_item {
    enum stage_item_kind kind;
    uint64_t generation;
    struct wire_frame frame;
    struct wire_buf *payload;       /* BEGIN, TOKENS, HIDDEN, STEPS */
    struct wire_link *link;         /* LOAD: control; CONNECT: next. A reference. */
    struct wire_msg_assign *assign; /* LOAD */
    struct wire_msg_begin *begin;   /* BEGIN */
    struct wire_msg_forget forget;  /* FORGET */
};
void stage_item_deinit(struct stage_item *it);

struct stage_queue;

strata_err stage_queue_new(struct stage_queue **out, struct strata_errmsg *em);
/* Frees what is still in it. NULL is allowed. */
void stage_queue_free(struct stage_queue *q);

/* Takes over what the item owns, on failure (ENOMEM) too. *full, when not NULL, tells whether the queue is full now. */
strata_err stage_queue_push(struct stage_queue *q, struct stage_item *it, bool *full, struct strata_errmsg *em);
/* The next item, if there is one. *room: there is room again after a push had told that the queue is full. */
bool stage_queue_pop(struct stage_queue *q, struct stage_item *out, bool *room);
/* Sleeps until there is an item, or stage_queue_quit was called. Several threads may; one of them can run the loop that
 * the items come from meanwhile (NULL: none). */
void stage_queue_wait(struct stage_queue *q, struct wire_loop *loop);
/* Ends all waits, now and later. Who waits in a loop needs wire_loop_wake after it. */
void stage_queue_quit(struct stage_queue *q);
bool stage_queue_quitting(struct stage_queue *q);
/* Throws away all items. */
void stage_queue_clear(struct stage_queue *q);
/* Whether a CANCEL of this request waits in the queue: then what stands before it is not worth computing. */
bool stage_queue_cancels(struct stage_queue *q, uint32_t seq);

#endif
