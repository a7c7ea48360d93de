/* Products a few rows at a time against ggml's own operations: the same bits. */
#include "cpu_backends.h"
#include "model/model_own.h"
#include "model/model_repack.h"
#include "model/model_rows_pace.h"

#include <ggml-alloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 512, ROWS = 40, EXPERTS = 4, USED = 3, MANY = 70 };

/* What a test computes: our product and ggml's, of the same numbers. */
struct pair {
    struct ggml_context *ctx;
    struct ggml_tensor *w, *x, *ids, *ours, *theirs;
    ggml_backend_buffer_t weights, rest;
};

static void begin(struct pair *p, const struct model_backend *b, enum ggml_type type, int64_t n_matrices, bool pack) {
    struct ggml_init_params params = {
        .mem_size = 64 * (ggml_tensor_overhead() + model_own_overhead()) + ggml_graph_overhead(), .no_alloc = true};
    struct model_backend packs = *b;
    packs.copies = MODEL_BACKEND_PACKED;
    *p = (struct pair){.ctx = ggml_init(params)};
    assert_non_null(p->ctx);
    p->w = ggml_new_tensor_3d(p->ctx, type, N, ROWS, n_matrices);
    enum model_product use = n_matrices > 1 ? MODEL_PRODUCT_EXPERTS : MODEL_PRODUCT_MATRIX;
    ggml_backend_buffer_type_t buft = pack ? model_repack_type(&packs, p->w, use) : b->buft;
    p->weights = ggml_backend_buft_alloc_buffer(buft, ggml_backend_buft_get_alloc_size(buft, p->w));
    assert_non_null(p->weights);
    enum ggml_status put = ggml_backend_tensor_alloc(p->weights, p->w, ggml_backend_buffer_get_base(p->weights));
    assert_int_equal(put, GGML_STATUS_SUCCESS);
}

/* Any bytes are rows of any type. A bit that is never set keeps factors of every precision finite. */
static void set_weights(struct ggml_tensor *w) {
    size_t n = ggml_nbytes(w);
    uint16_t *rows = calloc(n / 2 + 1, sizeof *rows);
    uint32_t seed = 7;
    assert_non_null(rows);
    for (size_t i = 0; i < n / 2 + 1; i++) {
        seed = seed * 1664525u + 1013904223u;
        rows[i] = (uint16_t)(seed >> 16 & 0xbfff);
    }
    ggml_backend_tensor_set(w, rows, 0, n);
    free(rows);
}

/* Computes both twice, and compares. */
static void compare(struct pair *p, const struct model_backend *b, const char *what) {
    struct ggml_cgraph *graph = ggml_new_graph(p->ctx);
    ggml_build_forward_expand(graph, p->ours);
    ggml_build_forward_expand(graph, p->theirs);
    p->rest = ggml_backend_alloc_ctx_tensors(p->ctx, b->handle);
    assert_non_null(p->rest);
    set_weights(p->w);
    uint32_t seed = 1;
    for (int64_t i = 0; i < ggml_nelements(p->x); i++) ggml_get_data_f32(p->x)[i] = model_own_number(&seed);
    for (int64_t i = 0; p->ids && i < ggml_nelements(p->ids); i++)
        ((int32_t *)p->ids->data)[i] = (int32_t)((i * 3 + i / USED) % EXPERTS); /* some more than once */
    for (int i = 0; i < 2; i++) {
        memset(p->ours->data, 0xFF, ggml_nbytes(p->ours));
        assert_int_equal(ggml_backend_graph_compute(b->handle, graph), GGML_STATUS_SUCCESS);
        if (memcmp(p->ours->data, p->theirs->data, ggml_nbytes(p->ours)) != 0)
            fail_msg("%s: %s of %d with %u threads differ from ggml's", what, ggml_type_name(p->w->type),
                     (int)ggml_nrows(p->ours), (unsigned)b->n_threads);
    }
}

static void end(struct pair *p) {
    if (p->rest) ggml_backend_buffer_free(p->rest);
    ggml_backend_buffer_free(p->weights);
    ggml_free(p->ctx);
}

/* With one column after the other, ggml takes the kernel for one. */
static struct ggml_tensor *one_by_one(struct ggml_context *ctx, struct ggml_tensor *w, struct ggml_tensor *x) {
    x = ggml_reshape_3d(ctx, x, x->ne[0], 1, x->ne[1]);
    return ggml_mul_mat(ctx, w, x);
}

/* Whether our product was for it. */
static bool matrix(const struct model_backend *b, enum ggml_type type, int64_t n, bool apart, bool pack) {
    struct pair p;
    begin(&p, b, type, 1, pack);
    p.x = ggml_new_tensor_2d(p.ctx, GGML_TYPE_F32, N, n);
    p.ours = model_rows_multiply(p.ctx, &b->rows, p.w, p.x, apart);
    bool made = p.ours != NULL;
    if (made) {
        assert_int_equal(p.ours->op, GGML_OP_CUSTOM);
        assert_int_equal(model_own_op(p.ours), GGML_OP_MUL_MAT);
        p.theirs = apart ? one_by_one(p.ctx, p.w, p.x) : ggml_mul_mat(p.ctx, p.w, p.x);
        assert_int_equal(model_own_op(p.theirs), p.theirs->op);
        compare(&p, b, apart ? "columns apart" : "columns");
    }
    end(&p);
    return made;
}

static bool experts(const struct model_backend *b, enum ggml_type type, int64_t n_x, int64_t n_tokens, bool pack) {
    struct pair p;
    begin(&p, b, type, EXPERTS, pack);
    p.x = ggml_new_tensor_3d(p.ctx, GGML_TYPE_F32, N, n_x, n_tokens);
    p.ids = ggml_new_tensor_2d(p.ctx, GGML_TYPE_I32, USED, n_tokens);
    p.ours = model_rows_multiply_id(p.ctx, &b->rows, p.w, p.x, p.ids, false);
    bool made = p.ours != NULL;
    if (made) {
        assert_int_equal(model_own_op(p.ours), GGML_OP_MUL_MAT_ID);
        p.theirs = ggml_mul_mat_id(p.ctx, p.w, p.x, p.ids);
        compare(&p, b, "experts");
    }
    end(&p);
    return made;
}

static bool can_use(enum ggml_type type) {
    return model_backend_can_use(&backend[0], (uint32_t)type, MODEL_BACKEND_MULTIPLY, false) &&
           ggml_blck_size(type) <= N;
}

static void test_file_order(void **state) {
    (void)state;
    int made = 0;
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        if (!can_use((enum ggml_type)type)) continue;
        for (int t = 0; t < MAX_THREADS; t++) {
            made += matrix(&backend[t], (enum ggml_type)type, 1, false, false);
            for (int64_t n = 2; n <= 17; n += n < 7 ? 5 : 1) {
                matrix(&backend[t], (enum ggml_type)type, n, false, false);
                matrix(&backend[t], (enum ggml_type)type, n, true, false);
            }
            matrix(&backend[t], (enum ggml_type)type, MANY, false, false);
            for (int64_t n = 1; n <= 40; n += n < 20 ? 1 : 20)
                for (int64_t n_x = 1; n_x <= USED; n_x += USED - 1)
                    made += experts(&backend[t], (enum ggml_type)type, n_x, n, false);
        }
    }
    assert_true(made > 20 * MAX_THREADS * 11); /* every type that there is */
}

static bool is_packed(enum ggml_type type) {
    struct model_backend packs = backend[0];
    struct ggml_tensor w = {.type = type, .ne = {N, ROWS, 1, 1}};
    packs.copies = MODEL_BACKEND_PACKED;
    return model_repack_type(&packs, &w, MODEL_PRODUCT_MATRIX) != NULL;
}

/* On x86 each type that ggml has an order for is known to us in that order. */
static void test_packed(void **state) {
    (void)state;
#ifdef __x86_64__
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        if (!can_use((enum ggml_type)type) || !is_packed((enum ggml_type)type)) continue;
        for (int t = 0; t < MAX_THREADS; t++) {
            for (int64_t n = 1; n <= 3; n++)
                if (!matrix(&backend[t], (enum ggml_type)type, n, n == 2, true))
                    fail_msg("%s is not known in ggml's order", ggml_type_name((enum ggml_type)type));
            assert_false(matrix(&backend[t], (enum ggml_type)type, 4, false, true));
            for (int64_t n = 1; n <= 23; n += n < 6 ? 1 : 17)
                for (int64_t n_x = 1; n_x <= USED; n_x += USED - 1)
                    assert_true(experts(&backend[t], (enum ggml_type)type, n_x, n, true));
        }
    }
#else
    skip();
#endif
}

/* Where the kernels agree, as on x86, Q5_0 is for us whatever the number of vectors. */
static void test_widened(void **state) {
    (void)state;
    if (!backend[0].rows.kernel[GGML_TYPE_Q5_0].widen) skip();
    for (int t = 0; t < MAX_THREADS; t++)
        for (int64_t n = 1; n < 300; n += n < 20 ? 1 : 93)
            assert_true(matrix(&backend[t], GGML_TYPE_Q5_0, n, n % 2, false));
}

/* What is not for us is refused: many columns, vectors that are too long, strides between numbers. */
static void test_refused(void **state) {
    (void)state;
    enum { LONG = 1 << 18 };
    struct pair p;
    begin(&p, &backend[0], GGML_TYPE_Q8_0, 1, false);
    struct ggml_tensor *x = ggml_new_tensor_2d(p.ctx, GGML_TYPE_F32, N, MANY);
    assert_null(model_rows_multiply(p.ctx, &backend[0].rows, p.w, x, true));
    x = ggml_new_tensor_2d(p.ctx, GGML_TYPE_F32, 2, N);
    assert_null(model_rows_multiply(p.ctx, &backend[0].rows, p.w, ggml_transpose(p.ctx, x), false));
    struct ggml_tensor *w = ggml_new_tensor_2d(p.ctx, GGML_TYPE_Q8_0, LONG, 1);
    w->buffer = p.w->buffer;
    x = ggml_new_tensor_2d(p.ctx, GGML_TYPE_F32, LONG, 1);
    assert_null(model_rows_multiply(p.ctx, &backend[0].rows, w, x, false));
    w = ggml_new_tensor_2d(p.ctx, GGML_TYPE_Q8_0, N, ROWS); /* without memory */
    x = ggml_new_tensor_2d(p.ctx, GGML_TYPE_F32, N, 1);
    assert_null(model_rows_multiply(p.ctx, &backend[0].rows, w, x, false));
    struct ggml_tensor *ids = ggml_new_tensor_2d(p.ctx, GGML_TYPE_I32, USED, MANY);
    x = ggml_new_tensor_3d(p.ctx, GGML_TYPE_F32, N, 1, MANY);
    assert_null(model_rows_multiply_id(p.ctx, &backend[0].rows, p.w, x, ids, true));
    end(&p);
}

/* What is said of products of one kind, by turns in either way: the shorter one wins, asking unless it is clear. */
static enum model_rows_way way_after(int64_t width, int n, int64_t asking_ns, int64_t plain_ns, int asking_wins_every) {
    struct model_rows_pace p = model_rows_pace_of(GGML_TYPE_F32, false, width, 1, 1);
    assert_non_null(p.kind);
    for (int i = 0; i < 2 * n; i++) {
        bool other = asking_wins_every && i / 2 % asking_wins_every == 0;
        int64_t asking = other ? plain_ns / 2 : asking_ns;
        model_rows_pace_note(&p, p.way == MODEL_ROWS_ASKING ? asking : plain_ns);
    }
    model_rows_pace_end(&p); /* takes what was decided */
    return p.way;
}

static void test_pace(void **state) {
    (void)state;
    enum { SHORT = 1000, LONG = 20000000 };
    assert_int_equal(way_after(1, 100, 2 * SHORT, SHORT, 0), MODEL_ROWS_PLAIN);
    assert_int_equal(way_after(2, 100, SHORT, 2 * SHORT, 0), MODEL_ROWS_ASKING);
    assert_int_equal(way_after(3, 100, 2 * SHORT, SHORT, 2), MODEL_ROWS_ASKING); /* every other time */
    assert_int_equal(way_after(4, 100, 2 * SHORT, SHORT, 5), MODEL_ROWS_PLAIN);
    assert_int_equal(way_after(5, 6, 2 * (int64_t)LONG, LONG, 0), MODEL_ROWS_PLAIN); /* of long ones few are enough */
    /* What was decided stays, also for the next product, and other kinds are on their own. */
    assert_int_equal(way_after(1, 100, SHORT, 2 * SHORT, 0), MODEL_ROWS_PLAIN);
    assert_int_equal(model_rows_pace_of(GGML_TYPE_F32, false, 1, 1, 1).way, MODEL_ROWS_PLAIN);
    struct model_rows_pace a = model_rows_pace_of(GGML_TYPE_F32, false, 1, 1, 2);
    struct model_rows_pace b = model_rows_pace_of(GGML_TYPE_F32, false, 1, 1, 3);
    assert_ptr_equal(a.kind, b.kind);
    assert_int_not_equal(a.way, b.way); /* by turns */
    assert_ptr_not_equal(a.kind, model_rows_pace_of(GGML_TYPE_F32, true, 1, 1, 2).kind);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_order), cmocka_unit_test(test_packed), cmocka_unit_test(test_widened),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_pace),
    };
    return cmocka_run_group_tests(tests, open_backends, close_backends);
}
