/*
 * Writes small models for tests: random weights from a seed, and any fault that a test asks for. Architecture llama,
 * unless a test names another one whose tensors are among the parts below. Only what the architecture needs is there; a
 * tokenizer is not (the vocabulary's size is a key).
 */
#ifndef MODEL_FILE_H
#define MODEL_FILE_H

#include "gguf/gguf_reader.h"
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
    uint32_t v_type;    /* of attn_v; 0: type */
    uint32_t alignment; /* 0: 32 */
    bool bias, scale, freqs, tied, fused;
    const char *arch; /* NULL: llama */
    uint32_t window;  /* attention.sliding_window */
    uint32_t experts; /* instead of a feed-forward part, where the layer's number is at least dense_layers */
    uint32_t used, dense_layers;
    bool head_norms;     /* attn_q_norm, attn_k_norm */
    bool post_norms;     /* post_attention_norm, post_ffw_norm */
    bool post_attention; /* the norm before the feed-forward part is called post_attention_norm */
    bool convs;          /* layers 0, 2, 4, ... convolve instead of attending */
    bool latent;         /* attention over compressed rows, as in deepseek2; kv_heads must be 1 */
    /* Faults: */
    const char *skip_key;    /* this key is left out */
    const char *skip_tensor; /* this tensor is left out */
    const char *reshape;     /* this tensor gets one row (or element) too many */
    const char *retype;      /* this tensor becomes I32 */
    const char *spoil;       /* this tensor holds a NaN */
    const char *blow_up;     /* this tensor's values are a hundred million times too large */
    const char *extra;       /* a further tensor of this name, [4] */
    void (*more_keys)(struct gguf_writer *w);
};

enum { MODEL_FILE_TENSORS = 256, MODEL_FILE_LAYERS = 32 };

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

static inline const char *mf_arch(const struct model_file *f) {
    return f->arch ? f->arch : "llama";
}

/* The whole key; false when the test wants it left out. */
static inline bool mf_key(const struct model_writer *m, const char *name, char key[128]) {
    snprintf(key, 128, "%s.%s", mf_arch(m->f), name);
    return !m->f->skip_key || strcmp(m->f->skip_key, key) != 0;
}

static inline void mf_u32(struct model_writer *m, const char *name, uint32_t v) {
    struct strata_errmsg em;
    char key[128];
    if (mf_key(m, name, key)) mf_ok(gguf_writer_add_u32(m->w, key, v, &em), &em);
}

static inline void mf_f32(struct model_writer *m, const char *name, float v) {
    struct strata_errmsg em;
    char key[128];
    if (mf_key(m, name, key)) mf_ok(gguf_writer_add_f32(m->w, key, v, &em), &em);
}

/* Uniform in [-1, 1). */
static inline float mf_random(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (float)(int32_t)(*state >> 32) / 2147483648.0f;
}

/* n2 matrices; values are offset + amplitude * random. */
static inline void mf_stack(struct model_writer *m, const char *name, uint64_t ne0, uint64_t ne1, uint64_t ne2,
                            uint32_t type, float offset, float amplitude) {
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
    size_t rows = (size_t)(ne1 * ne2), n = (size_t)ne0 * rows;
    size_t bytes = ggml_row_size((enum ggml_type)type, (int64_t)ne0) * rows;
    float *values = malloc(n * sizeof *values);
    void *data = malloc(bytes);
    assert_non_null(values);
    assert_non_null(data);
    for (size_t i = 0; i < n; i++) values[i] = offset + amplitude * mf_random(&m->rng);
    if (f->spoil && strcmp(f->spoil, name) == 0) values[n / 2] = NAN;
    for (size_t i = 0; f->blow_up && strcmp(f->blow_up, name) == 0 && i < n; i++) values[i] *= 1e8f;
    if (type == GGML_TYPE_I32 || type == GGML_TYPE_F32) {
        memcpy(data, values, bytes);
    } else {
        ggml_quantize_chunk((enum ggml_type)type, values, data, 0, (int64_t)rows, (int64_t)ne0, NULL);
    }
    free(values);
    m->data[m->n] = data;
    snprintf(m->name[m->n], sizeof m->name[0], "%s", name);
    const uint64_t ne[3] = {ne0, ne1, ne2};
    uint32_t n_dims = ne2 > 1 ? 3 : ne1 > 1 ? 2 : 1;
    mf_ok(gguf_writer_add_tensor(m->w, m->name[m->n], n_dims, ne, type, data, &em), &em);
    m->n++;
}

static inline void mf_tensor(struct model_writer *m, const char *name, uint64_t ne0, uint64_t ne1, uint32_t type,
                             float offset, float amplitude) {
    mf_stack(m, name, ne0, ne1, 1, type, offset, amplitude);
}

static inline void mf_norm(struct model_writer *m, uint32_t il, const char *name, uint32_t n) {
    char full[64];
    snprintf(full, sizeof full, "blk.%u.%s.weight", il, name);
    mf_tensor(m, full, n, 1, GGML_TYPE_F32, 1, 0.1f);
}

static inline void mf_experts(struct model_writer *m, uint32_t il) {
    static const char *const names[] = {"gate", "up", "down"};
    const struct model_file *f = m->f;
    char full[64];
    snprintf(full, sizeof full, "blk.%u.ffn_gate_inp.weight", il);
    mf_tensor(m, full, f->embd, f->experts, GGML_TYPE_F32, 0, 3.0f / sqrtf((float)f->embd));
    for (int i = 0; i < 3; i++) {
        uint32_t n_in = i == 2 ? f->ff : f->embd, n_out = i == 2 ? f->embd : f->ff;
        snprintf(full, sizeof full, "blk.%u.ffn_%s_exps.weight", il, names[i]);
        mf_stack(m, full, n_in, n_out, f->experts, f->type, 0, 1.5f / sqrtf((float)n_in));
    }
}

static inline void mf_linear(struct model_writer *m, uint32_t il, const char *name, uint32_t n_in, uint32_t n_out) {
    char full[64];
    float amplitude = 1.5f / sqrtf((float)n_in);
    bool other = m->f->v_type && strcmp(name, "attn_v") == 0;
    snprintf(full, sizeof full, "blk.%u.%s.weight", il, name);
    mf_tensor(m, full, n_in, n_out, other ? m->f->v_type : m->f->type, 0, amplitude);
    snprintf(full, sizeof full, "blk.%u.%s.bias", il, name);
    if (m->f->bias) mf_tensor(m, full, n_out, 1, GGML_TYPE_F32, 0, 0.2f);
    snprintf(full, sizeof full, "blk.%u.%s.scale", il, name);
    if (m->f->scale) mf_tensor(m, full, 1, 1, GGML_TYPE_F32, 1.2f, 0.3f);
}

enum { MF_LATENT = 64, MF_LATENT_ROT = 32, MF_LATENT_NOPE = 32, MF_LATENT_V = 32 };

static inline void mf_latent(struct model_writer *m, uint32_t il) {
    const struct model_file *f = m->f;
    char name[64];
    mf_linear(m, il, "attn_q", f->embd, f->heads * (MF_LATENT_NOPE + MF_LATENT_ROT));
    mf_linear(m, il, "attn_kv_a_mqa", f->embd, MF_LATENT + MF_LATENT_ROT);
    mf_norm(m, il, "attn_kv_a_norm", MF_LATENT);
    snprintf(name, sizeof name, "blk.%u.attn_k_b.weight", il);
    mf_stack(m, name, MF_LATENT_NOPE, MF_LATENT, f->heads, f->type, 0, 0.3f);
    snprintf(name, sizeof name, "blk.%u.attn_v_b.weight", il);
    mf_stack(m, name, MF_LATENT, MF_LATENT_V, f->heads, f->type, 0, 0.2f);
    mf_linear(m, il, "attn_output", f->heads * MF_LATENT_V, f->embd);
}

static inline void mf_mix(struct model_writer *m, uint32_t il) {
    const struct model_file *f = m->f;
    char name[64];
    uint32_t dim = f->embd / f->heads, n_kv = dim * f->kv_heads;
    if (f->convs && il % 2 == 0) {
        mf_linear(m, il, "shortconv.in_proj", f->embd, 3 * f->embd);
        snprintf(name, sizeof name, "blk.%u.shortconv.conv.weight", il);
        mf_tensor(m, name, 3, f->embd, GGML_TYPE_F32, 0.3f, 0.5f);
        mf_linear(m, il, "shortconv.out_proj", f->embd, f->embd);
        return;
    }
    if (f->latent) {
        mf_latent(m, il);
        return;
    }
    if (f->fused) {
        mf_linear(m, il, "attn_qkv", f->embd, f->embd + 2 * n_kv);
    } else {
        mf_linear(m, il, "attn_k", f->embd, n_kv);
        mf_linear(m, il, "attn_q", f->embd, f->embd);
        mf_linear(m, il, "attn_v", f->embd, n_kv);
    }
    mf_linear(m, il, "attn_output", f->embd, f->embd);
    if (!f->head_norms) return;
    mf_norm(m, il, "attn_q_norm", dim);
    mf_norm(m, il, "attn_k_norm", dim);
}

static inline void mf_layer(struct model_writer *m, uint32_t il) {
    const struct model_file *f = m->f;
    mf_norm(m, il, "attn_norm", f->embd);
    mf_mix(m, il);
    if (f->post_norms) mf_norm(m, il, "post_attention_norm", f->embd);
    mf_norm(m, il, f->post_attention ? "post_attention_norm" : "ffn_norm", f->embd);
    if (f->experts && il >= f->dense_layers) {
        mf_experts(m, il);
    } else {
        mf_linear(m, il, "ffn_gate", f->embd, f->ff);
        mf_linear(m, il, "ffn_up", f->embd, f->ff);
        mf_linear(m, il, "ffn_down", f->ff, f->embd);
    }
    if (f->post_norms) mf_norm(m, il, "post_ffw_norm", f->embd);
}

static inline void mf_keys(struct model_writer *m) {
    const struct model_file *f = m->f;
    int32_t kv[MODEL_FILE_LAYERS];
    struct strata_errmsg em;
    char key[128];
    mf_u32(m, "block_count", f->layers);
    mf_u32(m, "context_length", f->ctx);
    mf_u32(m, "embedding_length", f->embd);
    mf_u32(m, "feed_forward_length", f->ff);
    mf_u32(m, "attention.head_count", f->heads);
    if (f->convs) {
        assert_true(f->layers <= MODEL_FILE_LAYERS);
        for (uint32_t i = 0; i < f->layers; i++) kv[i] = i % 2 ? (int32_t)f->kv_heads : 0;
        if (mf_key(m, "attention.head_count_kv", key)) mf_ok(gguf_writer_add_i32s(m->w, key, kv, f->layers, &em), &em);
        mf_u32(m, "shortconv.l_cache", 3);
    } else {
        mf_u32(m, "attention.head_count_kv", f->kv_heads);
    }
    mf_u32(m, "vocab_size", f->vocab);
    mf_f32(m, "attention.layer_norm_rms_epsilon", 1e-5f);
    if (f->window) mf_u32(m, "attention.sliding_window", f->window);
    if (f->latent) {
        mf_u32(m, "attention.kv_lora_rank", MF_LATENT);
        mf_u32(m, "attention.key_length", MF_LATENT + MF_LATENT_ROT);
        mf_u32(m, "attention.value_length", MF_LATENT);
        mf_u32(m, "attention.key_length_mla", MF_LATENT_NOPE + MF_LATENT_ROT);
        mf_u32(m, "attention.value_length_mla", MF_LATENT_V);
        mf_u32(m, "rope.dimension_count", MF_LATENT_ROT);
    }
    if (!f->experts) return;
    mf_u32(m, "expert_count", f->experts);
    mf_u32(m, "expert_used_count", f->used);
    mf_u32(m, "expert_feed_forward_length", f->ff);
    if (f->dense_layers) mf_u32(m, "leading_dense_block_count", f->dense_layers);
}

static inline void model_file_write(const struct model_file *f, const char *path) {
    static struct model_writer m;
    struct strata_errmsg em;
    uint8_t sum[DIGEST_BYTES];
    uint64_t size;
    m = (struct model_writer){.f = f, .rng = 42};
    mf_ok(gguf_writer_new(f->alignment ? f->alignment : 32, &m.w, &em), &em);
    if (!f->skip_key || strcmp(f->skip_key, "general.architecture") != 0)
        mf_ok(gguf_writer_add_str(m.w, "general.architecture", mf_arch(f), &em), &em);
    mf_keys(&m);
    if (f->more_keys) f->more_keys(m.w);
    mf_tensor(&m, "token_embd.weight", f->embd, f->vocab, f->type, 0, 1);
    for (uint32_t il = 0; il < f->layers; il++) mf_layer(&m, il);
    if (f->freqs) mf_tensor(&m, "rope_freqs.weight", f->embd / f->heads / 2, 1, GGML_TYPE_F32, 2, 1);
    mf_tensor(&m, f->convs ? "token_embd_norm.weight" : "output_norm.weight", f->embd, 1, GGML_TYPE_F32, 1, 0.1f);
    if (!f->tied) mf_tensor(&m, "output.weight", f->embd, f->vocab, f->type, 0, 0.3f);
    if (f->extra) mf_tensor(&m, f->extra, 4, 1, GGML_TYPE_F32, 0, 1);
    mf_ok(gguf_writer_to_file(m.w, path, NULL, sum, &size, &em), &em);
    gguf_writer_free(m.w);
    for (size_t i = 0; i < m.n; i++) free(m.data[i]);
}

/* Puts a NaN into the middle of a tensor of an F32 model's file that is open, and whose pages the model maps. */
static inline void model_file_spoil(const struct gguf_tensor *t, const char *path) {
    enum { ENOUGH = 64 };
    const float nan = NAN;
    FILE *f = fopen(path, "r+b");
    assert_non_null(t);
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    size_t size = (size_t)ftell(f);
    char *all = malloc(size);
    rewind(f);
    assert_int_equal(fread(all, 1, size, f), size);
    const char *at = memmem(all, size, t->data, ENOUGH);
    assert_non_null(at);
    assert_int_equal(fseek(f, (long)(at - all) + (long)(t->bytes / 2 / sizeof nan * sizeof nan), SEEK_SET), 0);
    assert_int_equal(fwrite(&nan, sizeof nan, 1, f), 1);
    assert_int_equal(fclose(f), 0);
    free(all);
}

#endif
