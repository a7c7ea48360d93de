/* Strict JSON: what is parsed, what the getters accept, and how their errors name the place. */
#include "base/jsonx.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_parse(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool legal;
    } rows[] = {
        {"{}", true},
        {" [1, 2] \n", true},
        {"{\"a\": {\"b\": null}}", true},
        {"", false},
        {"{", false},
        {"{} {}", false},
        {"{\"a\":1,\"a\":2}", false},
        {"{\"a\":\"\\u0000\"}", false},
        {"{'a':1}", false},
        {"{\"a\":01}", false},
        {"{\"a\":NaN}", false},
        {"{\"a\":1e999}", false},
        {"{\"a\":99999999999999999999}", false},
        {"{\"\xff\":1}", false},
        {"nul", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *root = NULL;
        struct strata_errmsg em;
        strata_err rc = jsonx_parse(rows[i].text, strlen(rows[i].text), &root, &em);
        if ((rc == STRATA_OK) != rows[i].legal) fail_msg("'%s' gave %d", rows[i].text, (int)rc);
        json_decref(root);
    }
    json_t *root = NULL;
    struct strata_errmsg em;
    assert_int_equal(jsonx_parse("{\n \"a\": x}", 10, &root, &em), STRATA_EFORMAT);
    assert_non_null(strstr(em.text, "line 2"));
}

static json_t *sample(void) {
    static const char text[] = "{\"s\":\"text\",\"n\":5,\"neg\":-1,\"f\":2.5,\"b\":true,\"o\":{},\"a\":[1],\"z\":null}";
    json_t *root = NULL;
    struct strata_errmsg em;
    assert_int_equal(jsonx_parse(text, sizeof text - 1, &root, &em), STRATA_OK);
    return root;
}

static void test_getters(void **state) {
    (void)state;
    json_t *root = sample(), *v = NULL;
    struct strata_errmsg em;
    const char *s = NULL;
    uint64_t n = 0;
    double f = 0;
    bool b = false;
    assert_int_equal(jsonx_get_str(root, "", "s", true, &s, &em), STRATA_OK);
    assert_string_equal(s, "text");
    assert_int_equal(jsonx_get_u64(root, "", "n", true, 5, &n, &em), STRATA_OK);
    assert_int_equal(n, 5);
    assert_int_equal(jsonx_get_f64(root, "", "n", true, 0, 5, &f, &em), STRATA_OK); /* whole numbers are numbers */
    assert_int_equal(jsonx_get_f64(root, "", "f", true, 0, 5, &f, &em), STRATA_OK);
    assert_true(f == 2.5);
    assert_int_equal(jsonx_get_bool(root, "", "b", true, &b, &em), STRATA_OK);
    assert_true(b);
    assert_int_equal(jsonx_get_obj(root, "", "o", true, &v, &em), STRATA_OK);
    assert_int_equal(jsonx_get_array(root, "", "a", true, &v, &em), STRATA_OK);
    assert_int_equal(json_array_size(v), 1);
    json_decref(root);
}

static void test_wrong(void **state) {
    (void)state;
    json_t *root = sample(), *v = root;
    struct strata_errmsg em;
    const char *s = "kept";
    uint64_t n = 77;
    double f = 7;
    bool b = true;
    assert_int_equal(jsonx_get_str(root, "x", "n", true, &s, &em), STRATA_EFORMAT);
    assert_string_equal(em.text, "x.n must be a string, not a whole number");
    assert_int_equal(jsonx_get_str(root, "", "gone", true, &s, &em), STRATA_EFORMAT);
    assert_string_equal(em.text, "gone is missing");
    assert_int_equal(jsonx_get_str(root, "x", "z", true, &s, &em), STRATA_EFORMAT); /* null is absent */
    assert_int_equal(jsonx_get_u64(root, "", "n", true, 4, &n, &em), STRATA_EFORMAT);
    assert_int_equal(jsonx_get_u64(root, "", "neg", true, 4, &n, &em), STRATA_EFORMAT);
    assert_int_equal(jsonx_get_u64(root, "", "f", true, 4, &n, &em), STRATA_EFORMAT);
    assert_int_equal(jsonx_get_u64(root, "", "s", true, 4, &n, &em), STRATA_EFORMAT);
    assert_int_equal(jsonx_get_f64(root, "", "f", true, 0, 2, &f, &em), STRATA_EFORMAT);
    assert_int_equal(jsonx_get_f64(root, "", "s", true, 0, 2, &f, &em), STRATA_EFORMAT);
    assert_int_equal(jsonx_get_bool(root, "", "n", true, &b, &em), STRATA_EFORMAT);
    assert_int_equal(jsonx_get_obj(root, "", "a", true, &v, &em), STRATA_EFORMAT);
    assert_int_equal(jsonx_get_array(root, "", "o", true, &v, &em), STRATA_EFORMAT);
    /* Absent and not required: no error. In no case is the result touched. */
    assert_int_equal(jsonx_get_str(root, "", "gone", false, &s, &em), STRATA_OK);
    assert_int_equal(jsonx_get_u64(root, "", "z", false, 9, &n, &em), STRATA_OK);
    assert_int_equal(jsonx_get_f64(root, "", "gone", false, 0, 1, &f, &em), STRATA_OK);
    assert_int_equal(jsonx_get_bool(root, "", "gone", false, &b, &em), STRATA_OK);
    assert_int_equal(jsonx_get_obj(root, "", "gone", false, &v, &em), STRATA_OK);
    assert_string_equal(s, "kept");
    assert_true(n == 77 && f == 7 && b && v == root);
    json_decref(root);
}

static void test_text(void **state) {
    (void)state;
    static const struct {
        const char *in;
        size_t len;
        const char *out;
    } rows[] = {
        {"plain", 5, "plain"},
        {"\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80", 9, "\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80"},
        {"a\xff"
         "b",
         3,
         "a\xef\xbf\xbd"
         "b"},
        {"a\0b", 3,
         "a\xef\xbf\xbd"
         "b"},
        {"\xc3", 1, "\xef\xbf\xbd"},                                 /* cut short */
        {"\xc0\x80", 2, "\xef\xbf\xbd\xef\xbf\xbd"},                 /* overlong */
        {"\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* surrogate */
        {"\xf4\x90\x80\x80", 4, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"", 0, ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *v = jsonx_text(rows[i].in, rows[i].len);
        assert_non_null(v);
        assert_string_equal(json_string_value(v), rows[i].out);
        json_decref(v);
    }
}

static void test_dump(void **state) {
    (void)state;
    struct buf out;
    struct strata_errmsg em;
    json_t *root = json_pack("{s:i, s:[i]}", "b", 1, "a", 2);
    buf_init(&out, 100);
    assert_int_equal(jsonx_dump(root, false, &out, &em), STRATA_OK);
    assert_string_equal(buf_cstr(&out), "{\"b\":1,\"a\":[2]}"); /* the order of keys is kept */
    buf_clear(&out);
    assert_int_equal(jsonx_dump(root, true, &out, &em), STRATA_OK);
    assert_non_null(strstr(buf_cstr(&out), "\n  \"b\": 1"));
    buf_deinit(&out);
    buf_init(&out, 5);
    assert_int_equal(jsonx_dump(root, false, &out, &em), STRATA_ELIMIT);
    buf_deinit(&out);
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parse), cmocka_unit_test(test_getters),
                                       cmocka_unit_test(test_wrong), cmocka_unit_test(test_text),
                                       cmocka_unit_test(test_dump)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
