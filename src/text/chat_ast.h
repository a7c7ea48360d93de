/* The tree of a chat template. Inside of the files chat*.c alone. Nodes live in the template's arena. */
#ifndef TEXT_CHAT_AST_H
#define TEXT_CHAT_AST_H

#include "text/chat_value.h"

enum chat_node_kind {
    /* Statements. */
    CHAT_NODE_DATA,     /* value: the text */
    CHAT_NODE_PRINT,    /* a */
    CHAT_NODE_IF,       /* a: condition, body, other: what else (an elif is an if in there) */
    CHAT_NODE_FOR,      /* a: target, b: iterable, c: filter or NULL, body, other */
    CHAT_NODE_SET,      /* a: target, b: value */
    CHAT_NODE_SETBLOCK, /* a: target, body, b: filters over CHAT_NODE_CAPTURED, or NULL */
    CHAT_NODE_MACRO,    /* name, args: parameters (name, default or NULL), body */
    CHAT_NODE_GROUP,    /* body, without a scope of its own */
    CHAT_NODE_BREAK,
    CHAT_NODE_CONTINUE,
    /* Expressions. */
    CHAT_NODE_CONST,    /* value */
    CHAT_NODE_NAME,     /* name */
    CHAT_NODE_NSREF,    /* name . attr, as a target of set */
    CHAT_NODE_CAPTURED, /* the text that a set block has made */
    CHAT_NODE_TUPLE,    /* args */
    CHAT_NODE_LIST,     /* args */
    CHAT_NODE_DICT,     /* args: key in b, value in a */
    CHAT_NODE_ATTR,     /* a . attr */
    CHAT_NODE_ITEM,     /* a [ b ] */
    CHAT_NODE_SLICE,    /* a [ b : c : d ], each may be NULL */
    CHAT_NODE_CALL,     /* a ( args ) */
    CHAT_NODE_FILTER,   /* a | name ( args ) */
    CHAT_NODE_TEST,     /* a is name ( args ) */
    CHAT_NODE_NOT,      /* a */
    CHAT_NODE_NEG,      /* a */
    CHAT_NODE_POS,      /* a */
    CHAT_NODE_AND,      /* a, b */
    CHAT_NODE_OR,       /* a, b */
    CHAT_NODE_COND,     /* b if a else c; c may be NULL */
    CHAT_NODE_COMPARE,  /* a, then args: each with its operator in op */
    CHAT_NODE_BINARY    /* a op b */
};

enum chat_op {
    CHAT_OP_NONE,
    CHAT_OP_ADD,
    CHAT_OP_SUB,
    CHAT_OP_MUL,
    CHAT_OP_DIV,
    CHAT_OP_FLOORDIV,
    CHAT_OP_MOD,
    CHAT_OP_POW,
    CHAT_OP_CONCAT,
    CHAT_OP_EQ,
    CHAT_OP_NE,
    CHAT_OP_LT,
    CHAT_OP_LE,
    CHAT_OP_GT,
    CHAT_OP_GE,
    CHAT_OP_IN,
    CHAT_OP_NOTIN
};

/* One argument, parameter, element, pair or comparison. */
struct chat_arg {
    struct chat_arg *next;
    struct chat_str name; /* of a keyword argument or parameter; ptr NULL when positional */
    const struct chat_node *a, *b;
    enum chat_op op;
};

struct chat_node {
    enum chat_node_kind kind;
    enum chat_op op;
    uint32_t line;
    struct chat_str name, attr;
    struct chat_value value;
    struct chat_node *a, *b, *c, *d;
    struct chat_arg *args;
    struct chat_node *body, *other; /* first statement of each */
    struct chat_node *next;         /* following statement */
};

/* Parses a template into *root (its first statement; NULL when there is none). Errors begin with the line. */
strata_err chat_parse(const char *source, size_t len, struct chat_arena *a, struct chat_node **root,
                      struct strata_errmsg *em);

#endif
