/*
 * The KV cache of the layers that a range owns: one row of keys and one of values per layer and position.
 *
 * K is [head_dim_k * n_head_kv, n_cells], V likewise with head_dim_v; cell i holds position i. n_cells is n_ctx rounded
 * up to MODEL_KV_STEP, because graphs look at a whole number of steps (cells that hold nothing yet are masked).
 * The memory is mapped from the system and reads as zeros until written, so it becomes resident only as positions are
 * used: a masked cell must never hold a NaN.
 */
#ifndef MODEL_KV_H
#define MODEL_KV_H

#include "model/model_backend.h"
#include "model/model_hparams.h"
#include "package/pkg_model.h"

#include <ggml.h>

enum { MODEL_KV_STEP = 256 };

struct model_kv_layer {
    struct ggml_tensor *k;
    struct ggml_tensor *v;
};

struct model_kv {
    struct pkg_range range;
    struct model_kv_layer *layer; /* range.end - range.first entries */
    uint32_t n_cells;
    uint64_t bytes;
    /* Owned: */
    struct ggml_context *ctx;
    ggml_backend_buffer_t buffer;
    void *memory;
};

/* type is GGML_TYPE_F16 or GGML_TYPE_F32. Fails with ENOMEM, telling how much n_ctx asks for, before anything is taken.
 */
strata_err model_kv_init(struct model_kv *kv, const struct model_hparams *hp, struct pkg_range range,
                         const struct model_backend *backend, uint32_t n_ctx, enum ggml_type type,
                         struct strata_errmsg *em);
void model_kv_deinit(struct model_kv *kv);

#endif
