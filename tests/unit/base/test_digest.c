/* SHA-256 against published vectors, in one piece and in many. */
#include "base/digest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const char *text, *hex;
} vectors[] = {
    {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
};

static void test_vectors(void **state) {
    (void)state;
    struct digest *d;
    struct strata_errmsg em;
    assert_int_equal(digest_new(&d, &em), STRATA_OK);
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        uint8_t sum[DIGEST_BYTES];
        char hex[DIGEST_HEX];
        assert_int_equal(digest_of(vectors[i].text, strlen(vectors[i].text), sum, &em), STRATA_OK);
        digest_to_hex(sum, sizeof sum, hex);
        assert_string_equal(hex, vectors[i].hex);
        /* One byte at a time, and the object is good for the next round. */
        for (const char *p = vectors[i].text; *p; p++) assert_int_equal(digest_update(d, p, 1, &em), STRATA_OK);
        assert_int_equal(digest_final(d, sum, &em), STRATA_OK);
        digest_to_hex(sum, sizeof sum, hex);
        assert_string_equal(hex, vectors[i].hex);
    }
    digest_free(d);
    digest_free(NULL);
}

static void test_million(void **state) {
    (void)state;
    char block[1000], hex[DIGEST_HEX];
    uint8_t sum[DIGEST_BYTES];
    struct digest *d;
    struct strata_errmsg em;
    memset(block, 'a', sizeof block);
    assert_int_equal(digest_new(&d, &em), STRATA_OK);
    for (int i = 0; i < 1000; i++) assert_int_equal(digest_update(d, block, sizeof block, &em), STRATA_OK);
    assert_int_equal(digest_final(d, sum, &em), STRATA_OK);
    digest_to_hex(sum, sizeof sum, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    digest_free(d);
}

static void test_hex(void **state) {
    (void)state;
    uint8_t sum[DIGEST_BYTES];
    static const char *const bad[] = {"",
                                      "00",
                                      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015a",
                                      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad0",
                                      "ga7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
                                      " a7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_int_equal(digest_from_hex(bad[i], sum), -1);
    assert_int_equal(digest_from_hex("BA7816BF8F01CFEA414140DE5DAE2223b00361a396177a9cb410ff61f20015ad", sum), 0);
    assert_int_equal(sum[0], 0xba);
    assert_int_equal(sum[31], 0xad);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_vectors), cmocka_unit_test(test_million),
                                       cmocka_unit_test(test_hex)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
