/* Control messages: round trips, and every missing, ill-typed or out-of-range field is refused by name. */
#include "wire/wire_frame.h"
#include "wire/wire_msg.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define D64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define S32 "0123456789abcdef0123456789abcdef"
#define K1 "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
#define ASSIGN_HEAD "\"session\":\"" S32 "\",\"n_ctx\":64,\"n_batch\":8,\"manifest_sha256\":\"" D64 "\""
#define NEIGHBOURS "\"next_addr\":\"h:1\",\"next_key\":\"" K1 "\",\"prev_key\":\"" K1 "\""
#define SAMPLING "\"temperature\":1,\"top_k\":0,\"top_p\":1,\"min_p\":0,\"repeat_penalty\":1,\"repeat_last_n\":0"

enum kind { HELLO, WELCOME, ASSIGN, LOADING, LOADED, FAULT, BEGIN };

static strata_err decode(enum kind kind, const char *text, size_t len, struct strata_errmsg *em) {
    struct wire_msg_hello hello;
    struct wire_msg_welcome welcome;
    struct wire_msg_assign assign;
    struct wire_msg_loading loading;
    struct wire_msg_loaded loaded;
    struct wire_msg_fault fault;
    struct wire_msg_begin begin = {0};
    strata_err rc = STRATA_EINTERNAL;
    switch (kind) {
    case HELLO: rc = wire_msg_hello_decode(text, len, &hello, em); break;
    case WELCOME: rc = wire_msg_welcome_decode(text, len, &welcome, em); break;
    case ASSIGN: rc = wire_msg_assign_decode(text, len, &assign, em); break;
    case LOADING: rc = wire_msg_loading_decode(text, len, &loading, em); break;
    case LOADED: rc = wire_msg_loaded_decode(text, len, &loaded, em); break;
    case FAULT: rc = wire_msg_fault_decode(text, len, &fault, em); break;
    case BEGIN:
        rc = wire_msg_begin_decode(text, len, &begin, em);
        wire_msg_begin_deinit(&begin);
        break;
    }
    return rc;
}

static const struct {
    enum kind kind;
    const char *text;
    const char *says; /* NULL: accepted */
} rows[] = {
    {HELLO, "{\"protocol\":1,\"version\":\"0.1.0\",\"role\":\"control\"}", NULL},
    {HELLO, "{\"protocol\":1,\"version\":\"0.1.0\",\"role\":\"control\",\"future\":{}}", NULL},
    {HELLO, "{\"protocol\":1,\"version\":\"0.1.0\",\"role\":\"return\",\"session\":\"" S32 "\",\"index\":1}", NULL},
    {HELLO, "{\"protocol\":1,\"version\":\"0.1.0\",\"role\":\"return\",\"index\":1}", "session"},
    {HELLO, "{\"protocol\":1,\"version\":\"0.1.0\",\"role\":\"forward\",\"session\":\"" S32 "\",\"index\":64}",
     "index"},
    {HELLO, "{\"protocol\":1,\"version\":\"0.1.0\",\"role\":\"forward\",\"session\":\"ABC\",\"index\":1}", "session"},
    {HELLO, "{\"protocol\":1,\"version\":\"0.1.0\",\"role\":\"king\"}", "king"},
    {HELLO, "{\"protocol\":1,\"version\":\"0.1.0\"}", "role"},
    {HELLO, "{\"protocol\":-1,\"version\":\"0.1.0\",\"role\":\"control\"}", "protocol"},
    {HELLO, "{\"protocol\":\"1\",\"version\":\"0.1.0\",\"role\":\"control\"}", "protocol"},
    {HELLO, "{\"protocol\":4294967296,\"version\":\"0.1.0\",\"role\":\"control\"}", "protocol"},
    {HELLO, "{\"protocol\":1,\"version\":\"" D64 "\",\"role\":\"control\"}", "version"},
    {HELLO, "{\"protocol\":1,\"protocol\":2,\"version\":\"x\",\"role\":\"control\"}", "JSON"},
    {HELLO, "[]", "object"},
    {HELLO, "{}", "protocol"},
    {HELLO, "", "JSON"},
    {HELLO, "{\"protocol\":1", "JSON"},
    {WELCOME, "{\"protocol\":1,\"version\":\"1\",\"model_id\":\"m\",\"manifest_sha256\":\"" D64 "\",\"layer_count\":2}",
     NULL},
    {WELCOME, "{\"protocol\":1,\"version\":\"1\",\"model_id\":\"m\",\"manifest_sha256\":\"" S32 "\",\"layer_count\":2}",
     "manifest"},
    {WELCOME, "{\"protocol\":1,\"version\":\"1\",\"model_id\":\"m\",\"manifest_sha256\":\"" D64 "\",\"layer_count\":0}",
     "layer_count"},
    {WELCOME,
     "{\"protocol\":1,\"version\":\"1\",\"model_id\":\"m\",\"manifest_sha256\":\"" D64 "\",\"layer_count\":4097}",
     "layer_count"},
    {ASSIGN, "{" ASSIGN_HEAD ",\"kv_type\":\"f16\",\"index\":0,\"count\":1,\"first\":0,\"end\":3}", NULL},
    {ASSIGN, "{" ASSIGN_HEAD ",\"kv_type\":\"f32\",\"index\":1,\"count\":2,\"first\":1,\"end\":3," NEIGHBOURS "}",
     NULL},
    {ASSIGN, "{" ASSIGN_HEAD ",\"kv_type\":\"f16\",\"index\":1,\"count\":2,\"first\":1,\"end\":3}", "next_addr"},
    {ASSIGN, "{" ASSIGN_HEAD ",\"kv_type\":\"q8\",\"index\":0,\"count\":1,\"first\":0,\"end\":3}", "kv_type"},
    {ASSIGN, "{" ASSIGN_HEAD ",\"kv_type\":\"f16\",\"index\":1,\"count\":1,\"first\":0,\"end\":3}", "index"},
    {ASSIGN, "{" ASSIGN_HEAD ",\"kv_type\":\"f16\",\"index\":0,\"count\":0,\"first\":0,\"end\":3}", "count"},
    {ASSIGN, "{" ASSIGN_HEAD ",\"kv_type\":\"f16\",\"index\":0,\"count\":65,\"first\":0,\"end\":3}", "count"},
    {ASSIGN, "{" ASSIGN_HEAD ",\"kv_type\":\"f16\",\"index\":0,\"count\":1,\"first\":3,\"end\":3}", "first"},
    {ASSIGN, "{" ASSIGN_HEAD ",\"kv_type\":\"f16\",\"index\":0,\"count\":1,\"first\":0,\"end\":0}", "end"},
    {ASSIGN, "{" ASSIGN_HEAD ",\"kv_type\":\"f16\",\"index\":0,\"count\":1,\"first\":0,\"end\":4097}", "end"},
    {LOADING, "{\"elapsed_ms\":12}", NULL},
    {LOADING, "{\"elapsed_ms\":1.5}", "elapsed_ms"},
    {LOADED, "{\"weight_bytes\":1}", "copied_bytes"},
    {LOADED,
     "{\"weight_bytes\":1,\"copied_bytes\":0,\"kv_bytes\":0,\"scratch_bytes\":0,\"rss_bytes\":0,\"n_embd\":0,"
     "\"n_vocab\":1,\"n_ctx\":1,\"n_batch\":1,\"n_threads\":1}",
     "n_embd"},
    {FAULT, "{\"code\":\"busy\",\"message\":\"x\"}", NULL},
    {FAULT, "{\"code\":\"something-new\",\"message\":\"x\"}", NULL},
    {FAULT, "{\"code\":5,\"message\":\"x\"}", "code"},
    {BEGIN,
     "{" SAMPLING ",\"seed\":\"18446744073709551615\",\"max_tokens\":1,\"n_prompt\":1,\"stop_ids\":[2],\"history\":[]}",
     NULL},
    {BEGIN,
     "{" SAMPLING ",\"seed\":\"18446744073709551616\",\"max_tokens\":1,\"n_prompt\":1,\"stop_ids\":[],\"history\":[]}",
     "seed"},
    {BEGIN, "{" SAMPLING ",\"seed\":\"-1\",\"max_tokens\":1,\"n_prompt\":1,\"stop_ids\":[],\"history\":[]}", "seed"},
    {BEGIN, "{" SAMPLING ",\"seed\":\"1\",\"max_tokens\":0,\"n_prompt\":1,\"stop_ids\":[],\"history\":[]}",
     "max_tokens"},
    {BEGIN, "{" SAMPLING ",\"seed\":\"1\",\"max_tokens\":1,\"n_prompt\":0,\"stop_ids\":[],\"history\":[]}", "n_prompt"},
    {BEGIN, "{" SAMPLING ",\"seed\":\"1\",\"max_tokens\":1,\"n_prompt\":1,\"stop_ids\":[-1],\"history\":[]}",
     "stop_ids[0]"},
    {BEGIN, "{" SAMPLING ",\"seed\":\"1\",\"max_tokens\":1,\"n_prompt\":1,\"stop_ids\":[],\"history\":[1,2147483648]}",
     "history[1]"},
    {BEGIN, "{" SAMPLING ",\"seed\":\"1\",\"max_tokens\":1,\"n_prompt\":1,\"stop_ids\":[],\"history\":[\"1\"]}",
     "history[0]"},
    {BEGIN, "{" SAMPLING ",\"seed\":\"1\",\"max_tokens\":1,\"n_prompt\":1,\"stop_ids\":{},\"history\":[]}", "stop_ids"},
    {BEGIN, "{\"temperature\":-1}", "temperature"},
    {BEGIN, "{\"temperature\":1e300}", "temperature"},
};

static void test_table(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct strata_errmsg em = {0};
        strata_err rc = decode(rows[i].kind, rows[i].text, strlen(rows[i].text), &em);
        if (!rows[i].says) {
            if (rc) fail_msg("row %zu: %s", i, em.text);
        } else {
            if (rc != STRATA_EFORMAT || !strstr(em.text, rows[i].says)) fail_msg("row %zu: %d %s", i, (int)rc, em.text);
        }
    }
}

/* Every prefix of every accepted message is refused, whatever its kind. */
static void test_truncated(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t n = 0; n < strlen(rows[i].text); n++)
            for (int kind = HELLO; kind <= BEGIN; kind++)
                assert_int_not_equal(decode((enum kind)kind, rows[i].text, n, NULL), STRATA_OK);
}

static void test_begin_round_trip(void **state) {
    int32_t stop[] = {0, 2, INT32_MAX}, history[] = {5, 6};
    struct wire_msg_begin m = {.sampling = {.temperature = 0.7f,
                                            .top_k = 40,
                                            .top_p = 0.95f,
                                            .min_p = 0.05f,
                                            .repeat_penalty = 1.1f,
                                            .repeat_last_n = 64,
                                            .seed = UINT64_MAX - 1},
                               .max_tokens = 7,
                               .n_prompt = 9,
                               .n_stop_ids = 3,
                               .stop_ids = stop,
                               .n_history = 2,
                               .history = history};
    struct wire_msg_begin r;
    struct strata_errmsg em;
    struct buf b;
    (void)state;
    buf_init(&b, 4096);
    assert_int_equal(wire_msg_begin_encode(&m, &b, &em), 0);
    assert_int_equal(wire_msg_begin_decode(b.data, b.len, &r, &em), 0);
    /* Floats must be the same bits on the other machine, or samplers would differ. */
    assert_true(r.sampling.temperature == m.sampling.temperature && r.sampling.top_p == m.sampling.top_p);
    assert_true(r.sampling.min_p == m.sampling.min_p && r.sampling.repeat_penalty == m.sampling.repeat_penalty);
    assert_true(r.sampling.seed == m.sampling.seed);
    assert_int_equal(r.sampling.top_k, 40);
    assert_int_equal(r.sampling.repeat_last_n, 64);
    assert_int_equal(r.max_tokens, 7);
    assert_int_equal(r.n_prompt, 9);
    assert_int_equal(r.n_stop_ids, 3);
    assert_memory_equal(r.stop_ids, stop, sizeof stop);
    assert_int_equal(r.n_history, 2);
    assert_memory_equal(r.history, history, sizeof history);
    wire_msg_begin_deinit(&r);
    buf_deinit(&b);
}

static void test_assign_round_trip(void **state) {
    struct wire_msg_assign m = {.session = S32,
                                .index = 2,
                                .count = 3,
                                .first = 10,
                                .end = 20,
                                .n_ctx = 4096,
                                .n_batch = 512,
                                .kv_type = ENGINE_KV_Q8_0,
                                .manifest_sha256 = D64,
                                .next_addr = {.host = "fd00::7", .port = 9400}};
    struct wire_msg_assign r;
    struct strata_errmsg em;
    struct buf b;
    (void)state;
    memset(m.next_key.bytes, 7, 32);
    memset(m.prev_key.bytes, 9, 32);
    buf_init(&b, 4096);
    assert_int_equal(wire_msg_assign_encode(&m, &b, &em), 0);
    assert_int_equal(wire_msg_assign_decode(b.data, b.len, &r, &em), 0);
    assert_string_equal(r.session, m.session);
    assert_string_equal(r.next_addr.host, "fd00::7");
    assert_int_equal(r.next_addr.port, 9400);
    assert_true(ed25519_pub_equal(&r.next_key, &m.next_key) && ed25519_pub_equal(&r.prev_key, &m.prev_key));
    assert_true(r.kv_type == ENGINE_KV_Q8_0 && r.index == 2 && r.count == 3 && r.first == 10 && r.end == 20);
    assert_true(r.n_ctx == 4096 && r.n_batch == 512);
    buf_deinit(&b);
}

static void test_fault(void **state) {
    struct wire_msg_fault m = {.code = STRATA_EBUSY, .text = "r\xc3\xb6t"}, r;
    struct strata_errmsg em;
    struct buf b;
    (void)state;
    buf_init(&b, 1 << 20);
    assert_int_equal(wire_msg_fault_encode(&m, &b, &em), 0);
    assert_int_equal(wire_msg_fault_decode(b.data, b.len, &r, &em), 0);
    assert_int_equal(r.code, STRATA_EBUSY);
    assert_string_equal(r.text, m.text);
    /* A text that is no UTF-8 still gives a message with the code. */
    strcpy(m.text, "cut \xc3");
    buf_clear(&b);
    assert_int_equal(wire_msg_fault_encode(&m, &b, &em), 0);
    assert_int_equal(wire_msg_fault_decode(b.data, b.len, &r, &em), 0);
    assert_int_equal(r.code, STRATA_EBUSY);
    /* A text longer than ours is cut at a whole character. */
    buf_clear(&b);
    buf_append_str(&b, "{\"code\":\"io\",\"message\":\"x", &em);
    for (int i = 0; i < 1000; i++) buf_append_str(&b, "\xc3\xb6", &em);
    buf_append_str(&b, "\"}", &em);
    assert_int_equal(wire_msg_fault_decode(b.data, b.len, &r, &em), 0);
    assert_int_equal(strlen(r.text) % 2, 1);
    buf_deinit(&b);
}

static void test_addr(void **state) {
    static const struct {
        const char *text;
        bool zero, ok, loopback;
        const char *back;
    } addrs[] = {
        {"box:9400", false, true, false, "box:9400"},
        {"127.0.0.1:0", true, true, true, "127.0.0.1:0"},
        {"127.9.9.9:1", false, true, true, "127.9.9.9:1"},
        {"localhost:65535", false, true, true, "localhost:65535"},
        {"[::1]:80", false, true, true, "[::1]:80"},
        {"[fd00::7]:80", false, true, false, "[fd00::7]:80"},
        {"127.0.0.1:0", false, false, false, NULL},
        {"box", false, false, false, NULL},
        {"box:", false, false, false, NULL},
        {":80", false, false, false, NULL},
        {"::1:80", false, false, false, NULL},
        {"[::1]", false, false, false, NULL},
        {"[::1]x:80", false, false, false, NULL},
        {"box:65536", false, false, false, NULL},
        {"box:99999999999", false, false, false, NULL},
        {"box:+1", false, false, false, NULL},
        {"bo x:1", false, false, false, NULL},
        {"", false, false, false, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof addrs / sizeof addrs[0]; i++) {
        struct wire_addr a;
        char text[WIRE_ADDR_TEXT];
        strata_err rc = wire_addr_parse(addrs[i].text, addrs[i].zero, &a, NULL);
        assert_int_equal(rc == STRATA_OK, addrs[i].ok);
        if (rc) continue;
        assert_string_equal(wire_addr_text(&a, text), addrs[i].back);
        assert_int_equal(wire_addr_is_loopback(&a), addrs[i].loopback);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_begin_round_trip),
        cmocka_unit_test(test_assign_round_trip),
        cmocka_unit_test(test_fault),
        cmocka_unit_test(test_addr),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
