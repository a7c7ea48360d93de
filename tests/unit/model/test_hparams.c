/* Hyper-parameters: what the keys come out as. What is refused is tested through the engine. */
#include "base/buf.h"
#include "model/model_hparams.h"

#include "../engine/model_file.h"

static strata_err append(void *user, const void *data, size_t len, struct strata_errmsg *em) {
    return buf_append(user, data, len, em);
}

struct key {
    const char *name;
    const char *text; /* a string when set, else a number */
    double number;
    bool is_float;
};

/* Metadata with these keys beside the sizes that must be there. */
static void read_with(const struct key *keys, size_t n, void (*more)(struct gguf_writer *w), struct model_hparams *hp) {
    struct gguf_writer *w;
    struct gguf_reader *r;
    struct strata_errmsg em;
    struct buf bytes;
    static const struct {
        const char *name;
        uint32_t v;
    } sizes[] = {{"llama.block_count", 3},
                 {"llama.context_length", 4096},
                 {"llama.embedding_length", 64},
                 {"llama.attention.head_count", 4},
                 {"llama.vocab_size", 90}};
    buf_init(&bytes, 1 << 20);
    mf_ok(gguf_writer_new(32, &w, &em), &em);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        mf_ok(gguf_writer_add_u32(w, sizes[i].name, sizes[i].v, &em), &em);
    mf_ok(gguf_writer_add_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-6f, &em), &em);
    for (size_t i = 0; i < n; i++) {
        strata_err rc;
        if (keys[i].text)
            rc = gguf_writer_add_str(w, keys[i].name, keys[i].text, &em);
        else if (keys[i].is_float)
            rc = gguf_writer_add_f32(w, keys[i].name, (float)keys[i].number, &em);
        else
            rc = gguf_writer_add_u32(w, keys[i].name, (uint32_t)keys[i].number, &em);
        mf_ok(rc, &em);
    }
    if (more) {
        more(w);
    } else {
        mf_ok(gguf_writer_add_u32(w, "llama.feed_forward_length", 100, &em), &em);
    }
    mf_ok(gguf_writer_emit(w, append, &bytes, &em), &em);
    mf_ok(gguf_reader_new(bytes.data, bytes.len, "test", &r, &em), &em);
    mf_ok(model_hparams_init(hp, r, "llama", &(const struct model_hparams_rules){0}, &em), &em);
    gguf_reader_free(r);
    gguf_writer_free(w);
    buf_deinit(&bytes);
}

static void test_defaults(void **state) {
    (void)state;
    struct model_hparams hp;
    read_with(NULL, 0, NULL, &hp);
    assert_int_equal(hp.n_block, 3);
    assert_int_equal(hp.n_layer, 3);
    assert_int_equal(hp.n_embd, 64);
    assert_int_equal(hp.n_vocab, 90);
    assert_int_equal(hp.n_ctx_train, 4096);
    assert_int_equal(hp.head_dim_k, 16);
    assert_int_equal(hp.head_dim_v, 16);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hp.layer[i].n_head, 4);
        assert_int_equal(hp.layer[i].n_head_kv, 4);
        assert_int_equal(hp.layer[i].n_ff, 100);
    }
    assert_float_equal(hp.norm_eps, 1e-6f, 0);
    assert_float_equal(hp.attn_scale, 0.25f, 0);
    assert_int_equal(hp.rope.scaling, MODEL_ROPE_LINEAR);
    assert_int_equal(hp.rope.n_rot, 16);
    assert_int_equal(hp.rope.n_ctx_orig, 4096);
    assert_float_equal(hp.rope.freq_base, 10000, 0);
    assert_float_equal(hp.rope.freq_scale, 1, 0);
    assert_float_equal(hp.rope.ext_factor, 0, 0);
    assert_float_equal(hp.rope.attn_factor, 1, 0);
    model_hparams_deinit(&hp);
}

/* Optional keys that are 0 mean the same as none. */
static void test_zero_is_absent(void **state) {
    (void)state;
    static const struct key keys[] = {
        {.name = "llama.attention.scale", .is_float = true},
        {.name = "llama.attention.key_length"},
        {.name = "llama.attention.value_length"},
        {.name = "llama.rope.dimension_count"},
        {.name = "llama.rope.freq_base", .is_float = true},
        {.name = "llama.rope.scaling.factor", .is_float = true},
        {.name = "llama.rope.scaling.attn_factor", .is_float = true},
        {.name = "llama.rope.scaling.original_context_length"},
        {.name = "llama.rope.scaling.yarn_ext_factor", .number = -1, .is_float = true},
        {.name = "llama.nextn_predict_layers"},
    };
    struct model_hparams hp, plain;
    read_with(keys, sizeof keys / sizeof keys[0], NULL, &hp);
    read_with(NULL, 0, NULL, &plain);
    assert_memory_equal(&hp.rope, &plain.rope, sizeof hp.rope);
    assert_float_equal(hp.attn_scale, plain.attn_scale, 0);
    assert_int_equal(hp.head_dim_k, plain.head_dim_k);
    assert_int_equal(hp.n_layer, plain.n_layer);
    model_hparams_deinit(&hp);
    model_hparams_deinit(&plain);
}

static void test_rope(void **state) {
    (void)state;
    static const struct {
        const char *type;
        double factor, attn, ext;
        float freq_scale, attn_factor, ext_factor;
    } rows[] = {
        {"none", 8, 0, -1, 1, 1, 0},
        {"linear", 4, 0, -1, 0.25f, 1, 0},
        {"linear", 4, 1.5, -1, 0.25f, 1.5f, 0},
        {"yarn", 4, 0, -1, 0.25f, 1, 1},
        {"yarn", 4, 1.5, -1, 0.25f, 1.5f, 1},
        {"yarn", 2, 0, 0.5, 0.5f, 1, 0.5f},
        {"longrope", 0, 1.25, -1, 1, 1.25f, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct key keys[] = {
            {.name = "llama.rope.scaling.type", .text = rows[i].type},
            {.name = "llama.rope.scaling.factor", .number = rows[i].factor, .is_float = true},
            {.name = "llama.rope.scaling.attn_factor", .number = rows[i].attn, .is_float = true},
            {.name = "llama.rope.scaling.yarn_ext_factor", .number = rows[i].ext, .is_float = true},
            {.name = "llama.rope.scaling.original_context_length", .number = 512},
            {.name = "llama.rope.freq_base", .number = 500000, .is_float = true},
            {.name = "llama.attention.scale", .number = 0.5, .is_float = true},
        };
        struct model_hparams hp;
        read_with(keys, sizeof keys / sizeof keys[0], NULL, &hp);
        assert_float_equal(hp.rope.freq_scale, rows[i].freq_scale, 0);
        assert_float_equal(hp.rope.attn_factor, rows[i].attn_factor, 0);
        assert_float_equal(hp.rope.ext_factor, rows[i].ext_factor, 0);
        assert_float_equal(hp.rope.freq_base, 500000, 0);
        assert_int_equal(hp.rope.n_ctx_orig, 512);
        assert_float_equal(hp.attn_scale, 0.5f, 0);
        model_hparams_deinit(&hp);
    }
}

static void add_ff_array(struct gguf_writer *w) {
    static const int32_t ff[3] = {32, 64, 96}, kv[3] = {1, 2, 4};
    struct strata_errmsg em;
    mf_ok(gguf_writer_add_i32s(w, "llama.feed_forward_length", ff, 3, &em), &em);
    mf_ok(gguf_writer_add_i32s(w, "llama.attention.head_count_kv", kv, 3, &em), &em);
}

/* Sizes that differ from layer to layer. */
static void test_arrays(void **state) {
    (void)state;
    struct model_hparams hp;
    read_with(NULL, 0, add_ff_array, &hp);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(hp.layer[i].n_ff, 32 * (i + 1));
        assert_int_equal(hp.layer[i].n_head_kv, 1 << i);
    }
    model_hparams_deinit(&hp);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_zero_is_absent),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_arrays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
