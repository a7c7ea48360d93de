/*
 * Weights that settle later: the numbers are those of an engine that copied all of them at load, bit for bit, at every
 * step; what the engine is said to take stays the same; and when all has settled, nothing reads the file's pages of
 * what was copied any more.
 */
#include "engine/engine_profile.h"
#include "model/model.h"
#include "state_kinds.h"

#include <sys/mman.h>
#include <unistd.h>

enum { N_TOKENS = 20, MOST_STEPS = 64 };

static struct tmp_folder folder;
static int32_t tokens[N_TOKENS];
static const uint32_t split[] = {13, 4, 1, 0};

static int make_folder(void **state) {
    (void)state;
    tmp_folder_make(&folder);
    for (int i = 0; i < N_TOKENS; i++) tokens[i] = (i * 37 + 11 + i * i) % 80;
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    tmp_folder_remove(folder.path);
    return 0;
}

static struct engine_options options(bool later) {
    return (struct engine_options){.n_ctx = 64, .n_batch = 16, .n_threads = 2, .settle_later = later};
}

static struct pkg_model *open_file(const char *path) {
    struct strata_errmsg em;
    struct pkg_model *pkg = NULL;
    struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
    mf_ok(pkg_model_open(path, &po, &pkg, &em), &em);
    return pkg;
}

/* From the start, with the graphs that are there. */
static float *logits(struct test_chain *c) {
    struct strata_errmsg em;
    for (uint32_t i = 0; i < c->n; i++) mf_ok(engine_truncate(c->engine[i], 0, 0, &em), &em);
    return chain_logits(c, tokens, N_TOKENS, split);
}

static void expect_logits(struct test_chain *c, const float *want, const char *what, int step) {
    float *got = logits(c);
    size_t n = (size_t)N_TOKENS * engine_info(c->engine[c->n - 1])->n_vocab;
    if (memcmp(got, want, n * sizeof *got) != 0) fail_msg("%s: other logits after step %d", what, step);
    free(got);
}

static void expect_figures(const struct test_chain *c, const struct engine_options *opt) {
    for (uint32_t i = 0; i < c->n; i++) {
        struct strata_errmsg em;
        struct engine_info told;
        const struct engine_info *is = engine_info(c->engine[i]);
        mf_ok(engine_measure(c->pkg[i], opt, &told, &em), &em);
        assert_int_equal(told.weight_bytes, is->weight_bytes);
        assert_int_equal(told.copied_bytes, is->copied_bytes);
        assert_int_equal(told.repacked_bytes, is->repacked_bytes);
        assert_int_equal(told.token_bytes, is->token_bytes);
        assert_int_equal(told.kv_bytes, is->kv_bytes);
        assert_int_equal(told.scratch_bytes, is->scratch_bytes);
    }
}

/* A step of each engine. */
static bool settle(struct test_chain *c, uint64_t bytes) {
    bool left = false;
    for (uint32_t i = 0; i < c->n; i++) left |= engine_settle(c->engine[i], bytes);
    return left;
}

/* Takes the whole pages of the matrices in the file away: a touch would end the program. */
static void guard_matrices(const struct pkg_model *pkg) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < pkg_model_tensor_count(pkg); i++) {
        const struct gguf_tensor *t = pkg_model_tensor(pkg, i);
        uintptr_t first = ((uintptr_t)t->data + page - 1) / page * page, end = (uintptr_t)t->data + t->bytes;
        /* These are looked up in, and are no matrices. */
        bool rows = strcmp(t->name, "token_embd.weight") == 0 || strstr(t->name, "shortconv.conv.");
        if (t->ne[1] > 1 && !rows && end > first + page)
            assert_int_equal(mprotect((void *)first, (end - first) / page * page, PROT_NONE), 0);
    }
}

/* All at load, then the same file step by step; `bytes` at a time. */
static void compare(const struct model_file *f, const char *what, const uint32_t *cuts, uint64_t bytes, int least) {
    const char *path = tmp_path(&folder, "settle.gguf");
    const struct engine_options now = options(false), later = options(true);
    struct test_chain all, c;
    int steps = 0;
    model_file_write(f, path);
    chain_open(&all, path, cuts, &now);
    chain_open(&c, path, cuts, &later);
    float *want = logits(&all);
    assert_false(settle(&all, UINT64_MAX)); /* nothing waits */
    expect_logits(&c, want, what, steps);
    expect_figures(&c, &now);
    for (bool left = true; left && steps < MOST_STEPS;) {
        left = settle(&c, bytes);
        expect_logits(&c, want, what, ++steps);
        expect_figures(&c, &later);
    }
    if (steps < least || steps == MOST_STEPS) fail_msg("%s: %d steps, expected %d", what, steps, least);
    assert_false(settle(&c, bytes));
    for (uint32_t i = 0; i < c.n; i++) guard_matrices(c.pkg[i]);
    expect_logits(&c, want, what, ++steps);
    expect_figures(&c, &later);
    free(want);
    chain_close(&c);
    chain_close(&all);
}

static void test_kinds(void **state) {
    (void)state;
    for (int k = 0; k < N_STATE_KINDS; k++) {
        struct model_file f = state_kind_file(&state_kinds[k]);
        compare(&f, state_kinds[k].name, NULL, 1, f.alignment == 8 ? 1 : (int)f.layers);
        compare(&f, state_kinds[k].name, (const uint32_t[]){2, 0}, 100000, 1);
    }
}

/* Those whose matrices are joined in part, with biases and without. What is repacked must not wait. */
static void test_joined(void **state) {
    (void)state;
    static const struct {
        const char *what;
        uint32_t type, v_type;
        bool bias, tied;
    } rows[] = {
        {.what = "f32, biases", .bias = true},
        {.what = "f32, v of f16, biases", .v_type = GGML_TYPE_F16, .bias = true},
        {.what = "f16, tied", .type = GGML_TYPE_F16, .tied = true},
        {.what = "q8_0", .type = GGML_TYPE_Q8_0},
        {.what = "q5_1, v of q8_0", .type = GGML_TYPE_Q5_1, .v_type = GGML_TYPE_Q8_0},
        {.what = "q4_0, tied, v of q8_0", .type = GGML_TYPE_Q4_0, .v_type = GGML_TYPE_Q8_0, .tied = true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct model_file f = model_file_small();
        f.arch = rows[i].bias ? "qwen2" : "llama";
        f.type = rows[i].type;
        f.v_type = rows[i].v_type;
        f.bias = rows[i].bias;
        f.tied = rows[i].tied;
        compare(&f, rows[i].what, NULL, 1, 5);
    }
}

/* A matrix that is larger than a step. */
static void test_parts(void **state) {
    (void)state;
    struct model_file f = model_file_small();
    f.vocab = 20000;
    f.tied = true;
    compare(&f, "a large vocabulary", NULL, 1 << 20, 3);
}

/* A model without an engine, nothing of which has settled. */
struct waiting {
    struct pkg_model *pkg;
    struct model_backend backend;
    struct model model;
};

static void open_waiting(const char *path, struct waiting *x) {
    struct strata_errmsg em;
    x->pkg = open_file(path);
    mf_ok(model_backend_init(&x->backend, NULL, NULL, 1, &em), &em);
    x->backend.copies = MODEL_BACKEND_COPIED;
    x->backend.settle_later = true;
    mf_ok(model_init(&x->model, x->pkg, &x->backend, &em), &em);
}

static void close_waiting(struct waiting *x) {
    model_deinit(&x->model);
    model_backend_deinit(&x->backend);
    pkg_model_free(x->pkg);
}

/* Layer by layer: the first one's tensors move, and are multiplied as one, before those of the next one do. */
static void test_order(void **state) {
    (void)state;
    struct model_file f = model_file_small();
    const char *path = tmp_path(&folder, "order.gguf");
    model_file_write(&f, path);
    struct waiting x;
    open_waiting(path, &x);
    const void *output = x.model.weights.output.w->data;
    assert_ptr_equal(output, pkg_model_find(x.pkg, "output.weight")->data);
    for (uint32_t done = 0; done <= f.layers; done++) {
        for (uint32_t il = 0; il < f.layers; il++) {
            const struct model_layer *l = &x.model.weights.layer[il];
            char name[32];
            snprintf(name, sizeof name, "blk.%u.attn_q.weight", il);
            bool mapped = l->q.w->data == (const void *)pkg_model_find(x.pkg, name)->data;
            if (mapped == (il < done)) fail_msg("layer %u after %u", il, done);
            assert_int_equal(model_weights_are_joined(l->qkv.w, l->q.w), il < done);
            assert_int_equal(model_weights_are_joined(l->gate_up, l->gate.w), il < done);
        }
        assert_ptr_equal(x.model.weights.output.w->data, output);
        for (int parts = 0; !model_weights_settle(&x.model.weights, 1, 1); parts++) assert_true(parts < MOST_STEPS);
    }
    assert_ptr_not_equal(x.model.weights.output.w->data, output);
    assert_true(model_weights_are_settled(&x.model.weights));
    assert_false(model_weights_settle(&x.model.weights, 1, UINT64_MAX));
    close_waiting(&x);
}

/* The same shape once before and once after: joined matrices are fewer operations. */
static void test_graphs(void **state) {
    (void)state;
    struct test_chain c[2];
    struct model_file f = model_file_small();
    struct engine_options opt[2] = {options(false), options(true)};
    uint64_t ops[2];
    model_file_write(&f, tmp_path(&folder, "graphs.gguf"));
    for (int i = 0; i < 2; i++) {
        opt[i].profile = true;
        chain_open(&c[i], tmp_path(&folder, "graphs.gguf"), NULL, &opt[i]);
        struct engine_profile *p = engine_profile(c[i].engine[0]);
        chain_step(&c[i], 0, tokens, 1, ENGINE_OUT_LAST);
        ops[i] = p->all.count;
        for (uint32_t pos = 1; settle(&c[i], 100000); pos++) chain_step(&c[i], pos, tokens, 1, ENGINE_OUT_LAST);
        engine_profile_reset(p);
        chain_step(&c[i], engine_pos(c[i].engine[0], 0), tokens, 1, ENGINE_OUT_LAST);
        assert_int_equal(p->all.count, ops[0]);
    }
    assert_true(ops[1] > ops[0]);
    for (int i = 0; i < 2; i++) chain_close(&c[i]);
}

/* Damage of what waits, done after it was looked at, is told of as of anything else, and stays when that is copied. */
static void test_damaged(void **state) {
    (void)state;
    static const char *const rows[][2] = {{"blk.3.ffn_up.weight", "layer 3"}, {"output.weight", "the output"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct strata_errmsg em;
        struct test_chain c;
        struct model_file f = model_file_small();
        const struct engine_options opt = options(true);
        const char *path = tmp_path(&folder, "damaged.gguf");
        const struct engine_batch b = {.n_tokens = 8, .tokens = tokens, .want = ENGINE_OUT_LAST};
        const float *out;
        model_file_write(&f, path);
        chain_open(&c, path, NULL, &opt);
        model_file_spoil(pkg_model_find(c.pkg[0], rows[i][0]), path);
        for (bool left = true; left; left = settle(&c, 1)) {
            assert_int_equal(engine_run(c.engine[0], &b, &out, &em), STRATA_EFORMAT);
            if (!strstr(em.text, rows[i][0]) || !strstr(em.text, rows[i][1])) fail_msg("%s", em.text);
        }
        assert_int_equal(engine_run(c.engine[0], &b, &out, &em), STRATA_EFORMAT);
        assert_non_null(strstr(em.text, rows[i][0]));
        chain_close(&c);
    }
}

/* What ggml cannot work with where it lies in the file does not wait there. */
static void test_unaligned(void **state) {
    (void)state;
    struct model_file f = model_file_small();
    const char *path = tmp_path(&folder, "unaligned.gguf");
    f.alignment = 8;
    f.scale = true; /* of 4 bytes */
    model_file_write(&f, path);
    struct waiting x;
    open_waiting(path, &x);
    for (uint32_t il = 0; il < f.layers; il++) {
        const struct model_layer *l = &x.model.weights.layer[il];
        const struct ggml_tensor *all[] = {l->q.w, l->k.w, l->v.w, l->o.w, l->gate.w, l->up.w, l->down.w};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            assert_int_equal((uintptr_t)all[i]->data % x.backend.alignment, 0);
    }
    close_waiting(&x);
}

/* Where nothing is copied nothing waits. */
static void test_mapped(void **state) {
    (void)state;
    struct test_chain c;
    struct model_file f = model_file_small();
    struct engine_options opt = options(true);
    opt.keep_mapped = true;
    model_file_write(&f, tmp_path(&folder, "mapped.gguf"));
    chain_open(&c, tmp_path(&folder, "mapped.gguf"), NULL, &opt);
    assert_false(settle(&c, 1));
    chain_close(&c);
}

/* State of an engine whose weights wait is that of any other. */
static void test_state(void **state) {
    (void)state;
    enum { KEPT = 13 };
    struct strata_errmsg em;
    struct test_chain c[2];
    struct model_file f = model_file_small();
    const struct engine_options opt[2] = {options(true), options(false)};
    model_file_write(&f, tmp_path(&folder, "state.gguf"));
    for (int i = 0; i < 2; i++) chain_open(&c[i], tmp_path(&folder, "state.gguf"), NULL, &opt[i]);
    chain_step(&c[0], 0, tokens, KEPT, ENGINE_OUT_LAST);
    void *rows = malloc((size_t)engine_rows_bytes(c[0].engine[0], 0, KEPT));
    assert_non_null(rows);
    mf_ok(engine_save_rows(c[0].engine[0], 0, 0, KEPT, rows, &em), &em);
    mf_ok(engine_load_rows(c[1].engine[0], 0, 0, KEPT, rows, &em), &em);
    for (uint32_t pos = KEPT; pos < N_TOKENS; pos++) {
        settle(&c[0], 1);
        const float *a = chain_step(&c[0], pos, tokens + pos, 1, ENGINE_OUT_LAST);
        const float *b = chain_step(&c[1], pos, tokens + pos, 1, ENGINE_OUT_LAST);
        assert_memory_equal(a, b, f.vocab * sizeof *a);
    }
    free(rows);
    for (int i = 0; i < 2; i++) chain_close(&c[i]);
}

/* No batch, of however many sequences and with whatever type of cache, needs more scratch before than afterwards. */
static void test_scratch(void **state) {
    (void)state;
    for (int i = 0; i < N_STATE_KINDS * ENGINE_KV_COUNT; i++) {
        struct model_file f = state_kind_file(&state_kinds[i / ENGINE_KV_COUNT]);
        struct engine_options opt = {.n_ctx = 48,
                                     .n_seq = 3,
                                     .n_batch = 48,
                                     .n_threads = 1,
                                     .kv_type = (enum engine_kv_type)(i % ENGINE_KV_COUNT),
                                     .settle_later = true};
        struct test_chain c;
        struct strata_errmsg em;
        const float *out[3];
        static const int32_t ids[48];
        model_file_write(&f, tmp_path(&folder, "scratch.gguf"));
        for (uint32_t n = 1; n <= 3; n++) {
            struct engine_batch b[3];
            chain_open(&c, tmp_path(&folder, "scratch.gguf"), NULL, &opt);
            for (uint32_t s = 0; s < n; s++)
                b[s] = (struct engine_batch){.seq = s, .n_tokens = 48 / n, .tokens = ids, .want = ENGINE_OUT_ALL};
            mf_ok(engine_run_many(c.engine[0], b, n, out, &em), &em);
            expect_figures(&c, &opt);
            chain_close(&c);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),   cmocka_unit_test(test_joined), cmocka_unit_test(test_parts),
        cmocka_unit_test(test_order),   cmocka_unit_test(test_graphs), cmocka_unit_test(test_unaligned),
        cmocka_unit_test(test_damaged), cmocka_unit_test(test_mapped), cmocka_unit_test(test_state),
        cmocka_unit_test(test_scratch),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
