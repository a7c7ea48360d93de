/* Keys and tensors of a model file. See mk.h. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* a fused multiply-add would round differently; gcc leaves them out with -std=c17 */
#endif

#include "mk.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_MAX = 128, REPEAT_VALUES = 1 << 19 /* values of a matrix before they are repeated */ };

static const char *key_of(char key[KEY_MAX], const struct mk_model *m, const char *name) {
    snprintf(key, KEY_MAX, "%s.%s", m->opt.arch, name);
    return key;
}

strata_err mk_u32(struct mk_model *m, const char *name, uint32_t v, struct strata_errmsg *em) {
    char key[KEY_MAX];
    return gguf_writer_add_u32(m->w, key_of(key, m, name), v, em);
}

strata_err mk_f32(struct mk_model *m, const char *name, float v, struct strata_errmsg *em) {
    char key[KEY_MAX];
    return gguf_writer_add_f32(m->w, key_of(key, m, name), v, em);
}

strata_err mk_bool(struct mk_model *m, const char *name, bool v, struct strata_errmsg *em) {
    char key[KEY_MAX];
    return gguf_writer_add_bool(m->w, key_of(key, m, name), v, em);
}

strata_err mk_str(struct mk_model *m, const char *name, const char *v, struct strata_errmsg *em) {
    char key[KEY_MAX];
    return gguf_writer_add_str(m->w, key_of(key, m, name), v, em);
}

strata_err mk_i32s(struct mk_model *m, const char *name, const int32_t *v, struct strata_errmsg *em) {
    char key[KEY_MAX];
    return gguf_writer_add_i32s(m->w, key_of(key, m, name), v, m->opt.layers + m->opt.nextn, em);
}

static strata_err add(struct mk_model *m, int il, const char *name, uint32_t type, uint32_t n_dims,
                      const uint64_t ne[4], double base, double dev, struct strata_errmsg *em) {
    uint64_t bytes, rows = ne[1] * ne[2];
    if (!gguf_types_tensor_bytes(type, ne, &bytes))
        return err_set(em, STRATA_EINVAL, "%s: rows of %llu do not fit type %s", name, (unsigned long long)ne[0],
                       gguf_types_tensor_name(type));
    if (m->n == MK_MAX_TENSORS) return err_set(em, STRATA_ELIMIT, "more than %d tensors", MK_MAX_TENSORS);
    uint8_t *data = malloc(bytes);
    float *row = malloc(ne[0] * sizeof *row);
    m->payload[m->n] = data;
    if (il == MK_NO_LAYER)
        snprintf(m->name[m->n], sizeof m->name[0], "%s", name);
    else
        snprintf(m->name[m->n], sizeof m->name[0], "blk.%d.%s", il, name);
    const char *own_name = m->name[m->n++];
    strata_err rc = data && row ? STRATA_OK : err_nomem(em, "weights");
    uint64_t row_bytes = bytes / rows, fresh = rows;
    if (m->opt.repeat && rows > 1) fresh = REPEAT_VALUES / ne[0] + 1 < rows ? REPEAT_VALUES / ne[0] + 1 : rows;
    for (uint64_t j = 0; j < fresh && !rc; j++) {
        for (uint64_t i = 0; i < ne[0]; i++) row[i] = (float)(base + dev * mk_normal(&m->rng));
        uint8_t *dst = data + j * row_bytes;
        const char *why = m->opt.quantize && type != GGUF_TENSOR_F32 ? mk_quant_row(type, row, ne[0], dst)
                                                                     : mk_pack(type, row, ne[0], dev, &m->rng, dst);
        if (why) rc = err_set(em, STRATA_EINVAL, "%s: %s", gguf_types_tensor_name(type), why);
    }
    for (uint64_t j = fresh; j < rows && !rc; j++)
        memcpy(data + j * row_bytes, data + (j - fresh) * row_bytes, row_bytes);
    free(row);
    return rc ? rc : gguf_writer_add_tensor(m->w, own_name, n_dims, ne, type, data, em);
}

strata_err mk_vector(struct mk_model *m, int il, const char *name, uint64_t n, double base, double dev,
                     struct strata_errmsg *em) {
    return add(m, il, name, GGUF_TENSOR_F32, 1, (const uint64_t[4]){n, 1, 1, 1}, base, dev, em);
}

strata_err mk_matrix(struct mk_model *m, int il, const char *name, uint32_t type, uint64_t n_in, uint64_t n_out,
                     uint64_t count, double dev, struct strata_errmsg *em) {
    if (type == m->opt.type && !mk_quant_type(&m->opt, name, n_in, &type))
        return err_set(em, STRATA_EINVAL, "--quantize %s: see --help", m->opt.quantize);
    return add(m, il, name, type, count > 1 ? 3 : 2, (const uint64_t[4]){n_in, n_out, count, 1}, 0, dev, em);
}

strata_err mk_norm(struct mk_model *m, int il, const char *name, uint64_t n, struct strata_errmsg *em) {
    return mk_vector(m, il, name, n, 1, 0.1, em);
}

/* Files carry no factors for blocks behind the trunk. */
static bool has_scale(const struct mk_model *m, int il) {
    return m->opt.scales && il < (int)m->opt.layers;
}

strata_err mk_linear(struct mk_model *m, int il, const char *name, uint64_t n_in, uint64_t n_out, bool bias,
                     struct strata_errmsg *em) {
    char full[64];
    snprintf(full, sizeof full, "%s.weight", name);
    strata_err rc = mk_matrix(m, il, full, m->opt.type, n_in, n_out, 1, 1 / sqrt((double)n_in), em);
    snprintf(full, sizeof full, "%s.bias", name);
    if (!rc && bias) rc = mk_vector(m, il, full, n_out, 0, 0.1, em);
    snprintf(full, sizeof full, "%s.scale", name);
    if (!rc && has_scale(m, il)) rc = mk_vector(m, il, full, 1, 1.2, 0.1, em);
    return rc;
}

strata_err mk_experts(struct mk_model *m, int il, const char *name, uint64_t n_in, uint64_t n_out, bool bias,
                      struct strata_errmsg *em) {
    char full[64];
    uint64_t n = m->opt.experts;
    snprintf(full, sizeof full, "%s.weight", name);
    strata_err rc = mk_matrix(m, il, full, m->opt.type, n_in, n_out, n, 1 / sqrt((double)n_in), em);
    snprintf(full, sizeof full, "%s.bias", name);
    if (!rc && bias) rc = add(m, il, full, GGUF_TENSOR_F32, 2, (const uint64_t[4]){n_out, n, 1, 1}, 0, 0.1, em);
    snprintf(full, sizeof full, "%s.scale", name);
    if (!rc && has_scale(m, il)) rc = mk_vector(m, il, full, n, 1.2, 0.1, em);
    return rc;
}
