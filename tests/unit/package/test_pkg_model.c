/* Opening a range: the same tensors from a file and from a package; only the needed parts are opened; damage is
 * refused. */
#include "base/file.h"
#include "package/pkg_model.h"
#include "package/pkg_write.h"

#include "pkg_model_sample.h"
#include "pkg_sample.h"

static struct tmp_folder T;
static unsigned SCHEMA;         /* of the packages that the tests make */
static uint64_t MAX_BYTES = 50; /* schema 2: so little that each tensor has a part of its own */

static int setup(void **state) {
    (void)state;
    tmp_folder_make(&T);
    SCHEMA = 1;
    return 0;
}

static int setup2(void **state) {
    int rc = setup(state);
    SCHEMA = 2;
    return rc;
}

static int teardown(void **state) {
    (void)state;
    tmp_folder_remove(T.path);
    return 0;
}

static void make(const struct sample *s, const char *dir) {
    struct strata_errmsg em;
    struct pkg_write_result res;
    char source[400];
    sample_write(s);
    snprintf(source, sizeof source, "%s%s.gguf", s->path, s->shards > 1 ? "-00001-of-00002" : "");
    struct pkg_write_options opt = {
        .out_dir = dir, .identity.local = true, .schema = SCHEMA, .max_artifact_bytes = SCHEMA == 2 ? MAX_BYTES : 0};
    assert_int_equal(pkg_write(source, &opt, &res, &em), STRATA_OK);
    json_decref(res.manifest);
}

static struct pkg_model *open_range(const char *path, uint32_t first, uint32_t end, unsigned flags) {
    struct pkg_model *m = NULL;
    struct strata_errmsg em;
    struct pkg_model_options opt = {.range = {first, end}, .flags = flags};
    if (pkg_model_open(path, &opt, &m, &em)) fail_msg("%s", em.text);
    return m;
}

static strata_err open_fails(const char *path, uint32_t first, uint32_t end, unsigned flags, struct strata_errmsg *em) {
    struct pkg_model *m = NULL;
    struct pkg_model_options opt = {.range = {first, end}, .flags = flags};
    strata_err rc = pkg_model_open(path, &opt, &m, em);
    assert_null(m);
    return rc;
}

/* What each range must see, by class; the same from both doors. */
static void check_range(const char *file, const char *dir, const struct sample *s, uint32_t first, uint32_t end) {
    struct pkg_model *a = open_range(file, first, end, 0), *b = open_range(dir, first, end, PKG_MODEL_VERIFY);
    bool is_first = first == 0, is_last = end == s->layers;
    assert_false(pkg_model_is_package(a));
    assert_true(pkg_model_is_package(b));
    assert_int_equal(pkg_model_layer_count(a), s->layers);
    assert_int_equal(pkg_model_layer_count(b), s->layers);
    assert_int_equal(pkg_model_range(b).first, first);
    assert_int_equal(pkg_model_range(b).end, end);
    assert_int_equal(pkg_model_tensor_count(a), pkg_model_tensor_count(b));
    assert_int_equal(pkg_model_tensor_bytes(a), pkg_model_tensor_bytes(b));
    uint64_t bytes = 0;
    for (size_t i = 0; i < pkg_model_tensor_count(a); i++) {
        const struct gguf_tensor *x = pkg_model_tensor(a, i), *y = pkg_model_find(b, x->name);
        assert_non_null(y);
        assert_int_equal(x->bytes, y->bytes);
        assert_memory_equal(x->data, y->data, x->bytes);
        bytes += x->bytes;
    }
    assert_int_equal(bytes, pkg_model_tensor_bytes(a));
    for (int k = 0; k < 2; k++) {
        const struct pkg_model *m = k ? b : a;
        assert_int_equal(pkg_model_find(m, "token_embd.weight") != NULL, is_first || (is_last && s->tied));
        assert_int_equal(pkg_model_find(m, "output_norm.weight") != NULL, is_last);
        assert_int_equal(pkg_model_find(m, "output.weight") != NULL, is_last && !s->tied);
        assert_int_equal(pkg_model_find(m, "rope_freqs.weight") != NULL, s->replicated);
        for (uint32_t i = 0; i < s->layers; i++) {
            char name[32];
            snprintf(name, sizeof name, "blk.%u.attn_q.weight", i);
            assert_int_equal(pkg_model_find(m, name) != NULL, i >= first && i < end);
        }
        assert_non_null(gguf_reader_find_kv(pkg_model_meta(m), "general.architecture"));
    }
    assert_string_equal(pkg_model_id(a), "Sample Model");
    assert_string_equal(pkg_model_manifest_sha256(a), "");
    assert_int_equal(strlen(pkg_model_manifest_sha256(b)), 64);
    pkg_model_free(a);
    pkg_model_free(b);
}

static void test_ranges(void **state) {
    (void)state;
    for (unsigned kind = 0; kind < 4; kind++) {
        char base[300], dir[300], file[400];
        snprintf(base, sizeof base, "%s/m%u", T.path, kind);
        snprintf(dir, sizeof dir, "%s/p%u", T.path, kind);
        struct sample s = {base, 4, kind & 1, kind & 2, kind == 3 ? 2 : 1, UINT32_MAX};
        snprintf(file, sizeof file, "%s%s.gguf", base, s.shards > 1 ? "-00002-of-00002" : "");
        make(&s, dir);
        for (uint32_t first = 0; first < 4; first++)
            for (uint32_t end = first + 1; end <= 4; end++) check_range(file, dir, &s, first, end);
    }
}

/* The shares of all stages add up, embeddings counted twice when tied. */
static void test_sizes(void **state) {
    (void)state;
    for (unsigned tied = 0; tied < 2; tied++) {
        char base[300], dir[300], file[400];
        struct strata_errmsg em;
        snprintf(base, sizeof base, "%s/s%u", T.path, tied);
        snprintf(dir, sizeof dir, "%s/sp%u", T.path, tied);
        snprintf(file, sizeof file, "%s.gguf", base);
        struct sample s = {base, 3, tied, true, 1, UINT32_MAX};
        make(&s, dir);
        uint64_t *x, *y, embedding[2], output[2];
        uint32_t n[2];
        assert_int_equal(pkg_model_layer_sizes(file, &x, &n[0], &embedding[0], &output[0], &em), STRATA_OK);
        assert_int_equal(pkg_model_layer_sizes(dir, &y, &n[1], &embedding[1], &output[1], &em), STRATA_OK);
        assert_int_equal(n[0], 3);
        assert_int_equal(n[1], 3);
        assert_memory_equal(x, y, 3 * sizeof *x);
        assert_int_equal(embedding[0], 11 * SAMPLE_WIDTH * 4);
        assert_int_equal(embedding[1], embedding[0]);
        assert_int_equal(output[0], (1 + 11) * SAMPLE_WIDTH * 4); /* norm and head, or norm and tied embeddings */
        assert_int_equal(output[1], output[0]);
        assert_int_equal(x[1], (2 + 3 + 4) * SAMPLE_WIDTH * 4);
        free(x);
        free(y);
    }
}

/* A stage that owns neither end needs neither end's files. */
static void test_only_needed_parts(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct sample s = {tmp_path(&T, "n"), 4, true, false, 1, UINT32_MAX};
    char dir[300];
    snprintf(dir, sizeof dir, "%s/np", T.path);
    make(&s, dir);
    assert_int_equal(remove(tmp_path(&T, "np/shared/embeddings.gguf")), 0);
    assert_int_equal(remove(tmp_path(&T, "np/layers/layer-00003.gguf")), 0);
    pkg_model_free(open_range(dir, 1, 3, PKG_MODEL_VERIFY));
    assert_int_equal(open_fails(dir, 0, 1, 0, &em), STRATA_ENOENT);
    assert_non_null(strstr(em.text, "shared/embeddings.gguf"));
    assert_int_equal(open_fails(dir, 1, 4, 0, &em), STRATA_ENOENT); /* tied: the last stage wants them too */
    assert_non_null(strstr(em.text, "shared/embeddings.gguf"));
}

/* Who only wants to know what a model is needs no weights: a coordinator, or a machine that holds a few layers. */
static void test_metadata_only(void **state) {
    (void)state;
    struct sample s = {tmp_path(&T, "o"), 4, true, false, 1, UINT32_MAX};
    char dir[300];
    snprintf(dir, sizeof dir, "%s/op", T.path);
    make(&s, dir);
    tmp_folder_remove(tmp_path(&T, "op/layers"));
    assert_int_equal(remove(tmp_path(&T, "op/shared/embeddings.gguf")), 0);
    assert_int_equal(remove(tmp_path(&T, "op/shared/output.gguf")), 0);
    const char *paths[] = {dir, tmp_path(&T, "o.gguf")};
    for (size_t i = 0; i < 2; i++) {
        struct pkg_model *m = open_range(paths[i], 0, 0, PKG_MODEL_VERIFY | PKG_MODEL_METADATA_ONLY);
        assert_int_equal(pkg_model_layer_count(m), 4);
        assert_int_equal(pkg_model_tensor_count(m), 0);
        assert_non_null(gguf_reader_find_kv(pkg_model_meta(m), "general.architecture"));
        assert_null(pkg_model_find(m, "token_embd.weight"));
        pkg_model_free(m);
    }
}

static void damage(const char *path, bool shorten) {
    struct buf b;
    struct strata_errmsg em;
    buf_init(&b, 1 << 24);
    assert_int_equal(file_read_all(path, 1 << 24, &b, &em), STRATA_OK);
    b.data[b.len - 1] ^= 1;
    if (shorten) b.len--;
    assert_int_equal(file_write_all(path, b.data, b.len, 0644, &em), STRATA_OK);
    buf_deinit(&b);
}

static void test_damage(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct sample s = {tmp_path(&T, "d"), 3, true, false, 1, UINT32_MAX};
    char dir[300];
    snprintf(dir, sizeof dir, "%s/dp", T.path);
    make(&s, dir);
    damage(tmp_path(&T, "dp/layers/layer-00001.gguf"), false);
    pkg_model_free(open_range(dir, 1, 2, 0)); /* sizes alone do not show it */
    assert_int_equal(open_fails(dir, 1, 2, PKG_MODEL_VERIFY, &em), STRATA_EDIGEST);
    assert_non_null(strstr(em.text, "layers/layer-00001.gguf"));
    pkg_model_free(open_range(dir, 0, 1, PKG_MODEL_VERIFY)); /* other ranges are not concerned */
    damage(tmp_path(&T, "dp/layers/layer-00001.gguf"), true);
    assert_int_equal(open_fails(dir, 0, 3, 0, &em), STRATA_EDIGEST);
    assert_int_equal(open_fails(dir, 0, 4, 0, &em), STRATA_EINVAL);
    assert_non_null(strstr(em.text, "3 layers"));
    assert_int_equal(open_fails(dir, 2, 2, 0, &em), STRATA_EINVAL);
    assert_int_equal(open_fails(tmp_path(&T, "d.gguf"), 0, 4, 0, &em), STRATA_EINVAL);
    assert_non_null(strstr(em.text, "3 layers"));
    assert_int_equal(open_fails(T.path, 0, 1, 0, &em), STRATA_ENOENT);
    assert_non_null(strstr(em.text, "model-package.json"));
}

/* ---- schema 2 ---- */

/* A middle stage opens the common part for rope_freqs.weight, and not without it; parts that hold nothing of a range
 * may be absent. */
static void test_needed_parts2(void **state) {
    (void)state;
    struct strata_errmsg em;
    for (unsigned replicated = 0; replicated < 2; replicated++) {
        char base[300], dir[300], common[400], layer[400];
        snprintf(base, sizeof base, "%s/q%u", T.path, replicated);
        snprintf(dir, sizeof dir, "%s/qp%u", T.path, replicated);
        snprintf(common, sizeof common, "%s/shared/common.gguf", dir);
        snprintf(layer, sizeof layer, "%s/layers/layer-00003.gguf", dir);
        struct sample s = {base, 4, true, replicated, 1, UINT32_MAX};
        MAX_BYTES = 0;
        make(&s, dir);
        MAX_BYTES = 50;
        struct pkg_model *m = open_range(dir, 1, 3, PKG_MODEL_VERIFY);
        assert_int_equal(pkg_model_part_count(m), replicated ? 4 : 3); /* carrier, layers, common */
        pkg_model_free(m);
        assert_int_equal(remove(common), 0);
        assert_int_equal(remove(layer), 0);
        if (replicated)
            assert_int_equal(open_fails(dir, 1, 3, 0, &em), STRATA_ENOENT);
        else
            pkg_model_free(open_range(dir, 1, 3, PKG_MODEL_VERIFY));
        assert_int_equal(open_fails(dir, 0, 1, 0, &em), STRATA_ENOENT);
        assert_non_null(strstr(em.text, "shared/common.gguf"));
        assert_int_equal(open_fails(dir, 2, 4, 0, &em), STRATA_ENOENT);
    }
}

static void test_metadata_only2(void **state) {
    (void)state;
    struct sample s = {tmp_path(&T, "o2"), 4, true, false, 1, UINT32_MAX};
    char dir[300];
    snprintf(dir, sizeof dir, "%s/op2", T.path);
    make(&s, dir);
    tmp_folder_remove(tmp_path(&T, "op2/layers"));
    struct pkg_model *m = open_range(dir, 0, 0, PKG_MODEL_VERIFY | PKG_MODEL_METADATA_ONLY);
    assert_int_equal(pkg_model_layer_count(m), 4);
    assert_int_equal(pkg_model_tensor_count(m), 0);
    assert_int_equal(pkg_model_part_count(m), 1);
    assert_non_null(gguf_reader_find_kv(pkg_model_meta(m), "general.architecture"));
    pkg_model_free(m);
}

static void test_damage2(void **state) {
    (void)state;
    struct strata_errmsg em;
    struct sample s = {tmp_path(&T, "d2"), 3, true, false, 1, UINT32_MAX};
    char dir[300];
    snprintf(dir, sizeof dir, "%s/dp2", T.path);
    MAX_BYTES = 0;
    make(&s, dir);
    MAX_BYTES = 50;
    damage(tmp_path(&T, "dp2/layers/layer-00001.gguf"), false);
    pkg_model_free(open_range(dir, 1, 2, 0));
    assert_int_equal(open_fails(dir, 1, 2, PKG_MODEL_VERIFY, &em), STRATA_EDIGEST);
    assert_non_null(strstr(em.text, "layers/layer-00001.gguf"));
    pkg_model_free(open_range(dir, 0, 1, PKG_MODEL_VERIFY));
    damage(tmp_path(&T, "dp2/layers/layer-00001.gguf"), true);
    assert_int_equal(open_fails(dir, 0, 3, 0, &em), STRATA_EDIGEST);
    damage(tmp_path(&T, "dp2/shared/metadata.gguf"), false);
    assert_int_equal(open_fails(dir, 0, 1, PKG_MODEL_VERIFY, &em), STRATA_EDIGEST);
}

/* Another part under the same name and of the same size: the carrier does not take its tensors. */
static void test_swapped_parts2(void **state) {
    (void)state;
    struct strata_errmsg em;
    static const char *const names[] = {"token_embd.weight", "blk.0.a.weight", "blk.1.b.weight", "output_norm.weight",
                                        NULL};
    char dir[300];
    snprintf(dir, sizeof dir, "%s/xp", T.path);
    model_write(tmp_path(&T, "x.gguf"), names, 2, 4096); /* so that both layer files have one size */
    model_package(tmp_path(&T, "x.gguf"), dir, 2, 0);
    pkg_model_free(open_range(dir, 0, 2, PKG_MODEL_VERIFY));
    assert_int_equal(rename(tmp_path(&T, "xp/layers/layer-00001.gguf"), tmp_path(&T, "xp/layers/layer-00000.gguf")), 0);
    assert_int_equal(open_fails(dir, 0, 1, 0, &em), STRATA_EFORMAT);
    assert_non_null(strstr(em.text, "does not hold tensor 'blk.0.a.weight'"));
}

/* ---- MTP layers ---- */

static const char *const mtp_model[] = {"token_embd.weight",
                                        "blk.0.attn_norm.weight",
                                        "blk.1.attn_norm.weight",
                                        "blk.2.attn_norm.weight",
                                        "blk.2.nextn.eh_proj.weight",
                                        "output_norm.weight",
                                        "output.weight",
                                        NULL,
                                        NULL};

static bool sees_embeddings(const char *path, uint32_t first, uint32_t end) {
    struct pkg_model *m = open_range(path, first, end, 0);
    bool sees = pkg_model_find(m, "token_embd.weight") != NULL;
    pkg_model_free(m);
    return sees;
}

/* An MTP layer without embeddings of its own takes the model's: the same from all three doors, in sizes too. */
static void test_mtp(void **state) {
    (void)state;
    for (unsigned own = 0; own < 2; own++) {
        const char *names[9];
        char file[300], dir[3][300];
        memcpy(names, mtp_model, sizeof names);
        names[7] = own ? "blk.2.nextn.embed_tokens.weight" : NULL;
        snprintf(file, sizeof file, "%s/t%u.gguf", T.path, own);
        model_write(file, names, 3, 0);
        snprintf(dir[0], sizeof dir[0], "%s", file);
        for (unsigned schema = 1; schema <= 2; schema++) {
            snprintf(dir[schema], sizeof dir[schema], "%s/tp%u%u", T.path, own, schema);
            model_package(file, dir[schema], schema, 0);
        }
        for (size_t k = 0; k < 3; k++) {
            uint64_t *sizes, embedding, output;
            uint32_t n;
            struct strata_errmsg em;
            assert_true(sees_embeddings(dir[k], 0, 1));
            assert_false(sees_embeddings(dir[k], 1, 2));
            assert_int_equal(sees_embeddings(dir[k], 1, 3), !own);
            assert_int_equal(sees_embeddings(dir[k], 2, 3), !own);
            assert_int_equal(pkg_model_layer_sizes(dir[k], &sizes, &n, &embedding, &output, &em), STRATA_OK);
            assert_int_equal(n, 3);
            /* Rows: 1 of token_embd; 6 and 7 of the norm and the head. */
            assert_int_equal(embedding, 1 * MODEL_WIDTH * 4);
            assert_int_equal(output, (6 + 7 + (own ? 0 : 1)) * MODEL_WIDTH * 4);
            free(sizes);
        }
    }
}

/* The list of a fully opened package: of schema 2 that of the source, of schema 1 that of most sources. */
static void test_order(void **state) {
    (void)state;
    static const char *const names[] = {"token_embd.weight",  "blk.0.b.weight", "blk.0.a.weight",
                                        "rope_freqs.weight",  "blk.1.a.weight", "blk.1.b.weight",
                                        "output_norm.weight", "output.weight",  NULL};
    char dir[300];
    model_write(tmp_path(&T, "r.gguf"), names, 2, 0);
    for (unsigned schema = 1; schema <= 2; schema++) {
        snprintf(dir, sizeof dir, "%s/rp%u", T.path, schema);
        model_package(tmp_path(&T, "r.gguf"), dir, schema, 0);
        struct pkg_model *m = open_range(dir, 0, 2, 0);
        assert_int_equal(pkg_model_tensor_count(m), 8);
        for (size_t i = 0; i < 8; i++) assert_string_equal(pkg_model_tensor(m, i)->name, names[i]);
        pkg_model_free(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_ranges, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sizes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_only_needed_parts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_metadata_only, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damage, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ranges, setup2, teardown),
        cmocka_unit_test_setup_teardown(test_sizes, setup2, teardown),
        cmocka_unit_test_setup_teardown(test_needed_parts2, setup2, teardown),
        cmocka_unit_test_setup_teardown(test_metadata_only2, setup2, teardown),
        cmocka_unit_test_setup_teardown(test_damage2, setup2, teardown),
        cmocka_unit_test_setup_teardown(test_swapped_parts2, setup2, teardown),
        cmocka_unit_test_setup_teardown(test_mtp, setup, teardown),
        cmocka_unit_test_setup_teardown(test_order, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
