/*
 * The compute thread. See stage_compute.h.
 *
 * Owns the queue, the loaded unit, the sampler of the running request and references to the session's links. Refuses
 * hidden states that are not finite: they would poison the KV cache silently.
 */
#include "stage/stage_compute.h"

#include "base/clock.h"
#include "stage/stage_team.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A neighbour that computes for long is no fault; one that is gone closes the link, which ends the wait at once. */
enum { SEND_TIMEOUT_S = 1800 };
enum { MAX_ITEMS = 1 << 20, FULL_ITEMS = 64 };
#define FULL_BYTES ((size_t)32 << 20)

enum item_kind { ITEM_LOAD, ITEM_UNLOAD, ITEM_CONNECT, ITEM_BEGIN, ITEM_ROWS, ITEM_TOKEN };

struct item {
    enum item_kind kind;
    uint64_t generation;
    struct wire_frame frame;
    int32_t token;
    struct wire_buf *payload;
    struct wire_link *link;         /* LOAD: control; CONNECT: next. A reference. */
    struct wire_msg_assign *assign; /* LOAD */
    struct wire_msg_begin *begin;   /* BEGIN */
};

struct stage_compute {
    struct stage_backend backend;
    struct stage_compute_events events;
    const struct log *log;
    pthread_t thread;

    pthread_mutex_t lock;
    pthread_cond_t work;
    struct item *ring; /* cap is a power of two */
    size_t head, n, cap;
    size_t queued_bytes; /* payloads of rows in the queue */
    bool full, quit;
    uint64_t generation; /* of the session that is wanted; 0: none */
    struct {
        uint64_t generation;
        strata_err rc;
        struct stage_unit_info info;
        struct strata_errmsg em;
    } loaded;
    atomic_uint cancelled;

    /* The compute thread's own: the session, and the request. */
    uint64_t current;
    struct wire_msg_assign assign;
    struct wire_link *control, *next;
    void *unit;
    struct stage_unit_info info;
    uint32_t seq, n_generated;
    bool failed; /* the request has been reported as failed */
    pthread_t self;
    struct {
        bool pending;
        struct wire_frame frame;
        const void *payload; /* in the unit's memory, or at `token` */
        uint8_t token[4];
    } out; /* the result of the last run, which goes out when the thread looks for more work */
    struct {
        uint32_t runs;
        uint64_t compute_ns, send_ns, begun_ns;
    } spent; /* by the request so far */
    struct wire_msg_begin begin;
    struct sampler *sampler;
};

/* ---- the queue ---- */

static void item_deinit(struct item *it) {
    wire_buf_release(it->payload);
    wire_link_unref(it->link);
    free(it->assign);
    wire_msg_begin_deinit(it->begin);
    free(it->begin);
}

static bool grow(struct stage_compute *c) {
    size_t cap = c->cap ? c->cap * 2 : 64;
    if (cap > MAX_ITEMS) return false;
    struct item *ring = malloc(cap * sizeof *ring);
    if (!ring) return false;
    for (size_t i = 0; i < c->n; i++) ring[i] = c->ring[(c->head + i) & (c->cap - 1)];
    free(c->ring);
    c->ring = ring;
    c->cap = cap;
    c->head = 0;
    return true;
}

/* Takes over what the item owns, on failure too. *full may be NULL. */
static strata_err push(struct stage_compute *c, struct item *it, bool *full, struct strata_errmsg *em) {
    pthread_mutex_lock(&c->lock);
    bool ok = c->n < c->cap || grow(c);
    if (ok) {
        if (it->kind == ITEM_ROWS && it->payload) c->queued_bytes += it->payload->len;
        c->ring[(c->head + c->n++) & (c->cap - 1)] = *it;
        if (full) {
            c->full = c->full || c->n > FULL_ITEMS || c->queued_bytes > FULL_BYTES;
            *full = c->full;
        }
        pthread_cond_broadcast(&c->work);
    }
    pthread_mutex_unlock(&c->lock);
    if (ok) return STRATA_OK;
    item_deinit(it);
    return err_set(em, STRATA_ENOMEM, "out of memory for the stage's queue");
}

static void deliver(struct stage_compute *c);

/*
 * What every thread of the team does between two computations: sleep until there is work. The result of the last one is
 * sent from in here too: the workers must be off the cores when the next stage, perhaps on the same cores, begins.
 */
static void idle(void *arg) {
    struct stage_compute *c = arg;
    if (pthread_equal(pthread_self(), c->self)) deliver(c);
    pthread_mutex_lock(&c->lock);
    while (c->n == 0 && !c->quit) pthread_cond_wait(&c->work, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

/* Waits for work; false when the thread is to end. */
static bool pop(struct stage_compute *c, struct item *it) {
    bool room = false;
    pthread_mutex_lock(&c->lock);
    while (c->n == 0 && !c->quit) {
        pthread_mutex_unlock(&c->lock);
        stage_team_run(c->unit ? c->info.n_threads : 1, idle, c);
        pthread_mutex_lock(&c->lock);
    }
    if (c->out.pending) {
        pthread_mutex_unlock(&c->lock);
        deliver(c);
        pthread_mutex_lock(&c->lock);
    }
    bool quit = c->quit;
    if (!quit) {
        *it = c->ring[c->head];
        c->head = (c->head + 1) & (c->cap - 1);
        c->n--;
        if (it->kind == ITEM_ROWS && it->payload) c->queued_bytes -= it->payload->len;
        room = c->full && c->n <= FULL_ITEMS / 2 && c->queued_bytes <= FULL_BYTES / 2;
        if (room) c->full = false;
    }
    pthread_mutex_unlock(&c->lock);
    if (room) c->events.on_room(c->events.ctx);
    return !quit;
}

/* ---- requests ---- */

static void fault(struct stage_compute *c, uint32_t seq, const struct strata_errmsg *em) {
    struct wire_msg_fault m = {.code = em->code};
    struct buf json;
    struct strata_errmsg ignored;
    char quoted[400];
    snprintf(m.text, sizeof m.text, "%s", em->text);
    log_event(c->log, LOG_LEVEL_WARN, "request-failed", "seq=%u error=%s", seq,
              log_quote(quoted, sizeof quoted, m.text));
    buf_init(&json, WIRE_FRAME_MAX_CONTROL);
    if (!wire_msg_fault_encode(&m, &json, &ignored)) {
        struct wire_frame f = {.type = WIRE_ERROR, .seq = seq, .payload = (uint32_t)json.len};
        wire_link_send(c->control, &f, buf_cstr(&json), 0, &ignored);
    }
    buf_deinit(&json);
    c->failed = true;
}

static bool is_over(const struct stage_compute *c, const struct item *it) {
    uint32_t seq = it->frame.seq;
    return it->generation != c->current || !c->unit || seq <= atomic_load(&c->cancelled) ||
           (it->kind != ITEM_BEGIN && (seq != c->seq || c->failed));
}

static void end_request(struct stage_compute *c) {
    if (c->seq)
        log_event(c->log, LOG_LEVEL_DEBUG, "request", "seq=%u runs=%u compute_ms=%.2f send_ms=%.2f total_ms=%.2f",
                  c->seq, c->spent.runs, (double)c->spent.compute_ns / 1e6, (double)c->spent.send_ns / 1e6,
                  clock_since_s(c->spent.begun_ns) * 1e3);
    memset(&c->spent, 0, sizeof c->spent);
    sampler_free(c->sampler);
    c->sampler = NULL;
    wire_msg_begin_deinit(&c->begin);
    c->seq = 0;
    c->n_generated = 0;
    c->failed = false;
}

static bool is_last(const struct stage_compute *c) {
    return c->assign.index + 1 == c->assign.count;
}

static uint64_t send_deadline(void) {
    return clock_now_ns() + SEND_TIMEOUT_S * CLOCK_NS_PER_S;
}

static strata_err send_next(struct stage_compute *c, const struct wire_frame *f, const void *payload,
                            struct strata_errmsg *em) {
    if (!c->next) return err_set(em, STRATA_EINTERNAL, "rows came before the stage was connected");
    if (!wire_link_send(c->next, f, payload, send_deadline(), em)) return STRATA_OK;
    return err_prefix(em, "the link to the next stage");
}

static void do_begin(struct stage_compute *c, struct item *it) {
    struct strata_errmsg em;
    strata_err rc;
    end_request(c);
    c->seq = it->frame.seq;
    c->spent.begun_ns = clock_now_ns();
    c->begin = *it->begin;
    *it->begin = (struct wire_msg_begin){0};
    rc = c->backend.truncate(c->unit, 0, &em);
    if (!rc && is_last(c)) {
        rc = sampler_new(&c->begin.sampling, c->info.n_vocab, &c->sampler, &em);
        for (uint32_t i = 0; !rc && i < c->begin.n_history; i++) sampler_accept(c->sampler, c->begin.history[i]);
    } else if (!rc) {
        struct wire_frame f = {.type = WIRE_BEGIN, .seq = c->seq, .payload = (uint32_t)it->payload->len};
        rc = send_next(c, &f, it->payload->data, &em);
    }
    if (rc) fault(c, c->seq, &em);
}

static bool all_finite(const float *v, size_t n) {
    unsigned bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, v + i, 4);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

static bool is_stop(const struct wire_msg_begin *b, int32_t token) {
    for (uint32_t i = 0; i < b->n_stop_ids; i++)
        if (b->stop_ids[i] == token) return true;
    return false;
}

/* Last stage: samples after the row at pos - 1. */
static strata_err pick_token(struct stage_compute *c, const float *logits, uint32_t pos, struct strata_errmsg *em) {
    int32_t token;
    strata_err rc = sampler_pick(c->sampler, logits, &token, em);
    if (rc) return rc;
    sampler_accept(c->sampler, token);
    c->n_generated++;
    struct wire_frame f = {.type = WIRE_TOKEN, .seq = c->seq, .pos = pos, .n_rows = 1, .payload = 4};
    if (is_stop(&c->begin, token)) f.flags = WIRE_FLAG_FINAL | WIRE_FLAG_EOG;
    if (c->n_generated >= c->begin.max_tokens || pos + 1 >= c->assign.n_ctx) f.flags |= WIRE_FLAG_FINAL;
    for (int i = 0; i < 4; i++) c->out.token[i] = (uint8_t)((uint32_t)token >> 8 * i);
    c->out.pending = true;
    c->out.frame = f;
    c->out.payload = c->out.token;
    if (c->assign.count == 1 && !(f.flags & WIRE_FLAG_FINAL)) {
        struct item next = {.kind = ITEM_TOKEN, .generation = c->current, .frame = f, .token = token};
        rc = push(c, &next, NULL, em);
    }
    return rc;
}

/* Sends the result of the last run. A token goes first to the stage that waits for it, then to the coordinator. */
static void deliver(struct stage_compute *c) {
    struct strata_errmsg em;
    strata_err rc = STRATA_OK;
    uint64_t start = clock_now_ns();
    const struct wire_frame *f = &c->out.frame;
    if (!c->out.pending) return;
    c->out.pending = false;
    if (c->assign.count > 1) rc = send_next(c, f, c->out.payload, &em);
    if (!rc && f->type == WIRE_TOKEN && wire_link_send(c->control, f, c->out.payload, send_deadline(), &em))
        rc = err_prefix(&em, "the coordinator's link");
    c->spent.send_ns += clock_now_ns() - start;
    if (rc) fault(c, f->seq, &em);
}

static strata_err run(struct stage_compute *c, const struct engine_batch *b, const struct wire_frame *f,
                      struct strata_errmsg *em) {
    const float *out = NULL;
    uint64_t start = clock_now_ns();
    strata_err rc = c->backend.run(c->unit, b, &out, em);
    if (rc) return rc;
    if (!is_last(c)) {
        c->out.pending = true;
        c->out.frame = *f;
        c->out.frame.type = WIRE_HIDDEN;
        c->out.frame.n_rows = b->n_tokens;
        c->out.frame.payload = b->n_tokens * c->info.n_embd * 4;
        c->out.payload = out;
    } else if (f->flags & WIRE_FLAG_SAMPLE) {
        rc = pick_token(c, out, b->pos + b->n_tokens, em);
    }
    c->spent.runs++;
    c->spent.compute_ns += clock_now_ns() - start;
    return rc;
}

static void do_rows(struct stage_compute *c, const struct item *it) {
    const struct wire_frame *f = &it->frame;
    struct strata_errmsg em;
    strata_err rc = STRATA_OK;
    struct engine_batch b = {
        .pos = f->pos, .n_tokens = f->n_rows, .want = f->flags & WIRE_FLAG_SAMPLE ? ENGINE_OUT_LAST : ENGINE_OUT_NONE};
    /* Buffers come from malloc, so they are aligned for what is in them. */
    if (f->type == WIRE_TOKENS) {
        b.tokens = (const int32_t *)(const void *)it->payload->data;
    } else {
        b.hidden = (const float *)(const void *)it->payload->data;
        if (!all_finite(b.hidden, (size_t)f->n_rows * c->info.n_embd))
            rc = err_set(&em, STRATA_EPEER,
                         "the hidden states that came into layer %u for positions %u..%u are not "
                         "finite; the stage before is broken",
                         c->assign.first, f->pos, f->pos + f->n_rows);
    }
    if (!rc) rc = run(c, &b, f, &em);
    if (rc) fault(c, f->seq, &em);
}

static void do_token(struct stage_compute *c, const struct item *it) {
    struct strata_errmsg em;
    struct wire_frame f = it->frame;
    struct engine_batch b = {.pos = f.pos, .n_tokens = 1, .tokens = &it->token, .want = ENGINE_OUT_LAST};
    f.flags = WIRE_FLAG_SAMPLE;
    if (run(c, &b, &f, &em)) fault(c, f.seq, &em);
}

/* ---- sessions ---- */

static void unload(struct stage_compute *c) {
    end_request(c);
    if (c->unit) c->backend.free(c->unit);
    c->unit = NULL;
    wire_link_unref(c->control);
    wire_link_unref(c->next);
    c->control = c->next = NULL;
    c->current = 0;
}

/* Hidden states of one full batch must fit a frame. */
static strata_err check_info(const struct stage_unit_info *info, const struct wire_msg_assign *a,
                             struct strata_errmsg *em) {
    uint64_t bytes = 4ull * info->n_embd * info->n_batch;
    if (a->count > 1 && bytes > WIRE_FRAME_MAX_PAYLOAD)
        return err_set(em, STRATA_ELIMIT,
                       "a batch of %u tokens makes hidden states of %" PRIu64
                       " bytes, over the limit of a frame; give --batch %u or less",
                       info->n_batch, bytes, (unsigned)(WIRE_FRAME_MAX_PAYLOAD / 4 / info->n_embd));
    if (info->n_batch > a->n_batch || info->n_ctx < a->n_ctx)
        return err_set(em, STRATA_EINTERNAL, "the engine has a context of %u and batches of %u, not %u and %u",
                       info->n_ctx, info->n_batch, a->n_ctx, a->n_batch);
    return STRATA_OK;
}

static void do_load(struct stage_compute *c, struct item *it) {
    struct strata_errmsg em = {0};
    struct stage_unit_info info = {0};
    const struct wire_msg_assign *a = it->assign;
    struct stage_load req = {
        .first = a->first, .end = a->end, .n_ctx = a->n_ctx, .n_batch = a->n_batch, .kv_type = a->kv_type};
    unload(c);
    pthread_mutex_lock(&c->lock);
    bool wanted = it->generation == c->generation;
    pthread_mutex_unlock(&c->lock);
    if (!wanted) return;
    strata_err rc = c->backend.load(c->backend.self, &req, &c->unit, &info, &em);
    if (!rc) rc = check_info(&info, a, &em);
    c->current = it->generation;
    c->assign = *a;
    c->control = it->link;
    it->link = NULL;
    c->info = info;
    atomic_store(&c->cancelled, 0);
    if (rc) unload(c);
    pthread_mutex_lock(&c->lock);
    c->loaded.generation = it->generation;
    c->loaded.rc = rc;
    c->loaded.info = info;
    c->loaded.em = em;
    pthread_mutex_unlock(&c->lock);
    c->events.on_load(c->events.ctx);
}

static void process(struct stage_compute *c, struct item *it) {
    switch (it->kind) {
    case ITEM_LOAD: do_load(c, it); break;
    case ITEM_UNLOAD:
        if (it->generation == c->current) unload(c);
        break;
    case ITEM_CONNECT:
        if (it->generation != c->current) break;
        wire_link_unref(c->next);
        c->next = it->link;
        it->link = NULL;
        break;
    case ITEM_BEGIN:
        if (!is_over(c, it)) do_begin(c, it);
        break;
    case ITEM_ROWS:
        if (!is_over(c, it)) do_rows(c, it);
        break;
    case ITEM_TOKEN:
        if (!is_over(c, it)) do_token(c, it);
        break;
    }
}

static void *compute_main(void *arg) {
    struct stage_compute *c = arg;
    struct item it;
    c->self = pthread_self();
    while (pop(c, &it)) {
        process(c, &it);
        item_deinit(&it);
    }
    unload(c);
    return NULL;
}

/* ---- for the loop thread ---- */

static int start_thread(struct stage_compute *c) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&c->thread, NULL, compute_main, c);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

strata_err stage_compute_start(const struct stage_backend *backend, const struct stage_compute_events *events,
                               const struct log *log, struct stage_compute **out, struct strata_errmsg *em) {
    struct stage_compute *c = calloc(1, sizeof *c);
    if (!c) return err_nomem(em, "a stage");
    c->backend = *backend;
    c->events = *events;
    c->log = log;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work, NULL);
    int rc = start_thread(c);
    if (rc) {
        pthread_mutex_destroy(&c->lock);
        pthread_cond_destroy(&c->work);
        free(c);
        return err_sys(em, STRATA_EIO, rc, "cannot start a thread");
    }
    *out = c;
    return STRATA_OK;
}

bool stage_compute_stop(struct stage_compute *c, uint32_t max_ms) {
    struct timespec until;
    if (!c) return true;
    pthread_mutex_lock(&c->lock);
    c->quit = true;
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += max_ms / 1000;
    until.tv_nsec += (long)(max_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    if (pthread_timedjoin_np(c->thread, NULL, &until) != 0) return false;
    for (size_t i = 0; i < c->n; i++) item_deinit(&c->ring[(c->head + i) & (c->cap - 1)]);
    free(c->ring);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->work);
    free(c);
    return true;
}

strata_err stage_compute_load(struct stage_compute *c, uint64_t generation, const struct wire_msg_assign *assign,
                              struct wire_link *control, struct strata_errmsg *em) {
    struct item it = {.kind = ITEM_LOAD, .generation = generation, .assign = malloc(sizeof *assign)};
    if (!it.assign) return err_nomem(em, "an assignment");
    *it.assign = *assign;
    it.link = wire_link_ref(control);
    pthread_mutex_lock(&c->lock);
    c->generation = generation;
    pthread_mutex_unlock(&c->lock);
    return push(c, &it, NULL, em);
}

strata_err stage_compute_load_result(struct stage_compute *c, uint64_t *generation, struct stage_unit_info *info,
                                     struct strata_errmsg *em) {
    pthread_mutex_lock(&c->lock);
    *generation = c->loaded.generation;
    *info = c->loaded.info;
    if (em) *em = c->loaded.em;
    strata_err rc = c->loaded.rc;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

strata_err stage_compute_connect(struct stage_compute *c, uint64_t generation, struct wire_link *next,
                                 struct strata_errmsg *em) {
    struct item it = {.kind = ITEM_CONNECT, .generation = generation, .link = wire_link_ref(next)};
    return push(c, &it, NULL, em);
}

void stage_compute_drop(struct stage_compute *c) {
    pthread_mutex_lock(&c->lock);
    struct item it = {.kind = ITEM_UNLOAD, .generation = c->generation};
    c->generation = 0;
    for (size_t i = 0; i < c->n; i++) item_deinit(&c->ring[(c->head + i) & (c->cap - 1)]);
    c->n = c->head = c->queued_bytes = 0;
    c->full = false;
    pthread_mutex_unlock(&c->lock);
    /* Cannot fail: the queue has just been emptied, and was allocated when the session was loaded. */
    if (it.generation) push(c, &it, NULL, NULL);
}

strata_err stage_compute_begin(struct stage_compute *c, uint32_t seq, struct wire_msg_begin *begin,
                               struct wire_buf *payload, struct strata_errmsg *em) {
    struct item it = {.kind = ITEM_BEGIN,
                      .generation = c->generation,
                      .frame = {.type = WIRE_BEGIN, .seq = seq},
                      .payload = payload,
                      .begin = malloc(sizeof *begin)};
    if (!it.begin) {
        wire_msg_begin_deinit(begin);
        wire_buf_release(payload);
        return err_nomem(em, "a request");
    }
    *it.begin = *begin;
    *begin = (struct wire_msg_begin){0};
    return push(c, &it, NULL, em);
}

strata_err stage_compute_rows(struct stage_compute *c, const struct wire_frame *f, struct wire_buf *payload, bool *full,
                              struct strata_errmsg *em) {
    struct item it = {.kind = ITEM_ROWS, .generation = c->generation, .frame = *f, .payload = payload};
    return push(c, &it, full, em);
}

strata_err stage_compute_token(struct stage_compute *c, const struct wire_frame *f, int32_t id,
                               struct strata_errmsg *em) {
    struct item it = {.kind = ITEM_TOKEN, .generation = c->generation, .frame = *f, .token = id};
    return push(c, &it, NULL, em);
}

void stage_compute_cancel(struct stage_compute *c, uint32_t seq) {
    if (seq > atomic_load(&c->cancelled)) atomic_store(&c->cancelled, seq);
}
