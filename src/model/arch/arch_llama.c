/*
 * Architecture `llama`: Llama 1 to 3, Mistral, SmolLM and their many relatives, dense.
 *
 * A layer: x + attention(rms(x)), then x + ffn(rms(x)); rotation of neighbouring pairs; SwiGLU. Biases, a fused qkv
 * matrix, per-tensor scales and frequency factors are used where the file has them. Refuses the mixture-of-experts
 * variant and models without a causal mask.
 */
#include "model/arch.h"

static strata_err check(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    char key[MODEL_KEY_MAX];
    uint32_t experts = 0;
    bool causal = true;
    strata_err rc = model_hparams_u32(meta, hp, "expert_count", &experts, em);
    if (!rc) rc = gguf_reader_get_bool(meta, model_hparams_key(key, hp, "attention.causal"), false, &causal, em);
    if (rc) return rc;
    if (experts > 0)
        return err_set(em, STRATA_EUNSUPPORTED,
                       "llama.expert_count is %u: mixture-of-experts models of this architecture cannot be run yet, "
                       "dense ones can",
                       (unsigned)experts);
    if (!causal)
        return err_set(em, STRATA_EUNSUPPORTED,
                       "llama.attention.causal is false: this is an embedding model, which cannot generate text");
    if (hp->n_block != hp->n_layer)
        return err_set(em, STRATA_EUNSUPPORTED, "llama.nextn_predict_layers is %u; this architecture has none",
                       (unsigned)(hp->n_block - hp->n_layer));
    if (hp->rope.n_rot != hp->head_dim_k)
        return err_set(em, STRATA_EFORMAT, "llama.rope.dimension_count is %u; it must equal the head size %u",
                       (unsigned)hp->rope.n_rot, (unsigned)hp->head_dim_k);
    return STRATA_OK;
}

static strata_err load_qkv(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em) {
    const struct model_hparams *hp = ld->hp;
    const struct model_layer_dims *d = &hp->layer[il];
    uint64_t n_q = (uint64_t)d->n_head * hp->head_dim_k, n_k = (uint64_t)d->n_head_kv * hp->head_dim_k;
    uint64_t n_v = (uint64_t)d->n_head_kv * hp->head_dim_v;
    strata_err rc = model_weights_linear(ld, il, "attn_qkv", hp->n_embd, n_q + n_k + n_v, false, &l->qkv, em);
    if (rc || l->qkv.w) return rc;
    rc = model_weights_linear(ld, il, "attn_q", hp->n_embd, n_q, true, &l->q, em);
    if (!rc) rc = model_weights_linear(ld, il, "attn_k", hp->n_embd, n_k, true, &l->k, em);
    if (!rc) rc = model_weights_linear(ld, il, "attn_v", hp->n_embd, n_v, true, &l->v, em);
    if (!rc) l->q_v = model_weights_join(ld, &l->q, &l->v);
    return rc;
}

static strata_err load_layer(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em) {
    const struct model_hparams *hp = ld->hp;
    const struct model_layer_dims *d = &hp->layer[il];
    uint64_t n_embd = hp->n_embd;
    strata_err rc = model_weights_vector(ld, il, "attn_norm.weight", n_embd, true, &l->attn_norm, em);
    if (!rc) rc = load_qkv(ld, il, l, em);
    if (!rc)
        rc = model_weights_linear(ld, il, "attn_output", (uint64_t)d->n_head * hp->head_dim_v, n_embd, true, &l->o, em);
    if (!rc) rc = model_weights_vector(ld, il, "ffn_norm.weight", n_embd, true, &l->ffn_norm, em);
    if (!rc) rc = model_weights_linear(ld, il, "ffn_gate", n_embd, d->n_ff, true, &l->gate, em);
    if (!rc) rc = model_weights_linear(ld, il, "ffn_up", n_embd, d->n_ff, true, &l->up, em);
    if (!rc) rc = model_weights_linear(ld, il, "ffn_down", d->n_ff, n_embd, true, &l->down, em);
    /* Old converters stored the rotation's frequencies per layer; they follow from the metadata. */
    if (!rc) rc = model_weights_ignore(ld, il, "attn_rot_embd.weight", em);
    if (!rc) l->gate_up = model_weights_join(ld, &l->gate, &l->up);
    return rc;
}

/* Projections of a layer, as heads. */
struct qkv {
    struct ggml_tensor *q; /* NULL when no row is wanted */
    struct ggml_tensor *k;
    struct ggml_tensor *v;
};

static struct ggml_tensor *columns(struct model_build *b, struct ggml_tensor *x, uint32_t from, uint32_t n) {
    return ggml_view_2d(b->ctx, x, n, x->ne[1], x->nb[1], from * ggml_element_size(x));
}

static struct qkv build_qkv(struct model_build *b, const struct model_layer *l, uint32_t il, struct ggml_tensor *x) {
    const struct model_layer_dims *d = &b->hp->layer[il];
    uint32_t dk = b->hp->head_dim_k, dv = b->hp->head_dim_v;
    uint32_t n_q = d->n_head * dk, n_k = d->n_head_kv * dk, n_v = d->n_head_kv * dv;
    bool drops = model_build_drops_rows(b, il);
    struct qkv r = {.q = NULL};
    if (l->qkv.w) {
        struct ggml_tensor *all = model_build_linear(b, &l->qkv, x);
        r.q = columns(b, all, 0, n_q);
        r.k = columns(b, all, n_q, n_k);
        r.v = columns(b, all, n_q + n_k, n_v);
        if (drops) r.q = b->n_out ? model_build_last_rows(b, r.q) : NULL;
    } else if (l->q_v && !drops) {
        struct ggml_tensor *both = ggml_mul_mat(b->ctx, l->q_v, x);
        r.q = columns(b, both, 0, n_q);
        r.v = columns(b, both, n_q, n_v);
        r.k = model_build_linear(b, &l->k, x);
    } else {
        r.k = model_build_linear(b, &l->k, x);
        r.v = model_build_linear(b, &l->v, x);
        if (!drops) {
            r.q = model_build_linear(b, &l->q, x);
        } else if (b->n_out) {
            r.q = model_build_linear(b, &l->q, model_build_last_rows(b, x));
        }
    }
    r.k = model_build_heads(b, r.k, dk, d->n_head_kv);
    r.v = model_build_heads(b, r.v, dv, d->n_head_kv);
    if (r.q) r.q = model_build_heads(b, r.q, dk, d->n_head);
    return r;
}

static struct ggml_tensor *build_layer(struct model_build *b, uint32_t il, struct ggml_tensor *x) {
    const struct model_layer *l = &b->w->layer[il - b->w->range.first];
    struct qkv p = build_qkv(b, l, il, model_build_norm(b, x, l->attn_norm));
    model_build_kv_store(b, il, model_build_rope(b, p.k), p.v);
    if (!p.q) return NULL;
    struct ggml_tensor *a = model_build_attention(b, il, model_build_rope(b, p.q));
    if (model_build_drops_rows(b, il)) x = model_build_last_rows(b, x);
    x = ggml_add(b->ctx, model_build_linear(b, &l->o, a), x);
    struct ggml_tensor *f = model_build_ffn_swiglu(b, l, model_build_norm(b, x, l->ffn_norm));
    return ggml_add(b->ctx, f, x);
}

const struct arch arch_llama = {
    .name = "llama",
    .rope_mode = GGML_ROPE_TYPE_NORMAL,
    .check = check,
    .load_layer = load_layer,
    .build_layer = build_layer,
};
