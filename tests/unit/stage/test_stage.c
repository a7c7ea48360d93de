/*
 * A stage against a coordinator and neighbours that do not follow the order: every violation is answered with a text,
 * the process stays up, and a proper session works afterwards.
 */
#include "base/clock.h"
#include "fake_backend.h"
#include "stage/stage_server.h"
#include "wire/wire_rows.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <openssl/ssl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cmocka.h>

#define D64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define S32 "0123456789abcdef0123456789abcdef"

static struct fake fake;
static struct wire_key *stage_key, *boss_key, *neighbour_key, *stranger_key;
static struct stage_server *server;
static struct strata_errmsg em;

/* A blocking client that can say anything. */
struct client {
    int fd;
    struct wire_tls *tls;
    SSL *ssl;
    struct wire_frame f; /* the latest frame */
    char payload[4096];
};

/* A read with a time limit ends early when the kernel has work for the thread (newer libuv's io_uring): go on then. */
static bool interrupted(const struct client *c, int r) {
    return errno == EINTR && SSL_get_error(c->ssl, r) == SSL_ERROR_WANT_READ;
}

static void client_open(struct client *c, const struct wire_key *key) {
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(stage_server_addr(server)->port)};
    struct timeval limit = {.tv_sec = 5};
    memset(c, 0, sizeof *c);
    inet_pton(AF_INET, "127.0.0.1", &sa.sin_addr);
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(connect(c->fd, (struct sockaddr *)&sa, sizeof sa), 0);
    assert_int_equal(wire_tls_new(key, &c->tls, &em), 0);
    c->ssl = SSL_new(c->tls->client);
    SSL_set_fd(c->ssl, c->fd);
    int r;
    while ((r = SSL_connect(c->ssl)) <= 0 && interrupted(c, r)) {
    }
    assert_int_equal(r, 1);
}

static void client_close(struct client *c) {
    SSL_free(c->ssl);
    wire_tls_free(c->tls);
    close(c->fd);
}

static void say(struct client *c, struct wire_frame f, const void *payload) {
    uint8_t header[WIRE_FRAME_HEADER];
    wire_frame_encode(&f, header);
    SSL_write(c->ssl, header, sizeof header);
    if (f.payload) SSL_write(c->ssl, payload, (int)f.payload);
}

static void say_json(struct client *c, uint8_t type, uint32_t seq, const char *json) {
    say(c, (struct wire_frame){.type = type, .seq = seq, .payload = (uint32_t)strlen(json)}, json);
}

static bool read_all(struct client *c, void *out, size_t n) {
    for (size_t got = 0; got < n;) {
        int r = SSL_read(c->ssl, (char *)out + got, (int)(n - got));
        if (r <= 0 && interrupted(c, r)) continue;
        if (r <= 0) return false;
        got += (size_t)r;
    }
    return true;
}

/* The next frame; false when the stage closes the link (or is silent for 5 s). */
static bool hear(struct client *c) {
    uint8_t header[WIRE_FRAME_HEADER];
    do {
        if (!read_all(c, header, sizeof header)) return false;
        assert_int_equal(wire_frame_decode(header, FAKE_EMBD, &c->f, &em), 0);
        assert_true(c->f.payload < sizeof c->payload);
        if (!read_all(c, c->payload, c->f.payload)) return false;
        c->payload[c->f.payload] = '\0';
    } while (c->f.type == WIRE_LOADING);
    return true;
}

static void expect(struct client *c, uint8_t type) {
    if (!hear(c)) fail_msg("the link closed where frame %u was due", type);
    if (c->f.type != type) fail_msg("frame %u instead of %u: %s", c->f.type, type, c->payload);
}

static void expect_text(struct client *c, uint8_t type, const char *says) {
    expect(c, type);
    if (!strstr(c->payload, says)) fail_msg("'%s' is not in: %s", says, c->payload);
}

static void expect_end(struct client *c) {
    assert_false(hear(c));
}

static const char hello[] = "{\"protocol\":2,\"version\":\"" STRATA_VERSION "\",\"role\":\"control\"}";

static const char *assign_text(uint32_t index, uint32_t count, uint32_t first, uint32_t end, const char *digest) {
    static char text[1024];
    char next[ED25519_PUB_TEXT], addr[WIRE_ADDR_TEXT];
    snprintf(text, sizeof text,
             "{\"session\":\"" S32 "\",\"index\":%u,\"count\":%u,\"first\":%u,\"end\":%u,\"n_ctx\":32,"
             "\"n_batch\":4,\"n_seq\":2,\"n_pool\":64,\"cache_blocks\":0,\"n_in_flight\":1,\"kv_type\":\"f16\","
             "\"manifest_sha256\":\"%s\",\"next_addr\":\"%s\",\"next_key\":\"%s\","
             "\"prev_key\":\"%s\"}",
             index, count, first, end, digest, wire_addr_text(stage_server_addr(server), addr),
             ed25519_pub_text(&neighbour_key->pub, next), ed25519_pub_text(&neighbour_key->pub, next));
    return text;
}

static const char *begin_text(uint32_t n_prompt, uint32_t max_tokens) {
    static char text[512];
    snprintf(text, sizeof text,
             "{\"slot\":0,\"store_base\":0,\"restore\":[],\"temperature\":0,\"top_k\":0,\"top_p\":1,\"min_p\":0,"
             "\"repeat_penalty\":1,"
             "\"repeat_last_n\":0,\"seed\":\"1\",\"max_tokens\":%u,\"n_prompt\":%u,\"stop_ids\":[],\"history\":[]}",
             max_tokens, n_prompt);
    return text;
}

/* A coordinator whose stage serves everything alone. */
static void ready_alone(struct client *c) {
    client_open(c, boss_key);
    say_json(c, WIRE_HELLO, 0, hello);
    expect_text(c, WIRE_WELCOME, D64);
    say_json(c, WIRE_ASSIGN, 0, assign_text(0, 1, 0, FAKE_LAYERS, D64));
    expect_text(c, WIRE_LOADED, "\"n_vocab\":97");
    say_json(c, WIRE_CONNECT, 0, "{}");
    expect(c, WIRE_READY);
}

static void tokens(struct client *c, uint32_t seq, uint32_t pos, uint32_t n) {
    int32_t ids[64];
    for (uint32_t i = 0; i < 64; i++) ids[i] = (int32_t)(pos + i);
    say(c, (struct wire_frame){.type = WIRE_TOKENS, .seq = seq, .pos = pos, .n_rows = n, .payload = n * 4}, ids);
}

/* The one token of the next frame. */
static struct wire_token hear_token(struct client *c) {
    struct wire_token t[WIRE_MAX_SPANS];
    expect(c, WIRE_TOKEN);
    assert_int_equal(c->f.n_rows, 1);
    assert_int_equal(wire_tokens_decode(&c->f, (const uint8_t *)c->payload, t, &em), 0);
    return t[0];
}

/* The stage must work as if nothing had happened. */
static void still_works(void) {
    struct client c;
    int32_t ids[8] = {0, 1, 2};
    for (int tries = 0;; tries++) {
        client_open(&c, boss_key);
        say_json(&c, WIRE_HELLO, 0, hello);
        assert_true(hear(&c));
        if (c.f.type == WIRE_WELCOME) break;
        /* The link before may not have been noticed yet. */
        if (tries > 50) fail_msg("%s", c.payload);
        client_close(&c);
        usleep(20000);
    }
    say_json(&c, WIRE_ASSIGN, 0, assign_text(0, 1, 0, FAKE_LAYERS, D64));
    expect(&c, WIRE_LOADED);
    say_json(&c, WIRE_CONNECT, 0, "{}");
    expect(&c, WIRE_READY);
    say_json(&c, WIRE_BEGIN, 1, begin_text(3, 2));
    tokens(&c, 1, 0, 3);
    for (uint32_t i = 3; i < 5; i++) {
        struct wire_token t = hear_token(&c);
        assert_int_equal(t.id, fake_expect(ids, i));
        assert_int_equal(t.flags, i == 4 ? WIRE_TOKEN_FINAL : 0);
        ids[i] = t.id;
    }
    client_close(&c);
}

static int setup(void **state) {
    struct wire_trust trust = {0};
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    memset(&fake, 0, sizeof fake);
    fake.manifest = D64;
    wire_key_generate(&stage_key, &em);
    wire_key_generate(&boss_key, &em);
    wire_key_generate(&neighbour_key, &em);
    wire_key_generate(&stranger_key, &em);
    wire_trust_add(&trust, &boss_key->pub, "boss", &em);
    struct stage_server_options opt = {
        .backend = fake_backend(&fake), .key = stage_key, .trust = &trust, .listen = {.host = "127.0.0.1"}};
    if (stage_server_start(&opt, &server, &em)) fail_msg("%s", em.text);
    wire_trust_deinit(&trust);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    assert_true(stage_server_stop(server));
    assert_int_equal(fake.units, 0);
    wire_key_free(stage_key);
    wire_key_free(boss_key);
    wire_key_free(neighbour_key);
    wire_key_free(stranger_key);
    return 0;
}

/* ---- the first words ---- */

static void test_first_words(void **state) {
    static const struct {
        uint8_t type;
        const char *json, *says;
    } rows[] = {
        {WIRE_ASSIGN, "{}", "first frame must be HELLO"},
        {WIRE_HELLO, "[]", "bad HELLO"},
        {WIRE_HELLO, "{\"protocol\":7,\"version\":\"" STRATA_VERSION "\",\"role\":\"control\"}", "protocol 7"},
        {WIRE_HELLO, "{\"protocol\":2,\"version\":\"9.9.9\",\"role\":\"control\"}", "9.9.9"},
        {WIRE_HELLO,
         "{\"protocol\":2,\"version\":\"" STRATA_VERSION "\",\"role\":\"forward\",\"session\":\"" S32 "\",\"index\":0}",
         "no session"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct client c;
        client_open(&c, boss_key);
        say_json(&c, rows[i].type, 0, rows[i].json);
        expect_text(&c, WIRE_REFUSED, rows[i].says);
        expect_end(&c);
        client_close(&c);
    }
    still_works();
}

static void test_stranger(void **state) {
    struct client c;
    (void)state;
    client_open(&c, stranger_key);
    say_json(&c, WIRE_HELLO, 0, hello);
    expect_text(&c, WIRE_REFUSED, "strata key trust");
    expect_end(&c);
    client_close(&c);
    still_works();
}

/* A neighbour's key opens nothing but its own place in the session. */
static void test_neighbour_is_no_coordinator(void **state) {
    struct client boss, n;
    (void)state;
    client_open(&boss, boss_key);
    say_json(&boss, WIRE_HELLO, 0, hello);
    expect(&boss, WIRE_WELCOME);
    /* Before the assignment its key is a stranger's. */
    client_open(&n, neighbour_key);
    say_json(&n, WIRE_HELLO, 0, hello);
    expect_text(&n, WIRE_REFUSED, "strata key trust");
    client_close(&n);
    say_json(&boss, WIRE_ASSIGN, 0, assign_text(1, 2, 3, FAKE_LAYERS, D64));
    expect(&boss, WIRE_LOADED);
    client_open(&n, neighbour_key);
    say_json(&n, WIRE_HELLO, 0, hello);
    expect_text(&n, WIRE_REFUSED, "as a coordinator");
    client_close(&n);
    static const char *const wrong[] = {
        "{\"protocol\":2,\"version\":\"" STRATA_VERSION "\",\"role\":\"return\",\"session\":\"" S32 "\",\"index\":0}",
        "{\"protocol\":2,\"version\":\"" STRATA_VERSION "\",\"role\":\"forward\",\"session\":\"" S32 "\",\"index\":1}",
        "{\"protocol\":2,\"version\":\"" STRATA_VERSION
        "\",\"role\":\"forward\",\"session\":\"ffffffffffffffffffffffffffffffff\",\"index\":0}",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        client_open(&n, neighbour_key);
        say_json(&n, WIRE_HELLO, 0, wrong[i]);
        expect_text(&n, WIRE_REFUSED, "this stage");
        client_close(&n);
    }
    client_close(&boss);
    still_works();
}

/* ---- a coordinator that breaks the order of the set-up ---- */

static void test_setup_order(void **state) {
    struct client c;
    (void)state;
    static const struct {
        const char *what;
        uint8_t type;
        uint32_t first, end, count;
        const char *digest, *says;
    } rows[] = {
        {"CONNECT first", WIRE_CONNECT, 0, 0, 0, NULL, "CONNECT at the wrong time"},
        {"a stage's frame", WIRE_LOADED, 0, 0, 0, NULL, "not for a coordinator"},
        {"another package", WIRE_ASSIGN, 0, 6, 1, "ffff456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
         "another package"},
        {"too many layers", WIRE_ASSIGN, 0, 7, 1, D64, "of a model with 6"},
        {"no layers", WIRE_ASSIGN, 3, 3, 1, D64, "first"},
        {"too many stages", WIRE_ASSIGN, 0, 6, 65, D64, "count"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        client_open(&c, boss_key);
        say_json(&c, WIRE_HELLO, 0, hello);
        if (!hear(&c) || c.f.type != WIRE_WELCOME) fail_msg("%s: %s", rows[i].what, c.payload);
        say_json(&c, rows[i].type, 0,
                 rows[i].type == WIRE_ASSIGN ? assign_text(0, rows[i].count, rows[i].first, rows[i].end, rows[i].digest)
                                             : "{}");
        expect_text(&c, WIRE_ERROR, rows[i].says);
        expect_end(&c);
        client_close(&c);
        usleep(20000);
    }
    /* Twice is wrong, too. */
    client_open(&c, boss_key);
    say_json(&c, WIRE_HELLO, 0, hello);
    expect(&c, WIRE_WELCOME);
    say_json(&c, WIRE_ASSIGN, 0, assign_text(0, 1, 0, 6, D64));
    say_json(&c, WIRE_ASSIGN, 0, assign_text(0, 1, 0, 6, D64));
    expect_text(&c, WIRE_ERROR, "ASSIGN at the wrong time");
    client_close(&c);
    still_works();
}

static void test_rows_before_ready(void **state) {
    struct client c;
    (void)state;
    client_open(&c, boss_key);
    say_json(&c, WIRE_HELLO, 0, hello);
    expect(&c, WIRE_WELCOME);
    say_json(&c, WIRE_BEGIN, 1, begin_text(3, 2));
    expect_text(&c, WIRE_ERROR, "before the stage was ready");
    assert_int_equal(c.f.seq, 1);
    say(&c, (struct wire_frame){.type = WIRE_PING}, NULL);
    expect(&c, WIRE_PONG);
    client_close(&c);
    still_works();
}

/* ---- faults inside requests: the request ends, the session goes on ---- */

static void test_request_faults(void **state) {
    struct client c;
    (void)state;
    ready_alone(&c);
    tokens(&c, 1, 0, 3);
    expect_text(&c, WIRE_ERROR, "not begun");
    say_json(&c, WIRE_BEGIN, 2, "{}");
    expect_text(&c, WIRE_ERROR, "temperature");
    assert_int_equal(c.f.seq, 2);
    say_json(&c, WIRE_BEGIN, 3, begin_text(32, 1));
    expect_text(&c, WIRE_ERROR, "does not fit");
    say_json(&c, WIRE_BEGIN, 4, begin_text(3, 1));
    tokens(&c, 4, 1, 2);
    expect_text(&c, WIRE_ERROR, "position 1");
    tokens(&c, 4, 0, 3); /* of a request that has failed: dropped */
    say_json(&c, WIRE_BEGIN, 5, begin_text(1, 1));
    int32_t bad = FAKE_VOCAB;
    say(&c, (struct wire_frame){.type = WIRE_TOKENS, .seq = 5, .n_rows = 1, .payload = 4}, &bad);
    expect_text(&c, WIRE_ERROR, "vocabulary");
    say_json(&c, WIRE_BEGIN, 6, begin_text(3, 1));
    tokens(&c, 6, 0, 3);
    struct wire_token t = hear_token(&c);
    assert_int_equal(t.seq, 6);
    assert_int_equal(t.flags, WIRE_TOKEN_FINAL);
    /* A frame that no coordinator has is no fault of a request: it ends the session. */
    uint8_t entry[WIRE_ROW_ENTRY];
    wire_tokens_encode(&t, 1, entry);
    say(&c, (struct wire_frame){.type = WIRE_TOKEN, .n_rows = 1, .payload = sizeof entry}, entry);
    expect_text(&c, WIRE_ERROR, "not for a coordinator");
    expect_end(&c);
    client_close(&c);
    still_works();
}

static void test_too_many_rows(void **state) {
    struct client c;
    (void)state;
    ready_alone(&c);
    say_json(&c, WIRE_BEGIN, 1, begin_text(20, 1));
    tokens(&c, 1, 0, 5); /* refused by its header: nothing is read, the link ends */
    expect_end(&c);
    client_close(&c);
    still_works();
}

static void test_hidden_faults(void **state) {
    struct client boss, n;
    uint8_t rows[WIRE_ROW_ENTRY + 4 * FAKE_EMBD * 4] = {0};
    static const struct wire_span span = {.seq = 1, .n_rows = 2, .flags = WIRE_SPAN_SAMPLE};
    struct wire_frame f = {.type = WIRE_HIDDEN, .pos = 1, .n_rows = 2, .payload = WIRE_ROW_ENTRY + 2 * FAKE_EMBD * 4};
    (void)state;
    wire_spans_encode(&span, 1, rows);
    client_open(&boss, boss_key);
    say_json(&boss, WIRE_HELLO, 0, hello);
    expect(&boss, WIRE_WELCOME);
    say_json(&boss, WIRE_ASSIGN, 0, assign_text(1, 2, 3, FAKE_LAYERS, D64));
    expect(&boss, WIRE_LOADED);
    client_open(&n, neighbour_key);
    say_json(&n, WIRE_HELLO, 0,
             "{\"protocol\":2,\"version\":\"" STRATA_VERSION "\",\"role\":\"forward\",\"session\":\"" S32
             "\",\"index\":0}");
    expect(&n, WIRE_WELCOME);
    say(&n, f, rows);
    expect_text(&boss, WIRE_ERROR, "before the stage was ready");
    /* A frame of another width ends that link, and the coordinator hears of it. */
    f.payload += 4;
    say(&n, f, rows);
    expect_text(&boss, WIRE_ERROR, "link from the stage before was lost");
    assert_int_equal(boss.f.seq, 0);
    client_close(&n);
    client_close(&boss);
    still_works();
}

static void test_garbage_frame(void **state) {
    struct client c;
    (void)state;
    ready_alone(&c);
    SSL_write(c.ssl, "this is no frame, whatever it may be", 36);
    expect_end(&c);
    client_close(&c);
    still_works();
}

static void test_busy(void **state) {
    struct client a, b;
    (void)state;
    ready_alone(&a);
    client_open(&b, boss_key);
    say_json(&b, WIRE_HELLO, 0, hello);
    expect_text(&b, WIRE_REFUSED, "busy with a session of boss");
    expect_end(&b);
    client_close(&b);
    say(&a, (struct wire_frame){.type = WIRE_PING}, NULL);
    expect(&a, WIRE_PONG);
    client_close(&a);
    still_works();
}

/* Cut the connection after every prefix of a whole session: the stage must be free again each time. */
static void test_cut_anywhere(void **state) {
    (void)state;
    for (int cut = 0; cut < 6; cut++) {
        struct client c;
        client_open(&c, boss_key);
        if (cut > 0) say_json(&c, WIRE_HELLO, 0, hello);
        if (cut > 1) say_json(&c, WIRE_ASSIGN, 0, assign_text(0, 1, 0, 6, D64));
        if (cut > 2) expect(&c, WIRE_WELCOME);
        if (cut > 2) expect(&c, WIRE_LOADED);
        if (cut > 3) say_json(&c, WIRE_CONNECT, 0, "{}");
        if (cut > 4) {
            say_json(&c, WIRE_BEGIN, 1, begin_text(3, 20));
            tokens(&c, 1, 0, 3);
        }
        client_close(&c);
        usleep(30000);
    }
    still_works();
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_first_words),   T(test_stranger),          T(test_neighbour_is_no_coordinator),
        T(test_setup_order),   T(test_rows_before_ready), T(test_request_faults),
        T(test_too_many_rows), T(test_hidden_faults),     T(test_garbage_frame),
        T(test_busy),          T(test_cut_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
