/* Which rows go into a batch: scenarios, what holds for every choice, and that everybody's turn comes. */
#include "stage/stage_batch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { MAX = 64 };

struct give {
    uint32_t slot, pos, waiting;
    uint64_t served;
};

struct get {
    uint32_t slot, n_rows;
};

static const struct scenario {
    const char *name;
    struct stage_batch_limits limits; /* n_batch, n_in_flight, n_decoding */
    struct give give[8];              /* ends with pos 0, waiting 0, served 0: nothing decodes at position 0 */
    struct get get[8];                /* ends with n_rows 0 */
} scenarios[] = {
    {"nobody", {8, 1, 0}, {{0}}, {{0}}},
    {"a prompt that fits", {8, 1, 0}, {{0, 0, 5, 0}}, {{0, 5}}},
    {"a prompt larger than a batch", {8, 1, 0}, {{0, 0, 20, 0}}, {{0, 8}}},
    {"the rest of a prompt", {8, 1, 0}, {{3, 16, 4, 0}}, {{3, 4}}},
    {"a prompt ends its piece at a multiple of the batch", {8, 1, 0}, {{0, 3, 20, 0}}, {{0, 5}}},
    {"and then takes whole batches", {8, 1, 0}, {{0, 8, 15, 0}}, {{0, 8}}},
    {"one position before a multiple", {8, 1, 0}, {{0, 7, 20, 0}}, {{0, 1}}},
    {"what one prompt leaves is the next one's", {8, 1, 0}, {{0, 3, 20, 1}, {1, 0, 9, 2}}, {{0, 5}, {1, 3}}},
    {"and what that leaves", {8, 1, 0}, {{0, 6, 20, 1}, {1, 5, 9, 2}, {2, 0, 9, 3}}, {{0, 2}, {1, 3}, {2, 3}}},
    {"the prompt served longest ago goes first", {8, 1, 0}, {{0, 0, 20, 5}, {1, 0, 20, 4}}, {{1, 8}}},
    {"equals go by slot", {8, 1, 0}, {{2, 0, 3, 1}, {0, 0, 3, 1}, {1, 0, 3, 1}}, {{0, 3}, {1, 3}, {2, 2}}},
    {"ages beyond 32 bits", {8, 1, 0}, {{0, 0, 8, UINT64_MAX}, {1, 0, 8, 1ull << 32}}, {{1, 8}}},
    {"a decode step", {8, 1, 1}, {{5, 17, 0, 1}}, {{5, 1}}},
    {"all decode steps, when they are not split",
     {8, 1, 3},
     {{0, 9, 0, 3}, {1, 9, 0, 1}, {2, 9, 0, 2}},
     {{1, 1}, {2, 1}, {0, 1}}},
    {"half of them", {8, 2, 4}, {{0, 9, 0, 4}, {1, 9, 0, 3}, {2, 9, 0, 2}, {3, 9, 0, 1}}, {{3, 1}, {2, 1}}},
    {"half, rounded up", {8, 2, 3}, {{0, 9, 0, 4}, {1, 9, 0, 3}, {2, 9, 0, 2}}, {{2, 1}, {1, 1}}},
    {"by all that decode, not by those that are ready", {8, 2, 4}, {{0, 9, 0, 1}, {1, 9, 0, 2}}, {{0, 1}, {1, 1}}},
    {"less decode than batches may be in flight", {8, 8, 2}, {{0, 9, 0, 2}, {1, 9, 0, 1}}, {{1, 1}}},
    {"more decode than a batch has rows",
     {2, 1, 4},
     {{0, 9, 0, 1}, {1, 9, 0, 2}, {2, 9, 0, 3}, {3, 9, 0, 4}},
     {{0, 1}, {1, 1}}},
    {"decode first, and a quarter for the prompt", {16, 1, 1}, {{0, 0, 50, 0}, {1, 99, 0, 9}}, {{1, 1}, {0, 4}}},
    {"a quarter, rounded up", {6, 1, 1}, {{0, 0, 50, 0}, {1, 99, 0, 9}}, {{1, 1}, {0, 2}}},
    {"a quarter also when no step is ready", {16, 1, 2}, {{0, 0, 50, 0}}, {{0, 4}}},
    {"a quarter for all prompts together",
     {16, 1, 1},
     {{0, 14, 50, 1}, {1, 0, 50, 2}, {2, 0, 50, 3}, {3, 99, 0, 9}},
     {{3, 1}, {0, 2}, {1, 2}}},
    {"less than a quarter is left",
     {4, 1, 3},
     {{0, 0, 50, 0}, {1, 99, 0, 9}, {2, 99, 0, 9}, {3, 99, 0, 9}},
     {{1, 1}, {2, 1}, {3, 1}, {0, 1}}},
    {"nothing is left",
     {3, 1, 3},
     {{0, 0, 50, 0}, {1, 99, 0, 9}, {2, 99, 0, 9}, {3, 99, 0, 9}},
     {{1, 1}, {2, 1}, {3, 1}}},
    {"batches of one row", {1, 1, 1}, {{0, 0, 50, 0}, {1, 99, 0, 9}}, {{1, 1}}},
    {"batches of one row, the step under way", {1, 1, 1}, {{0, 0, 50, 0}}, {{0, 1}}},
    {"positions as large as there are", {512, 1, 0}, {{0, INT32_MAX - 1, 1, 0}}, {{0, 1}}},
    {"more waits than 32 bits of sums hold", {8, 1, 0}, {{0, 0, UINT32_MAX, 0}, {1, 0, UINT32_MAX, 1}}, {{0, 8}}},
    {"the largest batch", {INT32_MAX, 1, 1}, {{0, 0, UINT32_MAX, 0}, {1, 99, 0, 9}}, {{1, 1}, {0, 1 << 29}}},
};

static void test_scenarios(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        const struct scenario *s = &scenarios[i];
        struct stage_batch_entry e[MAX];
        uint32_t n = 0, k = 0;
        for (const struct give *g = s->give; g->pos || g->waiting || g->served; g++)
            e[n++] = (struct stage_batch_entry){g->slot, g->pos, g->waiting, g->served, 77};
        n = stage_batch_choose(&s->limits, e, n);
        for (; s->get[k].n_rows; k++) {
            if (k < n && e[k].slot == s->get[k].slot && e[k].n_rows == s->get[k].n_rows) continue;
            fail_msg("%s: entry %u of %u is %u rows of slot %u", s->name, k, n, e[k].n_rows, e[k].slot);
        }
        if (n != k) fail_msg("%s: %u entries, where %u are right", s->name, n, k);
    }
}

/* ---- many rounds ---- */

static uint64_t rng;

static uint32_t next_random(uint32_t below) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 16) % below;
}

/* A request as the first stage sees it. */
struct request {
    uint32_t n_prompt, pos, n_steps;
    uint32_t away; /* rounds until its token comes back */
    uint64_t served, ready_since;
};

struct world {
    struct stage_batch_limits limits;
    uint32_t n_slots, latency;
    uint64_t turn;
    struct request r[MAX];
    uint64_t longest_step, longest_prompt; /* rounds that somebody who was ready had to wait */
    unsigned finished;
};

static void begin(struct world *w, struct request *r) {
    /* A new request stands behind those that wait: it counts as served now. */
    *r = (struct request){.n_prompt = 1 + next_random(next_random(4) ? 3 * w->limits.n_batch : 30 * w->limits.n_batch),
                          .n_steps = next_random(3) ? 1 + next_random(40) : 0,
                          .served = w->turn,
                          .ready_since = w->turn};
    /* Some start from a restored prefix. */
    if (next_random(2)) r->pos = next_random(r->n_prompt);
}

static bool decodes(const struct request *r) {
    return r->pos >= r->n_prompt;
}

static uint32_t collect(const struct world *w, struct stage_batch_entry *e, struct stage_batch_limits *limits) {
    uint32_t n = 0;
    *limits = w->limits;
    for (uint32_t i = 0; i < w->n_slots; i++) {
        const struct request *r = &w->r[i];
        limits->n_decoding += decodes(r);
        if (r->away) continue;
        e[n++] = (struct stage_batch_entry){
            .slot = i, .pos = r->pos, .waiting = decodes(r) ? 0 : r->n_prompt - r->pos, .served = r->served};
    }
    return n;
}

static uint32_t ceil_div(uint32_t a, uint32_t b) {
    return a / b + (a % b != 0);
}

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* What must hold for a choice, whatever is to choose from. */
static void check_choice(const struct world *w, const struct stage_batch_limits *l, const struct stage_batch_entry *e,
                         uint32_t n, uint32_t n_ready) {
    uint32_t steps = 0, rows = 0, prompts = 0, ready_steps = 0;
    bool taken[MAX] = {false};
    for (uint32_t i = 0; i < n; i++) {
        const struct request *r = &w->r[e[i].slot];
        assert_true(e[i].slot < w->n_slots && !taken[e[i].slot] && !r->away);
        taken[e[i].slot] = true;
        assert_true(e[i].pos == r->pos && e[i].n_rows >= 1);
        if (decodes(r)) {
            assert_int_equal(e[i].n_rows, 1);
            assert_int_equal(prompts, 0); /* steps stand first */
            steps++;
        } else {
            assert_true(e[i].n_rows <= r->n_prompt - r->pos);
            assert_true(r->pos / l->n_batch == (r->pos + e[i].n_rows - 1) / l->n_batch);
            prompts += e[i].n_rows;
        }
        rows += e[i].n_rows;
    }
    assert_true(rows <= l->n_batch);
    assert_true(n > 0 || n_ready == 0);
    if (l->n_decoding) assert_true(prompts <= ceil_div(l->n_batch, 4));
    uint64_t newest_taken[2] = {0, 0};
    for (uint32_t i = 0; i < n; i++) {
        uint64_t *newest = &newest_taken[e[i].waiting > 0];
        if (e[i].served > *newest) *newest = e[i].served;
    }
    for (uint32_t i = 0; i < w->n_slots; i++) {
        const struct request *r = &w->r[i];
        ready_steps += decodes(r) && !r->away;
        if (!r->away && !taken[i]) assert_true(r->served >= newest_taken[!decodes(r)]);
    }
    assert_int_equal(steps, least(ready_steps, least(l->n_batch, ceil_div(l->n_decoding, l->n_in_flight))));
}

static void serve(struct world *w, const struct stage_batch_entry *e, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        struct request *r = &w->r[e[i].slot];
        uint64_t waited = w->turn - r->ready_since;
        uint64_t *longest = decodes(r) ? &w->longest_step : &w->longest_prompt;
        if (waited > *longest) *longest = waited;
        r->pos += e[i].n_rows;
        r->served = w->turn;
        r->ready_since = w->turn;
        if (decodes(r)) {
            r->away = w->latency;
            r->ready_since += w->latency;
        }
        if (r->pos < r->n_prompt + r->n_steps) continue;
        w->finished++;
        begin(w, r);
    }
}

static void play(struct world *w, unsigned rounds) {
    for (uint32_t i = 0; i < w->n_slots; i++) begin(w, &w->r[i]);
    for (unsigned round = 0; round < rounds; round++) {
        struct stage_batch_entry e[MAX], before[MAX];
        struct stage_batch_limits limits;
        w->turn++;
        uint32_t n_ready = collect(w, e, &limits);
        memcpy(before, e, n_ready * sizeof *e);
        uint32_t n = stage_batch_choose(&limits, e, n_ready);
        check_choice(w, &limits, e, n, n_ready);
        serve(w, e, n);
        for (uint32_t i = 0; i < w->n_slots; i++)
            if (w->r[i].away) w->r[i].away--;
    }
}

/*
 * There are as many requests as slots, always. A batch has a row for each, so that steps never take all of it: the
 * prompt that was served longest ago gets rows in every round, and a prompt waits for each other one at most once, and
 * once more for one that ended and began again in between. Steps are taken in n_in_flight parts of equal size; who
 * joins them meanwhile stands behind.
 */
static void test_nobody_starves(void **state) {
    unsigned finished = 0;
    (void)state;
    rng = 7;
    for (unsigned game = 0; game < 300; game++) {
        struct world w = {.n_slots = 1 + next_random(game % 3 ? 8 : MAX)};
        w.limits.n_batch = w.n_slots + next_random(game % 2 ? 4 : 200);
        w.limits.n_in_flight = 1 + next_random(game % 5 ? 4 : 16);
        w.latency = next_random(2 * w.limits.n_in_flight + 1);
        play(&w, 1500);
        if (w.longest_prompt > 2 * w.n_slots || w.longest_step > 2 * w.n_slots)
            fail_msg("game %u: a step waited for %llu rounds, a prompt for %llu, with %u requests", game,
                     (unsigned long long)w.longest_step, (unsigned long long)w.longest_prompt, w.n_slots);
        finished += w.finished;
    }
    assert_true(finished > 10000); /* the games were real ones */
}

/* A long prompt beside others that decode comes through at its quarter, and they lose nothing to it. */
static void test_long_prompt(void **state) {
    struct world w = {.limits = {.n_batch = 32, .n_in_flight = 1}, .n_slots = 4};
    (void)state;
    for (uint32_t i = 0; i < 3; i++) w.r[i] = (struct request){.n_prompt = 1, .pos = 1, .n_steps = 1000};
    w.r[3] = (struct request){.n_prompt = 800, .n_steps = 1000};
    for (unsigned round = 1; round <= 100; round++) {
        struct stage_batch_entry e[MAX];
        struct stage_batch_limits limits;
        w.turn++;
        uint32_t n_ready = collect(&w, e, &limits), n = stage_batch_choose(&limits, e, n_ready);
        check_choice(&w, &limits, e, n, n_ready);
        serve(&w, e, n);
        for (uint32_t i = 0; i < 3; i++) assert_int_equal(w.r[i].pos, 1 + round);
        assert_int_equal(w.r[3].pos, 8 * round);
    }
}

/* A long prompt beside short ones that end with their first token, each followed by the next: it gets its turn. */
static void test_short_prompts(void **state) {
    struct world w = {.limits = {.n_batch = 32, .n_in_flight = 1}, .n_slots = 4};
    (void)state;
    w.r[0] = (struct request){.n_prompt = 3200, .n_steps = 1};
    for (uint32_t i = 1; i < 4; i++) w.r[i] = (struct request){.n_prompt = 32};
    for (unsigned round = 0; round < 100; round++) {
        struct stage_batch_entry e[MAX];
        struct stage_batch_limits limits;
        w.turn++;
        uint32_t n_ready = collect(&w, e, &limits), n = stage_batch_choose(&limits, e, n_ready);
        check_choice(&w, &limits, e, n, n_ready);
        serve(&w, e, n);
        for (uint32_t i = 1; i < 4; i++) w.r[i] = (struct request){.n_prompt = 32, .served = w.r[i].served};
    }
    assert_int_equal(w.r[0].pos, 100 / 4 * 32);
}

/* The same prompt is cut in the same places, whoever else was there when its first piece was chosen. */
static void test_same_cuts(void **state) {
    (void)state;
    rng = 8;
    for (unsigned game = 0; game < 200; game++) {
        const struct stage_batch_limits limits = {.n_batch = 16, .n_in_flight = 1};
        uint32_t pos = 0, n_prompt = 17 + next_random(200);
        bool disturbed = true;
        while (pos < n_prompt) {
            struct stage_batch_entry e[2] = {{.slot = 1, .pos = pos, .waiting = n_prompt - pos, .served = 1}};
            uint32_t n = 1;
            if (disturbed && pos < 32) e[n++] = (struct stage_batch_entry){.slot = 0, .waiting = 1 + next_random(15)};
            disturbed = next_random(2);
            n = stage_batch_choose(&limits, e, n);
            for (uint32_t i = 0; i < n; i++)
                if (e[i].slot == 1) pos += e[i].n_rows;
            /* Left alone, it is back at the common places after one piece. */
            if (!disturbed && n == 1) assert_true(pos % 16 == 0 || pos == n_prompt);
        }
        assert_int_equal(pos, n_prompt);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scenarios),     cmocka_unit_test(test_nobody_starves), cmocka_unit_test(test_long_prompt),
        cmocka_unit_test(test_short_prompts), cmocka_unit_test(test_same_cuts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
