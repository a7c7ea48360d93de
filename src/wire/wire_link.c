/*
 * Links: connection set-up, the state machine, reading. Sending is in wire_link_send.c.
 *
 * Owns the socket, the SSL object and the frame being read. Refuses frames that wire_frame_decode refuses, frames of
 * more rows than were announced with wire_link_expect, and peers whose key the owner does not trust.
 */
#include "wire/wire_link_priv.h"

#include "base/clock.h"
#include "wire/wire_msg.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/sslerr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LINGER_MS = 1000, LINGER_BYTES = 1 << 20, READ_BUDGET = 4 << 20, DEFAULT_SETUP_MS = 5000 };
#define DEFAULT_PENDING ((size_t)32 << 20)

static void on_poll(uv_poll_t *poll, int status, int events);
static void on_timer(uv_timer_t *timer);
static void on_wake(void *ctx);
static void try_next_address(struct wire_link *l, int last_errno);

struct wire_link *wire_link_ref(struct wire_link *l) {
    atomic_fetch_add(&l->refs, 1);
    return l;
}

void wire_link_unref(struct wire_link *l) {
    if (!l || atomic_fetch_sub(&l->refs, 1) != 1) return;
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->room);
    free(l->out);
    free(l);
}

const struct wire_addr *wire_link_peer(const struct wire_link *l) {
    return &l->peer;
}

const struct ed25519_pub *wire_link_peer_key(const struct wire_link *l) {
    return &l->peer_key;
}

void wire_link_local(const struct wire_link *l, struct wire_addr *out) {
    struct sockaddr_storage ss = {0};
    socklen_t len = sizeof ss;
    if (l->fd >= 0) getsockname(l->fd, (struct sockaddr *)&ss, &len);
    wire_addr_from_sockaddr((struct sockaddr *)&ss, out);
}

/* ---- closing ---- */

static void on_poll_closed(uv_handle_t *h) {
    free(h);
}

static void on_timer_closed(uv_handle_t *h) {
    wire_link_unref(h->data);
}

static void drop_socket(struct wire_link *l) {
    if (l->poll) uv_close((uv_handle_t *)l->poll, on_poll_closed);
    l->poll = NULL;
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
}

/* Ends everything; no callback. */
static void close_now(struct wire_link *l) {
    if (l->state == LINK_CLOSED) return;
    if (l->state == LINK_RESOLVING) uv_cancel((uv_req_t *)&l->gai);
    pthread_mutex_lock(&l->lock);
    /* Lets the peer tell an orderly end from a cut; nobody waits for it to get there. */
    if (l->state == LINK_OPEN && !l->broken && l->out_len == 0) SSL_shutdown(l->ssl);
    ERR_clear_error();
    l->state = LINK_CLOSED;
    SSL_free(l->ssl);
    l->ssl = NULL;
    drop_socket(l);
    pthread_cond_broadcast(&l->room);
    pthread_mutex_unlock(&l->lock);
    if (l->addresses) uv_freeaddrinfo(l->addresses);
    l->addresses = NULL;
    wire_buf_release(l->payload);
    l->payload = NULL;
    uv_close((uv_handle_t *)&l->timer, on_timer_closed);
}

void wire_link_fail(struct wire_link *l, const struct strata_errmsg *why) {
    struct strata_errmsg copy = *why;
    if (l->state == LINK_CLOSED) return;
    wire_link_ref(l);
    bool silent = l->state == LINK_LINGER;
    close_now(l);
    if (!silent && !l->detached) l->opt.ops->on_close(l, l->opt.ctx, &copy);
    wire_link_unref(l);
}

void wire_link_free(struct wire_link *l) {
    if (!l) return;
    l->detached = true;
    /* A refused peer still gets to read why; the link ends itself then. */
    if (l->state != LINK_LINGER) close_now(l);
    wire_link_unref(l);
}

static bool all_sent(struct wire_link *l) {
    pthread_mutex_lock(&l->lock);
    bool sent = l->out_len == 0;
    pthread_mutex_unlock(&l->lock);
    return sent;
}

/* The last output is gone: tell the peer so, and wait for it to hang up, since closing with unread input would make the
 * kernel throw away what the peer has not read yet. */
static void linger_flushed(struct wire_link *l) {
    pthread_mutex_lock(&l->lock);
    if (l->ssl) {
        SSL_shutdown(l->ssl);
        ERR_clear_error();
    }
    pthread_mutex_unlock(&l->lock);
    shutdown(l->fd, SHUT_WR);
    l->linger_done = true;
}

void wire_link_finish(struct wire_link *l) {
    if (l->state != LINK_OPEN) {
        close_now(l);
        return;
    }
    l->state = LINK_LINGER;
    l->linger_left = LINGER_BYTES;
    uv_timer_start(&l->timer, on_timer, LINGER_MS, 0);
    if (wire_link_flush(l)) {
        close_now(l);
        return;
    }
    if (all_sent(l)) linger_flushed(l);
    wire_link_rearm(l);
}

void wire_link_refuse(struct wire_link *l, strata_err code, const char *text) {
    struct wire_msg_fault fault = {.code = code};
    struct buf json;
    struct strata_errmsg em;
    snprintf(fault.text, sizeof fault.text, "%s", text);
    buf_init(&json, WIRE_FRAME_MAX_CONTROL);
    if (l->state == LINK_OPEN && !wire_msg_fault_encode(&fault, &json, &em)) {
        struct wire_frame f = {.type = WIRE_REFUSED, .payload = (uint32_t)json.len};
        wire_link_send(l, &f, buf_cstr(&json), 0, &em);
    }
    buf_deinit(&json);
    wire_link_finish(l);
}

static void linger_read(struct wire_link *l) {
    char scrap[16384];
    for (;;) {
        ssize_t n = recv(l->fd, scrap, sizeof scrap, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n <= 0 || (l->linger_left -= n) < 0) {
            close_now(l);
            return;
        }
    }
}

/* ---- set-up ---- */

static void on_timer(uv_timer_t *timer) {
    struct wire_link *l = timer->data;
    struct strata_errmsg em;
    err_set(&em, STRATA_ETIMEOUT, "%s within %.1f s", l->deadline_what, l->deadline_ms / 1e3);
    wire_link_fail(l, &em);
}

void wire_link_deadline(struct wire_link *l, uint32_t ms, const char *what) {
    if (l->state == LINK_CLOSED || l->state == LINK_LINGER) return;
    l->deadline_ms = ms;
    l->deadline_what = what;
    if (ms)
        uv_timer_start(&l->timer, on_timer, ms, 0);
    else
        uv_timer_stop(&l->timer);
}

static void tune(int fd) {
    int one = 1, idle = 10, interval = 5, count = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

void wire_link_rearm(struct wire_link *l) {
    int events = 0;
    if (!l->poll) return;
    pthread_mutex_lock(&l->lock);
    bool queued = l->out_len > 0;
    bool want_write = l->want_write;
    enum link_state state = l->state;
    pthread_mutex_unlock(&l->lock);
    switch (state) {
    case LINK_CONNECTING: events = UV_WRITABLE; break;
    case LINK_HANDSHAKE: events = UV_READABLE | (want_write ? UV_WRITABLE : 0); break;
    case LINK_OPEN: events = (l->paused ? 0 : UV_READABLE) | (queued || want_write ? UV_WRITABLE : 0); break;
    case LINK_LINGER: events = UV_READABLE | (queued ? UV_WRITABLE : 0); break;
    default: return;
    }
    if (events == l->armed) return;
    l->armed = events;
    if (events)
        uv_poll_start(l->poll, events, on_poll);
    else
        uv_poll_stop(l->poll);
}

static strata_err watch(struct wire_link *l, struct strata_errmsg *em) {
    int rc = UV_ENOMEM;
    uv_poll_t *poll = malloc(sizeof *poll);
    if (poll) rc = uv_poll_init(wire_loop_uv(l->loop), poll, l->fd);
    if (rc) {
        free(poll);
        return err_set(em, STRATA_EIO, "cannot watch a socket: %s", uv_strerror(rc));
    }
    poll->data = l;
    l->poll = poll;
    l->armed = 0;
    return STRATA_OK;
}

static strata_err start_tls(struct wire_link *l, struct strata_errmsg *em) {
    l->ssl = SSL_new(l->acceptor ? l->tls->server : l->tls->client);
    if (!l->ssl || SSL_set_fd(l->ssl, l->fd) != 1) {
        ERR_clear_error();
        return err_nomem(em, "a TLS connection");
    }
    if (l->acceptor)
        SSL_set_accept_state(l->ssl);
    else
        SSL_set_connect_state(l->ssl);
    tune(l->fd);
    l->state = LINK_HANDSHAKE;
    return STRATA_OK;
}

static void refuse_untrusted(struct wire_link *l) {
    char key[ED25519_PUB_TEXT], addr[WIRE_ADDR_TEXT], peer[WIRE_ADDR_TEXT];
    struct wire_addr self;
    struct strata_errmsg em;
    ed25519_pub_text(&l->peer_key, key);
    wire_link_local(l, &self);
    wire_addr_text(&self, addr);
    wire_addr_text(&l->peer, peer);
    err_set(&em, STRATA_EAUTH,
            "the %s at %s does not trust this machine's key %s; on that machine run: strata key trust %s", l->opt.self,
            addr, key, key);
    wire_link_refuse(l, STRATA_EAUTH, em.text);
    err_set(&em, STRATA_EAUTH, "this %s does not trust the key %s of %s; to allow it run here: strata key trust %s",
            l->opt.self, key, peer, key);
    if (!l->detached) l->opt.ops->on_close(l, l->opt.ctx, &em);
}

static void read_frames(struct wire_link *l);

static void handshake(struct wire_link *l) {
    struct strata_errmsg em;
    char reason[128];
    pthread_mutex_lock(&l->lock);
    ERR_clear_error();
    errno = 0;
    int rc = SSL_do_handshake(l->ssl);
    int saved = errno;
    int e = rc == 1 ? SSL_ERROR_NONE : SSL_get_error(l->ssl, rc);
    pthread_mutex_unlock(&l->lock);
    if (e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE) {
        l->want_write = e == SSL_ERROR_WANT_WRITE;
        wire_link_rearm(l);
        return;
    }
    l->want_write = false;
    if (e == SSL_ERROR_SYSCALL && saved) {
        err_sys(&em, STRATA_EPEER, saved, "the TLS handshake failed");
        wire_link_fail(l, &em);
        return;
    }
    if (e != SSL_ERROR_NONE) {
        err_set(&em, STRATA_EPEER, "the TLS handshake failed, the other side may not be Strata: %s",
                wire_tls_reason(reason, sizeof reason));
        wire_link_fail(l, &em);
        return;
    }
    if (wire_tls_peer(l->ssl, &l->peer_key, &em)) {
        wire_link_fail(l, &em);
        return;
    }
    uv_timer_stop(&l->timer);
    l->state = LINK_OPEN;
    if (!l->opt.ops->trust(l->opt.ctx, &l->peer_key)) {
        refuse_untrusted(l);
        return;
    }
    l->opt.ops->on_open(l, l->opt.ctx);
    if (l->state != LINK_OPEN) return;
    wire_link_rearm(l);
    read_frames(l);
}

static void connected(struct wire_link *l) {
    struct strata_errmsg em;
    int e = 0;
    socklen_t len = sizeof e;
    if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &e, &len) != 0) e = errno;
    if (e) {
        try_next_address(l, e);
        return;
    }
    if (start_tls(l, &em)) {
        wire_link_fail(l, &em);
        return;
    }
    handshake(l);
}

/* Starts a connection to the next address of the look-up; fails the link when none is left. */
static void try_next_address(struct wire_link *l, int last_errno) {
    struct strata_errmsg em;
    for (; l->next_address; last_errno = errno) {
        struct addrinfo *ai = l->next_address;
        l->next_address = ai->ai_next;
        drop_socket(l);
        l->fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (l->fd < 0) continue;
        if (connect(l->fd, ai->ai_addr, ai->ai_addrlen) != 0 && errno != EINPROGRESS) continue;
        if (watch(l, &em)) {
            wire_link_fail(l, &em);
            return;
        }
        l->state = LINK_CONNECTING;
        wire_link_rearm(l);
        return;
    }
    err_sys(&em, STRATA_EPEER, last_errno, "cannot connect");
    wire_link_fail(l, &em);
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *res) {
    struct wire_link *l = req->data;
    struct strata_errmsg em;
    if (l->state == LINK_CLOSED) {
        if (res) uv_freeaddrinfo(res);
    } else if (status) {
        err_set(&em, STRATA_EPEER, "cannot find the host '%s': %s", l->peer.host, uv_strerror(status));
        l->state = LINK_CONNECTING;
        wire_link_fail(l, &em);
    } else {
        l->addresses = l->next_address = res;
        l->state = LINK_CONNECTING;
        try_next_address(l, EADDRNOTAVAIL);
    }
    wire_link_unref(l);
}

static strata_err link_new(struct wire_loop *loop, struct wire_tls *tls, const struct wire_link_options *opt,
                           struct wire_link **out, struct strata_errmsg *em) {
    struct wire_link *l = calloc(1, sizeof *l);
    if (!l) return err_nomem(em, "a connection");
    l->loop = loop;
    l->tls = tls;
    l->opt = *opt;
    if (!l->opt.max_pending) l->opt.max_pending = DEFAULT_PENDING;
    if (!l->opt.setup_ms) l->opt.setup_ms = DEFAULT_SETUP_MS;
    l->fd = -1;
    /* One reference for the owner, one for the timer handle. */
    atomic_init(&l->refs, 2);
    pthread_mutex_init(&l->lock, NULL);
    clock_cond_init(&l->room);
    l->wake = (struct wire_task){.fn = on_wake, .ctx = l};
    uv_timer_init(wire_loop_uv(loop), &l->timer);
    l->timer.data = l;
    wire_link_deadline(l, l->opt.setup_ms, "the connection was not set up");
    *out = l;
    return STRATA_OK;
}

strata_err wire_link_dial(struct wire_loop *loop, struct wire_tls *tls, const struct wire_link_options *opt,
                          const struct wire_addr *addr, struct wire_link **out, struct strata_errmsg *em) {
    struct wire_link *l;
    char port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    strata_err rc = link_new(loop, tls, opt, &l, em);
    if (rc) return rc;
    l->peer = *addr;
    l->state = LINK_RESOLVING;
    snprintf(port, sizeof port, "%u", addr->port);
    l->gai.data = wire_link_ref(l);
    int e = uv_getaddrinfo(wire_loop_uv(loop), &l->gai, on_resolved, addr->host, port, &hints);
    if (e) {
        wire_link_unref(l);
        l->state = LINK_CONNECTING;
        wire_link_free(l);
        return err_set(em, STRATA_EIO, "cannot look up '%s': %s", addr->host, uv_strerror(e));
    }
    *out = l;
    return STRATA_OK;
}

strata_err wire_link_accept(struct wire_loop *loop, struct wire_tls *tls, const struct wire_link_options *opt, int fd,
                            struct wire_link **out, struct strata_errmsg *em) {
    struct wire_link *l;
    struct sockaddr_storage ss = {0};
    socklen_t len = sizeof ss;
    strata_err rc = link_new(loop, tls, opt, &l, em);
    if (rc) {
        close(fd);
        return rc;
    }
    l->fd = fd;
    l->acceptor = true;
    getpeername(fd, (struct sockaddr *)&ss, &len);
    wire_addr_from_sockaddr((struct sockaddr *)&ss, &l->peer);
    rc = watch(l, em);
    if (!rc) rc = start_tls(l, em);
    if (rc) {
        wire_link_free(l);
        return rc;
    }
    wire_link_rearm(l);
    *out = l;
    return STRATA_OK;
}

/* ---- reading ---- */

void wire_link_expect(struct wire_link *l, uint32_t width, uint32_t max_rows) {
    l->width = width;
    l->max_rows = max_rows;
}

void wire_link_pause(struct wire_link *l, bool paused) {
    if (l->state != LINK_OPEN || l->paused == paused) return;
    l->paused = paused;
    wire_link_rearm(l);
    /* Decrypted bytes may wait inside OpenSSL, where the socket does not show them. */
    if (!paused) wire_link_wake(l);
}

/* The peer's REFUSED: its text becomes the reason of the close. */
static void refused(struct wire_link *l, const struct wire_buf *payload) {
    struct wire_msg_fault fault;
    struct strata_errmsg em;
    if (wire_msg_fault_decode(payload->data, payload->len, &fault, &em))
        err_set(&em, STRATA_EPEER, "the other side refused, without a readable reason");
    else
        err_set(&em, fault.code == STRATA_EAUTH || fault.code == STRATA_EBUSY ? fault.code : STRATA_EPEER, "%s",
                fault.text);
    wire_link_fail(l, &em);
}

static void deliver(struct wire_link *l) {
    struct wire_buf *payload = l->payload;
    struct wire_frame f = l->frame;
    l->payload = NULL;
    l->header_got = 0;
    if (f.type == WIRE_REFUSED) {
        refused(l, payload);
        wire_buf_release(payload);
        return;
    }
    l->opt.ops->on_frame(l, l->opt.ctx, &f, payload);
}

/* A header has arrived: checks it and makes room for the payload. */
static strata_err begin_frame(struct wire_link *l, struct strata_errmsg *em) {
    strata_err rc = wire_frame_decode(l->header, l->width, &l->frame, em);
    if (rc) return rc;
    if (l->frame.n_rows > l->max_rows && l->frame.type != WIRE_TOKEN)
        return err_set(em, STRATA_EPEER, "bad frame: type %u with %u rows, at most %u were agreed on", l->frame.type,
                       l->frame.n_rows, l->max_rows);
    l->payload_got = 0;
    if (l->frame.payload == 0) return STRATA_OK;
    l->payload = wire_buf_get(l->loop, l->frame.payload);
    return l->payload ? STRATA_OK : err_nomem(em, "a frame");
}

/* Reads once, straight to where the bytes belong. 1: got some, 0: nothing now, -1: em says why. */
static int read_once(struct wire_link *l, size_t *got, struct strata_errmsg *em) {
    bool in_header = l->header_got < WIRE_FRAME_HEADER;
    uint8_t *dst = in_header ? l->header + l->header_got : l->payload->data + l->payload_got;
    size_t want = in_header ? WIRE_FRAME_HEADER - l->header_got : l->frame.payload - l->payload_got;
    char reason[128];
    pthread_mutex_lock(&l->lock);
    ERR_clear_error();
    errno = 0;
    int ok = SSL_read_ex(l->ssl, dst, want, got);
    int saved = errno;
    int e = ok ? SSL_ERROR_NONE : SSL_get_error(l->ssl, ok);
    l->want_write = e == SSL_ERROR_WANT_WRITE;
    pthread_mutex_unlock(&l->lock);
    switch (e) {
    case SSL_ERROR_NONE: break;
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: return 0;
    case SSL_ERROR_ZERO_RETURN: err_set(em, STRATA_EPEER, "the other side closed the connection"); return -1;
    case SSL_ERROR_SYSCALL:
        if (saved) {
            err_sys(em, STRATA_EPEER, saved, "the connection broke");
            return -1;
        }
        __attribute__((fallthrough));
    default:
        if (ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING)
            err_set(em, STRATA_EPEER, "the connection was cut; its process may have ended");
        else
            err_set(em, STRATA_EPEER, "the connection broke: %s", wire_tls_reason(reason, sizeof reason));
        ERR_clear_error();
        return -1;
    }
    if (in_header)
        l->header_got += *got;
    else
        l->payload_got += *got;
    return 1;
}

static void read_frames(struct wire_link *l) {
    struct strata_errmsg em;
    size_t total = 0;
    wire_link_ref(l);
    while (l->state == LINK_OPEN && !l->paused) {
        size_t got = 0;
        bool was_header = l->header_got < WIRE_FRAME_HEADER;
        int n = read_once(l, &got, &em);
        if (n < 0) {
            wire_link_fail(l, &em);
            break;
        }
        if (n == 0) break;
        total += got;
        if (was_header && l->header_got == WIRE_FRAME_HEADER && begin_frame(l, &em)) {
            wire_link_fail(l, &em);
            break;
        }
        if (l->header_got == WIRE_FRAME_HEADER && (l->frame.payload == 0 || l->payload_got == l->frame.payload))
            deliver(l);
        /* Other links get their turn; what OpenSSL holds back would not show on the socket, so come back by a task. */
        if (total > READ_BUDGET) {
            wire_link_wake(l);
            break;
        }
    }
    if (l->state == LINK_OPEN) wire_link_rearm(l);
    wire_link_unref(l);
}

/* ---- events ---- */

static void service(struct wire_link *l, bool readable) {
    if (l->state == LINK_OPEN || l->state == LINK_LINGER) {
        if (wire_link_flush(l)) {
            struct strata_errmsg why = l->broken_why;
            /* A write can fail because the peer has hung up after telling us why: read that first. */
            if (l->state == LINK_OPEN) read_frames(l);
            wire_link_fail(l, &why);
            return;
        }
    }
    if (l->state == LINK_LINGER) {
        if (!l->linger_done && all_sent(l)) linger_flushed(l);
        if (readable) linger_read(l);
        if (l->state == LINK_LINGER) wire_link_rearm(l);
        return;
    }
    if (l->state == LINK_OPEN) read_frames(l);
}

static void on_poll(uv_poll_t *poll, int status, int events) {
    struct wire_link *l = poll->data;
    struct strata_errmsg em;
    wire_link_ref(l);
    if (status < 0 && l->state != LINK_CONNECTING) {
        err_set(&em, STRATA_EPEER, "the connection broke: %s", uv_strerror(status));
        if (l->state == LINK_OPEN) read_frames(l);
        wire_link_fail(l, &em);
    } else if (l->state == LINK_CONNECTING) {
        connected(l);
    } else if (l->state == LINK_HANDSHAKE) {
        handshake(l);
    } else {
        service(l, (events & UV_READABLE) != 0);
    }
    wire_link_unref(l);
}

static void on_wake(void *ctx) {
    struct wire_link *l = ctx;
    pthread_mutex_lock(&l->lock);
    l->wake_pending = false;
    pthread_mutex_unlock(&l->lock);
    if (l->state == LINK_OPEN || l->state == LINK_LINGER) service(l, false);
    wire_link_unref(l);
}
