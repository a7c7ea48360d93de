/* A cut model equals the uncut one, bit for bit; outputs, positions and graphs behave as engine.h says. */
#include "chain.h"

#include "../base/test_folder.h"

#include <math.h>

static void fill_tokens(int32_t *tokens, uint32_t n, uint32_t vocab) {
    for (uint32_t i = 0; i < n; i++) tokens[i] = (int32_t)((i * 37 + 11 + i * i) % vocab);
}

/* Every cut into two and into three, for one way of feeding the tokens. */
static void compare_cuts(const char *path, uint32_t layers, const struct engine_options *opt, uint32_t n,
                         const uint32_t *split) {
    static int32_t tokens[1024];
    struct test_chain whole, cut;
    assert_true(n <= 1024);
    chain_open(&whole, path, NULL, opt);
    uint32_t n_vocab = engine_info(whole.engine[0])->n_vocab;
    fill_tokens(tokens, n, n_vocab);
    float *want = chain_logits(&whole, tokens, n, split);
    size_t bytes = (size_t)n * n_vocab * sizeof(float);
    for (size_t i = 0; i < bytes / sizeof(float); i++) assert_true(isfinite(want[i]));
    for (uint32_t a = 1; a < layers; a++)
        for (uint32_t b = a; b < layers; b++) { /* b == a: one cut only */
            const uint32_t cuts[3] = {a, b > a ? b : 0, 0};
            chain_open(&cut, path, cuts, opt);
            float *got = chain_logits(&cut, tokens, n, split);
            if (memcmp(want, got, bytes) != 0) fail_msg("%s cut at %u,%u differs", path, a, b);
            free(got);
            chain_close(&cut);
        }
    free(want);
    chain_close(&whole);
}

static const uint32_t splits[][4] = {{64}, {1}, {7, 16, 1}, {3, 5}};

static void test_cuts_f32(void **state) {
    (void)state;
    struct model_file f = model_file_small();
    const char *path = tmp_path(&folder, "cuts.gguf");
    f.bias = f.scale = f.freqs = true;
    model_file_write(&f, path);
    for (size_t s = 0; s < sizeof splits / sizeof splits[0]; s++)
        for (int kv = ENGINE_KV_F16; kv <= ENGINE_KV_F32; kv++) {
            struct engine_options opt = {
                .n_ctx = 64, .n_batch = 64, .n_threads = 2, .kv_type = (enum engine_kv_type)kv};
            compare_cuts(path, f.layers, &opt, 40, splits[s]);
        }
}

static void test_cuts_of_types(void **state) {
    (void)state;
    static const struct {
        uint32_t type;
        bool tied, fused;
    } rows[] = {{GGML_TYPE_Q8_0, true, false},
                {GGML_TYPE_Q4_1, false, false},
                {GGML_TYPE_F16, true, true},
                {GGML_TYPE_BF16, false, true}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_file f = model_file_small();
        struct engine_options opt = {.n_ctx = 64, .n_batch = 16, .n_threads = 2};
        const char *path = tmp_path(&folder, "type.gguf");
        f.type = rows[i].type;
        f.tied = rows[i].tied;
        f.fused = rows[i].fused;
        model_file_write(&f, path);
        compare_cuts(path, f.layers, &opt, 24, (const uint32_t[]){16, 0});
        compare_cuts(path, f.layers, &opt, 24, (const uint32_t[]){9, 1, 0});
    }
}

/* Past 512 cells ggml shares one token's attention between threads: another order of sums, the same on both sides. */
static void test_cuts_long(void **state) {
    (void)state;
    struct model_file f = model_file_small();
    struct engine_options opt = {.n_ctx = 700, .n_batch = 300, .n_threads = 2};
    const char *path = tmp_path(&folder, "long.gguf");
    f.layers = 3;
    model_file_write(&f, path);
    compare_cuts(path, f.layers, &opt, 640, (const uint32_t[]){300, 300, 1, 0});
}

/* What one range makes of a batch of tokens or of hidden states; the result is malloc'ed. */
static float *range_output(const char *path, struct pkg_range range, const int32_t *tokens, const float *hidden,
                           uint32_t n, size_t *count) {
    struct strata_errmsg em;
    struct pkg_model *m;
    struct engine *e;
    const float *x;
    struct pkg_model_options po = {.range = range};
    struct engine_options opt = {.n_ctx = 64, .n_batch = n, .n_threads = 2};
    struct engine_batch batch = {.n_tokens = n, .tokens = tokens, .hidden = hidden, .want = ENGINE_OUT_ALL};
    mf_ok(pkg_model_open(path, &po, &m, &em), &em);
    mf_ok(engine_new(m, &opt, &e, &em), &em);
    mf_ok(engine_run(e, &batch, &x, &em), &em);
    const struct engine_info *info = engine_info(e);
    *count = (size_t)n * (info->is_last ? info->n_vocab : info->n_embd);
    float *copy = malloc(*count * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, x, *count * sizeof *copy);
    engine_free(e);
    pkg_model_free(m);
    return copy;
}

/*
 * Every cut of the real model into two and into three, without running each chain anew: [0,a) gives h(a); [a,b) must
 * make exactly h(b) of h(a), for all a < b; and [a,n) must make exactly the logits of the whole model of h(a). The
 * chain of any two or three ranges is a row of such steps.
 */
static void test_cuts_real_model(void **state) {
    (void)state;
    enum { N = 13, LAYERS_MAX = 128 };
    const char *path = getenv("STRATA_MODEL");
    if (!path) skip();
    static int32_t tokens[N];
    float *h[LAYERS_MAX] = {NULL};
    size_t n_logits, n_hidden, n_got;
    struct pkg_model *m;
    struct strata_errmsg em;
    struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
    mf_ok(pkg_model_open(path, &po, &m, &em), &em);
    uint32_t layers = pkg_model_layer_count(m);
    pkg_model_free(m);
    assert_in_range(layers, 2, LAYERS_MAX - 1);
    fill_tokens(tokens, N, 49152);
    float *logits = range_output(path, (struct pkg_range){0, PKG_RANGE_ALL}, tokens, NULL, N, &n_logits);
    for (uint32_t a = 1; a < layers; a++)
        h[a] = range_output(path, (struct pkg_range){0, a}, tokens, NULL, N, &n_hidden);
    for (uint32_t a = 1; a < layers; a++) {
        for (uint32_t b = a + 1; b < layers; b++) {
            float *got = range_output(path, (struct pkg_range){a, b}, NULL, h[a], N, &n_got);
            assert_int_equal(n_got, n_hidden);
            if (memcmp(got, h[b], n_got * sizeof *got) != 0) fail_msg("layers %u..%u differ", a, b);
            free(got);
        }
        float *got = range_output(path, (struct pkg_range){a, layers}, NULL, h[a], N, &n_got);
        assert_int_equal(n_got, n_logits);
        if (memcmp(got, logits, n_got * sizeof *got) != 0) fail_msg("the cut at %u changes the logits", a);
        free(got);
    }
    for (uint32_t a = 1; a < layers; a++) free(h[a]);
    free(logits);
}

static void assert_close(const float *a, const float *b, uint32_t n) {
    float top = 0, diff = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (fabsf(a[i]) > top) top = fabsf(a[i]);
        if (fabsf(a[i] - b[i]) > diff) diff = fabsf(a[i] - b[i]);
    }
    if (!(diff <= 1e-4f * top)) fail_msg("differs by %g of %g", (double)diff, (double)top);
}

/* The last row alone, no row, and all rows tell the same story. */
static void test_outputs(void **state) {
    (void)state;
    struct model_file f = model_file_small();
    struct engine_options opt = {.n_ctx = 64, .n_batch = 32, .n_threads = 2, .kv_type = ENGINE_KV_F32};
    struct test_chain c;
    int32_t tokens[24];
    float last[80];
    f.fused = true;
    for (int fused = 0; fused < 2; fused++) {
        f.fused = fused;
        f.layers = fused ? 1 : 3; /* one layer: with no output wanted the mask is not even used */
        const char *path = tmp_path(&folder, "out.gguf");
        model_file_write(&f, path);
        chain_open(&c, path, NULL, &opt);
        fill_tokens(tokens, 24, f.vocab);
        float *all = chain_logits(&c, tokens, 24, (const uint32_t[]){24, 0});
        struct strata_errmsg em;
        mf_ok(engine_truncate(c.engine[0], 0, 0, &em), &em);
        assert_null(chain_step(&c, 0, tokens, 20, ENGINE_OUT_NONE));
        const float *x = chain_step(&c, 20, tokens + 20, 4, ENGINE_OUT_LAST);
        assert_close(all + 23 * f.vocab, x, f.vocab);
        memcpy(last, x, sizeof last);
        mf_ok(engine_truncate(c.engine[0], 0, 20, &em), &em);
        assert_int_equal(engine_pos(c.engine[0], 0), 20);
        assert_memory_equal(chain_step(&c, 20, tokens + 20, 4, ENGINE_OUT_LAST), last, sizeof last);
        free(all);
        chain_close(&c);
    }
}

/* More shapes than the graph cache holds, twice: an evicted or reused graph gives the same numbers. */
static void test_many_shapes(void **state) {
    (void)state;
    struct model_file f = model_file_small();
    struct engine_options opt = {.n_ctx = 600, .n_batch = 40, .n_threads = 2};
    struct test_chain c;
    int32_t tokens[600];
    struct strata_errmsg em;
    const char *path = tmp_path(&folder, "shapes.gguf");
    model_file_write(&f, path);
    chain_open(&c, path, NULL, &opt);
    fill_tokens(tokens, 600, f.vocab);
    float *kept = malloc(40 * f.vocab * sizeof *kept);
    assert_non_null(kept);
    for (int round = 0; round < 2; round++) {
        uint32_t pos = 0;
        mf_ok(engine_truncate(c.engine[0], 0, 0, &em), &em);
        for (uint32_t n = 1; n <= 30; n++) {
            const float *x = chain_step(&c, pos, tokens + pos, n, ENGINE_OUT_LAST);
            if (round == 0) {
                memcpy(kept + n * f.vocab, x, f.vocab * sizeof *x);
            } else {
                assert_memory_equal(kept + n * f.vocab, x, f.vocab * sizeof *x);
            }
            pos += n;
        }
    }
    free(kept);
    chain_close(&c);
}

/* Tensors that stand at odd multiples of 8 are copied, counted, and compute the same. */
static void test_unaligned(void **state) {
    (void)state;
    struct model_file f = model_file_small();
    struct engine_options opt = {.n_ctx = 64, .n_threads = 2, .kv_type = ENGINE_KV_F32, .keep_mapped = true};
    struct test_chain c;
    int32_t tokens[16];
    f.embd = 72; /* rows of 288 bytes; with biases of other sizes addresses shift by 8 and 16 */
    f.heads = 6;
    f.kv_heads = 2;
    f.ff = 50;
    f.vocab = 70;
    f.bias = f.scale = true;
    fill_tokens(tokens, 16, f.vocab);
    model_file_write(&f, tmp_path(&folder, "aligned.gguf"));
    f.alignment = 8;
    model_file_write(&f, tmp_path(&folder, "unaligned.gguf"));
    chain_open(&c, tmp_path(&folder, "aligned.gguf"), NULL, &opt);
    assert_int_equal(engine_info(c.engine[0])->copied_bytes, 0);
    float *want = chain_logits(&c, tokens, 16, (const uint32_t[]){16, 0});
    uint64_t weight_bytes = engine_info(c.engine[0])->weight_bytes;
    chain_close(&c);
    chain_open(&c, tmp_path(&folder, "unaligned.gguf"), NULL, &opt);
    assert_true(engine_info(c.engine[0])->copied_bytes > 0);
    assert_true(engine_info(c.engine[0])->copied_bytes < weight_bytes);
    assert_int_equal(engine_info(c.engine[0])->weight_bytes, weight_bytes);
    float *got = chain_logits(&c, tokens, 16, (const uint32_t[]){16, 0});
    assert_memory_equal(want, got, 16 * f.vocab * sizeof(float));
    free(want);
    free(got);
    chain_close(&c);
}

/* A stage holds its own share: the shares add up to the whole (the tied embedding counts on both ends). */
static void test_share(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        struct model_file f = model_file_small();
        struct engine_options opt = {.n_ctx = 300, .n_threads = 1};
        struct test_chain c;
        const char *path = tmp_path(&folder, "share.gguf");
        f.tied = tied;
        model_file_write(&f, path);
        chain_open(&c, path, NULL, &opt);
        struct engine_info whole = *engine_info(c.engine[0]);
        chain_close(&c);
        assert_int_equal(whole.kv_bytes, 300 * 5 * 2 * 32 * 2); /* positions, layers, planes, row, bytes of F16 */
        chain_open(&c, path, (const uint32_t[]){1, 3, 0}, &opt);
        uint64_t weights = 0, kv = 0;
        for (uint32_t i = 0; i < 3; i++) {
            const struct engine_info *e = engine_info(c.engine[i]);
            weights += e->weight_bytes;
            kv += e->kv_bytes;
            assert_int_equal(e->is_first, i == 0);
            assert_int_equal(e->is_last, i == 2);
            assert_int_equal(e->layer_count, 5);
            assert_int_equal(e->n_embd, 64);
            assert_int_equal(e->n_vocab, 80);
        }
        assert_int_equal(kv, whole.kv_bytes);
        assert_int_equal(weights, whole.weight_bytes + (tied ? 64 * 80 * 4 : 0));
        chain_close(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts_f32),  cmocka_unit_test(test_cuts_of_types),
        cmocka_unit_test(test_cuts_long), cmocka_unit_test(test_cuts_real_model),
        cmocka_unit_test(test_outputs),   cmocka_unit_test(test_many_shapes),
        cmocka_unit_test(test_unaligned), cmocka_unit_test(test_share),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
