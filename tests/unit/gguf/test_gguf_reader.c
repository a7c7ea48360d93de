/*
 * The GGUF reader against good and bad bytes. Each row of a table is a known way in which readers have been broken.
 * Bytes are always handed over in a heap block of exactly their size, so that ASan sees any step beyond the end.
 */
#include "base/file.h"
#include "gguf/gguf_reader.h"

#include "../base/tmp_folder.h"
#include "gguf_bytes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static struct bytes B;

/* Parses a copy of exact size. The copy is returned for freeing after the reader. */
static strata_err parse(const uint8_t *d, size_t n, struct gguf_reader **r, uint8_t **copy, struct strata_errmsg *em) {
    *copy = malloc(n ? n : 1);
    assert_non_null(*copy);
    memcpy(*copy, d, n);
    *r = NULL;
    em->text[0] = '\0';
    return gguf_reader_new(*copy, n, "test.gguf", r, em);
}

static void expect(strata_err want, const char *text, const char *label) {
    struct gguf_reader *r;
    uint8_t *copy;
    struct strata_errmsg em;
    strata_err rc = parse(B.d, B.n, &r, &copy, &em);
    if (rc != want || (text && !strstr(em.text, text)))
        fail_msg("%s: got %d '%s', wanted %d with '%s'", label, (int)rc, em.text, (int)want, text ? text : "");
    if (rc) {
        assert_null(r);
        assert_true(em.text[0] != '\0');
    }
    gguf_reader_free(r);
    free(copy);
}

/* A file with a pair of each kind and three tensors. */
static void build_valid(void) {
    const uint64_t ne_a[4] = {4, 3}, ne_q[4] = {64, 2}, ne_s[4] = {5};
    put_head(&B, 3, 3, 15);
    put_kv_str(&B, "general.architecture", "llama");
    put_key(&B, "k.u8", 0);
    put_le(&B, 200, 1);
    put_key(&B, "k.i8", 1);
    put_le(&B, (uint8_t)-5, 1);
    put_key(&B, "k.u16", 2);
    put_le(&B, 65535, 2);
    put_key(&B, "k.i16", 3);
    put_le(&B, 1234, 2);
    put_kv_u32(&B, "k.u32", 4000000000u);
    put_key(&B, "k.i32", 5);
    put_u32(&B, 77);
    put_key(&B, "k.f32", 6);
    put_u32(&B, 0x3fc00000); /* 1.5 */
    put_key(&B, "k.bool", 7);
    put_le(&B, 1, 1);
    put_key(&B, "k.u64", 10);
    put_u64(&B, UINT64_C(1) << 40);
    put_key(&B, "k.i64", 11);
    put_u64(&B, 9);
    put_key(&B, "k.f64", 12);
    put_u64(&B, UINT64_C(0x4004000000000000)); /* 2.5 */
    put_kv_array(&B, "k.strs", 8, 3);
    put_str(&B, "one");
    put_str(&B, "");
    put_str(&B, "three");
    put_kv_array(&B, "k.i16s", 3, 2);
    put_le(&B, 0xfffe, 2);
    put_le(&B, 7, 2);
    put_kv_array(&B, "k.empty", 8, 0);
    put_tensor(&B, "a", 2, ne_a, 0, 0);    /* F32: 48 bytes */
    put_tensor(&B, "q", 2, ne_q, 8, 64);   /* Q8_0: 136 bytes */
    put_tensor(&B, "s", 1, ne_s, 26, 224); /* I32: 20 bytes */
    put_pad(&B, 32);
    put_payload(&B, 224 + 20, 1);
}

static void test_valid(void **state) {
    (void)state;
    struct gguf_reader *r;
    uint8_t *copy;
    struct strata_errmsg em;
    build_valid();
    assert_int_equal(parse(B.d, B.n, &r, &copy, &em), STRATA_OK);
    assert_int_equal(gguf_reader_version(r), 3);
    assert_int_equal(gguf_reader_alignment(r), 32);
    assert_int_equal(gguf_reader_kv_count(r), 15);
    assert_int_equal(gguf_reader_tensor_count(r), 3);
    assert_string_equal(gguf_reader_name(r), "test.gguf");
    const struct gguf_tensor *t = gguf_reader_find_tensor(r, "q");
    assert_non_null(t);
    assert_int_equal(t->bytes, 136);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->ne[0], 64);
    assert_int_equal(t->ne[2], 1);
    assert_ptr_equal(t->data, copy + gguf_reader_data_offset(r) + 64);
    assert_null(gguf_reader_find_tensor(r, "nope"));
    assert_null(gguf_reader_find_kv(r, "nope"));
    /* Raw bytes of all pairs follow one another from the header on. */
    const uint8_t *p = copy + 24;
    for (size_t i = 0; i < gguf_reader_kv_count(r); i++) {
        assert_ptr_equal(gguf_reader_kv(r, i)->raw, p);
        p += gguf_reader_kv(r, i)->raw_bytes;
    }
    gguf_reader_free(r);
    free(copy);
}

static void test_getters(void **state) {
    (void)state;
    struct gguf_reader *r;
    uint8_t *copy;
    struct strata_errmsg em;
    build_valid();
    assert_int_equal(parse(B.d, B.n, &r, &copy, &em), STRATA_OK);
    static const struct {
        const char *key;
        uint64_t want;
    } ints[] = {{"k.u8", 200},   {"k.u16", 65535},
                {"k.i16", 1234}, {"k.u32", 4000000000u},
                {"k.i32", 77},   {"k.u64", UINT64_C(1) << 40},
                {"k.i64", 9}};
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        uint64_t v = 0;
        assert_int_equal(gguf_reader_get_u64(r, ints[i].key, true, &v, &em), STRATA_OK);
        assert_true(v == ints[i].want);
    }
    uint64_t u64 = 5;
    uint32_t u32 = 6;
    float f = 0;
    bool b = false;
    struct gguf_str s = {0};
    const struct gguf_kv *a = NULL;
    assert_int_equal(gguf_reader_get_u64(r, "k.i8", true, &u64, &em), STRATA_EFORMAT); /* negative */
    assert_int_equal(gguf_reader_get_u64(r, "k.f32", true, &u64, &em), STRATA_EFORMAT);
    assert_int_equal(gguf_reader_get_u64(r, "gone", true, &u64, &em), STRATA_ENOENT);
    assert_non_null(strstr(em.text, "gone"));
    assert_int_equal(gguf_reader_get_u64(r, "gone", false, &u64, &em), STRATA_OK);
    assert_int_equal(gguf_reader_get_u32(r, "k.u64", true, &u32, &em), STRATA_EFORMAT); /* too large */
    assert_int_equal(gguf_reader_get_u32(r, "gone", false, &u32, &em), STRATA_OK);
    assert_true(u64 == 5 && u32 == 6); /* failures and absent keys leave the result alone */
    assert_int_equal(gguf_reader_get_f32(r, "k.f32", true, &f, &em), STRATA_OK);
    assert_true(f == 1.5f);
    assert_int_equal(gguf_reader_get_f32(r, "k.f64", true, &f, &em), STRATA_OK);
    assert_true(f == 2.5f);
    assert_int_equal(gguf_reader_get_f32(r, "k.u32", true, &f, &em), STRATA_EFORMAT);
    assert_int_equal(gguf_reader_get_bool(r, "k.bool", true, &b, &em), STRATA_OK);
    assert_true(b);
    assert_int_equal(gguf_reader_get_bool(r, "k.u8", true, &b, &em), STRATA_EFORMAT);
    assert_int_equal(gguf_reader_get_str(r, "general.architecture", true, &s, &em), STRATA_OK);
    assert_true(s.len == 5 && memcmp(s.data, "llama", 5) == 0);
    assert_int_equal(gguf_reader_get_str(r, "k.strs", true, &s, &em), STRATA_EFORMAT);
    assert_int_equal(gguf_reader_get_array(r, "k.i16s", true, GGUF_KIND_I16, &a, &em), STRATA_OK);
    assert_true(gguf_reader_int_at(a, 0) == -2 && gguf_reader_int_at(a, 1) == 7);
    assert_int_equal(gguf_reader_get_array(r, "k.i16s", true, GGUF_KIND_I32, &a, &em), STRATA_EFORMAT);
    assert_int_equal(gguf_reader_get_array(r, "gone", false, GGUF_KIND_I32, &a, &em), STRATA_OK);
    assert_null(a);
    gguf_reader_free(r);
    free(copy);
}

static void test_string_array(void **state) {
    (void)state;
    static const char *const want[] = {"one", "", "three"};
    struct gguf_reader *r;
    uint8_t *copy;
    struct strata_errmsg em;
    struct gguf_str s;
    const struct gguf_kv *a;
    size_t cursor = 0, n = 0;
    build_valid();
    assert_int_equal(parse(B.d, B.n, &r, &copy, &em), STRATA_OK);
    assert_int_equal(gguf_reader_get_array(r, "k.strs", true, GGUF_KIND_STRING, &a, &em), STRATA_OK);
    for (; gguf_reader_next_str(a, &cursor, &s); n++) {
        assert_true(n < 3);
        assert_int_equal(s.len, strlen(want[n]));
        assert_memory_equal(s.data, want[n], s.len);
    }
    assert_int_equal(n, 3);
    cursor = 0;
    assert_int_equal(gguf_reader_get_array(r, "k.empty", true, GGUF_KIND_STRING, &a, &em), STRATA_OK);
    assert_false(gguf_reader_next_str(a, &cursor, &s));
    gguf_reader_free(r);
    free(copy);
}

/* CVE-2024-32878: cut anywhere, the file must be refused; there is no trailing padding in it that could be missed
 * without harm. */
static void test_truncation(void **state) {
    (void)state;
    build_valid();
    for (size_t n = 0; n < B.n; n++) {
        struct gguf_reader *r;
        uint8_t *copy;
        struct strata_errmsg em;
        strata_err rc = parse(B.d, n, &r, &copy, &em);
        if (rc != STRATA_EFORMAT) fail_msg("cut at %zu of %zu: got %d", n, B.n, (int)rc);
        gguf_reader_free(r);
        free(copy);
    }
}

/* Whatever a file that opens promises: every view lies inside of it. */
static void touch_all(const struct gguf_reader *r) {
    volatile uint8_t seen;
    for (size_t i = 0; r && i < gguf_reader_tensor_count(r); i++) {
        const struct gguf_tensor *t = gguf_reader_tensor(r, i);
        seen = t->data[0];
        seen = t->data[t->bytes - 1];
        (void)seen;
    }
    for (size_t i = 0; r && i < gguf_reader_kv_count(r); i++) {
        const struct gguf_kv *kv = gguf_reader_kv(r, i);
        struct gguf_str s;
        size_t cursor = 0;
        while (gguf_reader_next_str(kv, &cursor, &s))
            if (s.len) seen = (uint8_t)s.data[s.len - 1];
        seen = kv->raw[kv->raw_bytes - 1];
        (void)seen;
    }
}

/* CVE-2024-41130: every field left out in turn, as any one to eight bytes of the file cut out of its middle. */
static void test_removed_fields(void **state) {
    (void)state;
    static uint8_t cut[sizeof B.d];
    build_valid();
    size_t refused = 0, tried = 0;
    for (size_t n = 1; n <= 8; n++) {
        for (size_t at = 0; at + n <= B.n; at++) {
            struct gguf_reader *r;
            uint8_t *copy;
            struct strata_errmsg em;
            memcpy(cut, B.d, at);
            memcpy(cut + at, B.d + at + n, B.n - at - n);
            strata_err rc = parse(cut, B.n - n, &r, &copy, &em);
            if (rc != STRATA_OK && rc != STRATA_EFORMAT && rc != STRATA_EUNSUPPORTED)
                fail_msg("%zu bytes cut out at %zu: got %d", n, at, (int)rc);
            touch_all(r);
            refused += rc != STRATA_OK;
            tried++;
            gguf_reader_free(r);
            free(copy);
        }
    }
    /* The file ends with its last payload byte: with anything missing, that one lies beyond the end. What may pass is a
     * shorter header whose padding makes up for it. */
    assert_true(refused > tried / 2);
}

/* Every byte of the header set to a few values in turn: the result may be anything but a stray access. */
static void test_single_byte_damage(void **state) {
    (void)state;
    static const uint8_t values[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
    build_valid();
    size_t refused = 0, tried = 0;
    for (size_t at = 0; at < B.n; at++) {
        for (size_t k = 0; k < sizeof values; k++) {
            struct gguf_reader *r;
            uint8_t *copy, keep = B.d[at];
            struct strata_errmsg em;
            B.d[at] = values[k];
            if (parse(B.d, B.n, &r, &copy, &em)) refused++;
            touch_all(r);
            B.d[at] = keep;
            tried++;
            gguf_reader_free(r);
            free(copy);
        }
    }
    assert_true(refused > tried / 4);
}

/* ---- counts and lengths far beyond the file (CVE-2024-21825, -21836, -23496, -23605; llama.cpp PR 26318) ---- */

static const uint64_t huge[] = {UINT64_C(1) << 31, UINT32_MAX,     UINT64_C(1) << 32, UINT64_C(1) << 62,
                                UINT64_C(1) << 63, UINT64_MAX - 7, UINT64_MAX};

static void test_huge_counts(void **state) {
    (void)state;
    const uint64_t ne[4] = {4};
    for (size_t i = 0; i < sizeof huge / sizeof huge[0]; i++) {
        put_head(&B, 3, huge[i], 0);
        put_payload(&B, 64, 0);
        expect(STRATA_EFORMAT, "tensors", "tensor count");
        put_head(&B, 3, 0, huge[i]);
        put_payload(&B, 64, 0);
        expect(STRATA_EFORMAT, "metadata pairs", "pair count");
        put_head(&B, 3, 0, 1);
        put_u64(&B, huge[i]);
        put_payload(&B, 64, 0);
        expect(STRATA_EFORMAT, "key", "key length");
        put_head(&B, 3, 0, 1);
        put_key(&B, "k", 8);
        put_u64(&B, huge[i]);
        put_payload(&B, 64, 0);
        expect(STRATA_EFORMAT, "string", "string length");
        for (uint32_t kind = 0; kind <= 12; kind++) {
            if (kind == 9) continue;
            put_head(&B, 3, 0, 1);
            put_kv_array(&B, "k", kind, huge[i]);
            put_payload(&B, 64, 0);
            expect(STRATA_EFORMAT, "array", "array length");
        }
        put_head(&B, 3, 0, 1);
        put_kv_array(&B, "k", 8, 1);
        put_u64(&B, huge[i]);
        put_payload(&B, 64, 0);
        expect(STRATA_EFORMAT, "string", "length of a string in an array");
        put_head(&B, 3, 1, 0);
        put_u64(&B, huge[i]);
        put_payload(&B, 64, 0);
        expect(STRATA_EFORMAT, "name", "tensor name length");
        put_head(&B, 3, 1, 0);
        put_tensor(&B, "t", 1, &huge[i], 0, 0);
        put_payload(&B, 64, 0);
        expect(STRATA_EFORMAT, "'t'", "dimension");
        put_head(&B, 3, 1, 0);
        put_tensor(&B, "t", 1, &huge[i], 24, 0); /* I8: as many bytes as elements */
        put_payload(&B, 64, 0);
        expect(STRATA_EFORMAT, "'t'", "bytes");
        put_head(&B, 3, 1, 0);
        put_tensor(&B, "t", 1, ne, 0, huge[i] & ~UINT64_C(31));
        put_payload(&B, 64, 0);
        expect(STRATA_EFORMAT, "'t'", "offset");
    }
}

/* ---- one fault each ---- */

static void build_magic(void) {
    put_head(&B, 3, 0, 0);
    B.d[3] = 'X';
}

static void build_v1(void) {
    put_head(&B, 1, 0, 0);
}

static void build_v4(void) {
    put_head(&B, 4, 0, 0);
}

static void build_v0(void) {
    put_head(&B, 0, 0, 0);
}

static void build_big_endian(void) {
    put_head(&B, UINT32_C(3) << 24, 0, 0);
}

static void build_duplicate_key(void) {
    put_head(&B, 3, 0, 2);
    put_kv_u32(&B, "k", 1);
    put_kv_u32(&B, "k", 2);
}

static void build_empty_key(void) {
    put_head(&B, 3, 0, 1);
    put_kv_u32(&B, "", 1);
    put_payload(&B, 16, 0);
}

static void build_key_with_nul(void) {
    put_head(&B, 3, 0, 1);
    put_u64(&B, 3);
    put(&B, "a\0b", 3);
    put_u32(&B, 4);
    put_u32(&B, 4);
}

static void build_unknown_kind(void) {
    put_head(&B, 3, 0, 1);
    put_key(&B, "k", 13);
    put_payload(&B, 64, 0);
}

static void build_unknown_element_kind(void) {
    put_head(&B, 3, 0, 1);
    put_kv_array(&B, "k", 13, 1);
    put_payload(&B, 64, 0);
}

static void build_nested_array(void) {
    put_head(&B, 3, 0, 1);
    put_kv_array(&B, "k", 9, 1);
    put_payload(&B, 64, 0);
}

static void build_tensor(const char *name, uint32_t dims, const uint64_t *ne, uint32_t type, uint64_t offset) {
    put_head(&B, 3, 1, 0);
    put_tensor(&B, name, dims, ne, type, offset);
    put_pad(&B, 32);
    put_payload(&B, 512, 0);
}

static const uint64_t ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};

static void build_no_dims(void) {
    build_tensor("t", 0, ones, 0, 0);
}

static void build_five_dims(void) {
    build_tensor("t", 5, ones, 0, 0);
}

static void build_many_dims(void) {
    build_tensor("t", UINT32_MAX, ones, 0, 0);
}

static void build_zero_dim(void) {
    const uint64_t ne[4] = {4, 0};
    build_tensor("t", 2, ne, 0, 0);
}

static void build_long_name(void) {
    build_tensor("0123456789012345678901234567890123456789012345678901234567890123", 1, ones, 0, 0);
}

static void build_empty_name(void) {
    build_tensor("", 1, ones, 0, 0);
}

static void build_removed_type(void) {
    const uint64_t ne[4] = {32};
    build_tensor("t", 1, ne, 4, 0);
}

static void build_unknown_type(void) {
    build_tensor("t", 1, ones, UINT32_MAX, 0);
}

static void build_partial_block(void) {
    const uint64_t ne[4] = {33};
    build_tensor("t", 1, ne, 8, 0);
}

/* The product wraps to a small number. */
static void build_wrapping_product(void) {
    const uint64_t ne[4] = {UINT64_C(1) << 32, UINT64_C(1) << 32, 2};
    build_tensor("t", 3, ne, 0, 0);
}

/* Elements fit, bytes wrap. */
static void build_wrapping_bytes(void) {
    const uint64_t ne[4] = {UINT64_C(1) << 62};
    build_tensor("t", 1, ne, 28, 0);
}

/* Offset plus size wraps past the end of 64 bits. */
static void build_wrapping_end(void) {
    const uint64_t ne[4] = {16};
    build_tensor("t", 1, ne, 0, UINT64_MAX - 31);
}

/* CVE-2025-53630: each size fits, their sum does not. */
static void build_wrapping_sum(void) {
    const uint64_t ne[4] = {INT64_MAX};
    put_head(&B, 3, 3, 0);
    put_tensor(&B, "t", 1, ne, 24, 0);
    put_tensor(&B, "u", 1, ne, 24, UINT64_C(1) << 63);
    put_tensor(&B, "v", 1, ones, 24, 0);
    put_pad(&B, 32);
    put_payload(&B, 64, 0);
}

/* CVE-2026-27940: the sum fits, and wraps only when it is padded. */
static void build_wrapping_padding(void) {
    const uint64_t ne[4] = {INT64_MAX}, more[4] = {(UINT64_C(1) << 63) - 33};
    put_head(&B, 3, 2, 0);
    put_tensor(&B, "t", 1, ne, 24, 0);
    put_tensor(&B, "u", 1, more, 24, UINT64_C(1) << 63);
    put_pad(&B, 32);
    put_payload(&B, 64, 0);
}

/* ggml PR 1516: 160 bytes that ask for 1 GiB. */
static void build_asking(uint32_t kind, uint32_t elem_kind) {
    put_head(&B, 3, 0, 1);
    put_key(&B, "k", kind);
    if (kind == 9) put_u32(&B, elem_kind);
    put_u64(&B, UINT64_C(1) << 30);
    put_payload(&B, 160 - B.n, 0);
}

static void build_asking_string(void) {
    build_asking(8, 0);
}

static void build_asking_strings(void) {
    build_asking(9, 8);
}

static void build_asking_bytes(void) {
    build_asking(9, 0);
}

/* gguf-py #25378: 43 bytes, and as many lists, or things of no known size, as a number can say. */
static void build_43_bytes(uint32_t elem_kind, uint64_t count) {
    put_head(&B, 3, 0, 1);
    put_u64(&B, 0); /* an empty key */
    put_u32(&B, 9);
    put_u32(&B, elem_kind);
    put_u64(&B, count);
    B.n = 43;
}

static void build_43_lists(void) {
    build_43_bytes(9, UINT64_MAX);
}

static void build_43_nothings(void) {
    build_43_bytes(13, UINT64_C(1) << 62);
}

static void build_43_pairs(void) {
    put_head(&B, 3, 0, UINT64_MAX);
    put_payload(&B, 19, 0);
}

/* CVE-2025-49847 in a small file: the length of a token says 2 GiB. */
static void build_short_token(void) {
    put_head(&B, 3, 0, 1);
    put_kv_array(&B, "tokenizer.ggml.tokens", 8, 1);
    put_u64(&B, UINT64_C(1) << 31);
    put_payload(&B, 64, 0);
}

static void build_misaligned(void) {
    build_tensor("t", 1, ones, 0, 4);
}

static void build_beyond_end(void) {
    const uint64_t ne[4] = {129};
    build_tensor("t", 1, ne, 0, 0);
}

static void build_duplicate_tensor(void) {
    put_head(&B, 3, 2, 0);
    put_tensor(&B, "t", 1, ones, 0, 0);
    put_tensor(&B, "t", 1, ones, 0, 32);
    put_pad(&B, 32);
    put_payload(&B, 64, 0);
}

/* The second in the list lies first in the file, so neighbours in the list do not show the overlap. */
static void build_overlap(void) {
    const uint64_t ne[4] = {16};
    put_head(&B, 3, 3, 0);
    put_tensor(&B, "a", 1, ne, 0, 96);
    put_tensor(&B, "b", 1, ne, 0, 0);
    put_tensor(&B, "c", 1, ne, 0, 32);
    put_pad(&B, 32);
    put_payload(&B, 160, 0);
}

static void build_shared_bytes(void) {
    put_head(&B, 3, 2, 0);
    put_tensor(&B, "a", 1, ones, 0, 0);
    put_tensor(&B, "b", 1, ones, 0, 0);
    put_pad(&B, 32);
    put_payload(&B, 64, 0);
}

static void test_faults(void **state) {
    (void)state;
    static const struct {
        const char *label;
        void (*build)(void);
        strata_err want;
        const char *text;
    } rows[] = {
        {"magic", build_magic, STRATA_EFORMAT, "not a GGUF file"},
        {"version 0", build_v0, STRATA_EUNSUPPORTED, "version 0"},
        {"version 1", build_v1, STRATA_EUNSUPPORTED, "version 1"},
        {"version 4", build_v4, STRATA_EUNSUPPORTED, "version 4"},
        {"big-endian", build_big_endian, STRATA_EUNSUPPORTED, "big-endian"},
        {"duplicate key", build_duplicate_key, STRATA_EFORMAT, "twice"},
        {"empty key", build_empty_key, STRATA_EFORMAT, "empty"},
        {"NUL in a key", build_key_with_nul, STRATA_EFORMAT, "NUL"},
        {"unknown kind", build_unknown_kind, STRATA_EFORMAT, "unknown kind 13"},
        {"unknown element kind", build_unknown_element_kind, STRATA_EFORMAT, "unknown kind 13"},
        {"nested array", build_nested_array, STRATA_EUNSUPPORTED, "array of arrays"},
        /* CVE-2024-21802: 0, 5, 2^32-1 */
        {"no dimensions", build_no_dims, STRATA_EFORMAT, "dimensions"},
        {"five dimensions", build_five_dims, STRATA_EFORMAT, "dimensions"},
        {"2^32-1 dimensions", build_many_dims, STRATA_EFORMAT, "dimensions"},
        {"dimension 0", build_zero_dim, STRATA_EFORMAT, "size 0"},
        {"long name", build_long_name, STRATA_EFORMAT, "at most 63"},
        {"empty name", build_empty_name, STRATA_EFORMAT, "empty"},
        {"removed type", build_removed_type, STRATA_EUNSUPPORTED, "type 4"},
        {"unknown type", build_unknown_type, STRATA_EUNSUPPORTED, "type 4294967295"},
        {"partial block", build_partial_block, STRATA_EFORMAT, "multiple of 32"},
        {"product of dimensions wraps", build_wrapping_product, STRATA_EFORMAT, "63 bits"},
        {"bytes wrap", build_wrapping_bytes, STRATA_EFORMAT, "63 bits"},
        {"end wraps", build_wrapping_end, STRATA_EFORMAT, "beyond the end"},
        {"sum of sizes wraps", build_wrapping_sum, STRATA_EFORMAT, "beyond the end"},
        {"padded sum wraps", build_wrapping_padding, STRATA_EFORMAT, "beyond the end"},
        {"1 GiB of text", build_asking_string, STRATA_EFORMAT, "beyond the end"},
        {"2^30 strings", build_asking_strings, STRATA_EFORMAT, "beyond the end"},
        {"1 GiB of bytes", build_asking_bytes, STRATA_EFORMAT, "beyond the end"},
        {"43 bytes of lists", build_43_lists, STRATA_EFORMAT, "is empty"},
        {"43 bytes of nothing", build_43_nothings, STRATA_EFORMAT, "is empty"},
        {"43 bytes of pairs", build_43_pairs, STRATA_EFORMAT, "metadata pairs"},
        {"token of 2^31 bytes", build_short_token, STRATA_EFORMAT, "beyond the end"},
        {"misaligned offset", build_misaligned, STRATA_EFORMAT, "alignment"},
        /* CVE-2026-7482 */
        {"beyond the end", build_beyond_end, STRATA_EFORMAT, "beyond the end"},
        {"duplicate tensor", build_duplicate_tensor, STRATA_EFORMAT, "twice"},
        {"overlap", build_overlap, STRATA_EFORMAT, "overlap"},
        {"shared bytes", build_shared_bytes, STRATA_EFORMAT, "overlap"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        rows[i].build();
        expect(rows[i].want, rows[i].text, rows[i].label);
    }
}

/* GHSA-96jg-mvhq-q7q7; llama.cpp PR 26318 for the wrong kinds. */
static void test_alignment(void **state) {
    (void)state;
    static const struct {
        uint32_t value;
        bool legal;
    } rows[] = {{0, false}, {1, true},        {3, false},        {8, true},         {32, true},         {48, false},
                {64, true}, {1u << 20, true}, {1u << 21, false}, {1u << 31, false}, {UINT32_MAX, false}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        put_head(&B, 3, 0, 1);
        put_kv_u32(&B, "general.alignment", rows[i].value);
        expect(rows[i].legal ? STRATA_OK : STRATA_EFORMAT, rows[i].legal ? NULL : "alignment", "alignment");
    }
    put_head(&B, 3, 0, 1);
    put_key(&B, "general.alignment", 10);
    put_u64(&B, UINT64_C(1) << 63);
    expect(STRATA_EFORMAT, "must be a u32", "alignment 2^63 as u64");
    put_head(&B, 3, 0, 1);
    put_key(&B, "general.alignment", 5);
    put_u32(&B, 32);
    expect(STRATA_EFORMAT, "must be a u32", "alignment with a sign");
    put_head(&B, 3, 0, 1);
    put_kv_str(&B, "general.alignment", "32");
    expect(STRATA_EFORMAT, "must be a u32", "alignment as text");
    put_head(&B, 3, 0, 1);
    put_kv_array(&B, "general.alignment", 4, 1);
    put_u32(&B, 32);
    expect(STRATA_EFORMAT, "must be a u32", "alignment as an array");
}

/* Legal corners. */
static void test_accepted(void **state) {
    (void)state;
    put_head(&B, 3, 0, 0);
    expect(STRATA_OK, NULL, "an empty file");
    put_head(&B, 2, 0, 1);
    put_kv_u32(&B, "k", 1);
    expect(STRATA_OK, NULL, "version 2");
    build_tensor("012345678901234567890123456789012345678901234567890123456789012", 4, ones, 0, 0);
    expect(STRATA_OK, NULL, "a name of 63 bytes, 4 dimensions");
    const uint64_t ne[4] = {16};
    put_head(&B, 3, 2, 0);
    put_tensor(&B, "b", 1, ne, 0, 64);
    put_tensor(&B, "a", 1, ne, 0, 0);
    put_pad(&B, 32);
    put_payload(&B, 128, 0);
    expect(STRATA_OK, NULL, "tensors listed out of order");
}

/* Not-a-number must not reach a model. */
static void test_floats(void **state) {
    (void)state;
    static const struct {
        uint32_t kind;
        uint64_t bits;
        strata_err want;
    } rows[] = {
        {6, 0x7fc00000, STRATA_EFORMAT},
        {6, 0x7f800000, STRATA_EFORMAT},
        {6, 0xff800000, STRATA_EFORMAT},
        {6, 0x00000001, STRATA_OK},
        {12, UINT64_C(0x7ff0000000000000), STRATA_EFORMAT},
        {12, UINT64_C(0x7fe0000000000000), STRATA_EFORMAT}, /* finite, but not as f32 */
        {12, 0, STRATA_OK},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct gguf_reader *r;
        uint8_t *copy;
        struct strata_errmsg em;
        float f = 9;
        put_head(&B, 3, 0, 1);
        put_key(&B, "f", rows[i].kind);
        put_le(&B, rows[i].bits, rows[i].kind == 6 ? 4 : 8);
        assert_int_equal(parse(B.d, B.n, &r, &copy, &em), STRATA_OK);
        assert_int_equal(gguf_reader_get_f32(r, "f", true, &f, &em), rows[i].want);
        if (rows[i].want) assert_true(f == 9);
        gguf_reader_free(r);
        free(copy);
    }
}

/* A message may carry foreign bytes, but never a control character. */
static void test_messages_are_printable(void **state) {
    (void)state;
    struct gguf_reader *r;
    uint8_t *copy;
    struct strata_errmsg em;
    build_tensor("a\033[31m\n", 5, ones, 0, 0);
    assert_int_equal(parse(B.d, B.n, &r, &copy, &em), STRATA_EFORMAT);
    for (const char *p = em.text; *p; p++) assert_true((unsigned char)*p >= 0x20);
    free(copy);
}

/* CVE-2025-49847: a token, and a name, of 2^31 bytes that are really there; lengths stay whole. */
static void test_token_of_2_gib(void **state) {
    (void)state;
    const uint64_t big = UINT64_C(1) << 31;
    static struct tmp_folder tmp;
    struct gguf_reader *r;
    struct strata_errmsg em;
    struct file_map map;
    struct gguf_str s;
    const struct gguf_kv *tokens;
    size_t cursor = 0;
    tmp_folder_make(&tmp);
    put_head(&B, 3, 0, 2);
    put_kv_array(&B, "tokenizer.ggml.tokens", 8, 2);
    put_u64(&B, big);
    const char *path = tmp_path(&tmp, "token.gguf");
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(B.d, 1, B.n, f), B.n);
    size_t head = B.n;
    B.n = 0;
    put_str(&B, "second");
    put_key(&B, "general.name", 8);
    put_u64(&B, big - 1);
    assert_int_equal(fseek(f, (long)(head + big), SEEK_SET), 0); /* a hole */
    assert_int_equal(fwrite(B.d, 1, B.n, f), B.n);
    fclose(f);
    assert_int_equal(truncate(path, (off_t)(head + big + B.n + big - 1)), 0);
    assert_int_equal(file_map_open(path, &map, &em), STRATA_OK);
    assert_int_equal(gguf_reader_new(map.data, map.size, path, &r, &em), STRATA_OK);
    assert_int_equal(gguf_reader_get_array(r, "tokenizer.ggml.tokens", true, GGUF_KIND_STRING, &tokens, &em),
                     STRATA_OK);
    assert_true(gguf_reader_next_str(tokens, &cursor, &s) && s.len == big);
    assert_true(gguf_reader_next_str(tokens, &cursor, &s) && s.len == 6 && memcmp(s.data, "second", 6) == 0);
    assert_false(gguf_reader_next_str(tokens, &cursor, &s));
    assert_int_equal(gguf_reader_get_str(r, "general.name", true, &s, &em), STRATA_OK);
    assert_true(s.len == big - 1 && s.data + s.len == (const char *)map.data + map.size);
    gguf_reader_free(r);
    file_map_close(&map);
    /* One byte less, and the name no longer fits. */
    assert_int_equal(truncate(path, (off_t)(head + big + B.n + big - 2)), 0);
    assert_int_equal(file_map_open(path, &map, &em), STRATA_OK);
    assert_int_equal(gguf_reader_new(map.data, map.size, path, &r, &em), STRATA_EFORMAT);
    file_map_close(&map);
    tmp_folder_remove(tmp.path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_valid),          cmocka_unit_test(test_getters),
        cmocka_unit_test(test_string_array),   cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_removed_fields), cmocka_unit_test(test_single_byte_damage),
        cmocka_unit_test(test_huge_counts),    cmocka_unit_test(test_faults),
        cmocka_unit_test(test_alignment),      cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_floats),         cmocka_unit_test(test_messages_are_printable),
        cmocka_unit_test(test_token_of_2_gib),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
