/* Preflight: a sound package passes; each kind of damage is found, named and placed; several at once are all listed. */
#include "base/file.h"
#include "package/pkg_check.h"
#include "package/pkg_write.h"

#include "pkg_sample.h"

#include <sys/stat.h>

static struct tmp_folder T;

static int setup(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct pkg_write_result res;
    tmp_folder_make(&T);
    struct sample s = {tmp_path(&T, "m"), 3, false, true, 1, UINT32_MAX};
    sample_write(&s);
    struct pkg_write_options opt = {.out_dir = tmp_path(&T, "p")};
    assert_int_equal(pkg_write(tmp_path(&T, "m.gguf"), &opt, &res, &em), STRATA_OK);
    json_decref(res.manifest);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tmp_folder_remove(T.path);
    return 0;
}

static bool has(const struct pkg_check_report *r, enum pkg_fault_code code, const char *path) {
    for (size_t i = 0; i < r->faults.n; i++)
        if (r->faults.list[i].code == code &&
            (!path || (r->faults.list[i].path && strcmp(path, r->faults.list[i].path) == 0)))
            return true;
    return false;
}

static void check(const char *path, struct pkg_check_report *r) {
    struct pkg_check_options opt = {0};
    struct strata_errmsg em;
    if (pkg_check_run(path, &opt, r, &em)) fail_msg("%s", em.text);
}

/* Reads a file, hands it to `edit` and writes it back. */
static void edit_file(const char *path, void (*edit)(struct buf *b)) {
    struct buf b;
    struct strata_errmsg em;
    buf_init(&b, 1 << 24);
    assert_int_equal(file_read_all(path, 1 << 24, &b, &em), STRATA_OK);
    edit(&b);
    assert_int_equal(file_write_all(path, b.data, b.len, 0644, &em), STRATA_OK);
    buf_deinit(&b);
}

static void test_sound(void **state) {
    (void)state;
    struct pkg_check_report r;
    struct strata_errmsg em;
    json_t *json;
    const char *const names[] = {tmp_path(&T, "p"), tmp_path(&T, "p/"), tmp_path(&T, "p/model-package.json")};
    for (size_t i = 0; i < 3; i++) {
        check(names[i], &r);
        assert_true(pkg_check_is_valid(&r));
        assert_int_equal(r.faults.n, 0);
        assert_int_equal(r.n_items, 6);
        assert_int_equal(pkg_check_to_json(&r, &json, &em), STRATA_OK);
        assert_true(json_is_true(json_object_get(json, "valid")));
        assert_int_equal(json_array_size(json_object_get(json, "artifacts")), 6);
        json_decref(json);
        pkg_check_deinit(&r);
    }
    struct pkg_check_options opt = {0};
    assert_int_equal(pkg_check_run(tmp_path(&T, "m.gguf"), &opt, &r, &em), STRATA_EINVAL);
    assert_int_equal(pkg_check_run(tmp_path(&T, "gone"), &opt, &r, &em), STRATA_EINVAL);
}

static void flip_last(struct buf *b) {
    b->data[b->len - 1] ^= 1;
}

static void cut_last(struct buf *b) {
    b->len--;
}

static void grow_last(struct buf *b) {
    assert_int_equal(buf_append(b, "x", 1, NULL), STRATA_OK);
}

static void break_magic(struct buf *b) {
    b->data[0] = 'X';
}

static void empty_file(struct buf *b) {
    b->len = 0;
}

static void test_damage(void **state) {
    (void)state;
    static const struct {
        void (*edit)(struct buf *b);
        enum pkg_fault_code code;
    } rows[] = {{flip_last, PKG_FAULT_ARTIFACT_SHA256_MISMATCH},
                {cut_last, PKG_FAULT_ARTIFACT_SIZE_MISMATCH},
                {grow_last, PKG_FAULT_ARTIFACT_SIZE_MISMATCH},
                {empty_file, PKG_FAULT_ARTIFACT_SIZE_MISMATCH},
                {break_magic, PKG_FAULT_INVALID_ARTIFACT_GGUF}};
    static const char *const files[] = {"shared/metadata.gguf", "shared/embeddings.gguf", "shared/output.gguf",
                                        "layers/layer-00001.gguf"};
    for (size_t f = 0; f < 4; f++) {
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            char path[400];
            struct buf keep;
            struct strata_errmsg em;
            struct pkg_check_report r;
            snprintf(path, sizeof path, "%s/p/%s", T.path, files[f]);
            buf_init(&keep, 1 << 24);
            assert_int_equal(file_read_all(path, 1 << 24, &keep, &em), STRATA_OK);
            edit_file(path, rows[i].edit);
            check(tmp_path(&T, "p"), &r);
            assert_false(pkg_check_is_valid(&r));
            assert_true(has(&r, rows[i].code, files[f]));
            pkg_check_deinit(&r);
            assert_int_equal(file_write_all(path, keep.data, keep.len, 0644, &em), STRATA_OK);
            buf_deinit(&keep);
        }
    }
}

/* Without digests, altered weights pass: that is what the option says. */
static void test_no_digests(void **state) {
    (void)state;
    struct pkg_check_report r;
    struct strata_errmsg em;
    struct pkg_check_options opt = {.skip_digests = true};
    edit_file(tmp_path(&T, "p/layers/layer-00001.gguf"), flip_last);
    assert_int_equal(pkg_check_run(tmp_path(&T, "p"), &opt, &r, &em), STRATA_OK);
    assert_true(pkg_check_is_valid(&r));
    assert_false(r.items[0].digest_checked);
    pkg_check_deinit(&r);
}

static void test_all_are_listed(void **state) {
    (void)state;
    struct pkg_check_report r;
    struct strata_errmsg em;
    json_t *json;
    assert_int_equal(remove(tmp_path(&T, "p/shared/output.gguf")), 0);
    assert_int_equal(remove(tmp_path(&T, "p/layers/layer-00002.gguf")), 0);
    assert_int_equal(mkdir(tmp_path(&T, "p/layers/layer-00002.gguf"), 0755), 0);
    edit_file(tmp_path(&T, "p/layers/layer-00000.gguf"), flip_last);
    edit_file(tmp_path(&T, "p/layers/layer-00001.gguf"), cut_last);
    check(tmp_path(&T, "p"), &r);
    assert_true(has(&r, PKG_FAULT_MISSING_ARTIFACT, "shared/output.gguf"));
    assert_true(has(&r, PKG_FAULT_ARTIFACT_NOT_FILE, "layers/layer-00002.gguf"));
    assert_true(has(&r, PKG_FAULT_ARTIFACT_SHA256_MISMATCH, "layers/layer-00000.gguf"));
    assert_true(has(&r, PKG_FAULT_ARTIFACT_SIZE_MISMATCH, "layers/layer-00001.gguf"));
    assert_int_equal(r.faults.n_errors, 4);
    assert_int_equal(pkg_check_to_json(&r, &json, &em), STRATA_OK);
    assert_true(json_is_false(json_object_get(json, "valid")));
    assert_int_equal(json_array_size(json_object_get(json, "issues")), 4);
    assert_int_equal(json_integer_value(json_object_get(json, "missing_artifact_count")), 2);
    json_decref(json);
    pkg_check_deinit(&r);
}

/* ---- a manifest that agrees with itself, but not with the files ---- */

static json_t *load_manifest(void) {
    json_t *root = json_load_file(tmp_path(&T, "p/model-package.json"), 0, NULL);
    assert_non_null(root);
    return root;
}

static void store_manifest(json_t *root) {
    assert_int_equal(json_dump_file(root, tmp_path(&T, "p/model-package.json"), JSON_INDENT(2)), 0);
    json_decref(root);
}

static void test_manifest_against_files(void **state) {
    (void)state;
    struct pkg_check_report r;
    json_t *root = load_manifest(), *layers = json_object_get(root, "layers");
    json_t *first = json_array_get(layers, 0), *second = json_array_get(layers, 1);
    /* Two layers' files exchanged: names, sizes and digests agree, and only the tensors tell. */
    json_t *a = json_deep_copy(first), *b = json_deep_copy(second);
    json_object_set_new(a, "layer_index", json_integer(1));
    json_object_set_new(b, "layer_index", json_integer(0));
    json_array_set_new(layers, 0, b);
    json_array_set_new(layers, 1, a);
    json_object_set_new(json_array_get(layers, 2), "tensor_count", json_integer(7));
    json_t *output = json_object_get(json_object_get(root, "shared"), "output");
    json_object_set_new(output, "tensor_bytes", json_integer(1));
    json_object_set_new(root, "activation_width", json_integer(9));
    store_manifest(root);
    check(tmp_path(&T, "p"), &r);
    assert_true(has(&r, PKG_FAULT_FOREIGN_TENSOR, "layers/layer-00000.gguf"));
    assert_true(has(&r, PKG_FAULT_FOREIGN_TENSOR, "layers/layer-00001.gguf"));
    assert_true(has(&r, PKG_FAULT_TENSOR_COUNT_MISMATCH, "layers/layer-00002.gguf"));
    assert_true(has(&r, PKG_FAULT_TENSOR_BYTES_MISMATCH, "shared/output.gguf"));
    assert_true(has(&r, PKG_FAULT_ACTIVATION_WIDTH_MISMATCH, NULL));
    pkg_check_deinit(&r);
}

/* The embeddings entry names a part without token_embd.weight, and the block count disagrees. */
static void test_missing_tensor(void **state) {
    (void)state;
    struct pkg_check_report r;
    json_t *root = load_manifest(), *shared = json_object_get(root, "shared");
    json_t *meta = json_deep_copy(json_object_get(shared, "metadata"));
    json_object_set_new(shared, "embeddings", meta);
    json_array_remove(json_object_get(root, "layers"), 2);
    json_object_set_new(root, "layer_count", json_integer(2));
    store_manifest(root);
    check(tmp_path(&T, "p"), &r);
    assert_true(has(&r, PKG_FAULT_DUPLICATE_ARTIFACT_PATH, "shared/metadata.gguf"));
    assert_true(has(&r, PKG_FAULT_MISSING_TENSOR, "shared/metadata.gguf"));
    assert_true(has(&r, PKG_FAULT_LAYER_COUNT_MISMATCH, NULL));
    pkg_check_deinit(&r);
}

static void truncate_json(struct buf *b) {
    b->len /= 2;
}

static void test_bad_manifest(void **state) {
    (void)state;
    struct pkg_check_report r;
    struct strata_errmsg em;
    json_t *json;
    edit_file(tmp_path(&T, "p/model-package.json"), truncate_json);
    check(tmp_path(&T, "p"), &r);
    assert_true(has(&r, PKG_FAULT_INVALID_MANIFEST_JSON, NULL));
    assert_int_equal(pkg_check_to_json(&r, &json, &em), STRATA_OK);
    json_decref(json);
    pkg_check_deinit(&r);
    assert_int_equal(remove(tmp_path(&T, "p/model-package.json")), 0);
    check(tmp_path(&T, "p"), &r);
    assert_true(has(&r, PKG_FAULT_MISSING_MANIFEST, "model-package.json"));
    assert_int_equal(r.faults.n, 1);
    pkg_check_deinit(&r);
}

/* A path that leaves the package is never opened. */
static void test_unsafe_path(void **state) {
    (void)state;
    struct pkg_check_report r;
    json_t *root = load_manifest();
    json_object_set_new(json_array_get(json_object_get(root, "layers"), 0), "path", json_string("../m.gguf"));
    store_manifest(root);
    check(tmp_path(&T, "p"), &r);
    assert_true(has(&r, PKG_FAULT_UNSAFE_ARTIFACT_PATH, "../m.gguf"));
    assert_false(r.items[3].present);
    pkg_check_deinit(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sound, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damage, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_digests, setup, teardown),
        cmocka_unit_test_setup_teardown(test_all_are_listed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_manifest_against_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_missing_tensor, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_manifest, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unsafe_path, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
