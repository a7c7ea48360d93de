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
    uint32_t n_head_kv; /* divides n_head */
    uint32_t n_ff;
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
    float attn_scale; /* factor of q*k; never 0 */
    struct model_rope rope;
    struct model_layer_dims *layer; /* n_block entries, owned */
};

/*
 * Reads the shared keys. arch must be the value of general.architecture. On success hp owns memory, which
 * model_hparams_deinit frees. Errors name the key.
 */
strata_err model_hparams_init(struct model_hparams *hp, const struct gguf_reader *meta, const char *arch,
                              struct strata_errmsg *em);
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

#endif
