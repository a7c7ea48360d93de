/*
 * Even cuts. See plan.h.
 *
 * Dynamic programming over (stages, layers): best[k][e] is the least pair (largest stage, sum of squares) with which
 * the first k stages can hold the first e layers. The squares, as doubles, only break ties: 64 stages x 4096^2 steps at
 * most.
 */
#include "serve/plan.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

struct cell {
    uint64_t largest;
    double squares;
    uint32_t from; /* where the last of these stages starts */
    int reachable;
};

static int better(uint64_t largest, double squares, const struct cell *than) {
    if (!than->reachable || largest != than->largest) return !than->reachable || largest < than->largest;
    return squares < than->squares;
}

static strata_err prefix_sums(const uint64_t *bytes, uint32_t n, uint64_t first_extra, uint64_t last_extra,
                              uint64_t *sums, struct strata_errmsg *em) {
    uint64_t total;
    sums[0] = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!checked_add(sums[i], bytes[i], &sums[i + 1])) goto bad;
    if (!checked_add(sums[n], first_extra, &total) || !checked_add(total, last_extra, &total)) goto bad;
    return STRATA_OK;
bad:
    return err_set(em, STRATA_EFORMAT, "the layers are larger in sum than any machine");
}

/* Fills row k (1-based) of the table from row k - 1. */
static void fill_row(const struct cell *prev, struct cell *row, uint32_t k, uint32_t n_stages, uint32_t n,
                     const uint64_t *sums, uint64_t first_extra, uint64_t last_extra) {
    uint64_t extra = (k == 1 ? first_extra : 0) + (k == n_stages ? last_extra : 0);
    /* Every stage after this one needs a layer, too. */
    uint32_t hi = n - (n_stages - k);
    for (uint32_t e = k == n_stages ? n : k; e <= hi; e++) {
        row[e] = (struct cell){0};
        for (uint32_t s = k - 1; s < e; s++) {
            if (!prev[s].reachable) continue;
            uint64_t mine = sums[e] - sums[s] + extra;
            uint64_t largest = mine > prev[s].largest ? mine : prev[s].largest;
            double squares = prev[s].squares + (double)mine * (double)mine;
            if (better(largest, squares, &row[e]))
                row[e] = (struct cell){.largest = largest, .squares = squares, .from = s, .reachable = 1};
        }
    }
}

strata_err plan_even(const uint64_t *layer_bytes, uint32_t n_layers, uint64_t first_extra, uint64_t last_extra,
                     uint32_t n_stages, struct plan_range *out, struct strata_errmsg *em) {
    if (n_stages == 0 || n_stages > n_layers)
        return err_set(em, STRATA_EINVAL, "a model of %u layers can be cut into 1 to %u stages, not %u", n_layers,
                       n_layers, n_stages);
    strata_err rc = STRATA_OK;
    size_t width = (size_t)n_layers + 1;
    uint64_t *sums = calloc(width, sizeof *sums);
    struct cell *table = calloc(width * ((size_t)n_stages + 1), sizeof *table);
    if (!sums || !table) {
        rc = err_nomem(em, "the plan");
        goto out;
    }
    rc = prefix_sums(layer_bytes, n_layers, first_extra, last_extra, sums, em);
    if (rc) goto out;
    table[0].reachable = 1;
    for (uint32_t k = 1; k <= n_stages; k++)
        fill_row(table + width * (k - 1), table + width * k, k, n_stages, n_layers, sums, first_extra, last_extra);
    uint32_t end = n_layers;
    for (uint32_t k = n_stages; k >= 1; k--) {
        uint32_t from = table[width * k + end].from;
        uint64_t extra = (k == 1 ? first_extra : 0) + (k == n_stages ? last_extra : 0);
        out[k - 1] = (struct plan_range){.first = from, .end = end, .bytes = sums[end] - sums[from] + extra};
        end = from;
    }
out:
    free(sums);
    free(table);
    return rc;
}
