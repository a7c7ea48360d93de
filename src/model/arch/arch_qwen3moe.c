/*
 * Architecture `qwen3moe`: the mixture-of-experts models of Qwen 3.
 *
 * The layer of qwen3 with experts in every block: softmax over all of them, the best are used, and their weights always
 * add up to 1 (released models all have norm_topk_prob; converters write no key for it, and one that says otherwise is
 * ignored here as in llama.cpp).
 */
#include "model/arch.h"
#include "model/model_load.h"

static strata_err check(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    strata_err rc = model_hparams_causal(hp, meta, em);
    if (!rc) rc = model_hparams_no_nextn(hp, em);
    if (!rc) rc = model_hparams_moe(hp, meta, MODEL_GATING_SOFTMAX, true, em);
    if (rc) return rc;
    if (hp->moe.n_expert == 0) return err_set(em, STRATA_EFORMAT, "qwen3moe.expert_count is missing or 0");
    hp->moe.norm = true;
    return STRATA_OK;
}

static strata_err load_layer(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em) {
    strata_err rc = model_load_attention(ld, il, l, em);
    if (!rc) rc = model_load_head_norms(ld, il, l, true, em);
    if (!rc) rc = model_weights_vector(ld, il, "ffn_norm.weight", ld->hp->n_embd, true, &l->ffn_norm, em);
    return rc ? rc : model_load_moe(ld, il, l, em);
}

const struct arch arch_qwen3moe = {
    .name = "qwen3moe",
    .about = {.models = "Qwen 3 with experts", .experts = ARCH_ALL, .notes = "norms of heads"},
    .rope_mode = GGML_ROPE_TYPE_NEOX,
    .check = check,
    .load_layer = load_layer,
    .build_layer = model_build_plain_layer,
};
