/* The tree of kept prefixes: what is found, what goes when, and random operations beside a simple model. */
#include "serve/prefix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_LEN = 12, MAX_MODEL = 64, MAX_NUMBERS = 1 << 20 };

/* ---- contents ---- */

/* The tokens of block content `what`: contents differ in one token only, the first, the last or one between. */
static void fill(int what, int32_t *tokens) {
    for (int i = 0; i < PREFIX_BLOCK; i++) tokens[i] = 7;
    tokens[(what * 21) % PREFIX_BLOCK] = 100 + what;
}

/* The tokens of a sequence of contents, written as digits: "012". */
static const int32_t *seq(const char *digits) {
    static int32_t tokens[MAX_LEN * PREFIX_BLOCK];
    for (size_t i = 0; digits[i]; i++) fill(digits[i] - '0', tokens + i * PREFIX_BLOCK);
    return tokens;
}

/* ---- by hand ---- */

static uint64_t forgotten[64];
static unsigned n_forgotten;

static void note_forget(void *ctx, uint64_t first, uint32_t count) {
    assert_ptr_equal(ctx, &n_forgotten);
    for (uint32_t i = 0; i < count; i++) forgotten[n_forgotten++ % 64] = first + i;
}

static void expect_forgotten(unsigned n, ...) {
    va_list ap;
    va_start(ap, n);
    assert_int_equal(n_forgotten, n);
    for (unsigned i = 0; i < n; i++) assert_int_equal(forgotten[i], va_arg(ap, int));
    va_end(ap);
    n_forgotten = 0;
}

static struct prefix *fresh(uint32_t max) {
    struct prefix *p;
    assert_int_equal(prefix_new(max, note_forget, &n_forgotten, &p, NULL), 0);
    n_forgotten = 0;
    return p;
}

/* Makes the whole sequence known, under numbers from `base` on; held at its end. */
static struct prefix_node *keep(struct prefix *p, const char *digits, uint64_t base) {
    struct prefix_node *tip = NULL;
    for (uint32_t i = 0; digits[i]; i++) {
        assert_true(prefix_reserve(p, 1));
        tip = prefix_extend(p, tip, seq(digits) + i * PREFIX_BLOCK, base + i);
        assert_non_null(tip);
    }
    return tip;
}

static void keep_and_release(struct prefix *p, const char *digits, uint64_t base) {
    prefix_release(p, keep(p, digits, base));
}

static struct prefix_node *match(struct prefix *p, const char *digits, uint32_t want) {
    uint32_t n = 99;
    struct prefix_node *tip = prefix_match(p, seq(digits), (uint32_t)strlen(digits), &n);
    assert_int_equal(n, want);
    assert_int_equal(tip != NULL, want > 0);
    return tip;
}

static void match_and_release(struct prefix *p, const char *digits, uint32_t want) {
    prefix_release(p, match(p, digits, want));
}

static void test_match(void **state) {
    struct prefix *p = fresh(8);
    struct prefix_stats s;
    uint64_t ids[3] = {0};
    uint32_t n;
    (void)state;
    match_and_release(p, "012", 0);
    keep_and_release(p, "012", 10);
    match_and_release(p, "012", 3);
    match_and_release(p, "0123", 3);
    match_and_release(p, "01", 2);
    match_and_release(p, "013", 2);
    match_and_release(p, "12", 0); /* the same tokens at another place are another block */
    match_and_release(p, "", 0);
    /* No further than was asked. */
    struct prefix_node *tip = prefix_match(p, seq("012"), 2, &n);
    assert_int_equal(n, 2);
    prefix_ids(tip, ids, 2);
    assert_true(ids[0] == 10 && ids[1] == 11 && ids[2] == 0);
    prefix_release(p, tip);
    tip = match(p, "012", 3);
    prefix_ids(tip, ids, 3);
    assert_true(ids[0] == 10 && ids[1] == 11 && ids[2] == 12);
    prefix_release(p, tip);
    prefix_ids(NULL, ids, 0);
    prefix_release(p, NULL);
    expect_forgotten(0);
    /* Six found something, "012" too early and "12" nothing; "" could not. */
    prefix_stats(p, &s);
    assert_true(s.hits == 6 && s.misses == 2 && s.reused_positions == (3 + 3 + 2 + 2 + 2 + 3) * PREFIX_BLOCK);
    assert_true(s.blocks == 3 && s.max_blocks == 8 && s.evictions == 0);
    prefix_free(p);
    prefix_free(NULL);
}

/* One token more or less, wherever it stands in the block, is another block. */
static void test_every_token_counts(void **state) {
    struct prefix *p = fresh(2);
    int32_t tokens[PREFIX_BLOCK] = {0};
    uint32_t n;
    (void)state;
    assert_true(prefix_reserve(p, 1));
    prefix_release(p, prefix_extend(p, NULL, tokens, 1));
    for (int i = 0; i < PREFIX_BLOCK; i++) {
        for (int bit = 0; bit < 31; bit++) {
            tokens[i] ^= 1 << bit;
            assert_null(prefix_match(p, tokens, 1, &n));
            tokens[i] ^= 1 << bit;
        }
    }
    prefix_release(p, prefix_match(p, tokens, 1, &n));
    assert_int_equal(n, 1);
    prefix_free(p);
}

/* Least recently used first; a match is a use of every block in it. */
static void test_order_of_use(void **state) {
    struct prefix *p = fresh(4);
    (void)state;
    keep_and_release(p, "0", 1);
    keep_and_release(p, "1", 2);
    keep_and_release(p, "2", 3);
    keep_and_release(p, "3", 4);
    match_and_release(p, "0", 1);
    match_and_release(p, "2", 1);
    assert_true(prefix_reserve(p, 1));
    expect_forgotten(1, 2);
    assert_true(prefix_reserve(p, 2));
    expect_forgotten(2, 4, 1);
    prefix_unreserve(p, 3);
    match_and_release(p, "2", 1);
    keep_and_release(p, "45", 5);
    assert_true(prefix_reserve(p, 1));
    expect_forgotten(0);
    prefix_unreserve(p, 1);
    /* The whole branch was used, its end counts as used before what it continues. */
    match_and_release(p, "45", 2);
    match_and_release(p, "2", 1);
    assert_true(prefix_reserve(p, 4));
    expect_forgotten(3, 6, 5, 3);
    prefix_free(p);
}

/* What is held, and what stands before it, never goes; what others do not need goes from the end on. */
static void test_held(void **state) {
    struct prefix *p = fresh(4);
    (void)state;
    struct prefix_node *a = keep(p, "01", 1);
    keep_and_release(p, "02", 8);
    expect_forgotten(1, 8); /* "0" was known, as 1 */
    assert_true(prefix_reserve(p, 1));
    expect_forgotten(0);
    assert_true(prefix_reserve(p, 1));
    expect_forgotten(1, 9);
    assert_false(prefix_reserve(p, 1));
    prefix_unreserve(p, 2);
    /* Held twice: once is not enough. */
    struct prefix_node *again = match(p, "01", 2);
    assert_ptr_equal(a, again);
    prefix_release(p, a);
    assert_false(prefix_reserve(p, 3));
    expect_forgotten(0);
    /* The hold moves on: "01" is kept by what continues it. */
    assert_true(prefix_reserve(p, 1));
    struct prefix_node *c = prefix_extend(p, again, seq("4"), 20);
    assert_false(prefix_reserve(p, 2));
    assert_true(prefix_reserve(p, 1));
    expect_forgotten(0);
    prefix_release(p, c);
    assert_true(prefix_reserve(p, 1));
    expect_forgotten(1, 20);
    assert_true(prefix_reserve(p, 1));
    expect_forgotten(1, 2);
    assert_true(prefix_reserve(p, 1));
    expect_forgotten(1, 1);
    assert_false(prefix_reserve(p, 1));
    prefix_free(p);
}

static void test_reserve(void **state) {
    struct prefix *p = fresh(3), *none = fresh(0);
    struct prefix_stats s;
    (void)state;
    assert_true(prefix_reserve(p, 0));
    assert_false(prefix_reserve(p, 4));
    assert_false(prefix_reserve(p, UINT32_MAX));
    assert_true(prefix_reserve(p, 3));
    assert_false(prefix_reserve(p, 1));
    assert_false(prefix_reserve(p, UINT32_MAX - 1));
    assert_true(prefix_reserve(p, 0));
    prefix_unreserve(p, 1);
    assert_true(prefix_reserve(p, 1));
    prefix_unreserve(p, 99); /* not below nothing */
    assert_true(prefix_reserve(p, 3));
    assert_false(prefix_reserve(p, 1));
    prefix_stats(p, &s);
    assert_true(s.blocks == 0 && s.max_blocks == 3 && s.evictions == 0);
    prefix_free(p);
    /* A cache of none. */
    assert_true(prefix_reserve(none, 0));
    assert_false(prefix_reserve(none, 1));
    match_and_release(none, "0", 0);
    prefix_free(none);
}

static void test_numbers(void **state) {
    struct prefix *p = fresh(2);
    (void)state;
    uint64_t a = prefix_numbers(p, 5), b = prefix_numbers(p, 1), c = prefix_numbers(p, UINT32_MAX);
    assert_true(a >= 1 && b >= a + 5 && c > b);
    prefix_clear(p); /* the stages may be others, but nobody counts on that */
    assert_true(prefix_numbers(p, 1) >= c + UINT32_MAX);
    prefix_free(p);
}

/* Two requests compute the same at the same time: the first one's blocks stay, the other's are forgotten. */
static void test_twice(void **state) {
    struct prefix *p = fresh(6);
    struct prefix_stats s;
    uint64_t ids[2];
    (void)state;
    assert_true(prefix_reserve(p, 4));
    struct prefix_node *a = prefix_extend(p, NULL, seq("5"), 1), *b = prefix_extend(p, NULL, seq("5"), 11);
    assert_ptr_equal(a, b);
    expect_forgotten(1, 11);
    b = prefix_extend(p, b, seq("6"), 12);
    a = prefix_extend(p, a, seq("6"), 2);
    assert_ptr_equal(a, b);
    expect_forgotten(1, 2);
    prefix_ids(a, ids, 2);
    assert_true(ids[0] == 1 && ids[1] == 12);
    prefix_stats(p, &s);
    assert_int_equal(s.blocks, 2);
    /* Each reservation was used up, and each of the two holds counts. */
    assert_true(prefix_reserve(p, 4));
    assert_false(prefix_reserve(p, 1));
    prefix_unreserve(p, 4);
    prefix_release(p, a);
    assert_false(prefix_reserve(p, 5));
    prefix_release(p, b);
    assert_true(prefix_reserve(p, 6));
    expect_forgotten(2, 12, 1);
    prefix_free(p);
}

static void test_discard(void **state) {
    struct prefix *p = fresh(8);
    (void)state;
    keep_and_release(p, "012", 1);
    prefix_discard(p, match(p, "012", 3));
    expect_forgotten(3, 3, 2, 1);
    match_and_release(p, "0", 0);
    /* What another continues cannot go, but it is not found any more, nor what continues it. */
    keep_and_release(p, "012", 1);
    keep_and_release(p, "013", 11);
    expect_forgotten(2, 11, 12);
    prefix_discard(p, match(p, "012", 3));
    expect_forgotten(1, 3);
    match_and_release(p, "013", 0);
    match_and_release(p, "0", 0);
    /* It makes room when it gets old. */
    keep_and_release(p, "013", 21);
    assert_true(prefix_reserve(p, 5));
    expect_forgotten(3, 13, 2, 1);
    prefix_unreserve(p, 5);
    /* What another request holds stays, too, and its holder may go on from it. */
    struct prefix_node *held = match(p, "013", 3);
    prefix_discard(p, match(p, "0", 1));
    expect_forgotten(0);
    match_and_release(p, "013", 0);
    prefix_discard(p, held);
    expect_forgotten(3, 23, 22, 21);
    prefix_discard(p, NULL);
    expect_forgotten(0);
    prefix_free(p);
}

static void test_clear(void **state) {
    struct prefix *p = fresh(3);
    struct prefix_stats s;
    (void)state;
    (void)keep(p, "01", 1);
    assert_true(prefix_reserve(p, 1));
    prefix_clear(p);
    expect_forgotten(0);
    match_and_release(p, "01", 0);
    assert_true(prefix_reserve(p, 3));
    prefix_unreserve(p, 3);
    keep_and_release(p, "012", 5);
    match_and_release(p, "012", 3);
    prefix_stats(p, &s);
    assert_true(s.blocks == 3 && s.hits == 1 && s.misses == 1 && s.reused_positions == 3 * PREFIX_BLOCK);
    prefix_free(p);
}

/* ---- the model ---- */

struct block {
    uint64_t id;
    struct block *parent; /* NULL: starts a sequence */
    int what;
    unsigned holds, children;
    uint64_t used;
    bool known;
    bool lost; /* not found any more */
};

enum mode { NEITHER, EVICTING, DISCARDING, EXTENDING };

/* A request: a sequence, how far it is known, and its hold. */
struct request {
    bool active;
    int what[MAX_LEN];
    uint32_t len, n_known, n_reserved;
    uint64_t base;
    struct prefix_node *tip;
    struct block *at; /* the model's tip */
};

static struct {
    struct block block[MAX_MODEL];
    uint32_t n, n_reserved, max;
    uint64_t clock;
    struct prefix_stats stats;
    enum mode mode;
    struct block *discard; /* what may go next */
    uint64_t refused;      /* EXTENDING: the number that must be forgotten; 0: none */
    unsigned n_evicted;
    uint8_t gone[MAX_NUMBERS]; /* numbers that were forgotten */
    uint8_t used[MAX_NUMBERS]; /* numbers that were given out */
} m;

static uint64_t rng;

static uint32_t next_random(uint32_t below) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 16) % below;
}

static struct block *child(const struct block *parent, int what) {
    for (int i = 0; i < MAX_MODEL; i++)
        if (m.block[i].known && !m.block[i].lost && m.block[i].parent == parent && m.block[i].what == what)
            return &m.block[i];
    return NULL;
}

static bool is_free(const struct block *b) {
    return b->holds == 0 && b->children == 0;
}

static struct block *oldest_free(void) {
    struct block *best = NULL;
    for (int i = 0; i < MAX_MODEL; i++) {
        struct block *b = &m.block[i];
        if (b->known && is_free(b) && (!best || b->used < best->used)) best = b;
    }
    return best;
}

static void use(struct block *b) {
    for (; b; b = b->parent) b->used = ++m.clock;
}

/* Each number goes once; a block only when it is its turn. */
static void on_forget(void *ctx, uint64_t first, uint32_t count) {
    assert_ptr_equal(ctx, &m);
    for (uint64_t id = first; id < first + count; id++) {
        struct block *b = NULL;
        assert_true(id < MAX_NUMBERS && m.used[id] && !m.gone[id]);
        m.gone[id] = 1;
        for (int i = 0; i < MAX_MODEL; i++)
            if (m.block[i].known && m.block[i].id == id) b = &m.block[i];
        if (m.mode == EXTENDING) {
            assert_null(b);
            assert_true(id == m.refused);
            m.refused = 0;
            continue;
        }
        assert_non_null(b);
        assert_true(is_free(b));
        if (m.mode == EVICTING) {
            assert_ptr_equal(b, oldest_free());
            m.stats.evictions++;
            m.n_evicted++;
        } else {
            assert_int_equal(m.mode, DISCARDING);
            /* From the tip on, past those that somebody needs. */
            while (m.discard && m.discard != b && !is_free(m.discard)) m.discard = m.discard->parent;
            assert_ptr_equal(b, m.discard);
            m.discard = b->parent;
        }
        if (b->parent) b->parent->children--;
        b->known = false;
        m.n--;
    }
}

static void begin(struct prefix *p, struct request *r) {
    int32_t tokens[MAX_LEN * PREFIX_BLOCK];
    uint64_t ids[MAX_LEN];
    uint32_t max, n = 99, want = 0;
    *r = (struct request){.active = true, .len = 1 + next_random(MAX_LEN)};
    for (uint32_t i = 0; i < r->len; i++) {
        r->what[i] = (int)next_random(i < 3 ? 2 : 4);
        fill(r->what[i], tokens + i * PREFIX_BLOCK);
    }
    max = next_random(4) ? r->len : next_random(r->len + 1);
    for (struct block *next; want < max && (next = child(r->at, r->what[want])) != NULL; want++) r->at = next;
    r->tip = prefix_match(p, tokens, max, &n);
    assert_int_equal(n, want);
    assert_int_equal(r->tip != NULL, want > 0);
    prefix_ids(r->tip, ids, n);
    if (r->at) r->at->holds++;
    use(r->at);
    const struct block *b = r->at;
    for (uint32_t i = n; i > 0; i--, b = b->parent) assert_true(ids[i - 1] == b->id);
    if (max) *(n ? &m.stats.hits : &m.stats.misses) += 1; /* nothing was looked for: neither */
    m.stats.reused_positions += (uint64_t)n * PREFIX_BLOCK;
    r->n_known = n;
    r->base = prefix_numbers(p, r->len);
    assert_true(r->base > 0 && r->base + r->len <= MAX_NUMBERS);
    for (uint32_t i = 0; i < r->len; i++) {
        assert_false(m.used[r->base + i]);
        m.used[r->base + i] = 1;
    }
}

/* How many blocks can never go now: those that are held, and what stands before them. */
static uint32_t pinned(void) {
    bool in[MAX_MODEL] = {false};
    uint32_t n = 0;
    for (int i = 0; i < MAX_MODEL; i++)
        for (const struct block *b = &m.block[i]; b && m.block[i].known && m.block[i].holds; b = b->parent)
            in[b - m.block] = true;
    for (int i = 0; i < MAX_MODEL; i++) n += in[i];
    return n;
}

static void reserve(struct prefix *p, struct request *r, uint32_t n) {
    bool possible = pinned() + m.n_reserved + n <= m.max;
    uint32_t known = m.n, over = m.n + m.n_reserved + n;
    m.mode = EVICTING;
    m.n_evicted = 0;
    assert_int_equal(prefix_reserve(p, n), possible);
    m.mode = NEITHER;
    if (!possible) {
        assert_int_equal(m.n_evicted, 0); /* not for nothing */
        return;
    }
    /* As many went as had to. */
    assert_int_equal(m.n_evicted, over > m.max ? over - m.max : 0);
    assert_int_equal(m.n, known - m.n_evicted);
    m.n_reserved += n;
    r->n_reserved += n;
}

static void extend(struct prefix *p, struct request *r) {
    int32_t tokens[PREFIX_BLOCK];
    uint64_t id = r->base + r->n_known, ids[MAX_LEN];
    struct block *known = child(r->at, r->what[r->n_known]), *b = known;
    if (!b) {
        for (b = m.block; b->known; b++) {
        }
        *b = (struct block){.id = id, .parent = r->at, .what = r->what[r->n_known], .known = true};
        if (r->at) r->at->children++;
        m.n++;
    }
    fill(r->what[r->n_known], tokens);
    m.mode = EXTENDING;
    m.refused = known ? id : 0;
    r->tip = prefix_extend(p, r->tip, tokens, id);
    assert_true(m.refused == 0);
    m.mode = NEITHER;
    assert_non_null(r->tip);
    b->holds++;
    if (r->at) r->at->holds--;
    r->at = b;
    use(b);
    r->n_known++;
    r->n_reserved--;
    m.n_reserved--;
    prefix_ids(r->tip, ids, r->n_known);
    for (uint32_t i = r->n_known; i > 0; i--, b = b->parent) assert_true(ids[i - 1] == b->id);
}

static void end(struct prefix *p, struct request *r, bool discard) {
    prefix_unreserve(p, r->n_reserved);
    m.n_reserved -= r->n_reserved;
    if (r->at) r->at->holds--;
    if (discard) {
        for (struct block *b = r->at; b; b = b->parent) b->lost = true;
        m.mode = DISCARDING;
        m.discard = r->at;
        prefix_discard(p, r->tip);
        m.mode = NEITHER;
        /* Everything went that could. */
        for (; m.discard; m.discard = m.discard->parent) assert_false(is_free(m.discard));
    } else {
        prefix_release(p, r->tip);
    }
    r->active = false;
}

static void check(const struct prefix *p) {
    struct prefix_stats s;
    uint32_t n = 0;
    prefix_stats(p, &s);
    assert_int_equal(s.blocks, m.n);
    assert_int_equal(s.max_blocks, m.max);
    assert_true(m.n + m.n_reserved <= m.max);
    assert_true(s.hits == m.stats.hits && s.misses == m.stats.misses && s.evictions == m.stats.evictions &&
                s.reused_positions == m.stats.reused_positions);
    for (int i = 0; i < MAX_MODEL; i++) {
        if (!m.block[i].known) continue;
        n++;
        assert_false(m.gone[m.block[i].id]);
    }
    assert_int_equal(n, m.n);
}

/* The chain was built anew: everything is forgotten, silently. */
static void clear(struct prefix *p, struct request *r, unsigned n) {
    prefix_clear(p);
    for (int i = 0; i < MAX_MODEL; i++) {
        if (m.block[i].known) m.gone[m.block[i].id] = 1;
        m.block[i].known = false;
    }
    m.n = m.n_reserved = 0;
    for (unsigned i = 0; i < n; i++) r[i].active = false;
}

static void step(struct prefix *p, struct request *r) {
    if (!r->active) {
        begin(p, r);
        if (next_random(3)) reserve(p, r, r->len - r->n_known);
        return;
    }
    if (r->n_known < r->len && r->n_reserved > 0 && next_random(6)) {
        extend(p, r);
        return;
    }
    if (r->n_known < r->len && next_random(2)) {
        reserve(p, r, next_random(3));
        return;
    }
    end(p, r, next_random(5) == 0);
}

static void test_random(void **state) {
    static const uint32_t sizes[] = {1, 2, 5, 13, 30, 60};
    enum { N = 6 };
    uint64_t hits = 0, evictions = 0;
    (void)state;
    rng = 1;
    for (size_t game = 0; game < 60; game++) {
        struct request r[N] = {{0}};
        struct prefix *p;
        memset(&m, 0, sizeof m);
        m.max = sizes[game % (sizeof sizes / sizeof sizes[0])];
        assert_int_equal(prefix_new(m.max, on_forget, &m, &p, NULL), 0);
        for (unsigned i = 0; i < 5000; i++) {
            step(p, &r[next_random(N)]);
            check(p);
            if (next_random(2000) == 0) clear(p, r, N);
        }
        for (unsigned i = 0; i < N; i++)
            if (r[i].active) end(p, &r[i], false);
        /* Nobody holds anything: all of it can go, and then every number that was known has been forgotten once. */
        struct request last = {0};
        reserve(p, &last, m.max);
        assert_int_equal(m.n, 0);
        assert_int_equal(last.n_reserved, m.max);
        check(p);
        prefix_free(p);
        hits += m.stats.hits;
        evictions += m.stats.evictions;
    }
    assert_true(hits > 10000 && evictions > 10000); /* the games were real ones */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_match),        cmocka_unit_test(test_every_token_counts),
        cmocka_unit_test(test_order_of_use), cmocka_unit_test(test_held),
        cmocka_unit_test(test_reserve),      cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_twice),        cmocka_unit_test(test_discard),
        cmocka_unit_test(test_clear),        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
