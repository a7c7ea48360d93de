/*
 * The engine on a device with memory of its own: weights copied there, state and graphs there, results fetched from
 * there. By default the device is the CPU treated as one ("cpu-copy"), whose numbers must be the CPU's, bit for bit;
 * STRATA_TEST_DEVICE names another one (tests/e2e/test_device.py does, where there is one), whose numbers must be near.
 *
 * What is exact on every device: cuts, and going on from a state that was saved, restored, or gone back to.
 */
#include "chain.h"

#include "engine/engine_profile.h"
#include "engine/engine_snapshot.h"
#include "model/model_device.h"

/* Few sizes of batches: a driver that compiles for the CPU takes seconds for each kernel of each size. */
enum { N_CTX = 320, N_BATCH = 30, VOCAB = 80, N_TOKENS = 320 };

/* Of the largest logit. Devices multiply in half precision, sum up in another order and do not round activations to 8
 * bits; measured: 0.002 with F32 throughout, up to 0.012 with quantized matrices. */
static const float device_tolerance = 0.03f;

static struct tmp_folder folder;
static int32_t tokens[N_TOKENS];

static const char *device(void) {
    const char *name = getenv("STRATA_TEST_DEVICE");
    return name ? name : MODEL_DEVICE_CPU_COPY;
}

static bool is_copy(void) {
    return strcmp(device(), MODEL_DEVICE_CPU_COPY) == 0;
}

/* One model of each kind of state and of matrices. */
static const struct kind {
    const char *name, *arch;
    uint32_t type, window, alignment;
    bool convs, experts, latent, tied;
} kinds[] = {
    {.name = "plain", .arch = "llama"},
    {.name = "tied", .arch = "llama", .type = GGML_TYPE_Q8_0, .tied = true},
    {.name = "unaligned", .arch = "llama", .type = GGML_TYPE_F16, .alignment = 8},
    {.name = "experts", .arch = "qwen3moe", .experts = true},
    {.name = "window", .arch = "gemma3", .window = 40},
    {.name = "convolution", .arch = "lfm2", .convs = true},
    {.name = "latent", .arch = "deepseek2", .latent = true},
};

enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static const char *path_of(const struct kind *k) {
    char name[64];
    snprintf(name, sizeof name, "%s.gguf", k->name);
    return tmp_path(&folder, name);
}

static int make_models(void **state) {
    (void)state;
    tmp_folder_make(&folder);
    for (int i = 0; i < N_KINDS; i++) {
        const struct kind *k = &kinds[i];
        struct model_file f = model_file_small();
        f.arch = k->arch;
        f.type = k->type;
        f.tied = k->tied;
        f.alignment = k->alignment;
        f.window = k->window;
        f.layers = k->window ? 7 : 4;
        f.heads = f.kv_heads = 2; /* heads of 32: whole blocks of a quantized cache */
        f.head_norms = k->arch[0] != 'l' || k->convs;
        f.post_norms = k->window > 0;
        f.convs = k->convs;
        f.latent = k->latent;
        if (k->latent) f.kv_heads = 1;
        /* All of them are used: another choice by a rounded router would be another result. */
        f.experts = f.used = k->experts || k->latent ? 4 : 0;
        model_file_write(&f, path_of(k));
    }
    for (int i = 0; i < N_TOKENS; i++) tokens[i] = (i * 37 + 11 + i * i * 3) % VOCAB;
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    tmp_folder_remove(folder.path);
    return 0;
}

static struct engine_options options(enum engine_kv_type type) {
    return (struct engine_options){
        .n_ctx = N_CTX, .n_seq = 3, .n_batch = N_BATCH, .n_threads = 1, .kv_type = type, .device = device()};
}

static void assert_near(const float *want, const float *got, uint32_t rows, float tolerance, const char *what) {
    for (uint32_t r = 0; r < rows; r++, want += VOCAB, got += VOCAB) {
        float top = 0, diff = 0;
        for (uint32_t i = 0; i < VOCAB; i++) {
            top = fmaxf(top, fabsf(want[i]));
            diff = fmaxf(diff, fabsf(want[i] - got[i]));
        }
        if (!(diff <= tolerance * top)) fail_msg("%s: row %u differs by %g of %g", what, r, (double)diff, (double)top);
    }
}

/* A whole model on the device; false when it refuses the cache's type, which it must say. */
static bool open_device(struct test_chain *c, const struct kind *k, const struct engine_options *opt) {
    struct strata_errmsg em;
    struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
    *c = (struct test_chain){.n = 1};
    mf_ok(pkg_model_open(path_of(k), &po, &c->pkg[0], &em), &em);
    strata_err rc = engine_new(c->pkg[0], opt, &c->engine[0], &em);
    if (rc == STRATA_EUNSUPPORTED && !is_copy() && opt->kv_type != ENGINE_KV_F32 && opt->kv_type != ENGINE_KV_F16) {
        if (!strstr(em.text, "cache")) fail_msg("%s", em.text);
        chain_close(c);
        return false;
    }
    mf_ok(rc, &em);
    return true;
}

/* ---- numbers ---- */

static void compare_with_cpu(const struct kind *k, enum engine_kv_type type, bool profile) {
    static const uint32_t split[] = {N_BATCH, 1, 1, N_BATCH, N_BATCH - 2, N_BATCH, 0};
    struct engine_options opt = options(type);
    struct test_chain cpu, there;
    opt.profile = profile;
    if (!open_device(&there, k, &opt)) return;
    opt.device = NULL;
    opt.keep_mapped = true; /* nothing is repacked for a device */
    chain_open(&cpu, path_of(k), NULL, &opt);
    float *want = chain_logits(&cpu, tokens, N_TOKENS, split);
    float *got = chain_logits(&there, tokens, N_TOKENS, split);
    if (is_copy()) {
        assert_memory_equal(want, got, (size_t)N_TOKENS * VOCAB * sizeof *want);
        assert_string_equal(engine_info(there.engine[0])->backend, engine_info(cpu.engine[0])->backend);
    } else {
        /* A coarse cache multiplies what went before. */
        float tolerance = type == ENGINE_KV_Q8_0 ? 0.08f : type == ENGINE_KV_Q4_0 ? 0.8f : device_tolerance;
        assert_near(want, got, N_TOKENS, tolerance, k->name);
    }
    if (profile) {
        const struct engine_profile *p = engine_profile(there.engine[0]);
        assert_int_equal(p->n_tokens, N_TOKENS);
        assert_true(p->all.ns > 0 && p->all.count > p->n_runs);
        assert_true(p->by_matrix.n > 0 && p->by_layer.n == engine_info(cpu.engine[0])->layer_count + 2);
    }
    free(want);
    free(got);
    chain_close(&cpu);
    chain_close(&there);
}

static void test_numbers(void **state) {
    (void)state;
    for (int i = 0; i < N_KINDS; i++) compare_with_cpu(&kinds[i], ENGINE_KV_F32, false);
}

static void test_cache_types(void **state) {
    (void)state;
    for (int t = 0; t < ENGINE_KV_COUNT; t++) {
        compare_with_cpu(&kinds[0], (enum engine_kv_type)t, false);
        compare_with_cpu(&kinds[4], (enum engine_kv_type)t, false);
    }
}

static void test_profile(void **state) {
    (void)state;
    compare_with_cpu(&kinds[1], ENGINE_KV_F16, true);
}

static void test_cuts(void **state) {
    (void)state;
    static const uint32_t split[] = {N_BATCH, 1, 1, N_BATCH - 2, 0};
    for (int i = 0; i < N_KINDS; i++) {
        struct engine_options opt = options(i % 2 ? ENGINE_KV_F16 : ENGINE_KV_F32);
        struct test_chain whole, cut;
        chain_open(&whole, path_of(&kinds[i]), NULL, &opt);
        float *want = chain_logits(&whole, tokens, 60, split);
        for (uint32_t at = 1; at < engine_info(whole.engine[0])->layer_count; at++) {
            chain_open(&cut, path_of(&kinds[i]), (const uint32_t[]){at, 0}, &opt);
            float *got = chain_logits(&cut, tokens, 60, split);
            if (memcmp(want, got, (size_t)60 * VOCAB * sizeof *got) != 0)
                fail_msg("%s: a cut at layer %u changes what is computed", kinds[i].name, at);
            free(got);
            chain_close(&cut);
        }
        free(want);
        chain_close(&whole);
    }
}

/* ---- sequences and state ---- */

static const float *step(struct engine *e, uint32_t seq, uint32_t n) {
    struct strata_errmsg em;
    const float *x = NULL;
    uint32_t pos = engine_pos(e, seq);
    struct engine_batch b = {.seq = seq, .pos = pos, .n_tokens = n, .tokens = tokens + pos, .want = ENGINE_OUT_ALL};
    mf_ok(engine_run(e, &b, &x, &em), &em);
    return x;
}

static void feed(struct engine *e, uint32_t seq, uint32_t end) {
    for (uint32_t n, at = engine_pos(e, seq); at < end; at += n) {
        n = end - at < N_BATCH ? end - at : N_BATCH;
        step(e, seq, n);
    }
}

static void assert_goes_on_alike(struct engine *e, uint32_t a, uint32_t b, const char *what) {
    float want[VOCAB];
    for (int i = 0; i < 3; i++) {
        memcpy(want, step(e, a, 1), sizeof want);
        if (memcmp(want, step(e, b, 1), sizeof want) != 0) fail_msg("%s: what follows is not the same", what);
    }
}

/* Gone back, saved and restored in pieces, cleared: what follows is the same, byte for byte. */
static void state_of(const struct kind *k, enum engine_kv_type type) {
    enum { AT = 300, PIECE = 30 }; /* rings of 256 rows have wrapped */
    struct engine_options opt = options(type);
    struct test_chain c;
    struct strata_errmsg em;
    if (!open_device(&c, k, &opt)) return;
    struct engine *e = c.engine[0];
    void *rows = malloc(engine_rows_bytes(e, 0, AT));
    assert_non_null(rows);
    feed(e, 0, AT);
    feed(e, 1, AT);
    step(e, 1, N_CTX - AT);
    mf_ok(engine_truncate(e, 1, AT, &em), &em);
    assert_goes_on_alike(e, 0, 1, k->name);
    mf_ok(engine_truncate(e, 0, AT, &em), &em);
    mf_ok(engine_save_rows(e, 0, 0, AT, rows, &em), &em);
    mf_ok(engine_load_rows(e, 2, 0, AT, rows, &em), &em);
    assert_goes_on_alike(e, 0, 2, k->name);
    /* A cleared slot computes what it computed when it was new. */
    mf_ok(engine_truncate(e, 1, 0, &em), &em);
    mf_ok(engine_truncate(e, 2, 0, &em), &em);
    feed(e, 1, AT - PIECE);
    mf_ok(engine_truncate(e, 0, 0, &em), &em);
    feed(e, 0, AT - PIECE);
    assert_goes_on_alike(e, 0, 1, k->name);
    free(rows);
    chain_close(&c);
}

static void test_state(void **state) {
    (void)state;
    for (int i = 0; i < N_KINDS; i++) state_of(&kinds[i], i % 2 ? ENGINE_KV_F16 : ENGINE_KV_F32);
    state_of(&kinds[0], ENGINE_KV_Q8_0);
    state_of(&kinds[0], ENGINE_KV_Q4_0);
}

struct bytes {
    char data[4 << 20];
    size_t len;
};

static strata_err keep(void *user, const void *data, size_t len, struct strata_errmsg *em) {
    struct bytes *b = user;
    if (len > sizeof b->data - b->len) return err_nomem(em, "the snapshot of a test");
    memcpy(b->data + b->len, data, len);
    b->len += len;
    return STRATA_OK;
}

/* Snapshots are written from a device and restored to it, and what follows is the same, byte for byte. */
static void test_snapshots(void **state) {
    (void)state;
    enum { AT = 300 };
    struct bytes *b = malloc(sizeof *b);
    assert_non_null(b);
    for (int i = 0; i < N_KINDS; i++) {
        struct engine_options opt = options(i % 2 ? ENGINE_KV_F16 : ENGINE_KV_F32);
        struct engine_snapshot snapshot;
        const struct engine_snapshot *from = &snapshot;
        struct test_chain c;
        struct strata_errmsg em;
        chain_open(&c, path_of(&kinds[i]), NULL, &opt);
        struct engine *e = c.engine[0];
        feed(e, 0, AT);
        b->len = 0;
        mf_ok(engine_snapshot_write(e, 0, tokens, keep, b, &em), &em);
        mf_ok(engine_snapshot_open(&snapshot, b->data, b->len, "snapshot", &em), &em);
        mf_ok(engine_snapshot_restore(e, 1, &from, 1, AT, &em), &em);
        assert_goes_on_alike(e, 0, 1, kinds[i].name);
        /* And to the CPU in place, whose numbers cpu-copy has. */
        if (is_copy()) {
            struct test_chain cpu;
            opt.device = NULL;
            opt.keep_mapped = true;
            chain_open(&cpu, path_of(&kinds[i]), NULL, &opt);
            mf_ok(engine_snapshot_restore(cpu.engine[0], 0, &from, 1, AT, &em), &em);
            mf_ok(engine_truncate(e, 1, AT, &em), &em);
            float want[VOCAB];
            memcpy(want, step(cpu.engine[0], 0, 1), sizeof want);
            assert_memory_equal(want, step(e, 1, 1), sizeof want);
            chain_close(&cpu);
        }
        chain_close(&c);
    }
    free(b);
}

/* Batches of three sequences at once against each alone. */
static void test_many(void **state) {
    (void)state;
    for (int i = 0; i < N_KINDS; i++) {
        struct engine_options opt = options(ENGINE_KV_F32);
        struct test_chain alone, together;
        struct strata_errmsg em;
        chain_open(&alone, path_of(&kinds[i]), NULL, &opt);
        chain_open(&together, path_of(&kinds[i]), NULL, &opt);
        for (int round = 0; round < 4; round++) {
            struct engine_batch b[3];
            const float *rows[3];
            for (uint32_t s = 0; s < 3; s++) {
                uint32_t pos = engine_pos(together.engine[0], s);
                b[s] = (struct engine_batch){.seq = s,
                                             .pos = pos,
                                             .n_tokens = round == 0 ? 9 + s : 1,
                                             .tokens = tokens + 10 * s + pos,
                                             .want = ENGINE_OUT_LAST};
            }
            mf_ok(engine_run_many(together.engine[0], b, 3, rows, &em), &em);
            for (uint32_t s = 0; s < 3; s++) {
                const float *want;
                mf_ok(engine_run(alone.engine[0], &b[s], &want, &em), &em);
                assert_near(want, rows[s], 1, is_copy() ? 1e-5f : device_tolerance, kinds[i].name);
            }
        }
        chain_close(&alone);
        chain_close(&together);
    }
}

/* ---- what is told and refused ---- */

static void test_info(void **state) {
    (void)state;
    for (int i = 0; i < N_KINDS; i++) {
        struct engine_options opt = options(ENGINE_KV_F32);
        struct test_chain c;
        chain_open(&c, path_of(&kinds[i]), NULL, &opt);
        const struct engine_info *info = engine_info(c.engine[0]);
        /* The table of tokens stays with the host; a tied model's is on both sides. */
        uint64_t table = (uint64_t)ggml_row_size((enum ggml_type)kinds[i].type, 64) * VOCAB;
        assert_int_equal(info->device_bytes, info->weight_bytes - (kinds[i].tied ? 0 : table));
        assert_string_equal(info->device, is_copy() ? "CPU" : device());
        /* All slots are there, whatever is used. */
        assert_int_equal(info->kv_bytes % 3, 0);
        assert_true(info->kv_bytes >= (uint64_t)3 * 2 * N_CTX * 64);
        step(c.engine[0], 0, N_BATCH);
        assert_true(info->ops > 20 && info->host_ops < info->ops && info->scratch_bytes > 0);
        chain_close(&c);
    }
}

static void refuse(struct engine_options opt, strata_err code, const char *part) {
    struct strata_errmsg em;
    struct pkg_model *pkg;
    struct engine *e = NULL;
    struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
    mf_ok(pkg_model_open(path_of(&kinds[0]), &po, &pkg, &em), &em);
    strata_err rc = engine_new(pkg, &opt, &e, &em);
    assert_null(e);
    if (rc != code || !strstr(em.text, part)) fail_msg("code %d, not %d: %s", rc, code, rc ? em.text : "");
    pkg_model_free(pkg);
}

static void test_refused(void **state) {
    (void)state;
    struct engine_options opt = options(ENGINE_KV_F32);
    char part[128];
    opt.n_ctx = 1 << 20;
    opt.n_seq = 256; /* 700 GB */
    if (is_copy())   /* its memory is main memory */
        snprintf(part, sizeof part, "of memory is available: lower the");
    else
        snprintf(part, sizeof part, "of the memory of %s, which has", device());
    refuse(opt, STRATA_ENOMEM, part);
    opt = options(ENGINE_KV_F32);
    opt.device = "Abacus7";
    refuse(opt, STRATA_ENOENT, "there is no device 'Abacus7'; ggml offers here: ");
    refuse(opt, STRATA_ENOENT, "CPU");
}

/* Weights that are no numbers are found on their way to the device and named; so are results that are none, which leave
 * nothing behind. */
static void test_damage(void **state) {
    (void)state;
    struct model_file f = model_file_small();
    struct engine_options opt = options(ENGINE_KV_F32);
    struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
    struct strata_errmsg em;
    struct test_chain c = {.n = 1};
    const float *x;
    static float hidden[4 * 64];
    f.spoil = "blk.3.ffn_down.weight";
    model_file_write(&f, tmp_path(&folder, "spoilt.gguf"));
    mf_ok(pkg_model_open(tmp_path(&folder, "spoilt.gguf"), &po, &c.pkg[0], &em), &em);
    assert_int_equal(engine_new(c.pkg[0], &opt, &c.engine[0], &em), STRATA_EFORMAT);
    assert_null(c.engine[0]);
    if (!strstr(em.text, f.spoil)) fail_msg("%s", em.text);
    chain_close(&c);
    chain_open(&c, path_of(&kinds[0]), (const uint32_t[]){2, 0}, &opt);
    hidden[64] = NAN;
    struct engine_batch b = {.n_tokens = 4, .hidden = hidden, .want = ENGINE_OUT_ALL};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(engine_run(c.engine[1], &b, &x, &em), STRATA_EFORMAT);
        if (!strstr(em.text, "layer 2")) fail_msg("%s", em.text);
        assert_int_equal(engine_pos(c.engine[1], 0), 0);
    }
    chain_close(&c);
}

/* What is told beforehand is what is taken, before a run and after one. */
static void test_measured(void **state) {
    (void)state;
    for (int i = 0; i < N_KINDS; i++) {
        struct engine_options opt = options(ENGINE_KV_F16);
        struct strata_errmsg em;
        struct engine_info told;
        struct test_chain c;
        opt.n_seq = 1;
        chain_open(&c, path_of(&kinds[i]), NULL, &opt);
        const struct engine_info *info = engine_info(c.engine[0]);
        mf_ok(engine_measure(c.pkg[0], &opt, &told, &em), &em);
        for (int run = 0; run < 2; run++) {
            assert_int_equal(told.weight_bytes, info->weight_bytes);
            assert_int_equal(told.device_bytes, info->device_bytes);
            assert_int_equal(told.both_bytes > 0, kinds[i].tied);
            assert_int_equal(told.kv_bytes, info->kv_bytes);
            assert_int_equal(told.scratch_bytes, info->scratch_bytes);
            assert_int_equal(told.device_scratch_bytes, info->device_scratch_bytes);
            assert_true(told.device_scratch_bytes > 0 && told.device_scratch_bytes < told.scratch_bytes);
            if (run == 0) feed(c.engine[0], 0, 300);
        }
        assert_int_equal(told.is_apart, !is_copy());
        chain_close(&c);
    }
}

static void test_list(void **state) {
    (void)state;
    struct model_device_info *all;
    struct strata_errmsg em;
    size_t n;
    mf_ok(model_device_list(STRATA_BACKEND_DIR, &all, &n, &em), &em);
    assert_true(n >= 1);
    assert_string_equal(all[0].name, "CPU");
    assert_true(all[0].free <= all[0].total && all[0].total > 0);
    for (size_t i = 0; i < n; i++) {
        ggml_backend_dev_t dev;
        mf_ok(model_device_find(STRATA_BACKEND_DIR, all[i].name, &dev, &em), &em);
        assert_string_equal(ggml_backend_dev_name(dev), all[i].name);
    }
    ggml_backend_dev_t best;
    mf_ok(model_device_find(STRATA_BACKEND_DIR, "auto", &best, &em), &em);
    assert_int_equal(ggml_backend_dev_type(best) == GGML_BACKEND_DEVICE_TYPE_CPU, n == 1);
    free(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers), cmocka_unit_test(test_cache_types), cmocka_unit_test(test_profile),
        cmocka_unit_test(test_cuts),    cmocka_unit_test(test_state),       cmocka_unit_test(test_many),
        cmocka_unit_test(test_info),    cmocka_unit_test(test_refused),     cmocka_unit_test(test_damage),
        cmocka_unit_test(test_list),    cmocka_unit_test(test_measured),    cmocka_unit_test(test_snapshots),
    };
    return cmocka_run_group_tests(tests, make_models, remove_folder);
}
