/* Error texts: formatted, prefixed, cut to fit, and never with a control character from foreign data. */
#include "base/err.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_texts(void **state) {
    (void)state;
    struct strata_errmsg em;
    assert_int_equal(err_set(&em, STRATA_EFORMAT, "bad %s", "thing"), STRATA_EFORMAT);
    assert_int_equal(em.code, STRATA_EFORMAT);
    assert_string_equal(em.text, "bad thing");
    assert_int_equal(err_prefix(&em, "in %d", 7), STRATA_EFORMAT);
    assert_string_equal(em.text, "in 7: bad thing");
    assert_int_equal(err_sys(&em, STRATA_EIO, ENOENT, "open"), STRATA_EIO);
    assert_string_equal(em.text, "open: No such file or directory");
    assert_int_equal(err_set(NULL, STRATA_EIO, "nobody listens"), STRATA_EIO);
    assert_int_equal(err_nomem(NULL, "x"), STRATA_ENOMEM);
}

static void test_control_characters(void **state) {
    (void)state;
    struct strata_errmsg em;
    err_set(&em, STRATA_EFORMAT, "%s", "a\033[2J\r\n\x7f\x01z\xc3\xa9");
    assert_string_equal(em.text, "a?[2J????z\xc3\xa9");
}

static void test_long(void **state) {
    (void)state;
    struct strata_errmsg em;
    char text[2000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    err_set(&em, STRATA_EFORMAT, "%s", text);
    assert_int_equal(strlen(em.text), STRATA_ERRMSG_MAX - 1);
    err_prefix(&em, "place");
    assert_int_equal(strlen(em.text), STRATA_ERRMSG_MAX - 1);
    assert_int_equal(strncmp(em.text, "place: xxx", 10), 0);
}

static void test_names(void **state) {
    (void)state;
    for (int i = STRATA_OK; i <= STRATA_EINTERNAL; i++)
        assert_string_not_equal(strata_err_name((strata_err)i), "unknown");
    assert_string_equal(strata_err_name((strata_err)999), "unknown");
    assert_string_equal(strata_err_name((strata_err)-1), "unknown");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_texts), cmocka_unit_test(test_control_characters),
                                       cmocka_unit_test(test_long), cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
