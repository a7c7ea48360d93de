/*
 * Architecture `deepseek2`: DeepSeek V2, V2-Lite, V2.5, V3, V3.1 and R1, Kimi K2, GLM-4.7-Flash, GigaChat 3, Mistral
 * Large 3, and others with multi-head latent attention.
 *
 * A layer: x + attention(rms(x)), then x + ffn(rms(x)); SwiGLU in the first layers, routed experts with a shared one in
 * the others. Attention, with a = rms(x), r = kv_lora_rank and for each of H heads q = [q_nope, q_pe]:
 *
 *   q = attn_q_b rms(attn_q_a a), or attn_q a where queries are not compressed;
 *   [c, k_pe] = attn_kv_a_mqa a; c = rms(c), r numbers; k_pe is one rotated part for all heads; q_pe and k_pe are
 *   rotated by neighbouring pairs, q_nope and c are not.
 *   Keys and values of head h would be k = [W_k[h] c, k_pe] and v = W_v[h] c.
 *
 * Absorbed form (files with attn_k_b and attn_v_b, and the keys *_length_mla): q k = (W_k[h]^T q_nope) c + q_pe k_pe,
 * and the sum over values can be taken of c, before W_v[h]. So all heads look at one key, [c, k_pe], whose first r
 * numbers are the value as well: a row of r + n_rot numbers is all that is kept of a position.
 *
 * Files of before have attn_kv_b, which holds W_k and W_v of a head one above the other. W_v could be seen in it as it
 * is, but absorbing needs W_k with rows and columns exchanged, which no view of a quantized matrix gives. They are run
 * as what the formulas say first: keys and values of every head are computed and kept. Results are the same, but the
 * state is H * (key_length + value_length) numbers for each position, 9 times as many with V2-Lite and 71 times with
 * V3; convert such a model anew where that matters.
 *
 * YaRN: with s = rope.scaling.factor and M = 10 * rope.scaling.yarn_log_multiplier, the softmax's scale is
 * (1 + 0.1 M ln s)^2 / sqrt(key_length), and rotation does not change lengths: models that give M give the same for
 * both factors of their configuration (mscale, mscale_all_dim), so that these cancel out.
 *
 * Mistral Large 3 multiplies queries by 1 + attention.temperature_scale * ln(floor(p / temperature_length) + 1) at
 * position p. Blocks that predict further tokens (GLM-4.7-Flash) stand behind the trunk and are not run here.
 * Per-tensor scales are applied to attn_output alone, as in qwen2 (see there).
 *
 * Expert groups: see model_build_moe. The weights' rule is the file's (expert_gating_func, expert_weights_norm,
 * expert_weights_scale); files of V2 do not tell the function, which is softmax, nor do first ones of GLM-4.7-Flash,
 * where it is sigmoid. First files of V3 lack the groups, which are known from the model: 4 of 8.
 *
 * Where llama.cpp computes something else than the models' own code, Strata follows the model:
 * - Groups of a router without selection bias (V2) are ranked by their best expert, not by the sum of their two best.
 * - V3 without group keys is routed with groups.
 * - With YaRN and no yarn_log_multiplier, rotation alone gets the factor 1 + 0.1 ln s; the softmax's scale stays.
 */
#include "model/arch.h"
#include "model/model_load.h"

#include <math.h>

/* ---- metadata ---- */

static strata_err bounded(const struct model_hparams *hp, const struct gguf_reader *meta, const char *name,
                          uint32_t max, uint32_t *out, struct strata_errmsg *em) {
    strata_err rc = model_hparams_u32(meta, hp, name, out, em);
    if (rc || *out <= max) return rc;
    return err_set(em, STRATA_EFORMAT, "%s.%s is %u; Strata runs at most %u", hp->arch, name, (unsigned)*out,
                   (unsigned)max);
}

/* Sizes of the latent attention; those of the state are in head_dim_k and head_dim_v. */
static strata_err read_latent(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    struct model_mla m = {.kv_rank = 0};
    uint32_t dim_k = 0, dim_v = 0;
    strata_err rc = bounded(hp, meta, "attention.kv_lora_rank", MODEL_MAX_HEAD_DIM, &m.kv_rank, em);
    if (!rc) rc = bounded(hp, meta, "attention.q_lora_rank", MODEL_MAX_EMBD, &m.q_rank, em);
    if (!rc) rc = bounded(hp, meta, "attention.key_length_mla", MODEL_MAX_HEAD_DIM, &dim_k, em);
    if (!rc) rc = bounded(hp, meta, "attention.value_length_mla", MODEL_MAX_HEAD_DIM, &dim_v, em);
    if (rc) return rc;
    if (m.kv_rank == 0) return err_set(em, STRATA_EFORMAT, "%s.attention.kv_lora_rank is missing or 0", hp->arch);
    m.absorbed = dim_k && dim_v;
    if (m.absorbed && (hp->head_dim_k != m.kv_rank + hp->rope.n_rot || hp->head_dim_v != m.kv_rank))
        return err_set(
            em, STRATA_EFORMAT,
            "%s.attention.key_length %u and value_length %u must be kv_lora_rank + rope.dimension_count, %u, "
            "and kv_lora_rank, %u",
            hp->arch, (unsigned)hp->head_dim_k, (unsigned)hp->head_dim_v, (unsigned)(m.kv_rank + hp->rope.n_rot),
            (unsigned)m.kv_rank);
    if (!m.absorbed) {
        dim_k = hp->head_dim_k;
        dim_v = hp->head_dim_v;
    }
    if (dim_k <= hp->rope.n_rot)
        return err_set(em, STRATA_EFORMAT, "%s.attention.%s is %u; it must be more than rope.dimension_count, %u",
                       hp->arch, m.absorbed ? "key_length_mla" : "key_length", (unsigned)dim_k,
                       (unsigned)hp->rope.n_rot);
    m.n_nope = dim_k - hp->rope.n_rot;
    m.dim_v = dim_v;
    for (uint32_t i = 0; i < hp->n_block; i++) {
        const struct model_layer_dims *d = &hp->layer[i];
        uint32_t want = m.absorbed ? 1 : d->n_head;
        if (d->n_head_kv != want)
            return err_set(em, STRATA_EFORMAT, "%s.attention.head_count_kv is %u for block %u; it must be %u", hp->arch,
                           (unsigned)d->n_head_kv, (unsigned)i, (unsigned)want);
    }
    hp->mla = m;
    return STRATA_OK;
}

/* The softmax's scale, and the factor that rotation puts on lengths on top of ggml's own, which it takes back. */
static strata_err read_scales(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    float log_mul = 0, scale = 1;
    strata_err rc = model_hparams_f32(meta, hp, "rope.scaling.yarn_log_multiplier", &log_mul, em);
    if (rc) return rc;
    float factor = 1.0f / hp->rope.freq_scale;
    if (hp->rope.ext_factor != 0 && log_mul != 0 && factor > 1) {
        float ln = logf(factor);
        hp->rope.attn_factor /= 1.0f + 0.1f * ln;
        scale = 1.0f + 0.1f * (log_mul / 0.1f) * ln;
    }
    hp->attn_scale = scale * scale / sqrtf((float)(hp->mla.n_nope + hp->rope.n_rot));
    if (isfinite(hp->attn_scale) && hp->attn_scale != 0) return STRATA_OK;
    return err_set(em, STRATA_EFORMAT, "%s.rope.scaling.yarn_log_multiplier %g gives no usable scale", hp->arch,
                   (double)log_mul);
}

static strata_err read_temperature(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    strata_err rc = model_hparams_f32(meta, hp, "attention.temperature_scale", &hp->q_temp_scale, em);
    if (!rc) rc = model_hparams_u32(meta, hp, "attention.temperature_length", &hp->q_temp_length, em);
    if (rc || hp->q_temp_scale == 0 || hp->q_temp_length > 0) return rc;
    return err_set(em, STRATA_EFORMAT, "%s.attention.temperature_length is missing or 0", hp->arch);
}

/* What the first files of some models do not say. */
static void complete_routing(struct model_hparams *hp) {
    struct model_moe *m = &hp->moe;
    bool is_v3 = m->n_expert == 256 && m->n_used == 8 && hp->n_embd == 7168 && m->gating == MODEL_GATING_SIGMOID;
    if (!is_v3 || m->n_group > 1) return;
    m->n_group = 8;
    m->n_group_used = 4;
}

static strata_err check(struct model_hparams *hp, const struct gguf_reader *meta, struct strata_errmsg *em) {
    bool glm = (hp->n_block == 47 || hp->n_block == 48) && hp->n_vocab == 154880;
    strata_err rc = model_hparams_causal(hp, meta, em);
    if (!rc) rc = model_hparams_moe(hp, meta, glm ? MODEL_GATING_SIGMOID : MODEL_GATING_SOFTMAX, false, em);
    if (!rc) rc = read_latent(hp, meta, em);
    if (!rc) rc = read_scales(hp, meta, em);
    if (!rc) rc = read_temperature(hp, meta, em);
    if (!rc) complete_routing(hp);
    return rc;
}

static void planes(const struct model_hparams *hp, uint32_t il, struct model_plane_dims dims[MODEL_STATE_PLANES]) {
    (void)il;
    if (!hp->mla.absorbed) return;
    dims[0].width = hp->mla.kv_rank + hp->rope.n_rot;
    dims[0].part = hp->mla.kv_rank; /* read as values */
    dims[1].width = 0;
}

/* ---- weights ---- */

static strata_err load_queries(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em) {
    const struct model_hparams *hp = ld->hp;
    uint32_t rank = hp->mla.q_rank;
    uint64_t n_q = (uint64_t)hp->layer[il].n_head * (hp->mla.n_nope + hp->rope.n_rot);
    if (rank == 0) return model_weights_linear(ld, il, "attn_q", hp->n_embd, n_q, true, &l->q, em);
    strata_err rc = model_weights_linear(ld, il, "attn_q_a", hp->n_embd, rank, true, &l->q_a, em);
    if (!rc) rc = model_weights_vector(ld, il, "attn_q_a_norm.weight", rank, true, &l->q_a_norm, em);
    if (!rc) rc = model_weights_linear(ld, il, "attn_q_b", rank, n_q, true, &l->q_b, em);
    return rc;
}

static strata_err load_latent(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em) {
    const struct model_hparams *hp = ld->hp;
    const struct model_mla *m = &hp->mla;
    uint32_t n_head = hp->layer[il].n_head, rank = m->kv_rank;
    strata_err rc =
        model_weights_linear(ld, il, "attn_kv_a_mqa", hp->n_embd, rank + hp->rope.n_rot, true, &l->kv_a, em);
    if (!rc) rc = model_weights_vector(ld, il, "attn_kv_a_norm.weight", rank, true, &l->kv_a_norm, em);
    if (rc) return rc;
    if (!m->absorbed)
        return model_weights_linear(ld, il, "attn_kv_b", rank, (uint64_t)n_head * (m->n_nope + m->dim_v), true,
                                    &l->kv_b, em);
    rc = model_weights_stack(ld, il, "attn_k_b.weight", m->n_nope, rank, n_head, true, &l->k_b, em);
    if (!rc) rc = model_weights_stack(ld, il, "attn_v_b.weight", rank, m->dim_v, n_head, true, &l->v_b, em);
    /* Some files keep the matrix that these two were cut from. */
    if (!rc) rc = model_weights_ignore(ld, il, "attn_kv_b.weight", em);
    return rc;
}

static strata_err load_layer(struct model_loader *ld, uint32_t il, struct model_layer *l, struct strata_errmsg *em) {
    const struct model_hparams *hp = ld->hp;
    uint64_t n_o = (uint64_t)hp->layer[il].n_head * hp->mla.dim_v;
    bool dense = hp->moe.n_expert == 0 || il < hp->moe.n_dense;
    strata_err rc = model_weights_vector(ld, il, "attn_norm.weight", hp->n_embd, true, &l->attn_norm, em);
    if (!rc) rc = load_queries(ld, il, l, em);
    if (!rc) rc = load_latent(ld, il, l, em);
    if (!rc) rc = model_weights_linear(ld, il, "attn_output", n_o, hp->n_embd, true, &l->o, em);
    if (!rc) rc = model_weights_vector(ld, il, "ffn_norm.weight", hp->n_embd, true, &l->ffn_norm, em);
    if (!rc) rc = dense ? model_load_ffn(ld, il, l, em) : model_load_moe(ld, il, l, em);
    model_load_no_ffn_scales(l);
    return rc;
}

/* ---- graph ---- */

/* n numbers of each head from `from` on: x [.., H, T] in, a view [n, H, T]. */
static struct ggml_tensor *head_part(struct model_build *b, struct ggml_tensor *x, uint32_t from, uint32_t n) {
    return ggml_view_3d(b->ctx, x, n, x->ne[1], x->ne[2], x->nb[1], x->nb[2], from * ggml_element_size(x));
}

/* The factor of queries that grows with their position: [1, 1, T]. */
static struct ggml_tensor *temperature(struct model_build *b, int64_t n) {
    struct ggml_tensor *pos = n == b->pos->ne[0] ? b->pos : b->out_pos;
    float step = 1.0f / (float)b->hp->q_temp_length;
    /* Half a position more, so that rounding cannot fall short of a whole number. */
    struct ggml_tensor *t = ggml_scale_bias(b->ctx, ggml_cast(b->ctx, pos, GGML_TYPE_F32), step, 0.5f * step);
    t = ggml_log(b->ctx, ggml_scale_bias(b->ctx, ggml_floor(b->ctx, t), 1.0f, 1.0f));
    return ggml_reshape_3d(b->ctx, ggml_scale_bias(b->ctx, t, b->hp->q_temp_scale, 1.0f), 1, 1, n);
}

/* Queries of the normed input, [n_nope + n_rot, H, T], the last n_rot not yet rotated. */
static struct ggml_tensor *project(struct model_build *b, uint32_t il, struct ggml_tensor *a) {
    const struct model_layer *l = &b->w->layer[il - b->w->range.first];
    struct ggml_tensor *q = a;
    if (b->hp->mla.q_rank)
        q = model_build_linear(b, &l->q_b, model_build_norm(b, model_build_linear(b, &l->q_a, a), l->q_a_norm));
    else
        q = model_build_linear(b, &l->q, a);
    return model_build_heads(b, q, b->hp->mla.n_nope + b->hp->rope.n_rot, b->hp->layer[il].n_head);
}

static struct ggml_tensor *queries(struct model_build *b, uint32_t il, struct ggml_tensor *a) {
    const struct model_layer *l = &b->w->layer[il - b->w->range.first];
    const struct model_mla *m = &b->hp->mla;
    if (model_build_drops_rows(b, il)) {
        if (b->n_out == 0) return NULL;
        a = model_build_kept(b, a);
    }
    struct ggml_tensor *q = project(b, il, a), *nope = head_part(b, q, 0, m->n_nope);
    struct ggml_tensor *pe = model_build_rope(b, il, head_part(b, q, m->n_nope, b->hp->rope.n_rot));
    if (m->absorbed) {
        nope = ggml_mul_mat(b->ctx, l->k_b, ggml_permute(b->ctx, nope, 0, 2, 1, 3)); /* [r, T, H] */
        nope = ggml_permute(b->ctx, nope, 0, 2, 1, 3);
    }
    q = ggml_concat(b->ctx, nope, pe, 0);
    return b->hp->q_temp_scale != 0 ? ggml_mul(b->ctx, q, temperature(b, q->ne[2])) : q;
}

/* Keys, and values where they are not a part of them. */
static void keys(struct model_build *b, uint32_t il, struct ggml_tensor *a, struct model_attention *out) {
    const struct model_layer *l = &b->w->layer[il - b->w->range.first];
    const struct model_mla *m = &b->hp->mla;
    uint32_t n_head = b->hp->layer[il].n_head, n_rot = b->hp->rope.n_rot;
    int64_t n = a->ne[1];
    struct ggml_tensor *both = model_build_linear(b, &l->kv_a, a);
    struct ggml_tensor *c = model_build_norm(b, model_build_columns(b, both, 0, m->kv_rank), l->kv_a_norm);
    struct ggml_tensor *pe = model_build_columns(b, both, m->kv_rank, n_rot);
    pe = model_build_rope(b, il, ggml_view_3d(b->ctx, pe, n_rot, 1, n, pe->nb[1], pe->nb[1], 0));
    out->dim_v = m->absorbed ? m->kv_rank : m->dim_v;
    if (m->absorbed) {
        out->k = ggml_concat(b->ctx, ggml_reshape_3d(b->ctx, c, m->kv_rank, 1, n), pe, 0);
        return;
    }
    struct ggml_tensor *kv = model_build_heads(b, model_build_linear(b, &l->kv_b, c), m->n_nope + m->dim_v, n_head);
    pe = ggml_repeat_4d(b->ctx, pe, n_rot, n_head, n, 1);
    out->k = ggml_concat(b->ctx, head_part(b, kv, 0, m->n_nope), pe, 0);
    out->v = ggml_cont(b->ctx, head_part(b, kv, m->n_nope, m->dim_v));
}

/* What was summed of the compressed rows, [r * H, T], as values: [dim_v * H, T]. */
static struct ggml_tensor *decompress(struct model_build *b, uint32_t il, struct ggml_tensor *y) {
    const struct model_layer *l = &b->w->layer[il - b->w->range.first];
    int64_t n_head = b->hp->layer[il].n_head, n = y->ne[1];
    y = ggml_reshape_3d(b->ctx, y, b->hp->mla.kv_rank, n_head, n);
    y = ggml_mul_mat(b->ctx, l->v_b, ggml_permute(b->ctx, y, 0, 2, 1, 3)); /* [dim_v, T, H] */
    if (n > 1) y = ggml_cont(b->ctx, ggml_permute(b->ctx, y, 0, 2, 1, 3));
    return ggml_reshape_2d(b->ctx, y, b->hp->mla.dim_v * n_head, n);
}

static struct ggml_tensor *build_layer(struct model_build *b, uint32_t il, struct ggml_tensor *x) {
    const struct model_layer *l = &b->w->layer[il - b->w->range.first];
    struct ggml_tensor *a = model_build_norm(b, x, l->attn_norm);
    struct model_attention att = {.q = queries(b, il, a), .scale = b->hp->attn_scale};
    keys(b, il, a, &att);
    struct ggml_tensor *y = model_build_attention(b, il, &att);
    if (y && b->hp->mla.absorbed) y = decompress(b, il, y);
    if (y) y = model_build_linear(b, &l->o, y);
    return model_build_rest(b, il, x, y, MODEL_ACT_SILU);
}

const struct arch arch_deepseek2 = {
    .name = "deepseek2",
    .about = {.models = "DeepSeek V2 to V3.1 and R1, Kimi K2, GLM-4.7-Flash, GigaChat 3, Mistral Large 3",
              .experts = ARCH_SOME,
              .latent = ARCH_ALL,
              .notes = "prediction blocks are not run"},
    .rope_mode = GGML_ROPE_TYPE_NORMAL,
    .check = check,
    .planes = planes,
    .load_layer = load_layer,
    .build_layer = build_layer,
};
