/*
 * The cut of a model over stages, as numbers: contiguous layer ranges that are even in bytes, or in count.
 * Pure functions.
 */
#ifndef PLAN_CUT_H
#define PLAN_CUT_H

#include "base/err.h"
#include "package/pkg_select.h" /* struct pkg_range */

#include <stdint.h>

struct plan_range {
    uint32_t first, end; /* half-open, never empty */
    uint64_t bytes;      /* of the layers, with what the first and the last stage load besides */
};

/* What there is to divide. */
struct plan_load {
    const uint64_t *layer_bytes; /* view; n_layers entries */
    uint32_t n_layers;
    uint32_t n_trunk;     /* the layers from here on (MTP layers) stay with the layer before them; n_layers: none do */
    uint64_t first_extra; /* embeddings: counts to the first stage */
    uint64_t last_extra;  /* output head, tied embeddings: counts to the last stage */
    uint64_t shared;      /* part of both extras, which a stage that is first and last loads once */
};

/*
 * Cuts so that the largest stage is as small as it can be; among such cuts, the one with the least sum of squares,
 * which is the most even one; among equal ones, the one whose later stages start earliest. out has n_stages entries.
 * EINVAL when there are fewer trunk layers than stages, EFORMAT when the sizes add up to more than 63 bits, ELIMIT when
 * the table of the search would be too large (far above any real model).
 */
strata_err plan_bytes(const struct plan_load *load, uint32_t n_stages, struct plan_range *out,
                      struct strata_errmsg *em);

/*
 * Cuts by the number of layers alone: each stage gets n_layers / n_stages of them, and the first n_layers % n_stages
 * stages one more. out has n_stages entries. EINVAL when there are fewer layers than stages, or no stage.
 */
strata_err plan_count(uint32_t n_layers, uint32_t n_stages, struct pkg_range *out, struct strata_errmsg *em);

#endif
