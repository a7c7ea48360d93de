/*
 * A stage's server: listening, the first words with a peer, start and stop. Sessions are in stage_session.c.
 *
 * Owns the loop, the compute thread, the TLS identity and every link. Refuses peers without trust, builds of another
 * version, and a second coordinator.
 */
#include "stage/stage_server_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STOP_MS = 3000 };

/* ---- peers ---- */

struct peer *stage_peer_new(struct stage_server *s) {
    struct peer *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->server = s;
    p->next_peer = s->peers;
    if (s->peers) s->peers->prev_peer = p;
    s->peers = p;
    s->n_peers++;
    return p;
}

void stage_peer_free(struct peer *p) {
    struct stage_server *s = p->server;
    if (p->prev_peer)
        p->prev_peer->next_peer = p->next_peer;
    else
        s->peers = p->next_peer;
    if (p->next_peer) p->next_peer->prev_peer = p->prev_peer;
    s->n_peers--;
    wire_link_free(p->link);
    free(p);
}

void stage_peer_refuse(struct peer *p, strata_err code, const char *text) {
    char addr[WIRE_ADDR_TEXT], quoted[500];
    log_event(p->server->log, LOG_LEVEL_WARN, "refused", "peer=%s reason=%s",
              wire_addr_text(wire_link_peer(p->link), addr), log_quote(quoted, sizeof quoted, text));
    wire_link_refuse(p->link, code, text);
    stage_peer_free(p);
}

void stage_peer_send_json(struct peer *p, uint8_t type, uint32_t seq, const struct buf *json) {
    struct wire_frame f = {.type = type, .seq = seq, .payload = (uint32_t)json->len};
    wire_link_send(p->link, &f, buf_cstr(json), 0, NULL);
}

void stage_peer_send_fault(struct peer *p, uint32_t seq, const struct strata_errmsg *em) {
    struct wire_msg_fault m = {.code = em->code};
    struct buf json;
    snprintf(m.text, sizeof m.text, "%s", em->text);
    buf_init(&json, WIRE_FRAME_MAX_CONTROL);
    if (!wire_msg_fault_encode(&m, &json, NULL)) stage_peer_send_json(p, WIRE_ERROR, seq, &json);
    buf_deinit(&json);
}

/* Looks a key up in the list; *name gets what the list calls it. */
static bool in_trust_list(struct stage_server *s, const struct ed25519_pub *key, char name[WIRE_NAME_MAX]) {
    struct wire_trust fresh = {0};
    struct strata_errmsg em;
    char quoted[500];
    const struct wire_trust *list = &s->trust;
    if (s->key_dir) {
        if (wire_trust_load(s->key_dir, &fresh, &em)) {
            log_event(s->log, LOG_LEVEL_ERROR, "trust-list", "error=%s", log_quote(quoted, sizeof quoted, em.text));
            return false;
        }
        list = &fresh;
    }
    const struct wire_trust_entry *entry = wire_trust_find(list, key);
    name[0] = '\0';
    if (entry) memcpy(name, entry->name, WIRE_NAME_MAX);
    wire_trust_deinit(&fresh);
    return entry != NULL;
}

static bool on_trust(void *ctx, const struct ed25519_pub *key) {
    struct peer *p = ctx;
    const struct session *ss = &p->server->session;
    char name[WIRE_NAME_MAX];
    /* Whom we dialled on the coordinator's word must be exactly who it named. */
    if (p->kind == PEER_NEXT) return ed25519_pub_equal(key, &ss->assign.next_key);
    p->trusted = in_trust_list(p->server, key, name);
    if (p->trusted) return true;
    return ss->state >= SESSION_LOADED && ss->assign.count > 1 && ed25519_pub_equal(key, &ss->assign.prev_key);
}

static strata_err make_welcome(const struct stage_server *s, struct buf *json, struct strata_errmsg *em) {
    struct wire_msg_welcome m = {
        .protocol = WIRE_PROTOCOL, .version = STRATA_VERSION, .layer_count = s->probe.layer_count};
    memcpy(m.model_id, s->probe.model_id, sizeof m.model_id);
    memcpy(m.manifest_sha256, s->probe.manifest_sha256, sizeof m.manifest_sha256);
    return wire_msg_welcome_encode(&m, json, em);
}

static void send_welcome(struct peer *p) {
    struct buf json;
    buf_init(&json, WIRE_FRAME_MAX_CONTROL);
    if (!make_welcome(p->server, &json, NULL)) stage_peer_send_json(p, WIRE_WELCOME, 0, &json);
    buf_deinit(&json);
}

static void hello_control(struct peer *p) {
    struct stage_server *s = p->server;
    char text[512], self[WIRE_ADDR_TEXT], key[ED25519_PUB_TEXT];
    if (!p->trusted) {
        ed25519_pub_text(wire_link_peer_key(p->link), key);
        snprintf(text, sizeof text,
                 "the stage at %s does not trust this machine's key %s as a coordinator; on that "
                 "machine run: strata key trust %s",
                 wire_addr_text(&s->addr, self), key, key);
        stage_peer_refuse(p, STRATA_EAUTH, text);
        return;
    }
    if (s->session.state != SESSION_NONE) {
        snprintf(text, sizeof text, "the stage at %s is busy with a session of %s", wire_addr_text(&s->addr, self),
                 s->session.who);
        stage_peer_refuse(p, STRATA_EBUSY, text);
        return;
    }
    p->kind = PEER_CONTROL;
    stage_session_start(s, p);
    char name[WIRE_NAME_MAX], addr[WIRE_ADDR_TEXT];
    in_trust_list(s, wire_link_peer_key(p->link), name);
    snprintf(s->session.who, sizeof s->session.who, "%s%s%s", name, name[0] ? " at " : "",
             wire_addr_text(wire_link_peer(p->link), addr));
    log_event(s->log, LOG_LEVEL_INFO, "session", "coordinator=\"%s\"", s->session.who);
    send_welcome(p);
}

static void hello_prev(struct peer *p, const struct wire_msg_hello *hello) {
    struct stage_server *s = p->server;
    const char *why = stage_session_check_prev(s, hello, wire_link_peer_key(p->link));
    if (why) {
        stage_peer_refuse(p, STRATA_EPEER, why);
        return;
    }
    p->kind = PEER_PREV;
    s->session.prev = p;
    if (s->session.assign.index > 0) wire_link_expect(p->link, s->session.info.n_embd, s->session.assign.n_batch);
    send_welcome(p);
}

static void on_hello(struct peer *p, const struct wire_frame *f, const struct wire_buf *payload) {
    struct wire_msg_hello hello;
    struct strata_errmsg em;
    char text[512], self[WIRE_ADDR_TEXT];
    if (f->type != WIRE_HELLO) {
        stage_peer_refuse(p, STRATA_EPEER, "the first frame must be HELLO");
        return;
    }
    if (wire_msg_hello_decode(payload->data, payload->len, &hello, &em)) {
        snprintf(text, sizeof text, "bad HELLO: %.400s", em.text);
        stage_peer_refuse(p, STRATA_EPEER, text);
        return;
    }
    if (hello.protocol != WIRE_PROTOCOL || strcmp(hello.version, STRATA_VERSION) != 0) {
        snprintf(text, sizeof text,
                 "the stage at %s runs Strata %s (protocol %d), the other side %s (protocol %u); "
                 "install the same version on both",
                 wire_addr_text(&p->server->addr, self), STRATA_VERSION, WIRE_PROTOCOL, hello.version, hello.protocol);
        stage_peer_refuse(p, STRATA_EPEER, text);
        return;
    }
    wire_link_deadline(p->link, 0, "");
    if (hello.role == WIRE_ROLE_CONTROL)
        hello_control(p);
    else
        hello_prev(p, &hello);
}

static void on_open(struct wire_link *l, void *ctx) {
    struct peer *p = ctx;
    if (p->kind == PEER_NEW) {
        wire_link_deadline(l, STAGE_HELLO_MS, "no HELLO came");
        return;
    }
    struct stage_server *s = p->server;
    struct wire_msg_hello m = {.protocol = WIRE_PROTOCOL,
                               .version = STRATA_VERSION,
                               .role = s->session.assign.index + 1 == s->session.assign.count ? WIRE_ROLE_RETURN
                                                                                              : WIRE_ROLE_FORWARD,
                               .index = s->session.assign.index};
    struct buf json;
    memcpy(m.session, s->session.assign.session, sizeof m.session);
    buf_init(&json, WIRE_FRAME_MAX_CONTROL);
    if (!wire_msg_hello_encode(&m, &json, NULL)) stage_peer_send_json(p, WIRE_HELLO, 0, &json);
    buf_deinit(&json);
    wire_link_deadline(l, STAGE_HELLO_MS, "no answer to HELLO came");
}

static void on_frame(struct wire_link *l, void *ctx, const struct wire_frame *f, struct wire_buf *payload) {
    struct peer *p = ctx;
    (void)l;
    switch (p->kind) {
    case PEER_NEW:
        on_hello(p, f, payload);
        wire_buf_release(payload);
        break;
    case PEER_CONTROL: stage_session_on_control(p->server, f, payload); break;
    case PEER_PREV: stage_session_on_prev(p->server, f, payload); break;
    case PEER_NEXT: stage_session_on_next(p->server, f, payload); break;
    }
}

static void on_close(struct wire_link *l, void *ctx, const struct strata_errmsg *why) {
    struct peer *p = ctx;
    struct stage_server *s = p->server;
    enum peer_kind kind = p->kind;
    char addr[WIRE_ADDR_TEXT], quoted[500];
    log_event(s->log, kind == PEER_NEW ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, "link-closed", "peer=%s reason=%s",
              wire_addr_text(wire_link_peer(l), addr), log_quote(quoted, sizeof quoted, why->text));
    /* A session forgets the peer first, so that ending it does not free the peer twice. */
    if (s->session.control == p) s->session.control = NULL;
    if (s->session.prev == p) s->session.prev = NULL;
    if (s->session.next == p) s->session.next = NULL;
    stage_peer_free(p);
    if (kind != PEER_NEW) stage_session_lost(s, kind, why);
}

const struct wire_link_ops stage_peer_ops = {on_trust, on_open, on_frame, on_close};

/* Makes room for a new connection at the cost of the one that has been unfinished for longest. */
static void drop_oldest_new(struct stage_server *s) {
    struct peer *oldest = NULL;
    for (struct peer *p = s->peers; p; p = p->next_peer)
        if (p->kind == PEER_NEW) oldest = p;
    if (oldest) stage_peer_free(oldest);
}

static void on_accept(void *ctx, int fd) {
    struct stage_server *s = ctx;
    struct wire_link_options opt = {.ops = &stage_peer_ops, .self = "stage", .setup_ms = STAGE_HELLO_MS};
    struct strata_errmsg em;
    if (s->n_peers >= STAGE_MAX_PEERS) drop_oldest_new(s);
    struct peer *p = s->stopping ? NULL : stage_peer_new(s);
    if (!p) {
        close(fd);
        return;
    }
    opt.ctx = p;
    if (wire_link_accept(s->loop, s->tls, &opt, fd, &p->link, &em)) {
        log_event(s->log, LOG_LEVEL_ERROR, "accept", "error=\"%s\"", em.text);
        stage_peer_free(p);
    }
}

/* ---- start and stop ---- */

static void on_tick(uv_timer_t *timer) {
    stage_session_tick(timer->data);
}

static void load_task(void *ctx) {
    struct stage_server *s = ctx;
    if (!s->stopping) stage_session_on_loaded(s);
}

static void room_task(void *ctx) {
    struct stage_server *s = ctx;
    if (s->session.prev) wire_link_pause(s->session.prev->link, false);
}

static void post_load(void *ctx) {
    struct stage_server *s = ctx;
    wire_loop_post(s->loop, &s->load_task);
}

static void post_room(void *ctx) {
    struct stage_server *s = ctx;
    wire_loop_post(s->loop, &s->room_task);
}

static void start_on_loop(void *ctx) {
    struct stage_server *s = ctx;
    uv_timer_init(wire_loop_uv(s->loop), &s->tick);
    s->tick.data = s;
    uv_timer_start(&s->tick, on_tick, STAGE_TICK_MS, STAGE_TICK_MS);
    s->start_rc = wire_listen_start(s->loop, s->listen_fd, on_accept, s, &s->listener, &s->start_em);
    s->listen_fd = -1;
}

static void stop_on_loop(void *ctx) {
    struct stage_server *s = ctx;
    s->stopping = true;
    wire_listen_free(s->listener);
    s->listener = NULL;
    if (s->session.state != SESSION_NONE) stage_session_end(s, "the stage was stopped");
    while (s->peers) stage_peer_free(s->peers);
    if (s->tick.data) uv_close((uv_handle_t *)&s->tick, NULL);
}

static strata_err copy_trust(struct stage_server *s, const struct stage_server_options *opt, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    if (opt->key_dir) {
        s->key_dir = strdup(opt->key_dir);
        return s->key_dir ? STRATA_OK : err_nomem(em, "a path");
    }
    for (size_t i = 0; opt->trust && i < opt->trust->n && !rc; i++) {
        const struct wire_trust_entry *e = &opt->trust->entries[i];
        rc = wire_trust_add(&s->trust, &e->pub, e->name[0] ? e->name : NULL, em);
    }
    return rc;
}

strata_err stage_server_start(const struct stage_server_options *opt, struct stage_server **out,
                              struct strata_errmsg *em) {
    struct stage_server *s = calloc(1, sizeof *s);
    if (!s) return err_nomem(em, "a stage");
    s->backend = opt->backend;
    s->log = opt->log;
    s->listen_fd = -1;
    s->load_task = (struct wire_task){.fn = load_task, .ctx = s};
    s->room_task = (struct wire_task){.fn = room_task, .ctx = s};
    struct stage_compute_events events = {.on_load = post_load, .on_room = post_room, .ctx = s};
    strata_err rc = copy_trust(s, opt, em);
    if (!rc) rc = s->backend.probe(s->backend.self, &s->probe, em);
    if (!rc) rc = wire_tls_new(opt->key, &s->tls, em);
    if (!rc) rc = wire_listen_open(&opt->listen, &s->listen_fd, &s->addr, em);
    if (!rc) rc = wire_loop_start(&s->loop, em);
    if (!rc) rc = stage_compute_start(&s->backend, s->loop, &events, s->log, &s->compute, em);
    if (!rc) {
        wire_loop_call(s->loop, start_on_loop, s);
        rc = s->start_rc;
        if (rc) *em = s->start_em;
    }
    if (rc) {
        stage_server_stop(s);
        return rc;
    }
    *out = s;
    return STRATA_OK;
}

const struct wire_addr *stage_server_addr(const struct stage_server *s) {
    return &s->addr;
}

const struct stage_probe *stage_server_probe(const struct stage_server *s) {
    return &s->probe;
}

bool stage_server_stop(struct stage_server *s) {
    if (!s) return true;
    if (s->listen_fd >= 0) close(s->listen_fd);
    if (s->loop) wire_loop_call(s->loop, stop_on_loop, s);
    /* The compute thread gives its buffers back to the loop, so it must end first. */
    if (!stage_compute_stop(s->compute, STOP_MS)) return false;
    wire_loop_stop(s->loop);
    wire_tls_free(s->tls);
    wire_trust_deinit(&s->trust);
    free(s->key_dir);
    free(s);
    return true;
}
