/* Values of chat templates as text: what `{{ }}` prints, Python's repr inside containers, and JSON. See chat_value.h.
 */
#include "base/utf8.h"
#include "text/chat_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The shortest decimal that reads back as f, in Python's form: 1.0, 0.1, 1e-05, 1e+16, inf. */
static strata_err print_float(double f, bool json, struct chat_text *out, struct strata_errmsg *em) {
    if (isnan(f)) return chat_text_add_str(out, json ? "NaN" : "nan", em);
    if (isinf(f)) {
        if (f < 0 && chat_text_add_str(out, "-", em) != STRATA_OK) return em->code;
        return chat_text_add_str(out, json ? "Infinity" : "inf", em);
    }
    char sci[40];
    for (int digits = 0; digits < 17; digits++) {
        snprintf(sci, sizeof sci, "%.*e", digits, f);
        if (strtod(sci, NULL) == f) break;
    }
    char *e = strchr(sci, 'e');
    int exp = e ? (int)strtol(e + 1, NULL, 10) : 0;
    int decimals = e ? (int)(e - sci) - (sci[0] == '-') - 2 : 0; /* digits after the first */
    if (decimals < 0) decimals = 0;
    if (exp < -4 || exp >= 16) return chat_text_add_str(out, sci, em);
    return chat_text_printf(out, em, "%.*f", decimals - exp > 1 ? decimals - exp : 1, f);
}

static strata_err repr_string(struct chat_str s, struct chat_text *out, struct strata_errmsg *em) {
    bool single = memchr(s.ptr, '\'', s.len) != NULL, twice = memchr(s.ptr, '"', s.len) != NULL;
    char quote = single && !twice ? '"' : '\'';
    strata_err rc = chat_text_add(out, &quote, 1, em);
    for (size_t i = 0; i < s.len && rc == STRATA_OK; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        char e[8];
        int n = 0;
        if (c == quote || c == '\\') {
            n = snprintf(e, sizeof e, "\\%c", c);
        } else if (c == '\n' || c == '\r' || c == '\t') {
            n = snprintf(e, sizeof e, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        } else if (c < 0x20 || c == 0x7F) {
            n = snprintf(e, sizeof e, "\\x%02x", c);
        }
        rc = n ? chat_text_add_like(out, e, (size_t)n, s.ptr + i, em) : chat_text_add(out, s.ptr + i, 1, em);
    }
    return rc == STRATA_OK ? chat_text_add(out, &quote, 1, em) : rc;
}

static strata_err print(const struct chat_value *v, bool quoted, int depth, struct chat_text *out,
                        struct strata_errmsg *em);

static strata_err print_list(const struct chat_list *l, int depth, struct chat_text *out, struct strata_errmsg *em) {
    strata_err rc = chat_text_add_str(out, l->tuple ? "(" : "[", em);
    for (size_t i = 0; i < l->len && rc == STRATA_OK; i++) {
        if (i > 0) rc = chat_text_add_str(out, ", ", em);
        if (rc == STRATA_OK) rc = print(&l->item[i], true, depth + 1, out, em);
    }
    if (rc != STRATA_OK) return rc;
    return chat_text_add_str(out, !l->tuple ? "]" : l->len == 1 ? ",)" : ")", em);
}

static strata_err print_dict(const struct chat_dict *d, int depth, struct chat_text *out, struct strata_errmsg *em) {
    strata_err rc = chat_text_add_str(out, "{", em);
    for (size_t i = 0; i < d->len && rc == STRATA_OK; i++) {
        if (i > 0) rc = chat_text_add_str(out, ", ", em);
        if (rc == STRATA_OK) rc = print(&d->entry[i].key, true, depth + 1, out, em);
        if (rc == STRATA_OK) rc = chat_text_add_str(out, ": ", em);
        if (rc == STRATA_OK) rc = print(&d->entry[i].value, true, depth + 1, out, em);
    }
    return rc == STRATA_OK ? chat_text_add_str(out, "}", em) : rc;
}

static strata_err print(const struct chat_value *v, bool quoted, int depth, struct chat_text *out,
                        struct strata_errmsg *em) {
    if (depth > CHAT_VALUE_DEPTH_MAX) {
        return err_set(em, STRATA_ELIMIT, "a value is nested more than %d levels deep", CHAT_VALUE_DEPTH_MAX);
    }
    switch (v->kind) {
    case CHAT_UNDEFINED: return quoted ? chat_text_add_str(out, "Undefined", em) : STRATA_OK;
    case CHAT_NONE: return chat_text_add_str(out, "None", em);
    case CHAT_BOOL: return chat_text_add_str(out, v->b ? "True" : "False", em);
    case CHAT_INT: return chat_text_printf(out, em, "%" PRId64, v->i);
    case CHAT_FLOAT: return print_float(v->f, false, out, em);
    case CHAT_STRING: return quoted ? repr_string(v->s, out, em) : chat_text_add(out, v->s.ptr, v->s.len, em);
    case CHAT_LIST: return print_list(v->list, depth, out, em);
    case CHAT_DICT: return print_dict(v->dict, depth, out, em);
    default: return err_set(em, STRATA_EUNSUPPORTED, "a %s cannot be printed", chat_value_kind_name(v));
    }
}

strata_err chat_value_print(const struct chat_value *v, struct chat_text *out, struct strata_errmsg *em) {
    return print(v, false, 0, out, em);
}

/* ---- JSON ---- */

/* \uXXXX, twice beyond the basic plane; e holds 16 bytes. */
static int json_char(uint32_t cp, char *e) {
    if (cp < 0x10000) return snprintf(e, 16, "\\u%04x", cp);
    cp -= 0x10000;
    return snprintf(e, 16, "\\u%04x\\u%04x", 0xD800 + (cp >> 10), 0xDC00 + (cp & 0x3FF));
}

static strata_err json_string_of(struct chat_str s, bool ascii, struct chat_text *out, struct strata_errmsg *em) {
    static const char special[] = "\"\\\n\r\t\b\f", letter[] = "\"\\nrtbf";
    strata_err rc = chat_text_add_str(out, "\"", em);
    for (size_t i = 0; i < s.len && rc == STRATA_OK;) {
        uint32_t cp;
        size_t n = utf8_decode(s.ptr + i, s.len - i, &cp);
        const char *at = n == 1 && cp ? strchr(special, (int)cp) : NULL;
        char e[16];
        int escaped = 0;
        if (at) {
            escaped = snprintf(e, sizeof e, "\\%c", letter[at - special]);
        } else if ((n == 1 && cp < 0x20) || (ascii && n > 0 && cp >= 0x7F)) {
            escaped = json_char(cp, e);
        }
        rc = escaped ? chat_text_add_like(out, e, (size_t)escaped, s.ptr + i, em)
                     : chat_text_add(out, s.ptr + i, n ? n : 1, em);
        i += n ? n : 1;
    }
    return rc == STRATA_OK ? chat_text_add_str(out, "\"", em) : rc;
}

struct json_out {
    const struct chat_json_style *style;
    struct chat_text *out;
    struct strata_errmsg *em;
};

static strata_err json_break(const struct json_out *j, int depth) {
    if (j->style->indent < 0) return STRATA_OK;
    strata_err rc = chat_text_add_str(j->out, "\n", j->em);
    for (int64_t i = 0; i < j->style->indent * depth && rc == STRATA_OK; i++)
        rc = chat_text_add_str(j->out, " ", j->em);
    return rc;
}

static strata_err json_value(const struct json_out *j, const struct chat_value *v, int depth);

/* Between elements: the separator, without its trailing space when each stands on its own line. */
static strata_err json_next(const struct json_out *j, bool first, int depth) {
    strata_err rc = first ? STRATA_OK : chat_text_add(j->out, j->style->item_sep.ptr, j->style->item_sep.len, j->em);
    return rc == STRATA_OK ? json_break(j, depth) : rc;
}

static strata_err json_list(const struct json_out *j, const struct chat_list *l, int depth) {
    strata_err rc = chat_text_add_str(j->out, "[", j->em);
    for (size_t i = 0; i < l->len && rc == STRATA_OK; i++) {
        rc = json_next(j, i == 0, depth + 1);
        if (rc == STRATA_OK) rc = json_value(j, &l->item[i], depth + 1);
    }
    if (rc == STRATA_OK && l->len > 0) rc = json_break(j, depth);
    return rc == STRATA_OK ? chat_text_add_str(j->out, "]", j->em) : rc;
}

static int by_key(const void *a, const void *b) {
    const struct chat_str *x = &((const struct chat_entry *)a)->key.s, *y = &((const struct chat_entry *)b)->key.s;
    int c = memcmp(x->ptr, y->ptr, x->len < y->len ? x->len : y->len);
    return c ? c : x->len < y->len ? -1 : x->len > y->len;
}

static strata_err json_key(const struct json_out *j, const struct chat_value *key) {
    struct chat_text text;
    if (key->kind == CHAT_STRING) return json_string_of(key->s, j->style->ascii, j->out, j->em);
    chat_text_init(&text, j->out->arena, 64);
    const struct json_out inner = {j->style, &text, j->em};
    strata_err rc = json_value(&inner, key, 0);
    if (rc == STRATA_OK) {
        rc = json_string_of((struct chat_str){buf_cstr(&text.text), text.text.len}, j->style->ascii, j->out, j->em);
    }
    chat_text_deinit(&text);
    return rc;
}

static strata_err json_dict(const struct json_out *j, const struct chat_dict *d, int depth) {
    struct chat_entry *sorted = NULL;
    const struct chat_entry *entry = d->entry;
    strata_err rc = STRATA_OK;
    if (j->style->sort_keys && d->len > 0) {
        for (size_t i = 0; i < d->len; i++) {
            if (d->entry[i].key.kind != CHAT_STRING) {
                return err_set(j->em, STRATA_EUNSUPPORTED, "tojson sorts string keys only");
            }
        }
        sorted = malloc(d->len * sizeof *sorted);
        if (!sorted) return err_nomem(j->em, "sorting keys");
        memcpy(sorted, d->entry, d->len * sizeof *sorted);
        qsort(sorted, d->len, sizeof *sorted, by_key);
        entry = sorted;
    }
    rc = chat_text_add_str(j->out, "{", j->em);
    for (size_t i = 0; i < d->len && rc == STRATA_OK; i++) {
        rc = json_next(j, i == 0, depth + 1);
        if (rc == STRATA_OK) rc = json_key(j, &entry[i].key);
        if (rc == STRATA_OK) rc = chat_text_add(j->out, j->style->key_sep.ptr, j->style->key_sep.len, j->em);
        if (rc == STRATA_OK) rc = json_value(j, &entry[i].value, depth + 1);
    }
    if (rc == STRATA_OK && d->len > 0) rc = json_break(j, depth);
    if (rc == STRATA_OK) rc = chat_text_add_str(j->out, "}", j->em);
    free(sorted);
    return rc;
}

static strata_err json_value(const struct json_out *j, const struct chat_value *v, int depth) {
    if (depth > CHAT_VALUE_DEPTH_MAX) {
        return err_set(j->em, STRATA_ELIMIT, "a value is nested more than %d levels deep", CHAT_VALUE_DEPTH_MAX);
    }
    switch (v->kind) {
    case CHAT_NONE: return chat_text_add_str(j->out, "null", j->em);
    case CHAT_BOOL: return chat_text_add_str(j->out, v->b ? "true" : "false", j->em);
    case CHAT_INT: return chat_text_printf(j->out, j->em, "%" PRId64, v->i);
    case CHAT_FLOAT: return print_float(v->f, true, j->out, j->em);
    case CHAT_STRING: return json_string_of(v->s, j->style->ascii, j->out, j->em);
    case CHAT_LIST: return json_list(j, v->list, depth);
    case CHAT_DICT: return json_dict(j, v->dict, depth);
    default: return err_set(j->em, STRATA_EINVAL, "a %s cannot be written as JSON", chat_value_kind_name(v));
    }
}

strata_err chat_value_json(const struct chat_value *v, const struct chat_json_style *style, struct chat_text *out,
                           struct strata_errmsg *em) {
    const struct json_out j = {style, out, em};
    return json_value(&j, v, 0);
}
