/* The table of tensor types against ggml's own, and sizes that do not fit. */
#include "gguf/gguf_types.h"

#include <ggml.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <strings.h>

#include <cmocka.h>

/* Every type of the ggml we link is known with the same block, and the removed ones are not. */
static void test_against_ggml(void **state) {
    (void)state;
    for (int id = 0; id < GGML_TYPE_COUNT; id++) {
        const struct gguf_tensor_type *t = gguf_types_tensor((uint32_t)id);
        size_t bytes = ggml_type_size((enum ggml_type)id);
        if (bytes == 0) {
            assert_null(t);
            continue;
        }
        assert_non_null(t);
        assert_int_equal(t->block_bytes, bytes);
        assert_int_equal(t->block_elems, ggml_blck_size((enum ggml_type)id));
        assert_int_equal(strcasecmp(t->name, ggml_type_name((enum ggml_type)id)), 0);
        assert_int_equal(gguf_types_tensor_id(ggml_type_name((enum ggml_type)id)), id);
    }
    assert_null(gguf_types_tensor(GGML_TYPE_COUNT));
    assert_null(gguf_types_tensor(UINT32_MAX));
    assert_null(gguf_types_tensor_name(4));
    assert_int_equal(gguf_types_tensor_id("q9_9"), -1);
}

static void test_sizes(void **state) {
    (void)state;
    static const struct {
        uint32_t type;
        uint64_t ne[4];
        bool fits;
        uint64_t bytes;
    } rows[] = {
        {0, {5, 1, 1, 1}, true, 20},
        {8, {64, 3, 1, 1}, true, 204},
        {8, {48, 3, 1, 1}, false, 0}, /* half a block */
        {14, {256, 2, 2, 2}, true, 1680},
        {4, {32, 1, 1, 1}, false, 0}, /* removed type */
        {24, {INT64_MAX, 1, 1, 1}, true, INT64_MAX},
        {24, {UINT64_C(1) << 63, 1, 1, 1}, false, 0},                /* beyond 63 bits */
        {0, {UINT64_C(1) << 62, 1, 1, 1}, false, 0},                 /* bytes wrap */
        {0, {UINT64_C(1) << 32, UINT64_C(1) << 32, 1, 1}, false, 0}, /* elements wrap to 0 */
        {0, {UINT64_C(1) << 31, UINT64_C(1) << 31, 2, 2}, false, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t bytes = 77;
        assert_int_equal(gguf_types_tensor_bytes(rows[i].type, rows[i].ne, &bytes), rows[i].fits);
        assert_true(bytes == (rows[i].fits ? rows[i].bytes : 77));
    }
}

static void test_kinds(void **state) {
    (void)state;
    assert_int_equal(gguf_types_kind_bytes(GGUF_KIND_F64), 8);
    assert_int_equal(gguf_types_kind_bytes(GGUF_KIND_BOOL), 1);
    assert_int_equal(gguf_types_kind_bytes(GGUF_KIND_STRING), 0);
    assert_int_equal(gguf_types_kind_bytes(99), 0);
    assert_string_equal(gguf_types_kind_name(GGUF_KIND_I16), "i16");
    assert_string_equal(gguf_types_kind_name(99), "unknown");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_ggml), cmocka_unit_test(test_sizes),
                                       cmocka_unit_test(test_kinds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
