/* Key folders and trust lists: permissions, round trips, malformed lines. */
#include "base/file.h"
#include "wire/wire_key.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

static void path_in(char out[128], const char *name) {
    snprintf(out, 128, "%s/%s", dir, name);
}

static int setup(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/strata-key-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state) {
    static const char *const names[] = {"key.pem", "cert.pem", "trusted", "sub/key.pem", "sub/cert.pem"};
    char path[128];
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        path_in(path, names[i]);
        unlink(path);
    }
    path_in(path, "sub");
    rmdir(path);
    return rmdir(dir);
}

static void test_create_load(void **state) {
    struct ed25519_pub pub, again;
    struct wire_key *key;
    struct strata_errmsg em;
    struct stat st;
    char path[128], sub[128], text[ED25519_PUB_TEXT];
    (void)state;
    path_in(sub, "sub");
    assert_int_equal(wire_key_create(sub, &pub, &em), 0);
    assert_int_equal(stat(sub, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    path_in(path, "sub/key.pem");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(wire_key_load(sub, &key, &em), 0);
    assert_true(ed25519_pub_equal(&key->pub, &pub));
    assert_int_equal(strlen(ed25519_pub_text(&pub, text)), 44);
    assert_int_equal(ed25519_pub_parse(text, &again, &em), 0);
    assert_true(ed25519_pub_equal(&again, &pub));
    wire_key_free(key);
    /* A key is never overwritten. */
    assert_int_equal(wire_key_create(sub, &again, &em), STRATA_EBUSY);
    assert_non_null(strstr(em.text, "exists already"));
}

static void test_load_refuses(void **state) {
    struct ed25519_pub pub;
    struct wire_key *key = NULL;
    struct strata_errmsg em;
    char path[128], other[128];
    (void)state;
    assert_int_equal(wire_key_load(dir, &key, &em), STRATA_ENOENT);
    assert_non_null(strstr(em.text, "strata key new"));
    assert_int_equal(wire_key_create(dir, &pub, &em), 0);
    path_in(path, "key.pem");
    chmod(path, 0644);
    assert_int_equal(wire_key_load(dir, &key, &em), STRATA_EAUTH);
    assert_non_null(strstr(em.text, "chmod 600"));
    chmod(path, 0600);
    assert_int_equal(wire_key_load(dir, &key, &em), 0);
    wire_key_free(key);
    key = NULL;
    /* The certificate of another key. */
    path_in(other, "sub");
    assert_int_equal(wire_key_create(other, &pub, &em), 0);
    char from[160], to[160];
    path_in(from, "sub/cert.pem");
    path_in(to, "cert.pem");
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(wire_key_load(dir, &key, &em), STRATA_EFORMAT);
    assert_non_null(strstr(em.text, "do not belong together"));
    assert_int_equal(file_write_all(path, "junk\n", 5, 0600, &em), 0);
    assert_int_equal(wire_key_load(dir, &key, &em), STRATA_EFORMAT);
    assert_null(key);
}

#define K1 "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
#define K2 "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="

static void test_pub_strict(void **state) {
    static const char *const bad[] = {
        "",
        "x",
        "AAAA",
        K1 "=",
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB=", /* stray bits */
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==",
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n==",
        " AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "A*AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "-_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    };
    struct ed25519_pub pub;
    (void)state;
    assert_int_equal(ed25519_pub_parse(K1, &pub, NULL), 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(ed25519_pub_parse(bad[i], &pub, NULL), STRATA_EINVAL);
}

static void test_trust_parse(void **state) {
    static const struct {
        const char *text;
        int n; /* -1: refused */
        const char *says;
    } rows[] = {
        {"", 0, NULL},
        {"# nothing\n\n   \n", 0, NULL},
        {K1 "\n", 1, NULL},
        {K1, 1, NULL},
        {"  " K1 "\tbox.two-a@home  \r\n" K2 " b\n", 2, NULL},
        {K1 " a\n" K1 " b\n", -1, "line 2"},
        {K1 " two words\n", -1, "line 1"},
        {"#ok\nnot-a-key name\n", -1, "line 2"},
        {K1 "x\n", -1, "line 1"},
        {K1 " na/me\n", -1, "line 1"},
        {K1 " \x1b[31m\n", -1, "line 1"},
    };
    struct strata_errmsg em;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct wire_trust t = {0};
        strata_err rc = wire_trust_parse(rows[i].text, strlen(rows[i].text), &t, &em);
        if (rows[i].n < 0) {
            assert_int_equal(rc, STRATA_EFORMAT);
            assert_non_null(strstr(em.text, rows[i].says));
            assert_null(strchr(em.text, '\x1b'));
        } else {
            assert_int_equal(rc, 0);
            assert_int_equal(t.n, rows[i].n);
        }
        wire_trust_deinit(&t);
    }
    struct wire_trust t;
    assert_int_equal(wire_trust_parse(K1 " a\0b\n", 48, &t, &em), STRATA_EFORMAT);
    char longline[700];
    memset(longline, 'a', sizeof longline);
    assert_int_equal(wire_trust_parse(longline, sizeof longline, &t, &em), STRATA_EFORMAT);
}

static void test_trust_file(void **state) {
    struct wire_trust t = {0}, r;
    struct ed25519_pub a, b;
    struct strata_errmsg em;
    char path[128];
    (void)state;
    assert_int_equal(wire_trust_load(dir, &r, &em), 0);
    assert_int_equal(r.n, 0);
    ed25519_pub_parse(K1, &a, NULL);
    ed25519_pub_parse(K2, &b, NULL);
    assert_int_equal(wire_trust_add(&t, &a, "first", &em), 0);
    assert_int_equal(wire_trust_add(&t, &b, NULL, &em), 0);
    assert_int_equal(wire_trust_add(&t, &b, "bad name", &em), STRATA_EINVAL);
    assert_int_equal(wire_trust_save(dir, &t, &em), 0);
    assert_int_equal(wire_trust_load(dir, &r, &em), 0);
    assert_int_equal(r.n, 2);
    assert_string_equal(wire_trust_find(&r, &a)->name, "first");
    assert_int_equal(wire_trust_remove(&r, "second", &em), STRATA_ENOENT);
    assert_int_equal(wire_trust_remove(&r, "first", &em), 0);
    assert_null(wire_trust_find(&r, &a));
    assert_int_equal(wire_trust_remove(&r, K2, &em), 0);
    assert_int_equal(r.n, 0);
    wire_trust_deinit(&r);
    path_in(path, "trusted");
    chmod(path, 0666);
    assert_int_equal(wire_trust_load(dir, &r, &em), STRATA_EAUTH);
    wire_trust_deinit(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_create_load, setup, teardown),
        cmocka_unit_test_setup_teardown(test_load_refuses, setup, teardown),
        cmocka_unit_test(test_pub_strict),
        cmocka_unit_test(test_trust_parse),
        cmocka_unit_test_setup_teardown(test_trust_file, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
