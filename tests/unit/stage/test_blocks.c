/* Kept blocks: random operations beside a simple model, the bound, and what the edges of numbers do. */
#include "stage/stage_blocks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t rng;

static uint32_t next_random(uint32_t below) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 16) % below;
}

/* The model: a list. A block's bytes are all of one value. */
struct kept {
    uint64_t id;
    size_t bytes;
    uint8_t value;
};

struct model {
    struct kept kept[4096];
    uint32_t n, max;
};

static struct kept *find(struct model *m, uint64_t id) {
    for (uint32_t i = 0; i < m->n; i++)
        if (m->kept[i].id == id) return &m->kept[i];
    return NULL;
}

static void put(struct stage_blocks *b, struct model *m, uint64_t id, size_t bytes) {
    uint8_t *data = stage_blocks_put(b, id, bytes);
    if (m->n >= m->max || find(m, id)) {
        assert_null(data);
        return;
    }
    assert_non_null(data);
    m->kept[m->n] = (struct kept){id, bytes, (uint8_t)next_random(256)};
    memset(data, m->kept[m->n++].value, bytes);
}

static void take_away(struct stage_blocks *b, struct model *m, uint64_t first, uint32_t count) {
    uint32_t n = 0;
    stage_blocks_remove(b, first, count);
    for (uint32_t i = 0; i < m->n; i++)
        if (m->kept[i].id - first >= count) m->kept[n++] = m->kept[i];
    m->n = n;
}

static void check(const struct stage_blocks *b, struct model *m, uint64_t id) {
    const struct kept *k = find(m, id);
    size_t bytes = 12345;
    const uint8_t *data = stage_blocks_get(b, id, &bytes);
    if (!k) {
        assert_null(data);
        return;
    }
    assert_non_null(data);
    assert_int_equal(bytes, k->bytes);
    for (size_t i = 0; i < bytes; i++) assert_int_equal(data[i], k->value);
}

static void check_all(const struct stage_blocks *b, struct model *m) {
    assert_int_equal(stage_blocks_count(b), m->n);
    for (uint32_t i = 0; i < m->n; i++) check(b, m, m->kept[i].id);
}

/*
 * Full tables of all sizes, with few different numbers and with numbers from everywhere: there are collisions, runs
 * around the table's end, and holes in the middle of runs.
 */
static void test_random(void **state) {
    static const uint32_t sizes[] = {1, 2, 3, 7, 8, 16, 31, 64, 300};
    static const uint64_t bases[] = {1, UINT64_C(1) << 53, UINT64_MAX - 5000};
    struct model *m = malloc(sizeof *m);
    (void)state;
    rng = 1;
    for (size_t game = 0; game < sizeof sizes / sizeof sizes[0] * 6; game++) {
        uint32_t max = sizes[game / 6], spread = max * (game % 2 ? 2 : 12);
        uint64_t base = bases[game % 3], step = game % 4 ? 1 : UINT64_C(1) << 32;
        struct stage_blocks *b;
        assert_int_equal(stage_blocks_new(max, &b, NULL), 0);
        *m = (struct model){.max = max};
        for (unsigned i = 0; i < 4000; i++) {
            uint64_t id = base + next_random(spread) * step;
            if (id == 0) id = 1;
            switch (next_random(m->n == m->max ? 4 : 8)) {
            case 0: take_away(b, m, id, 1 + next_random(4)); break;
            case 1: take_away(b, m, id, 1); break;
            case 2: check(b, m, id); break;
            default: put(b, m, id, next_random(40)); break;
            }
            if (i % 50 == 0) check_all(b, m);
            if (i % 997 == 996) take_away(b, m, base, spread);
        }
        check_all(b, m);
        stage_blocks_free(b); /* with what is in it */
    }
    free(m);
}

/* Every way to remove one of a full table, and then another: those that are left are found. */
static void test_holes(void **state) {
    enum { N = 16 };
    struct model *m = malloc(sizeof *m);
    (void)state;
    rng = 2;
    for (unsigned game = 0; game < 20; game++) {
        uint64_t base = 1 + next_random(1 << 30);
        for (uint32_t first = 0; first < N; first++) {
            for (uint32_t second = 0; second < N; second++) {
                struct stage_blocks *b;
                assert_int_equal(stage_blocks_new(N, &b, NULL), 0);
                *m = (struct model){.max = N};
                for (uint32_t i = 0; i < N; i++) put(b, m, base + i * (1 + game), 8);
                assert_null(stage_blocks_put(b, base - 1, 8));
                take_away(b, m, base + first * (1 + game), 1);
                take_away(b, m, base + second * (1 + game), 1);
                check_all(b, m);
                put(b, m, base + N * (1 + game), 8);
                check_all(b, m);
                stage_blocks_free(b);
            }
        }
    }
    free(m);
}

static void test_full(void **state) {
    struct stage_blocks *b;
    size_t bytes;
    (void)state;
    assert_int_equal(stage_blocks_new(2, &b, NULL), 0);
    assert_non_null(stage_blocks_put(b, 1, 4));
    assert_null(stage_blocks_put(b, 1, 4)); /* taken */
    assert_int_equal(stage_blocks_count(b), 1);
    assert_non_null(stage_blocks_put(b, 2, 0));
    assert_null(stage_blocks_put(b, 3, 4)); /* full */
    assert_null(stage_blocks_get(b, 3, &bytes));
    assert_non_null(stage_blocks_get(b, 2, &bytes)); /* empty, and there */
    assert_int_equal(bytes, 0);
    stage_blocks_remove(b, 2, 1);
    assert_non_null(stage_blocks_put(b, 3, 4));
    stage_blocks_free(b);
    /* A store of none. */
    assert_int_equal(stage_blocks_new(0, &b, NULL), 0);
    assert_null(stage_blocks_put(b, 1, 4));
    assert_null(stage_blocks_get(b, 1, &bytes));
    stage_blocks_remove(b, 1, 5);
    assert_int_equal(stage_blocks_count(b), 0);
    stage_blocks_free(b);
    stage_blocks_free(NULL);
}

static void test_ranges(void **state) {
    struct model *m = malloc(sizeof *m);
    struct stage_blocks *b;
    (void)state;
    rng = 3;
    assert_int_equal(stage_blocks_new(100, &b, NULL), 0);
    *m = (struct model){.max = 100};
    for (uint64_t id = 1; id <= 100; id++) put(b, m, id, 4);
    take_away(b, m, 50, 0); /* none */
    check_all(b, m);
    take_away(b, m, 101, 1000); /* none of ours */
    take_away(b, m, 0, 1);
    check_all(b, m);
    assert_int_equal(m->n, 100);
    take_away(b, m, 0, 3); /* 0 is nobody's number: 1 and 2 */
    take_away(b, m, 20, 10);
    take_away(b, m, 25, 10); /* half of them are gone already */
    take_away(b, m, 99, 1 << 20);
    check_all(b, m);
    assert_int_equal(m->n, 100 - 2 - 15 - 2);
    /* A range that ends where numbers do, and one around that end. */
    put(b, m, UINT64_MAX, 4);
    put(b, m, UINT64_MAX - 1, 4);
    take_away(b, m, UINT64_MAX - 1, 1);
    check_all(b, m);
    take_away(b, m, UINT64_MAX, 5);
    check_all(b, m);
    take_away(b, m, 1, 1 << 20);
    check_all(b, m);
    assert_int_equal(m->n, 0);
    stage_blocks_free(b);
    free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_holes),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
