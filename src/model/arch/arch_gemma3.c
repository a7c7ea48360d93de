/*
 * Architecture `gemma3`: the text part of Gemma 3, from 270M to 27B.
 *
 * Embeddings are multiplied by sqrt(n_embd). A layer norms each part's input and its output: x + post(attention(pre
 * x)), then x + post(ffn(pre x)); queries and keys are normed per head before the rotation of halves; the gate is GELU.
 * Five layers of six look back over a window only and rotate with a base of their own (10000, unscaled); the sixth, 5,
 * 11, and so on, sees everything. Converters have added 1 to all norm weights. The 27B model, known by its 62 layers,
 * divides products of queries and keys by sqrt(n_embd / n_head) and all others by the root of the head's size;
 * attention.scale, where a file has one, says the same and is not needed. Logits may be capped; products of queries and
 * keys never are (attn_logit_softcapping is a default that some writers put into every file).
 *
 * Queries are scaled before the product, as elsewhere, so that roundings agree; where the scale is a power of 2, which
 * it is in all sizes but two, that changes no bit and the softmax does it.
 *
 * Per-tensor scales of feed-forward products are ignored, as in qwen2 (see there).
 */
#include "model/arch.h"
#include "model/model_load.h"

#include <math.h>

enum { PERIOD = 6, LAYERS_27B = 62 };

static strata_err read_window(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    float base = 0;
    strata_err rc = model_hparams_windows(hp, meta, PERIOD, em);
    if (!rc) rc = model_hparams_f32(meta, hp, "rope.freq_base_swa", &base, em);
    if (rc) return rc;
    if (base < 0 || (base > 0 && base <= 1))
        return err_set(em, STRATA_EFORMAT, "gemma3.rope.freq_base_swa is %g; it must be above 1", (double)base);
    hp->rope_window.freq_base = base > 0 ? base : 10000.0f;
    hp->rope_window.freq_scale = 1.0f;
    return STRATA_OK;
}

static strata_err check(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    strata_err rc = model_hparams_causal(hp, meta, em);
    if (!rc) rc = model_hparams_no_nextn(hp, em);
    if (!rc) rc = read_window(hp, meta, em);
    if (!rc) rc = model_hparams_f32(meta, hp, "final_logit_softcapping", &hp->logit_softcap, em);
    if (rc) return rc;
    if (hp->logit_softcap < 0)
        return err_set(em, STRATA_EFORMAT, "gemma3.final_logit_softcapping is %g; it must not be negative",
                       (double)hp->logit_softcap);
    hp->embd_scale = sqrtf((float)hp->n_embd);
    uint32_t n_head = hp->layer[0].n_head;
    hp->attn_scale = 1.0f / sqrtf((float)(hp->n_layer == LAYERS_27B ? hp->n_embd / n_head : hp->head_dim_k));
    /* Not the same as to scale their products, even for a power of two: fused attention rounds queries to half
     * precision, and the smallest lose bits there. llama.cpp does it in this order. */
    hp->scale_queries = true;
    return STRATA_OK;
}

static strata_err load_layer(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em) {
    uint64_t n_embd = ld->hp->n_embd;
    strata_err rc = model_load_attention(ld, il, l, em);
    if (!rc) rc = model_load_head_norms(ld, il, l, true, em);
    if (!rc) rc = model_weights_vector(ld, il, "post_attention_norm.weight", n_embd, true, &l->attn_post_norm, em);
    if (!rc) rc = model_weights_vector(ld, il, "ffn_norm.weight", n_embd, true, &l->ffn_norm, em);
    if (!rc) rc = model_weights_vector(ld, il, "post_ffw_norm.weight", n_embd, true, &l->ffn_post_norm, em);
    if (!rc) rc = model_load_ffn(ld, il, l, em);
    model_load_no_ffn_scales(l);
    return rc;
}

static struct ggml_tensor *build_layer(struct model_build *b, uint32_t il, struct ggml_tensor *x) {
    const struct model_layer *l = &b->w->layer[il - b->w->range.first];
    struct ggml_tensor *a = model_build_self_attention(b, il, model_build_norm(b, x, l->attn_norm));
    return model_build_rest(b, il, x, a, MODEL_ACT_GELU);
}

const struct arch arch_gemma3 = {
    .name = "gemma3",
    .about = {.models = "Gemma 3 from 270M to 27B, text", .window = ARCH_ALL, .notes = "two rotation bases"},
    .rope_mode = GGML_ROPE_TYPE_NEOX,
    .check = check,
    .load_layer = load_layer,
    .build_layer = build_layer,
};
