/* Token ids of the whole corpus, compared with what llama.cpp gave (tests/golden/record_tokenize.sh records it). */
#include "vocab_data.h"

static uint32_t fnv(const char *s, size_t len) {
    uint32_t h = 0x811C9DC5u;
    for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)s[i]) * 0x01000193u;
    return h;
}

/* Both corpus files as one list of texts. */
struct corpus {
    struct buf plain, escaped;
    struct gguf_str text[TEST_ITEMS_MAX];
    size_t n;
};

static void add_lines(struct corpus *c, struct buf *b, const char *path, bool escaped) {
    struct strata_errmsg em;
    buf_init(b, 1 << 24);
    test_ok(file_read_all(path, 1 << 24, b, &em), &em);
    for (char *at = b->data, *end; (end = strchr(at, '\n')) != NULL; at = end + 1) {
        assert_true(c->n < TEST_ITEMS_MAX);
        *end = '\0';
        if (!escaped) {
            c->text[c->n++] = (struct gguf_str){at, (size_t)(end - at)};
            continue;
        }
        for (char *p = strstr(at, "\\"); p; p = strstr(p + 2, "\\")) { /* \n is the one escape that unescape lacks */
            if (p[1] == 'n') p[1] = '\n';
        }
        c->text[c->n++] = test_unescape(at);
    }
}

static int load_corpus(void **state) {
    struct corpus *c = calloc(1, sizeof *c);
    if (!c) return -1;
    add_lines(c, &c->plain, "tests/data/corpus.txt", false);
    add_lines(c, &c->escaped, "tests/data/text-escaped.txt", true);
    *state = c;
    return 0;
}

static int free_corpus(void **state) {
    struct corpus *c = *state;
    buf_deinit(&c->plain);
    buf_deinit(&c->escaped);
    free(c);
    return 0;
}

/* Compares every text's ids, or their hashes, with the lines of a golden file. */
static void compare(const struct corpus *c, const struct vocab *v, unsigned flags, const char *path) {
    struct strata_errmsg em;
    struct buf golden, line;
    struct vocab_ids ids = {0};
    buf_init(&golden, 1 << 24);
    buf_init(&line, 1 << 20);
    test_ok(file_read_all(path, 1 << 24, &golden, &em), &em);
    bool hashed = strstr(path, ".fnv") != NULL;
    char *at = golden.data, *end;
    size_t n = 0;
    for (; n < c->n && (end = strchr(at, '\n')) != NULL; n++, at = end + 1) {
        *end = '\0';
        ids.len = 0;
        buf_clear(&line);
        test_ok(vocab_encode(v, c->text[n].data, c->text[n].len, flags, &ids, &em), &em);
        for (size_t i = 0; i < ids.len; i++) test_ok(buf_printf(&line, &em, i ? " %d" : "%d", ids.id[i]), &em);
        if (hashed) {
            uint32_t h = fnv(buf_cstr(&line), line.len);
            buf_clear(&line);
            test_ok(buf_printf(&line, &em, "%08x", h), &em);
        }
        if (strcmp(buf_cstr(&line), at) != 0) {
            fail_msg("%s, text %zu '%.60s': %s instead of %s", path, n + 1, c->text[n].data, buf_cstr(&line), at);
        }
    }
    assert_int_equal(n, c->n);
    assert_int_equal(*at, '\0');
    vocab_ids_deinit(&ids);
    buf_deinit(&line);
    buf_deinit(&golden);
}

static void test_corpus_is_large(void **state) {
    const struct corpus *c = *state;
    assert_true(c->n >= 2000);
}

static void test_spm(void **state) {
    struct test_vocab *t = test_vocab_load("tests/data/spm-vocab.txt", NULL);
    compare(*state, t->v, VOCAB_ADD_SPECIAL | VOCAB_PARSE_SPECIAL, "tests/golden/tokenize-spm.ids");
    compare(*state, t->v, 0, "tests/golden/tokenize-spm-plain.ids");
    test_vocab_free(t);
}

static void test_pre_tokenizers(void **state) {
    static const char *const names[] = {"llama-bpe", "glm4",   "qwen2",       "qwen35",
                                        "gpt-2",     "smollm", "deepseek-v3", "default"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[128];
        snprintf(path, sizeof path, "tests/golden/tokenize-pre-%s.fnv", names[i]);
        struct test_vocab *t = test_vocab_load("tests/data/bpe-vocab.txt", names[i]);
        compare(*state, t->v, VOCAB_ADD_SPECIAL | VOCAB_PARSE_SPECIAL, path);
        test_vocab_free(t);
    }
}

static void test_smollm2(void **state) {
    const char *path = getenv("STRATA_MODEL");
    if (!path || !path[0]) {
        print_message("skipped: set STRATA_MODEL to SmolLM2-135M-Instruct.Q4_1.gguf (scripts/demo fetches it)\n");
        skip();
    }
    struct strata_errmsg em;
    struct file_map map;
    struct gguf_reader *meta = NULL;
    struct vocab *v = NULL;
    test_ok(file_map_open(path, &map, &em), &em);
    test_ok(gguf_reader_new(map.data, map.size, path, &meta, &em), &em);
    test_ok(vocab_new(meta, &v, &em), &em);
    compare(*state, v, VOCAB_ADD_SPECIAL | VOCAB_PARSE_SPECIAL, "tests/golden/tokenize-smollm2.ids");
    compare(*state, v, 0, "tests/golden/tokenize-smollm2-plain.ids");
    vocab_free(v);
    gguf_reader_free(meta);
    file_map_close(&map);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_corpus_is_large),
        cmocka_unit_test(test_spm),
        cmocka_unit_test(test_pre_tokenizers),
        cmocka_unit_test(test_smollm2),
    };
    return cmocka_run_group_tests_name("golden token ids", tests, load_corpus, free_corpus);
}
