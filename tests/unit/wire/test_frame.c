/* Frame headers: what goes in comes out, and every malformed header is refused. */
#include "wire/wire_frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

struct row {
    const char *what;
    struct wire_frame f;
    uint32_t width;
    bool ok;
};

static const struct row rows[] = {
    {"hello", {.type = WIRE_HELLO, .payload = 40}, 0, true},
    {"hello at the limit", {.type = WIRE_HELLO, .payload = WIRE_FRAME_MAX_CONTROL}, 0, true},
    {"hello over the limit", {.type = WIRE_HELLO, .payload = WIRE_FRAME_MAX_CONTROL + 1}, 0, false},
    {"hello without payload", {.type = WIRE_HELLO, .payload = 0}, 0, false},
    {"hello with rows", {.type = WIRE_HELLO, .payload = 40, .n_rows = 1}, 0, false},
    {"begin", {.type = WIRE_BEGIN, .payload = 2, .seq = 1}, 0, true},
    {"begin over the limit", {.type = WIRE_BEGIN, .payload = WIRE_FRAME_MAX_CONTROL + 1, .seq = 1}, 0, false},
    {"begin with rows", {.type = WIRE_BEGIN, .payload = 2, .seq = 1, .n_rows = 1}, 0, false},
    {"forget", {.type = WIRE_FORGET, .payload = 24}, 0, true},
    {"forget over the limit", {.type = WIRE_FORGET, .payload = WIRE_FRAME_MAX_CONTROL + 1}, 0, false},
    {"forget without payload", {.type = WIRE_FORGET}, 0, false},
    {"forget with rows", {.type = WIRE_FORGET, .payload = 24, .n_rows = 1}, 0, false},
    {"tokens", {.type = WIRE_TOKENS, .n_rows = 3, .payload = 12}, 0, true},
    {"tokens of none", {.type = WIRE_TOKENS, .n_rows = 0, .payload = 0}, 0, false},
    {"tokens, short payload", {.type = WIRE_TOKENS, .n_rows = 3, .payload = 11}, 0, false},
    {"tokens, too many", {.type = WIRE_TOKENS, .n_rows = 0x40000001, .payload = 4}, 0, false},
    {"tokens over the limit",
     {.type = WIRE_TOKENS, .n_rows = WIRE_FRAME_MAX_PAYLOAD / 4 + 1, .payload = WIRE_FRAME_MAX_PAYLOAD + 4},
     0,
     false},
    {"hidden", {.type = WIRE_HIDDEN, .pos = 1, .n_rows = 2, .payload = 16 + 32}, 4, true},
    {"hidden, a row of each", {.type = WIRE_HIDDEN, .pos = 2, .n_rows = 2, .payload = 32 + 32}, 4, true},
    {"hidden of 64 spans", {.type = WIRE_HIDDEN, .pos = 64, .n_rows = 64, .payload = 1024 + 1024}, 4, true},
    {"hidden of 65 spans", {.type = WIRE_HIDDEN, .pos = 65, .n_rows = 65, .payload = 1040 + 1040}, 4, false},
    {"hidden without a table", {.type = WIRE_HIDDEN, .pos = 0, .n_rows = 2, .payload = 32}, 4, false},
    {"hidden, table not sent", {.type = WIRE_HIDDEN, .pos = 1, .n_rows = 2, .payload = 32}, 4, false},
    {"hidden, more spans than rows", {.type = WIRE_HIDDEN, .pos = 3, .n_rows = 2, .payload = 48 + 32}, 4, false},
    {"hidden, spans wrap", {.type = WIRE_HIDDEN, .pos = 0x10000001, .n_rows = 2, .payload = 16 + 32}, 4, false},
    {"hidden, most spans there are", {.type = WIRE_HIDDEN, .pos = UINT32_MAX, .n_rows = 2, .payload = 16}, 4, false},
    {"hidden before a width is agreed", {.type = WIRE_HIDDEN, .pos = 1, .n_rows = 2, .payload = 16}, 0, false},
    {"hidden of another width", {.type = WIRE_HIDDEN, .pos = 1, .n_rows = 2, .payload = 16 + 40}, 4, false},
    {"hidden, product wraps", {.type = WIRE_HIDDEN, .pos = 1, .n_rows = 0x10000000, .payload = 16}, 4, false},
    {"hidden, count of bytes wraps", {.type = WIRE_HIDDEN, .pos = 1, .n_rows = 0x40000000, .payload = 16}, 4, false},
    {"hidden, widest rows wrap",
     {.type = WIRE_HIDDEN, .pos = 1, .n_rows = 0x3fffffff, .payload = 20},
     UINT32_MAX,
     false},
    {"hidden, product wraps in 64 bits",
     {.type = WIRE_HIDDEN, .pos = 1, .n_rows = 0x80000000, .payload = 16},
     0x80000000,
     false},
    {"hidden at the limit",
     {.type = WIRE_HIDDEN, .pos = 4, .n_rows = (1u << 20) - 1, .payload = WIRE_FRAME_MAX_PAYLOAD},
     16,
     true},
    {"hidden over the limit by its table",
     {.type = WIRE_HIDDEN, .pos = 1, .n_rows = 1u << 20, .payload = WIRE_FRAME_MAX_PAYLOAD + 16},
     16,
     false},
    {"hidden of no rows", {.type = WIRE_HIDDEN, .pos = 1, .n_rows = 0, .payload = 16}, 4, false},
    {"hidden of nothing", {.type = WIRE_HIDDEN, .pos = 0, .n_rows = 0, .payload = 0}, 4, false},
    {"token", {.type = WIRE_TOKEN, .n_rows = 1, .payload = 16}, 0, true},
    {"two tokens", {.type = WIRE_TOKEN, .n_rows = 2, .payload = 32}, 0, true},
    {"64 tokens", {.type = WIRE_TOKEN, .n_rows = 64, .payload = 1024}, 0, true},
    {"65 tokens", {.type = WIRE_TOKEN, .n_rows = 65, .payload = 1040}, 0, false},
    {"two tokens in the place of one", {.type = WIRE_TOKEN, .n_rows = 2, .payload = 16}, 0, false},
    {"token without its entry", {.type = WIRE_TOKEN, .n_rows = 1, .payload = 4}, 0, false},
    {"token without row", {.type = WIRE_TOKEN, .n_rows = 0, .payload = 16}, 0, false},
    {"tokens of none sampled", {.type = WIRE_TOKEN, .n_rows = 0, .payload = 0}, 0, false},
    {"tokens wrap", {.type = WIRE_TOKEN, .n_rows = 0x10000001, .payload = 16}, 0, false},
    {"cancel", {.type = WIRE_CANCEL, .seq = 9}, 0, true},
    {"cancel with payload", {.type = WIRE_CANCEL, .payload = 4}, 0, false},
    {"ping", {.type = WIRE_PING}, 0, true},
    {"pong with rows", {.type = WIRE_PONG, .n_rows = 1}, 0, false},
    {"type 0", {.type = 0, .payload = 2}, 0, false},
    {"type between control and data", {.type = WIRE_FORGET + 1, .payload = 2}, 0, false},
    {"type before the data", {.type = WIRE_BEGIN - 1, .payload = 2}, 0, false},
    {"type beyond the last", {.type = WIRE_PONG + 1}, 0, false},
    {"type 255", {.type = 255}, 0, false},
};

static void test_table(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint8_t raw[WIRE_FRAME_HEADER];
        struct wire_frame out = {.type = 77};
        struct strata_errmsg em = {0};
        wire_frame_encode(&rows[i].f, raw);
        strata_err rc = wire_frame_decode(raw, rows[i].width, &out, &em);
        if ((rc == STRATA_OK) != rows[i].ok) fail_msg("%s: rc %d %s", rows[i].what, (int)rc, em.text);
        if (rc) {
            assert_int_equal(rc, STRATA_EPEER);
            assert_int_equal(out.type, 77);
        } else {
            /* By its bytes on the wire: the struct has padding, whose content means nothing. */
            uint8_t again[WIRE_FRAME_HEADER];
            wire_frame_encode(&out, again);
            assert_memory_equal(raw, again, sizeof raw);
        }
    }
}

static void test_bytes(void **state) {
    (void)state;
    struct wire_frame f = {.type = WIRE_TOKEN, .seq = 0x01020304, .pos = 5, .n_rows = 1, .payload = 16};
    static const uint8_t want[WIRE_FRAME_HEADER] = {'S', 'T', 'R', '1', 32 + 3, 0, 0, 0, 4,  3, 2, 1,
                                                    5,   0,   0,   0,   1,      0, 0, 0, 16, 0, 0, 0};
    uint8_t raw[WIRE_FRAME_HEADER];
    wire_frame_encode(&f, raw);
    assert_memory_equal(raw, want, sizeof raw);
    /* The magic and the three zero bytes: no bit of them may differ. */
    for (int bit = 0; bit < 64; bit++) {
        if (bit / 8 == 4) continue;
        struct wire_frame out;
        uint8_t bad[WIRE_FRAME_HEADER];
        memcpy(bad, raw, sizeof bad);
        bad[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(wire_frame_decode(bad, 0, &out, NULL), STRATA_EPEER);
    }
}

/* Every type with every payload around its bound: none may pass with a payload that its rows do not explain. */
static void test_sweep(void **state) {
    unsigned passed = 0;
    (void)state;
    for (unsigned type = 0; type < 256; type++) {
        for (uint32_t n = 0; n < 80; n++) {
            for (uint32_t spans = 0; spans < 4; spans++) {
                struct wire_frame f = {.type = (uint8_t)type, .pos = spans, .n_rows = 2, .payload = n}, out;
                uint8_t raw[WIRE_FRAME_HEADER];
                wire_frame_encode(&f, raw);
                if (wire_frame_decode(raw, 3, &out, NULL)) continue;
                assert_true((type == WIRE_TOKENS && n == 8) || (type == WIRE_TOKEN && n == 32) ||
                            (type == WIRE_HIDDEN && (spans == 1 || spans == 2) && n == 16 * spans + 24));
                passed++;
            }
        }
    }
    /* TOKENS and TOKEN with any pos, HIDDEN with one span and with two. */
    assert_int_equal(passed, 4 + 4 + 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_sweep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
