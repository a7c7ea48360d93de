/* Our table of tensor types against the ggml that is linked, and every type that we accept against its kernels. */
#include "model/model_backend.h"

#include "gguf/gguf_types.h"

#include <ggml-alloc.h>
#include <ggml.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_table(void **state) {
    (void)state;
    int known = 0;
    for (uint32_t id = 0; id < 256; id++) {
        const struct gguf_tensor_type *t = gguf_types_tensor(id);
        if (!t) continue;
        known++;
        if (id >= GGML_TYPE_COUNT) fail_msg("ggml has no type %u (%s)", id, t->name);
        if (strcasecmp(t->name, ggml_type_name((enum ggml_type)id)) != 0)
            fail_msg("type %u is %s for us and %s for ggml", id, t->name, ggml_type_name((enum ggml_type)id));
        assert_int_equal(t->block_elems, ggml_blck_size((enum ggml_type)id));
        assert_int_equal(t->block_bytes, ggml_type_size((enum ggml_type)id));
        uint64_t bytes, ne[4] = {t->block_elems * 3, 5, 2, 1};
        assert_true(gguf_types_tensor_bytes(id, ne, &bytes));
        assert_int_equal(bytes, ggml_row_size((enum ggml_type)id, (int64_t)ne[0]) * 10);
    }
    /* The other way round: a type that ggml can compute with must not be missing from our table. */
    for (uint32_t id = 0; id < GGML_TYPE_COUNT; id++)
        if (ggml_blck_size((enum ggml_type)id) > 0 && ggml_type_size((enum ggml_type)id) > 0 && !gguf_types_tensor(id))
            fail_msg("ggml's type %u (%s) is not in our table", id, ggml_type_name((enum ggml_type)id));
    assert_true(known >= 30);
}

/* One product and one look-up with zero weights: the point is that ggml does not abort, and gives zeros. */
static void use_type(const struct model_backend *b, enum ggml_type type, bool rows) {
    enum { OUT = 3, COLUMNS = 2 };
    int64_t n = 2 * ggml_blck_size(type);
    if (n < 256) n = 256;
    struct ggml_init_params params = {.mem_size = 16 * ggml_tensor_overhead() + ggml_graph_overhead(),
                                      .no_alloc = true};
    struct ggml_context *ctx = ggml_init(params);
    struct ggml_tensor *w = ggml_new_tensor_2d(ctx, type, n, OUT), *x, *y;
    x = rows ? ggml_new_tensor_1d(ctx, GGML_TYPE_I32, COLUMNS) : ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n, COLUMNS);
    y = rows ? ggml_get_rows(ctx, w, x) : ggml_mul_mat(ctx, w, x);
    struct ggml_cgraph *graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, y);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, b->handle);
    assert_non_null(buffer);
    ggml_backend_buffer_clear(buffer, 0);
    assert_int_equal(ggml_backend_graph_compute(b->handle, graph), GGML_STATUS_SUCCESS);
    for (int64_t i = 0; i < ggml_nelements(y); i++) assert_float_equal(ggml_get_data_f32(y)[i], 0, 0);
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
}

static void test_kernels(void **state) {
    (void)state;
    struct model_backend b;
    struct strata_errmsg em;
    static const char *const expected[] = {"F32",  "F16",  "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
                                           "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"};
    if (model_backend_init(&b, NULL, NULL, 2, &em)) fail_msg("%s", em.text);
    for (uint32_t id = 0; id < 64; id++)
        for (int rows = 0; rows < 2; rows++)
            if (model_backend_can_use(&b, id, rows ? MODEL_BACKEND_LOOK_UP : MODEL_BACKEND_MULTIPLY, false))
                use_type(&b, (enum ggml_type)id, rows);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        int id = gguf_types_tensor_id(expected[i]);
        assert_true(id >= 0);
        assert_true(model_backend_can_use(&b, (uint32_t)id, MODEL_BACKEND_MULTIPLY, false));
        assert_true(model_backend_can_use(&b, (uint32_t)id, MODEL_BACKEND_LOOK_UP, false));
    }
    static const char *const refused[] = {"I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        assert_false(
            model_backend_can_use(&b, (uint32_t)gguf_types_tensor_id(refused[i]), MODEL_BACKEND_MULTIPLY, false));
    assert_false(model_backend_can_use(&b, 4, MODEL_BACKEND_MULTIPLY, false)); /* removed from the format */
    assert_false(model_backend_can_use(&b, UINT32_MAX, MODEL_BACKEND_MULTIPLY, false));
    model_backend_deinit(&b);
}

static void test_memory(void **state) {
    (void)state;
    assert_true(model_backend_memory_available() > 1 << 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
