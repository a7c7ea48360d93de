/*
 * Whether weights, states and results are numbers.
 *
 * A quantized block cannot hold a NaN but in its factors, so that these alone are looked at: a fraction of the bytes.
 */
#ifndef MODEL_NUMBERS_H
#define MODEL_NUMBERS_H

#include "base/err.h"
#include "base/progress.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether all values of a tensor's bytes, whole blocks of a tensor type that ggml knows, are finite. */
bool model_numbers_finite(uint32_t type, const void *data, size_t bytes);

struct model_numbers {
    const char *name;
    uint32_t type;
    const void *data;
    size_t bytes;
    unsigned passes; /* for which a look counts in the progress */
};

/* Looks at n tensors with up to `threads` threads; *bad is the first one that holds something else than numbers, in the
 * order given, or NULL. Adds their passes to `progress`, unless it is NULL. Fails only for want of memory. */
strata_err model_numbers_check(const struct model_numbers *t, size_t n, unsigned threads, struct progress *progress,
                               const struct model_numbers **bad, struct strata_errmsg *em);

#endif
