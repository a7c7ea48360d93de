/*
 * Reads and checks the hyper-parameters that all transformer architectures share. See model_hparams.h.
 *
 * Owns the table of per-layer dimensions. Refuses, by the name of the key: zero or absurd sizes, heads that do not
 * divide, odd rotations, unknown scalings, numbers that are not finite (the reader's rule), and a block count that the
 * metadata cannot mean.
 */
#include "model/model_hparams.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *model_hparams_key(char key[MODEL_KEY_MAX], const struct model_hparams *hp, const char *name) {
    snprintf(key, MODEL_KEY_MAX, "%s.%s", hp->arch, name);
    return key;
}

strata_err model_hparams_u32(const struct gguf_reader *meta, const struct model_hparams *hp, const char *name,
                             uint32_t *out, struct strata_errmsg *em) {
    char key[MODEL_KEY_MAX];
    return gguf_reader_get_u32(meta, model_hparams_key(key, hp, name), false, out, em);
}

strata_err model_hparams_f32(const struct gguf_reader *meta, const struct model_hparams *hp, const char *name,
                             float *out, struct strata_errmsg *em) {
    char key[MODEL_KEY_MAX];
    return gguf_reader_get_f32(meta, model_hparams_key(key, hp, name), false, out, em);
}

strata_err model_hparams_bool(const struct gguf_reader *meta, const struct model_hparams *hp, const char *name,
                              bool *out, struct strata_errmsg *em) {
    char key[MODEL_KEY_MAX];
    return gguf_reader_get_bool(meta, model_hparams_key(key, hp, name), false, out, em);
}

strata_err model_hparams_causal(const struct model_hparams *hp, const struct gguf_reader *meta,
                                struct strata_errmsg *em) {
    bool causal = true;
    strata_err rc = model_hparams_bool(meta, hp, "attention.causal", &causal, em);
    if (rc || causal) return rc;
    return err_set(em, STRATA_EUNSUPPORTED,
                   "%s.attention.causal is false: this is an embedding model, which cannot generate text", hp->arch);
}

strata_err model_hparams_no_nextn(const struct model_hparams *hp, struct strata_errmsg *em) {
    if (hp->n_block == hp->n_layer) return STRATA_OK;
    return err_set(em, STRATA_EUNSUPPORTED, "%s.nextn_predict_layers is %u; this architecture has none", hp->arch,
                   (unsigned)(hp->n_block - hp->n_layer));
}

/* A size that must be there and lie in [1, max]. */
static strata_err get_size(const struct gguf_reader *meta, const struct model_hparams *hp, const char *name,
                           uint32_t max, uint32_t *out, struct strata_errmsg *em) {
    char key[MODEL_KEY_MAX];
    uint32_t v = 0;
    strata_err rc = gguf_reader_get_u32(meta, model_hparams_key(key, hp, name), true, &v, em);
    if (rc) return rc;
    if (v == 0 || v > max)
        return err_set(em, STRATA_EFORMAT, "%s is %u; it must be from 1 to %u", key, (unsigned)v, (unsigned)max);
    *out = v;
    return STRATA_OK;
}

/* A size where absent and 0 both mean `preset`. */
static strata_err get_size_or(const struct gguf_reader *meta, const struct model_hparams *hp, const char *name,
                              uint32_t max, uint32_t preset, uint32_t *out, struct strata_errmsg *em) {
    uint32_t v = 0;
    strata_err rc = model_hparams_u32(meta, hp, name, &v, em);
    if (rc) return rc;
    if (v > max)
        return err_set(em, STRATA_EFORMAT, "%s.%s is %u; Strata runs at most %u", hp->arch, name, (unsigned)v,
                       (unsigned)max);
    *out = v ? v : preset;
    return STRATA_OK;
}

/* A size per block, stored as one number for all or as an array of one for each; `offset` places it in the table. */
static strata_err get_per_layer(const struct gguf_reader *meta, struct model_hparams *hp, const char *name,
                                size_t offset, uint32_t min, uint32_t max, bool required, struct strata_errmsg *em) {
    char key[MODEL_KEY_MAX];
    uint32_t one = 0;
    const struct gguf_kv *kv = gguf_reader_find_kv(meta, model_hparams_key(key, hp, name));
    bool is_array = kv && kv->kind == GGUF_KIND_ARRAY;
    if (is_array) {
        if (kv->elem_kind > GGUF_KIND_I32 && kv->elem_kind != GGUF_KIND_U64 && kv->elem_kind != GGUF_KIND_I64)
            return err_set(em, STRATA_EFORMAT, "%s holds values of kind %s; whole numbers are needed", key,
                           gguf_types_kind_name(kv->elem_kind));
        if (kv->count != hp->n_block)
            return err_set(em, STRATA_EFORMAT, "%s has %llu entries, but the model has %u blocks", key,
                           (unsigned long long)kv->count, (unsigned)hp->n_block);
    } else {
        strata_err rc = gguf_reader_get_u32(meta, key, required, &one, em);
        if (rc || (!kv && !required)) return rc;
    }
    for (uint32_t i = 0; i < hp->n_block; i++) {
        int64_t v = is_array ? gguf_reader_int_at(kv, i) : (int64_t)one;
        if (v < (int64_t)min || v > (int64_t)max)
            return err_set(em, STRATA_EFORMAT, "%s is %lld for block %u; it must be from %u to %u", key, (long long)v,
                           (unsigned)i, (unsigned)min, (unsigned)max);
        *(uint32_t *)((char *)&hp->layer[i] + offset) = (uint32_t)v;
    }
    return STRATA_OK;
}

/* The vocabulary's size: the length of the token list, else the key, else unknown. */
static strata_err read_vocab_size(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    const struct gguf_kv *tokens = NULL;
    uint32_t n = 0;
    strata_err rc = gguf_reader_get_array(meta, "tokenizer.ggml.tokens", false, GGUF_KIND_STRING, &tokens, em);
    if (rc) return rc;
    if (tokens && tokens->count > 0) {
        if (tokens->count > MODEL_MAX_VOCAB)
            return err_set(em, STRATA_ELIMIT, "the vocabulary has %llu tokens; Strata runs at most %d",
                           (unsigned long long)tokens->count, (int)MODEL_MAX_VOCAB);
        n = (uint32_t)tokens->count;
    } else {
        rc = get_size_or(meta, hp, "vocab_size", MODEL_MAX_VOCAB, 0, &n, em);
        if (rc) return rc;
    }
    hp->n_vocab = n;
    return STRATA_OK;
}

static strata_err read_sizes(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    uint32_t nextn = 0;
    strata_err rc = get_size(meta, hp, "block_count", MODEL_MAX_LAYERS, &hp->n_block, em);
    if (!rc) rc = get_size(meta, hp, "embedding_length", MODEL_MAX_EMBD, &hp->n_embd, em);
    if (!rc) rc = get_size(meta, hp, "context_length", MODEL_MAX_CTX, &hp->n_ctx_train, em);
    if (!rc) rc = model_hparams_u32(meta, hp, "nextn_predict_layers", &nextn, em);
    if (rc) return rc;
    if (nextn >= hp->n_block)
        return err_set(em, STRATA_EFORMAT, "%s.nextn_predict_layers is %u, but there are only %u blocks", hp->arch,
                       (unsigned)nextn, (unsigned)hp->n_block);
    hp->n_layer = hp->n_block - nextn;
    return read_vocab_size(hp, meta, em);
}

static strata_err read_heads(struct model_hparams *hp, const struct gguf_reader *meta,
                             const struct model_hparams_rules *rules, struct strata_errmsg *em) {
    uint32_t least = rules->hybrid ? 0 : 1, n_head = 0;
    hp->layer = calloc(hp->n_block, sizeof *hp->layer);
    if (!hp->layer) return err_nomem(em, "the layers' dimensions");
    strata_err rc = get_per_layer(meta, hp, "attention.head_count", offsetof(struct model_layer_dims, n_head), least,
                                  MODEL_MAX_HEADS, true, em);
    if (rc) return rc;
    for (uint32_t i = 0; i < hp->n_block; i++) hp->layer[i].n_head_kv = hp->layer[i].n_head;
    rc = get_per_layer(meta, hp, "attention.head_count_kv", offsetof(struct model_layer_dims, n_head_kv), least,
                       MODEL_MAX_HEADS, false, em);
    if (!rc)
        rc = get_per_layer(meta, hp, "feed_forward_length", offsetof(struct model_layer_dims, n_ff), 0, MODEL_MAX_FF,
                           false, em);
    if (rc) return rc;
    for (uint32_t i = 0; i < hp->n_block; i++) {
        struct model_layer_dims *d = &hp->layer[i];
        if (d->n_head == 0 || d->n_head_kv == 0) d->n_head = d->n_head_kv = 0;
        if (n_head == 0) n_head = d->n_head;
        if (d->n_head_kv && d->n_head % d->n_head_kv != 0)
            return err_set(em, STRATA_EFORMAT, "block %u has %u heads, which %u key/value heads do not divide (%s)",
                           (unsigned)i, (unsigned)d->n_head, (unsigned)d->n_head_kv,
                           "attention.head_count, attention.head_count_kv");
    }
    if (n_head == 0) return err_set(em, STRATA_EFORMAT, "%s.attention.head_count gives no layer any heads", hp->arch);
    uint32_t head_dim = hp->n_embd / n_head;
    rc = get_size_or(meta, hp, "attention.key_length", MODEL_MAX_HEAD_DIM, 0, &hp->head_dim_k, em);
    if (!rc) rc = get_size_or(meta, hp, "attention.value_length", MODEL_MAX_HEAD_DIM, 0, &hp->head_dim_v, em);
    if (rc) return rc;
    if ((!hp->head_dim_k || !hp->head_dim_v) && hp->n_embd % n_head != 0)
        return err_set(em, STRATA_EFORMAT,
                       "%s.embedding_length %u is not a multiple of %s.attention.head_count %u, and the file gives no "
                       "attention.key_length and value_length",
                       hp->arch, (unsigned)hp->n_embd, hp->arch, (unsigned)n_head);
    if (!hp->head_dim_k) hp->head_dim_k = head_dim;
    if (!hp->head_dim_v) hp->head_dim_v = head_dim;
    if (hp->head_dim_k > MODEL_MAX_HEAD_DIM || hp->head_dim_v > MODEL_MAX_HEAD_DIM)
        return err_set(em, STRATA_EFORMAT, "heads of %u dimensions are over the limit of %d", (unsigned)head_dim,
                       (int)MODEL_MAX_HEAD_DIM);
    return STRATA_OK;
}

static strata_err read_rope_scaling(struct model_hparams *hp, const struct gguf_reader *meta,
                                    struct strata_errmsg *em) {
    static const struct {
        const char *name;
        enum model_rope_scaling scaling;
    } names[] = {{"none", MODEL_ROPE_NONE},
                 {"linear", MODEL_ROPE_LINEAR},
                 {"yarn", MODEL_ROPE_YARN},
                 {"longrope", MODEL_ROPE_LONGROPE}};
    char key[MODEL_KEY_MAX];
    struct gguf_str type = {"linear", 6};
    strata_err rc = gguf_reader_get_str(meta, model_hparams_key(key, hp, "rope.scaling.type"), false, &type, em);
    if (rc) return rc;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (type.len == strlen(names[i].name) && memcmp(type.data, names[i].name, type.len) == 0) {
            hp->rope.scaling = names[i].scaling;
            return STRATA_OK;
        }
    return err_set(em, STRATA_EUNSUPPORTED, "%s is '%.*s'; known are none, linear, yarn and longrope", key,
                   (int)(type.len > 64 ? 64 : type.len), type.data);
}

static strata_err read_rope(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    struct model_rope *r = &hp->rope;
    float base = 0, factor = 0, attn = 0, ext = -1, yarn_attn = 0, fast = 0, slow = 0;
    strata_err rc = read_rope_scaling(hp, meta, em);
    if (!rc) rc = get_size_or(meta, hp, "rope.dimension_count", MODEL_MAX_HEAD_DIM, hp->head_dim_k, &r->n_rot, em);
    if (!rc)
        rc = get_size_or(meta, hp, "rope.scaling.original_context_length", MODEL_MAX_CTX, hp->n_ctx_train,
                         &r->n_ctx_orig, em);
    if (!rc) rc = model_hparams_f32(meta, hp, "rope.freq_base", &base, em);
    if (!rc) rc = model_hparams_f32(meta, hp, "rope.scale_linear", &factor, em); /* the name of old files */
    if (!rc) rc = model_hparams_f32(meta, hp, "rope.scaling.factor", &factor, em);
    if (!rc) rc = model_hparams_f32(meta, hp, "rope.scaling.attn_factor", &attn, em);
    if (!rc) rc = model_hparams_f32(meta, hp, "rope.scaling.yarn_ext_factor", &ext, em);
    if (!rc) rc = model_hparams_f32(meta, hp, "rope.scaling.yarn_attn_factor", &yarn_attn, em);
    if (!rc) rc = model_hparams_f32(meta, hp, "rope.scaling.yarn_beta_fast", &fast, em);
    if (!rc) rc = model_hparams_f32(meta, hp, "rope.scaling.yarn_beta_slow", &slow, em);
    if (rc) return rc;
    if (r->n_rot % 2 != 0 || r->n_rot > hp->head_dim_k)
        return err_set(em, STRATA_EFORMAT,
                       "%s.rope.dimension_count is %u; it must be even and at most the head size %u", hp->arch,
                       (unsigned)r->n_rot, (unsigned)hp->head_dim_k);
    if (base < 0 || factor < 0)
        return err_set(em, STRATA_EFORMAT, "%s.rope.freq_base and %s.rope.scaling.factor must not be negative",
                       hp->arch, hp->arch);
    float scale = r->scaling == MODEL_ROPE_NONE || factor == 0 ? 1.0f : factor;
    r->freq_base = base > 0 ? base : 10000.0f;
    r->freq_scale = 1.0f / scale;
    r->ext_factor = ext >= 0 ? ext : r->scaling == MODEL_ROPE_YARN ? 1.0f : 0.0f;
    r->beta_fast = fast > 0 ? fast : 32.0f;
    r->beta_slow = slow > 0 ? slow : 1.0f;
    /* YaRN's usual magnitude, 1 + 0.1 ln(scale), is applied by ggml itself; this is what the file adds to it. */
    r->attn_factor = (attn > 0 ? attn : 1.0f) * (yarn_attn > 0 ? yarn_attn : 1.0f);
    if (!isfinite(r->freq_scale) || !isfinite(r->attn_factor) || r->freq_base <= 1.0f)
        return err_set(em, STRATA_EFORMAT, "the %s.rope keys give no usable rotation (freq_base %g, factor %g)",
                       hp->arch, (double)r->freq_base, (double)factor);
    return STRATA_OK;
}

/* Every expert_* number within its bounds. */
static strata_err read_moe_sizes(struct model_hparams *hp, const struct gguf_reader *meta, struct model_moe *m,
                                 struct strata_errmsg *em) {
    strata_err rc = get_size_or(meta, hp, "expert_used_count", MODEL_MAX_EXPERTS, 0, &m->n_used, em);
    if (!rc) rc = get_size_or(meta, hp, "expert_shared_count", MODEL_MAX_EXPERTS, 0, &m->n_shared, em);
    if (!rc) rc = get_size_or(meta, hp, "leading_dense_block_count", MODEL_MAX_LAYERS, 0, &m->n_dense, em);
    if (!rc) rc = get_size_or(meta, hp, "expert_group_count", MODEL_MAX_EXPERTS, 1, &m->n_group, em);
    if (!rc) rc = get_size_or(meta, hp, "expert_group_used_count", MODEL_MAX_EXPERTS, 1, &m->n_group_used, em);
    if (rc) return rc;
    if (m->n_used == 0 || m->n_used > m->n_expert)
        return err_set(em, STRATA_EFORMAT, "%s.expert_used_count is %u; it must be from 1 to expert_count, %u",
                       hp->arch, (unsigned)m->n_used, (unsigned)m->n_expert);
    if (m->n_expert % m->n_group != 0 || m->n_group_used > m->n_group ||
        (m->n_group > 1 && m->n_expert / m->n_group < 2) ||
        (uint64_t)m->n_group_used * (m->n_expert / m->n_group) < m->n_used)
        return err_set(em, STRATA_EFORMAT,
                       "%s.expert_group_count %u and expert_group_used_count %u do not fit %u experts of which %u are "
                       "used",
                       hp->arch, (unsigned)m->n_group, (unsigned)m->n_group_used, (unsigned)m->n_expert,
                       (unsigned)m->n_used);
    uint32_t n_ff = hp->layer[hp->n_layer - 1].n_ff;
    rc = get_size_or(meta, hp, "expert_feed_forward_length", MODEL_MAX_FF, n_ff / m->n_used, &m->n_ff, em);
    if (rc) return rc;
    uint64_t shared = (uint64_t)m->n_ff * m->n_shared;
    if (shared > MODEL_MAX_FF) shared = (uint64_t)MODEL_MAX_FF + 1; /* refused below, unless the file says another */
    rc =
        get_size_or(meta, hp, "expert_shared_feed_forward_length", MODEL_MAX_FF, (uint32_t)shared, &m->n_ff_shared, em);
    if (rc) return rc;
    if (m->n_ff == 0 || m->n_ff_shared > MODEL_MAX_FF)
        return err_set(em, STRATA_EFORMAT, "%s.expert_feed_forward_length is missing or too large", hp->arch);
    return STRATA_OK;
}

strata_err model_hparams_moe(struct model_hparams *hp, const struct gguf_reader *meta, enum model_gating preset,
                             bool norm, struct strata_errmsg *em) {
    struct model_moe m = {.gating = preset, .norm = norm, .n_group = 1, .n_group_used = 1};
    uint32_t gating = 0;
    float scale = 0;
    strata_err rc = get_size_or(meta, hp, "expert_count", MODEL_MAX_EXPERTS, 0, &m.n_expert, em);
    if (rc || m.n_expert == 0) return rc;
    rc = read_moe_sizes(hp, meta, &m, em);
    if (!rc) rc = model_hparams_u32(meta, hp, "expert_gating_func", &gating, em);
    if (!rc) rc = model_hparams_bool(meta, hp, "expert_weights_norm", &m.norm, em);
    if (!rc) rc = model_hparams_f32(meta, hp, "expert_weights_scale", &scale, em);
    if (rc) return rc;
    if (gating > MODEL_GATING_SOFTMAX_SELECTED)
        return err_set(em, STRATA_EUNSUPPORTED,
                       "%s.expert_gating_func is %u; known are 1 (softmax), 2 (sigmoid) and 3 "
                       "(softmax over the selected)",
                       hp->arch, (unsigned)gating);
    if (gating) m.gating = (enum model_gating)gating;
    m.scale = scale != 0 ? scale : 1.0f;
    hp->moe = m;
    return STRATA_OK;
}

strata_err model_hparams_windows(struct model_hparams *hp, const struct gguf_reader *meta, uint32_t period,
                                 struct strata_errmsg *em) {
    char key[MODEL_KEY_MAX];
    uint32_t window = 0;
    strata_err rc = get_size_or(meta, hp, "attention.sliding_window", MODEL_MAX_CTX, 0, &window, em);
    if (rc || window == 0) return rc;
    const struct gguf_kv *kv =
        gguf_reader_find_kv(meta, model_hparams_key(key, hp, "attention.sliding_window_pattern"));
    bool flags = kv && kv->kind == GGUF_KIND_ARRAY;
    if (flags && (kv->count < hp->n_layer || kv->elem_kind == GGUF_KIND_STRING || kv->elem_kind == GGUF_KIND_ARRAY ||
                  kv->elem_kind == GGUF_KIND_F32 || kv->elem_kind == GGUF_KIND_F64))
        return err_set(em, STRATA_EFORMAT, "%s must have one flag for each of %u layers", key, (unsigned)hp->n_layer);
    if (!flags) {
        uint32_t p = 0;
        rc = model_hparams_u32(meta, hp, "attention.sliding_window_pattern", &p, em);
        if (rc) return rc;
        if (p) period = p;
    }
    for (uint32_t i = 0; i < hp->n_layer; i++) {
        bool local = flags ? gguf_reader_int_at(kv, i) != 0 : period > 0 && i % period < period - 1;
        if (local) hp->layer[i].window = window;
    }
    return STRATA_OK;
}

static strata_err read_factors(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    char key[MODEL_KEY_MAX];
    float eps = 0, scale = 0;
    strata_err rc =
        gguf_reader_get_f32(meta, model_hparams_key(key, hp, "attention.layer_norm_rms_epsilon"), true, &eps, em);
    if (!rc && (eps < 0 || eps >= 1))
        return err_set(em, STRATA_EFORMAT, "%s is %g; it must be from 0 to below 1", key, (double)eps);
    if (!rc) rc = model_hparams_f32(meta, hp, "attention.scale", &scale, em);
    if (rc) return rc;
    hp->norm_eps = eps;
    hp->embd_scale = 1.0f;
    hp->attn_scale = scale != 0 ? scale : 1.0f / sqrtf((float)hp->head_dim_k);
    return STRATA_OK;
}

strata_err model_hparams_init(struct model_hparams *hp, const struct gguf_reader *meta, const char *arch,
                              const struct model_hparams_rules *rules, struct strata_errmsg *em) {
    struct model_hparams h = {.n_block = 0};
    snprintf(h.arch, sizeof h.arch, "%s", arch);
    strata_err rc = read_sizes(&h, meta, em);
    if (!rc) rc = read_heads(&h, meta, rules, em);
    if (!rc) rc = read_rope(&h, meta, em);
    if (!rc) rc = read_factors(&h, meta, em);
    if (rc) {
        model_hparams_deinit(&h);
        return rc;
    }
    h.rope_window = h.rope;
    *hp = h;
    return STRATA_OK;
}

void model_hparams_deinit(struct model_hparams *hp) {
    free(hp->layer);
    hp->layer = NULL;
}
