/*
 * Architecture `qwen3`: the dense models of Qwen 3.
 *
 * The plain layer with a norm of each head's queries and keys before the rotation of halves. Heads have a size of their
 * own: all of them together may be wider than the hidden state.
 */
#include "model/arch.h"
#include "model/model_load.h"

static strata_err check(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    strata_err rc = model_hparams_causal(hp, meta, em);
    return rc ? rc : model_hparams_no_nextn(hp, em);
}

static strata_err load_layer(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em) {
    strata_err rc = model_load_attention(ld, il, l, em);
    if (!rc) rc = model_load_head_norms(ld, il, l, true, em);
    if (!rc) rc = model_weights_vector(ld, il, "ffn_norm.weight", ld->hp->n_embd, true, &l->ffn_norm, em);
    if (!rc) rc = model_load_ffn(ld, il, l, em);
    return rc;
}

/* Rerankers made of these models score with a matrix of their own, which generating text does not need. */
static strata_err load_ends(struct model_loader *ld, struct strata_errmsg *em) {
    strata_err rc = model_weights_ignore(ld, MODEL_NO_LAYER, "cls.output.weight", em);
    return rc ? rc : model_weights_ignore(ld, MODEL_NO_LAYER, "cls.output.bias", em);
}

const struct arch arch_qwen3 = {
    .name = "qwen3",
    .about = {.models = "Qwen 3, dense", .notes = "norms of heads"},
    .rope_mode = GGML_ROPE_TYPE_NEOX,
    .check = check,
    .load_ends = load_ends,
    .load_layer = load_layer,
    .build_layer = model_build_plain_layer,
};
