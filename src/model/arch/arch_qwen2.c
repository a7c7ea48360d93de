/*
 * Architecture `qwen2`: Qwen 1.5, Qwen 2 and 2.5, QwQ, and the distilled models built on them.
 *
 * The plain layer with biases on queries, keys and values, and rotation of halves. Small ones share the output matrix
 * with the embeddings. Some files bring a bias of the output.
 *
 * llama.cpp loads the per-tensor scales of the feed-forward part and computes without them; so does this, that the same
 * file gives the same numbers (see model_load_no_ffn_scales). Those of the attention's products count.
 */
#include "model/arch.h"
#include "model/model_load.h"

static strata_err check(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    strata_err rc = model_hparams_causal(hp, meta, em);
    return rc ? rc : model_hparams_no_nextn(hp, em);
}

static strata_err load_layer(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em) {
    strata_err rc = model_load_attention(ld, il, l, em);
    if (!rc) rc = model_weights_vector(ld, il, "ffn_norm.weight", ld->hp->n_embd, true, &l->ffn_norm, em);
    if (!rc) rc = model_load_ffn(ld, il, l, em);
    model_load_no_ffn_scales(l);
    return rc;
}

const struct arch arch_qwen2 = {
    .name = "qwen2",
    .about = {.models = "Qwen 1.5, Qwen 2, Qwen 2.5, QwQ, and models distilled into them"},
    .rope_mode = GGML_ROPE_TYPE_NEOX,
    .check = check,
    .load_layer = load_layer,
    .build_layer = model_build_plain_layer,
};
