/* Merging: the fast algorithms against the rule itself, on random vocabularies; and the queue against sorting. */
#include "vocab_data.h"

#include "text/vocab_queue.h"

enum { LETTERS = 4, MERGES_MAX = 60, TEXT_MAX = 400 };

static uint32_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*seed >> 33);
}

/* A random vocabulary over a, b, c, d: every token is made of two shorter ones. */
struct rules {
    char token[LETTERS + MERGES_MAX][64];
    size_t n_tokens;
    struct {
        size_t left, right, made;
    } merge[MERGES_MAX * 2];
    size_t n_merges;
    float score[LETTERS + MERGES_MAX];
};

static size_t find_token(const struct rules *r, const char *text) {
    size_t i = 0;
    while (i < r->n_tokens && strcmp(r->token[i], text) != 0) i++;
    return i;
}

static void random_rules(struct rules *r, uint64_t *seed) {
    *r = (struct rules){.n_tokens = LETTERS};
    for (size_t i = 0; i < LETTERS; i++) r->token[i][0] = (char)('a' + i);
    for (int i = 0; i < MERGES_MAX; i++) {
        size_t a = next_random(seed) % r->n_tokens, b = next_random(seed) % r->n_tokens;
        char text[130];
        snprintf(text, sizeof text, "%s%s", r->token[a], r->token[b]);
        if (strlen(text) > 12) continue;
        size_t made = find_token(r, text);
        if (made == r->n_tokens) {
            memcpy(r->token[r->n_tokens], text, strlen(text) + 1);
            r->n_tokens++;
        }
        bool known = false;
        for (size_t k = 0; k < r->n_merges; k++) known = known || (r->merge[k].left == a && r->merge[k].right == b);
        if (known) continue;
        r->merge[r->n_merges].left = a;
        r->merge[r->n_merges].right = b;
        r->merge[r->n_merges++].made = made;
    }
    /* Ranks in an order in which later pairs often come before those that make them: the queue must cope. */
    for (size_t i = r->n_merges; i > 1; i--) {
        size_t k = next_random(seed) % 3 ? i - 1 : next_random(seed) % i;
        size_t left = r->merge[i - 1].left, right = r->merge[i - 1].right, made = r->merge[i - 1].made;
        r->merge[i - 1] = r->merge[k];
        r->merge[k].left = left;
        r->merge[k].right = right;
        r->merge[k].made = made;
    }
    for (size_t i = 0; i < r->n_tokens; i++) r->score[i] = -(float)(next_random(seed) % 20); /* with ties */
}

static struct test_vocab *vocab_of(const struct rules *r, bool spm) {
    struct strata_errmsg em;
    struct test_vocab *t = test_vocab_begin();
    test_vocab_pair(t, "tokenizer.ggml.model", "str", spm ? "llama" : "gpt2");
    if (spm) {
        test_vocab_pair(t, "tokenizer.ggml.add_space_prefix", "bool", "0");
        test_vocab_pair(t, "tokenizer.ggml.add_bos_token", "bool", "0");
    }
    for (size_t i = 0; i < r->n_tokens; i++) test_vocab_token(t, r->token[i], strlen(r->token[i]), 1, r->score[i]);
    for (size_t i = 0; i < r->n_merges; i++) {
        char m[160];
        int n = snprintf(m, sizeof m, "%s %s", r->token[r->merge[i].left], r->token[r->merge[i].right]);
        t->merge[t->n_merges++] = (struct gguf_str){strdup(m), (size_t)n};
    }
    test_ok(test_vocab_finish(t, &em), &em);
    return t;
}

/* The rank of a pair by the rule, or UINT32_MAX; *made gets the token. */
static uint32_t rank_of(const struct rules *r, bool spm, size_t a, size_t b, size_t *made) {
    if (!spm) {
        for (size_t i = 0; i < r->n_merges; i++) {
            if (r->merge[i].left != a || r->merge[i].right != b) continue;
            *made = r->merge[i].made;
            return (uint32_t)i;
        }
        return UINT32_MAX;
    }
    char text[160];
    snprintf(text, sizeof text, "%s%s", r->token[a], r->token[b]);
    *made = find_token(r, text);
    return *made == r->n_tokens ? UINT32_MAX : (uint32_t)-r->score[*made];
}

/* The rule: as long as there is one, join the pair of the lowest rank, leftmost first. */
static size_t by_rule(const struct rules *r, bool spm, const char *text, size_t len, size_t *id) {
    size_t n = len;
    for (size_t i = 0; i < len; i++) id[i] = (size_t)(text[i] - 'a');
    for (;;) {
        uint32_t best = UINT32_MAX;
        size_t at = 0, made = 0, m;
        for (size_t i = 0; i + 1 < n; i++) {
            uint32_t rank = rank_of(r, spm, id[i], id[i + 1], &m);
            if (rank >= best) continue;
            best = rank;
            at = i;
            made = m;
        }
        if (best == UINT32_MAX) return n;
        id[at] = made;
        memmove(id + at + 1, id + at + 2, (n - at - 2) * sizeof *id);
        n--;
    }
}

static void compare_with_rule(bool spm) {
    static struct rules r;
    uint64_t seed = spm ? 7 : 5;
    struct strata_errmsg em;
    struct vocab_ids ids = {0};
    char text[TEXT_MAX];
    size_t want[TEXT_MAX];
    for (int round = 0; round < 60; round++) {
        random_rules(&r, &seed);
        struct test_vocab *t = vocab_of(&r, spm);
        for (int k = 0; k < 40; k++) {
            size_t len = next_random(&seed) % (k % 4 ? 60 : TEXT_MAX), kinds = 1 + next_random(&seed) % LETTERS;
            for (size_t i = 0; i < len; i++) text[i] = (char)('a' + next_random(&seed) % kinds);
            size_t n = by_rule(&r, spm, text, len, want);
            ids.len = 0;
            test_ok(vocab_encode(t->v, text, len, 0, &ids, &em), &em);
            bool same = ids.len == n;
            for (size_t i = 0; same && i < n; i++) same = (size_t)ids.id[i] == want[i];
            if (!same) fail_msg("round %d, text %d: '%.*s'", round, k, (int)len, text);
        }
        test_vocab_free(t);
    }
    vocab_ids_deinit(&ids);
}

static void test_pairs_by_rank(void **state) {
    (void)state;
    compare_with_rule(false);
}

static void test_pairs_by_score(void **state) {
    (void)state;
    compare_with_rule(true);
}

static void test_queue_sorts(void **state) {
    (void)state;
    enum { N = 20000 };
    struct strata_errmsg em;
    struct vocab_queue q = {0};
    uint64_t seed = 3, key, last = 0;
    bool some;
    for (int bits = 4; bits <= 64; bits += 12) {
        uint64_t mask = bits == 64 ? UINT64_MAX : (1ull << bits) - 1, sum = 0;
        for (int i = 0; i < N; i++) {
            key = ((uint64_t)next_random(&seed) << 40 ^ (uint64_t)next_random(&seed) << 20 ^ next_random(&seed)) & mask;
            sum += key;
            test_ok(vocab_queue_push(&q, key, &em), &em);
        }
        last = 0;
        for (int i = 0; i < N; i++) {
            test_ok(vocab_queue_pop(&q, &key, &some, &em), &em);
            assert_true(some && key >= last);
            last = key;
            sum -= key;
        }
        assert_true(sum == 0);
        test_ok(vocab_queue_pop(&q, &key, &some, &em), &em);
        assert_false(some);
        vocab_queue_reset(&q);
    }
    vocab_queue_deinit(&q);
}

/* Keys that go down between others, as merges do that make a pair of a lower rank. */
static void test_queue_goes_down(void **state) {
    (void)state;
    enum { N = 3000 };
    static uint64_t held[N];
    struct strata_errmsg em;
    struct vocab_queue q = {0};
    uint64_t seed = 9, key;
    size_t n = 0;
    bool some;
    for (int step = 0; step < 20000; step++) {
        if (n < N && (n == 0 || next_random(&seed) % 2)) {
            key = next_random(&seed) % 100000;
            test_ok(vocab_queue_push(&q, key, &em), &em);
            size_t i = n++;
            for (; i > 0 && held[i - 1] < key; i--) held[i] = held[i - 1]; /* the smallest is last */
            held[i] = key;
        } else {
            test_ok(vocab_queue_pop(&q, &key, &some, &em), &em);
            assert_true(some);
            assert_true(key == held[--n]);
        }
    }
    vocab_queue_reset(&q); /* which drops what is left */
    test_ok(vocab_queue_pop(&q, &key, &some, &em), &em);
    assert_false(some);
    vocab_queue_deinit(&q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs_by_rank),
        cmocka_unit_test(test_pairs_by_score),
        cmocka_unit_test(test_queue_sorts),
        cmocka_unit_test(test_queue_goes_down),
    };
    return cmocka_run_group_tests_name("merging", tests, NULL, NULL);
}
