/* model-package.json of schema 2: a good document, every fault by its code, the canonical form and package_id. */
#include "package/pkg_generation2.h"
#include "package/pkg_manifest.h"
#include "package/pkg_package_id.h"
#include "package/pkg_schema2.h"

#include "json_change.h"

#define SHA "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static const char document[] =
    "{\"schema_version\": 2, \"package_id\": \"sha256:" SHA "\", \"model_id\": \"org/model:Q4\","
    " \"source_model\": {\"sha256\": \"" SHA "\", \"metadata_artifact_id\": \"metadata\", \"repo\": \"org/model\","
    "  \"revision\": \"" COMMIT "\", \"primary_file\": \"m-00001-of-00002.gguf\", \"files\": ["
    "  {\"path\": \"m-00002-of-00002.gguf\", \"byte_size\": 7, \"sha256\": \"" SHA "\"},"
    "  {\"path\": \"m-00001-of-00002.gguf\", \"byte_size\": 5, \"sha256\": \"" SHA "\"}]},"
    " \"format\": \"gguf\", \"layer_count\": 2, \"artifact_catalog\": {\"entries\": ["
    "  {\"id\": \"projector-00000\", \"path\": \"projectors/p.gguf\", \"byte_size\": 9, \"sha256\": \"" SHA "\"},"
    "  {\"id\": \"layer-00001\", \"path\": \"layers/b.gguf\", \"byte_size\": 9, \"sha256\": \"" SHA "\"},"
    "  {\"id\": \"layer-00000-part01\", \"path\": \"layers/a1.gguf\", \"byte_size\": 9, \"sha256\": \"" SHA "\"},"
    "  {\"id\": \"layer-00000-part00\", \"path\": \"layers/a0.gguf\", \"byte_size\": 9, \"sha256\": \"" SHA "\"},"
    "  {\"id\": \"common\", \"path\": \"shared/common.gguf\", \"byte_size\": 9, \"sha256\": \"" SHA "\"},"
    "  {\"id\": \"metadata\", \"path\": \"shared/metadata.gguf\", \"byte_size\": 9, \"sha256\": \"" SHA "\"},"
    "  {\"id\": \"config\", \"path\": \"metadata/config.json\", \"byte_size\": 9, \"sha256\": \"" SHA "\"}]},"
    " \"sidecars\": [{\"kind\": \"mmproj\", \"artifact_id\": \"projector-00000\", \"name\": \"p\"}],"
    " \"publisher_metadata\": [{\"role\": \"model_config\", \"artifact_id\": \"config\", \"source_repo\": "
    "\"org/model\","
    "  \"source_revision\": \"" COMMIT "\", \"source_path\": \"config.json\"}],"
    " \"publisher_defaults\": {\"compute_dtype\": {\"dtype\": \"bf16\", \"artifact_id\": \"config\","
    "  \"json_path\": \"$.torch_dtype\"}},"
    " \"generation\": {"
    "  \"request_defaults\": {\"selection\": {\"default\": \"chat\"}, \"profiles\": {\"chat\": {"
    "   \"temperature\": 1, \"top_p\": 0.95, \"top_k\": 20, \"stop\": [\"x\"], \"seed\": 4294967295,"
    "   \"logit_bias\": {\"7\": -100}, \"dry\": {\"sequence_breakers\": [\"\\n\"]}, \"xtc\": {\"threshold\": 0.5},"
    "   \"samplers\": [\"top_k\", \"temp\"], \"sampler_sequence\": \"k t\", \"ignore_eos\": false,"
    "   \"reasoning\": {\"enabled\": \"on\", \"format\": \"deepseek-legacy\", \"budget\": \"low\"},"
    "   \"provenance\": {\"source_repo\": \"org/model\", \"revision\": \"" COMMIT "\", \"file\": \"README.md\","
    "    \"section\": \"Sampling\", \"url\": \"https://example.org/org/model/blob/" COMMIT "/README.md\"}}}},"
    "  \"speculative_decoding\": {\"default\": \"mtp\", \"proposers\": {\"c\": {\"type\": \"ngram-cache\","
    "    \"ngram_min\": 1, \"ngram_max\": 4, \"max_proposal_tokens\": 8, \"history_scope\": \"request\"}},"
    "   \"strategies\": {\"mtp\": {\"type\": \"native-mtp\", \"prediction_depth\": 1, \"layer_indices\": [1],"
    "    \"window_policy\": {\"default\": \"fixed\", \"initial_window\": 1, \"min_window\": 1, \"max_window\": 1}},"
    "    \"n\": {\"type\": \"ngram-cache\", \"proposer\": \"c\"}}}},"
    " \"native_abi_version\": \"0.1.53\", \"generator_version\": \"0.76.1\", \"created_at_unix_secs\": 5}";

static json_t *good(void) {
    json_error_t e;
    char id[PKG_PACKAGE_ID_MAX];
    struct strata_errmsg em;
    json_t *root = json_loads(document, 0, &e);
    if (!root) fail_msg("%s at %d", e.text, e.position);
    assert_int_equal(pkg_package_id(root, id, &em), STRATA_OK);
    json_object_set_new(root, "package_id", json_string(id));
    return root;
}

static struct pkg_manifest *check(const json_t *root, struct pkg_faults *faults) {
    struct pkg_manifest *m = NULL;
    struct strata_errmsg em;
    char *text = json_dumps(root, 0);
    assert_non_null(text);
    pkg_faults_init(faults);
    assert_int_equal(pkg_manifest_check(text, strlen(text), faults, &m, &em), STRATA_OK);
    free(text);
    return m;
}

static void test_good(void **state) {
    (void)state;
    struct pkg_faults faults;
    json_t *root = good();
    struct pkg_manifest *m = check(root, &faults);
    for (size_t i = 0; i < faults.n; i++) fail_msg("%s", faults.list[i].message);
    assert_int_equal(m->schema, 2);
    assert_string_equal(m->model_id, "org/model:Q4");
    assert_string_equal(m->package_id, json_string_value(json_object_get(root, "package_id")));
    assert_int_equal(m->layer_count, 2);
    assert_int_equal(m->activation_width, 0);
    assert_string_equal(m->abi_version, "0.1.53");
    assert_int_equal(m->created_at, 5);
    assert_int_equal(m->source.n_files, 2);
    assert_string_equal(m->source.path, "m-00001-of-00002.gguf");
    assert_int_equal(m->source.files[0].size_bytes, 7);
    assert_true(m->source.files[0].has_size && m->source.files[1].has_sha256);
    assert_non_null(m->generation);
    /* Ordered by role, layer and part, whatever the order in the document. */
    static const struct {
        enum pkg_role role;
        const char *id;
    } want[] = {{PKG_ROLE_METADATA, "metadata"},        {PKG_ROLE_COMMON, "common"},
                {PKG_ROLE_LAYER, "layer-00000-part00"}, {PKG_ROLE_LAYER, "layer-00000-part01"},
                {PKG_ROLE_LAYER, "layer-00001"},        {PKG_ROLE_PROJECTOR, "projector-00000"},
                {PKG_ROLE_PUBLISHER, "config"}};
    assert_int_equal(m->n_artifacts, 7);
    for (size_t i = 0; i < 7; i++) {
        assert_int_equal(m->artifacts[i].role, want[i].role);
        assert_string_equal(m->artifacts[i].id, want[i].id);
        assert_int_equal(m->artifacts[i].artifact_bytes, 9);
        assert_true(m->artifacts[i].has_sha256);
        assert_false(m->artifacts[i].has_counts);
    }
    assert_string_equal(m->artifacts[5].kind, "mmproj");
    size_t n = 0;
    assert_ptr_equal(pkg_manifest_layer(m, 0, &n), &m->artifacts[2]);
    assert_int_equal(n, 2);
    assert_ptr_equal(pkg_manifest_layer(m, 1, &n), &m->artifacts[4]);
    assert_int_equal(n, 1);
    pkg_manifest_free(m);
    pkg_faults_deinit(&faults);
    json_decref(root);
}

struct row {
    const char *place;
    const char *json; /* the new value, or NULL to remove the key */
    enum pkg_fault_code code;
};

#define ENTRY "artifact_catalog/entries/"
#define PROFILE "generation/request_defaults/profiles/chat/"
#define SPEC "generation/speculative_decoding/"

static const struct row rows[] = {
    {"future", "1", PKG_FAULT_UNKNOWN_FIELD},
    {"source_model/path", "\"m.gguf\"", PKG_FAULT_UNKNOWN_FIELD},
    {"source_model/files/0/size_bytes", "7", PKG_FAULT_UNKNOWN_FIELD},
    {"artifact_catalog/more", "1", PKG_FAULT_UNKNOWN_FIELD},
    {ENTRY "1/layer_index", "1", PKG_FAULT_UNKNOWN_FIELD},
    {"sidecars/0/path", "\"p\"", PKG_FAULT_UNKNOWN_FIELD},
    {"publisher_metadata/0/sha256", "\"p\"", PKG_FAULT_UNKNOWN_FIELD},
    {"model_metadata", "{}", PKG_FAULT_UNKNOWN_FIELD},
    {"tensor_catalog", "{}", PKG_FAULT_UNKNOWN_FIELD},
    {"generation/policy", "{}", PKG_FAULT_UNKNOWN_FIELD},
    {"generation/thresholds", "{}", PKG_FAULT_UNKNOWN_FIELD},
    {PROFILE "temprature", "1", PKG_FAULT_UNKNOWN_FIELD},
    {SPEC "strategies/mtp/window_policy/window", "1", PKG_FAULT_UNKNOWN_FIELD},
    {"package_id", NULL, PKG_FAULT_MISSING_VALUE},
    {"model_id", NULL, PKG_FAULT_MISSING_VALUE},
    {"model_id", "\" \"", PKG_FAULT_MISSING_VALUE},
    {"format", NULL, PKG_FAULT_MISSING_VALUE},
    {"layer_count", "0", PKG_FAULT_MISSING_VALUE},
    {"layer_count", NULL, PKG_FAULT_MISSING_VALUE},
    {"source_model", NULL, PKG_FAULT_MISSING_VALUE},
    {"source_model/primary_file", NULL, PKG_FAULT_MISSING_VALUE},
    {"source_model/files", "[]", PKG_FAULT_MISSING_VALUE},
    {"source_model/files", NULL, PKG_FAULT_MISSING_VALUE},
    {"source_model/repo", "\"\"", PKG_FAULT_MISSING_VALUE},
    {"artifact_catalog/entries", "[]", PKG_FAULT_MISSING_VALUE},
    {ENTRY "1/sha256", NULL, PKG_FAULT_MISSING_VALUE},
    {"native_abi_version", NULL, PKG_FAULT_MISSING_VALUE},
    {"generator_version", "\"\"", PKG_FAULT_MISSING_VALUE},
    {"created_at_unix_secs", NULL, PKG_FAULT_MISSING_VALUE},
    {"sidecars/0/name", "\"\"", PKG_FAULT_MISSING_VALUE},
    {"generation/request_defaults/profiles", "{}", PKG_FAULT_MISSING_VALUE},
    {PROFILE "provenance", NULL, PKG_FAULT_MISSING_VALUE},
    {PROFILE "stop", "[\" \"]", PKG_FAULT_MISSING_VALUE},
    {SPEC "strategies/n/proposer", NULL, PKG_FAULT_MISSING_VALUE},
    {"schema_version", "3", PKG_FAULT_UNSUPPORTED_SCHEMA_VERSION},
    {"layer_count", "100001", PKG_FAULT_INVALID_LAYER_COUNT},
    {"layer_count", "\"2\"", PKG_FAULT_INVALID_FIELD},
    {"layer_count", "4294967296", PKG_FAULT_INVALID_FIELD},
    {"created_at_unix_secs", "-1", PKG_FAULT_INVALID_FIELD},
    {"artifact_catalog", "[]", PKG_FAULT_INVALID_FIELD},
    {"artifact_catalog/entries", "{}", PKG_FAULT_INVALID_FIELD},
    {ENTRY "1", "3", PKG_FAULT_INVALID_FIELD},
    {ENTRY "1/byte_size", "-3", PKG_FAULT_INVALID_FIELD},
    {ENTRY "1/byte_size", "0", PKG_FAULT_EMPTY_ARTIFACT},
    {"generation", "[]", PKG_FAULT_INVALID_FIELD},
    {"publisher_metadata/0/role", "\"readme\"", PKG_FAULT_INVALID_FIELD},
    {"publisher_defaults/compute_dtype/dtype", "\"int4\"", PKG_FAULT_INVALID_FIELD},
    {"format", "\"layer-package\"", PKG_FAULT_INVALID_FORMAT},
    {"package_id", "\"" SHA "\"", PKG_FAULT_INVALID_DIGEST},
    {"package_id", "\"sha256:12\"", PKG_FAULT_INVALID_DIGEST},
    {"source_model/sha256", "\"00112233445566778899AABBCCDDEEFF00112233445566778899aabbccddeeff\"",
     PKG_FAULT_INVALID_DIGEST},
    {"source_model/files/0/sha256", "\"\"", PKG_FAULT_INVALID_DIGEST},
    {ENTRY "1/sha256", "\"" SHA "0\"", PKG_FAULT_INVALID_DIGEST},
    {ENTRY "1/id", "\"layer 1\"", PKG_FAULT_INVALID_IDENTIFIER},
    {ENTRY "1/id", "\"\"", PKG_FAULT_INVALID_IDENTIFIER},
    {"generation/request_defaults/profiles", "{\"a b\": {}}", PKG_FAULT_MISSING_VALUE},
    {ENTRY "1/path", "\"../x.gguf\"", PKG_FAULT_INVALID_PATH},
    {ENTRY "1/path", "\"/x.gguf\"", PKG_FAULT_INVALID_PATH},
    {ENTRY "1/path", "\"layers//x.gguf\"", PKG_FAULT_INVALID_PATH},
    {ENTRY "1/path", "\"layers\\\\x.gguf\"", PKG_FAULT_INVALID_PATH},
    {ENTRY "1/path", "\"layers/\"", PKG_FAULT_INVALID_PATH},
    {"source_model/files/0/path", "\"./m.gguf\"", PKG_FAULT_INVALID_PATH},
    {"source_model/files/0/path", "\"m-00001-of-00002.gguf\"", PKG_FAULT_INVALID_PATH}, /* twice */
    {"source_model/primary_file", "\"../m.gguf\"", PKG_FAULT_INVALID_PATH},
    {"publisher_metadata/0/source_path", "\"/config.json\"", PKG_FAULT_INVALID_PATH},
    {"source_model/primary_file", "\"other.gguf\"", PKG_FAULT_UNKNOWN_SOURCE_FILE},
    {"source_model/sha256", "\"10112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\"",
     PKG_FAULT_SOURCE_IDENTITY_MISMATCH},
    {"publisher_metadata/0/source_revision", "\"main\"", PKG_FAULT_SOURCE_IDENTITY_MISMATCH},
    {"publisher_metadata/0/source_repo", "\"org/other\"", PKG_FAULT_SOURCE_IDENTITY_MISMATCH},
    {"publisher_metadata/0/role", "\"chat_template\"", PKG_FAULT_SOURCE_IDENTITY_MISMATCH}, /* states no dtype */
    {"publisher_defaults/compute_dtype/artifact_id", "\"common\"", PKG_FAULT_SOURCE_IDENTITY_MISMATCH},
    {"source_model/metadata_artifact_id", "\"meta\"", PKG_FAULT_UNKNOWN_ARTIFACT},
    {"sidecars/0/artifact_id", "\"nothing\"", PKG_FAULT_UNKNOWN_ARTIFACT},
    {"publisher_metadata/0/artifact_id", "\"nothing\"", PKG_FAULT_UNKNOWN_ARTIFACT},
    {"publisher_defaults/compute_dtype/artifact_id", "\"nothing\"", PKG_FAULT_UNKNOWN_ARTIFACT},
    {"source_model/metadata_artifact_id", "\"projector-00000\"", PKG_FAULT_INVALID_METADATA_ARTIFACT},
    {"source_model/metadata_artifact_id", "\"config\"", PKG_FAULT_INVALID_METADATA_ARTIFACT},
    {ENTRY "5/path", "\"shared/metadata.bin\"", PKG_FAULT_INVALID_METADATA_ARTIFACT},
    {ENTRY "1/id", "\"common\"", PKG_FAULT_DUPLICATE_ARTIFACT},
    {ENTRY "1/path", "\"shared/common.gguf\"", PKG_FAULT_DUPLICATE_ARTIFACT_PATH},
    {ENTRY "1/path", "\"shared/Common.gguf\"", PKG_FAULT_ARTIFACT_PATH_CASE_CLASH},
    {"sidecars/0/kind", "\"lora\"", PKG_FAULT_UNSUPPORTED_PROJECTOR_KIND},
    {"sidecars/1", "", PKG_FAULT_DUPLICATE_SIDECAR},           /* see the test */
    {"publisher_metadata/1", "", PKG_FAULT_DUPLICATE_SIDECAR}, /* see the test */
    {ENTRY "1/id", "\"layer-00002\"", PKG_FAULT_LAYER_OUT_OF_BOUNDS},
    {SPEC "strategies/mtp/layer_indices", "[2]", PKG_FAULT_LAYER_OUT_OF_BOUNDS},
    {"native_abi_version", "\"1.0.0\"", PKG_FAULT_INCOMPATIBLE_SKIPPY_ABI_VERSION},
    {"package_id", "\"sha256:" SHA "\"", PKG_FAULT_PACKAGE_IDENTITY_MISMATCH},
    {"generator_version", "\"0.76.2\"", PKG_FAULT_PACKAGE_IDENTITY_MISMATCH},
    {SPEC "default", "\"other\"", PKG_FAULT_UNKNOWN_STRATEGY},
    {SPEC "strategies/n/proposer", "\"other\"", PKG_FAULT_UNKNOWN_PROPOSER},
    {SPEC "strategies/mtp/prediction_depth", "2", PKG_FAULT_UNSUPPORTED_NATIVE_MTP_PREDICTION_DEPTH},
    {SPEC "strategies/mtp/proposer", "\"c\"", PKG_FAULT_INVALID_GENERATION_VALUE},
    {SPEC "strategies/n/type", "\"ngram-suffix\"", PKG_FAULT_INVALID_GENERATION_VALUE},
    {SPEC "strategies/n/type", "\"draft-model\"", PKG_FAULT_INVALID_GENERATION_VALUE},
    {SPEC "strategies/n/type", NULL, PKG_FAULT_MISSING_VALUE},
    {SPEC "strategies/n/type", "1", PKG_FAULT_INVALID_FIELD},
    {SPEC "proposers/c/ngram_min", "0", PKG_FAULT_INVALID_GENERATION_VALUE},
    {SPEC "proposers/c/max_proposal_tokens", "0", PKG_FAULT_INVALID_GENERATION_VALUE},
    {SPEC "strategies/mtp/window_policy/min_window", "2", PKG_FAULT_INVALID_GENERATION_VALUE},
    {SPEC "strategies/mtp/window_policy/max_window", "0", PKG_FAULT_INVALID_GENERATION_VALUE},
    {"generation/request_defaults/selection/default", "\"code\"", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "max_tokens", "0", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "temperature", "-0.1", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "temperature", "100.1", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "top_p", "1.01", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "min_p", "-1", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "typical_p", "2", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "top_k", "-1", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "top_k", "1.5", PKG_FAULT_INVALID_FIELD},
    {PROFILE "top_nsigma", "-1.5", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "presence_penalty", "2.5", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "frequency_penalty", "-2.5", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "seed", "4294967296", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "seed", "-1", PKG_FAULT_INVALID_FIELD},
    {PROFILE "logit_bias/7", "100.5", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "logit_bias/-1", "1", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "logit_bias/2147483648", "1", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "repeat_penalty", "0", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "repeat_last_n", "-2", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "dynatemp_range", "-1", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "dynatemp_exponent", "-1", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "dry/base", "0", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "dry/penalty_last_n", "-2", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "dry/sequence_breakers", "[\"0123456789abcdef\"]", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "dry/sequence_breakers", "[\"\"]", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "xtc/probability", "1.5", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "mirostat_mode", "3", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "mirostat_entropy", "0", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "mirostat_learning_rate", "0", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "samplers", "[\"magic\"]", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "sampler_sequence", "\"kz\"", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "reasoning/enabled", "\"maybe\"", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "reasoning/budget", "\"huge\"", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "reasoning/budget", "-1", PKG_FAULT_INVALID_FIELD},
    {PROFILE "ignore_eos", "1", PKG_FAULT_INVALID_FIELD},
    {PROFILE "provenance/revision", "\"main\"", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "provenance/url", "\"ftp://x/" COMMIT "\"", PKG_FAULT_INVALID_GENERATION_VALUE},
    {PROFILE "provenance/url", "\"https://x/" COMMIT "0/README.md\"", PKG_FAULT_INVALID_GENERATION_VALUE},
};

/* The change of a row; two of them need more than one place. */
static json_t *changed(const struct row *r) {
    json_t *root = good(), *value = NULL;
    const char *list = strncmp(r->place, "sidecars/1", 10) == 0             ? "sidecars"
                       : strncmp(r->place, "publisher_metadata/1", 20) == 0 ? "publisher_metadata"
                                                                            : NULL;
    if (list) {
        json_t *array = json_object_get(root, list);
        json_array_append_new(array, json_deep_copy(json_array_get(array, 0)));
        return root;
    }
    if (r->json) {
        value = json_loads(r->json, JSON_DECODE_ANY, NULL);
        assert_non_null(value);
    }
    change(root, r->place, value);
    return root;
}

static void test_faults(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pkg_faults faults;
        json_t *root = changed(&rows[i]);
        struct pkg_manifest *m = check(root, &faults);
        bool found = false;
        for (size_t k = 0; k < faults.n; k++) found = found || faults.list[k].code == rows[i].code;
        if (!found)
            fail_msg("%s = %s: %s was not reported, but %s", rows[i].place, rows[i].json ? rows[i].json : "(removed)",
                     pkg_fault_name(rows[i].code), faults.n ? faults.list[0].message : "nothing");
        bool error = pkg_fault_severity(rows[i].code) == PKG_ERROR;
        if (error != (faults.n_errors > 0)) fail_msg("%s: %zu errors", rows[i].place, faults.n_errors);
        pkg_manifest_free(m);
        pkg_faults_deinit(&faults);
        json_decref(root);
    }
}

/* A document that lacks everything is checked to the end. */
static void test_empty(void **state) {
    (void)state;
    static const char *const texts[] = {
        "{\"schema_version\": 2}",
        "{\"schema_version\": 2, \"source_model\": 1, \"artifact_catalog\": {\"entries\": 1}}",
        ("{\"schema_version\": 2, \"artifact_catalog\": {\"entries\": [{}, {}, 3, {\"id\": \"layer-00000\"}]},"
         " \"sidecars\": [{}, {}, 3], \"publisher_metadata\": [{}, 1], \"generation\": {\"speculative_decoding\": "
         "3}}")};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct pkg_faults faults;
        struct pkg_manifest *m = NULL;
        struct strata_errmsg em;
        pkg_faults_init(&faults);
        assert_int_equal(pkg_manifest_check(texts[i], strlen(texts[i]), &faults, &m, &em), STRATA_OK);
        assert_true(faults.n_errors > 5);
        assert_non_null(m);
        assert_int_equal(m->artifacts[0].role, PKG_ROLE_METADATA);
        assert_null(m->artifacts[0].path);
        pkg_manifest_free(m);
        pkg_faults_deinit(&faults);
    }
}

/* ---- the canonical form ---- */

static void test_canonical(void **state) {
    (void)state;
    /* Order of keys, of lists and of maps; what is absent, null or empty; numbers; escapes. */
    static const char in[] =
        "{\"created_at_unix_secs\": 0, \"generator_version\": \"a\\\"\\\\\\n\\u001f\\u007f\\u00e9/\", \"format\": "
        "\"gguf\","
        " \"native_abi_version\": \"0.1.0\", \"layer_count\": 1, \"model_id\": \"m\", \"package_id\": \"\","
        " \"schema_version\": 2, \"sidecars\": [{\"artifact_id\": \"q\", \"kind\": \"mmproj\", \"name\": \"b\"},"
        " {\"artifact_id\": \"r\", \"kind\": \"mmproj\"}], \"publisher_metadata\": [],"
        " \"source_model\": {\"files\": [{\"sha256\": \"y\", \"path\": \"b\", \"byte_size\": 2},"
        " {\"sha256\": \"x\", \"path\": \"a\", \"byte_size\": 9223372036854775807}], \"repo\": null,"
        " \"primary_file\": \"a\", \"metadata_artifact_id\": \"metadata\", \"sha256\": \"x\"},"
        " \"artifact_catalog\": {\"entries\": [{\"id\": \"layer-00000\", \"path\": \"l\", \"byte_size\": 1, "
        "\"sha256\": \"z\"},"
        " {\"sha256\": \"z\", \"byte_size\": 1, \"path\": \"c\", \"id\": \"common\"}]},"
        " \"generation\": {\"speculative_decoding\": {\"strategies\": {\"z\": {\"proposer\": \"c\", \"type\":"
        " \"ngram-cache\"}, \"a\": {\"layer_indices\": [3, 1], \"prediction_depth\": 1, \"type\": \"native-mtp\"}},"
        " \"proposers\": {}, \"default\": \"a\"}, \"request_defaults\": {\"profiles\": {\"p\": {\"top_p\": 1,"
        " \"temperature\": 0.1, \"min_p\": 1e-5, \"typical_p\": 1.5e-7, \"top_nsigma\": 1e16, \"dynatemp_range\": "
        "123456.5,"
        " \"dynatemp_exponent\": 100000, \"frequency_penalty\": -0.5, \"stop\": [], \"ignore_eos\": true,"
        " \"repeat_penalty\": 1e15, \"reasoning\": {\"budget\": 5},"
        " \"provenance\": {\"url\": \"u\", \"section\": \"s\", \"file\": \"f\", \"revision\": \"r\", \"source_repo\":"
        " \"o\"}}}, \"selection\": {\"default\": \"p\"}}}}";
    static const char want[] =
        "{\"schema_version\":2,\"package_id\":\"\",\"model_id\":\"m\",\"source_model\":{\"sha256\":\"x\","
        "\"metadata_artifact_id\":\"metadata\",\"primary_file\":\"a\",\"files\":[{\"path\":\"a\",\"byte_size\":"
        "9223372036854775807,\"sha256\":\"x\"},{\"path\":\"b\",\"byte_size\":2,\"sha256\":\"y\"}]},\"format\":\"gguf\","
        "\"layer_count\":1,\"artifact_catalog\":{\"entries\":[{\"id\":\"common\",\"path\":\"c\",\"byte_size\":1,"
        "\"sha256\":\"z\"},{\"id\":\"layer-00000\",\"path\":\"l\",\"byte_size\":1,\"sha256\":\"z\"}]},\"sidecars\":["
        "{\"kind\":\"mmproj\",\"artifact_id\":\"r\"},{\"kind\":\"mmproj\",\"artifact_id\":\"q\",\"name\":\"b\"}],"
        "\"generation\":{\"request_defaults\":{\"selection\":{\"default\":\"p\"},\"profiles\":{\"p\":{\"stop\":[],"
        "\"temperature\":0.1,\"top_p\":1.0,\"min_p\":0.00001,\"typical_p\":1.5e-7,\"top_nsigma\":1e16,"
        "\"frequency_penalty\":-0.5,\"repeat_penalty\":1000000000000000.0,\"dynatemp_range\":123456.5,"
        "\"dynatemp_exponent\":100000.0,\"ignore_eos\":true,\"reasoning\":{\"budget\":5},\"provenance\":{\"source_"
        "repo\":"
        "\"o\",\"revision\":\"r\",\"file\":\"f\",\"section\":\"s\",\"url\":\"u\"}}}},\"speculative_decoding\":{"
        "\"default\":"
        "\"a\",\"strategies\":{\"a\":{\"type\":\"native-mtp\",\"prediction_depth\":1,\"layer_indices\":[3,1]},\"z\":{"
        "\"type\":\"ngram-cache\",\"proposer\":\"c\"}}}},\"native_abi_version\":\"0.1.0\",\"generator_version\":"
        "\"a\\\"\\\\\\n\\u001f\x7f\xc3\xa9/\",\"created_at_unix_secs\":0}";
    struct buf out;
    struct strata_errmsg em;
    json_error_t e;
    json_t *root = json_loads(in, 0, &e);
    if (!root) fail_msg("%s at %d", e.text, e.position);
    buf_init(&out, 1 << 16);
    assert_int_equal(pkg_shape_canonical(pkg_schema2_root, root, &out, &em), STRATA_OK);
    assert_string_equal(buf_cstr(&out), want);
    buf_deinit(&out);
    json_decref(root);
}

static bool matches(json_t *root, const char *id) {
    struct pkg_faults faults;
    if (id) json_object_set_new(root, "package_id", json_string(id));
    struct pkg_manifest *m = check(root, &faults);
    assert_int_equal(faults.n_errors, 0);
    assert_true(faults.n <= 1);
    bool mismatch = faults.n == 1 && faults.list[0].code == PKG_FAULT_PACKAGE_IDENTITY_MISMATCH;
    pkg_manifest_free(m);
    pkg_faults_deinit(&faults);
    return !mismatch;
}

/* The order of lists and the time of creation are not part of the identity; everything else is. */
static void test_identity(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct buf text;
    uint8_t sum[DIGEST_BYTES];
    char old[PKG_PACKAGE_ID_MAX] = "sha256:";
    json_t *root = good();
    assert_true(matches(root, NULL));
    json_object_set_new(root, "created_at_unix_secs", json_integer(99));
    assert_true(matches(root, NULL));
    json_t *entries = json_object_get(json_object_get(root, "artifact_catalog"), "entries");
    json_array_append(entries, json_array_get(entries, 0));
    json_array_remove(entries, 0);
    assert_true(matches(root, NULL));
    /* Early writers kept the time in it. */
    json_t *copy = json_copy(root);
    json_object_set_new(copy, "package_id", json_string(""));
    buf_init(&text, 1 << 16);
    assert_int_equal(pkg_shape_canonical(pkg_schema2_root, copy, &text, &em), STRATA_OK);
    assert_int_equal(digest_of(text.data, text.len, sum, &em), STRATA_OK);
    digest_to_hex(sum, sizeof sum, old + 7);
    buf_deinit(&text);
    json_decref(copy);
    assert_true(matches(root, old));
    json_object_set_new(root, "created_at_unix_secs", json_integer(98));
    assert_false(matches(root, NULL));
    json_decref(root);
}

/* ---- generation blocks of the other schema ---- */

static void test_convert(void **state) {
    (void)state;
    static const char mtp[] = "{\"default\": \"mtp\", \"strategies\": {\"mtp\": {\"type\": \"native-mtp\", "
                              "\"prediction_depth\": 1, \"layer_indices\": [1]%s}}}";
    static const struct {
        const char *format; /* %s: the block above */
        const char *extra;  /* inside the strategy */
        unsigned to;
        bool kept;
        const char *dropped;
    } cases[] = {
        {"{\"speculative_decoding\": %s}", "", 2, true, ""},
        {"{\"policy\": {}, \"thresholds\": {}, \"speculative_decoding\": %s}", "", 2, true, "policy, thresholds"},
        {"{\"speculative_decoding\": %s}", ", \"future\": 1", 2, false, "speculative_decoding"},
        {"{\"speculative_decoding\": %s}", ", \"future\": 1", 1, true, ""},
        {"{\"request_defaults\": {}, \"speculative_decoding\": %s}", "", 1, true, "request_defaults"},
        {"{\"policy\": {}}", "", 2, false, "policy"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char block[256], text[512], dropped[100];
        struct strata_errmsg em;
        json_t *out = NULL;
        snprintf(block, sizeof block, mtp, cases[i].extra);
        snprintf(text, sizeof text, cases[i].format, block);
        json_t *in = json_loads(text, 0, NULL);
        assert_non_null(in);
        assert_int_equal(pkg_generation2_convert(in, cases[i].to, 2, &out, dropped, sizeof dropped, &em), STRATA_OK);
        assert_string_equal(dropped, cases[i].dropped);
        assert_int_equal(out != NULL, cases[i].kept);
        if (out) {
            assert_int_equal(json_object_size(out), 1);
            assert_true(
                json_equal(json_object_get(out, "speculative_decoding"), json_object_get(in, "speculative_decoding")));
        }
        json_decref(out);
        json_decref(in);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),      cmocka_unit_test(test_faults),   cmocka_unit_test(test_empty),
        cmocka_unit_test(test_canonical), cmocka_unit_test(test_identity), cmocka_unit_test(test_convert),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
