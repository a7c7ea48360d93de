/*
 * What an architecture's own rules refuse, by the name of the key or tensor and before anything is computed; and
 * results that are no numbers, which only computing can show.
 */
#include "chain.h"

#include "../base/test_folder.h"

static struct model_file model_of(const char *arch) {
    struct model_file f = model_file_small();
    f.arch = arch;
    f.layers = 3;
    f.head_norms = strcmp(arch, "llama") != 0 && strcmp(arch, "qwen2") != 0;
    if (strcmp(arch, "qwen3moe") == 0 || strcmp(arch, "glm4moe") == 0) {
        f.experts = 6;
        f.used = 2;
    }
    if (strcmp(arch, "glm4moe") == 0) {
        f.post_attention = true;
        f.dense_layers = 1;
    }
    return f;
}

static strata_err open_model(const struct model_file *f, struct pkg_model **pkg, struct engine **e,
                             struct strata_errmsg *em) {
    struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
    /* What is written to the file later must show. */
    struct engine_options opt = {.n_ctx = 64, .n_threads = 1, .kv_type = ENGINE_KV_F32, .keep_mapped = true};
    const char *path = tmp_path(&folder, "model.gguf");
    *pkg = NULL;
    *e = NULL;
    model_file_write(f, path);
    strata_err rc = pkg_model_open(path, &po, pkg, em);
    return rc ? rc : engine_new(*pkg, &opt, e, em);
}

/* part NULL: it must be accepted. */
static void expect(const struct model_file *f, strata_err code, const char *part) {
    struct strata_errmsg em = {.code = STRATA_OK};
    struct pkg_model *pkg;
    struct engine *e;
    strata_err rc = open_model(f, &pkg, &e, &em);
    if (rc != code) fail_msg("code %d (%s), expected %d (%s)", rc, rc ? em.text : "", code, part);
    if (part && !strstr(em.text, part)) fail_msg("'%s' does not tell of '%s'", em.text, part);
    engine_free(e);
    pkg_model_free(pkg);
}

/* ---- keys ---- */

static struct {
    const char *key;
    uint32_t value;
    int32_t sections[5];
    uint32_t n_sections;
    bool falsehood;
} more;

static void add_more(struct gguf_writer *w) {
    struct strata_errmsg em;
    if (more.n_sections)
        mf_ok(gguf_writer_add_i32s(w, more.key, more.sections, more.n_sections, &em), &em);
    else if (more.falsehood)
        mf_ok(gguf_writer_add_bool(w, more.key, false, &em), &em);
    else
        mf_ok(gguf_writer_add_u32(w, more.key, more.value, &em), &em);
}

static void test_numbers(void **state) {
    (void)state;
    static const struct {
        const char *key;
        uint32_t value;
        strata_err code;
        const char *part;
    } rows[] = {
        {"qwen3moe.expert_used_count", 7, STRATA_EFORMAT,
         "expert_used_count is 7; it must be from 1 to expert_count, 6"},
        {"qwen3moe.expert_used_count", 0, STRATA_EFORMAT, "expert_used_count is 0"},
        {"qwen3moe.expert_count", 0, STRATA_EFORMAT, "qwen3moe.expert_count is missing or 0"},
        {"qwen3moe.expert_count", 5, STRATA_EFORMAT, "blk.0.ffn_gate_inp.weight has the shape [64, 6]"},
        {"qwen3moe.expert_count", 5000, STRATA_EFORMAT, "expert_count is 5000; Strata runs at most 4096"},
        {"qwen3moe.expert_feed_forward_length", 95, STRATA_EFORMAT, "blk.0.ffn_gate_exps.weight"},
        {"qwen3moe.expert_group_count", 4, STRATA_EFORMAT, "expert_group_count 4"},
        {"qwen3moe.expert_group_count", 3, STRATA_OK, NULL}, /* the best of three groups of two */
        {"qwen3moe.expert_group_count", 6, STRATA_EFORMAT, "expert_group_count 6"},
        {"qwen3moe.expert_gating_func", 9, STRATA_EUNSUPPORTED, "expert_gating_func is 9"},
        {"qwen3moe.nextn_predict_layers", 1, STRATA_EUNSUPPORTED, "qwen3moe.nextn_predict_layers is 1"},
        {"qwen3.nextn_predict_layers", 1, STRATA_EUNSUPPORTED, "qwen3.nextn_predict_layers is 1"},
        {"qwen2.nextn_predict_layers", 3, STRATA_EFORMAT, "there are only 3 blocks"},
        {"qwen3.attention.key_length", 20, STRATA_EFORMAT, "blk.0.attn_q.weight has the shape [64, 64]"},
        {"qwen3.attention.value_length", 20, STRATA_EFORMAT, "blk.0.attn_v.weight"},
        {"qwen2.attention.head_count_kv", 3, STRATA_EFORMAT, "do not divide"},
        {"qwen2.vocab_size", 79, STRATA_EFORMAT, "token_embd.weight has the shape [64, 80]"},
        {"qwen2.feed_forward_length", 0, STRATA_EFORMAT, "qwen2.feed_forward_length is 0"},
        {"llama.expert_count", 6, STRATA_EFORMAT, "expert_used_count is 0"},
        {"glm4moe.leading_dense_block_count", 2, STRATA_ENOENT, "tensor blk.1.ffn_gate.weight is missing"},
        {"glm4moe.leading_dense_block_count", 0, STRATA_ENOENT, "tensor blk.0.ffn_gate_inp.weight is missing"},
        {"glm4moe.expert_shared_count", 1, STRATA_ENOENT, "tensor blk.1.ffn_gate_shexp.weight is missing"},
        {"glm4moe.expert_shared_count", 4096, STRATA_ENOENT, "tensor blk.1.ffn_gate_shexp.weight is missing"},
        {"glm4moe.nextn_predict_layers", 1, STRATA_OK, NULL}, /* the last block is not run, whatever it holds */
        {"glm4moe.rope.dimension_count", 8, STRATA_OK, NULL},
        {"glm4moe.rope.dimension_count", 7, STRATA_EFORMAT, "glm4moe.rope.dimension_count is 7"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char arch[32];
        snprintf(arch, sizeof arch, "%.*s", (int)strcspn(rows[i].key, "."), rows[i].key);
        struct model_file f = model_of(arch);
        more.key = f.skip_key = rows[i].key;
        more.value = rows[i].value;
        f.more_keys = add_more;
        expect(&f, rows[i].code, rows[i].part);
    }
}

/* Positions of images: text has no fourth one. */
static void test_sections(void **state) {
    (void)state;
    static const struct {
        int32_t sections[5];
        uint32_t n;
        strata_err code;
        const char *part;
    } rows[] = {
        {{2, 3, 3, 0}, 4, STRATA_OK, NULL},
        {{4, 4, 4, 4}, 4, STRATA_OK, NULL}, /* heads of 16 have 8 pairs: none is left for the fourth */
        {{0, 0, 0, 0}, 4, STRATA_OK, NULL},
        {{2, 2}, 2, STRATA_OK, NULL},
        {{2, 2, 2, 2}, 4, STRATA_EUNSUPPORTED, "glm4moe.rope.dimension_sections gives some of the 8 rotated pairs"},
        {{0, 0, 0, 8}, 4, STRATA_EUNSUPPORTED, "glm4moe.rope.dimension_sections"},
        {{-1, 0, 0, 0}, 4, STRATA_EFORMAT, "glm4moe.rope.dimension_sections holds -1"},
        {{2, 2, 2, 1, 1}, 5, STRATA_EFORMAT, "glm4moe.rope.dimension_sections must be an array of at most 4"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_file f = model_of("glm4moe");
        more.key = "glm4moe.rope.dimension_sections";
        memcpy(more.sections, rows[i].sections, sizeof more.sections);
        more.n_sections = rows[i].n;
        f.more_keys = add_more;
        expect(&f, rows[i].code, rows[i].part);
    }
    more.n_sections = 0;
}

static void test_causal(void **state) {
    (void)state;
    static const char *const archs[] = {"llama", "qwen2", "qwen3", "qwen3moe", "glm4moe"};
    more.falsehood = true;
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        struct model_file f = model_of(archs[i]);
        char key[64], part[128];
        snprintf(key, sizeof key, "%s.attention.causal", archs[i]);
        snprintf(part, sizeof part, "%s is false: this is an embedding model", key);
        more.key = key;
        f.more_keys = add_more;
        expect(&f, STRATA_EUNSUPPORTED, part);
    }
    more.falsehood = false;
}

/* ---- tensors ---- */

static void test_tensors(void **state) {
    (void)state;
    static const struct {
        const char *arch, *skip, *reshape, *retype, *extra;
        strata_err code;
        const char *part;
    } rows[] = {
        {.arch = "qwen3moe", .skip = "blk.1.ffn_gate_inp.weight", .code = STRATA_ENOENT},
        {.arch = "qwen3moe", .skip = "blk.2.ffn_up_exps.weight", .code = STRATA_ENOENT},
        {.arch = "qwen3moe", .reshape = "blk.2.ffn_gate_inp.weight", .code = STRATA_EFORMAT},
        {.arch = "qwen3moe", .reshape = "blk.0.ffn_down_exps.weight", .code = STRATA_EFORMAT},
        {.arch = "qwen3moe", .retype = "blk.0.ffn_down_exps.weight", .code = STRATA_EUNSUPPORTED},
        {.arch = "qwen3moe", .retype = "blk.0.ffn_gate_inp.weight", .code = STRATA_EUNSUPPORTED},
        {.arch = "qwen3moe", .extra = "blk.0.ffn_gate.weight", .code = STRATA_EUNSUPPORTED},
        {.arch = "qwen3", .skip = "blk.0.attn_q_norm.weight", .code = STRATA_ENOENT},
        {.arch = "qwen3", .skip = "blk.2.attn_k_norm.weight", .code = STRATA_ENOENT},
        {.arch = "qwen3", .reshape = "blk.2.attn_k_norm.weight", .code = STRATA_EFORMAT},
        {.arch = "qwen3", .extra = "cls.output.weight", .code = STRATA_OK},
        {.arch = "qwen2", .extra = "blk.0.attn_q_norm.weight", .code = STRATA_EUNSUPPORTED},
        {.arch = "qwen2", .extra = "blk.0.attn_q.bias", .code = STRATA_EFORMAT, .part = "has the shape [4]"},
        {.arch = "glm4moe", .skip = "blk.1.post_attention_norm.weight", .code = STRATA_ENOENT},
        {.arch = "glm4moe", .extra = "blk.1.exp_probs_b.bias", .code = STRATA_EFORMAT, .part = "asks for [6]"},
        {.arch = "glm4moe", .extra = "blk.0.exp_probs_b.bias", .code = STRATA_EUNSUPPORTED},
        {.arch = "llama", .extra = "blk.0.ffn_gate_inp.weight", .code = STRATA_EUNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_file f = model_of(rows[i].arch);
        const char *name = rows[i].skip ? rows[i].skip : rows[i].reshape ? rows[i].reshape : rows[i].retype;
        f.skip_tensor = rows[i].skip;
        f.reshape = rows[i].reshape;
        f.retype = rows[i].retype;
        f.extra = rows[i].extra;
        if (rows[i].extra) name = rows[i].extra;
        expect(&f, rows[i].code, rows[i].code ? name : NULL);
        if (rows[i].part) expect(&f, rows[i].code, rows[i].part);
    }
}

/* All weights are looked at when the model is opened. */
static void test_damaged_tensors(void **state) {
    (void)state;
    static const struct {
        const char *arch, *name;
    } rows[] = {
        {"llama", "blk.1.attn_norm.weight"},
        {"llama", "output_norm.weight"},
        {"qwen3", "blk.2.attn_k_norm.weight"},
        {"qwen3moe", "blk.1.ffn_gate_inp.weight"},
        {"llama", "token_embd.weight"},
        {"qwen3moe", "blk.1.ffn_up_exps.weight"},
        {"llama", "blk.0.attn_k.weight"},
        {"llama", "blk.1.ffn_down.weight"},
        {"llama", "blk.2.attn_output.weight"},
        {"qwen2", "blk.2.ffn_up.weight"},
        {"qwen3", "blk.1.attn_v.weight"},
        {"glm4moe", "blk.0.ffn_gate.weight"},
        {"glm4moe", "blk.2.post_attention_norm.weight"},
        {"llama", "output.weight"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_file f = model_of(rows[i].arch);
        char part[128];
        snprintf(part, sizeof part, "tensor %s holds values that are no numbers", rows[i].name);
        f.spoil = rows[i].name;
        expect(&f, STRATA_EFORMAT, part);
    }
}

/* ---- results that are no numbers ---- */

static strata_err run_tokens(struct engine *e, uint32_t seq, int32_t first, uint32_t n, const float **out,
                             struct strata_errmsg *em) {
    int32_t tokens[8];
    for (uint32_t i = 0; i < n; i++) tokens[i] = first + (int32_t)i;
    struct engine_batch b = {
        .seq = seq, .pos = engine_pos(e, seq), .n_tokens = n, .tokens = tokens, .want = ENGINE_OUT_LAST};
    return engine_run(e, &b, out, em);
}

/* Matrices that are damaged later, such as by a file that is written to, show when they are used: the layer and the
 * tensor are named, and the sequence stays where it was. */
static void test_damaged_matrices(void **state) {
    (void)state;
    static const struct {
        const char *arch, *name, *where;
    } rows[] = {
        {"llama", "blk.0.attn_k.weight", "layer 0"},      {"llama", "blk.1.ffn_down.weight", "layer 1"},
        {"llama", "blk.2.attn_output.weight", "layer 2"}, {"qwen2", "blk.2.ffn_up.weight", "layer 2"},
        {"qwen3", "blk.1.attn_v.weight", "layer 1"},      {"glm4moe", "blk.0.ffn_gate.weight", "layer 0"},
        {"llama", "output.weight", "the output"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_file f = model_of(rows[i].arch);
        struct strata_errmsg em;
        struct pkg_model *pkg;
        struct engine *e;
        const float *out = NULL;
        mf_ok(open_model(&f, &pkg, &e, &em), &em);
        model_file_spoil(pkg_model_find(pkg, rows[i].name), tmp_path(&folder, "model.gguf"));
        for (int twice = 0; twice < 2; twice++) {
            assert_int_equal(run_tokens(e, 0, 3, 5, &out, &em), STRATA_EFORMAT);
            if (strncmp(em.text, rows[i].where, strlen(rows[i].where)) != 0 || !strstr(em.text, rows[i].name))
                fail_msg("'%s' does not tell of %s in %s", em.text, rows[i].name, rows[i].where);
            assert_null(out);
            assert_int_equal(engine_pos(e, 0), 0);
        }
        engine_free(e);
        pkg_model_free(pkg);
    }
}

/* One damaged row of the embedding harms the run that looks it up, and nothing after it, nor any other sequence. */
static void test_damage_does_not_stay(void **state) {
    (void)state;
    enum { BAD_TOKEN = 40 }; /* the NaN is in the middle of 80 rows */
    struct model_file f = model_of("llama");
    struct strata_errmsg em;
    struct pkg_model *pkg[2];
    struct engine *e[2];
    const float *out[2];
    float before[80];
    mf_ok(open_model(&f, &pkg[0], &e[0], &em), &em);
    f.tied = false;
    struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
    struct engine_options opt = {.n_ctx = 64, .n_seq = 2, .n_threads = 1, .kv_type = ENGINE_KV_F32};
    model_file_write(&f, tmp_path(&folder, "spoilt.gguf"));
    mf_ok(pkg_model_open(tmp_path(&folder, "spoilt.gguf"), &po, &pkg[1], &em), &em);
    mf_ok(engine_new(pkg[1], &opt, &e[1], &em), &em);
    model_file_spoil(pkg_model_find(pkg[1], "token_embd.weight"), tmp_path(&folder, "spoilt.gguf"));
    mf_ok(run_tokens(e[0], 0, 3, 5, &out[0], &em), &em);
    mf_ok(run_tokens(e[1], 1, 3, 5, &out[1], &em), &em);
    assert_memory_equal(out[0], out[1], sizeof before);
    /* In one run with a sound sequence: the run fails, both stay where they were. */
    static const int32_t bad[3] = {7, BAD_TOKEN, 8}, good[2] = {9, 10};
    const struct engine_batch both[2] = {{.seq = 0, .n_tokens = 3, .tokens = bad, .want = ENGINE_OUT_LAST},
                                         {.seq = 1, .pos = 5, .n_tokens = 2, .tokens = good, .want = ENGINE_OUT_LAST}};
    const float *rows[2] = {NULL, NULL};
    assert_int_equal(engine_run_many(e[1], both, 2, rows, &em), STRATA_EFORMAT);
    assert_non_null(strstr(em.text, "no numbers"));
    assert_int_equal(engine_pos(e[1], 0), 0);
    assert_int_equal(engine_pos(e[1], 1), 5);
    assert_int_equal(run_tokens(e[1], 1, BAD_TOKEN, 1, &out[1], &em), STRATA_EFORMAT);
    mf_ok(run_tokens(e[0], 0, 9, 2, &out[0], &em), &em);
    mf_ok(run_tokens(e[1], 1, 9, 2, &out[1], &em), &em);
    assert_memory_equal(out[0], out[1], sizeof before);
    for (int i = 0; i < 2; i++) {
        engine_free(e[i]);
        pkg_model_free(pkg[i]);
    }
}

/* Sound weights may still outgrow a narrow cache: an F32 one carries them. */
static void test_overflow(void **state) {
    (void)state;
    struct model_file f = model_of("llama");
    const char *path = tmp_path(&folder, "large.gguf");
    struct strata_errmsg em;
    f.blow_up = "blk.1.attn_v.weight";
    model_file_write(&f, path);
    for (int type = ENGINE_KV_F16; type <= ENGINE_KV_F32; type++) {
        struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
        struct engine_options opt = {.n_ctx = 64, .n_threads = 1, .kv_type = (enum engine_kv_type)type};
        struct pkg_model *pkg;
        struct engine *e;
        const float *out;
        mf_ok(pkg_model_open(path, &po, &pkg, &em), &em);
        mf_ok(engine_new(pkg, &opt, &e, &em), &em);
        if (type == ENGINE_KV_F32) {
            mf_ok(run_tokens(e, 0, 3, 5, &out, &em), &em);
        } else {
            assert_int_equal(run_tokens(e, 0, 3, 5, &out, &em), STRATA_EFORMAT);
            if (strncmp(em.text, "layer 1", 7) != 0 || !strstr(em.text, "wider cache type")) fail_msg("%s", em.text);
        }
        engine_free(e);
        pkg_model_free(pkg);
    }
}

/*
 * What a prefill chunk without output stores is looked at as well, in the last layer too, as are the rows before the
 * last one of a chunk that gives only that: the sequence stays where it was and can go on.
 */
static void test_without_output(void **state) {
    (void)state;
    static const struct {
        const char *name, *where;
    } rows[] = {
        {"blk.2.attn_v.weight", "layer 2"}, {"blk.2.attn_k.weight", "layer 2"}, {"blk.1.attn_v.weight", "layer 1"}};
    static const int32_t tokens[5] = {3, 4, 5, 6, 7};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int type = ENGINE_KV_F16; type <= ENGINE_KV_F32; type++)
            for (int want = ENGINE_OUT_NONE; want <= ENGINE_OUT_LAST; want++) {
                struct model_file f = model_of("llama");
                struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
                struct engine_options opt = {.n_ctx = 64, .n_threads = 1, .kv_type = (enum engine_kv_type)type};
                struct engine_batch b = {.n_tokens = 5, .tokens = tokens, .want = (enum engine_output)want};
                struct strata_errmsg em;
                struct pkg_model *pkg;
                struct engine *e;
                const float *out;
                f.blow_up = rows[i].name;
                model_file_write(&f, tmp_path(&folder, "large.gguf"));
                mf_ok(pkg_model_open(tmp_path(&folder, "large.gguf"), &po, &pkg, &em), &em);
                mf_ok(engine_new(pkg, &opt, &e, &em), &em);
                strata_err rc = engine_run(e, &b, &out, &em);
                if (type == ENGINE_KV_F32) {
                    mf_ok(rc, &em);
                    assert_int_equal(engine_pos(e, 0), 5);
                } else {
                    assert_int_equal(rc, STRATA_EFORMAT);
                    if (strncmp(em.text, rows[i].where, 7) != 0) fail_msg("%s: %s", rows[i].name, em.text);
                    assert_int_equal(engine_pos(e, 0), 0);
                }
                engine_free(e);
                pkg_model_free(pkg);
            }
}

/* The same for NaNs, in each type of the cache: coarse ones may store them as something else. */
static void test_nan_without_output(void **state) {
    (void)state;
    static const int32_t tokens[5] = {3, 4, 5, 6, 7};
    for (int type = 0; type < ENGINE_KV_COUNT; type++) {
        struct model_file f = model_of("llama");
        f.embd = 128; /* heads of 32 */
        struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
        struct engine_options opt = {
            .n_ctx = 64, .n_threads = 1, .kv_type = (enum engine_kv_type)type, .keep_mapped = true};
        struct engine_batch b = {.n_tokens = 5, .tokens = tokens, .want = ENGINE_OUT_NONE};
        struct strata_errmsg em;
        struct pkg_model *pkg;
        struct engine *e;
        const float *out;
        model_file_write(&f, tmp_path(&folder, "nan.gguf"));
        mf_ok(pkg_model_open(tmp_path(&folder, "nan.gguf"), &po, &pkg, &em), &em);
        mf_ok(engine_new(pkg, &opt, &e, &em), &em);
        mf_ok(engine_run(e, &b, &out, &em), &em);
        model_file_spoil(pkg_model_find(pkg, "blk.2.attn_v.weight"), tmp_path(&folder, "nan.gguf"));
        b.pos = 5;
        assert_int_equal(engine_run(e, &b, &out, &em), STRATA_EFORMAT);
        if (strncmp(em.text, "layer 2", 7) != 0 || !strstr(em.text, "blk.2.attn_v.weight")) fail_msg("%s", em.text);
        assert_int_equal(engine_pos(e, 0), 5);
        engine_free(e);
        pkg_model_free(pkg);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_sections),
        cmocka_unit_test(test_causal),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_damaged_tensors),
        cmocka_unit_test(test_damaged_matrices),
        cmocka_unit_test(test_damage_does_not_stay),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_without_output),
        cmocka_unit_test(test_nan_without_output),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
