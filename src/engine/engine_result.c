/* Results for the host. See engine_result.h. Owns the copy's memory. */
#include "engine/engine_result.h"

#include "base/progress.h"

uint64_t engine_result_bytes(const struct model_backend *backend, uint64_t n_floats) {
    return backend->in_place ? 0 : n_floats * sizeof(float); /* counts are bounded: below 2^50 */
}

strata_err engine_result_init(struct engine_result *o, const struct model_backend *backend, uint64_t n_floats,
                              struct strata_errmsg *em) {
    char want[32];
    *o = (struct engine_result){.buffer = NULL};
    if (backend->in_place) return STRATA_OK;
    size_t bytes = (size_t)engine_result_bytes(backend, n_floats);
    /* Memory that the device writes to by itself, if it has such; else any. */
    ggml_backend_buffer_type_t buft = ggml_backend_dev_host_buffer_type(backend->dev);
    if (buft) o->buffer = ggml_backend_buft_alloc_buffer(buft, bytes);
    if (!o->buffer) o->buffer = ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(backend->host_dev), bytes);
    if (!o->buffer)
        return err_set(em, STRATA_ENOMEM, "no memory for the %s of one batch's results; lower the batch",
                       progress_bytes(want, sizeof want, bytes));
    o->bytes = bytes;
    return STRATA_OK;
}

void engine_result_deinit(struct engine_result *o) {
    if (o->buffer) ggml_backend_buffer_free(o->buffer);
    *o = (struct engine_result){.buffer = NULL};
}

const float *engine_result_read(const struct engine_result *o, const struct ggml_tensor *t) {
    if (!o->buffer) return ggml_get_data_f32(t);
    float *copy = ggml_backend_buffer_get_base(o->buffer);
    size_t n = ggml_nbytes(t) < o->bytes ? ggml_nbytes(t) : o->bytes;
    ggml_backend_tensor_get(t, copy, 0, n);
    return copy;
}
