/* The cut of a model over stages: contiguous layer ranges of even size in bytes. Pure functions. */
#ifndef PLAN_H
#define PLAN_H

#include "base/err.h"

#include <stdint.h>

struct plan_range {
    uint32_t first, end; /* half-open, never empty */
    uint64_t bytes;      /* of the layers, with what the first and the last stage load besides */
};

/*
 * Cuts so that the largest stage is as small as it can be; among such cuts the one whose stages are the most even.
 * first_extra (embeddings) counts to the first stage, last_extra (output head, tied embeddings) to the last.
 * out has n_stages entries. EINVAL when there are fewer layers than stages.
 */
strata_err plan_even(const uint64_t *layer_bytes, uint32_t n_layers, uint64_t first_extra, uint64_t last_extra,
                     uint32_t n_stages, struct plan_range *out, struct strata_errmsg *em);

#endif
