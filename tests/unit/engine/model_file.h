/*
 * Writes small llama-architecture models for tests: random weights from a seed, and any fault that a test asks for.
 * Only what the architecture needs is there; a tokenizer is not (the vocabulary's size is a key).
 */
#ifndef MODEL_FILE_H
#define MODEL_FILE_H

#include "gguf/gguf_writer.h"

#include "../base/tmp_folder.h"

#include <ggml.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct model_file {
    uint32_t layers, embd, heads, kv_heads, ff, vocab, ctx;
    uint32_t type;      /* of the matrices; 0: F32 */
    uint32_t alignment; /* 0: 32 */
    bool bias, scale, freqs, tied, fused;
    /* Faults: */
    const char *skip_key;    /* this key is left out */
    const char *skip_tensor; /* this tensor is left out */
    const char *reshape;     /* this tensor gets one row (or element) too many */
    const char *retype;      /* this tensor becomes I32 */
    const char *extra;       /* a further tensor of this name, [4] */
    void (*more_keys)(struct gguf_writer *w);
};

enum { MODEL_FILE_TENSORS = 256 };

struct model_writer {
    const struct model_file *f;
    struct gguf_writer *w;
    uint64_t rng;
    void *data[MODEL_FILE_TENSORS];
    char name[MODEL_FILE_TENSORS][64];
    size_t n;
};

/* The shape that most tests use: five layers, so that there are many ways to cut it. */
static inline struct model_file model_file_small(void) {
    return (struct model_file){.layers = 5, .embd = 64, .heads = 4, .kv_heads = 2, .ff = 96, .vocab = 80, .ctx = 2048};
}

static inline void mf_ok(strata_err rc, const struct strata_errmsg *em) {
    if (rc) fail_msg("%s", em->text);
}

static inline void mf_u32(struct model_writer *m, const char *key, uint32_t v) {
    struct strata_errmsg em;
    if (m->f->skip_key && strcmp(m->f->skip_key, key) == 0) return;
    mf_ok(gguf_writer_add_u32(m->w, key, v, &em), &em);
}

static inline void mf_f32(struct model_writer *m, const char *key, float v) {
    struct strata_errmsg em;
    if (m->f->skip_key && strcmp(m->f->skip_key, key) == 0) return;
    mf_ok(gguf_writer_add_f32(m->w, key, v, &em), &em);
}

/* Uniform in [-1, 1). */
static inline float mf_random(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (float)(int32_t)(*state >> 32) / 2147483648.0f;
}

/* Values are offset + amplitude * random. */
static inline void mf_tensor(struct model_writer *m, const char *name, uint64_t ne0, uint64_t ne1, uint32_t type,
                             float offset, float amplitude) {
    struct strata_errmsg em;
    const struct model_file *f = m->f;
    if (f->skip_tensor && strcmp(f->skip_tensor, name) == 0) return;
    if (f->reshape && strcmp(f->reshape, name) == 0) {
        if (ne1 > 1)
            ne1++;
        else
            ne0++;
    }
    if (f->retype && strcmp(f->retype, name) == 0) type = GGML_TYPE_I32;
    assert_true(m->n < MODEL_FILE_TENSORS);
    size_t n = (size_t)(ne0 * ne1), bytes = ggml_row_size((enum ggml_type)type, (int64_t)ne0) * (size_t)ne1;
    float *values = malloc(n * sizeof *values);
    void *data = malloc(bytes);
    assert_non_null(values);
    assert_non_null(data);
    for (size_t i = 0; i < n; i++) values[i] = offset + amplitude * mf_random(&m->rng);
    if (type == GGML_TYPE_I32 || type == GGML_TYPE_F32) {
        memcpy(data, values, bytes);
    } else {
        ggml_quantize_chunk((enum ggml_type)type, values, data, 0, (int64_t)ne1, (int64_t)ne0, NULL);
    }
    free(values);
    m->data[m->n] = data;
    snprintf(m->name[m->n], sizeof m->name[0], "%s", name);
    const uint64_t ne[2] = {ne0, ne1};
    mf_ok(gguf_writer_add_tensor(m->w, m->name[m->n], ne1 > 1 ? 2 : 1, ne, type, data, &em), &em);
    m->n++;
}

static inline void mf_linear(struct model_writer *m, uint32_t il, const char *name, uint32_t n_in, uint32_t n_out) {
    char full[64];
    float amplitude = 1.5f / sqrtf((float)n_in);
    snprintf(full, sizeof full, "blk.%u.%s.weight", il, name);
    mf_tensor(m, full, n_in, n_out, m->f->type, 0, amplitude);
    snprintf(full, sizeof full, "blk.%u.%s.bias", il, name);
    if (m->f->bias) mf_tensor(m, full, n_out, 1, GGML_TYPE_F32, 0, 0.2f);
    snprintf(full, sizeof full, "blk.%u.%s.scale", il, name);
    if (m->f->scale) mf_tensor(m, full, 1, 1, GGML_TYPE_F32, 1.2f, 0.3f);
}

static inline void mf_layer(struct model_writer *m, uint32_t il) {
    const struct model_file *f = m->f;
    char name[64];
    uint32_t dim = f->embd / f->heads, n_kv = dim * f->kv_heads;
    snprintf(name, sizeof name, "blk.%u.attn_norm.weight", il);
    mf_tensor(m, name, f->embd, 1, GGML_TYPE_F32, 1, 0.1f);
    if (f->fused) {
        mf_linear(m, il, "attn_qkv", f->embd, f->embd + 2 * n_kv);
    } else {
        mf_linear(m, il, "attn_k", f->embd, n_kv);
        mf_linear(m, il, "attn_q", f->embd, f->embd);
        mf_linear(m, il, "attn_v", f->embd, n_kv);
    }
    mf_linear(m, il, "attn_output", f->embd, f->embd);
    snprintf(name, sizeof name, "blk.%u.ffn_norm.weight", il);
    mf_tensor(m, name, f->embd, 1, GGML_TYPE_F32, 1, 0.1f);
    mf_linear(m, il, "ffn_gate", f->embd, f->ff);
    mf_linear(m, il, "ffn_up", f->embd, f->ff);
    mf_linear(m, il, "ffn_down", f->ff, f->embd);
}

static inline void model_file_write(const struct model_file *f, const char *path) {
    static struct model_writer m;
    struct strata_errmsg em;
    uint8_t sum[DIGEST_BYTES];
    uint64_t size;
    m = (struct model_writer){.f = f, .rng = 42};
    mf_ok(gguf_writer_new(f->alignment ? f->alignment : 32, &m.w, &em), &em);
    if (!f->skip_key || strcmp(f->skip_key, "general.architecture") != 0)
        mf_ok(gguf_writer_add_str(m.w, "general.architecture", "llama", &em), &em);
    mf_u32(&m, "llama.block_count", f->layers);
    mf_u32(&m, "llama.context_length", f->ctx);
    mf_u32(&m, "llama.embedding_length", f->embd);
    mf_u32(&m, "llama.feed_forward_length", f->ff);
    mf_u32(&m, "llama.attention.head_count", f->heads);
    mf_u32(&m, "llama.attention.head_count_kv", f->kv_heads);
    mf_u32(&m, "llama.vocab_size", f->vocab);
    mf_f32(&m, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    if (f->more_keys) f->more_keys(m.w);
    mf_tensor(&m, "token_embd.weight", f->embd, f->vocab, f->type, 0, 1);
    for (uint32_t il = 0; il < f->layers; il++) mf_layer(&m, il);
    if (f->freqs) mf_tensor(&m, "rope_freqs.weight", f->embd / f->heads / 2, 1, GGML_TYPE_F32, 2, 1);
    mf_tensor(&m, "output_norm.weight", f->embd, 1, GGML_TYPE_F32, 1, 0.1f);
    if (!f->tied) mf_tensor(&m, "output.weight", f->embd, f->vocab, f->type, 0, 0.3f);
    if (f->extra) mf_tensor(&m, f->extra, 4, 1, GGML_TYPE_F32, 0, 1);
    mf_ok(gguf_writer_to_file(m.w, path, NULL, sum, &size, &em), &em);
    gguf_writer_free(m.w);
    for (size_t i = 0; i < m.n; i++) free(m.data[i]);
}

#endif
