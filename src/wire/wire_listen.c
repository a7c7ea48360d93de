/* Listening sockets. See wire_link.h. Owns the socket and its poll handle. */
#include "wire/wire_link.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 64, ACCEPTS_PER_TURN = 16, PAUSE_MS = 200 };

struct wire_listener {
    uv_poll_t poll;
    uv_timer_t timer;
    int fd;
    int open_handles;
    void (*on_accept)(void *ctx, int fd);
    void *ctx;
};

static int bind_one(const struct addrinfo *ai) {
    int one = 1;
    int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0) {
        int e = errno;
        close(fd);
        return -e;
    }
    return fd;
}

strata_err wire_listen_open(const struct wire_addr *addr, int *out, struct wire_addr *actual,
                            struct strata_errmsg *em) {
    char text[WIRE_ADDR_TEXT], port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    wire_addr_text(addr, text);
    snprintf(port, sizeof port, "%u", addr->port);
    int rc = getaddrinfo(addr->host, port, &hints, &list);
    if (rc) return err_set(em, STRATA_EIO, "cannot listen on %s: %s", text, gai_strerror(rc));
    int fd = -EADDRNOTAVAIL;
    for (struct addrinfo *ai = list; ai && fd < 0; ai = ai->ai_next) fd = bind_one(ai);
    freeaddrinfo(list);
    if (fd == -EADDRINUSE)
        return err_set(em, STRATA_EBUSY, "cannot listen on %s: the port is in use by another program", text);
    if (fd < 0) return err_sys(em, STRATA_EIO, -fd, "cannot listen on %s", text);
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    if (getsockname(fd, (struct sockaddr *)&ss, &len) != 0) {
        rc = (int)err_sys(em, STRATA_EIO, errno, "cannot listen on %s", text);
        close(fd);
        return (strata_err)rc;
    }
    wire_addr_from_sockaddr((struct sockaddr *)&ss, actual);
    *out = fd;
    return STRATA_OK;
}

static void on_resume(uv_timer_t *timer);

static void on_readable(uv_poll_t *poll, int status, int events) {
    struct wire_listener *l = poll->data;
    (void)events;
    for (int i = 0; status == 0 && i < ACCEPTS_PER_TURN; i++) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            l->on_accept(l->ctx, fd);
            continue;
        }
        /* Out of descriptors: the connection stays in the backlog, and asking again at once would only burn the CPU. */
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            uv_poll_stop(&l->poll);
            uv_timer_start(&l->timer, on_resume, PAUSE_MS, 0);
        }
        if (errno != ECONNABORTED && errno != EINTR) break;
    }
}

static void on_resume(uv_timer_t *timer) {
    struct wire_listener *l = timer->data;
    uv_poll_start(&l->poll, UV_READABLE, on_readable);
}

static void on_closed(uv_handle_t *h) {
    struct wire_listener *l = h->data;
    if (--l->open_handles == 0) free(l);
}

strata_err wire_listen_start(struct wire_loop *loop, int fd, void (*on_accept)(void *ctx, int fd), void *ctx,
                             struct wire_listener **out, struct strata_errmsg *em) {
    struct wire_listener *l = calloc(1, sizeof *l);
    int rc = UV_ENOMEM;
    if (!l) goto fail;
    l->fd = fd;
    l->on_accept = on_accept;
    l->ctx = ctx;
    rc = uv_poll_init(wire_loop_uv(loop), &l->poll, fd);
    if (rc) goto fail;
    uv_timer_init(wire_loop_uv(loop), &l->timer);
    l->poll.data = l->timer.data = l;
    l->open_handles = 2;
    uv_poll_start(&l->poll, UV_READABLE, on_readable);
    *out = l;
    return STRATA_OK;
fail:
    free(l);
    close(fd);
    return err_set(em, STRATA_EIO, "cannot listen: %s", uv_strerror(rc));
}

void wire_listen_free(struct wire_listener *l) {
    if (!l) return;
    uv_close((uv_handle_t *)&l->poll, on_closed);
    uv_close((uv_handle_t *)&l->timer, on_closed);
    close(l->fd);
}
