/*
 * Architecture `glm4moe`: GLM-4.5, 4.6, 4.7 and their Air sizes.
 *
 * The plain layer with biases on queries, keys and values, norms of heads in the large sizes, rotation of the halves of
 * a part of each head, a dense feed-forward part in the first layers, and experts with a shared one in the others:
 * sigmoid of the router, whose bias counts for the selection alone. The norm before the feed-forward part is called
 * post_attention_norm. Blocks that predict further tokens stand behind the trunk and are not run here. Per-tensor
 * scales are applied to the attention's products alone, as in qwen2 (see there).
 *
 * Vision models rotate by several positions at once (rope.dimension_sections). For text these are all equal but the
 * fourth, which stays 0; as long as no pair of dimensions belongs to the fourth, that is the ordinary rotation.
 */
#include "model/arch.h"
#include "model/model_load.h"

enum { SECTIONS = 4 };

/* Refuses sections that rotate text otherwise than the ordinary rotation does. */
static strata_err check_sections(const struct model_hparams *hp, const struct gguf_reader *meta,
                                 struct strata_errmsg *em) {
    char key[MODEL_KEY_MAX];
    const struct gguf_kv *kv = gguf_reader_find_kv(meta, model_hparams_key(key, hp, "rope.dimension_sections"));
    int64_t first_three = 0, fourth = 0;
    if (!kv) return STRATA_OK;
    if (kv->kind != GGUF_KIND_ARRAY || kv->elem_kind > GGUF_KIND_I32 || kv->count > SECTIONS)
        return err_set(em, STRATA_EFORMAT, "%s must be an array of at most %d whole numbers", key, SECTIONS);
    for (uint64_t i = 0; i < kv->count; i++) {
        int64_t n = gguf_reader_int_at(kv, i);
        if (n < 0 || n > MODEL_MAX_HEAD_DIM) return err_set(em, STRATA_EFORMAT, "%s holds %lld", key, (long long)n);
        *(i + 1 == SECTIONS ? &fourth : &first_three) += n;
    }
    if (fourth && hp->rope.n_rot / 2 > first_three)
        return err_set(em, STRATA_EUNSUPPORTED,
                       "%s gives some of the %u rotated pairs to the fourth position, which text does not have", key,
                       (unsigned)hp->rope.n_rot / 2);
    return STRATA_OK;
}

static strata_err check(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    strata_err rc = model_hparams_causal(hp, meta, em);
    if (!rc) rc = model_hparams_moe(hp, meta, MODEL_GATING_SIGMOID, true, em);
    if (!rc) rc = check_sections(hp, meta, em);
    if (rc) return rc;
    if (hp->moe.n_expert == 0) return err_set(em, STRATA_EFORMAT, "glm4moe.expert_count is missing or 0");
    return STRATA_OK;
}

static strata_err load_layer(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em) {
    bool dense = il < ld->hp->moe.n_dense;
    strata_err rc = model_load_attention(ld, il, l, em);
    if (!rc) rc = model_load_head_norms(ld, il, l, false, em);
    if (!rc) rc = model_weights_vector(ld, il, "post_attention_norm.weight", ld->hp->n_embd, true, &l->ffn_norm, em);
    if (!rc) rc = dense ? model_load_ffn(ld, il, l, em) : model_load_moe(ld, il, l, em);
    /* Half-precision sums overflow in these two. */
    l->o.wide = l->down.wide = true;
    model_load_no_ffn_scales(l);
    return rc;
}

const struct arch arch_glm4moe = {
    .name = "glm4moe",
    .about = {.models = "GLM-4.5, 4.6 and 4.7, with their Air sizes",
              .experts = ARCH_ALL,
              .notes = "prediction blocks are not run"},
    .rope_mode = GGML_ROPE_TYPE_NEOX,
    .check = check,
    .load_layer = load_layer,
    .build_layer = model_build_plain_layer,
};
