/* UTF-8: what is valid, and how much of a broken sequence is one fault. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/utf8.h"

#include <string.h>

static void test_every_code_point(void **state) {
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        if (cp >= 0xD800 && cp < 0xE000) continue;
        char s[8];
        uint32_t back = ~cp;
        size_t n = utf8_encode(cp, s);
        if (utf8_decode(s, n, &back) != n || back != cp) fail_msg("U+%04X", cp);
        if (n > 1 && utf8_decode(s, n - 1, &back) != 0) fail_msg("a part of U+%04X", cp);
    }
}

static void test_units(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t len, unit;
        bool ok;
    } rows[] = {
        {"a", 1, 1, true},
        {"\xC3\xA9", 2, 2, true},
        {"\xC3", 1, 0, false},         /* more may come */
        {"\xC3(", 2, 1, false},        /* it did not */
        {"\xC0\xAF", 2, 1, false},     /* overlong */
        {"\xE0\x80\x80", 3, 1, false}, /* overlong */
        {"\xED\xA0\x80", 3, 1, false}, /* a surrogate */
        {"\xE4\xB8", 2, 0, false},
        {"\xE4\xB8z", 3, 2, false}, /* the longest beginning is one fault */
        {"\xF0\x9F\x98\x80", 4, 4, true},
        {"\xF0\x9F\x98", 3, 0, false},
        {"\xF4\x90\x80\x80", 4, 1, false}, /* above U+10FFFF */
        {"\xF5", 1, 1, false},
        {"\x80", 1, 1, false},
        {"\xFF", 1, 1, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool ok;
        size_t n = utf8_stream_unit(rows[i].bytes, rows[i].len, &ok);
        if (n != rows[i].unit || ok != rows[i].ok) fail_msg("row %zu: %zu, %d", i, n, ok);
        if (utf8_valid(rows[i].bytes, rows[i].len) != (ok && n == rows[i].len)) fail_msg("row %zu", i);
    }
}

static void test_counting(void **state) {
    (void)state;
    static const char s[] = "a\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80\xFF!";
    assert_int_equal(utf8_length(s, sizeof s - 1), 6);
    assert_int_equal(utf8_offset(s, sizeof s - 1, 0), 0);
    assert_int_equal(utf8_offset(s, sizeof s - 1, 3), 6);
    assert_int_equal(utf8_offset(s, sizeof s - 1, 5), 11);
    assert_int_equal(utf8_offset(s, sizeof s - 1, 99), sizeof s - 1);
    assert_false(utf8_valid(s, sizeof s - 1));
    assert_true(utf8_valid(s, 10));
    assert_true(utf8_valid("", 0));
    assert_true(utf8_valid("0123456789abcdef\xC3\xA9", 18));
    assert_false(utf8_valid("0123456789abcdef\xC3", 17));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_point),
        cmocka_unit_test(test_units),
        cmocka_unit_test(test_counting),
    };
    return cmocka_run_group_tests_name("UTF-8", tests, NULL, NULL);
}
