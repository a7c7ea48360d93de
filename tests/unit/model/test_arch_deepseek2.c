/* What the metadata of models with latent attention comes out as: sizes, scales, routing, and what is refused. */
#include "base/buf.h"
#include "model/arch.h"

#include "../engine/model_file.h"

/* A model's numbers, named without the architecture; a float where `is_float`. */
struct key {
    const char *name;
    double number;
    bool is_float;
};

struct sizes {
    uint32_t blocks, embd, heads, kv_heads, key, value, vocab;
};

static const struct sizes v3 = {61, 7168, 128, 1, 576, 512, 1000};
static const struct sizes lite = {27, 2048, 16, 16, 192, 128, 1000};

static const struct key v3_keys[] = {{"attention.kv_lora_rank", 512, false},
                                     {"attention.q_lora_rank", 1536, false},
                                     {"attention.key_length_mla", 192, false},
                                     {"attention.value_length_mla", 128, false},
                                     {"rope.dimension_count", 64, false},
                                     {"expert_count", 256, false},
                                     {"expert_used_count", 8, false},
                                     {"expert_shared_count", 1, false},
                                     {"expert_feed_forward_length", 2048, false},
                                     {"leading_dense_block_count", 3, false},
                                     {"expert_gating_func", 2, false},
                                     {"expert_weights_scale", 2.5, true}};

static const struct key lite_keys[] = {{"attention.kv_lora_rank", 512, false},
                                       {"rope.dimension_count", 64, false},
                                       {"expert_count", 64, false},
                                       {"expert_used_count", 6, false},
                                       {"expert_shared_count", 2, false},
                                       {"expert_feed_forward_length", 1408, false},
                                       {"leading_dense_block_count", 1, false}};

static strata_err append(void *user, const void *data, size_t len, struct strata_errmsg *em) {
    return buf_append(user, data, len, em);
}

static void add(struct gguf_writer *w, const struct key *k) {
    struct strata_errmsg em;
    char name[128];
    snprintf(name, sizeof name, "deepseek2.%s", k->name);
    mf_ok(k->is_float ? gguf_writer_add_f32(w, name, (float)k->number, &em)
                      : gguf_writer_add_u32(w, name, (uint32_t)k->number, &em),
          &em);
}

/* Among the further keys, those that have the name of an earlier one replace it; they end at a NULL name. */
static const struct key *replaced(const struct key *k, const struct key *more) {
    for (; more && more->name; more++)
        if (strcmp(k->name, more->name) == 0) return more;
    return k;
}

static strata_err read_keys(const struct sizes *s, const struct key *keys, size_t n, const struct key *more, bool yarn,
                            struct model_hparams *hp, struct strata_errmsg *em) {
    const struct arch *arch = arch_find("deepseek2", 9);
    const struct key common[] = {
        {"block_count", s->blocks, false},         {"context_length", 4096, false},
        {"embedding_length", s->embd, false},      {"feed_forward_length", 18432, false},
        {"attention.head_count", s->heads, false}, {"attention.head_count_kv", s->kv_heads, false},
        {"attention.key_length", s->key, false},   {"attention.value_length", s->value, false},
        {"vocab_size", s->vocab, false},           {"attention.layer_norm_rms_epsilon", 1e-6, true}};
    struct gguf_writer *w;
    struct gguf_reader *r;
    struct buf bytes;
    assert_non_null(arch);
    buf_init(&bytes, 1 << 20);
    mf_ok(gguf_writer_new(32, &w, em), em);
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++) add(w, replaced(&common[i], more));
    for (size_t i = 0; i < n; i++) add(w, replaced(&keys[i], more));
    for (const struct key *m = more; m && m->name; m++) {
        bool known = false;
        for (size_t i = 0; i < sizeof common / sizeof common[0]; i++) known |= replaced(&common[i], m) == m;
        for (size_t i = 0; i < n; i++) known |= strcmp(keys[i].name, m->name) == 0;
        if (!known) add(w, m);
    }
    if (yarn) mf_ok(gguf_writer_add_str(w, "deepseek2.rope.scaling.type", "yarn", em), em);
    mf_ok(gguf_writer_emit(w, append, &bytes, em), em);
    mf_ok(gguf_reader_new(bytes.data, bytes.len, "test", &r, em), em);
    strata_err rc = model_hparams_init(hp, r, "deepseek2", &arch->rules, em);
    if (!rc) {
        rc = arch->check(hp, r, em);
        if (rc) model_hparams_deinit(hp);
    }
    gguf_reader_free(r);
    gguf_writer_free(w);
    buf_deinit(&bytes);
    return rc;
}

static void read_v3(const struct key *more, bool yarn, struct model_hparams *hp) {
    struct strata_errmsg em;
    mf_ok(read_keys(&v3, v3_keys, sizeof v3_keys / sizeof v3_keys[0], more, yarn, hp, &em), &em);
}

static void test_v3(void **state) {
    (void)state;
    struct model_hparams hp;
    const struct key yarn[] = {{"rope.scaling.factor", 40, true},
                               {"rope.scaling.original_context_length", 4096, false},
                               {"rope.scaling.yarn_log_multiplier", 0.1, true},
                               {NULL, 0, false}};
    struct model_plane_dims dims[MODEL_STATE_PLANES] = {{.width = 576}, {.width = 512}};
    read_v3(yarn, true, &hp);
    assert_true(hp.mla.absorbed);
    assert_int_equal(hp.mla.q_rank, 1536);
    assert_int_equal(hp.mla.kv_rank, 512);
    assert_int_equal(hp.mla.n_nope, 128);
    assert_int_equal(hp.mla.dim_v, 128);
    assert_float_equal(hp.attn_scale, 0.135234f, 1e-6); /* 1.368888^2 / sqrt(192) */
    assert_float_equal(hp.rope.attn_factor, 1 / 1.368888f, 1e-6);
    assert_int_equal(hp.moe.gating, MODEL_GATING_SIGMOID);
    assert_false(hp.moe.norm);
    arch_find("deepseek2", 9)->planes(&hp, 5, dims);
    assert_int_equal(dims[0].width, 576);
    assert_int_equal(dims[0].part, 512);
    assert_int_equal(dims[1].width, 0);
    model_hparams_deinit(&hp);
}

/* First files of V3 do not have the groups that it was trained with. */
static void test_groups_of_v3(void **state) {
    (void)state;
    struct model_hparams hp;
    const struct key none[] = {{NULL, 0, false}};
    const struct key other[] = {
        {"expert_group_count", 4, false}, {"expert_group_used_count", 2, false}, {NULL, 0, false}};
    const struct key kimi[] = {{"expert_count", 384, false}, {NULL, 0, false}};
    const struct {
        const struct key *more;
        uint32_t groups, used;
    } rows[] = {{none, 8, 4}, {other, 4, 2}, {kimi, 1, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        read_v3(rows[i].more, false, &hp);
        assert_int_equal(hp.moe.n_group, rows[i].groups);
        assert_int_equal(hp.moe.n_group_used, rows[i].used);
        assert_float_equal(hp.attn_scale, 1 / sqrtf(192), 1e-7);
        assert_float_equal(hp.rope.attn_factor, 1, 0);
        model_hparams_deinit(&hp);
    }
}

/* Without yarn_log_multiplier the softmax's scale stays, and ggml's own factor on rotated lengths as well. */
static void test_yarn_alone(void **state) {
    (void)state;
    struct model_hparams hp;
    const struct key yarn[] = {{"rope.scaling.factor", 40, true}, {NULL, 0, false}};
    read_v3(yarn, true, &hp);
    assert_float_equal(hp.attn_scale, 1 / sqrtf(192), 1e-7);
    assert_float_equal(hp.rope.attn_factor, 1, 0);
    model_hparams_deinit(&hp);
}

static void test_lite(void **state) {
    (void)state;
    struct model_hparams hp;
    struct strata_errmsg em;
    struct model_plane_dims dims[MODEL_STATE_PLANES] = {{.width = 3072}, {.width = 2048}};
    const struct key yarn[] = {
        {"rope.scaling.factor", 40, true}, {"rope.scaling.yarn_log_multiplier", 0.0707, true}, {NULL, 0, false}};
    mf_ok(read_keys(&lite, lite_keys, sizeof lite_keys / sizeof lite_keys[0], yarn, true, &hp, &em), &em);
    assert_false(hp.mla.absorbed);
    assert_int_equal(hp.mla.q_rank, 0);
    assert_int_equal(hp.mla.n_nope, 128);
    assert_int_equal(hp.mla.dim_v, 128);
    assert_int_equal(hp.moe.gating, MODEL_GATING_SOFTMAX);
    assert_int_equal(hp.moe.n_group, 1);
    assert_int_equal(hp.moe.n_ff_shared, 2 * 1408);
    assert_float_equal(hp.attn_scale, 0.114721f, 1e-5); /* (1 + 0.0707 ln 40)^2 / sqrt(192) */
    arch_find("deepseek2", 9)->planes(&hp, 5, dims);
    assert_int_equal(dims[0].width, 3072);
    assert_int_equal(dims[1].width, 2048);
    model_hparams_deinit(&hp);
}

/* Its first files do not name the function; it is known by its size. */
static void test_glm_flash(void **state) {
    (void)state;
    struct model_hparams hp;
    struct strata_errmsg em;
    const struct sizes glm = {48, 2048, 20, 1, 576, 512, 154880};
    const struct key keys[] = {{"attention.kv_lora_rank", 512, false},   {"attention.q_lora_rank", 768, false},
                               {"attention.key_length_mla", 256, false}, {"attention.value_length_mla", 256, false},
                               {"rope.dimension_count", 64, false},      {"expert_count", 64, false},
                               {"expert_used_count", 4, false},          {"expert_feed_forward_length", 1536, false},
                               {"nextn_predict_layers", 1, false}};
    mf_ok(read_keys(&glm, keys, sizeof keys / sizeof keys[0], NULL, false, &hp, &em), &em);
    assert_int_equal(hp.moe.gating, MODEL_GATING_SIGMOID);
    assert_int_equal(hp.n_block, 48);
    assert_int_equal(hp.n_layer, 47);
    assert_int_equal(hp.mla.n_nope, 192);
    model_hparams_deinit(&hp);
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        struct key more[3];
        const char *part;
    } rows[] = {
        {{{"attention.kv_lora_rank", 0, false}}, "deepseek2.attention.kv_lora_rank is missing or 0"},
        {{{"attention.kv_lora_rank", 1e9, false}}, "deepseek2.attention.kv_lora_rank is 1000000000"},
        {{{"attention.q_lora_rank", 4e9, false}}, "deepseek2.attention.q_lora_rank is 4000000000"},
        {{{"attention.key_length", 512, false}}, "deepseek2.attention.key_length 512"},
        {{{"attention.value_length", 128, false}}, "value_length 128"},
        {{{"attention.key_length_mla", 64, false}}, "deepseek2.attention.key_length_mla is 64; it must be more than"},
        {{{"attention.key_length_mla", 1e6, false}}, "deepseek2.attention.key_length_mla is 1000000"},
        {{{"attention.value_length_mla", 1e6, false}}, "deepseek2.attention.value_length_mla is 1000000"},
        {{{"attention.head_count_kv", 128, false}},
         "deepseek2.attention.head_count_kv is 128 for block 0; it must be 1"},
        {{{"attention.temperature_scale", 0.1, true}}, "deepseek2.attention.temperature_length is missing or 0"},
        {{{"expert_group_count", 3, false}}, "deepseek2.expert_group_count 3"},
        {{{"expert_group_count", 256, false}}, "deepseek2.expert_group_count 256"},
        {{{"expert_group_count", 64, false}, {"expert_group_used_count", 1, false}}, "deepseek2.expert_group_count 64"},
        {{{"expert_used_count", 257, false}}, "deepseek2.expert_used_count is 257"},
        {{{"expert_gating_func", 4, false}}, "deepseek2.expert_gating_func is 4"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_hparams hp;
        struct strata_errmsg em = {.code = STRATA_OK};
        strata_err rc = read_keys(&v3, v3_keys, sizeof v3_keys / sizeof v3_keys[0], rows[i].more, false, &hp, &em);
        if (!rc) fail_msg("%s was accepted", rows[i].more[0].name);
        if (!strstr(em.text, rows[i].part)) fail_msg("'%s' does not tell of '%s'", em.text, rows[i].part);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_v3),   cmocka_unit_test(test_groups_of_v3), cmocka_unit_test(test_yarn_alone),
        cmocka_unit_test(test_lite), cmocka_unit_test(test_glm_flash),    cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
