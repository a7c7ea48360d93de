/*
 * Building the chain: dial, compare packages, assign, connect; and noticing that a stage is gone. Loop thread.
 *
 * A stage is lost when its link closes, or when it has been silent for CHAIN_LOST_MS while it is asked every
 * CHAIN_PING_MS. What was lost is named, every request ends, and the whole chain is built anew after a pause.
 */
#include "serve/chain_priv.h"

#include "base/clock.h"
#include "base/digest.h"

#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIAL_MS = 5000, WELCOME_MS = 5000, LATE_TICK_MS = 500 };

static void set_state(struct chain *c, enum chain_state state) {
    pthread_mutex_lock(&c->lock);
    c->state = state;
    if (state == CHAIN_READY) {
        c->stood = true;
        c->em.text[0] = '\0';
    }
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    c->phase_ns = clock_now_ns();
}

void chain_close_links(struct chain *c) {
    for (uint32_t i = 0; i < c->n_stages; i++) {
        wire_link_free(c->stages[i].link);
        c->stages[i].link = NULL;
    }
}

void chain_on_backoff(uv_timer_t *timer) {
    chain_build(timer->data);
}

void chain_fail(struct chain *c, const struct strata_errmsg *em) {
    char quoted[600];
    struct strata_errmsg copy = *em;
    if (c->state == CHAIN_STOPPED || c->state == CHAIN_DEGRADED) return;
    chain_close_links(c);
    uv_timer_stop(&c->verdict);
    c->witness = NULL;
    pthread_mutex_lock(&c->lock);
    bool again = c->stood;
    bool was_ready = c->state == CHAIN_READY;
    /* While it is being rebuilt, why it was lost says more than that it is not back yet. */
    if (was_ready || !again || !c->em.text[0]) c->em = copy;
    c->state = CHAIN_DEGRADED;
    chain_end_jobs(c, &copy);
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (!again) return;
    log_event(c->opt.log, LOG_LEVEL_WARN, was_ready ? "chain-lost" : "chain-rebuild-failed", "retry_ms=%u error=%s",
              c->backoff_ms, log_quote(quoted, sizeof quoted, copy.text));
    uv_timer_start(&c->backoff, chain_on_backoff, c->backoff_ms, 0);
    c->backoff_ms = c->backoff_ms * 2 < CHAIN_BACKOFF_MAX_MS ? c->backoff_ms * 2 : CHAIN_BACKOFF_MAX_MS;
}

/* Fails the chain because of one stage. */
static void stage_fail(struct stage *s, const struct strata_errmsg *why) {
    struct chain *c = s->chain;
    struct strata_errmsg em;
    char name[CHAIN_NAME];
    const char *hint = "";
    chain_stage_name(s, name);
    if (c->state == CHAIN_READY) {
        err_set(&em, STRATA_EPEER, "%s was lost: %s", name, why->text);
    } else {
        if (s->progress == STAGE_DIALLED && why->code == STRATA_EPEER && strstr(why->text, "connect"))
            hint = "; is 'strata stage' running there?";
        err_set(&em, why->code, "%s: %s%s", name, why->text, hint);
    }
    chain_fail(c, &em);
}

static void send_json(struct stage *s, uint8_t type, const struct buf *json) {
    struct wire_frame f = {.type = type, .payload = (uint32_t)json->len};
    wire_link_send(s->link, &f, buf_cstr(json), 0, NULL);
}

/* ---- steps ---- */

static bool all_at(const struct chain *c, enum stage_progress progress) {
    for (uint32_t i = 0; i < c->n_stages; i++)
        if (c->stages[i].progress < progress) return false;
    return true;
}

static void fill_assign(const struct stage *s, struct wire_msg_assign *m) {
    const struct chain *c = s->chain;
    const struct stage *after = &c->stages[(s->index + 1) % c->n_stages];
    const struct stage *before = &c->stages[(s->index + c->n_stages - 1) % c->n_stages];
    *m = (struct wire_msg_assign){.index = s->index,
                                  .count = c->n_stages,
                                  .first = s->first,
                                  .end = s->end,
                                  .n_ctx = c->opt.n_ctx,
                                  .n_batch = c->opt.n_batch,
                                  .n_seq = c->opt.n_seq,
                                  .n_pool = c->opt.n_pool,
                                  /* Each request may have computed one more than is known here. */
                                  .cache_blocks = c->opt.cache_blocks ? c->opt.cache_blocks + c->opt.n_seq : 0,
                                  .n_in_flight = c->opt.n_in_flight,
                                  .kv_type = c->opt.kv_type,
                                  .next_addr = after->addr,
                                  .next_key = after->key,
                                  .prev_key = before->key};
    memcpy(m->session, c->session, sizeof m->session);
    memcpy(m->manifest_sha256, c->manifest_sha256, sizeof m->manifest_sha256);
}

static void assign_all(struct chain *c) {
    struct strata_errmsg em;
    struct buf json;
    set_state(c, CHAIN_LOADING);
    buf_init(&json, WIRE_FRAME_MAX_CONTROL);
    for (uint32_t i = 0; i < c->n_stages; i++) {
        struct wire_msg_assign m;
        fill_assign(&c->stages[i], &m);
        buf_clear(&json);
        if (wire_msg_assign_encode(&m, &json, &em)) {
            chain_fail(c, &em);
            break;
        }
        send_json(&c->stages[i], WIRE_ASSIGN, &json);
    }
    buf_deinit(&json);
}

static void connect_all(struct chain *c) {
    struct wire_frame f = {.type = WIRE_CONNECT, .payload = 2};
    set_state(c, CHAIN_LINKING);
    for (uint32_t i = 0; i < c->n_stages; i++) wire_link_send(c->stages[i].link, &f, "{}", 0, NULL);
}

static void chain_stands(struct chain *c) {
    log_event(c->opt.log, LOG_LEVEL_INFO, "chain-ready", "stages=%u", c->n_stages);
    c->backoff_ms = CHAIN_BACKOFF_MIN_MS;
    set_state(c, CHAIN_READY);
    chain_pump(c);
}

static void on_welcome(struct stage *s, const struct wire_buf *payload) {
    struct chain *c = s->chain;
    struct wire_msg_welcome m;
    struct strata_errmsg em;
    strata_err rc = wire_msg_welcome_decode(payload->data, payload->len, &m, &em);
    if (!rc && s->progress != STAGE_DIALLED) rc = err_set(&em, STRATA_EPEER, "WELCOME at the wrong time");
    if (!rc && (m.protocol != WIRE_PROTOCOL || strcmp(m.version, STRATA_VERSION) != 0))
        rc = err_set(&em, STRATA_EPEER,
                     "it runs Strata %s (protocol %u), this machine %s (protocol %d); install the "
                     "same version on both",
                     m.version, m.protocol, STRATA_VERSION, WIRE_PROTOCOL);
    if (!rc && (strcmp(m.manifest_sha256, c->manifest_sha256) != 0 || m.layer_count != c->opt.layer_count))
        rc = err_set(&em, STRATA_EDIGEST,
                     "it holds another package ('%.100s', manifest %s) than this machine "
                     "(manifest %s); give it the same package",
                     m.model_id, m.manifest_sha256, c->manifest_sha256);
    if (rc) {
        stage_fail(s, &em);
        return;
    }
    wire_link_deadline(s->link, 0, "");
    s->progress = STAGE_WELCOMED;
    if (all_at(c, STAGE_WELCOMED)) assign_all(c);
}

static void on_loaded(struct stage *s, const struct wire_buf *payload) {
    struct chain *c = s->chain;
    struct wire_msg_loaded m;
    struct strata_errmsg em;
    strata_err rc = wire_msg_loaded_decode(payload->data, payload->len, &m, &em);
    if (!rc && (c->state != CHAIN_LOADING || s->progress != STAGE_WELCOMED))
        rc = err_set(&em, STRATA_EPEER, "LOADED at the wrong time");
    if (rc) {
        stage_fail(s, &em);
        return;
    }
    pthread_mutex_lock(&c->lock);
    s->loaded = m;
    pthread_mutex_unlock(&c->lock);
    s->progress = STAGE_IS_LOADED;
    if (!all_at(c, STAGE_IS_LOADED)) return;
    for (uint32_t i = 1; i < c->n_stages; i++) {
        const struct wire_msg_loaded *a = &c->stages[0].loaded, *b = &c->stages[i].loaded;
        if (a->n_embd == b->n_embd && a->n_vocab == b->n_vocab) continue;
        err_set(&em, STRATA_EINTERNAL, "it has a model of %u x %u, the first stage of %u x %u", b->n_embd, b->n_vocab,
                a->n_embd, a->n_vocab);
        stage_fail(&c->stages[i], &em);
        return;
    }
    connect_all(c);
}

static void on_ready(struct stage *s) {
    struct chain *c = s->chain;
    struct strata_errmsg em;
    if (c->state != CHAIN_LINKING || s->progress != STAGE_IS_LOADED) {
        err_set(&em, STRATA_EPEER, "READY at the wrong time");
        stage_fail(s, &em);
        return;
    }
    s->progress = STAGE_IS_READY;
    if (all_at(c, STAGE_IS_READY)) chain_stands(c);
}

static void on_verdict(uv_timer_t *timer) {
    struct chain *c = timer->data;
    struct strata_errmsg em = c->testimony;
    if (c->witness) stage_fail(c->witness, &em);
}

/*
 * A stage reports a fault of the session: as a rule that a neighbour has hung up. Its report may overtake what we see
 * ourselves, the end of our own link to the stage that died. That link names the culprit, so it gets a moment to end.
 */
static void hear(struct stage *s, const struct strata_errmsg *em) {
    struct chain *c = s->chain;
    if (c->state != CHAIN_READY) {
        stage_fail(s, em);
    } else if (!c->witness) {
        c->witness = s;
        c->testimony = *em;
        uv_timer_start(&c->verdict, on_verdict, CHAIN_VERDICT_MS, 0);
    }
}

static void on_error(struct stage *s, uint32_t seq, const struct wire_buf *payload) {
    struct wire_msg_fault m;
    struct strata_errmsg em;
    if (wire_msg_fault_decode(payload->data, payload->len, &m, &em) == STRATA_OK) err_set(&em, m.code, "%s", m.text);
    if (seq == 0)
        hear(s, &em);
    else
        chain_on_fault(s, seq, &em);
}

/* ---- links ---- */

static bool on_trust(void *ctx, const struct ed25519_pub *key) {
    struct stage *s = ctx;
    struct chain *c = s->chain;
    struct wire_trust fresh = {0};
    struct strata_errmsg em;
    const struct wire_trust *list = &c->trust;
    if (c->key_dir) {
        if (wire_trust_load(c->key_dir, &fresh, &em)) {
            log_event(c->opt.log, LOG_LEVEL_ERROR, "trust-list", "error=\"%s\"", em.text);
            return false;
        }
        list = &fresh;
    }
    bool ok = wire_trust_find(list, key) != NULL;
    wire_trust_deinit(&fresh);
    return ok;
}

static void on_open(struct wire_link *l, void *ctx) {
    struct stage *s = ctx;
    struct wire_msg_hello m = {.protocol = WIRE_PROTOCOL, .version = STRATA_VERSION, .role = WIRE_ROLE_CONTROL};
    struct buf json;
    s->key = *wire_link_peer_key(l);
    s->heard_ns = clock_now_ns();
    buf_init(&json, WIRE_FRAME_MAX_CONTROL);
    if (!wire_msg_hello_encode(&m, &json, NULL)) send_json(s, WIRE_HELLO, &json);
    buf_deinit(&json);
    wire_link_deadline(l, WELCOME_MS, "no answer to HELLO came");
}

static void on_frame(struct wire_link *l, void *ctx, const struct wire_frame *f, struct wire_buf *payload) {
    struct stage *s = ctx;
    struct strata_errmsg em;
    (void)l;
    s->heard_ns = clock_now_ns();
    switch (f->type) {
    case WIRE_PONG:
    case WIRE_LOADING: break; /* that it came is the news */
    case WIRE_WELCOME: on_welcome(s, payload); break;
    case WIRE_LOADED: on_loaded(s, payload); break;
    case WIRE_READY: on_ready(s); break;
    case WIRE_ERROR: on_error(s, f->seq, payload); break;
    case WIRE_TOKEN:
        if (chain_on_tokens(s, f, payload, &em)) stage_fail(s, &em);
        break;
    default:
        err_set(&em, STRATA_EPEER, "it sent frame type %u, which is not for a stage to send", f->type);
        stage_fail(s, &em);
        break;
    }
    wire_buf_release(payload);
}

static void on_close(struct wire_link *l, void *ctx, const struct strata_errmsg *why) {
    (void)l;
    stage_fail(ctx, why);
}

static const struct wire_link_ops link_ops = {on_trust, on_open, on_frame, on_close};

/* A stage on another machine cannot reach a neighbour by a name that means "myself". */
static strata_err check_addresses(const struct chain *c, struct strata_errmsg *em) {
    char name[CHAIN_NAME];
    bool any_remote = false;
    for (uint32_t i = 0; i < c->n_stages; i++) any_remote |= !wire_addr_is_loopback(&c->stages[i].addr);
    for (uint32_t i = 0; any_remote && i < c->n_stages; i++)
        if (wire_addr_is_loopback(&c->stages[i].addr))
            return err_set(em, STRATA_EINVAL,
                           "%s is named by an address that only this machine can reach; give the "
                           "address by which the other stages reach it",
                           chain_stage_name(&c->stages[i], name));
    return STRATA_OK;
}

static void dial_all(struct chain *c) {
    struct strata_errmsg em;
    unsigned char raw[(WIRE_MSG_SESSION - 1) / 2];
    set_state(c, CHAIN_DIALLING);
    if (check_addresses(c, &em)) {
        chain_fail(c, &em);
        return;
    }
    if (RAND_bytes(raw, sizeof raw) != 1) {
        err_set(&em, STRATA_EINTERNAL, "no random numbers for a session");
        chain_fail(c, &em);
        return;
    }
    digest_to_hex(raw, sizeof raw, c->session);
    for (uint32_t i = 0; i < c->n_stages && c->state == CHAIN_DIALLING; i++) {
        struct stage *s = &c->stages[i];
        struct wire_link_options opt = {.ops = &link_ops, .ctx = s, .self = "coordinator", .setup_ms = DIAL_MS};
        s->progress = STAGE_DIALLED;
        if (wire_link_dial(c->loop, c->tls, &opt, &s->addr, &s->link, &em)) stage_fail(s, &em);
    }
}

static void work(uv_work_t *req) {
    struct chain *c = req->data;
    c->work_rc = c->opt.prepare(c->opt.prepare_ctx, c->addrs, &c->work_em);
}

static void after_work(uv_work_t *req, int status) {
    struct chain *c = req->data;
    (void)status;
    c->working = false;
    if (c->state == CHAIN_STOPPED) return;
    if (c->work_rc) {
        chain_fail(c, &c->work_em);
        return;
    }
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < c->n_stages; i++) c->stages[i].addr = c->addrs[i];
    pthread_mutex_unlock(&c->lock);
    dial_all(c);
}

void chain_build(struct chain *c) {
    struct strata_errmsg em;
    if (c->state == CHAIN_STOPPED || c->working) return;
    set_state(c, CHAIN_PREPARING);
    if (!c->opt.prepare) {
        dial_all(c);
        return;
    }
    c->work.data = c;
    c->working = true;
    int e = uv_queue_work(wire_loop_uv(c->loop), &c->work, work, after_work);
    if (!e) return;
    c->working = false;
    err_set(&em, STRATA_EIO, "cannot start the stages: %s", uv_strerror(e));
    chain_fail(c, &em);
}

/* ---- watching ---- */

static void watch_stage(struct stage *s, uint64_t now) {
    struct chain *c = s->chain;
    struct wire_frame ping = {.type = WIRE_PING};
    struct strata_errmsg em;
    uint64_t limit = c->state == CHAIN_READY ? CHAIN_LOST_MS : CHAIN_LOADING_MS;
    if (!s->link || s->progress < STAGE_WELCOMED) return;
    if (now - s->heard_ns > limit * CLOCK_NS_PER_MS) {
        err_set(&em, STRATA_EPEER, "it has not answered for %.1f s", (double)(now - s->heard_ns) / 1e9);
        stage_fail(s, &em);
    } else if (now - s->pinged_ns >= CHAIN_PING_MS * CLOCK_NS_PER_MS) {
        s->pinged_ns = now;
        wire_link_send(s->link, &ping, NULL, 0, NULL);
    }
}

void chain_on_tick(uv_timer_t *timer) {
    struct chain *c = timer->data;
    struct strata_errmsg em;
    uint64_t now = clock_now_ns();
    uint64_t gap = now - c->ticked_ns;
    c->ticked_ns = now;
    /* When it was us who slept (a stopped process, a suspended machine), the stages' silence means nothing. */
    if (gap > LATE_TICK_MS * CLOCK_NS_PER_MS)
        for (uint32_t i = 0; i < c->n_stages; i++) c->stages[i].heard_ns = now;
    for (uint32_t i = 0; i < c->n_stages; i++) watch_stage(&c->stages[i], now);
    if (c->state == CHAIN_LINKING && now - c->phase_ns > CHAIN_CONNECT_MS * CLOCK_NS_PER_MS) {
        err_set(&em, STRATA_ETIMEOUT, "the stages could not connect to each other within %d s",
                CHAIN_CONNECT_MS / 1000);
        chain_fail(c, &em);
    }
}
