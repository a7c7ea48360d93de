/* Typed access to foreign JSON. See jsonx.h. */
#include "base/jsonx.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

strata_err jsonx_parse(const char *data, size_t len, json_t **out, struct strata_errmsg *em) {
    json_error_t je;
    json_t *root = json_loadb(data, len, JSON_REJECT_DUPLICATES, &je);
    if (!root)
        return err_set(em, STRATA_EFORMAT, "not valid JSON: %s (line %d, column %d)", je.text, je.line, je.column);
    *out = root;
    return STRATA_OK;
}

static const char *kind_of(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "a whole number";
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    default: return "null";
    }
}

/* Finds a key; *v is NULL when it is absent and need not be there. */
static strata_err find(const json_t *obj, const char *where, const char *key, bool required, json_t **v,
                       struct strata_errmsg *em) {
    *v = json_object_get(obj, key);
    if (json_is_null(*v)) *v = NULL;
    if (!*v && required) return err_set(em, STRATA_EFORMAT, "%s%s%s is missing", where, *where ? "." : "", key);
    return STRATA_OK;
}

static strata_err wrong(const json_t *v, const char *where, const char *key, const char *want,
                        struct strata_errmsg *em) {
    return err_set(em, STRATA_EFORMAT, "%s%s%s must be %s, not %s", where, *where ? "." : "", key, want, kind_of(v));
}

strata_err jsonx_get_str(const json_t *obj, const char *where, const char *key, bool required, const char **out,
                         struct strata_errmsg *em) {
    json_t *v;
    strata_err rc = find(obj, where, key, required, &v, em);
    if (rc || !v) return rc;
    if (!json_is_string(v)) return wrong(v, where, key, "a string", em);
    *out = json_string_value(v);
    return STRATA_OK;
}

strata_err jsonx_get_u64(const json_t *obj, const char *where, const char *key, bool required, uint64_t max,
                         uint64_t *out, struct strata_errmsg *em) {
    json_t *v;
    strata_err rc = find(obj, where, key, required, &v, em);
    if (rc || !v) return rc;
    if (!json_is_integer(v)) return wrong(v, where, key, "a whole number", em);
    json_int_t n = json_integer_value(v);
    if (n < 0 || (uint64_t)n > max)
        return err_set(em, STRATA_EFORMAT, "%s%s%s is %lld; it must be from 0 to %llu", where, *where ? "." : "", key,
                       (long long)n, (unsigned long long)max);
    *out = (uint64_t)n;
    return STRATA_OK;
}

strata_err jsonx_get_f64(const json_t *obj, const char *where, const char *key, bool required, double lo, double hi,
                         double *out, struct strata_errmsg *em) {
    json_t *v;
    strata_err rc = find(obj, where, key, required, &v, em);
    if (rc || !v) return rc;
    if (!json_is_number(v)) return wrong(v, where, key, "a number", em);
    double n = json_number_value(v);
    if (!isfinite(n) || n < lo || n > hi)
        return err_set(em, STRATA_EFORMAT, "%s%s%s is %g; it must be from %g to %g", where, *where ? "." : "", key, n,
                       lo, hi);
    *out = n;
    return STRATA_OK;
}

strata_err jsonx_get_bool(const json_t *obj, const char *where, const char *key, bool required, bool *out,
                          struct strata_errmsg *em) {
    json_t *v;
    strata_err rc = find(obj, where, key, required, &v, em);
    if (rc || !v) return rc;
    if (!json_is_boolean(v)) return wrong(v, where, key, "a boolean", em);
    *out = json_is_true(v);
    return STRATA_OK;
}

strata_err jsonx_get_obj(const json_t *obj, const char *where, const char *key, bool required, json_t **out,
                         struct strata_errmsg *em) {
    json_t *v;
    strata_err rc = find(obj, where, key, required, &v, em);
    if (rc || !v) return rc;
    if (!json_is_object(v)) return wrong(v, where, key, "an object", em);
    *out = v;
    return STRATA_OK;
}

strata_err jsonx_get_array(const json_t *obj, const char *where, const char *key, bool required, json_t **out,
                           struct strata_errmsg *em) {
    json_t *v;
    strata_err rc = find(obj, where, key, required, &v, em);
    if (rc || !v) return rc;
    if (!json_is_array(v)) return wrong(v, where, key, "an array", em);
    *out = v;
    return STRATA_OK;
}

/* Bytes of the UTF-8 character at p, 0 when there is none: overlong forms, surrogates and NUL do not count. */
static size_t utf8_len(const unsigned char *p, size_t left) {
    unsigned c = p[0], cp;
    size_t n = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    if (n == 0 || n > left || c == 0) return 0;
    if (n == 1) return 1;
    cp = c & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        cp = cp << 6 | (p[i] & 0x3fu);
    }
    bool overlong = (n == 3 && cp < 0x800) || (n == 4 && cp < 0x10000);
    return overlong || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000) ? 0 : n;
}

json_t *jsonx_text(const char *data, size_t len) {
    json_t *v = json_stringn(data, len);
    if (v && !memchr(data, 0, len)) return v;
    json_decref(v);
    if (len > SIZE_MAX / 3) return NULL;
    char *out = malloc(len * 3 + 1);
    if (!out) return NULL;
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        size_t ch = utf8_len((const unsigned char *)data + i, len - i);
        memcpy(out + n, ch ? data + i : "\xef\xbf\xbd", ch ? ch : 3);
        n += ch ? ch : 3;
        i += ch ? ch : 1;
    }
    v = json_stringn(out, n);
    free(out);
    return v;
}

struct dump_state {
    struct buf *out;
    struct strata_errmsg *em;
    strata_err rc;
};

static int dump_chunk(const char *data, size_t len, void *user) {
    struct dump_state *s = user;
    s->rc = buf_append(s->out, data, len, s->em);
    return s->rc ? -1 : 0;
}

strata_err jsonx_dump(const json_t *root, bool pretty, struct buf *out, struct strata_errmsg *em) {
    struct dump_state s = {.out = out, .em = em};
    size_t flags = JSON_ENCODE_ANY | (pretty ? JSON_INDENT(2) : JSON_COMPACT);
    if (json_dump_callback(root, dump_chunk, &s, flags) != 0 && !s.rc)
        s.rc = err_set(em, STRATA_EINTERNAL, "a JSON document could not be written");
    return s.rc;
}
