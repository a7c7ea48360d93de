/*
 * Snapshots: going on from what was restored gives bit for bit what going on from what was computed gives, for every
 * kind of state and type of cache, at the end and further back, and when the model is cut anew. What is wrong in any
 * way is refused, with the sequence left as it was.
 */
#include "engine/engine_snapshot.h"
#include "engine/engine_snapshot_format.h"

#include "base/file.h"
#include "state_kinds.h"

enum { CTX = 700, BATCH = 32, VOCAB = 80, N_EMBD = 64, AHEAD = 40 };

static struct tmp_folder folder;
static int32_t tokens[CTX];

static int make_models(void **state) {
    (void)state;
    tmp_folder_make(&folder);
    state_kinds_write(&folder);
    for (uint32_t i = 0; i < CTX; i++) tokens[i] = (int32_t)((i * 37 + i * i / 5) % VOCAB);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    tmp_folder_remove(folder.path);
    return 0;
}

static struct engine_options options(enum engine_kv_type type) {
    return (struct engine_options){
        .n_ctx = CTX, .n_seq = 3, .n_batch = BATCH, .max_logits = 1, .n_threads = 1, .kv_type = type};
}

/* ---- chains of engines ---- */

static const float *run(struct test_chain *c, uint32_t seq, uint32_t pos, uint32_t n, int32_t shift) {
    struct strata_errmsg em;
    int32_t ids[BATCH];
    const float *x = NULL;
    for (uint32_t i = 0; i < n; i++) ids[i] = (tokens[pos + i] + shift) % VOCAB;
    for (uint32_t i = 0; i < c->n; i++) {
        struct engine_batch b = {.seq = seq,
                                 .pos = pos,
                                 .n_tokens = n,
                                 .tokens = i ? NULL : ids,
                                 .hidden = i ? x : NULL,
                                 .want = ENGINE_OUT_LAST};
        mf_ok(engine_run(c->engine[i], &b, &x, &em), &em);
    }
    return x;
}

/* Runs tokens [pos, end), others with a shift; the logits of the last one. */
static const float *feed(struct test_chain *c, uint32_t seq, uint32_t pos, uint32_t end, int32_t shift) {
    const float *x = NULL;
    for (uint32_t n; pos < end; pos += n) {
        n = end - pos < BATCH ? end - pos : BATCH;
        x = run(c, seq, pos, n, shift);
    }
    return x;
}

static void go_back(struct test_chain *c, uint32_t seq, uint32_t pos) {
    struct strata_errmsg em;
    for (uint32_t i = 0; i < c->n; i++) mf_ok(engine_truncate(c->engine[i], seq, pos, &em), &em);
}

static void keep(float *to, const float *logits) {
    memcpy(to, logits, VOCAB * sizeof *to);
}

/* ---- snapshots in memory ---- */

struct shot {
    struct buf bytes;
    struct engine_snapshot s;
};

static strata_err to_buf(void *user, const void *data, size_t len, struct strata_errmsg *em) {
    return buf_append(user, data, len, em);
}

static void take(struct shot *x, const struct engine *e, uint32_t seq, const int32_t *ids) {
    struct strata_errmsg em;
    buf_init(&x->bytes, 1 << 26);
    mf_ok(engine_snapshot_write(e, seq, ids, to_buf, &x->bytes, &em), &em);
    mf_ok(engine_snapshot_open(&x->s, x->bytes.data, x->bytes.len, "the snapshot", &em), &em);
}

/* Every stage of the chain takes its layers from all snapshots. */
static void restore(struct test_chain *c, uint32_t seq, const struct shot *shots, uint32_t n, uint32_t end) {
    const struct engine_snapshot *from[CHAIN_MAX];
    struct strata_errmsg em;
    for (uint32_t i = 0; i < n; i++) from[i] = &shots[i].s;
    for (uint32_t i = 0; i < c->n; i++) {
        mf_ok(engine_snapshot_restore(c->engine[i], seq, from, n, end, &em), &em);
        assert_int_equal(engine_pos(c->engine[i], seq), end);
    }
}

static uint32_t least_of(const struct test_chain *c, const struct shot *x) {
    const struct engine_snapshot *from[1] = {&x->s};
    struct strata_errmsg em;
    uint32_t least = 0;
    mf_ok(engine_snapshot_least(c->engine[0], from, 1, &least, &em), &em);
    return least;
}

/* ---- equal to computing ---- */

/* Restored into a slot of the same engine and of a new one, both of which held something else before. */
static void test_equal(void **state) {
    (void)state;
    static const uint32_t ends[] = {1, 2, 40, 256, 300, 640};
    for (int k = 0; k < N_STATE_KINDS * ENGINE_KV_COUNT; k++) {
        const char *path = state_kind_path(&folder, &state_kinds[k / ENGINE_KV_COUNT]);
        const struct engine_options opt = options((enum engine_kv_type)(k % ENGINE_KV_COUNT));
        struct test_chain c, other;
        float want[VOCAB];
        chain_open(&c, path, NULL, &opt);
        chain_open(&other, path, NULL, &opt);
        feed(&other, 1, 0, 500, 3);
        for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
            struct shot x;
            uint32_t end = ends[i];
            if (opt.kv_type > ENGINE_KV_F32 && i % 2 == 0) continue;
            go_back(&c, 0, 0);
            feed(&c, 0, 0, end, 0);
            take(&x, c.engine[0], 0, tokens);
            assert_int_equal(x.s.n_positions, end);
            keep(want, feed(&c, 0, end, end + AHEAD, 0));
            feed(&c, 2, engine_pos(c.engine[0], 2), engine_pos(c.engine[0], 2) + 9, 5);
            restore(&c, 2, &x, 1, end);
            assert_memory_equal(want, feed(&c, 2, end, end + AHEAD, 0), sizeof want);
            restore(&other, 1, &x, 1, end);
            assert_memory_equal(want, feed(&other, 1, end, end + AHEAD, 0), sizeof want);
            buf_deinit(&x.bytes);
        }
        chain_close(&c);
        chain_close(&other);
    }
}

/* Fewer positions than were saved: what going back in the engine itself gives, as far as that can go back. */
static void test_prefix(void **state) {
    (void)state;
    enum { END = 600 };
    static const uint32_t backs[] = {1, 5, BATCH, BATCH + 1, 300, END - 1};
    for (int k = 0; k < N_STATE_KINDS; k++) {
        const struct state_kind *kind = &state_kinds[k];
        const struct engine_options opt = options(k % 2 ? ENGINE_KV_F16 : ENGINE_KV_F32);
        bool all = !kind->window && !kind->convs;
        struct test_chain c;
        struct shot x;
        float want[VOCAB];
        chain_open(&c, state_kind_path(&folder, kind), NULL, &opt);
        feed(&c, 0, 0, END, 0);
        take(&x, c.engine[0], 0, tokens);
        assert_int_equal(least_of(&c, &x), all ? 1 : END - BATCH);
        for (size_t i = 0; i < sizeof backs / sizeof backs[0]; i++) {
            const struct engine_snapshot *from[1] = {&x.s};
            struct strata_errmsg em;
            uint32_t end = END - backs[i];
            if (!all && backs[i] > BATCH) {
                uint32_t pos = engine_pos(c.engine[0], 1);
                assert_int_equal(engine_snapshot_restore(c.engine[0], 1, from, 1, end, &em), STRATA_EINVAL);
                assert_non_null(strstr(em.text, "out of reach"));
                assert_int_equal(engine_pos(c.engine[0], 1), pos);
                continue;
            }
            go_back(&c, 0, end);
            keep(want, run(&c, 0, end, 1, 0));
            restore(&c, 1, &x, 1, end);
            assert_memory_equal(want, run(&c, 1, end, 1, 0), sizeof want);
            /* From there the sequence can be gone back as far as it was saved, and be saved again. */
            if (end < END - BATCH + 1 || end < 2) continue;
            struct shot y;
            restore(&c, 1, &x, 1, end);
            take(&y, c.engine[0], 1, tokens);
            assert_int_equal(least_of(&c, &y), all ? 1 : END - BATCH);
            go_back(&c, 1, end - 1);
            const float *again = run(&c, 1, end - 1, 1, 0);
            keep(want, again);
            restore(&c, 2, &y, 1, end - 1);
            assert_memory_equal(want, run(&c, 2, end - 1, 1, 0), sizeof want);
            buf_deinit(&y.bytes);
            feed(&c, 0, end + 1, END, 0);
        }
        buf_deinit(&x.bytes);
        chain_close(&c);
    }
}

/* Another context, so that rings have other sizes or are none; another batch; after rows that were loaded. */
static void test_other_sizes(void **state) {
    (void)state;
    enum { END = 190 };
    for (int k = 0; k < N_STATE_KINDS; k++) {
        const char *path = state_kind_path(&folder, &state_kinds[k]);
        struct engine_options opt = options(ENGINE_KV_F32), small = opt;
        struct test_chain c, d;
        struct shot x, y;
        float want[VOCAB];
        small.n_ctx = 240;
        small.n_batch = 24;
        chain_open(&c, path, NULL, &opt);
        chain_open(&d, path, NULL, &small);
        feed(&c, 0, 0, END, 0);
        take(&x, c.engine[0], 0, NULL);
        assert_int_equal(engine_snapshot_common(&x.s, tokens, END), 0);
        keep(want, run(&c, 0, END, 20, 0));
        restore(&d, 1, &x, 1, END);
        take(&y, d.engine[0], 1, NULL);
        assert_memory_equal(want, run(&d, 1, END, 20, 0), sizeof want);
        restore(&c, 2, &y, 1, END);
        assert_memory_equal(want, run(&c, 2, END, 20, 0), sizeof want);
        buf_deinit(&x.bytes);
        buf_deinit(&y.bytes);
        chain_close(&c);
        chain_close(&d);
    }
}

/* Snapshots of one cut, restored after another: layer by layer from whichever holds it. */
static void test_recut(void **state) {
    (void)state;
    enum { END = 300 };
    static const uint32_t cuts[][CHAIN_MAX] = {{0}, {1, 0}, {2, 0}, {1, 2, 0}};
    for (int k = 0; k < N_STATE_KINDS; k++)
        for (size_t a = 0; a < 4; a++) {
            const char *path = state_kind_path(&folder, &state_kinds[k]);
            const struct engine_options opt = options(a % 2 ? ENGINE_KV_F16 : ENGINE_KV_F32);
            struct test_chain c;
            struct shot shots[CHAIN_MAX];
            float want[VOCAB];
            chain_open(&c, path, cuts[a], &opt);
            feed(&c, 1, 0, END, 0);
            for (uint32_t i = 0; i < c.n; i++) take(&shots[i], c.engine[i], 1, i ? NULL : tokens);
            keep(want, feed(&c, 1, END, END + AHEAD, 0));
            for (size_t b = 0; b < 4; b++) {
                struct test_chain d;
                chain_open(&d, path, cuts[b], &opt);
                restore(&d, 0, shots, c.n, END);
                assert_memory_equal(want, feed(&d, 0, END, END + AHEAD, 0), sizeof want);
                chain_close(&d);
            }
            for (uint32_t i = 0; i < c.n; i++) buf_deinit(&shots[i].bytes);
            chain_close(&c);
        }
}

static void test_common(void **state) {
    (void)state;
    const struct engine_options opt = options(ENGINE_KV_F16);
    struct test_chain c;
    struct shot x;
    int32_t other[64];
    chain_open(&c, state_kind_path(&folder, &state_kinds[0]), NULL, &opt);
    feed(&c, 0, 0, 50, 0);
    take(&x, c.engine[0], 0, tokens);
    memcpy(other, tokens, sizeof other);
    assert_int_equal(engine_snapshot_common(&x.s, other, 64), 50);
    assert_int_equal(engine_snapshot_common(&x.s, other, 7), 7);
    assert_int_equal(engine_snapshot_common(&x.s, other, 0), 0);
    other[31]++;
    assert_int_equal(engine_snapshot_common(&x.s, other, 64), 31);
    buf_deinit(&x.bytes);
    chain_close(&c);
}

/* ---- refusals ---- */

static void refused(strata_err rc, strata_err want, const struct strata_errmsg *em, const char *part) {
    if (rc != want) fail_msg("code %d (%s), expected %d (%s)", rc, rc ? em->text : "", want, part);
    if (!strstr(em->text, part)) fail_msg("'%s' does not tell of '%s'", em->text, part);
    assert_null(strchr(em->text, '\n'));
}

static void test_other_models(void **state) {
    (void)state;
    const struct engine_options opt = options(ENGINE_KV_F16), coarse = options(ENGINE_KV_Q8_0);
    const char *path = tmp_path(&folder, "other.gguf");
    struct model_file f = state_kind_file(&state_kinds[0]);
    struct strata_errmsg em;
    struct test_chain c, d;
    struct shot x;
    const struct engine_snapshot *from[1] = {&x.s};
    uint32_t least;
    chain_open(&c, state_kind_path(&folder, &state_kinds[0]), NULL, &opt);
    feed(&c, 0, 0, 50, 0);
    take(&x, c.engine[0], 0, tokens);
    /* The same architecture and shapes, other weights. */
    f.blow_up = "blk.1.attn_norm.weight";
    model_file_write(&f, path);
    chain_open(&d, path, NULL, &opt);
    refused(engine_snapshot_restore(d.engine[0], 0, from, 1, 50, &em), STRATA_EINVAL, &em, "of another model");
    refused(engine_snapshot_least(d.engine[0], from, 1, &least, &em), STRATA_EINVAL, &em, "of another model");
    chain_close(&d);
    chain_open(&d, state_kind_path(&folder, &state_kinds[3]), NULL, &opt);
    refused(engine_snapshot_restore(d.engine[0], 0, from, 1, 50, &em), STRATA_EINVAL, &em, "architecture 'llama'");
    chain_close(&d);
    chain_open(&d, state_kind_path(&folder, &state_kinds[0]), NULL, &coarse);
    refused(engine_snapshot_restore(d.engine[0], 0, from, 1, 50, &em), STRATA_EINVAL, &em, "KV cache of type f16");
    chain_close(&d);
    buf_deinit(&x.bytes);
    chain_close(&c);
}

/* The sequence that a refusal must leave alone goes on as if nothing had been. */
static void test_unfit(void **state) {
    (void)state;
    const struct engine_options opt = options(ENGINE_KV_F16),
                                small = {.n_ctx = 40, .n_seq = 2, .n_pool = 60, .n_threads = 1};
    const char *path = state_kind_path(&folder, &state_kinds[0]);
    struct strata_errmsg em;
    struct test_chain c, d;
    struct shot first, last, other;
    float want[VOCAB];
    chain_open(&c, path, (const uint32_t[]){2, 0}, &opt);
    chain_open(&d, path, NULL, &opt);
    feed(&c, 0, 0, 50, 0);
    take(&first, c.engine[0], 0, tokens);
    take(&last, c.engine[1], 0, tokens);
    feed(&c, 1, 0, 50, 1);
    int32_t shifted[50];
    for (int i = 0; i < 50; i++) shifted[i] = (tokens[i] + 1) % VOCAB;
    take(&other, c.engine[1], 1, shifted);
    feed(&d, 0, 0, 30, 2);
    keep(want, feed(&d, 0, 30, 60, 2));
    go_back(&d, 0, 30);
    struct engine *e = d.engine[0];
    const struct engine_snapshot *both[2] = {&first.s, &last.s}, *mixed[2] = {&first.s, &other.s};
    refused(engine_snapshot_restore(e, 0, both, 1, 50, &em), STRATA_ENOENT, &em, "layer 2 is not in the snapshot");
    refused(engine_snapshot_restore(e, 0, both + 1, 1, 50, &em), STRATA_ENOENT, &em, "layer 0 is not in the snapshot");
    const struct engine_snapshot *twice[2] = {&first.s, &first.s};
    refused(engine_snapshot_restore(e, 0, twice, 2, 50, &em), STRATA_ENOENT, &em, "none of the 2 snapshots");
    refused(engine_snapshot_restore(e, 0, mixed, 2, 50, &em), STRATA_EINVAL, &em, "different texts");
    refused(engine_snapshot_restore(e, 0, both, 2, 51, &em), STRATA_EINVAL, &em, "has 50 positions");
    refused(engine_snapshot_restore(e, 0, both, 2, 0, &em), STRATA_EINVAL, &em, "cannot be loaded");
    refused(engine_snapshot_restore(e, 0, both, 2, CTX + 1, &em), STRATA_EINVAL, &em, "cannot be loaded");
    refused(engine_snapshot_restore(e, 3, both, 2, 50, &em), STRATA_EINVAL, &em, "sequence 3");
    refused(engine_snapshot_restore(e, 0, both, 0, 50, &em), STRATA_EINVAL, &em, "no snapshot");
    assert_int_equal(engine_pos(e, 0), 30);
    assert_memory_equal(want, feed(&d, 0, 30, 60, 2), sizeof want);
    chain_close(&d);
    /* Room in the pool counts without what the sequence itself gives up. */
    chain_open(&d, path, NULL, &small);
    feed(&d, 0, 0, 25, 0);
    feed(&d, 1, 0, 30, 0);
    refused(engine_snapshot_restore(d.engine[0], 0, both, 2, 31, &em), STRATA_ELIMIT, &em, "31 more positions");
    restore(&d, 0, (const struct shot[]){first, last}, 2, 30);
    chain_close(&d);
    refused(engine_snapshot_write(c.engine[0], 2, tokens, to_buf, &first.bytes, &em), STRATA_EINVAL, &em,
            "no positions");
    buf_deinit(&first.bytes);
    buf_deinit(&last.bytes);
    buf_deinit(&other.bytes);
    chain_close(&c);
}

/* Opens and restores bytes; the first error. */
static strata_err try_bytes(struct engine *e, const void *data, size_t len, uint32_t end, struct strata_errmsg *em) {
    struct engine_snapshot s;
    const struct engine_snapshot *from[1] = {&s};
    strata_err rc = engine_snapshot_open(&s, data, len, "the file", em);
    return rc ? rc : engine_snapshot_restore(e, 0, from, 1, end, em);
}

/* Every byte that is changed, and every byte that is missing, is noticed. */
static void test_damage(void **state) {
    (void)state;
    enum { END = 3 };
    const struct engine_options opt = {.n_ctx = 64, .n_threads = 1};
    const struct state_kind *kind = &state_kinds[4];
    struct strata_errmsg em;
    struct test_chain c;
    struct shot x;
    chain_open(&c, state_kind_path(&folder, kind), NULL, &opt);
    feed(&c, 0, 0, END, 0);
    take(&x, c.engine[0], 0, tokens);
    struct engine *e = c.engine[0];
    mf_ok(try_bytes(e, x.bytes.data, x.bytes.len, END, &em), &em);
    for (size_t i = 0; i < x.bytes.len; i++) {
        x.bytes.data[i] = (char)(x.bytes.data[i] ^ 1 << i % 8);
        strata_err rc = try_bytes(e, x.bytes.data, x.bytes.len, END, &em);
        if (rc != STRATA_EFORMAT && rc != STRATA_EDIGEST && rc != STRATA_EUNSUPPORTED)
            fail_msg("a change of byte %zu: code %d (%s)", i, rc, rc ? em.text : "");
        assert_non_null(strstr(em.text, "the file"));
        x.bytes.data[i] = (char)(x.bytes.data[i] ^ 1 << i % 8);
        assert_int_equal(engine_pos(e, 0), END);
    }
    for (size_t n = 0; n < x.bytes.len; n += n < 300 ? 1 : 37)
        assert_int_equal(try_bytes(e, x.bytes.data, n, END, &em), STRATA_EFORMAT);
    mf_ok(buf_append(&x.bytes, "x", 1, &em), &em);
    refused(try_bytes(e, x.bytes.data, x.bytes.len, END, &em), STRATA_EFORMAT, &em, "something follows");
    x.bytes.len--;
    mf_ok(try_bytes(e, x.bytes.data, x.bytes.len, END, &em), &em);
    buf_deinit(&x.bytes);
    chain_close(&c);
}

/* Makes the digests fit again after a change. */
static void sign_again(struct shot *x) {
    struct strata_errmsg em;
    uint8_t *data = (uint8_t *)x->bytes.data, *sum = data + x->s.header_bytes;
    mf_ok(digest_of(data, x->s.header_bytes, sum, &em), &em);
    for (uint32_t i = 0; i < x->s.n_sections; i++) {
        struct engine_snapshot_section sec = engine_snapshot_section(&x->s, i);
        struct digest *d;
        uint8_t number[4];
        size_t n = (size_t)snapshot_pad(sec.bytes);
        snapshot_put32(number, i);
        mf_ok(digest_new(&d, &em), &em);
        mf_ok(digest_update(d, sum, DIGEST_BYTES, &em), &em);
        mf_ok(digest_update(d, number, 4, &em), &em);
        mf_ok(digest_update(d, data + sec.offset, n, &em), &em);
        mf_ok(digest_final(d, data + sec.offset + n, &em), &em);
        digest_free(d);
    }
}

/* Headers that were made to deceive: their digests are right. */
static void test_deceit(void **state) {
    (void)state;
    enum { END = 5, TABLE = SNAPSHOT_FIXED + 4 * END };
    static const struct {
        uint32_t at, value;
        strata_err code;
        const char *part;
    } rows[] = {
        {SNAPSHOT_AT_VERSION, 2, STRATA_EUNSUPPORTED, "version 2"},
        {SNAPSHOT_AT_TYPE, 12, STRATA_EFORMAT, "type of the cache"},
        {SNAPSHOT_AT_POSITIONS, 0, STRATA_EFORMAT, "number of positions"},
        {SNAPSHOT_AT_POSITIONS, 1u << 30, STRATA_EFORMAT, "number of positions"},
        {SNAPSHOT_AT_POSITIONS, 6, STRATA_EFORMAT, "number of tokens"},
        {SNAPSHOT_AT_EMBD, 0, STRATA_EFORMAT, "hidden states"},
        {SNAPSHOT_AT_EMBD, 65, STRATA_EINVAL, "another model"},
        {SNAPSHOT_AT_LAYERS, 3, STRATA_EFORMAT, "number of sections"},
        {SNAPSHOT_AT_LAYERS, 5000, STRATA_EFORMAT, "number of layers"},
        {SNAPSHOT_AT_LAYERS, 9, STRATA_EINVAL, "another model"},
        {SNAPSHOT_AT_ROTATION, 2, STRATA_EFORMAT, "rotation"},
        {SNAPSHOT_AT_ROTATION, 1, STRATA_EINVAL, "rotation for long contexts"},
        {SNAPSHOT_AT_TOKENS, 4, STRATA_EFORMAT, "number of tokens"},
        {SNAPSHOT_AT_SECTIONS, 0, STRATA_EFORMAT, "number of sections"},
        {SNAPSHOT_AT_SECTIONS, 0xffffffff, STRATA_EFORMAT, "number of sections"},
        {SNAPSHOT_AT_SECTIONS, 3, STRATA_EFORMAT, "bytes of the header"},
        {SNAPSHOT_AT_SECTIONS + 4, 1, STRATA_EFORMAT, "reserved"},
        {SNAPSHOT_AT_HEADER_BYTES, 0xffffffff, STRATA_EFORMAT, "bytes of the header"},
        {SNAPSHOT_AT_ARCH, 0x6c6c6c6c, STRATA_EINVAL, "architecture"},
        {TABLE, 1, STRATA_EFORMAT, "order of the layers"},
        {TABLE + SNAPSHOT_ENTRY, 0, STRATA_EFORMAT, "order of the layers"},
        {TABLE + 3 * SNAPSHOT_ENTRY, 4, STRATA_EFORMAT, "order of the layers"},
        {TABLE + 4, 65, STRATA_EFORMAT, "place of a section"},
        {TABLE + 4, 1u << 30, STRATA_EFORMAT, "width"},
        {TABLE + 4, 0, STRATA_EFORMAT, "without rows"},
        {TABLE + 8, 77, STRATA_EFORMAT, "type of a plane"},
        {TABLE + 8, 0, STRATA_EFORMAT, "place of a section"},
        {TABLE + 8, 30, STRATA_EINVAL, "of type bf16 for layer 0"},
        {TABLE + 12, 6, STRATA_EFORMAT, "first position"},
        {TABLE + 12, 2, STRATA_EFORMAT, "place of a section"},
        {TABLE + 28, 1, STRATA_EFORMAT, "reserved"},
        {TABLE + SNAPSHOT_ENTRY_OFFSET, 0, STRATA_EFORMAT, "place of a section"},
        {TABLE + SNAPSHOT_ENTRY_OFFSET + 4, 1, STRATA_EFORMAT, "place of a section"},
        {TABLE + SNAPSHOT_ENTRY_BYTES, 7, STRATA_EFORMAT, "place of a section"},
    };
    const struct engine_options opt = {.n_ctx = 64, .n_threads = 1};
    struct strata_errmsg em;
    struct test_chain c;
    chain_open(&c, state_kind_path(&folder, &state_kinds[0]), NULL, &opt);
    feed(&c, 0, 0, END, 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct shot x;
        take(&x, c.engine[0], 0, tokens);
        snapshot_put32((uint8_t *)x.bytes.data + rows[i].at, rows[i].value);
        /* The places of digests are those of the sound header. */
        mf_ok(digest_of(x.bytes.data, x.s.header_bytes, (uint8_t *)x.bytes.data + x.s.header_bytes, &em), &em);
        refused(try_bytes(c.engine[0], x.bytes.data, x.bytes.len, END, &em), rows[i].code, &em, rows[i].part);
        buf_deinit(&x.bytes);
    }
    /* Rows that are no numbers would spoil whoever looks at them. */
    struct shot x;
    take(&x, c.engine[0], 0, tokens);
    memset(x.bytes.data + engine_snapshot_section(&x.s, 2).offset + 10, 0xff, 2);
    refused(try_bytes(c.engine[0], x.bytes.data, x.bytes.len, END, &em), STRATA_EDIGEST, &em, "layer 2");
    sign_again(&x);
    refused(try_bytes(c.engine[0], x.bytes.data, x.bytes.len, END, &em), STRATA_EFORMAT, &em,
            "layer 2 that are no numbers");
    /* A section of another snapshot does not pass, though its digest is right where it comes from. */
    struct shot y;
    go_back(&c, 0, 0);
    feed(&c, 0, 0, END, 1);
    take(&y, c.engine[0], 0, NULL);
    buf_deinit(&x.bytes);
    take(&x, c.engine[0], 0, tokens);
    size_t from = (size_t)engine_snapshot_section(&y.s, 1).offset, to = (size_t)engine_snapshot_section(&x.s, 1).offset;
    memcpy(x.bytes.data + to, y.bytes.data + from,
           (size_t)snapshot_pad(engine_snapshot_section(&x.s, 1).bytes) + DIGEST_BYTES);
    refused(try_bytes(c.engine[0], x.bytes.data, x.bytes.len, END, &em), STRATA_EDIGEST, &em, "layer 1");
    buf_deinit(&x.bytes);
    buf_deinit(&y.bytes);
    chain_close(&c);
}

/* ---- files ---- */

static strata_err full_disk(void *user, const void *data, size_t len, struct strata_errmsg *em) {
    size_t *left = user;
    (void)data;
    if (len > *left) return err_set(em, STRATA_EIO, "the disk is full");
    *left -= len;
    return STRATA_OK;
}

static void test_files(void **state) {
    (void)state;
    const struct engine_options opt = options(ENGINE_KV_F16);
    const char *path = tmp_path(&folder, "sub.snapshot"), *nowhere = tmp_path(&folder, "no/such/folder");
    struct strata_errmsg em;
    struct file_map map = {.data = NULL};
    struct test_chain c;
    struct shot x;
    float want[VOCAB];
    chain_open(&c, state_kind_path(&folder, &state_kinds[4]), NULL, &opt);
    feed(&c, 0, 0, 300, 0);
    take(&x, c.engine[0], 0, tokens);
    mf_ok(engine_snapshot_save(c.engine[0], 0, tokens, path, &em), &em);
    mf_ok(engine_snapshot_save(c.engine[0], 0, tokens, path, &em), &em); /* over itself */
    refused(engine_snapshot_save(c.engine[0], 0, tokens, nowhere, &em), STRATA_EIO, &em, "no/such/folder");
    mf_ok(file_map_open(path, &map, &em), &em);
    assert_int_equal(map.size, x.bytes.len);
    assert_memory_equal(map.data, x.bytes.data, map.size);
    keep(want, run(&c, 0, 300, 9, 0));
    mf_ok(try_bytes(c.engine[0], map.data, map.size, 300, &em), &em);
    assert_memory_equal(want, run(&c, 0, 300, 9, 0), sizeof want);
    file_map_close(&map);
    go_back(&c, 0, 300);
    for (size_t limit = 0; limit < x.bytes.len / 2; limit += 5000) {
        size_t left = limit;
        refused(engine_snapshot_write(c.engine[0], 0, tokens, full_disk, &left, &em), STRATA_EIO, &em, "disk is full");
    }
    buf_deinit(&x.bytes);
    chain_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal), cmocka_unit_test(test_prefix), cmocka_unit_test(test_other_sizes),
        cmocka_unit_test(test_recut), cmocka_unit_test(test_common), cmocka_unit_test(test_other_models),
        cmocka_unit_test(test_unfit), cmocka_unit_test(test_damage), cmocka_unit_test(test_deceit),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, make_models, remove_folder);
}
