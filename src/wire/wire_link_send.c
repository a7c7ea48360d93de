/* Sending on links, from any thread. See wire_link.h. Owns the output queue of a link. */
#include "wire/wire_link_priv.h"

#include "base/clock.h"

#include <errno.h>
#include <openssl/err.h>
#include <stdlib.h>
#include <string.h>

enum { KEEP_QUEUE = 4 << 20 };

static void wake_locked(struct wire_link *l) {
    if (l->wake_pending) return;
    l->wake_pending = true;
    wire_link_ref(l);
    wire_loop_post(l->loop, &l->wake);
}

void wire_link_wake(struct wire_link *l) {
    pthread_mutex_lock(&l->lock);
    if (l->state != LINK_CLOSED) wake_locked(l);
    pthread_mutex_unlock(&l->lock);
}

/* Under the lock. Writes what the socket takes; returns the bytes written and sets broken when the connection is gone.
 */
static size_t write_some(struct wire_link *l, const uint8_t *data, size_t len) {
    size_t done = 0;
    char reason[128];
    while (done < len && !l->broken) {
        size_t n = 0;
        ERR_clear_error();
        errno = 0;
        if (SSL_write_ex(l->ssl, data + done, len - done, &n)) {
            done += n;
            continue;
        }
        int saved = errno;
        int e = SSL_get_error(l->ssl, 0);
        if (e == SSL_ERROR_WANT_WRITE || e == SSL_ERROR_WANT_READ) break;
        l->broken = true;
        if (e == SSL_ERROR_SYSCALL && saved)
            err_sys(&l->broken_why, STRATA_EPEER, saved, "the connection broke");
        else
            err_set(&l->broken_why, STRATA_EPEER, "the connection broke: %s", wire_tls_reason(reason, sizeof reason));
    }
    return done;
}

static strata_err enqueue(struct wire_link *l, const uint8_t *data, size_t len, struct strata_errmsg *em) {
    if (len == 0) return STRATA_OK;
    if (l->out_head && l->out_head + l->out_len + len > l->out_cap) {
        memmove(l->out, l->out + l->out_head, l->out_len);
        l->out_head = 0;
    }
    if (l->out_len + len > l->out_cap) {
        size_t cap = l->out_cap * 2 > l->out_len + len ? l->out_cap * 2 : l->out_len + len;
        uint8_t *out = realloc(l->out, cap);
        if (!out) return err_nomem(em, "the output of a connection");
        l->out = out;
        l->out_cap = cap;
    }
    memcpy(l->out + l->out_head + l->out_len, data, len);
    l->out_len += len;
    return STRATA_OK;
}

/* Under the lock. */
static strata_err usable(const struct wire_link *l, struct strata_errmsg *em) {
    if (l->broken) {
        if (em) *em = l->broken_why;
        return l->broken_why.code;
    }
    if (l->state != LINK_OPEN || !l->ssl) return err_set(em, STRATA_EPEER, "the connection is closed");
    return STRATA_OK;
}

static void break_link(struct wire_link *l, const struct strata_errmsg *why) {
    l->broken = true;
    l->broken_why = *why;
    wake_locked(l);
}

/* Under the lock: until a frame of len bytes fits. A frame that is over the limit alone goes when the queue is empty.
 */
static strata_err wait_for_room(struct wire_link *l, size_t len, uint64_t deadline_ns, struct strata_errmsg *em) {
    strata_err rc = usable(l, em);
    struct strata_errmsg why;
    while (!rc && l->out_len > 0 && l->out_len + len > l->opt.max_pending) {
        if (deadline_ns == 0 || !clock_cond_wait(&l->room, &l->lock, deadline_ns)) {
            rc =
                err_set(&why, STRATA_ETIMEOUT, "the other side does not take what is sent: %zu bytes wait", l->out_len);
            break_link(l, &why);
            if (em) *em = why;
            return rc;
        }
        rc = usable(l, em);
    }
    return rc;
}

/* Under the lock, with an empty queue: header and payload go out from where they are as far as possible. */
static strata_err send_now(struct wire_link *l, const uint8_t *payload, size_t len, struct strata_errmsg *em) {
    size_t inline_len = len < sizeof l->record - WIRE_FRAME_HEADER ? len : sizeof l->record - WIRE_FRAME_HEADER;
    size_t record_len = WIRE_FRAME_HEADER + inline_len;
    if (inline_len) memcpy(l->record + WIRE_FRAME_HEADER, payload, inline_len);
    size_t sent = write_some(l, l->record, record_len);
    strata_err rc = enqueue(l, l->record + sent, record_len - sent, em);
    size_t rest = len - inline_len;
    if (rest && !rc) {
        size_t more = sent == record_len ? write_some(l, payload + inline_len, rest) : 0;
        rc = enqueue(l, payload + inline_len + more, rest - more, em);
    }
    return rc;
}

strata_err wire_link_send(struct wire_link *l, const struct wire_frame *f, const void *payload, uint64_t deadline_ns,
                          struct strata_errmsg *em) {
    struct strata_errmsg local = {0};
    struct strata_errmsg *why = em ? em : &local;
    uint8_t header[WIRE_FRAME_HEADER];
    size_t len = f->payload;
    wire_frame_encode(f, header);
    pthread_mutex_lock(&l->lock);
    strata_err rc = wait_for_room(l, WIRE_FRAME_HEADER + len, deadline_ns, why);
    if (rc) goto out;
    if (l->out_len == 0) {
        memcpy(l->record, header, sizeof header);
        rc = send_now(l, payload, len, why);
    } else {
        rc = enqueue(l, header, sizeof header, why);
        if (!rc) rc = enqueue(l, payload, len, why);
    }
    /* Half a frame in the queue cannot be taken back. */
    if (rc) break_link(l, why);
    if (!rc && l->broken) {
        *why = l->broken_why;
        rc = why->code;
    }
    if (l->out_len > 0 || l->broken) wake_locked(l);
out:
    pthread_mutex_unlock(&l->lock);
    return rc;
}

strata_err wire_link_flush(struct wire_link *l) {
    pthread_mutex_lock(&l->lock);
    if (l->ssl && l->out_len > 0 && !l->broken) {
        size_t n = write_some(l, l->out + l->out_head, l->out_len);
        l->out_head += n;
        l->out_len -= n;
        if (n) pthread_cond_broadcast(&l->room);
        if (l->out_len == 0) {
            l->out_head = 0;
            if (l->out_cap > KEEP_QUEUE) {
                free(l->out);
                l->out = NULL;
                l->out_cap = 0;
            }
        }
    }
    strata_err rc = l->broken ? l->broken_why.code : STRATA_OK;
    pthread_mutex_unlock(&l->lock);
    return rc;
}
