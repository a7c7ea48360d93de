/* Matrices in the kernels' order. See model_repack.h. Owns nothing. */
#include "model/model_repack.h"

#include <string.h>

/* Whether products with w can be computed when w lies in a buffer of the type. */
static bool can_multiply(const struct model_backend *b, ggml_backend_buffer_type_t buft, const struct ggml_tensor *w,
                         enum model_product use) {
    struct ggml_init_params params = {.mem_size = 8 * ggml_tensor_overhead(), .no_alloc = true};
    struct ggml_context *ctx = ggml_init(params);
    ggml_backend_buffer_t empty = ctx ? ggml_backend_buft_alloc_buffer(buft, 0) : NULL;
    bool ok = false;
    if (!ctx || !empty) goto out;
    struct ggml_tensor *m = ggml_new_tensor_3d(ctx, w->type, w->ne[0], w->ne[1], w->ne[2]), *op;
    if (use == MODEL_PRODUCT_EXPERTS) {
        struct ggml_tensor *x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, w->ne[0], 1, 1);
        op = ggml_mul_mat_id(ctx, m, x, ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 1, 1));
    } else {
        op = ggml_mul_mat(ctx, m, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, w->ne[0], 1));
    }
    m->buffer = empty;
    ok = ggml_backend_dev_supports_op(b->dev, op);
out:
    if (empty) ggml_backend_buffer_free(empty);
    if (ctx) ggml_free(ctx);
    return ok;
}

/* The first of the CPU's own types that can, or NULL. */
static ggml_backend_buffer_type_t extra_type(const struct model_backend *b, const struct ggml_tensor *w,
                                             enum model_product use) {
    ggml_backend_dev_get_extra_bufts_t get = NULL;
    void *address =
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(b->dev), "ggml_backend_dev_get_extra_bufts");
    memcpy(&get, &address, sizeof get); /* ISO C has no cast from data to function pointers */
    if (!get) return NULL;
    for (ggml_backend_buffer_type_t *buft = get(b->dev); buft && *buft; buft++)
        if (can_multiply(b, *buft, w, use)) return *buft;
    return NULL;
}

ggml_backend_buffer_type_t model_repack_type(const struct model_backend *b, const struct ggml_tensor *w,
                                             enum model_product use) {
    ggml_backend_buffer_type_t buft = NULL;
    if (!b->in_place || use == MODEL_PRODUCT_NONE) return NULL;
    if (b->copies >= MODEL_BACKEND_PACKED && use != MODEL_PRODUCT_AS_IT_IS) buft = extra_type(b, w, use);
    if (!buft && b->copies == MODEL_BACKEND_COPIED) buft = ggml_backend_dev_buffer_type(b->dev);
    return buft;
}
