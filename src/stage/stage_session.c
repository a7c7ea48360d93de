/*
 * One session of a stage: from the coordinator's HELLO until its link ends. Runs on the loop thread.
 *
 * Every frame is checked against the state here before it may reach the compute thread. A neighbour's or coordinator's
 * fault in a request ends that request; a coordinator that breaks the order of the set-up ends the session.
 */
#include "stage/stage_server_priv.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOADING_EVERY_MS = 500, SILENCE_MS = 10000, CONNECT_MS = 10000 };

void stage_session_start(struct stage_server *s, struct peer *control) {
    s->session = (struct session){
        .state = SESSION_WELCOMED, .generation = ++s->generations, .control = control, .heard_ns = clock_now_ns()};
}

void stage_session_end(struct stage_server *s, const char *why) {
    struct session *ss = &s->session;
    char quoted[500];
    if (ss->state == SESSION_NONE) return;
    log_event(s->log, LOG_LEVEL_INFO, "session-end", "reason=%s", log_quote(quoted, sizeof quoted, why));
    struct peer *peers[] = {ss->control, ss->prev, ss->next};
    *ss = (struct session){.state = SESSION_NONE};
    stage_compute_drop(s->compute);
    for (size_t i = 0; i < sizeof peers / sizeof peers[0]; i++)
        if (peers[i]) stage_peer_free(peers[i]);
}

/* Something that concerns the session as a whole: the coordinator is told, and decides. */
static void report(struct stage_server *s, const struct strata_errmsg *em) {
    if (s->session.control) stage_peer_send_fault(s->session.control, 0, em);
}

/* The coordinator broke the protocol: it hears why, and the session is over. */
static void reject_coordinator(struct stage_server *s, const struct strata_errmsg *em) {
    struct peer *control = s->session.control;
    s->session.control = NULL;
    stage_peer_send_fault(control, 0, em);
    wire_link_finish(control->link);
    stage_peer_free(control);
    stage_session_end(s, em->text);
}

/* A request is over: the rest of it is dropped. */
static void end_request(struct stage_server *s, uint32_t seq) {
    struct strata_errmsg em;
    stage_flow_cancel(&s->session.flow, seq);
    if (stage_compute_cancel(s->compute, seq, &em)) report(s, &em);
}

/* It is over because of what a peer sent: the coordinator is told. */
static void fail_request(struct stage_server *s, uint32_t seq, const struct strata_errmsg *em) {
    if (seq == 0) {
        report(s, em);
        return;
    }
    end_request(s, seq);
    if (s->session.control) stage_peer_send_fault(s->session.control, seq, em);
}

void stage_session_lost(struct stage_server *s, enum peer_kind kind, const struct strata_errmsg *why) {
    struct strata_errmsg em;
    char addr[WIRE_ADDR_TEXT];
    if (s->session.state == SESSION_NONE) return;
    if (kind == PEER_CONTROL) {
        stage_session_end(s, "the coordinator went away");
        return;
    }
    if (kind == PEER_NEXT)
        err_set(&em, why->code, "no link to the next stage at %s: %s",
                wire_addr_text(&s->session.assign.next_addr, addr), why->text);
    else
        err_set(&em, why->code, "the link from the stage before was lost: %s", why->text);
    report(s, &em);
}

const char *stage_session_check_prev(const struct stage_server *s, const struct wire_msg_hello *hello,
                                     const struct ed25519_pub *key) {
    const struct session *ss = &s->session;
    const struct wire_msg_assign *a = &ss->assign;
    if (ss->state < SESSION_LOADED) return "this stage has no session for a neighbour to join";
    if (strcmp(hello->session, a->session) != 0) return "this stage is in another session";
    if (a->count < 2 || !ed25519_pub_equal(key, &a->prev_key)) return "this stage expects a neighbour with another key";
    uint32_t before = a->index == 0 ? a->count - 1 : a->index - 1;
    enum wire_role role = a->index == 0 ? WIRE_ROLE_RETURN : WIRE_ROLE_FORWARD;
    if (hello->index != before || hello->role != role) return "this stage expects another neighbour";
    if (ss->prev) return "this stage has that neighbour already";
    return NULL;
}

/* ---- set-up ---- */

static strata_err check_assign(const struct stage_server *s, const struct wire_msg_assign *a,
                               struct strata_errmsg *em) {
    if (strcmp(a->manifest_sha256, s->probe.manifest_sha256) != 0)
        return err_set(em, STRATA_EDIGEST, "another package is wanted (manifest %s) than this stage has (%s)",
                       a->manifest_sha256, s->probe.manifest_sha256);
    if (a->end > s->probe.layer_count)
        return err_set(em, STRATA_EINVAL, "layers %u..%u are wanted of a model with %u", a->first, a->end,
                       s->probe.layer_count);
    return STRATA_OK;
}

static void on_assign(struct stage_server *s, const struct wire_buf *payload) {
    struct session *ss = &s->session;
    struct strata_errmsg em;
    strata_err rc = ss->state == SESSION_WELCOMED ? STRATA_OK : err_set(&em, STRATA_EPEER, "ASSIGN at the wrong time");
    if (!rc) rc = wire_msg_assign_decode(payload->data, payload->len, &ss->assign, &em);
    if (!rc) rc = check_assign(s, &ss->assign, &em);
    if (!rc) rc = stage_compute_load(s->compute, ss->generation, &ss->assign, ss->control->link, &em);
    if (rc) {
        reject_coordinator(s, &em);
        return;
    }
    ss->state = SESSION_LOADING;
    ss->loading_ns = ss->told_ns = clock_now_ns();
    log_event(s->log, LOG_LEVEL_INFO, "loading", "layers=%u..%u place=%u/%u ctx=%u batch=%u slots=%u", ss->assign.first,
              ss->assign.end, ss->assign.index + 1, ss->assign.count, ss->assign.n_ctx, ss->assign.n_batch,
              ss->assign.n_seq);
}

static uint64_t resident_bytes(void) {
    unsigned long long total, resident;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    int n = fscanf(f, "%llu %llu", &total, &resident);
    fclose(f);
    return n == 2 ? resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

void stage_session_on_loaded(struct stage_server *s) {
    struct session *ss = &s->session;
    struct strata_errmsg em;
    struct buf json;
    uint64_t generation;
    strata_err rc = stage_compute_load_result(s->compute, &generation, &ss->info, &em);
    if (ss->state != SESSION_LOADING || generation != ss->generation) return;
    if (rc) {
        reject_coordinator(s, &em);
        return;
    }
    ss->flow = (struct stage_flow){.index = ss->assign.index,
                                   .count = ss->assign.count,
                                   .n_ctx = ss->assign.n_ctx,
                                   .n_batch = ss->assign.n_batch,
                                   .n_seq = ss->assign.n_seq,
                                   .n_vocab = ss->info.n_vocab};
    ss->state = SESSION_LOADED;
    if (ss->assign.index == 0) wire_link_expect(ss->control->link, 0, ss->assign.n_batch);
    struct wire_msg_loaded m = {.weight_bytes = ss->info.weight_bytes,
                                .copied_bytes = ss->info.copied_bytes,
                                .kv_bytes = ss->info.kv_bytes,
                                .scratch_bytes = ss->info.scratch_bytes,
                                .rss_bytes = resident_bytes(),
                                .cache_bytes = ss->info.cache_bytes,
                                .n_embd = ss->info.n_embd,
                                .n_vocab = ss->info.n_vocab,
                                .n_ctx = ss->info.n_ctx,
                                .n_batch = ss->info.n_batch,
                                .n_threads = ss->info.n_threads};
    log_event(s->log, LOG_LEVEL_INFO, "loaded", "layers=%u..%u weights=%" PRIu64 " kv=%" PRIu64 " seconds=%.2f",
              ss->assign.first, ss->assign.end, m.weight_bytes, m.kv_bytes, clock_since_s(ss->loading_ns));
    buf_init(&json, WIRE_FRAME_MAX_CONTROL);
    if (!wire_msg_loaded_encode(&m, &json, NULL)) stage_peer_send_json(ss->control, WIRE_LOADED, 0, &json);
    buf_deinit(&json);
}

static void send_ready(struct stage_server *s) {
    struct wire_frame f = {.type = WIRE_READY, .payload = 2};
    s->session.state = SESSION_READY;
    wire_link_send(s->session.control->link, &f, "{}", 0, NULL);
}

static void on_connect(struct stage_server *s) {
    struct session *ss = &s->session;
    struct strata_errmsg em;
    struct wire_link_options opt = {
        .ops = &stage_peer_ops, .self = "stage", .setup_ms = CONNECT_MS, .max_pending = (size_t)8 << 20};
    if (ss->state != SESSION_LOADED) {
        err_set(&em, STRATA_EPEER, "CONNECT at the wrong time");
        reject_coordinator(s, &em);
        return;
    }
    ss->state = SESSION_CONNECTING;
    if (ss->assign.count == 1) {
        send_ready(s);
        return;
    }
    struct peer *p = stage_peer_new(s);
    if (!p) {
        err_nomem(&em, "a link");
        reject_coordinator(s, &em);
        return;
    }
    p->kind = PEER_NEXT;
    opt.ctx = p;
    if (wire_link_dial(s->loop, s->tls, &opt, &ss->assign.next_addr, &p->link, &em)) {
        stage_peer_free(p);
        reject_coordinator(s, &em);
        return;
    }
    ss->next = p;
}

/* The next stage speaks once: WELCOME. */
void stage_session_on_next(struct stage_server *s, const struct wire_frame *f, struct wire_buf *payload) {
    struct session *ss = &s->session;
    struct wire_msg_welcome m;
    struct strata_errmsg em;
    strata_err rc = STRATA_OK;
    if (ss->state != SESSION_CONNECTING || f->type != WIRE_WELCOME)
        rc = err_set(&em, STRATA_EPEER, "the next stage sent frame type %u at the wrong time", f->type);
    if (!rc) rc = wire_msg_welcome_decode(payload->data, payload->len, &m, &em);
    if (!rc) rc = stage_compute_connect(s->compute, ss->generation, ss->next->link, &em);
    wire_buf_release(payload);
    if (rc) {
        report(s, &em);
        return;
    }
    wire_link_deadline(ss->next->link, 0, "");
    send_ready(s);
}

/* ---- requests ---- */

static strata_err take_begin(struct stage_server *s, const struct wire_frame *f, struct wire_buf *payload,
                             struct strata_errmsg *em) {
    struct wire_msg_begin m;
    enum stage_verdict v;
    strata_err rc = wire_msg_begin_decode(payload->data, payload->len, &m, em);
    if (rc) {
        wire_buf_release(payload);
        return rc;
    }
    rc = stage_flow_begin(&s->session.flow, f->seq, &m, &v, em);
    for (uint32_t i = 0; !rc && i < m.n_history; i++)
        if ((uint32_t)m.history[i] >= s->session.info.n_vocab)
            rc = err_set(em, STRATA_EPEER, "token id %d is not in the vocabulary", m.history[i]);
    if (rc || v != STAGE_TAKE) {
        wire_msg_begin_deinit(&m);
        wire_buf_release(payload);
        return rc;
    }
    return stage_compute_begin(s->compute, f->seq, &m, payload, em);
}

static strata_err take_tokens(struct stage_server *s, const struct wire_frame *f, struct wire_buf *payload,
                              struct strata_errmsg *em) {
    enum stage_verdict v;
    strata_err rc = stage_flow_prompt(&s->session.flow, f, (const int32_t *)(const void *)payload->data, &v, em);
    if (rc || v != STAGE_TAKE) {
        wire_buf_release(payload);
        return rc;
    }
    /* The coordinator is never held back: its prompts fit the context, and PING and CANCEL must get through. */
    return stage_compute_tokens(s->compute, f, payload, em);
}

/* Spans that are out of order end their requests before the batch is queued, so that it is computed without them. */
static strata_err take_hidden(struct stage_server *s, const struct wire_frame *f, struct wire_buf *payload,
                              struct strata_errmsg *em) {
    struct wire_span span[WIRE_MAX_SPANS];
    struct strata_errmsg why;
    bool full = false, any = false;
    strata_err rc = wire_spans_decode(f, payload->data, span, em);
    for (uint32_t i = 0; i < f->pos && !rc; i++) {
        enum stage_verdict v = STAGE_DROP;
        if (stage_flow_span(&s->session.flow, &span[i], &v, &why)) fail_request(s, span[i].seq, &why);
        any |= v == STAGE_TAKE;
    }
    if (rc || !any) {
        wire_buf_release(payload);
        return rc;
    }
    rc = stage_compute_hidden(s->compute, f, payload, &full, em);
    if (full && s->session.prev) wire_link_pause(s->session.prev->link, true);
    return rc;
}

static strata_err take_steps(struct stage_server *s, const struct wire_frame *f, struct wire_buf *payload,
                             struct strata_errmsg *em) {
    struct wire_token token[WIRE_MAX_SPANS];
    struct strata_errmsg why;
    bool any = false;
    strata_err rc = wire_tokens_decode(f, payload->data, token, em);
    for (uint32_t i = 0; i < f->n_rows && !rc; i++) {
        enum stage_verdict v = STAGE_DROP;
        if (stage_flow_token(&s->session.flow, &token[i], &v, &why)) fail_request(s, token[i].seq, &why);
        any |= v == STAGE_TAKE;
    }
    if (rc || !any) {
        wire_buf_release(payload);
        return rc;
    }
    return stage_compute_steps(s->compute, f, payload, em);
}

/* BEGIN, TOKENS, HIDDEN, TOKEN from either side. Takes over the payload. */
static void take(struct stage_server *s, enum stage_source from, const struct wire_frame *f, struct wire_buf *payload) {
    struct strata_errmsg em;
    strata_err rc = s->session.state == SESSION_READY
                        ? STRATA_OK
                        : err_set(&em, STRATA_EPEER, "frame type %u before the stage was ready", f->type);
    if (!rc) rc = stage_flow_source(&s->session.flow, from, f->type, &em);
    if (rc)
        wire_buf_release(payload);
    else if (f->type == WIRE_BEGIN)
        rc = take_begin(s, f, payload, &em);
    else if (f->type == WIRE_TOKENS)
        rc = take_tokens(s, f, payload, &em);
    else if (f->type == WIRE_HIDDEN)
        rc = take_hidden(s, f, payload, &em);
    else
        rc = take_steps(s, f, payload, &em);
    if (rc) fail_request(s, f->seq, &em);
}

void stage_session_on_prev(struct stage_server *s, const struct wire_frame *f, struct wire_buf *payload) {
    take(s, STAGE_FROM_NEIGHBOUR, f, payload);
}

static void on_forget(struct stage_server *s, const struct wire_buf *payload) {
    struct wire_msg_forget m;
    struct strata_errmsg em;
    strata_err rc = s->session.state == SESSION_READY ? wire_msg_forget_decode(payload->data, payload->len, &m, &em)
                                                      : err_set(&em, STRATA_EPEER, "FORGET at the wrong time");
    if (!rc) rc = stage_compute_forget(s->compute, &m, &em);
    if (rc) reject_coordinator(s, &em);
}

void stage_session_on_control(struct stage_server *s, const struct wire_frame *f, struct wire_buf *payload) {
    struct strata_errmsg em;
    struct wire_frame pong = {.type = WIRE_PONG};
    s->session.heard_ns = clock_now_ns();
    switch (f->type) {
    case WIRE_PING: wire_link_send(s->session.control->link, &pong, NULL, 0, NULL); break;
    case WIRE_ASSIGN: on_assign(s, payload); break;
    case WIRE_CONNECT: on_connect(s); break;
    case WIRE_CANCEL:
        if (s->session.state == SESSION_READY) end_request(s, f->seq);
        break;
    case WIRE_FORGET: on_forget(s, payload); break;
    case WIRE_BEGIN:
    case WIRE_TOKENS: take(s, STAGE_FROM_COORDINATOR, f, payload); return;
    default:
        err_set(&em, STRATA_EPEER, "frame type %u is not for a coordinator to send", f->type);
        reject_coordinator(s, &em);
        break;
    }
    wire_buf_release(payload);
}

void stage_session_tick(struct stage_server *s) {
    struct session *ss = &s->session;
    uint64_t now = clock_now_ns();
    struct strata_errmsg em;
    struct buf json;
    if (ss->state == SESSION_NONE) return;
    if (now - ss->heard_ns > SILENCE_MS * CLOCK_NS_PER_MS) {
        err_set(&em, STRATA_ETIMEOUT, "the coordinator was silent for %d s", SILENCE_MS / 1000);
        reject_coordinator(s, &em);
        return;
    }
    if (ss->state != SESSION_LOADING || now - ss->told_ns < LOADING_EVERY_MS * CLOCK_NS_PER_MS) return;
    ss->told_ns = now;
    struct wire_msg_loading m = {.elapsed_ms = (now - ss->loading_ns) / CLOCK_NS_PER_MS};
    buf_init(&json, WIRE_FRAME_MAX_CONTROL);
    if (!wire_msg_loading_encode(&m, &json, NULL)) stage_peer_send_json(ss->control, WIRE_LOADING, 0, &json);
    buf_deinit(&json);
}
