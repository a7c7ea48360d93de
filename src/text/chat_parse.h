/* What the two halves of the parser share: statements (chat_parse.c) and expressions (chat_parse_expr.c). */
#ifndef TEXT_CHAT_PARSE_H
#define TEXT_CHAT_PARSE_H

#include "text/chat_ast.h"
#include "text/chat_lex.h"

enum { CHAT_PARSE_DEPTH_MAX = 100 };

struct chat_parser {
    const struct chat_token *t; /* the current token */
    struct chat_arena *arena;
    struct strata_errmsg *em;
    int depth; /* of expressions and statements in one another */
    int loops; /* enclosing for statements */
};

strata_err chat_parse_node(struct chat_parser *p, enum chat_node_kind kind, struct chat_node **out);
strata_err chat_parse_arg(struct chat_parser *p, struct chat_arg ***tail, struct chat_arg **out);
bool chat_parse_is_op(const struct chat_token *t, const char *op);
bool chat_parse_is_name(const struct chat_token *t, const char *name);
/* Takes the token if it is that operator, name. */
bool chat_parse_skip_op(struct chat_parser *p, const char *op);
bool chat_parse_skip_name(struct chat_parser *p, const char *name);
strata_err chat_parse_expect_op(struct chat_parser *p, const char *op);
/* "line 3: expected X, not Y" */
strata_err chat_parse_expected(struct chat_parser *p, const char *what);
strata_err chat_parse_deeper(struct chat_parser *p);

/* Without `cond` a trailing `if ... else` is left for the caller. */
strata_err chat_parse_expr(struct chat_parser *p, bool cond, struct chat_node **out);
/* As chat_parse_expr; several expressions with commas between them make a tuple. */
strata_err chat_parse_tuple(struct chat_parser *p, bool cond, struct chat_node **out);
/* Something that `set` or `for` can assign to. */
strata_err chat_parse_target(struct chat_parser *p, bool namespaces, struct chat_node **out);
/* `| name(args)` any number of times, over *node. */
strata_err chat_parse_filters(struct chat_parser *p, struct chat_node **node);
/* `(name, name=default)` of a macro. */
strata_err chat_parse_params(struct chat_parser *p, struct chat_arg **out);

#endif
