/*
 * Any bytes as what a peer sends: frames one after another, through header, message and order checks.
 *
 * The first byte chooses width and place of the stage. Whatever is accepted keeps its promises: payloads match rows,
 * rows fit the batch and the context, messages survive being encoded and decoded again.
 */
#include "stage/stage_flow.h"
#include "wire/wire_frame.h"
#include "wire/wire_msg.h"

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

static uint32_t begin_prompt(const uint8_t *data, size_t size, struct buf *out) {
    struct wire_msg_begin a, b;
    struct strata_errmsg em;
    if (wire_msg_begin_decode(data, size, &a, &em)) return 0;
    require(a.n_prompt >= 1 && a.max_tokens >= 1, "an empty request got through");
    require(a.n_stop_ids <= WIRE_MSG_STOP_IDS && a.n_history <= WIRE_MSG_HISTORY, "too many ids got through");
    buf_clear(out);
    require(!wire_msg_begin_encode(&a, out, &em), "begin does not encode");
    require(!wire_msg_begin_decode(out->data, out->len, &b, &em), "begin does not decode again");
    require(a.sampling.seed == b.sampling.seed && a.n_history == b.n_history && a.n_stop_ids == b.n_stop_ids &&
                memcmp(a.history, b.history, a.n_history * sizeof *a.history) == 0,
            "begin changes on its way");
    uint32_t n = a.n_prompt;
    wire_msg_begin_deinit(&a);
    wire_msg_begin_deinit(&b);
    return n;
}

static void messages(const uint8_t *data, size_t size, struct buf *out) {
    struct strata_errmsg em;
    struct wire_msg_assign assign;
    ROUND_TRIP(hello);
    ROUND_TRIP(welcome);
    ROUND_TRIP(loading);
    ROUND_TRIP(loaded);
    struct wire_msg_fault fault;
    if (!wire_msg_fault_decode(data, size, &fault, &em)) {
        buf_clear(out);
        require(!wire_msg_fault_encode(&fault, out, &em), "fault does not encode");
    }
    if (wire_msg_assign_decode(data, size, &assign, &em)) return;
    require(assign.first < assign.end && assign.index < assign.count, "an impossible assignment got through");
    ROUND_TRIP(assign);
}

static void data_frame(struct stage_flow *flow, const struct wire_frame *f, const uint8_t *payload) {
    enum stage_verdict v = STAGE_DROP;
    struct strata_errmsg em;
    int32_t ids[64];
    uint32_t before = flow->next_pos;
    if (f->type == WIRE_TOKENS && f->n_rows <= sizeof ids / sizeof ids[0]) {
        memcpy(ids, payload, f->payload);
        if (stage_flow_rows(flow, f, ids, &v, &em)) return;
    } else if (f->type == WIRE_HIDDEN) {
        if (stage_flow_rows(flow, f, NULL, &v, &em)) return;
    } else if (f->type == WIRE_TOKEN) {
        memcpy(ids, payload, 4);
        if (stage_flow_token(flow, f, ids[0], &v, &em)) return;
    } else {
        return;
    }
    if (v != STAGE_TAKE) return;
    require(f->seq == flow->seq && f->seq > flow->cancelled, "rows of another request were taken");
    require(f->pos == before && f->n_rows <= flow->n_batch && flow->next_pos == before + f->n_rows &&
                flow->next_pos <= flow->n_ctx,
            "rows were taken that do not fit");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct strata_errmsg em;
    struct buf out;
    if (size == 0) return 0;
    buf_init(&out, WIRE_FRAME_MAX_CONTROL * 4);
    uint32_t width = data[0] & 7;
    struct stage_flow flow = {
        .index = data[0] >> 3 & 1, .count = 1 + (data[0] >> 4 & 1), .n_ctx = 48, .n_batch = 8, .n_vocab = 100};
    if (flow.index >= flow.count) flow.index = 0;
    data++;
    size--;
    messages(data, size, &out);
    while (size >= WIRE_FRAME_HEADER) {
        struct wire_frame f;
        enum stage_verdict v;
        if (wire_frame_decode(data, width, &f, &em)) break;
        uint8_t again[WIRE_FRAME_HEADER];
        wire_frame_encode(&f, again);
        require(memcmp(again, data, sizeof again) == 0, "a header changes on its way");
        data += WIRE_FRAME_HEADER;
        size -= WIRE_FRAME_HEADER;
        if (f.payload > size) break;
        (void)stage_flow_source(&flow, f.seq & 1 ? STAGE_FROM_COORDINATOR : STAGE_FROM_NEIGHBOUR, f.type, &em);
        if (f.type == WIRE_BEGIN) {
            uint32_t n = begin_prompt(data, f.payload, &out);
            if (n) (void)stage_flow_begin(&flow, f.seq, n, &v, &em);
        } else if (f.type == WIRE_CANCEL) {
            stage_flow_cancel(&flow, f.seq);
        } else if (f.type < WIRE_BEGIN) {
            messages(data, f.payload, &out);
        } else {
            data_frame(&flow, &f, data);
        }
        data += f.payload;
        size -= f.payload;
    }
    buf_deinit(&out);
    return 0;
}
