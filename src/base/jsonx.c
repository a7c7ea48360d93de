/* Typed access to foreign JSON, and writing. See jsonx.h; the reader is jsonx_parse.c. Owns nothing between calls. */
#include "base/jsonx.h"
#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- typed access ---- */

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

/* ---- writing ---- */

json_t *jsonx_text(const char *data, size_t len) {
    json_t *v = json_stringn(data, len);
    if (v && !memchr(data, 0, len)) return v;
    json_decref(v);
    if (len > SIZE_MAX / 3) return NULL;
    char *out = malloc(len * 3 + 1);
    if (!out) return NULL;
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        uint32_t cp = 0;
        size_t ch = utf8_decode(data + i, len - i, &cp);
        bool ok = ch > 0 && cp != 0;
        memcpy(out + n, ok ? data + i : UTF8_REPLACEMENT, ok ? ch : 3);
        n += ok ? ch : 3;
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
    /* jansson goes on after a key that could not be written: what is lost once stays lost. */
    if (!s->rc) s->rc = buf_append(s->out, data, len, s->em);
    return s->rc ? -1 : 0;
}

strata_err jsonx_dump(const json_t *root, bool pretty, struct buf *out, struct strata_errmsg *em) {
    struct dump_state s = {.out = out, .em = em};
    size_t flags = JSON_ENCODE_ANY | (pretty ? JSON_INDENT(2) : JSON_COMPACT);
    /* Nothing but our own sink and its memory can fail it. */
    if (json_dump_callback(root, dump_chunk, &s, flags) != 0 && !s.rc) s.rc = err_nomem(em, "a JSON document");
    return s.rc;
}
