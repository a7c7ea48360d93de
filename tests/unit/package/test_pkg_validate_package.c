/* A package against its model: sound ones of both schemas pass; every kind of difference is found, in the file where it
 * is; the result can be recorded. */
#include "package/pkg_convert.h"
#include "package/pkg_validate_package.h"

#include "pkg_edit.h"

#include <sys/stat.h>

static struct tmp_folder T;

static const char META[] = "shared/metadata.gguf", EMBD[] = "shared/embeddings.gguf", OUT[] = "shared/output.gguf",
                  LAYER0[] = "layers/layer-00000.gguf", LAYER1[] = "layers/layer-00001.gguf",
                  LAYER2[] = "layers/layer-00002.gguf";

static void make(bool tied, uint32_t shards) {
    struct sample s = {tmp_path(&T, "m"), 3, tied, true, shards, UINT32_MAX};
    edit_write_package(&T, &s);
}

static int setup(void **state) {
    (void)state;
    tmp_folder_make(&T);
    make(false, 1);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tmp_folder_remove(T.path);
    return 0;
}

static void reset(void) {
    tmp_folder_remove(tmp_path(&T, "p"));
    make(false, 1);
}

static void validate_at(const char *full, const char *dir, struct pkg_validate_package_report *r) {
    const struct pkg_validate_package_options opt = {0};
    struct strata_errmsg em;
    if (pkg_validate_package_run(full, dir, &opt, r, &em)) fail_msg("%s", em.text);
}

static void validate(struct pkg_validate_package_report *r) {
    validate_at(tmp_path(&T, "m.gguf"), tmp_path(&T, "p"), r);
}

static size_t count_errors(const struct pkg_faults *f, enum pkg_fault_code but) {
    size_t n = 0;
    for (size_t i = 0; i < f->n; i++) n += f->list[i].severity == PKG_ERROR && f->list[i].code != but;
    return n;
}

/* The fault must be there, about that path (NULL: any), and the only error unless `more`. */
static void finds(enum pkg_fault_code code, const char *path, bool more) {
    struct pkg_validate_package_report r;
    validate(&r);
    assert_false(pkg_validate_package_is_valid(&r));
    if (!edit_has(&r.check.faults, code, path) || (!more && count_errors(&r.check.faults, code) > 0))
        fail_msg("%s:%s", pkg_fault_name(code), edit_list(&r.check.faults));
    pkg_validate_package_deinit(&r);
}

static void passes(void) {
    struct pkg_validate_package_report r;
    validate(&r);
    if (!pkg_validate_package_is_valid(&r)) fail_msg("%s", edit_list(&r.check.faults));
    pkg_validate_package_deinit(&r);
}

static void test_sound(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++)
        for (uint32_t shards = 1; shards <= 2; shards++) {
            struct pkg_validate_package_report r;
            tmp_folder_remove(tmp_path(&T, "p"));
            make(tied, shards);
            validate_at(shards == 1 ? tmp_path(&T, "m.gguf") : tmp_path(&T, "m-00002-of-00002.gguf"), tmp_path(&T, "p"),
                        &r);
            if (!pkg_validate_package_is_valid(&r)) fail_msg("%d %u:%s", tied, shards, edit_list(&r.check.faults));
            assert_int_equal(r.full_tensor_count, tied ? 12 : 13);
            assert_int_equal(r.required_owned_count, tied ? 11 : 12);
            assert_int_equal(r.compared_count, r.full_tensor_count + 5); /* one tensor is in each of six files */
            assert_int_equal(r.n_source, shards);
            assert_true(r.layer_count_matches && r.width_matches && r.source_sha256_matches);
            /* Nothing is valid that was not looked at, even when nobody complains. */
            r.artifacts[4].hashed = false;
            assert_false(pkg_validate_package_is_valid(&r));
            r.artifacts[4].hashed = true;
            r.check.items[4].digest_ok = false;
            assert_false(pkg_validate_package_is_valid(&r));
            pkg_validate_package_deinit(&r);
        }
}

static void test_content(void **state) {
    (void)state;
    static const struct {
        const char *path;
        struct edit edit;
        enum pkg_fault_code code;
        bool more;
    } rows[] = {
        {LAYER1, {.flip = "blk.1.attn_q.weight"}, PKG_FAULT_TENSOR_PAYLOAD_MISMATCH, false},
        {EMBD, {.flip = "token_embd.weight"}, PKG_FAULT_TENSOR_PAYLOAD_MISMATCH, false},
        {OUT, {.flip = "output_norm.weight"}, PKG_FAULT_TENSOR_PAYLOAD_MISMATCH, false},
        {META, {.flip = "rope_freqs.weight"}, PKG_FAULT_TENSOR_PAYLOAD_MISMATCH, false},
        {LAYER2, {.flip = "rope_freqs.weight"}, PKG_FAULT_TENSOR_PAYLOAD_MISMATCH, false},
        {LAYER1, {.retype = "blk.1.attn_q.weight"}, PKG_FAULT_TENSOR_TYPE_MISMATCH, false},
        {LAYER1, {.reshape = "blk.1.attn_q.weight"}, PKG_FAULT_TENSOR_SHAPE_MISMATCH, false},
        {OUT, {.flatten = "output.weight"}, PKG_FAULT_TENSOR_SHAPE_MISMATCH, false},
        {LAYER1, {.add = "blk.1.extra.weight"}, PKG_FAULT_UNKNOWN_TENSOR, false},
        {LAYER1, {.drop = "blk.1.attn_q.weight"}, PKG_FAULT_MISSING_TENSOR, false},
        {LAYER1, {.rename = "blk.1.attn_q.weight", .to = "blk.1.x.weight"}, PKG_FAULT_UNKNOWN_TENSOR, true},
        {META, {.drop = "rope_freqs.weight"}, PKG_FAULT_MISSING_TENSOR, false},
        {META, {.set_key = "general.name", .string = "x"}, PKG_FAULT_METADATA_MISMATCH, false},
        {META, {.drop_keys = "general.name"}, PKG_FAULT_METADATA_MISMATCH, false},
        {META, {.set_key = "general.more", .string = "x"}, PKG_FAULT_METADATA_MISMATCH, false},
        {LAYER0, {.set_key = "general.name", .string = "x"}, PKG_FAULT_METADATA_MISMATCH, false},
        {LAYER0, {.add = "output.bias"}, PKG_FAULT_FOREIGN_TENSOR, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        edit_part(&T, rows[i].path, &rows[i].edit);
        finds(rows[i].code, rows[i].path, rows[i].more);
        reset();
    }
    /* Just not: a slim part, and keys that are a cut's own. */
    edit_part(&T, LAYER0, &(struct edit){.drop_keys = "general.name"});
    edit_part(&T, LAYER1, &(struct edit){.drop_keys = "llama."});
    edit_part(&T, META, &(struct edit){.set_key = "skippy.note", .string = "x"});
    passes();
}

/* Every fragment, exchanged with another: whatever the manifest says about them. */
static void test_exchanged(void **state) {
    (void)state;
    struct pkg_validate_package_report r;
    assert_int_equal(rename(tmp_path(&T, "p/layers/layer-00000.gguf"), tmp_path(&T, "x")), 0);
    assert_int_equal(rename(tmp_path(&T, "p/layers/layer-00001.gguf"), tmp_path(&T, "p/layers/layer-00000.gguf")), 0);
    assert_int_equal(rename(tmp_path(&T, "x"), tmp_path(&T, "p/layers/layer-00001.gguf")), 0);
    edit_follow(&T, LAYER0);
    edit_follow(&T, LAYER1);
    validate(&r);
    assert_true(edit_has(&r.check.faults, PKG_FAULT_FOREIGN_TENSOR, LAYER0));
    assert_true(edit_has(&r.check.faults, PKG_FAULT_FOREIGN_TENSOR, LAYER1));
    /* The older tool's lists see nothing: every name is there, once. */
    assert_int_equal(json_array_size(r.missing) + json_array_size(r.duplicate), 0);
    assert_false(pkg_validate_package_is_valid(&r));
    pkg_validate_package_deinit(&r);
}

static void flip_last(struct buf *b) {
    b->data[b->len - 1] ^= 1;
}

static void break_magic(struct buf *b) {
    b->data[0] = 'X';
}

/* One byte of every artifact, in its last tensor or its padding: the digest tells, and where it is a tensor's, which.
 */
static void test_bytes(void **state) {
    (void)state;
    static const char *const all[] = {META, EMBD, OUT, LAYER0, LAYER1, LAYER2};
    for (size_t i = 0; i < 6; i++) {
        char path[600];
        snprintf(path, sizeof path, "%s/p/%s", T.path, all[i]);
        edit_bytes(path, flip_last);
        finds(PKG_FAULT_ARTIFACT_SHA256_MISMATCH, all[i], true);
        finds(PKG_FAULT_TENSOR_PAYLOAD_MISMATCH, all[i], true);
        edit_bytes(path, flip_last);
        edit_bytes(path, break_magic);
        finds(PKG_FAULT_INVALID_ARTIFACT_GGUF, all[i], true);
        finds(PKG_FAULT_ARTIFACT_SHA256_MISMATCH, all[i], true);
        reset();
    }
}

static void test_missing_file(void **state) {
    (void)state;
    struct pkg_validate_package_report r;
    struct strata_errmsg em;
    json_t *json;
    assert_int_equal(remove(tmp_path(&T, "p/layers/layer-00001.gguf")), 0);
    assert_int_equal(remove(tmp_path(&T, "p/shared/output.gguf")), 0);
    validate(&r);
    assert_true(edit_has(&r.check.faults, PKG_FAULT_MISSING_ARTIFACT, LAYER1));
    assert_false(edit_has(&r.check.faults, PKG_FAULT_MISSING_TENSOR, NULL)); /* the file's fault says it all */
    assert_int_equal(json_array_size(r.missing), 5);
    for (int older = 0; older < 2; older++) {
        assert_int_equal(pkg_validate_package_to_json(&r, older, &json, &em), STRATA_OK);
        assert_int_equal(json_array_size(json_object_get(json, "artifacts")), 6);
        json_decref(json);
    }
    pkg_validate_package_deinit(&r);
}

/* ---- the manifest ---- */

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
    struct pkg_validate_package_report r;
    set_root("activation_width", json_integer(9));
    finds(PKG_FAULT_SOURCE_WIDTH_MISMATCH, NULL, false);
    set_root("activation_width", NULL);
    finds(PKG_FAULT_SOURCE_WIDTH_MISMATCH, NULL, false);
    validate(&r);
    assert_false(r.width_matches);
    pkg_validate_package_deinit(&r);
    set_root("activation_width", json_integer(SAMPLE_WIDTH));
    passes();
    set_root("layer_count", json_integer(4));
    validate(&r);
    assert_true(edit_has(&r.check.faults, PKG_FAULT_SOURCE_LAYER_COUNT_MISMATCH, NULL));
    assert_int_equal(json_array_size(r.missing_layers), 1);
    assert_int_equal(json_integer_value(json_array_get(r.missing_layers, 0)), 3);
    pkg_validate_package_deinit(&r);
    set_root("layer_count", json_integer(3));
    json_t *root = edit_load(&T), *layers = json_object_get(root, "layers");
    json_array_append(layers, json_array_get(layers, 1));
    edit_store(&T, root);
    validate(&r);
    assert_int_equal(json_array_size(r.duplicate_layers), 1);
    assert_int_equal(json_integer_value(json_array_get(r.duplicate_layers, 0)), 1);
    assert_false(pkg_validate_package_is_valid(&r));
    pkg_validate_package_deinit(&r);
}

static void set_source(const char *key, json_t *value) {
    json_t *root = edit_load(&T);
    json_object_set_new(json_object_get(root, "source_model"), key, value);
    edit_store(&T, root);
}

static json_t *first_file(json_t *root) {
    return json_array_get(json_object_get(json_object_get(root, "source_model"), "files"), 0);
}

static void test_source(void **state) {
    (void)state;
    char zeros[65];
    memset(zeros, '0', 64);
    zeros[64] = '\0';
    /* Digests are numbers: their letters may be large. */
    json_t *root = edit_load(&T);
    char sha[65];
    snprintf(sha, sizeof sha, "%s",
             json_string_value(json_object_get(json_object_get(root, "source_model"), "sha256")));
    for (char *p = sha; *p; p++) *p = (char)(*p >= 'a' ? *p - 'a' + 'A' : *p);
    json_object_set_new(json_object_get(root, "source_model"), "sha256", json_string(sha));
    json_object_set_new(first_file(root), "sha256", json_string(sha));
    json_t *entry = edit_entry(root, LAYER1);
    snprintf(sha, sizeof sha, "%s", json_string_value(json_object_get(entry, "sha256")));
    for (char *p = sha; *p; p++) *p = (char)(*p >= 'a' ? *p - 'a' + 'A' : *p);
    json_object_set_new(entry, "sha256", json_string(sha));
    edit_store(&T, root);
    passes();
    set_source("sha256", json_string(zeros));
    finds(PKG_FAULT_SOURCE_SHA256_MISMATCH, NULL, false);
    reset();
    static const char *const keys[] = {"sha256", "size_bytes"};
    for (size_t i = 0; i < 2; i++) {
        root = edit_load(&T);
        json_object_set_new(first_file(root), keys[i], i ? json_integer(7) : json_string(zeros));
        edit_store(&T, root);
        finds(PKG_FAULT_SOURCE_FILE_MISMATCH, NULL, false);
        /* A digest or size that is not stated cannot be wrong. */
        root = edit_load(&T);
        json_object_set_new(first_file(root), keys[i], json_null());
        edit_store(&T, root);
        passes();
        reset();
    }
    /* A file that the model has not; a file under another name, which is no matter. */
    root = edit_load(&T);
    json_object_set_new(first_file(root), "path", json_string("elsewhere/renamed.gguf"));
    edit_store(&T, root);
    passes();
    root = edit_load(&T);
    json_array_append_new(json_object_get(json_object_get(root, "source_model"), "files"),
                          json_pack("{s:s}", "path", "more.gguf"));
    edit_store(&T, root);
    finds(PKG_FAULT_SOURCE_FILE_MISMATCH, NULL, false);
    reset();
    /* Another model altogether. */
    edit_gguf(tmp_path(&T, "m.gguf"), &(struct edit){.flip = "output.weight"});
    finds(PKG_FAULT_SOURCE_SHA256_MISMATCH, NULL, true);
    finds(PKG_FAULT_TENSOR_PAYLOAD_MISMATCH, OUT, true);
}

/* ---- projectors ---- */

static void test_projectors(void **state) {
    (void)state;
    struct pkg_validate_package_options opt = {0};
    struct pkg_validate_package_report r;
    struct pkg_write_result res;
    struct strata_errmsg em;
    const char *given[2] = {tmp_path(&T, "mmproj.gguf"), tmp_path(&T, "other.gguf")};
    assert_int_equal(rename(tmp_path(&T, "p/layers/layer-00000.gguf"), given[0]), 0);
    assert_int_equal(rename(tmp_path(&T, "p/layers/layer-00001.gguf"), given[1]), 0);
    tmp_folder_remove(tmp_path(&T, "p"));
    struct pkg_write_options w = {
        .out_dir = tmp_path(&T, "p"), .identity.local = true, .projectors = {given[0]}, .n_projectors = 1};
    if (pkg_write(tmp_path(&T, "m.gguf"), &w, &res, &em)) fail_msg("%s", em.text);
    json_decref(res.manifest);
    passes();
    opt.projectors = given;
    for (opt.n_projectors = 1; opt.n_projectors <= 2; opt.n_projectors++) {
        assert_int_equal(pkg_validate_package_run(tmp_path(&T, "m.gguf"), tmp_path(&T, "p"), &opt, &r, &em), STRATA_OK);
        assert_int_equal(pkg_validate_package_is_valid(&r), opt.n_projectors == 1);
        assert_int_equal(edit_has(&r.check.faults, PKG_FAULT_SOURCE_PROJECTOR_MISMATCH, NULL), opt.n_projectors == 2);
        pkg_validate_package_deinit(&r);
    }
    opt = (struct pkg_validate_package_options){.projectors = given + 1, .n_projectors = 1};
    assert_int_equal(pkg_validate_package_run(tmp_path(&T, "m.gguf"), tmp_path(&T, "p"), &opt, &r, &em), STRATA_OK);
    assert_true(edit_has(&r.check.faults, PKG_FAULT_SOURCE_PROJECTOR_MISMATCH, "projectors/mmproj.gguf"));
    pkg_validate_package_deinit(&r);
    given[1] = tmp_path(&T, "gone");
    assert_int_equal(pkg_validate_package_run(tmp_path(&T, "m.gguf"), tmp_path(&T, "p"), &opt, &r, &em), STRATA_ENOENT);
    edit_bytes(tmp_path(&T, "p/projectors/mmproj.gguf"), flip_last);
    finds(PKG_FAULT_ARTIFACT_SHA256_MISMATCH, "projectors/mmproj.gguf", false);
}

/* ---- as JSON, and recorded ---- */

static const char *keys_of(const json_t *o) {
    static char out[2048];
    const char *key;
    json_t *v;
    out[0] = '\0';
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        size_t len = strlen(out);
        snprintf(out + len, sizeof out - len, "%s%s", len ? " " : "", key);
    }
    return out;
}

static const char all_keys[] =
    "valid full_tensor_count layer_count manifest_layer_count_matches_model activation_width_matches_model "
    "expected_activation_width manifest_activation_width source_sha256_matches_manifest required_owned_tensor_count "
    "missing_owned_tensors duplicate_owned_tensors checked_artifact_count artifacts checked_projector_count projectors "
    "missing_layers duplicate_layers";
static const char artifact_keys[] =
    "path tensor_count owned_tensor_count tensor_bytes artifact_bytes sha256_matches_manifest "
    "tensor_count_matches_manifest tensor_bytes_matches_manifest artifact_bytes_matches_manifest missing_from_full";

static void test_json(void **state) {
    (void)state;
    struct pkg_validate_package_report r;
    struct strata_errmsg em;
    json_t *json;
    for (int sound = 1; sound >= 0; sound--) {
        if (!sound) edit_bytes(tmp_path(&T, "p/shared/output.gguf"), flip_last);
        validate(&r);
        assert_int_equal(pkg_validate_package_to_json(&r, true, &json, &em), STRATA_OK);
        assert_string_equal(keys_of(json), all_keys);
        assert_int_equal(json_is_true(json_object_get(json, "valid")), sound);
        assert_int_equal(json_integer_value(json_object_get(json, "expected_activation_width")), SAMPLE_WIDTH);
        const json_t *out = json_array_get(json_object_get(json, "artifacts"), 2);
        assert_string_equal(keys_of(out), artifact_keys);
        assert_int_equal(json_is_true(json_object_get(out, "sha256_matches_manifest")), sound);
        assert_true(json_is_true(json_object_get(out, "tensor_count_matches_manifest")));
        json_decref(json);
        assert_int_equal(pkg_validate_package_to_json(&r, false, &json, &em), STRATA_OK);
        out = json_array_get(json_object_get(json, "artifacts"), 2);
        assert_int_equal(json_array_size(json_object_get(out, "mismatches")), !sound);
        json_decref(json);
        pkg_validate_package_deinit(&r);
    }
    /* Without a manifest there is a report as well. */
    edit_bytes(tmp_path(&T, "p/model-package.json"), break_magic);
    validate(&r);
    assert_false(pkg_validate_package_is_valid(&r));
    assert_true(edit_has(&r.check.faults, PKG_FAULT_INVALID_MANIFEST_JSON, NULL));
    assert_int_equal(pkg_validate_package_to_json(&r, true, &json, &em), STRATA_OK);
    assert_string_equal(keys_of(json), all_keys);
    json_decref(json);
    assert_int_equal(pkg_validate_package_to_json(&r, false, &json, &em), STRATA_OK);
    json_decref(json);
    assert_int_equal(pkg_validate_package_record(&r, &em), STRATA_EINVAL);
    pkg_validate_package_deinit(&r);
}

static void test_record(void **state) {
    (void)state;
    struct pkg_validate_package_report r;
    struct pkg_check_report check;
    struct strata_errmsg em;
    struct stat st;
    const struct pkg_check_options opt = {0};
    setenv("SOURCE_DATE_EPOCH", "1700000000", 1);
    for (int sound = 1; sound >= 0; sound--) {
        if (!sound) edit_bytes(tmp_path(&T, "p/shared/output.gguf"), flip_last);
        validate(&r);
        if (pkg_validate_package_record(&r, &em)) fail_msg("%s", em.text);
        json_t *doc = json_load_file(tmp_path(&T, "p/validation.json"), 0, NULL);
        assert_string_equal(keys_of(doc),
                            "schema_version tool command created_at_unix_secs manifest_sha256 valid layer_count "
                            "full_tensor_count required_owned_tensor_count checked_artifact_count "
                            "checked_projector_count compared_tensor_count compared_bytes source_files error_count "
                            "issue_count issues");
        assert_int_equal(json_is_true(json_object_get(doc, "valid")), sound);
        assert_int_equal(json_integer_value(json_object_get(doc, "created_at_unix_secs")), 1700000000);
        assert_string_equal(json_string_value(json_object_get(doc, "manifest_sha256")), r.check.manifest->sha256);
        assert_int_equal(json_integer_value(json_object_get(doc, "compared_tensor_count")), 18);
        assert_int_equal(json_integer_value(json_object_get(doc, "error_count")), sound ? 0 : 2);
        const json_t *file = json_array_get(json_object_get(doc, "source_files"), 0);
        assert_string_equal(json_string_value(json_object_get(file, "path")), "m.gguf");
        char *text = json_dumps(doc, 0);
        assert_null(strstr(text, T.path)); /* where it was validated is nobody's business */
        free(text);
        json_decref(doc);
        pkg_validate_package_deinit(&r);
    }
    unsetenv("SOURCE_DATE_EPOCH");
    assert_int_equal(stat(tmp_path(&T, "p/validation.json"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0644);
    /* It is no stray file. */
    assert_int_equal(pkg_check_run(tmp_path(&T, "p"), &opt, &check, &em), STRATA_OK);
    assert_false(edit_has(&check.faults, PKG_FAULT_STRAY_FILE, NULL));
    pkg_check_deinit(&check);
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
    struct pkg_validate_package_report r;
    struct strata_errmsg em;
    json_t *json;
    convert();
    validate_at(tmp_path(&T, "m.gguf"), tmp_path(&T, "p2"), &r);
    if (!pkg_validate_package_is_valid(&r)) fail_msg("%s", edit_list(&r.check.faults));
    assert_int_equal(r.required_owned_count, 13); /* every tensor, once */
    assert_int_equal(r.compared_count, 13);
    assert_int_equal(pkg_validate_package_to_json(&r, true, &json, &em), STRATA_OK);
    assert_string_equal(keys_of(json), all_keys);
    json_decref(json);
    pkg_validate_package_deinit(&r);
    static const struct {
        const char *path;
        struct edit edit;
        enum pkg_fault_code code;
    } rows[] = {
        {"p2/layers/layer-00001.gguf", {.flip = "blk.1.attn_q.weight"}, PKG_FAULT_TENSOR_PAYLOAD_MISMATCH},
        {"p2/layers/layer-00001.gguf", {.reshape = "blk.1.attn_q.weight"}, PKG_FAULT_TENSOR_SHAPE_MISMATCH},
        {"p2/layers/layer-00001.gguf", {.drop = "blk.1.attn_q.weight"}, PKG_FAULT_ARTIFACT_SIZE_MISMATCH},
        {"p2/shared/common.gguf", {.flip = "rope_freqs.weight"}, PKG_FAULT_TENSOR_PAYLOAD_MISMATCH},
        {"p2/shared/common.gguf", {.retype = "output.weight"}, PKG_FAULT_TENSOR_TYPE_MISMATCH},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        edit_gguf(tmp_path(&T, rows[i].path), &rows[i].edit);
        validate_at(tmp_path(&T, "m.gguf"), tmp_path(&T, "p2"), &r);
        if (!edit_has(&r.check.faults, rows[i].code, rows[i].path + 3)) fail_msg("%s", edit_list(&r.check.faults));
        assert_false(pkg_validate_package_is_valid(&r));
        pkg_validate_package_deinit(&r);
        tmp_folder_remove(tmp_path(&T, "p2"));
        convert();
    }
}

static bool always(void) {
    return true;
}

static void test_refusals(void **state) {
    (void)state;
    struct pkg_validate_package_options opt = {0};
    struct pkg_validate_package_report r;
    struct strata_errmsg em;
    assert_int_equal(pkg_validate_package_run(tmp_path(&T, "gone"), tmp_path(&T, "p"), &opt, &r, &em), STRATA_ENOENT);
    opt.cancelled = always;
    assert_int_equal(pkg_validate_package_run(tmp_path(&T, "m.gguf"), tmp_path(&T, "p"), &opt, &r, &em),
                     STRATA_ECANCELLED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sound, setup, teardown),
        cmocka_unit_test_setup_teardown(test_content, setup, teardown),
        cmocka_unit_test_setup_teardown(test_exchanged, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_missing_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_facts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_source, setup, teardown),
        cmocka_unit_test_setup_teardown(test_projectors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_json, setup, teardown),
        cmocka_unit_test_setup_teardown(test_record, setup, teardown),
        cmocka_unit_test_setup_teardown(test_schema2, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
