/*
 * Values of chat templates, and the arena that holds them. Inside of the files chat*.c alone.
 *
 * Everything that a parse or a rendering makes lives in one arena and goes with it: no value owns anything. The arena
 * has a maximum, which bounds what a template can make. Strings are UTF-8 and are counted in code points, as in Python.
 */
#ifndef TEXT_CHAT_VALUE_H
#define TEXT_CHAT_VALUE_H

#include "base/buf.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CHAT_VALUE_DEPTH_MAX = 64 /* lists and dicts in one another */ };

struct chat_arena {
    struct chat_arena_block *block;
    struct chat_arena_block **sorted; /* all blocks by address */
    size_t n_blocks, blocks_cap;
    size_t used, max; /* bytes */
    bool marking;     /* whether bytes may be marked */
};

void chat_arena_init(struct chat_arena *a, size_t max);
void chat_arena_deinit(struct chat_arena *a);
/* Zeroed memory, aligned for any value; NULL (with em filled) beyond the maximum. */
void *chat_arena_alloc(struct chat_arena *a, size_t n, struct strata_errmsg *em);

/* Marks of bytes (see chat_text.h): 1 for each byte that came from the conversation. Those of the bytes at ptr, or NULL
 * when ptr is not in the arena or nothing near it is marked. */
const unsigned char *chat_arena_marks(const struct chat_arena *a, const char *ptr);
/* Sets the marks of len bytes of one allocation: to those given, or to 1 when marks is NULL. */
strata_err chat_arena_mark(struct chat_arena *a, const char *ptr, const unsigned char *marks, size_t len,
                           struct strata_errmsg *em);

struct chat_str {
    const char *ptr; /* not NUL-terminated */
    size_t len;
};
#define CHAT_STR(literal) ((struct chat_str){literal, sizeof(literal) - 1})

bool chat_str_eq(struct chat_str s, const char *text);

enum chat_kind {
    CHAT_UNDEFINED,
    CHAT_NONE,
    CHAT_BOOL,
    CHAT_INT,
    CHAT_FLOAT,
    CHAT_STRING,
    CHAT_LIST,
    CHAT_DICT,
    CHAT_NAMESPACE, /* a dict whose entries `set` may change */
    CHAT_LOOP,
    CHAT_MACRO,
    CHAT_FUNCTION, /* a global function */
    CHAT_METHOD    /* a function bound to a value */
};

struct chat_value {
    enum chat_kind kind;
    union {
        bool b;
        int64_t i;
        double f;
        struct chat_str s; /* of an undefined value: what was undefined, for messages */
        struct chat_list *list;
        struct chat_dict *dict;
        struct chat_loop *loop;
        struct chat_macro *macro;
        const struct chat_function *function;
        struct chat_method *method;
    };
};

struct chat_list {
    struct chat_value *item;
    size_t len, cap;
    bool tuple;
};

struct chat_entry {
    struct chat_value key, value;
};

struct chat_dict {
    struct chat_entry *entry; /* in the order of insertion */
    size_t len, cap;
};

struct chat_loop {
    const struct chat_list *items;
    size_t index;
};

static inline struct chat_value chat_none(void) {
    return (struct chat_value){.kind = CHAT_NONE};
}
static inline struct chat_value chat_bool(bool b) {
    return (struct chat_value){.kind = CHAT_BOOL, .b = b};
}
static inline struct chat_value chat_int(int64_t i) {
    return (struct chat_value){.kind = CHAT_INT, .i = i};
}
static inline struct chat_value chat_float(double f) {
    return (struct chat_value){.kind = CHAT_FLOAT, .f = f};
}
static inline struct chat_value chat_string(const char *ptr, size_t len) {
    return (struct chat_value){.kind = CHAT_STRING, .s = {ptr, len}};
}
/* `what` names the missing thing; it must live as long as the value. */
static inline struct chat_value chat_undefined(struct chat_str what) {
    return (struct chat_value){.kind = CHAT_UNDEFINED, .s = what};
}

/* A copy of the bytes in the arena, marked as they are. */
strata_err chat_string_copy(struct chat_arena *a, const char *ptr, size_t len, struct chat_value *out,
                            struct strata_errmsg *em);
strata_err chat_list_new(struct chat_arena *a, struct chat_value *out, struct strata_errmsg *em);
strata_err chat_list_add(struct chat_arena *a, struct chat_list *l, struct chat_value v, struct strata_errmsg *em);
strata_err chat_dict_new(struct chat_arena *a, enum chat_kind kind, struct chat_value *out, struct strata_errmsg *em);
/* Sets or replaces. Keys are strings, numbers, booleans or none. */
strata_err chat_dict_set(struct chat_arena *a, struct chat_dict *d, struct chat_value key, struct chat_value v,
                         struct strata_errmsg *em);
/* The value of a key, or NULL. */
const struct chat_value *chat_dict_get(const struct chat_dict *d, struct chat_value key);
const struct chat_value *chat_dict_get_str(const struct chat_dict *d, struct chat_str key);

/* Strings are borrowed from the JSON, which must outlive the value; with `mark`, they are marked copies. */
strata_err chat_value_from_json(struct chat_arena *a, const json_t *json, bool mark, struct chat_value *out,
                                struct strata_errmsg *em);

bool chat_value_is_number(const struct chat_value *v); /* booleans count, as in Python */
bool chat_value_truthy(const struct chat_value *v);
/* As `==`; lists and dicts by content. Beyond CHAT_VALUE_DEPTH_MAX they count as different. */
bool chat_value_equal(const struct chat_value *a, const struct chat_value *b);
/* "string", "dict object" and so on, for messages. */
const char *chat_value_kind_name(const struct chat_value *v);
/* The number as a double; only for numbers. */
double chat_value_number(const struct chat_value *v);

struct chat_text;
/* What `{{ v }}` prints; containers as Python's repr. */
strata_err chat_value_print(const struct chat_value *v, struct chat_text *out, struct strata_errmsg *em);

struct chat_json_style {
    int64_t indent; /* -1: one line */
    bool sort_keys, ascii;
    struct chat_str item_sep, key_sep;
};
/* JSON as Python's json.dumps writes it. */
strata_err chat_value_json(const struct chat_value *v, const struct chat_json_style *style, struct chat_text *out,
                           struct strata_errmsg *em);

#endif
