/*
 * Architectures `lfm2` and `lfm2moe`: Liquid's LFM2, a hybrid of short convolutions and attention.
 *
 * From the published definition (github.com/huggingface/transformers, models/lfm2/modular_lfm2.py); a layer:
 *   a = rms(x, attn_norm); x = x + mix(a); x = x + ffn(rms(x, ffn_norm)), SwiGLU
 * mix is ordinary attention (norms of queries and keys per head, rotation of halves) where the layer has key/value
 * heads, and else, with attention.head_count_kv 0, a gated depthwise convolution over shortconv.l_cache (3) positions:
 *   B, C, X = thirds of W_in a; z[t] = B[t] * X[t]; y[t] = sum over j of conv[j] * z[t - 2 + j], z before 0 is 0
 *   mix = W_out (C * y)
 * The state of such a layer is z of the last positions, in F32 whatever the cache's type. The norm before the output,
 * `embedding_norm` there, is called token_embd_norm in files. The output shares the embeddings' matrix if it has no
 * own. `lfm2moe` has experts after leading_dense_block_count layers: sigmoid of the router, a bias that counts for the
 * selection alone, weights that add up to 1.
 *
 * attention.sliding_window, in files that have it, holds for every attention layer of lfm2; the pattern is ignored.
 *
 * Per-tensor scales of feed-forward products are ignored, as in qwen2 (see there).
 */
#include "model/arch.h"
#include "model/model_load.h"

static strata_err read_conv(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    uint32_t len = 0;
    strata_err rc = model_hparams_u32(meta, hp, "shortconv.l_cache", &len, em);
    if (rc) return rc;
    if (len < 2 || len > MODEL_MAX_CONV)
        return err_set(em, STRATA_EFORMAT, "%s.shortconv.l_cache is %u; it must be from 2 to %d", hp->arch,
                       (unsigned)len, (int)MODEL_MAX_CONV);
    hp->conv_len = len;
    return STRATA_OK;
}

static strata_err check_common(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    strata_err rc = model_hparams_causal(hp, meta, em);
    if (!rc) rc = model_hparams_no_nextn(hp, em);
    return rc ? rc : read_conv(hp, meta, em);
}

static strata_err check(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    uint32_t window = 0;
    strata_err rc = check_common(hp, meta, em);
    if (!rc) rc = model_hparams_u32(meta, hp, "attention.sliding_window", &window, em);
    if (rc) return rc;
    for (uint32_t i = 0; i < hp->n_layer && window < MODEL_MAX_CTX; i++)
        if (hp->layer[i].n_head_kv) hp->layer[i].window = window;
    return STRATA_OK;
}

static strata_err check_moe(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    strata_err rc = check_common(hp, meta, em);
    if (!rc) rc = model_hparams_moe(hp, meta, MODEL_GATING_SIGMOID, true, em);
    if (rc) return rc;
    if (hp->moe.n_expert == 0) return err_set(em, STRATA_EFORMAT, "lfm2moe.expert_count is missing or 0");
    hp->moe.norm = true;
    return STRATA_OK;
}

static bool convolves(const struct model_hparams *hp, uint32_t il) {
    return hp->layer[il].n_head_kv == 0;
}

static void planes(const struct model_hparams *hp, uint32_t il, struct model_plane_dims dims[MODEL_STATE_PLANES]) {
    if (!convolves(hp, il)) return;
    dims[0] = (struct model_plane_dims){.width = hp->n_embd, .window = hp->conv_len, .exact = true};
    dims[1] = (struct model_plane_dims){.width = 0};
}

static strata_err load_conv(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em) {
    uint64_t n_embd = ld->hp->n_embd;
    strata_err rc = model_weights_vector(ld, il, "attn_norm.weight", n_embd, true, &l->attn_norm, em);
    if (!rc) rc = model_weights_linear(ld, il, "shortconv.in_proj", n_embd, 3 * n_embd, true, &l->conv_in, em);
    if (!rc) rc = model_weights_table(ld, il, "shortconv.conv.weight", ld->hp->conv_len, n_embd, true, &l->conv, em);
    if (!rc) rc = model_weights_linear(ld, il, "shortconv.out_proj", n_embd, n_embd, true, &l->conv_out, em);
    return rc;
}

static strata_err load_layer(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em) {
    const struct model_hparams *hp = ld->hp;
    strata_err rc;
    if (convolves(hp, il)) {
        rc = load_conv(ld, il, l, em);
    } else {
        rc = model_load_attention(ld, il, l, em);
        if (!rc) rc = model_load_head_norms(ld, il, l, true, em);
    }
    if (!rc) rc = model_weights_vector(ld, il, "ffn_norm.weight", hp->n_embd, true, &l->ffn_norm, em);
    bool experts = hp->moe.n_expert && il >= hp->moe.n_dense;
    if (!rc) rc = experts ? model_load_moe(ld, il, l, em) : model_load_ffn(ld, il, l, em);
    model_load_no_ffn_scales(l);
    return rc;
}

/* W_out (C * conv(B * X)); NULL when no row is kept. */
static struct ggml_tensor *convolution(struct model_build *b, uint32_t il, struct ggml_tensor *x) {
    const struct model_layer *l = &b->w->layer[il - b->w->range.first];
    uint32_t n = b->hp->n_embd;
    struct ggml_tensor *bcx = model_build_linear(b, &l->conv_in, x);
    struct ggml_tensor *gate = model_build_columns(b, bcx, n, n);
    struct ggml_tensor *z = ggml_mul(b->ctx, model_build_columns(b, bcx, 0, n), model_build_columns(b, bcx, 2 * n, n));
    struct ggml_tensor *y = model_build_conv(b, il, z, l->conv);
    if (!y) return NULL;
    if (model_build_drops_rows(b, il)) gate = model_build_kept(b, gate);
    return model_build_linear(b, &l->conv_out, ggml_mul(b->ctx, gate, y));
}

static struct ggml_tensor *build_layer(struct model_build *b, uint32_t il, struct ggml_tensor *x) {
    const struct model_layer *l = &b->w->layer[il - b->w->range.first];
    struct ggml_tensor *a = model_build_norm(b, x, l->attn_norm);
    a = convolves(b->hp, il) ? convolution(b, il, a) : model_build_self_attention(b, il, a);
    return model_build_rest(b, il, x, a, MODEL_ACT_SILU);
}

const struct arch arch_lfm2 = {
    .name = "lfm2",
    .about = {.models = "LFM2, dense", .window = ARCH_SOME, .recurrent = ARCH_ALL, .notes = "short convolutions"},
    .rope_mode = GGML_ROPE_TYPE_NEOX,
    .rules = {.hybrid = true},
    .output_norm = "token_embd_norm.weight",
    .check = check,
    .planes = planes,
    .load_layer = load_layer,
    .build_layer = build_layer,
};

const struct arch arch_lfm2moe = {
    .name = "lfm2moe",
    .about = {.models = "LFM2 with experts", .experts = ARCH_ALL, .recurrent = ARCH_ALL, .notes = "short convolutions"},
    .rope_mode = GGML_ROPE_TYPE_NEOX,
    .rules = {.hybrid = true},
    .output_norm = "token_embd_norm.weight",
    .check = check_moe,
    .planes = planes,
    .load_layer = load_layer,
    .build_layer = build_layer,
};
