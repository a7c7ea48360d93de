/* Preflight: what each stage of a cut needs. See pkg_check.h. Owns the lists of parts. */
#include "package/pkg_check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

bool pkg_check_can_divide(struct pkg_check_report *r, uint64_t n_stages) {
    uint32_t layers = r->manifest ? r->manifest->layer_count : 0;
    if (n_stages == 0)
        pkg_faults_add(&r->faults, PKG_FAULT_INVALID_STAGE_COUNT, NULL, "0 stages were asked for");
    else if (r->manifest && n_stages > layers)
        pkg_faults_add(&r->faults, PKG_FAULT_STAGE_COUNT_EXCEEDS_LAYER_COUNT, NULL,
                       "%" PRIu64 " stages were asked for, but the package has %" PRIu32 " layers", n_stages, layers);
    return n_stages > 0 && n_stages <= layers;
}

const char *pkg_check_part_name(const struct pkg_check_report *r, size_t item, char out[PKG_CHECK_NAME]) {
    const struct pkg_artifact *a = r->items[item].artifact;
    if (a->id)
        snprintf(out, PKG_CHECK_NAME, "%s", a->id);
    else if (a->role == PKG_ROLE_LAYER)
        snprintf(out, PKG_CHECK_NAME, "layer:%" PRIu32, a->layer);
    else
        snprintf(out, PKG_CHECK_NAME, "%s", pkg_role_name(a->role));
    return out;
}

static void take(const struct pkg_check_report *r, struct pkg_check_stage *s, size_t item) {
    s->parts[s->n_parts++] = item;
    if (r->items[item].present) s->bytes += r->items[item].actual_bytes;
}

/* needed has room for every item. In reports the output comes last. */
static strata_err fill(const struct pkg_check_report *r, struct pkg_range range, bool *needed,
                       struct pkg_check_stage *s, struct strata_errmsg *em) {
    const struct pkg_carrier *carrier = r->manifest->schema == 2 ? &r->carrier : NULL;
    struct pkg_select select = r->select;
    select.range = range;
    *s = (struct pkg_check_stage){
        .range = range, .embeddings = pkg_select_embeddings(&select), .output = pkg_select_output(&select)};
    s->parts = calloc(r->n_items + 1, sizeof *s->parts);
    if (!s->parts) return err_nomem(em, "a report");
    pkg_carrier_select(carrier, r->manifest, &select, needed);
    for (size_t i = 0; i < r->n_items; i++)
        if (needed[i] && r->items[i].artifact->role != PKG_ROLE_OUTPUT) take(r, s, i);
    for (size_t i = 0; i < r->n_items; i++)
        if (needed[i] && r->items[i].artifact->role == PKG_ROLE_OUTPUT) take(r, s, i);
    size_t *parts = realloc(s->parts, s->n_parts * sizeof *parts);
    if (parts) s->parts = parts; /* many stages of many parts would else take their product */
    return STRATA_OK;
}

strata_err pkg_check_stages(struct pkg_check_report *r, const struct pkg_range *ranges, size_t n,
                            struct strata_errmsg *em) {
    /* A faulty carrier does not tell which parts hold what. */
    if (r->manifest->schema == 2 && !r->carrier.reader) return STRATA_OK;
    bool *needed = calloc(r->n_items + 1, sizeof *needed);
    r->stages = calloc(n + 1, sizeof *r->stages);
    strata_err rc = needed && r->stages ? STRATA_OK : err_nomem(em, "a report");
    for (size_t i = 0; i < n && !rc; i++) {
        rc = fill(r, ranges[i], needed, &r->stages[i], em);
        r->n_stages = i + 1;
    }
    free(needed);
    return rc;
}
