/* Pre-tokenizers: the pieces of small texts, written out; the corpus test compares whole corpora. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "text/vocab_split.h"

#include <stdlib.h>
#include <string.h>

/* Cuts text and joins the pieces with '|'. */
static void check(const char *pre, const char *text, const char *want) {
    struct strata_errmsg em;
    struct vocab_split *s = NULL;
    struct vocab_split_traits traits;
    struct vocab_split_work w = {0};
    struct buf got;
    buf_init(&got, 4096);
    if (vocab_split_new(pre, strlen(pre), &s, &traits, &em) != STRATA_OK) fail_msg("%s", em.text);
    if (vocab_split_run(s, text, strlen(text), &w, &em) != STRATA_OK) fail_msg("%s", em.text);
    size_t start = 0;
    for (size_t i = 0; i < w.ends.len; i++) {
        assert_true(w.ends.end[i] > start); /* no empty piece */
        if (i > 0) assert_int_equal(buf_append_str(&got, "|", &em), STRATA_OK);
        assert_int_equal(buf_append(&got, text + start, w.ends.end[i] - start, &em), STRATA_OK);
        start = w.ends.end[i];
    }
    assert_int_equal(start, strlen(text)); /* every byte is in a piece */
    if (strcmp(buf_cstr(&got), want) != 0) fail_msg("%s cuts '%s' into '%s'", pre, text, buf_cstr(&got));
    buf_deinit(&got);
    vocab_split_work_deinit(&w);
    vocab_split_free(s);
}

static void test_pieces(void **state) {
    (void)state;
    check("gpt-2", "", "");
    check("gpt-2", "Hello world  x", "Hello| world| | x");
    check("gpt-2", "it's IT'S 1234 a!b", "it|'s| IT|'|S| 1234| a|!|b");
    check("gpt-2", "a \n\nb  ", "a| \n|\n|b|  ");
    check("smollm", "x 123 4", "x| |1|2|3| |4");
    check("llama-bpe", "IT'S 12345 (ok)\n\nz", "IT|'S| |123|45| (|ok|)\n\n|z");
    check("llama3", "a  \n b", "a|  \n| b");
    check("qwen2", "v123", "v|1|2|3");
    check("qwen2", "e\xCC\x81x", "e|\xCC\x81x");
    check("qwen35", "e\xCC\x81x", "e\xCC\x81x");
    check("deepseek-v3",
          "a\xE4\xB8\xAD\xE6\x96\x87"
          "b 1234 ~x",
          "a|\xE4\xB8\xAD\xE6\x96\x87|b| |123|4| ~|x");
    check("default", "a, b12345", "a|,| b|123|45");
    /* U+180E is a format character to the tokenizers, whatever PCRE2 thinks; U+3000 is white space. */
    check("gpt-2", "a\xE1\xA0\x8E\xE3\x80\x80z", "a|\xE1\xA0\x8E|\xE3\x80\x80|z");
    /* A letter of Unicode 15 is one. */
    check("gpt-2", "1\xF0\xB1\x8D\x90z", "1|\xF0\xB1\x8D\x90z");
}

static void test_traits(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct vocab_split *s = NULL;
    struct vocab_split_traits traits;
    assert_int_equal(vocab_split_new("llama-bpe", 9, &s, &traits, &em), STRATA_OK);
    assert_true(traits.add_bos && traits.ignore_merges);
    vocab_split_free(s);
    assert_int_equal(vocab_split_new("glm4", 4, &s, &traits, &em), STRATA_OK);
    assert_false(traits.add_bos || traits.ignore_merges);
    vocab_split_free(s);
}

static void test_unknown_names(void **state) {
    (void)state;
    static const char *const names[] = {"", " ", "gpt", "gpt-22", "GPT-2", "gpt-2 phi-2", "tekken"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct strata_errmsg em;
        struct vocab_split *s = NULL;
        struct vocab_split_traits traits;
        if (vocab_split_new(names[i], strlen(names[i]), &s, &traits, &em) != STRATA_EUNSUPPORTED)
            fail_msg("'%s'", names[i]);
        assert_non_null(strstr(em.text, "known are: llama-bpe"));
        assert_non_null(strstr(em.text, "deepseek-v3"));
        assert_null(s);
    }
}

static void test_too_long(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct vocab_split *s = NULL;
    struct vocab_split_traits traits;
    struct vocab_split_work w = {0};
    assert_int_equal(vocab_split_new("gpt-2", 5, &s, &traits, &em), STRATA_OK);
    assert_int_equal(vocab_split_run(s, "", VOCAB_SPLIT_MAX + 1, &w, &em), STRATA_ELIMIT);
    vocab_split_work_deinit(&w);
    vocab_split_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_traits),
        cmocka_unit_test(test_unknown_names),
        cmocka_unit_test(test_too_long),
    };
    return cmocka_run_group_tests_name("pre-tokenizers", tests, NULL, NULL);
}
