/*
 * Evaluation of chat templates: expressions to values, statements to text. See chat_eval.h.
 *
 * Scopes are as in Jinja2: a loop's body has its own for each turn, `if` has none, a macro sees the scope in which it
 * was defined. Every node costs a step; steps, depth, memory and output have maxima, so that any template ends.
 */
#include "text/chat_eval.h"

#include <stdio.h>
#include <string.h>

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        strata_err rc_ = (call);                                                                                       \
        if (rc_ != STRATA_OK) return rc_;                                                                              \
    } while (0)

strata_err chat_error(struct chat_run *r, strata_err code, const char *fmt, ...) {
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(r->em, code, "%s", text);
}

strata_err chat_step(struct chat_run *r, size_t n) {
    r->steps += n;
    if (r->steps <= CHAT_STEPS_MAX) return STRATA_OK;
    return chat_error(r, STRATA_ELIMIT, "the template takes more than %d steps", CHAT_STEPS_MAX);
}

static strata_err eval(struct chat_run *r, const struct chat_node *n, struct chat_value *out);

strata_err chat_define(struct chat_run *r, struct chat_str name, struct chat_value v) {
    TRY(chat_step(r, r->scope->vars.len / 8));
    return chat_dict_set(r->arena, &r->scope->vars, chat_string(name.ptr, name.len), v, r->em);
}

static strata_err eval_name(struct chat_run *r, struct chat_str name, struct chat_value *out) {
    for (const struct chat_scope *s = r->scope; s; s = s->parent) {
        TRY(chat_step(r, s->vars.len / 8));
        const struct chat_value *v = chat_dict_get_str(&s->vars, name);
        if (v) {
            *out = *v;
            return STRATA_OK;
        }
    }
    const struct chat_function *f = chat_find_global(name);
    *out = f ? (struct chat_value){.kind = CHAT_FUNCTION, .function = f} : chat_undefined(name);
    return STRATA_OK;
}

static strata_err push_scope(struct chat_run *r, struct chat_scope *parent) {
    struct chat_scope *s = chat_arena_alloc(r->arena, sizeof *s, r->em);
    if (!s) return r->em->code;
    s->parent = parent;
    r->scope = s;
    return STRATA_OK;
}

/* The scope of a loop's next turn: the last turn's, emptied, unless a macro keeps that one. */
static strata_err next_scope(struct chat_run *r, struct chat_scope *parent, struct chat_scope **last, size_t *macros) {
    if (*last && *macros == r->macros) {
        r->scope = *last;
        r->scope->vars.len = 0;
        return STRATA_OK;
    }
    TRY(push_scope(r, parent));
    *last = r->scope;
    *macros = r->macros;
    return STRATA_OK;
}

/* ---- calls ---- */

static strata_err eval_args(struct chat_run *r, const struct chat_arg *first, struct chat_args *out) {
    size_t n = 0;
    *out = (struct chat_args){0};
    for (const struct chat_arg *a = first; a; a = a->next) n++;
    if (n == 0) return STRATA_OK;
    out->pos = chat_arena_alloc(r->arena, n * sizeof *out->pos, r->em);
    out->kw = chat_arena_alloc(r->arena, n * sizeof *out->kw, r->em);
    if (!out->pos || !out->kw) return r->em->code;
    for (const struct chat_arg *a = first; a; a = a->next) {
        struct chat_value v;
        TRY(eval(r, a->a, &v));
        if (a->name.ptr) {
            out->kw[out->n_kw++] = (struct chat_named){a->name, v};
        } else {
            out->pos[out->n_pos++] = v;
        }
    }
    return STRATA_OK;
}

/* The place of a keyword among a built-in's parameters, or -1. */
static int param_index(const char *params, struct chat_str name) {
    int i = 0;
    for (const char *at = params; *at; i++) {
        size_t n = strcspn(at, " ");
        if (n == name.len && memcmp(at, name.ptr, n) == 0) return i;
        at += n + (at[n] == ' ');
    }
    return -1;
}

static int param_count(const char *params) {
    int n = params[0] != '\0';
    for (; *params; params++) n += *params == ' ';
    return n;
}

strata_err chat_call_function(struct chat_run *r, const struct chat_function *f, const struct chat_value *self,
                              const struct chat_args *args, struct chat_value *out) {
    if (f->raw) return f->raw(r, self, args, out);
    const struct chat_value *arg[CHAT_PARAMS_MAX] = {NULL};
    int max = param_count(f->params);
    if (args->n_pos > (size_t)max) {
        return chat_error(r, STRATA_EINVAL, "'%s' takes %d arguments at most, not %zu", f->name, max, args->n_pos);
    }
    for (size_t i = 0; i < args->n_pos; i++) arg[i] = &args->pos[i];
    for (size_t i = 0; i < args->n_kw; i++) {
        int at = param_index(f->params, args->kw[i].name);
        if (at < 0 || arg[at]) {
            return chat_error(r, STRATA_EUNSUPPORTED, "'%s' does not take the argument '%.*s' here", f->name,
                              (int)args->kw[i].name.len, args->kw[i].name.ptr);
        }
        arg[at] = &args->kw[i].value;
    }
    for (int i = 0; i < f->required; i++) {
        if (!arg[i]) return chat_error(r, STRATA_EINVAL, "'%s' needs %d arguments", f->name, f->required);
    }
    return f->call(r, self, arg, out);
}

static const struct chat_value *keyword(const struct chat_args *args, struct chat_str name) {
    for (size_t i = 0; i < args->n_kw; i++) {
        if (args->kw[i].name.len == name.len && memcmp(args->kw[i].name.ptr, name.ptr, name.len) == 0) {
            return &args->kw[i].value;
        }
    }
    return NULL;
}

static strata_err bind_params(struct chat_run *r, const struct chat_macro *m, const struct chat_args *args) {
    size_t i = 0, named = 0;
    for (const struct chat_arg *p = m->node->args; p; p = p->next, i++) {
        struct chat_value v = chat_undefined(p->name);
        const struct chat_value *kw = keyword(args, p->name);
        named += kw != NULL;
        if (i < args->n_pos) {
            v = args->pos[i];
        } else if (kw) {
            v = *kw;
        } else if (p->a) {
            TRY(eval(r, p->a, &v));
        }
        TRY(chat_define(r, p->name, v));
    }
    if (args->n_pos > i || named != args->n_kw) {
        return chat_error(r, STRATA_EINVAL, "the macro '%.*s' is called with arguments it does not have",
                          (int)m->node->name.len, m->node->name.ptr);
    }
    return STRATA_OK;
}

/* Runs statements with their text going into a string. */
static strata_err capture(struct chat_run *r, const struct chat_node *body, struct chat_value *out) {
    struct chat_text text, *before = r->out;
    chat_text_init(&text, r->arena, CHAT_OUTPUT_MAX);
    r->out = &text;
    strata_err rc = chat_exec(r, body);
    r->out = before;
    if (rc == STRATA_OK) rc = chat_take(r, &text, out);
    chat_text_deinit(&text);
    return rc;
}

static strata_err call_macro(struct chat_run *r, const struct chat_macro *m, const struct chat_args *args,
                             struct chat_value *out) {
    struct chat_scope *before = r->scope;
    TRY(push_scope(r, m->scope));
    strata_err rc = bind_params(r, m, args);
    if (rc == STRATA_OK) rc = capture(r, m->node->body, out);
    r->scope = before;
    return rc;
}

static strata_err eval_call(struct chat_run *r, const struct chat_node *n, struct chat_value *out) {
    struct chat_value f;
    struct chat_args args;
    TRY(eval(r, n->a, &f));
    TRY(eval_args(r, n->args, &args));
    r->line = n->line;
    switch (f.kind) {
    case CHAT_FUNCTION: return chat_call_function(r, f.function, NULL, &args, out);
    case CHAT_METHOD: return chat_call_function(r, f.method->function, &f.method->self, &args, out);
    case CHAT_MACRO: return call_macro(r, f.macro, &args, out);
    case CHAT_UNDEFINED: return chat_undefined_error(r, &f);
    default: return chat_error(r, STRATA_EINVAL, "a %s cannot be called", chat_value_kind_name(&f));
    }
}

static strata_err eval_builtin(struct chat_run *r, const struct chat_node *n, struct chat_value *out) {
    bool filter = n->kind == CHAT_NODE_FILTER;
    const struct chat_function *f = filter ? chat_find_filter(n->name) : chat_find_test(n->name);
    if (!f) {
        return chat_error(r, STRATA_EUNSUPPORTED, "the %s '%.*s' is not supported", filter ? "filter" : "test",
                          n->name.len > 40 ? 40 : (int)n->name.len, n->name.ptr);
    }
    struct chat_value self;
    struct chat_args args;
    TRY(eval(r, n->a, &self));
    TRY(eval_args(r, n->args, &args));
    r->line = n->line;
    return chat_call_function(r, f, &self, &args, out);
}

/* ---- expressions ---- */

static strata_err eval_container(struct chat_run *r, const struct chat_node *n, struct chat_value *out) {
    if (n->kind == CHAT_NODE_DICT) {
        TRY(chat_dict_new(r->arena, CHAT_DICT, out, r->em));
    } else {
        TRY(chat_list_new(r->arena, out, r->em));
        out->list->tuple = n->kind == CHAT_NODE_TUPLE;
    }
    for (const struct chat_arg *a = n->args; a; a = a->next) {
        struct chat_value v, key;
        if (a->b) TRY(eval(r, a->b, &key));
        TRY(eval(r, a->a, &v));
        if (n->kind == CHAT_NODE_DICT) {
            TRY(chat_step(r, out->dict->len / 8));
            TRY(chat_dict_set(r->arena, out->dict, key, v, r->em));
        } else {
            TRY(chat_list_add(r->arena, out->list, v, r->em));
        }
    }
    return STRATA_OK;
}

static strata_err eval_slice(struct chat_run *r, const struct chat_node *n, struct chat_value *out) {
    struct chat_value of, part[3];
    const struct chat_node *nodes[3] = {n->b, n->c, n->d};
    TRY(eval(r, n->a, &of));
    for (int i = 0; i < 3; i++) {
        if (nodes[i]) TRY(eval(r, nodes[i], &part[i]));
    }
    return chat_slice(r, &of, n->b ? &part[0] : NULL, n->c ? &part[1] : NULL, n->d ? &part[2] : NULL, out);
}

/* `a < b < c` holds when each pair does. */
static strata_err eval_compare(struct chat_run *r, const struct chat_node *n, struct chat_value *out) {
    struct chat_value left, right;
    bool holds = true;
    TRY(eval(r, n->a, &left));
    for (const struct chat_arg *a = n->args; a && holds; a = a->next) {
        TRY(eval(r, a->a, &right));
        TRY(chat_compare(r, a->op, &left, &right, &holds));
        left = right;
    }
    *out = chat_bool(holds);
    return STRATA_OK;
}

static strata_err eval_sign(struct chat_run *r, const struct chat_node *n, struct chat_value *out) {
    struct chat_value v, zero = chat_int(0);
    TRY(eval(r, n->a, &v));
    if (v.kind == CHAT_FLOAT && n->kind == CHAT_NODE_NEG) {
        *out = chat_float(-v.f);
        return STRATA_OK;
    }
    return chat_binary(r, n->kind == CHAT_NODE_NEG ? CHAT_OP_SUB : CHAT_OP_ADD, &zero, &v, out);
}

static strata_err eval_logic(struct chat_run *r, const struct chat_node *n, struct chat_value *out) {
    TRY(eval(r, n->a, out));
    if (chat_value_truthy(out) == (n->kind == CHAT_NODE_OR)) return STRATA_OK;
    return eval(r, n->b, out);
}

static strata_err eval_cond(struct chat_run *r, const struct chat_node *n, struct chat_value *out) {
    struct chat_value test;
    TRY(eval(r, n->a, &test));
    if (chat_value_truthy(&test)) return eval(r, n->b, out);
    if (n->c) return eval(r, n->c, out);
    *out = chat_undefined(CHAT_STR("the value of an if without else"));
    return STRATA_OK;
}

static strata_err eval_node(struct chat_run *r, const struct chat_node *n, struct chat_value *out) {
    struct chat_value a, b;
    switch (n->kind) {
    case CHAT_NODE_CONST: *out = n->value; return STRATA_OK;
    case CHAT_NODE_NAME: return eval_name(r, n->name, out);
    case CHAT_NODE_CAPTURED: *out = r->captured; return STRATA_OK;
    case CHAT_NODE_TUPLE:
    case CHAT_NODE_LIST:
    case CHAT_NODE_DICT: return eval_container(r, n, out);
    case CHAT_NODE_ATTR: TRY(eval(r, n->a, &a)); return chat_attr(r, &a, n->attr, out);
    case CHAT_NODE_ITEM:
        TRY(eval(r, n->a, &a));
        TRY(eval(r, n->b, &b));
        return chat_item(r, &a, &b, out);
    case CHAT_NODE_SLICE: return eval_slice(r, n, out);
    case CHAT_NODE_CALL: return eval_call(r, n, out);
    case CHAT_NODE_FILTER:
    case CHAT_NODE_TEST: return eval_builtin(r, n, out);
    case CHAT_NODE_NOT:
        TRY(eval(r, n->a, &a));
        *out = chat_bool(!chat_value_truthy(&a));
        return STRATA_OK;
    case CHAT_NODE_NEG:
    case CHAT_NODE_POS: return eval_sign(r, n, out);
    case CHAT_NODE_AND:
    case CHAT_NODE_OR: return eval_logic(r, n, out);
    case CHAT_NODE_COND: return eval_cond(r, n, out);
    case CHAT_NODE_COMPARE: return eval_compare(r, n, out);
    case CHAT_NODE_BINARY:
        TRY(eval(r, n->a, &a));
        TRY(eval(r, n->b, &b));
        return chat_binary(r, n->op, &a, &b, out);
    default: return chat_error(r, STRATA_EINTERNAL, "a statement stands where a value should");
    }
}

static strata_err deeper(struct chat_run *r) {
    if (++r->depth <= CHAT_EVAL_DEPTH_MAX) return chat_step(r, 1);
    return chat_error(r, STRATA_ELIMIT, "the template nests more than %d levels deep", CHAT_EVAL_DEPTH_MAX);
}

static strata_err eval(struct chat_run *r, const struct chat_node *n, struct chat_value *out) {
    struct chat_value v = {0};
    r->line = n->line;
    TRY(deeper(r));
    TRY(eval_node(r, n, &v));
    r->depth--;
    *out = v;
    return STRATA_OK;
}

/* ---- statements ---- */

static strata_err assign(struct chat_run *r, const struct chat_node *target, struct chat_value v) {
    struct chat_value ns;
    struct chat_list *items;
    switch (target->kind) {
    case CHAT_NODE_NAME: return chat_define(r, target->name, v);
    case CHAT_NODE_NSREF:
        TRY(eval_name(r, target->name, &ns));
        if (ns.kind != CHAT_NAMESPACE) {
            return chat_error(r, STRATA_EINVAL, "'%.*s' is no namespace: its attributes cannot be set",
                              (int)target->name.len, target->name.ptr);
        }
        TRY(chat_step(r, ns.dict->len / 8));
        return chat_dict_set(r->arena, ns.dict, chat_string(target->attr.ptr, target->attr.len), v, r->em);
    default: break;
    }
    size_t i = 0;
    TRY(chat_iterate(r, &v, &items));
    for (const struct chat_arg *a = target->args; a; a = a->next, i++) {
        if (i >= items->len) return chat_error(r, STRATA_EINVAL, "there are fewer values than names to assign to");
        TRY(assign(r, a->a, items->item[i]));
    }
    if (i < items->len) return chat_error(r, STRATA_EINVAL, "there are more values than names to assign to");
    return STRATA_OK;
}

/* The items that pass the loop's `if`. */
static strata_err filter_items(struct chat_run *r, const struct chat_node *n, const struct chat_list *all,
                               struct chat_list **out) {
    struct chat_value kept, test;
    struct chat_scope *before = r->scope, *turn = NULL;
    size_t macros = 0;
    TRY(chat_list_new(r->arena, &kept, r->em));
    for (size_t i = 0; i < all->len; i++) {
        TRY(next_scope(r, before, &turn, &macros));
        TRY(assign(r, n->a, all->item[i]));
        TRY(eval(r, n->c, &test));
        if (chat_value_truthy(&test)) TRY(chat_list_add(r->arena, kept.list, all->item[i], r->em));
    }
    r->scope = before;
    *out = kept.list;
    return STRATA_OK;
}

static strata_err exec_for(struct chat_run *r, const struct chat_node *n) {
    struct chat_value over;
    struct chat_list *items;
    struct chat_scope *before = r->scope, *turn = NULL;
    size_t macros = 0;
    TRY(eval(r, n->b, &over));
    TRY(chat_iterate(r, &over, &items));
    if (n->c) TRY(filter_items(r, n, items, &items));
    if (items->len == 0) return chat_exec(r, n->other);
    struct chat_loop *loop = chat_arena_alloc(r->arena, sizeof *loop, r->em);
    if (!loop) return r->em->code;
    *loop = (struct chat_loop){.items = items};
    size_t len = items->len; /* appending to the list while looping over it adds no turns */
    for (size_t i = 0; i < len; i++) {
        loop->index = i;
        TRY(next_scope(r, before, &turn, &macros));
        TRY(chat_define(r, CHAT_STR("loop"), (struct chat_value){.kind = CHAT_LOOP, .loop = loop}));
        TRY(assign(r, n->a, items->item[i]));
        TRY(chat_exec(r, n->body));
        enum chat_signal signal = r->signal;
        r->signal = CHAT_SIGNAL_NONE;
        if (signal == CHAT_SIGNAL_BREAK) break;
    }
    r->scope = before;
    return STRATA_OK;
}

static strata_err exec_set(struct chat_run *r, const struct chat_node *n) {
    struct chat_value v;
    if (n->kind == CHAT_NODE_SETBLOCK) {
        struct chat_scope *before = r->scope;
        TRY(push_scope(r, before));
        TRY(capture(r, n->body, &v));
        r->scope = before;
        r->captured = v;
    }
    TRY(eval(r, n->b, &v));
    return assign(r, n->a, v);
}

static strata_err exec_macro(struct chat_run *r, const struct chat_node *n) {
    struct chat_macro *m = chat_arena_alloc(r->arena, sizeof *m, r->em);
    if (!m) return r->em->code;
    *m = (struct chat_macro){n, r->scope};
    r->macros++;
    return chat_define(r, n->name, (struct chat_value){.kind = CHAT_MACRO, .macro = m});
}

static strata_err exec_one(struct chat_run *r, const struct chat_node *n) {
    struct chat_value v;
    switch (n->kind) {
    case CHAT_NODE_DATA: return chat_text_add(r->out, n->value.s.ptr, n->value.s.len, r->em);
    case CHAT_NODE_PRINT: TRY(eval(r, n->a, &v)); return chat_value_print(&v, r->out, r->em);
    case CHAT_NODE_IF: TRY(eval(r, n->a, &v)); return chat_exec(r, chat_value_truthy(&v) ? n->body : n->other);
    case CHAT_NODE_FOR: return exec_for(r, n);
    case CHAT_NODE_SET:
    case CHAT_NODE_SETBLOCK: return exec_set(r, n);
    case CHAT_NODE_MACRO: return exec_macro(r, n);
    case CHAT_NODE_GROUP: return chat_exec(r, n->body);
    case CHAT_NODE_BREAK: r->signal = CHAT_SIGNAL_BREAK; return STRATA_OK;
    case CHAT_NODE_CONTINUE: r->signal = CHAT_SIGNAL_CONTINUE; return STRATA_OK;
    default: return chat_error(r, STRATA_EINTERNAL, "a value stands where a statement should");
    }
}

strata_err chat_exec(struct chat_run *r, const struct chat_node *first) {
    TRY(deeper(r));
    for (const struct chat_node *n = first; n && r->signal == CHAT_SIGNAL_NONE; n = n->next) {
        r->line = n->line;
        TRY(chat_step(r, 1));
        TRY(exec_one(r, n));
    }
    r->depth--;
    return STRATA_OK;
}
