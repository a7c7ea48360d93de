/* Token ids of the whole corpus, compared with what llama.cpp gave (tests/golden/record_tokenize.sh records it). */
#include "vocab_data.h"

static uint32_t fnv(const char *s, size_t len) {
    uint32_t h = 0x811C9DC5u;
    for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)s[i]) * 0x01000193u;
    return h;
}

/* The corpus files as one list of texts. */
struct corpus {
    struct buf plain, escaped, mixtures;
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
    add_lines(c, &c->mixtures, "tests/data/mixtures-escaped.txt", true);
    *state = c;
    return 0;
}

static int free_corpus(void **state) {
    struct corpus *c = *state;
    buf_deinit(&c->plain);
    buf_deinit(&c->escaped);
    buf_deinit(&c->mixtures);
    free(c);
    return 0;
}

/* Compares every text's ids with the lines of a golden file; in a .fnv file a line is the hash of 16 texts' lines. */
static void compare(const struct corpus *c, const struct vocab *v, unsigned flags, const char *path) {
    struct strata_errmsg em;
    struct buf golden, line;
    struct vocab_ids ids = {0};
    buf_init(&golden, 1 << 24);
    buf_init(&line, 1 << 24);
    test_ok(file_read_all(path, 1 << 24, &golden, &em), &em);
    bool hashed = strstr(path, ".fnv") != NULL;
    char *at = golden.data, *end;
    for (size_t n = 0; n < c->n; n++) {
        ids.len = 0;
        test_ok(vocab_encode(v, c->text[n].data, c->text[n].len, flags, &ids, &em), &em);
        for (size_t i = 0; i < ids.len; i++) test_ok(buf_printf(&line, &em, i ? " %d" : "%d", ids.id[i]), &em);
        if (hashed) test_ok(buf_append_str(&line, "\n", &em), &em);
        if (hashed && n % 16 != 15 && n + 1 < c->n) continue;
        if (hashed) {
            uint32_t h = fnv(buf_cstr(&line), line.len);
            buf_clear(&line);
            test_ok(buf_printf(&line, &em, "%08x", h), &em);
        }
        end = strchr(at, '\n');
        if (!end) fail_msg("%s ends before text %zu", path, n + 1);
        *end = '\0';
        if (strcmp(buf_cstr(&line), at) != 0) {
            fail_msg("%s, text %zu '%.60s': %s instead of %s", path, n + 1, c->text[n].data, buf_cstr(&line), at);
        }
        at = end + 1;
        buf_clear(&line);
    }
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

/* One line of tokenize-splits.txt: a name, a seed, and a hash for every 16 texts. */
static void compare_splits(const struct corpus *c, char *line) {
    struct strata_errmsg em;
    struct vocab_ids ids = {0};
    struct buf text;
    char *save, *name = strtok_r(line, " ", &save), *seed = strtok_r(NULL, " ", &save);
    if (!name || !seed) fail_msg("a line has no name or no seed");
    struct test_vocab *t = test_vocab_pairs((uint32_t)strtoul(seed, NULL, 10), name);
    buf_init(&text, 1 << 24);
    for (size_t i = 0; i < c->n; i++) {
        ids.len = 0;
        test_ok(vocab_encode(t->v, c->text[i].data, c->text[i].len, 0, &ids, &em), &em);
        for (size_t k = 0; k < ids.len; k++) test_ok(buf_printf(&text, &em, k ? " %d" : "%d", ids.id[k]), &em);
        test_ok(buf_append_str(&text, "\n", &em), &em);
        if (i % 16 != 15 && i + 1 < c->n) continue;
        const char *want = strtok_r(NULL, " ", &save);
        if (!want) fail_msg("%s: the line ends before text %zu", name, i + 1);
        uint32_t got = fnv(text.data, text.len);
        if (got != strtoul(want, NULL, 16)) {
            fail_msg("%s, seed %s, texts %zu to %zu: %08x, not %s", name, seed, i / 16 * 16 + 1, i + 1, got, want);
        }
        buf_clear(&text);
    }
    if (strtok_r(NULL, " ", &save)) fail_msg("%s: the line goes on", name);
    vocab_ids_deinit(&ids);
    buf_deinit(&text);
    test_vocab_free(t);
}

static void test_pre_tokenizers(void **state) {
    struct strata_errmsg em;
    struct buf golden;
    char *save;
    size_t n = 0;
    buf_init(&golden, 1 << 24);
    test_ok(file_read_all("tests/golden/tokenize-splits.txt", 1 << 24, &golden, &em), &em);
    for (char *line = strtok_r(golden.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save), n++) {
        compare_splits(*state, line);
    }
    assert_true(n >= 60);
    buf_deinit(&golden);
}

/* A real vocabulary, whose ids are recorded as in tokenize-splits.txt or line by line. */
static void compare_file(const struct corpus *c, const char *path, const char *name) {
    struct strata_errmsg em;
    struct file_map map;
    struct gguf_reader *meta = NULL;
    struct vocab *v = NULL;
    char with[128], plain[128];
    snprintf(with, sizeof with, "tests/golden/tokenize-%s", name);
    snprintf(plain, sizeof plain, "tests/golden/tokenize-%.*s-plain%s", (int)(strchr(name, '.') - name), name,
             strchr(name, '.'));
    test_ok(file_map_open(path, &map, &em), &em);
    test_ok(gguf_reader_new(map.data, map.size, path, &meta, &em), &em);
    test_ok(vocab_new(meta, &v, &em), &em);
    compare(c, v, VOCAB_ADD_SPECIAL | VOCAB_PARSE_SPECIAL, with);
    compare(c, v, 0, plain);
    vocab_free(v);
    gguf_reader_free(meta);
    file_map_close(&map);
}

static void test_smollm2(void **state) {
    const char *path = getenv("STRATA_MODEL");
    if (!path || !path[0]) {
        print_message("skipped: set STRATA_MODEL to SmolLM2-135M-Instruct.Q4_1.gguf (scripts/demo fetches it)\n");
        skip();
    }
    compare_file(*state, path, "smollm2.ids");
}

/* Vocabularies too large for the repository: docs/tokenizers.md says how they are had. */
static void test_real_vocabularies(void **state) {
    static const char *const names[] = {"llama3", "qwen3",  "deepseek3", "gptoss",
                                        "tekken", "gemma3", "mistral1",  "mistral7"};
    const char *folder = getenv("STRATA_VOCABS");
    size_t found = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && folder && folder[0]; i++) {
        char path[4096], golden[64];
        snprintf(path, sizeof path, "%s/%s.gguf", folder, names[i]);
        snprintf(golden, sizeof golden, "%s.fnv", names[i]);
        if (!file_is_regular(path)) {
            print_message("not there: %s\n", path);
            continue;
        }
        compare_file(*state, path, golden);
        found++;
    }
    if (found == 0) {
        print_message("skipped: STRATA_VOCABS names no folder with vocabularies (docs/tokenizers.md)\n");
        skip();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_corpus_is_large),   cmocka_unit_test(test_spm),
        cmocka_unit_test(test_pre_tokenizers),    cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_real_vocabularies),
    };
    return cmocka_run_group_tests_name("golden token ids", tests, load_corpus, free_corpus);
}
