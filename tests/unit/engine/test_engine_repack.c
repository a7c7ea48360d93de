/*
 * Matrices in the kernels' order: the same numbers as from the file's pages but for rounding, the same wherever the
 * model is cut, what must stay as it is stays, and damage is still told by the tensor's name. Skipped on processors for
 * which ggml has no order of its own for the type. Copies in the file's order, and side by side: the same bits.
 */
#include "state_kinds.h"

#include "model/model.h"

enum { N_TOKENS = 24, VOCAB = 80 };

static struct tmp_folder folder;
static int32_t tokens[N_TOKENS];

static int make_folder(void **state) {
    (void)state;
    tmp_folder_make(&folder);
    for (int i = 0; i < N_TOKENS; i++) tokens[i] = (i * 37 + 11 + i * i) % VOCAB;
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    tmp_folder_remove(folder.path);
    return 0;
}

/* Dense or with experts; q4_0 is the type that most processors have an order for. */
static const char *make_model(bool experts, bool tied) {
    struct model_file f = model_file_small();
    const char *path = tmp_path(&folder, "packed.gguf");
    f.type = GGML_TYPE_Q4_0;
    f.tied = tied;
    if (experts) {
        f.arch = "qwen3moe";
        f.head_norms = true;
        f.experts = 6;
        f.used = 2;
    }
    model_file_write(&f, path);
    return path;
}

static float *logits(const char *path, const uint32_t *cuts, const struct engine_options *opt, uint64_t *repacked) {
    struct test_chain c;
    chain_open(&c, path, cuts, opt);
    *repacked = 0;
    for (uint32_t i = 0; i < c.n; i++) *repacked += engine_info(c.engine[i])->repacked_bytes;
    float *x = chain_logits(&c, tokens, N_TOKENS, (const uint32_t[]){13, 5, 1, 0});
    chain_close(&c);
    return x;
}

static void measure(const char *path, const struct engine_options *opt, struct engine_info *out) {
    struct strata_errmsg em;
    struct pkg_model *m;
    struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
    mf_ok(pkg_model_open(path, &po, &m, &em), &em);
    mf_ok(engine_measure(m, opt, out, &em), &em);
    pkg_model_free(m);
}

static void compare(bool experts, bool tied) {
    const char *path = make_model(experts, tied);
    static const uint32_t cuts[][3] = {{1, 0}, {2, 4, 0}, {4, 0}};
    struct engine_options packed = {.n_ctx = 64, .n_batch = 16, .n_threads = 2}, plain = packed;
    uint64_t bytes, none, parts;
    float most = 0, off = 0;
    plain.keep_mapped = true;
    float *got = logits(path, NULL, &packed, &bytes), *want = logits(path, NULL, &plain, &none);
    assert_int_equal(none, 0);
    for (size_t i = 0; i < N_TOKENS * VOCAB; i++) {
        if (fabsf(want[i]) > most) most = fabsf(want[i]);
        if (fabsf(want[i] - got[i]) > off) off = fabsf(want[i] - got[i]);
    }
    if (off > 0.02f * most) fail_msg("repacked products are off by %g of %g", (double)off, (double)most);
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        float *cut = logits(path, cuts[i], &packed, &parts);
        assert_int_equal(parts, bytes);
        assert_memory_equal(cut, got, N_TOKENS * VOCAB * sizeof *got);
        free(cut);
    }
    free(got);
    free(want);
    if (bytes == 0) skip();
}

static void test_dense(void **state) {
    (void)state;
    compare(false, false);
}

/* The last stage of a cut model has no other use for the embeddings than as the output, and still must not pack them.
 */
static void test_tied(void **state) {
    (void)state;
    compare(false, true);
}

static void test_experts(void **state) {
    (void)state;
    compare(true, false);
}

/* Bits do not differ from those of the file's pages, wherever the model is cut. */
static void compare_copies(const struct model_file *f) {
    static const uint32_t cuts[][3] = {{1, 0}, {2, 0}};
    struct engine_options opt = {.n_ctx = 64, .n_batch = 16, .n_threads = 2}, mapped = opt;
    const char *path = tmp_path(&folder, "copied.gguf");
    struct engine_info info;
    uint64_t bytes;
    mapped.keep_mapped = true;
    model_file_write(f, path);
    measure(path, &opt, &info);
    assert_int_equal(info.repacked_bytes, 0);
    assert_true(2 * info.copied_bytes > info.weight_bytes && info.copied_bytes < info.weight_bytes);
    float *want = logits(path, NULL, &mapped, &bytes), *got = logits(path, NULL, &opt, &bytes);
    assert_memory_equal(got, want, (size_t)N_TOKENS * f->vocab * sizeof *got);
    free(got);
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        got = logits(path, cuts[i], &opt, &bytes);
        assert_memory_equal(got, want, (size_t)N_TOKENS * f->vocab * sizeof *got);
        free(got);
    }
    free(want);
}

/* Of all kinds of models and ways to lay out weights. */
static void test_copies(void **state) {
    (void)state;
    for (int k = 0; k < N_STATE_KINDS; k++) {
        struct model_file f = state_kind_file(&state_kinds[k]);
        compare_copies(&f);
    }
}

/* Matrices that are multiplied with the same vector lie side by side where their types allow it. */
static void test_sides(void **state) {
    (void)state;
    static const struct {
        uint32_t type, v_type;
        bool bias, scale, mapped; /* in the file, q and v are neighbours, and gate and up */
        bool k, v, gate_up;
    } rows[] = {
        {.k = true, .v = true, .gate_up = true},
        {.type = GGML_TYPE_Q5_1, .k = true, .v = true, .gate_up = true},
        {.type = GGML_TYPE_Q4_0, .k = true, .v = true, .gate_up = true},
        {.type = GGML_TYPE_Q4_0, .v_type = GGML_TYPE_Q8_0, .k = true, .gate_up = true},
        {.bias = true, .k = true, .v = true},
        {.v_type = GGML_TYPE_F16, .bias = true, .k = true},
        {.scale = true},
        {.mapped = true, .v = true, .gate_up = true},
        {.mapped = true, .v_type = GGML_TYPE_F16, .gate_up = true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct strata_errmsg em;
        struct pkg_model *pkg;
        struct model_backend backend;
        struct model m;
        struct model_file f = model_file_small();
        struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
        f.arch = rows[i].bias ? "qwen2" : "llama";
        f.type = rows[i].type;
        f.v_type = rows[i].v_type;
        f.bias = rows[i].bias;
        f.scale = rows[i].scale;
        if (!rows[i].mapped && f.type != GGML_TYPE_Q4_0) compare_copies(&f);
        model_file_write(&f, tmp_path(&folder, "sides.gguf"));
        mf_ok(pkg_model_open(tmp_path(&folder, "sides.gguf"), &po, &pkg, &em), &em);
        mf_ok(model_backend_init(&backend, NULL, NULL, 1, &em), &em);
        backend.dry = true;
        backend.copies = rows[i].mapped ? MODEL_BACKEND_MAPPED : MODEL_BACKEND_COPIED;
        mf_ok(model_init(&m, pkg, &backend, &em), &em);
        const struct model_layer *l = &m.weights.layer[2];
        if (l->qkv_has_k != rows[i].k || l->qkv_has_v != rows[i].v || (l->gate_up != NULL) != rows[i].gate_up ||
            (l->qkv.w != NULL) != (rows[i].k || rows[i].v))
            fail_msg("row %zu: k %d, v %d, gate and up %d", i, l->qkv_has_k, l->qkv_has_v, l->gate_up != NULL);
        model_deinit(&m);
        model_backend_deinit(&backend);
        pkg_model_free(pkg);
    }
}

/* What is known before loading is what is done. */
static void test_measured(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct engine_info before;
    struct test_chain c;
    struct engine_options opt = {.n_ctx = 64, .n_batch = 16, .n_threads = 2};
    chain_open(&c, make_model(false, false), NULL, &opt);
    const struct engine_info *after = engine_info(c.engine[0]);
    mf_ok(engine_measure(c.pkg[0], &opt, &before, &em), &em);
    assert_int_equal(before.repacked_bytes, after->repacked_bytes);
    assert_int_equal(before.copied_bytes, after->copied_bytes);
    assert_true(after->repacked_bytes < after->weight_bytes);
    chain_close(&c);
    opt.over_memory = true; /* what may not fit the memory stays in the file's pages */
    chain_open(&c, make_model(false, false), NULL, &opt);
    assert_int_equal(engine_info(c.engine[0])->repacked_bytes, 0);
    chain_close(&c);
}

/* Weights are looked at before they are packed. */
static void test_damaged(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct pkg_model *m;
    struct engine *e;
    struct model_file f = model_file_small();
    struct engine_options opt = {.n_ctx = 64, .n_threads = 1};
    struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
    const char *path = tmp_path(&folder, "damaged.gguf");
    f.type = GGML_TYPE_Q4_0;
    f.blow_up = "blk.2.ffn_up.weight"; /* beyond the half-precision factors of the blocks */
    model_file_write(&f, path);
    mf_ok(pkg_model_open(path, &po, &m, &em), &em);
    assert_int_equal(engine_new(m, &opt, &e, &em), STRATA_EFORMAT);
    assert_non_null(strstr(em.text, "blk.2.ffn_up.weight"));
    pkg_model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),   cmocka_unit_test(test_tied),  cmocka_unit_test(test_experts),
        cmocka_unit_test(test_copies),  cmocka_unit_test(test_sides), cmocka_unit_test(test_measured),
        cmocka_unit_test(test_damaged),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
