/* Shapes of JSON documents. See pkg_shape.h. Owns nothing. */
#include "package/pkg_shape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHERE_MAX = 200, NUMBER_MAX = 40 };

/* jansson iterates over non-const objects only; nothing is changed. */
static json_t *iterable(const json_t *v) {
    return (json_t *)(uintptr_t)v;
}

static const json_t *get(const json_t *obj, const char *key) {
    const json_t *v = json_object_get(obj, key);
    return json_is_null(v) ? NULL : v;
}

static bool is_blank(const char *s) {
    return s[strspn(s, " \t\r\n")] == '\0';
}

static const struct pkg_shape *find(const struct pkg_shape *fields, const char *key) {
    while (fields->key && strcmp(fields->key, key) != 0) fields++;
    return fields->key ? fields : NULL;
}

/* ---- the check ---- */

struct place {
    struct pkg_faults *faults;
    enum pkg_fault_code value_code;
    char where[WHERE_MAX];
};

/* A place below another: where.key, or where[key]. Long ones are cut; they are for people. */
static struct place below(const struct place *p, const char *key, bool bracket) {
    struct place out = {.faults = p->faults, .value_code = p->value_code};
    int n = snprintf(out.where, sizeof out.where, "%s%s%.60s%s", p->where,
                     bracket     ? "["
                     : *p->where ? "."
                                 : "",
                     key, bracket ? "]" : "");
    if (n < 0 || (size_t)n >= sizeof out.where) memcpy(out.where + sizeof out.where - 4, "...", 4);
    return out;
}

static struct place item(const struct place *p, size_t i) {
    char number[24];
    snprintf(number, sizeof number, "%zu", i);
    return below(p, number, true);
}

static void wrong_type(const struct place *p, const char *want) {
    pkg_faults_add(p->faults, PKG_FAULT_INVALID_FIELD, NULL, "%s must be %s", p->where, want);
}

static void check_text(const struct pkg_shape *s, const json_t *v, const struct place *p) {
    if (!json_is_string(v)) {
        wrong_type(p, "a string");
        return;
    }
    const char *text = json_string_value(v);
    if ((s->flags & PKG_SHAPE_NOT_BLANK) && is_blank(text))
        pkg_faults_add(p->faults, PKG_FAULT_MISSING_VALUE, NULL, "%s is empty", p->where);
    else if (s->words) {
        size_t i = 0;
        while (s->words[i] && strcmp(s->words[i], text) != 0) i++;
        if (!s->words[i])
            pkg_faults_add(p->faults, p->value_code, NULL, "%s is '%.60s', which schema version 2 does not know",
                           p->where, text);
    }
}

static void check_bounds(const struct pkg_shape *s, double v, const struct place *p) {
    char low[NUMBER_MAX] = "", high[NUMBER_MAX] = "";
    bool bad = ((s->flags & PKG_SHAPE_LOW) && v < s->low) || ((s->flags & PKG_SHAPE_ABOVE) && v <= s->low) ||
               ((s->flags & PKG_SHAPE_HIGH) && v > s->high);
    if (!bad) return;
    if (s->flags & (PKG_SHAPE_LOW | PKG_SHAPE_ABOVE))
        snprintf(low, sizeof low, " %s %g", s->flags & PKG_SHAPE_LOW ? "at least" : "above", s->low);
    if (s->flags & PKG_SHAPE_HIGH) snprintf(high, sizeof high, "%s at most %g", low[0] ? " and" : "", s->high);
    pkg_faults_add(p->faults, p->value_code, NULL, "%s is %g; it must be%s%s", p->where, v, low, high);
}

static void check_integer(const struct pkg_shape *s, const json_t *v, const struct place *p) {
    static const struct {
        json_int_t low, high;
        const char *name;
    } ranges[] = {[PKG_SHAPE_U32] = {0, UINT32_MAX, "a whole number from 0 to 4294967295"},
                  [PKG_SHAPE_U64] = {0, INT64_MAX, "a whole number of at least 0"},
                  [PKG_SHAPE_I32] = {INT32_MIN, INT32_MAX, "a whole number of 32 bits"}};
    enum pkg_shape_kind kind = s->kind == PKG_SHAPE_U64 || s->kind == PKG_SHAPE_I32 ? s->kind : PKG_SHAPE_U32;
    json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < ranges[kind].low || n > ranges[kind].high)
        wrong_type(p, ranges[kind].name);
    else
        check_bounds(s, (double)n, p);
}

static void check_f64(const struct pkg_shape *s, const json_t *v, const struct place *p) {
    if (!json_is_number(v) || !isfinite(json_number_value(v)))
        wrong_type(p, "a number");
    else
        check_bounds(s, json_number_value(v), p);
}

static void check_fields(const struct pkg_shape *fields, const json_t *obj, const struct place *p, const char *tag);

static void check_scalars(const struct pkg_shape *s, const json_t *list, const struct place *p) {
    if (!json_is_array(list)) {
        wrong_type(p, "an array");
        return;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct place at = item(p, i);
        if (s->kind == PKG_SHAPE_TEXTS)
            check_text(s, json_array_get(list, i), &at);
        else
            check_integer(s, json_array_get(list, i), &at);
    }
}

static void check_list(const struct pkg_shape *s, const json_t *list, const struct place *p) {
    if (!json_is_array(list)) {
        wrong_type(p, "an array");
        return;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct place at = item(p, i);
        check_fields(s->sub, json_array_get(list, i), &at, NULL);
    }
}

static void check_variant(const struct pkg_shape *s, const json_t *v, const struct place *p) {
    const json_t *type = json_is_object(v) ? get(v, "type") : NULL;
    struct place at = below(p, "type", false);
    if (!json_is_object(v)) {
        wrong_type(p, "an object");
    } else if (!type) {
        pkg_faults_add(p->faults, PKG_FAULT_MISSING_VALUE, NULL, "%s is missing", at.where);
    } else if (!json_is_string(type)) {
        wrong_type(&at, "a string");
    } else {
        const struct pkg_shape *row = find(s->sub, json_string_value(type));
        if (row)
            check_fields(row->sub, v, p, "type");
        else
            pkg_faults_add(p->faults, p->value_code, NULL, "%s is '%.60s', which schema version 2 does not know",
                           at.where, json_string_value(type));
    }
}

static void check_map(const struct pkg_shape *s, const json_t *map, const struct place *p) {
    const char *key;
    json_t *v;
    if (!json_is_object(map)) {
        wrong_type(p, "an object");
        return;
    }
    json_object_foreach(iterable(map), key, v) {
        struct place at = below(p, key, true);
        if (s->kind == PKG_SHAPE_F64_MAP)
            check_f64(s, v, &at);
        else if (s->kind == PKG_SHAPE_VARIANTS)
            check_variant(s, v, &at);
        else
            check_fields(s->sub, v, &at, NULL);
    }
}

static void check_value(const struct pkg_shape *s, const json_t *v, const struct place *p) {
    switch (s->kind) {
    case PKG_SHAPE_TEXT: check_text(s, v, p); break;
    case PKG_SHAPE_U32:
    case PKG_SHAPE_U64:
    case PKG_SHAPE_I32: check_integer(s, v, p); break;
    case PKG_SHAPE_F64: check_f64(s, v, p); break;
    case PKG_SHAPE_BOOL:
        if (!json_is_boolean(v)) wrong_type(p, "a boolean");
        break;
    case PKG_SHAPE_U32_OR_WORD:
        if (json_is_string(v))
            check_text(s, v, p);
        else
            check_integer(s, v, p);
        break;
    case PKG_SHAPE_TEXTS:
    case PKG_SHAPE_U32S: check_scalars(s, v, p); break;
    case PKG_SHAPE_OBJECT:
        if (!(s->flags & PKG_SHAPE_APART))
            check_fields(s->sub, v, p, NULL);
        else if (!json_is_object(v))
            wrong_type(p, "an object");
        break;
    case PKG_SHAPE_LIST: check_list(s, v, p); break;
    case PKG_SHAPE_MAP:
    case PKG_SHAPE_VARIANTS:
    case PKG_SHAPE_F64_MAP: check_map(s, v, p); break;
    }
}

/* tag: a key beside the fields that has been looked at already, or NULL. The recursion is as deep as the tables. */
static void check_fields(const struct pkg_shape *fields, const json_t *obj, const struct place *p, const char *tag) {
    const char *key;
    json_t *v;
    if (!json_is_object(obj)) {
        wrong_type(p, "an object");
        return;
    }
    json_object_foreach(iterable(obj), key, v) {
        if (find(fields, key) || (tag && strcmp(key, tag) == 0)) continue;
        struct place at = below(p, key, false);
        pkg_faults_add(p->faults, PKG_FAULT_UNKNOWN_FIELD, NULL, "%s is not a field of schema version 2", at.where);
    }
    for (const struct pkg_shape *s = fields; s->key; s++) {
        struct place at = below(p, s->key, false);
        const json_t *value = get(obj, s->key);
        if (s->value_code) at.value_code = s->value_code;
        if (value)
            check_value(s, value, &at);
        else if (s->flags & PKG_SHAPE_REQUIRED)
            pkg_faults_add(p->faults, PKG_FAULT_MISSING_VALUE, NULL, "%s is missing", at.where);
    }
}

void pkg_shape_check(const struct pkg_shape *fields, const json_t *obj, const char *where,
                     enum pkg_fault_code value_code, struct pkg_faults *faults) {
    struct place p = {.faults = faults, .value_code = value_code};
    snprintf(p.where, sizeof p.where, "%.100s", where);
    check_fields(fields, obj, &p, NULL);
}

/* ---- the canonical form ---- */

struct writer {
    struct buf *out;
    struct strata_errmsg *em;
};

static strata_err put(struct writer *w, const char *s) {
    return buf_append_str(w->out, s, w->em);
}

static strata_err put_text(struct writer *w, const char *s) {
    static const char special[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    strata_err rc = put(w, "\"");
    while (*s && !rc) {
        size_t plain = 0;
        while ((unsigned char)s[plain] >= 0x20 && s[plain] != '"' && s[plain] != '\\') plain++;
        rc = buf_append(w->out, s, plain, w->em);
        s += plain;
        if (rc || !*s) break;
        const char *at = strchr(special, *s);
        if (at)
            rc = buf_printf(w->out, w->em, "\\%c", letter[at - special]);
        else
            rc = buf_printf(w->out, w->em, "\\u%04x", (unsigned)(unsigned char)*s);
        s++;
    }
    return rc ? rc : put(w, "\"");
}

/*
 * The shortest digits that read back as v, written plainly when the decimal exponent is from -5 to 15, else with an
 * exponent: 0.7, 1.0, 100000.0, 0.00001, 1e16, 2.5e-7.
 */
static strata_err put_f64(struct writer *w, double v) {
    char text[NUMBER_MAX], digits[NUMBER_MAX];
    int precision = 0;
    do snprintf(text, sizeof text, "%.*e", precision, v);
    while (strtod(text, NULL) != v && ++precision < 17);
    const char *e = strchr(text, 'e');
    if (!e) return err_set(w->em, STRATA_EINTERNAL, "a number could not be written");
    int exponent = atoi(e + 1), n = 0;
    for (const char *p = text; p < e && n < NUMBER_MAX - 1; p++)
        if (*p >= '0' && *p <= '9') digits[n++] = *p;
    while (n > 1 && digits[n - 1] == '0') n--;
    digits[n] = '\0';
    strata_err rc = text[0] == '-' ? put(w, "-") : STRATA_OK;
    if (rc) return rc;
    if (exponent >= 0 && exponent < 16) {
        int whole = exponent + 1, given = n < whole ? n : whole;
        rc = buf_printf(w->out, w->em, "%.*s%.*s.%s", given, digits, whole - given, "0000000000000000",
                        n > whole ? digits + whole : "0");
    } else if (exponent < 0 && exponent >= -5) {
        rc = buf_printf(w->out, w->em, "0.%.*s%s", -exponent - 1, "0000", digits);
    } else {
        rc = buf_printf(w->out, w->em, "%c%s%se%d", digits[0], n > 1 ? "." : "", digits + 1, exponent);
    }
    return rc;
}

static strata_err put_fields(struct writer *w, const struct pkg_shape *fields, const json_t *obj, const char *tag);

static strata_err put_scalar(struct writer *w, const json_t *v) {
    if (json_is_string(v)) return put_text(w, json_string_value(v));
    if (json_is_boolean(v)) return put(w, json_is_true(v) ? "true" : "false");
    return buf_printf(w->out, w->em, "%lld", (long long)json_integer_value(v));
}

struct named {
    const char *key; /* of a map */
    const json_t *value;
    int (*order)(const json_t *a, const json_t *b); /* of a list */
};

static int by_key(const void *a, const void *b) {
    return strcmp(((const struct named *)a)->key, ((const struct named *)b)->key);
}

static int by_order(const void *a, const void *b) {
    const struct named *x = a, *y = b;
    return x->order(x->value, y->value);
}

static strata_err put_list(struct writer *w, const struct pkg_shape *s, const json_t *list) {
    size_t n = json_array_size(list);
    struct named *items = calloc(n + 1, sizeof *items);
    if (!items) return err_nomem(w->em, "a document");
    for (size_t i = 0; i < n; i++) items[i] = (struct named){.value = json_array_get(list, i), .order = s->order};
    if (s->order) qsort(items, n, sizeof *items, by_order);
    strata_err rc = put(w, "[");
    for (size_t i = 0; i < n && !rc; i++) {
        if (i) rc = put(w, ",");
        if (rc) break;
        rc = s->kind == PKG_SHAPE_LIST ? put_fields(w, s->sub, items[i].value, NULL) : put_scalar(w, items[i].value);
    }
    free(items);
    return rc ? rc : put(w, "]");
}

static strata_err put_named(struct writer *w, const struct pkg_shape *s, const json_t *v) {
    if (s->kind == PKG_SHAPE_F64_MAP) return put_f64(w, json_number_value(v));
    if (s->kind == PKG_SHAPE_MAP) return put_fields(w, s->sub, v, NULL);
    const char *type = json_string_value(get(v, "type"));
    const struct pkg_shape *row = type ? find(s->sub, type) : NULL;
    if (!row) return err_set(w->em, STRATA_EINTERNAL, "a document does not fit its shape");
    return put_fields(w, row->sub, v, type);
}

static strata_err put_map(struct writer *w, const struct pkg_shape *s, const json_t *map) {
    size_t n = 0, size = json_object_size(map);
    const char *key;
    json_t *v;
    struct named *items = calloc(size + 1, sizeof *items);
    if (!items) return err_nomem(w->em, "a document");
    json_object_foreach(iterable(map), key, v) items[n++] = (struct named){.key = key, .value = v};
    qsort(items, n, sizeof *items, by_key);
    strata_err rc = put(w, "{");
    for (size_t i = 0; i < n && !rc; i++) {
        if (i) rc = put(w, ",");
        if (!rc) rc = put_text(w, items[i].key);
        if (!rc) rc = put(w, ":");
        if (!rc) rc = put_named(w, s, items[i].value);
    }
    free(items);
    return rc ? rc : put(w, "}");
}

static strata_err put_value(struct writer *w, const struct pkg_shape *s, const json_t *v) {
    switch (s->kind) {
    case PKG_SHAPE_F64: return put_f64(w, json_number_value(v));
    case PKG_SHAPE_OBJECT: return put_fields(w, s->sub, v, NULL);
    case PKG_SHAPE_TEXTS:
    case PKG_SHAPE_U32S:
    case PKG_SHAPE_LIST: return put_list(w, s, v);
    case PKG_SHAPE_MAP:
    case PKG_SHAPE_VARIANTS:
    case PKG_SHAPE_F64_MAP: return put_map(w, s, v);
    default: return put_scalar(w, v);
    }
}

static bool is_empty(const json_t *v) {
    return json_array_size(v) + json_object_size(v) == 0;
}

/* tag: the value of "type", which then comes first, or NULL. */
static strata_err put_fields(struct writer *w, const struct pkg_shape *fields, const json_t *obj, const char *tag) {
    strata_err rc = put(w, "{");
    bool first = true;
    if (!rc && tag) {
        rc = put(w, "\"type\":");
        if (!rc) rc = put_text(w, tag);
        first = false;
    }
    for (const struct pkg_shape *s = fields; s->key && !rc; s++) {
        const json_t *v = get(obj, s->key);
        if (!v || ((s->flags & PKG_SHAPE_SKIP_EMPTY) && is_empty(v))) continue;
        rc = buf_printf(w->out, w->em, "%s\"%s\":", first ? "" : ",", s->key);
        if (!rc) rc = put_value(w, s, v);
        first = false;
    }
    return rc ? rc : put(w, "}");
}

strata_err pkg_shape_canonical(const struct pkg_shape *fields, const json_t *obj, struct buf *out,
                               struct strata_errmsg *em) {
    struct writer w = {.out = out, .em = em};
    return put_fields(&w, fields, obj, NULL);
}
