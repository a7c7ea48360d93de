/*
 * Architecture `gpt-oss`: OpenAI's gpt-oss-20b and gpt-oss-120b.
 *
 * From the published definition (github.com/openai/gpt-oss, gpt_oss/torch/model.py); every product has a bias:
 *   a = rms(x, attn_norm); q, k, v = W a + b; rotation of halves, YaRN (base 150000, factor 32, 4096 positions)
 *   s[i] = q.k[i] / sqrt(head size) for the visible i; w = softmax(s[0], .., s[n], sink of the head) without its last
 *   x = x + W_o (sum of w[i] v[i]) + b_o
 *   even layers see the last sliding_window (128) positions, their own included; odd layers see everything
 *   f = rms(x, post_attention_norm); r = W_r f + b_r; the n_used experts with the largest r are taken,
 *   weighted by the softmax of their r alone; an expert:
 *     g = min(W_g f + b_g, 7); u = max(-7, min(W_u f + b_u, 7)); h = g * sigmoid(1.702 g) * (u + 1); W_d h + b_d
 *   x = x + weighted sum
 * Expert matrices are MXFP4 in the released files. The output is a matrix of its own, without a bias.
 *
 * One deviation from that definition, shared with llama.cpp so that a file gives the same text in both: YaRN's ramp
 * between the frequencies that are kept and those that are divided by the factor runs from pair 8 to 18 (of 32), where
 * the definition has 8.09 to 17.40, because ggml rounds its ends outwards. Pairs 9 to 17 turn at other speeds: by under
 * 10 % up to pair 14, then 15 %, 27 % and 76 % faster.
 *
 * Per-tensor scales of feed-forward products are ignored, as in qwen2 (see there).
 */
#include "model/arch.h"
#include "model/model_load.h"

enum { PERIOD = 2 };

static strata_err check(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    float base = 0;
    strata_err rc = model_hparams_causal(hp, meta, em);
    if (!rc) rc = model_hparams_no_nextn(hp, em);
    if (!rc) rc = model_hparams_moe(hp, meta, MODEL_GATING_SOFTMAX_SELECTED, false, em);
    if (!rc) rc = model_hparams_windows(hp, meta, PERIOD, em);
    if (!rc) rc = model_hparams_f32(meta, hp, "rope.freq_base_swa", &base, em);
    if (rc) return rc;
    if (hp->moe.n_expert == 0) return err_set(em, STRATA_EFORMAT, "gpt-oss.expert_count is missing or 0");
    if (base < 0 || (base > 0 && base <= 1))
        return err_set(em, STRATA_EFORMAT, "gpt-oss.rope.freq_base_swa is %g; it must be above 1", (double)base);
    if (base > 0) hp->rope_window.freq_base = base;
    /* The selection's rule is the architecture's; files write zeros for it. */
    hp->moe.gating = MODEL_GATING_SOFTMAX_SELECTED;
    hp->moe.norm = false;
    return STRATA_OK;
}

static strata_err load_layer(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em) {
    const struct model_hparams *hp = ld->hp;
    strata_err rc = model_load_attention(ld, il, l, em);
    if (!rc) rc = model_weights_vector(ld, il, "attn_sinks.weight", hp->layer[il].n_head, true, &l->sinks, em);
    if (!rc) rc = model_weights_vector(ld, il, "post_attention_norm.weight", hp->n_embd, true, &l->ffn_norm, em);
    if (!rc) rc = model_load_moe(ld, il, l, em);
    model_load_no_ffn_scales(l);
    return rc;
}

static struct ggml_tensor *build_layer(struct model_build *b, uint32_t il, struct ggml_tensor *x) {
    const struct model_layer *l = &b->w->layer[il - b->w->range.first];
    struct ggml_tensor *a = model_build_self_attention(b, il, model_build_norm(b, x, l->attn_norm));
    return model_build_rest(b, il, x, a, MODEL_ACT_SWIGLU_OAI);
}

const struct arch arch_gpt_oss = {
    .name = "gpt-oss",
    .about = {.models = "gpt-oss 20B and 120B",
              .experts = ARCH_ALL,
              .window = ARCH_ALL,
              .notes = "attention sinks, MXFP4 experts"},
    .rope_mode = GGML_ROPE_TYPE_NEOX,
    .check = check,
    .load_layer = load_layer,
    .build_layer = build_layer,
};
