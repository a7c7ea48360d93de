/*
 * Even cuts. See plan_cut.h.
 *
 * The layers that must stay together count as one unit. Two steps:
 *
 * 1. The least possible size of the largest stage, by bisection: whether a bound can be kept is found by filling stages
 *    greedily. (With fewer stages than asked for it can be kept as well: dividing a stage makes none larger.)
 * 2. Under that bound, the least sum of squares by dynamic programming over (stages, units): least[k][e] is the least
 *    sum with which k stages hold the first e units. The square of a stage's bytes obeys the quadrangle inequality, and
 *    both ends of the window of allowed starts rise with e, so the best start rises with e too. Hence the middle e of a
 *    row halves the search of all others: O(stages x units x log units) instead of O(stages x units^2).
 *
 * Sums are below 2^63, so a sum of their squares is below 2^126: exact in 128 bits.
 */
#include "plan/plan_cut.h"

#include "base/checked.h"

#include <stdbool.h>
#include <stdlib.h>

__extension__ typedef unsigned __int128 u128;

enum { TABLE_MAX = 1 << 24 }; /* entries of the table of starts: 64 MiB */

struct search {
    uint32_t n, k;       /* units, stages */
    const uint64_t *sum; /* n + 1 prefix sums of the units' bytes, the extras included */
    uint64_t bound;      /* of the largest stage */
    uint32_t *lo;        /* lo[e]: the first start from which a stage may reach to e */
    uint32_t *hi;        /* hi[j]: how many units j stages can hold at most */
    u128 *prev, *row;    /* least[j - 1] and least[j], by end */
    uint32_t *from;      /* (k + 1) rows: where the last of j stages that hold the first e units starts */
    uint32_t width;      /* of such a row; its first entry is for e = j */
};

/* ---- the least bound ---- */

/* Whether k stages of at most `bound` bytes can hold everything. */
static bool bound_holds(const struct search *s, uint64_t bound) {
    uint32_t stages = 1, start = 0;
    for (uint32_t e = 1; e <= s->n; e++) {
        if (s->sum[e] - s->sum[start] <= bound) continue;
        start = e - 1;
        if (++stages > s->k || s->sum[e] - s->sum[start] > bound) return false;
    }
    return true;
}

static uint64_t least_bound(const struct search *s) {
    uint64_t low = 0, high = s->sum[s->n];
    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        if (bound_holds(s, mid))
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

/* ---- the most even cut under it ---- */

static void find_windows(struct search *s) {
    uint32_t start = 0;
    for (uint32_t e = 1; e <= s->n; e++) {
        while (s->sum[e] - s->sum[start] > s->bound) start++;
        s->lo[e] = start;
    }
    s->hi[0] = 0;
    for (uint32_t j = 1; j <= s->k; j++) {
        uint32_t e = s->hi[j - 1];
        while (e < s->n && s->lo[e + 1] <= s->hi[j - 1]) e++;
        s->hi[j] = e;
    }
}

static uint32_t *from_at(const struct search *s, uint32_t j, uint32_t e) {
    return &s->from[(size_t)j * s->width + (e - j)];
}

/* The best start for e, which lies in [a, b], and the least sum. */
static uint32_t best_start(const struct search *s, uint32_t j, uint32_t e, uint32_t a, uint32_t b) {
    uint32_t first = a > s->lo[e] ? a : s->lo[e], last = b < e - 1 ? b : e - 1, best = first;
    for (uint32_t i = first; i <= last; i++) {
        u128 mine = s->sum[e] - s->sum[i], total = s->prev[i] + mine * mine;
        if (i > first && total >= s->row[e]) continue;
        s->row[e] = total;
        best = i;
    }
    *from_at(s, j, e) = best;
    return best;
}

/* Fills row j for the ends in [e0, e1], whose best starts lie in [a, b]. The recursion is as deep as log2 of the row.
 */
static void fill_row(const struct search *s, uint32_t j, uint32_t e0, uint32_t e1, uint32_t a, uint32_t b) {
    while (e0 <= e1) {
        uint32_t mid = e0 + (e1 - e0) / 2;
        uint32_t best = best_start(s, j, mid, a, b);
        if (mid > e0) fill_row(s, j, e0, mid - 1, a, best);
        e0 = mid + 1;
        a = best;
    }
}

static void fill_table(struct search *s) {
    s->prev[0] = 0;
    for (uint32_t j = 1; j <= s->k; j++) {
        /* Every stage after this one needs a unit, too. The last row matters for its last end alone. */
        uint32_t last = s->n - (s->k - j), end = s->hi[j] < last ? s->hi[j] : last;
        fill_row(s, j, j == s->k ? s->n : j, end, j - 1, s->hi[j - 1]);
        u128 *swap = s->prev;
        s->prev = s->row;
        s->row = swap;
    }
}

/* ---- a cut ---- */

/* Prefix sums of the units: the layers before the last trunk layer, and that layer with all that stay with it. */
static strata_err sum_units(const struct plan_load *l, uint32_t n, uint64_t *sum, struct strata_errmsg *em) {
    uint64_t total = l->first_extra;
    bool fits = true;
    sum[0] = 0;
    for (uint32_t i = 0; fits && i < l->n_layers; i++) {
        fits = checked_add(total, l->layer_bytes[i], &total);
        sum[i < n ? i + 1 : n] = total;
    }
    fits = fits && checked_add(total, l->last_extra, &sum[n]) && sum[n] <= INT64_MAX;
    return fits ? STRATA_OK : err_set(em, STRATA_EFORMAT, "the layers are larger in sum than any machine");
}

static strata_err check_stages(const struct plan_load *l, uint32_t n_stages, struct strata_errmsg *em) {
    uint32_t n = l->n_trunk;
    if (n_stages >= 1 && n_stages <= n) return STRATA_OK;
    if (n == l->n_layers)
        return err_set(em, STRATA_EINVAL, "a model of %u layers can be cut into 1 to %u stages, not %u", n, n,
                       n_stages);
    return err_set(
        em, STRATA_EINVAL,
        "a model of %u layers, of which the last %u (MTP) stay with the one before them, can be cut into 1 to "
        "%u stages, not %u",
        l->n_layers, l->n_layers - n, n, n_stages);
}

static strata_err search_init(struct search *s, struct strata_errmsg *em) {
    s->width = s->n - s->k + 1;
    size_t rows = (size_t)s->k + 1, ends = (size_t)s->n + 1;
    if (rows > TABLE_MAX / s->width)
        return err_set(em, STRATA_ELIMIT, "%u layers over %u stages are too many to be cut by bytes", s->n, s->k);
    s->lo = calloc(ends, sizeof *s->lo);
    s->hi = calloc(rows, sizeof *s->hi);
    s->prev = calloc(ends, sizeof *s->prev);
    s->row = calloc(ends, sizeof *s->row);
    s->from = calloc(rows * s->width, sizeof *s->from);
    return s->lo && s->hi && s->prev && s->row && s->from ? STRATA_OK : err_nomem(em, "the plan");
}

static void search_deinit(struct search *s) {
    free(s->lo);
    free(s->hi);
    free(s->prev);
    free(s->row);
    free(s->from);
}

strata_err plan_bytes(const struct plan_load *load, uint32_t n_stages, struct plan_range *out,
                      struct strata_errmsg *em) {
    struct search s = {.n = load->n_trunk, .k = n_stages};
    uint64_t *sum = NULL;
    strata_err rc = check_stages(load, n_stages, em);
    if (rc) return rc;
    sum = calloc((size_t)s.n + 1, sizeof *sum);
    rc = sum ? sum_units(load, s.n, sum, em) : err_nomem(em, "the plan");
    if (rc) goto out;
    s.sum = sum;
    if (n_stages == 1) {
        uint64_t once = load->shared < sum[s.n] ? load->shared : sum[s.n];
        out[0] = (struct plan_range){.first = 0, .end = load->n_layers, .bytes = sum[s.n] - once};
        goto out;
    }
    rc = search_init(&s, em);
    if (rc) goto out;
    s.bound = least_bound(&s);
    find_windows(&s);
    fill_table(&s);
    uint32_t end = s.n;
    for (uint32_t j = n_stages; j >= 1; j--) {
        uint32_t from = *from_at(&s, j, end);
        out[j - 1] = (struct plan_range){.first = from, .end = end, .bytes = sum[end] - sum[from]};
        end = from;
    }
    out[n_stages - 1].end = load->n_layers;
out:
    search_deinit(&s);
    free(sum);
    return rc;
}

strata_err plan_count(uint32_t n_layers, uint32_t n_stages, struct pkg_range *out, struct strata_errmsg *em) {
    if (n_stages == 0 || n_stages > n_layers)
        return err_set(em, STRATA_EINVAL, "a model of %u layers can be cut into 1 to %u stages, not %u", n_layers,
                       n_layers, n_stages);
    uint32_t base = n_layers / n_stages, more = n_layers % n_stages, at = 0;
    for (uint32_t i = 0; i < n_stages; i++) {
        uint32_t size = base + (i < more);
        out[i] = (struct pkg_range){.first = at, .end = at + size};
        at += size;
    }
    return STRATA_OK;
}
