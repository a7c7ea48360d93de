/*
 * A package against its model. See pkg_validate_package.h.
 *
 * Preflight's checks come first; then one pass over every file of the source and of the package, the largest first.
 * Owns the model while it runs, and the report until it is handed over.
 */
#include "package/pkg_validate_package.h"

#include "base/cpus.h"
#include "base/path.h"
#include "base/pool.h"
#include "package/pkg_scan.h"
#include "package/pkg_tally.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A file to be read: of the source, of the package, or a projector to compare with. */
struct piece {
    uint64_t bytes;
    enum { SHARD, ARTIFACT, GIVEN } kind;
    size_t index;
};

struct work {
    struct pkg_validate_package_report *r;
    const struct pkg_validate_package_options *opt;
    struct gguf_source *src;
    struct pkg_inventory inv;
    struct piece *pieces;
    size_t n_pieces;
    struct pkg_faults *faults;      /* one list for each artifact, so that threads need not share one */
    uint8_t (*given)[DIGEST_BYTES]; /* of the projectors to compare with */
    struct progress progress;
};

/* ---- one piece ---- */

static strata_err hash_map(struct work *w, struct file_map map, const char *name, uint8_t sha256[DIGEST_BYTES],
                           struct strata_errmsg *em) {
    struct pkg_scan scan = {
        .map = map, .name = name, .hash = true, .progress = &w->progress, .cancelled = w->opt->cancelled};
    strata_err rc = pkg_scan_run(&scan, em);
    if (!rc) memcpy(sha256, scan.sha256, DIGEST_BYTES);
    return rc;
}

static strata_err hash_shard(struct work *w, size_t i, struct strata_errmsg *em) {
    struct file_map map;
    map.data = gguf_source_shard_bytes(w->src, i, &map.size);
    return hash_map(w, map, gguf_source_shard_path(w->src, i), w->r->source[i].sha256, em);
}

static strata_err hash_given(struct work *w, size_t i, struct strata_errmsg *em) {
    struct file_map map;
    strata_err rc = file_map_open(w->opt->projectors[i], &map, em);
    if (rc) return rc;
    rc = hash_map(w, map, w->opt->projectors[i], w->given[i], em);
    file_map_close(&map);
    return rc;
}

/* Which classes of tensors an artifact owns, as bits. */
static unsigned owned_by(const struct work *w, const struct pkg_artifact *a) {
    const unsigned all = (1u << PKG_CLASS_COUNT) - 1, layer = 1u << PKG_CLASS_LAYER;
    if (w->r->check.manifest->schema == 1) return pkg_compare_owned();
    /* Layer files of schema 2 may hold copies of common tensors that nobody refers to. */
    return a->role == PKG_ROLE_LAYER ? layer : a->role == PKG_ROLE_COMMON ? all & ~layer : 0;
}

static strata_err compare_part(struct work *w, size_t i, struct pkg_part *part, struct strata_errmsg *em) {
    const struct pkg_artifact *a = part->artifact;
    struct pkg_compared *facts = &w->r->artifacts[i];
    bool fragment = pkg_part_is_fragment(a);
    bool meta = a->role == PKG_ROLE_METADATA;
    const struct pkg_compare c = {.source = &w->inv,
                                  .source_name = w->r->source[0].name,
                                  .path = a->path,
                                  .map = part->map,
                                  .reader = fragment ? part->reader : NULL,
                                  .owned = owned_by(w, a),
                                  .header_only = meta && a->id,
                                  .whole_metadata = meta,
                                  .progress = &w->progress,
                                  .cancelled = w->opt->cancelled};
    strata_err rc = pkg_compare_run(&c, &w->faults[i], facts, em);
    if (rc) return rc;
    if (!fragment && part->reader) {
        facts->tensor_count = gguf_reader_tensor_count(part->reader);
        for (size_t k = 0; k < facts->tensor_count; k++)
            facts->tensor_bytes += gguf_reader_tensor(part->reader, k)->bytes;
    }
    if (!a->has_sha256) return STRATA_OK;
    pkg_part_judge(part, facts->hashed ? facts->sha256 : NULL, facts->unreadable, &w->faults[i]);
    w->r->check.items[i].digest_checked = true;
    w->r->check.items[i].digest_ok = part->digest_ok;
    return STRATA_OK;
}

static bool is_known(const struct pkg_faults *faults, const struct pkg_fault *x) {
    for (size_t i = 0; i < faults->n; i++) {
        const struct pkg_fault *y = &faults->list[i];
        if (x->code == y->code && x->path && y->path && strcmp(x->path, y->path) == 0) return true;
    }
    return false;
}

/* What is wrong with the file itself was found by preflight a moment ago, unless it went wrong since. */
static strata_err compare_artifact(struct work *w, size_t i, struct strata_errmsg *em) {
    struct pkg_check_report *check = &w->r->check;
    struct pkg_faults seen;
    struct pkg_part part;
    pkg_faults_init(&seen);
    strata_err rc = pkg_part_open(check->dir, check->items[i].artifact, false, NULL, &seen, &part, em);
    for (size_t k = 0; k < seen.n && !rc; k++)
        if (!is_known(&check->faults, &seen.list[k]))
            pkg_faults_add(&w->faults[i], seen.list[k].code, seen.list[k].path, "%s", seen.list[k].message);
    if (!rc && seen.out_of_memory) rc = err_nomem(em, "a report");
    if (!rc && part.present && part.actual_bytes == part.artifact->artifact_bytes && part.map.size == part.actual_bytes)
        rc = compare_part(w, i, &part, em);
    pkg_part_close(&part);
    pkg_faults_deinit(&seen);
    return rc;
}

static strata_err do_piece(void *user, size_t k, struct strata_errmsg *em) {
    struct work *w = user;
    const struct piece *p = &w->pieces[k];
    if (w->opt->cancelled && w->opt->cancelled()) return err_set(em, STRATA_ECANCELLED, "interrupted");
    switch (p->kind) {
    case SHARD: return hash_shard(w, p->index, em);
    case GIVEN: return hash_given(w, p->index, em);
    default: return compare_artifact(w, p->index, em);
    }
}

/* ---- all pieces ---- */

static int largest_first(const void *a, const void *b) {
    const struct piece *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static void add_piece(struct work *w, int kind, size_t index, uint64_t bytes, uint64_t *total) {
    struct piece *p = &w->pieces[w->n_pieces++];
    *p = (struct piece){.bytes = bytes, .index = index};
    p->kind = kind == SHARD ? SHARD : kind == GIVEN ? GIVEN : ARTIFACT;
    *total = bytes < UINT64_MAX - *total ? *total + bytes : UINT64_MAX; /* for the bar only */
}

static strata_err list_pieces(struct work *w, uint64_t *total, struct strata_errmsg *em) {
    struct pkg_validate_package_report *r = w->r;
    size_t n = r->check.n_items;
    w->pieces = calloc(r->n_source + n + w->opt->n_projectors + 1, sizeof *w->pieces);
    w->faults = calloc(n + 1, sizeof *w->faults);
    w->given = calloc(w->opt->n_projectors + 1, sizeof *w->given);
    r->artifacts = calloc(n + 1, sizeof *r->artifacts);
    if (!w->pieces || !w->faults || !w->given || !r->artifacts) return err_nomem(em, "a report");
    for (size_t i = 0; i < r->n_source; i++) add_piece(w, SHARD, i, r->source[i].bytes, total);
    for (size_t i = 0; i < n; i++) add_piece(w, ARTIFACT, i, r->check.items[i].actual_bytes, total);
    for (size_t i = 0; i < w->opt->n_projectors; i++) add_piece(w, GIVEN, i, 0, total);
    qsort(w->pieces, w->n_pieces, sizeof *w->pieces, largest_first);
    return STRATA_OK;
}

static strata_err read_all(struct work *w, struct strata_errmsg *em) {
    struct pkg_validate_package_report *r = w->r;
    uint64_t total = 0;
    strata_err rc = list_pieces(w, &total, em);
    if (rc) return rc;
    progress_begin(&w->progress, w->opt->progress, "comparing", total);
    rc = pool_run(w->opt->jobs ? w->opt->jobs : cpus_count(), w->n_pieces, do_piece, w, em);
    progress_end(&w->progress);
    for (size_t i = 0; i < r->check.n_items; i++) {
        r->compared_count += r->artifacts[i].compared_count;
        r->compared_bytes += r->artifacts[i].compared_bytes;
        pkg_faults_move(&r->check.faults, &w->faults[i]);
    }
    return rc;
}

/* ---- the source ---- */

static strata_err list_source(struct work *w, struct strata_errmsg *em) {
    struct pkg_validate_package_report *r = w->r;
    size_t n = gguf_source_shard_count(w->src);
    r->source = calloc(n, sizeof *r->source);
    if (!r->source) return err_nomem(em, "a report");
    r->n_source = n;
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        (void)gguf_source_shard_bytes(w->src, i, &bytes);
        r->source[i].bytes = bytes;
        r->source[i].name = strdup(path_basename(gguf_source_shard_path(w->src, i)));
        if (!r->source[i].name) return err_nomem(em, "a report");
    }
    return STRATA_OK;
}

/* The manifest's entry for a file of the source: by its name, or by its place when all are listed. NULL: none. */
static const struct pkg_source_file *entry_of(const struct pkg_validate_package_report *r, size_t i) {
    const struct pkg_source_model *s = &r->check.manifest->source;
    for (size_t k = 0; k < s->n_files; k++)
        if (s->files[k].path && strcmp(path_basename(s->files[k].path), r->source[i].name) == 0) return &s->files[k];
    return s->n_files == r->n_source ? &s->files[i] : NULL;
}

static void compare_source(struct pkg_validate_package_report *r) {
    const struct pkg_source_model *s = &r->check.manifest->source;
    struct pkg_faults *faults = &r->check.faults;
    r->source_sha256_matches = memcmp(s->sha256, r->source[0].sha256, DIGEST_BYTES) == 0;
    if (!r->source_sha256_matches)
        pkg_faults_add(faults, PKG_FAULT_SOURCE_SHA256_MISMATCH, NULL,
                       "source_model.sha256 is not that of %.200s: the package was made from another file",
                       r->source[0].name);
    for (size_t i = 0; i < r->n_source && s->n_files > 0; i++) {
        const struct pkg_source_file *f = entry_of(r, i);
        const char *name = r->source[i].name;
        if (!f)
            pkg_faults_add(faults, PKG_FAULT_SOURCE_FILE_MISMATCH, NULL, "source_model.files does not list %.200s",
                           name);
        else if (f->has_size && f->size_bytes != r->source[i].bytes)
            pkg_faults_add(faults, PKG_FAULT_SOURCE_FILE_MISMATCH, NULL,
                           "%.200s has %" PRIu64 " bytes; source_model.files says %" PRIu64, name, r->source[i].bytes,
                           f->size_bytes);
        else if (f->has_sha256 && memcmp(f->sha256, r->source[i].sha256, DIGEST_BYTES) != 0)
            pkg_faults_add(faults, PKG_FAULT_SOURCE_FILE_MISMATCH, NULL,
                           "%.200s has another SHA-256 than source_model.files says", name);
    }
    if (r->check.manifest->schema == 1 && s->n_files > r->n_source)
        pkg_faults_add(faults, PKG_FAULT_SOURCE_FILE_MISMATCH, NULL,
                       "source_model.files lists %zu files, but the model has %zu", s->n_files, r->n_source);
}

static void compare_facts(struct pkg_validate_package_report *r) {
    const struct pkg_manifest *m = r->check.manifest;
    r->layer_count_matches = m->layer_count == r->source_layer_count;
    if (!r->layer_count_matches)
        pkg_faults_add(&r->check.faults, PKG_FAULT_SOURCE_LAYER_COUNT_MISMATCH, NULL,
                       "layer_count is %" PRIu32 ", but the source has %" PRIu32 " layers", m->layer_count,
                       r->source_layer_count);
    /* Schema 2 has no such field. */
    r->width_matches = m->schema == 2 || r->source_width == 0 || m->activation_width == r->source_width;
    if (!r->width_matches && m->activation_width)
        pkg_faults_add(&r->check.faults, PKG_FAULT_SOURCE_WIDTH_MISMATCH, NULL,
                       "activation_width is %" PRIu32 ", but the source's embedding length is %" PRIu32,
                       m->activation_width, r->source_width);
    else if (!r->width_matches)
        pkg_faults_add(&r->check.faults, PKG_FAULT_SOURCE_WIDTH_MISMATCH, NULL,
                       "activation_width is missing; the source's embedding length is %" PRIu32, r->source_width);
}

/* ---- projectors ---- */

/* Files that were named must be the package's projectors, each of them, and no others. */
static void compare_projectors(const struct work *w) {
    struct pkg_validate_package_report *r = w->r;
    for (size_t k = 0; k < w->opt->n_projectors; k++) {
        bool found = false;
        for (size_t i = 0; i < r->check.n_items; i++)
            found = found || (r->check.items[i].artifact->role == PKG_ROLE_PROJECTOR && r->artifacts[i].hashed &&
                              memcmp(r->artifacts[i].sha256, w->given[k], DIGEST_BYTES) == 0);
        if (!found)
            pkg_faults_add(&r->check.faults, PKG_FAULT_SOURCE_PROJECTOR_MISMATCH, NULL,
                           "no projector of the package is a copy of %.200s", path_basename(w->opt->projectors[k]));
    }
    for (size_t i = 0; i < r->check.n_items && w->opt->n_projectors > 0; i++) {
        const struct pkg_artifact *a = r->check.items[i].artifact;
        bool found = false;
        if (a->role != PKG_ROLE_PROJECTOR || !r->artifacts[i].hashed) continue;
        for (size_t k = 0; k < w->opt->n_projectors; k++)
            found = found || memcmp(r->artifacts[i].sha256, w->given[k], DIGEST_BYTES) == 0;
        if (!found)
            pkg_faults_add(&r->check.faults, PKG_FAULT_SOURCE_PROJECTOR_MISMATCH, a->path,
                           "%.200s is no copy of a projector that was named", a->path);
    }
}

/* ---- layers and tensors ---- */

static strata_err append(json_t *list, uint32_t layer, struct strata_errmsg *em) {
    return json_array_append_new(list, json_integer(layer)) ? err_nomem(em, "a report") : STRATA_OK;
}

/* Layers that the manifest lists never, or twice: its own faults, as numbers. */
static strata_err list_layers(struct pkg_validate_package_report *r, struct strata_errmsg *em) {
    const struct pkg_manifest *m = r->check.manifest;
    const json_t *layers = m->schema == 1 ? json_object_get(m->root, "layers") : NULL;
    unsigned *seen = calloc((size_t)m->layer_count + 1, sizeof *seen);
    size_t i, parts = 0;
    json_t *v;
    if (!seen) return err_nomem(em, "a report");
    json_array_foreach(layers, i, v) {
        json_int_t n = json_integer_value(json_object_get(v, "layer_index"));
        if (json_is_integer(json_object_get(v, "layer_index")) && n >= 0 && n < (json_int_t)m->layer_count) seen[n]++;
    }
    strata_err rc = STRATA_OK;
    for (uint32_t l = 0; l < m->layer_count && !rc; l++) {
        if (m->schema == 2) {
            (void)pkg_manifest_layer(m, l, &parts);
            seen[l] = parts > 0; /* several parts of one layer are no fault there */
        }
        if (seen[l] == 0) rc = append(r->missing_layers, l, em);
        if (seen[l] > 1 && !rc) rc = append(r->duplicate_layers, l, em);
    }
    free(seen);
    return rc;
}

/* The item that should hold a tensor, as far as the manifest lists it; else NULL. */
static const struct pkg_check_item *home_of(const struct pkg_validate_package_report *r, const char *tensor) {
    const struct pkg_manifest *m = r->check.manifest;
    const struct pkg_artifact *a = NULL;
    uint32_t layer;
    size_t n = 1;
    switch (pkg_class_of(tensor, &layer)) {
    case PKG_CLASS_LAYER:
        if (layer < m->layer_count) a = pkg_manifest_layer(m, layer, &n);
        break;
    case PKG_CLASS_EMBEDDING: a = pkg_manifest_shared(m, PKG_ROLE_EMBEDDINGS); break;
    case PKG_CLASS_FINAL_NORM:
    case PKG_CLASS_OUTPUT: a = pkg_manifest_shared(m, PKG_ROLE_OUTPUT); break;
    default: break;
    }
    return a && n == 1 ? &r->check.items[a - m->artifacts] : NULL;
}

/* Tensors that every stage needs must be in the metadata part, wherever else they are. */
static void check_replicas(const struct work *w) {
    struct pkg_check_report *check = &w->r->check;
    if (check->manifest->schema != 1 || !check->meta.reader) return;
    for (size_t i = 0; i < w->inv.n_tensors; i++) {
        const struct pkg_tensor *x = &w->inv.tensors[i];
        if (!pkg_class_is_owned(x->class) && !gguf_reader_find_tensor(check->meta.reader, x->t->name))
            pkg_faults_add(&check->faults, PKG_FAULT_MISSING_TENSOR, check->items[0].artifact->path,
                           "%.200s lacks tensor '%s', which every stage needs", check->items[0].artifact->path,
                           x->t->name);
    }
}

static strata_err count_owners(const struct work *w, struct strata_errmsg *em) {
    struct pkg_validate_package_report *r = w->r;
    const unsigned classes = r->check.manifest->schema == 1 ? pkg_compare_owned() : (1u << PKG_CLASS_COUNT) - 1;
    struct pkg_tally tally;
    size_t i;
    json_t *v;
    strata_err rc = pkg_tally_init(&tally, &w->inv, em);
    if (rc) return rc;
    for (i = 0; i < r->check.n_items; i++) pkg_tally_add(&tally, &r->artifacts[i]);
    r->required_owned_count = pkg_tally_required(&tally, classes);
    rc = pkg_tally_lists(&tally, classes, &r->missing, &r->duplicate, em);
    pkg_tally_deinit(&tally);
    if (rc) return rc;
    json_array_foreach(r->missing, i, v) {
        const char *name = json_string_value(v);
        const struct pkg_check_item *home = home_of(r, name);
        /* That a file lacks its tensors because it is not there, or cannot be read, was told. */
        if (!home || home->opened)
            pkg_faults_add(&r->check.faults, PKG_FAULT_MISSING_TENSOR, home ? home->artifact->path : NULL,
                           "tensor '%s' of the source is in no file of the package", name);
    }
    return STRATA_OK;
}

/* ---- the whole ---- */

static strata_err compare_all(struct work *w, struct strata_errmsg *em) {
    struct pkg_validate_package_report *r = w->r;
    strata_err rc = read_all(w, em);
    if (rc) return rc;
    compare_source(r);
    compare_facts(r);
    compare_projectors(w);
    check_replicas(w);
    rc = list_layers(r, em);
    return rc ? rc : count_owners(w, em);
}

static strata_err run(struct work *w, const char *full, const char *package, struct strata_errmsg *em) {
    struct pkg_validate_package_report *r = w->r;
    const struct pkg_check_options opt = {.skip_digests = true, .jobs = w->opt->jobs, .cancelled = w->opt->cancelled};
    struct strata_errmsg why;
    strata_err rc = gguf_source_open(full, &w->src, em);
    if (!rc) rc = pkg_inventory_init(&w->inv, w->src, em);
    if (!rc) rc = list_source(w, em);
    if (rc) return rc;
    r->full_tensor_count = w->inv.n_tensors;
    r->source_layer_count = w->inv.layer_count;
    if (pkg_inventory_width(&w->inv, &r->source_width, &why)) r->source_width = 0;
    r->missing_layers = json_array();
    r->duplicate_layers = json_array();
    if (!r->missing_layers || !r->duplicate_layers) return err_nomem(em, "a report");
    rc = pkg_check_run(package, &opt, &r->check, em);
    if (!rc && r->check.manifest) rc = compare_all(w, em);
    if (!rc && r->check.faults.out_of_memory) rc = err_nomem(em, "a report");
    return rc;
}

strata_err pkg_validate_package_run(const char *full, const char *package,
                                    const struct pkg_validate_package_options *opt,
                                    struct pkg_validate_package_report *out, struct strata_errmsg *em) {
    struct pkg_validate_package_report r = {0};
    struct work w = {.r = &r, .opt = opt};
    strata_err rc = run(&w, full, package, em);
    for (size_t i = 0; w.faults && i < r.check.n_items; i++) pkg_faults_deinit(&w.faults[i]);
    free(w.faults);
    free(w.pieces);
    free(w.given);
    pkg_inventory_deinit(&w.inv);
    gguf_source_free(w.src);
    if (rc)
        pkg_validate_package_deinit(&r);
    else
        *out = r;
    return rc;
}

void pkg_validate_package_deinit(struct pkg_validate_package_report *r) {
    if (!r) return;
    for (size_t i = 0; r->artifacts && i < r->check.n_items; i++) pkg_compared_deinit(&r->artifacts[i]);
    free(r->artifacts);
    for (size_t i = 0; i < r->n_source; i++) free(r->source[i].name);
    free(r->source);
    json_decref(r->missing);
    json_decref(r->duplicate);
    json_decref(r->missing_layers);
    json_decref(r->duplicate_layers);
    pkg_check_deinit(&r->check);
    *r = (struct pkg_validate_package_report){0};
}

bool pkg_validate_package_is_valid(const struct pkg_validate_package_report *r) {
    bool valid =
        r->check.faults.n_errors == 0 && json_array_size(r->missing) == 0 && json_array_size(r->duplicate) == 0;
    /* Nothing is valid that was not looked at. */
    for (size_t i = 0; i < r->check.n_items && valid; i++)
        valid = r->artifacts[i].hashed && r->check.items[i].digest_ok;
    return valid;
}
