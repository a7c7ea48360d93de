/*
 * One authenticated connection that carries frames.
 *
 * Life cycle, on the loop thread: wire_link_dial or wire_link_accept gives a link; TCP and TLS are set up under a
 * deadline; the peer's key is shown to `trust`; then on_open is called, then on_frame for every frame, then on_close at
 * most once with the reason. The owner calls wire_link_free when it is done, inside a callback too; after that no
 * callback comes any more. A peer that is not trusted gets a REFUSED frame with the reason, and nothing of what it
 * sends is read; a REFUSED frame from the peer ends in on_close with the peer's reason.
 *
 * wire_link_send works on any thread: it encrypts and writes at once on the calling thread, so that the hot path needs
 * no wake-up of the loop, and queues only what the socket does not take. Other threads that send hold a reference
 * (wire_link_ref). Frames are sent whole and in the order of the calls.
 *
 * SIGPIPE must be ignored by the process.
 */
#ifndef WIRE_LINK_H
#define WIRE_LINK_H

#include "base/log.h"
#include "wire/wire_addr.h"
#include "wire/wire_frame.h"
#include "wire/wire_loop.h"
#include "wire/wire_tls.h"

struct wire_link;

struct wire_link_ops {
    /* Whether the peer may talk to us. */
    bool (*trust)(void *ctx, const struct ed25519_pub *peer);
    void (*on_open)(struct wire_link *l, void *ctx);
    /* payload is NULL when the frame has none; it belongs to the callee, who releases it. */
    void (*on_frame)(struct wire_link *l, void *ctx, const struct wire_frame *f, struct wire_buf *payload);
    /* why->code: EAUTH not trusted (by either side), EBUSY, ETIMEOUT, EPEER anything else. */
    void (*on_close)(struct wire_link *l, void *ctx, const struct strata_errmsg *why);
};

struct wire_link_options {
    const struct wire_link_ops *ops;
    void *ctx;
    const char *self;   /* what we are, for messages: "stage", "coordinator" */
    uint32_t setup_ms;  /* limit for name look-up, TCP and TLS together */
    size_t max_pending; /* most bytes that wait to be sent; 0: 32 MiB. A larger single frame is let through alone. */
};

/* Loop thread. The address is copied; tls must outlive the link. */
strata_err wire_link_dial(struct wire_loop *loop, struct wire_tls *tls, const struct wire_link_options *opt,
                          const struct wire_addr *addr, struct wire_link **out, struct strata_errmsg *em);
/* Loop thread. Takes over a connected socket, on failure too. */
strata_err wire_link_accept(struct wire_loop *loop, struct wire_tls *tls, const struct wire_link_options *opt, int fd,
                            struct wire_link **out, struct strata_errmsg *em);
/* Loop thread: ends the connection and gives up the owner's reference. NULL is allowed. */
void wire_link_free(struct wire_link *l);

struct wire_link *wire_link_ref(struct wire_link *l);
void wire_link_unref(struct wire_link *l);

/* The other end's address: as dialled, or as it reached us. Its key (valid from on_open on). Our own end's address. */
const struct wire_addr *wire_link_peer(const struct wire_link *l);
const struct ed25519_pub *wire_link_peer_key(const struct wire_link *l);
void wire_link_local(const struct wire_link *l, struct wire_addr *out);

/*
 * Sends a frame with f->payload bytes at payload. When more than max_pending bytes wait already, it waits for room
 * until deadline_ns (clock_now_ns); with 0 it does not wait and the link is closed: for small frames, and on the loop
 * thread.
 */
strata_err wire_link_send(struct wire_link *l, const struct wire_frame *f, const void *payload, uint64_t deadline_ns,
                          struct strata_errmsg *em);

/* Loop thread: what data frames may come from now on. Width 0 or max_rows 0 means none of that kind. */
void wire_link_expect(struct wire_link *l, uint32_t width, uint32_t max_rows);
/* Loop thread: stops and resumes reading, so that a fast sender is held back by TCP. */
void wire_link_pause(struct wire_link *l, bool paused);
/* Loop thread: closes with ETIMEOUT "<what> within ..." unless called again in time; 0 switches the limit off. */
void wire_link_deadline(struct wire_link *l, uint32_t ms, const char *what);
/* Loop thread: sends REFUSED with a code and a text, then ends; on_close is not called. The owner still frees. */
void wire_link_refuse(struct wire_link *l, strata_err code, const char *text);
/* Loop thread: what was sent still goes out, then the connection ends; on_close is not called. The owner still frees.
 */
void wire_link_finish(struct wire_link *l);

/* A listening socket. Port 0 takes any free port; *actual tells which. Any thread; EBUSY when the port is in use. */
strata_err wire_listen_open(const struct wire_addr *addr, int *fd, struct wire_addr *actual, struct strata_errmsg *em);

struct wire_listener;
/* Loop thread. on_accept owns the new socket. The listener owns fd, on failure too. */
strata_err wire_listen_start(struct wire_loop *loop, int fd, void (*on_accept)(void *ctx, int fd), void *ctx,
                             struct wire_listener **out, struct strata_errmsg *em);
/* Loop thread. NULL is allowed. */
void wire_listen_free(struct wire_listener *l);

#endif
