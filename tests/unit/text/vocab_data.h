/* Vocabularies for the tests: from the text files of tests/data (their format stands in tests/tools/mkvocab.py). */
#ifndef TEST_VOCAB_DATA_H
#define TEST_VOCAB_DATA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/utf8.h"
#include "gguf/gguf_writer.h"
#include "text/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEST_ITEMS_MAX = 70000 };

/* Everything of a vocabulary that a test may want to spoil before it becomes a GGUF. */
struct test_vocab {
    struct buf text; /* the file's content, unescaped in place: the strings below point into it */
    struct gguf_str token[TEST_ITEMS_MAX], merge[TEST_ITEMS_MAX];
    int32_t type[TEST_ITEMS_MAX];
    float score[TEST_ITEMS_MAX];
    size_t n_tokens, n_types, n_scores, n_merges;
    struct gguf_writer *w; /* for further pairs */
    struct buf gguf;
    struct gguf_reader *meta;
    struct vocab *v;
};

static inline void test_ok(strata_err rc, const struct strata_errmsg *em) {
    if (rc != STRATA_OK) fail_msg("%s", em->text);
}

static inline struct gguf_str test_unescape(char *s) {
    size_t n = 0;
    for (size_t i = 0; s[i]; i++) {
        if (s[i] == '\\' && s[i + 1] == 'x' && s[i + 2] && s[i + 3]) {
            char hex[3] = {s[i + 2], s[i + 3], 0};
            s[n++] = (char)strtol(hex, NULL, 16);
            i += 3;
        } else {
            if (s[i] == '\\' && s[i + 1]) i++;
            s[n++] = s[i];
        }
    }
    return (struct gguf_str){s, n};
}

static inline void test_vocab_pair(struct test_vocab *t, const char *key, const char *kind, const char *value) {
    struct strata_errmsg em;
    if (strcmp(kind, "str") == 0) test_ok(gguf_writer_add_str(t->w, key, value, &em), &em);
    if (strcmp(kind, "u32") == 0) test_ok(gguf_writer_add_u32(t->w, key, (uint32_t)strtoul(value, NULL, 10), &em), &em);
    if (strcmp(kind, "bool") == 0) test_ok(gguf_writer_add_bool(t->w, key, value[0] == '1', &em), &em);
}

/* An empty vocabulary of a kind. */
static inline struct test_vocab *test_vocab_begin(void) {
    struct strata_errmsg em;
    struct test_vocab *t = calloc(1, sizeof *t);
    assert_non_null(t);
    buf_init(&t->text, 1 << 24);
    buf_init(&t->gguf, 1 << 26);
    test_ok(gguf_writer_new(32, &t->w, &em), &em);
    return t;
}

static inline void test_vocab_token(struct test_vocab *t, const char *text, size_t len, int32_t type, float score) {
    assert_true(t->n_tokens < TEST_ITEMS_MAX);
    t->token[t->n_tokens++] = (struct gguf_str){text, len};
    t->type[t->n_types++] = type;
    t->score[t->n_scores++] = score;
}

static inline struct test_vocab *test_vocab_read(const char *path) {
    struct strata_errmsg em;
    struct test_vocab *t = test_vocab_begin();
    test_ok(file_read_all(path, 1 << 24, &t->text, &em), &em);
    char *save, *field;
    for (char *line = strtok_r(t->text.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (line[0] == '#') continue;
        char *a = strtok_r(line, "\t", &field), *b = strtok_r(NULL, "\t", &field), *c = strtok_r(NULL, "\t", &field);
        if (!a || !b) fail_msg("%s: a line has one field only", path);
        if (a[0] == '@') {
            test_vocab_pair(t, a + 1, b, c ? c : "");
        } else if (a[0] == '+' && !c) {
            struct gguf_str left = test_unescape(a + 1), right = test_unescape(b);
            char *m = malloc(left.len + right.len + 1);
            assert_non_null(m);
            memcpy(m, left.data, left.len);
            m[left.len] = ' ';
            memcpy(m + left.len + 1, right.data, right.len);
            t->merge[t->n_merges++] = (struct gguf_str){m, left.len + right.len + 1};
        } else {
            struct gguf_str s = test_unescape(c);
            test_vocab_token(t, s.data, s.len, (int32_t)strtol(b, NULL, 10), strtof(a, NULL));
        }
    }
    return t;
}

static inline strata_err test_vocab_sink(void *user, const void *data, size_t len, struct strata_errmsg *em) {
    return buf_append(user, data, len, em);
}

/* Writes the GGUF and makes the vocabulary; the vocabulary's own refusal is the result. */
static inline strata_err test_vocab_finish(struct test_vocab *t, struct strata_errmsg *em) {
    test_ok(gguf_writer_add_strs(t->w, "tokenizer.ggml.tokens", t->token, t->n_tokens, em), em);
    if (t->n_types) test_ok(gguf_writer_add_i32s(t->w, "tokenizer.ggml.token_type", t->type, t->n_types, em), em);
    if (t->n_scores) test_ok(gguf_writer_add_f32s(t->w, "tokenizer.ggml.scores", t->score, t->n_scores, em), em);
    if (t->n_merges) test_ok(gguf_writer_add_strs(t->w, "tokenizer.ggml.merges", t->merge, t->n_merges, em), em);
    test_ok(gguf_writer_emit(t->w, test_vocab_sink, &t->gguf, em), em);
    test_ok(gguf_reader_new(t->gguf.data, t->gguf.len, "test.gguf", &t->meta, em), em);
    return vocab_new(t->meta, &t->v, em);
}

static inline void test_vocab_free(struct test_vocab *t) {
    vocab_free(t->v);
    gguf_reader_free(t->meta);
    gguf_writer_free(t->w);
    for (size_t i = 0; i < t->n_merges; i++) free((void *)(uintptr_t)t->merge[i].data);
    buf_deinit(&t->gguf);
    buf_deinit(&t->text);
    free(t);
}

/* The character that spells a byte in a byte-level vocabulary. */
static inline size_t test_byte_char(unsigned b, char *out) {
    static const unsigned skipped[] = {0x21, 0x22, 0x43}; /* how many below 0x21, below 0xA1, in all */
    unsigned cp = b;
    if (b < 0x21) cp = 0x100 + b;
    if (b >= 0x7F && b < 0xA1) cp = 0x100 + skipped[0] + (b - 0x7F);
    if (b == 0xAD) cp = 0x100 + skipped[2];
    return utf8_encode(cp, out);
}

/* A number below 65536, mixed one to one, as in tests/tools/mkvocab.py. */
static inline uint32_t test_shuffled(uint32_t x, uint32_t seed) {
    for (uint32_t k = 0; k < 4; k++) {
        x = (x * 40503u + seed * 2654435u + k) & 0xFFFF;
        x ^= x >> 7;
    }
    return x;
}

/* The vocabulary of `mkvocab.py pairs`: tokens for all pairs of bytes, merged in an order that hangs on the seed. */
static inline struct test_vocab *test_vocab_pairs(uint32_t seed, const char *pre) {
    struct strata_errmsg em;
    struct test_vocab *t = test_vocab_begin();
    char c[256][4];
    size_t n[256];
    test_vocab_pair(t, "tokenizer.ggml.model", "str", "gpt2");
    test_vocab_pair(t, "tokenizer.ggml.bos_token_id", "u32", "0");
    test_vocab_pair(t, "tokenizer.ggml.eos_token_id", "u32", "0");
    test_vocab_pair(t, "tokenizer.ggml.pre", "str", pre);
    for (unsigned b = 0; b < 256; b++) n[b] = test_byte_char(b, c[b]);
    test_ok(buf_reserve(&t->text, 1 << 23, &em) ? STRATA_OK : STRATA_ENOMEM, &em); /* so that it never moves */
    test_vocab_token(t, "<|endoftext|>", 13, 3, 0);
    for (unsigned i = 0; i < 256 + (1u << 16); i++) {
        uint32_t p = i < 256 ? 0 : test_shuffled(i - 256, seed);
        const char *at = t->text.data + t->text.len;
        size_t len = i < 256 ? n[i] : n[p >> 8] + n[p & 255];
        test_ok(buf_append(&t->text, i < 256 ? c[i] : c[p >> 8], i < 256 ? n[i] : n[p >> 8], &em), &em);
        if (i >= 256) test_ok(buf_append(&t->text, c[p & 255], n[p & 255], &em), &em);
        test_vocab_token(t, at, len, 1, 0);
        if (i < 256) continue;
        char *m = malloc(len + 1);
        assert_non_null(m);
        memcpy(m, at, n[p >> 8]);
        m[n[p >> 8]] = ' ';
        memcpy(m + n[p >> 8] + 1, c[p & 255], n[p & 255]);
        t->merge[t->n_merges++] = (struct gguf_str){m, len + 1};
    }
    test_ok(test_vocab_finish(t, &em), &em);
    return t;
}

/* A vocabulary file with a pre-tokenizer (or NULL), ready for use. */
static inline struct test_vocab *test_vocab_load(const char *path, const char *pre) {
    struct strata_errmsg em;
    struct test_vocab *t = test_vocab_read(path);
    if (pre) test_vocab_pair(t, "tokenizer.ggml.pre", "str", pre);
    test_ok(test_vocab_finish(t, &em), &em);
    return t;
}

#endif
