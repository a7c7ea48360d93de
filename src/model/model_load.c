/* Shared claims. See model_load.h. Owns nothing. */
#include "model/model_load.h"

/* As many of them as have one type: mixtures of K types often give v, and a few models k, another one. */
static void join_qkv(struct model_loader *ld, struct model_layer *l) {
    l->qkv.w = model_weights_join(ld, (const struct model_linear *[]){&l->q, &l->k, &l->v}, 3);
    l->qkv_has_k = l->qkv_has_v = l->qkv.w != NULL;
    if (!l->qkv.w) l->qkv_has_k = (l->qkv.w = model_weights_join(ld, (const struct model_linear *[]){&l->q, &l->k}, 2));
    if (!l->qkv.w) l->qkv_has_v = (l->qkv.w = model_weights_join(ld, (const struct model_linear *[]){&l->q, &l->v}, 2));
}

/* Gate and up as one; their biases would have to be joined as well. */
static struct ggml_tensor *join_gate_up(struct model_loader *ld, const struct model_linear *gate,
                                        const struct model_linear *up) {
    return gate->b || up->b ? NULL : model_weights_join(ld, (const struct model_linear *[]){gate, up}, 2);
}

static strata_err load_qkv(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em) {
    const struct model_hparams *hp = ld->hp;
    const struct model_layer_dims *d = &hp->layer[il];
    uint64_t n_q = (uint64_t)d->n_head * hp->head_dim_k, n_k = (uint64_t)d->n_head_kv * hp->head_dim_k;
    uint64_t n_v = (uint64_t)d->n_head_kv * hp->head_dim_v;
    strata_err rc = model_weights_linear(ld, il, "attn_qkv", hp->n_embd, n_q + n_k + n_v, false, &l->qkv, em);
    l->qkv_has_k = l->qkv_has_v = l->qkv.w != NULL;
    if (rc || l->qkv.w) return rc;
    rc = model_weights_linear(ld, il, "attn_q", hp->n_embd, n_q, true, &l->q, em);
    if (!rc) rc = model_weights_linear(ld, il, "attn_k", hp->n_embd, n_k, true, &l->k, em);
    if (!rc) rc = model_weights_linear(ld, il, "attn_v", hp->n_embd, n_v, true, &l->v, em);
    if (!rc) join_qkv(ld, l);
    return rc;
}

strata_err model_load_attention(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em) {
    const struct model_hparams *hp = ld->hp;
    uint64_t n_o = (uint64_t)hp->layer[il].n_head * hp->head_dim_v;
    strata_err rc = model_weights_vector(ld, il, "attn_norm.weight", hp->n_embd, true, &l->attn_norm, em);
    if (!rc) rc = load_qkv(ld, il, l, em);
    if (!rc) rc = model_weights_linear(ld, il, "attn_output", n_o, hp->n_embd, true, &l->o, em);
    return rc;
}

strata_err model_load_head_norms(struct model_loader *ld, uint32_t il, struct model_layer *l, bool required,
                                 struct strata_errmsg *em) {
    uint64_t dim = ld->hp->head_dim_k;
    strata_err rc = model_weights_vector(ld, il, "attn_q_norm.weight", dim, required, &l->q_norm, em);
    return rc ? rc : model_weights_vector(ld, il, "attn_k_norm.weight", dim, required, &l->k_norm, em);
}

strata_err model_load_ffn(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em) {
    const struct model_hparams *hp = ld->hp;
    uint64_t n_embd = hp->n_embd, n_ff = hp->layer[il].n_ff;
    if (n_ff == 0)
        return err_set(em, STRATA_EFORMAT, "%s.feed_forward_length is 0 or missing for block %u", hp->arch,
                       (unsigned)il);
    strata_err rc = model_weights_linear(ld, il, "ffn_gate", n_embd, n_ff, true, &l->gate, em);
    if (!rc) rc = model_weights_linear(ld, il, "ffn_up", n_embd, n_ff, true, &l->up, em);
    if (!rc) rc = model_weights_linear(ld, il, "ffn_down", n_ff, n_embd, true, &l->down, em);
    if (!rc) l->gate_up = join_gate_up(ld, &l->gate, &l->up);
    return rc;
}

void model_load_no_ffn_scales(struct model_layer *l) {
    struct model_linear *const all[] = {&l->gate,      &l->up,         &l->down,         &l->gate_exps,
                                        &l->up_exps,   &l->down_exps,  &l->gate_up_exps, &l->gate_shared,
                                        &l->up_shared, &l->down_shared};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (!all[i]->w || all[i]->w->type != GGML_TYPE_NVFP4) all[i]->scale = NULL;
}

static strata_err load_shared(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em) {
    uint64_t n_embd = ld->hp->n_embd, n_ff = ld->hp->moe.n_ff_shared;
    strata_err rc = model_weights_linear(ld, il, "ffn_gate_shexp", n_embd, n_ff, true, &l->gate_shared, em);
    if (!rc) rc = model_weights_linear(ld, il, "ffn_up_shexp", n_embd, n_ff, true, &l->up_shared, em);
    if (!rc) rc = model_weights_linear(ld, il, "ffn_down_shexp", n_ff, n_embd, true, &l->down_shared, em);
    if (!rc) l->gate_up_shared = join_gate_up(ld, &l->gate_shared, &l->up_shared);
    return rc;
}

strata_err model_load_moe(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em) {
    const struct model_moe *m = &ld->hp->moe;
    uint64_t n_embd = ld->hp->n_embd;
    strata_err rc = model_weights_linear(ld, il, "ffn_gate_inp", n_embd, m->n_expert, true, &l->router, em);
    if (!rc) rc = model_weights_vector(ld, il, "exp_probs_b.bias", m->n_expert, false, &l->router_bias, em);
    if (!rc)
        rc = model_weights_experts(ld, il, "ffn_gate_up_exps", n_embd, 2 * (uint64_t)m->n_ff, m->n_expert, false,
                                   &l->gate_up_exps, em);
    bool apart = !l->gate_up_exps.w;
    if (!rc && apart)
        rc = model_weights_experts(ld, il, "ffn_gate_exps", n_embd, m->n_ff, m->n_expert, true, &l->gate_exps, em);
    if (!rc && apart)
        rc = model_weights_experts(ld, il, "ffn_up_exps", n_embd, m->n_ff, m->n_expert, true, &l->up_exps, em);
    if (!rc) rc = model_weights_experts(ld, il, "ffn_down_exps", m->n_ff, n_embd, m->n_expert, true, &l->down_exps, em);
    if (!rc && m->n_ff_shared) rc = load_shared(ld, il, l, em);
    return rc;
}
