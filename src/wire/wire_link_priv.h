/* The inside of a link, shared by wire_link.c and wire_link_send.c. */
#ifndef WIRE_LINK_PRIV_H
#define WIRE_LINK_PRIV_H

#include "wire/wire_link.h"

#include <pthread.h>
#include <stdatomic.h>

enum link_state { LINK_RESOLVING, LINK_CONNECTING, LINK_HANDSHAKE, LINK_OPEN, LINK_LINGER, LINK_CLOSED };

struct wire_link {
    struct wire_loop *loop;
    struct wire_tls *tls;
    struct wire_link_options opt;
    atomic_int refs;
    struct wire_addr peer;
    struct ed25519_pub peer_key;
    bool acceptor;

    /* Written by the loop thread alone; `state` also under the lock when it leaves OPEN for CLOSED. */
    _Atomic enum link_state state;
    bool detached; /* the owner has freed us: no more callbacks */
    int fd;
    uv_poll_t *poll;
    int armed; /* events that poll waits for */
    uv_timer_t timer;
    uint32_t deadline_ms;
    const char *deadline_what;
    uv_getaddrinfo_t gai;
    struct addrinfo *addresses, *next_address;
    bool linger_done;
    ssize_t linger_left;

    /* Reading, loop thread. */
    uint8_t header[WIRE_FRAME_HEADER];
    size_t header_got;
    struct wire_frame frame;
    struct wire_buf *payload;
    size_t payload_got;
    uint32_t width, max_rows;
    bool paused;

    /* Under the lock: every use of ssl, and the output queue out[out_head .. out_head + out_len). */
    pthread_mutex_t lock;
    pthread_cond_t room;
    SSL *ssl;
    bool want_write;
    uint8_t *out;
    size_t out_head, out_len, out_cap;
    bool broken;
    struct strata_errmsg broken_why;
    struct wire_task wake;
    bool wake_pending;
    uint8_t record[16384]; /* header and payload of a small frame side by side: one record, one packet */
};

/* Loop thread: closes and tells the owner. */
void wire_link_fail(struct wire_link *l, const struct strata_errmsg *why);
/* Loop thread: makes the poll handle wait for what the state needs. */
void wire_link_rearm(struct wire_link *l);
/* Loop thread: writes what is queued. Not 0 when the link is broken (broken_why). */
strata_err wire_link_flush(struct wire_link *l);
/* Any thread: has the loop look at the link. */
void wire_link_wake(struct wire_link *l);

#endif
