/* What each stage of a cut loads. See plan_stages.h. */
#include "plan/plan_stages.h"

#include "base/checked.h"
#include "package/pkg_cut.h"

#include <stdlib.h>

struct work {
    const struct pkg_inventory *inv;
    struct pkg_select sel; /* knows every tensor; its range changes */
    uint64_t *layer_bytes;
    struct plan_load load;
};

/* ---- what there is to divide ---- */

static bool needs(struct work *w, struct pkg_range range, const struct pkg_tensor *x) {
    w->sel.range = range;
    return pkg_select_tensor(&w->sel, x->t->name);
}

/* Sizes cannot wrap: payloads of one file do not overlap, and the sum over all files is checked here. */
static strata_err survey(struct work *w, struct strata_errmsg *em) {
    const struct pkg_inventory *inv = w->inv;
    struct plan_load *l = &w->load;
    uint64_t total = 0;
    uint32_t mtp = inv->mtp_layers < inv->layer_count ? inv->mtp_layers : inv->layer_count - 1;
    *l = (struct plan_load){
        .layer_bytes = w->layer_bytes, .n_layers = inv->layer_count, .n_trunk = inv->layer_count - mtp};
    const struct pkg_range first = {0, 1}, last = {l->n_trunk - 1, l->n_layers};
    for (size_t i = 0; i < inv->n_tensors; i++) {
        const struct pkg_tensor *x = &inv->tensors[i];
        if (!checked_add(total, x->t->bytes, &total) || total > INT64_MAX / 4)
            return err_set(em, STRATA_EFORMAT, "%s: its tensors are larger in sum than any machine",
                           gguf_reader_name(inv->meta));
        if (x->class == PKG_CLASS_LAYER) w->layer_bytes[x->layer] += x->t->bytes;
        if (x->class == PKG_CLASS_LAYER || !pkg_class_is_owned(x->class)) continue;
        bool in_first = needs(w, first, x), in_last = needs(w, last, x);
        if (in_first) l->first_extra += x->t->bytes;
        if (in_last) l->last_extra += x->t->bytes;
        if (in_first && in_last) l->shared += x->t->bytes;
    }
    return STRATA_OK;
}

/* ---- ranges ---- */

static strata_err cut(const struct work *w, enum plan_by by, uint32_t n, struct pkg_range *out,
                      struct strata_errmsg *em) {
    if (by == PLAN_BY_COUNT) return plan_count(w->load.n_layers, n, out, em);
    size_t room = n < w->load.n_layers ? n : w->load.n_layers; /* more are refused before anything is put there */
    struct plan_range *cuts = calloc(room + 1, sizeof *cuts);
    if (!cuts) return err_nomem(em, "the plan");
    strata_err rc = plan_bytes(&w->load, n, cuts, em);
    for (uint32_t i = 0; i < n && !rc; i++) out[i] = (struct pkg_range){.first = cuts[i].first, .end = cuts[i].end};
    free(cuts);
    return rc;
}

/* ---- what each stage loads ---- */

static void add_to(struct work *w, struct plan_stage *s, const struct pkg_tensor *x) {
    struct pkg_slice slice = {.range = s->range, .embeddings = s->embeddings, .output = s->output};
    uint64_t bytes = x->t->bytes;
    if (pkg_slice_holds(&slice, x->t->name, x->class, x->layer)) {
        s->tensor_count++;
        s->tensor_bytes += bytes;
    }
    if (!needs(w, s->range, x)) return;
    s->loaded_count++;
    s->loaded_bytes += bytes;
    switch (x->class) {
    case PKG_CLASS_LAYER: s->layer_bytes += bytes; break;
    case PKG_CLASS_EMBEDDING: s->embedding_bytes += bytes; break;
    case PKG_CLASS_FINAL_NORM:
    case PKG_CLASS_OUTPUT: s->output_bytes += bytes; break;
    default: s->replicated_bytes += bytes; break;
    }
}

/* Fills one entry for each range. A layer's tensors are asked for in the stage that holds the layer alone: no other can
 * need them, and models have thousands. */
static strata_err load_stages(struct work *w, const struct pkg_range *ranges, uint32_t n, struct plan_stage *list,
                              struct strata_errmsg *em) {
    const struct pkg_inventory *inv = w->inv;
    uint32_t *stage_of = calloc(inv->layer_count, sizeof *stage_of);
    if (!stage_of) return err_nomem(em, "the plan");
    for (uint32_t i = 0; i < n; i++) {
        list[i] = (struct plan_stage){.range = ranges[i], .embeddings = i == 0, .output = i == n - 1};
        for (uint32_t k = ranges[i].first; k < ranges[i].end; k++) stage_of[k] = i;
    }
    for (size_t t = 0; t < inv->n_tensors; t++) {
        const struct pkg_tensor *x = &inv->tensors[t];
        bool layer = x->class == PKG_CLASS_LAYER;
        uint32_t from = layer ? stage_of[x->layer] : 0, to = layer ? from : n - 1;
        for (uint32_t i = from; i <= to; i++) add_to(w, &list[i], x);
    }
    free(stage_of);
    return STRATA_OK;
}

static uint64_t largest_of(const struct plan_stage *list, uint32_t n) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < n; i++)
        if (list[i].loaded_bytes > most) most = list[i].loaded_bytes;
    return most;
}

/* What the other way to cut would give; not being possible is no failure. */
static strata_err compare(struct work *w, struct plan_stages *p, struct pkg_range *ranges, struct plan_stage *room,
                          struct strata_errmsg *em) {
    struct strata_errmsg why;
    strata_err rc = cut(w, p->by == PLAN_BY_BYTES ? PLAN_BY_COUNT : PLAN_BY_BYTES, p->n, ranges, &why);
    if (rc == STRATA_ENOMEM) return err_nomem(em, "the plan");
    if (rc) return STRATA_OK;
    rc = load_stages(w, ranges, p->n, room, em);
    if (rc) return rc;
    p->has_other = true;
    p->other_largest = largest_of(room, p->n);
    return STRATA_OK;
}

static void describe(const struct work *w, struct plan_stages *p) {
    const struct pkg_inventory *inv = w->inv;
    p->layer_count = inv->layer_count;
    p->mtp_layers = inv->mtp_layers;
    p->tied = w->sel.tied;
    p->mtp_borrows = (w->sel.mtp & ~w->sel.mtp_own) != 0;
    p->largest = largest_of(p->list, p->n);
    for (uint32_t i = 0; i < p->n; i++)
        if (!checked_add(p->total_bytes, p->list[i].loaded_bytes, &p->total_bytes)) p->total_bytes = UINT64_MAX;
}

strata_err plan_stages_make(const struct pkg_inventory *inv, const char *name, uint32_t n_stages, enum plan_by by,
                            struct plan_stages *out, struct strata_errmsg *em) {
    struct work w = {.inv = inv};
    struct plan_stages p = {.by = by, .n = n_stages};
    struct pkg_range all = {0, PKG_RANGE_ALL}, *ranges = NULL;
    struct plan_stage *room = NULL;
    pkg_select_init(&w.sel, inv->layer_count);
    for (size_t i = 0; i < inv->n_tensors; i++) pkg_select_note(&w.sel, inv->tensors[i].t->name);
    strata_err rc = pkg_select_resolve(all, inv->layer_count, name, &w.sel.range, em);
    if (rc) return rc;
    /* As in cut. */
    size_t n = n_stages < inv->layer_count ? n_stages : inv->layer_count;
    w.layer_bytes = calloc(inv->layer_count, sizeof *w.layer_bytes);
    ranges = calloc(n + 1, sizeof *ranges);
    p.list = calloc(n + 1, sizeof *p.list);
    room = calloc(n + 1, sizeof *room);
    rc = w.layer_bytes && ranges && p.list && room ? survey(&w, em) : err_nomem(em, "the plan");
    if (!rc) rc = cut(&w, by, n_stages, ranges, em);
    if (!rc) rc = load_stages(&w, ranges, n_stages, p.list, em);
    if (!rc) rc = compare(&w, &p, ranges, room, em);
    if (rc) goto out;
    describe(&w, &p);
    *out = p;
    p.list = NULL;
out:
    plan_stages_deinit(&p);
    free(w.layer_bytes);
    free(ranges);
    free(room);
    return rc;
}

void plan_stages_deinit(struct plan_stages *p) {
    if (!p) return;
    free(p->list);
    *p = (struct plan_stages){0};
}

double plan_stages_balance(const struct plan_stages *p) {
    return p->total_bytes ? (double)p->largest * p->n / (double)p->total_bytes : 1;
}
