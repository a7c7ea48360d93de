/*
 * Many sequences in one engine: each computes what it would compute alone, whatever shares its batches, its slot's
 * number, or its history of going back, being saved and restored. For every kind of state: plain caches, windows that
 * are kept as rings, convolutions, and compressed rows.
 */
#include "chain.h"

#include <unistd.h>

enum { N_CTX = 640, N_BATCH = 48, VOCAB = 80, N_TOKENS = 700, MAX_SEQ = 64 };

static struct tmp_folder folder;
static int32_t text[MAX_SEQ][N_TOKENS]; /* what each sequence is fed with */

/* One model of each kind of state. */
static const struct kind {
    const char *name, *arch;
    uint32_t window;
    bool convs, experts, latent;
} kinds[] = {
    {.name = "plain", .arch = "llama"},
    {.name = "experts", .arch = "qwen3moe", .experts = true},
    {.name = "window", .arch = "gemma3", .window = 40},
    {.name = "convolution", .arch = "lfm2", .convs = true},
    {.name = "latent", .arch = "deepseek2", .experts = true, .latent = true},
};

enum { N_KINDS = sizeof kinds / sizeof kinds[0], WINDOW_KIND = 2 };

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
        f.window = k->window;
        f.layers = k->window ? 7 : 4; /* of gemma3's layers, number 5 sees everything */
        f.heads = f.kv_heads = 2;     /* heads of 32: whole blocks of a quantized cache */
        f.head_norms = k->arch[0] != 'l' || k->convs;
        f.post_norms = k->window > 0;
        f.convs = k->convs;
        f.latent = k->latent;
        if (k->latent) f.kv_heads = 1;
        f.experts = k->experts ? 6 : 0;
        f.used = 2;
        model_file_write(&f, path_of(k));
    }
    for (int s = 0; s < MAX_SEQ; s++)
        for (int i = 0; i < N_TOKENS; i++) text[s][i] = (i * 37 + 11 + i * i * (s + 3) + s * 5) % VOCAB;
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    tmp_folder_remove(folder.path);
    return 0;
}

static struct engine_options options(uint32_t n_seq, enum engine_kv_type type) {
    return (struct engine_options){.n_ctx = N_CTX, .n_seq = n_seq, .n_batch = N_BATCH, .n_threads = 1, .kv_type = type};
}

/* ---- running ---- */

/* The next n tokens of a sequence that follows `text` row `of`. */
struct step {
    uint32_t seq, of, n;
    enum engine_output want;
};

/* Logits that a run gave, a copy: rows of all steps, one after the other. */
static uint32_t run_steps(struct test_chain *c, const struct step *steps, uint32_t n, float *out) {
    struct engine_batch b[ENGINE_MAX_BATCHES];
    const float *rows[ENGINE_MAX_BATCHES] = {NULL};
    struct strata_errmsg em;
    uint32_t total = 0;
    for (uint32_t k = 0; k < c->n; k++) {
        uint32_t n_embd = engine_info(c->engine[k])->n_embd, at = 0;
        static float hidden[N_BATCH * 64];
        for (uint32_t i = 0; i < n; i++) {
            b[i] = (struct engine_batch){.seq = steps[i].seq,
                                         .pos = engine_pos(c->engine[k], steps[i].seq),
                                         .n_tokens = steps[i].n,
                                         .want = steps[i].want};
            if (k == 0) b[i].tokens = text[steps[i].of] + b[i].pos;
            if (k > 0) {
                memcpy(hidden + at, rows[i], steps[i].n * n_embd * sizeof(float));
                b[i].hidden = hidden + at;
                at += steps[i].n * n_embd;
            }
        }
        mf_ok(engine_run_many(c->engine[k], b, n, rows, &em), &em);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t want = steps[i].want == ENGINE_OUT_ALL ? steps[i].n : steps[i].want == ENGINE_OUT_LAST;
        assert_int_equal(rows[i] != NULL, want > 0);
        if (want) memcpy(out + total * VOCAB, rows[i], want * VOCAB * sizeof *out);
        total += want;
    }
    return total;
}

static void run_one(struct test_chain *c, uint32_t seq, uint32_t of, uint32_t n, float *out) {
    run_steps(c, &(struct step){seq, of, n, ENGINE_OUT_ALL}, 1, out);
}

static void truncate_to(struct test_chain *c, uint32_t seq, uint32_t pos) {
    struct strata_errmsg em;
    for (uint32_t k = 0; k < c->n; k++) mf_ok(engine_truncate(c->engine[k], seq, pos, &em), &em);
}

static uint32_t best(const float *row) {
    uint32_t k = 0;
    for (uint32_t i = 1; i < VOCAB; i++)
        if (row[i] > row[k]) k = i;
    return k;
}

/* Within 1e-5 of the largest logit, and the same token is the likeliest. */
static void assert_near(const float *want, const float *got, uint32_t rows, const char *what) {
    for (uint32_t r = 0; r < rows; r++, want += VOCAB, got += VOCAB) {
        float top = 0, diff = 0;
        for (uint32_t i = 0; i < VOCAB; i++) {
            top = fmaxf(top, fabsf(want[i]));
            diff = fmaxf(diff, fabsf(want[i] - got[i]));
        }
        if (!(diff <= 1e-5f * top)) fail_msg("%s: row %u differs by %g of %g", what, r, (double)diff, (double)top);
        assert_int_equal(best(want), best(got));
    }
}

static float want_rows[N_BATCH * VOCAB], got_rows[N_BATCH * VOCAB];

/* ---- what a sequence computes ---- */

enum { N_ROUNDS = 30 };

/* Tokens that sequence s takes part with in round r: prompts of different lengths first, then decoding. */
static uint32_t share(uint32_t s, uint32_t r) {
    if ((r + s) % 7 == 6) return 0; /* sits this one out */
    return r < 3 + s ? 9 + (5 * s + r) % 4 : 1;
}

/* Four sequences in common batches, at positions of their own, against four engines with one each. */
static void many_like_alone(const struct kind *k, enum engine_kv_type type) {
    enum { N = 4 };
    struct test_chain many, alone[N];
    struct engine_options opt = options(8, type), one = options(1, type);
    static const uint32_t slot[N] = {6, 0, 3, 1};
    chain_open(&many, path_of(k), NULL, &opt);
    for (uint32_t s = 0; s < N; s++) chain_open(&alone[s], path_of(k), NULL, &one);
    for (uint32_t r = 0; r < N_ROUNDS; r++) {
        struct step steps[N];
        uint32_t n = 0, at = 0;
        for (uint32_t s = 0; s < N; s++) {
            uint32_t tokens = share((s + r) % N, r); /* the order changes from round to round */
            if (tokens) steps[n++] = (struct step){slot[(s + r) % N], (s + r) % N, tokens, ENGINE_OUT_ALL};
        }
        run_steps(&many, steps, n, got_rows);
        for (uint32_t i = 0; i < n; at += steps[i++].n) {
            run_one(&alone[steps[i].of], 0, steps[i].of, steps[i].n, want_rows);
            if (type == ENGINE_KV_F32) {
                assert_near(want_rows, got_rows + at * VOCAB, steps[i].n, k->name);
            } else { /* a last bit may turn a rounding of the cache */
                assert_int_equal(best(want_rows + (steps[i].n - 1) * VOCAB),
                                 best(got_rows + (at + steps[i].n - 1) * VOCAB));
            }
        }
    }
    for (uint32_t s = 0; s < N; s++) {
        assert_int_equal(engine_pos(many.engine[0], slot[s]), engine_pos(alone[s].engine[0], 0));
        chain_close(&alone[s]);
    }
    chain_close(&many);
}

static void test_many_like_alone(void **state) {
    (void)state;
    for (int i = 0; i < N_KINDS; i++) many_like_alone(&kinds[i], ENGINE_KV_F32);
}

static void test_many_like_alone_f16(void **state) {
    (void)state;
    for (int i = 0; i < N_KINDS; i++) many_like_alone(&kinds[i], ENGINE_KV_F16);
}

/* Feeds six sequences in common batches and gives all logits of all rounds. Sequence s lies in slot[s], is given text
 * of[s], and comes order[i] = s-th. */
static float *run_six(struct test_chain *c, const uint32_t *slot, const uint32_t *of, const uint32_t *order,
                      size_t *count) {
    enum { N = 6 };
    float *all = malloc((size_t)N_ROUNDS * N_BATCH * VOCAB * sizeof *all);
    assert_non_null(all);
    size_t n_rows = 0;
    for (uint32_t r = 0; r < N_ROUNDS; r++) {
        struct step steps[N];
        uint32_t n = 0;
        for (uint32_t i = 0; i < N; i++) {
            uint32_t s = order[i], tokens = r % 4 == 3 ? 1 : (share(s, r) + 1) / 2;
            if (tokens) steps[n++] = (struct step){slot[s], of[s], tokens, s % 2 ? ENGINE_OUT_LAST : ENGINE_OUT_ALL};
        }
        n_rows += run_steps(c, steps, n, all + n_rows * VOCAB);
    }
    *count = n_rows * VOCAB;
    return all;
}

static const uint32_t in_order[] = {0, 1, 2, 3, 4, 5};

/* The same batches in other slots: the same bytes. */
static void test_slots_do_not_matter(void **state) {
    (void)state;
    static const uint32_t slots[2][6] = {{0, 1, 2, 3, 4, 5}, {11, 3, 7, 0, 9, 2}};
    for (int i = 0; i < N_KINDS; i++)
        for (int type = 0; type < ENGINE_KV_COUNT; type++) {
            struct engine_options opt = options(12, (enum engine_kv_type)type);
            if (i == 0 && type == ENGINE_KV_F16) opt.n_threads = 2;
            float *rows[2];
            size_t n[2];
            for (int k = 0; k < 2; k++) {
                struct test_chain c;
                chain_open(&c, path_of(&kinds[i]), NULL, &opt);
                rows[k] = run_six(&c, slots[k], in_order, in_order, &n[k]);
                chain_close(&c);
            }
            assert_int_equal(n[0], n[1]);
            if (memcmp(rows[0], rows[1], n[0] * sizeof(float)) != 0)
                fail_msg("%s, %s: slots matter", kinds[i].name, engine_kv_name((enum engine_kv_type)type));
            free(rows[0]);
            free(rows[1]);
        }
}

/* n sequences that decode together against one after the other, alone: the same bytes, where the type of the matrices
 * has one kind of product for both. */
static void decode_like_alone(const char *path, uint32_t n) {
    enum { PROMPT = 5, STEPS = 3 };
    struct engine_options opt = options(n, ENGINE_KV_F32);
    struct test_chain together, alone;
    struct step steps[12];
    static float got[STEPS][12 * VOCAB];
    opt.keep_mapped = true;
    chain_open(&together, path, NULL, &opt);
    chain_open(&alone, path, NULL, &opt);
    for (uint32_t s = 0; s < n; s++) {
        steps[s] = (struct step){s, s, PROMPT, ENGINE_OUT_NONE};
        run_steps(&together, &steps[s], 1, NULL);
        run_steps(&alone, &steps[s], 1, NULL);
        steps[s] = (struct step){s, s, 1, ENGINE_OUT_LAST};
    }
    for (int r = 0; r < STEPS; r++) run_steps(&together, steps, n, got[r]);
    for (uint32_t s = 0; s < n; s++)
        for (int r = 0; r < STEPS; r++) {
            run_steps(&alone, &steps[s], 1, want_rows);
            if (memcmp(want_rows, got[r] + (size_t)s * VOCAB, VOCAB * sizeof(float)) != 0)
                fail_msg("%u sequences: number %u differs from itself alone", (unsigned)n, (unsigned)s);
        }
    chain_close(&together);
    chain_close(&alone);
}

/* ggml computes 8 columns and more of some types in tiles, which round differently; few sequences are kept out of them,
 * as they are slower there. */
static void test_few_without_tiles(void **state) {
    (void)state;
#ifdef __x86_64__
    const char *path = tmp_path(&folder, "q6_k.gguf");
    struct model_file f = model_file_small();
    f.embd = 256;
    f.ff = 512;
    f.type = GGML_TYPE_Q6_K;
    model_file_write(&f, path);
    for (uint32_t n = 2; n <= 10; n += n < 7 ? 5 : 1) decode_like_alone(path, n);
#else
    skip();
#endif
}

/* Four sequences that decode together, one token or several at a time, around the position where the threads begin to
 * share out one sequence's cells. Gives all logits. */
static size_t decode_far(const struct kind *k, const uint32_t *slot, float *out) {
    enum { N = 4, START = 496, STEPS = 12 };
    struct engine_options opt = options(8, ENGINE_KV_F16);
    struct test_chain c;
    size_t n_rows = 0;
    opt.n_threads = 2;
    chain_open(&c, path_of(k), NULL, &opt);
    for (uint32_t s = 0; s < N; s++)
        for (uint32_t at = 0, end = START + 4 * (s / 3), n; at < end; at += n) {
            n = end - at < N_BATCH ? end - at : N_BATCH;
            run_steps(&c, &(struct step){slot[s], s, n, ENGINE_OUT_NONE}, 1, NULL);
        }
    for (uint32_t r = 0; r < STEPS; r++) {
        struct step steps[N];
        for (uint32_t s = 0; s < N; s++)
            steps[s] = (struct step){slot[s], s, r % 3 == 2 ? 5 : 1, r % 6 == 5 ? ENGINE_OUT_ALL : ENGINE_OUT_LAST};
        n_rows += run_steps(&c, steps, N, out + n_rows * VOCAB);
    }
    chain_close(&c);
    return n_rows * VOCAB;
}

static void test_slots_do_not_matter_far(void **state) {
    (void)state;
    static const uint32_t slots[2][4] = {{1, 2, 3, 4}, {6, 1, 4, 2}};
    static float rows[2][12 * 20 * VOCAB];
    for (int i = 0; i < N_KINDS; i++) {
        size_t n[2];
        for (int k = 0; k < 2; k++) n[k] = decode_far(&kinds[i], slots[k], rows[k]);
        assert_int_equal(n[0], n[1]);
        if (memcmp(rows[0], rows[1], n[0] * sizeof(float)) != 0) fail_msg("%s: slots matter", kinds[i].name);
    }
}

/* What the others are fed with: sequence 2 must compute the same bytes. */
static void test_others_are_not_seen(void **state) {
    (void)state;
    static const uint32_t of[2][6] = {{0, 1, 2, 3, 4, 5}, {20, 21, 2, 23, 24, 25}};
    for (int i = 0; i < N_KINDS; i++) {
        struct engine_options opt = options(6, ENGINE_KV_F16);
        static float rows[2][N_ROUNDS * N_BATCH * VOCAB];
        size_t n[2] = {0, 0};
        for (int k = 0; k < 2; k++) {
            struct test_chain c;
            chain_open(&c, path_of(&kinds[i]), NULL, &opt);
            for (uint32_t r = 0; r < N_ROUNDS; r++) {
                struct step steps[6];
                uint32_t at = 0;
                for (uint32_t s = 0; s < 6; s++) steps[s] = (struct step){s, of[k][s], 1 + (r + s) % 5, ENGINE_OUT_ALL};
                run_steps(&c, steps, 6, got_rows);
                for (uint32_t s = 0; s < 2; s++) at += steps[s].n;
                memcpy(rows[k] + n[k], got_rows + at * VOCAB, steps[2].n * VOCAB * sizeof(float));
                n[k] += steps[2].n * VOCAB;
            }
            chain_close(&c);
        }
        assert_int_equal(n[0], n[1]);
        if (memcmp(rows[0], rows[1], n[0] * sizeof(float)) != 0)
            fail_msg("%s: other sequences are seen", kinds[i].name);
    }
}

/* Every cut into two and three, with six sequences: the same bytes. */
static void test_cuts_with_many(void **state) {
    (void)state;
    static const uint32_t slot[6] = {5, 0, 3, 1, 4, 2}, order[6] = {3, 0, 5, 1, 2, 4};
    for (int i = 0; i < N_KINDS; i++)
        for (int type = ENGINE_KV_F16; type <= ENGINE_KV_F32; type++) {
            struct engine_options opt = options(6, (enum engine_kv_type)type);
            struct test_chain c;
            size_t n, m;
            chain_open(&c, path_of(&kinds[i]), NULL, &opt);
            uint32_t layers = engine_info(c.engine[0])->layer_count;
            float *want = run_six(&c, slot, in_order, order, &n);
            chain_close(&c);
            for (uint32_t a = 1; a < layers; a++)
                for (uint32_t b = a; b < layers; b += 2) {
                    const uint32_t cuts[3] = {a, b > a ? b : 0, 0};
                    chain_open(&c, path_of(&kinds[i]), cuts, &opt);
                    float *got = run_six(&c, slot, in_order, order, &m);
                    assert_int_equal(n, m);
                    if (memcmp(want, got, n * sizeof *want) != 0) fail_msg("%s cut at %u,%u", kinds[i].name, a, b);
                    free(got);
                    chain_close(&c);
                }
            free(want);
        }
}

/* As many sequences as a run may have: no graph outgrows its bounds or the scratch memory, each computes as alone. */
static void full_house(const struct kind *k, enum engine_kv_type type) {
    struct engine_options opt = options(MAX_SEQ, type), one = options(1, type);
    struct test_chain c, alone;
    struct step steps[MAX_SEQ];
    static float rows[MAX_SEQ * VOCAB];
    opt.n_batch = one.n_batch = MAX_SEQ;
    chain_open(&c, path_of(k), NULL, &opt);
    chain_open(&alone, path_of(k), NULL, &one);
    uint64_t scratch = engine_info(c.engine[0])->scratch_bytes;
    for (uint32_t s = 0; s < MAX_SEQ; s++) {
        struct step prompt = {s, s, 4 + s % 40, ENGINE_OUT_NONE};
        run_steps(&c, &prompt, 1, NULL);
        steps[s] = (struct step){s, s, 1, ENGINE_OUT_LAST};
    }
    for (int r = 0; r < 3; r++) run_steps(&c, steps, MAX_SEQ, rows);
    for (uint32_t s = 5; s < MAX_SEQ; s += 13) {
        truncate_to(&alone, 0, 0);
        run_one(&alone, 0, s, 4 + s % 40, got_rows);
        for (int r = 0; r < 3; r++) run_one(&alone, 0, s, 1, got_rows);
        if (type == ENGINE_KV_F32)
            assert_near(got_rows, rows + s * VOCAB, 1, k->name);
        else
            assert_int_equal(best(got_rows), best(rows + s * VOCAB));
    }
    if (engine_info(c.engine[0])->scratch_bytes != scratch)
        fail_msg("%s: the scratch memory grew from %llu to %llu bytes", k->name, (unsigned long long)scratch,
                 (unsigned long long)engine_info(c.engine[0])->scratch_bytes);
    chain_close(&alone);
    chain_close(&c);
}

static void test_full_house(void **state) {
    (void)state;
    for (int i = 0; i < N_KINDS; i++)
        for (int type = ENGINE_KV_F16; type <= ENGINE_KV_F32; type++) full_house(&kinds[i], (enum engine_kv_type)type);
}

/* ---- going back ---- */

/* Both sequences go on with the same text, up to a position. */
static void feed_both(struct test_chain *c, uint32_t end) {
    for (uint32_t n, at = engine_pos(c->engine[0], 0); at < end; at += n) {
        n = end - at < N_BATCH ? end - at : N_BATCH;
        run_one(c, 0, 0, n, want_rows);
        run_one(c, 1, 0, n, got_rows);
    }
}

/* Tokens that turn out wrong are taken back: what follows is as if they had never been there, byte for byte. */
static void test_truncation_is_exact(void **state) {
    (void)state;
    static const uint32_t starts[] = {1, 8, 30, 39, 47, 200, 249, 256, 262, 300, 505, 512, 560};
    for (int i = 0; i < N_KINDS; i++)
        for (int type = ENGINE_KV_F16; type <= ENGINE_KV_F32; type++) {
            struct engine_options opt = options(2, (enum engine_kv_type)type);
            struct test_chain c;
            chain_open(&c, path_of(&kinds[i]), NULL, &opt);
            for (size_t k = 0; k < sizeof starts / sizeof starts[0]; k++) {
                feed_both(&c, starts[k]);
                /* Sequence 1 goes astray, twice, in pieces and at once, and as far as a batch allows. */
                for (uint32_t j = 0; j < 5; j++) run_one(&c, 1, 7, 3, got_rows);
                truncate_to(&c, 1, starts[k]);
                run_one(&c, 1, 9, N_BATCH, got_rows);
                truncate_to(&c, 1, starts[k] + 1);
                truncate_to(&c, 1, starts[k]);
                for (uint32_t r = 0; r < 4; r++) {
                    run_one(&c, 0, 0, 1 + r % 2, want_rows);
                    run_one(&c, 1, 0, 1 + r % 2, got_rows);
                    if (memcmp(want_rows, got_rows, (1 + r % 2) * VOCAB * sizeof(float)) != 0)
                        fail_msg("%s: position %u is not what it was", kinds[i].name, starts[k]);
                }
            }
            chain_close(&c);
        }
}

static void assert_out_of_reach(struct engine *e, uint32_t seq, uint32_t pos) {
    struct strata_errmsg em;
    uint32_t before = engine_pos(e, seq);
    assert_int_equal(engine_truncate(e, seq, pos, &em), STRATA_EINVAL);
    assert_non_null(strstr(em.text, "window"));
    assert_int_equal(engine_pos(e, seq), before);
}

/* Layers with a window go back by a batch, others by as much as one likes. */
static void test_reach_of_windows(void **state) {
    (void)state;
    for (int i = 0; i < N_KINDS; i++) {
        struct engine_options opt = options(2, ENGINE_KV_F32);
        struct test_chain c;
        struct strata_errmsg em;
        chain_open(&c, path_of(&kinds[i]), NULL, &opt);
        struct engine *e = c.engine[0];
        bool rings = kinds[i].window || kinds[i].convs;
        for (int k = 0; k < 12; k++) run_one(&c, 1, 0, N_BATCH, got_rows); /* 576 positions */
        if (rings) {
            assert_out_of_reach(e, 1, 576 - N_BATCH - 1);
            assert_out_of_reach(e, 1, 1);
        }
        mf_ok(engine_truncate(e, 1, 576 - N_BATCH, &em), &em);
        /* What was overwritten on the way does not come back by going on and back again. */
        if (rings) assert_out_of_reach(e, 1, 576 - N_BATCH - 1);
        run_one(&c, 1, 0, 1, got_rows);
        if (rings) assert_out_of_reach(e, 1, 576 - N_BATCH - 1);
        if (!rings) mf_ok(engine_truncate(e, 1, 3, &em), &em);
        assert_int_equal(engine_truncate(e, 1, 577, &em), STRATA_EINVAL);
        assert_int_equal(engine_truncate(e, 2, 0, &em), STRATA_EINVAL);
        mf_ok(engine_truncate(e, 1, 0, &em), &em); /* afresh, always */
        assert_int_equal(engine_pos(e, 1), 0);
        run_one(&c, 1, 0, N_BATCH, got_rows);
        run_one(&c, 0, 0, N_BATCH, want_rows);
        assert_memory_equal(want_rows, got_rows, sizeof want_rows);
        chain_close(&c);
    }
}

/* ---- rows of state as bytes ---- */

/* Runs sequence 0 in chunks, saves each chunk's rows, and gives them to a sequence of another engine. */
static void test_saved_rows_are_exact(void **state) {
    (void)state;
    static const uint32_t chunks[] = {48, 1, 17, 48, 48, 2, 48, 48, 40, 48, 48, 1, 48}; /* 445 positions */
    enum { N_CHUNKS = sizeof chunks / sizeof chunks[0] };
    for (int i = 0; i < N_KINDS; i++)
        for (int type = 0; type < ENGINE_KV_COUNT; type++) {
            struct engine_options opt = options(4, (enum engine_kv_type)type);
            struct test_chain a, b;
            struct strata_errmsg em;
            void *saved[N_CHUNKS];
            chain_open(&a, path_of(&kinds[i]), NULL, &opt);
            opt.n_seq = 3;
            chain_open(&b, path_of(&kinds[i]), NULL, &opt);
            uint32_t pos = 0;
            for (int k = 0; k < N_CHUNKS; pos += chunks[k++]) {
                run_one(&a, 0, 0, chunks[k], got_rows);
                saved[k] = malloc(engine_rows_bytes(a.engine[0], pos, pos + chunks[k]) + 1);
                assert_non_null(saved[k]);
                mf_ok(engine_save_rows(a.engine[0], 0, pos, pos + chunks[k], saved[k], &em), &em);
            }
            run_one(&b, 2, 5, 40, got_rows); /* the slot was used before */
            truncate_to(&b, 2, 0);
            run_one(&b, 1, 6, 30, got_rows);
            pos = 0;
            for (int k = 0; k < N_CHUNKS; pos += chunks[k++]) {
                assert_int_equal(engine_rows_bytes(a.engine[0], pos, pos + chunks[k]),
                                 engine_rows_bytes(b.engine[0], pos, pos + chunks[k]));
                mf_ok(engine_load_rows(b.engine[0], 2, pos, pos + chunks[k], saved[k], &em), &em);
                free(saved[k]);
            }
            assert_int_equal(engine_pos(b.engine[0], 2), pos);
            for (int r = 0; r < 3; r++) {
                run_one(&a, 0, 0, r ? 1 : 20, want_rows);
                run_one(&b, 2, 0, r ? 1 : 20, got_rows);
                if (memcmp(want_rows, got_rows, (r ? 1u : 20u) * VOCAB * sizeof(float)) != 0)
                    fail_msg("%s, %s: restored state differs", kinds[i].name,
                             engine_kv_name((enum engine_kv_type)type));
            }
            chain_close(&a);
            chain_close(&b);
        }
}

/* Rows that are gone, or would not fit, are refused; so are positions that nobody has. */
static void test_rows_refused(void **state) {
    (void)state;
    struct engine_options opt = options(2, ENGINE_KV_F16);
    struct test_chain c;
    struct strata_errmsg em;
    static char bytes[1 << 22];
    opt.n_pool = 600;
    chain_open(&c, path_of(&kinds[WINDOW_KIND]), NULL, &opt);
    struct engine *e = c.engine[0];
    for (int k = 0; k < 6; k++) run_one(&c, 0, 0, N_BATCH, got_rows); /* 288 positions */
    assert_true(engine_rows_bytes(e, 0, 288) < sizeof bytes);
    assert_int_equal(engine_save_rows(e, 0, 0, 288 - N_BATCH - 1, bytes, &em), STRATA_EINVAL);
    assert_non_null(strstr(em.text, "window"));
    mf_ok(engine_save_rows(e, 0, 0, 288 - N_BATCH, bytes, &em), &em);
    mf_ok(engine_save_rows(e, 0, 0, 288, bytes, &em), &em);
    assert_int_equal(engine_save_rows(e, 0, 0, 289, bytes, &em), STRATA_EINVAL);
    assert_int_equal(engine_save_rows(e, 0, 9, 9, bytes, &em), STRATA_EINVAL);
    assert_int_equal(engine_save_rows(e, 2, 0, 1, bytes, &em), STRATA_EINVAL);
    assert_int_equal(engine_load_rows(e, 1, 1, 288, bytes, &em), STRATA_EINVAL);
    assert_int_equal(engine_load_rows(e, 1, 0, N_CTX + 1, bytes, &em), STRATA_EINVAL);
    assert_int_equal(engine_load_rows(e, 2, 0, 288, bytes, &em), STRATA_EINVAL);
    mf_ok(engine_load_rows(e, 1, 0, 288, bytes, &em), &em); /* 576 of 600 */
    assert_out_of_reach(e, 1, 287);                         /* the rows before are not all there */
    assert_int_equal(engine_load_rows(e, 1, 288, 288 + 25, bytes, &em), STRATA_ELIMIT);
    assert_non_null(strstr(em.text, "576 of 600"));
    chain_close(&c);
}

/* ---- memory ---- */

static uint64_t resident_bytes(void) {
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*u %llu", &pages), 1);
    fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* State becomes resident as positions are used, and goes back to the system when a sequence starts afresh. */
static void test_memory_comes_back(void **state) {
    (void)state;
    enum { CTX = 16384, USED = 12000 };
    struct model_file f = model_file_small();
    const char *path = tmp_path(&folder, "memory.gguf");
    struct engine_options opt = {.n_ctx = CTX, .n_seq = 3, .n_batch = 16, .n_threads = 1, .kv_type = ENGINE_KV_F32};
    struct test_chain c;
    struct strata_errmsg em;
    f.layers = 2;
    f.embd = 256;
    f.heads = f.kv_heads = 4;
    model_file_write(&f, path);
    chain_open(&c, path, NULL, &opt);
    uint64_t size = engine_rows_bytes(c.engine[0], 0, USED); /* 2 layers * 2 planes * 1 KiB: 48 MB */
    char *rows = malloc(size);
    assert_non_null(rows);
    memset(rows, 0, size);
    uint64_t before = resident_bytes();
    for (uint32_t s = 0; s < 3; s++) mf_ok(engine_load_rows(c.engine[0], s, 0, USED, rows, &em), &em);
    uint64_t full = resident_bytes();
    if (full < before + 3 * size - size / 8) fail_msg("%llu bytes came", (unsigned long long)(full - before));
    mf_ok(engine_truncate(c.engine[0], 1, 0, &em), &em);
    uint64_t less = resident_bytes();
    if (less + size - size / 8 > full) fail_msg("only %llu bytes went", (unsigned long long)(full - less));
    assert_int_equal(engine_pos(c.engine[0], 0), USED);
    assert_int_equal(engine_pos(c.engine[0], 2), USED);
    free(rows);
    chain_close(&c);
}

/* Positions of all sequences together are bounded, whoever has them. */
static void test_pool(void **state) {
    (void)state;
    struct engine_options opt = {.n_ctx = 64, .n_seq = 4, .n_pool = 100, .n_batch = 64, .n_threads = 1};
    struct test_chain c;
    struct strata_errmsg em;
    const float *out[2] = {NULL, NULL};
    chain_open(&c, path_of(&kinds[0]), NULL, &opt);
    struct engine *e = c.engine[0];
    assert_int_equal(engine_info(e)->n_pool, 100);
    run_steps(&c, (const struct step[]){{0, 0, 40, 0}, {3, 1, 20, 0}}, 2, NULL);
    run_steps(&c, (const struct step[]){{1, 2, 38, 0}}, 1, NULL); /* 98 */
    const struct engine_batch two[] = {{.seq = 0, .pos = 40, .n_tokens = 2, .tokens = text[0]},
                                       {.seq = 2, .pos = 0, .n_tokens = 1, .tokens = text[0]}};
    assert_int_equal(engine_run_many(e, two, 2, out, &em), STRATA_ELIMIT);
    assert_non_null(strstr(em.text, "98 of 100"));
    assert_int_equal(engine_pos(e, 0), 40);
    assert_int_equal(engine_pos(e, 2), 0);
    mf_ok(engine_run_many(e, two, 1, out, &em), &em); /* 100 */
    assert_int_equal(engine_run_many(e, two + 1, 1, out, &em), STRATA_ELIMIT);
    truncate_to(&c, 3, 19);
    mf_ok(engine_run_many(e, two + 1, 1, out, &em), &em);
    truncate_to(&c, 1, 0);
    run_steps(&c, (const struct step[]){{2, 0, 38, 0}}, 1, NULL);
    /* Its own context bounds a sequence too. */
    truncate_to(&c, 0, 0);
    run_steps(&c, (const struct step[]){{2, 0, 25, 0}}, 1, NULL);
    const struct engine_batch over = {.seq = 2, .pos = 64, .n_tokens = 1, .tokens = text[0]};
    assert_int_equal(engine_run(e, &over, out, &em), STRATA_ELIMIT);
    chain_close(&c);
}

/* ---- runs that are refused ---- */

static void test_refused(void **state) {
    (void)state;
    struct engine_options opt = {.n_ctx = 64, .n_seq = 70, .n_batch = 8, .max_logits = 3, .n_threads = 1};
    struct test_chain c;
    struct strata_errmsg em;
    struct engine_batch b[ENGINE_MAX_BATCHES + 1];
    const float *out[ENGINE_MAX_BATCHES + 1];
    chain_open(&c, path_of(&kinds[0]), NULL, &opt);
    struct engine *e = c.engine[0];
    for (uint32_t i = 0; i <= ENGINE_MAX_BATCHES; i++)
        b[i] = (struct engine_batch){.seq = i, .n_tokens = 1, .tokens = text[0], .want = ENGINE_OUT_LAST};
    static const struct {
        uint32_t n, seq1, n_tokens1;
        strata_err code;
        const char *part;
    } rows[] = {
        {0, 1, 1, STRATA_EINVAL, "0 sequences"},
        {ENGINE_MAX_BATCHES + 1, 1, 1, STRATA_EINVAL, "65 sequences at once"},
        {2, 0, 1, STRATA_EINVAL, "sequence 0 is in the run twice"},
        {2, 70, 1, STRATA_EINVAL, "sequence 70; this engine has 70"},
        {2, 1, 8, STRATA_EINVAL, "batch of 9 tokens"},
        {2, 1, 9, STRATA_EINVAL, "batch of 9 tokens"},
        {2, 1, 0, STRATA_EINVAL, "batch of 0 tokens"},
        {4, 1, 1, STRATA_EINVAL, "logits of 4 tokens"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        b[1].seq = rows[i].seq1;
        b[1].n_tokens = rows[i].n_tokens1;
        assert_int_equal(engine_run_many(e, b, rows[i].n, out, &em), rows[i].code);
        if (!strstr(em.text, rows[i].part)) fail_msg("'%s' does not tell of '%s'", em.text, rows[i].part);
        for (uint32_t s = 0; s < 70; s++) assert_int_equal(engine_pos(e, s), 0);
    }
    assert_int_equal(engine_pos(e, 1000), 0);
    chain_close(&c);
}

/* ---- anything in any order ---- */

struct model_of_sequence {
    uint32_t of;        /* the text it follows */
    uint32_t n, cap;    /* chunks, as it was fed */
    uint32_t chunk[64]; /* their lengths */
};

/* Feeds a fresh sequence of `alone` the same chunks, and compares the last one's logits. */
static void check_history(struct test_chain *alone, const struct model_of_sequence *m, const float *last_rows,
                          const char *what) {
    truncate_to(alone, 0, 0);
    for (uint32_t i = 0; i < m->n; i++) run_one(alone, 0, m->of, m->chunk[i], want_rows);
    assert_near(want_rows, last_rows, m->chunk[m->n - 1], what);
}

/* Random runs of random sequences, that start afresh, go back a chunk, or are copied over each other. */
static void test_any_order(void **state) {
    (void)state;
    enum { N = 5, STEPS = 220 };
    for (int i = 0; i < N_KINDS; i++) {
        struct engine_options opt = options(N, ENGINE_KV_F32), one = options(1, ENGINE_KV_F32);
        struct test_chain c, alone;
        struct strata_errmsg em;
        struct model_of_sequence m[N];
        static char bytes[1 << 22];
        uint64_t rng = 7 + (uint64_t)i;
        chain_open(&c, path_of(&kinds[i]), NULL, &opt);
        chain_open(&alone, path_of(&kinds[i]), NULL, &one);
        for (uint32_t s = 0; s < N; s++) m[s] = (struct model_of_sequence){.of = s};
        for (uint32_t k = 0; k < STEPS; k++) {
            uint32_t r = (uint32_t)((mf_random(&rng) + 1) * 500), s = r % N, other = (r / 8) % N;
            uint32_t pos = engine_pos(c.engine[0], s);
            if (r % 11 == 0 || m[s].n == 64 || pos > N_CTX - N_BATCH) {
                truncate_to(&c, s, 0);
                m[s] = (struct model_of_sequence){.of = r % MAX_SEQ};
            } else if (r % 11 == 1 && m[s].n > 1) {
                truncate_to(&c, s, pos - m[s].chunk[m[s].n - 1]);
                m[s].n--;
            } else if (r % 11 == 2 && pos && other != s) {
                truncate_to(&c, other, 0);
                assert_true(engine_rows_bytes(c.engine[0], 0, pos) <= sizeof bytes);
                mf_ok(engine_save_rows(c.engine[0], s, 0, pos, bytes, &em), &em);
                mf_ok(engine_load_rows(c.engine[0], other, 0, pos, bytes, &em), &em);
                m[other] = m[s];
                /* A copy cannot go back behind its beginning, so it must go on before it may go back. */
                run_one(&c, other, m[other].of, 2, got_rows);
                if (m[other].n < 64) m[other].chunk[m[other].n++] = 2;
                check_history(&alone, &m[other], got_rows, kinds[i].name);
                truncate_to(&c, other, 0);
                m[other] = (struct model_of_sequence){.of = other};
            } else {
                struct step steps[2] = {{s, m[s].of, 1 + r % 24, ENGINE_OUT_ALL},
                                        {other, m[other].of, 1 + r % 5, ENGINE_OUT_ALL}};
                bool both = other != s && m[other].n < 64 && engine_pos(c.engine[0], other) < N_CTX - N_BATCH;
                run_steps(&c, steps, both ? 2 : 1, got_rows);
                m[s].chunk[m[s].n++] = steps[0].n;
                if (both) m[other].chunk[m[other].n++] = steps[1].n;
                if (k % 4 == 0) check_history(&alone, &m[s], got_rows, kinds[i].name);
                if (both && k % 4 == 1) check_history(&alone, &m[other], got_rows + steps[0].n * VOCAB, kinds[i].name);
            }
        }
        chain_close(&alone);
        chain_close(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_like_alone),
        cmocka_unit_test(test_many_like_alone_f16),
        cmocka_unit_test(test_slots_do_not_matter),
        cmocka_unit_test(test_few_without_tiles),
        cmocka_unit_test(test_slots_do_not_matter_far),
        cmocka_unit_test(test_others_are_not_seen),
        cmocka_unit_test(test_cuts_with_many),
        cmocka_unit_test(test_full_house),
        cmocka_unit_test(test_truncation_is_exact),
        cmocka_unit_test(test_reach_of_windows),
        cmocka_unit_test(test_saved_rows_are_exact),
        cmocka_unit_test(test_rows_refused),
        cmocka_unit_test(test_memory_comes_back),
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_any_order),
    };
    return cmocka_run_group_tests(tests, make_models, remove_folder);
}
