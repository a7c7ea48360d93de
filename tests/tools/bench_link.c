/*
 * bench_link: round-trip time and throughput of one link over loopback, for frames of the sizes that decode steps have.
 *
 * One thread plays the compute thread: it sends a frame with wire_link_send and sleeps until the answer, which the
 * other end's loop sends back. So a round trip is two hops, each with encryption, a system call and a wake-up.
 *
 * usage: bench_link [ROUNDS]
 */
#include "base/clock.h"
#include "wire/wire_link.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bench {
    struct wire_loop *loops[2];
    struct wire_tls *tls[2];
    struct wire_link *links[2];
    struct wire_listener *listener;
    struct wire_addr addr;
    int fd;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool opened[2], closed, done;
    unsigned long answers;
};

static struct bench b = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static bool on_trust(void *ctx, const struct ed25519_pub *peer) {
    (void)ctx;
    return ed25519_pub_equal(peer, &b.tls[0]->pub) || ed25519_pub_equal(peer, &b.tls[1]->pub);
}

static void on_open(struct wire_link *l, void *ctx) {
    int side = *(const int *)ctx;
    wire_link_expect(l, 576, 4096);
    pthread_mutex_lock(&b.lock);
    b.opened[side] = true;
    pthread_cond_broadcast(&b.changed);
    pthread_mutex_unlock(&b.lock);
}

static void on_frame(struct wire_link *l, void *ctx, const struct wire_frame *f, struct wire_buf *payload) {
    if (*(const int *)ctx == 1) {
        /* Bulk frames (seq 2) are answered with one small frame at the end (seq 3). */
        struct wire_frame pong = {.type = WIRE_PONG};
        if (f->seq == 1)
            wire_link_send(l, f, payload->data, 0, NULL);
        else if (f->seq == 3)
            wire_link_send(l, &pong, NULL, 0, NULL);
    } else {
        pthread_mutex_lock(&b.lock);
        b.answers++;
        pthread_cond_broadcast(&b.changed);
        pthread_mutex_unlock(&b.lock);
    }
    wire_buf_release(payload);
}

static void on_close(struct wire_link *l, void *ctx, const struct strata_errmsg *why) {
    (void)l, (void)ctx;
    pthread_mutex_lock(&b.lock);
    if (!b.done) fprintf(stderr, "bench_link: the link closed: %s\n", why->text);
    b.closed = true;
    pthread_cond_broadcast(&b.changed);
    pthread_mutex_unlock(&b.lock);
}

static const struct wire_link_ops ops = {on_trust, on_open, on_frame, on_close};
static int sides[2] = {0, 1};

static void on_accept(void *ctx, int fd) {
    struct wire_link_options opt = {.ops = &ops, .ctx = &sides[1], .self = "bench"};
    (void)ctx;
    wire_link_accept(b.loops[1], b.tls[1], &opt, fd, &b.links[1], NULL);
}

static void listen_on_loop(void *ctx) {
    (void)ctx;
    wire_listen_start(b.loops[1], b.fd, on_accept, NULL, &b.listener, NULL);
}

static void dial_on_loop(void *ctx) {
    struct wire_link_options opt = {.ops = &ops, .ctx = &sides[0], .self = "bench"};
    (void)ctx;
    wire_link_dial(b.loops[0], b.tls[0], &opt, &b.addr, &b.links[0], NULL);
}

static void close_on_loop(void *ctx) {
    int side = *(const int *)ctx;
    wire_link_free(b.links[side]);
    if (side == 1) wire_listen_free(b.listener);
}

static bool wait_answers(unsigned long n) {
    pthread_mutex_lock(&b.lock);
    while (b.answers < n && !b.closed) pthread_cond_wait(&b.changed, &b.lock);
    bool ok = !b.closed;
    pthread_mutex_unlock(&b.lock);
    return ok;
}

static int by_value(const void *x, const void *y) {
    double a = *(const double *)x, c = *(const double *)y;
    return (a > c) - (a < c);
}

static void ping_pong(uint32_t rows, unsigned rounds, const float *data) {
    struct wire_frame f = {
        .type = WIRE_HIDDEN, .seq = 1, .pos = 1, .n_rows = rows, .payload = WIRE_ROW_ENTRY + rows * 576 * 4};
    double *us = calloc(rounds, sizeof *us);
    for (unsigned i = 0; us && i < rounds; i++) {
        uint64_t start = clock_now_ns();
        unsigned long want = b.answers + 1;
        if (wire_link_send(b.links[0], &f, data, start + CLOCK_NS_PER_S, NULL) || !wait_answers(want)) goto out;
        us[i] = clock_since_s(start) * 1e6;
    }
    qsort(us, rounds, sizeof *us, by_value);
    printf("%7.1f KiB round trip: median %6.1f us, 10%% %6.1f us, 99%% %6.1f us\n", f.payload / 1024.0, us[rounds / 2],
           us[rounds / 10], us[rounds / 100 * 99]);
out:
    free(us);
}

static void bulk(unsigned frames, const float *data) {
    struct wire_frame f = {.type = WIRE_HIDDEN, .pos = 1, .n_rows = 512, .payload = WIRE_ROW_ENTRY + 512 * 576 * 4};
    unsigned long want = b.answers + 1;
    uint64_t start = clock_now_ns();
    for (unsigned i = 0; i < frames; i++) {
        f.seq = i + 1 == frames ? 3 : 2;
        if (wire_link_send(b.links[0], &f, data, clock_now_ns() + 10 * CLOCK_NS_PER_S, NULL)) return;
    }
    if (wait_answers(want))
        printf("%7.1f KiB frames, one way: %.2f GB/s\n", f.payload / 1024.0,
               (double)frames * f.payload / clock_since_s(start) / 1e9);
}

static strata_err set_up(struct strata_errmsg *em) {
    struct wire_addr any = {.host = "127.0.0.1"};
    strata_err rc = STRATA_OK;
    for (int i = 0; i < 2 && !rc; i++) {
        struct wire_key *key = NULL;
        rc = wire_key_generate(&key, em);
        if (!rc) rc = wire_tls_new(key, &b.tls[i], em);
        if (!rc) rc = wire_loop_start(&b.loops[i], em);
        wire_key_free(key);
    }
    if (!rc) rc = wire_listen_open(&any, &b.fd, &b.addr, em);
    if (rc) return rc;
    wire_loop_call(b.loops[1], listen_on_loop, NULL);
    wire_loop_call(b.loops[0], dial_on_loop, NULL);
    pthread_mutex_lock(&b.lock);
    while (!(b.opened[0] && b.opened[1]) && !b.closed) pthread_cond_wait(&b.changed, &b.lock);
    pthread_mutex_unlock(&b.lock);
    return b.closed ? err_set(em, STRATA_EPEER, "no connection") : STRATA_OK;
}

int main(int argc, char **argv) {
    struct strata_errmsg em;
    unsigned rounds = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 5000;
    float *data = calloc(512 * 576 + WIRE_ROW_ENTRY, sizeof *data);
    signal(SIGPIPE, SIG_IGN);
    if (!data || rounds < 100 || rounds > 10000000 || set_up(&em)) {
        fprintf(stderr, "bench_link: needs memory, a loopback interface and 100 to 10000000 rounds\n");
        return 1;
    }
    ping_pong(1, rounds, data);
    ping_pong(7, rounds, data);
    bulk(400, data);
    bool failed = b.closed;
    pthread_mutex_lock(&b.lock);
    b.done = true;
    pthread_mutex_unlock(&b.lock);
    for (int i = 0; i < 2; i++) wire_loop_call(b.loops[i], close_on_loop, &sides[i]);
    for (int i = 0; i < 2; i++) {
        wire_loop_stop(b.loops[i]);
        wire_tls_free(b.tls[i]);
    }
    free(data);
    return failed;
}
