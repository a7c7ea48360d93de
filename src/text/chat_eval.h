/* Rendering of chat templates: what the evaluator, the operators and the built-in functions share. Internal. */
#ifndef TEXT_CHAT_EVAL_H
#define TEXT_CHAT_EVAL_H

#include "text/chat.h"
#include "text/chat_ast.h"
#include "text/chat_text.h"

#define CHAT_ARENA_MAX ((size_t)256 << 20) /* bytes of all values of one rendering */
#define CHAT_OUTPUT_MAX ((size_t)64 << 20) /* bytes of one text that is being put together */

enum {
    CHAT_STEPS_MAX = 20000000, /* nodes evaluated, and elements and 64-byte blocks touched */
    CHAT_EVAL_DEPTH_MAX = 240, /* nodes in one another, macro calls included */
    CHAT_PARAMS_MAX = 4        /* of a built-in */
};

struct chat_scope {
    struct chat_scope *parent;
    struct chat_dict vars;
};

enum chat_signal { CHAT_SIGNAL_NONE, CHAT_SIGNAL_BREAK, CHAT_SIGNAL_CONTINUE };

/* One rendering. */
struct chat_run {
    struct chat_arena *arena;
    struct chat_text *out; /* where text goes now */
    struct chat_scope *scope;
    struct chat_value captured; /* the text of the set block being filtered */
    enum chat_signal signal;
    size_t macros; /* defined so far: a macro keeps its scope, which may not be reused then */
    int depth;
    uint64_t steps;
    uint32_t line; /* of the node being evaluated, for messages */
    int64_t now;
    struct strata_errmsg *em; /* never NULL */
};

struct chat_macro {
    const struct chat_node *node;
    struct chat_scope *scope; /* where it was defined */
};

struct chat_named {
    struct chat_str name;
    struct chat_value value;
};

/* Evaluated arguments of a call. */
struct chat_args {
    struct chat_value *pos;
    size_t n_pos;
    struct chat_named *kw;
    size_t n_kw;
};

/* A built-in: filter, test, method or global function. */
struct chat_function {
    const char *name;
    const char *params; /* names, space-separated; "*" takes any arguments and gets them raw */
    int required;
    /* self: what is filtered, tested, or the method's object. arg[i] is NULL for a parameter left out. */
    strata_err (*call)(struct chat_run *r, const struct chat_value *self, const struct chat_value *const *arg,
                       struct chat_value *out);
    strata_err (*raw)(struct chat_run *r, const struct chat_value *self, const struct chat_args *args,
                      struct chat_value *out);
};

struct chat_method {
    struct chat_value self;
    const struct chat_function *function;
};

/* Pays for n units of work; an error when the budget is spent. */
strata_err chat_step(struct chat_run *r, size_t n);
/* Sets the error; the line is added by the caller at the top. */
strata_err chat_error(struct chat_run *r, strata_err code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
strata_err chat_undefined_error(struct chat_run *r, const struct chat_value *v);

/* chat_eval.c */
strata_err chat_exec(struct chat_run *r, const struct chat_node *first);
strata_err chat_call_function(struct chat_run *r, const struct chat_function *f, const struct chat_value *self,
                              const struct chat_args *args, struct chat_value *out);
strata_err chat_define(struct chat_run *r, struct chat_str name, struct chat_value v);

/* chat_ops.c */
strata_err chat_binary(struct chat_run *r, enum chat_op op, const struct chat_value *a, const struct chat_value *b,
                       struct chat_value *out);
strata_err chat_compare(struct chat_run *r, enum chat_op op, const struct chat_value *a, const struct chat_value *b,
                        bool *out);
/* -1, 0 or 1 for values that have an order; an error for others. */
strata_err chat_order(struct chat_run *r, const struct chat_value *a, const struct chat_value *b, int *out);
strata_err chat_attr(struct chat_run *r, const struct chat_value *of, struct chat_str name, struct chat_value *out);
strata_err chat_item(struct chat_run *r, const struct chat_value *of, const struct chat_value *key,
                     struct chat_value *out);
/* Each bound is NULL when left out. */
strata_err chat_slice(struct chat_run *r, const struct chat_value *of, const struct chat_value *from,
                      const struct chat_value *to, const struct chat_value *step, struct chat_value *out);
/* What a loop over v goes through, as a list. */
strata_err chat_iterate(struct chat_run *r, const struct chat_value *v, struct chat_list **out);
/* The text that `{{ v }}` prints, as a string value. */
strata_err chat_to_string(struct chat_run *r, const struct chat_value *v, struct chat_value *out);
/* Takes what a text holds into the arena as a string. */
strata_err chat_take(struct chat_run *r, const struct chat_text *t, struct chat_value *out);

/* chat_methods.c: NULL when there is none. */
const struct chat_function *chat_find_method(const struct chat_value *self, struct chat_str name);
const struct chat_function *chat_find_global(struct chat_str name);
/* What strings share with filters. Strips white space, or the characters of `chars`. */
struct chat_str chat_strip(struct chat_str s, const struct chat_str *chars, bool left, bool right);
/* TITLE is the method (a word ends at any non-letter), WORDS the filter (at white space and opening brackets). */
enum chat_case { CHAT_CASE_UPPER, CHAT_CASE_LOWER, CHAT_CASE_TITLE, CHAT_CASE_WORDS, CHAT_CASE_CAPITALIZE };
strata_err chat_change_case(struct chat_run *r, struct chat_str s, enum chat_case how, struct chat_value *out);
strata_err chat_replace(struct chat_run *r, struct chat_str s, struct chat_str old, struct chat_str with, int64_t count,
                        struct chat_value *out);

/* chat_filters.c, chat_tests.c */
const struct chat_function *chat_find_filter(struct chat_str name);
const struct chat_function *chat_find_test(struct chat_str name);

#endif
