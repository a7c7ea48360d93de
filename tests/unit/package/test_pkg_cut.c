/* Slices and stage files: which tensors they hold, what they say about themselves, and what is refused. */
#include "base/file.h"
#include "package/pkg_write.h"

#include "pkg_sample.h"

#include <sys/stat.h>

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

static const struct pkg_write_how HOW = {.jobs = 2};

static void open_file(const char *path, struct file_map *map, struct gguf_reader **r) {
    struct strata_errmsg em;
    assert_int_equal(file_map_open(path, map, &em), STRATA_OK);
    assert_int_equal(gguf_reader_new(map->data, map->size, path, r, &em), STRATA_OK);
}

static int64_t int_key(const struct gguf_reader *r, const char *key) {
    const struct gguf_kv *kv = gguf_reader_find_kv(r, key);
    assert_non_null(kv);
    return gguf_reader_int_at(kv, 0);
}

static void test_slices(void **state) {
    (void)state;
    static const struct {
        bool tied;
        uint32_t first, end;
        bool ask_embeddings, ask_output;
        bool embeddings, output; /* what the file holds */
    } rows[] = {{false, 0, 2, false, false, true, false},  {false, 2, 4, false, false, false, true},
                {false, 1, 3, false, false, false, false}, {false, 0, 4, false, false, true, true},
                {true, 2, 4, false, false, true, true},    {true, 1, 2, false, false, false, false},
                {false, 1, 2, true, false, true, false},   {false, 1, 2, false, true, false, true}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct sample s = {tmp_path(&T, "m"), 4, rows[i].tied, true, 1 + (uint32_t)i % 2, UINT32_MAX};
        struct file_map map;
        struct gguf_reader *r;
        struct strata_errmsg em;
        json_t *report;
        sample_write(&s);
        const struct pkg_write_slice slice = {.range = {rows[i].first, rows[i].end},
                                              .stage_index = 7,
                                              .embeddings = rows[i].ask_embeddings,
                                              .output = rows[i].ask_output,
                                              .out = tmp_path(&T, "out.gguf"),
                                              .manifest = i % 2 ? tmp_path(&T, "out.json") : NULL};
        const char *source = tmp_path(&T, i % 2 ? "m-00001-of-00002.gguf" : "m.gguf");
        assert_int_equal(pkg_write_slice(source, &slice, &HOW, &report, &em), STRATA_OK);
        assert_int_equal(json_object_get(report, "source_sha256") != NULL, slice.manifest != NULL);
        json_decref(report);
        open_file(tmp_path(&T, "out.gguf"), &map, &r);
        assert_int_equal(int_key(r, "skippy.slice.stage_index"), 7);
        assert_int_equal(int_key(r, "skippy.slice.layer_start"), rows[i].first);
        assert_int_equal(int_key(r, "skippy.slice.layer_end"), rows[i].end);
        assert_int_equal(gguf_reader_find_tensor(r, "token_embd.weight") != NULL, rows[i].embeddings);
        assert_int_equal(gguf_reader_find_tensor(r, "output_norm.weight") != NULL, rows[i].output);
        assert_non_null(gguf_reader_find_tensor(r, "rope_freqs.weight"));
        for (uint32_t l = 0; l < 4; l++) {
            char name[40];
            snprintf(name, sizeof name, "blk.%u.attn_q.weight", l);
            assert_int_equal(gguf_reader_find_tensor(r, name) != NULL, l >= rows[i].first && l < rows[i].end);
        }
        assert_int_equal(file_is_regular(tmp_path(&T, "out.json")), i % 2);
        unlink(tmp_path(&T, "out.json"));
        gguf_reader_free(r);
        file_map_close(&map);
    }
}

/* Of the first stage's tables, a tied last stage needs the token embeddings alone. */
static void test_tables(void **state) {
    (void)state;
    static const struct {
        struct pkg_range range;
        bool asked, tokens, per_layer;
    } rows[] = {{{0, 1}, false, true, true}, {{1, 2}, false, true, false}, {{1, 2}, true, true, true}};
    struct strata_errmsg em;
    struct gguf_writer *w;
    uint8_t sum[DIGEST_BYTES];
    uint64_t size;
    const uint64_t ne[1] = {SAMPLE_WIDTH};
    static const float data[SAMPLE_WIDTH];
    static const char *const names[] = {"token_embd.weight", "per_layer_token_embd.weight", "blk.0.x", "blk.1.x"};
    assert_int_equal(gguf_writer_new(32, &w, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_str(w, "general.architecture", "llama", &em), STRATA_OK);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(gguf_writer_add_tensor(w, names[i], 1, ne, 0, data, &em), STRATA_OK);
    assert_int_equal(gguf_writer_to_file(w, tmp_path(&T, "t.gguf"), NULL, sum, &size, &em), STRATA_OK);
    gguf_writer_free(w);
    for (size_t i = 0; i < 3; i++) {
        struct file_map map;
        struct gguf_reader *r;
        json_t *report;
        const struct pkg_write_slice slice = {
            .range = rows[i].range, .embeddings = rows[i].asked, .out = tmp_path(&T, "o.gguf")};
        assert_int_equal(pkg_write_slice(tmp_path(&T, "t.gguf"), &slice, &HOW, &report, &em), STRATA_OK);
        json_decref(report);
        open_file(tmp_path(&T, "o.gguf"), &map, &r);
        assert_int_equal(gguf_reader_find_tensor(r, names[0]) != NULL, rows[i].tokens);
        assert_int_equal(gguf_reader_find_tensor(r, names[1]) != NULL, rows[i].per_layer);
        gguf_reader_free(r);
        file_map_close(&map);
    }
}

static void test_refusals(void **state) {
    (void)state;
    struct sample s = {tmp_path(&T, "m"), 4, false, false, 1, UINT32_MAX};
    struct strata_errmsg em;
    json_t *report;
    sample_write(&s);
    const char *source = tmp_path(&T, "m.gguf");
    const struct {
        struct pkg_range range;
        const char *out;
        const char *says;
    } rows[] = {{{0, 5}, "o.gguf", "4 layers"},
                {{2, 2}, "o.gguf", "empty"},
                {{0, 2}, "m.gguf", "source model itself"},
                {{0, 2}, "o-00001-of-00002.gguf", "split model"},
                {{0, 2}, "folder", "is a folder"}};
    assert_int_equal(mkdir(tmp_path(&T, "folder"), 0755), 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct pkg_write_slice slice = {.range = rows[i].range, .out = tmp_path(&T, rows[i].out)};
        assert_int_equal(pkg_write_slice(source, &slice, &HOW, &report, &em), STRATA_EINVAL);
        assert_non_null(strstr(em.text, rows[i].says));
    }
    assert_false(file_is_regular(tmp_path(&T, "o.gguf")));
    const struct pkg_write_slice over = {.range = {0, 2}, .out = tmp_path(&T, "o.gguf"), .manifest = source};
    assert_int_equal(pkg_write_slice(source, &over, &HOW, &report, &em), STRATA_EINVAL);
}

/* Each owned tensor in one stage (a tied model's embeddings in the first and the last), whatever the cut. */
static void test_stages(void **state) {
    (void)state;
    const struct pkg_range ranges[] = {{0, 1}, {1, 3}, {3, 4}};
    for (int tied = 0; tied < 2; tied++) {
        struct sample s = {tmp_path(&T, "m"), 4, tied, true, 2, UINT32_MAX};
        struct strata_errmsg em;
        json_t *manifest;
        char dir[400], path[500];
        size_t tensors = 0;
        sample_write(&s);
        snprintf(dir, sizeof dir, "%s/st%d", T.path, tied);
        const char *source = tmp_path(&T, "m-00002-of-00002.gguf");
        assert_int_equal(pkg_write_stages(source, ranges, 3, dir, &HOW, &manifest, &em), STRATA_OK);
        json_t *stages = json_object_get(manifest, "stages");
        assert_int_equal(json_array_size(stages), 3);
        for (size_t i = 0; i < 3; i++) {
            json_t *x = json_array_get(stages, i);
            struct file_map map;
            struct gguf_reader *r;
            snprintf(path, sizeof path, "%s/stage-00%zu.gguf", dir, i);
            open_file(path, &map, &r);
            assert_int_equal(json_integer_value(json_object_get(x, "tensor_count")), gguf_reader_tensor_count(r));
            assert_int_equal(json_integer_value(json_object_get(x, "artifact_bytes")), map.size);
            assert_int_equal(json_integer_value(json_object_get(x, "layer_start")), ranges[i].first);
            tensors += gguf_reader_tensor_count(r);
            gguf_reader_free(r);
            file_map_close(&map);
        }
        /* 4 layers of 3, rope_freqs in each, embeddings, norm, output or the embeddings once more */
        assert_int_equal(tensors, 4 * 3 + 3 + 1 + 1 + 1);
        json_decref(manifest);
        snprintf(path, sizeof path, "%s/slice-manifest.json", dir);
        assert_true(file_is_regular(path));
        assert_int_equal(pkg_write_stages(source, ranges, 3, dir, &HOW, &manifest, &em), STRATA_EINVAL);
        struct pkg_write_how again = {.resume = true};
        assert_int_equal(pkg_write_stages(source, ranges, 3, dir, &again, &manifest, &em), STRATA_OK);
        json_decref(manifest);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_slices, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tables, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stages, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
