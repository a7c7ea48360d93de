/*
 * Results where the host can read them: in place on the CPU, in a copy of our own from any other device.
 *
 * Life cycle: engine_result_init with the size of the largest result, engine_result_read after each computation,
 * engine_result_deinit.
 */
#ifndef ENGINE_RESULT_H
#define ENGINE_RESULT_H

#include "model/model_backend.h"

#include <ggml.h>

struct engine_result {
    ggml_backend_buffer_t buffer; /* NULL: results are read where they are */
    size_t bytes;
};

/* Bytes that it takes: none on the CPU. */
uint64_t engine_result_bytes(const struct model_backend *backend, uint64_t n_floats);
strata_err engine_result_init(struct engine_result *o, const struct model_backend *backend, uint64_t n_floats,
                              struct strata_errmsg *em);
void engine_result_deinit(struct engine_result *o);

/* The numbers of an F32 tensor, valid until the next call or computation. */
const float *engine_result_read(const struct engine_result *o, const struct ggml_tensor *t);

#endif
