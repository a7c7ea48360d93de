/* Expressions of chat templates, by recursive descent with Jinja2's precedence. See chat_parse.h. Owns nothing. */
#include "text/chat_parse.h"

#include <stdio.h>
#include <string.h>

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        strata_err rc_ = (call);                                                                                       \
        if (rc_ != STRATA_OK) return rc_;                                                                              \
    } while (0)

/* A node over what has been parsed so far. */
static strata_err wrap(struct chat_parser *p, enum chat_node_kind kind, struct chat_node *a, struct chat_node **out) {
    struct chat_node *n = NULL;
    TRY(chat_parse_node(p, kind, &n));
    n->a = a;
    *out = n;
    return STRATA_OK;
}

static strata_err unary(struct chat_parser *p, bool filters, struct chat_node **out);

/* Binary operators of one precedence level; each level knows the next. */
struct level {
    struct {
        const char *text;
        enum chat_op op;
    } op[4];
};
static const struct level levels[] = {
    {{{"+", CHAT_OP_ADD}, {"-", CHAT_OP_SUB}}},
    {{{"~", CHAT_OP_CONCAT}}},
    {{{"*", CHAT_OP_MUL}, {"/", CHAT_OP_DIV}, {"//", CHAT_OP_FLOORDIV}, {"%", CHAT_OP_MOD}}},
    {{{"**", CHAT_OP_POW}}},
};
enum { N_LEVELS = sizeof levels / sizeof levels[0] };

static strata_err binary(struct chat_parser *p, int level, struct chat_node **out) {
    if (level == N_LEVELS) return unary(p, true, out);
    struct chat_node *left;
    TRY(binary(p, level + 1, &left));
    for (int chain = 0;; chain++) {
        enum chat_op op = CHAT_OP_NONE;
        for (int i = 0; i < 4 && levels[level].op[i].text && !op; i++) {
            if (chat_parse_skip_op(p, levels[level].op[i].text)) op = levels[level].op[i].op;
        }
        if (!op) break;
        /* A chain leans to the left: as deep a tree as it is long. */
        if (chain > CHAT_PARSE_DEPTH_MAX) {
            return err_set(p->em, STRATA_ELIMIT, "line %u: more than %d operators in a row", p->t->line,
                           CHAT_PARSE_DEPTH_MAX);
        }
        struct chat_node *n = NULL;
        TRY(wrap(p, CHAT_NODE_BINARY, left, &n));
        n->op = op;
        TRY(binary(p, level + 1, &n->b));
        left = n;
    }
    *out = left;
    return STRATA_OK;
}

static enum chat_op comparison(struct chat_parser *p) {
    static const struct {
        const char *text;
        enum chat_op op;
    } ops[] = {{"==", CHAT_OP_EQ}, {"!=", CHAT_OP_NE}, {"<", CHAT_OP_LT},
               {"<=", CHAT_OP_LE}, {">", CHAT_OP_GT},  {">=", CHAT_OP_GE}};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        if (chat_parse_skip_op(p, ops[i].text)) return ops[i].op;
    }
    if (chat_parse_skip_name(p, "in")) return CHAT_OP_IN;
    if (chat_parse_is_name(p->t, "not") && chat_parse_is_name(p->t + 1, "in")) {
        p->t += 2;
        return CHAT_OP_NOTIN;
    }
    return CHAT_OP_NONE;
}

static strata_err compare(struct chat_parser *p, struct chat_node **out) {
    struct chat_node *left, *n = NULL;
    struct chat_arg **tail = NULL;
    TRY(binary(p, 0, &left));
    enum chat_op op;
    while ((op = comparison(p)) != CHAT_OP_NONE) {
        if (!n) {
            TRY(wrap(p, CHAT_NODE_COMPARE, left, &n));
            tail = &n->args;
        }
        struct chat_arg *arg;
        struct chat_node *right;
        TRY(chat_parse_arg(p, &tail, &arg));
        TRY(binary(p, 0, &right));
        arg->op = op;
        arg->a = right;
    }
    *out = n ? n : left;
    return STRATA_OK;
}

static strata_err negation(struct chat_parser *p, struct chat_node **out) {
    int nots = 0;
    while (chat_parse_skip_name(p, "not")) nots++;
    TRY(compare(p, out));
    if (nots > 0) TRY(wrap(p, CHAT_NODE_NOT, *out, out));
    if (nots > 0 && nots % 2 == 0) TRY(wrap(p, CHAT_NODE_NOT, *out, out));
    return STRATA_OK;
}

/* `x and y and z`, and above it the same with `or`. */
static strata_err logic(struct chat_parser *p, bool is_or, struct chat_node **out) {
    struct chat_node *left;
    TRY(is_or ? logic(p, false, &left) : negation(p, &left));
    for (int chain = 0; chat_parse_skip_name(p, is_or ? "or" : "and"); chain++) {
        if (chain > CHAT_PARSE_DEPTH_MAX) {
            return err_set(p->em, STRATA_ELIMIT, "line %u: more than %d conditions in a row", p->t->line,
                           CHAT_PARSE_DEPTH_MAX);
        }
        struct chat_node *n = NULL;
        TRY(wrap(p, is_or ? CHAT_NODE_OR : CHAT_NODE_AND, left, &n));
        TRY(is_or ? logic(p, false, &n->b) : negation(p, &n->b));
        left = n;
    }
    *out = left;
    return STRATA_OK;
}

strata_err chat_parse_expr(struct chat_parser *p, bool cond, struct chat_node **out) {
    struct chat_node *value;
    TRY(chat_parse_deeper(p));
    TRY(logic(p, true, &value));
    for (int chain = 0; cond && chat_parse_skip_name(p, "if"); chain++) {
        if (chain > CHAT_PARSE_DEPTH_MAX) return chat_parse_expected(p, "fewer conditions");
        struct chat_node *n = NULL;
        TRY(chat_parse_node(p, CHAT_NODE_COND, &n));
        n->b = value;
        TRY(logic(p, true, &n->a));
        if (chat_parse_skip_name(p, "else")) TRY(chat_parse_expr(p, true, &n->c));
        value = n;
    }
    p->depth--;
    *out = value;
    return STRATA_OK;
}

static bool tuple_end(const struct chat_parser *p) {
    const struct chat_token *t = p->t;
    return t->kind == CHAT_TOKEN_PRINT_END || t->kind == CHAT_TOKEN_BLOCK_END || chat_parse_is_op(t, ")") ||
           chat_parse_is_name(t, "in") || chat_parse_is_name(t, "recursive");
}

/* Elements with commas between them, by `one`; a lone element without a comma stays itself. */
static strata_err tuple_of(struct chat_parser *p, strata_err (*one)(struct chat_parser *, bool, struct chat_node **),
                           bool flag, struct chat_node **out) {
    struct chat_node *first, *n;
    TRY(one(p, flag, &first));
    if (!chat_parse_is_op(p->t, ",")) {
        *out = first;
        return STRATA_OK;
    }
    TRY(chat_parse_node(p, CHAT_NODE_TUPLE, &n));
    struct chat_arg **tail = &n->args, *arg;
    TRY(chat_parse_arg(p, &tail, &arg));
    arg->a = first;
    while (chat_parse_skip_op(p, ",") && !tuple_end(p)) {
        struct chat_node *e;
        TRY(chat_parse_arg(p, &tail, &arg));
        TRY(one(p, flag, &e));
        arg->a = e;
    }
    *out = n;
    return STRATA_OK;
}

strata_err chat_parse_tuple(struct chat_parser *p, bool cond, struct chat_node **out) {
    return tuple_of(p, chat_parse_expr, cond, out);
}

static strata_err one_target(struct chat_parser *p, bool namespaces, struct chat_node **out) {
    static const char *const taken[] = {"true", "false", "none", "True", "False", "None", "not", "in", "is", "if"};
    if (p->t->kind != CHAT_TOKEN_NAME) return chat_parse_expected(p, "a name to assign to");
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        if (chat_parse_is_name(p->t, taken[i])) return chat_parse_expected(p, "a name to assign to");
    }
    TRY(chat_parse_node(p, CHAT_NODE_NAME, out));
    (*out)->name = p->t++->text;
    if (!namespaces || !chat_parse_skip_op(p, ".")) return STRATA_OK;
    if (p->t->kind != CHAT_TOKEN_NAME) return chat_parse_expected(p, "an attribute's name");
    (*out)->kind = CHAT_NODE_NSREF;
    (*out)->attr = p->t++->text;
    return STRATA_OK;
}

strata_err chat_parse_target(struct chat_parser *p, bool namespaces, struct chat_node **out) {
    bool parens = chat_parse_skip_op(p, "(");
    TRY(tuple_of(p, one_target, namespaces, out));
    return parens ? chat_parse_expect_op(p, ")") : STRATA_OK;
}

/* Arguments of a call, from behind the opening parenthesis to behind the closing one. */
static strata_err call_args(struct chat_parser *p, struct chat_arg **out) {
    struct chat_arg **tail = out;
    bool keywords = false;
    while (!chat_parse_skip_op(p, ")")) {
        struct chat_arg *arg;
        struct chat_node *value;
        if (chat_parse_is_op(p->t, "*") || chat_parse_is_op(p->t, "**")) {
            return err_set(p->em, STRATA_EUNSUPPORTED, "line %u: '%.*s' before an argument is not supported",
                           p->t->line, (int)p->t->text.len, p->t->text.ptr);
        }
        TRY(chat_parse_arg(p, &tail, &arg));
        if (p->t->kind == CHAT_TOKEN_NAME && chat_parse_is_op(p->t + 1, "=")) {
            arg->name = p->t->text;
            p->t += 2;
            keywords = true;
        } else if (keywords) {
            return chat_parse_expected(p, "a keyword argument, as one came before");
        }
        TRY(chat_parse_expr(p, true, &value));
        arg->a = value;
        if (!chat_parse_is_op(p->t, ")")) TRY(chat_parse_expect_op(p, ","));
    }
    return STRATA_OK;
}

strata_err chat_parse_params(struct chat_parser *p, struct chat_arg **out) {
    struct chat_arg **tail = out;
    TRY(chat_parse_expect_op(p, "("));
    while (!chat_parse_skip_op(p, ")")) {
        struct chat_arg *arg;
        struct chat_node *value = NULL;
        if (p->t->kind != CHAT_TOKEN_NAME) return chat_parse_expected(p, "a parameter's name");
        TRY(chat_parse_arg(p, &tail, &arg));
        arg->name = p->t++->text;
        if (chat_parse_skip_op(p, "=")) TRY(chat_parse_expr(p, true, &value));
        arg->a = value;
        if (!chat_parse_is_op(p->t, ")")) TRY(chat_parse_expect_op(p, ","));
    }
    return STRATA_OK;
}

static strata_err list_literal(struct chat_parser *p, struct chat_node **out) {
    TRY(chat_parse_node(p, CHAT_NODE_LIST, out));
    struct chat_arg **tail = &(*out)->args, *arg;
    while (!chat_parse_skip_op(p, "]")) {
        struct chat_node *e;
        TRY(chat_parse_arg(p, &tail, &arg));
        TRY(chat_parse_expr(p, true, &e));
        arg->a = e;
        if (!chat_parse_is_op(p->t, "]")) TRY(chat_parse_expect_op(p, ","));
    }
    return STRATA_OK;
}

static strata_err dict_literal(struct chat_parser *p, struct chat_node **out) {
    TRY(chat_parse_node(p, CHAT_NODE_DICT, out));
    struct chat_arg **tail = &(*out)->args, *arg;
    while (!chat_parse_skip_op(p, "}")) {
        struct chat_node *key, *value;
        TRY(chat_parse_arg(p, &tail, &arg));
        TRY(chat_parse_expr(p, true, &key));
        TRY(chat_parse_expect_op(p, ":"));
        TRY(chat_parse_expr(p, true, &value));
        arg->b = key;
        arg->a = value;
        if (!chat_parse_is_op(p->t, "}")) TRY(chat_parse_expect_op(p, ","));
    }
    return STRATA_OK;
}

/* Strings that stand beside one another are one. */
static strata_err string_literal(struct chat_parser *p, struct chat_node *n) {
    size_t len = 0, used = 0;
    const struct chat_token *first = p->t;
    for (; p->t->kind == CHAT_TOKEN_STRING; p->t++) len += p->t->text.len;
    if (p->t == first + 1) {
        n->value = chat_string(first->text.ptr, first->text.len);
        return STRATA_OK;
    }
    char *text = chat_arena_alloc(p->arena, len + 1, p->em);
    if (!text) return p->em->code;
    for (const struct chat_token *t = first; t < p->t; t++) {
        memcpy(text + used, t->text.ptr, t->text.len);
        used += t->text.len;
    }
    n->value = chat_string(text, len);
    return STRATA_OK;
}

static strata_err name_or_constant(struct chat_parser *p, struct chat_node *n) {
    const struct chat_token *t = p->t;
    static const char *const keywords[] = {"if", "else", "elif", "in", "is", "and", "or", "not", "for"};
    for (size_t i = 0; i < sizeof keywords / sizeof keywords[0]; i++) {
        if (chat_parse_is_name(t, keywords[i])) return chat_parse_expected(p, "a value");
    }
    p->t++;
    if (chat_str_eq(t->text, "true") || chat_str_eq(t->text, "True")) {
        n->value = chat_bool(true);
    } else if (chat_str_eq(t->text, "false") || chat_str_eq(t->text, "False")) {
        n->value = chat_bool(false);
    } else if (chat_str_eq(t->text, "none") || chat_str_eq(t->text, "None")) {
        n->value = chat_none();
    } else {
        n->kind = CHAT_NODE_NAME;
        n->name = t->text;
    }
    return STRATA_OK;
}

static strata_err primary(struct chat_parser *p, struct chat_node **out) {
    struct chat_node *n = NULL;
    if (chat_parse_skip_op(p, "[")) return list_literal(p, out);
    if (chat_parse_skip_op(p, "{")) return dict_literal(p, out);
    if (chat_parse_skip_op(p, "(")) {
        if (chat_parse_skip_op(p, ")")) return chat_parse_node(p, CHAT_NODE_TUPLE, out);
        TRY(chat_parse_tuple(p, true, out));
        return chat_parse_expect_op(p, ")");
    }
    TRY(chat_parse_node(p, CHAT_NODE_CONST, &n));
    *out = n;
    switch (p->t->kind) {
    case CHAT_TOKEN_NAME: return name_or_constant(p, n);
    case CHAT_TOKEN_STRING: return string_literal(p, n);
    case CHAT_TOKEN_INT: n->value = chat_int(p->t++->i); return STRATA_OK;
    case CHAT_TOKEN_FLOAT: n->value = chat_float(p->t++->f); return STRATA_OK;
    default: return chat_parse_expected(p, "a value");
    }
}

/* `[i]`, `[a:b]` or `[a:b:c]`, from behind the opening bracket. */
static strata_err subscript(struct chat_parser *p, struct chat_node *of, struct chat_node **out) {
    struct chat_node *n, *part[3] = {NULL, NULL, NULL};
    int colons = 0;
    TRY(wrap(p, CHAT_NODE_ITEM, of, &n));
    while (!chat_parse_is_op(p->t, "]")) {
        if (colons < 2 && chat_parse_skip_op(p, ":")) {
            colons++;
        } else {
            if (part[colons]) return chat_parse_expected(p, "']'");
            TRY(chat_parse_expr(p, true, &part[colons]));
        }
    }
    if (!colons && !part[0]) return chat_parse_expected(p, "an index");
    p->t++;
    n->b = part[0];
    n->c = part[1];
    n->d = part[2];
    if (colons) n->kind = CHAT_NODE_SLICE;
    *out = n;
    return STRATA_OK;
}

static strata_err dotted(struct chat_parser *p, struct chat_node *of, struct chat_node **out) {
    struct chat_node *n = NULL;
    TRY(wrap(p, CHAT_NODE_ATTR, of, &n));
    if (p->t->kind == CHAT_TOKEN_NAME) {
        n->attr = p->t++->text;
    } else if (p->t->kind == CHAT_TOKEN_INT) {
        n->kind = CHAT_NODE_ITEM;
        TRY(chat_parse_node(p, CHAT_NODE_CONST, &n->b));
        n->b->value = chat_int(p->t++->i);
    } else {
        return chat_parse_expected(p, "an attribute's name");
    }
    *out = n;
    return STRATA_OK;
}

static strata_err postfix(struct chat_parser *p, struct chat_node **node) {
    for (int chain = 0;; chain++) {
        if (chain > CHAT_PARSE_DEPTH_MAX) return chat_parse_expected(p, "a shorter chain of attributes");
        if (chat_parse_skip_op(p, ".")) {
            TRY(dotted(p, *node, node));
        } else if (chat_parse_skip_op(p, "[")) {
            TRY(subscript(p, *node, node));
        } else if (chat_parse_skip_op(p, "(")) {
            struct chat_node *n = NULL;
            TRY(wrap(p, CHAT_NODE_CALL, *node, &n));
            TRY(call_args(p, &n->args));
            *node = n;
        } else {
            return STRATA_OK;
        }
    }
}

static strata_err one_filter(struct chat_parser *p, struct chat_node **node) {
    struct chat_node *n = NULL;
    if (p->t->kind != CHAT_TOKEN_NAME) return chat_parse_expected(p, "a filter's name");
    TRY(wrap(p, CHAT_NODE_FILTER, *node, &n));
    n->name = p->t++->text;
    if (chat_parse_skip_op(p, "(")) TRY(call_args(p, &n->args));
    *node = n;
    return STRATA_OK;
}

strata_err chat_parse_filters(struct chat_parser *p, struct chat_node **node) {
    for (int chain = 0; chat_parse_skip_op(p, "|"); chain++) {
        if (chain > CHAT_PARSE_DEPTH_MAX) return chat_parse_expected(p, "a shorter chain of filters");
        TRY(one_filter(p, node));
    }
    return STRATA_OK;
}

/* `is [not] name [argument]`, from behind `is`. */
static strata_err test(struct chat_parser *p, struct chat_node **node) {
    bool negated = chat_parse_skip_name(p, "not");
    struct chat_node *n = NULL;
    if (p->t->kind != CHAT_TOKEN_NAME) return chat_parse_expected(p, "a test's name");
    TRY(wrap(p, CHAT_NODE_TEST, *node, &n));
    n->name = p->t++->text;
    const struct chat_token *t = p->t;
    if (chat_parse_skip_op(p, "(")) {
        TRY(call_args(p, &n->args));
    } else if ((t->kind >= CHAT_TOKEN_NAME && t->kind <= CHAT_TOKEN_FLOAT && !chat_parse_is_name(t, "else") &&
                !chat_parse_is_name(t, "or") && !chat_parse_is_name(t, "and") && !chat_parse_is_name(t, "if") &&
                !chat_parse_is_name(t, "is") && !chat_parse_is_name(t, "in") && !chat_parse_is_name(t, "not")) ||
               chat_parse_is_op(t, "[") || chat_parse_is_op(t, "{")) {
        struct chat_arg **tail = &n->args, *arg;
        struct chat_node *value;
        TRY(chat_parse_arg(p, &tail, &arg));
        TRY(chat_parse_deeper(p));
        TRY(primary(p, &value));
        TRY(postfix(p, &value));
        p->depth--;
        arg->a = value;
    }
    if (negated) TRY(wrap(p, CHAT_NODE_NOT, n, &n));
    *node = n;
    return STRATA_OK;
}

static strata_err unary(struct chat_parser *p, bool filters, struct chat_node **out) {
    bool minus = chat_parse_is_op(p->t, "-");
    if (minus || chat_parse_is_op(p->t, "+")) {
        struct chat_node *operand;
        p->t++;
        TRY(chat_parse_deeper(p));
        TRY(unary(p, false, &operand));
        p->depth--;
        TRY(wrap(p, minus ? CHAT_NODE_NEG : CHAT_NODE_POS, operand, out));
    } else {
        TRY(primary(p, out));
    }
    TRY(postfix(p, out));
    for (int chain = 0; filters; chain++) {
        if (chain > CHAT_PARSE_DEPTH_MAX) return chat_parse_expected(p, "a shorter chain of filters");
        if (chat_parse_skip_op(p, "|")) {
            TRY(one_filter(p, out));
        } else if (chat_parse_skip_name(p, "is")) {
            TRY(test(p, out));
        } else if (chat_parse_is_op(p->t, "(")) {
            TRY(postfix(p, out));
        } else {
            break;
        }
    }
    return STRATA_OK;
}
