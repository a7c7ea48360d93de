/*
 * Preflight: a sound package passes; each kind of damage is found, named and placed, and what is just not that damage
 * is not; several at once are all listed.
 */
#include "base/ed25519.h"
#include "package/pkg_check.h"
#include "package/pkg_convert.h"

#include "pkg_edit.h"

#include <pthread.h>
#include <sys/stat.h>

static struct tmp_folder T;

static const char META[] = "shared/metadata.gguf", EMBD[] = "shared/embeddings.gguf", OUT[] = "shared/output.gguf",
                  LAYER0[] = "layers/layer-00000.gguf", LAYER1[] = "layers/layer-00001.gguf",
                  LAYER2[] = "layers/layer-00002.gguf";

static int setup(void **state) {
    (void)state;
    tmp_folder_make(&T);
    struct sample s = {tmp_path(&T, "m"), 3, false, true, 1, UINT32_MAX};
    edit_write_package(&T, &s);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tmp_folder_remove(T.path);
    return 0;
}

/* The sample again, untouched. */
static void reset(void) {
    tmp_folder_remove(tmp_path(&T, "p"));
    struct sample s = {tmp_path(&T, "m"), 3, false, true, 1, UINT32_MAX};
    edit_write_package(&T, &s);
}

static void check_at(const char *path, struct pkg_check_report *r) {
    struct pkg_check_options opt = {0};
    struct strata_errmsg em;
    if (pkg_check_run(path, &opt, r, &em)) fail_msg("%s", em.text);
}

static void check(struct pkg_check_report *r) {
    check_at(tmp_path(&T, "p"), r);
}

/* Whether the package now has the fault, about that path; it must then have nothing else of that severity or above,
 * unless `more`. */
static bool finds(enum pkg_fault_code code, const char *path, bool more) {
    struct pkg_check_report r;
    check(&r);
    bool found = edit_has(&r.faults, code, path);
    for (size_t i = 0; i < r.faults.n && found && !more; i++)
        if (r.faults.list[i].code != code && r.faults.list[i].severity >= pkg_fault_severity(code))
            fail_msg("more than %s:%s", pkg_fault_name(code), edit_list(&r.faults));
    if (found)
        assert_int_equal(pkg_check_is_valid(&r), pkg_fault_severity(code) != PKG_ERROR || r.faults.n_errors == 0);
    pkg_check_deinit(&r);
    return found;
}

/* ---- sound ---- */

static void test_sound(void **state) {
    (void)state;
    struct pkg_check_report r;
    struct pkg_check_options opt = {.jobs = 1};
    struct strata_errmsg em;
    json_t *json;
    const char *const names[] = {tmp_path(&T, "p"), tmp_path(&T, "p/"), tmp_path(&T, "p/model-package.json")};
    for (size_t i = 0; i < 3; i++) {
        check_at(names[i], &r);
        assert_true(pkg_check_is_valid(&r));
        for (size_t k = 0; k < r.faults.n; k++) assert_int_equal(r.faults.list[k].severity, PKG_NOTE);
        assert_int_equal(r.n_items, 6);
        assert_true(r.complete && !r.select.tied);
        assert_int_equal(r.inv.n_tensors, 13);
        assert_int_equal(r.inv.layer_count, 3);
        for (size_t k = 0; k < 6; k++) assert_true(r.items[k].present && r.items[k].opened && r.items[k].digest_ok);
        assert_int_equal(pkg_check_to_json(&r, false, &json, &em), STRATA_OK);
        assert_true(json_is_true(json_object_get(json, "valid")));
        assert_int_equal(json_array_size(json_object_get(json, "artifacts")), 6);
        json_decref(json);
        pkg_check_deinit(&r);
    }
    /* One thread, and more threads than files. */
    for (opt.jobs = 1; opt.jobs <= 16; opt.jobs *= 4) {
        assert_int_equal(pkg_check_run(tmp_path(&T, "p"), &opt, &r, &em), STRATA_OK);
        assert_true(pkg_check_is_valid(&r));
        pkg_check_deinit(&r);
    }
}

static void test_no_package(void **state) {
    (void)state;
    struct pkg_check_report r;
    struct strata_errmsg em;
    json_t *json;
    const char *const names[] = {tmp_path(&T, "m.gguf"), tmp_path(&T, "gone"), T.path};
    for (size_t i = 0; i < 3; i++) {
        check_at(names[i], &r);
        assert_int_equal(r.faults.n, 1);
        assert_true(edit_has(&r.faults, PKG_FAULT_MISSING_MANIFEST, "model-package.json"));
        for (int older = 0; older < 2; older++) {
            assert_int_equal(pkg_check_to_json(&r, older, &json, &em), STRATA_OK);
            assert_true(json_is_null(json_object_get(json, "model_id")));
            assert_true(json_is_null(json_object_get(json, "layer_count")));
            assert_true(json_is_null(json_object_get(json, "activation_width")));
            assert_true(json_is_null(json_object_get(json, "manifest_sha256")));
            assert_int_equal(json_array_size(json_object_get(json, "artifacts")), 0);
            json_decref(json);
        }
        assert_false(pkg_check_can_divide(&r, 2));
        pkg_check_deinit(&r);
    }
}

/* ---- files ---- */

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
        void (*change)(struct buf *b);
        enum pkg_fault_code code;
    } rows[] = {{flip_last, PKG_FAULT_ARTIFACT_SHA256_MISMATCH},
                {cut_last, PKG_FAULT_ARTIFACT_SIZE_MISMATCH},
                {grow_last, PKG_FAULT_ARTIFACT_SIZE_MISMATCH},
                {empty_file, PKG_FAULT_ARTIFACT_SIZE_MISMATCH},
                {break_magic, PKG_FAULT_INVALID_ARTIFACT_GGUF}};
    static const char *const files[] = {META, EMBD, OUT, LAYER1};
    for (size_t f = 0; f < 4; f++) {
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            char path[400];
            struct buf keep;
            struct strata_errmsg em;
            struct pkg_check_report r;
            snprintf(path, sizeof path, "%s/p/%s", T.path, files[f]);
            buf_init(&keep, 1 << 24);
            assert_int_equal(file_read_all(path, 1 << 24, &keep, &em), STRATA_OK);
            edit_bytes(path, rows[i].change);
            check(&r);
            assert_false(pkg_check_is_valid(&r));
            assert_true(edit_has(&r.faults, rows[i].code, files[f]));
            size_t at = f < 3 ? f : 4;
            assert_true(r.items[at].present && r.items[at].digest_checked && !r.items[at].digest_ok);
            assert_false(r.complete && rows[i].code != PKG_FAULT_ARTIFACT_SHA256_MISMATCH);
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
    edit_bytes(tmp_path(&T, "p/layers/layer-00001.gguf"), flip_last);
    assert_int_equal(pkg_check_run(tmp_path(&T, "p"), &opt, &r, &em), STRATA_OK);
    assert_true(pkg_check_is_valid(&r));
    assert_false(r.items[0].digest_checked || r.items[4].digest_checked);
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
    edit_bytes(tmp_path(&T, "p/layers/layer-00000.gguf"), flip_last);
    edit_bytes(tmp_path(&T, "p/layers/layer-00001.gguf"), cut_last);
    check(&r);
    assert_true(edit_has(&r.faults, PKG_FAULT_MISSING_ARTIFACT, OUT));
    assert_true(edit_has(&r.faults, PKG_FAULT_ARTIFACT_NOT_FILE, LAYER2));
    assert_true(edit_has(&r.faults, PKG_FAULT_ARTIFACT_SHA256_MISMATCH, LAYER0));
    assert_true(edit_has(&r.faults, PKG_FAULT_ARTIFACT_SIZE_MISMATCH, LAYER1));
    assert_int_equal(r.faults.n_errors, 4);
    assert_int_equal(pkg_check_to_json(&r, true, &json, &em), STRATA_OK);
    assert_true(json_is_false(json_object_get(json, "valid")));
    assert_int_equal(json_array_size(json_object_get(json, "issues")), 4);
    assert_int_equal(json_integer_value(json_object_get(json, "issue_count")), 4);
    assert_int_equal(json_integer_value(json_object_get(json, "missing_artifact_count")), 2);
    assert_int_equal(json_integer_value(json_object_get(json, "checked_artifact_count")), 6);
    json_decref(json);
    pkg_check_deinit(&r);
}

/* ---- a manifest that agrees with itself, but not with the files ---- */

static void test_counts(void **state) {
    (void)state;
    edit_field(&T, LAYER2, "tensor_count", json_integer(7));
    assert_true(finds(PKG_FAULT_TENSOR_COUNT_MISMATCH, LAYER2, false));
    edit_follow(&T, LAYER2);
    edit_field(&T, OUT, "tensor_bytes", json_integer(1));
    assert_true(finds(PKG_FAULT_TENSOR_BYTES_MISMATCH, OUT, false));
    edit_follow(&T, OUT);
    assert_false(finds(PKG_FAULT_TENSOR_COUNT_MISMATCH, NULL, true));
    assert_false(finds(PKG_FAULT_TENSOR_BYTES_MISMATCH, NULL, true));
}

static void set_root(const char *key, json_t *value) {
    json_t *root = edit_load(&T);
    if (value)
        json_object_set_new(root, key, value);
    else
        json_object_del(root, key);
    edit_store(&T, root);
}

static void test_facts(void **state) {
    (void)state;
    set_root("activation_width", json_integer(9));
    assert_true(finds(PKG_FAULT_ACTIVATION_WIDTH_MISMATCH, META, false));
    set_root("activation_width", json_integer(SAMPLE_WIDTH));
    assert_false(finds(PKG_FAULT_ACTIVATION_WIDTH_MISMATCH, NULL, true));
    set_root("activation_width", NULL);
    assert_true(finds(PKG_FAULT_MISSING_ACTIVATION_WIDTH, NULL, false));
    /* Which readers that are stricter may call an error. */
    struct pkg_check_report r;
    check(&r);
    assert_true(pkg_check_is_valid(&r));
    pkg_faults_raise(&r.faults, PKG_FAULT_MISSING_ACTIVATION_WIDTH);
    assert_false(pkg_check_is_valid(&r));
    pkg_faults_raise(&r.faults, PKG_FAULT_MISSING_ACTIVATION_WIDTH);
    assert_int_equal(r.faults.n_errors, 1);
    pkg_check_deinit(&r);
    reset();
    /* The last layer is taken off, which the metadata does not know. */
    json_t *root = edit_load(&T);
    json_array_remove(json_object_get(root, "layers"), 2);
    json_object_set_new(root, "layer_count", json_integer(2));
    edit_store(&T, root);
    assert_int_equal(remove(tmp_path(&T, "p/layers/layer-00002.gguf")), 0);
    assert_true(finds(PKG_FAULT_LAYER_COUNT_MISMATCH, META, false));
    /* The output part says of itself that it comes after layer 2, as any other empty range would do. */
    assert_false(finds(PKG_FAULT_SLICE_KEYS_MISMATCH, NULL, true));
}

static void test_provenance(void **state) {
    (void)state;
    json_t *root = edit_load(&T), *s = json_object_get(root, "source_model");
    json_object_set_new(s, "repo", json_string("a/b"));
    json_object_set_new(s, "revision", json_string("abc"));
    json_object_set_new(s, "primary_file", json_string("m.gguf"));
    edit_store(&T, root);
    assert_false(finds(PKG_FAULT_MISSING_SOURCE_IDENTITY, NULL, true));
    assert_false(finds(PKG_FAULT_MISSING_SOURCE_DIGEST, NULL, true));
    static const char *const keys[] = {"repo", "revision", "primary_file"};
    for (size_t i = 0; i < 3; i++) {
        json_t *copy = edit_load(&T), *value;
        s = json_object_get(copy, "source_model");
        value = json_incref(json_object_get(s, keys[i]));
        json_object_del(s, keys[i]);
        edit_store(&T, copy);
        assert_true(finds(PKG_FAULT_MISSING_SOURCE_IDENTITY, NULL, true));
        copy = edit_load(&T);
        json_object_set_new(json_object_get(copy, "source_model"), keys[i], value);
        edit_store(&T, copy);
    }
    root = edit_load(&T);
    json_object_set_new(json_array_get(json_object_get(json_object_get(root, "source_model"), "files"), 0), "sha256",
                        json_null());
    edit_store(&T, root);
    assert_true(finds(PKG_FAULT_MISSING_SOURCE_DIGEST, NULL, true));
    root = edit_load(&T);
    json_object_del(json_object_get(root, "source_model"), "files");
    edit_store(&T, root);
    assert_true(finds(PKG_FAULT_MISSING_SOURCE_DIGEST, NULL, true));
    set_root("not_a_key", json_true());
    assert_true(finds(PKG_FAULT_UNKNOWN_KEY, NULL, true));
}

/* ---- tensors ---- */

/* Two layers' files exchanged: sizes and digests agree with the entries, and only the content tells. */
static void test_exchanged(void **state) {
    (void)state;
    struct pkg_check_report r;
    json_t *root = edit_load(&T), *layers = json_object_get(root, "layers");
    json_t *a = json_deep_copy(json_array_get(layers, 0)), *b = json_deep_copy(json_array_get(layers, 1));
    json_object_set_new(a, "layer_index", json_integer(1));
    json_object_set_new(b, "layer_index", json_integer(0));
    json_array_set_new(layers, 0, b);
    json_array_set_new(layers, 1, a);
    edit_store(&T, root);
    check(&r);
    assert_true(edit_has(&r.faults, PKG_FAULT_FOREIGN_TENSOR, LAYER0));
    assert_true(edit_has(&r.faults, PKG_FAULT_FOREIGN_TENSOR, LAYER1));
    assert_true(edit_has(&r.faults, PKG_FAULT_MISSING_TENSOR, LAYER0));
    assert_true(edit_has(&r.faults, PKG_FAULT_SLICE_KEYS_MISMATCH, LAYER0));
    assert_false(edit_has(&r.faults, PKG_FAULT_FOREIGN_TENSOR, LAYER2));
    assert_false(edit_has(&r.faults, PKG_FAULT_DUPLICATE_TENSOR, NULL));
    pkg_check_deinit(&r);
}

static void test_foreign_and_missing(void **state) {
    (void)state;
    static const struct {
        const char *path;
        struct edit edit;
        enum pkg_fault_code code;
        const char *about;
    } rows[] = {
        {LAYER1, {.add = "blk.2.attn_k.weight"}, PKG_FAULT_FOREIGN_TENSOR, LAYER1},
        {LAYER1, {.add = "token_embd.bias"}, PKG_FAULT_MISSING_TENSOR, META}, /* of no part: must be in every part */
        {LAYER1, {.add = "output.bias"}, PKG_FAULT_FOREIGN_TENSOR, LAYER1},
        {EMBD, {.add = "output.bias"}, PKG_FAULT_FOREIGN_TENSOR, EMBD},
        {OUT, {.add = "per_layer_token_embd.weight"}, PKG_FAULT_FOREIGN_TENSOR, OUT},
        {META, {.add = "blk.0.extra.weight"}, PKG_FAULT_FOREIGN_TENSOR, META},
        {EMBD, {.drop = "token_embd.weight"}, PKG_FAULT_MISSING_TENSOR, EMBD},
        {LAYER2, {.drop_all = true}, PKG_FAULT_MISSING_TENSOR, LAYER2},
        {META, {.drop = "rope_freqs.weight"}, PKG_FAULT_MISSING_TENSOR, META},
        {LAYER1,
         {.rename = "blk.1.attn_norm.weight", .to = "blk.7.attn_norm.weight"},
         PKG_FAULT_FOREIGN_TENSOR,
         LAYER1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        edit_part(&T, rows[i].path, &rows[i].edit);
        if (!finds(rows[i].code, rows[i].about, false)) fail_msg("row %zu", i);
        reset();
    }
    /* Just not: one more tensor of the same part; a part without its copy, which the metadata part has. */
    edit_part(&T, LAYER1, &(struct edit){.add = "blk.1.attn_k.weight"});
    edit_part(&T, EMBD, &(struct edit){.add = "per_layer_token_embd.weight"});
    edit_part(&T, OUT, &(struct edit){.add = "output_norm.bias", .drop = "rope_freqs.weight"});
    edit_part(&T, LAYER0, &(struct edit){.drop = "blk.0.attn_norm.weight"});
    struct pkg_check_report r;
    check(&r);
    if (!pkg_check_is_valid(&r)) fail_msg("%s", edit_list(&r.faults));
    pkg_check_deinit(&r);
}

static void test_duplicate(void **state) {
    (void)state;
    struct pkg_check_report r;
    edit_part(&T, LAYER1, &(struct edit){.add = "output.weight"});
    check(&r);
    assert_true(edit_has(&r.faults, PKG_FAULT_DUPLICATE_TENSOR, LAYER1));
    assert_true(edit_has(&r.faults, PKG_FAULT_FOREIGN_TENSOR, LAYER1));
    assert_non_null(strstr(edit_list(&r.faults), OUT)); /* both places are named */
    pkg_check_deinit(&r);
}

static void test_replicas(void **state) {
    (void)state;
    struct pkg_check_options opt = {.skip_digests = true};
    struct pkg_check_report r;
    struct strata_errmsg em;
    edit_part(&T, LAYER1, &(struct edit){.flip = "rope_freqs.weight"});
    assert_true(finds(PKG_FAULT_REPLICA_MISMATCH, LAYER1, false));
    assert_int_equal(pkg_check_run(tmp_path(&T, "p"), &opt, &r, &em), STRATA_OK); /* bytes are digests' business */
    assert_true(pkg_check_is_valid(&r));
    pkg_check_deinit(&r);
    reset();
    edit_part(&T, OUT, &(struct edit){.flatten = "rope_freqs.weight"}); /* 8 x 1 becomes 8: the same to everybody */
    assert_false(finds(PKG_FAULT_REPLICA_MISMATCH, NULL, true));
    edit_part(&T, OUT, &(struct edit){.reshape = "rope_freqs.weight"});
    assert_true(finds(PKG_FAULT_REPLICA_MISMATCH, OUT, false));
    reset();
    edit_part(&T, EMBD, &(struct edit){.retype = "rope_freqs.weight"});
    assert_true(finds(PKG_FAULT_REPLICA_MISMATCH, EMBD, false));
    reset();
    /* An owned tensor has no replica. */
    edit_part(&T, LAYER1, &(struct edit){.flip = "blk.1.attn_q.weight"});
    assert_false(finds(PKG_FAULT_REPLICA_MISMATCH, NULL, true));
}

static void test_metadata(void **state) {
    (void)state;
    static const char arch[] = "general.architecture";
    edit_part(&T, LAYER1, &(struct edit){.set_key = arch, .string = "mamba"});
    assert_true(finds(PKG_FAULT_ARCHITECTURE_MISMATCH, LAYER1, false));
    edit_part(&T, LAYER1, &(struct edit){.set_key = arch, .string = "llama"});
    assert_false(finds(PKG_FAULT_ARCHITECTURE_MISMATCH, NULL, true));
    edit_part(&T, LAYER1, &(struct edit){.drop_keys = arch});
    assert_true(finds(PKG_FAULT_ARCHITECTURE_MISMATCH, LAYER1, false));
    reset();
    edit_part(&T, META, &(struct edit){.drop_keys = arch});
    assert_true(finds(PKG_FAULT_ARCHITECTURE_MISMATCH, META, false));
    reset();
    /* A slim part carries the architecture and its place, and that is enough. */
    edit_part(&T, LAYER1, &(struct edit){.drop_keys = "llama."});
    edit_part(&T, LAYER1, &(struct edit){.drop_keys = "general.name"});
    struct pkg_check_report r;
    check(&r);
    if (!pkg_check_is_valid(&r)) fail_msg("%s", edit_list(&r.faults));
    pkg_check_deinit(&r);
}

static void test_slice_keys(void **state) {
    (void)state;
    edit_part(&T, LAYER1, &(struct edit){.set_int = "skippy.slice.stage_index", .value = 5});
    assert_false(finds(PKG_FAULT_SLICE_KEYS_MISMATCH, NULL, true));
    static const struct {
        const char *path;
        struct edit edit;
    } rows[] = {
        {LAYER1, {.set_int = "skippy.slice.layer_start", .value = 0}},
        {LAYER1, {.set_int = "skippy.slice.layer_end", .value = 3}},
        {LAYER1, {.set_int = "skippy.slice.layer_end", .value = 0}},
        {LAYER1, {.set_int = "skippy.slice.layer_end", .value = -1}},
        {LAYER1, {.set_bool = "skippy.slice.include_embeddings"}},
        {LAYER1, {.set_bool = "skippy.slice.include_output"}},
        {EMBD, {.set_bool = "skippy.slice.include_output"}},
        {META, {.set_int = "skippy.slice.layer_end", .value = 3}},
        {OUT, {.set_key = "skippy.slice.layer_start", .string = "three"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        edit_part(&T, rows[i].path, &rows[i].edit);
        if (!finds(PKG_FAULT_SLICE_KEYS_MISMATCH, rows[i].path, false)) fail_msg("row %zu", i);
        reset();
    }
    /* Packages of older writers have none: one warning, however many parts. */
    edit_part(&T, LAYER1, &(struct edit){.drop_keys = "skippy.slice."});
    edit_part(&T, LAYER2, &(struct edit){.drop_keys = "skippy.slice.layer_end"});
    assert_true(finds(PKG_FAULT_MISSING_SLICE_KEYS, LAYER1, false));
    struct pkg_check_report r;
    check(&r);
    assert_true(pkg_check_is_valid(&r));
    size_t n = 0;
    for (size_t i = 0; i < r.faults.n; i++) n += r.faults.list[i].code == PKG_FAULT_MISSING_SLICE_KEYS;
    assert_int_equal(n, 1);
    assert_non_null(strstr(edit_list(&r.faults), "2 files"));
    pkg_check_deinit(&r);
}

/* ---- generation ---- */

static void test_generation(void **state) {
    (void)state;
    json_t *block = json_loads("{\"speculative_decoding\": {\"default\": \"mtp\", \"strategies\": {\"mtp\": {\"type\": "
                               "\"native-mtp\", \"prediction_depth\": 1, \"layer_indices\": [2]}}}}",
                               0, NULL);
    struct pkg_check_report r;
    set_root("generation", block);
    assert_true(finds(PKG_FAULT_NATIVE_MTP_LAYER_WITHOUT_TENSORS, NULL, false));
    check(&r);
    json_t *strategies = json_object_get(json_object_get(r.generation, "speculative_decoding"), "strategies");
    assert_string_equal(json_string_value(json_object_get(json_array_get(strategies, 0), "name")), "mtp");
    pkg_check_deinit(&r);
    edit_part(&T, LAYER2, &(struct edit){.add = "blk.2.nextn.eh_proj.weight"});
    edit_part(&T, LAYER2, &(struct edit){.add = "blk.2.nextn.enorm.weight"});
    assert_true(finds(PKG_FAULT_NATIVE_MTP_LAYER_WITHOUT_TENSORS, NULL, false)); /* not all of them */
    edit_part(&T, LAYER2, &(struct edit){.add = "blk.2.nextn.hnorm.weight"});
    assert_false(finds(PKG_FAULT_NATIVE_MTP_LAYER_WITHOUT_TENSORS, NULL, true));
    /* The layer's file is gone: then nobody can tell. */
    assert_int_equal(remove(tmp_path(&T, "p/layers/layer-00002.gguf")), 0);
    assert_true(finds(PKG_FAULT_MISSING_ARTIFACT, LAYER2, false));
    reset();
    block = json_loads("{\"speculative_decoding\": {\"default\": \"none\", \"strategies\": {}}}", 0, NULL);
    set_root("generation", block);
    assert_true(finds(PKG_FAULT_MISSING_SPECULATIVE_DEFAULT_STRATEGY, NULL, false));
}

/* ---- the folder ---- */

static void test_strays(void **state) {
    (void)state;
    static const char *const fine[] = {"p/README.md",      "p/LICENSE",         "p/LICENSE.txt",
                                       "p/.gitattributes", "p/validation.json", "p/NOTICE"};
    static const char *const stray[] = {"p/x.gguf", "p/layers/layer-00003.gguf", "p/shared/deep/er/x",
                                        "p/layers/README.md", "p/model-package.json.bak"};
    struct pkg_check_report r;
    struct strata_errmsg em;
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++)
        assert_int_equal(file_write_all(tmp_path(&T, fine[i]), "x", 1, 0644, &em), STRATA_OK);
    assert_int_equal(file_mkdirs(tmp_path(&T, "p/.cache/x"), 0755, &em), STRATA_OK);
    assert_int_equal(file_write_all(tmp_path(&T, "p/.cache/x/y"), "x", 1, 0644, &em), STRATA_OK);
    assert_int_equal(file_mkdirs(tmp_path(&T, "p/empty"), 0755, &em), STRATA_OK);
    assert_false(finds(PKG_FAULT_STRAY_FILE, NULL, true));
    assert_int_equal(file_mkdirs(tmp_path(&T, "p/shared/deep/er"), 0755, &em), STRATA_OK);
    for (size_t i = 0; i < sizeof stray / sizeof stray[0]; i++) {
        assert_int_equal(file_write_all(tmp_path(&T, stray[i]), "x", 1, 0644, &em), STRATA_OK);
        assert_true(finds(PKG_FAULT_STRAY_FILE, stray[i] + 2, false));
    }
    /* In order, whatever the folder's own order is; and many are not listed one by one. */
    for (int i = 0; i < 80; i++) {
        char name[64];
        snprintf(name, sizeof name, "p/z%d", i);
        assert_int_equal(file_write_all(tmp_path(&T, name), "x", 1, 0644, &em), STRATA_OK);
    }
    check(&r);
    assert_true(pkg_check_is_valid(&r));
    size_t n = 0;
    const char *last = "";
    for (size_t i = 0; i < r.faults.n; i++) {
        if (r.faults.list[i].code != PKG_FAULT_STRAY_FILE) continue;
        n++;
        if (!r.faults.list[i].path) continue;
        assert_true(strcmp(last, r.faults.list[i].path) < 0);
        last = r.faults.list[i].path;
    }
    assert_int_equal(n, 51);
    assert_non_null(strstr(edit_list(&r.faults), "35 more"));
    pkg_check_deinit(&r);
}

static void test_split_names(void **state) {
    (void)state;
    static const char to[] = "layers/x-00001-of-00002.gguf", near[] = "layers/x-0001-of-00002.gguf";
    assert_int_equal(rename(tmp_path(&T, "p/layers/layer-00001.gguf"), tmp_path(&T, "p/layers/x-00001-of-00002.gguf")),
                     0);
    edit_field(&T, LAYER1, "path", json_string(to));
    assert_true(finds(PKG_FAULT_SPLIT_NAMED_ARTIFACT, to, false));
    assert_int_equal(
        rename(tmp_path(&T, "p/layers/x-00001-of-00002.gguf"), tmp_path(&T, "p/layers/x-0001-of-00002.gguf")), 0);
    edit_field(&T, to, "path", json_string(near));
    assert_false(finds(PKG_FAULT_SPLIT_NAMED_ARTIFACT, NULL, true));
}

/* ---- the manifest as a file ---- */

static void truncate_json(struct buf *b) {
    b->len /= 2;
}

static void test_bad_manifest(void **state) {
    (void)state;
    struct pkg_check_report r;
    struct strata_errmsg em;
    json_t *json;
    edit_bytes(tmp_path(&T, "p/model-package.json"), truncate_json);
    check(&r);
    assert_true(edit_has(&r.faults, PKG_FAULT_INVALID_MANIFEST_JSON, NULL));
    assert_int_equal(pkg_check_to_json(&r, false, &json, &em), STRATA_OK);
    json_decref(json);
    pkg_check_deinit(&r);
    assert_int_equal(truncate(tmp_path(&T, "p/model-package.json"), PKG_MANIFEST_MAX_BYTES + 1), 0);
    assert_true(finds(PKG_FAULT_MANIFEST_TOO_LARGE, NULL, false));
    assert_int_equal(remove(tmp_path(&T, "p/model-package.json")), 0);
    check(&r);
    assert_true(edit_has(&r.faults, PKG_FAULT_MISSING_MANIFEST, "model-package.json"));
    assert_int_equal(r.faults.n, 1);
    pkg_check_deinit(&r);
}

/* ---- the signature ---- */

static void test_signature(void **state) {
    (void)state;
    struct ed25519_key *key = NULL, *other = NULL;
    struct pkg_sign_result res;
    struct pkg_check_report r;
    struct strata_errmsg em;
    json_t *json;
    assert_true(finds(PKG_FAULT_UNSIGNED, NULL, true));
    assert_int_equal(ed25519_key_generate(&key, &em), STRATA_OK);
    assert_int_equal(ed25519_key_generate(&other, &em), STRATA_OK);
    assert_int_equal(pkg_sign_write(tmp_path(&T, "p"), key, false, &res, &em), STRATA_OK);
    assert_false(finds(PKG_FAULT_UNSIGNED, NULL, true));
    struct ed25519_pub pub = *ed25519_key_pub(key), foreign = *ed25519_key_pub(other);
    for (int right = 0; right < 2; right++) {
        struct pkg_check_options opt = {.require_signature = right ? &pub : &foreign};
        assert_int_equal(pkg_check_run(tmp_path(&T, "p"), &opt, &r, &em), STRATA_OK);
        assert_int_equal(edit_has(&r.faults, PKG_FAULT_UNTRUSTED_SIGNATURE, NULL), !right);
        assert_int_equal(pkg_check_is_valid(&r), right);
        assert_int_equal(pkg_check_to_json(&r, false, &json, &em), STRATA_OK);
        assert_string_equal(json_string_value(json_object_get(json_object_get(json, "signature"), "state")), "signed");
        json_decref(json);
        pkg_check_deinit(&r);
    }
    set_root("created_at_unix_secs", json_integer(1));
    assert_true(finds(PKG_FAULT_BAD_SIGNATURE, NULL, true));
    ed25519_key_free(key);
    ed25519_key_free(other);
}

/* ---- stages ---- */

/* The parts of a stage as one text. */
static const char *parts_of(const struct pkg_check_report *r, size_t stage) {
    static char out[1024];
    char name[PKG_CHECK_NAME];
    out[0] = '\0';
    for (size_t i = 0; i < r->stages[stage].n_parts; i++) {
        size_t len = strlen(out);
        snprintf(out + len, sizeof out - len, "%s%s", len ? " " : "",
                 pkg_check_part_name(r, r->stages[stage].parts[i], name));
    }
    return out;
}

static void test_stages(void **state) {
    (void)state;
    static const struct pkg_range two[] = {{0, 2}, {2, 3}}, one[] = {{0, 3}};
    struct pkg_check_report r;
    struct strata_errmsg em;
    json_t *json;
    check(&r);
    assert_int_equal(pkg_check_stages(&r, two, 2, &em), STRATA_OK);
    assert_string_equal(parts_of(&r, 0), "metadata embeddings layer:0 layer:1");
    assert_string_equal(parts_of(&r, 1), "metadata layer:2 output");
    assert_true(r.stages[0].embeddings && !r.stages[0].output && !r.stages[1].embeddings && r.stages[1].output);
    assert_int_equal(r.stages[1].bytes, r.items[0].actual_bytes + r.items[2].actual_bytes + r.items[5].actual_bytes);
    for (int older = 0; older < 2; older++) {
        assert_int_equal(pkg_check_to_json(&r, older, &json, &em), STRATA_OK);
        json_t *s = json_array_get(json_object_get(json, "stages"), 1);
        assert_int_equal(json_integer_value(json_object_get(s, "layer_start")), 2);
        assert_int_equal(json_integer_value(json_object_get(s, "part_count")), 3);
        assert_int_equal(json_array_size(json_object_get(s, "missing_parts")), 0);
        json_decref(json);
    }
    pkg_check_deinit(&r);
    check(&r);
    assert_int_equal(pkg_check_stages(&r, one, 1, &em), STRATA_OK);
    assert_string_equal(parts_of(&r, 0), "metadata embeddings layer:0 layer:1 layer:2 output");
    assert_true(pkg_check_can_divide(&r, 1) && pkg_check_can_divide(&r, 3));
    assert_true(pkg_check_is_valid(&r));
    assert_false(pkg_check_can_divide(&r, 0));
    assert_true(edit_has(&r.faults, PKG_FAULT_INVALID_STAGE_COUNT, NULL));
    assert_false(edit_has(&r.faults, PKG_FAULT_STAGE_COUNT_EXCEEDS_LAYER_COUNT, NULL));
    assert_false(pkg_check_can_divide(&r, 4));
    assert_true(edit_has(&r.faults, PKG_FAULT_STAGE_COUNT_EXCEEDS_LAYER_COUNT, NULL));
    assert_false(pkg_check_can_divide(&r, UINT64_MAX));
    pkg_check_deinit(&r);
    /* What is not there is missing, and has no bytes. */
    assert_int_equal(remove(tmp_path(&T, "p/shared/output.gguf")), 0);
    check(&r);
    assert_int_equal(pkg_check_stages(&r, two, 2, &em), STRATA_OK);
    assert_int_equal(r.stages[1].bytes, r.items[0].actual_bytes + r.items[5].actual_bytes);
    assert_int_equal(pkg_check_to_json(&r, true, &json, &em), STRATA_OK);
    json_t *missing = json_object_get(json_array_get(json_object_get(json, "stages"), 1), "missing_parts");
    assert_int_equal(json_array_size(missing), 1);
    assert_string_equal(json_string_value(json_array_get(missing, 0)), "output");
    json_decref(json);
    pkg_check_deinit(&r);
}

/* The last stage of a tied model computes with the token embeddings. */
static void test_tied_stages(void **state) {
    (void)state;
    static const struct pkg_range three[] = {{0, 1}, {1, 2}, {2, 3}};
    struct pkg_check_report r;
    struct strata_errmsg em;
    tmp_folder_remove(tmp_path(&T, "p"));
    struct sample s = {tmp_path(&T, "m"), 3, true, true, 1, UINT32_MAX};
    edit_write_package(&T, &s);
    check(&r);
    assert_true(pkg_check_is_valid(&r) && r.select.tied);
    assert_int_equal(pkg_check_stages(&r, three, 3, &em), STRATA_OK);
    assert_string_equal(parts_of(&r, 0), "metadata embeddings layer:0");
    assert_string_equal(parts_of(&r, 1), "metadata layer:1");
    assert_string_equal(parts_of(&r, 2), "metadata embeddings layer:2 output");
    assert_true(r.stages[2].embeddings && r.stages[2].output);
    pkg_check_deinit(&r);
}

/* ---- as JSON ---- */

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

static void test_older_keys(void **state) {
    (void)state;
    static const struct pkg_range one[] = {{0, 3}};
    struct pkg_check_report r;
    struct strata_errmsg em;
    json_t *json;
    set_root("not_a_key", json_true());
    edit_bytes(tmp_path(&T, "p/shared/output.gguf"), flip_last);
    set_root("format", json_string("x"));
    check(&r);
    assert_int_equal(pkg_check_stages(&r, one, 1, &em), STRATA_OK);
    assert_int_equal(pkg_check_to_json(&r, true, &json, &em), STRATA_OK);
    assert_string_equal(keys_of(json), "schema_version package_path valid model_id layer_count activation_width "
                                       "manifest_sha256 checked_artifact_count missing_artifact_count issue_count "
                                       "issues artifacts stages");
    json_t *issues = json_object_get(json, "issues");
    assert_int_equal(json_array_size(issues), 2); /* no note, no warning */
    assert_string_equal(keys_of(json_array_get(issues, 0)), "severity code message path remediation");
    assert_string_equal(json_string_value(json_object_get(json_array_get(issues, 0), "path")), "model-package.json");
    assert_string_equal(json_string_value(json_object_get(json_array_get(issues, 1), "path")), OUT);
    json_t *artifacts = json_object_get(json, "artifacts");
    assert_string_equal(keys_of(json_array_get(artifacts, 0)),
                        "role path present declared_artifact_bytes actual_artifact_bytes size_matches_manifest "
                        "sha256_matches_manifest");
    assert_string_equal(keys_of(json_array_get(artifacts, 3)),
                        "role layer_index path present declared_artifact_bytes actual_artifact_bytes "
                        "size_matches_manifest sha256_matches_manifest");
    assert_string_equal(keys_of(json_array_get(json_object_get(json, "stages"), 0)),
                        "stage_index layer_start layer_end includes_embeddings includes_output part_count "
                        "artifact_bytes parts missing_parts");
    json_decref(json);
    pkg_check_deinit(&r);
}

/* ---- schema 2 ---- */

static void convert(void) {
    struct strata_errmsg em;
    json_t *root = edit_load(&T), *s = json_object_get(root, "source_model");
    json_object_set_new(s, "repo", json_string("a/b"));
    json_object_set_new(s, "revision", json_string("abc"));
    json_object_set_new(s, "primary_file", json_string("m.gguf"));
    json_object_set_new(root, "model_id", json_string("a/b"));
    edit_store(&T, root);
    struct pkg_convert_options opt = {.to_schema = 2, .out_dir = tmp_path(&T, "p2")};
    struct pkg_convert_result res;
    if (pkg_convert(tmp_path(&T, "p"), &opt, &res, &em)) fail_msg("%s", em.text);
    json_decref(res.manifest);
}

static void test_schema2(void **state) {
    (void)state;
    static const struct pkg_range two[] = {{0, 2}, {2, 3}};
    struct pkg_check_report r;
    struct strata_errmsg em;
    convert();
    check_at(tmp_path(&T, "p2"), &r);
    if (!pkg_check_is_valid(&r)) fail_msg("%s", edit_list(&r.faults));
    assert_int_equal(r.manifest->schema, 2);
    assert_true(r.complete);
    assert_int_equal(pkg_check_stages(&r, two, 2, &em), STRATA_OK);
    assert_string_equal(parts_of(&r, 0), "metadata common layer-00000 layer-00001");
    assert_string_equal(parts_of(&r, 1), "metadata common layer-00002");
    pkg_check_deinit(&r);
    /* A part that does not hold what the carrier says. */
    edit_gguf(tmp_path(&T, "p2/layers/layer-00001.gguf"),
              &(struct edit){.rename = "blk.1.attn_q.weight", .to = "blk.1.attn_x.weight"});
    check_at(tmp_path(&T, "p2"), &r);
    assert_true(edit_has(&r.faults, PKG_FAULT_ARTIFACT_SHA256_MISMATCH, LAYER1));
    assert_true(edit_has(&r.faults, PKG_FAULT_MISSING_TENSOR, LAYER1));
    pkg_check_deinit(&r);
    edit_gguf(tmp_path(&T, "p2/layers/layer-00001.gguf"),
              &(struct edit){.rename = "blk.1.attn_x.weight", .to = "blk.1.attn_q.weight"});
    edit_gguf(tmp_path(&T, "p2/layers/layer-00001.gguf"), &(struct edit){.reshape = "blk.1.attn_q.weight"});
    check_at(tmp_path(&T, "p2"), &r);
    assert_true(edit_has(&r.faults, PKG_FAULT_REPLICA_MISMATCH, LAYER1));
    pkg_check_deinit(&r);
    /* A carrier that cannot be read: the parts are still looked at, and nothing is claimed of stages. */
    edit_bytes(tmp_path(&T, "p2/shared/metadata.gguf"), break_magic);
    check_at(tmp_path(&T, "p2"), &r);
    assert_true(edit_has(&r.faults, PKG_FAULT_INVALID_ARTIFACT_GGUF, META));
    assert_int_equal(pkg_check_stages(&r, two, 2, &em), STRATA_OK);
    assert_int_equal(r.n_stages, 0);
    pkg_check_deinit(&r);
}

/* ---- many ---- */

static void test_order(void **state) {
    (void)state;
    struct pkg_check_report r;
    char first[8192];
    edit_bytes(tmp_path(&T, "p/shared/embeddings.gguf"), flip_last);
    for (int i = 0; i < 3; i++) {
        char path[64];
        snprintf(path, sizeof path, "p/layers/layer-0000%d.gguf", i);
        edit_bytes(tmp_path(&T, path), flip_last);
    }
    check(&r);
    snprintf(first, sizeof first, "%s", edit_list(&r.faults));
    assert_int_equal(r.faults.n_errors, 4);
    pkg_check_deinit(&r);
    for (unsigned jobs = 1; jobs < 20; jobs++) {
        struct pkg_check_options opt = {.jobs = jobs};
        struct strata_errmsg em;
        assert_int_equal(pkg_check_run(tmp_path(&T, "p"), &opt, &r, &em), STRATA_OK);
        assert_string_equal(edit_list(&r.faults), first);
        pkg_check_deinit(&r);
    }
}

static bool always(void) {
    return true;
}

static void test_cancel(void **state) {
    (void)state;
    struct pkg_check_options opt = {.cancelled = always};
    struct pkg_check_report r;
    struct strata_errmsg em;
    assert_int_equal(pkg_check_run(tmp_path(&T, "p"), &opt, &r, &em), STRATA_ECANCELLED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sound, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_package, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damage, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_digests, setup, teardown),
        cmocka_unit_test_setup_teardown(test_all_are_listed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_facts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_provenance, setup, teardown),
        cmocka_unit_test_setup_teardown(test_exchanged, setup, teardown),
        cmocka_unit_test_setup_teardown(test_foreign_and_missing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_duplicate, setup, teardown),
        cmocka_unit_test_setup_teardown(test_replicas, setup, teardown),
        cmocka_unit_test_setup_teardown(test_metadata, setup, teardown),
        cmocka_unit_test_setup_teardown(test_slice_keys, setup, teardown),
        cmocka_unit_test_setup_teardown(test_generation, setup, teardown),
        cmocka_unit_test_setup_teardown(test_strays, setup, teardown),
        cmocka_unit_test_setup_teardown(test_split_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_manifest, setup, teardown),
        cmocka_unit_test_setup_teardown(test_signature, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tied_stages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_older_keys, setup, teardown),
        cmocka_unit_test_setup_teardown(test_schema2, setup, teardown),
        cmocka_unit_test_setup_teardown(test_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cancel, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
