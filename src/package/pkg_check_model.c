/*
 * Preflight: the parts of a package seen together, as one model. See pkg_check.h.
 *
 * Works on what the items remember of their tensors; the files are closed by then, but for the metadata part.
 */
#include "package/pkg_check_priv.h"
#include "package/pkg_generation.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *path_of(const struct pkg_check_report *r, size_t item) {
    const char *path = r->items[item].artifact->path;
    return path ? path : pkg_role_name(r->items[item].artifact->role);
}

/* ---- the list of tensors ---- */

static strata_err reserve(struct pkg_check_report *r, size_t n, struct strata_errmsg *em) {
    r->inv = (struct pkg_inventory){.meta = r->meta.reader, .layer_count = r->manifest->layer_count};
    r->inv.tensors = calloc(n + 1, sizeof *r->inv.tensors);
    return r->inv.tensors ? gguf_index_init(&r->inv.index, n, em) : err_nomem(em, "the list of tensors");
}

/* False when a tensor of this name is there already. Layers that cannot be are left out: they were reported. */
static bool add_tensor(struct pkg_inventory *inv, const struct gguf_tensor *t) {
    struct pkg_tensor x = {.t = t, .class = pkg_class_of(t->name, &x.layer)};
    if (x.class == PKG_CLASS_LAYER && x.layer >= inv->layer_count) return true;
    if (!gguf_index_put(&inv->index, t->name, inv->n_tensors)) return false;
    inv->tensors[inv->n_tensors++] = x;
    return true;
}

/* The owner of each tensor is told by its part, in which no other tensor of its name may be. */
static void add_part(struct pkg_check_report *r, size_t item, size_t *owner) {
    const struct pkg_check_item *it = &r->items[item];
    struct pkg_inventory *inv = &r->inv;
    for (size_t i = 0; i < it->n_tensors; i++) {
        const struct gguf_tensor *t = &it->tensors[i];
        size_t before = inv->n_tensors;
        bool owned = pkg_class_is_owned(pkg_class_of(t->name, NULL)), added = add_tensor(inv, t);
        if (inv->n_tensors > before) owner[before] = item;
        if (!added && owned) {
            size_t other = owner[gguf_index_get(&inv->index, t->name)];
            pkg_faults_add(&r->faults, PKG_FAULT_DUPLICATE_TENSOR, it->artifact->path,
                           "tensor '%s' is in %.200s and in %.200s", t->name, path_of(r, other), path_of(r, item));
        }
        if (added && !owned && item > 0 && r->meta.reader)
            pkg_faults_add(&r->faults, PKG_FAULT_MISSING_TENSOR, path_of(r, 0),
                           "tensor '%s' of %.200s is not in the metadata part, so that other stages would lack it",
                           t->name, path_of(r, item));
    }
}

static strata_err list_schema1(struct pkg_check_report *r, struct strata_errmsg *em) {
    size_t total = 0;
    for (size_t i = 0; i < r->n_items; i++) total += r->items[i].n_tensors;
    size_t *owner = calloc(total + 1, sizeof *owner);
    strata_err rc = owner ? reserve(r, total, em) : err_nomem(em, "the list of tensors");
    for (size_t i = 0; i < r->n_items && !rc; i++) add_part(r, i, owner);
    free(owner);
    return rc;
}

/* ---- schema 2: what the carrier says against what the parts hold ---- */

static strata_err compare_places(struct pkg_check_report *r, struct strata_errmsg *em) {
    size_t n = gguf_reader_tensor_count(r->meta.reader);
    bool *found = calloc(n + 1, sizeof *found);
    if (!found) return err_nomem(em, "the list of tensors");
    for (size_t i = 1; i < r->n_items; i++)
        for (size_t k = 0; k < r->items[i].n_tensors; k++) {
            const struct gguf_tensor *t = &r->items[i].tensors[k];
            size_t at = gguf_index_get(&r->inv.index, t->name);
            if (at == GGUF_INDEX_NONE || r->carrier.places[at].artifact != i) continue;
            found[at] = true;
            pkg_carrier_check_tensor(&r->carrier, r->manifest, at, t, t->offset, &r->faults);
        }
    for (size_t at = 0; at < n; at++) {
        size_t item = r->carrier.places[at].artifact;
        if (!found[at] && r->items[item].opened)
            pkg_faults_add(&r->faults, PKG_FAULT_MISSING_TENSOR, path_of(r, item),
                           "%.200s does not hold tensor '%s', which %.200s places there", path_of(r, item),
                           gguf_reader_tensor(r->meta.reader, at)->name, path_of(r, 0));
    }
    free(found);
    return STRATA_OK;
}

static strata_err list_schema2(struct pkg_check_report *r, struct strata_errmsg *em) {
    const struct gguf_reader *meta = r->meta.reader;
    if (!meta) return reserve(r, 0, em);
    size_t n = gguf_reader_tensor_count(meta), before = r->faults.n_errors;
    strata_err rc = reserve(r, n, em);
    for (size_t i = 0; i < n && !rc; i++) add_tensor(&r->inv, gguf_reader_tensor(meta, i));
    if (!rc) rc = pkg_carrier_init(&r->carrier, meta, r->manifest, &r->faults, em);
    /* Only then is the n-th tensor of the list the n-th of the carrier. */
    if (!rc && r->carrier.reader && r->faults.n_errors == before && r->inv.n_tensors == n) rc = compare_places(r, em);
    return rc;
}

/* ---- facts ---- */

static bool is_complete(const struct pkg_check_report *r) {
    bool all = r->manifest->schema == 1 || r->carrier.reader;
    for (size_t i = 0; i < r->n_items; i++)
        all = all && (r->items[i].opened || !pkg_part_is_fragment(r->items[i].artifact));
    return all;
}

static void survey(struct pkg_check_report *r) {
    struct pkg_inventory *inv = &r->inv;
    pkg_select_init(&r->select, r->manifest->layer_count);
    for (size_t i = 0; i < inv->n_tensors; i++) pkg_select_note(&r->select, inv->tensors[i].t->name);
    r->complete = is_complete(r);
    /* An output part that could not be read may hold output.weight: nothing is claimed then. */
    if (r->manifest->schema == 1 && !r->items[PKG_ROLE_OUTPUT].opened) r->select.tied = false;
    inv->tied = r->select.tied;
    while (inv->mtp_layers < inv->layer_count && pkg_select_is_mtp(&r->select, inv->layer_count - 1 - inv->mtp_layers))
        inv->mtp_layers++;
}

/* What the metadata part says about the whole model, beside what the manifest says. */
static void compare_metadata(struct pkg_check_report *r) {
    const struct pkg_manifest *m = r->manifest;
    struct strata_errmsg why;
    char key[128];
    uint64_t width = 0, blocks = 0;
    if (pkg_inventory_key(&r->inv, "embedding_length", key, sizeof key, &why)) {
        pkg_faults_add(&r->faults, PKG_FAULT_ARCHITECTURE_MISMATCH, path_of(r, 0), "%s", why.text);
        return;
    }
    if (m->activation_width && gguf_reader_get_u64(r->inv.meta, key, true, &width, &why) == STRATA_OK &&
        width != m->activation_width)
        pkg_faults_add(&r->faults, PKG_FAULT_ACTIVATION_WIDTH_MISMATCH, path_of(r, 0),
                       "activation_width is %" PRIu32 ", but %s is %" PRIu64, m->activation_width, key, width);
    if (pkg_inventory_key(&r->inv, "block_count", key, sizeof key, &why) == STRATA_OK &&
        gguf_reader_get_u64(r->inv.meta, key, true, &blocks, &why) == STRATA_OK && blocks != m->layer_count)
        pkg_faults_add(&r->faults, PKG_FAULT_LAYER_COUNT_MISMATCH, path_of(r, 0),
                       "layer_count is %" PRIu32 ", but %s is %" PRIu64, m->layer_count, key, blocks);
}

/* One warning for all: an older writer left the keys out of every part. */
static void check_slice_keys(struct pkg_check_report *r) {
    size_t n = 0, first = 0;
    for (size_t i = r->n_items; i-- > 0;) {
        const struct pkg_check_item *it = &r->items[i];
        if (!it->opened || it->has_slice_keys || !pkg_part_is_fragment(it->artifact)) continue;
        first = i;
        n++;
    }
    if (n > 0 && r->manifest->schema == 1)
        pkg_faults_add(&r->faults, PKG_FAULT_MISSING_SLICE_KEYS, path_of(r, first),
                       "%zu file%s (the first is %.200s) do%s not say which part of the model %s", n, n == 1 ? "" : "s",
                       path_of(r, first), n == 1 ? "es" : "", n == 1 ? "it is" : "they are");
}

strata_err pkg_check_model(struct pkg_check_report *r, struct strata_errmsg *em) {
    strata_err rc = r->manifest->schema == 1 ? list_schema1(r, em) : list_schema2(r, em);
    if (rc) return rc;
    survey(r);
    check_slice_keys(r);
    if (!r->meta.reader) return STRATA_OK;
    compare_metadata(r);
    if (!r->complete || !r->manifest->generation) return STRATA_OK;
    return pkg_generation_check_tensors(r->manifest->generation, &r->inv, &r->faults, em);
}
