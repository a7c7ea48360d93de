/*
 * The architectures that mkmodel can make. See mk.h.
 *
 * To add one: a function that adds a block's tensors, most often made of the parts below, one for its own keys if it
 * has any, and a line in the table at the end.
 */
#include "mk.h"

#include <math.h>
#include <string.h>

static void preset(uint32_t *field, uint32_t v) {
    if (!*field) *field = v;
}

/* ---- parts ---- */

static uint32_t head_dim(const struct mk_options *o) {
    return o->head_dim ? o->head_dim : o->embd / o->heads;
}

static strata_err attention(struct mk_model *m, int il, bool qkv_bias, bool out_bias, struct strata_errmsg *em) {
    const struct mk_options *o = &m->opt;
    uint64_t dim = head_dim(o), n_q = dim * o->heads, n_kv = dim * o->kv_heads;
    strata_err rc = mk_norm(m, il, "attn_norm.weight", o->embd, em);
    if (!rc) rc = mk_linear(m, il, "attn_q", o->embd, n_q, qkv_bias, em);
    if (!rc) rc = mk_linear(m, il, "attn_k", o->embd, n_kv, qkv_bias, em);
    if (!rc) rc = mk_linear(m, il, "attn_v", o->embd, n_kv, qkv_bias, em);
    return rc ? rc : mk_linear(m, il, "attn_output", n_q, o->embd, out_bias, em);
}

static strata_err head_norms(struct mk_model *m, int il, struct strata_errmsg *em) {
    strata_err rc = mk_norm(m, il, "attn_q_norm.weight", head_dim(&m->opt), em);
    return rc ? rc : mk_norm(m, il, "attn_k_norm.weight", head_dim(&m->opt), em);
}

static strata_err feed_forward(struct mk_model *m, int il, bool bias, struct strata_errmsg *em) {
    const struct mk_options *o = &m->opt;
    strata_err rc = mk_linear(m, il, "ffn_gate", o->embd, o->ff, bias, em);
    if (!rc) rc = mk_linear(m, il, "ffn_up", o->embd, o->ff, bias, em);
    return rc ? rc : mk_linear(m, il, "ffn_down", o->ff, o->embd, bias, em);
}

/* Routed experts of width opt.expert_ff, and shared ones. */
static strata_err experts(struct mk_model *m, int il, bool router_bias, struct strata_errmsg *em) {
    const struct mk_options *o = &m->opt;
    uint64_t ff = o->expert_ff, shared = ff * o->shared;
    /* Wide apart: a router that hesitates would make results depend on the last bit. */
    strata_err rc =
        mk_matrix(m, il, "ffn_gate_inp.weight", GGUF_TENSOR_F32, o->embd, o->experts, 1, 2 / sqrt((double)o->embd), em);
    if (!rc && router_bias) rc = mk_vector(m, il, "exp_probs_b.bias", o->experts, 0, 0.2, em);
    if (!rc && strstr(o->variant, "fused")) {
        rc = mk_experts(m, il, "ffn_gate_up_exps", o->embd, 2 * ff, false, em);
    } else {
        if (!rc) rc = mk_experts(m, il, "ffn_gate_exps", o->embd, ff, false, em);
        if (!rc) rc = mk_experts(m, il, "ffn_up_exps", o->embd, ff, false, em);
    }
    if (!rc) rc = mk_experts(m, il, "ffn_down_exps", ff, o->embd, false, em);
    if (rc || !shared) return rc;
    rc = mk_linear(m, il, "ffn_gate_shexp", o->embd, shared, false, em);
    if (!rc) rc = mk_linear(m, il, "ffn_up_shexp", o->embd, shared, false, em);
    return rc ? rc : mk_linear(m, il, "ffn_down_shexp", shared, o->embd, false, em);
}

/* What stands in a block behind the trunk besides an ordinary layer. */
static strata_err prediction_head(struct mk_model *m, int il, struct strata_errmsg *em) {
    const struct mk_options *o = &m->opt;
    strata_err rc = mk_linear(m, il, "nextn.eh_proj", 2ull * o->embd, o->embd, false, em);
    if (!rc) rc = mk_norm(m, il, "nextn.enorm.weight", o->embd, em);
    if (!rc) rc = mk_norm(m, il, "nextn.hnorm.weight", o->embd, em);
    return rc ? rc : mk_norm(m, il, "nextn.shared_head_norm.weight", o->embd, em);
}

static void preset_experts(struct mk_options *o) {
    preset(&o->experts, 8);
    preset(&o->experts_used, 3);
    preset(&o->expert_ff, o->ff / o->experts_used);
}

static strata_err keys_experts(struct mk_model *m, struct strata_errmsg *em) {
    const struct mk_options *o = &m->opt;
    strata_err rc = mk_u32(m, "expert_count", o->experts, em);
    return rc ? rc : mk_u32(m, "expert_used_count", o->experts_used, em);
}

/* ---- llama ---- */

static void llama_preset(struct mk_options *o) {
    if (!o->experts) return;
    preset(&o->experts_used, 2);
    o->expert_ff = o->ff; /* as in Mixtral: an expert is as wide as the dense part would be */
}

static strata_err llama_keys(struct mk_model *m, struct strata_errmsg *em) {
    return m->opt.experts ? keys_experts(m, em) : STRATA_OK;
}

static strata_err llama_block(struct mk_model *m, int il, struct strata_errmsg *em) {
    bool bias = m->opt.bias;
    strata_err rc = attention(m, il, bias, bias, em);
    if (!rc) rc = mk_norm(m, il, "ffn_norm.weight", m->opt.embd, em);
    if (rc) return rc;
    return m->opt.experts ? experts(m, il, false, em) : feed_forward(m, il, bias, em);
}

/* ---- qwen2, qwen3, qwen3moe ---- */

static strata_err qwen2_block(struct mk_model *m, int il, struct strata_errmsg *em) {
    strata_err rc = attention(m, il, true, false, em);
    if (!rc) rc = mk_norm(m, il, "ffn_norm.weight", m->opt.embd, em);
    return rc ? rc : feed_forward(m, il, false, em);
}

static strata_err qwen3_block(struct mk_model *m, int il, struct strata_errmsg *em) {
    strata_err rc = attention(m, il, false, false, em);
    if (!rc) rc = head_norms(m, il, em);
    if (!rc) rc = mk_norm(m, il, "ffn_norm.weight", m->opt.embd, em);
    if (rc) return rc;
    return m->opt.experts ? experts(m, il, false, em) : feed_forward(m, il, false, em);
}

static strata_err qwen3moe_keys(struct mk_model *m, struct strata_errmsg *em) {
    strata_err rc = keys_experts(m, em);
    return rc ? rc : mk_u32(m, "expert_feed_forward_length", m->opt.expert_ff, em);
}

/* ---- glm4moe ---- */

static void glm4moe_preset(struct mk_options *o) {
    preset_experts(o);
    preset(&o->shared, 1);
    preset(&o->dense_layers, 1);
    preset(&o->nextn, 1);
    preset(&o->n_rot, head_dim(o) / 2);
}

static strata_err glm4moe_keys(struct mk_model *m, struct strata_errmsg *em) {
    const struct mk_options *o = &m->opt;
    strata_err rc = qwen3moe_keys(m, em);
    if (!rc) rc = mk_u32(m, "expert_shared_count", o->shared, em);
    if (!rc) rc = mk_u32(m, "leading_dense_block_count", o->dense_layers, em);
    if (!rc) rc = mk_u32(m, "nextn_predict_layers", o->nextn, em);
    if (!rc) rc = mk_u32(m, "expert_gating_func", 2, em);
    if (!rc) rc = mk_f32(m, "expert_weights_scale", 2.5f, em);
    return rc ? rc : mk_bool(m, "expert_weights_norm", true, em);
}

static strata_err glm4moe_block(struct mk_model *m, int il, struct strata_errmsg *em) {
    const struct mk_options *o = &m->opt;
    strata_err rc = attention(m, il, true, false, em);
    if (!rc) rc = head_norms(m, il, em);
    if (!rc) rc = mk_norm(m, il, "post_attention_norm.weight", o->embd, em);
    if (!rc) rc = (uint32_t)il < o->dense_layers ? feed_forward(m, il, false, em) : experts(m, il, true, em);
    return !rc && (uint32_t)il >= o->layers ? prediction_head(m, il, em) : rc;
}

/* ---- deepseek2 ---- */

/*
 * As V3 by default. Variants: "lite" (queries not compressed), "legacy" (attn_kv_b, from before the split into attn_k_b
 * and attn_v_b), "v2" (softmax, no selection bias, weights not normalised), "fused" (ffn_gate_up_exps), "temperature"
 * (of queries), "nomul" (with --rope yarn: no yarn_log_multiplier), "noexperts".
 */
enum { MLA_NOPE = 32, MLA_DIM_V = 32 };

static bool is_variant(const struct mk_model *m, const char *word) {
    return strstr(m->opt.variant, word) != NULL;
}

static void deepseek2_preset(struct mk_options *o) {
    preset(&o->n_rot, 32);
    preset(&o->q_rank, 64);
    preset(&o->kv_rank, 64);
    o->kv_heads = strstr(o->variant, "legacy") ? o->heads : 1;
    if (strstr(o->variant, "noexperts")) return;
    preset(&o->experts, 16);
    preset(&o->experts_used, 4);
    preset(&o->expert_ff, 64);
    preset(&o->shared, 1);
    preset(&o->dense_layers, 1);
    preset(&o->groups, 4);
    preset(&o->groups_used, 2);
}

static strata_err deepseek2_experts_keys(struct mk_model *m, struct strata_errmsg *em) {
    const struct mk_options *o = &m->opt;
    bool v2 = is_variant(m, "v2");
    strata_err rc = qwen3moe_keys(m, em);
    if (!rc) rc = mk_u32(m, "expert_shared_count", o->shared, em);
    if (!rc) rc = mk_u32(m, "leading_dense_block_count", o->dense_layers, em);
    if (!rc) rc = mk_u32(m, "expert_group_count", o->groups, em);
    if (!rc) rc = mk_u32(m, "expert_group_used_count", o->groups_used, em);
    if (!rc && !v2) rc = mk_u32(m, "expert_gating_func", 2, em);
    if (!rc) rc = mk_f32(m, "expert_weights_scale", v2 ? 8 : 2.5f, em);
    return rc ? rc : mk_bool(m, "expert_weights_norm", !v2, em);
}

static strata_err deepseek2_keys(struct mk_model *m, struct strata_errmsg *em) {
    const struct mk_options *o = &m->opt;
    bool legacy = is_variant(m, "legacy"), yarn = o->rope && strncmp(o->rope, "yarn", 4) == 0;
    uint32_t dim_k = MLA_NOPE + o->n_rot;
    strata_err rc = mk_u32(m, "attention.q_lora_rank", is_variant(m, "lite") ? 0 : o->q_rank, em);
    if (!rc) rc = mk_u32(m, "attention.kv_lora_rank", o->kv_rank, em);
    if (!rc) rc = mk_u32(m, "attention.key_length", legacy ? dim_k : o->kv_rank + o->n_rot, em);
    if (!rc) rc = mk_u32(m, "attention.value_length", legacy ? MLA_DIM_V : o->kv_rank, em);
    if (!rc && !legacy) rc = mk_u32(m, "attention.key_length_mla", dim_k, em);
    if (!rc && !legacy) rc = mk_u32(m, "attention.value_length_mla", MLA_DIM_V, em);
    if (!rc && yarn && !is_variant(m, "nomul")) rc = mk_f32(m, "rope.scaling.yarn_log_multiplier", 0.0707f, em);
    if (!rc && o->nextn) rc = mk_u32(m, "nextn_predict_layers", o->nextn, em);
    if (!rc && is_variant(m, "temperature")) {
        rc = mk_f32(m, "attention.temperature_scale", 0.3f, em);
        if (!rc) rc = mk_u32(m, "attention.temperature_length", 10, em);
    }
    return rc || !o->experts ? rc : deepseek2_experts_keys(m, em);
}

/* A product that files have no factor for. */
static strata_err unscaled(struct mk_model *m, int il, const char *name, uint64_t n_in, uint64_t n_out, uint64_t count,
                           struct strata_errmsg *em) {
    return mk_matrix(m, il, name, m->opt.type, n_in, n_out, count, 1 / sqrt((double)n_in), em);
}

static strata_err deepseek2_attention(struct mk_model *m, int il, struct strata_errmsg *em) {
    const struct mk_options *o = &m->opt;
    uint64_t r = o->kv_rank, n_q = (uint64_t)o->heads * (MLA_NOPE + o->n_rot);
    strata_err rc = mk_norm(m, il, "attn_norm.weight", o->embd, em);
    if (!rc && is_variant(m, "lite")) {
        rc = unscaled(m, il, "attn_q.weight", o->embd, n_q, 1, em);
    } else if (!rc) {
        rc = unscaled(m, il, "attn_q_a.weight", o->embd, o->q_rank, 1, em);
        if (!rc) rc = mk_norm(m, il, "attn_q_a_norm.weight", o->q_rank, em);
        if (!rc) rc = unscaled(m, il, "attn_q_b.weight", o->q_rank, n_q, 1, em);
    }
    if (!rc) rc = unscaled(m, il, "attn_kv_a_mqa.weight", o->embd, r + o->n_rot, 1, em);
    if (!rc) rc = mk_norm(m, il, "attn_kv_a_norm.weight", r, em);
    if (!rc && is_variant(m, "legacy")) {
        rc = unscaled(m, il, "attn_kv_b.weight", r, (uint64_t)o->heads * (MLA_NOPE + MLA_DIM_V), 1, em);
    } else if (!rc) {
        rc = unscaled(m, il, "attn_k_b.weight", MLA_NOPE, r, o->heads, em);
        if (!rc) rc = unscaled(m, il, "attn_v_b.weight", r, MLA_DIM_V, o->heads, em);
    }
    return rc ? rc : mk_linear(m, il, "attn_output", (uint64_t)o->heads * MLA_DIM_V, o->embd, false, em);
}

static strata_err deepseek2_block(struct mk_model *m, int il, struct strata_errmsg *em) {
    const struct mk_options *o = &m->opt;
    bool dense = !o->experts || (uint32_t)il < o->dense_layers;
    strata_err rc = deepseek2_attention(m, il, em);
    if (!rc) rc = mk_norm(m, il, "ffn_norm.weight", o->embd, em);
    if (!rc) rc = dense ? feed_forward(m, il, false, em) : experts(m, il, !is_variant(m, "v2"), em);
    return !rc && (uint32_t)il >= o->layers ? prediction_head(m, il, em) : rc;
}

/* ---- gemma3 ---- */

static void gemma3_preset(struct mk_options *o) {
    preset(&o->window, 16);
}

/* Variants: cap (of the logits), base (of the rotation in layers with a window), every2 (every second one has none). */
static strata_err gemma3_keys(struct mk_model *m, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    if (is_variant(m, "cap")) rc = mk_f32(m, "final_logit_softcapping", 1.5f, em);
    if (!rc && is_variant(m, "base")) rc = mk_f32(m, "rope.freq_base_swa", 500, em);
    if (!rc && is_variant(m, "every2")) rc = mk_u32(m, "attention.sliding_window_pattern", 2, em);
    return rc;
}

static strata_err gemma3_block(struct mk_model *m, int il, struct strata_errmsg *em) {
    uint64_t n = m->opt.embd;
    strata_err rc = attention(m, il, false, false, em);
    if (!rc) rc = head_norms(m, il, em);
    if (!rc) rc = mk_norm(m, il, "post_attention_norm.weight", n, em);
    if (!rc) rc = mk_norm(m, il, "ffn_norm.weight", n, em);
    if (!rc) rc = mk_norm(m, il, "post_ffw_norm.weight", n, em);
    return rc ? rc : feed_forward(m, il, false, em);
}

/* ---- gpt-oss ---- */

static void gpt_oss_preset(struct mk_options *o) {
    preset(&o->window, 16);
    preset_experts(o);
}

static strata_err gpt_oss_block(struct mk_model *m, int il, struct strata_errmsg *em) {
    const struct mk_options *o = &m->opt;
    double dev = 2 / sqrt((double)o->embd);
    strata_err rc = attention(m, il, true, true, em);
    if (!rc) rc = mk_vector(m, il, "attn_sinks.weight", o->heads, 1, 1, em);
    if (!rc) rc = mk_norm(m, il, "post_attention_norm.weight", o->embd, em);
    if (!rc) rc = mk_matrix(m, il, "ffn_gate_inp.weight", GGUF_TENSOR_F32, o->embd, o->experts, 1, dev, em);
    if (!rc) rc = mk_vector(m, il, "ffn_gate_inp.bias", o->experts, 0, 0.2, em);
    if (!rc) rc = mk_experts(m, il, "ffn_gate_exps", o->embd, o->expert_ff, true, em);
    if (!rc) rc = mk_experts(m, il, "ffn_up_exps", o->embd, o->expert_ff, true, em);
    return rc ? rc : mk_experts(m, il, "ffn_down_exps", o->expert_ff, o->embd, true, em);
}

/* ---- lfm2, lfm2moe ---- */

/* Attention in every third layer; variants: front (from the first layer on), conv4 (over four positions, not three). */
static bool lfm2_attends(const struct mk_model *m, int il) {
    return il % 3 == (is_variant(m, "front") ? 0 : 2);
}

static uint32_t lfm2_conv_len(const struct mk_model *m) {
    return is_variant(m, "conv4") ? 4 : 3;
}

static strata_err lfm2_keys(struct mk_model *m, struct strata_errmsg *em) {
    enum { MOST = 1024 };
    int32_t kv_heads[MOST];
    if (m->opt.layers > MOST) return err_set(em, STRATA_ELIMIT, "more than %d layers", MOST);
    for (uint32_t i = 0; i < m->opt.layers; i++) kv_heads[i] = lfm2_attends(m, (int)i) ? (int32_t)m->opt.kv_heads : 0;
    strata_err rc = mk_i32s(m, "attention.head_count_kv", kv_heads, em);
    return rc ? rc : mk_u32(m, "shortconv.l_cache", lfm2_conv_len(m), em);
}

static void lfm2moe_preset(struct mk_options *o) {
    preset_experts(o);
    preset(&o->dense_layers, 1);
}

static strata_err lfm2moe_keys(struct mk_model *m, struct strata_errmsg *em) {
    strata_err rc = lfm2_keys(m, em);
    if (!rc) rc = qwen3moe_keys(m, em);
    if (!rc) rc = mk_u32(m, "leading_dense_block_count", m->opt.dense_layers, em);
    return rc ? rc : mk_u32(m, "expert_gating_func", 2, em);
}

static strata_err lfm2_block(struct mk_model *m, int il, struct strata_errmsg *em) {
    const struct mk_options *o = &m->opt;
    strata_err rc;
    if (lfm2_attends(m, il)) {
        rc = attention(m, il, false, false, em);
        if (!rc) rc = head_norms(m, il, em);
    } else {
        uint32_t n = lfm2_conv_len(m);
        double dev = 1 / sqrt((double)o->embd);
        rc = mk_norm(m, il, "attn_norm.weight", o->embd, em);
        if (!rc) rc = mk_matrix(m, il, "shortconv.in_proj.weight", o->type, o->embd, 3ull * o->embd, 1, dev, em);
        if (!rc) rc = mk_matrix(m, il, "shortconv.conv.weight", GGUF_TENSOR_F32, n, o->embd, 1, 0.6, em);
        if (!rc) rc = mk_matrix(m, il, "shortconv.out_proj.weight", o->type, o->embd, o->embd, 1, dev, em);
    }
    if (!rc) rc = mk_norm(m, il, "ffn_norm.weight", o->embd, em);
    if (rc) return rc;
    bool dense = !o->experts || (uint32_t)il < o->dense_layers;
    return dense ? feed_forward(m, il, false, em) : experts(m, il, true, em);
}

/* ---- the table ---- */

static const struct mk_arch archs[] = {
    {.name = "llama", .preset = llama_preset, .keys = llama_keys, .block = llama_block},
    {.name = "qwen2", .block = qwen2_block},
    {.name = "qwen3", .block = qwen3_block},
    {.name = "qwen3moe", .preset = preset_experts, .keys = qwen3moe_keys, .block = qwen3_block},
    {.name = "glm4moe", .preset = glm4moe_preset, .keys = glm4moe_keys, .block = glm4moe_block},
    {.name = "deepseek2", .preset = deepseek2_preset, .keys = deepseek2_keys, .block = deepseek2_block},
    {.name = "gemma3", .preset = gemma3_preset, .keys = gemma3_keys, .block = gemma3_block},
    {.name = "gpt-oss", .preset = gpt_oss_preset, .keys = qwen3moe_keys, .block = gpt_oss_block},
    {.name = "lfm2", .keys = lfm2_keys, .block = lfm2_block, .output_norm = "token_embd_norm.weight", .hybrid = true},
    {.name = "lfm2moe",
     .preset = lfm2moe_preset,
     .keys = lfm2moe_keys,
     .block = lfm2_block,
     .output_norm = "token_embd_norm.weight",
     .hybrid = true},
};

const struct mk_arch *mk_arch_find(const char *name) {
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++)
        if (strcmp(archs[i].name, name) == 0) return &archs[i];
    return NULL;
}
