/* Whether weights are numbers. See model_numbers.h. Owns nothing; reads every byte that could make a result none. */
#include "model/model_numbers.h"

#include "base/pool.h"
#include "gguf/gguf_types.h"

#include <ggml.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Where the half-precision factors of a block are; two at most. Block layouts are part of the file format. */
static const struct {
    bool known;
    uint8_t count;
    uint8_t at[2];
} factors[GGML_TYPE_COUNT] = {
    [GGML_TYPE_Q4_0] = {true, 1, {0}},    [GGML_TYPE_Q4_1] = {true, 2, {0, 2}}, [GGML_TYPE_Q5_0] = {true, 1, {0}},
    [GGML_TYPE_Q5_1] = {true, 2, {0, 2}}, [GGML_TYPE_Q8_0] = {true, 1, {0}},    [GGML_TYPE_Q2_K] = {true, 2, {80, 82}},
    [GGML_TYPE_Q3_K] = {true, 1, {108}},  [GGML_TYPE_Q4_K] = {true, 2, {0, 2}}, [GGML_TYPE_Q5_K] = {true, 2, {0, 2}},
    [GGML_TYPE_Q6_K] = {true, 1, {208}},  [GGML_TYPE_IQ2_XXS] = {true, 1, {0}}, [GGML_TYPE_IQ2_XS] = {true, 1, {0}},
    [GGML_TYPE_IQ3_XXS] = {true, 1, {0}}, [GGML_TYPE_IQ1_S] = {true, 1, {0}},   [GGML_TYPE_IQ4_NL] = {true, 1, {0}},
    [GGML_TYPE_IQ3_S] = {true, 1, {0}},   [GGML_TYPE_IQ2_S] = {true, 1, {0}},   [GGML_TYPE_IQ4_XS] = {true, 1, {0}},
    [GGML_TYPE_TQ1_0] = {true, 1, {52}},  [GGML_TYPE_TQ2_0] = {true, 1, {64}},  [GGML_TYPE_Q1_0] = {true, 1, {0}},
    [GGML_TYPE_Q2_0] = {true, 1, {0}},
};

static uint32_t load_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static bool is_half(uint32_t v) {
    return (v & 0x7c00) != 0x7c00;
}

/*
 * Infinite numbers and NaNs have an exponent of ones, to which one more overflows into the sign. Two at a time, and in
 * two chains: a model's logits are several hundred thousand numbers for each token.
 */
static bool f32_finite(const uint8_t *p, size_t n) {
    const uint64_t exponents = 0x7f8000007f800000u, one = 0x0080000000800000u, signs = 0x8000000080000000u;
    uint64_t a = 0, b = 0;
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        uint64_t pair[2];
        memcpy(pair, p + 4 * i, sizeof pair);
        a |= (pair[0] & exponents) + one;
        b |= (pair[1] & exponents) + one;
    }
    for (; i < n; i++) {
        uint32_t v;
        memcpy(&v, p + 4 * i, sizeof v);
        if ((v & 0x7f800000u) == 0x7f800000u) return false;
    }
    return ((a | b) & signs) == 0;
}

/* Halves and brain floats: an exponent of ones is no number. */
static bool u16_finite(const uint8_t *p, size_t n, uint32_t exponent) {
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++) bad |= (load_u16(p + 2 * i) & exponent) == exponent;
    return !bad;
}

static bool factors_finite(const uint8_t *p, size_t n, size_t block, size_t a, size_t b) {
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++, p += block)
        bad |= (uint32_t)!is_half(load_u16(p + a)) | (uint32_t)!is_half(load_u16(p + b));
    return !bad;
}

/* IQ1_M scatters the four nibbles of its factor over the tops of four 16-bit numbers at the end. */
static bool iq1_m_finite(const uint8_t *p, size_t n, size_t block) {
    bool ok = true;
    for (const uint8_t *s = p + 48; n > 0; n--, s += block)
        ok &= is_half(load_u16(s) >> 12 | (load_u16(s + 2) >> 8 & 0xf0) | (load_u16(s + 4) >> 4 & 0xf00) |
                      (load_u16(s + 6) & 0xf000));
    return ok;
}

/* A power of 2 in the first byte: from 253 on the largest code, 12, takes it beyond the floats. */
static bool mxfp4_finite(const uint8_t *p, size_t n, size_t block) {
    uint32_t top = 0;
    for (size_t i = 0; i < n; i++, p += block) top = *p > top ? *p : top;
    return top < 253;
}

/* Four 8-bit factors; 127 is the one that is no number. */
static bool nvfp4_finite(const uint8_t *p, size_t n, size_t block) {
    bool ok = true;
    for (size_t i = 0; i < n; i++, p += block)
        for (int k = 0; k < 4; k++) ok &= (p[k] & 0x7f) != 0x7f;
    return ok;
}

bool model_numbers_finite(uint32_t type, const void *data, size_t bytes) {
    const struct gguf_tensor_type *t = gguf_types_tensor(type);
    if (!t) return false;
    size_t block = t->block_bytes, n = bytes / block;
    switch (type) {
    case GGML_TYPE_F32: return f32_finite(data, n);
    case GGML_TYPE_F16: return u16_finite(data, n, 0x7c00);
    case GGML_TYPE_BF16: return u16_finite(data, n, 0x7f80);
    case GGML_TYPE_IQ1_M: return iq1_m_finite(data, n, block);
    case GGML_TYPE_MXFP4: return mxfp4_finite(data, n, block);
    case GGML_TYPE_NVFP4: return nvfp4_finite(data, n, block);
    default: break;
    }
    if (!factors[type].known) return ggml_validate_row_data((enum ggml_type)type, data, bytes);
    return factors_finite(data, n, block, factors[type].at[0], factors[type].at[factors[type].count - 1]);
}

/* ---- many tensors ---- */

enum { PIECE_BLOCKS = 1 << 16 };

struct piece {
    size_t tensor, first, bytes;
};

struct job {
    const struct model_numbers *t;
    struct piece *piece;
    struct progress *progress;
    atomic_size_t bad; /* the first tensor; n when there is none */
};

static strata_err look(void *user, size_t i, struct strata_errmsg *em) {
    struct job *j = user;
    const struct piece *p = &j->piece[i];
    const struct model_numbers *t = &j->t[p->tensor];
    (void)em;
    size_t bad = atomic_load(&j->bad);
    bool good = bad <= p->tensor || model_numbers_finite(t->type, (const char *)t->data + p->first, p->bytes);
    if (j->progress) progress_add(j->progress, p->bytes * t->passes);
    if (good) return STRATA_OK;
    while (p->tensor < bad && !atomic_compare_exchange_weak(&j->bad, &bad, p->tensor)) {
    }
    return STRATA_OK;
}

strata_err model_numbers_check(const struct model_numbers *t, size_t n, unsigned threads, struct progress *progress,
                               const struct model_numbers **bad, struct strata_errmsg *em) {
    struct job j = {.t = t, .progress = progress};
    size_t count = 0, k = 0;
    for (size_t i = 0; i < n; i++)
        count += t[i].bytes / ((size_t)gguf_types_tensor(t[i].type)->block_bytes * PIECE_BLOCKS) + 1;
    j.piece = malloc((count ? count : 1) * sizeof *j.piece);
    if (!j.piece) return err_nomem(em, "a check of the weights");
    for (size_t i = 0; i < n; i++) {
        size_t most = (size_t)gguf_types_tensor(t[i].type)->block_bytes * PIECE_BLOCKS;
        for (size_t at = 0; at < t[i].bytes; at += most)
            j.piece[k++] = (struct piece){i, at, t[i].bytes - at < most ? t[i].bytes - at : most};
    }
    atomic_init(&j.bad, n);
    strata_err rc = pool_run(threads, k, look, &j, em);
    size_t first = atomic_load(&j.bad);
    if (!rc) *bad = first < n ? &t[first] : NULL;
    free(j.piece);
    return rc;
}
