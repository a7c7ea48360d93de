/* Samplers: exact candidate sets, ties, penalties, the drawn distribution, and the same result for the same seed. */
#include "decode/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct sampler *make(struct sampler_params p, uint32_t n_vocab) {
    struct strata_errmsg em;
    struct sampler *s = NULL;
    if (sampler_new(&p, n_vocab, &s, &em)) fail_msg("%s", em.text);
    return s;
}

static int32_t pick(struct sampler *s, const float *logits) {
    struct strata_errmsg em;
    int32_t token = -1;
    if (sampler_pick(s, logits, &token, &em)) fail_msg("%s", em.text);
    return token;
}

static struct sampler_params hot(float t) {
    struct sampler_params p = sampler_defaults();
    p.temperature = t;
    return p;
}

static void test_greedy(void **state) {
    (void)state;
    static const struct {
        float l[7];
        uint32_t n;
        int32_t want;
    } rows[] = {
        {{1, 5, 5, 2, 5, 0, 0}, 7, 1}, {{-3, -2, -2, -2}, 4, 1},      {{0}, 1, 0},
        {{0, 0, 0, 0, 0, 0, 0}, 7, 0}, {{1, 2, 3, 4, 5, 6, 7}, 7, 6}, {{9, 2, 3, 9, 9}, 5, 0},
        {{-1, -0.5f}, 2, 1},           {{1, 2, 9, 4, 5, 9, 7}, 7, 2}, {{1, 2, 3, 9, 9, 9, 9}, 7, 3},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sampler *s = make(sampler_defaults(), rows[i].n);
        assert_int_equal(pick(s, rows[i].l), rows[i].want);
        sampler_free(s);
    }
}

enum { MANY = 1100 };

/* Vocabularies of every size, few different logits so that most are ties, and a value that is none in every place. */
static void test_greedy_sizes(void **state) {
    static const float none[] = {NAN, INFINITY, -INFINITY};
    static float l[MANY];
    (void)state;
    for (uint32_t n = 1; n <= MANY; n += n < 600 ? 1 : 97) {
        struct sampler *s = make(sampler_defaults(), n);
        struct strata_errmsg em;
        uint32_t want = 0;
        int32_t token;
        for (uint32_t i = 0; i < n; i++) {
            l[i] = (float)((i * 2654435761u + n * 40503u) >> 20 & 255) - 200;
            if (l[i] > l[want]) want = i;
        }
        assert_int_equal(pick(s, l), want);
        for (uint32_t bad = n > 600 ? 0 : n - 1; bad < n; bad++) {
            float was = l[bad];
            l[bad] = none[bad % 3];
            assert_int_equal(sampler_pick(s, l, &token, &em), STRATA_EINTERNAL);
            l[bad] = was;
        }
        sampler_free(s);
    }
}

/* Which ids can come out at all: draws many times and compares the set. */
static void check_set(struct sampler_params p, const float *logits, uint32_t n, const char *want) {
    char got[32] = "";
    struct sampler *s = make(p, n);
    for (uint32_t i = 0; i < n; i++) got[i] = '.';
    for (int k = 0; k < 4000; k++) got[pick(s, logits)] = 'x';
    if (strcmp(got, want) != 0)
        fail_msg("top_k %u top_p %g min_p %g: %s, expected %s", (unsigned)p.top_k, (double)p.top_p, (double)p.min_p,
                 got, want);
    sampler_free(s);
}

static void test_sets(void **state) {
    (void)state;
    /* Probabilities 0.1, 0.4, 0.2, 0.05, 0.2, 0.05 */
    float l[6];
    static const float p[6] = {0.1f, 0.4f, 0.2f, 0.05f, 0.2f, 0.05f};
    static const struct {
        uint32_t k;
        float p, min_p;
        const char *want;
    } rows[] = {
        {0, 1, 0, "xxxxxx"},        {1, 1, 0, ".x...."},    {2, 1, 0, ".xx..."}, /* the lower id of the tie */
        {3, 1, 0, ".xx.x."},        {4, 1, 0, "xxx.x."},    {5, 1, 0, "xxxxx."},
        {6, 1, 0, "xxxxxx"},        {99, 1, 0, "xxxxxx"},   {0, 0.39f, 0, ".x...."},
        {0, 0.41f, 0, ".xx..."},    {0, 0.7f, 0, ".xx.x."}, {0, 0.85f, 0, "xxx.x."},
        {0, 0.94f, 0, "xxxxx."},    {0, 0, 0, ".x...."},    {0, 1, 0.45f, ".xx.x."},
        {0, 1, 0.2f, "xxx.x."},     {0, 1, 1, ".x...."},    {0, 1, 0.1f, "xxxxxx"},
        {2, 0.6f, 0, ".x...."}, /* of the two kept, the first has two thirds */
        {4, 0.9f, 0.45f, ".xx.x."},
    };
    for (int i = 0; i < 6; i++) l[i] = logf(p[i]) + 3;
    l[4] = l[2];
    l[5] = l[3];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sampler_params q = hot(1);
        q.top_k = rows[i].k;
        q.top_p = rows[i].p;
        q.min_p = rows[i].min_p;
        check_set(q, l, 6, rows[i].want);
    }
}

/* Chi-square of n draws against the wanted probabilities, for 7 degrees of freedom: 29.9 is passed by 1 in 10000. */
static void test_distribution(void **state) {
    (void)state;
    static const float l[8] = {0, 1, -1, 2, 0.5f, -0.5f, 1.5f, -2};
    static const float temps[] = {0.7f, 1, 2};
    for (size_t t = 0; t < 3; t++)
        for (uint64_t seed = 0; seed < 5; seed++) {
            enum { N = 20000 };
            int count[8] = {0};
            double total = 0, chi = 0;
            struct sampler_params p = hot(temps[t]);
            p.seed = seed;
            struct sampler *s = make(p, 8);
            for (int k = 0; k < N; k++) count[pick(s, l)]++;
            for (int i = 0; i < 8; i++) total += exp((double)l[i] / (double)temps[t]);
            for (int i = 0; i < 8; i++) {
                double want = N * exp((double)l[i] / (double)temps[t]) / total;
                chi += (count[i] - want) * (count[i] - want) / want;
            }
            if (chi > 29.9) fail_msg("temperature %g, seed %d: chi-square %g", (double)temps[t], (int)seed, chi);
            sampler_free(s);
        }
}

static void test_seed(void **state) {
    (void)state;
    static float l[1000];
    int32_t first[64];
    int same = 0;
    for (int i = 0; i < 1000; i++) l[i] = (float)((i * 7919) % 1000) / 200.0f;
    for (int round = 0; round < 3; round++) {
        struct sampler_params p = hot(1);
        p.seed = round == 2 ? 8 : 7;
        struct sampler *s = make(p, 1000);
        for (int k = 0; k < 64; k++) {
            int32_t t = pick(s, l);
            if (round == 0) first[k] = t;
            if (round == 1) assert_int_equal(t, first[k]);
            if (round == 2) same += t == first[k];
        }
        sampler_free(s);
    }
    assert_true(same < 8); /* another seed is another stream */
}

/* A fixed stream (computed by a separate program), so that a changed generator, exponential or order does not go
 * unseen. */
static void test_stream_is_fixed(void **state) {
    (void)state;
    static const int32_t want[12] = {8, 45, 3, 48, 11, 22, 37, 24, 16, 32, 8, 45};
    static float l[50];
    for (int i = 0; i < 50; i++) l[i] = (float)((i * 31) % 50) / 10.0f;
    struct sampler_params p = hot(0.8f);
    p.seed = 1234;
    p.top_k = 20;
    p.top_p = 0.95f;
    struct sampler *s = make(p, 50);
    for (int k = 0; k < 12; k++) {
        int32_t t = pick(s, l);
        if (t != want[k]) fail_msg("draw %d is %d, expected %d", k, t, want[k]);
    }
    sampler_free(s);
}

static void test_penalty(void **state) {
    (void)state;
    static const float l[4] = {2, 1.5f, -1, -1.2f}, negative[4] = {-1, -1.5f, -9, -9};
    struct sampler_params p = sampler_defaults();
    p.repeat_penalty = 2;
    p.repeat_last_n = 2;
    struct sampler *s = make(p, 4);
    assert_int_equal(pick(s, l), 0);
    sampler_accept(s, 0);
    assert_int_equal(pick(s, l), 1); /* 2 / 2 = 1 */
    sampler_accept(s, 1);
    assert_int_equal(pick(s, l), 0); /* 1 against 0.75 */
    sampler_accept(s, 3);
    assert_int_equal(pick(s, l), 0); /* 0 has left the window */
    sampler_accept(s, 0);
    sampler_accept(s, 0); /* twice is penalized once */
    assert_int_equal(pick(s, l), 1);
    assert_int_equal(pick(s, negative), 1); /* -1 * 2 = -2 */
    sampler_accept(s, -1);                  /* no token of the vocabulary: ignored */
    sampler_accept(s, 4);
    assert_int_equal(pick(s, l), 1);
    sampler_free(s);
    p.repeat_last_n = 0;
    s = make(p, 4);
    sampler_accept(s, 0);
    assert_int_equal(pick(s, l), 0);
    sampler_free(s);
}

static void test_bad_input(void **state) {
    (void)state;
    static const struct sampler_params bad[] = {
        {.temperature = -1, .top_p = 1, .repeat_penalty = 1},
        {.temperature = NAN, .top_p = 1, .repeat_penalty = 1},
        {.top_p = 1.5f, .repeat_penalty = 1},
        {.top_p = NAN, .repeat_penalty = 1},
        {.top_p = 1, .min_p = -0.1f, .repeat_penalty = 1},
        {.top_p = 1, .repeat_penalty = 0},
        {.top_p = 1, .repeat_penalty = INFINITY},
        {.top_p = 1, .repeat_penalty = 1, .repeat_last_n = 1u << 20},
    };
    static const char *const field[] = {"temperature", "temperature",    "top_p",          "top_p",
                                        "min_p",       "repeat_penalty", "repeat_penalty", "repeat_last_n"};
    struct strata_errmsg em;
    struct sampler *s = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(sampler_check(&bad[i], &em), STRATA_EINVAL);
        assert_non_null(strstr(em.text, field[i]));
        assert_int_equal(sampler_new(&bad[i], 10, &s, &em), STRATA_EINVAL);
        assert_null(s);
    }
    struct sampler_params p = sampler_defaults();
    assert_int_equal(sampler_new(&p, 0, &s, &em), STRATA_EINVAL);
    for (int k = 0; k < 9; k++)
        for (int kind = 0; kind < 3; kind++)
            for (int warm = 0; warm < 2; warm++) {
                float l[9] = {0};
                int32_t token = -7;
                l[k] = kind == 0 ? NAN : kind == 1 ? INFINITY : -INFINITY;
                char name[32];
                snprintf(name, sizeof name, "token %d is", k);
                s = make(warm ? hot(1) : p, 9);
                assert_int_equal(sampler_pick(s, l, &token, &em), STRATA_EINTERNAL);
                assert_non_null(strstr(em.text, name));
                assert_int_equal(token, -7);
                sampler_free(s);
            }
}

/* The partial selections against a full sort, on a vocabulary of real size with many ties. */
struct row {
    float l;
    int32_t id;
};

static int by_rank(const void *a, const void *b) {
    const struct row *x = a, *y = b;
    if (x->l != y->l) return x->l > y->l ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static void test_large(void **state) {
    (void)state;
    enum { N = 50000, DRAWS = 300 };
    float *l = malloc(N * sizeof *l);
    struct row *rows = malloc(N * sizeof *rows);
    int32_t *rank = malloc(N * sizeof *rank);
    uint32_t x = 1;
    assert_true(l && rows && rank);
    for (int i = 0; i < N; i++) {
        x = x * 1664525 + 1013904223;
        l[i] = (float)(x >> 24) / 20.0f;
        rows[i] = (struct row){l[i], i};
    }
    qsort(rows, N, sizeof *rows, by_rank);
    for (int i = 0; i < N; i++) rank[rows[i].id] = i;
    double total = 0, sum = 0;
    int32_t nucleus = 0;
    for (int i = 0; i < N; i++) total += exp((double)rows[i].l - (double)rows[0].l);
    while (sum < 0.5 * total) sum += exp((double)rows[nucleus++].l - (double)rows[0].l);
    for (int mode = 0; mode < 2; mode++) {
        struct sampler_params p = hot(5);
        if (mode == 0) p.top_k = 40;
        if (mode == 1) p.top_p = 0.5f;
        struct sampler *s = make(p, N);
        for (int k = 0; k < DRAWS; k++) assert_true(rank[pick(s, l)] < (mode == 0 ? 40 : nucleus + 1));
        sampler_free(s);
    }
    free(l);
    free(rows);
    free(rank);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_greedy_sizes),
        cmocka_unit_test(test_sets),
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_seed),
        cmocka_unit_test(test_penalty),
        cmocka_unit_test(test_bad_input),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_stream_is_fixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
