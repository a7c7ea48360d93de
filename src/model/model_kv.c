/* The KV cache of a layer range. See model_kv.h. Owns the mapped memory and the tensors over it. */
#include "model/model_kv.h"

#include "base/checked.h"
#include "base/progress.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

static uint64_t padded(uint64_t bytes, uint64_t align) {
    return (bytes + align - 1) / align * align;
}

/* Sizes are products of bounded numbers (model_hparams.h): a row is below 2^28 bytes, a layer below 2^53. */
static strata_err total_bytes(const struct model_hparams *hp, struct pkg_range range, uint32_t n_cells, size_t elem,
                              size_t align, uint64_t *out, struct strata_errmsg *em) {
    uint64_t total = 0;
    for (uint32_t i = range.first; i < range.end; i++) {
        uint64_t k = (uint64_t)hp->layer[i].n_head_kv * hp->head_dim_k * elem * n_cells;
        uint64_t v = (uint64_t)hp->layer[i].n_head_kv * hp->head_dim_v * elem * n_cells;
        if (!checked_add(total, padded(k, align) + padded(v, align), &total))
            return err_set(em, STRATA_ELIMIT, "a KV cache of %u positions is beyond any memory; lower the context",
                           (unsigned)n_cells);
    }
    *out = total;
    return STRATA_OK;
}

static strata_err make_tensors(struct model_kv *kv, const struct model_hparams *hp, const struct model_backend *backend,
                               enum ggml_type type, struct strata_errmsg *em) {
    size_t n_layers = kv->range.end - kv->range.first;
    struct ggml_init_params params = {.mem_size = (2 * n_layers + 1) * ggml_tensor_overhead(), .no_alloc = true};
    kv->layer = calloc(n_layers, sizeof *kv->layer);
    kv->ctx = ggml_init(params);
    kv->buffer = ggml_backend_dev_buffer_from_host_ptr(backend->dev, kv->memory, (size_t)kv->bytes, (size_t)kv->bytes);
    if (!kv->layer || !kv->ctx || !kv->buffer) return err_nomem(em, "the KV cache's tables");
    char *at = kv->memory;
    for (size_t i = 0; i < n_layers; i++) {
        int64_t heads = hp->layer[kv->range.first + i].n_head_kv;
        struct ggml_tensor *k = ggml_new_tensor_2d(kv->ctx, type, heads * hp->head_dim_k, kv->n_cells);
        struct ggml_tensor *v = ggml_new_tensor_2d(kv->ctx, type, heads * hp->head_dim_v, kv->n_cells);
        bool ok = ggml_backend_tensor_alloc(kv->buffer, k, at) == GGML_STATUS_SUCCESS;
        at += padded(ggml_nbytes(k), backend->alignment);
        ok = ok && ggml_backend_tensor_alloc(kv->buffer, v, at) == GGML_STATUS_SUCCESS;
        at += padded(ggml_nbytes(v), backend->alignment);
        if (!ok) return err_set(em, STRATA_EINTERNAL, "ggml refused the KV cache's memory");
        kv->layer[i] = (struct model_kv_layer){k, v};
    }
    return STRATA_OK;
}

strata_err model_kv_init(struct model_kv *kv, const struct model_hparams *hp, struct pkg_range range,
                         const struct model_backend *backend, uint32_t n_ctx, enum ggml_type type,
                         struct strata_errmsg *em) {
    struct model_kv m = {.range = range, .n_cells = (n_ctx + MODEL_KV_STEP - 1) / MODEL_KV_STEP * MODEL_KV_STEP};
    char want[32], have[32];
    strata_err rc = total_bytes(hp, range, m.n_cells, ggml_type_size(type), backend->alignment, &m.bytes, em);
    if (rc) goto out;
    uint64_t available = model_backend_memory_available();
    if (m.bytes > available) {
        rc = err_set(em, STRATA_ENOMEM,
                     "a context of %u positions needs %s for the KV cache, and %s of memory is available; lower the "
                     "context length",
                     (unsigned)n_ctx, progress_bytes(want, sizeof want, m.bytes),
                     progress_bytes(have, sizeof have, available));
        goto out;
    }
    m.memory = mmap(NULL, (size_t)m.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m.memory == MAP_FAILED) {
        int errnum = errno;
        m.memory = NULL;
        rc = err_sys(em, STRATA_ENOMEM, errnum,
                     "a context of %u positions needs %s for the KV cache, which the system does not give; lower the "
                     "context length",
                     (unsigned)n_ctx, progress_bytes(want, sizeof want, m.bytes));
        goto out;
    }
    rc = make_tensors(&m, hp, backend, type, em);
    if (rc) goto out;
    *kv = m;
out:
    if (rc) model_kv_deinit(&m);
    return rc;
}

void model_kv_deinit(struct model_kv *kv) {
    if (kv->buffer) ggml_backend_buffer_free(kv->buffer);
    if (kv->ctx) ggml_free(kv->ctx);
    if (kv->memory) munmap(kv->memory, (size_t)kv->bytes);
    free(kv->layer);
    *kv = (struct model_kv){.memory = NULL};
}
