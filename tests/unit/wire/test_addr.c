/* HOST:PORT: what is accepted, how it is written again, and what is this machine for certain. */
#include "wire/wire_addr.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_addr)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
