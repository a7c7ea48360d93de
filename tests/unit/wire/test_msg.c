/* Control messages: round trips, and every missing, ill-typed or out-of-range field is refused by name. */
#include "wire/wire_frame.h"
#include "wire/wire_msg.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define D64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define S32 "0123456789abcdef0123456789abcdef"
#define K1 "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="

enum kind { HELLO, WELCOME, ASSIGN, LOADING, LOADED, FAULT, BEGIN, FORGET, KINDS };

/* A message of each kind with every key that it can have, each of which is required in it. */
static const char *const whole[KINDS] = {
    [HELLO] = "{\"protocol\":2,\"version\":\"0.1.0\",\"role\":\"return\",\"session\":\"" S32 "\",\"index\":1}",
    [WELCOME] =
        "{\"protocol\":2,\"version\":\"0.1.0\",\"model_id\":\"m\",\"manifest_sha256\":\"" D64 "\",\"layer_count\":2}",
    [ASSIGN] = "{\"session\":\"" S32 "\",\"index\":1,\"count\":2,\"first\":1,\"end\":3,\"n_ctx\":64,\"n_batch\":8,"
               "\"n_seq\":4,\"n_pool\":256,\"cache_blocks\":100,\"n_in_flight\":2,\"kv_type\":\"f16\","
               "\"manifest_sha256\":\"" D64 "\",\"next_addr\":\"h:1\",\"next_key\":\"" K1 "\",\"prev_key\":\"" K1 "\"}",
    [LOADING] = "{\"elapsed_ms\":12}",
    [LOADED] = "{\"weight_bytes\":1,\"copied_bytes\":2,\"kv_bytes\":3,\"scratch_bytes\":4,\"rss_bytes\":5,"
               "\"cache_bytes\":6,\"n_embd\":7,\"n_vocab\":8,\"n_ctx\":9,\"n_batch\":10,\"n_threads\":11}",
    [FAULT] = "{\"code\":\"busy\",\"message\":\"x\"}",
    [BEGIN] = "{\"slot\":3,\"store_base\":77,\"restore\":[5,6],\"temperature\":1,\"top_k\":0,\"top_p\":1,\"min_p\":0,"
              "\"repeat_penalty\":1,\"repeat_last_n\":0,\"seed\":\"1\",\"max_tokens\":1,\"n_prompt\":200,"
              "\"stop_ids\":[2],\"history\":[1,2]}",
    [FORGET] = "{\"first\":9,\"count\":3}",
};

static strata_err decode(enum kind kind, const char *text, size_t len, struct strata_errmsg *em) {
    struct wire_msg_hello hello;
    struct wire_msg_welcome welcome;
    struct wire_msg_assign assign;
    struct wire_msg_loading loading;
    struct wire_msg_loaded loaded;
    struct wire_msg_fault fault;
    struct wire_msg_begin begin = {0};
    struct wire_msg_forget forget;
    strata_err rc = STRATA_EINTERNAL;
    switch (kind) {
    case HELLO: rc = wire_msg_hello_decode(text, len, &hello, em); break;
    case WELCOME: rc = wire_msg_welcome_decode(text, len, &welcome, em); break;
    case ASSIGN: rc = wire_msg_assign_decode(text, len, &assign, em); break;
    case LOADING: rc = wire_msg_loading_decode(text, len, &loading, em); break;
    case LOADED: rc = wire_msg_loaded_decode(text, len, &loaded, em); break;
    case FAULT: rc = wire_msg_fault_decode(text, len, &fault, em); break;
    case FORGET: rc = wire_msg_forget_decode(text, len, &forget, em); break;
    case BEGIN:
        rc = wire_msg_begin_decode(text, len, &begin, em);
        wire_msg_begin_deinit(&begin);
        break;
    case KINDS: break;
    }
    return rc;
}

/* ---- fields, one at a time, in a message that is right but for them ---- */

/* The message with `key` set to `value`, a JSON text, or without it when value is NULL. Freed by free. */
static char *with(const char *message, const char *key, const char *value) {
    json_t *o = json_loads(message, 0, NULL);
    assert_non_null(o);
    if (value) {
        json_t *v = json_loads(value, JSON_DECODE_ANY, NULL);
        assert_non_null(v);
        assert_int_equal(json_object_set_new(o, key, v), 0);
    } else {
        assert_int_equal(json_object_del(o, key), 0);
    }
    char *text = json_dumps(o, JSON_COMPACT);
    assert_non_null(text);
    json_decref(o);
    return text;
}

static void expect(enum kind kind, const char *text, const char *says) {
    struct strata_errmsg em = {0};
    strata_err rc = decode(kind, text, strlen(text), &em);
    if (!says && rc) fail_msg("%s: %s", text, em.text);
    if (says && (rc != STRATA_EFORMAT || !strstr(em.text, says))) fail_msg("%s: %d %s", text, (int)rc, em.text);
}

/* No key may be missing, be null or be of another type. */
static void test_every_key(void **state) {
    static const char *const never[] = {NULL, "null", "{}", "true"};
    (void)state;
    for (enum kind kind = HELLO; kind < KINDS; kind++) {
        json_t *o = json_loads(whole[kind], 0, NULL), *ignored;
        const char *key;
        expect(kind, whole[kind], NULL);
        json_object_foreach(o, key, ignored) {
            for (size_t i = 0; i < sizeof never / sizeof never[0]; i++) {
                char *text = with(whole[kind], key, never[i]);
                expect(kind, text, key);
                free(text);
            }
        }
        json_decref(o);
        /* A key from the future is ignored. */
        char *text = with(whole[kind], "future", "{\"a\":[1]}");
        expect(kind, text, NULL);
        free(text);
    }
}

/* Whole numbers from lo to hi: the ends are accepted, what lies beyond them is not. */
static const struct {
    enum kind kind;
    const char *key;
    uint64_t lo, hi;
} ranges[] = {
    {HELLO, "protocol", 0, UINT32_MAX},
    {HELLO, "index", 0, WIRE_MSG_STAGES - 1},
    {WELCOME, "protocol", 0, UINT32_MAX},
    {WELCOME, "layer_count", 1, WIRE_MSG_LAYERS},
    {ASSIGN, "index", 0, 1}, /* of 2 */
    {ASSIGN, "count", 2, 64},
    {ASSIGN, "first", 0, 2}, /* of layers to 3 */
    {ASSIGN, "end", 2, 4096},
    {ASSIGN, "n_ctx", 1, INT32_MAX},
    {ASSIGN, "n_batch", 4, INT32_MAX}, /* for 4 requests */
    {ASSIGN, "n_seq", 1, 8},           /* a row of 8 for each */
    {ASSIGN, "n_pool", 1, INT32_MAX},
    {ASSIGN, "cache_blocks", 0, 1048576},
    {ASSIGN, "n_in_flight", 1, 64},
    {LOADING, "elapsed_ms", 0, INT64_MAX},
    {LOADED, "weight_bytes", 0, INT64_MAX},
    {LOADED, "copied_bytes", 0, INT64_MAX},
    {LOADED, "kv_bytes", 0, INT64_MAX},
    {LOADED, "scratch_bytes", 0, INT64_MAX},
    {LOADED, "rss_bytes", 0, INT64_MAX},
    {LOADED, "cache_bytes", 0, INT64_MAX},
    {LOADED, "n_embd", 1, 1 << 20},
    {LOADED, "n_vocab", 1, INT32_MAX},
    {LOADED, "n_ctx", 1, INT32_MAX},
    {LOADED, "n_batch", 1, INT32_MAX},
    {LOADED, "n_threads", 0, 65536},
    {BEGIN, "slot", 0, 63},
    {BEGIN, "store_base", 0, UINT64_C(1) << 53},
    {BEGIN, "top_k", 0, UINT32_MAX},
    {BEGIN, "repeat_last_n", 0, UINT32_MAX},
    {BEGIN, "max_tokens", 1, UINT32_MAX},
    {BEGIN, "n_prompt", 129, INT32_MAX}, /* with two blocks restored and a token to compute */
    {FORGET, "first", 1, UINT64_C(1) << 53},
    {FORGET, "count", 1, 1048576},
};

static void test_ranges(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        const char *says = ranges[i].key;
        /* What is wrong may show at the other number of a pair. */
        if (strcmp(says, "end") == 0) says = "first";
        if (strcmp(says, "count") == 0 && ranges[i].kind == ASSIGN) says = "index";
        if (strcmp(says, "n_batch") == 0 && ranges[i].kind == ASSIGN) says = "n_seq";
        if (strcmp(says, "n_prompt") == 0) says = "prompt";
        for (int side = 0; side < 4; side++) {
            const uint64_t values[] = {ranges[i].lo, ranges[i].hi, ranges[i].lo - 1, ranges[i].hi + 1};
            char value[32];
            /* Below 0 and beyond 2^63 - 1 there are other ways to write a number. */
            if (values[side] == UINT64_MAX)
                strcpy(value, "-1");
            else if (values[side] > INT64_MAX)
                strcpy(value, "1e30");
            else
                snprintf(value, sizeof value, "%llu", (unsigned long long)values[side]);
            char *text = with(whole[ranges[i].kind], ranges[i].key, value);
            expect(ranges[i].kind, text, side < 2 ? NULL : side == 2 ? says : ranges[i].key);
            free(text);
        }
        static const char *const no_number[] = {"-1", "1.0", "\"1\"", "[1]", "9223372036854775807"};
        for (size_t k = 0; k < sizeof no_number / sizeof no_number[0]; k++) {
            if (k == 4 && ranges[i].hi == INT64_MAX) continue;
            char *text = with(whole[ranges[i].kind], ranges[i].key, no_number[k]);
            expect(ranges[i].kind, text, ranges[i].key);
            free(text);
        }
    }
}

/* Everything that is not a whole number. */
static const struct {
    enum kind kind;
    const char *key, *value;
    const char *says; /* NULL: accepted */
} fields[] = {
    {ASSIGN, "session", "\"" D64 "\"", "session"},
    {ASSIGN, "session", "\"0123456789abcdef0123456789abcde\"", "session"},
    {ASSIGN, "session", "\"0123456789ABCDEF0123456789abcdef\"", "session"},
    {ASSIGN, "manifest_sha256", "\"" S32 "\"", "manifest_sha256"},
    {ASSIGN, "kv_type", "\"f16\"", NULL},
    {ASSIGN, "kv_type", "\"f32\"", NULL},
    {ASSIGN, "kv_type", "\"bf16\"", NULL},
    {ASSIGN, "kv_type", "\"q8_0\"", NULL},
    {ASSIGN, "kv_type", "\"q4_0\"", NULL},
    {ASSIGN, "kv_type", "\"q8\"", "kv_type 'q8'"},
    {ASSIGN, "kv_type", "\"F16\"", "kv_type 'F16'"},
    {ASSIGN, "kv_type", "\"\"", "kv_type"},
    {ASSIGN, "kv_type", "1", "kv_type"},
    {ASSIGN, "next_addr", "\"h\"", "h"},
    {ASSIGN, "next_addr", "\"h:0\"", "h:0"},
    {BEGIN, "temperature", "0", NULL},
    {BEGIN, "temperature", "1e9", NULL},
    {BEGIN, "temperature", "-0.001", "temperature"},
    {BEGIN, "temperature", "1.1e9", "temperature"},
    {BEGIN, "temperature", "\"1\"", "temperature"},
    {BEGIN, "top_p", "-1", "top_p"},
    {BEGIN, "min_p", "1e300", "min_p"},
    {BEGIN, "repeat_penalty", "-1", "repeat_penalty"},
    {BEGIN, "seed", "\"0\"", NULL},
    {BEGIN, "seed", "\"18446744073709551615\"", NULL},
    {BEGIN, "seed", "\"18446744073709551616\"", "seed"},
    {BEGIN, "seed", "\"-1\"", "seed"},
    {BEGIN, "seed", "\" 1\"", "seed"},
    {BEGIN, "seed", "\"1x\"", "seed"},
    {BEGIN, "seed", "\"\"", "seed"},
    {BEGIN, "seed", "1", "seed"},
    {BEGIN, "stop_ids", "[]", NULL},
    {BEGIN, "stop_ids", "[0,2147483647]", NULL},
    {BEGIN, "stop_ids", "[-1]", "stop_ids[0]"},
    {BEGIN, "history", "[1,2147483648]", "history[1]"},
    {BEGIN, "history", "[\"1\"]", "history[0]"},
    {BEGIN, "history", "[1,2,1.0]", "history[2]"},
    {BEGIN, "restore", "[]", NULL},
    {BEGIN, "restore", "[1,9007199254740992]", NULL},
    {BEGIN, "restore", "[9007199254740993]", "restore[0]"},
    {BEGIN, "restore", "[9223372036854775807]", "restore[0]"},
    {BEGIN, "restore", "[1,0]", "restore[1]"},
    {BEGIN, "restore", "[-1]", "restore[0]"},
    {BEGIN, "restore", "[1.0]", "restore[0]"},
    {BEGIN, "restore", "[\"1\"]", "restore[0]"},
    {BEGIN, "restore", "[1,[2]]", "restore[1]"},
    {BEGIN, "restore", "5", "restore"},
    /* 200 tokens: three blocks and something to compute. */
    {BEGIN, "restore", "[1,2,3]", NULL},
    {BEGIN, "restore", "[1,2,3,4]", "200 tokens cannot start from 4 blocks"},
};

static void test_fields(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        char *text = with(whole[fields[i].kind], fields[i].key, fields[i].value);
        expect(fields[i].kind, text, fields[i].says);
        free(text);
    }
    /* A stage alone has no neighbours, and none is asked for. */
    char *one = with(whole[ASSIGN], "count", "1"), *first = with(one, "index", "0"),
         *a = with(first, "next_addr", NULL), *b = with(a, "next_key", NULL), *c = with(b, "prev_key", NULL);
    expect(ASSIGN, c, NULL);
    expect(ASSIGN, one, "index");
    free(one);
    free(first);
    free(a);
    free(b);
    free(c);
    /* More requests than a table has entries are refused however large the batch is. */
    one = with(whole[ASSIGN], "n_batch", "512");
    a = with(one, "n_seq", "64");
    b = with(one, "n_seq", "65");
    expect(ASSIGN, a, NULL);
    expect(ASSIGN, b, "n_seq");
    free(one);
    free(a);
    free(b);
}

/* A prompt of n * 64 tokens starts from n - 1 blocks at most: something must be computed. */
static void test_restore_edges(void **state) {
    static const struct {
        const char *n_prompt, *restore;
        bool ok;
    } edges[] = {
        {"1", "[]", true},       {"1", "[9]", false},    {"64", "[]", true},
        {"64", "[9]", false},    {"65", "[9]", true},    {"128", "[9]", true},
        {"128", "[9,8]", false}, {"129", "[9,8]", true}, {"0", "[]", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) {
        char *a = with(whole[BEGIN], "n_prompt", edges[i].n_prompt), *b = with(a, "restore", edges[i].restore);
        expect(BEGIN, b, edges[i].ok ? NULL : "prompt");
        free(a);
        free(b);
    }
}

/* Lists: as many as there may be, and one more. */
static void test_list_lengths(void **state) {
    static const struct {
        const char *key;
        size_t max;
    } lists[] = {{"stop_ids", 256}, {"history", 16384}, {"restore", 4096}};
    (void)state;
    char *base = with(whole[BEGIN], "n_prompt", "2000000000");
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        json_t *o = json_loads(base, 0, NULL), *list = json_array();
        for (size_t k = 0; k < lists[i].max; k++) json_array_append_new(list, json_integer((json_int_t)k + 1));
        json_object_set_new(o, lists[i].key, list);
        char *text = json_dumps(o, 0);
        expect(BEGIN, text, NULL);
        free(text);
        json_array_append_new(list, json_integer(1));
        text = json_dumps(o, 0);
        expect(BEGIN, text, lists[i].key);
        free(text);
        json_decref(o);
    }
    free(base);
}

/* ---- texts ---- */

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
    {ASSIGN, "{}", "session"},
    {ASSIGN, "[]", "object"},
    {LOADING, "{\"elapsed_ms\":1.5}", "elapsed_ms"},
    {LOADED, "{\"weight_bytes\":1}", "copied_bytes"},
    {FAULT, "{\"code\":\"busy\",\"message\":\"x\"}", NULL},
    {FAULT, "{\"code\":\"something-new\",\"message\":\"x\"}", NULL},
    {FAULT, "{\"code\":5,\"message\":\"x\"}", "code"},
    {BEGIN, "{\"temperature\":-1}", "temperature"},
    {BEGIN, "{\"temperature\":1e300}", "temperature"},
    {FORGET, "{\"first\":1,\"first\":2,\"count\":1}", "JSON"},
    {FORGET, "", "JSON"},
    {FORGET, "17", "object"},
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

/* Every prefix of every message is refused, whatever it is taken for. */
static void test_truncated(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t n = 0; n < strlen(rows[i].text); n++)
            for (enum kind kind = HELLO; kind < KINDS; kind++)
                assert_int_not_equal(decode(kind, rows[i].text, n, NULL), STRATA_OK);
    for (enum kind text = HELLO; text < KINDS; text++)
        for (size_t n = 0; n < strlen(whole[text]); n++)
            for (enum kind kind = HELLO; kind < KINDS; kind++)
                assert_int_not_equal(decode(kind, whole[text], n, NULL), STRATA_OK);
}

/* ---- round trips ---- */

static void test_begin_round_trip(void **state) {
    int32_t stop[] = {0, 2, INT32_MAX}, history[] = {5, 6};
    uint64_t restore[] = {UINT64_C(1) << 53, 1, 7};
    struct wire_msg_begin m = {.slot = 63,
                               .store_base = (UINT64_C(1) << 53) - 1,
                               .n_restore = 3,
                               .restore = restore,
                               .sampling = {.temperature = 0.7f,
                                            .top_k = 40,
                                            .top_p = 0.95f,
                                            .min_p = 0.05f,
                                            .repeat_penalty = 1.1f,
                                            .repeat_last_n = 64,
                                            .seed = UINT64_MAX - 1},
                               .max_tokens = 7,
                               .n_prompt = 193,
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
    assert_int_equal(r.n_prompt, 193);
    assert_int_equal(r.slot, 63);
    assert_true(r.store_base == m.store_base);
    assert_int_equal(r.n_restore, 3);
    assert_memory_equal(r.restore, restore, sizeof restore);
    assert_int_equal(r.n_stop_ids, 3);
    assert_memory_equal(r.stop_ids, stop, sizeof stop);
    assert_int_equal(r.n_history, 2);
    assert_memory_equal(r.history, history, sizeof history);
    wire_msg_begin_deinit(&r);
    assert_true(!r.restore && !r.stop_ids && !r.history && !r.n_restore && !r.n_stop_ids && !r.n_history);
    wire_msg_begin_deinit(&r); /* of nothing, as after a failed decode */
    wire_msg_begin_deinit(NULL);
    buf_deinit(&b);
}

/* The longest BEGIN there can be is still a control frame. */
static void test_begin_longest(void **state) {
    struct wire_msg_begin m = {.slot = 63,
                               .store_base = UINT64_C(1) << 53,
                               .n_restore = WIRE_MSG_RESTORE,
                               .sampling = {.temperature = 0.123456789f,
                                            .top_k = UINT32_MAX,
                                            .top_p = 0.987654321f,
                                            .min_p = 1e-30f,
                                            .repeat_penalty = 1.23456789e-7f,
                                            .repeat_last_n = UINT32_MAX,
                                            .seed = UINT64_MAX},
                               .max_tokens = UINT32_MAX,
                               .n_prompt = INT32_MAX,
                               .n_stop_ids = WIRE_MSG_STOP_IDS,
                               .n_history = WIRE_MSG_HISTORY};
    struct wire_msg_begin r;
    struct strata_errmsg em;
    struct buf b;
    (void)state;
    m.restore = calloc(m.n_restore, sizeof *m.restore);
    m.stop_ids = calloc(m.n_stop_ids, sizeof *m.stop_ids);
    m.history = calloc(m.n_history, sizeof *m.history);
    for (uint32_t i = 0; i < m.n_restore; i++) m.restore[i] = (UINT64_C(1) << 53) - i;
    for (uint32_t i = 0; i < m.n_stop_ids; i++) m.stop_ids[i] = INT32_MAX - (int32_t)i;
    for (uint32_t i = 0; i < m.n_history; i++) m.history[i] = INT32_MAX - (int32_t)i;
    buf_init(&b, WIRE_FRAME_MAX_CONTROL);
    assert_int_equal(wire_msg_begin_encode(&m, &b, &em), 0);
    assert_true(b.len <= WIRE_FRAME_MAX_CONTROL);
    assert_int_equal(wire_msg_begin_decode(b.data, b.len, &r, &em), 0);
    assert_memory_equal(r.restore, m.restore, m.n_restore * sizeof *m.restore);
    assert_memory_equal(r.history, m.history, m.n_history * sizeof *m.history);
    wire_msg_begin_deinit(&r);
    wire_msg_begin_deinit(&m);
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
                                .n_seq = 33,
                                .n_pool = 40961,
                                .cache_blocks = 1048575,
                                .n_in_flight = 5,
                                .manifest_sha256 = D64,
                                .next_addr = {.host = "fd00::7", .port = 9400}};
    struct wire_msg_assign r;
    struct strata_errmsg em;
    struct buf b;
    (void)state;
    memset(m.next_key.bytes, 7, 32);
    memset(m.prev_key.bytes, 9, 32);
    buf_init(&b, 4096);
    for (int kv = 0; kv < ENGINE_KV_COUNT; kv++) {
        m.kv_type = (enum engine_kv_type)kv;
        buf_clear(&b);
        assert_int_equal(wire_msg_assign_encode(&m, &b, &em), 0);
        assert_int_equal(wire_msg_assign_decode(b.data, b.len, &r, &em), 0);
        assert_string_equal(r.session, m.session);
        assert_string_equal(r.manifest_sha256, m.manifest_sha256);
        assert_string_equal(r.next_addr.host, "fd00::7");
        assert_int_equal(r.next_addr.port, 9400);
        assert_true(ed25519_pub_equal(&r.next_key, &m.next_key) && ed25519_pub_equal(&r.prev_key, &m.prev_key));
        assert_true(r.index == 2 && r.count == 3 && r.first == 10 && r.end == 20);
        assert_true(r.n_ctx == 4096 && r.n_batch == 512 && r.n_seq == 33 && r.n_pool == 40961);
        assert_true(r.cache_blocks == 1048575 && r.n_in_flight == 5);
        assert_int_equal(r.kv_type, kv);
    }
    buf_deinit(&b);
}

static void test_loaded_round_trip(void **state) {
    struct wire_msg_loaded m = {INT64_MAX, 2, 3, 4, 5, UINT64_C(6) << 40, 7, 8, 9, 10, 11}, r;
    struct strata_errmsg em;
    struct buf b;
    (void)state;
    buf_init(&b, 4096);
    assert_int_equal(wire_msg_loaded_encode(&m, &b, &em), 0);
    assert_int_equal(wire_msg_loaded_decode(b.data, b.len, &r, &em), 0);
    assert_true(r.weight_bytes == INT64_MAX && r.copied_bytes == 2 && r.kv_bytes == 3 && r.scratch_bytes == 4);
    assert_true(r.rss_bytes == 5 && r.cache_bytes == UINT64_C(6) << 40 && r.n_embd == 7 && r.n_vocab == 8);
    assert_true(r.n_ctx == 9 && r.n_batch == 10 && r.n_threads == 11);
    buf_deinit(&b);
}

static void test_forget_round_trip(void **state) {
    static const struct wire_msg_forget m[] = {{1, 1}, {UINT64_C(1) << 53, 1048576}, {12345678901, 17}};
    struct strata_errmsg em;
    struct buf b;
    (void)state;
    buf_init(&b, 4096);
    for (size_t i = 0; i < sizeof m / sizeof m[0]; i++) {
        struct wire_msg_forget r;
        buf_clear(&b);
        assert_int_equal(wire_msg_forget_encode(&m[i], &b, &em), 0);
        assert_int_equal(wire_msg_forget_decode(b.data, b.len, &r, &em), 0);
        assert_true(r.first == m[i].first && r.count == m[i].count);
    }
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_key),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_restore_edges),
        cmocka_unit_test(test_list_lengths),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_begin_round_trip),
        cmocka_unit_test(test_begin_longest),
        cmocka_unit_test(test_assign_round_trip),
        cmocka_unit_test(test_loaded_round_trip),
        cmocka_unit_test(test_forget_round_trip),
        cmocka_unit_test(test_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
