/* Operators, attributes, subscripts and iteration of chat templates, as Python has them. See chat_eval.h. */
#include "base/utf8.h"
#include "text/chat_eval.h"

#include <math.h>
#include <string.h>

strata_err chat_take(struct chat_run *r, const struct chat_text *t, struct chat_value *out) {
    return chat_text_take(t, out, r->em);
}

strata_err chat_to_string(struct chat_run *r, const struct chat_value *v, struct chat_value *out) {
    if (v->kind == CHAT_STRING) {
        *out = *v;
        return STRATA_OK;
    }
    struct chat_text text;
    chat_text_init(&text, r->arena, CHAT_OUTPUT_MAX);
    strata_err rc = chat_value_print(v, &text, r->em);
    if (rc == STRATA_OK) rc = chat_step(r, text.text.len / 64);
    if (rc == STRATA_OK) rc = chat_take(r, &text, out);
    chat_text_deinit(&text);
    return rc;
}

strata_err chat_undefined_error(struct chat_run *r, const struct chat_value *v) {
    return chat_error(r, STRATA_EINVAL, "'%.*s' is undefined", v->s.len > 80 ? 80 : (int)v->s.len, v->s.ptr);
}

static const char *symbol(enum chat_op op) {
    static const char *const names[] = {"", "+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">="};
    return op <= CHAT_OP_GE ? names[op] : "in";
}

static strata_err bad_operands(struct chat_run *r, enum chat_op op, const struct chat_value *a,
                               const struct chat_value *b) {
    if (a->kind == CHAT_UNDEFINED) return chat_undefined_error(r, a);
    if (b->kind == CHAT_UNDEFINED) return chat_undefined_error(r, b);
    return chat_error(r, STRATA_EINVAL, "'%s' has no meaning between a %s and a %s", symbol(op),
                      chat_value_kind_name(a), chat_value_kind_name(b));
}

/* Bytes and their marks, to a place in the arena. */
static strata_err copy_bytes(struct chat_run *r, char *to, const struct chat_str *s) {
    if (s->len == 0) return STRATA_OK;
    memcpy(to, s->ptr, s->len);
    const unsigned char *marks = chat_arena_marks(r->arena, s->ptr);
    return marks ? chat_arena_mark(r->arena, to, marks, s->len, r->em) : STRATA_OK;
}

static strata_err concat(struct chat_run *r, const struct chat_str *a, const struct chat_str *b,
                         struct chat_value *out) {
    strata_err rc = chat_step(r, (a->len + b->len) / 64);
    if (rc != STRATA_OK) return rc;
    char *p = chat_arena_alloc(r->arena, a->len + b->len + 1, r->em);
    if (!p) return r->em->code;
    rc = copy_bytes(r, p, a);
    if (rc == STRATA_OK) rc = copy_bytes(r, p + a->len, b);
    if (rc == STRATA_OK) *out = chat_string(p, a->len + b->len);
    return rc;
}

static int64_t whole(const struct chat_value *v) {
    return v->kind == CHAT_INT ? v->i : v->b;
}

static strata_err too_large(struct chat_run *r) {
    return chat_error(r, STRATA_EUNSUPPORTED, "a whole number beyond 64 bits is not supported");
}

static strata_err power(struct chat_run *r, int64_t base, int64_t exponent, struct chat_value *out) {
    int64_t result = 1;
    if (exponent < 0) {
        *out = chat_float(pow((double)base, (double)exponent));
        return STRATA_OK;
    }
    if (base == 0 || base == 1 || base == -1) {
        *out = chat_int(exponent == 0 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : base);
        return STRATA_OK;
    }
    for (int64_t i = 0; i < exponent; i++) { /* overflows within 63 rounds */
        if (__builtin_mul_overflow(result, base, &result)) return too_large(r);
    }
    *out = chat_int(result);
    return STRATA_OK;
}

static strata_err whole_binary(struct chat_run *r, enum chat_op op, int64_t a, int64_t b, struct chat_value *out) {
    int64_t v = 0;
    bool overflow = false;
    switch (op) {
    case CHAT_OP_ADD: overflow = __builtin_add_overflow(a, b, &v); break;
    case CHAT_OP_SUB: overflow = __builtin_sub_overflow(a, b, &v); break;
    case CHAT_OP_MUL: overflow = __builtin_mul_overflow(a, b, &v); break;
    case CHAT_OP_POW: return power(r, a, b, out);
    default: /* the divisions */
        if (b == 0) return chat_error(r, STRATA_EINVAL, "division by zero");
        if (op == CHAT_OP_DIV) {
            *out = chat_float((double)a / (double)b);
            return STRATA_OK;
        }
        if (b == -1) { /* INT64_MIN / -1 does not fit */
            overflow = op == CHAT_OP_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &v);
            break;
        }
        /* Python rounds down; the remainder has the divisor's sign. */
        v = op == CHAT_OP_FLOORDIV ? a / b - (a % b != 0 && (a % b < 0) != (b < 0)) : a % b;
        if (op == CHAT_OP_MOD && v != 0 && (v < 0) != (b < 0)) v += b;
    }
    if (overflow) return too_large(r);
    *out = chat_int(v);
    return STRATA_OK;
}

static strata_err real_binary(struct chat_run *r, enum chat_op op, double a, double b, struct chat_value *out) {
    double v;
    if ((op == CHAT_OP_DIV || op == CHAT_OP_FLOORDIV || op == CHAT_OP_MOD) && b == 0) {
        return chat_error(r, STRATA_EINVAL, "division by zero");
    }
    switch (op) {
    case CHAT_OP_ADD: v = a + b; break;
    case CHAT_OP_SUB: v = a - b; break;
    case CHAT_OP_MUL: v = a * b; break;
    case CHAT_OP_DIV: v = a / b; break;
    case CHAT_OP_FLOORDIV: v = floor(a / b); break;
    case CHAT_OP_POW: v = pow(a, b); break;
    default:
        v = fmod(a, b);
        if (v != 0 && (v < 0) != (b < 0)) v += b;
    }
    *out = chat_float(v);
    return STRATA_OK;
}

static strata_err repeat(struct chat_run *r, const struct chat_value *what, int64_t times, struct chat_value *out) {
    size_t unit = what->kind == CHAT_STRING ? what->s.len : what->list->len;
    size_t n = times > 0 ? (size_t)times : 0, total;
    if (__builtin_mul_overflow(unit, n, &total) || total > CHAT_OUTPUT_MAX) {
        return chat_error(r, STRATA_ELIMIT, "a repetition is larger than the limit of %zu", CHAT_OUTPUT_MAX);
    }
    strata_err rc = chat_step(r, n + total / 64);
    if (rc != STRATA_OK) return rc;
    if (what->kind == CHAT_STRING) {
        char *p = chat_arena_alloc(r->arena, total + 1, r->em);
        if (!p) return r->em->code;
        for (size_t i = 0; i < n && unit && rc == STRATA_OK; i++) rc = copy_bytes(r, p + i * unit, &what->s);
        *out = chat_string(p, total);
        return rc;
    }
    rc = chat_list_new(r->arena, out, r->em);
    for (size_t i = 0; i < total && rc == STRATA_OK; i++) {
        rc = chat_list_add(r->arena, out->list, what->list->item[i % unit], r->em);
    }
    return rc;
}

/* `"%s of %d" % (a, b)`: the conversions s, d and %% alone. */
static strata_err format(struct chat_run *r, struct chat_str f, const struct chat_value *arg, struct chat_value *out) {
    bool many = arg->kind == CHAT_LIST && arg->list->tuple;
    size_t used = 0, n = many ? arg->list->len : 1;
    struct chat_text text;
    strata_err rc = STRATA_OK;
    chat_text_init(&text, r->arena, CHAT_OUTPUT_MAX);
    for (size_t i = 0; i < f.len && rc == STRATA_OK; i++) {
        if (f.ptr[i] != '%') {
            rc = chat_text_add(&text, f.ptr + i, 1, r->em);
            continue;
        }
        char c = ++i < f.len ? f.ptr[i] : 0;
        if (c == '%') {
            rc = chat_text_add(&text, "%", 1, r->em);
            continue;
        }
        const struct chat_value *v = used < n ? (many ? &arg->list->item[used] : arg) : NULL;
        used++;
        if (c != 's' && c != 'd' && c != 'i') {
            rc = chat_error(r, STRATA_EUNSUPPORTED, "the format '%%%c' is not supported", c ? c : ' ');
        } else if (!v || (c != 's' && v->kind != CHAT_INT && v->kind != CHAT_BOOL)) {
            rc = chat_error(r, STRATA_EINVAL, "the format '%%%c' has no fitting argument", c);
        } else {
            struct chat_value shown = c == 's' ? *v : chat_int(whole(v));
            rc = chat_value_print(&shown, &text, r->em);
        }
    }
    if (rc == STRATA_OK && many && used != n) rc = chat_error(r, STRATA_EINVAL, "a format has too many arguments");
    if (rc == STRATA_OK) rc = chat_take(r, &text, out);
    chat_text_deinit(&text);
    return rc;
}

static strata_err add_lists(struct chat_run *r, const struct chat_list *a, const struct chat_list *b,
                            struct chat_value *out) {
    strata_err rc = chat_step(r, a->len + b->len);
    if (rc == STRATA_OK) rc = chat_list_new(r->arena, out, r->em);
    for (size_t i = 0; i < a->len + b->len && rc == STRATA_OK; i++) {
        rc = chat_list_add(r->arena, out->list, i < a->len ? a->item[i] : b->item[i - a->len], r->em);
    }
    if (rc == STRATA_OK) out->list->tuple = a->tuple;
    return rc;
}

strata_err chat_binary(struct chat_run *r, enum chat_op op, const struct chat_value *a, const struct chat_value *b,
                       struct chat_value *out) {
    if (op == CHAT_OP_CONCAT) {
        struct chat_value x, y;
        strata_err rc = chat_to_string(r, a, &x);
        if (rc == STRATA_OK) rc = chat_to_string(r, b, &y);
        return rc == STRATA_OK ? concat(r, &x.s, &y.s, out) : rc;
    }
    if (chat_value_is_number(a) && chat_value_is_number(b)) {
        if (a->kind != CHAT_FLOAT && b->kind != CHAT_FLOAT) return whole_binary(r, op, whole(a), whole(b), out);
        return real_binary(r, op, chat_value_number(a), chat_value_number(b), out);
    }
    bool whole_a = a->kind == CHAT_INT || a->kind == CHAT_BOOL, whole_b = b->kind == CHAT_INT || b->kind == CHAT_BOOL;
    if (op == CHAT_OP_ADD && a->kind == CHAT_STRING && b->kind == CHAT_STRING) return concat(r, &a->s, &b->s, out);
    if (op == CHAT_OP_ADD && a->kind == CHAT_LIST && b->kind == CHAT_LIST && a->list->tuple == b->list->tuple) {
        return add_lists(r, a->list, b->list, out);
    }
    if (op == CHAT_OP_MUL && (a->kind == CHAT_STRING || a->kind == CHAT_LIST) && whole_b) {
        return repeat(r, a, whole(b), out);
    }
    if (op == CHAT_OP_MUL && (b->kind == CHAT_STRING || b->kind == CHAT_LIST) && whole_a) {
        return repeat(r, b, whole(a), out);
    }
    if (op == CHAT_OP_MOD && a->kind == CHAT_STRING) return format(r, a->s, b, out);
    return bad_operands(r, op, a, b);
}

strata_err chat_order(struct chat_run *r, const struct chat_value *a, const struct chat_value *b, int *out) {
    if (chat_value_is_number(a) && chat_value_is_number(b)) {
        if (a->kind != CHAT_FLOAT && b->kind != CHAT_FLOAT) {
            *out = whole(a) < whole(b) ? -1 : whole(a) > whole(b);
        } else {
            double x = chat_value_number(a), y = chat_value_number(b);
            *out = x < y ? -1 : x > y;
        }
        return STRATA_OK;
    }
    if (a->kind == CHAT_STRING && b->kind == CHAT_STRING) { /* UTF-8 sorts as its code points do */
        size_t n = a->s.len < b->s.len ? a->s.len : b->s.len;
        int c = n ? memcmp(a->s.ptr, b->s.ptr, n) : 0;
        *out = c ? (c < 0 ? -1 : 1) : a->s.len < b->s.len ? -1 : a->s.len > b->s.len;
        return STRATA_OK;
    }
    return bad_operands(r, CHAT_OP_LT, a, b);
}

static strata_err contains(struct chat_run *r, const struct chat_value *item, const struct chat_value *in, bool *out) {
    *out = false;
    switch (in->kind) {
    case CHAT_STRING:
        if (item->kind != CHAT_STRING) return bad_operands(r, CHAT_OP_IN, item, in);
        *out = item->s.len == 0 || memmem(in->s.ptr, in->s.len, item->s.ptr, item->s.len) != NULL;
        return chat_step(r, in->s.len / 64);
    case CHAT_LIST:
        for (size_t i = 0; i < in->list->len && !*out; i++) *out = chat_value_equal(item, &in->list->item[i]);
        return chat_step(r, in->list->len);
    case CHAT_DICT: *out = chat_dict_get(in->dict, *item) != NULL; return chat_step(r, in->dict->len);
    case CHAT_UNDEFINED: return STRATA_OK;
    default: return bad_operands(r, CHAT_OP_IN, item, in);
    }
}

strata_err chat_compare(struct chat_run *r, enum chat_op op, const struct chat_value *a, const struct chat_value *b,
                        bool *out) {
    int order = 0;
    strata_err rc = STRATA_OK;
    switch (op) {
    case CHAT_OP_EQ: *out = chat_value_equal(a, b); return STRATA_OK;
    case CHAT_OP_NE: *out = !chat_value_equal(a, b); return STRATA_OK;
    case CHAT_OP_IN: return contains(r, a, b, out);
    case CHAT_OP_NOTIN:
        rc = contains(r, a, b, out);
        *out = !*out;
        return rc;
    default: rc = chat_order(r, a, b, &order);
    }
    *out = op == CHAT_OP_LT ? order < 0 : op == CHAT_OP_LE ? order <= 0 : op == CHAT_OP_GT ? order > 0 : order >= 0;
    return rc;
}

static bool loop_attr(const struct chat_loop *l, struct chat_str name, struct chat_value *out) {
    int64_t i = (int64_t)l->index, n = (int64_t)l->items->len;
    const struct chat_value *item = l->items->item;
    const struct {
        const char *name;
        struct chat_value value;
    } attrs[] = {
        {"index", chat_int(i + 1)},
        {"index0", chat_int(i)},
        {"revindex", chat_int(n - i)},
        {"revindex0", chat_int(n - i - 1)},
        {"first", chat_bool(i == 0)},
        {"last", chat_bool(i == n - 1)},
        {"length", chat_int(n)},
        {"depth", chat_int(1)}, /* loops are never recursive */
        {"depth0", chat_int(0)},
        {"previtem", i > 0 ? item[i - 1] : chat_undefined(name)},
        {"nextitem", i + 1 < n ? item[i + 1] : chat_undefined(name)},
    };
    for (size_t k = 0; k < sizeof attrs / sizeof attrs[0]; k++) {
        if (!chat_str_eq(name, attrs[k].name)) continue;
        *out = attrs[k].value;
        return true;
    }
    return false;
}

/* Attributes before entries; chat_item has it the other way round. */
strata_err chat_attr(struct chat_run *r, const struct chat_value *of, struct chat_str name, struct chat_value *out) {
    if (of->kind == CHAT_UNDEFINED) return chat_undefined_error(r, of);
    bool entries = of->kind == CHAT_DICT || of->kind == CHAT_NAMESPACE;
    strata_err rc = chat_step(r, entries ? of->dict->len / 8 : 0);
    if (rc != STRATA_OK) return rc;
    const struct chat_function *f = chat_find_method(of, name);
    if (f) {
        struct chat_method *m = chat_arena_alloc(r->arena, sizeof *m, r->em);
        if (!m) return r->em->code;
        *m = (struct chat_method){*of, f};
        *out = (struct chat_value){.kind = CHAT_METHOD, .method = m};
        return STRATA_OK;
    }
    const struct chat_value *v = entries ? chat_dict_get_str(of->dict, name) : NULL;
    if (of->kind == CHAT_LOOP && loop_attr(of->loop, name, out)) return STRATA_OK;
    if (of->kind == CHAT_LOOP) {
        return chat_error(r, STRATA_EUNSUPPORTED, "'loop.%.*s' is not supported", (int)name.len, name.ptr);
    }
    *out = v ? *v : chat_undefined(name);
    return STRATA_OK;
}

/* Puts an index that may count from the end into [0, n); false when it is outside. */
static bool index_in(int64_t i, size_t n, size_t *out) {
    if (i < 0) i += (int64_t)n;
    if (i < 0 || (uint64_t)i >= n) return false;
    *out = (size_t)i;
    return true;
}

strata_err chat_item(struct chat_run *r, const struct chat_value *of, const struct chat_value *key,
                     struct chat_value *out) {
    size_t i;
    bool whole_key = key->kind == CHAT_INT || key->kind == CHAT_BOOL;
    *out = chat_undefined(key->kind == CHAT_STRING ? key->s : CHAT_STR("item"));
    switch (of->kind) {
    case CHAT_UNDEFINED: return chat_undefined_error(r, of);
    case CHAT_DICT: {
        const struct chat_value *v = chat_dict_get(of->dict, *key);
        if (v) {
            *out = *v;
            return chat_step(r, of->dict->len / 8);
        }
        break;
    }
    case CHAT_LIST:
        if (whole_key && index_in(whole(key), of->list->len, &i)) *out = of->list->item[i];
        break;
    case CHAT_STRING:
        if (whole_key && index_in(whole(key), utf8_length(of->s.ptr, of->s.len), &i)) {
            size_t at = utf8_offset(of->s.ptr, of->s.len, i);
            *out = chat_string(of->s.ptr + at, utf8_offset(of->s.ptr + at, of->s.len - at, 1));
        }
        if (whole_key) return chat_step(r, of->s.len / 64);
        break;
    default: break;
    }
    return key->kind == CHAT_STRING ? chat_attr(r, of, key->s, out) : STRATA_OK;
}

/* A slice bound as Python clips it; `fallback` when it was left out. */
static strata_err bound(struct chat_run *r, const struct chat_value *v, int64_t n, int64_t lo, int64_t hi,
                        int64_t fallback, int64_t *out) {
    *out = fallback;
    if (!v || v->kind == CHAT_NONE) return STRATA_OK;
    if (v->kind != CHAT_INT && v->kind != CHAT_BOOL) {
        return chat_error(r, STRATA_EINVAL, "a slice needs whole numbers, not a %s", chat_value_kind_name(v));
    }
    int64_t i = whole(v);
    if (i < 0) i = i < -n ? lo : i + n;
    *out = i < lo ? lo : i > hi ? hi : i;
    return STRATA_OK;
}

strata_err chat_slice(struct chat_run *r, const struct chat_value *of, const struct chat_value *from,
                      const struct chat_value *to, const struct chat_value *step, struct chat_value *out) {
    if (of->kind == CHAT_UNDEFINED) return chat_undefined_error(r, of);
    if (of->kind != CHAT_STRING && of->kind != CHAT_LIST) {
        return chat_error(r, STRATA_EINVAL, "a %s has no slices", chat_value_kind_name(of));
    }
    bool text = of->kind == CHAT_STRING;
    int64_t n = (int64_t)(text ? utf8_length(of->s.ptr, of->s.len) : of->list->len);
    int64_t by = step && step->kind == CHAT_INT ? step->i : 1, a, b;
    strata_err rc = STRATA_OK;
    if (by == 0 || by > INT32_MAX || by < -INT32_MAX || (step && step->kind != CHAT_INT && step->kind != CHAT_NONE)) {
        rc = chat_error(r, STRATA_EINVAL, "a slice's step must be a whole number that is not 0");
    }
    if (rc == STRATA_OK) rc = bound(r, from, n, by > 0 ? 0 : -1, by > 0 ? n : n - 1, by > 0 ? 0 : n - 1, &a);
    if (rc == STRATA_OK) rc = bound(r, to, n, by > 0 ? 0 : -1, by > 0 ? n : n - 1, by > 0 ? n : -1, &b);
    if (rc == STRATA_OK) rc = chat_step(r, text ? of->s.len / 64 : of->list->len);
    if (rc != STRATA_OK) return rc;
    if (text && by == 1) { /* a view into the string */
        size_t start = utf8_offset(of->s.ptr, of->s.len, (size_t)a);
        size_t len = b > a ? utf8_offset(of->s.ptr + start, of->s.len - start, (size_t)(b - a)) : 0;
        *out = chat_string(of->s.ptr + start, len);
        return STRATA_OK;
    }
    struct chat_list *chars = NULL;
    rc = text ? chat_iterate(r, of, &chars) : STRATA_OK;
    const struct chat_list *items = text ? chars : of->list;
    struct chat_text joined;
    chat_text_init(&joined, r->arena, CHAT_OUTPUT_MAX);
    if (rc == STRATA_OK) rc = chat_list_new(r->arena, out, r->em);
    for (int64_t i = a; rc == STRATA_OK && (by > 0 ? i < b : i > b); i += by) {
        const struct chat_value *v = &items->item[i];
        rc = text ? chat_text_add(&joined, v->s.ptr, v->s.len, r->em) : chat_list_add(r->arena, out->list, *v, r->em);
    }
    if (rc == STRATA_OK && text) rc = chat_take(r, &joined, out);
    if (rc == STRATA_OK && !text) out->list->tuple = of->list->tuple;
    chat_text_deinit(&joined);
    return rc;
}

strata_err chat_iterate(struct chat_run *r, const struct chat_value *v, struct chat_list **out) {
    struct chat_value made;
    strata_err rc = STRATA_OK;
    if (v->kind == CHAT_LIST) {
        *out = v->list;
        return chat_step(r, v->list->len);
    }
    rc = chat_list_new(r->arena, &made, r->em);
    if (rc != STRATA_OK) return rc;
    switch (v->kind) {
    case CHAT_UNDEFINED: break;
    case CHAT_DICT:
        for (size_t i = 0; i < v->dict->len && rc == STRATA_OK; i++) {
            rc = chat_list_add(r->arena, made.list, v->dict->entry[i].key, r->em);
        }
        break;
    case CHAT_STRING:
        for (size_t i = 0; i < v->s.len && rc == STRATA_OK;) {
            size_t n = utf8_offset(v->s.ptr + i, v->s.len - i, 1);
            rc = chat_list_add(r->arena, made.list, chat_string(v->s.ptr + i, n), r->em);
            i += n;
        }
        break;
    default: return chat_error(r, STRATA_EINVAL, "a %s cannot be looped over", chat_value_kind_name(v));
    }
    *out = made.list;
    return rc == STRATA_OK ? chat_step(r, made.list->len) : rc;
}
