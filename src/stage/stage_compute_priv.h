/* The inside of the compute thread, shared by stage_compute.c (thread, session) and stage_run.c (batches). */
#ifndef STAGE_COMPUTE_PRIV_H
#define STAGE_COMPUTE_PRIV_H

#include "stage/stage_blocks.h"
#include "stage/stage_compute.h"
#include "stage/stage_queue.h"
#include "stage/stage_requests.h"

#include <pthread.h>
#include <stdatomic.h>

/*
 * What the last batch gave: it goes out when the thread looks for more work. `data` has room for a full table, then the
 * rows of a full batch; the table stands right before the rows. Tokens are a table alone, ready to be sent.
 */
struct stage_output {
    uint8_t *data;
    uint32_t n_spans, n_rows, n_tokens;
    struct wire_span span[WIRE_MAX_SPANS];
    struct wire_token token[WIRE_MAX_SPANS];
    atomic_bool untold; /* the coordinator has not been sent the tokens */
    strata_err told;    /* how that went */
    struct strata_errmsg why;
};

struct stage_compute {
    struct stage_backend backend;
    struct wire_loop *loop; /* borrowed */
    struct stage_compute_events events;
    const struct log *log;
    pthread_t thread;
    struct stage_queue *queue;
    atomic_ullong generation; /* of the session that is wanted; 0: none. Set by the loop thread. */
    pthread_mutex_t lock;     /* of `loaded` */
    struct {
        uint64_t generation;
        strata_err rc;
        struct stage_unit_info info;
        struct strata_errmsg em;
    } loaded;

    /* The compute thread's own: the session and its requests. */
    uint64_t current;
    struct wire_msg_assign assign;
    struct wire_link *control, *next;
    void *unit;
    struct stage_unit_info info;
    struct stage_blocks *blocks;
    struct stage_requests requests;
    struct stage_output out;
    uint64_t turn; /* counts batches: who was served when */
    pthread_t self;
};

/* stage_run.c */
/* The request's fault: the coordinator is told, and it is over here. */
void stage_run_fault(struct stage_compute *c, uint32_t seq, const struct strata_errmsg *em);
void stage_run_end(struct stage_compute *c, struct stage_request *r);
void stage_run_begin(struct stage_compute *c, struct stage_item *it);
void stage_run_tokens(struct stage_compute *c, const struct stage_item *it);
void stage_run_hidden(struct stage_compute *c, const struct stage_item *it);
void stage_run_steps(struct stage_compute *c, const struct stage_item *it);
/* First stage: whether any request has rows to be computed; and computes the next batch of them. */
bool stage_run_ready(const struct stage_compute *c);
void stage_run_next(struct stage_compute *c);
/* Sends what the last batch gave, if that was not done yet. */
void stage_run_deliver(struct stage_compute *c);
/* The same in three steps: to the next stage; to the coordinator, from any thread of the team, and whoever comes first
 * does it; and when both are over, ends the requests whose tokens could not be sent. */
void stage_run_forward(struct stage_compute *c);
void stage_run_tell(struct stage_compute *c);
void stage_run_settle(struct stage_compute *c);

#endif
