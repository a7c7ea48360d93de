/*
 * Requests and batches on the compute thread. See stage_compute_priv.h.
 *
 * A batch that fails is run again one request at a time, so that what is wrong with one of them ends that one alone.
 * Hidden states that are not finite are refused: they would poison the KV cache silently.
 */
#include "stage/stage_compute_priv.h"

#include "base/clock.h"
#include "gguf/gguf_types.h"
#include "model/model_numbers.h"
#include "stage/stage_batch.h"

#include <inttypes.h>
#include <string.h>

/* A neighbour that computes for long is no fault; one that is gone closes the link, which ends the wait at once. */
enum { SEND_TIMEOUT_S = 1800 };
enum { TABLE = WIRE_ROW_ENTRY * WIRE_MAX_SPANS };

/* Rows of one request in a batch. */
struct work {
    struct stage_request *r;
    struct engine_batch b;
    bool sample;
};

/* ---- faults and ends ---- */

void stage_run_fault(struct stage_compute *c, uint32_t seq, const struct strata_errmsg *em) {
    struct wire_msg_fault m = {.code = em->code};
    struct strata_errmsg ignored;
    struct buf json;
    char quoted[600];
    struct stage_request *r = stage_requests_find(&c->requests, seq);
    memcpy(m.text, em->text, sizeof m.text);
    log_event(c->log, LOG_LEVEL_WARN, "request-failed", "seq=%u error=%s", seq,
              log_quote(quoted, sizeof quoted, m.text));
    buf_init(&json, WIRE_FRAME_MAX_CONTROL);
    if (!wire_msg_fault_encode(&m, &json, &ignored)) {
        struct wire_frame f = {.type = WIRE_ERROR, .seq = seq, .payload = (uint32_t)json.len};
        wire_link_send(c->control, &f, buf_cstr(&json), 0, &ignored);
    }
    buf_deinit(&json);
    if (r) stage_run_end(c, r);
}

void stage_run_end(struct stage_compute *c, struct stage_request *r) {
    struct strata_errmsg em;
    log_event(c->log, LOG_LEVEL_DEBUG, "request", "seq=%u slot=%u rows=%u batches=%u compute_ms=%.2f total_ms=%.2f",
              r->seq, r->slot, r->pos, r->runs, (double)r->compute_ns / 1e6, clock_since_s(r->begun_ns) * 1e3);
    /* Cannot fail: going back to the start is always possible. */
    if (c->backend.truncate(c->unit, r->slot, 0, &em))
        log_event(c->log, LOG_LEVEL_ERROR, "truncate", "slot=%u error=\"%s\"", r->slot, em.text);
    stage_requests_end(r);
}

/* ---- sending ---- */

static uint64_t send_deadline(void) {
    return clock_now_ns() + SEND_TIMEOUT_S * CLOCK_NS_PER_S;
}

static strata_err send_next(struct stage_compute *c, const struct wire_frame *f, const void *payload,
                            struct strata_errmsg *em) {
    if (!c->next) return err_set(em, STRATA_EINTERNAL, "rows came before the stage was connected");
    if (!wire_link_send(c->next, f, payload, send_deadline(), em)) return STRATA_OK;
    return err_prefix(em, "the link to the next stage");
}

/* Both links can fail: a request that has ended with the first is not reported for the second. */
static void fault_tokens(struct stage_compute *c, const struct strata_errmsg *em) {
    for (uint32_t i = 0; i < c->out.n_tokens; i++)
        if (stage_requests_find(&c->requests, c->out.token[i].seq)) stage_run_fault(c, c->out.token[i].seq, em);
}

static void forward_rows(struct stage_compute *c) {
    struct stage_output *o = &c->out;
    struct strata_errmsg em;
    uint32_t table = WIRE_ROW_ENTRY * o->n_spans;
    uint8_t *data = o->data + TABLE - table;
    struct wire_frame f = {
        .type = WIRE_HIDDEN, .pos = o->n_spans, .n_rows = o->n_rows, .payload = table + o->n_rows * c->info.n_embd * 4};
    wire_spans_encode(o->span, o->n_spans, data);
    if (send_next(c, &f, data, &em))
        for (uint32_t i = 0; i < o->n_spans; i++) stage_run_fault(c, o->span[i].seq, &em);
}

static struct wire_frame token_frame(const struct stage_output *o) {
    return (struct wire_frame){.type = WIRE_TOKEN, .n_rows = o->n_tokens, .payload = WIRE_ROW_ENTRY * o->n_tokens};
}

void stage_run_forward(struct stage_compute *c) {
    struct strata_errmsg em;
    struct wire_frame f = token_frame(&c->out);
    if (c->out.n_spans) forward_rows(c);
    if (c->out.n_tokens && c->assign.count > 1 && send_next(c, &f, c->out.data, &em)) fault_tokens(c, &em);
}

void stage_run_tell(struct stage_compute *c) {
    struct stage_output *o = &c->out;
    if (!atomic_exchange(&o->untold, false)) return;
    struct wire_frame f = token_frame(o);
    o->told = wire_link_send(c->control, &f, o->data, send_deadline(), &o->why);
}

void stage_run_settle(struct stage_compute *c) {
    struct stage_output *o = &c->out;
    if (o->told) {
        err_prefix(&o->why, "the coordinator's link");
        fault_tokens(c, &o->why);
    }
    o->told = STRATA_OK;
    o->n_spans = o->n_rows = o->n_tokens = 0;
}

void stage_run_deliver(struct stage_compute *c) {
    stage_run_forward(c);
    stage_run_tell(c);
    stage_run_settle(c);
}

/* ---- a request begins ---- */

/* Puts the blocks that the request starts from into its slot. */
static strata_err restore(struct stage_compute *c, const struct stage_request *r, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    for (uint32_t k = 0; k < r->begin.n_restore && !rc; k++) {
        uint32_t first = k * WIRE_MSG_BLOCK;
        size_t bytes;
        const void *data = stage_blocks_get(c->blocks, r->begin.restore[k], &bytes);
        if (!data || bytes != c->backend.rows_bytes(c->unit, first, first + WIRE_MSG_BLOCK))
            return err_set(em, STRATA_ENOENT, "block %" PRIu64 " of the prefix cache is not here", r->begin.restore[k]);
        rc = c->backend.load_rows(c->unit, r->slot, first, first + WIRE_MSG_BLOCK, data, em);
    }
    return rc;
}

void stage_run_begin(struct stage_compute *c, struct stage_item *it) {
    struct strata_errmsg em;
    struct stage_request *old = &c->requests.slot[it->begin->slot], *r = NULL;
    uint32_t seq = it->frame.seq;
    if (old->seq) stage_run_end(c, old);
    strata_err rc = stage_requests_begin(&c->requests, seq, it->begin, &r, &em);
    /* It starts at the end of the line: else a stream of short requests would always go first. */
    if (!rc) r->served = c->turn;
    if (!rc) rc = restore(c, r, &em);
    if (!rc && !c->requests.last) {
        struct wire_frame f = {.type = WIRE_BEGIN, .seq = seq, .payload = (uint32_t)it->payload->len};
        rc = send_next(c, &f, it->payload->data, &em);
    }
    if (rc) stage_run_fault(c, seq, &em);
}

/* ---- a batch ---- */

/* Keeps the blocks of the prefix cache that are complete now. What cannot be kept is missed later, and computed. */
static void keep_blocks(struct stage_compute *c, struct stage_request *r) {
    while (r->begin.store_base && (r->n_kept + 1) * WIRE_MSG_BLOCK <= r->pos) {
        uint32_t first = r->n_kept * WIRE_MSG_BLOCK, end = first + WIRE_MSG_BLOCK;
        uint64_t id = r->begin.store_base + r->n_kept++;
        void *room = stage_blocks_put(c->blocks, id, c->backend.rows_bytes(c->unit, first, end));
        if (room && c->backend.save_rows(c->unit, r->slot, first, end, room, NULL))
            stage_blocks_remove(c->blocks, id, 1);
    }
}

static void add_rows(struct stage_compute *c, const struct work *w, const float *rows) {
    struct stage_output *o = &c->out;
    size_t row = (size_t)c->info.n_embd * 4;
    memcpy(o->data + TABLE + o->n_rows * row, rows, w->b.n_tokens * row);
    o->span[o->n_spans++] = (struct wire_span){
        .seq = w->r->seq, .pos = w->b.pos, .n_rows = w->b.n_tokens, .flags = w->sample ? WIRE_SPAN_SAMPLE : 0};
    o->n_rows += w->b.n_tokens;
}

static void add_token(struct stage_compute *c, struct stage_request *r, const float *logits) {
    struct strata_errmsg em;
    struct wire_token t;
    if (stage_requests_pick(&c->requests, r, logits, &t, &em)) {
        stage_run_fault(c, r->seq, &em);
        return;
    }
    c->out.token[c->out.n_tokens++] = t;
    if (c->assign.count == 1 && !(t.flags & WIRE_TOKEN_FINAL)) {
        r->step = t.id;
        r->has_step = true;
    }
}

static void finish(struct stage_compute *c, const struct work *w, const float *rows) {
    w->r->pos += w->b.n_tokens;
    keep_blocks(c, w->r);
    if (!c->requests.last)
        add_rows(c, w, rows);
    else if (w->sample)
        add_token(c, w->r, rows);
}

static strata_err run(struct stage_compute *c, const struct work *w, uint32_t n, struct strata_errmsg *em) {
    struct engine_batch b[WIRE_MAX_SPANS];
    const float *out[WIRE_MAX_SPANS];
    uint64_t start = clock_now_ns();
    for (uint32_t i = 0; i < n; i++) b[i] = w[i].b;
    strata_err rc = c->backend.run_many(c->unit, b, n, out, em);
    uint64_t spent = clock_now_ns() - start;
    for (uint32_t i = 0; i < n; i++) {
        w[i].r->runs++;
        w[i].r->compute_ns += spent;
    }
    for (uint32_t i = 0; i < n && !rc; i++) finish(c, &w[i], out[i]);
    if (c->out.n_tokens) {
        wire_tokens_encode(c->out.token, c->out.n_tokens, c->out.data);
        atomic_store(&c->out.untold, true);
    }
    return rc;
}

static void run_batch(struct stage_compute *c, const struct work *w, uint32_t n) {
    struct strata_errmsg em;
    if (n == 0 || !run(c, w, n, &em)) return;
    for (uint32_t i = 0; i < n; i++)
        if (n == 1 || run(c, &w[i], 1, &em)) stage_run_fault(c, w[i].r->seq, &em);
}

static enum engine_output wanted(bool sample) {
    return sample ? ENGINE_OUT_LAST : ENGINE_OUT_NONE;
}

/* ---- the first stage ---- */

void stage_run_tokens(struct stage_compute *c, const struct stage_item *it) {
    struct stage_request *r = stage_requests_find(&c->requests, it->frame.seq);
    /* Buffers come from malloc, so they are aligned for what is in them. */
    const int32_t *ids = (const int32_t *)(const void *)it->payload->data;
    if (r) stage_requests_add_prompt(r, it->frame.pos, ids, it->frame.n_rows);
}

void stage_run_steps(struct stage_compute *c, const struct stage_item *it) {
    struct wire_token t[WIRE_MAX_SPANS];
    if (wire_tokens_decode(&it->frame, it->payload->data, t, NULL)) return;
    for (uint32_t i = 0; i < it->frame.n_rows; i++) {
        struct stage_request *r = stage_requests_find(&c->requests, t[i].seq);
        if (!r || r->pos != t[i].pos) continue;
        r->over = t[i].flags & WIRE_TOKEN_FINAL;
        r->step = t[i].id;
        r->has_step = !r->over;
    }
}

/*
 * Decode steps alone wait until fewer batches are on their way than there may be: else requests that began at
 * different times would go round in as many batches, one behind the other, where one would take no longer. A batch
 * comes back or its requests end: the coordinator ends those that fail.
 */
bool stage_run_ready(const struct stage_compute *c) {
    bool prompt = false, step = false;
    for (uint32_t i = 0; c->requests.first && i < c->requests.n_slots; i++) {
        const struct stage_request *r = &c->requests.slot[i];
        if (stage_requests_ready(r)) *(r->has_step ? &step : &prompt) = true;
    }
    return prompt || (step && stage_requests_in_flight(&c->requests) < c->assign.n_in_flight);
}

void stage_run_next(struct stage_compute *c) {
    struct stage_batch_limits limits = {.n_batch = c->info.n_batch, .n_in_flight = c->assign.n_in_flight};
    struct stage_batch_entry entry[WIRE_MAX_SPANS];
    struct work w[WIRE_MAX_SPANS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->requests.n_slots; i++) {
        const struct stage_request *r = &c->requests.slot[i];
        limits.n_decoding += stage_requests_decoding(r);
        if (stage_requests_ready(r))
            entry[n++] = (struct stage_batch_entry){
                .slot = i, .pos = r->pos, .waiting = r->has_step ? 0 : r->n_came - r->pos, .served = r->served};
    }
    n = stage_batch_choose(&limits, entry, n);
    c->turn++;
    for (uint32_t i = 0; i < n; i++) {
        struct stage_request *r = &c->requests.slot[entry[i].slot];
        bool sample = r->has_step || r->pos + entry[i].n_rows == r->begin.n_prompt;
        w[i] = (struct work){.r = r,
                             .sample = sample,
                             .b = {.seq = r->slot,
                                   .pos = r->pos,
                                   .n_tokens = entry[i].n_rows,
                                   .tokens = r->has_step ? &r->step : r->prompt + r->pos,
                                   .want = wanted(sample)}};
        r->has_step = false;
        r->served = c->turn;
    }
    run_batch(c, w, n);
}

/* ---- every other stage ---- */

/* False when the rows are not to be computed: the request is over, or its rows cannot be right. */
static bool check_span(struct stage_compute *c, const struct wire_span *s, const struct stage_request *r,
                       const float *rows) {
    struct strata_errmsg em;
    if (!r || r->pos != s->pos || stage_queue_cancels(c->queue, s->seq)) return false;
    if (model_numbers_finite(GGUF_TENSOR_F32, rows, (size_t)s->n_rows * c->info.n_embd * 4)) return true;
    err_set(&em, STRATA_EPEER,
            "the hidden states that came into layer %u for positions %u..%u are not finite; the stage before is broken",
            c->assign.first, s->pos, s->pos + s->n_rows);
    stage_run_fault(c, s->seq, &em);
    return false;
}

void stage_run_hidden(struct stage_compute *c, const struct stage_item *it) {
    struct wire_span s[WIRE_MAX_SPANS];
    struct work w[WIRE_MAX_SPANS];
    uint32_t n = 0;
    if (wire_spans_decode(&it->frame, it->payload->data, s, NULL)) return;
    const float *rows = (const float *)(const void *)(it->payload->data + (size_t)WIRE_ROW_ENTRY * it->frame.pos);
    for (uint32_t i = 0; i < it->frame.pos; i++) {
        struct stage_request *r = stage_requests_find(&c->requests, s[i].seq);
        bool sample = s[i].flags & WIRE_SPAN_SAMPLE;
        if (check_span(c, &s[i], r, rows))
            w[n++] = (struct work){
                .r = r,
                .sample = sample,
                .b = {.seq = r->slot, .pos = r->pos, .n_tokens = s[i].n_rows, .hidden = rows, .want = wanted(sample)}};
        rows += (size_t)s[i].n_rows * c->info.n_embd;
    }
    run_batch(c, w, n);
}
