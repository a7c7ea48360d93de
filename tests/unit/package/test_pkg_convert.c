/* Conversion between the schemas: nothing is lost on the way there and back, and nothing wrong gets through. */
#include "package/pkg_convert.h"
#include "package/pkg_model.h"

#include "pkg_model_sample.h"

#include <sys/stat.h>

static struct tmp_folder T;
static char NOTES[1024];

static int setup(void **state) {
    (void)state;
    tmp_folder_make(&T);
    NOTES[0] = '\0';
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tmp_folder_remove(T.path);
    return 0;
}

static const char *const names[] = {"output.weight",
                                    "rope_freqs.weight",
                                    "blk.1.b.weight",
                                    "token_embd.weight",
                                    "blk.0.z.weight",
                                    "per_layer_token_embd.weight",
                                    "blk.0.a.weight",
                                    "output_norm.weight",
                                    "token_types.weight",
                                    "blk.1.a.weight",
                                    NULL};

static void remember(void *user, const char *text) {
    (void)user;
    size_t n = strlen(NOTES);
    snprintf(NOTES + n, sizeof NOTES - n, "%s\n", text);
}

static strata_err convert(const char *from, unsigned to, const char *dir, uint64_t max_bytes,
                          struct strata_errmsg *em) {
    struct pkg_convert_options opt = {
        .out_dir = dir, .to_schema = to, .max_artifact_bytes = max_bytes, .how.jobs = 2, .note = remember};
    struct pkg_convert_result res = {0};
    strata_err rc = pkg_convert(from, &opt, &res, em);
    if (!rc) {
        assert_int_equal(res.from_schema, 3 - to);
        assert_int_equal(json_integer_value(json_object_get(res.manifest, "schema_version")), to);
        assert_true(res.file_count > 4 && res.total_bytes > 0);
    }
    json_decref(res.manifest);
    return rc;
}

static const char *const fragments[] = {"shared/metadata.gguf", "shared/embeddings.gguf", "shared/output.gguf",
                                        "layers/layer-00000.gguf", "layers/layer-00001.gguf"};

/* 1 -> 2 -> 1: byte for byte, the manifest included. Alignments that the source states and one that it does not. */
static void test_there_and_back(void **state) {
    (void)state;
    static const uint32_t alignments[] = {0, 32, 64, 8};
    for (size_t k = 0; k < 4; k++)
        for (uint64_t max = 0; max <= 100; max += 100) {
            char file[300], one[300], two[300], back[300], a[400], b[400];
            struct strata_errmsg em;
            snprintf(file, sizeof file, "%s/m%zu-%d.gguf", T.path, k, (int)max);
            snprintf(one, sizeof one, "%s/one%zu-%d", T.path, k, (int)max);
            snprintf(two, sizeof two, "%s/two%zu-%d", T.path, k, (int)max);
            snprintf(back, sizeof back, "%s/back%zu-%d", T.path, k, (int)max);
            model_write(file, names, 2, alignments[k]);
            model_package(file, one, 1, 0);
            if (convert(one, 2, two, max, &em)) fail_msg("%s", em.text);
            if (convert(two, 1, back, 0, &em)) fail_msg("%s", em.text);
            for (size_t i = 0; i < sizeof fragments / sizeof fragments[0]; i++) {
                snprintf(a, sizeof a, "%s/%s", one, fragments[i]);
                snprintf(b, sizeof b, "%s/%s", back, fragments[i]);
                if (!same_bytes(a, b)) fail_msg("%s differs", fragments[i]);
            }
            snprintf(a, sizeof a, "%s/model-package.json", one);
            snprintf(b, sizeof b, "%s/model-package.json", back);
            assert_true(same_bytes(a, b));
        }
    assert_string_equal(NOTES, "");
}

/* 2 -> 1 -> 2 keeps every tensor, if not the order of the carrier; converting twice gives the same bytes. */
static void test_from_two(void **state) {
    (void)state;
    struct strata_errmsg em;
    const char *dirs[4] = {tmp_path(&T, "two"), tmp_path(&T, "one"), tmp_path(&T, "two-again"), tmp_path(&T, "twin")};
    model_write(tmp_path(&T, "f.gguf"), names, 2, 0);
    model_package(tmp_path(&T, "f.gguf"), dirs[0], 2, 0);
    assert_int_equal(convert(dirs[0], 1, dirs[1], 0, &em), STRATA_OK);
    assert_int_equal(convert(dirs[1], 2, dirs[2], 0, &em), STRATA_OK);
    assert_int_equal(convert(dirs[1], 2, dirs[3], 0, &em), STRATA_OK);
    assert_true(same_bytes(tmp_path(&T, "two-again/model-package.json"), tmp_path(&T, "twin/model-package.json")));
    assert_true(same_bytes(tmp_path(&T, "two-again/shared/common.gguf"), tmp_path(&T, "two/shared/common.gguf")));
    assert_true(
        same_bytes(tmp_path(&T, "two-again/layers/layer-00001.gguf"), tmp_path(&T, "two/layers/layer-00001.gguf")));
    struct pkg_model *m[2];
    for (size_t k = 0; k < 2; k++) {
        struct pkg_model_options opt = {.range = {0, PKG_RANGE_ALL}, .flags = PKG_MODEL_VERIFY};
        assert_int_equal(pkg_model_open(k ? dirs[1] : tmp_path(&T, "f.gguf"), &opt, &m[k], &em), STRATA_OK);
    }
    assert_int_equal(pkg_model_tensor_count(m[0]), pkg_model_tensor_count(m[1]));
    for (size_t i = 0; i < pkg_model_tensor_count(m[0]); i++) {
        const struct gguf_tensor *x = pkg_model_tensor(m[0], i), *y = pkg_model_find(m[1], x->name);
        assert_non_null(y);
        assert_memory_equal(x->data, y->data, x->bytes);
    }
    pkg_model_free(m[0]);
    pkg_model_free(m[1]);
}

static void test_refusals(void **state) {
    (void)state;
    struct strata_errmsg em;
    const char *one = tmp_path(&T, "p"), *out = tmp_path(&T, "out");
    model_write(tmp_path(&T, "g.gguf"), names, 2, 0);
    model_package(tmp_path(&T, "g.gguf"), one, 1, 0);
    assert_int_equal(convert(one, 1, out, 0, &em), STRATA_EINVAL); /* is schema 1 already */
    assert_non_null(strstr(em.text, "already"));
    assert_int_equal(convert(tmp_path(&T, "g.gguf"), 2, out, 0, &em), STRATA_EINVAL);
    assert_int_equal(convert(one, 2, one, 0, &em), STRATA_EINVAL); /* not empty */
    assert_int_equal(convert(T.path, 2, out, 0, &em), STRATA_ENOENT);
    static const char *const inside[] = {"p/inside", "p/layers/inside", "p/a/b/c", "p/"};
    for (size_t i = 0; i < 4; i++) assert_int_equal(convert(one, 2, tmp_path(&T, inside[i]), 0, &em), STRATA_EINVAL);
    assert_false(file_is_dir(tmp_path(&T, "p/a")));
    assert_false(file_is_dir(out));
    /* One byte of a weight is wrong: nothing is written. */
    struct buf b;
    buf_init(&b, 1 << 20);
    assert_int_equal(file_read_all(tmp_path(&T, "p/layers/layer-00001.gguf"), 1 << 20, &b, &em), STRATA_OK);
    b.data[b.len - 40] ^= 1;
    assert_int_equal(file_write_all(tmp_path(&T, "p/layers/layer-00001.gguf"), b.data, b.len, 0644, &em), STRATA_OK);
    buf_deinit(&b);
    assert_int_equal(convert(one, 2, out, 0, &em), STRATA_EDIGEST);
    assert_non_null(strstr(em.text, "layers/layer-00001.gguf"));
    assert_false(file_is_dir(out));
}

/* Rewrites a manifest with one key set. */
static void set_manifest(const char *path, const char *key, json_t *value) {
    struct strata_errmsg em;
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    assert_int_equal(json_object_set_new(root, key, value), 0);
    char *text = json_dumps(root, JSON_INDENT(2));
    assert_int_equal(file_write_all(path, text, strlen(text), 0644, &em), STRATA_OK);
    free(text);
    json_decref(root);
}

/* The generation block goes along as far as it can; what cannot is told. */
static void test_generation(void **state) {
    (void)state;
    struct strata_errmsg em;
    json_error_t e;
    json_t *block = json_loads(
        "{\"policy\": {\"profile\": \"x\", \"decode\": \"auto\"}, \"speculative_decoding\": {\"default\": \"n\", "
        "\"proposers\": {\"c\": {\"type\": \"ngram-cache\", \"ngram_min\": 1, \"ngram_max\": 3, "
        "\"max_proposal_tokens\": 4, \"history_scope\": \"request\"}}, \"strategies\": {\"n\": "
        "{\"type\": \"ngram-cache\", \"proposer\": \"c\"}}}}",
        0, &e);
    if (!block) fail_msg("%s", e.text);
    json_t *speculation = json_deep_copy(json_object_get(block, "speculative_decoding"));
    model_write(tmp_path(&T, "h.gguf"), names, 2, 0);
    model_package(tmp_path(&T, "h.gguf"), tmp_path(&T, "h1"), 1, 0);
    set_manifest(tmp_path(&T, "h1/model-package.json"), "generation", block);
    if (convert(tmp_path(&T, "h1"), 2, tmp_path(&T, "h2"), 0, &em)) fail_msg("%s", em.text);
    assert_non_null(strstr(NOTES, "policy"));
    NOTES[0] = '\0';
    if (convert(tmp_path(&T, "h2"), 1, tmp_path(&T, "h3"), 0, &em)) fail_msg("%s", em.text);
    assert_string_equal(NOTES, "");
    json_t *root = json_load_file(tmp_path(&T, "h3/model-package.json"), 0, NULL);
    assert_true(json_equal(json_object_get(json_object_get(root, "generation"), "speculative_decoding"), speculation));
    json_decref(root);
    json_decref(speculation);
}

/* A list of source files without digests cannot become one of schema 2; a projector goes along. */
static void test_source_and_projector(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct pkg_write_result res;
    static const char *const mmproj[] = {"v.blk.0.weight", NULL};
    const char *source = tmp_path(&T, "k.gguf"), *one = tmp_path(&T, "k1");
    model_write(source, names, 2, 0);
    model_write(tmp_path(&T, "mmproj-k.gguf"), mmproj, 1, 0);
    struct pkg_write_options opt = {
        .out_dir = one, .identity.local = true, .projectors = {tmp_path(&T, "mmproj-k.gguf")}, .n_projectors = 1};
    if (pkg_write(source, &opt, &res, &em)) fail_msg("%s", em.text);
    json_decref(res.manifest);
    if (convert(one, 2, tmp_path(&T, "k2"), 0, &em)) fail_msg("%s", em.text);
    assert_true(same_bytes(tmp_path(&T, "k2/projectors/mmproj-k.gguf"), tmp_path(&T, "mmproj-k.gguf")));
    if (convert(tmp_path(&T, "k2"), 1, tmp_path(&T, "k3"), 0, &em)) fail_msg("%s", em.text);
    assert_true(same_bytes(tmp_path(&T, "k3/model-package.json"), tmp_path(&T, "k1/model-package.json")));
    assert_true(same_bytes(tmp_path(&T, "k3/projectors/mmproj-k.gguf"), tmp_path(&T, "mmproj-k.gguf")));

    json_t *root = json_load_file(tmp_path(&T, "k1/model-package.json"), 0, NULL);
    json_t *src = json_deep_copy(json_object_get(root, "source_model"));
    json_object_del(json_array_get(json_object_get(src, "files"), 0), "size_bytes");
    json_decref(root);
    set_manifest(tmp_path(&T, "k1/model-package.json"), "source_model", json_incref(src));
    assert_int_equal(convert(one, 2, tmp_path(&T, "k4"), 0, &em), STRATA_EUNSUPPORTED);
    assert_non_null(strstr(em.text, "size and SHA-256"));
    assert_false(file_is_regular(tmp_path(&T, "k4/model-package.json")));
    json_object_del(src, "files");
    set_manifest(tmp_path(&T, "k1/model-package.json"), "source_model", src);
    assert_int_equal(convert(one, 2, tmp_path(&T, "k5"), 0, &em), STRATA_EUNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_there_and_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_from_two, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(test_generation, setup, teardown),
        cmocka_unit_test_setup_teardown(test_source_and_projector, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
