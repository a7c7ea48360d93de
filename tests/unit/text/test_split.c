/* Pre-tokenizers: the pieces of small texts, written out; the corpus test compares whole corpora. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "text/vocab_rules.h"
#include "text/vocab_split.h"

#include <stdio.h>
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
    if (vocab_split_new(pre, strlen(pre), false, &s, &traits, &em) != STRATA_OK) fail_msg("%s", em.text);
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
    check("tekken", "HTTPServer don't 12\n/x", "HTTPServer| don|'t| |1|2|\n|/x");
    check("gpt-4o", "HTTPServer don't ABCd 1234 ?/\n/", "HTTPServer| don't| ABCd| |123|4| ?/\n/");
    check("inkling", "e\xCC\x81X\xC3\x89 O'Neil's", "e\xCC\x81|X\xC3\x89| O|'Neil's");
    check("deepseek-coder", "ab 12\n(x) y", "ab| |1|2|\n|(|x|)| y");
    check("deepseek-llm", "ab 12  ", "ab| |12|  ");
    check("seed-coder", "a!!\nb", "a|!!|\n|b");
    check("laguna", "a!!\nb", "a|!!|\n|b");
    check("qwen2", "a!!\nb", "a|!!\n|b");
    check("minicpm5", "x12345", "x|123|45");
    check("jais-2", "a     b", "a|    | b");
    check("exaone-moe", "a b  c!/\n", "a b| | c|!/\n");
    check("superbpe", "a 1234567b", "a |1|234|567|b");
    check("afmoe", "a 12345", "a| |12|345");
    check("tiny_aya", "HelloWorld 1234", "HelloWorld| |1|234");
    check("youtu", "a\xEA\xB0\x80x", "a|\xEA\xB0\x80|x");
    check("kimi-k2", "a\xE4\xB8\xAD\xE6\x96\x87!\n", "a|\xE4\xB8\xAD\xE6\x96\x87|!\n");
    check("k2-horizon", "'\xC5\xBFx", "'\xC5\xBF|x");
    check("ufakzeka", "it's", "it|'s");
    check("bloom", "a, b (c)", "a|,| b| (|c|)");
    check("viking", "a12", "a|1|2");
    check("falcon", "a`b 12345", "a|`|b| |123|45");
    check("chameleon", "<sentinel:12>  IMGIMGABZ x", "<|sentinel|:|1|2|>|  |IMGIMGABZ| x");
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
    assert_int_equal(vocab_split_new("llama-bpe", 9, false, &s, &traits, &em), STRATA_OK);
    assert_true(traits.add_bos && traits.ignore_merges);
    vocab_split_free(s);
    assert_int_equal(vocab_split_new("glm4", 4, false, &s, &traits, &em), STRATA_OK);
    assert_false(traits.add_bos || traits.ignore_merges);
    vocab_split_free(s);
}

static void test_unknown_names(void **state) {
    (void)state;
    static const char *const names[] = {"", " ", "gpt", "gpt-22", "GPT-2", "gpt-2 phi-2", "inkling2"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct strata_errmsg em;
        struct vocab_split *s = NULL;
        struct vocab_split_traits traits;
        if (vocab_split_new(names[i], strlen(names[i]), false, &s, &traits, &em) != STRATA_EUNSUPPORTED)
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
    assert_int_equal(vocab_split_new("gpt-2", 5, false, &s, &traits, &em), STRATA_OK);
    assert_int_equal(vocab_split_run(s, "", VOCAB_SPLIT_MAX + 1, &w, &em), STRATA_ELIMIT);
    vocab_split_work_deinit(&w);
    vocab_split_free(s);
}

/* ---- the matchers against the patterns ---- */

struct pair {
    struct vocab_split *fast, *slow;
    struct vocab_split_work a, b;
};

static void pair_open(struct pair *p, const char *name, size_t len) {
    struct strata_errmsg em;
    struct vocab_split_traits traits;
    *p = (struct pair){0};
    if (vocab_split_new(name, len, false, &p->fast, &traits, &em) != STRATA_OK) fail_msg("%s", em.text);
    if (vocab_split_new(name, len, true, &p->slow, &traits, &em) != STRATA_OK) fail_msg("%s", em.text);
}

static void pair_close(struct pair *p) {
    vocab_split_free(p->fast);
    vocab_split_free(p->slow);
    vocab_split_work_deinit(&p->a);
    vocab_split_work_deinit(&p->b);
}

static void pair_check(struct pair *p, const char *name, const char *text, size_t len) {
    struct strata_errmsg em;
    if (vocab_split_run(p->fast, text, len, &p->a, &em) != STRATA_OK) fail_msg("%s: %s", name, em.text);
    if (vocab_split_run(p->slow, text, len, &p->b, &em) != STRATA_OK) fail_msg("%s: %s", name, em.text);
    bool same = p->a.ends.len == p->b.ends.len &&
                (len == 0 || memcmp(p->a.ends.end, p->b.ends.end, p->a.ends.len * sizeof(uint32_t)) == 0);
    if (same) return;
    size_t i = 0;
    while (i < p->a.ends.len && i < p->b.ends.len && p->a.ends.end[i] == p->b.ends.end[i]) i++;
    for (size_t k = 0; k < len; k++) print_message("\\x%02X", (unsigned char)text[k]);
    fail_msg("%s: piece %zu of this text", name, i);
}

static uint32_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*seed >> 33);
}

/* A character whose class all versions of PCRE2 agree on: assigned in Unicode 15.1. */
static uint32_t assigned(const uint8_t *class_of, uint64_t *seed) {
    for (;;) {
        uint32_t r = next_random(seed), cp = r % 4 ? (r >> 2) % 0x3400 : (r >> 2) % 0x32000;
        if (class_of[cp] && !(cp >= 0xD800 && cp < 0xE000)) return cp;
    }
}

/* Random texts: few kinds of characters a text, so that runs and borders of all kinds come up. */
static size_t random_text(const uint8_t *class_of, uint64_t *seed, char *out, size_t max) {
    static const char *const common[] = {" ",
                                         " ",
                                         "\n",
                                         "\r",
                                         "\t",
                                         "'",
                                         "s",
                                         "T",
                                         "re",
                                         "LL",
                                         "a",
                                         "Z",
                                         "1",
                                         "23",
                                         "/",
                                         "!",
                                         "$",
                                         "_",
                                         "\xC3\xA9",
                                         "\xC3\x89",
                                         "\xE4\xB8\xAD",
                                         "\xE3\x81\x8B",
                                         "\xEA\xB0\x80",
                                         "\xCC\x81",
                                         "\xE3\x80\x80",
                                         "\xC2\xA0",
                                         "\xC5\xBF",
                                         "\xE2\x80\x8D",
                                         "\x01",
                                         "IMGIMGAZ",
                                         "<sentinel:1>"};
    enum { N_COMMON = sizeof common / sizeof common[0] };
    char pool[6][16];
    size_t pool_len[6], len = 0, want = next_random(seed) % (max - 16);
    for (int i = 0; i < 6; i++) {
        if (next_random(seed) % 3) {
            const char *s = common[next_random(seed) % N_COMMON];
            pool_len[i] = strlen(s);
            memcpy(pool[i], s, pool_len[i]);
        } else {
            pool_len[i] = utf8_encode(assigned(class_of, seed), pool[i]);
        }
    }
    while (len < want) {
        uint32_t k = next_random(seed) % 6;
        memcpy(out + len, pool[k], pool_len[k]);
        len += pool_len[k];
    }
    return len;
}

static void for_each_kind(void (*check_kind)(const char *name, size_t len)) {
    for (int i = 0; i < vocab_n_families; i++) {
        const char *name = vocab_families[i].names + 1;
        check_kind(name, strcspn(name, " "));
    }
}

static void random_kind(const char *name, size_t len) {
    struct strata_errmsg em;
    struct pair p;
    uint8_t *class_of = NULL;
    char text[200];
    uint64_t seed = 20261130;
    assert_int_equal(vocab_class_new(&class_of, &em), STRATA_OK);
    pair_open(&p, name, len);
    for (int i = 0; i < 4000; i++) pair_check(&p, name, text, random_text(class_of, &seed, text, sizeof text));
    pair_close(&p);
    free(class_of);
}

static void test_matchers_equal_patterns(void **state) {
    (void)state;
    for_each_kind(random_kind);
}

/* Every code point between letters, digits, signs and spaces: the classes are those of the patterns. */
static void test_every_code_point(void **state) {
    (void)state;
    static const char *const names[] = {"qwen35", "deepseek-v3", "kimi-k2", "default"};
    struct strata_errmsg em;
    uint8_t *class_of = NULL;
    assert_int_equal(vocab_class_new(&class_of, &em), STRATA_OK);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct pair p;
        pair_open(&p, names[i], strlen(names[i]));
        for (uint32_t cp = 0; cp < 0x32400; cp += 8) {
            struct buf b;
            buf_init(&b, 4096);
            for (uint32_t k = cp; k < cp + 8; k++) {
                char c[5] = {0};
                if (!class_of[k] || (k >= 0xD800 && k < 0xE000)) continue;
                utf8_encode(k, c);
                assert_int_equal(buf_printf(&b, &em, "a%s1%s!%s %s ", k ? c : "", k ? c : "", k ? c : "", k ? c : ""),
                                 STRATA_OK);
            }
            pair_check(&p, names[i], buf_cstr(&b), b.len);
            buf_deinit(&b);
        }
        pair_close(&p);
    }
    free(class_of);
}

/* ---- long texts of one kind: no limit of the engine, and time in proportion ---- */

static const char *const units[] = {" ",
                                    "\n",
                                    "\r\n",
                                    "\t",
                                    "a",
                                    "A",
                                    "aB",
                                    "1",
                                    "!",
                                    "'",
                                    "/",
                                    " \n",
                                    "  x",
                                    "a1",
                                    "\xE4\xB8\xAD",
                                    "\xE3\x81\x8B\xE4\xB8\xAD",
                                    "\xE3\x80\x80",
                                    "\xCC\x81",
                                    "a\xCC\x81",
                                    "\xC3\xA9",
                                    "\xD9\xA1",
                                    "\xF0\x9F\x98\x80",
                                    "\x01",
                                    "<sentinel:1",
                                    "IMGIMGA",
                                    "a b "};

static void long_kind(const char *name, size_t len) {
    enum { BIG = 1 << 19 };
    struct strata_errmsg em;
    struct vocab_split *s = NULL;
    struct vocab_split_traits traits;
    struct vocab_split_work w = {0};
    char *text = malloc(BIG);
    assert_non_null(text);
    if (vocab_split_new(name, len, false, &s, &traits, &em) != STRATA_OK) fail_msg("%s", em.text);
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        size_t n = strlen(units[u]);
        for (size_t i = 0; i + n <= BIG; i += n) memcpy(text + i, units[u], n);
        double took[2];
        for (int big = 0; big < 2; big++) {
            size_t size = (size_t)(big ? BIG : BIG / 8) / n * n;
            uint64_t start = clock_now_ns();
            if (vocab_split_run(s, text, size, &w, &em) != STRATA_OK)
                fail_msg("%.*s, unit %zu: %s", (int)len, name, u, em.text);
            took[big] = clock_since_s(start);
            assert_int_equal(w.ends.end[w.ends.len - 1], size);
        }
        if (took[1] > 24 * took[0] + 0.5)
            fail_msg("%.*s, unit %zu: %.3f s, then %.3f s", (int)len, name, u, took[0], took[1]);
    }
    vocab_split_work_deinit(&w);
    vocab_split_free(s);
    free(text);
}

static void test_long_texts(void **state) {
    (void)state;
    for_each_kind(long_kind);
}

static void test_names_are_distinct(void **state) {
    (void)state;
    for (int i = 0; i < vocab_n_families; i++) {
        const char *names = vocab_families[i].names;
        assert_true(names[0] == ' ' && names[strlen(names) - 1] == ' ');
        for (const char *at = names + 1; *at; at += strcspn(at, " ") + 1) {
            char word[64];
            size_t found = 0;
            snprintf(word, sizeof word, " %.*s ", (int)strcspn(at, " "), at);
            for (int k = 0; k < vocab_n_families; k++) found += strstr(vocab_families[k].names, word) != NULL;
            assert_int_equal(found, 1);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_traits),
        cmocka_unit_test(test_unknown_names),
        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_matchers_equal_patterns),
        cmocka_unit_test(test_every_code_point),
        cmocka_unit_test(test_long_texts),
        cmocka_unit_test(test_names_are_distinct),
    };
    return cmocka_run_group_tests_name("pre-tokenizers", tests, NULL, NULL);
}
