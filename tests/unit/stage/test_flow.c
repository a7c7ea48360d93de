/* The order of frames: sequences of steps with what the state machine says to each. */
#include "stage/stage_flow.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { S = WIRE_SPAN_SAMPLE, F = WIRE_TOKEN_FINAL };
enum step_kind { END, BEGIN, ROWS, TOKEN, CANCEL };
enum answer { TAKE, DROP, DONE, BAD };

struct step {
    enum step_kind kind;
    uint32_t seq, pos, rows; /* BEGIN: pos is the slot, rows the length of the prompt; TOKEN: rows is the id */
    uint8_t flags;
    enum answer answer;
    const char *says;
};

struct script {
    const char *name;
    uint32_t index;
    struct step steps[12];
};

/* Context 16, batch 4, vocabulary 50, slots 0 to 2. */
static const struct script scripts[] = {
    {"a prompt in chunks, then steps",
     1,
     {{BEGIN, 1, 0, 6, 0, TAKE, 0},
      {ROWS, 1, 0, 4, 0, TAKE, 0},
      {ROWS, 1, 4, 2, S, TAKE, 0},
      {ROWS, 1, 6, 1, S, TAKE, 0},
      {ROWS, 1, 7, 1, S, TAKE, 0},
      {BEGIN, 2, 0, 1, 0, TAKE, 0},
      {ROWS, 1, 8, 1, S, DROP, 0},
      {ROWS, 2, 0, 1, S, TAKE, 0}}},
    {"two requests side by side",
     1,
     {{BEGIN, 1, 0, 2, 0, TAKE, 0},
      {BEGIN, 2, 2, 5, 0, TAKE, 0},
      {ROWS, 2, 0, 4, 0, TAKE, 0},
      {ROWS, 1, 0, 2, S, TAKE, 0},
      {ROWS, 1, 2, 1, S, TAKE, 0},
      {ROWS, 2, 4, 1, S, TAKE, 0},
      {ROWS, 1, 3, 1, S, TAKE, 0},
      {CANCEL, 1, 0, 0, 0, TAKE, 0},
      {ROWS, 2, 5, 1, S, TAKE, 0},
      {ROWS, 1, 4, 1, S, DROP, 0}}},
    {"a slot that is none", 1, {{BEGIN, 1, 3, 2, 0, BAD, "slot 3 of 3"}}},
    {"rows before any request", 1, {{ROWS, 1, 0, 1, S, BAD, "not begun"}}},
    {"rows of a request to come", 1, {{BEGIN, 1, 0, 1, 0, TAKE, 0}, {ROWS, 2, 0, 1, S, BAD, "not begun"}}},
    {"request 0", 1, {{BEGIN, 0, 0, 1, 0, BAD, "begins"}, {ROWS, 0, 0, 1, S, BAD, "not begun"}}},
    {"the same request twice", 1, {{BEGIN, 1, 0, 1, 0, TAKE, 0}, {BEGIN, 1, 0, 1, 0, BAD, "begins after"}}},
    {"an older request", 1, {{BEGIN, 5, 0, 1, 0, TAKE, 0}, {BEGIN, 4, 0, 1, 0, BAD, "begins after"}}},
    {"a gap", 1, {{BEGIN, 1, 0, 6, 0, TAKE, 0}, {ROWS, 1, 1, 2, 0, BAD, "position 1"}}},
    {"the same rows twice",
     1,
     {{BEGIN, 1, 0, 6, 0, TAKE, 0}, {ROWS, 1, 0, 2, 0, TAKE, 0}, {ROWS, 1, 0, 2, 0, BAD, "position 0"}}},
    {"more rows than a batch", 1, {{BEGIN, 1, 0, 6, 0, TAKE, 0}, {ROWS, 1, 0, 5, 0, BAD, "at most 4"}}},
    {"no rows", 1, {{BEGIN, 1, 0, 6, 0, TAKE, 0}, {ROWS, 1, 0, 0, 0, BAD, "0 rows"}}},
    {"more rows than the prompt", 1, {{BEGIN, 1, 0, 2, 0, TAKE, 0}, {ROWS, 1, 0, 3, S, BAD, "2 are left"}}},
    {"sampling too early", 1, {{BEGIN, 1, 0, 6, 0, TAKE, 0}, {ROWS, 1, 0, 4, S, BAD, "last rows"}}},
    {"no sampling at the end", 1, {{BEGIN, 1, 0, 4, 0, TAKE, 0}, {ROWS, 1, 0, 4, 0, BAD, "last rows"}}},
    {"two rows in a step",
     1,
     {{BEGIN, 1, 0, 1, 0, TAKE, 0}, {ROWS, 1, 0, 1, S, TAKE, 0}, {ROWS, 1, 1, 2, S, BAD, "one row"}}},
    {"a step that is not sampled",
     1,
     {{BEGIN, 1, 0, 1, 0, TAKE, 0}, {ROWS, 1, 0, 1, S, TAKE, 0}, {ROWS, 1, 1, 1, 0, BAD, "one row"}}},
    {"a prompt as long as the context",
     1,
     {{BEGIN, 1, 0, 16, 0, BAD, "does not fit"}, {BEGIN, 1, 0, 0, 0, BAD, "does not"}}},
    {"beyond the context",
     1,
     {{BEGIN, 1, 0, 15, 0, TAKE, 0},
      {ROWS, 1, 0, 4, 0, TAKE, 0},
      {ROWS, 1, 4, 4, 0, TAKE, 0},
      {ROWS, 1, 8, 4, 0, TAKE, 0},
      {ROWS, 1, 12, 3, S, TAKE, 0},
      {ROWS, 1, 15, 1, S, TAKE, 0},
      {ROWS, 1, 16, 1, S, BAD, "beyond the context"}}},
    {"cancelled",
     1,
     {{BEGIN, 1, 0, 6, 0, TAKE, 0},
      {CANCEL, 1, 0, 0, 0, TAKE, 0},
      {ROWS, 1, 0, 4, 0, DROP, 0},
      {BEGIN, 2, 0, 1, 0, TAKE, 0},
      {CANCEL, 1, 0, 0, 0, TAKE, 0},
      {ROWS, 2, 0, 1, S, TAKE, 0}}},
    {"several are cancelled before they come, in any order",
     1,
     {{CANCEL, 3, 0, 0, 0, TAKE, 0},
      {CANCEL, 2, 0, 0, 0, TAKE, 0},
      {BEGIN, 1, 0, 6, 0, TAKE, 0},
      {BEGIN, 2, 1, 6, 0, DROP, 0},
      {BEGIN, 3, 2, 6, 0, DROP, 0},
      {ROWS, 3, 0, 4, 0, DROP, 0},
      {BEGIN, 4, 2, 1, 0, TAKE, 0}}},
    {"cancelled before it came",
     1,
     {{CANCEL, 3, 0, 0, 0, TAKE, 0},
      {BEGIN, 3, 0, 6, 0, DROP, 0},
      {ROWS, 3, 0, 4, 0, DROP, 0},
      {BEGIN, 4, 0, 1, 0, TAKE, 0}}},
    {"tokens at the first stage",
     0,
     {{BEGIN, 1, 0, 2, 0, TAKE, 0},
      {ROWS, 1, 0, 2, S, TAKE, 0},
      {TOKEN, 1, 2, 49, 0, TAKE, 0},
      {TOKEN, 1, 3, 0, 0, TAKE, 0},
      {TOKEN, 1, 4, 7, F, DONE, 0},
      {TOKEN, 1, 5, 7, 0, BAD, "has ended"},
      {BEGIN, 2, 0, 1, 0, TAKE, 0},
      {TOKEN, 1, 4, 7, 0, DROP, 0}}},
    {"a token before the prompt is done",
     0,
     {{BEGIN, 1, 0, 5, 0, TAKE, 0}, {ROWS, 1, 0, 4, 0, TAKE, 0}, {TOKEN, 1, 4, 1, 0, BAD, "position 4"}}},
    {"a token for another position",
     0,
     {{BEGIN, 1, 0, 2, 0, TAKE, 0}, {ROWS, 1, 0, 2, S, TAKE, 0}, {TOKEN, 1, 3, 1, 0, BAD, "position 3"}}},
    {"a token that is none",
     0,
     {{BEGIN, 1, 0, 1, 0, TAKE, 0},
      {ROWS, 1, 0, 1, S, TAKE, 0},
      {TOKEN, 1, 1, 50, 0, BAD, "vocabulary"},
      {TOKEN, 1, 1, UINT32_MAX, 0, BAD, "vocabulary"}}},
    {"more than the prompt from the coordinator",
     0,
     {{BEGIN, 1, 0, 1, 0, TAKE, 0}, {ROWS, 1, 0, 1, S, TAKE, 0}, {ROWS, 1, 1, 1, S, BAD, "0 are left"}}},
    {"positions at the edge of 32 bits",
     1,
     {{BEGIN, UINT32_MAX, 0, 2, 0, TAKE, 0},
      {ROWS, UINT32_MAX, UINT32_MAX, 1, 0, BAD, "position"},
      {ROWS, UINT32_MAX, 0, UINT32_MAX, 0, BAD, "at most"}}},
};

static strata_err take(struct stage_flow *s, const struct step *st, enum stage_verdict *v, struct strata_errmsg *em) {
    static const int32_t ids[4] = {1, 2, 3, 4};
    struct wire_frame f = {.seq = st->seq, .pos = st->pos, .n_rows = st->rows};
    struct wire_span span = {.seq = st->seq, .pos = st->pos, .n_rows = st->rows, .flags = st->flags};
    struct wire_token token = {.seq = st->seq, .pos = st->pos, .id = (int32_t)st->rows, .flags = st->flags};
    struct wire_msg_begin begin = {.slot = st->pos, .n_prompt = st->rows};
    switch (st->kind) {
    case BEGIN: return stage_flow_begin(s, st->seq, &begin, v, em);
    case ROWS: return s->index == 0 ? stage_flow_prompt(s, &f, ids, v, em) : stage_flow_span(s, &span, v, em);
    case TOKEN: return stage_flow_token(s, &token, v, em);
    default:
        stage_flow_cancel(s, st->seq);
        *v = STAGE_TAKE;
        return STRATA_OK;
    }
}

static void test_scripts(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        struct stage_flow s = {
            .index = scripts[i].index, .count = 2, .n_ctx = 16, .n_batch = 4, .n_vocab = 50, .n_seq = 3};
        for (const struct step *st = scripts[i].steps; st->kind != END; st++) {
            enum stage_verdict v = STAGE_DROP;
            struct strata_errmsg em = {0};
            struct stage_flow before = s;
            strata_err rc = take(&s, st, &v, &em);
            enum answer got = rc ? BAD : v == STAGE_TAKE ? TAKE : v == STAGE_DONE ? DONE : DROP;
            if (got != st->answer || (rc && !strstr(em.text, st->says)))
                fail_msg("%s, step %d: got %d %s", scripts[i].name, (int)(st - scripts[i].steps), (int)got, em.text);
            /* What is refused or dropped changes nothing, but for the memory of what was cancelled early. */
            bool rows = st->kind == ROWS || st->kind == TOKEN;
            if (got == BAD || (got == DROP && rows)) assert_memory_equal(&s, &before, sizeof s);
        }
    }
}

static void test_ids(void **state) {
    struct stage_flow s = {.count = 1, .n_ctx = 16, .n_batch = 4, .n_vocab = 50, .n_seq = 1};
    struct wire_frame f = {.seq = 1, .n_rows = 2};
    static const struct wire_msg_begin begin = {.n_prompt = 2};
    static const int32_t bad[][2] = {{50, 0}, {0, 50}, {-1, 0}, {0, INT32_MIN}, {INT32_MAX, 0}};
    enum stage_verdict v;
    struct strata_errmsg em;
    (void)state;
    assert_int_equal(stage_flow_begin(&s, 1, &begin, &v, &em), 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(stage_flow_prompt(&s, &f, bad[i], &v, &em), STRATA_EPEER);
        assert_non_null(strstr(em.text, "vocabulary"));
    }
}

/* A request that starts from kept blocks goes on behind them. */
static void test_restored(void **state) {
    struct stage_flow s = {.index = 1, .count = 2, .n_ctx = 512, .n_batch = 128, .n_vocab = 50, .n_seq = 1};
    const struct wire_msg_begin begin = {.n_prompt = 200, .n_restore = 3};
    const struct wire_span early = {.seq = 1, .pos = 128, .n_rows = 64};
    const struct wire_span right = {.seq = 1, .pos = 3 * WIRE_MSG_BLOCK, .n_rows = 8, .flags = S};
    enum stage_verdict v;
    struct strata_errmsg em;
    (void)state;
    assert_int_equal(stage_flow_begin(&s, 1, &begin, &v, &em), 0);
    assert_int_equal(stage_flow_span(&s, &early, &v, &em), STRATA_EPEER);
    assert_int_equal(stage_flow_span(&s, &right, &v, &em), 0);
    assert_int_equal(v, STAGE_TAKE);
}

/* More cancelled requests than are remembered: the oldest are forgotten, nothing else goes wrong. */
static void test_many_early(void **state) {
    struct stage_flow s = {.index = 1, .count = 2, .n_ctx = 16, .n_batch = 4, .n_vocab = 50, .n_seq = 1};
    static const struct wire_msg_begin begin = {.n_prompt = 1};
    enum stage_verdict v;
    uint32_t dropped = 0;
    (void)state;
    for (uint32_t seq = 1; seq <= 2 * STAGE_FLOW_EARLY; seq++) stage_flow_cancel(&s, seq);
    for (uint32_t seq = 1; seq <= 2 * STAGE_FLOW_EARLY; seq++) {
        assert_int_equal(stage_flow_begin(&s, seq, &begin, &v, NULL), 0);
        dropped += v == STAGE_DROP;
        assert_int_equal(v, seq <= STAGE_FLOW_EARLY ? STAGE_TAKE : STAGE_DROP);
    }
    assert_int_equal(dropped, STAGE_FLOW_EARLY);
}

static void test_sources(void **state) {
    (void)state;
    for (uint32_t count = 1; count <= 3; count++) {
        for (uint32_t index = 0; index < count; index++) {
            struct stage_flow s = {.index = index, .count = count};
            for (unsigned type = 0; type < 256; type++) {
                bool coordinator = stage_flow_source(&s, STAGE_FROM_COORDINATOR, (uint8_t)type, NULL) == STRATA_OK;
                bool neighbour = stage_flow_source(&s, STAGE_FROM_NEIGHBOUR, (uint8_t)type, NULL) == STRATA_OK;
                assert_int_equal(coordinator, index == 0 && (type == WIRE_BEGIN || type == WIRE_TOKENS));
                assert_int_equal(neighbour, index == 0 ? count > 1 && type == WIRE_TOKEN
                                                       : type == WIRE_BEGIN || type == WIRE_HIDDEN);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scripts),    cmocka_unit_test(test_ids),     cmocka_unit_test(test_restored),
        cmocka_unit_test(test_many_early), cmocka_unit_test(test_sources),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
