/* Reads and checks the carrier of a schema-2 package. See pkg_carrier.h. Owns the table of places. */
#include "package/pkg_carrier.h"

#include "base/checked.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct check {
    const struct gguf_reader *r;
    const struct pkg_manifest *m;
    struct pkg_faults *faults;
    const char *path; /* of the carrier */
    size_t *parts;    /* owned; artifact of each part number */
    size_t n_parts;
    const struct gguf_kv *part, *offset, *size, *alignment; /* of the right kinds and lengths */
    struct pkg_place *places;                               /* owned */
};

/* ---- parts ---- */

static bool is_part(const struct pkg_artifact *a) {
    return a->role == PKG_ROLE_COMMON || a->role == PKG_ROLE_LAYER;
}

struct numbered {
    const char *id;
    size_t artifact;
};

static int by_id(const void *a, const void *b) {
    return strcmp(((const struct numbered *)a)->id, ((const struct numbered *)b)->id);
}

/* Parts are numbered by their ids, byte by byte: the order of layers and part numbers, where ids are what we write. */
static strata_err number_parts(struct check *c, struct strata_errmsg *em) {
    const struct pkg_manifest *m = c->m;
    struct numbered *list = calloc(m->n_artifacts + 1, sizeof *list);
    c->parts = calloc(m->n_artifacts + 1, sizeof *c->parts);
    if (!list || !c->parts) {
        free(list);
        return err_nomem(em, "the parts of a package");
    }
    for (size_t i = 0; i < m->n_artifacts; i++)
        if (is_part(&m->artifacts[i]) && m->artifacts[i].id)
            list[c->n_parts++] = (struct numbered){m->artifacts[i].id, i};
    qsort(list, c->n_parts, sizeof *list, by_id);
    for (size_t i = 0; i < c->n_parts; i++) c->parts[i] = list[i].artifact;
    free(list);
    return STRATA_OK;
}

/* ---- the keys ---- */

static void bad_key(struct check *c, const char *key, const char *want) {
    pkg_faults_add(c->faults, PKG_FAULT_INVALID_METADATA_ARTIFACT, c->path, "%.200s: %s must be %s", c->path, key,
                   want);
}

static bool number_is(const struct check *c, const char *key, uint64_t want) {
    const struct gguf_kv *kv = gguf_reader_find_kv(c->r, key);
    return kv && kv->kind == GGUF_KIND_U32 && (uint64_t)gguf_reader_int_at(kv, 0) == want;
}

static const struct gguf_kv *array(struct check *c, const char *key, uint32_t kind) {
    const struct gguf_kv *kv = gguf_reader_find_kv(c->r, key);
    if (kv && kv->kind == GGUF_KIND_ARRAY && kv->elem_kind == kind && kv->count == gguf_reader_tensor_count(c->r))
        return kv;
    char want[96];
    snprintf(want, sizeof want, "an array of %zu %s, one for each tensor", gguf_reader_tensor_count(c->r),
             gguf_types_kind_name(kind));
    bad_key(c, key, want);
    return NULL;
}

static void check_keys(struct check *c) {
    const struct gguf_kv *only = gguf_reader_find_kv(c->r, PKG_CARRIER_ONLY);
    struct gguf_str arch;
    struct strata_errmsg em;
    char want[64];
    if (!only || only->kind != GGUF_KIND_BOOL || only->value[0] != 1) bad_key(c, PKG_CARRIER_ONLY, "true");
    if (!number_is(c, PKG_CARRIER_SCHEMA, PKG_CARRIER_LOCATORS)) bad_key(c, PKG_CARRIER_SCHEMA, "the u32 1");
    snprintf(want, sizeof want, "the u32 %zu, the number of parts", c->n_parts);
    if (!number_is(c, PKG_CARRIER_COUNT, c->n_parts)) bad_key(c, PKG_CARRIER_COUNT, want);
    if (gguf_reader_get_str(c->r, "general.architecture", true, &arch, &em))
        pkg_faults_add(c->faults, PKG_FAULT_MISSING_VALUE, c->path, "%s", em.text);
    if (gguf_reader_tensor_count(c->r) == 0)
        pkg_faults_add(c->faults, PKG_FAULT_MISSING_VALUE, c->path, "%.200s lists no tensor", c->path);
    uint64_t bytes = c->m->artifacts[PKG_ROLE_METADATA].artifact_bytes, start = gguf_reader_data_offset(c->r);
    if (bytes != start)
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_METADATA_ARTIFACT, c->path,
                       "%.200s has %" PRIu64 " bytes; a carrier ends where tensor data would start, at %" PRIu64,
                       c->path, bytes, start);
    c->part = array(c, PKG_CARRIER_PART, GGUF_KIND_U32);
    c->offset = array(c, PKG_CARRIER_OFFSET, GGUF_KIND_U64);
    c->size = array(c, PKG_CARRIER_SIZE, GGUF_KIND_U64);
    c->alignment = array(c, PKG_CARRIER_ALIGNMENT, GGUF_KIND_U32);
}

/* ---- the places ---- */

static void fault(struct check *c, enum pkg_fault_code code, size_t i, const char *key, uint64_t is, const char *why) {
    pkg_faults_add(c->faults, code, c->path, "%.200s: %s of tensor '%s' is %" PRIu64 "; %s", c->path, key,
                   gguf_reader_tensor(c->r, i)->name, is, why);
}

static void check_place(struct check *c, size_t i) {
    const struct gguf_tensor *t = gguf_reader_tensor(c->r, i);
    uint64_t part = (uint64_t)gguf_reader_int_at(c->part, i), offset = (uint64_t)gguf_reader_int_at(c->offset, i),
             size = (uint64_t)gguf_reader_int_at(c->size, i), align = (uint64_t)gguf_reader_int_at(c->alignment, i),
             end;
    uint32_t layer;
    if (pkg_class_of(t->name, &layer) == PKG_CLASS_LAYER && layer >= c->m->layer_count)
        pkg_faults_add(c->faults, PKG_FAULT_LAYER_OUT_OF_BOUNDS, c->path,
                       "%.200s lists tensor '%s', but layer_count is %" PRIu32, c->path, t->name, c->m->layer_count);
    if (align == 0 || (align & (align - 1)) != 0)
        fault(c, PKG_FAULT_INVALID_ALIGNMENT, i, PKG_CARRIER_ALIGNMENT, align, "it must be a power of two");
    else if (offset % align != 0)
        fault(c, PKG_FAULT_MISALIGNED_OFFSET, i, PKG_CARRIER_OFFSET, offset,
              "it must be a multiple of the tensor's alignment");
    if (size != t->bytes)
        fault(c, PKG_FAULT_INVALID_STORED_LENGTH, i, PKG_CARRIER_SIZE, size,
              "that is not what its type and shape come to");
    if (part >= c->n_parts) {
        fault(c, PKG_FAULT_UNKNOWN_ARTIFACT, i, PKG_CARRIER_PART, part, "there are not so many parts");
        return;
    }
    c->places[i] = (struct pkg_place){.artifact = c->parts[part], .offset = offset};
    if (!checked_add(offset, t->bytes, &end) || end > c->m->artifacts[c->parts[part]].artifact_bytes)
        fault(c, PKG_FAULT_STORAGE_OUT_OF_BOUNDS, i, PKG_CARRIER_OFFSET, offset,
              "the tensor would go beyond the end of its part");
}

struct stored {
    struct pkg_place place;
    const struct gguf_tensor *t;
};

static int by_place(const void *a, const void *b) {
    const struct stored *x = a, *y = b;
    if (x->place.artifact != y->place.artifact) return x->place.artifact > y->place.artifact ? 1 : -1;
    return (x->place.offset > y->place.offset) - (x->place.offset < y->place.offset);
}

/* Only called when each place lies inside its part, so that the sums cannot wrap. */
static strata_err check_overlaps(struct check *c, struct strata_errmsg *em) {
    size_t n = gguf_reader_tensor_count(c->r);
    struct stored *list = calloc(n + 1, sizeof *list);
    if (!list) return err_nomem(em, "the list of tensors");
    for (size_t i = 0; i < n; i++) list[i] = (struct stored){c->places[i], gguf_reader_tensor(c->r, i)};
    qsort(list, n, sizeof *list, by_place);
    for (size_t i = 1; i < n; i++) {
        const struct stored *x = &list[i - 1], *y = &list[i];
        if (x->place.artifact == y->place.artifact && x->place.offset + x->t->bytes > y->place.offset)
            pkg_faults_add(c->faults, PKG_FAULT_OVERLAPPING_STORAGE, c->path,
                           "%.200s: tensors '%s' and '%s' overlap in %.200s", c->path, x->t->name, y->t->name,
                           c->m->artifacts[x->place.artifact].id);
    }
    free(list);
    return STRATA_OK;
}

/* ---- all together ---- */

strata_err pkg_carrier_init(struct pkg_carrier *out, const struct gguf_reader *reader, const struct pkg_manifest *m,
                            struct pkg_faults *faults, struct strata_errmsg *em) {
    struct check c = {.r = reader, .m = m, .faults = faults, .path = m->artifacts[PKG_ROLE_METADATA].path};
    size_t n = gguf_reader_tensor_count(reader), before = faults->n_errors;
    *out = (struct pkg_carrier){0};
    c.places = calloc(n + 1, sizeof *c.places);
    strata_err rc = c.places ? number_parts(&c, em) : err_nomem(em, "the list of tensors");
    if (rc) goto out;
    check_keys(&c);
    if (c.part && c.offset && c.size && c.alignment)
        for (size_t i = 0; i < n; i++) check_place(&c, i);
    if (faults->n_errors == before) rc = check_overlaps(&c, em);
    if (rc || faults->n_errors != before) goto out;
    *out = (struct pkg_carrier){.reader = reader, .places = c.places};
    c.places = NULL;
out:
    free(c.parts);
    free(c.places);
    return rc;
}

void pkg_carrier_deinit(struct pkg_carrier *c) {
    if (!c) return;
    free(c->places);
    *c = (struct pkg_carrier){0};
}

void pkg_carrier_check_tensor(const struct pkg_carrier *c, const struct pkg_manifest *m, size_t at,
                              const struct gguf_tensor *have, uint64_t offset, struct pkg_faults *faults) {
    const struct gguf_tensor *want = gguf_reader_tensor(c->reader, at);
    const char *path = m->artifacts[c->places[at].artifact].path, *carrier = m->artifacts[PKG_ROLE_METADATA].path;
    if (have->type != want->type || memcmp(have->ne, want->ne, sizeof have->ne) != 0)
        pkg_faults_add(faults, PKG_FAULT_REPLICA_MISMATCH, path,
                       "tensor '%s' of %.200s has another type or shape than %.200s says", have->name, path, carrier);
    else if (offset != c->places[at].offset)
        pkg_faults_add(faults, PKG_FAULT_REPLICA_MISMATCH, path,
                       "tensor '%s' lies at byte %" PRIu64 " of %.200s; %.200s says %" PRIu64, have->name, offset, path,
                       carrier, c->places[at].offset);
}

void pkg_carrier_check_part(const struct pkg_carrier *c, const struct pkg_manifest *m, size_t artifact,
                            const struct gguf_reader *part, struct pkg_faults *faults) {
    const char *path = m->artifacts[artifact].path;
    for (size_t i = 0; i < gguf_reader_tensor_count(c->reader); i++) {
        if (c->places[i].artifact != artifact) continue;
        const char *name = gguf_reader_tensor(c->reader, i)->name;
        const struct gguf_tensor *have = gguf_reader_find_tensor(part, name);
        if (have)
            pkg_carrier_check_tensor(c, m, i, have, gguf_reader_data_offset(part) + have->offset, faults);
        else
            pkg_faults_add(faults, PKG_FAULT_MISSING_TENSOR, path, "%.200s does not hold tensor '%s'", path, name);
    }
}

void pkg_carrier_note(const struct pkg_carrier *c, struct pkg_select *s) {
    for (size_t i = 0; i < gguf_reader_tensor_count(c->reader); i++)
        pkg_select_note(s, gguf_reader_tensor(c->reader, i)->name);
}

void pkg_carrier_select(const struct pkg_carrier *c, const struct pkg_manifest *m, const struct pkg_select *s,
                        bool *needed) {
    for (size_t i = 0; i < m->n_artifacts; i++)
        needed[i] = c ? m->artifacts[i].role == PKG_ROLE_METADATA : pkg_select_artifact(s, &m->artifacts[i]);
    for (size_t i = 0; c && i < gguf_reader_tensor_count(c->reader); i++)
        if (pkg_select_tensor(s, gguf_reader_tensor(c->reader, i)->name)) needed[c->places[i].artifact] = true;
}
