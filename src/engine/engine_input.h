/*
 * What a graph is fed with: positions, rows of state, masks. Owns the staging memory for them.
 *
 * Life cycle: engine_inputs_init, engine_inputs_set before each computation, engine_inputs_deinit.
 */
#ifndef ENGINE_INPUT_H
#define ENGINE_INPUT_H

#include "engine/engine.h"
#include "engine/engine_graph.h"

struct engine_inputs {
    int32_t *ids; /* n_batch numbers: positions, rows, tokens */
    int64_t *cells;
    ggml_fp16_t *mask; /* n_batch rows of at most n_rows */
    float *hidden;     /* n_batch rows of n_embd; NULL on the first stage */
};

/* What engine_inputs_init takes. */
uint64_t engine_inputs_bytes(uint32_t n_batch, uint32_t n_rows, uint32_t n_embd, bool is_first);
strata_err engine_inputs_init(struct engine_inputs *in, uint32_t n_batch, uint32_t n_rows, uint32_t n_embd,
                              bool is_first, struct strata_errmsg *em);
void engine_inputs_deinit(struct engine_inputs *in);

/* Fills all inputs of a graph whose spans are those of the batches. */
void engine_inputs_set(struct engine_inputs *in, const struct engine_graph *g, const struct engine_batch *batches);

#endif
