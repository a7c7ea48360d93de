/* The package writer: recomposition, determinism, provenance, refusals, and that failures leave nothing behind. */
#include "base/file.h"
#include "gguf/gguf_source.h"
#include "package/pkg_class.h"
#include "package/pkg_manifest.h"
#include "package/pkg_part.h"
#include "package/pkg_write.h"

#include "pkg_sample.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static struct tmp_folder T;

static int setup(void **state) {
    (void)state;
    tmp_folder_make(&T);
    setenv("SOURCE_DATE_EPOCH", "1700000000", 1);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    unsetenv("SOURCE_DATE_EPOCH");
    tmp_folder_remove(T.path);
    return 0;
}

static strata_err write_to(const char *source, const char *dir, struct strata_errmsg *em) {
    struct pkg_write_result res;
    struct pkg_write_options opt = {.out_dir = dir};
    strata_err rc = pkg_write(source, &opt, &res, em);
    if (!rc) json_decref(res.manifest);
    return rc;
}

/* Every tensor of the source is in exactly one part (replicated ones in all), byte for byte and nothing else is there.
 */
static void check_recomposes(const char *source, const char *dir) {
    struct gguf_source *src;
    struct pkg_manifest *m;
    struct strata_errmsg em;
    size_t owned_seen = 0, owned = 0, n_parts = 0;
    assert_int_equal(gguf_source_open(source, &src, &em), STRATA_OK);
    assert_int_equal(pkg_manifest_load(dir, &m, &em), STRATA_OK);
    for (size_t i = 0; i < gguf_source_tensor_count(src); i++)
        owned += pkg_class_is_owned(pkg_class_of(gguf_source_tensor(src, i, NULL)->name, NULL));
    for (; n_parts < m->n_artifacts; n_parts++) {
        const struct pkg_artifact *a = &m->artifacts[n_parts];
        struct pkg_part part;
        struct pkg_faults faults;
        size_t last = 0;
        pkg_faults_init(&faults);
        assert_int_equal(pkg_part_open(dir, a, true, NULL, &faults, &part, &em), STRATA_OK);
        assert_int_equal(faults.n, 0);
        assert_true(part.digest_checked && part.digest_ok);
        for (size_t i = 0; i < gguf_reader_tensor_count(part.reader); i++) {
            const struct gguf_tensor *t = gguf_reader_tensor(part.reader, i);
            const struct gguf_tensor *want = gguf_source_find_tensor(src, t->name);
            assert_non_null(want);
            assert_int_equal(t->type, want->type);
            assert_int_equal(t->n_dims, want->n_dims);
            assert_memory_equal(t->ne, want->ne, sizeof t->ne);
            assert_int_equal(t->bytes, want->bytes);
            assert_memory_equal(t->data, want->data, t->bytes);
            owned_seen += pkg_class_is_owned(pkg_class_of(t->name, NULL));
            size_t at = 0; /* source order is kept */
            while (gguf_source_tensor(src, at, NULL) != want) at++;
            assert_true(i == 0 || at > last);
            last = at;
        }
        pkg_part_close(&part);
        pkg_faults_deinit(&faults);
    }
    assert_int_equal(owned_seen, owned);
    assert_int_equal(n_parts, 3 + m->layer_count);
    pkg_manifest_free(m);
    gguf_source_free(src);
}

static void test_recomposes(void **state) {
    (void)state;
    static const struct sample samples[] = {{"", 3, false, false, 1, UINT32_MAX},
                                            {"", 4, true, true, 1, UINT32_MAX},
                                            {"", 5, false, true, 2, UINT32_MAX},
                                            {"", 1, true, false, 2, UINT32_MAX}};
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
        char base[300], source[400], dir[400];
        struct strata_errmsg em;
        struct sample s = samples[i];
        snprintf(base, sizeof base, "%s/m%zu", T.path, i);
        snprintf(source, sizeof source, "%s%s.gguf", base, s.shards > 1 ? "-00002-of-00002" : "");
        snprintf(dir, sizeof dir, "%s-package", base);
        s.path = base;
        sample_write(&s);
        assert_int_equal(write_to(source, dir, &em), STRATA_OK);
        check_recomposes(source, dir);
    }
}

static void check_same_file(const char *a, const char *b) {
    struct buf x, y;
    struct strata_errmsg em;
    buf_init(&x, 1 << 24);
    buf_init(&y, 1 << 24);
    assert_int_equal(file_read_all(a, 1 << 24, &x, &em), STRATA_OK);
    assert_int_equal(file_read_all(b, 1 << 24, &y, &em), STRATA_OK);
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.data, y.data, x.len);
    buf_deinit(&x);
    buf_deinit(&y);
}

/* Twice the same, manifest included; and a split source gives the same fragments as a whole one. */
static void test_deterministic(void **state) {
    (void)state;
    static const char *const files[] = {"shared/metadata.gguf", "shared/embeddings.gguf", "shared/output.gguf",
                                        "layers/layer-00000.gguf", "layers/layer-00002.gguf"};
    struct strata_errmsg em;
    char a[400], b[400];
    struct sample whole = {tmp_path(&T, "same"), 3, false, true, 1, UINT32_MAX};
    sample_write(&whole);
    assert_int_equal(write_to(tmp_path(&T, "same.gguf"), tmp_path(&T, "p1"), &em), STRATA_OK);
    assert_int_equal(write_to(tmp_path(&T, "same.gguf"), tmp_path(&T, "p2"), &em), STRATA_OK);
    struct sample split = {tmp_path(&T, "same"), 3, false, true, 2, UINT32_MAX};
    sample_write(&split);
    assert_int_equal(write_to(tmp_path(&T, "same-00001-of-00002.gguf"), tmp_path(&T, "p3"), &em), STRATA_OK);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(a, sizeof a, "%s/p1/%s", T.path, files[i]);
        snprintf(b, sizeof b, "%s/p2/%s", T.path, files[i]);
        check_same_file(a, b);
        snprintf(b, sizeof b, "%s/p3/%s", T.path, files[i]);
        check_same_file(a, b);
    }
    check_same_file(tmp_path(&T, "p1/model-package.json"), tmp_path(&T, "p2/model-package.json"));
}

static void test_slice_keys(void **state) {
    (void)state;
    static const struct {
        int role;
        uint32_t layer;
        int64_t index, start, end;
        bool embeddings, output;
    } rows[] = {{PKG_ROLE_METADATA, 0, 0, 0, 0, false, false},
                {PKG_ROLE_EMBEDDINGS, 0, 1, 0, 0, true, false},
                {PKG_ROLE_OUTPUT, 0, 2, 3, 3, false, true},
                {PKG_ROLE_LAYER, 2, 1002, 2, 3, false, false}};
    struct strata_errmsg em;
    struct pkg_manifest *m;
    struct sample s = {tmp_path(&T, "k"), 3, false, false, 2, UINT32_MAX};
    sample_write(&s);
    const char *dir = tmp_path(&T, "kp");
    assert_int_equal(write_to(tmp_path(&T, "k-00001-of-00002.gguf"), dir, &em), STRATA_OK);
    assert_int_equal(pkg_manifest_load(dir, &m, &em), STRATA_OK);
    for (size_t i = 0; i < 4; i++) {
        const struct pkg_artifact *a =
            &m->artifacts[rows[i].role == PKG_ROLE_LAYER ? 3 + rows[i].layer : (size_t)rows[i].role];
        struct pkg_part p;
        struct pkg_faults faults;
        bool b = false;
        pkg_faults_init(&faults);
        assert_int_equal(pkg_part_open(dir, a, true, NULL, &faults, &p, &em), STRATA_OK);
        const char *const keys[] = {"skippy.slice.stage_index", "skippy.slice.layer_start", "skippy.slice.layer_end"};
        const int64_t want[] = {rows[i].index, rows[i].start, rows[i].end};
        for (size_t k = 0; k < 3; k++) {
            const struct gguf_kv *kv = gguf_reader_find_kv(p.reader, keys[k]);
            assert_non_null(kv);
            assert_int_equal(kv->kind, GGUF_KIND_I32);
            assert_int_equal(gguf_reader_int_at(kv, 0), want[k]);
        }
        assert_int_equal(gguf_reader_get_bool(p.reader, "skippy.slice.include_embeddings", true, &b, &em), STRATA_OK);
        assert_int_equal(b, rows[i].embeddings);
        assert_int_equal(gguf_reader_get_bool(p.reader, "skippy.slice.include_output", true, &b, &em), STRATA_OK);
        assert_int_equal(b, rows[i].output);
        assert_null(gguf_reader_find_kv(p.reader, "split.count"));
        assert_non_null(gguf_reader_find_kv(p.reader, "general.name"));
        pkg_part_close(&p);
        pkg_faults_deinit(&faults);
    }
    pkg_manifest_free(m);
}

static void test_identity(void **state) {
    (void)state;
    struct sample s = {tmp_path(&T, "My Model.Q4"), 1, true, false, 1, UINT32_MAX};
    struct strata_errmsg em;
    struct pkg_manifest *m;
    struct pkg_write_result res;
    sample_write(&s);
    char source[512];
    snprintf(source, sizeof source, "%s/My Model.Q4.gguf", T.path);
    assert_int_equal(write_to(source, tmp_path(&T, "i1"), &em), STRATA_OK);
    assert_int_equal(pkg_manifest_load(tmp_path(&T, "i1"), &m, &em), STRATA_OK);
    assert_string_equal(m->model_id, "local/My-Model.Q4");
    assert_string_equal(m->source.path, "My Model.Q4.gguf"); /* never a folder of this machine */
    assert_null(m->source.repo);
    assert_null(m->source.canonical_ref);
    assert_int_equal(m->created_at, 1700000000);
    assert_int_equal(m->activation_width, SAMPLE_WIDTH);
    assert_string_equal(m->abi_version, PKG_MANIFEST_ABI);
    pkg_manifest_free(m);
    struct pkg_write_options opt = {.out_dir = tmp_path(&T, "i2"),
                                    .identity = {"org/model-GGUF:Q4", NULL, "abc123", "sub/m.gguf"}};
    assert_int_equal(pkg_write(source, &opt, &res, &em), STRATA_OK);
    assert_false(res.identity.derived);
    json_decref(res.manifest);
    assert_int_equal(pkg_manifest_load(tmp_path(&T, "i2"), &m, &em), STRATA_OK);
    assert_string_equal(m->model_id, "org/model-GGUF:Q4");
    assert_string_equal(m->source.repo, "org/model-GGUF");
    assert_string_equal(m->source.canonical_ref, "org/model-GGUF@abc123/sub/m.gguf");
    assert_string_equal(m->source.files[0].path, "sub/m.gguf");
    assert_memory_equal(m->source.files[0].sha256, m->source.sha256, DIGEST_BYTES);
    pkg_manifest_free(m);
    static const struct pkg_identity_request bad[] = {
        {"/etc", NULL, NULL, NULL},   {"model", NULL, NULL, NULL}, {"a/b/c", NULL, NULL, NULL},
        {"../b", NULL, NULL, NULL},   {"a/..", NULL, NULL, NULL},  {"", NULL, NULL, NULL},
        {"o/m", "nope", NULL, NULL},  {"o/m", NULL, "", NULL},     {"o/m", NULL, " ", NULL},
        {"o/m", NULL, NULL, "../x"},  {"o/m", NULL, NULL, "/x"},   {"o/m\n", NULL, NULL, NULL},
        {"o/m", NULL, "a\x1b", NULL},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct pkg_write_options o = {.out_dir = tmp_path(&T, "i3"), .identity = bad[i]};
        assert_int_equal(pkg_write(source, &o, &res, &em), STRATA_EINVAL);
        assert_false(file_is_dir(tmp_path(&T, "i3")));
    }
}

static void test_shard_digests(void **state) {
    (void)state;
    static const char *const names[] = {"d-00001-of-00002.gguf", "d-00002-of-00002.gguf"};
    struct sample s = {tmp_path(&T, "d"), 3, true, false, 2, UINT32_MAX};
    struct strata_errmsg em;
    struct pkg_manifest *m;
    sample_write(&s);
    assert_int_equal(write_to(tmp_path(&T, names[0]), tmp_path(&T, "dp"), &em), STRATA_OK);
    assert_int_equal(pkg_manifest_load(tmp_path(&T, "dp"), &m, &em), STRATA_OK);
    assert_int_equal(m->source.n_files, 2);
    for (size_t i = 0; i < 2; i++) {
        struct buf x;
        uint8_t sum[DIGEST_BYTES];
        buf_init(&x, 1 << 24);
        assert_int_equal(file_read_all(tmp_path(&T, names[i]), 1 << 24, &x, &em), STRATA_OK);
        assert_int_equal(digest_of(x.data, x.len, sum, &em), STRATA_OK);
        assert_memory_equal(sum, m->source.files[i].sha256, sizeof sum);
        assert_string_equal(m->source.files[i].path, names[i]);
        assert_int_equal(m->source.files[i].size_bytes, x.len);
        buf_deinit(&x);
    }
    pkg_manifest_free(m);
}

static void test_refusals(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct sample s = {tmp_path(&T, "r"), 3, true, false, 1, UINT32_MAX};
    sample_write(&s);
    char source[512];
    snprintf(source, sizeof source, "%s/r.gguf", T.path);
    /* A folder with something in it is left alone. */
    assert_int_equal(mkdir(tmp_path(&T, "full"), 0755), 0);
    assert_int_equal(file_write_all(tmp_path(&T, "full/keep"), "x", 1, 0644, &em), STRATA_OK);
    assert_int_equal(write_to(source, tmp_path(&T, "full"), &em), STRATA_EINVAL);
    assert_true(file_is_regular(tmp_path(&T, "full/keep")));
    assert_false(file_is_dir(tmp_path(&T, "full/shared")));
    /* The source as the output, under its own name and through a link. */
    assert_int_equal(write_to(source, source, &em), STRATA_EINVAL);
    assert_non_null(strstr(em.text, "source model itself"));
    assert_int_equal(symlink("r.gguf", tmp_path(&T, "link")), 0);
    assert_int_equal(write_to(source, tmp_path(&T, "link"), &em), STRATA_EINVAL);
    assert_non_null(strstr(em.text, "source model itself"));
    assert_int_equal(write_to(tmp_path(&T, "full/keep"), tmp_path(&T, "o"), &em), STRATA_EFORMAT);
    assert_int_equal(write_to(source, tmp_path(&T, "full/keep"), &em), STRATA_EINVAL);
    assert_int_equal(write_to(tmp_path(&T, "gone.gguf"), tmp_path(&T, "o"), &em), STRATA_ENOENT);
    /* Gaps in the layers, and no layers at all. */
    struct sample gap = {tmp_path(&T, "gap"), 3, true, false, 1, 1},
                  none = {tmp_path(&T, "none"), 1, true, false, 1, 0};
    sample_write(&gap);
    sample_write(&none);
    assert_int_equal(write_to(tmp_path(&T, "gap.gguf"), tmp_path(&T, "o"), &em), STRATA_EFORMAT);
    assert_non_null(strstr(em.text, "layer 1"));
    assert_int_equal(write_to(tmp_path(&T, "none.gguf"), tmp_path(&T, "o"), &em), STRATA_EUNSUPPORTED);
    setenv("SOURCE_DATE_EPOCH", "yesterday", 1);
    assert_int_equal(write_to(source, tmp_path(&T, "o"), &em), STRATA_EINVAL);
    setenv("SOURCE_DATE_EPOCH", "1700000000", 1);
    assert_false(file_is_dir(tmp_path(&T, "o")));
    /* An empty folder that exists is fine. */
    assert_int_equal(mkdir(tmp_path(&T, "empty"), 0755), 0);
    assert_int_equal(write_to(source, tmp_path(&T, "empty"), &em), STRATA_OK);
}

static unsigned countdown;

static bool cancel_later(void) {
    return countdown-- == 0;
}

/* Cancelled between any two files, nothing is left; the folder itself stays if it was there before. */
static void test_cancel(void **state) {
    (void)state;
    struct sample s = {tmp_path(&T, "c"), 3, false, false, 1, UINT32_MAX};
    struct pkg_write_result res;
    struct strata_errmsg em;
    sample_write(&s);
    for (unsigned n = 0; n < 6; n++) {
        struct pkg_write_options opt = {.out_dir = tmp_path(&T, "co"), .cancelled = cancel_later};
        bool empty = false;
        if (n % 2) assert_int_equal(mkdir(opt.out_dir, 0755), 0);
        countdown = n;
        assert_int_equal(pkg_write(tmp_path(&T, "c.gguf"), &opt, &res, &em), STRATA_ECANCELLED);
        assert_int_equal(file_is_dir(opt.out_dir), n % 2);
        assert_int_equal(file_dir_is_empty(opt.out_dir, &empty, &em), STRATA_OK);
        assert_true(empty);
        rmdir(opt.out_dir);
    }
}

/* A disk that fills up: writes fail with EFBIG once a file reaches the limit. */
static void test_disk_full(void **state) {
    (void)state;
    struct sample s = {tmp_path(&T, "f"), 3, false, false, 1, UINT32_MAX};
    struct strata_errmsg em;
    struct rlimit old, small;
    sample_write(&s);
    const char *source = tmp_path(&T, "f.gguf"), *dir = tmp_path(&T, "fo");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    static const rlim_t limits[] = {0, 100, 700, 900, 1200};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        small = old;
        small.rlim_cur = limits[i];
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        strata_err rc = write_to(source, dir, &em);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(rc, STRATA_EIO);
        assert_false(file_is_dir(dir));
    }
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(write_to(source, dir, &em), STRATA_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_recomposes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_deterministic, setup, teardown),
        cmocka_unit_test_setup_teardown(test_slice_keys, setup, teardown),
        cmocka_unit_test_setup_teardown(test_identity, setup, teardown),
        cmocka_unit_test_setup_teardown(test_shard_digests, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cancel, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_full, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
