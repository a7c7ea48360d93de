/* Links over loopback: trust on both sides, deadlines, garbage, bounds, order of frames from several threads. */
#include "base/clock.h"
#include "wire/wire_link.h"
#include "wire/wire_rows.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* One end as a test sees it. Everything below `lock` is under it. */
struct end {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct wire_link *link;
    bool trusts, opened, closed;
    struct strata_errmsg why;
    unsigned frames, out_of_order;
    uint32_t next[3]; /* number of the next batch of each request */
    uint64_t bytes;
    bool echo, expect;
};

static struct wire_loop *loop;
static struct wire_tls *tls_a, *tls_b;
static struct end server, client;
static struct wire_listener *listener;
static struct wire_addr where;

static bool on_trust(void *ctx, const struct ed25519_pub *peer) {
    struct end *e = ctx;
    (void)peer;
    return e->trusts;
}

static void on_open(struct wire_link *l, void *ctx) {
    struct end *e = ctx;
    if (e->expect) wire_link_expect(l, 64, 1 << 18);
    pthread_mutex_lock(&e->lock);
    e->opened = true;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static void on_frame(struct wire_link *l, void *ctx, const struct wire_frame *f, struct wire_buf *payload) {
    struct end *e = ctx;
    if (e->echo) wire_link_send(l, f, payload ? payload->data : NULL, 0, NULL);
    pthread_mutex_lock(&e->lock);
    /* A batch has one span: the request is the sender, the position its running number, and so is the first row. */
    if (f->type == WIRE_HIDDEN) {
        struct wire_span span[WIRE_MAX_SPANS];
        uint32_t number;
        memcpy(&number, payload->data + WIRE_ROW_ENTRY, 4);
        if (wire_spans_decode(f, payload->data, span, NULL) || span[0].seq >= 3 || span[0].pos != number ||
            number != e->next[span[0].seq]++)
            e->out_of_order++;
        e->bytes += f->payload;
    }
    e->frames++;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    wire_buf_release(payload);
}

static void on_close(struct wire_link *l, void *ctx, const struct strata_errmsg *why) {
    struct end *e = ctx;
    (void)l;
    pthread_mutex_lock(&e->lock);
    e->closed = true;
    e->why = *why;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

static const struct wire_link_ops ops = {on_trust, on_open, on_frame, on_close};

static void accepted(void *ctx, int fd) {
    struct end *e = ctx;
    struct wire_link *l;
    struct wire_link_options opt = {.ops = &ops, .ctx = e, .self = "stage", .setup_ms = 400};
    if (e->link || wire_link_accept(loop, tls_a, &opt, fd, &l, NULL)) return;
    pthread_mutex_lock(&e->lock);
    e->link = l;
    pthread_mutex_unlock(&e->lock);
}

static void start_on_loop(void *ctx) {
    assert_int_equal(wire_listen_start(loop, *(int *)ctx, accepted, &server, &listener, NULL), 0);
}

static void dial_on_loop(void *ctx) {
    struct wire_link_options opt = {.ops = &ops, .ctx = &client, .self = "coordinator", .setup_ms = 1000};
    (void)ctx;
    assert_int_equal(wire_link_dial(loop, tls_b, &opt, &where, &client.link, NULL), 0);
}

static void end_on_loop(void *ctx) {
    (void)ctx;
    wire_link_free(server.link);
    wire_link_free(client.link);
    wire_listen_free(listener);
}

static void end_init(struct end *e) {
    memset(e, 0, sizeof *e);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, NULL);
    e->trusts = e->expect = true;
}

static struct wire_tls *fresh_tls(void) {
    struct wire_key *key;
    struct wire_tls *tls;
    assert_int_equal(wire_key_generate(&key, NULL), 0);
    assert_int_equal(wire_tls_new(key, &tls, NULL), 0);
    wire_key_free(key);
    return tls;
}

static int setup(void **state) {
    int fd;
    struct wire_addr any = {.host = "127.0.0.1"};
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    end_init(&server);
    end_init(&client);
    tls_a = fresh_tls();
    tls_b = fresh_tls();
    assert_int_equal(wire_loop_start(&loop, NULL), 0);
    assert_int_equal(wire_listen_open(&any, &fd, &where, NULL), 0);
    wire_loop_call(loop, start_on_loop, &fd);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    wire_loop_call(loop, end_on_loop, NULL);
    wire_loop_stop(loop);
    wire_tls_free(tls_a);
    wire_tls_free(tls_b);
    return 0;
}

#define WAIT(e, cond, ms)                                                                                              \
    do {                                                                                                               \
        struct timespec until;                                                                                         \
        clock_gettime(CLOCK_REALTIME, &until);                                                                         \
        until.tv_sec += (ms) / 1000 + 1;                                                                               \
        pthread_mutex_lock(&(e)->lock);                                                                                \
        int waited = 0;                                                                                                \
        while (!(cond) && !waited) waited = pthread_cond_timedwait(&(e)->changed, &(e)->lock, &until);                 \
        bool held = (cond);                                                                                            \
        pthread_mutex_unlock(&(e)->lock);                                                                              \
        if (!held) fail_msg("%s did not happen: %s", #cond, (e)->why.text);                                            \
    } while (0)

static void test_trusted(void **state) {
    struct wire_frame ping = {.type = WIRE_PING};
    (void)state;
    server.echo = true;
    wire_loop_call(loop, dial_on_loop, NULL);
    WAIT(&client, client.opened, 2000);
    assert_int_equal(wire_link_send(client.link, &ping, NULL, 0, NULL), 0);
    WAIT(&client, client.frames == 1, 2000);
    assert_true(ed25519_pub_equal(wire_link_peer_key(client.link), &tls_a->pub));
    WAIT(&server, server.opened, 2000);
    assert_true(ed25519_pub_equal(wire_link_peer_key(server.link), &tls_b->pub));
}

static void test_server_refuses(void **state) {
    char key[ED25519_PUB_TEXT], command[128];
    struct wire_frame ping = {.type = WIRE_PING};
    (void)state;
    server.trusts = false;
    wire_loop_call(loop, dial_on_loop, NULL);
    WAIT(&client, client.opened, 2000);
    /* What an untrusted peer sends is never read. */
    wire_link_send(client.link, &ping, NULL, 0, NULL);
    WAIT(&client, client.closed, 2000);
    WAIT(&server, server.closed, 2000);
    snprintf(command, sizeof command, "strata key trust %s", ed25519_pub_text(&tls_b->pub, key));
    assert_int_equal(client.why.code, STRATA_EAUTH);
    assert_non_null(strstr(client.why.text, "does not trust this machine's key"));
    assert_non_null(strstr(client.why.text, "on that machine run"));
    assert_non_null(strstr(client.why.text, command));
    assert_int_equal(server.why.code, STRATA_EAUTH);
    assert_non_null(strstr(server.why.text, "run here"));
    assert_non_null(strstr(server.why.text, command));
    assert_int_equal(server.frames, 0);
}

static void test_client_refuses(void **state) {
    (void)state;
    client.trusts = false;
    wire_loop_call(loop, dial_on_loop, NULL);
    WAIT(&client, client.closed, 2000);
    WAIT(&server, server.closed, 2000);
    assert_int_equal(client.why.code, STRATA_EAUTH);
    assert_non_null(strstr(client.why.text, "run here"));
    assert_int_equal(server.why.code, STRATA_EAUTH);
    assert_non_null(strstr(server.why.text, "coordinator"));
    assert_false(client.opened);
}

static int raw_connect(void) {
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(where.port)};
    inet_pton(AF_INET, "127.0.0.1", &sa.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    return fd;
}

static void test_garbage(void **state) {
    (void)state;
    int fd = raw_connect();
    assert_true(write(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27) > 0);
    WAIT(&server, server.closed, 2000);
    assert_non_null(strstr(server.why.text, "TLS handshake failed"));
    assert_false(server.opened);
    close(fd);
}

static void test_slow_handshake(void **state) {
    (void)state;
    uint64_t start = clock_now_ns();
    int fd = raw_connect();
    assert_int_equal(write(fd, "\x16", 1), 1);
    WAIT(&server, server.closed, 2000);
    assert_int_equal(server.why.code, STRATA_ETIMEOUT);
    assert_true(clock_since_s(start) < 1.5);
    close(fd);
}

/* A TLS client with a proper key that wants another protocol, or an older TLS, is turned away. */
static void tls_stranger(const char *alpn, size_t alpn_len, int max_version, bool with_cert) {
    struct wire_key *key;
    char byte;
    int fd = raw_connect();
    assert_int_equal(wire_key_generate(&key, NULL), 0);
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_max_proto_version(ctx, max_version);
    if (with_cert) {
        SSL_CTX_use_certificate(ctx, key->cert);
        SSL_CTX_use_PrivateKey(ctx, ed25519_key_evp(key->own));
    }
    if (alpn) SSL_CTX_set_alpn_protos(ctx, (const unsigned char *)alpn, (unsigned)alpn_len);
    SSL *ssl = SSL_new(ctx);
    SSL_set_fd(ssl, fd);
    if (SSL_connect(ssl) == 1) assert_true(SSL_read(ssl, &byte, 1) <= 0);
    WAIT(&server, server.closed, 2000);
    assert_false(server.opened);
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    wire_key_free(key);
    close(fd);
}

static void test_wrong_alpn(void **state) {
    (void)state;
    tls_stranger("\x02h2", 3, TLS1_3_VERSION, true);
}

static void test_no_alpn(void **state) {
    (void)state;
    tls_stranger(NULL, 0, TLS1_3_VERSION, true);
    assert_non_null(strstr(server.why.text, "ALPN"));
}

static void test_tls12(void **state) {
    (void)state;
    tls_stranger("\x08strata/1", 9, TLS1_2_VERSION, true);
}

static void test_no_certificate(void **state) {
    (void)state;
    tls_stranger("\x08strata/1", 9, TLS1_3_VERSION, false);
}

static void open_both(void) {
    wire_loop_call(loop, dial_on_loop, NULL);
    WAIT(&client, client.opened, 2000);
    WAIT(&server, server.opened, 2000);
}

static void test_oversize(void **state) {
    struct wire_frame f = {.type = WIRE_HELLO, .payload = WIRE_FRAME_MAX_CONTROL + 1};
    (void)state;
    open_both();
    uint8_t *big = calloc(1, f.payload);
    wire_link_send(client.link, &f, big, 0, NULL);
    WAIT(&server, server.closed, 2000);
    assert_non_null(strstr(server.why.text, "bad frame"));
    WAIT(&client, client.closed, 2000);
    free(big);
}

static void expect_4095_on_loop(void *ctx) {
    (void)ctx;
    wire_link_expect(server.link, 64, 4095);
}

static void test_unexpected_rows(void **state) {
    int32_t ids[4] = {0};
    struct wire_frame f = {.type = WIRE_TOKENS, .n_rows = 4, .payload = sizeof ids};
    (void)state;
    server.expect = false;
    open_both();
    wire_link_send(client.link, &f, ids, 0, NULL);
    WAIT(&server, server.closed, 2000);
    assert_non_null(strstr(server.why.text, "rows"));
}

/* A batch with one span, as its receiver expects it, in front of and in `data`. */
static struct wire_frame batch(uint32_t seq, uint32_t number, uint32_t n_rows, uint8_t *data) {
    struct wire_span span = {.seq = seq, .pos = number, .n_rows = n_rows};
    wire_spans_encode(&span, 1, data);
    memcpy(data + WIRE_ROW_ENTRY, &number, 4);
    return (struct wire_frame){
        .type = WIRE_HIDDEN, .pos = 1, .n_rows = n_rows, .payload = WIRE_ROW_ENTRY + n_rows * 64 * 4};
}

/* More rows than were agreed on are refused by the header, whatever the frame's size. */
static void test_too_many_rows(void **state) {
    uint8_t *data = calloc(1, WIRE_ROW_ENTRY + 64 * 4 * 4096);
    (void)state;
    open_both();
    wire_loop_call(loop, expect_4095_on_loop, NULL);
    struct wire_frame f = batch(1, 0, 4095, data);
    assert_int_equal(wire_link_send(client.link, &f, data, clock_now_ns() + CLOCK_NS_PER_S, NULL), 0);
    WAIT(&server, server.frames == 1, 2000);
    f = batch(1, 1, 4096, data);
    wire_link_send(client.link, &f, data, clock_now_ns() + CLOCK_NS_PER_S, NULL);
    WAIT(&server, server.closed, 2000);
    assert_non_null(strstr(server.why.text, "4096 rows, at most 4095 were agreed on"));
    assert_int_equal(server.frames, 1);
    free(data);
}

/* Sampled tokens come to a coordinator, which expects rows of no kind. */
static void test_sampled_tokens(void **state) {
    const struct wire_token token[2] = {{1, 5, 7, 0}, {2, 6, 8, WIRE_TOKEN_FINAL}};
    uint8_t data[2 * WIRE_ROW_ENTRY];
    struct wire_frame f = {.type = WIRE_TOKEN, .n_rows = 2, .payload = sizeof data};
    (void)state;
    client.expect = false;
    open_both();
    wire_tokens_encode(token, 2, data);
    assert_int_equal(wire_link_send(server.link, &f, data, 0, NULL), 0);
    WAIT(&client, client.frames == 1, 2000);
    assert_false(client.closed);
}

/* Two threads push frames of all sizes, far beyond what the socket holds: none is lost, torn or reordered. */
struct pusher {
    uint32_t seq;
    unsigned n;
};

static void *push(void *arg) {
    struct pusher *p = arg;
    uint8_t *data = calloc(1, WIRE_ROW_ENTRY + 64 * 4 * 4096);
    for (uint32_t i = 0; i < p->n; i++) {
        struct wire_frame f = batch(p->seq, i, i % 7 == 0 ? 4096 : 1 + i % 90, data);
        struct strata_errmsg em;
        if (wire_link_send(client.link, &f, data, clock_now_ns() + 20 * CLOCK_NS_PER_S, &em)) break;
    }
    free(data);
    return NULL;
}

static void pause_on_loop(void *ctx) {
    wire_link_pause(server.link, *(bool *)ctx);
}

static void test_bulk(void **state) {
    struct pusher a = {1, 200}, b = {2, 200};
    pthread_t ta, tb;
    bool yes = true, no = false;
    (void)state;
    open_both();
    wire_loop_call(loop, pause_on_loop, &yes);
    pthread_create(&ta, NULL, push, &a);
    pthread_create(&tb, NULL, push, &b);
    usleep(100000);
    assert_true(server.frames < 100); /* held back while paused */
    wire_loop_call(loop, pause_on_loop, &no);
    pthread_join(ta, NULL);
    pthread_join(tb, NULL);
    WAIT(&server, server.frames == 400, 20000);
    assert_int_equal(server.out_of_order, 0);
    assert_false(server.closed);
}

/* A peer that does not read: the sender's deadline ends the wait, and the link with it. */
static void test_backpressure_deadline(void **state) {
    bool yes = true;
    struct strata_errmsg em;
    (void)state;
    open_both();
    wire_loop_call(loop, pause_on_loop, &yes);
    uint8_t *rows = calloc(1, WIRE_ROW_ENTRY + 64 * 4 * 65536);
    struct wire_frame f = batch(1, 0, 65536, rows);
    strata_err rc = STRATA_OK;
    for (int i = 0; i < 20 && !rc; i++)
        rc = wire_link_send(client.link, &f, rows, clock_now_ns() + 200 * CLOCK_NS_PER_MS, &em);
    assert_int_equal(rc, STRATA_ETIMEOUT);
    WAIT(&client, client.closed, 2000);
    assert_int_equal(wire_link_send(client.link, &f, rows, 0, &em), STRATA_ETIMEOUT);
    free(rows);
}

static void test_dial_nobody(void **state) {
    struct wire_addr any = {.host = "127.0.0.1"};
    int fd;
    (void)state;
    assert_int_equal(wire_listen_open(&any, &fd, &where, NULL), 0);
    close(fd);
    wire_loop_call(loop, dial_on_loop, NULL);
    WAIT(&client, client.closed, 2000);
    assert_non_null(strstr(client.why.text, "refused"));
}

static void test_dial_no_host(void **state) {
    (void)state;
    strcpy(where.host, "no-such-host.invalid");
    wire_loop_call(loop, dial_on_loop, NULL);
    WAIT(&client, client.closed, 3000);
}

static void test_port_in_use(void **state) {
    struct strata_errmsg em;
    struct wire_addr out;
    int fd;
    (void)state;
    assert_int_equal(wire_listen_open(&where, &fd, &out, &em), STRATA_EBUSY);
    assert_non_null(strstr(em.text, "in use"));
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_trusted),
        T(test_server_refuses),
        T(test_client_refuses),
        T(test_garbage),
        T(test_slow_handshake),
        T(test_wrong_alpn),
        T(test_no_alpn),
        T(test_tls12),
        T(test_no_certificate),
        T(test_oversize),
        T(test_unexpected_rows),
        T(test_too_many_rows),
        T(test_sampled_tokens),
        T(test_bulk),
        T(test_backpressure_deadline),
        T(test_dial_nobody),
        T(test_dial_no_host),
        T(test_port_in_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
