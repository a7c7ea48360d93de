/* Tests of chat templates: what may follow `is`. See chat_eval.h. */
#include "text/chat_eval.h"

#include <string.h>

#define ARGS                                                                                                           \
    struct chat_run *r, const struct chat_value *self, const struct chat_value *const *arg, struct chat_value *out

/* A test of the value alone. */
#define KIND_TEST(name, condition)                                                                                     \
    static strata_err name(ARGS) {                                                                                     \
        (void)r, (void)arg;                                                                                            \
        *out = chat_bool(condition);                                                                                   \
        return STRATA_OK;                                                                                              \
    }

KIND_TEST(t_defined, self->kind != CHAT_UNDEFINED)
KIND_TEST(t_undefined, self->kind == CHAT_UNDEFINED)
KIND_TEST(t_none, self->kind == CHAT_NONE)
KIND_TEST(t_string, self->kind == CHAT_STRING)
KIND_TEST(t_mapping, self->kind == CHAT_DICT)
KIND_TEST(t_sequence, self->kind == CHAT_LIST || self->kind == CHAT_STRING || self->kind == CHAT_DICT ||
                          self->kind == CHAT_UNDEFINED)
KIND_TEST(t_number, chat_value_is_number(self))
KIND_TEST(t_integer, self->kind == CHAT_INT)
KIND_TEST(t_float, self->kind == CHAT_FLOAT)
KIND_TEST(t_boolean, self->kind == CHAT_BOOL)
KIND_TEST(t_true, self->kind == CHAT_BOOL && self->b)
KIND_TEST(t_false, self->kind == CHAT_BOOL && !self->b)
KIND_TEST(t_callable, self->kind == CHAT_MACRO || self->kind == CHAT_FUNCTION || self->kind == CHAT_METHOD)

/* A comparison with the argument. */
#define COMPARE_TEST(name, op)                                                                                         \
    static strata_err name(ARGS) {                                                                                     \
        bool holds = false;                                                                                            \
        strata_err rc = chat_compare(r, op, self, arg[0], &holds);                                                     \
        *out = chat_bool(holds);                                                                                       \
        return rc;                                                                                                     \
    }

COMPARE_TEST(t_eq, CHAT_OP_EQ)
COMPARE_TEST(t_ne, CHAT_OP_NE)
COMPARE_TEST(t_lt, CHAT_OP_LT)
COMPARE_TEST(t_le, CHAT_OP_LE)
COMPARE_TEST(t_gt, CHAT_OP_GT)
COMPARE_TEST(t_ge, CHAT_OP_GE)
COMPARE_TEST(t_in, CHAT_OP_IN)

static strata_err remainder_is(struct chat_run *r, const struct chat_value *self, int64_t by, int64_t want,
                               struct chat_value *out) {
    struct chat_value divisor = chat_int(by), rest, expected = chat_int(want);
    strata_err rc = chat_binary(r, CHAT_OP_MOD, self, &divisor, &rest);
    if (rc == STRATA_OK) *out = chat_bool(chat_value_equal(&rest, &expected));
    return rc;
}

static strata_err t_even(ARGS) {
    (void)arg;
    return remainder_is(r, self, 2, 0, out);
}
static strata_err t_odd(ARGS) {
    (void)arg;
    return remainder_is(r, self, 2, 1, out);
}
static strata_err t_divisibleby(ARGS) {
    if (arg[0]->kind != CHAT_INT) return chat_error(r, STRATA_EINVAL, "'divisibleby' needs a whole number");
    return remainder_is(r, self, arg[0]->i, 0, out);
}

/* Whether changing the case changes nothing, and there is something to change. */
static strata_err in_case(struct chat_run *r, const struct chat_value *self, enum chat_case how,
                          struct chat_value *out) {
    struct chat_value s, same, other;
    strata_err rc = chat_to_string(r, self, &s);
    if (rc == STRATA_OK) rc = chat_change_case(r, s.s, how, &same);
    if (rc == STRATA_OK) {
        rc = chat_change_case(r, s.s, how == CHAT_CASE_UPPER ? CHAT_CASE_LOWER : CHAT_CASE_UPPER, &other);
    }
    if (rc == STRATA_OK) *out = chat_bool(chat_value_equal(&s, &same) && !chat_value_equal(&s, &other));
    return rc;
}

static strata_err t_upper(ARGS) {
    (void)arg;
    return in_case(r, self, CHAT_CASE_UPPER, out);
}
static strata_err t_lower(ARGS) {
    (void)arg;
    return in_case(r, self, CHAT_CASE_LOWER, out);
}

static const struct chat_function tests[] = {
    {"defined", "", 0, t_defined, NULL},
    {"undefined", "", 0, t_undefined, NULL},
    {"none", "", 0, t_none, NULL},
    {"string", "", 0, t_string, NULL},
    {"mapping", "", 0, t_mapping, NULL},
    {"iterable", "", 0, t_sequence, NULL},
    {"sequence", "", 0, t_sequence, NULL},
    {"number", "", 0, t_number, NULL},
    {"integer", "", 0, t_integer, NULL},
    {"float", "", 0, t_float, NULL},
    {"boolean", "", 0, t_boolean, NULL},
    {"true", "", 0, t_true, NULL},
    {"false", "", 0, t_false, NULL},
    {"callable", "", 0, t_callable, NULL},
    {"eq", "other", 1, t_eq, NULL},
    {"equalto", "other", 1, t_eq, NULL},
    {"==", "other", 1, t_eq, NULL},
    {"ne", "other", 1, t_ne, NULL},
    {"!=", "other", 1, t_ne, NULL},
    {"lt", "other", 1, t_lt, NULL},
    {"lessthan", "other", 1, t_lt, NULL},
    {"<", "other", 1, t_lt, NULL},
    {"le", "other", 1, t_le, NULL},
    {"<=", "other", 1, t_le, NULL},
    {"gt", "other", 1, t_gt, NULL},
    {"greaterthan", "other", 1, t_gt, NULL},
    {">", "other", 1, t_gt, NULL},
    {"ge", "other", 1, t_ge, NULL},
    {">=", "other", 1, t_ge, NULL},
    {"in", "seq", 1, t_in, NULL},
    {"even", "", 0, t_even, NULL},
    {"odd", "", 0, t_odd, NULL},
    {"divisibleby", "num", 1, t_divisibleby, NULL},
    {"upper", "", 0, t_upper, NULL},
    {"lower", "", 0, t_lower, NULL},
    {0},
};

const struct chat_function *chat_find_test(struct chat_str name) {
    for (const struct chat_function *f = tests; f->name; f++) {
        if (chat_str_eq(name, f->name)) return f;
    }
    return NULL;
}
