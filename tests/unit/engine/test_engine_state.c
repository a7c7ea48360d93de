/*
 * Windows and convolutions, alone and together, with rings and where the context is too short for any: going back,
 * saving and restoring must give what computing afresh gives, bit for bit. (test_engine_many.c does the same for
 * histories of many sequences.)
 *
 * With batches of 32 and windows below 224 a ring has 256 rows, so that the sequences here fill it several times.
 */
#include "engine/engine.h"
#include "model_file.h"

enum { BATCH = 32, CTX = 1024, VOCAB = 80, LONG = 700 };

static const struct kind {
    const char *arch;
    uint32_t window;
} kinds[] = {{"lfm2", 0}, {"lfm2", 40}, {"gemma3", 40}, {"gemma3", 0}};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static struct tmp_folder folder;
static int32_t tokens[CTX];

struct fixture {
    struct pkg_model *pkg;
    struct engine *e;
    bool keeps_all; /* no layer forgets anything */
};

static int make_folder(void **state) {
    (void)state;
    tmp_folder_make(&folder);
    for (uint32_t i = 0; i < CTX; i++) tokens[i] = (int32_t)((i * 37 + i * i / 5) % VOCAB);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    tmp_folder_remove(folder.path);
    return 0;
}

static void open_kind(struct fixture *x, const struct kind *k, enum engine_kv_type kv, uint32_t n_ctx) {
    struct strata_errmsg em;
    struct pkg_model_options po = {.range = {0, PKG_RANGE_ALL}};
    const struct engine_options opt = {
        .n_ctx = n_ctx, .n_seq = 3, .n_batch = BATCH, .max_logits = BATCH, .n_threads = 1, .kv_type = kv};
    const char *path = tmp_path(&folder, "state.gguf");
    struct model_file f = model_file_small();
    f.arch = k->arch;
    f.window = k->window;
    f.convs = strcmp(k->arch, "lfm2") == 0;
    f.post_norms = !f.convs;
    f.head_norms = true;
    f.layers = f.convs ? 4 : 6; /* the sixth layer of gemma3 is the first that sees everything */
    model_file_write(&f, path);
    *x = (struct fixture){.keeps_all = k->window == 0 && !f.convs};
    mf_ok(pkg_model_open(path, &po, &x->pkg, &em), &em);
    mf_ok(engine_new(x->pkg, &opt, &x->e, &em), &em);
}

static void close_kind(struct fixture *x) {
    engine_free(x->e);
    pkg_model_free(x->pkg);
}

/* Runs tokens[pos, end) as they are, or (wrong) others, in batches that begin at multiples of BATCH behind pos. */
static const float *feed(struct fixture *x, uint32_t seq, uint32_t pos, uint32_t end, bool wrong) {
    struct strata_errmsg em;
    const float *out = NULL;
    int32_t other[BATCH];
    for (uint32_t n; pos < end; pos += n) {
        n = end - pos < BATCH ? end - pos : BATCH;
        for (uint32_t i = 0; i < n; i++) other[i] = (tokens[pos + i] + 7) % VOCAB;
        struct engine_batch b = {
            .seq = seq, .pos = pos, .n_tokens = n, .tokens = wrong ? other : tokens + pos, .want = ENGINE_OUT_LAST};
        mf_ok(engine_run(x->e, &b, &out, &em), &em);
    }
    return out;
}

static void go_back(struct fixture *x, uint32_t seq, uint32_t pos) {
    struct strata_errmsg em;
    mf_ok(engine_truncate(x->e, seq, pos, &em), &em);
    assert_int_equal(engine_pos(x->e, seq), pos);
}

static void keep(float *to, const float *logits) {
    memcpy(to, logits, VOCAB * sizeof *to);
}

static void assert_same(const float *a, const float *b) {
    assert_memory_equal(a, b, VOCAB * sizeof *a);
}

static void assert_refused(strata_err rc, const struct strata_errmsg *em, const char *part) {
    assert_int_equal(rc, STRATA_EINVAL);
    if (!strstr(em->text, part)) fail_msg("'%s' does not tell of '%s'", em->text, part);
}

static void test_go_back(void **state) {
    (void)state;
    static const uint32_t ends[] = {3, 40, 256, 257, 300, LONG};
    static const uint32_t backs[] = {1, 3, BATCH};
    for (size_t k = 0; k < N_KINDS; k++) {
        struct fixture x;
        float want[VOCAB];
        open_kind(&x, &kinds[k], k % 2 ? ENGINE_KV_F16 : ENGINE_KV_F32, CTX);
        for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
            for (size_t j = 0; j < sizeof backs / sizeof backs[0]; j++) {
                uint32_t pos = ends[i] - 1;
                go_back(&x, 0, 0);
                feed(&x, 0, 0, pos, false);
                keep(want, feed(&x, 0, pos, ends[i], false));
                /* The same with others of `backs` tokens in between, whose state must leave no trace. */
                go_back(&x, 0, 0);
                feed(&x, 0, 0, pos, false);
                feed(&x, 0, pos, pos + backs[j], true);
                go_back(&x, 0, pos);
                assert_same(want, feed(&x, 0, pos, ends[i], false));
            }
        close_kind(&x);
    }
}

/* Rings have overwritten what lies further back, also when it is gone back in steps. */
static void test_too_far_back(void **state) {
    (void)state;
    for (size_t k = 0; k < N_KINDS; k++) {
        struct fixture x;
        struct strata_errmsg em;
        float want[VOCAB];
        open_kind(&x, &kinds[k], ENGINE_KV_F32, CTX);
        keep(want, feed(&x, 0, 0, 300, false));
        feed(&x, 0, 300, LONG, true);
        if (x.keeps_all) {
            go_back(&x, 0, 10);
        } else {
            assert_refused(engine_truncate(x.e, 0, LONG - BATCH - 1, &em), &em, "go back by at most 32");
            assert_int_equal(engine_pos(x.e, 0), LONG);
            go_back(&x, 0, LONG - BATCH);
            assert_refused(engine_truncate(x.e, 0, LONG - BATCH - 1, &em), &em, "700 were computed");
            /* Going on makes room again. */
            feed(&x, 0, LONG - BATCH, LONG + 1, true);
            go_back(&x, 0, LONG + 1 - BATCH);
            assert_refused(engine_truncate(x.e, 0, LONG - BATCH, &em), &em, "out of reach");
        }
        go_back(&x, 0, 0);
        assert_same(want, feed(&x, 0, 0, 300, false));
        close_kind(&x);
    }
}

static void *saved(struct fixture *x, uint32_t seq, uint32_t first, uint32_t end) {
    struct strata_errmsg em;
    uint64_t size = engine_rows_bytes(x->e, first, end);
    assert_true(size > 0);
    void *out = malloc(size);
    assert_non_null(out);
    mf_ok(engine_save_rows(x->e, seq, first, end, out, &em), &em);
    return out;
}

static void restore(struct fixture *x, uint32_t seq, uint32_t first, uint32_t end, void *rows) {
    struct strata_errmsg em;
    mf_ok(engine_load_rows(x->e, seq, first, end, rows, &em), &em);
    assert_int_equal(engine_pos(x->e, seq), end);
    free(rows);
}

/* Into another slot, of this engine and of a new one, whose rows held something else before. */
static void test_restore(void **state) {
    (void)state;
    static const uint32_t ends[] = {1, 2, 3, 70, 256, 640};
    for (size_t k = 0; k < N_KINDS; k++) {
        struct fixture x, y;
        float want[VOCAB];
        open_kind(&x, &kinds[k], ENGINE_KV_F32, CTX);
        open_kind(&y, &kinds[k], ENGINE_KV_F32, CTX);
        for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
            go_back(&x, 0, 0);
            go_back(&x, 1, 0);
            go_back(&y, 2, 0);
            feed(&x, 0, 0, ends[i], false);
            void *rows = saved(&x, 0, 0, ends[i]), *more = saved(&x, 0, 0, ends[i]);
            keep(want, feed(&x, 0, ends[i], ends[i] + 50, false));
            feed(&x, 1, 0, 500, true);
            go_back(&x, 1, 0);
            restore(&x, 1, 0, ends[i], rows);
            assert_same(want, feed(&x, 1, ends[i], ends[i] + 50, false));
            restore(&y, 2, 0, ends[i], more);
            assert_same(want, feed(&y, 2, ends[i], ends[i] + 50, false));
        }
        close_kind(&x);
        close_kind(&y);
    }
}

/* A prefix in pieces, each saved when the sequence was at its end. */
static void test_restore_pieces(void **state) {
    (void)state;
    enum { PIECE = 96, PIECES = 5 };
    for (size_t k = 0; k < N_KINDS; k++) {
        struct fixture x;
        float want[VOCAB];
        void *piece[PIECES];
        open_kind(&x, &kinds[k], ENGINE_KV_F16, CTX);
        for (uint32_t i = 0; i < PIECES; i++) {
            feed(&x, 0, i * PIECE, (i + 1) * PIECE, false);
            piece[i] = saved(&x, 0, i * PIECE, (i + 1) * PIECE);
        }
        keep(want, feed(&x, 0, PIECES * PIECE, PIECES * PIECE + 20, false));
        for (uint32_t i = 0; i < PIECES; i++) restore(&x, 1, i * PIECE, (i + 1) * PIECE, piece[i]);
        assert_same(want, feed(&x, 1, PIECES * PIECE, PIECES * PIECE + 20, false));
        close_kind(&x);
    }
}

/* Restored rows are those that going on needs; what they leave out must not be gone back to. */
static void test_behind_the_restored(void **state) {
    (void)state;
    for (size_t k = 0; k < N_KINDS; k++) {
        static const uint32_t contexts[] = {CTX, 256}; /* with rings, and without: everything fits the window's plane */
        for (size_t c = 0; c < 2; c++) {
            struct fixture x;
            struct strata_errmsg em;
            float want[VOCAB];
            open_kind(&x, &kinds[k], ENGINE_KV_F32, contexts[c]);
            feed(&x, 0, 0, 190, false);
            void *rows = saved(&x, 0, 0, 190);
            keep(want, feed(&x, 0, 190, 200, false));
            restore(&x, 1, 0, 190, rows);
            feed(&x, 1, 190, 195, true);
            go_back(&x, 1, 190);
            if (x.keeps_all) {
                go_back(&x, 1, 189);
                feed(&x, 1, 189, 190, false);
            } else {
                assert_refused(engine_truncate(x.e, 1, 189, &em), &em, "restored at 190");
                assert_refused(engine_save_rows(x.e, 1, 0, 189, want, &em), &em, "restored at 190");
            }
            assert_same(want, feed(&x, 1, 190, 200, false));
            close_kind(&x);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_go_back),
        cmocka_unit_test(test_too_far_back),
        cmocka_unit_test(test_restore),
        cmocka_unit_test(test_restore_pieces),
        cmocka_unit_test(test_behind_the_restored),

    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
