/* Slices against their model: sound ones pass; every kind of difference is found, in the slice where it is. */
#include "package/pkg_validate.h"

#include "pkg_edit.h"

#include <sys/stat.h>

static struct tmp_folder T;

static const char *paths[8];
static size_t n_paths;

/* A model of 4 layers, cut into n stages of whole layers; paths are their files. */
static void cut(uint32_t n, bool tied, uint32_t shards) {
    struct strata_errmsg em;
    const struct pkg_write_how how = {.jobs = 1};
    struct pkg_range ranges[4];
    json_t *manifest;
    struct sample s = {tmp_path(&T, "m"), 4, tied, true, shards, UINT32_MAX};
    sample_write(&s);
    for (uint32_t i = 0; i < n; i++) ranges[i] = (struct pkg_range){i * 4 / n, (i + 1) * 4 / n};
    const char *source = shards > 1 ? tmp_path(&T, "m-00001-of-00002.gguf") : tmp_path(&T, "m.gguf");
    if (pkg_write_stages(source, ranges, n, tmp_path(&T, "s"), &how, &manifest, &em)) fail_msg("%s", em.text);
    json_decref(manifest);
    static const char *const names[] = {"s/stage-000.gguf", "s/stage-001.gguf", "s/stage-002.gguf", "s/stage-003.gguf"};
    n_paths = n;
    for (uint32_t i = 0; i < n; i++) paths[i] = tmp_path(&T, names[i]);
}

static int setup(void **state) {
    (void)state;
    tmp_folder_make(&T);
    cut(2, false, 1);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tmp_folder_remove(T.path);
    return 0;
}

static void reset(void) {
    tmp_folder_remove(tmp_path(&T, "s"));
    cut(2, false, 1);
}

static void validate(struct pkg_validate_report *r) {
    const struct pkg_validate_options opt = {0};
    struct strata_errmsg em;
    struct stat st;
    const char *source =
        stat(tmp_path(&T, "m.gguf"), &st) == 0 ? tmp_path(&T, "m.gguf") : tmp_path(&T, "m-00002-of-00002.gguf");
    if (pkg_validate_run(source, paths, n_paths, &opt, r, &em)) fail_msg("%s", em.text);
}

/* The fault must be there, about that slice (NULL: about none), and be the only one unless `more`. */
static void finds(enum pkg_fault_code code, const char *path, bool more) {
    struct pkg_validate_report r;
    validate(&r);
    assert_false(pkg_validate_is_valid(&r));
    if (!edit_has(&r.faults, code, path) || (!more && r.faults.n != 1))
        fail_msg("%s:%s", pkg_fault_name(code), edit_list(&r.faults));
    pkg_validate_deinit(&r);
}

static void test_sound(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++)
        for (uint32_t shards = 1; shards <= 2; shards++)
            for (uint32_t n = 1; n <= 4; n++) {
                struct pkg_validate_report r;
                tmp_folder_remove(tmp_path(&T, "s"));
                remove(tmp_path(&T, "m.gguf"));
                cut(n, tied, shards);
                validate(&r);
                if (!pkg_validate_is_valid(&r)) fail_msg("%d %u %u:%s", tied, shards, n, edit_list(&r.faults));
                assert_int_equal(r.full_tensor_count, tied ? 15 : 16);
                assert_int_equal(r.required_owned_count, tied ? 14 : 15);
                assert_int_equal(json_array_size(r.missing) + json_array_size(r.duplicate), 0);
                assert_int_equal(r.layer_count, 4);
                size_t copies = n - 1 + (tied && n > 1 ? 1 : 0);
                assert_int_equal(r.compared_count, r.full_tensor_count + copies);
                pkg_validate_deinit(&r);
            }
}

static void test_content(void **state) {
    (void)state;
    static const struct {
        size_t slice;
        struct edit edit;
        enum pkg_fault_code code;
        const char *what; /* of the mismatch that is noted */
        bool more;
    } rows[] = {
        {1, {.flip = "blk.3.attn_q.weight"}, PKG_FAULT_TENSOR_PAYLOAD_MISMATCH, "payload", false},
        {0, {.flip = "rope_freqs.weight"}, PKG_FAULT_TENSOR_PAYLOAD_MISMATCH, "payload", false},
        {0, {.retype = "blk.0.attn_q.weight"}, PKG_FAULT_TENSOR_TYPE_MISMATCH, "type", false},
        {1, {.reshape = "blk.2.ffn_down.weight"}, PKG_FAULT_TENSOR_SHAPE_MISMATCH, "shape", false},
        {1, {.flatten = "output.weight"}, PKG_FAULT_TENSOR_SHAPE_MISMATCH, "shape", false},
        {0, {.flatten = "blk.0.attn_norm.weight"}, PKG_FAULT_TENSOR_SHAPE_MISMATCH, "shape", false}, /* 8 x 1 */
        {0, {.add = "blk.1.extra.weight"}, PKG_FAULT_UNKNOWN_TENSOR, NULL, false},
        {0, {.drop = "blk.1.attn_q.weight"}, PKG_FAULT_MISSING_TENSOR, NULL, false},
        {1, {.drop = "rope_freqs.weight"}, PKG_FAULT_MISSING_TENSOR, NULL, false},
        {1, {.rename = "blk.3.attn_q.weight", .to = "blk.3.attn_x.weight"}, PKG_FAULT_UNKNOWN_TENSOR, NULL, true},
        {0, {.set_key = "general.name", .string = "Another"}, PKG_FAULT_METADATA_MISMATCH, NULL, false},
        {0, {.drop_keys = "llama.block_count"}, PKG_FAULT_METADATA_MISMATCH, NULL, false},
        {1, {.set_key = "general.extra", .string = "x"}, PKG_FAULT_METADATA_MISMATCH, NULL, false},
        {1, {.set_int = "skippy.slice.layer_start", .value = 3}, PKG_FAULT_FOREIGN_TENSOR, NULL, true},
        {1, {.set_int = "skippy.slice.layer_start", .value = 5}, PKG_FAULT_SLICE_KEYS_MISMATCH, NULL, true},
        {1, {.drop_all = true}, PKG_FAULT_EMPTY_SLICE, NULL, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pkg_validate_report r;
        edit_gguf(paths[rows[i].slice], &rows[i].edit);
        /* A tensor that is in no slice is no slice's fault. */
        bool nowhere = rows[i].code == PKG_FAULT_MISSING_TENSOR && rows[i].slice == 0;
        finds(rows[i].code, nowhere ? NULL : paths[rows[i].slice], rows[i].more);
        validate(&r);
        const json_t *list = r.slices[rows[i].slice].facts.mismatches;
        assert_int_equal(json_array_size(list), rows[i].what ? 1 : 0);
        if (rows[i].what)
            assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "what")), rows[i].what);
        pkg_validate_deinit(&r);
        reset();
    }
    /* Just not: keys that a cut adds or sets. */
    edit_gguf(paths[0], &(struct edit){.drop_keys = "skippy."});
    edit_gguf(paths[1], &(struct edit){.set_key = "skippy.note", .string = "x"});
    edit_gguf(paths[1], &(struct edit){.set_key = "split.note", .string = "x"});
    struct pkg_validate_report r;
    validate(&r);
    if (!pkg_validate_is_valid(&r)) fail_msg("%s", edit_list(&r.faults));
    pkg_validate_deinit(&r);
}

static void test_first_byte(void **state) {
    (void)state;
    struct pkg_validate_report r;
    edit_gguf(paths[1], &(struct edit){.flip = "blk.3.attn_q.weight"}); /* its last byte */
    validate(&r);
    const json_t *m = json_array_get(r.slices[1].facts.mismatches, 0);
    assert_string_equal(json_string_value(json_object_get(m, "tensor")), "blk.3.attn_q.weight");
    assert_int_equal(json_integer_value(json_object_get(m, "first_byte")), SAMPLE_WIDTH * 5 * 4 - 1);
    pkg_validate_deinit(&r);
}

static void test_sets(void **state) {
    (void)state;
    struct pkg_validate_report r;
    /* One slice of two. */
    n_paths = 1;
    validate(&r);
    assert_false(pkg_validate_is_valid(&r));
    assert_int_equal(json_array_size(r.missing), 8);
    assert_string_equal(json_string_value(json_array_get(r.missing, 0)), "blk.2.attn_norm.weight");
    assert_string_equal(json_string_value(json_array_get(r.missing, 7)), "output_norm.weight");
    assert_int_equal(r.faults.n_errors, 8);
    pkg_validate_deinit(&r);
    /* The same slice twice. */
    n_paths = 3;
    paths[2] = paths[1];
    validate(&r);
    assert_int_equal(json_array_size(r.duplicate), 8);
    assert_int_equal(json_array_size(r.missing), 0);
    assert_true(edit_has(&r.faults, PKG_FAULT_DUPLICATE_TENSOR, NULL));
    pkg_validate_deinit(&r);
    /* Slices that overlap: two stages and a whole model. */
    tmp_folder_remove(tmp_path(&T, "s"));
    cut(2, true, 1);
    paths[2] = tmp_path(&T, "m.gguf");
    n_paths = 3;
    validate(&r);
    assert_int_equal(json_array_size(r.duplicate), 13); /* all but the embeddings, which each of them needs */
    pkg_validate_deinit(&r);
}

/* The token embeddings may be in a last slice only when the output is tied to them, and never in one between. */
static void test_tied(void **state) {
    (void)state;
    struct pkg_validate_report r;
    tmp_folder_remove(tmp_path(&T, "s"));
    cut(3, true, 1);
    validate(&r);
    assert_true(pkg_validate_is_valid(&r));
    pkg_validate_deinit(&r);
    edit_gguf(paths[1], &(struct edit){.drop_keys = "skippy."});
    edit_gguf(paths[1], &(struct edit){.add = "token_embd.weight"});
    validate(&r);
    assert_int_equal(json_array_size(r.duplicate), 1);
    pkg_validate_deinit(&r);
    reset();
    edit_gguf(paths[1], &(struct edit){.drop_keys = "skippy."});
    edit_gguf(paths[1], &(struct edit){.add = "token_embd.weight"});
    validate(&r);
    assert_int_equal(json_array_size(r.duplicate), 1);
    pkg_validate_deinit(&r);
}

static void break_magic(struct buf *b) {
    b->data[0] = 'X';
}

static void cut_half(struct buf *b) {
    b->len /= 2;
}

static void test_files(void **state) {
    (void)state;
    struct pkg_validate_report r;
    edit_bytes(paths[0], break_magic);
    finds(PKG_FAULT_INVALID_ARTIFACT_GGUF, paths[0], true);
    validate(&r);
    assert_false(r.slices[0].opened);
    assert_true(r.slices[0].facts.hashed && r.slices[1].opened);
    pkg_validate_deinit(&r);
    reset();
    edit_bytes(paths[1], cut_half);
    finds(PKG_FAULT_INVALID_ARTIFACT_GGUF, paths[1], true);
    assert_int_equal(remove(paths[1]), 0);
    finds(PKG_FAULT_MISSING_ARTIFACT, paths[1], true);
    assert_int_equal(mkdir(paths[1], 0755), 0);
    finds(PKG_FAULT_ARTIFACT_NOT_FILE, paths[1], true);
    assert_int_equal(remove(paths[1]), 0);
    assert_int_equal(file_write_all(paths[1], "", 0, 0644, NULL), STRATA_OK);
    finds(PKG_FAULT_INVALID_ARTIFACT_GGUF, paths[1], true);
}

static const char *keys_of(const json_t *o) {
    static char out[1024];
    const char *key;
    json_t *v;
    out[0] = '\0';
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        size_t len = strlen(out);
        snprintf(out + len, sizeof out - len, "%s%s", len ? " " : "", key);
    }
    return out;
}

static void test_json(void **state) {
    (void)state;
    struct pkg_validate_report r;
    struct strata_errmsg em;
    json_t *json;
    assert_int_equal(remove(paths[0]), 0); /* a slice that is not there is in the report all the same */
    validate(&r);
    assert_int_equal(pkg_validate_to_json(&r, true, &json, &em), STRATA_OK);
    assert_string_equal(keys_of(json), "valid full_tensor_count required_owned_tensor_count missing_owned_tensors "
                                       "duplicate_owned_tensors slices");
    const json_t *slices = json_object_get(json, "slices");
    for (size_t i = 0; i < 2; i++)
        assert_string_equal(keys_of(json_array_get(slices, i)),
                            "path tensor_count owned_tensor_count tensor_bytes missing_from_full sha256");
    assert_string_equal(json_string_value(json_object_get(json_array_get(slices, 0), "sha256")), "");
    json_decref(json);
    assert_int_equal(pkg_validate_to_json(&r, false, &json, &em), STRATA_OK);
    assert_true(json_is_false(json_object_get(json, "valid")));
    assert_int_equal(json_integer_value(json_object_get(json, "issue_count")),
                     json_array_size(json_object_get(json, "issues")));
    json_decref(json);
    pkg_validate_deinit(&r);
}

static bool always(void) {
    return true;
}

static void test_refusals(void **state) {
    (void)state;
    struct pkg_validate_options opt = {0};
    struct pkg_validate_report r;
    struct strata_errmsg em;
    assert_int_equal(pkg_validate_run(tmp_path(&T, "gone"), paths, n_paths, &opt, &r, &em), STRATA_ENOENT);
    opt.cancelled = always;
    assert_int_equal(pkg_validate_run(tmp_path(&T, "m.gguf"), paths, n_paths, &opt, &r, &em), STRATA_ECANCELLED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sound, setup, teardown),
        cmocka_unit_test_setup_teardown(test_content, setup, teardown),
        cmocka_unit_test_setup_teardown(test_first_byte, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sets, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tied, setup, teardown),
        cmocka_unit_test_setup_teardown(test_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_json, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
