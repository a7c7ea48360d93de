/* Ed25519: published vectors, the one spelling of keys and signatures, key files that are refused. */
#include "base/ed25519.h"

#include "ed25519_sample.h"
#include "tmp_folder.h"

#include <openssl/pem.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct tmp_folder T;

static int setup(void **state) {
    (void)state;
    tmp_folder_make(&T);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tmp_folder_remove(T.path);
    return 0;
}

static struct ed25519_key *sample_key(size_t i) {
    struct ed25519_key *key = NULL;
    struct strata_errmsg em;
    const char *path = tmp_path(&T, "sample.pem");
    ed25519_sample_save(&ed25519_samples[i], path, 0600);
    if (ed25519_key_load(path, &key, &em)) fail_msg("%s", em.text);
    return key;
}

static bool verifies(const struct ed25519_pub *pub, const void *data, size_t len, const struct ed25519_sig *sig) {
    bool good = false;
    struct strata_errmsg em;
    if (ed25519_verify(pub, data, len, sig, &good, &em)) fail_msg("%s", em.text);
    return good;
}

/* ---- signatures ---- */

static void test_vectors(void **state) {
    (void)state;
    for (size_t i = 0; i < N_ED25519_SAMPLES; i++) {
        const struct ed25519_sample *s = &ed25519_samples[i];
        struct ed25519_key *key = sample_key(i);
        struct ed25519_pub pub;
        struct ed25519_sig sig, want;
        struct strata_errmsg em;
        uint8_t message[64];
        size_t len = ed25519_sample_hex(s->message, message);
        ed25519_sample_hex(s->pub, pub.bytes);
        ed25519_sample_hex(s->sig, want.bytes);
        assert_true(ed25519_pub_equal(ed25519_key_pub(key), &pub));
        assert_int_equal(ed25519_sign(key, message, len, &sig, &em), STRATA_OK);
        assert_memory_equal(sig.bytes, want.bytes, sizeof sig.bytes);
        assert_true(verifies(&pub, message, len, &sig));
        ed25519_key_free(key);
    }
    ed25519_key_free(NULL);
}

/* One changed bit anywhere, a byte more or less, another's key: not good, and no failure either. */
static void test_changed(void **state) {
    (void)state;
    struct ed25519_key *key = sample_key(3), *other = sample_key(0);
    struct ed25519_pub pub = *ed25519_key_pub(key);
    struct ed25519_sig sig;
    uint8_t message[65] = {0};
    size_t len = ed25519_sample_hex(ed25519_samples[3].message, message);
    ed25519_sample_hex(ed25519_samples[3].sig, sig.bytes);
    for (size_t bit = 0; bit < 8 * sizeof sig.bytes; bit++) {
        sig.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(verifies(&pub, message, len, &sig));
        sig.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t bit = 0; bit < 8 * len; bit++) {
        message[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(verifies(&pub, message, len, &sig));
        message[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t bit = 0; bit < 8 * sizeof pub.bytes; bit++) {
        pub.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(verifies(&pub, message, len, &sig));
        pub.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_false(verifies(&pub, message, len - 1, &sig));
    assert_false(verifies(&pub, message, len + 1, &sig));
    assert_false(verifies(ed25519_key_pub(other), message, len, &sig));
    assert_true(verifies(&pub, message, len, &sig));
    ed25519_key_free(key);
    ed25519_key_free(other);
}

/* S and S + L satisfy the same equation; only S below the group's order L may count, or one signature would have two
 * spellings. */
static void test_one_spelling(void **state) {
    static const uint8_t order[32] = {0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7,
                                      0xa2, 0xde, 0xf9, 0xde, 0x14, 0,    0,    0,    0,    0,    0,
                                      0,    0,    0,    0,    0,    0,    0,    0,    0,    0x10};
    (void)state;
    struct ed25519_pub pub;
    struct ed25519_sig sig;
    ed25519_sample_hex(ed25519_samples[0].pub, pub.bytes);
    ed25519_sample_hex(ed25519_samples[0].sig, sig.bytes);
    assert_true(verifies(&pub, "", 0, &sig));
    for (unsigned i = 0, carry = 0; i < 32; i++) {
        carry += (unsigned)sig.bytes[32 + i] + order[i];
        sig.bytes[32 + i] = (uint8_t)carry;
        carry >>= 8;
    }
    assert_false(verifies(&pub, "", 0, &sig));
}

/* ---- text ---- */

#define K1 "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="

static void test_text(void **state) {
    (void)state;
    struct ed25519_pub pub, pub2;
    struct ed25519_sig sig, sig2;
    struct strata_errmsg em;
    char text[ED25519_PUB_TEXT], long_text[ED25519_SIG_TEXT];
    for (size_t i = 0; i < N_ED25519_SAMPLES; i++) {
        ed25519_sample_hex(ed25519_samples[i].pub, pub.bytes);
        ed25519_sample_hex(ed25519_samples[i].sig, sig.bytes);
        assert_int_equal(strlen(ed25519_pub_text(&pub, text)), 44);
        assert_int_equal(strlen(ed25519_sig_text(&sig, long_text)), 88);
        assert_int_equal(ed25519_pub_parse(text, &pub2, &em), STRATA_OK);
        assert_int_equal(ed25519_sig_parse(long_text, &sig2, &em), STRATA_OK);
        assert_memory_equal(pub.bytes, pub2.bytes, sizeof pub.bytes);
        assert_memory_equal(sig.bytes, sig2.bytes, sizeof sig.bytes);
        /* Every other character at every place is another value, or none. */
        for (size_t at = 0; at < 88; at++) {
            char keep = long_text[at];
            for (int c = 1; c < 256; c++) {
                long_text[at] = (char)c;
                if (c != (unsigned char)keep && ed25519_sig_parse(long_text, &sig2, NULL) == STRATA_OK)
                    assert_memory_not_equal(sig.bytes, sig2.bytes, sizeof sig.bytes);
            }
            long_text[at] = keep;
        }
        long_text[87] = '\0';
        assert_int_equal(ed25519_sig_parse(long_text, &sig2, &em), STRATA_EINVAL);
        assert_int_equal(ed25519_sig_parse(text, &sig2, &em), STRATA_EINVAL);
    }
    assert_int_equal(ed25519_sig_parse("", &sig2, &em), STRATA_EINVAL);
    assert_int_equal(ed25519_pub_parse(long_text, &pub2, &em), STRATA_EINVAL);
    assert_non_null(strstr(em.text, "44 characters"));
}

static strata_err arg_from(const char *content, size_t len, struct ed25519_pub *out, struct strata_errmsg *em) {
    const char *path = tmp_path(&T, "given");
    assert_int_equal(file_write_all(path, content, len, 0644, em), STRATA_OK);
    return ed25519_pub_arg(path, out, em);
}

static void test_arg(void **state) {
    static const struct {
        const char *content;
        size_t len; /* 0: the string's */
        bool good;
    } rows[] = {{K1, 0, true},
                {K1 "\n", 0, true},
                {" \t\r\n" K1 "  \n\n", 0, true},
                {"", 0, false},
                {"\n", 0, false},
                {K1 " name\n", 0, false},
                {K1 "\n" K1 "\n", 0, false},
                {K1 "\0junk", sizeof K1 + 4, false},
                {"-----BEGIN PRIVATE KEY-----\nSECRET\n-----END PRIVATE KEY-----\n", 0, false}};
    (void)state;
    struct ed25519_pub pub;
    struct strata_errmsg em;
    assert_int_equal(ed25519_pub_arg(K1, &pub, &em), STRATA_OK);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t len = rows[i].len ? rows[i].len : strlen(rows[i].content);
        strata_err rc = arg_from(rows[i].content, len, &pub, &em);
        assert_int_equal(rc, rows[i].good ? STRATA_OK : STRATA_EINVAL);
        /* What a file holds may be secret. */
        if (rc) assert_null(strstr(em.text, "SECRET"));
    }
    char large[5000];
    memset(large, ' ', sizeof large);
    assert_int_equal(arg_from(large, sizeof large, &pub, &em), STRATA_ELIMIT);
    assert_int_equal(ed25519_pub_arg(tmp_path(&T, "absent"), &pub, &em), STRATA_EINVAL);
    assert_non_null(strstr(em.text, "nor a file"));
    assert_int_equal(ed25519_pub_arg(T.path, &pub, &em), STRATA_EINVAL);
    assert_int_equal(ed25519_pub_arg("", &pub, &em), STRATA_EINVAL);
}

/* ---- files ---- */

static void test_key_file(void **state) {
    (void)state;
    struct ed25519_key *key = NULL, *again = NULL;
    struct strata_errmsg em;
    struct stat st;
    const char *path = tmp_path(&T, ED25519_KEY_FILE);
    assert_int_equal(ed25519_key_generate(&key, &em), STRATA_OK);
    assert_int_equal(ed25519_key_save(key, path, &em), STRATA_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    /* By its name, and by its folder's. */
    const char *const names[] = {path, T.path};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(ed25519_key_load(names[i], &again, &em), STRATA_OK);
        assert_true(ed25519_pub_equal(ed25519_key_pub(key), ed25519_key_pub(again)));
        ed25519_key_free(again);
        again = NULL;
    }
    for (unsigned mode = 0604; mode <= 0660; mode += 034) { /* 0604, 0640 */
        chmod(path, mode);
        assert_int_equal(ed25519_key_load(path, &again, &em), STRATA_EAUTH);
        assert_non_null(strstr(em.text, "chmod 600"));
    }
    ed25519_key_free(key);
    assert_null(again);
}

static void save_other(EVP_PKEY *pkey, const char *path, const char *password) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_non_null(pkey);
    assert_int_equal(PEM_write_PKCS8PrivateKey(f, pkey, password ? EVP_aes_128_cbc() : NULL, password,
                                               password ? (int)strlen(password) : 0, NULL, NULL),
                     1);
    fclose(f);
    chmod(path, 0600);
    EVP_PKEY_free(pkey);
}

static void test_key_refused(void **state) {
    static const char *const junk[] = {"", "junk\n", "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n",
                                       "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
                                       "-----BEGIN PUBLIC KEY-----\n"
                                       "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n"
                                       "-----END PUBLIC KEY-----\n"};
    (void)state;
    struct ed25519_key *key = NULL;
    struct strata_errmsg em;
    const char *path = tmp_path(&T, "other.pem");
    assert_int_equal(ed25519_key_load(tmp_path(&T, "absent"), &key, &em), STRATA_ENOENT);
    assert_non_null(strstr(em.text, "strata key new"));
    assert_int_equal(mkdir(tmp_path(&T, "empty"), 0700), 0);
    assert_int_equal(ed25519_key_load(tmp_path(&T, "empty"), &key, &em), STRATA_ENOENT);
    save_other(EVP_EC_gen("P-256"), path, NULL);
    assert_int_equal(ed25519_key_load(path, &key, &em), STRATA_EAUTH);
    assert_non_null(strstr(em.text, "not an Ed25519 key"));
    save_other(EVP_PKEY_Q_keygen(NULL, NULL, "X25519"), path, NULL);
    assert_int_equal(ed25519_key_load(path, &key, &em), STRATA_EAUTH);
    /* Nobody is asked for a password. */
    save_other(EVP_PKEY_Q_keygen(NULL, NULL, "ED25519"), path, "secret");
    assert_int_equal(ed25519_key_load(path, &key, &em), STRATA_EFORMAT);
    assert_non_null(strstr(em.text, "without a password"));
    for (size_t i = 0; i < sizeof junk / sizeof junk[0]; i++) {
        assert_int_equal(file_write_all(path, junk[i], strlen(junk[i]), 0600, &em), STRATA_OK);
        assert_int_equal(ed25519_key_load(path, &key, &em), STRATA_EFORMAT);
    }
    char *large = calloc(1, 20000);
    assert_int_equal(file_write_all(path, large, 20000, 0600, &em), STRATA_OK);
    free(large);
    assert_int_equal(ed25519_key_load(path, &key, &em), STRATA_ELIMIT);
    assert_null(key);
}

static void test_key_dir(void **state) {
    char dir[PATH_MAX_LEN], small[8];
    struct strata_errmsg em;
    (void)state;
    setenv("HOME", "/home/someone", 1);
    setenv("XDG_CONFIG_HOME", "/etc/other", 1);
    assert_int_equal(ed25519_key_dir(dir, sizeof dir, &em), STRATA_OK);
    assert_string_equal(dir, "/etc/other/strata");
    assert_int_equal(ed25519_key_dir(small, sizeof small, &em), STRATA_ELIMIT);
    setenv("XDG_CONFIG_HOME", "relative", 1);
    assert_int_equal(ed25519_key_dir(dir, sizeof dir, &em), STRATA_OK);
    assert_string_equal(dir, "/home/someone/.config/strata");
    unsetenv("XDG_CONFIG_HOME");
    unsetenv("HOME");
    assert_int_equal(ed25519_key_dir(dir, sizeof dir, &em), STRATA_EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_vectors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_changed, setup, teardown),
        cmocka_unit_test(test_one_spelling),
        cmocka_unit_test(test_text),
        cmocka_unit_test_setup_teardown(test_arg, setup, teardown),
        cmocka_unit_test_setup_teardown(test_key_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_key_refused, setup, teardown),
        cmocka_unit_test(test_key_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
