/* What cannot be run is refused before ggml sees it, with a message that names the culprit. */
#include "chain.h"

#include "../base/test_folder.h"

#include <math.h>

static void assert_says(const struct strata_errmsg *em, const char *part) {
    if (!strstr(em->text, part)) fail_msg("'%s' does not tell of '%s'", em->text, part);
    assert_null(strchr(em->text, '\n'));
}

/* Opens the whole of a model that must be refused. */
static void refuse(const struct model_file *f, const struct engine_options *opt, strata_err code, const char *part) {
    struct strata_errmsg em = {.code = STRATA_OK};
    struct pkg_model *pkg = NULL;
    struct engine *e = NULL;
    struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
    const char *path = tmp_path(&folder, "bad.gguf");
    model_file_write(f, path);
    strata_err rc = pkg_model_open(path, &po, &pkg, &em);
    if (!rc) rc = engine_new(pkg, opt, &e, &em);
    assert_null(e);
    if (rc != code) fail_msg("code %d (%s), expected %d (%s)", rc, rc ? em.text : "", code, part);
    assert_says(&em, part);
    pkg_model_free(pkg);
}

static void test_tensors(void **state) {
    (void)state;
    static const struct {
        const char *skip, *reshape, *retype, *extra;
        strata_err code;
        const char *part;
    } rows[] = {
        {.skip = "blk.3.attn_k.weight", .code = STRATA_ENOENT, .part = "tensor blk.3.attn_k.weight is missing"},
        {.skip = "blk.0.ffn_norm.weight", .code = STRATA_ENOENT, .part = "tensor blk.0.ffn_norm.weight is missing"},
        {.skip = "output_norm.weight", .code = STRATA_ENOENT, .part = "output_norm.weight"},
        {.skip = "token_embd.weight", .code = STRATA_ENOENT, .part = "token_embd.weight"},
        {.reshape = "blk.2.ffn_down.weight",
         .code = STRATA_EFORMAT,
         .part = "blk.2.ffn_down.weight has the shape [96, 65"},
        {.reshape = "blk.2.attn_q.weight", .code = STRATA_EFORMAT, .part = "asks for [64, 64]"},
        {.reshape = "blk.4.attn_norm.weight", .code = STRATA_EFORMAT, .part = "blk.4.attn_norm.weight"},
        {.reshape = "blk.1.attn_v.bias", .code = STRATA_EFORMAT, .part = "blk.1.attn_v.bias"},
        {.reshape = "blk.1.ffn_up.scale", .code = STRATA_EFORMAT, .part = "blk.1.ffn_up.scale"},
        {.reshape = "rope_freqs.weight", .code = STRATA_EFORMAT, .part = "rope_freqs.weight"},
        {.reshape = "token_embd.weight", .code = STRATA_EFORMAT, .part = "asks for [64, 80]"},
        {.reshape = "output.weight", .code = STRATA_EFORMAT, .part = "output.weight"},
        {.retype = "blk.1.ffn_gate.weight",
         .code = STRATA_EUNSUPPORTED,
         .part = "tensor blk.1.ffn_gate.weight has the type I32"},
        {.retype = "blk.1.attn_norm.weight", .code = STRATA_EUNSUPPORTED, .part = "needs F32"},
        {.retype = "token_embd.weight", .code = STRATA_EUNSUPPORTED, .part = "token_embd.weight has the type I32"},
        {.extra = "blk.2.attn_q_norm.weight",
         .code = STRATA_EUNSUPPORTED,
         .part = "tensor blk.2.attn_q_norm.weight is not one that"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_file f = model_file_small();
        struct engine_options opt = {.n_ctx = 64, .n_threads = 1};
        f.bias = f.scale = f.freqs = true;
        f.skip_tensor = rows[i].skip;
        f.reshape = rows[i].reshape;
        f.retype = rows[i].retype;
        f.extra = rows[i].extra;
        refuse(&f, &opt, rows[i].code, rows[i].part);
    }
}

/* The key under test and its value, for the callback that has no argument. */
static struct {
    const char *key, *text;
    float f32;
    uint32_t u32;
    bool is_float;
} bad;

static void add_bad_key(struct gguf_writer *w) {
    struct strata_errmsg em;
    strata_err rc;
    if (bad.text)
        rc = gguf_writer_add_str(w, bad.key, bad.text, &em);
    else if (bad.is_float)
        rc = gguf_writer_add_f32(w, bad.key, bad.f32, &em);
    else
        rc = gguf_writer_add_u32(w, bad.key, bad.u32, &em);
    mf_ok(rc, &em);
}

static void refuse_key(const char *key, const char *part) {
    struct model_file f = model_file_small();
    struct engine_options opt = {.n_ctx = 64, .n_threads = 1};
    bad.key = key;
    f.skip_key = key;
    f.more_keys = add_bad_key;
    struct strata_errmsg em = {.code = STRATA_OK};
    struct pkg_model *pkg = NULL;
    struct engine *e = NULL;
    struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
    const char *path = tmp_path(&folder, "key.gguf");
    model_file_write(&f, path);
    strata_err rc = pkg_model_open(path, &po, &pkg, &em);
    if (!rc) rc = engine_new(pkg, &opt, &e, &em);
    if (!rc) fail_msg("%s was accepted", key);
    assert_says(&em, part);
    pkg_model_free(pkg);
}

static void test_numbers(void **state) {
    (void)state;
    static const struct {
        const char *key;
        uint32_t value;
        const char *part;
    } rows[] = {
        {"llama.attention.head_count", 0, "head_count is 0"},
        {"llama.attention.head_count", 5, "which 2 key/value heads do not divide"},
        {"llama.attention.head_count", 6, "not a multiple"},
        {"llama.attention.head_count", 64, "rope.dimension_count"}, /* heads of one dimension */
        {"llama.attention.head_count", 1000000, "head_count is 1000000"},
        {"llama.attention.head_count_kv", 0, "head_count_kv is 0"},
        {"llama.attention.head_count_kv", 3, "do not divide"},
        {"llama.embedding_length", 0, "embedding_length is 0"},
        {"llama.embedding_length", UINT32_MAX, "embedding_length is 4294967295"},
        {"llama.embedding_length", 128, "asks for [128, 80]"},
        {"llama.feed_forward_length", 0, "feed_forward_length is 0"},
        {"llama.feed_forward_length", 97, "asks for [64, 97]"},
        {"llama.context_length", 0, "context_length is 0"},
        {"llama.block_count", 0, "0"},
        {"llama.block_count", 6, "block"},
        {"llama.block_count", 4, "block"},
        {"llama.block_count", 100000, "100000"},
        {"llama.vocab_size", 81, "asks for [64, 81]"},
        {"llama.attention.key_length", 17, "rope.dimension_count"},
        {"llama.attention.key_length", 1u << 30, "key_length"},
        {"llama.attention.value_length", 8, "attn_v.weight"},
        {"llama.rope.dimension_count", 15, "must be even"},
        {"llama.rope.dimension_count", 8, "must equal the head size 16"},
        {"llama.rope.dimension_count", 18, "rope.dimension_count is 18"},
        {"llama.expert_count", 8, "expert_used_count is 0"},
        {"llama.nextn_predict_layers", 1, "nextn_predict_layers"},
        {"llama.nextn_predict_layers", 9, "nextn_predict_layers is 9"},
        {"llama.attention.layer_norm_rms_epsilon", 1, "layer_norm_rms_epsilon"}, /* wrong kind */
        {"llama.rope.scaling.type", 1, "llama.rope.scaling.type"},               /* wrong kind */
    };
    bad.text = NULL;
    bad.is_float = false;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bad.u32 = rows[i].value;
        refuse_key(rows[i].key, rows[i].part);
    }
}

static void test_floats_and_texts(void **state) {
    (void)state;
    static const struct {
        const char *key;
        float value;
    } rows[] = {
        {"llama.attention.layer_norm_rms_epsilon", NAN},
        {"llama.attention.layer_norm_rms_epsilon", -1},
        {"llama.attention.layer_norm_rms_epsilon", 2},
        {"llama.rope.freq_base", NAN},
        {"llama.rope.freq_base", -10000},
        {"llama.rope.freq_base", 0.5f},
        {"llama.rope.scaling.factor", INFINITY},
        {"llama.rope.scaling.factor", -2},
        {"llama.rope.scaling.factor", 1e-42f},
        {"llama.attention.scale", NAN},
        {"llama.block_count", 5},
    };
    bad.text = NULL;
    bad.is_float = true;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bad.f32 = rows[i].value;
        refuse_key(rows[i].key, strncmp(rows[i].key, "llama.rope", 10) == 0 ? "llama.rope" : rows[i].key);
    }
    bad.text = "spiral";
    refuse_key("llama.rope.scaling.type", "'spiral'");
    bad.text = "mamba99";
    refuse_key("general.architecture", "architecture 'mamba99' is not supported; Strata can run: llama");
}

static void test_options(void **state) {
    (void)state;
    static const struct {
        struct engine_options opt;
        strata_err code;
        const char *part;
    } rows[] = {
        {{.n_ctx = 1u << 25}, STRATA_EINVAL, "context of 33554432"},
        {{.n_batch = 1u << 20}, STRATA_EINVAL, "batch of 1048576"},
        {{.n_threads = 100000}, STRATA_EINVAL, "100000 threads"},
    };
    struct model_file f = model_file_small();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) refuse(&f, &rows[i].opt, rows[i].code, rows[i].part);
    f.embd = 4096; /* a cache of terabytes */
    f.kv_heads = 4;
    f.layers = 1;
    f.ff = 1;
    f.vocab = 2;
    struct engine_options opt = {.n_ctx = 1u << 24, .n_batch = 1, .kv_type = ENGINE_KV_F32};
    refuse(&f, &opt, STRATA_ENOMEM, "lower the context length");
}

static void run_refused(struct engine *e, struct engine_batch b, strata_err code, const char *part) {
    struct strata_errmsg em;
    const float *out = NULL;
    uint32_t pos = engine_pos(e, 0);
    assert_int_equal(engine_run(e, &b, &out, &em), code);
    assert_says(&em, part);
    assert_null(out);
    assert_int_equal(engine_pos(e, 0), pos);
}

static void test_batches(void **state) {
    (void)state;
    struct model_file f = model_file_small();
    struct engine_options opt = {.n_ctx = 20, .n_batch = 12, .max_logits = 2, .n_threads = 1};
    struct test_chain c;
    struct strata_errmsg em;
    static const int32_t ids[16] = {1, 2, 3}, high[2] = {3, 80}, low[1] = {-1};
    static const float hidden[64 * 2];
    const char *path = tmp_path(&folder, "batch.gguf");
    model_file_write(&f, path);
    chain_open(&c, path, (const uint32_t[]){2, 0}, &opt);
    struct engine *first = c.engine[0], *last = c.engine[1];
    run_refused(first, (struct engine_batch){.n_tokens = 0, .tokens = ids}, STRATA_EINVAL, "batch of 0");
    run_refused(first, (struct engine_batch){.n_tokens = 13, .tokens = ids}, STRATA_EINVAL, "from 1 to 12");
    run_refused(first, (struct engine_batch){.n_tokens = 1, .pos = 1, .tokens = ids}, STRATA_EINVAL, "position 1");
    run_refused(first, (struct engine_batch){.n_tokens = 2, .tokens = high}, STRATA_EINVAL,
                "token id 80 at position 1");
    run_refused(first, (struct engine_batch){.n_tokens = 1, .tokens = low}, STRATA_EINVAL, "token id -1");
    run_refused(first, (struct engine_batch){.n_tokens = 1, .hidden = hidden}, STRATA_EINVAL, "takes token ids");
    run_refused(last, (struct engine_batch){.n_tokens = 1, .tokens = ids}, STRATA_EINVAL, "takes hidden states");
    run_refused(last, (struct engine_batch){.n_tokens = 3, .hidden = hidden, .want = ENGINE_OUT_ALL}, STRATA_EINVAL,
                "at most 2");
    chain_step(&c, 0, ids, 12, ENGINE_OUT_LAST);
    run_refused(first, (struct engine_batch){.pos = 12, .n_tokens = 9, .tokens = ids}, STRATA_ELIMIT,
                "do not fit the context of 20");
    assert_int_equal(engine_truncate(first, 0, 13, &em), STRATA_EINVAL);
    chain_step(&c, 12, ids, 8, ENGINE_OUT_LAST); /* to the last position */
    run_refused(first, (struct engine_batch){.pos = 20, .n_tokens = 1, .tokens = ids}, STRATA_ELIMIT, "context of 20");
    chain_close(&c);
}

static void test_ranges(void **state) {
    (void)state;
    struct model_file f = model_file_small();
    struct strata_errmsg em;
    struct pkg_model *pkg = NULL;
    static const struct pkg_range bad_ranges[] = {{0, 6}, {5, 5}, {3, 2}, {5, PKG_RANGE_ALL}, {100, 101}};
    const char *path = tmp_path(&folder, "range.gguf");
    model_file_write(&f, path);
    for (size_t i = 0; i < sizeof bad_ranges / sizeof bad_ranges[0]; i++) {
        struct pkg_model_options po = {.range = bad_ranges[i]};
        assert_int_not_equal(pkg_model_open(path, &po, &pkg, &em), STRATA_OK);
        assert_says(&em, "5");
    }
}

static void test_backend_folder(void **state) {
    (void)state;
    assert_string_equal(engine_architectures(),
                        "llama, qwen2, qwen3, qwen3moe, glm4moe, gemma3, gpt-oss, lfm2, lfm2moe, deepseek2");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),        cmocka_unit_test(test_numbers), cmocka_unit_test(test_floats_and_texts),
        cmocka_unit_test(test_options),        cmocka_unit_test(test_batches), cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_backend_folder),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
