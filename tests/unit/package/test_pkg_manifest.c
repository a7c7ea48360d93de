/* model-package.json: one good document, and every fault by its code. */
#include "package/pkg_manifest.h"

#include "json_change.h"

#define SHA "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF"

static json_t *artifact(const char *path) {
    return json_pack("{s:s, s:i, s:i, s:i, s:s}", "path", path, "tensor_count", 3, "tensor_bytes", 300,
                     "artifact_bytes", 400, "sha256", SHA);
}

static json_t *layer(int index) {
    char path[32];
    snprintf(path, sizeof path, "layers/layer-%05d.gguf", index);
    json_t *o = artifact(path);
    json_object_set_new(o, "layer_index", json_integer(index));
    return o;
}

static json_t *good(void) {
    return json_pack(
        "{s:i, s:s, s:{s:s, s:s, s:s, s:[{s:s, s:i, s:s}]}, s:s, s:i, s:i, s:{s:o, s:o, s:o}, s:[o, o, o], s:s, "
        "s:i, s:{s:s}, s:s}",
        "schema_version", 1, "model_id", "org/model:Q4", "source_model", "path", "m.gguf", "sha256", SHA, "repo",
        "org/model", "files", "path", "m.gguf", "size_bytes", 5, "sha256", SHA, "format", "layer-package",
        "layer_count", 3, "activation_width", 64, "shared", "metadata", artifact("shared/metadata.gguf"), "embeddings",
        artifact("shared/embeddings.gguf"), "output", artifact("shared/output.gguf"), "layers", layer(1), layer(0),
        layer(2), "skippy_abi_version", "0.1.25", "created_at_unix_secs", 5, "generation", "anything", "goes",
        "some_future_key", "is ignored");
}

static strata_err parse(json_t *root, struct pkg_manifest **m, struct strata_errmsg *em) {
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    strata_err rc = pkg_manifest_parse(text, strlen(text), "test.json", m, em);
    free(text);
    return rc;
}

static void test_good(void **state) {
    (void)state;
    struct pkg_manifest *m = NULL;
    struct strata_errmsg em;
    json_t *root = good();
    assert_non_null(root);
    assert_int_equal(parse(root, &m, &em), STRATA_OK);
    assert_string_equal(m->model_id, "org/model:Q4");
    assert_int_equal(m->layer_count, 3);
    assert_int_equal(m->activation_width, 64);
    assert_int_equal(m->created_at, 5);
    assert_string_equal(m->abi_version, "0.1.25");
    assert_non_null(m->generation);
    assert_int_equal(m->source.n_files, 1);
    assert_true(m->source.files[0].has_size && m->source.files[0].has_sha256);
    assert_null(m->source.revision);
    assert_int_equal(m->source.sha256[15], 0xff); /* either case of digits */
    assert_int_equal(strlen(m->sha256), 64);
    for (uint32_t i = 0; i < 3; i++) { /* sorted by index, whatever their order in the file */
        assert_int_equal(m->artifacts[3 + i].layer, i);
        assert_int_equal(m->artifacts[3 + i].path[strlen("layers/layer-0000")], '0' + i);
    }
    size_t n = 0;
    n = m->n_artifacts;
    assert_int_equal(n, 6);
    pkg_manifest_free(m);
    json_decref(root);
}

struct row {
    const char *place;
    const char *json; /* the new value, or NULL to remove the key */
    enum pkg_fault_code code;
};

static const struct row rows[] = {
    {"schema_version", NULL, PKG_FAULT_UNSUPPORTED_SCHEMA_VERSION},
    {"schema_version", "3", PKG_FAULT_UNSUPPORTED_SCHEMA_VERSION},
    {"schema_version", "\"1\"", PKG_FAULT_UNSUPPORTED_SCHEMA_VERSION},
    {"schema_version", "1.0", PKG_FAULT_UNSUPPORTED_SCHEMA_VERSION},
    {"model_id", NULL, PKG_FAULT_EMPTY_MODEL_ID},
    {"model_id", "\"  \"", PKG_FAULT_EMPTY_MODEL_ID},
    {"model_id", "7", PKG_FAULT_INVALID_FIELD},
    {"format", "\"gguf\"", PKG_FAULT_INVALID_FORMAT},
    {"format", NULL, PKG_FAULT_INVALID_FORMAT},
    {"layer_count", NULL, PKG_FAULT_INVALID_FIELD},
    {"layer_count", "0", PKG_FAULT_INVALID_LAYER_COUNT},
    {"layer_count", "-1", PKG_FAULT_INVALID_FIELD},
    {"layer_count", "3.0", PKG_FAULT_INVALID_FIELD},
    {"layer_count", "4294967295", PKG_FAULT_INVALID_LAYER_COUNT},
    {"layer_count", "9223372036854775807", PKG_FAULT_INVALID_FIELD},
    {"layer_count", "2", PKG_FAULT_LAYER_INDEX_OUT_OF_RANGE},
    {"layer_count", "5", PKG_FAULT_MISSING_LAYER},
    {"layer_count", "100000", PKG_FAULT_MISSING_LAYER},
    {"activation_width", "0", PKG_FAULT_INVALID_ACTIVATION_WIDTH},
    {"activation_width", "\"64\"", PKG_FAULT_INVALID_ACTIVATION_WIDTH},
    {"activation_width", "4294967296", PKG_FAULT_INVALID_ACTIVATION_WIDTH},
    {"source_model", NULL, PKG_FAULT_INVALID_FIELD},
    {"source_model", "[]", PKG_FAULT_INVALID_FIELD},
    {"source_model/path", "\"\"", PKG_FAULT_EMPTY_SOURCE_MODEL_PATH},
    {"source_model/sha256", NULL, PKG_FAULT_INVALID_SOURCE_MODEL_SHA256},
    {"source_model/sha256", "\"12\"", PKG_FAULT_INVALID_SOURCE_MODEL_SHA256},
    {"source_model/repo", "\"\"", PKG_FAULT_EMPTY_SOURCE_MODEL_FIELD},
    {"source_model/files/0/path", "\"\"", PKG_FAULT_INVALID_SOURCE_MODEL_FILE},
    {"source_model/files/0/sha256", "\"zz\"", PKG_FAULT_INVALID_SOURCE_MODEL_FILE},
    {"source_model/files/0", "3", PKG_FAULT_INVALID_FIELD},
    {"shared", NULL, PKG_FAULT_INVALID_FIELD},
    {"shared/output", NULL, PKG_FAULT_INVALID_FIELD},
    {"shared/output", "\"x\"", PKG_FAULT_INVALID_FIELD},
    {"shared/output/path", NULL, PKG_FAULT_UNSAFE_ARTIFACT_PATH},
    {"shared/output/path", "\"layers/layer-00001.gguf\"", PKG_FAULT_DUPLICATE_ARTIFACT_PATH},
    {"shared/output/artifact_bytes", "0", PKG_FAULT_EMPTY_ARTIFACT},
    {"shared/output/artifact_bytes", "-4", PKG_FAULT_INVALID_FIELD},
    {"shared/output/tensor_count", "0", PKG_FAULT_INVALID_TENSOR_BYTES},
    {"shared/output/tensor_bytes", "0", PKG_FAULT_INVALID_TENSOR_BYTES},
    {"shared/output/tensor_bytes", NULL, PKG_FAULT_INVALID_FIELD},
    {"shared/output/sha256", NULL, PKG_FAULT_INVALID_ARTIFACT_SHA256},
    {"shared/output/sha256", "\"" SHA "0\"", PKG_FAULT_INVALID_ARTIFACT_SHA256},
    {"shared/output/sha256", "\"g0112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF\"",
     PKG_FAULT_INVALID_ARTIFACT_SHA256},
    {"layers", NULL, PKG_FAULT_INVALID_FIELD},
    {"layers", "{}", PKG_FAULT_INVALID_FIELD},
    {"layers", "[]", PKG_FAULT_MISSING_LAYER},
    {"layers/1", NULL, PKG_FAULT_MISSING_LAYER},
    {"layers/1", "null", PKG_FAULT_INVALID_FIELD},
    {"layers/1/layer_index", "1", PKG_FAULT_DUPLICATE_LAYER},
    {"layers/1/layer_index", "3", PKG_FAULT_LAYER_INDEX_OUT_OF_RANGE},
    {"layers/1/layer_index", "-1", PKG_FAULT_INVALID_FIELD},
    {"layers/1/layer_index", "4294967296", PKG_FAULT_INVALID_FIELD},
    {"layers/1/layer_index", NULL, PKG_FAULT_INVALID_FIELD},
    {"skippy_abi_version", NULL, PKG_FAULT_MISSING_SKIPPY_ABI_VERSION},
    {"skippy_abi_version", "\"1.0.0\"", PKG_FAULT_INCOMPATIBLE_SKIPPY_ABI_VERSION},
    {"skippy_abi_version", "\"0.2.0\"", PKG_FAULT_INCOMPATIBLE_SKIPPY_ABI_VERSION},
    {"skippy_abi_version", "\"0\"", PKG_FAULT_INCOMPATIBLE_SKIPPY_ABI_VERSION},
    {"skippy_abi_version", "\"0.1.\"", PKG_FAULT_INCOMPATIBLE_SKIPPY_ABI_VERSION},
    {"skippy_abi_version", "\"0.1.2.3\"", PKG_FAULT_INCOMPATIBLE_SKIPPY_ABI_VERSION},
    {"skippy_abi_version", "\"a.b.c\"", PKG_FAULT_INCOMPATIBLE_SKIPPY_ABI_VERSION},
    {"skippy_abi_version", "\"0.99999999999999999999\"", PKG_FAULT_INCOMPATIBLE_SKIPPY_ABI_VERSION},
    {"created_at_unix_secs", "-1", PKG_FAULT_INVALID_FIELD},
    {"generation", "[]", PKG_FAULT_INVALID_FIELD},
    {"projectors", "{}", PKG_FAULT_INVALID_FIELD},
    {"projectors", "[1]", PKG_FAULT_INVALID_FIELD},
};

static void expect_fault(const json_t *root, enum pkg_fault_code code, const char *label) {
    struct pkg_faults faults;
    struct pkg_manifest *m = NULL;
    struct strata_errmsg em;
    pkg_faults_init(&faults);
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    assert_int_equal(pkg_manifest_check(text, strlen(text), &faults, &m, &em), STRATA_OK);
    bool found = false;
    for (size_t i = 0; i < faults.n; i++) found = found || faults.list[i].code == code;
    if (!found) fail_msg("%s: %s was not reported (%zu faults)", label, pkg_fault_name(code), faults.n);
    pkg_manifest_free(m);
    m = NULL;
    bool error = pkg_fault_severity(code) == PKG_ERROR;
    strata_err rc = pkg_manifest_parse(text, strlen(text), "test.json", &m, &em);
    if ((rc != STRATA_OK) != error) fail_msg("%s: parse gave %d", label, (int)rc);
    pkg_manifest_free(m);
    pkg_faults_deinit(&faults);
    free(text);
}

static void test_faults(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char label[200];
        json_t *root = good(), *value = NULL;
        if (rows[i].json) {
            value = json_loads(rows[i].json, JSON_DECODE_ANY, NULL);
            assert_non_null(value);
        }
        change(root, rows[i].place, value);
        snprintf(label, sizeof label, "%s = %.80s", rows[i].place, rows[i].json ? rows[i].json : "(removed)");
        expect_fault(root, rows[i].code, label);
        json_decref(root);
    }
}

static void test_warnings(void **state) {
    (void)state;
    json_t *root = good();
    json_object_del(root, "activation_width");
    expect_fault(root, PKG_FAULT_MISSING_ACTIVATION_WIDTH, "no width"); /* a warning: it still parses */
    json_decref(root);
}

static void test_projectors(void **state) {
    (void)state;
    static const struct {
        const char *kind;
        enum pkg_fault_code code;
    } kinds[] = {{"", PKG_FAULT_EMPTY_PROJECTOR_KIND}, {"audio", PKG_FAULT_UNSUPPORTED_PROJECTOR_KIND}};
    for (size_t i = 0; i < 2; i++) {
        json_t *root = good(), *p = artifact("projectors/p.gguf");
        json_object_set_new(p, "kind", json_string(kinds[i].kind));
        json_object_set_new(root, "projectors", json_pack("[o]", p));
        expect_fault(root, kinds[i].code, kinds[i].kind);
        json_object_set_new(p, "kind", json_string("mmproj"));
        struct pkg_manifest *m;
        struct strata_errmsg em;
        assert_int_equal(parse(root, &m, &em), STRATA_OK);
        assert_int_equal(m->artifacts[m->n_artifacts - 1].role, PKG_ROLE_PROJECTOR);
        assert_string_equal(m->artifacts[m->n_artifacts - 1].kind, "mmproj");
        pkg_manifest_free(m);
        json_decref(root);
    }
}

static void test_unsafe_paths(void **state) {
    (void)state;
    static const char *const paths[] = {"",
                                        " ",
                                        "/etc/passwd",
                                        "../x.gguf",
                                        "layers/../../x",
                                        "layers/..",
                                        "./x",
                                        "a//b",
                                        "a/",
                                        "/",
                                        "..",
                                        ".",
                                        "a\\b",
                                        "C:x",
                                        "c:/x",
                                        ("a\x01"
                                         "b"),
                                        "a\nb",
                                        "\x7f",
                                        "con",
                                        "layers/NUL.gguf",
                                        "aux/x",
                                        "lpt1.txt",
                                        "layers/\x1b[2J"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        json_t *root = good();
        json_t *o = json_object_get(json_object_get(root, "shared"), "output");
        json_object_set_new(o, "path", json_string(paths[i]));
        expect_fault(root, PKG_FAULT_UNSAFE_ARTIFACT_PATH, paths[i]);
        json_decref(root);
    }
}

static void test_not_a_manifest(void **state) {
    (void)state;
    static const char *const texts[] = {"",
                                        " ",
                                        "{",
                                        "[]",
                                        "3",
                                        "null",
                                        "{\"a\":1,\"a\":2}",
                                        "{} x",
                                        "{\"a\":\"\\u0000\"}",
                                        "\xff\xfe",
                                        "{\"a\":\"\xc3\"}"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct pkg_manifest *m = NULL;
        struct strata_errmsg em;
        assert_int_not_equal(pkg_manifest_parse(texts[i], strlen(texts[i]), "x.json", &m, &em), STRATA_OK);
        assert_null(m);
        assert_non_null(strstr(em.text, "x.json"));
    }
}

/* Deep nesting must not use up the stack. */
static void test_deep(void **state) {
    (void)state;
    enum { N = 200000 };
    char *text = malloc(N);
    struct pkg_manifest *m = NULL;
    struct strata_errmsg em;
    assert_non_null(text);
    memset(text, '[', N);
    assert_int_not_equal(pkg_manifest_parse(text, N, "x.json", &m, &em), STRATA_OK);
    free(text);
}

static void test_too_large(void **state) {
    (void)state;
    size_t n = PKG_MANIFEST_MAX_BYTES + 1;
    char *text = malloc(n);
    struct pkg_manifest *m = NULL;
    struct strata_errmsg em;
    assert_non_null(text);
    memset(text, ' ', n);
    assert_int_equal(pkg_manifest_parse(text, n, "x.json", &m, &em), STRATA_ELIMIT);
    free(text);
}

/* Many faults: the list stays bounded, the count does not. */
static void test_flood(void **state) {
    (void)state;
    json_t *root = good(), *list = json_array();
    for (int i = 0; i < 5000; i++) json_array_append_new(list, json_integer(i));
    json_object_set_new(root, "layers", list);
    struct pkg_faults faults;
    struct pkg_manifest *m = NULL;
    struct strata_errmsg em;
    pkg_faults_init(&faults);
    char *text = json_dumps(root, 0);
    assert_int_equal(pkg_manifest_check(text, strlen(text), &faults, &m, &em), STRATA_OK);
    assert_true(faults.n <= 2000);
    assert_true(faults.n_errors >= 5000);
    assert_int_equal(faults.n + faults.n_dropped, faults.n_errors + 1); /* and a note on good()'s unknown key */
    json_t *json;
    assert_int_equal(pkg_faults_to_json(&faults, &json, &em), STRATA_OK);
    assert_int_equal(json_array_size(json), faults.n);
    json_decref(json);
    pkg_manifest_free(m);
    pkg_faults_deinit(&faults);
    free(text);
    json_decref(root);
}

/* Every code has a name of its own and a remedy. */
static void test_codes(void **state) {
    (void)state;
    for (int i = 0; i < PKG_FAULT_COUNT; i++) {
        const char *name = pkg_fault_name((enum pkg_fault_code)i);
        assert_non_null(name);
        assert_non_null(pkg_fault_remedy((enum pkg_fault_code)i));
        for (int k = 0; k < i; k++) assert_string_not_equal(name, pkg_fault_name((enum pkg_fault_code)k));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),       cmocka_unit_test(test_faults),       cmocka_unit_test(test_warnings),
        cmocka_unit_test(test_projectors), cmocka_unit_test(test_unsafe_paths), cmocka_unit_test(test_not_a_manifest),
        cmocka_unit_test(test_deep),       cmocka_unit_test(test_too_large),    cmocka_unit_test(test_flood),
        cmocka_unit_test(test_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
