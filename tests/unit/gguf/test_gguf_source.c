/* Split sets: found by name, checked against their metadata, refused when anything disagrees. */
#include "base/file.h"
#include "gguf/gguf_index.h"
#include "gguf/gguf_source.h"

#include "../base/tmp_folder.h"
#include "gguf_bytes.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct tmp_folder T;
static struct bytes B;

/* What one shard says about itself. */
struct shard {
    const char *file;
    bool has_keys;
    uint32_t count, no, total; /* split.count, split.no, split.tensors.count */
    const char *tensor;
};

static void write_shard(const struct shard *s) {
    const uint64_t ne[4] = {8};
    struct strata_errmsg em;
    put_head(&B, 3, 1, s->has_keys ? 4 : 1);
    put_kv_str(&B, "general.architecture", "llama");
    if (s->has_keys) {
        put_key(&B, "split.no", 2);
        put_le(&B, s->no, 2);
        put_key(&B, "split.count", 2);
        put_le(&B, s->count, 2);
        put_key(&B, "split.tensors.count", 5);
        put_u32(&B, s->total);
    }
    put_tensor(&B, s->tensor, 1, ne, 0, 0);
    put_pad(&B, 32);
    put_payload(&B, 32, (uint8_t)(10 * s->no));
    assert_int_equal(file_write_all(tmp_path(&T, s->file), B.d, B.n, 0644, &em), STRATA_OK);
}

static void expect(const char *open, strata_err want, const char *text) {
    struct gguf_source *src = NULL;
    struct strata_errmsg em = {0};
    strata_err rc = gguf_source_open(tmp_path(&T, open), &src, &em);
    if (rc != want || (text && !strstr(em.text, text)))
        fail_msg("%s: got %d '%s', wanted %d with '%s'", open, (int)rc, em.text, (int)want, text ? text : "");
    gguf_source_free(src);
}

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

static void write_good_set(void) {
    static const struct shard set[] = {{"m-00001-of-00003.gguf", true, 3, 0, 3, "token_embd.weight"},
                                       {"m-00002-of-00003.gguf", true, 3, 1, 3, "blk.0.a"},
                                       {"m-00003-of-00003.gguf", true, 3, 2, 3, "blk.1.a"}};
    for (size_t i = 0; i < 3; i++) write_shard(&set[i]);
}

static void test_good_set(void **state) {
    (void)state;
    static const char *const names[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"};
    write_good_set();
    for (size_t i = 0; i < 3; i++) { /* any member opens the whole set */
        struct gguf_source *src;
        struct strata_errmsg em;
        size_t shard = 9, len;
        assert_int_equal(gguf_source_open(tmp_path(&T, names[i]), &src, &em), STRATA_OK);
        assert_int_equal(gguf_source_shard_count(src), 3);
        assert_int_equal(gguf_source_tensor_count(src), 3);
        assert_string_equal(gguf_source_tensor(src, 1, &shard)->name, "blk.0.a");
        assert_int_equal(shard, 1);
        assert_ptr_equal(gguf_source_meta(src), gguf_source_shard(src, 0));
        const struct gguf_tensor *t = gguf_source_find_tensor(src, "blk.1.a");
        assert_non_null(t);
        assert_int_equal(t->data[0], 20);
        assert_null(gguf_source_find_tensor(src, "blk.2.a"));
        const uint8_t *bytes = gguf_source_shard_bytes(src, 2, &len);
        assert_true(t->data > bytes && t->data + t->bytes <= bytes + len);
        gguf_source_free(src);
    }
}

static void test_faulty_sets(void **state) {
    (void)state;
    static const struct {
        struct shard change; /* replaces one member of the good set */
        const char *text;
    } rows[] = {
        {{"m-00002-of-00003.gguf", true, 4, 1, 3, "blk.0.a"}, "split.count"},
        {{"m-00002-of-00003.gguf", true, 3, 2, 3, "blk.0.a"}, "split.no"},
        {{"m-00002-of-00003.gguf", true, 3, 1, 9, "blk.0.a"}, "split.tensors.count"},
        {{"m-00002-of-00003.gguf", true, 3, 1, 3, "blk.1.a"}, "earlier part"},
        {{"m-00002-of-00003.gguf", false, 0, 0, 0, "blk.0.a"}, "split.count"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_good_set();
        write_shard(&rows[i].change);
        expect("m-00001-of-00003.gguf", i == 4 ? STRATA_ENOENT : STRATA_EFORMAT, rows[i].text);
    }
    write_good_set();
    assert_int_equal(remove(tmp_path(&T, "m-00003-of-00003.gguf")), 0);
    expect("m-00001-of-00003.gguf", STRATA_ENOENT, "m-00003-of-00003.gguf is missing");
}

/* Members that are no files, or not this set's. Nothing hangs, nothing is mixed. */
static void test_foreign_members(void **state) {
    (void)state;
    char second[512], third[512], kept[512];
    struct strata_errmsg em;
    write_good_set();
    snprintf(second, sizeof second, "%s/m-00002-of-00003.gguf", T.path);
    snprintf(third, sizeof third, "%s/m-00003-of-00003.gguf", T.path);
    snprintf(kept, sizeof kept, "%s/kept", T.path);
    assert_int_equal(rename(second, kept), 0);
    assert_int_equal(mkfifo(second, 0600), 0);
    expect("m-00001-of-00003.gguf", STRATA_EINVAL, "not a regular file");
    assert_int_equal(remove(second), 0);
    assert_int_equal(mkdir(second, 0700), 0);
    expect("m-00003-of-00003.gguf", STRATA_EINVAL, "not a regular file");
    assert_int_equal(remove(second), 0);
    assert_int_equal(symlink("nowhere", second), 0);
    expect("m-00001-of-00003.gguf", STRATA_ENOENT, "m-00002-of-00003.gguf is missing");
    assert_int_equal(remove(second), 0);
    assert_int_equal(file_write_all(second, "", 0, 0600, &em), STRATA_OK);
    expect("m-00001-of-00003.gguf", STRATA_EFORMAT, "m-00002-of-00003.gguf");
    assert_int_equal(rename(third, second), 0); /* the third under the second's name, the second under the third's */
    assert_int_equal(rename(kept, third), 0);
    expect("m-00001-of-00003.gguf", STRATA_EFORMAT, "split.no");
    assert_int_equal(remove(second), 0);
    assert_int_equal(link(third, second), 0); /* one file twice */
    expect("m-00001-of-00003.gguf", STRATA_EFORMAT, "m-00003-of-00003.gguf: split.no");
}

/* The keys of a set in kinds and sizes that no writer uses. */
static void test_odd_keys(void **state) {
    (void)state;
    static const struct {
        uint32_t kind; /* of split.count */
        uint64_t count;
        size_t bytes;
        strata_err want;
    } rows[] = {
        {0, 1, 1, STRATA_OK},
        {5, 1, 4, STRATA_OK},
        {10, 1, 8, STRATA_OK},
        {5, UINT32_MAX, 4, STRATA_EFORMAT},               /* -1 */
        {10, (UINT64_C(1) << 32) + 1, 8, STRATA_EFORMAT}, /* 1, in 32 bits */
        {11, UINT64_C(1) << 63, 8, STRATA_EFORMAT},       /* negative */
        {6, 0x3f800000, 4, STRATA_EFORMAT},               /* 1.0 */
        {7, 1, 1, STRATA_EFORMAT},                        /* true */
    };
    const uint64_t ne[4] = {8};
    struct strata_errmsg em;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        put_head(&B, 3, 1, 1);
        put_key(&B, "split.count", rows[i].kind);
        put_le(&B, rows[i].count, rows[i].bytes);
        put_tensor(&B, "a", 1, ne, 0, 0);
        put_pad(&B, 32);
        put_payload(&B, 32, 0);
        assert_int_equal(file_write_all(tmp_path(&T, "odd.gguf"), B.d, B.n, 0644, &em), STRATA_OK);
        expect("odd.gguf", rows[i].want, rows[i].want ? "split.count" : NULL);
    }
}

static void test_names(void **state) {
    (void)state;
    const struct shard alone = {"alone.gguf", true, 3, 1, 3, "a"}, one = {"x-00001-of-00001.gguf", true, 1, 0, 1, "a"},
                       plain = {"00001-of-00002.gguf", false, 0, 0, 0, "a"};
    write_shard(&alone);
    expect("alone.gguf", STRATA_EFORMAT, "rename it");
    write_shard(&one);
    expect("x-00001-of-00001.gguf", STRATA_OK, NULL);
    write_shard(&plain); /* no prefix: not a split name */
    expect("00001-of-00002.gguf", STRATA_OK, NULL);
    expect("x-00003-of-00002.gguf", STRATA_EINVAL, "makes no sense");
    expect("x-00000-of-00002.gguf", STRATA_EINVAL, "makes no sense");
    expect("x-00001-of-00000.gguf", STRATA_EINVAL, "makes no sense");
    expect("x-00001-of-99999.gguf", STRATA_EINVAL, "makes no sense");
    expect("gone.gguf", STRATA_ENOENT, "gone.gguf");
    expect(".", STRATA_EINVAL, "not a regular file");
}

static void test_index(void **state) {
    (void)state;
    enum { N = 5000 };
    static char names[N][12];
    struct gguf_index ix = {0};
    struct strata_errmsg em;
    assert_true(gguf_index_get(&ix, "a") == GGUF_INDEX_NONE);
    assert_int_equal(gguf_index_init(&ix, N, &em), STRATA_OK);
    for (size_t i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "n%zu", i);
        assert_true(gguf_index_put(&ix, names[i], i));
    }
    assert_false(gguf_index_put(&ix, "one more", 1)); /* full */
    for (size_t i = 0; i < N; i++) assert_int_equal(gguf_index_get(&ix, names[i]), i);
    assert_true(gguf_index_get(&ix, "n5000") == GGUF_INDEX_NONE);
    gguf_index_deinit(&ix);
    assert_int_equal(gguf_index_init(&ix, 0, &em), STRATA_OK);
    assert_false(gguf_index_put(&ix, "a", 1));
    gguf_index_deinit(&ix);
    assert_int_equal(gguf_index_init(&ix, 2, &em), STRATA_OK);
    assert_true(gguf_index_put(&ix, "a", 1));
    assert_false(gguf_index_put(&ix, "a", 2)); /* there already */
    assert_int_equal(gguf_index_get(&ix, "a"), 1);
    gguf_index_deinit(&ix);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_good_set, setup, teardown),
        cmocka_unit_test_setup_teardown(test_faulty_sets, setup, teardown),
        cmocka_unit_test_setup_teardown(test_foreign_members, setup, teardown),
        cmocka_unit_test_setup_teardown(test_odd_keys, setup, teardown),
        cmocka_unit_test_setup_teardown(test_names, setup, teardown),
        cmocka_unit_test(test_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
