/* Statements of chat templates. See chat_ast.h. Owns nothing; refuses tags it does not know, by name and line. */
#include "text/chat_parse.h"

#include <string.h>

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        strata_err rc_ = (call);                                                                                       \
        if (rc_ != STRATA_OK) return rc_;                                                                              \
    } while (0)

strata_err chat_parse_node(struct chat_parser *p, enum chat_node_kind kind, struct chat_node **out) {
    struct chat_node *n = chat_arena_alloc(p->arena, sizeof *n, p->em);
    if (!n) return p->em->code;
    n->kind = kind;
    n->line = p->t->line;
    *out = n;
    return STRATA_OK;
}

strata_err chat_parse_arg(struct chat_parser *p, struct chat_arg ***tail, struct chat_arg **out) {
    struct chat_arg *arg = chat_arena_alloc(p->arena, sizeof *arg, p->em);
    if (!arg) return p->em->code;
    **tail = arg;
    *tail = &arg->next;
    *out = arg;
    return STRATA_OK;
}

bool chat_parse_is_op(const struct chat_token *t, const char *op) {
    return t->kind == CHAT_TOKEN_OP && chat_str_eq(t->text, op);
}

bool chat_parse_is_name(const struct chat_token *t, const char *name) {
    return t->kind == CHAT_TOKEN_NAME && chat_str_eq(t->text, name);
}

bool chat_parse_skip_op(struct chat_parser *p, const char *op) {
    if (!chat_parse_is_op(p->t, op)) return false;
    p->t++;
    return true;
}

bool chat_parse_skip_name(struct chat_parser *p, const char *name) {
    if (!chat_parse_is_name(p->t, name)) return false;
    p->t++;
    return true;
}

strata_err chat_parse_expected(struct chat_parser *p, const char *what) {
    const struct chat_token *t = p->t;
    static const char *const names[] = {
        [CHAT_TOKEN_DATA] = "text",        [CHAT_TOKEN_PRINT_BEGIN] = "'{{'", [CHAT_TOKEN_PRINT_END] = "'}}'",
        [CHAT_TOKEN_BLOCK_BEGIN] = "'{%'", [CHAT_TOKEN_BLOCK_END] = "'%}'",   [CHAT_TOKEN_STRING] = "a string",
        [CHAT_TOKEN_EOF] = "the end",
    };
    if (names[t->kind])
        return err_set(p->em, STRATA_EFORMAT, "line %u: expected %s, not %s", t->line, what, names[t->kind]);
    return err_set(p->em, STRATA_EFORMAT, "line %u: expected %s, not '%.*s'", t->line, what,
                   t->text.len > 40 ? 40 : (int)t->text.len, t->text.ptr);
}

strata_err chat_parse_expect_op(struct chat_parser *p, const char *op) {
    char what[8] = {'\'', op[0], '\''};
    return chat_parse_skip_op(p, op) ? STRATA_OK : chat_parse_expected(p, what);
}

strata_err chat_parse_deeper(struct chat_parser *p) {
    if (++p->depth <= CHAT_PARSE_DEPTH_MAX) return STRATA_OK;
    return err_set(p->em, STRATA_ELIMIT, "line %u: nested more than %d levels deep", p->t->line, CHAT_PARSE_DEPTH_MAX);
}

static strata_err expect_block_end(struct chat_parser *p) {
    if (p->t->kind != CHAT_TOKEN_BLOCK_END) return chat_parse_expected(p, "'%}'");
    p->t++;
    return STRATA_OK;
}

static strata_err statements(struct chat_parser *p, const char *const *ends, struct chat_node **out);

/* Statements up to a tag that begins with one of `ends` (NULL-terminated); the parser stands on that word. */
static strata_err body(struct chat_parser *p, const char *const *ends, struct chat_node **out) {
    TRY(expect_block_end(p));
    return statements(p, ends, out);
}

static strata_err parse_if(struct chat_parser *p, struct chat_node **out) {
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif", NULL};
    struct chat_node **slot = out;
    for (;;) {
        struct chat_node *n = NULL;
        TRY(chat_parse_node(p, CHAT_NODE_IF, &n));
        TRY(chat_parse_tuple(p, false, &n->a));
        TRY(body(p, ends, &n->body));
        *slot = n;
        slot = &n->other;
        if (!chat_parse_skip_name(p, "elif")) break;
    }
    if (chat_parse_skip_name(p, "else")) TRY(body(p, last, slot));
    p->t++; /* endif */
    return STRATA_OK;
}

static strata_err parse_for(struct chat_parser *p, struct chat_node **out) {
    static const char *const ends[] = {"else", "endfor", NULL}, *const last[] = {"endfor", NULL};
    struct chat_node *n = NULL;
    TRY(chat_parse_node(p, CHAT_NODE_FOR, &n));
    TRY(chat_parse_target(p, false, &n->a));
    if (!chat_parse_skip_name(p, "in")) return chat_parse_expected(p, "'in'");
    TRY(chat_parse_tuple(p, false, &n->b));
    if (chat_parse_skip_name(p, "if")) TRY(chat_parse_expr(p, true, &n->c));
    if (chat_parse_is_name(p->t, "recursive")) {
        return err_set(p->em, STRATA_EUNSUPPORTED, "line %u: recursive loops are not supported", p->t->line);
    }
    p->loops++;
    TRY(body(p, ends, &n->body));
    p->loops--;
    if (chat_parse_skip_name(p, "else")) TRY(body(p, last, &n->other));
    p->t++; /* endfor */
    *out = n;
    return STRATA_OK;
}

static strata_err parse_set(struct chat_parser *p, struct chat_node **out) {
    static const char *const ends[] = {"endset", NULL};
    struct chat_node *n = NULL;
    TRY(chat_parse_node(p, CHAT_NODE_SET, &n));
    TRY(chat_parse_target(p, true, &n->a));
    if (chat_parse_skip_op(p, "=")) {
        TRY(chat_parse_tuple(p, true, &n->b));
    } else {
        n->kind = CHAT_NODE_SETBLOCK;
        TRY(chat_parse_node(p, CHAT_NODE_CAPTURED, &n->b));
        TRY(chat_parse_filters(p, &n->b));
        TRY(body(p, ends, &n->body));
        p->t++;
    }
    *out = n;
    return STRATA_OK;
}

static strata_err parse_macro(struct chat_parser *p, struct chat_node **out) {
    static const char *const ends[] = {"endmacro", NULL};
    struct chat_node *n = NULL;
    TRY(chat_parse_node(p, CHAT_NODE_MACRO, &n));
    if (p->t->kind != CHAT_TOKEN_NAME) return chat_parse_expected(p, "a macro's name");
    n->name = p->t++->text;
    TRY(chat_parse_params(p, &n->args));
    int loops = p->loops;
    p->loops = 0;
    TRY(body(p, ends, &n->body));
    p->loops = loops;
    p->t++;
    if (p->t->kind == CHAT_TOKEN_NAME) p->t++; /* the name again */
    *out = n;
    return STRATA_OK;
}

/* Marks what the assistant said, for training; nothing to do with it here. */
static strata_err parse_generation(struct chat_parser *p, struct chat_node **out) {
    static const char *const ends[] = {"endgeneration", NULL};
    TRY(chat_parse_node(p, CHAT_NODE_GROUP, out));
    TRY(body(p, ends, &(*out)->body));
    p->t++;
    return STRATA_OK;
}

/* A tag from its first word to its end. */
static strata_err parse_tag(struct chat_parser *p, struct chat_node **out) {
    const struct chat_token *t = p->t;
    TRY(chat_parse_deeper(p));
    if (chat_parse_skip_name(p, "if")) {
        TRY(parse_if(p, out));
    } else if (chat_parse_skip_name(p, "for")) {
        TRY(parse_for(p, out));
    } else if (chat_parse_skip_name(p, "set")) {
        TRY(parse_set(p, out));
    } else if (chat_parse_skip_name(p, "macro")) {
        TRY(parse_macro(p, out));
    } else if (chat_parse_skip_name(p, "generation")) {
        TRY(parse_generation(p, out));
    } else if (chat_parse_is_name(t, "break") || chat_parse_is_name(t, "continue")) {
        if (p->loops == 0) {
            return err_set(p->em, STRATA_EFORMAT, "line %u: '%.*s' outside of a loop", t->line, (int)t->text.len,
                           t->text.ptr);
        }
        TRY(chat_parse_node(p, chat_parse_is_name(t, "break") ? CHAT_NODE_BREAK : CHAT_NODE_CONTINUE, out));
        p->t++;
    } else if (t->kind == CHAT_TOKEN_NAME) {
        return err_set(p->em, STRATA_EUNSUPPORTED, "line %u: the tag '%.*s' is not supported%s", t->line,
                       t->text.len > 40 ? 40 : (int)t->text.len, t->text.ptr,
                       t->text.len > 3 && memcmp(t->text.ptr, "end", 3) == 0 ? " here" : "");
    } else {
        return chat_parse_expected(p, "a tag's name");
    }
    p->depth--;
    return expect_block_end(p);
}

static bool is_end(const struct chat_token *t, const char *const *ends) {
    for (; ends && *ends; ends++) {
        if (chat_parse_is_name(t, *ends)) return true;
    }
    return false;
}

static strata_err statements(struct chat_parser *p, const char *const *ends, struct chat_node **out) {
    struct chat_node **slot = out, *n = NULL;
    for (;;) {
        switch (p->t->kind) {
        case CHAT_TOKEN_DATA:
            TRY(chat_parse_node(p, CHAT_NODE_DATA, &n));
            n->value = chat_string(p->t->text.ptr, p->t->text.len);
            p->t++;
            break;
        case CHAT_TOKEN_PRINT_BEGIN:
            p->t++;
            TRY(chat_parse_node(p, CHAT_NODE_PRINT, &n));
            TRY(chat_parse_tuple(p, true, &n->a));
            if (p->t->kind != CHAT_TOKEN_PRINT_END) return chat_parse_expected(p, "'}}'");
            p->t++;
            break;
        case CHAT_TOKEN_BLOCK_BEGIN:
            p->t++;
            if (is_end(p->t, ends)) return STRATA_OK;
            TRY(parse_tag(p, &n));
            break;
        default: /* the end: nothing else can stand here */
            if (!ends) return STRATA_OK;
            return err_set(p->em, STRATA_EFORMAT, "line %u: the template ends where '%s' is missing", p->t->line,
                           *ends);
        }
        *slot = n;
        slot = &n->next;
    }
}

strata_err chat_parse(const char *source, size_t len, struct chat_arena *a, struct chat_node **root,
                      struct strata_errmsg *em) {
    struct chat_tokens tokens;
    TRY(chat_lex(source, len, a, &tokens, em));
    struct chat_parser p = {.t = tokens.item, .arena = a, .em = em};
    *root = NULL;
    return statements(&p, NULL, root);
}
