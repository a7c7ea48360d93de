/* The writer: what it writes reads back, byte for byte; the same input gives the same bytes; failures leave nothing. */
#include "base/file.h"
#include "gguf/gguf_writer.h"

#include "../base/tmp_folder.h"
#include "gguf_bytes.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct bytes SRC;

/* Pairs of several kinds, two of which must not be copied, and four tensors of odd sizes. */
static void build_source(uint32_t alignment) {
    const uint64_t ne[4][4] = {{3}, {32, 3}, {7, 2, 2}, {256, 1}};
    const uint32_t type[4] = {0, 8, 24, 14}, dims[4] = {1, 2, 3, 2};
    const size_t bytes[4] = {12, 102, 28, 210};
    size_t offset[4], at = 0;
    put_head(&SRC, 3, 4, 6);
    put_kv_u32(&SRC, "general.alignment", alignment);
    put_kv_str(&SRC, "general.name", "x");
    put_kv_u32(&SRC, "split.count", 1);
    put_kv_array(&SRC, "list", 8, 2);
    put_str(&SRC, "a");
    put_str(&SRC, "bc");
    put_kv_u32(&SRC, "split.no", 0);
    put_key(&SRC, "flag", 7);
    put_le(&SRC, 1, 1);
    for (int i = 0; i < 4; i++) {
        char name[8] = {'t', (char)('0' + i)};
        offset[i] = at;
        put_tensor(&SRC, name, dims[i], ne[i], type[i], at);
        at = (at + bytes[i] + alignment - 1) / alignment * alignment;
    }
    put_pad(&SRC, alignment);
    size_t start = SRC.n;
    for (int i = 0; i < 4; i++) {
        while (SRC.n < start + offset[i]) put(&SRC, "\xee", 1); /* padding that must not be copied */
        put_payload(&SRC, bytes[i], (uint8_t)(50 * i));
    }
}

struct memory {
    struct bytes b;
    size_t fail_at; /* bytes after which the sink refuses */
};

static strata_err to_memory(void *user, const void *data, size_t len, struct strata_errmsg *em) {
    struct memory *m = user;
    if (m->b.n + len > m->fail_at) return err_set(em, STRATA_EIO, "no space");
    put(&m->b, data, len);
    return STRATA_OK;
}

static struct gguf_writer *compose(const struct gguf_reader *r) {
    struct gguf_writer *w;
    struct strata_errmsg em;
    assert_int_equal(gguf_writer_new(gguf_reader_alignment(r), &w, &em), STRATA_OK);
    assert_int_equal(gguf_writer_copy_kvs(w, r, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_i32(w, "extra.i32", -3, &em), STRATA_OK);
    for (size_t i = 0; i < gguf_reader_tensor_count(r); i++) {
        const struct gguf_tensor *t = gguf_reader_tensor(r, i);
        assert_int_equal(gguf_writer_add_tensor(w, t->name, t->n_dims, t->ne, t->type, t->data, &em), STRATA_OK);
    }
    return w;
}

static void check_same_tensors(const struct gguf_reader *a, const struct gguf_reader *b) {
    assert_int_equal(gguf_reader_tensor_count(a), gguf_reader_tensor_count(b));
    for (size_t i = 0; i < gguf_reader_tensor_count(a); i++) {
        const struct gguf_tensor *x = gguf_reader_tensor(a, i), *y = gguf_reader_tensor(b, i);
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->type, y->type);
        assert_int_equal(x->n_dims, y->n_dims);
        assert_memory_equal(x->ne, y->ne, sizeof x->ne);
        assert_int_equal(x->bytes, y->bytes);
        assert_memory_equal(x->data, y->data, x->bytes);
    }
}

static void test_round_trip(void **state) {
    (void)state;
    static const uint32_t alignments[] = {1, 8, 32, 4096};
    static struct memory m, again;
    for (size_t k = 0; k < sizeof alignments / sizeof alignments[0]; k++) {
        struct gguf_reader *src, *back;
        struct strata_errmsg em;
        int32_t extra_ok = 0;
        build_source(alignments[k]);
        assert_int_equal(gguf_reader_new(SRC.d, SRC.n, "src", &src, &em), STRATA_OK);
        struct gguf_writer *w = compose(src);
        m = (struct memory){.fail_at = SIZE_MAX};
        again = m;
        assert_int_equal(gguf_writer_emit(w, to_memory, &m, &em), STRATA_OK);
        assert_int_equal(gguf_writer_emit(w, to_memory, &again, &em), STRATA_OK);
        assert_int_equal(m.b.n, again.b.n);
        assert_memory_equal(m.b.d, again.b.d, m.b.n);
        assert_int_equal(m.b.n % alignments[k], 0);
        assert_int_equal(gguf_reader_new(m.b.d, m.b.n, "back", &back, &em), STRATA_OK);
        check_same_tensors(src, back);
        assert_int_equal(gguf_reader_alignment(back), alignments[k]);
        assert_int_equal(gguf_reader_version(back), 3);
        assert_int_equal(gguf_reader_kv_count(back), 5);
        assert_null(gguf_reader_find_kv(back, "split.count"));
        static const char *const kept[] = {"general.name", "list", "flag"};
        for (size_t i = 0; i < 3; i++) {
            const struct gguf_kv *x = gguf_reader_find_kv(src, kept[i]), *y = gguf_reader_find_kv(back, kept[i]);
            assert_non_null(y);
            assert_int_equal(x->raw_bytes, y->raw_bytes);
            assert_memory_equal(x->raw, y->raw, x->raw_bytes);
        }
        const struct gguf_kv *extra = gguf_reader_find_kv(back, "extra.i32");
        extra_ok = extra && gguf_reader_int_at(extra, 0) == -3;
        assert_true(extra_ok);
        gguf_reader_free(back);
        gguf_writer_free(w);
        gguf_reader_free(src);
    }
}

/* Sizes and offsets are known before anything is written; the header alone is the file's beginning. */
static void test_sizes(void **state) {
    (void)state;
    static const uint32_t alignments[] = {1, 32, 4096};
    static struct memory m, head;
    for (size_t k = 0; k < 3; k++) {
        struct gguf_reader *src, *back;
        struct strata_errmsg em;
        build_source(alignments[k]);
        assert_int_equal(gguf_reader_new(SRC.d, SRC.n, "src", &src, &em), STRATA_OK);
        struct gguf_writer *w = compose(src);
        m = head = (struct memory){.fail_at = SIZE_MAX};
        assert_int_equal(gguf_writer_emit(w, to_memory, &m, &em), STRATA_OK);
        assert_int_equal(gguf_writer_emit_header(w, to_memory, &head, &em), STRATA_OK);
        assert_int_equal(gguf_writer_file_size(w), m.b.n);
        assert_int_equal(gguf_writer_data_offset(w), head.b.n);
        assert_memory_equal(head.b.d, m.b.d, head.b.n);
        assert_int_equal(gguf_reader_new(m.b.d, m.b.n, "back", &back, &em), STRATA_OK);
        for (size_t i = 0; i < gguf_reader_tensor_count(back); i++)
            assert_ptr_equal(gguf_reader_tensor(back, i)->data, m.b.d + gguf_writer_tensor_offset(w, i));
        gguf_reader_free(back);
        gguf_writer_free(w);
        gguf_reader_free(src);
    }
}

/* Own pairs between copied ones keep their places, general.alignment included. */
static void test_pairs_in_order(void **state) {
    (void)state;
    static struct memory m;
    struct gguf_reader *src, *back;
    struct gguf_writer *w;
    struct strata_errmsg em;
    build_source(64);
    assert_int_equal(gguf_reader_new(SRC.d, SRC.n, "src", &src, &em), STRATA_OK);
    assert_int_equal(gguf_writer_new_bare(64, &w, &em), STRATA_OK);
    m = (struct memory){.fail_at = SIZE_MAX};
    assert_int_equal(gguf_writer_emit(w, to_memory, &m, &em), STRATA_EINTERNAL); /* a reader would take 32 */
    assert_int_equal(m.b.n, 0);
    static const size_t copied[] = {1, 3, 5};
    static const char *const want[] = {"a", "general.name", "list", "b", "flag", "general.alignment", "c"};
    assert_int_equal(gguf_writer_add_u32(w, "a", 1, &em), STRATA_OK);
    for (size_t i = 0; i < 3; i++) {
        if (i == 2) assert_int_equal(gguf_writer_add_bool(w, "b", true, &em), STRATA_OK);
        assert_int_equal(gguf_writer_copy_kv(w, gguf_reader_kv(src, copied[i]), &em), STRATA_OK);
    }
    assert_int_equal(gguf_writer_copy_kv(w, gguf_reader_kv(src, 0), &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_str(w, "c", "last", &em), STRATA_OK);
    assert_int_equal(gguf_writer_emit(w, to_memory, &m, &em), STRATA_OK);
    assert_int_equal(gguf_reader_new(m.b.d, m.b.n, "back", &back, &em), STRATA_OK);
    assert_int_equal(gguf_reader_kv_count(back), 7);
    for (size_t i = 0; i < 7; i++) assert_string_equal(gguf_reader_kv(back, i)->key, want[i]);
    for (size_t i = 0; i < 3; i++) {
        const struct gguf_kv *x = gguf_reader_kv(src, copied[i]), *y = gguf_reader_find_kv(back, x->key);
        assert_int_equal(x->raw_bytes, y->raw_bytes);
        assert_memory_equal(x->raw, y->raw, x->raw_bytes);
    }
    assert_int_equal(gguf_reader_alignment(back), 64);
    gguf_reader_free(back);
    gguf_writer_free(w);
    gguf_reader_free(src);
}

/* All bytes between payloads are zero, so nothing of the source or of memory leaks into the file. */
static void test_padding_is_zero(void **state) {
    (void)state;
    static struct memory m;
    struct gguf_reader *src, *back;
    struct strata_errmsg em;
    build_source(64);
    assert_int_equal(gguf_reader_new(SRC.d, SRC.n, "src", &src, &em), STRATA_OK);
    struct gguf_writer *w = compose(src);
    m = (struct memory){.fail_at = SIZE_MAX};
    assert_int_equal(gguf_writer_emit(w, to_memory, &m, &em), STRATA_OK);
    assert_int_equal(gguf_reader_new(m.b.d, m.b.n, "back", &back, &em), STRATA_OK);
    for (size_t i = 0; i < gguf_reader_tensor_count(back); i++) {
        const struct gguf_tensor *t = gguf_reader_tensor(back, i);
        for (const uint8_t *p = t->data + t->bytes; (size_t)(p - m.b.d) % 64; p++) assert_int_equal(*p, 0);
    }
    gguf_reader_free(back);
    gguf_writer_free(w);
    gguf_reader_free(src);
}

static void test_every_kind(void **state) {
    (void)state;
    static struct memory m;
    struct gguf_writer *w;
    struct gguf_reader *r;
    struct strata_errmsg em;
    const struct gguf_str strs[2] = {{"a\0b", 3}, {"", 0}};
    const int32_t ints[2] = {INT32_MIN, 5};
    const float floats[1] = {0.25f};
    const uint32_t u32s[2] = {UINT32_MAX, 1};
    const uint64_t u64s[2] = {1, INT64_MAX};
    uint64_t u = 0;
    float f = 0;
    bool b = false;
    const struct gguf_kv *a;
    assert_int_equal(gguf_writer_new(32, &w, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_bool(w, "b", true, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_u64(w, "u64", UINT64_MAX, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_f32(w, "f", -0.5f, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_strs(w, "strs", strs, 2, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_i32s(w, "ints", ints, 2, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_f32s(w, "floats", floats, 1, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_u32s(w, "u32s", u32s, 2, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_u64s(w, "u64s", u64s, 2, &em), STRATA_OK);
    m = (struct memory){.fail_at = SIZE_MAX};
    assert_int_equal(gguf_writer_emit(w, to_memory, &m, &em), STRATA_OK);
    assert_int_equal(gguf_reader_new(m.b.d, m.b.n, "back", &r, &em), STRATA_OK);
    assert_int_equal(gguf_reader_get_bool(r, "b", true, &b, &em), STRATA_OK);
    assert_int_equal(gguf_reader_get_u64(r, "u64", true, &u, &em), STRATA_OK);
    assert_int_equal(gguf_reader_get_f32(r, "f", true, &f, &em), STRATA_OK);
    assert_true(b && u == UINT64_MAX && f == -0.5f);
    struct gguf_str s;
    size_t cursor = 0;
    assert_int_equal(gguf_reader_get_array(r, "strs", true, GGUF_KIND_STRING, &a, &em), STRATA_OK);
    assert_true(gguf_reader_next_str(a, &cursor, &s) && s.len == 3 && memcmp(s.data, "a\0b", 3) == 0);
    assert_int_equal(gguf_reader_get_array(r, "ints", true, GGUF_KIND_I32, &a, &em), STRATA_OK);
    assert_true(gguf_reader_int_at(a, 0) == INT32_MIN && gguf_reader_int_at(a, 1) == 5);
    assert_int_equal(gguf_reader_get_array(r, "floats", true, GGUF_KIND_F32, &a, &em), STRATA_OK);
    assert_true(gguf_reader_float_at(a, 0) == 0.25);
    assert_int_equal(gguf_reader_get_array(r, "u32s", true, GGUF_KIND_U32, &a, &em), STRATA_OK);
    assert_true(gguf_reader_int_at(a, 0) == UINT32_MAX && gguf_reader_int_at(a, 1) == 1);
    assert_int_equal(gguf_reader_get_array(r, "u64s", true, GGUF_KIND_U64, &a, &em), STRATA_OK);
    assert_true(gguf_reader_int_at(a, 0) == 1 && gguf_reader_int_at(a, 1) == INT64_MAX);
    gguf_reader_free(r);
    gguf_writer_free(w);
}

static void test_refusals(void **state) {
    (void)state;
    static const uint64_t one[4] = {1, 1, 1, 1}, zero[4] = {0}, part[4] = {16};
    static const uint8_t data[64];
    struct gguf_writer *w;
    struct strata_errmsg em;
    static const uint32_t bad[] = {0, 3, 1u << 21, UINT32_MAX};
    for (size_t i = 0; i < 4; i++) assert_int_equal(gguf_writer_new(bad[i], &w, &em), STRATA_EINVAL);
    assert_int_equal(gguf_writer_new(32, &w, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_u32(w, "general.alignment", 64, &em), STRATA_EINVAL);
    assert_int_equal(gguf_writer_add_tensor(w, "t", 1, one, 0, data, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_tensor(w, "t", 1, one, 0, data, &em), STRATA_EINVAL);
    assert_int_equal(gguf_writer_add_tensor(w, "", 1, one, 0, data, &em), STRATA_EINVAL);
    assert_int_equal(gguf_writer_add_tensor(w, "0123456789012345678901234567890123456789012345678901234567890123", 1,
                                            one, 0, data, &em),
                     STRATA_EINVAL);
    assert_int_equal(gguf_writer_add_tensor(w, "u", 0, one, 0, data, &em), STRATA_EINVAL);
    assert_int_equal(gguf_writer_add_tensor(w, "u", 5, one, 0, data, &em), STRATA_EINVAL);
    assert_int_equal(gguf_writer_add_tensor(w, "u", 1, zero, 0, data, &em), STRATA_EINVAL);
    assert_int_equal(gguf_writer_add_tensor(w, "u", 1, part, 8, data, &em), STRATA_EINVAL);
    assert_int_equal(gguf_writer_add_tensor(w, "u", 1, one, 4, data, &em), STRATA_EINVAL);
    /* CVE-2025-53630, CVE-2026-27940: each size fits, their sum (here: 2^63) or their padded sum does not. */
    static const uint64_t most[4] = {INT64_MAX}, rest[4] = {INT64_MAX - 63}, half[4] = {UINT64_C(1) << 62};
    assert_int_equal(gguf_writer_add_tensor(w, "v", 1, most, 24, data, &em), STRATA_ELIMIT);
    assert_int_equal(gguf_writer_add_tensor(w, "v", 1, half, 24, data, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_tensor(w, "x", 1, half, 24, data, &em), STRATA_ELIMIT);
    assert_int_equal(gguf_writer_tensor_count(w), 2);
    gguf_writer_free(w);
    assert_int_equal(gguf_writer_new(32, &w, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_tensor(w, "t", 1, one, 0, data, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_tensor(w, "u", 1, rest, 24, data, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_tensor(w, "v", 1, one, 24, data, &em), STRATA_ELIMIT);
    gguf_writer_free(w);
}

/* A sink that fails at any point ends the writing with its own error. */
static void test_sink_failure(void **state) {
    (void)state;
    static struct memory m;
    struct gguf_reader *src;
    struct strata_errmsg em;
    build_source(32);
    assert_int_equal(gguf_reader_new(SRC.d, SRC.n, "src", &src, &em), STRATA_OK);
    struct gguf_writer *w = compose(src);
    m = (struct memory){.fail_at = SIZE_MAX};
    assert_int_equal(gguf_writer_emit(w, to_memory, &m, &em), STRATA_OK);
    size_t full = m.b.n;
    for (size_t n = 0; n < full; n += 5) {
        m = (struct memory){.fail_at = n};
        assert_int_equal(gguf_writer_emit(w, to_memory, &m, &em), STRATA_EIO);
        assert_string_equal(em.text, "no space");
    }
    gguf_writer_free(w);
    gguf_reader_free(src);
}

static size_t entries(const char *path) {
    size_t n = 0;
    DIR *d = opendir(path);
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n - 2;
}

static void test_file(void **state) {
    (void)state;
    struct tmp_folder tmp;
    struct gguf_reader *src;
    struct strata_errmsg em;
    struct buf text;
    uint8_t sum[DIGEST_BYTES], want[DIGEST_BYTES];
    uint64_t size = 0;
    tmp_folder_make(&tmp);
    buf_init(&text, 1 << 20);
    build_source(32);
    assert_int_equal(gguf_reader_new(SRC.d, SRC.n, "src", &src, &em), STRATA_OK);
    struct gguf_writer *w = compose(src);
    assert_int_equal(gguf_writer_to_file(w, tmp_path(&tmp, "out.gguf"), NULL, sum, &size, &em), STRATA_OK);
    assert_int_equal(file_read_all(tmp_path(&tmp, "out.gguf"), 1 << 20, &text, &em), STRATA_OK);
    assert_int_equal(size, text.len);
    assert_int_equal(digest_of(text.data, text.len, want, &em), STRATA_OK);
    assert_memory_equal(sum, want, sizeof sum);
    assert_int_equal(entries(tmp.path), 1); /* no temporary file is left */
    assert_int_equal(gguf_writer_to_file(w, tmp_path(&tmp, "no/such/folder"), NULL, sum, &size, &em), STRATA_EIO);
    gguf_writer_free(w);
    gguf_reader_free(src);
    buf_deinit(&text);
    tmp_folder_remove(tmp.path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_pairs_in_order), cmocka_unit_test(test_padding_is_zero),
        cmocka_unit_test(test_every_kind),     cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_sink_failure),   cmocka_unit_test(test_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
