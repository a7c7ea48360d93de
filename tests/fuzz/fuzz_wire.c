/*
 * Any bytes as what a peer sends: frames one after another, through header, message, table and order checks.
 *
 * The first byte chooses width and place of the stage. Whatever is accepted keeps its promises: payloads match rows,
 * tables name every request once and survive being encoded again, rows continue their request and fit the batch and the
 * context, messages survive being encoded and decoded again.
 */
#include "stage/stage_flow.h"
#include "wire/wire_frame.h"
#include "wire/wire_msg.h"
#include "wire/wire_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

/* Decodes as one kind of message; when that works, the encoded form must decode to the same bytes again. */
#define ROUND_TRIP(kind)                                                                                               \
    do {                                                                                                               \
        struct wire_msg_##kind a, b;                                                                                   \
        memset(&a, 0, sizeof a);                                                                                       \
        memset(&b, 0, sizeof b);                                                                                       \
        if (wire_msg_##kind##_decode(data, size, &a, &em)) break;                                                      \
        buf_clear(out);                                                                                                \
        require(!wire_msg_##kind##_encode(&a, out, &em), #kind " does not encode");                                    \
        require(!wire_msg_##kind##_decode(out->data, out->len, &b, &em), #kind " does not decode again");              \
        require(memcmp(&a, &b, sizeof a) == 0, #kind " changes on its way");                                           \
    } while (0)

static bool same_ids(const int32_t *a, uint32_t n_a, const int32_t *b, uint32_t n_b) {
    return n_a == n_b && memcmp(a, b, n_a * sizeof *a) == 0;
}

/* False when it is no BEGIN; freed by wire_msg_begin_deinit otherwise. */
static bool begin_message(const uint8_t *data, size_t size, struct buf *out, struct wire_msg_begin *a) {
    struct wire_msg_begin b;
    struct strata_errmsg em;
    if (wire_msg_begin_decode(data, size, a, &em)) return false;
    require(a->n_prompt >= 1 && a->max_tokens >= 1, "an empty request got through");
    require(a->n_stop_ids <= WIRE_MSG_STOP_IDS && a->n_history <= WIRE_MSG_HISTORY, "too many ids got through");
    require(a->slot < WIRE_MAX_SPANS, "an impossible slot got through");
    require((uint64_t)a->n_restore * WIRE_MSG_BLOCK < a->n_prompt, "a request with nothing to compute got through");
    for (uint32_t i = 0; i < a->n_restore; i++) require(a->restore[i] != 0, "block 0 got through");
    buf_clear(out);
    require(!wire_msg_begin_encode(a, out, &em), "begin does not encode");
    require(!wire_msg_begin_decode(out->data, out->len, &b, &em), "begin does not decode again");
    require(a->sampling.seed == b.sampling.seed && a->slot == b.slot && a->store_base == b.store_base &&
                a->n_prompt == b.n_prompt && a->max_tokens == b.max_tokens && a->n_restore == b.n_restore &&
                memcmp(a->restore, b.restore, a->n_restore * sizeof *a->restore) == 0 &&
                same_ids(a->history, a->n_history, b.history, b.n_history) &&
                same_ids(a->stop_ids, a->n_stop_ids, b.stop_ids, b.n_stop_ids),
            "begin changes on its way");
    wire_msg_begin_deinit(&b);
    return true;
}

static void messages(const uint8_t *data, size_t size, struct buf *out) {
    struct strata_errmsg em;
    struct wire_msg_assign assign;
    ROUND_TRIP(hello);
    ROUND_TRIP(welcome);
    ROUND_TRIP(loading);
    ROUND_TRIP(loaded);
    ROUND_TRIP(forget);
    struct wire_msg_fault fault;
    if (!wire_msg_fault_decode(data, size, &fault, &em)) {
        buf_clear(out);
        require(!wire_msg_fault_encode(&fault, out, &em), "fault does not encode");
    }
    if (wire_msg_assign_decode(data, size, &assign, &em)) return;
    require(assign.first < assign.end && assign.index < assign.count, "an impossible assignment got through");
    require(assign.n_seq >= 1 && assign.n_seq <= WIRE_MAX_SPANS && assign.n_seq <= assign.n_batch &&
                assign.n_in_flight >= 1 && assign.n_pool >= 1 && assign.kv_type < ENGINE_KV_COUNT,
            "an assignment got through that nobody could serve");
    ROUND_TRIP(assign);
}

/* ---- rows, against the state machine ---- */

static uint32_t slot_of(const struct stage_flow *flow, uint32_t seq) {
    uint32_t i = 0;
    while (i < flow->n_seq && flow->slot[i].seq != seq) i++;
    return i;
}

/* A verdict on n rows from pos on, of the request that was as in `before` when they came. */
static void check_verdict(const struct stage_flow *before, const struct stage_flow *after, uint32_t seq, uint32_t pos,
                          uint32_t n, enum stage_verdict v) {
    uint32_t slot = slot_of(before, seq);
    require(seq >= 1 && seq <= before->last_seq, "rows of a request that never began were accepted");
    if (v == STAGE_DROP) {
        require(slot == before->n_seq, "rows of a request that goes on were dropped");
        require(memcmp(before, after, sizeof *after) == 0, "rows that were dropped changed something");
        return;
    }
    require(slot < before->n_seq && !before->slot[slot].ended, "rows of a request that is over were taken");
    require(pos == before->slot[slot].next_pos, "rows were taken out of order");
    if (v == STAGE_DONE) {
        require(after->slot[slot].ended && after->slot[slot].next_pos == pos, "the end is not one");
        return;
    }
    require(n >= 1 && n <= before->n_batch && after->slot[slot].next_pos == pos + n &&
                after->slot[slot].next_pos <= before->n_ctx,
            "rows were taken that do not fit");
}

static void prompt_frame(struct stage_flow *flow, const struct wire_frame *f, const uint8_t *payload) {
    struct stage_flow before = *flow;
    enum stage_verdict v = STAGE_DONE;
    struct strata_errmsg em;
    int32_t *ids = malloc(f->payload);
    require(ids != NULL, "no memory");
    memcpy(ids, payload, f->payload);
    if (stage_flow_prompt(flow, f, ids, &v, &em)) {
        require(memcmp(&before, flow, sizeof before) == 0, "rows that were refused changed something");
    } else {
        require(v != STAGE_DONE, "a piece of a prompt ended a request");
        check_verdict(&before, flow, f->seq, f->pos, f->n_rows, v);
        if (v == STAGE_TAKE) {
            uint32_t slot = slot_of(flow, f->seq);
            require(flow->slot[slot].next_pos <= flow->slot[slot].n_prompt, "more than the prompt was taken");
            for (uint32_t i = 0; i < f->n_rows; i++)
                require(ids[i] >= 0 && (uint32_t)ids[i] < flow->n_vocab, "a token that is none was taken");
        }
    }
    free(ids);
}

static void hidden_frame(struct stage_flow *flow, const struct wire_frame *f, const uint8_t *payload) {
    struct wire_span s[WIRE_MAX_SPANS];
    uint8_t again[WIRE_ROW_ENTRY * WIRE_MAX_SPANS];
    struct strata_errmsg em;
    uint64_t rows = 0;
    if (wire_spans_decode(f, payload, s, &em)) return;
    wire_spans_encode(s, f->pos, again);
    require(memcmp(again, payload, (size_t)WIRE_ROW_ENTRY * f->pos) == 0, "a table of spans changes on its way");
    for (uint32_t i = 0; i < f->pos; i++) {
        require(s[i].seq && s[i].n_rows && (uint64_t)s[i].pos + s[i].n_rows <= INT32_MAX, "an impossible span");
        for (uint32_t k = 0; k < i; k++) require(s[k].seq != s[i].seq, "a request with two spans");
        rows += s[i].n_rows;
    }
    require(rows == f->n_rows, "spans that are not the frame's rows");
    for (uint32_t i = 0; i < f->pos; i++) {
        struct stage_flow before = *flow;
        enum stage_verdict v = STAGE_DONE;
        if (stage_flow_span(flow, &s[i], &v, &em)) {
            require(memcmp(&before, flow, sizeof before) == 0, "a span that was refused changed something");
            continue;
        }
        require(v != STAGE_DONE, "a span ended a request");
        check_verdict(&before, flow, s[i].seq, s[i].pos, s[i].n_rows, v);
        if (v != STAGE_TAKE) continue;
        uint32_t n_prompt = flow->slot[slot_of(flow, s[i].seq)].n_prompt, end = s[i].pos + s[i].n_rows;
        require(s[i].pos >= n_prompt ? s[i].n_rows == 1 : end <= n_prompt, "a span over the end of its prompt");
        require((s[i].flags == WIRE_SPAN_SAMPLE) == (end >= n_prompt), "sampling at the wrong place");
    }
}

static void token_frame(struct stage_flow *flow, const struct wire_frame *f, const uint8_t *payload) {
    struct wire_token t[WIRE_MAX_SPANS];
    uint8_t again[WIRE_ROW_ENTRY * WIRE_MAX_SPANS];
    struct strata_errmsg em;
    if (wire_tokens_decode(f, payload, t, &em)) return;
    wire_tokens_encode(t, f->n_rows, again);
    require(memcmp(again, payload, (size_t)WIRE_ROW_ENTRY * f->n_rows) == 0, "a table of tokens changes on its way");
    for (uint32_t i = 0; i < f->n_rows; i++) {
        require(t[i].seq && t[i].pos <= INT32_MAX && t[i].id >= 0, "an impossible token");
        require(!(t[i].flags & WIRE_TOKEN_EOG) || (t[i].flags & WIRE_TOKEN_FINAL), "an end that goes on");
        for (uint32_t k = 0; k < i; k++) require(t[k].seq != t[i].seq, "a request with two tokens");
    }
    for (uint32_t i = 0; i < f->n_rows; i++) {
        struct stage_flow before = *flow;
        enum stage_verdict v = STAGE_DROP;
        if (stage_flow_token(flow, &t[i], &v, &em)) {
            require(memcmp(&before, flow, sizeof before) == 0, "a token that was refused changed something");
            continue;
        }
        check_verdict(&before, flow, t[i].seq, t[i].pos, 1, v);
        if (v == STAGE_DROP) continue;
        require((uint32_t)t[i].id < flow->n_vocab, "a token that is none was taken");
        require((v == STAGE_DONE) == ((t[i].flags & WIRE_TOKEN_FINAL) != 0), "a token that ended or did not");
        require(t[i].pos >= flow->slot[slot_of(flow, t[i].seq)].n_prompt, "a token inside its prompt");
    }
}

static void begin_frame(struct stage_flow *flow, const struct wire_frame *f, const uint8_t *data, struct buf *out) {
    struct stage_flow before = *flow;
    enum stage_verdict v = STAGE_DONE;
    struct strata_errmsg em;
    struct wire_msg_begin m;
    if (!begin_message(data, f->payload, out, &m)) return;
    if (stage_flow_begin(flow, f->seq, &m, &v, &em)) {
        require(memcmp(&before, flow, sizeof before) == 0, "a request that was refused changed something");
    } else {
        require(f->seq > before.last_seq && flow->last_seq == f->seq, "a request began out of order");
        require(v == STAGE_TAKE || v == STAGE_DROP, "a request ended before it began");
        require((slot_of(flow, f->seq) == m.slot) == (v == STAGE_TAKE), "a request is not in its slot");
        if (v == STAGE_TAKE)
            require(flow->slot[m.slot].next_pos == m.n_restore * WIRE_MSG_BLOCK && m.n_prompt < flow->n_ctx &&
                        flow->slot[m.slot].n_prompt == m.n_prompt && !flow->slot[m.slot].ended,
                    "a request began that does not fit");
    }
    wire_msg_begin_deinit(&m);
}

static void one_frame(struct stage_flow *flow, const struct wire_frame *f, const uint8_t *payload, struct buf *out) {
    struct strata_errmsg em;
    (void)stage_flow_source(flow, f->seq & 1 ? STAGE_FROM_COORDINATOR : STAGE_FROM_NEIGHBOUR, f->type, &em);
    switch (f->type) {
    case WIRE_BEGIN: begin_frame(flow, f, payload, out); break;
    case WIRE_TOKENS: prompt_frame(flow, f, payload); break;
    case WIRE_HIDDEN: hidden_frame(flow, f, payload); break;
    case WIRE_TOKEN: token_frame(flow, f, payload); break;
    case WIRE_CANCEL:
        stage_flow_cancel(flow, f->seq);
        require(f->seq == 0 || slot_of(flow, f->seq) == flow->n_seq, "a request that was cancelled has a slot");
        break;
    case WIRE_PING:
    case WIRE_PONG: break;
    default: messages(payload, f->payload, out); break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct strata_errmsg em;
    struct buf out;
    if (size == 0) return 0;
    buf_init(&out, WIRE_FRAME_MAX_CONTROL * 4);
    uint32_t width = data[0] & 7;
    struct stage_flow flow;
    memset(&flow, 0, sizeof flow); /* padding too: states are compared by their bytes */
    flow.count = 1 + (data[0] >> 4 & 1);
    flow.index = (data[0] >> 3 & 1) % flow.count;
    flow.n_ctx = 200;
    flow.n_batch = 8;
    flow.n_vocab = 100;
    flow.n_seq = 1 + (data[0] >> 5);
    data++;
    size--;
    messages(data, size, &out);
    while (size >= WIRE_FRAME_HEADER) {
        struct wire_frame f;
        if (wire_frame_decode(data, width, &f, &em)) break;
        uint8_t again[WIRE_FRAME_HEADER];
        wire_frame_encode(&f, again);
        require(memcmp(again, data, sizeof again) == 0, "a header changes on its way");
        data += WIRE_FRAME_HEADER;
        size -= WIRE_FRAME_HEADER;
        if (f.payload > size) break;
        /* In memory of its own size, so that a byte read behind it is seen. */
        uint8_t *payload = malloc(f.payload ? f.payload : 1);
        require(payload != NULL, "no memory");
        memcpy(payload, data, f.payload);
        one_frame(&flow, &f, payload, &out);
        free(payload);
        data += f.payload;
        size -= f.payload;
    }
    buf_deinit(&out);
    return 0;
}
