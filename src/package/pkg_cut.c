/*
 * Cuts of schema 1: packages, stage files, single slices. See pkg_cut.h.
 *
 * Owns the lists of tensors. Refuses models that cannot be cut by layer: none, or with gaps.
 */
#include "package/pkg_cut.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- lists of tensors ---- */

/* Tensors sorted by layer, by counting, so that a slice finds those of its layers without a look at all others. */
struct by_layer {
    size_t *order;   /* indices into the inventory: first those of no layer, then layer by layer */
    size_t *start;   /* layer_count + 1 places in order */
    size_t n_others; /* tensors of no layer */
};

static void by_layer_deinit(struct by_layer *s) {
    free(s->order);
    free(s->start);
}

static strata_err by_layer_init(struct by_layer *s, const struct pkg_inventory *inv, struct strata_errmsg *em) {
    *s = (struct by_layer){.order = calloc(inv->n_tensors + 1, sizeof *s->order),
                           .start = calloc((size_t)inv->layer_count + 2, sizeof *s->start)};
    if (!s->order || !s->start) {
        by_layer_deinit(s);
        return err_nomem(em, "the list of tensors");
    }
    for (size_t i = 0; i < inv->n_tensors; i++)
        if (inv->tensors[i].class == PKG_CLASS_LAYER)
            s->start[inv->tensors[i].layer + 1]++;
        else
            s->order[s->n_others++] = i;
    s->start[0] = s->n_others;
    for (uint32_t l = 0; l < inv->layer_count; l++) s->start[l + 1] += s->start[l];
    /* Filling moves each start to its end, which is the next one's start: shift back afterwards. */
    for (size_t i = 0; i < inv->n_tensors; i++)
        if (inv->tensors[i].class == PKG_CLASS_LAYER) s->order[s->start[inv->tensors[i].layer]++] = i;
    for (uint32_t l = inv->layer_count; l > 0; l--) s->start[l] = s->start[l - 1];
    s->start[0] = s->n_others;
    return STRATA_OK;
}

static int by_index(const void *a, const void *b) {
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* The tensors of a slice in source order, into out (when not NULL). Returns their number. */
static size_t list_slice(const struct pkg_inventory *inv, const struct by_layer *s, const struct pkg_slice *slice,
                         size_t *out) {
    size_t n = 0;
    for (size_t i = 0; i < s->n_others; i++) {
        const struct pkg_tensor *x = &inv->tensors[s->order[i]];
        if (!pkg_slice_holds(slice, x->t->name, x->class, 0)) continue;
        if (out) out[n] = s->order[i];
        n++;
    }
    uint32_t end = slice->range.end < inv->layer_count ? slice->range.end : inv->layer_count;
    if (slice->range.first < end) {
        size_t from = s->start[slice->range.first], count = s->start[end] - from;
        if (out) memcpy(out + n, s->order + from, count * sizeof *out);
        n += count;
    }
    if (out) qsort(out, n, sizeof *out, by_index);
    return n;
}

/* Fills the pieces' lists from their slices. */
static strata_err list_pieces(struct pkg_cut *c, struct strata_errmsg *em) {
    struct by_layer sorted;
    size_t total = 0;
    strata_err rc = by_layer_init(&sorted, c->inv, em);
    if (rc) return rc;
    for (size_t i = 0; i < c->n_pieces; i++) {
        c->pieces[i].n_tensors = list_slice(c->inv, &sorted, &c->pieces[i].slice, NULL);
        total += c->pieces[i].n_tensors;
    }
    c->tensors = calloc(total + 1, sizeof *c->tensors);
    if (!c->tensors) rc = err_nomem(em, "the list of tensors");
    size_t *at = c->tensors;
    for (size_t i = 0; i < c->n_pieces && !rc; i++) {
        list_slice(c->inv, &sorted, &c->pieces[i].slice, at);
        c->pieces[i].tensors = at;
        at += c->pieces[i].n_tensors;
    }
    by_layer_deinit(&sorted);
    return rc;
}

/* ---- the makers ---- */

strata_err pkg_cut_check_layers(const struct pkg_inventory *inv, struct strata_errmsg *em) {
    const char *name = gguf_reader_name(inv->meta);
    if (inv->layer_count == 0)
        return err_set(em, STRATA_EUNSUPPORTED, "%s has no transformer layers (no tensor is named blk.N...)", name);
    bool *seen = calloc(inv->layer_count, sizeof *seen);
    if (!seen) return err_nomem(em, "the list of layers");
    for (size_t i = 0; i < inv->n_tensors; i++)
        if (inv->tensors[i].class == PKG_CLASS_LAYER) seen[inv->tensors[i].layer] = true;
    uint32_t gap = 0;
    while (gap < inv->layer_count && seen[gap]) gap++;
    free(seen);
    if (gap < inv->layer_count)
        return err_set(em, STRATA_EFORMAT,
                       "%s has no tensor of layer %" PRIu32 ", though it has %" PRIu32 " layers: it cannot be cut",
                       name, gap, inv->layer_count);
    if (!pkg_inventory_find(inv, "token_embd.weight"))
        return err_set(em, STRATA_EFORMAT, "%s has no tensor token_embd.weight, so no stage could read tokens", name);
    return STRATA_OK;
}

static void set_shared(struct pkg_piece *p, enum pkg_role role, uint32_t layer_count) {
    static const char *const paths[] = {"shared/metadata.gguf", "shared/embeddings.gguf", "shared/output.gguf"};
    p->role = role;
    snprintf(p->path, sizeof p->path, "%s", paths[role]);
    uint32_t at = role == PKG_ROLE_OUTPUT ? layer_count : 0;
    p->slice = (struct pkg_slice){.stage_index = (uint32_t)role,
                                  .range = {at, at},
                                  .embeddings = role == PKG_ROLE_EMBEDDINGS,
                                  .output = role == PKG_ROLE_OUTPUT};
}

static void set_layer(struct pkg_piece *p, uint32_t layer) {
    enum { FIRST_LAYER_INDEX = 1000 }; /* what readers of schema 1 expect of layer files */
    p->role = PKG_ROLE_LAYER;
    p->layer = layer;
    snprintf(p->path, sizeof p->path, "layers/layer-%05" PRIu32 ".gguf", layer);
    p->slice = (struct pkg_slice){.stage_index = FIRST_LAYER_INDEX + layer, .range = {layer, layer + 1}};
}

strata_err pkg_cut_package(const struct pkg_inventory *inv, struct pkg_cut *out, struct strata_errmsg *em) {
    struct pkg_cut c = {.inv = inv, .schema = 1};
    strata_err rc = pkg_cut_check_layers(inv, em);
    if (rc) return rc;
    c.n_pieces = PKG_SHARED_COUNT + (size_t)inv->layer_count;
    c.pieces = calloc(c.n_pieces, sizeof *c.pieces);
    if (!c.pieces) return err_nomem(em, "the list of files");
    for (size_t i = 0; i < c.n_pieces; i++)
        if (i < PKG_SHARED_COUNT)
            set_shared(&c.pieces[i], (enum pkg_role)i, inv->layer_count);
        else
            set_layer(&c.pieces[i], (uint32_t)(i - PKG_SHARED_COUNT));
    rc = list_pieces(&c, em);
    if (rc)
        pkg_cut_deinit(&c);
    else
        *out = c;
    return rc;
}

strata_err pkg_cut_slices(const struct pkg_inventory *inv, const struct pkg_slice *slices, const char *const *paths,
                          size_t n, struct pkg_cut *out, struct strata_errmsg *em) {
    struct pkg_cut c = {.inv = inv, .schema = 1, .n_pieces = n};
    c.pieces = calloc(n ? n : 1, sizeof *c.pieces);
    if (!c.pieces) return err_nomem(em, "the list of files");
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < n && !rc; i++) {
        c.pieces[i].role = PKG_ROLE_LAYER;
        c.pieces[i].slice = slices[i];
        int len = snprintf(c.pieces[i].path, sizeof c.pieces[i].path, "%s", paths[i]);
        if (len < 0 || (size_t)len >= sizeof c.pieces[i].path)
            rc = err_set(em, STRATA_ELIMIT, "file name too long: %.100s", paths[i]);
    }
    if (!rc) rc = list_pieces(&c, em);
    if (rc)
        pkg_cut_deinit(&c);
    else
        *out = c;
    return rc;
}

void pkg_cut_deinit(struct pkg_cut *c) {
    if (!c) return;
    free(c->pieces);
    free(c->tensors);
    *c = (struct pkg_cut){0};
}

/* ---- one piece as a file ---- */

/*
 * Keys that are not copied: those that would make the file a member of a split set, and what a source that was itself
 * a slice or a merged file says about itself.
 */
static bool is_dropped(const char *key) {
    return strncmp(key, "split.", 6) == 0 || strncmp(key, "skippy.slice.", 13) == 0 ||
           strncmp(key, "skippy.package.", 15) == 0;
}

/* A slim piece carries what a reader needs to know that it is a GGUF file of this model. */
static bool is_slim_key(const char *key) {
    return strcmp(key, "general.architecture") == 0 || strcmp(key, "general.alignment") == 0;
}

/*
 * The source's pairs in their order. general.alignment keeps its place; a source without it (it is 32 then) gets it
 * after its own, so that a recomposed file has the source's keys in the source's order.
 */
static strata_err add_metadata(const struct pkg_cut *c, const struct pkg_piece *p, struct gguf_writer *w,
                               struct strata_errmsg *em) {
    const struct gguf_reader *meta = c->inv->meta;
    bool slim = c->slim && p->role != PKG_ROLE_METADATA;
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < gguf_reader_kv_count(meta) && !rc; i++) {
        const struct gguf_kv *kv = gguf_reader_kv(meta, i);
        if (is_dropped(kv->key) || (slim && !is_slim_key(kv->key))) continue;
        rc = gguf_writer_copy_kv(w, kv, em);
    }
    if (!rc && !gguf_reader_find_kv(meta, "general.alignment"))
        rc = gguf_writer_add_u32(w, "general.alignment", gguf_reader_alignment(meta), em);
    return rc;
}

/* What a reader of schema 1 expects to find in each fragment about its place. */
static strata_err add_slice_keys(const struct pkg_slice *s, struct gguf_writer *w, struct strata_errmsg *em) {
    strata_err rc = gguf_writer_add_i32(w, "skippy.slice.stage_index", (int32_t)s->stage_index, em);
    if (!rc) rc = gguf_writer_add_i32(w, "skippy.slice.layer_start", (int32_t)s->range.first, em);
    if (!rc) rc = gguf_writer_add_i32(w, "skippy.slice.layer_end", (int32_t)s->range.end, em);
    if (!rc) rc = gguf_writer_add_bool(w, "skippy.slice.include_embeddings", s->embeddings, em);
    if (!rc) rc = gguf_writer_add_bool(w, "skippy.slice.include_output", s->output, em);
    return rc;
}

bool pkg_cut_is_header_only(const struct pkg_cut *c, size_t i) {
    return c->schema == 2 && c->pieces[i].role == PKG_ROLE_METADATA;
}

strata_err pkg_cut_writer(const struct pkg_cut *c, size_t i, struct gguf_writer **out, struct strata_errmsg *em) {
    const struct pkg_piece *p = &c->pieces[i];
    struct gguf_writer *w = NULL;
    strata_err rc = gguf_writer_new_bare(gguf_reader_alignment(c->inv->meta), &w, em);
    if (!rc) rc = add_metadata(c, p, w, em);
    if (!rc && c->schema == 1) rc = add_slice_keys(&p->slice, w, em);
    for (size_t k = 0; k < p->n_tensors && !rc; k++) {
        const struct gguf_tensor *t = c->inv->tensors[p->tensors[k]].t;
        rc = gguf_writer_add_tensor(w, t->name, t->n_dims, t->ne, t->type, t->data, em);
    }
    if (!rc && pkg_cut_is_header_only(c, i)) rc = pkg_cut2_carrier(c, w, em);
    if (rc) {
        gguf_writer_free(w);
        return rc;
    }
    *out = w;
    return STRATA_OK;
}
