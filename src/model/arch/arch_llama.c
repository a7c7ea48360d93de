/*
 * Architecture `llama`: Llama 1 to 3, Mistral, Mixtral, SmolLM and their many relatives.
 *
 * A layer: x + attention(rms(x)), then x + ffn(rms(x)); rotation of neighbouring pairs; SwiGLU, or experts of it whose
 * weights are the normalised softmax of the router (Mixtral). Biases, a fused qkv matrix, per-tensor scales and
 * frequency factors are used where the file has them. Refuses models without a causal mask.
 *
 * Where this departs from llama.cpp: attention.scale and the yarn_* keys count when a file has them (it reads neither
 * for this architecture and the Qwens); expert_weights_norm is ignored by both.
 */
#include "model/arch.h"
#include "model/model_load.h"

static strata_err check(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    strata_err rc = model_hparams_moe(hp, meta, MODEL_GATING_SOFTMAX, true, em);
    if (!rc) rc = model_hparams_causal(hp, meta, em);
    if (!rc) rc = model_hparams_no_nextn(hp, em);
    if (rc) return rc;
    /* Experts are as wide as the dense part would be, and their weights add up to 1, whatever the file's keys say. */
    if (hp->layer[0].n_ff) hp->moe.n_ff = hp->layer[0].n_ff;
    hp->moe.norm = true;
    if (hp->rope.n_rot != hp->head_dim_k)
        return err_set(em, STRATA_EFORMAT, "llama.rope.dimension_count is %u; it must equal the head size %u",
                       (unsigned)hp->rope.n_rot, (unsigned)hp->head_dim_k);
    return STRATA_OK;
}

static strata_err load_layer(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em) {
    strata_err rc = model_load_attention(ld, il, l, em);
    if (!rc) rc = model_weights_vector(ld, il, "ffn_norm.weight", ld->hp->n_embd, true, &l->ffn_norm, em);
    if (!rc) rc = ld->hp->moe.n_expert ? model_load_moe(ld, il, l, em) : model_load_ffn(ld, il, l, em);
    /* Old converters stored the rotation's frequencies per layer; they follow from the metadata. */
    if (!rc) rc = model_weights_ignore(ld, il, "attn_rot_embd.weight", em);
    return rc;
}

const struct arch arch_llama = {
    .name = "llama",
    .about = {.models = "Llama 1 to 3.3, Mistral, Mixtral, SmolLM, TinyLlama and many relatives", .experts = ARCH_SOME},
    .rope_mode = GGML_ROPE_TYPE_NORMAL,
    .check = check,
    .load_layer = load_layer,
    .build_layer = model_build_plain_layer,
};
