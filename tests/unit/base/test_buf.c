/* Growing buffers and checked arithmetic: limits hold, failures change nothing. */
#include "base/buf.h"
#include "base/checked.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_append(void **state) {
    (void)state;
    struct buf b;
    struct strata_errmsg em;
    buf_init(&b, 10);
    assert_string_equal(buf_cstr(&b), "");
    assert_int_equal(buf_append_str(&b, "hello", &em), STRATA_OK);
    assert_int_equal(buf_append(&b, "world", 5, &em), STRATA_OK);
    assert_string_equal(buf_cstr(&b), "helloworld");
    /* Full: refused, and the content stays. */
    assert_int_equal(buf_append(&b, "!", 1, &em), STRATA_ELIMIT);
    assert_int_equal(buf_append(&b, "!", SIZE_MAX, &em), STRATA_ELIMIT);
    assert_int_equal(buf_append(&b, "!", 1, NULL), STRATA_ELIMIT);
    assert_int_equal(buf_append(&b, "", 0, &em), STRATA_OK);
    assert_string_equal(buf_cstr(&b), "helloworld");
    assert_int_equal(b.len, 10);
    buf_deinit(&b);
    assert_int_equal(b.max, 10);
}

static void test_printf(void **state) {
    (void)state;
    struct buf b;
    struct strata_errmsg em;
    buf_init(&b, 8);
    assert_int_equal(buf_printf(&b, &em, "%d-%s", 12, "ab"), STRATA_OK);
    assert_int_equal(buf_printf(&b, &em, "%s", "toolong"), STRATA_ELIMIT);
    assert_string_equal(buf_cstr(&b), "12-ab");
    assert_int_equal(buf_printf(&b, &em, "%s", "xyz"), STRATA_OK);
    assert_string_equal(buf_cstr(&b), "12-abxyz");
    buf_deinit(&b);
}

static void test_consume(void **state) {
    (void)state;
    struct buf b;
    struct strata_errmsg em;
    buf_init(&b, 100);
    buf_consume(&b, 5); /* of an empty buffer */
    assert_int_equal(buf_append_str(&b, "abcdef", &em), STRATA_OK);
    buf_consume(&b, 2);
    assert_string_equal(buf_cstr(&b), "cdef");
    buf_consume(&b, 0);
    assert_string_equal(buf_cstr(&b), "cdef");
    buf_consume(&b, 4);
    assert_string_equal(buf_cstr(&b), "");
    assert_int_equal(buf_append_str(&b, "x", &em), STRATA_OK);
    buf_consume(&b, SIZE_MAX);
    assert_int_equal(b.len, 0);
    buf_deinit(&b);
}

static void test_reserve(void **state) {
    (void)state;
    struct buf b;
    struct strata_errmsg em;
    buf_init(&b, 64);
    char *p = buf_reserve(&b, 3, &em);
    assert_non_null(p);
    memcpy(p, "abc", 3);
    assert_int_equal(b.len, 0); /* reserved is not appended */
    b.len = 3;
    assert_string_equal(buf_cstr(&b), "abc");
    assert_null(buf_reserve(&b, 62, &em));
    assert_int_equal(em.code, STRATA_ELIMIT);
    assert_non_null(buf_reserve(&b, 61, &em));
    buf_clear(&b);
    assert_string_equal(buf_cstr(&b), "");
    buf_deinit(&b);
}

static void test_checked(void **state) {
    (void)state;
    uint64_t out = 7;
    assert_true(checked_add(UINT64_MAX - 1, 1, &out) && out == UINT64_MAX);
    assert_false(checked_add(UINT64_MAX, 1, &out));
    assert_true(checked_mul(UINT64_C(1) << 32, UINT32_MAX, &out));
    assert_false(checked_mul(UINT64_C(1) << 32, UINT64_C(1) << 32, &out));
    assert_true(checked_align(33, 32, &out) && out == 64);
    assert_true(checked_align(64, 32, &out) && out == 64);
    assert_true(checked_align(0, 32, &out) && out == 0);
    out = 7;
    assert_false(checked_align(UINT64_MAX - 5, 32, &out));
    assert_true(out == 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_append), cmocka_unit_test(test_printf),
                                       cmocka_unit_test(test_consume), cmocka_unit_test(test_reserve),
                                       cmocka_unit_test(test_checked)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
