/*
 * The cut of schema 2, and its carrier. See pkg_cut.h.
 *
 * Owns the lists of tensors. The carrier lists them in source order, so that the source's order survives; the parts
 * hold them sorted by name.
 */
#include "package/pkg_carrier.h"
#include "package/pkg_cut.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    const struct pkg_tensor *t;
    size_t index; /* in the inventory */
};

/* Common tensors first, then layer by layer; by name within. */
static int by_group(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    bool lx = x->t->class == PKG_CLASS_LAYER, ly = y->t->class == PKG_CLASS_LAYER;
    if (lx != ly) return lx ? 1 : -1;
    if (lx && x->t->layer != y->t->layer) return x->t->layer > y->t->layer ? 1 : -1;
    return strcmp(x->t->t->name, y->t->t->name);
}

static bool same_group(const struct entry *x, const struct entry *y) {
    bool lx = x->t->class == PKG_CLASS_LAYER, ly = y->t->class == PKG_CLASS_LAYER;
    return lx == ly && (!lx || x->t->layer == y->t->layer);
}

/* How many entries from the first on fill one part: at least one, and as many as max_bytes holds. */
static size_t part_length(const struct entry *e, size_t n, uint64_t max_bytes) {
    uint64_t room = max_bytes;
    size_t i = 0;
    for (; i < n; i++) {
        uint64_t bytes = e[i].t->t->bytes;
        if (i > 0 && bytes > room) break;
        room -= bytes < room ? bytes : room;
    }
    return i;
}

/* "common", "layer-00042", and with more than one part "common-part00" and so on. */
static strata_err name_piece(struct pkg_piece *p, bool divided, struct strata_errmsg *em) {
    char part[16] = "", stem[24] = "common";
    if (p->role == PKG_ROLE_LAYER) snprintf(stem, sizeof stem, "layer-%05" PRIu32, p->layer);
    if (divided) snprintf(part, sizeof part, "-part%02" PRIu32, p->part);
    int n = snprintf(p->id, sizeof p->id, "%s%s", stem, part);
    if (n < 0 || (size_t)n >= sizeof p->id) return err_set(em, STRATA_ELIMIT, "too many parts");
    snprintf(p->path, sizeof p->path, "%s/%s.gguf", p->role == PKG_ROLE_LAYER ? "layers" : "shared", p->id);
    return STRATA_OK;
}

/* Divides one group into pieces from c->pieces[c->n_pieces] on. */
static strata_err cut_group(struct pkg_cut *c, const struct entry *e, size_t n, const size_t *tensors,
                            uint64_t max_bytes, struct strata_errmsg *em) {
    bool divided = part_length(e, n, max_bytes) < n;
    strata_err rc = STRATA_OK;
    uint32_t part = 0;
    for (size_t at = 0; at < n && !rc; part++) {
        struct pkg_piece *p = &c->pieces[c->n_pieces++];
        bool layer = e->t->class == PKG_CLASS_LAYER;
        *p = (struct pkg_piece){.role = layer ? PKG_ROLE_LAYER : PKG_ROLE_COMMON,
                                .layer = layer ? e->t->layer : 0,
                                .part = part,
                                .tensors = tensors + at,
                                .n_tensors = part_length(e + at, n - at, max_bytes)};
        at += p->n_tensors;
        rc = name_piece(p, divided, em);
    }
    return rc;
}

static strata_err cut_groups(struct pkg_cut *c, const struct entry *e, uint64_t max_bytes, struct strata_errmsg *em) {
    size_t n = c->inv->n_tensors, *sorted = c->tensors + n;
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < n; i++) {
        c->tensors[i] = i;
        sorted[i] = e[i].index;
    }
    c->pieces[0] = (struct pkg_piece){.role = PKG_ROLE_METADATA, .tensors = c->tensors, .n_tensors = n};
    snprintf(c->pieces[0].id, sizeof c->pieces[0].id, "metadata");
    snprintf(c->pieces[0].path, sizeof c->pieces[0].path, "shared/metadata.gguf");
    c->n_pieces = 1;
    for (size_t at = 0; at < n && !rc;) {
        size_t end = at + 1;
        while (end < n && same_group(&e[at], &e[end])) end++;
        rc = cut_group(c, e + at, end - at, sorted + at, max_bytes, em);
        at = end;
    }
    return rc;
}

strata_err pkg_cut_package2(const struct pkg_inventory *inv, uint64_t max_bytes, struct pkg_cut *out,
                            struct strata_errmsg *em) {
    struct pkg_cut c = {.inv = inv, .schema = 2};
    struct entry *e = NULL;
    strata_err rc = pkg_cut_check_layers(inv, em);
    if (rc) return rc;
    /* No more parts than tensors; the lists of the carrier and of all parts together hold each tensor twice. */
    e = calloc(inv->n_tensors, sizeof *e);
    c.pieces = calloc(inv->n_tensors + 1, sizeof *c.pieces);
    c.tensors = calloc(inv->n_tensors, 2 * sizeof *c.tensors);
    if (!e || !c.pieces || !c.tensors) {
        rc = err_nomem(em, "the list of files");
        goto out;
    }
    for (size_t i = 0; i < inv->n_tensors; i++) e[i] = (struct entry){&inv->tensors[i], i};
    qsort(e, inv->n_tensors, sizeof *e, by_group);
    rc = cut_groups(&c, e, max_bytes, em);
out:
    free(e);
    if (rc)
        pkg_cut_deinit(&c);
    else
        *out = c;
    return rc;
}

/* ---- the carrier ---- */

/* The four arrays, by index into the inventory. */
struct locators {
    uint32_t *part, *alignment;
    uint64_t *offset, *size;
};

static int by_piece_id(const void *a, const void *b) {
    const struct pkg_piece *x = *(const struct pkg_piece *const *)a, *y = *(const struct pkg_piece *const *)b;
    return strcmp(x->id, y->id);
}

/* The places of one part's tensors; the part's own header decides. */
static strata_err locate(const struct pkg_cut *c, size_t piece, uint32_t number, struct locators *l,
                         struct strata_errmsg *em) {
    const struct pkg_piece *p = &c->pieces[piece];
    struct gguf_writer *w = NULL;
    strata_err rc = pkg_cut_writer(c, piece, &w, em);
    for (size_t k = 0; k < p->n_tensors && !rc; k++) {
        size_t i = p->tensors[k];
        l->part[i] = number;
        l->offset[i] = gguf_writer_tensor_offset(w, k);
        l->size[i] = c->inv->tensors[i].t->bytes;
        l->alignment[i] = gguf_reader_alignment(c->inv->meta);
    }
    gguf_writer_free(w);
    return rc;
}

static strata_err locate_all(const struct pkg_cut *c, struct locators *l, struct strata_errmsg *em) {
    size_t n = 0;
    const struct pkg_piece **parts = calloc(c->n_pieces, sizeof(const struct pkg_piece *));
    if (!parts) return err_nomem(em, "the list of files");
    for (size_t i = 0; i < c->n_pieces; i++)
        if (c->pieces[i].role != PKG_ROLE_METADATA) parts[n++] = &c->pieces[i];
    qsort(parts, n, sizeof(const struct pkg_piece *), by_piece_id);
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < n && !rc; i++) rc = locate(c, (size_t)(parts[i] - c->pieces), (uint32_t)i, l, em);
    free(parts);
    return rc;
}

strata_err pkg_cut2_carrier(const struct pkg_cut *c, struct gguf_writer *w, struct strata_errmsg *em) {
    size_t n = c->inv->n_tensors;
    struct locators l = {.part = calloc(n + 1, sizeof *l.part),
                         .alignment = calloc(n + 1, sizeof *l.alignment),
                         .offset = calloc(n + 1, sizeof *l.offset),
                         .size = calloc(n + 1, sizeof *l.size)};
    strata_err rc = l.part && l.alignment && l.offset && l.size ? locate_all(c, &l, em) : err_nomem(em, "a carrier");
    if (!rc) rc = gguf_writer_add_bool(w, PKG_CARRIER_ONLY, true, em);
    if (!rc) rc = gguf_writer_add_u32(w, PKG_CARRIER_COUNT, (uint32_t)(c->n_pieces - 1), em);
    if (!rc) rc = gguf_writer_add_u32(w, PKG_CARRIER_SCHEMA, PKG_CARRIER_LOCATORS, em);
    if (!rc) rc = gguf_writer_add_u32s(w, PKG_CARRIER_PART, l.part, n, em);
    if (!rc) rc = gguf_writer_add_u64s(w, PKG_CARRIER_OFFSET, l.offset, n, em);
    if (!rc) rc = gguf_writer_add_u64s(w, PKG_CARRIER_SIZE, l.size, n, em);
    if (!rc) rc = gguf_writer_add_u32s(w, PKG_CARRIER_ALIGNMENT, l.alignment, n, em);
    free(l.part);
    free(l.alignment);
    free(l.offset);
    free(l.size);
    return rc;
}
