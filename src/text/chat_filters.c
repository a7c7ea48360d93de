/* Filters of chat templates. See chat_eval.h. `tojson` is the chat one: no HTML escapes, non-ASCII kept. */
#include "base/utf8.h"
#include "text/chat_eval.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ARGS                                                                                                           \
    struct chat_run *r, const struct chat_value *self, const struct chat_value *const *arg, struct chat_value *out
#define RAW struct chat_run *r, const struct chat_value *self, const struct chat_args *args, struct chat_value *out

/* ---- text ---- */

static strata_err f_trim(ARGS) {
    struct chat_value s;
    strata_err rc = chat_to_string(r, self, &s);
    if (rc == STRATA_OK && arg[0] && arg[0]->kind != CHAT_STRING && arg[0]->kind != CHAT_NONE) {
        rc = chat_error(r, STRATA_EINVAL, "'trim' needs a string of characters");
    }
    if (rc != STRATA_OK) return rc;
    struct chat_str t = chat_strip(s.s, arg[0] && arg[0]->kind == CHAT_STRING ? &arg[0]->s : NULL, true, true);
    *out = chat_string(t.ptr, t.len);
    return chat_step(r, s.s.len / 64);
}

static strata_err change(struct chat_run *r, const struct chat_value *self, enum chat_case how,
                         struct chat_value *out) {
    struct chat_value s;
    strata_err rc = chat_to_string(r, self, &s);
    return rc == STRATA_OK ? chat_change_case(r, s.s, how, out) : rc;
}

static strata_err f_upper(ARGS) {
    (void)arg;
    return change(r, self, CHAT_CASE_UPPER, out);
}
static strata_err f_lower(ARGS) {
    (void)arg;
    return change(r, self, CHAT_CASE_LOWER, out);
}
static strata_err f_title(ARGS) {
    (void)arg;
    return change(r, self, CHAT_CASE_WORDS, out);
}
static strata_err f_capitalize(ARGS) {
    (void)arg;
    return change(r, self, CHAT_CASE_CAPITALIZE, out);
}

static strata_err f_string(ARGS) {
    (void)arg;
    return chat_to_string(r, self, out);
}

static strata_err f_safe(ARGS) { /* nothing is escaped, so everything is safe already */
    (void)arg;
    return chat_to_string(r, self, out);
}

static strata_err f_replace(ARGS) {
    struct chat_value s, old, with;
    int64_t count = arg[2] && arg[2]->kind == CHAT_INT ? arg[2]->i : -1;
    strata_err rc = chat_to_string(r, self, &s);
    if (rc == STRATA_OK) rc = chat_to_string(r, arg[0], &old);
    if (rc == STRATA_OK) rc = chat_to_string(r, arg[1], &with);
    return rc == STRATA_OK ? chat_replace(r, s.s, old.s, with.s, count, out) : rc;
}

static strata_err f_indent(ARGS) {
    struct chat_value s, pad, first = arg[1] ? *arg[1] : chat_bool(false);
    bool blank = arg[2] && chat_value_truthy(arg[2]);
    struct chat_text text;
    struct chat_value width = arg[0] ? *arg[0] : chat_int(4), space = chat_string(" ", 1);
    strata_err rc = chat_to_string(r, self, &s);
    pad = width;
    if (rc == STRATA_OK && width.kind != CHAT_STRING) rc = chat_binary(r, CHAT_OP_MUL, &space, &width, &pad);
    if (rc == STRATA_OK && pad.kind != CHAT_STRING) rc = chat_error(r, STRATA_EINVAL, "'indent' needs a width");
    if (rc != STRATA_OK) return rc;
    chat_text_init(&text, r->arena, CHAT_OUTPUT_MAX);
    const char *at = s.s.ptr, *end = at + s.s.len;
    for (bool head = true; rc == STRATA_OK; head = false) {
        const char *nl = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
        size_t n = (size_t)((nl ? nl : end) - at);
        if (head ? chat_value_truthy(&first) : blank || n > 0) rc = chat_text_add(&text, pad.s.ptr, pad.s.len, r->em);
        if (rc == STRATA_OK) rc = chat_text_add(&text, at, n + (nl != NULL), r->em);
        if (rc == STRATA_OK) rc = chat_step(r, 1 + n / 64);
        if (!nl) break;
        at = nl + 1;
    }
    if (rc == STRATA_OK) rc = chat_take(r, &text, out);
    chat_text_deinit(&text);
    return rc;
}

static strata_err f_tojson(RAW) {
    struct chat_json_style style = {.indent = -1, .key_sep = CHAT_STR(": ")};
    bool separated = false;
    if (args->n_pos > 1) return chat_error(r, STRATA_EINVAL, "'tojson' takes an indent and keywords only");
    for (size_t i = 0; i < args->n_pos + args->n_kw; i++) {
        const struct chat_value *v = i < args->n_pos ? &args->pos[i] : &args->kw[i - args->n_pos].value;
        struct chat_str name = i < args->n_pos ? CHAT_STR("indent") : args->kw[i - args->n_pos].name;
        if (chat_str_eq(name, "indent") && (v->kind == CHAT_INT || v->kind == CHAT_NONE)) {
            style.indent = v->kind == CHAT_NONE ? -1 : v->i < 0 ? 0 : v->i > 64 ? 64 : v->i;
        } else if (chat_str_eq(name, "ensure_ascii")) {
            style.ascii = chat_value_truthy(v);
        } else if (chat_str_eq(name, "sort_keys")) {
            style.sort_keys = chat_value_truthy(v);
        } else if (chat_str_eq(name, "separators") && v->kind == CHAT_LIST && v->list->len == 2 &&
                   v->list->item[0].kind == CHAT_STRING && v->list->item[1].kind == CHAT_STRING) {
            separated = true;
            style.item_sep = v->list->item[0].s;
            style.key_sep = v->list->item[1].s;
        } else if (!(chat_str_eq(name, "separators") && v->kind == CHAT_NONE)) {
            return chat_error(r, STRATA_EUNSUPPORTED, "'tojson' does not take '%.*s' as a %s", (int)name.len, name.ptr,
                              chat_value_kind_name(v));
        }
    }
    if (!separated) style.item_sep = style.indent < 0 ? CHAT_STR(", ") : CHAT_STR(",");
    struct chat_text text;
    chat_text_init(&text, r->arena, CHAT_OUTPUT_MAX);
    strata_err rc =
        self->kind == CHAT_UNDEFINED ? chat_undefined_error(r, self) : chat_value_json(self, &style, &text, r->em);
    if (rc == STRATA_OK) rc = chat_step(r, text.text.len / 64);
    if (rc == STRATA_OK) rc = chat_take(r, &text, out);
    chat_text_deinit(&text);
    return rc;
}

/* ---- numbers ---- */

static strata_err f_int(ARGS) {
    *out = arg[0] ? *arg[0] : chat_int(0);
    if (self->kind == CHAT_INT || self->kind == CHAT_BOOL) {
        *out = chat_int(self->kind == CHAT_INT ? self->i : self->b);
    } else if (self->kind == CHAT_FLOAT && fabs(self->f) < 9e18) {
        *out = chat_int((int64_t)self->f);
    } else if (self->kind == CHAT_STRING) {
        char text[64], *end;
        struct chat_str s = chat_strip(self->s, NULL, true, true);
        if (s.len == 0 || s.len >= sizeof text) return STRATA_OK;
        memcpy(text, s.ptr, s.len);
        text[s.len] = '\0';
        errno = 0;
        long long v = strtoll(text, &end, 10);
        double d = errno || *end ? strtod(text, &end) : 0;
        if (errno == 0 && *end == '\0') *out = chat_int(v ? v : fabs(d) < 9e18 ? (int64_t)d : 0);
    }
    (void)r;
    return STRATA_OK;
}

static strata_err f_float(ARGS) {
    (void)r;
    *out = arg[0] ? *arg[0] : chat_float(0);
    if (chat_value_is_number(self)) {
        *out = chat_float(chat_value_number(self));
    } else if (self->kind == CHAT_STRING && self->s.len > 0 && self->s.len < 64) {
        char text[64], *end;
        memcpy(text, self->s.ptr, self->s.len);
        text[self->s.len] = '\0';
        double d = strtod(text, &end);
        if (*end == '\0') *out = chat_float(d);
    }
    return STRATA_OK;
}

static strata_err f_abs(ARGS) {
    (void)arg;
    struct chat_value zero = chat_int(0);
    if (!chat_value_is_number(self)) return chat_error(r, STRATA_EINVAL, "'abs' needs a number");
    if (self->kind == CHAT_FLOAT) {
        *out = chat_float(fabs(self->f));
        return STRATA_OK;
    }
    bool negative = self->kind == CHAT_INT && self->i < 0;
    return chat_binary(r, negative ? CHAT_OP_SUB : CHAT_OP_ADD, &zero, self, out);
}

/* ---- containers ---- */

static strata_err f_length(ARGS) {
    (void)arg;
    size_t n;
    switch (self->kind) {
    case CHAT_UNDEFINED: n = 0; break;
    case CHAT_STRING: n = utf8_length(self->s.ptr, self->s.len); break;
    case CHAT_LIST: n = self->list->len; break;
    case CHAT_DICT: n = self->dict->len; break;
    default: return chat_error(r, STRATA_EINVAL, "a %s has no length", chat_value_kind_name(self));
    }
    *out = chat_int((int64_t)n);
    return chat_step(r, n / 64);
}

static strata_err f_default(ARGS) {
    bool falsy = arg[1] && chat_value_truthy(arg[1]) && !chat_value_truthy(self);
    struct chat_value fallback = arg[0] ? *arg[0] : chat_string("", 0);
    *out = self->kind == CHAT_UNDEFINED || falsy ? fallback : *self;
    (void)r;
    return STRATA_OK;
}

static strata_err f_first(ARGS) {
    (void)arg;
    struct chat_list *l;
    strata_err rc = chat_iterate(r, self, &l);
    if (rc == STRATA_OK) *out = l->len ? l->item[0] : chat_undefined(CHAT_STR("the first item of nothing"));
    return rc;
}

static strata_err f_last(ARGS) {
    (void)arg;
    struct chat_list *l;
    strata_err rc = chat_iterate(r, self, &l);
    if (rc == STRATA_OK) *out = l->len ? l->item[l->len - 1] : chat_undefined(CHAT_STR("the last item of nothing"));
    return rc;
}

/* A list of its own, which may be changed. */
static strata_err copy_list(struct chat_run *r, const struct chat_value *self, struct chat_value *out) {
    struct chat_list *l;
    strata_err rc = chat_iterate(r, self, &l);
    if (rc == STRATA_OK) rc = chat_list_new(r->arena, out, r->em);
    for (size_t i = 0; rc == STRATA_OK && i < l->len; i++) rc = chat_list_add(r->arena, out->list, l->item[i], r->em);
    return rc;
}

static strata_err f_list(ARGS) {
    (void)arg;
    return copy_list(r, self, out);
}

static strata_err f_reverse(ARGS) {
    (void)arg;
    struct chat_value back = chat_int(-1);
    if (self->kind == CHAT_STRING || self->kind == CHAT_LIST) return chat_slice(r, self, NULL, NULL, &back, out);
    struct chat_value l;
    strata_err rc = copy_list(r, self, &l);
    return rc == STRATA_OK ? chat_slice(r, &l, NULL, NULL, &back, out) : rc;
}

static strata_err f_items(ARGS) {
    (void)arg;
    if (self->kind == CHAT_UNDEFINED) return chat_list_new(r->arena, out, r->em);
    if (self->kind != CHAT_DICT) return chat_error(r, STRATA_EINVAL, "'items' needs a dict");
    return chat_call_function(r, chat_find_method(self, CHAT_STR("items")), self, &(struct chat_args){0}, out);
}

/* The value of a dotted path of attributes. */
static strata_err path(struct chat_run *r, const struct chat_value *of, struct chat_str name, struct chat_value *out) {
    struct chat_value v = *of;
    strata_err rc = STRATA_OK;
    while (rc == STRATA_OK) {
        const char *dot = memchr(name.ptr, '.', name.len);
        size_t n = dot ? (size_t)(dot - name.ptr) : name.len;
        struct chat_value key = chat_string(name.ptr, n), found;
        rc = chat_item(r, &v, &key, &found);
        v = found;
        if (!dot) break;
        name.ptr += n + 1;
        name.len -= n + 1;
    }
    if (rc == STRATA_OK) *out = v;
    return rc;
}

/* An item, or its attribute when `by` names one. */
static strata_err key_of(struct chat_run *r, const struct chat_value *item, const struct chat_value *by,
                         struct chat_value *out) {
    if (by && by->kind == CHAT_STRING) return path(r, item, by->s, out);
    *out = *item;
    return STRATA_OK;
}

static strata_err f_join(ARGS) {
    struct chat_list *l;
    struct chat_value sep = chat_string("", 0), v, s;
    struct chat_text text;
    strata_err rc = chat_iterate(r, self, &l);
    if (rc == STRATA_OK && arg[0]) rc = chat_to_string(r, arg[0], &sep);
    if (rc != STRATA_OK) return rc;
    chat_text_init(&text, r->arena, CHAT_OUTPUT_MAX);
    for (size_t i = 0; i < l->len && rc == STRATA_OK; i++) {
        if (i > 0) rc = chat_text_add(&text, sep.s.ptr, sep.s.len, r->em);
        if (rc == STRATA_OK) rc = key_of(r, &l->item[i], arg[1], &v);
        if (rc == STRATA_OK) rc = chat_to_string(r, &v, &s);
        if (rc == STRATA_OK) rc = chat_text_add(&text, s.s.ptr, s.s.len, r->em);
    }
    if (rc == STRATA_OK) rc = chat_take(r, &text, out);
    chat_text_deinit(&text);
    return rc;
}

/* How sort, min, max and unique compare: without regard to case unless asked. */
static strata_err sort_key(struct chat_run *r, const struct chat_value *item, const struct chat_value *by,
                           bool case_sensitive, struct chat_value *out) {
    strata_err rc = key_of(r, item, by, out);
    if (rc == STRATA_OK && !case_sensitive && out->kind == CHAT_STRING) {
        rc = chat_change_case(r, out->s, CHAT_CASE_LOWER, out);
    }
    return rc;
}

/* Stable, by merging; comparisons can fail, which qsort has no way to say. */
static strata_err merge_sort(struct chat_run *r, struct chat_entry *e, struct chat_entry *tmp, size_t n, bool reverse) {
    if (n < 2) return STRATA_OK;
    size_t half = n / 2, i = 0, k = half, m = 0;
    strata_err rc = merge_sort(r, e, tmp, half, reverse);
    if (rc == STRATA_OK) rc = merge_sort(r, e + half, tmp, n - half, reverse);
    while (rc == STRATA_OK && m < n) {
        int order = i == half ? 1 : k == n ? -1 : 0;
        if (order == 0) {
            rc = chat_order(r, &e[i].key, &e[k].key, &order);
            if (reverse) order = -order;
        }
        tmp[m++] = order > 0 ? e[k++] : e[i++];
    }
    if (rc == STRATA_OK) memcpy(e, tmp, n * sizeof *e);
    return rc == STRATA_OK ? chat_step(r, n) : rc;
}

static strata_err f_sort(ARGS) {
    struct chat_list *l;
    bool reverse = arg[0] && chat_value_truthy(arg[0]), exact = arg[1] && chat_value_truthy(arg[1]);
    strata_err rc = chat_iterate(r, self, &l);
    if (rc == STRATA_OK) rc = chat_list_new(r->arena, out, r->em);
    if (rc != STRATA_OK || l->len == 0) return rc;
    struct chat_entry *e = chat_arena_alloc(r->arena, 2 * l->len * sizeof *e, r->em);
    if (!e) return r->em->code;
    for (size_t i = 0; i < l->len && rc == STRATA_OK; i++) {
        e[i].value = l->item[i];
        rc = sort_key(r, &l->item[i], arg[2], exact, &e[i].key);
    }
    if (rc == STRATA_OK) rc = merge_sort(r, e, e + l->len, l->len, reverse);
    for (size_t i = 0; i < l->len && rc == STRATA_OK; i++) rc = chat_list_add(r->arena, out->list, e[i].value, r->em);
    return rc;
}

static strata_err extreme(struct chat_run *r, const struct chat_value *self, const struct chat_value *by, int sign,
                          struct chat_value *out) {
    struct chat_list *l;
    struct chat_value best = {0}, key;
    int order;
    strata_err rc = chat_iterate(r, self, &l);
    if (rc == STRATA_OK) *out = chat_undefined(CHAT_STR("the extreme of nothing"));
    for (size_t i = 0; rc == STRATA_OK && i < l->len; i++) {
        rc = sort_key(r, &l->item[i], by, false, &key);
        order = sign;
        if (rc == STRATA_OK && i > 0) rc = chat_order(r, &key, &best, &order);
        if (order != sign) continue;
        best = key;
        *out = l->item[i];
    }
    return rc;
}

static strata_err f_min(ARGS) {
    return extreme(r, self, arg[1], -1, out);
}
static strata_err f_max(ARGS) {
    return extreme(r, self, arg[1], 1, out);
}

static strata_err f_sum(ARGS) {
    struct chat_list *l;
    struct chat_value total = arg[1] ? *arg[1] : chat_int(0), v;
    strata_err rc = chat_iterate(r, self, &l);
    for (size_t i = 0; rc == STRATA_OK && i < l->len; i++) {
        rc = key_of(r, &l->item[i], arg[0], &v);
        if (rc == STRATA_OK) rc = chat_binary(r, CHAT_OP_ADD, &total, &v, &total);
    }
    *out = total;
    return rc;
}

static strata_err f_unique(ARGS) {
    struct chat_list *l;
    struct chat_value seen, key;
    bool exact = arg[0] && chat_value_truthy(arg[0]);
    strata_err rc = chat_iterate(r, self, &l);
    if (rc == STRATA_OK) rc = chat_list_new(r->arena, out, r->em);
    if (rc == STRATA_OK) rc = chat_list_new(r->arena, &seen, r->em);
    for (size_t i = 0; rc == STRATA_OK && i < l->len; i++) {
        bool old = false;
        rc = sort_key(r, &l->item[i], arg[1], exact, &key);
        if (rc == STRATA_OK) rc = chat_compare(r, CHAT_OP_IN, &key, &seen, &old);
        if (rc != STRATA_OK || old) continue;
        rc = chat_list_add(r->arena, seen.list, key, r->em);
        if (rc == STRATA_OK) rc = chat_list_add(r->arena, out->list, l->item[i], r->em);
    }
    return rc;
}

/* ---- filters that take the name of a filter or test ---- */

/* The arguments without the first n positional ones. */
static struct chat_args rest_of(const struct chat_args *args, size_t n) {
    struct chat_args rest = *args;
    rest.n_pos = args->n_pos > n ? args->n_pos - n : 0;
    if (rest.n_pos > 0) rest.pos += n;
    return rest;
}

static strata_err f_map(RAW) {
    struct chat_list *l;
    const struct chat_value *attribute = NULL, *fallback = NULL;
    for (size_t i = 0; i < args->n_kw; i++) {
        if (chat_str_eq(args->kw[i].name, "attribute")) attribute = &args->kw[i].value;
        if (chat_str_eq(args->kw[i].name, "default")) fallback = &args->kw[i].value;
    }
    const struct chat_function *f = NULL;
    struct chat_args rest = rest_of(args, 1);
    if (!attribute) {
        if (args->n_pos == 0 || args->pos[0].kind != CHAT_STRING || !(f = chat_find_filter(args->pos[0].s))) {
            return chat_error(r, STRATA_EUNSUPPORTED, "'map' needs the name of a filter, or attribute=");
        }
    }
    strata_err rc = chat_iterate(r, self, &l);
    if (rc == STRATA_OK) rc = chat_list_new(r->arena, out, r->em);
    for (size_t i = 0; rc == STRATA_OK && i < l->len; i++) {
        struct chat_value v;
        rc = chat_step(r, 4);
        if (rc == STRATA_OK) {
            rc = f ? chat_call_function(r, f, &l->item[i], &rest, &v) : key_of(r, &l->item[i], attribute, &v);
        }
        if (rc == STRATA_OK && fallback && v.kind == CHAT_UNDEFINED) v = *fallback;
        if (rc == STRATA_OK) rc = chat_list_add(r->arena, out->list, v, r->em);
    }
    return rc;
}

/* select, reject and, with an attribute's name first, selectattr and rejectattr. */
static strata_err choose(struct chat_run *r, const struct chat_value *self, const struct chat_args *args, bool attr,
                         bool keep, struct chat_value *out) {
    struct chat_list *l;
    const struct chat_value *by = attr && args->n_pos ? &args->pos[0] : NULL;
    size_t at = attr ? 1 : 0;
    const struct chat_function *test = NULL;
    if (attr && (!by || by->kind != CHAT_STRING)) {
        return chat_error(r, STRATA_EINVAL, "'selectattr' and 'rejectattr' need an attribute's name");
    }
    if (args->n_pos > at) {
        const struct chat_value *name = &args->pos[at];
        test = name->kind == CHAT_STRING ? chat_find_test(name->s) : NULL;
        if (!test) return chat_error(r, STRATA_EUNSUPPORTED, "the test named in a select or reject is not supported");
        at++;
    }
    struct chat_args rest = rest_of(args, at);
    strata_err rc = chat_iterate(r, self, &l);
    if (rc == STRATA_OK) rc = chat_list_new(r->arena, out, r->em);
    for (size_t i = 0; rc == STRATA_OK && i < l->len; i++) {
        struct chat_value v, holds;
        rc = chat_step(r, 4);
        if (rc == STRATA_OK) rc = key_of(r, &l->item[i], by, &v);
        if (rc == STRATA_OK && test) rc = chat_call_function(r, test, &v, &rest, &holds);
        if (rc != STRATA_OK) break;
        if (chat_value_truthy(test ? &holds : &v) == keep) rc = chat_list_add(r->arena, out->list, l->item[i], r->em);
    }
    return rc;
}

static strata_err f_select(RAW) {
    return choose(r, self, args, false, true, out);
}
static strata_err f_reject(RAW) {
    return choose(r, self, args, false, false, out);
}
static strata_err f_selectattr(RAW) {
    return choose(r, self, args, true, true, out);
}
static strata_err f_rejectattr(RAW) {
    return choose(r, self, args, true, false, out);
}

static const struct chat_function filters[] = {
    {"trim", "chars", 0, f_trim, NULL},
    {"length", "", 0, f_length, NULL},
    {"count", "", 0, f_length, NULL},
    {"upper", "", 0, f_upper, NULL},
    {"lower", "", 0, f_lower, NULL},
    {"title", "", 0, f_title, NULL},
    {"capitalize", "", 0, f_capitalize, NULL},
    {"string", "", 0, f_string, NULL},
    {"safe", "", 0, f_safe, NULL},
    {"replace", "old new count", 2, f_replace, NULL},
    {"indent", "width first blank", 0, f_indent, NULL},
    {"tojson", "*", 0, NULL, f_tojson},
    {"int", "default", 0, f_int, NULL},
    {"float", "default", 0, f_float, NULL},
    {"abs", "", 0, f_abs, NULL},
    {"default", "default_value boolean", 0, f_default, NULL},
    {"d", "default_value boolean", 0, f_default, NULL},
    {"first", "", 0, f_first, NULL},
    {"last", "", 0, f_last, NULL},
    {"list", "", 0, f_list, NULL},
    {"reverse", "", 0, f_reverse, NULL},
    {"items", "", 0, f_items, NULL},
    {"join", "d attribute", 0, f_join, NULL},
    {"sort", "reverse case_sensitive attribute", 0, f_sort, NULL},
    {"min", "case_sensitive attribute", 0, f_min, NULL},
    {"max", "case_sensitive attribute", 0, f_max, NULL},
    {"sum", "attribute start", 0, f_sum, NULL},
    {"unique", "case_sensitive attribute", 0, f_unique, NULL},
    {"map", "*", 0, NULL, f_map},
    {"select", "*", 0, NULL, f_select},
    {"reject", "*", 0, NULL, f_reject},
    {"selectattr", "*", 0, NULL, f_selectattr},
    {"rejectattr", "*", 0, NULL, f_rejectattr},
    {0},
};

const struct chat_function *chat_find_filter(struct chat_str name) {
    for (const struct chat_function *f = filters; f->name; f++) {
        if (chat_str_eq(name, f->name)) return f;
    }
    return NULL;
}
