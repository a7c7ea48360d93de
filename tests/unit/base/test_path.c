/* Which foreign paths may be opened below a folder, and joining. */
#include "base/path.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_safe(void **state) {
    (void)state;
    static const struct {
        const char *path;
        bool safe;
    } rows[] = {
        {"a", true},
        {"layers/layer-00001.gguf", true},
        {"a/b/c.d", true},
        {"..a", true},
        {"a..b", true},
        {".a.b", true},
        {".hidden", true},
        {"with space", true},
        {"\xc3\xa9", true},
        {"console", true},
        {"nul-file", true},
        {"com10", true},
        {"", false},
        {"/", false},
        {"/a", false},
        {"a/", false},
        {"a//b", false},
        {".", false},
        {"..", false},
        {"./a", false},
        {"a/.", false},
        {"a/..", false},
        {"a/../b", false},
        {"../a", false},
        {"a\\b", false},
        {"..\\a", false},
        {"c:", false},
        {"c:/a", false},
        {"a:stream", false},
        {"a\nb", false},
        {"a\tb", false},
        {"a\x7f", false},
        {"nul", false},
        {"NUL.txt", false},
        {"a/CON", false},
        {"Aux.tar.gz", false},
        {"com1", false},
        {"lpt9.x", false},
        {"prn/a", false},
        {"a.", false},
        {"a..", false},
        {"...", false},
        {"a ", false},
        {"a. ", false},
        {"a./b", false},
        {"a /b", false},
        {" a", true},
        {"a b", true},
        {"com0", false},
        {"COM\xc2\xb9.gguf", false},
        {"lpt\xc2\xb3", false},
        {"com\xc2\xb4", true},
        {"nul .txt", false},
        {"conin$", false},
        {"CONOUT$.x", false},
        {"conin", true},
        {"comx", true},
        {"com", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *why = NULL;
        if (path_is_safe_relative(rows[i].path, strlen(rows[i].path), &why) != rows[i].safe)
            fail_msg("'%s' should be %s", rows[i].path, rows[i].safe ? "safe" : "refused");
        assert_int_equal(why == NULL, rows[i].safe);
        path_is_safe_relative(rows[i].path, strlen(rows[i].path), NULL);
    }
    assert_false(path_is_safe_relative("a\0b", 3, NULL));
}

static void test_lengths(void **state) {
    (void)state;
    static char text[2 * PATH_MAX_LEN];
    memset(text, 'x', 255);
    assert_true(path_is_safe_relative(text, 255, NULL));
    text[255] = 'x';
    assert_false(path_is_safe_relative(text, 256, NULL)); /* one component too long */
    for (size_t i = 0; i < sizeof text; i++) text[i] = i % 2 ? '/' : 'x';
    assert_true(path_is_safe_relative(text, PATH_MAX_LEN - 1, NULL));
    assert_false(path_is_safe_relative(text, PATH_MAX_LEN + 1, NULL));
}

static void test_join(void **state) {
    (void)state;
    char out[16];
    struct strata_errmsg em;
    assert_int_equal(path_join(out, sizeof out, "dir", "name", &em), STRATA_OK);
    assert_string_equal(out, "dir/name");
    assert_int_equal(path_join(out, sizeof out, "dir/", "name", &em), STRATA_OK);
    assert_string_equal(out, "dir/name");
    assert_int_equal(path_join(out, sizeof out, "/", "name", &em), STRATA_OK);
    assert_string_equal(out, "/name");
    assert_int_equal(path_join(out, sizeof out, "dir", "12345678901", &em), STRATA_OK);
    assert_int_equal(path_join(out, sizeof out, "dir", "123456789012", &em), STRATA_ELIMIT);
}

static void test_parts(void **state) {
    (void)state;
    static const struct {
        const char *path, *base, *dir;
    } rows[] = {{"a/b", "b", "a"}, {"b", "b", "."}, {"/b", "b", "/"}, {"/a/b", "b", "/a"}, {"a/", "", "a"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char out[16];
        assert_string_equal(path_basename(rows[i].path), rows[i].base);
        assert_int_equal(path_dirname(out, sizeof out, rows[i].path, NULL), STRATA_OK);
        assert_string_equal(out, rows[i].dir);
    }
    char tiny[3];
    assert_int_equal(path_dirname(tiny, sizeof tiny, "abc/d", NULL), STRATA_ELIMIT);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_safe), cmocka_unit_test(test_lengths),
                                       cmocka_unit_test(test_join), cmocka_unit_test(test_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
