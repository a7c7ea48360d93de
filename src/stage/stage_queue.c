/* A ring of items under a lock. See stage_queue.h. Owns the items in it. */
#include "stage/stage_queue.h"

#include "base/clock.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { MAX_ITEMS = 1 << 20, FULL_ITEMS = 64, LOOP_MS = 1000 };
#define FULL_BYTES ((size_t)32 << 20)
#define AWAKE_NS (CLOCK_NS_PER_MS / 2)

struct stage_queue {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct stage_item *ring; /* cap is a power of two */
    size_t head, cap;
    atomic_size_t n; /* changed under the lock */
    size_t bytes;    /* payloads of rows */
    atomic_uint n_cancels;
    bool full;
    atomic_bool quit; /* set under the lock */
};

void stage_item_deinit(struct stage_item *it) {
    wire_buf_release(it->payload);
    wire_link_unref(it->link);
    free(it->assign);
    wire_msg_begin_deinit(it->begin);
    free(it->begin);
}

strata_err stage_queue_new(struct stage_queue **out, struct strata_errmsg *em) {
    struct stage_queue *q = calloc(1, sizeof *q);
    if (!q) return err_nomem(em, "the stage's queue");
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->work, NULL);
    *out = q;
    return STRATA_OK;
}

static struct stage_item *at(struct stage_queue *q, size_t i) {
    return &q->ring[(q->head + i) & (q->cap - 1)];
}

static void clear(struct stage_queue *q) {
    for (size_t i = 0; i < q->n; i++) stage_item_deinit(at(q, i));
    q->n = q->head = q->bytes = 0;
    atomic_store(&q->n_cancels, 0);
    q->full = false;
}

void stage_queue_free(struct stage_queue *q) {
    if (!q) return;
    clear(q);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->work);
    free(q->ring);
    free(q);
}

static bool grow(struct stage_queue *q) {
    size_t cap = q->cap ? q->cap * 2 : 64;
    if (cap > MAX_ITEMS) return false;
    struct stage_item *ring = malloc(cap * sizeof *ring);
    if (!ring) return false;
    for (size_t i = 0; i < q->n; i++) ring[i] = *at(q, i);
    free(q->ring);
    q->ring = ring;
    q->cap = cap;
    q->head = 0;
    return true;
}

static size_t row_bytes(const struct stage_item *it) {
    bool rows = it->kind == STAGE_ITEM_TOKENS || it->kind == STAGE_ITEM_HIDDEN;
    return rows && it->payload ? it->payload->len : 0;
}

strata_err stage_queue_push(struct stage_queue *q, struct stage_item *it, bool *full, struct strata_errmsg *em) {
    pthread_mutex_lock(&q->lock);
    bool ok = q->n < q->cap || grow(q);
    if (ok) {
        q->bytes += row_bytes(it);
        if (it->kind == STAGE_ITEM_CANCEL) atomic_fetch_add(&q->n_cancels, 1);
        *at(q, q->n++) = *it;
        if (full) {
            q->full = q->full || q->n > FULL_ITEMS || q->bytes > FULL_BYTES;
            *full = q->full;
        }
    }
    pthread_mutex_unlock(&q->lock);
    /* Not under the lock: those who wake want it at once, and would go back to sleep. */
    if (ok) {
        pthread_cond_broadcast(&q->work);
        return STRATA_OK;
    }
    stage_item_deinit(it);
    return err_nomem(em, "the stage's queue");
}

bool stage_queue_pop(struct stage_queue *q, struct stage_item *out, bool *room) {
    pthread_mutex_lock(&q->lock);
    bool any = q->n > 0;
    *room = false;
    if (any) {
        *out = *at(q, 0);
        q->head = (q->head + 1) & (q->cap - 1);
        q->n--;
        q->bytes -= row_bytes(out);
        if (out->kind == STAGE_ITEM_CANCEL) atomic_fetch_sub(&q->n_cancels, 1);
        *room = q->full && q->n <= FULL_ITEMS / 2 && q->bytes <= FULL_BYTES / 2;
        if (*room) q->full = false;
    }
    pthread_mutex_unlock(&q->lock);
    return any;
}

static bool is_idle(const struct stage_queue *q) {
    return q->n == 0 && !q->quit;
}

/*
 * A processor without work is halted, and in a virtual machine it takes a tenth of a millisecond to come back: what
 * a hand-over to another stage on the same processors takes in all. So a thread that has nothing to do lets
 * others have its processor for longer than that before it sleeps.
 */
static void stay_awake(const struct stage_queue *q, uint64_t begin, struct wire_loop *loop) {
    while (is_idle(q) && clock_now_ns() - begin < AWAKE_NS) {
        if (loop) wire_loop_turn(loop, 0);
        sched_yield();
    }
}

/* Items come out of the loop: who waits for them runs it, and is woken by the frame itself. Not for ever, because the
 * loop's own thread has to look now and then whether we are still here. */
static void wait_in_loop(struct stage_queue *q, struct wire_loop *loop) {
    uint64_t begin = clock_now_ns();
    wire_loop_take(loop);
    stay_awake(q, begin, loop);
    while (is_idle(q) && clock_now_ns() - begin < LOOP_MS * CLOCK_NS_PER_MS) wire_loop_turn(loop, LOOP_MS);
    wire_loop_give(loop, !is_idle(q));
}

void stage_queue_wait(struct stage_queue *q, struct wire_loop *loop) {
    if (loop)
        wait_in_loop(q, loop);
    else
        stay_awake(q, clock_now_ns(), NULL);
    pthread_mutex_lock(&q->lock);
    while (is_idle(q)) pthread_cond_wait(&q->work, &q->lock);
    pthread_mutex_unlock(&q->lock);
}

void stage_queue_quit(struct stage_queue *q) {
    pthread_mutex_lock(&q->lock);
    q->quit = true;
    pthread_mutex_unlock(&q->lock);
    pthread_cond_broadcast(&q->work);
}

bool stage_queue_quitting(struct stage_queue *q) {
    pthread_mutex_lock(&q->lock);
    bool quit = q->quit;
    pthread_mutex_unlock(&q->lock);
    return quit;
}

void stage_queue_clear(struct stage_queue *q) {
    pthread_mutex_lock(&q->lock);
    clear(q);
    pthread_mutex_unlock(&q->lock);
}

bool stage_queue_cancels(struct stage_queue *q, uint32_t seq) {
    bool found = false;
    if (atomic_load(&q->n_cancels) == 0) return false;
    pthread_mutex_lock(&q->lock);
    for (size_t i = 0; i < q->n && !found; i++)
        found = at(q, i)->kind == STAGE_ITEM_CANCEL && at(q, i)->frame.seq == seq;
    pthread_mutex_unlock(&q->lock);
    return found;
}
