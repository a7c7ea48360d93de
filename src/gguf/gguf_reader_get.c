/* Typed access to metadata: the getters and array walkers of gguf_reader.h. Owns nothing; all results are views. */
#include "gguf/gguf_reader.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

static uint64_t load(const uint8_t *p, uint32_t bytes) {
    uint64_t v = 0;
    for (uint32_t i = 0; i < bytes; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static bool is_signed_kind(uint32_t kind) {
    return kind == GGUF_KIND_I8 || kind == GGUF_KIND_I16 || kind == GGUF_KIND_I32 || kind == GGUF_KIND_I64;
}

static bool is_int_kind(uint32_t kind) {
    return is_signed_kind(kind) || kind == GGUF_KIND_U8 || kind == GGUF_KIND_U16 || kind == GGUF_KIND_U32 ||
           kind == GGUF_KIND_U64;
}

/* The bits of an integer of any kind, sign-extended to 64. */
static uint64_t load_int(const uint8_t *p, uint32_t kind) {
    uint32_t bytes = gguf_types_kind_bytes(kind);
    uint64_t v = load(p, bytes);
    if (is_signed_kind(kind) && bytes < 8 && (v >> (8 * bytes - 1)) != 0) v |= ~UINT64_C(0) << (8 * bytes);
    return v;
}

static double load_float(const uint8_t *p, uint32_t kind) {
    if (kind == GGUF_KIND_F32) {
        uint32_t bits = (uint32_t)load(p, 4);
        float f;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
    uint64_t bits = load(p, 8);
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

static strata_err find(const struct gguf_reader *r, const char *key, bool required, const struct gguf_kv **kv,
                       struct strata_errmsg *em) {
    *kv = gguf_reader_find_kv(r, key);
    if (!*kv && required)
        return err_set(em, STRATA_ENOENT, "%s: metadata key '%s' is missing", gguf_reader_name(r), key);
    return STRATA_OK;
}

static strata_err wrong_kind(const struct gguf_reader *r, const struct gguf_kv *kv, const char *want,
                             struct strata_errmsg *em) {
    bool array = kv->kind == GGUF_KIND_ARRAY;
    return err_set(em, STRATA_EFORMAT, "%s: metadata key '%s' is %s%s; expected %s", gguf_reader_name(r), kv->key,
                   array ? "an array of " : "", gguf_types_kind_name(array ? kv->elem_kind : kv->kind), want);
}

strata_err gguf_reader_get_u64(const struct gguf_reader *r, const char *key, bool required, uint64_t *out,
                               struct strata_errmsg *em) {
    const struct gguf_kv *kv;
    strata_err rc = find(r, key, required, &kv, em);
    if (rc || !kv) return rc;
    if (!is_int_kind(kv->kind)) return wrong_kind(r, kv, "a whole number", em);
    uint64_t v = load_int(kv->value, kv->kind);
    if (is_signed_kind(kv->kind) && v > INT64_MAX)
        return err_set(em, STRATA_EFORMAT, "%s: metadata key '%s' is negative", gguf_reader_name(r), key);
    *out = v;
    return STRATA_OK;
}

strata_err gguf_reader_get_u32(const struct gguf_reader *r, const char *key, bool required, uint32_t *out,
                               struct strata_errmsg *em) {
    uint64_t v = 0;
    if (!required && !gguf_reader_find_kv(r, key)) return STRATA_OK;
    strata_err rc = gguf_reader_get_u64(r, key, true, &v, em);
    if (rc) return rc;
    if (v > UINT32_MAX)
        return err_set(em, STRATA_EFORMAT, "%s: metadata key '%s' is %" PRIu64 ", more than 32 bits hold",
                       gguf_reader_name(r), key, v);
    *out = (uint32_t)v;
    return STRATA_OK;
}

strata_err gguf_reader_get_f32(const struct gguf_reader *r, const char *key, bool required, float *out,
                               struct strata_errmsg *em) {
    const struct gguf_kv *kv;
    strata_err rc = find(r, key, required, &kv, em);
    if (rc || !kv) return rc;
    if (kv->kind != GGUF_KIND_F32 && kv->kind != GGUF_KIND_F64) return wrong_kind(r, kv, "a float", em);
    double v = load_float(kv->value, kv->kind);
    if (!isfinite(v) || fabs(v) > (double)FLT_MAX)
        return err_set(em, STRATA_EFORMAT, "%s: metadata key '%s' is not a finite number", gguf_reader_name(r), key);
    *out = (float)v;
    return STRATA_OK;
}

strata_err gguf_reader_get_bool(const struct gguf_reader *r, const char *key, bool required, bool *out,
                                struct strata_errmsg *em) {
    const struct gguf_kv *kv;
    strata_err rc = find(r, key, required, &kv, em);
    if (rc || !kv) return rc;
    if (kv->kind != GGUF_KIND_BOOL) return wrong_kind(r, kv, "a bool", em);
    *out = kv->value[0] != 0;
    return STRATA_OK;
}

strata_err gguf_reader_get_str(const struct gguf_reader *r, const char *key, bool required, struct gguf_str *out,
                               struct strata_errmsg *em) {
    const struct gguf_kv *kv;
    strata_err rc = find(r, key, required, &kv, em);
    if (rc || !kv) return rc;
    if (kv->kind != GGUF_KIND_STRING) return wrong_kind(r, kv, "a string", em);
    size_t cursor = 0;
    gguf_reader_next_str(kv, &cursor, out);
    return STRATA_OK;
}

strata_err gguf_reader_get_array(const struct gguf_reader *r, const char *key, bool required, uint32_t elem_kind,
                                 const struct gguf_kv **out, struct strata_errmsg *em) {
    const struct gguf_kv *kv;
    strata_err rc = find(r, key, required, &kv, em);
    if (rc) return rc;
    if (kv && (kv->kind != GGUF_KIND_ARRAY || kv->elem_kind != elem_kind)) {
        char want[48] = "an array of ";
        strncat(want, gguf_types_kind_name(elem_kind), sizeof want - strlen(want) - 1);
        return wrong_kind(r, kv, want, em);
    }
    *out = kv;
    return STRATA_OK;
}

/* The lengths were checked when the file was read, so they add up to value_bytes exactly. */
bool gguf_reader_next_str(const struct gguf_kv *array, size_t *cursor, struct gguf_str *out) {
    if (array->elem_kind != GGUF_KIND_STRING || *cursor >= array->value_bytes) return false;
    const uint8_t *p = array->value + *cursor;
    size_t len = (size_t)load(p, 8);
    *out = (struct gguf_str){.data = (const char *)p + 8, .len = len};
    *cursor += 8 + len;
    return true;
}

int64_t gguf_reader_int_at(const struct gguf_kv *array, uint64_t i) {
    uint32_t bytes = gguf_types_kind_bytes(array->elem_kind);
    uint64_t v = load_int(array->value + i * bytes, array->elem_kind);
    if (array->elem_kind == GGUF_KIND_U64 && v > INT64_MAX) return INT64_MAX;
    return (int64_t)v;
}

double gguf_reader_float_at(const struct gguf_kv *array, uint64_t i) {
    return load_float(array->value + i * gguf_types_kind_bytes(array->elem_kind), array->elem_kind);
}
