/*
 * The architectures that Strata can run: a table of descriptions, one file each under arch/.
 *
 * A description says only what is the architecture's own: its extra keys and rules, its tensors with their shapes, and
 * the order of operations in a layer. What is common (embeddings, output, cache, inputs) is done around it.
 */
#ifndef ARCH_H
#define ARCH_H

#include "model/model_build.h"
#include "model/model_hparams.h"
#include "model/model_weights.h"

/* Whether models of an architecture have something. */
enum arch_has { ARCH_NONE, ARCH_SOME, ARCH_ALL };

/* What people are told of an architecture (`strata architectures`, README.md). */
struct arch_about {
    const char *models; /* that it covers */
    enum arch_has experts, window, recurrent, latent;
    const char *notes; /* what else is its own, or is left out; NULL: nothing */
};

struct arch {
    const char *name; /* value of general.architecture */
    struct arch_about about;
    int rope_mode; /* GGML_ROPE_TYPE_* */
    struct model_hparams_rules rules;
    const char *output_norm; /* tensor of the norm before the output; NULL: output_norm.weight */
    /* Checks hp, and reads the architecture's own keys into it. */
    strata_err (*check)(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em);
    /* State of block il when it is not keys and values of hp's sizes: changes dims, which holds those. May be NULL. */
    void (*planes)(const struct model_hparams *hp, uint32_t il, struct model_plane_dims dims[MODEL_STATE_PLANES]);
    /* Claims tensors outside the blocks that only this architecture has. May be NULL. */
    strata_err (*load_ends)(struct model_loader *ld, struct strata_errmsg *em);
    /* Claims the tensors of block il. */
    strata_err (*load_layer)(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em);
    /*
     * Appends layer il to the graph: x [n_embd, T] in, its successor out: T rows, or the kept ones where
     * model_build_drops_rows says so, or NULL when none are kept.
     */
    struct ggml_tensor *(*build_layer)(struct model_build *b, uint32_t il, struct ggml_tensor *x);
};

/* NULL when the name is not known. */
const struct arch *arch_find(const char *name, size_t len);
/* All of them, in the order in which they are named; NULL from the end on. */
const struct arch *arch_at(size_t i);
/* Names of all, comma-separated. */
const char *arch_names(void);

extern const struct arch arch_llama;
extern const struct arch arch_qwen2;
extern const struct arch arch_qwen3;
extern const struct arch arch_qwen3moe;
extern const struct arch arch_glm4moe;
extern const struct arch arch_gemma3;
extern const struct arch arch_gpt_oss;
extern const struct arch arch_lfm2;
extern const struct arch arch_lfm2moe;
extern const struct arch arch_deepseek2;

#endif
