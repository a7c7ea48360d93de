/* Stop strings: the same result however the text is cut, and nothing held back without need. */
#include "serve/api_stop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct stop_case {
    const char *words[API_MAX_STOPS + 1];
    const char *text;
    const char *want; /* what comes out */
    bool match;
};

static const struct stop_case cases[] = {
    {{NULL}, "anything", "anything", false},
    {{"x"}, "", "", false},
    {{"stop"}, "go on", "go on", false},
    {{"stop"}, "go stop now", "go ", true},
    {{"stop"}, "stop", "", true},
    {{"stop"}, "sto", "sto", false},
    {{"stop"}, "stostop!", "sto", true},
    {{"stop"}, "ststostop", "ststo", true},
    {{"aab"}, "aaaab", "aa", true},
    {{"abab"}, "abaabab", "aba", true},
    {{"abcabd"}, "abcabcabd", "abc", true},
    {{"\n\n"}, "a\nb\n\nc", "a\nb", true},
    {{"abc", "b"}, "abc", "a", true}, /* the one that is complete first wins */
    {{"abc", "bc"}, "abc", "", true}, /* complete together: the longer one */
    {{"bc", "abc"}, "abc", "", true},
    {{"abcd", "bx"}, "abcbx", "abc", true},
    {{"abcd", "cx"}, "abcx", "ab", true},
    {{"User:", "\nUser:"}, "hi\nUser: me", "hi", true},
    {{"one", "two", "three", "four"}, "zero four one", "zero ", true},
    {{"\xc3\xa9t\xc3\xa9"}, "un \xc3\xa9t\xc3\xa9!", "un ", true},
    {{"\xc3\xa9t\xc3\xa9"}, "un \xc3\xa9t\xc3\xa8", "un \xc3\xa9t\xc3\xa8", false},
    {{"\xf0\x9f\x99\x82"}, "ok \xf0\x9f\x99\x83\xf0\x9f\x99\x82", "ok \xf0\x9f\x99\x83", true},
    {{"<|im_end|>"}, "x<|im_<|im_end|>y", "x<|im_", true},
};

/* Runs a case with pieces of `step` bytes; step 0: a first piece of `first` bytes, then the rest. */
static void run(const struct stop_case *c, size_t step, size_t first) {
    struct api_stop s;
    struct strata_errmsg em;
    struct buf out;
    size_t n = 0, len = strlen(c->text);
    while (c->words[n]) n++;
    buf_init(&out, 1 << 20);
    assert_int_equal(api_stop_init(&s, c->words, n, &em), 0);
    for (size_t i = 0; i < len;) {
        size_t take = step ? step : i == 0 && first ? first : len - i;
        if (take > len - i) take = len - i;
        /* An exact copy, so that the sanitizers see a read past the piece. */
        char *piece = malloc(take);
        assert_non_null(piece);
        memcpy(piece, c->text + i, take);
        assert_int_equal(api_stop_push(&s, piece, take, &out, &em), 0);
        free(piece);
        i += take;
    }
    assert_int_equal(api_stop_flush(&s, &out, &em), 0);
    if (strcmp(buf_cstr(&out), c->want) != 0 || s.matched != c->match)
        fail_msg("'%s' with '%s'... in pieces of %zu/%zu gives '%s'", c->text, n ? c->words[0] : "", step, first,
                 buf_cstr(&out));
    api_stop_deinit(&s);
    buf_deinit(&out);
}

static void table(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t step = 1; step <= 9; step++) run(&cases[i], step, 0);
        for (size_t first = 0; first < strlen(cases[i].text); first++) run(&cases[i], 0, first);
    }
}

static void holds_back_only_what_it_must(void **state) {
    (void)state;
    static const struct {
        const char *piece, *out;
    } steps[] = {
        {"say s", "say "}, {"t", ""}, {"o", ""}, {"x st", "stox "}, {"ring", "string"}, {" STOP", " STOP"},
    };
    const char *word = "stop";
    struct api_stop s;
    struct strata_errmsg em;
    struct buf out;
    buf_init(&out, 1 << 10);
    assert_int_equal(api_stop_init(&s, &word, 1, &em), 0);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        buf_clear(&out);
        assert_int_equal(api_stop_push(&s, steps[i].piece, strlen(steps[i].piece), &out, &em), 0);
        assert_string_equal(buf_cstr(&out), steps[i].out);
    }
    api_stop_deinit(&s);
    buf_deinit(&out);
}

/* Against the definition, on every text over two letters of up to 12 bytes. */
static void exhaustive(void **state) {
    (void)state;
    static const char *const words[] = {"aab", "bab", "abba", "bb"};
    struct strata_errmsg em;
    for (unsigned bits = 0; bits < 1u << 12; bits++) {
        char text[13] = {0};
        for (int i = 0; i < 12; i++) text[i] = bits >> i & 1 ? 'b' : 'a';
        size_t want = 12;
        bool match = false;
        for (size_t end = 1; end <= 12 && !match; end++) {
            for (size_t w = 0; w < 4; w++) {
                size_t n = strlen(words[w]);
                if (n > end || memcmp(text + end - n, words[w], n) != 0) continue;
                if (!match || end - n < want) want = end - n;
                match = true;
            }
        }
        struct api_stop s;
        struct buf out;
        buf_init(&out, 64);
        assert_int_equal(api_stop_init(&s, words, 4, &em), 0);
        for (size_t i = 0; i < 12; i += 3) assert_int_equal(api_stop_push(&s, text + i, 3, &out, &em), 0);
        assert_int_equal(api_stop_flush(&s, &out, &em), 0);
        assert_int_equal(s.matched, match);
        assert_int_equal(out.len, want);
        assert_memory_equal(buf_cstr(&out), text, want);
        api_stop_deinit(&s);
        buf_deinit(&out);
    }
}

static void refuses_bad_words(void **state) {
    (void)state;
    struct api_stop s;
    struct strata_errmsg em;
    static char big[API_MAX_STOP_BYTES + 2];
    memset(big, 'a', sizeof big - 1);
    const char *words[] = {"ok", ""};
    assert_int_equal(api_stop_init(&s, words, 2, &em), STRATA_EINVAL);
    words[1] = big;
    assert_int_equal(api_stop_init(&s, words, 2, &em), STRATA_EINVAL);
    big[API_MAX_STOP_BYTES] = '\0';
    assert_int_equal(api_stop_init(&s, words, 2, &em), STRATA_OK);
    api_stop_deinit(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),
        cmocka_unit_test(holds_back_only_what_it_must),
        cmocka_unit_test(exhaustive),
        cmocka_unit_test(refuses_bad_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
