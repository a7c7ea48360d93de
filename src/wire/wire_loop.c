/* The loop thread and its buffer pool. See wire_loop.h. Owns the thread, the task queue and the idle buffers. */
#include "wire/wire_loop.h"

#include "base/clock.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* How long the loop's thread leaves the loop to one that has given it back: longer than such a one is usually away. */
enum { AWAY_MS = 20 };
enum { POOL_MAX_BUFFERS = 16, POOL_MAX_BYTES = 64 << 20, MIN_BUFFER = 4096 };

struct wire_loop {
    uv_loop_t uv;
    uv_async_t wake;
    pthread_t thread;
    pthread_mutex_t turn; /* held by the thread that runs the loop; taken before `lock` */
    pthread_mutex_t lock; /* what follows */
    pthread_cond_t called, due;
    struct wire_task *head, **tail;
    bool stopping;
    bool taken;          /* another thread runs the loop */
    uint64_t returns_ns; /* until then it is expected back */
    struct wire_buf *pool;
    size_t pool_count, pool_bytes;
};

static void run_tasks(uv_async_t *handle) {
    struct wire_loop *loop = handle->data;
    pthread_mutex_lock(&loop->lock);
    while (loop->head) {
        struct wire_task *task = loop->head;
        loop->head = task->next;
        if (!loop->head) loop->tail = &loop->head;
        task->queued = false;
        void (*fn)(void *) = task->fn;
        void *ctx = task->ctx;
        /* From here on the task may be posted again, or freed by its own function. */
        pthread_mutex_unlock(&loop->lock);
        fn(ctx);
        pthread_mutex_lock(&loop->lock);
    }
    bool stop = loop->stopping;
    pthread_mutex_unlock(&loop->lock);
    if (stop && !uv_is_closing((uv_handle_t *)&loop->wake)) uv_close((uv_handle_t *)&loop->wake, NULL);
}

/* libuv watches its sockets through one descriptor, so that others can wait for it. */
static void wait_ready(struct wire_loop *loop, int max_ms) {
    struct pollfd fd = {.fd = uv_backend_fd(&loop->uv), .events = POLLIN};
    poll(&fd, 1, max_ms);
}

/* Until nobody else runs the loop or is expected back soon. While somebody does, it looks again now and then: those who
 * come and go for every token shall not have to wake this thread each time. */
static void keep_away(struct wire_loop *loop) {
    pthread_mutex_lock(&loop->lock);
    for (;;) {
        uint64_t now = clock_now_ns();
        bool expected = !loop->head && !loop->stopping && now < loop->returns_ns;
        if (!loop->taken && !expected) break;
        clock_cond_wait(&loop->due, &loop->lock, loop->taken ? now + AWAY_MS * CLOCK_NS_PER_MS : loop->returns_ns);
    }
    pthread_mutex_unlock(&loop->lock);
}

static void *loop_main(void *arg) {
    struct wire_loop *loop = arg;
    bool open = true;
    while (open) {
        keep_away(loop);
        if (pthread_mutex_trylock(&loop->turn)) continue; /* taken just now */
        open = uv_run(&loop->uv, UV_RUN_NOWAIT) != 0;
        int quiet_ms = uv_backend_timeout(&loop->uv);
        pthread_mutex_unlock(&loop->turn);
        if (open) wait_ready(loop, quiet_ms);
    }
    return NULL;
}

void wire_loop_take(struct wire_loop *loop) {
    pthread_mutex_lock(&loop->lock);
    loop->taken = true;
    pthread_mutex_unlock(&loop->lock);
    pthread_mutex_lock(&loop->turn);
}

void wire_loop_turn(struct wire_loop *loop, uint32_t max_ms) {
    int quiet_ms = uv_backend_timeout(&loop->uv); /* -1: for ever, unless a socket is ready or a task comes */
    if (max_ms) wait_ready(loop, quiet_ms < 0 || (uint32_t)quiet_ms > max_ms ? (int)max_ms : quiet_ms);
    uv_run(&loop->uv, UV_RUN_NOWAIT);
}

void wire_loop_give(struct wire_loop *loop, bool returns) {
    pthread_mutex_unlock(&loop->turn);
    pthread_mutex_lock(&loop->lock);
    loop->taken = false;
    loop->returns_ns = returns ? clock_now_ns() + AWAY_MS * CLOCK_NS_PER_MS : 0;
    if (!returns || loop->head) pthread_cond_signal(&loop->due);
    pthread_mutex_unlock(&loop->lock);
}

/* Signals are for the main thread: a handler that runs here would leave it asleep. */
static int start_thread(struct wire_loop *loop) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&loop->thread, NULL, loop_main, loop);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

static void loop_free(struct wire_loop *loop) {
    pthread_mutex_destroy(&loop->turn);
    pthread_mutex_destroy(&loop->lock);
    pthread_cond_destroy(&loop->called);
    pthread_cond_destroy(&loop->due);
    free(loop);
}

strata_err wire_loop_start(struct wire_loop **out, struct strata_errmsg *em) {
    struct wire_loop *loop = calloc(1, sizeof *loop);
    if (!loop) return err_nomem(em, "an event loop");
    loop->tail = &loop->head;
    pthread_mutex_init(&loop->turn, NULL);
    pthread_mutex_init(&loop->lock, NULL);
    pthread_cond_init(&loop->called, NULL);
    clock_cond_init(&loop->due);
    int rc = uv_loop_init(&loop->uv);
    if (rc) goto fail;
    rc = uv_async_init(&loop->uv, &loop->wake, run_tasks);
    if (rc) {
        uv_loop_close(&loop->uv);
        goto fail;
    }
    loop->wake.data = loop;
    if (start_thread(loop) != 0) {
        uv_close((uv_handle_t *)&loop->wake, NULL);
        uv_run(&loop->uv, UV_RUN_DEFAULT);
        uv_loop_close(&loop->uv);
        rc = UV_EAGAIN;
        goto fail;
    }
    *out = loop;
    return STRATA_OK;
fail:
    loop_free(loop);
    return err_set(em, STRATA_EIO, "cannot start an event loop: %s", uv_strerror(rc));
}

void wire_loop_stop(struct wire_loop *loop) {
    if (!loop) return;
    pthread_mutex_lock(&loop->lock);
    loop->stopping = true;
    uv_async_send(&loop->wake);
    pthread_cond_signal(&loop->due);
    pthread_mutex_unlock(&loop->lock);
    pthread_join(loop->thread, NULL);
    uv_loop_close(&loop->uv);
    while (loop->pool) {
        struct wire_buf *b = loop->pool;
        loop->pool = b->next;
        free(b->data);
        free(b);
    }
    loop_free(loop);
}

void wire_loop_wake(struct wire_loop *loop) {
    uv_async_send(&loop->wake);
}

uv_loop_t *wire_loop_uv(struct wire_loop *loop) {
    return &loop->uv;
}

static void post_locked(struct wire_loop *loop, struct wire_task *task) {
    if (task->queued) return;
    task->queued = true;
    task->next = NULL;
    *loop->tail = task;
    loop->tail = &task->next;
    uv_async_send(&loop->wake);
    if (!loop->taken) pthread_cond_signal(&loop->due);
}

void wire_loop_post(struct wire_loop *loop, struct wire_task *task) {
    pthread_mutex_lock(&loop->lock);
    if (!loop->stopping) post_locked(loop, task);
    pthread_mutex_unlock(&loop->lock);
}

struct call {
    struct wire_loop *loop;
    void (*fn)(void *ctx);
    void *ctx;
    bool done;
};

static void run_call(void *arg) {
    struct call *call = arg;
    call->fn(call->ctx);
    pthread_mutex_lock(&call->loop->lock);
    call->done = true;
    pthread_cond_broadcast(&call->loop->called);
    pthread_mutex_unlock(&call->loop->lock);
}

void wire_loop_call(struct wire_loop *loop, void (*fn)(void *ctx), void *ctx) {
    struct call call = {.loop = loop, .fn = fn, .ctx = ctx};
    struct wire_task task = {.fn = run_call, .ctx = &call};
    pthread_mutex_lock(&loop->lock);
    post_locked(loop, &task);
    while (!call.done) pthread_cond_wait(&loop->called, &loop->lock);
    pthread_mutex_unlock(&loop->lock);
}

struct wire_buf *wire_buf_get(struct wire_loop *loop, size_t len) {
    struct wire_buf *b = NULL;
    pthread_mutex_lock(&loop->lock);
    /* The smallest that fits, so that single rows do not sit on the buffers of whole batches. */
    struct wire_buf **best = NULL;
    for (struct wire_buf **p = &loop->pool; *p; p = &(*p)->next)
        if ((*p)->cap >= len && (!best || (*p)->cap < (*best)->cap)) best = p;
    if (best) {
        b = *best;
        *best = b->next;
        loop->pool_count--;
        loop->pool_bytes -= b->cap;
    }
    pthread_mutex_unlock(&loop->lock);
    if (!b) {
        size_t cap = len < MIN_BUFFER ? MIN_BUFFER : len;
        b = calloc(1, sizeof *b);
        if (!b) return NULL;
        b->data = malloc(cap);
        if (!b->data) {
            free(b);
            return NULL;
        }
        b->cap = cap;
        b->home = loop;
    }
    b->len = len;
    b->next = NULL;
    return b;
}

void wire_buf_release(struct wire_buf *b) {
    if (!b) return;
    struct wire_loop *loop = b->home;
    pthread_mutex_lock(&loop->lock);
    bool keep = loop->pool_count < POOL_MAX_BUFFERS && b->cap <= POOL_MAX_BYTES - loop->pool_bytes;
    if (keep) {
        b->next = loop->pool;
        loop->pool = b;
        loop->pool_count++;
        loop->pool_bytes += b->cap;
    }
    pthread_mutex_unlock(&loop->lock);
    if (keep) return;
    free(b->data);
    free(b);
}
