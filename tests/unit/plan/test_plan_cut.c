/* Cuts by bytes against every possible cut, and against a plain search; cuts by count. */
#include "base/clock.h"
#include "plan/plan_cut.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct strata_errmsg em;

static uint64_t next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    return z ^ z >> 31;
}

/* ---- every cut ---- */

struct best {
    bool found;
    uint64_t largest, squares; /* small numbers: exact */
};

/* Tries every way to cut the layers from `first` on over the stages from `stage` on. */
static void try_all(const struct plan_load *l, uint32_t n_stages, uint32_t stage, uint32_t first, uint64_t largest,
                    uint64_t squares, struct best *best) {
    if (stage == n_stages) {
        if (first != l->n_layers) return;
        if (!best->found || largest < best->largest || (largest == best->largest && squares < best->squares))
            *best = (struct best){true, largest, squares};
        return;
    }
    uint64_t bytes = stage == 0 ? l->first_extra : 0;
    for (uint32_t end = first + 1; end <= l->n_layers; end++) {
        bytes += l->layer_bytes[end - 1];
        if (end >= l->n_trunk && end < l->n_layers) continue; /* MTP layers stay with the last trunk layer */
        uint64_t mine = bytes;
        if (stage == n_stages - 1) mine += l->last_extra - (n_stages == 1 ? l->shared : 0);
        try_all(l, n_stages, stage + 1, end, mine > largest ? mine : largest, squares + mine * mine, best);
    }
}

/* Whole, without gaps, with the right sums; gives largest and squares. */
static struct best judge(const struct plan_load *l, uint32_t n_stages, const struct plan_range *r) {
    struct best b = {true, 0, 0};
    uint32_t at = 0;
    for (uint32_t i = 0; i < n_stages; i++) {
        uint64_t bytes = i == 0 ? l->first_extra : 0;
        if (i == n_stages - 1) bytes += l->last_extra - (n_stages == 1 ? l->shared : 0);
        assert_int_equal(r[i].first, at);
        assert_true(r[i].end > at);
        assert_true(i == n_stages - 1 ? r[i].end == l->n_layers : r[i].end < l->n_trunk);
        for (; at < r[i].end; at++) bytes += l->layer_bytes[at];
        assert_int_equal(r[i].bytes, bytes);
        if (bytes > b.largest) b.largest = bytes;
        b.squares += bytes * bytes;
    }
    assert_int_equal(at, l->n_layers);
    return b;
}

static void test_every_cut(void **state) {
    (void)state;
    uint64_t seed = 1, bytes[10];
    struct plan_range r[10];
    for (int round = 0; round < 4000; round++) {
        uint32_t n = 1 + (uint32_t)(next(&seed) % 10), kind = (uint32_t)(next(&seed) % 4);
        for (uint32_t i = 0; i < n; i++)
            bytes[i] = kind == 0 ? 10 : kind == 1 ? next(&seed) % 2 * 7 : next(&seed) % (kind == 2 ? 1000 : 4);
        struct plan_load l = {.layer_bytes = bytes, .n_layers = n, .n_trunk = n};
        if (round & 1) l.first_extra = next(&seed) % 500;
        if (round & 2) l.last_extra = next(&seed) % 900;
        l.shared = l.first_extra < l.last_extra ? l.first_extra : l.last_extra;
        if (round & 4) l.n_trunk = 1 + (uint32_t)(next(&seed) % n);
        for (uint32_t k = 1; k <= l.n_trunk; k++) {
            struct best want = {0}, got;
            try_all(&l, k, 0, 0, 0, 0, &want);
            if (plan_bytes(&l, k, r, &em)) fail_msg("%s", em.text);
            got = judge(&l, k, r);
            assert_true(want.found);
            assert_int_equal(got.largest, want.largest);
            assert_int_equal(got.squares, want.squares);
        }
    }
}

/* ---- a plain search for larger models ---- */

/* The textbook recurrence, without any short cut: first the bound, then the squares under it. */
static struct best plain(const struct plan_load *l, uint32_t k) {
    uint32_t n = l->n_layers;
    uint64_t *sum = calloc(n + 1, sizeof *sum), *largest = calloc((size_t)(k + 1) * (n + 1), sizeof *largest);
    uint64_t *squares = calloc((size_t)(k + 1) * (n + 1), sizeof *squares);
    assert_true(sum && largest && squares);
    for (uint32_t i = 0; i < n; i++) sum[i + 1] = sum[i] + l->layer_bytes[i];
    for (uint32_t pass = 0; pass < 2; pass++) {
        uint64_t bound = pass ? largest[(size_t)k * (n + 1) + n] : UINT64_MAX;
        uint64_t *to = pass ? squares : largest;
        for (size_t i = 0; i < (size_t)(k + 1) * (n + 1); i++) to[i] = UINT64_MAX;
        to[0] = 0;
        for (uint32_t j = 1; j <= k; j++)
            for (uint32_t e = j; e <= n; e++)
                for (uint32_t s = j - 1; s < e; s++) {
                    uint64_t before = to[(size_t)(j - 1) * (n + 1) + s];
                    uint64_t mine =
                        sum[e] - sum[s] + (j == 1 ? l->first_extra : 0) + (j == k && e == n ? l->last_extra : 0);
                    if (before == UINT64_MAX || mine > bound) continue;
                    uint64_t v = pass ? before + mine * mine : before > mine ? before : mine;
                    if (v < to[(size_t)j * (n + 1) + e]) to[(size_t)j * (n + 1) + e] = v;
                }
    }
    struct best b = {true, largest[(size_t)k * (n + 1) + n], squares[(size_t)k * (n + 1) + n]};
    free(sum);
    free(largest);
    free(squares);
    return b;
}

static void test_plain_search(void **state) {
    (void)state;
    enum { N = 160 };
    uint64_t seed = 7, bytes[N];
    struct plan_range r[N];
    for (uint32_t round = 0; round < 12; round++) {
        uint32_t n = N - round * 3;
        for (uint32_t i = 0; i < n; i++) bytes[i] = 5000 + next(&seed) % (round % 3 == 0 ? 3 : 40000);
        struct plan_load l = {bytes, n, n, round * 9000, round % 4 * 30000, 0};
        for (uint32_t k = 2; k <= n; k += k < 12 ? 1 : 37) {
            if (plan_bytes(&l, k, r, &em)) fail_msg("%s", em.text);
            struct best got = judge(&l, k, r), want = plain(&l, k);
            assert_int_equal(got.largest, want.largest);
            assert_int_equal(got.squares, want.squares);
        }
    }
}

/*
 * The algorithm that was used before, which kept for every prefix the pair (largest, squares). Its largest stage was
 * the least possible too; it could miss a more even cut, because the best prefix need not be part of the best cut.
 */
static struct best pairs(const struct plan_load *l, uint32_t k) {
    uint32_t n = l->n_layers;
    struct cell {
        bool found;
        uint64_t largest;
        double squares;
    } *table = calloc((size_t)(k + 1) * (n + 1), sizeof *table);
    uint64_t *sum = calloc(n + 1, sizeof *sum);
    assert_true(table && sum);
    for (uint32_t i = 0; i < n; i++) sum[i + 1] = sum[i] + l->layer_bytes[i];
    table[0].found = true;
    for (uint32_t j = 1; j <= k; j++)
        for (uint32_t e = j == k ? n : j; e <= n - (k - j); e++)
            for (uint32_t s = j - 1; s < e; s++) {
                const struct cell *p = &table[(size_t)(j - 1) * (n + 1) + s];
                struct cell *to = &table[(size_t)j * (n + 1) + e];
                if (!p->found) continue;
                uint64_t mine = sum[e] - sum[s] + (j == 1 ? l->first_extra : 0) + (j == k ? l->last_extra : 0);
                uint64_t largest = mine > p->largest ? mine : p->largest;
                double squares = p->squares + (double)mine * (double)mine;
                if (to->found && (largest > to->largest || (largest == to->largest && squares >= to->squares)))
                    continue;
                *to = (struct cell){true, largest, squares};
            }
    struct best b = {true, table[(size_t)k * (n + 1) + n].largest, (uint64_t)table[(size_t)k * (n + 1) + n].squares};
    free(table);
    free(sum);
    return b;
}

static void test_former_algorithm(void **state) {
    (void)state;
    enum { N = 120 };
    uint64_t seed = 3, bytes[N];
    struct plan_range r[N];
    for (uint32_t round = 0; round < 60; round++) {
        uint32_t n = 2 + (uint32_t)(next(&seed) % (N - 1)), k = 1 + (uint32_t)(next(&seed) % n);
        for (uint32_t i = 0; i < n; i++) bytes[i] = 100 + next(&seed) % 900;
        struct plan_load l = {bytes, n, n, next(&seed) % 3000, next(&seed) % 3000, 0};
        if (plan_bytes(&l, k, r, &em)) fail_msg("%s", em.text);
        struct best got = judge(&l, k, r), was = pairs(&l, k);
        assert_int_equal(got.largest, was.largest);
        assert_true(got.squares <= was.squares);
    }
}

/* ---- by hand ---- */

static void test_by_hand(void **state) {
    (void)state;
    uint64_t layers[30], big[4] = {100, 1, 1, 1};
    struct plan_range r[4];
    for (int i = 0; i < 30; i++) layers[i] = 10;
    struct plan_load l = {.layer_bytes = layers, .n_layers = 30, .n_trunk = 30}, b = {big, 4, 4, 0, 0, 0};
    assert_int_equal(plan_bytes(&l, 2, r, &em), 0);
    assert_true(r[0].first == 0 && r[0].end == 15 && r[1].first == 15 && r[1].end == 30);
    l.first_extra = 100;
    assert_int_equal(plan_bytes(&l, 2, r, &em), 0);
    assert_true(r[0].end == 10 && r[0].bytes == 200 && r[1].bytes == 200);
    l.first_extra = 0;
    assert_int_equal(plan_bytes(&l, 4, r, &em), 0);
    for (int i = 0; i < 4; i++) assert_in_range(r[i].end - r[i].first, 7, 8);
    l.n_trunk = 10; /* twenty layers that stay with the tenth */
    assert_int_equal(plan_bytes(&l, 4, r, &em), 0);
    assert_true(r[3].first == 9 && r[3].end == 30 && r[3].bytes == 210);
    assert_int_equal(plan_bytes(&b, 4, r, &em), 0);
    for (uint32_t i = 0; i < 4; i++) assert_true(r[i].first == i && r[i].end == i + 1);
    b.last_extra = 1000;
    assert_int_equal(plan_bytes(&b, 2, r, &em), 0);
    assert_true(r[0].end == 3 && r[1].bytes == 1001);
    b.first_extra = b.shared = 1000;
    assert_int_equal(plan_bytes(&b, 1, r, &em), 0);
    assert_true(r[0].first == 0 && r[0].end == 4 && r[0].bytes == 1103);
}

static void test_refusals(void **state) {
    (void)state;
    uint64_t bytes[4] = {100, 1, 1, 1};
    struct plan_range r[8];
    struct plan_load l = {.layer_bytes = bytes, .n_layers = 4, .n_trunk = 4};
    assert_int_equal(plan_bytes(&l, 5, r, &em), STRATA_EINVAL);
    assert_non_null(strstr(em.text, "1 to 4 stages, not 5"));
    assert_int_equal(plan_bytes(&l, 0, r, &em), STRATA_EINVAL);
    assert_int_equal(plan_bytes(&l, UINT32_MAX, r, &em), STRATA_EINVAL);
    l.n_trunk = 3;
    assert_int_equal(plan_bytes(&l, 4, r, &em), STRATA_EINVAL);
    assert_non_null(strstr(em.text, "MTP"));
    assert_non_null(strstr(em.text, "1 to 3 stages, not 4"));
    bytes[0] = UINT64_MAX;
    assert_int_equal(plan_bytes(&l, 2, r, &em), STRATA_EFORMAT);
    bytes[0] = INT64_MAX;
    assert_int_equal(plan_bytes(&l, 2, r, &em), STRATA_EFORMAT);
    bytes[0] = INT64_MAX - 3;
    assert_int_equal(plan_bytes(&l, 2, r, &em), STRATA_OK); /* no overflow in the squares */
    assert_true(r[0].end == 1);
    l.first_extra = UINT64_MAX;
    assert_int_equal(plan_bytes(&l, 2, r, &em), STRATA_EFORMAT);
    l.first_extra = 0;
    l.last_extra = UINT64_MAX;
    assert_int_equal(plan_bytes(&l, 2, r, &em), STRATA_EFORMAT);
}

/* ---- size ---- */

static void test_large(void **state) {
    (void)state;
    enum { LAYERS = 2000, STAGES = 64, MOST = 100000 };
    uint64_t seed = 11, *bytes = calloc(MOST, sizeof *bytes);
    struct plan_range *r = calloc(MOST, sizeof *r);
    assert_true(bytes && r);
    for (uint32_t i = 0; i < MOST; i++) bytes[i] = 300000000 + next(&seed) % 100000000;
    struct plan_load l = {bytes, LAYERS, LAYERS, 1u << 30, 1u << 30, 0};
    uint64_t start = clock_now_ns();
    if (plan_bytes(&l, STAGES, r, &em)) fail_msg("%s", em.text);
    double seconds = clock_since_s(start);
    judge(&l, STAGES, r);
    printf("%d layers over %d stages: %.1f ms\n", LAYERS, STAGES, seconds * 1e3);
    assert_true(seconds < 0.2);
    l.n_layers = l.n_trunk = MOST;
    if (plan_bytes(&l, 16, r, &em)) fail_msg("%s", em.text);
    judge(&l, 16, r);
    assert_int_equal(plan_bytes(&l, MOST, r, &em), STRATA_OK); /* one layer each */
    assert_int_equal(plan_bytes(&l, MOST / 2, r, &em), STRATA_ELIMIT);
    free(bytes);
    free(r);
}

/* ---- by count ---- */

static void test_count(void **state) {
    (void)state;
    struct pkg_range r[40];
    for (uint32_t n = 1; n <= 40; n++)
        for (uint32_t k = 1; k <= n; k++) {
            uint32_t at = 0;
            assert_int_equal(plan_count(n, k, r, &em), STRATA_OK);
            for (uint32_t i = 0; i < k; i++) {
                assert_int_equal(r[i].first, at);
                assert_int_equal(r[i].end - at, n / k + (i < n % k ? 1 : 0));
                at = r[i].end;
            }
            assert_int_equal(at, n);
        }
    assert_int_equal(plan_count(4, 0, r, &em), STRATA_EINVAL);
    assert_int_equal(plan_count(4, 5, r, &em), STRATA_EINVAL);
    assert_non_null(strstr(em.text, "1 to 4 stages, not 5"));
    assert_int_equal(plan_count(0, 1, r, &em), STRATA_EINVAL);
    assert_int_equal(plan_count(UINT32_MAX, 3, r, &em), STRATA_OK);
    assert_true(r[2].end == UINT32_MAX && r[0].end == UINT32_MAX / 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_cut), cmocka_unit_test(test_plain_search), cmocka_unit_test(test_former_algorithm),
        cmocka_unit_test(test_by_hand),   cmocka_unit_test(test_refusals),     cmocka_unit_test(test_large),
        cmocka_unit_test(test_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
