/* The cut of schema 2: groups, parts by budget, names, and a carrier that finds every tensor again. */
#include "package/pkg_carrier.h"
#include "package/pkg_cut.h"

#include "pkg_model_sample.h"

static struct tmp_folder T;

static int setup(void **state) {
    (void)state;
    tmp_folder_make(&T);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tmp_folder_remove(T.path);
    return 0;
}

/* Rows: 1, 2, ... 7, 1, ...; 32 bytes a row. */
static const char *const names[] = {"output.weight",     "blk.1.c.weight", "blk.1.b.weight",    "blk.1.a.weight",
                                    "token_embd.weight", "blk.0.a.weight", "rope_freqs.weight", NULL};

struct opened {
    struct gguf_source *src;
    struct pkg_inventory inv;
};

static struct opened open_model(const char *path) {
    struct opened o;
    struct strata_errmsg em;
    assert_int_equal(gguf_source_open(path, &o.src, &em), STRATA_OK);
    assert_int_equal(pkg_inventory_init(&o.inv, o.src, &em), STRATA_OK);
    return o;
}

static void close_model(struct opened *o) {
    pkg_inventory_deinit(&o->inv);
    gguf_source_free(o->src);
}

static void test_parts(void **state) {
    (void)state;
    static const struct {
        uint64_t max;
        const char *pieces[12]; /* "id: tensor tensor ..." without ".weight" */
    } rows[] = {
        {UINT64_MAX,
         {"common: output rope_freqs token_embd", "layer-00000: blk.0.a", "layer-00001: blk.1.a blk.1.b blk.1.c"}},
        /* common: 32 + 224 + 160; layer 1: 128 + 96 + 64 */
        {288,
         {"common-part00: output rope_freqs", "common-part01: token_embd", "layer-00000: blk.0.a",
          "layer-00001: blk.1.a blk.1.b blk.1.c"}},
        {224,
         {"common-part00: output", "common-part01: rope_freqs", "common-part02: token_embd", "layer-00000: blk.0.a",
          "layer-00001-part00: blk.1.a blk.1.b", "layer-00001-part01: blk.1.c"}},
        /* Less than any tensor: each stays whole, alone. */
        {1,
         {"common-part00: output", "common-part01: rope_freqs", "common-part02: token_embd", "layer-00000: blk.0.a",
          "layer-00001-part00: blk.1.a", "layer-00001-part01: blk.1.b", "layer-00001-part02: blk.1.c"}}};
    model_write(tmp_path(&T, "m.gguf"), names, 2, 0);
    struct opened o = open_model(tmp_path(&T, "m.gguf"));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pkg_cut c;
        struct strata_errmsg em;
        assert_int_equal(pkg_cut_package2(&o.inv, rows[i].max, &c, &em), STRATA_OK);
        assert_string_equal(c.pieces[0].id, "metadata");
        assert_true(pkg_cut_is_header_only(&c, 0));
        assert_int_equal(c.pieces[0].n_tensors, 7);
        size_t n = 1;
        for (; rows[i].pieces[n - 1]; n++) {
            char text[256];
            assert_true(n < c.n_pieces);
            const struct pkg_piece *p = &c.pieces[n];
            int len = snprintf(text, sizeof text, "%s:", p->id);
            for (size_t k = 0; k < p->n_tensors; k++) {
                const char *name = o.inv.tensors[p->tensors[k]].t->name;
                len += snprintf(text + len, sizeof text - (size_t)len, " %.*s", (int)(strlen(name) - 7), name);
            }
            assert_string_equal(text, rows[i].pieces[n - 1]);
            snprintf(text, sizeof text, "%s/%s.gguf", p->role == PKG_ROLE_LAYER ? "layers" : "shared", p->id);
            assert_string_equal(p->path, text);
            assert_false(pkg_cut_is_header_only(&c, n));
        }
        assert_int_equal(n, c.n_pieces);
        pkg_cut_deinit(&c);
    }
    close_model(&o);
}

static struct buf BYTES;

static strata_err keep(void *user, const void *data, size_t len, struct strata_errmsg *em) {
    (void)user;
    return buf_append(&BYTES, data, len, em);
}

/* Over a hundred parts of one group: numbers of three digits sort before some of two, in writer and reader alike. */
static void test_many_parts(void **state) {
    (void)state;
    enum { LAYERS = 3, EACH = 120 };
    static char store[LAYERS * EACH][32];
    struct strata_errmsg em;
    struct gguf_writer *w;
    uint8_t sum[DIGEST_BYTES];
    uint64_t size;
    const uint64_t ne[1] = {8};
    static float data[LAYERS * EACH][8];
    assert_int_equal(gguf_writer_new(32, &w, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_str(w, "general.architecture", "llama", &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_u32(w, "llama.embedding_length", 8, &em), STRATA_OK);
    for (size_t i = 0; i < (size_t)LAYERS * EACH; i++) {
        snprintf(store[i], sizeof store[i], "blk.%zu.t%03zu", i % LAYERS, i / LAYERS);
        for (size_t k = 0; k < 8; k++) data[i][k] = (float)(10 * i + k);
        assert_int_equal(gguf_writer_add_tensor(w, store[i], 1, ne, 0, data[i], &em), STRATA_OK);
    }
    /* Every package has token embeddings; a middle stage needs none of them. */
    assert_int_equal(gguf_writer_add_tensor(w, "token_embd.weight", 1, ne, 0, data[0], &em), STRATA_OK);
    assert_int_equal(gguf_writer_to_file(w, tmp_path(&T, "h.gguf"), NULL, sum, &size, &em), STRATA_OK);
    gguf_writer_free(w);
    model_package(tmp_path(&T, "h.gguf"), tmp_path(&T, "p"), 2, 32);
    struct pkg_model *m;
    struct pkg_model_options opt = {.range = {1, 2}, .flags = PKG_MODEL_VERIFY};
    if (pkg_model_open(tmp_path(&T, "p"), &opt, &m, &em)) fail_msg("%s", em.text);
    assert_int_equal(pkg_model_tensor_count(m), EACH);
    assert_int_equal(pkg_model_part_count(m), EACH + 1);
    for (size_t i = 1; i < (size_t)LAYERS * EACH; i += LAYERS) {
        const struct gguf_tensor *t = pkg_model_find(m, store[i]);
        assert_non_null(t);
        assert_memory_equal(t->data, data[i], sizeof data[i]);
    }
    pkg_model_free(m);
    buf_init(&BYTES, 1 << 20);
    struct opened o = open_model(tmp_path(&T, "h.gguf"));
    struct pkg_cut c;
    assert_int_equal(pkg_cut_package2(&o.inv, 32, &c, &em), STRATA_OK);
    assert_int_equal(c.n_pieces, LAYERS * EACH + 2);
    assert_string_equal(c.pieces[EACH + 1].id, "layer-00000-part119");
    assert_int_equal(pkg_cut_writer(&c, 0, &w, &em), STRATA_OK);
    assert_int_equal(gguf_writer_emit_header(w, keep, NULL, &em), STRATA_OK);
    assert_int_equal(BYTES.len, gguf_writer_data_offset(w));
    gguf_writer_free(w);
    pkg_cut_deinit(&c);
    close_model(&o);
    buf_deinit(&BYTES);
}

static void test_refusals(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct pkg_cut c;
    static const char *const none[] = {"token_embd.weight", NULL};
    static const char *const gap[] = {"token_embd.weight", "blk.0.a.weight", "blk.2.a.weight", NULL};
    model_write(tmp_path(&T, "n.gguf"), none, 0, 0);
    model_write(tmp_path(&T, "g.gguf"), gap, 3, 0);
    struct opened o = open_model(tmp_path(&T, "n.gguf"));
    assert_int_equal(pkg_cut_package2(&o.inv, 1, &c, &em), STRATA_EUNSUPPORTED);
    close_model(&o);
    o = open_model(tmp_path(&T, "g.gguf"));
    assert_int_equal(pkg_cut_package2(&o.inv, 1, &c, &em), STRATA_EFORMAT);
    close_model(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_parts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many_parts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
