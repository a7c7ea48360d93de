/* Tables of spans and tokens: what goes in comes out, and every impossible entry is refused wherever it stands. */
#include "wire/wire_rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WIDTH = 4 };

static uint64_t rng;

static uint32_t next_random(uint32_t below) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 16) % below;
}

static void test_bytes(void **state) {
    const struct wire_span spans[] = {{0x01020304, 5, 0x0607, WIRE_SPAN_SAMPLE}, {8, 9, 10, 0}};
    const struct wire_token tokens[] = {{11, 0x12131415, INT32_MAX, WIRE_TOKEN_FINAL | WIRE_TOKEN_EOG}};
    static const uint8_t want_spans[] = {4, 3, 2, 1, 5, 0, 0, 0, 7,  6, 0, 0, 1, 0, 0, 0,
                                         8, 0, 0, 0, 9, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0};
    static const uint8_t want_tokens[] = {11, 0, 0, 0, 0x15, 0x14, 0x13, 0x12, 0xff, 0xff, 0xff, 0x7f, 3, 0, 0, 0};
    uint8_t raw[2 * WIRE_ROW_ENTRY];
    (void)state;
    wire_spans_encode(spans, 2, raw);
    assert_memory_equal(raw, want_spans, sizeof want_spans);
    wire_tokens_encode(tokens, 1, raw);
    assert_memory_equal(raw, want_tokens, sizeof want_tokens);
    /* None: nothing is written. */
    memset(raw, 0xaa, sizeof raw);
    wire_spans_encode(spans, 0, raw);
    wire_tokens_encode(tokens, 0, raw);
    for (size_t i = 0; i < sizeof raw; i++) assert_int_equal(raw[i], 0xaa);
}

/*
 * Decodes a table that lies in memory of exactly its size, of a frame that the header's check accepts. Entries of `out`
 * behind the table must stay as they are.
 */
static strata_err spans_of(const struct wire_span *in, uint32_t n, uint32_t n_rows, struct wire_span *out,
                           struct strata_errmsg *em) {
    struct wire_frame f = {.type = WIRE_HIDDEN, .pos = n, .n_rows = n_rows};
    uint8_t header[WIRE_FRAME_HEADER], *raw = malloc((size_t)WIRE_ROW_ENTRY * n);
    assert_non_null(raw);
    f.payload = WIRE_ROW_ENTRY * n + 4 * WIDTH * n_rows;
    wire_frame_encode(&f, header);
    assert_int_equal(wire_frame_decode(header, WIDTH, &f, NULL), 0);
    wire_spans_encode(in, n, raw);
    memset(out, 0x55, WIRE_MAX_SPANS * sizeof *out);
    strata_err rc = wire_spans_decode(&f, raw, out, em);
    for (uint32_t i = n; i < WIRE_MAX_SPANS; i++) assert_int_equal(out[i].seq, 0x55555555);
    free(raw);
    return rc;
}

static strata_err tokens_of(const struct wire_token *in, uint32_t n, struct wire_token *out, struct strata_errmsg *em) {
    struct wire_frame f = {.type = WIRE_TOKEN, .n_rows = n, .payload = WIRE_ROW_ENTRY * n};
    uint8_t header[WIRE_FRAME_HEADER], *raw = malloc((size_t)WIRE_ROW_ENTRY * n);
    assert_non_null(raw);
    wire_frame_encode(&f, header);
    assert_int_equal(wire_frame_decode(header, 0, &f, NULL), 0);
    wire_tokens_encode(in, n, raw);
    memset(out, 0x55, WIRE_MAX_SPANS * sizeof *out);
    strata_err rc = wire_tokens_decode(&f, raw, out, em);
    for (uint32_t i = n; i < WIRE_MAX_SPANS; i++) assert_int_equal(out[i].seq, 0x55555555);
    free(raw);
    return rc;
}

/* n good spans of different requests; returns the sum of their rows. */
static uint32_t good_spans(struct wire_span *s, uint32_t n) {
    uint32_t sum = 0, seq = 0;
    for (uint32_t i = 0; i < n; i++) {
        seq += 1 + next_random(1000);
        s[i] = (struct wire_span){seq, next_random(1 << 20), 1 + next_random(9), next_random(2)};
        sum += s[i].n_rows;
    }
    return sum;
}

static void good_tokens(struct wire_token *t, uint32_t n) {
    static const uint32_t flags[] = {0, WIRE_TOKEN_FINAL, WIRE_TOKEN_FINAL | WIRE_TOKEN_EOG};
    uint32_t seq = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        seq -= next_random(1000);
        t[i] = (struct wire_token){seq--, next_random(1 << 20), (int32_t)next_random(1 << 18), flags[next_random(3)]};
    }
}

static void test_round_trips(void **state) {
    struct wire_span s[WIRE_MAX_SPANS], s2[WIRE_MAX_SPANS];
    struct wire_token t[WIRE_MAX_SPANS], t2[WIRE_MAX_SPANS];
    (void)state;
    rng = 1;
    for (unsigned round = 0; round < 50; round++) {
        for (uint32_t n = 1; n <= WIRE_MAX_SPANS; n++) {
            uint32_t sum = good_spans(s, n);
            good_tokens(t, n);
            assert_int_equal(spans_of(s, n, sum, s2, NULL), 0);
            assert_memory_equal(s, s2, n * sizeof *s);
            assert_int_equal(tokens_of(t, n, t2, NULL), 0);
            assert_memory_equal(t, t2, n * sizeof *t);
        }
    }
}

/* One span, in a frame with just its rows. */
static const struct {
    struct wire_span s;
    bool ok;
} spans[] = {
    {{1, 0, 1, 0}, true},
    {{1, 0, 1, WIRE_SPAN_SAMPLE}, true},
    {{UINT32_MAX, 0, 1, 0}, true},
    {{0, 0, 1, 0}, false},
    {{1, 0, 1, 2}, false},
    {{1, 0, 1, WIRE_SPAN_SAMPLE | 2}, false},
    {{1, 0, 1, 0x80000000}, false},
    {{1, 0, 1, UINT32_MAX}, false},
    {{1, INT32_MAX - 1, 1, 0}, true},
    {{1, INT32_MAX, 1, 0}, false},
    {{1, (uint32_t)INT32_MAX + 1, 1, 0}, false},
    {{1, UINT32_MAX, 1, 0}, false},
    {{1, INT32_MAX - 100, 100, 0}, true},
    {{1, INT32_MAX - 99, 100, 0}, false},
    /* pos + n_rows is 0 or small in 32 bits. */
    {{1, UINT32_MAX - 99, 100, 0}, false},
    {{1, UINT32_MAX - 98, 100, 0}, false},
    /* The most rows that a frame of this width can carry. */
    {{1, 0, WIRE_FRAME_MAX_PAYLOAD / 16 - 1, 0}, true},
    {{1, INT32_MAX - (WIRE_FRAME_MAX_PAYLOAD / 16 - 1), WIRE_FRAME_MAX_PAYLOAD / 16 - 1, 0}, true},
    {{1, INT32_MAX - (WIRE_FRAME_MAX_PAYLOAD / 16 - 2), WIRE_FRAME_MAX_PAYLOAD / 16 - 1, 0}, false},
};

static void test_span_edges(void **state) {
    struct wire_span out[WIRE_MAX_SPANS], s[WIRE_MAX_SPANS];
    struct strata_errmsg em;
    (void)state;
    rng = 2;
    for (size_t i = 0; i < sizeof spans / sizeof spans[0]; i++) {
        strata_err rc = spans_of(&spans[i].s, 1, spans[i].s.n_rows, out, &em);
        if (rc != (spans[i].ok ? STRATA_OK : STRATA_EPEER)) fail_msg("span %zu: %d", i, (int)rc);
        if (rc) assert_non_null(strstr(em.text, "bad frame: span 0 of request"));
        /* The same at each place of a table. */
        for (uint32_t at = 0; at < 5 && spans[i].s.n_rows < 1000; at++) {
            uint32_t sum = good_spans(s, 5) - s[at].n_rows + spans[i].s.n_rows;
            for (uint32_t k = 0; k < 5; k++) s[k].seq += 2; /* none is the request of the row */
            s[at] = spans[i].s;
            rc = spans_of(s, 5, sum, out, &em);
            if (rc != (spans[i].ok ? STRATA_OK : STRATA_EPEER)) fail_msg("span %zu at %u: %d", i, at, (int)rc);
        }
    }
}

/* The rows of the spans are the frame's rows, to the row. */
static void test_span_sums(void **state) {
    struct wire_span s[WIRE_MAX_SPANS], out[WIRE_MAX_SPANS];
    struct strata_errmsg em;
    (void)state;
    rng = 3;
    for (uint32_t n = 1; n <= WIRE_MAX_SPANS; n++) {
        uint32_t sum = good_spans(s, n);
        assert_int_equal(spans_of(s, n, sum, out, &em), 0);
        assert_int_equal(spans_of(s, n, sum + 1, out, &em), STRATA_EPEER);
        assert_non_null(strstr(em.text, n == 1 ? "bad frame: spans of" : "rows"));
        if (sum > n) assert_int_equal(spans_of(s, n, sum - 1, out, &em), STRATA_EPEER);
        uint32_t at = next_random(n), kept = s[at].n_rows;
        s[at].n_rows = 0;
        assert_int_equal(spans_of(s, n, sum, out, &em), STRATA_EPEER);
        if (n < sum - kept) assert_int_equal(spans_of(s, n, sum - kept, out, &em), STRATA_EPEER);
        s[at].n_rows = sum + 1; /* more than the whole frame */
        assert_int_equal(spans_of(s, n, sum, out, &em), STRATA_EPEER);
        s[at].n_rows = UINT32_MAX;
        assert_int_equal(spans_of(s, n, sum, out, &em), STRATA_EPEER);
        if (n < 2) continue;
        /* Two that are wrong by the same: the sum is right again in 32 bits, and wrong in truth. */
        s[at].n_rows = kept + 0x80000000u;
        s[(at + 1) % n].n_rows += 0x80000000u;
        assert_int_equal(spans_of(s, n, sum, out, &em), STRATA_EPEER);
    }
}

static void test_span_twice(void **state) {
    struct wire_span s[WIRE_MAX_SPANS], out[WIRE_MAX_SPANS];
    struct strata_errmsg em;
    (void)state;
    rng = 4;
    for (uint32_t a = 0; a < WIRE_MAX_SPANS; a++) {
        for (uint32_t b = 0; b < WIRE_MAX_SPANS; b++) {
            uint32_t sum = good_spans(s, WIRE_MAX_SPANS);
            s[a].seq = s[b].seq;
            strata_err rc = spans_of(s, WIRE_MAX_SPANS, sum, out, &em);
            assert_int_equal(rc, a == b ? STRATA_OK : STRATA_EPEER);
            if (rc) assert_non_null(strstr(em.text, "two spans in one batch"));
        }
    }
}

static const struct {
    uint32_t seq, pos, id, flags;
    bool ok;
} tokens[] = {
    {1, 0, 0, 0, true},
    {UINT32_MAX, 0, 0, 0, true},
    {0, 0, 0, 0, false},
    {1, INT32_MAX, 0, 0, true},
    {1, (uint32_t)INT32_MAX + 1, 0, 0, false},
    {1, UINT32_MAX, 0, 0, false},
    {1, 5, INT32_MAX, 0, true},
    {1, 5, (uint32_t)INT32_MAX + 1, 0, false},
    {1, 5, UINT32_MAX, 0, false},
    {1, 5, 7, WIRE_TOKEN_FINAL, true},
    {1, 5, 7, WIRE_TOKEN_FINAL | WIRE_TOKEN_EOG, true},
    {1, 5, 7, WIRE_TOKEN_EOG, false},
    {1, 5, 7, 4, false},
    {1, 5, 7, WIRE_TOKEN_FINAL | 4, false},
    {1, 5, 7, 0x80000000, false},
    {1, 5, 7, UINT32_MAX, false},
};

static void test_token_edges(void **state) {
    struct wire_token t[5], out[WIRE_MAX_SPANS];
    struct strata_errmsg em;
    (void)state;
    rng = 5;
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        struct wire_token one = {tokens[i].seq, tokens[i].pos, 0, tokens[i].flags};
        memcpy(&one.id, &tokens[i].id, 4);
        strata_err rc = tokens_of(&one, 1, out, &em), want = tokens[i].ok ? STRATA_OK : STRATA_EPEER;
        if (rc != want) fail_msg("token %zu: %d", i, (int)rc);
        if (rc) assert_non_null(strstr(em.text, "bad frame: token"));
        for (uint32_t at = 0; at < 5; at++) {
            good_tokens(t, 5);
            for (uint32_t k = 0; k < 5; k++) t[k].seq -= 2;
            t[at] = one;
            rc = tokens_of(t, 5, out, &em);
            if (rc != want) fail_msg("token %zu at %u: %d", i, at, (int)rc);
        }
    }
}

static void test_token_twice(void **state) {
    struct wire_token t[WIRE_MAX_SPANS], out[WIRE_MAX_SPANS];
    struct strata_errmsg em;
    (void)state;
    rng = 6;
    for (uint32_t a = 0; a < WIRE_MAX_SPANS; a++) {
        for (uint32_t b = 0; b < WIRE_MAX_SPANS; b++) {
            good_tokens(t, WIRE_MAX_SPANS);
            t[a].seq = t[b].seq;
            strata_err rc = tokens_of(t, WIRE_MAX_SPANS, out, &em);
            assert_int_equal(rc, a == b ? STRATA_OK : STRATA_EPEER);
            if (rc) assert_non_null(strstr(em.text, "two tokens of one batch"));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),       cmocka_unit_test(test_round_trips), cmocka_unit_test(test_span_edges),
        cmocka_unit_test(test_span_sums),   cmocka_unit_test(test_span_twice),  cmocka_unit_test(test_token_edges),
        cmocka_unit_test(test_token_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
