/*
 * Hyper-parameters of a model, read from GGUF metadata and checked before anything is computed with them.
 *
 * The keys that all transformer architectures share are read here; an architecture's own keys and rules are in its
 * file under arch/. Converters write most optional keys as 0, so 0 means "absent" wherever 0 makes no sense.
 * After model_hparams_init every number is within the bounds below, so that products of any three of them fit 64 bits.
 */
#ifndef MODEL_HPARAMS_H
#define MODEL_HPARAMS_H

#include "base/err.h"
#include "gguf/gguf_reader.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    MODEL_MAX_LAYERS = 4096,
    MODEL_MAX_EMBD = 1 << 18,
    MODEL_MAX_FF = 1 << 20,
    MODEL_MAX_HEADS = 1 << 12,
    MODEL_MAX_HEAD_DIM = 1 << 14,
    MODEL_MAX_VOCAB = 1 << 23,
    MODEL_MAX_CTX = 1 << 24,
    MODEL_MAX_EXPERTS = 1 << 12,
    MODEL_MAX_CONV = 64, /* of conv_len */
    MODEL_ARCH_NAME = 32
};

enum model_rope_scaling { MODEL_ROPE_NONE, MODEL_ROPE_LINEAR, MODEL_ROPE_YARN, MODEL_ROPE_LONGROPE };

/* Arguments of ggml_rope_ext, ready to pass. */
struct model_rope {
    enum model_rope_scaling scaling;
    uint32_t n_rot;      /* rotated dimensions of a head: even, at most the head's size */
    uint32_t n_ctx_orig; /* context the model was trained with before scaling */
    float freq_base;
    float freq_scale;
    float ext_factor;
    float attn_factor;
    float beta_fast;
    float beta_slow;
};

/* What may differ between layers. */
struct model_layer_dims {
    uint32_t n_head;
    uint32_t n_head_kv; /* divides n_head; 0: a layer without attention (hybrid architectures alone) */
    uint32_t n_ff;
    uint32_t window; /* positions that attention looks back over, its own included; 0: all */
};

/* How a router's logits become weights, as numbered in files (expert_gating_func). */
enum model_gating {
    MODEL_GATING_SOFTMAX = 1,
    MODEL_GATING_SIGMOID = 2,
    MODEL_GATING_SOFTMAX_SELECTED = 3 /* softmax over the selected logits alone */
};

/* Mixture of experts; n_expert 0: none. */
struct model_moe {
    uint32_t n_expert, n_used;
    uint32_t n_ff;                  /* of one expert */
    uint32_t n_shared, n_ff_shared; /* experts that every token uses; their common width, 0: none */
    uint32_t n_dense;               /* the first layers have an ordinary feed-forward part */
    enum model_gating gating;
    bool norm;                      /* weights are divided by their sum */
    float scale;                    /* and multiplied by this; 1: not */
    uint32_t n_group, n_group_used; /* group-limited selection; n_group 1: none */
};

/* Multi-head latent attention (DeepSeek-V2 and its relatives); kv_rank 0: none. */
struct model_mla {
    uint32_t q_rank; /* 0: queries are not compressed */
    uint32_t kv_rank;
    bool absorbed;   /* the state is one compressed row for all heads; false: keys and values of each */
    uint32_t n_nope; /* dimensions of a query head that are not rotated */
    uint32_t dim_v;  /* of a head after attn_v_b */
};

struct model_hparams {
    char arch[MODEL_ARCH_NAME];
    uint32_t n_block; /* all blocks of the file, prediction heads included */
    uint32_t n_layer; /* blocks of the trunk: those that are run */
    uint32_t n_embd;
    uint32_t n_vocab; /* 0 when the metadata does not tell: then the token embedding does */
    uint32_t n_ctx_train;
    uint32_t head_dim_k;
    uint32_t head_dim_v;
    float norm_eps;
    float attn_scale;    /* factor of q*k; never 0 */
    bool scale_queries;  /* q is multiplied by it before the product: the same but for roundings */
    float attn_softcap;  /* c of c * tanh(x / c) on q*k; 0: none */
    float logit_softcap; /* the same on logits */
    float embd_scale;    /* factor of token embeddings; 1: none */
    /* Queries at position p are multiplied by 1 + q_temp_scale * ln(floor(p / q_temp_length) + 1); scale 0: not. */
    float q_temp_scale;
    uint32_t q_temp_length;
    struct model_rope rope;
    struct model_rope rope_window; /* of layers with a window; equal to rope unless the architecture says otherwise */
    struct model_moe moe;
    struct model_mla mla;
    uint32_t conv_len; /* positions that a convolution layer looks back over, its own included; 0: there is none */
    struct model_layer_dims *layer; /* n_block entries, owned */
};

/*
 * Reads the shared keys. arch must be the value of general.architecture. On success hp owns memory, which
 * model_hparams_deinit frees. Errors name the key.
 */
struct model_hparams_rules {
    bool hybrid; /* attention.head_count_kv and head_count may be 0 for some layers */
};

strata_err model_hparams_init(struct model_hparams *hp, const struct gguf_reader *meta, const char *arch,
                              const struct model_hparams_rules *rules, struct strata_errmsg *em);
void model_hparams_deinit(struct model_hparams *hp);

enum { MODEL_KEY_MAX = 128 };

/* Writes "<arch>.<name>" into key, for an architecture's own keys. Returns key. */
const char *model_hparams_key(char key[MODEL_KEY_MAX], const struct model_hparams *hp, const char *name);
/* Optional keys of an architecture: *out keeps its preset value when the key is absent. name goes without the prefix.
 */
strata_err model_hparams_u32(const struct gguf_reader *meta, const struct model_hparams *hp, const char *name,
                             uint32_t *out, struct strata_errmsg *em);
strata_err model_hparams_f32(const struct gguf_reader *meta, const struct model_hparams *hp, const char *name,
                             float *out, struct strata_errmsg *em);
strata_err model_hparams_bool(const struct gguf_reader *meta, const struct model_hparams *hp, const char *name,
                              bool *out, struct strata_errmsg *em);

/* Refuses attention.causal = false: a model that looks ahead makes embeddings, no text. */
strata_err model_hparams_causal(const struct model_hparams *hp, const struct gguf_reader *meta,
                                struct strata_errmsg *em);
/* Refuses blocks behind the trunk (nextn_predict_layers), for architectures that have none. */
strata_err model_hparams_no_nextn(const struct model_hparams *hp, struct strata_errmsg *em);

/*
 * The expert_* keys into hp->moe, with defaults as converters leave them: no experts when expert_count is absent or 0,
 * gating `preset`, weights normalised as `norm`. The width of an expert falls back to feed_forward_length / n_used.
 */
strata_err model_hparams_moe(struct model_hparams *hp, const struct gguf_reader *meta, enum model_gating preset,
                             bool norm, struct strata_errmsg *em);

/*
 * attention.sliding_window and sliding_window_pattern into the layers' windows. The pattern is a period (every
 * period-th layer is global: layer i is local iff i % period < period - 1), or an array of one flag a block; `period`
 * is the architecture's own when the file has none. A window of 0 or absent leaves every layer global.
 */
strata_err model_hparams_windows(struct model_hparams *hp, const struct gguf_reader *meta, uint32_t period,
                                 struct strata_errmsg *em);

#endif
