/*
 * The compute thread. See stage_compute.h.
 *
 * Owns the queue, the loaded unit, the prefix cache's blocks, the requests, and references to the session's links.
 */
#include "stage/stage_compute_priv.h"

#include "model/model_team.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- sessions ---- */

static void unload(struct stage_compute *c) {
    stage_requests_end_all(&c->requests);
    stage_blocks_free(c->blocks);
    c->blocks = NULL;
    free(c->out.data);
    memset(&c->out, 0, sizeof c->out);
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
    uint64_t row = 4ull * info->n_embd, table = (uint64_t)WIRE_ROW_ENTRY * WIRE_MAX_SPANS;
    if (a->count > 1 && row * info->n_batch + table > WIRE_FRAME_MAX_PAYLOAD)
        return err_set(em, STRATA_ELIMIT,
                       "a batch of %u tokens makes hidden states of %" PRIu64
                       " bytes, over the limit of a frame; give --batch %u or less",
                       info->n_batch, row * info->n_batch, (unsigned)((WIRE_FRAME_MAX_PAYLOAD - table) / row));
    if (info->n_batch > a->n_batch || info->n_ctx < a->n_ctx)
        return err_set(em, STRATA_EINTERNAL, "the engine has a context of %u and batches of %u, not %u and %u",
                       info->n_ctx, info->n_batch, a->n_ctx, a->n_batch);
    return STRATA_OK;
}

static strata_err load(struct stage_compute *c, const struct wire_msg_assign *a, struct strata_errmsg *em) {
    struct stage_load req = {.first = a->first,
                             .end = a->end,
                             .n_ctx = a->n_ctx,
                             .n_batch = a->n_batch,
                             .n_seq = a->n_seq,
                             .n_pool = a->n_pool,
                             .kv_type = a->kv_type};
    strata_err rc = c->backend.load(c->backend.self, &req, &c->unit, &c->info, em);
    if (!rc) rc = check_info(&c->info, a, em);
    if (!rc) rc = stage_blocks_new(a->cache_blocks, &c->blocks, em);
    if (rc) return rc;
    c->info.cache_bytes = a->cache_blocks * c->backend.rows_bytes(c->unit, 0, WIRE_MSG_BLOCK);
    c->requests = (struct stage_requests){.n_slots = a->n_seq,
                                          .first = a->index == 0,
                                          .last = a->index + 1 == a->count,
                                          .n_vocab = c->info.n_vocab,
                                          .n_ctx = a->n_ctx};
    size_t rows = c->requests.last ? 0 : (size_t)c->info.n_batch * c->info.n_embd * 4;
    c->out.data = malloc((size_t)WIRE_ROW_ENTRY * WIRE_MAX_SPANS + rows);
    return c->out.data ? STRATA_OK : err_nomem(em, "a batch of hidden states");
}

static void do_load(struct stage_compute *c, struct stage_item *it) {
    struct strata_errmsg em = {0};
    unload(c);
    if (it->generation != atomic_load(&c->generation)) return;
    memset(&c->info, 0, sizeof c->info);
    strata_err rc = load(c, it->assign, &em);
    c->current = it->generation;
    c->assign = *it->assign;
    c->control = it->link;
    it->link = NULL;
    pthread_mutex_lock(&c->lock);
    c->loaded.generation = it->generation;
    c->loaded.rc = rc;
    c->loaded.info = c->info;
    c->loaded.em = em;
    pthread_mutex_unlock(&c->lock);
    if (rc) unload(c);
    c->events.on_load(c->events.ctx);
}

/* ---- the thread ---- */

static void do_cancel(struct stage_compute *c, const struct stage_item *it) {
    struct stage_request *r = stage_requests_find(&c->requests, it->frame.seq);
    if (r) stage_run_end(c, r);
}

static void process(struct stage_compute *c, struct stage_item *it) {
    bool mine = it->generation == c->current && c->unit;
    if (it->kind == STAGE_ITEM_LOAD) {
        do_load(c, it);
        return;
    }
    if (!mine) return;
    switch (it->kind) {
    case STAGE_ITEM_UNLOAD: unload(c); break;
    case STAGE_ITEM_CONNECT:
        wire_link_unref(c->next);
        c->next = it->link;
        it->link = NULL;
        break;
    case STAGE_ITEM_BEGIN: stage_run_begin(c, it); break;
    case STAGE_ITEM_TOKENS: stage_run_tokens(c, it); break;
    case STAGE_ITEM_HIDDEN: stage_run_hidden(c, it); break;
    case STAGE_ITEM_STEPS: stage_run_steps(c, it); break;
    case STAGE_ITEM_CANCEL: do_cancel(c, it); break;
    case STAGE_ITEM_FORGET: stage_blocks_remove(c->blocks, it->forget.first, it->forget.count); break;
    default: break;
    }
}

/*
 * What every thread of the team does between two computations: sleep until there is work. The result of the last one is
 * sent from in here too: the workers must be off the cores when the next stage, perhaps on the same cores, begins; and
 * while one thread sends a token to the stage that waits for it, another can tell the coordinator.
 */
static void idle(void *arg) {
    struct stage_compute *c = arg;
    bool leads = pthread_equal(pthread_self(), c->self);
    if (leads) stage_run_forward(c);
    stage_run_tell(c);
    stage_queue_wait(c->queue, leads ? c->loop : NULL);
}

static void *compute_main(void *arg) {
    struct stage_compute *c = arg;
    struct stage_item it;
    bool room;
    c->self = pthread_self();
    while (!stage_queue_quitting(c->queue)) {
        if (stage_queue_pop(c->queue, &it, &room)) {
            if (room) c->events.on_room(c->events.ctx);
            stage_run_deliver(c);
            process(c, &it);
            stage_item_deinit(&it);
        } else if (stage_run_ready(c)) {
            /* All that has come is in its request now, and may share the batch. */
            stage_run_deliver(c);
            stage_run_next(c);
        } else {
            model_team_run(c->unit ? c->info.n_threads : 1, idle, c);
            stage_run_settle(c);
        }
    }
    unload(c);
    return NULL;
}

static int start_thread(struct stage_compute *c) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&c->thread, NULL, compute_main, c);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

static void compute_free(struct stage_compute *c) {
    stage_queue_free(c->queue);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

strata_err stage_compute_start(const struct stage_backend *backend, struct wire_loop *loop,
                               const struct stage_compute_events *events, const struct log *log,
                               struct stage_compute **out, struct strata_errmsg *em) {
    struct stage_compute *c = calloc(1, sizeof *c);
    if (!c) return err_nomem(em, "a stage");
    c->backend = *backend;
    c->loop = loop;
    c->events = *events;
    c->log = log;
    pthread_mutex_init(&c->lock, NULL);
    strata_err rc = stage_queue_new(&c->queue, em);
    int e = rc ? 0 : start_thread(c);
    if (e) rc = err_sys(em, STRATA_EIO, e, "cannot start a thread");
    if (rc)
        compute_free(c);
    else
        *out = c;
    return rc;
}

bool stage_compute_stop(struct stage_compute *c, uint32_t max_ms) {
    struct timespec until;
    if (!c) return true;
    stage_queue_quit(c->queue);
    wire_loop_wake(c->loop);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += max_ms / 1000;
    until.tv_nsec += (long)(max_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    if (pthread_timedjoin_np(c->thread, NULL, &until) != 0) return false;
    compute_free(c);
    return true;
}

/* ---- for the loop thread ---- */

static strata_err push(struct stage_compute *c, struct stage_item it, bool *full, struct strata_errmsg *em) {
    it.generation = atomic_load(&c->generation);
    return stage_queue_push(c->queue, &it, full, em);
}

strata_err stage_compute_load(struct stage_compute *c, uint64_t generation, const struct wire_msg_assign *assign,
                              struct wire_link *control, struct strata_errmsg *em) {
    struct stage_item it = {.kind = STAGE_ITEM_LOAD, .assign = malloc(sizeof *assign)};
    if (!it.assign) return err_nomem(em, "an assignment");
    *it.assign = *assign;
    it.link = wire_link_ref(control);
    atomic_store(&c->generation, generation);
    return push(c, it, NULL, em);
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
    if (generation != atomic_load(&c->generation)) return STRATA_OK;
    return push(c, (struct stage_item){.kind = STAGE_ITEM_CONNECT, .link = wire_link_ref(next)}, NULL, em);
}

void stage_compute_drop(struct stage_compute *c) {
    uint64_t generation = atomic_load(&c->generation);
    struct stage_item it = {.kind = STAGE_ITEM_UNLOAD, .generation = generation};
    atomic_store(&c->generation, 0);
    stage_queue_clear(c->queue);
    /* Cannot fail: the queue has just been emptied, and was allocated when the session was loaded. */
    if (generation) stage_queue_push(c->queue, &it, NULL, NULL);
}

strata_err stage_compute_begin(struct stage_compute *c, uint32_t seq, struct wire_msg_begin *begin,
                               struct wire_buf *payload, struct strata_errmsg *em) {
    struct stage_item it = {.kind = STAGE_ITEM_BEGIN,
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
    return push(c, it, NULL, em);
}

strata_err stage_compute_tokens(struct stage_compute *c, const struct wire_frame *f, struct wire_buf *payload,
                                struct strata_errmsg *em) {
    return push(c, (struct stage_item){.kind = STAGE_ITEM_TOKENS, .frame = *f, .payload = payload}, NULL, em);
}

strata_err stage_compute_hidden(struct stage_compute *c, const struct wire_frame *f, struct wire_buf *payload,
                                bool *full, struct strata_errmsg *em) {
    return push(c, (struct stage_item){.kind = STAGE_ITEM_HIDDEN, .frame = *f, .payload = payload}, full, em);
}

strata_err stage_compute_steps(struct stage_compute *c, const struct wire_frame *f, struct wire_buf *payload,
                               struct strata_errmsg *em) {
    return push(c, (struct stage_item){.kind = STAGE_ITEM_STEPS, .frame = *f, .payload = payload}, NULL, em);
}

strata_err stage_compute_cancel(struct stage_compute *c, uint32_t seq, struct strata_errmsg *em) {
    return push(c, (struct stage_item){.kind = STAGE_ITEM_CANCEL, .frame = {.type = WIRE_CANCEL, .seq = seq}}, NULL,
                em);
}

strata_err stage_compute_forget(struct stage_compute *c, const struct wire_msg_forget *m, struct strata_errmsg *em) {
    return push(c, (struct stage_item){.kind = STAGE_ITEM_FORGET, .forget = *m}, NULL, em);
}
