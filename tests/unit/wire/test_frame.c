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
    {"hello with a flag", {.type = WIRE_HELLO, .payload = 40, .flags = 1}, 0, false},
    {"begin", {.type = WIRE_BEGIN, .payload = 2, .seq = 1}, 0, true},
    {"tokens", {.type = WIRE_TOKENS, .n_rows = 3, .payload = 12, .flags = WIRE_FLAG_SAMPLE}, 0, true},
    {"tokens of none", {.type = WIRE_TOKENS, .n_rows = 0, .payload = 0}, 0, false},
    {"tokens, short payload", {.type = WIRE_TOKENS, .n_rows = 3, .payload = 11}, 0, false},
    {"tokens, too many", {.type = WIRE_TOKENS, .n_rows = 0x40000001, .payload = 4}, 0, false},
    {"hidden", {.type = WIRE_HIDDEN, .n_rows = 2, .payload = 32}, 4, true},
    {"hidden before a width is agreed", {.type = WIRE_HIDDEN, .n_rows = 2, .payload = 0}, 0, false},
    {"hidden of another width", {.type = WIRE_HIDDEN, .n_rows = 2, .payload = 40}, 4, false},
    {"hidden, product wraps", {.type = WIRE_HIDDEN, .n_rows = 0x40000000, .payload = 0}, 4, false},
    {"hidden over the limit", {.type = WIRE_HIDDEN, .n_rows = 4097, .payload = 4097u * 4 * 4096}, 4096, false},
    {"hidden of no rows", {.type = WIRE_HIDDEN, .n_rows = 0, .payload = 0}, 4, false},
    {"hidden with FINAL", {.type = WIRE_HIDDEN, .n_rows = 1, .payload = 16, .flags = WIRE_FLAG_FINAL}, 4, false},
    {"token", {.type = WIRE_TOKEN, .n_rows = 1, .payload = 4, .flags = WIRE_FLAG_FINAL | WIRE_FLAG_EOG}, 0, true},
    {"two tokens", {.type = WIRE_TOKEN, .n_rows = 2, .payload = 8}, 0, false},
    {"token without row", {.type = WIRE_TOKEN, .n_rows = 0, .payload = 4}, 0, false},
    {"token with SAMPLE", {.type = WIRE_TOKEN, .n_rows = 1, .payload = 4, .flags = WIRE_FLAG_SAMPLE}, 0, false},
    {"cancel", {.type = WIRE_CANCEL, .seq = 9}, 0, true},
    {"cancel with payload", {.type = WIRE_CANCEL, .payload = 4}, 0, false},
    {"ping", {.type = WIRE_PING}, 0, true},
    {"pong with rows", {.type = WIRE_PONG, .n_rows = 1}, 0, false},
    {"type 0", {.type = 0, .payload = 2}, 0, false},
    {"type between control and data", {.type = 20, .payload = 2}, 0, false},
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
    struct wire_frame f = {.type = WIRE_TOKEN, .flags = 2, .seq = 0x01020304, .pos = 5, .n_rows = 1, .payload = 4};
    static const uint8_t want[WIRE_FRAME_HEADER] = {'S', 'T', 'R', '1', 33 + 2, 2, 0, 0, 4, 3, 2, 1,
                                                    5,   0,   0,   0,   1,      0, 0, 0, 4, 0, 0, 0};
    uint8_t raw[WIRE_FRAME_HEADER];
    wire_frame_encode(&f, raw);
    assert_memory_equal(raw, want, sizeof raw);
    for (int i = 0; i < 8; i++) {
        if (i == 4 || i == 5) continue;
        struct wire_frame out;
        uint8_t bad[WIRE_FRAME_HEADER];
        memcpy(bad, raw, sizeof bad);
        bad[i] ^= 1;
        assert_int_equal(wire_frame_decode(bad, 0, &out, NULL), STRATA_EPEER);
    }
}

/* Every type with every payload around its bound: none may pass with a payload that its rows do not explain. */
static void test_sweep(void **state) {
    (void)state;
    for (unsigned type = 0; type < 256; type++) {
        for (uint32_t n = 0; n < 40; n++) {
            struct wire_frame f = {.type = (uint8_t)type, .n_rows = 2, .payload = n}, out;
            uint8_t raw[WIRE_FRAME_HEADER];
            wire_frame_encode(&f, raw);
            if (wire_frame_decode(raw, 3, &out, NULL)) continue;
            assert_true((type == WIRE_TOKENS && n == 8) || (type == WIRE_HIDDEN && n == 24));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_sweep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
