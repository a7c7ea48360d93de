/*
 * The reader of foreign JSON (RFC 8259). See jsonx_parse in jsonx.h. Owns nothing between calls.
 *
 * jansson keeps the values, but its own reader is not used: when memory runs out while it reads a token, it goes on
 * with a shortened text, beyond its buffers (its issue 362). Refused besides what is no JSON: a key twice, NUL in a
 * string, numbers beyond 64 bits, more than MAX_DEPTH brackets inside each other, a document that is no object or
 * array.
 */
#include "base/jsonx.h"
#include "base/utf8.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 512, TOKEN_MAX = 1 << 30 };

struct parser {
    const char *start, *p, *end;
    struct buf text; /* the string or number being read */
    unsigned depth;
    struct strata_errmsg *em;
};

static strata_err bad(const struct parser *x, const char *what) {
    size_t line = 1;
    const char *bol = x->start;
    for (const char *q = x->start; q < x->p; q++) {
        if (*q != '\n') continue;
        line++;
        bol = q + 1;
    }
    return err_set(x->em, STRATA_EFORMAT, "not valid JSON: %s (line %zu, column %zu)", what, line,
                   (size_t)(x->p - bol) + 1);
}

/* The next byte, or -1 at the end. */
static int peek(const struct parser *x) {
    return x->p < x->end ? (unsigned char)*x->p : -1;
}

static bool take_char(struct parser *x, char c) {
    if (peek(x) != c) return false;
    x->p++;
    return true;
}

/* The next byte that is no white space. */
static int peek_token(struct parser *x) {
    while (x->p < x->end && memchr(" \t\r\n", *x->p, 4)) x->p++;
    return peek(x);
}

/* Four hexadecimal digits as a number; -1 when they are not there. */
static int32_t take_hex4(struct parser *x) {
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    int32_t v = 0;
    if (x->end - x->p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        const char *at = memchr(digits, x->p[i], sizeof digits - 1);
        if (!at) return -1;
        v = v * 16 + (int32_t)((at - digits) % 16);
    }
    x->p += 4;
    return v;
}

static strata_err add_code_point(struct parser *x, uint32_t cp) {
    char s[4];
    return buf_append(&x->text, s, utf8_encode(cp, s), x->em);
}

/* What follows "\u". */
static strata_err take_unicode(struct parser *x) {
    int32_t hi = take_hex4(x), lo;
    if (hi < 0) return bad(x, "\\u needs four hexadecimal digits");
    if (hi == 0) return bad(x, "a NUL character is not allowed");
    if (hi < 0xd800 || hi > 0xdfff) return add_code_point(x, (uint32_t)hi);
    if (hi > 0xdbff || !take_char(x, '\\') || !take_char(x, 'u') || (lo = take_hex4(x)) < 0xdc00 || lo > 0xdfff)
        return bad(x, "half a surrogate pair");
    return add_code_point(x, 0x10000 + ((uint32_t)(hi - 0xd800) << 10) + (uint32_t)(lo - 0xdc00));
}

/* What follows a backslash. */
static strata_err take_escape(struct parser *x) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (take_char(x, 'u')) return take_unicode(x);
    const char *at = x->p < x->end ? memchr(from, *x->p, sizeof from - 1) : NULL;
    if (!at) return bad(x, "unknown escape");
    x->p++;
    return buf_append(&x->text, &to[at - from], 1, x->em);
}

/* Whole characters that stand for themselves. */
static void take_plain(struct parser *x) {
    uint32_t cp;
    size_t n;
    while (x->p < x->end && *x->p != '"' && *x->p != '\\' && (unsigned char)*x->p >= 0x20 &&
           (n = utf8_decode(x->p, (size_t)(x->end - x->p), &cp)) > 0)
        x->p += n;
}

/* What follows the opening quote, up to and with the closing one; the content goes to x->text. */
static strata_err take_string(struct parser *x) {
    strata_err rc = STRATA_OK;
    buf_clear(&x->text);
    while (!rc && !take_char(x, '"')) {
        const char *from = x->p;
        take_plain(x);
        if (x->p > from) rc = buf_append(&x->text, from, (size_t)(x->p - from), x->em);
        if (rc || peek(x) == '"') continue;
        if (take_char(x, '\\'))
            rc = take_escape(x);
        else
            rc = bad(x, peek(x) < 0 ? "a string has no end" : peek(x) < 0x20 ? "a control character" : "not UTF-8");
    }
    return rc;
}

static json_t *made(json_t *v, struct parser *x, strata_err *rc) {
    if (!v) *rc = err_nomem(x->em, "a JSON document");
    return v;
}

static bool take_digits(struct parser *x) {
    const char *from = x->p;
    while (peek(x) >= '0' && peek(x) <= '9') x->p++;
    return x->p > from;
}

/* strtod reads the point of the user's language. */
static strata_err real_value(struct parser *x, double *out) {
    char *dot = strchr(x->text.data, '.'), point = *localeconv()->decimal_point;
    if (dot) *dot = point;
    *out = strtod(x->text.data, NULL);
    return isfinite(*out) ? STRATA_OK : bad(x, "a number is too large");
}

static strata_err take_number(struct parser *x, json_t **out) {
    const char *from = x->p;
    double f;
    (void)take_char(x, '-');
    bool whole = true, ok = take_char(x, '0') || take_digits(x);
    if (ok && take_char(x, '.')) {
        whole = false;
        ok = take_digits(x);
    }
    if (ok && (take_char(x, 'e') || take_char(x, 'E'))) {
        whole = false;
        if (!take_char(x, '-')) (void)take_char(x, '+');
        ok = take_digits(x);
    }
    if (!ok) return bad(x, "not a number");
    buf_clear(&x->text);
    strata_err rc = buf_append(&x->text, from, (size_t)(x->p - from), x->em);
    if (rc) return rc;
    if (!whole) {
        rc = real_value(x, &f);
        if (!rc) *out = made(json_real(f), x, &rc);
        return rc;
    }
    errno = 0;
    long long n = strtoll(x->text.data, NULL, 10);
    if (errno) return bad(x, "a whole number is too large");
    *out = made(json_integer(n), x, &rc);
    return rc;
}

static strata_err take_value(struct parser *x, json_t **out);

/* Puts a new value into obj under the key in x->text. */
static strata_err take_member(struct parser *x, json_t *obj) {
    if (!take_char(x, '"')) return bad(x, "a key in quotes is needed");
    strata_err rc = take_string(x);
    if (rc) return rc;
    if (json_object_get(obj, buf_cstr(&x->text))) return bad(x, "the same key stands twice");
    char *key = strdup(buf_cstr(&x->text));
    json_t *v = NULL;
    if (!key) return err_nomem(x->em, "a JSON document");
    if (peek_token(x) != ':')
        rc = bad(x, "':' is needed");
    else
        x->p++;
    if (!rc) rc = take_value(x, &v);
    if (!rc && json_object_set_new_nocheck(obj, key, v)) rc = err_nomem(x->em, "a JSON document");
    free(key);
    return rc;
}

static strata_err take_element(struct parser *x, json_t *array) {
    json_t *v = NULL;
    strata_err rc = take_value(x, &v);
    if (!rc && json_array_append_new(array, v)) rc = err_nomem(x->em, "a JSON document");
    return rc;
}

/* An object or array, after its bracket. On failure *out is left alone. */
static strata_err take_list(struct parser *x, char close, json_t **out) {
    strata_err rc = STRATA_OK;
    if (x->depth == MAX_DEPTH) return bad(x, "too many brackets inside each other");
    json_t *list = made(close == '}' ? json_object() : json_array(), x, &rc);
    if (rc) return rc;
    x->depth++;
    if (peek_token(x) == close) {
        x->p++;
    } else {
        for (bool more = true; more && !rc;) {
            (void)peek_token(x);
            rc = close == '}' ? take_member(x, list) : take_element(x, list);
            if (rc) break;
            int c = peek_token(x);
            more = c == ',';
            if (c != ',' && c != close)
                rc = bad(x, close == '}' ? "',' or '}' is needed" : "',' or ']' is needed");
            else
                x->p++;
        }
    }
    x->depth--;
    if (rc)
        json_decref(list);
    else
        *out = list;
    return rc;
}

static strata_err take_value(struct parser *x, json_t **out) {
    static const struct {
        const char *name;
        json_t *(*make)(void);
    } words[] = {{"true", json_true}, {"false", json_false}, {"null", json_null}};
    strata_err rc = STRATA_OK;
    int c = peek_token(x);
    if (take_char(x, '{')) return take_list(x, '}', out);
    if (take_char(x, '[')) return take_list(x, ']', out);
    if (take_char(x, '"')) {
        rc = take_string(x);
        if (!rc) *out = made(json_stringn_nocheck(buf_cstr(&x->text), x->text.len), x, &rc);
        return rc;
    }
    if (c == '-' || (c >= '0' && c <= '9')) return take_number(x, out);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t n = strlen(words[i].name);
        if ((size_t)(x->end - x->p) < n || memcmp(x->p, words[i].name, n) != 0) continue;
        x->p += n;
        *out = words[i].make();
        return STRATA_OK;
    }
    return bad(x, "a value is needed");
}

strata_err jsonx_parse(const char *data, size_t len, json_t **out, struct strata_errmsg *em) {
    struct parser x = {.start = data, .p = data, .end = data + len, .em = em};
    json_t *root = NULL;
    buf_init(&x.text, TOKEN_MAX);
    int c = len ? peek_token(&x) : -1;
    strata_err rc = c == '{' || c == '[' ? take_value(&x, &root) : bad(&x, "an object or array is needed");
    if (!rc && peek_token(&x) >= 0) rc = bad(&x, "something follows after the end");
    buf_deinit(&x.text);
    if (rc)
        json_decref(root);
    else
        *out = root;
    return rc;
}
