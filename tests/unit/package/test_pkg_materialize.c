/* Merging a range into one file: every tensor byte for byte, every key in its order, nowhere near a package. */
#include "gguf/gguf_source.h"
#include "package/pkg_materialize.h"

#include "pkg_model_sample.h"

#include <unistd.h>

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

static const char *const names[] = {"token_embd.weight", "blk.0.a.weight",     "rope_freqs.weight", "blk.1.a.weight",
                                    "blk.2.a.weight",    "output_norm.weight", "output.weight",     NULL};

static strata_err materialize(const char *package, uint32_t first, uint32_t end, const char *out,
                              struct pkg_materialize_result *res, struct strata_errmsg *em) {
    struct pkg_materialize_options opt = {.range = {first, end}, .out = out};
    return pkg_materialize(package, &opt, res, em);
}

/* The source's keys, in their order, are what the merged file begins with; tensors as asked. */
static void compare(const char *source, const char *merged, bool whole, uint32_t first, uint32_t end) {
    struct gguf_source *a, *b;
    struct strata_errmsg em;
    size_t seen = 0;
    assert_int_equal(gguf_source_open(source, &a, &em), STRATA_OK);
    assert_int_equal(gguf_source_open(merged, &b, &em), STRATA_OK);
    const struct gguf_reader *x = gguf_source_meta(a), *y = gguf_source_meta(b);
    size_t n = gguf_reader_kv_count(x), stated = gguf_reader_find_kv(x, "general.alignment") != NULL;
    for (size_t i = 0; i < n; i++) {
        const struct gguf_kv *p = gguf_reader_kv(x, i), *q = gguf_reader_kv(y, i);
        assert_string_equal(p->key, q->key);
        assert_int_equal(p->raw_bytes, q->raw_bytes);
        assert_memory_equal(p->raw, q->raw, p->raw_bytes);
    }
    assert_int_equal(gguf_reader_kv_count(y), n + 2 + !stated);
    assert_int_equal(gguf_reader_alignment(x), gguf_reader_alignment(y));
    for (size_t i = 0; i < gguf_source_tensor_count(a); i++) {
        const struct gguf_tensor *s = gguf_source_tensor(a, i, NULL), *t = gguf_source_find_tensor(b, s->name);
        uint32_t layer;
        enum pkg_class class = pkg_class_of(s->name, &layer);
        bool wanted = class == PKG_CLASS_METADATA || (class == PKG_CLASS_LAYER && layer >= first && layer < end) ||
                      (class == PKG_CLASS_EMBEDDING && first == 0) ||
                      ((class == PKG_CLASS_FINAL_NORM || class == PKG_CLASS_OUTPUT) && end == 3);
        assert_int_equal(t != NULL, wanted);
        if (!t) continue;
        assert_int_equal(s->type, t->type);
        assert_memory_equal(s->ne, t->ne, sizeof s->ne);
        assert_memory_equal(s->data, t->data, s->bytes);
        if (whole) assert_string_equal(gguf_source_tensor(b, i, NULL)->name, s->name);
        seen++;
    }
    assert_int_equal(gguf_source_tensor_count(b), seen);
    gguf_source_free(a);
    gguf_source_free(b);
}

static void test_ranges(void **state) {
    (void)state;
    static const uint32_t alignments[] = {0, 32, 256};
    for (size_t k = 0; k < 3; k++) {
        char file[300], dir[300], out[300];
        snprintf(file, sizeof file, "%s/m%zu.gguf", T.path, k);
        model_write(file, names, 3, alignments[k]);
        for (unsigned schema = 1; schema <= 2; schema++) {
            struct pkg_materialize_result res;
            struct strata_errmsg em;
            snprintf(dir, sizeof dir, "%s/p%zu%u", T.path, k, schema);
            snprintf(out, sizeof out, "%s/out.gguf", T.path);
            model_package(file, dir, schema, 100);
            for (uint32_t first = 0; first < 3; first++)
                for (uint32_t end = first + 1; end <= 3; end++) {
                    if (materialize(dir, first, end == 3 ? PKG_RANGE_ALL : end, out, &res, &em))
                        fail_msg("%s", em.text);
                    assert_int_equal(res.range.end, end);
                    compare(file, out, first == 0 && end == 3, first, end);
                }
            assert_int_equal(materialize(dir, 0, PKG_RANGE_ALL, out, &res, &em), STRATA_OK);
            assert_int_equal(res.tensor_count, 7);
            assert_int_equal(res.part_count,
                             schema == 1 ? 6 : 8); /* schema 2: carrier, four common parts, three layers */
            assert_int_equal(strlen(res.sha256), 64);
            struct file_map map;
            assert_int_equal(file_map_open(out, &map, &em), STRATA_OK);
            assert_int_equal(map.size, res.file_bytes);
            uint8_t sum[DIGEST_BYTES];
            char hex[DIGEST_HEX];
            assert_int_equal(digest_of(map.data, map.size, sum, &em), STRATA_OK);
            digest_to_hex(sum, sizeof sum, hex);
            assert_string_equal(hex, res.sha256);
            file_map_close(&map);
        }
    }
}

static void test_refusals(void **state) {
    (void)state;
    struct pkg_materialize_result res;
    struct strata_errmsg em;
    const char *dir = tmp_path(&T, "q");
    model_write(tmp_path(&T, "q.gguf"), names, 3, 0);
    model_package(tmp_path(&T, "q.gguf"), dir, 1, 0);
    assert_int_equal(symlink(tmp_path(&T, "q/layers"), tmp_path(&T, "link")), 0);
    static const char *const bad[] = {"q/out.gguf",      "q/layers/out.gguf",       "q/layers/layer-00001.gguf",
                                      "link/out.gguf",   "out-00001-of-00002.gguf", "link",
                                      "nowhere/out.gguf"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *out = tmp_path(&T, bad[i]);
        bool there = file_is_regular(out);
        strata_err rc = materialize(dir, 0, 3, out, &res, &em);
        assert_int_equal(rc, i == 6 ? STRATA_ENOENT : STRATA_EINVAL);
        assert_int_equal(file_is_regular(out), there);
    }
    const char *out = tmp_path(&T, "out.gguf");
    assert_int_equal(materialize(tmp_path(&T, "q.gguf"), 0, 3, out, &res, &em), STRATA_EINVAL);
    assert_int_equal(materialize(dir, 0, 4, out, &res, &em), STRATA_EINVAL);
    assert_int_equal(materialize(dir, 2, 2, out, &res, &em), STRATA_EINVAL);
    /* Damage is found before anything is written. */
    struct buf b;
    buf_init(&b, 1 << 20);
    assert_int_equal(file_read_all(tmp_path(&T, "q/layers/layer-00001.gguf"), 1 << 20, &b, &em), STRATA_OK);
    b.data[b.len - 1] ^= 1;
    assert_int_equal(file_write_all(tmp_path(&T, "q/layers/layer-00001.gguf"), b.data, b.len, 0644, &em), STRATA_OK);
    buf_deinit(&b);
    assert_int_equal(materialize(dir, 0, 3, out, &res, &em), STRATA_EDIGEST);
    assert_false(file_is_regular(out));
    assert_int_equal(materialize(dir, 2, 3, out, &res, &em), STRATA_OK); /* other ranges are not concerned */
}

static bool at_once(void) {
    return true;
}

static void test_cancelled(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct pkg_materialize_result res;
    const char *out = tmp_path(&T, "c.gguf");
    model_write(tmp_path(&T, "r.gguf"), names, 3, 0);
    model_package(tmp_path(&T, "r.gguf"), tmp_path(&T, "r"), 2, 0);
    struct pkg_materialize_options opt = {.range = {0, PKG_RANGE_ALL}, .out = out, .cancelled = at_once};
    assert_int_equal(pkg_materialize(tmp_path(&T, "r"), &opt, &res, &em), STRATA_ECANCELLED);
    assert_false(file_is_regular(out));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_ranges, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cancelled, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
