/*
 * What an engine will cost, told beforehand: the numbers are those of the engine that is made afterwards, for every
 * kind of state, type of cache, cut and size, and finding them touches no weight. What does not fit is refused before
 * any weight is read.
 */
#include "engine/engine_graph.h"
#include "state_kinds.h"

#include <sys/mman.h>

static struct tmp_folder folder;

static int make_models(void **state) {
    (void)state;
    tmp_folder_make(&folder);
    state_kinds_write(&folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    tmp_folder_remove(folder.path);
    return 0;
}

static struct pkg_model *open_range(const struct state_kind *k, uint32_t first, uint32_t end) {
    struct strata_errmsg em;
    struct pkg_model *pkg = NULL;
    struct pkg_model_options po = {.range = {first, end}};
    mf_ok(pkg_model_open(state_kind_path(&folder, k), &po, &pkg, &em), &em);
    return pkg;
}

static void assert_info_equal(const struct engine_info *a, const struct engine_info *b) {
    assert_string_equal(a->arch, b->arch);
    assert_string_equal(a->backend, b->backend);
    assert_int_equal(a->layer_count, b->layer_count);
    assert_int_equal(a->range.first, b->range.first);
    assert_int_equal(a->range.end, b->range.end);
    assert_int_equal(a->is_first, b->is_first);
    assert_int_equal(a->is_last, b->is_last);
    assert_int_equal(a->n_embd, b->n_embd);
    assert_int_equal(a->n_vocab, b->n_vocab);
    assert_int_equal(a->n_ctx, b->n_ctx);
    assert_int_equal(a->n_ctx_train, b->n_ctx_train);
    assert_int_equal(a->n_seq, b->n_seq);
    assert_int_equal(a->n_pool, b->n_pool);
    assert_int_equal(a->n_batch, b->n_batch);
    assert_int_equal(a->n_threads, b->n_threads);
    assert_int_equal(a->weight_bytes, b->weight_bytes);
    assert_int_equal(a->copied_bytes, b->copied_bytes);
    assert_int_equal(a->repacked_bytes, b->repacked_bytes);
    assert_int_equal(a->kv_bytes, b->kv_bytes);
    assert_int_equal(a->scratch_bytes, b->scratch_bytes);
}

/* Measures, makes, compares; and once more after a full batch has run. */
static void compare(const struct pkg_model *pkg, const struct engine_options *opt) {
    struct strata_errmsg em;
    struct engine_info told;
    struct engine *e = NULL;
    const float *out;
    static int32_t tokens[64];
    static float hidden[64 * 64];
    mf_ok(engine_measure(pkg, opt, &told, &em), &em);
    mf_ok(engine_new(pkg, opt, &e, &em), &em);
    assert_info_equal(&told, engine_info(e));
    assert_true(told.scratch_bytes > 0 && told.weight_bytes > 0 && told.kv_bytes > 0);
    uint32_t n = told.n_batch < told.n_ctx ? told.n_batch : told.n_ctx;
    assert_true(n <= 64);
    for (uint32_t pos = 0; pos < told.n_ctx; pos += n) {
        if (n > told.n_ctx - pos) n = told.n_ctx - pos;
        struct engine_batch b = {.pos = pos,
                                 .n_tokens = n,
                                 .tokens = told.is_first ? tokens : NULL,
                                 .hidden = told.is_first ? NULL : hidden,
                                 .want = ENGINE_OUT_LAST};
        mf_ok(engine_run(e, &b, &out, &em), &em);
    }
    assert_info_equal(&told, engine_info(e));
    engine_free(e);
}

static void test_equal(void **state) {
    (void)state;
    static const struct engine_options sizes[] = {
        {.n_ctx = 300, .n_batch = 48, .n_threads = 1},
        {.n_ctx = 64, .n_batch = 64, .max_logits = 1, .n_threads = 2},
        {.n_ctx = 40, .n_batch = 7, .n_seq = 5, .n_pool = 90, .n_threads = 1},
        {.n_ctx = 20, .n_batch = 64, .n_seq = 2, .n_pool = 4000, .n_threads = 1},
    };
    for (int i = 0; i < N_STATE_KINDS; i++) {
        const struct state_kind *k = &state_kinds[i];
        for (uint32_t cut = 1; cut < k->layers; cut++)
            for (int half = 0; half < 2; half++) {
                struct pkg_model *pkg = open_range(k, half ? cut : 0, half ? PKG_RANGE_ALL : cut);
                compare(pkg, &sizes[cut % 4]);
                pkg_model_free(pkg);
            }
        struct pkg_model *whole = open_range(k, 0, PKG_RANGE_ALL), *middle = open_range(k, 1, 2);
        struct engine_options as_it_is = sizes[0];
        as_it_is.keep_mapped = true;
        compare(whole, &as_it_is);
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            for (int type = 0; type < ENGINE_KV_COUNT; type++) {
                struct engine_options opt = sizes[s];
                opt.kv_type = (enum engine_kv_type)type;
                compare(whole, &opt);
                compare(middle, &opt);
            }
        pkg_model_free(whole);
        pkg_model_free(middle);
    }
}

/* No shape that a run can have needs more than what was reserved for the largest ones. */
static void test_all_shapes(void **state) {
    (void)state;
    uint64_t rng = 7;
    for (int i = 0; i < N_STATE_KINDS * ENGINE_KV_COUNT; i++) {
        struct strata_errmsg em;
        struct model_backend backend;
        struct model m;
        struct model_state st;
        struct engine_graphs g;
        struct pkg_model *pkg = open_range(&state_kinds[i / ENGINE_KV_COUNT], 0, PKG_RANGE_ALL);
        const enum ggml_type types[ENGINE_KV_COUNT] = {GGML_TYPE_F16, GGML_TYPE_F32, GGML_TYPE_BF16, GGML_TYPE_Q8_0,
                                                       GGML_TYPE_Q4_0};
        const struct engine_limits max = {.n_ctx = 700, .n_seq = 6, .n_batch = 50, .n_out = 50};
        const struct model_state_options so = {
            .n_ctx = 700, .n_slots = 6, .n_batch = 50, .n_pool = 4200, .type = types[i % ENGINE_KV_COUNT]};
        mf_ok(model_backend_init(&backend, NULL, NULL, 1, &em), &em);
        backend.dry = true;
        mf_ok(model_init(&m, pkg, &backend, &em), &em);
        mf_ok(model_state_init(&st, m.arch, &m.hp, m.range, &backend, &so, &em), &em);
        mf_ok(engine_graphs_init(&g, &m, &st, &backend, &max, &em), &em);
        for (int round = 0; round < 300; round++) {
            struct engine_shape s = {.n_spans = 1 + (uint32_t)(fabsf(mf_random(&rng)) * 5.99f)};
            size_t need = 0;
            for (uint32_t k = 0, left = 50; k < s.n_spans; k++) {
                uint32_t rest = s.n_spans - k - 1, most = left - rest;
                uint32_t n = round % 3 ? 1 + (uint32_t)(fabsf(mf_random(&rng)) * (float)(most - 1)) : rest ? 1 : most;
                uint32_t n_out = (uint32_t)(fabsf(mf_random(&rng)) * (float)(n + 1));
                s.span[k] = (struct model_span){.slot = k,
                                                .n = n,
                                                .n_out = n_out < n ? n_out : n,
                                                .end = MODEL_STATE_STEP * (1 + (uint32_t)(round / 2 % 3))};
                left -= n;
            }
            mf_ok(engine_graphs_need(&g, &s, &need, &em), &em);
            if (need > g.scratch)
                fail_msg("%s: a shape of %u spans needs %zu bytes of scratch, %zu were reserved",
                         state_kinds[i / ENGINE_KV_COUNT].name, (unsigned)s.n_spans, need, g.scratch);
        }
        engine_graphs_deinit(&g);
        model_state_deinit(&st);
        model_deinit(&m);
        model_backend_deinit(&backend);
        pkg_model_free(pkg);
    }
}

/* Copies are what they are there for: a model whose tensors lie badly. And more positions than all sequences can have
 * cost nothing. */
static void test_sums(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct engine_options opt = {.n_ctx = 64, .n_seq = 2, .n_batch = 8, .n_threads = 1, .keep_mapped = true};
    struct engine_info told, more;
    for (int i = 0; i < N_STATE_KINDS; i++) {
        struct pkg_model *pkg = open_range(&state_kinds[i], 0, PKG_RANGE_ALL);
        opt.n_pool = 0;
        mf_ok(engine_measure(pkg, &opt, &told, &em), &em);
        assert_int_equal(told.weight_bytes, pkg_model_tensor_bytes(pkg));
        assert_int_equal(told.copied_bytes > 0, state_kinds[i].alignment == 8);
        assert_int_equal(engine_info_bytes(&told), told.weight_bytes + told.kv_bytes + told.scratch_bytes);
        opt.n_pool = 1u << 30;
        mf_ok(engine_measure(pkg, &opt, &more, &em), &em);
        assert_info_equal(&told, &more);
        pkg_model_free(pkg);
    }
}

/* Takes away, or gives back, every whole page that holds nothing but weights. */
static void guard_weights(const struct pkg_model *pkg, int rights) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = UINTPTR_MAX, end = 0;
    for (size_t i = 0; i < pkg_model_tensor_count(pkg); i++) {
        const struct gguf_tensor *t = pkg_model_tensor(pkg, i);
        if ((uintptr_t)t->data < first) first = (uintptr_t)t->data;
        if ((uintptr_t)t->data + t->bytes > end) end = (uintptr_t)t->data + t->bytes;
    }
    first = (first + page - 1) / page * page;
    assert_true(end > first + 8 * page);
    assert_int_equal(mprotect((void *)first, end - first, rights), 0);
}

static void test_touches_no_weight(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct engine_options opt = {.n_ctx = 64, .n_threads = 1},
                          vast = {.n_ctx = 1u << 24, .n_seq = 256, .n_batch = 1u << 14, .n_threads = 1};
    for (int i = 0; i < N_STATE_KINDS; i++) {
        struct pkg_model *pkg = open_range(&state_kinds[i], 0, PKG_RANGE_ALL);
        struct engine_info told;
        struct engine *e = NULL;
        guard_weights(pkg, PROT_NONE); /* a touch would end the program */
        mf_ok(engine_measure(pkg, &opt, &told, &em), &em);
        assert_int_equal(engine_new(pkg, &vast, &e, &em), STRATA_ENOMEM);
        assert_null(e);
        if (!strstr(em.text, " available: lower the ")) fail_msg("%s", em.text);
        guard_weights(pkg, PROT_READ);
        pkg_model_free(pkg);
    }
}

/* Weights that are no numbers are not looked at; everything else that is wrong is said as by engine_new. */
static void test_refuses(void **state) {
    (void)state;
    struct model_file f = model_file_small();
    struct engine_options opt = {.n_ctx = 64, .n_threads = 1};
    struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
    struct strata_errmsg em, em2;
    const char *path = tmp_path(&folder, "bad.gguf");
    for (int k = 0; k < 3; k++) {
        struct pkg_model *pkg = NULL;
        struct engine_info told = {.n_ctx = 7};
        struct engine *e = NULL;
        f.spoil = k == 0 ? "blk.1.attn_norm.weight" : NULL;
        f.reshape = k == 1 ? "blk.1.ffn_up.weight" : NULL;
        f.skip_tensor = k == 2 ? "blk.2.attn_k.weight" : NULL;
        model_file_write(&f, path);
        mf_ok(pkg_model_open(path, &po, &pkg, &em), &em);
        strata_err rc = engine_measure(pkg, &opt, &told, &em), rc2 = engine_new(pkg, &opt, &e, &em2);
        assert_int_not_equal(rc2, STRATA_OK);
        assert_int_equal(rc, k == 0 ? STRATA_OK : rc2);
        if (k > 0) assert_string_equal(em.text, em2.text);
        if (k > 0) assert_int_equal(told.n_ctx, 7);
        pkg_model_free(pkg);
    }
}

static void test_fits(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct engine_info i = {.range = {2, 5},
                            .n_seq = 1,
                            .n_pool = 4096,
                            .n_batch = 512,
                            .weight_bytes = 3u << 20,
                            .copied_bytes = 1u << 20,
                            .kv_bytes = 2u << 20,
                            .scratch_bytes = 1u << 20};
    assert_int_equal(engine_info_fits(&i, false, 6u << 20, &em), STRATA_OK);
    assert_int_equal(engine_info_fits(&i, false, (6u << 20) - 1, &em), STRATA_ENOMEM);
    static const char *const parts[] = {"layers 2..5 need 6.0 MiB",          "weights 3.0 MiB",
                                        "KV cache 2.0 MiB (4096 positions)", "scratch 1.0 MiB (batches of 512 tokens)",
                                        "6.0 MiB of memory is available",    "lower the context length"};
    for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++)
        if (!strstr(em.text, parts[k])) fail_msg("'%s' does not tell of '%s'", em.text, parts[k]);
    /* What is mapped may stay away, what is copied may not. */
    assert_int_equal(engine_info_fits(&i, true, 4u << 20, &em), STRATA_OK);
    assert_int_equal(engine_info_fits(&i, true, (4u << 20) - 1, &em), STRATA_ENOMEM);
    assert_int_equal(engine_info_fits(&i, false, 2u << 20, &em), STRATA_ENOMEM);
    assert_non_null(strstr(em.text, "run fewer layers here"));
    assert_true(engine_info_fits_twice(&i, 9u << 20));
    assert_false(engine_info_fits_twice(&i, (9u << 20) - 1));
    i.n_seq = 4;
    assert_int_equal(engine_info_fits(&i, false, 5u << 20, &em), STRATA_ENOMEM);
    assert_non_null(strstr(em.text, "number of sequences"));
    i.scratch_bytes = 9u << 20;
    assert_int_equal(engine_info_fits(&i, false, 5u << 20, &em), STRATA_ENOMEM);
    assert_non_null(strstr(em.text, "lower the batch"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal),   cmocka_unit_test(test_sums), cmocka_unit_test(test_touches_no_weight),
        cmocka_unit_test(test_refuses), cmocka_unit_test(test_fits), cmocka_unit_test(test_all_shapes),
    };
    return cmocka_run_group_tests(tests, make_models, remove_folder);
}
