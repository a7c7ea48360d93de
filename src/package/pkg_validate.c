/* Slices against their model. See pkg_validate.h. Owns the model while it runs, and the report until it is handed over.
 */
#include "package/pkg_validate.h"

#include "base/cpus.h"
#include "base/path.h"
#include "base/pool.h"
#include "package/pkg_json.h"
#include "package/pkg_select.h"
#include "package/pkg_slice.h"
#include "package/pkg_tally.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { HEADER = 1 << 20 }; /* what a small header has at most; a disk that fails there is told as such */

struct work {
    struct pkg_validate_report *r;
    const struct pkg_validate_options *opt;
    const struct gguf_source *src;
    const struct pkg_inventory *inv;
    struct pkg_faults *faults; /* one list for each slice, so that threads need not share one */
    struct progress progress;
};

/* ---- one slice ---- */

static void refuse_file(const char *path, strata_err rc, const struct strata_errmsg *why, struct pkg_faults *faults) {
    enum pkg_fault_code code = rc == STRATA_ENOENT   ? PKG_FAULT_MISSING_ARTIFACT
                               : rc == STRATA_EINVAL ? PKG_FAULT_ARTIFACT_NOT_FILE
                                                     : PKG_FAULT_ARTIFACT_UNREADABLE;
    pkg_faults_add(faults, code, path, "%s", why->text);
}

/* What a slice says of itself against what it holds, and the copies that every slice must have. */
static void check_content(const struct work *w, struct pkg_validate_slice *s, const struct gguf_reader *reader,
                          struct pkg_faults *faults) {
    struct pkg_slice said;
    struct strata_errmsg why;
    bool complete = false;
    if (pkg_slice_read(reader, &said, &complete, &why))
        pkg_faults_add(faults, PKG_FAULT_SLICE_KEYS_MISMATCH, s->path, "%s", why.text);
    s->first = UINT32_MAX;
    for (size_t i = 0; i < gguf_reader_tensor_count(reader); i++) {
        const char *name = gguf_reader_tensor(reader, i)->name;
        uint32_t layer = 0;
        enum pkg_class class = pkg_class_of(name, &layer);
        if (complete && !pkg_slice_holds(&said, name, class, layer))
            pkg_faults_add(faults, PKG_FAULT_FOREIGN_TENSOR, s->path,
                           "%.200s says that it is layers %" PRIu32 "..%" PRIu32
                           ", but holds tensor '%s', which does not belong there",
                           s->path, said.range.first, said.range.end, name);
        if (class != PKG_CLASS_LAYER) continue;
        if (layer < s->first) s->first = layer;
        if (layer >= s->end) s->end = layer + 1;
    }
    if (s->end == 0) s->first = 0;
    for (size_t i = 0; i < w->inv->n_tensors; i++) {
        const struct pkg_tensor *x = &w->inv->tensors[i];
        if (!pkg_class_is_owned(x->class) && !gguf_reader_find_tensor(reader, x->t->name))
            pkg_faults_add(faults, PKG_FAULT_MISSING_TENSOR, s->path,
                           "%.200s lacks tensor '%s', which every slice needs", s->path, x->t->name);
    }
}

static strata_err compare_slice(struct work *w, struct pkg_validate_slice *s, const struct file_map *map,
                                const struct gguf_reader *reader, struct pkg_faults *faults, struct strata_errmsg *em) {
    const struct pkg_compare c = {.source = w->inv,
                                  .source_name = path_basename(gguf_source_shard_path(w->src, 0)),
                                  .path = s->path,
                                  .map = *map,
                                  .reader = reader,
                                  .owned = pkg_compare_owned(),
                                  .whole_metadata = true,
                                  .progress = &w->progress,
                                  .cancelled = w->opt->cancelled};
    strata_err rc = pkg_compare_run(&c, faults, &s->facts, em);
    if (!rc && s->facts.unreadable[0])
        pkg_faults_add(faults, PKG_FAULT_ARTIFACT_UNREADABLE, s->path, "%s", s->facts.unreadable);
    if (!rc && reader && gguf_reader_tensor_count(reader) == 0)
        pkg_faults_add(faults, PKG_FAULT_EMPTY_SLICE, s->path, "%.200s holds no tensor", s->path);
    return rc;
}

static strata_err validate_slice(void *user, size_t i, struct strata_errmsg *em) {
    struct work *w = user;
    struct pkg_validate_slice *s = &w->r->slices[i];
    struct pkg_faults *faults = &w->faults[i];
    struct file_map map = {0};
    struct gguf_reader *reader = NULL;
    struct strata_errmsg why;
    if (w->opt->cancelled && w->opt->cancelled()) return err_set(em, STRATA_ECANCELLED, "interrupted");
    strata_err rc = file_map_open(s->path, &map, &why);
    if (rc) {
        refuse_file(s->path, rc, &why, faults);
        return STRATA_OK;
    }
    s->bytes = map.size;
    rc = file_map_fetch(map.data, map.size < HEADER ? map.size : HEADER, s->path, &why);
    if (!rc) rc = gguf_reader_new(map.data, map.size, s->path, &reader, &why);
    if (rc == STRATA_ENOMEM) {
        rc = err_nomem(em, "a GGUF header");
        goto out;
    }
    /* A disk that fails is told once, by the pass over the whole file. */
    if (rc && rc != STRATA_EIO) pkg_faults_add(faults, PKG_FAULT_INVALID_ARTIFACT_GGUF, s->path, "%s", why.text);
    s->opened = reader != NULL;
    if (reader) check_content(w, s, reader, faults);
    rc = compare_slice(w, s, &map, reader, faults, em);
out:
    gguf_reader_free(reader);
    file_map_close(&map);
    return rc;
}

/* ---- all of them ---- */

/* Takes those off the list that every holder needs: see pkg_select. */
static strata_err drop_needed(const struct work *w, json_t *duplicate, struct strata_errmsg *em) {
    struct pkg_select select;
    pkg_select_init(&select, w->inv->layer_count);
    for (size_t i = 0; i < w->inv->n_tensors; i++) pkg_select_note(&select, w->inv->tensors[i].t->name);
    for (size_t d = json_array_size(duplicate); d-- > 0;) {
        const char *name = json_string_value(json_array_get(duplicate, d));
        size_t at = gguf_index_get(&w->inv->index, name);
        bool needed = at != GGUF_INDEX_NONE && w->inv->tensors[at].class == PKG_CLASS_EMBEDDING;
        for (size_t i = 0; i < w->r->n_slices && needed; i++) {
            const struct pkg_validate_slice *s = &w->r->slices[i];
            bool holds = false;
            for (size_t k = 0; k < s->facts.n_owned; k++) holds = holds || s->facts.owned[k] == at;
            select.range = (struct pkg_range){s->first, s->end};
            if (holds) needed = s->first < s->end && pkg_select_tensor(&select, name);
        }
        if (needed && json_array_remove(duplicate, d)) return err_nomem(em, "a report");
    }
    return STRATA_OK;
}

static strata_err sum_up(const struct work *w, struct strata_errmsg *em) {
    struct pkg_validate_report *r = w->r;
    struct pkg_tally tally;
    const char *name;
    size_t i;
    json_t *v;
    strata_err rc = pkg_tally_init(&tally, w->inv, em);
    if (rc) return rc;
    for (i = 0; i < r->n_slices; i++) {
        pkg_tally_add(&tally, &r->slices[i].facts);
        r->compared_count += r->slices[i].facts.compared_count;
        r->compared_bytes += r->slices[i].facts.compared_bytes;
        r->read_bytes += r->slices[i].bytes;
        pkg_faults_move(&r->faults, &w->faults[i]);
    }
    r->required_owned_count = pkg_tally_required(&tally, pkg_compare_owned());
    rc = pkg_tally_lists(&tally, pkg_compare_owned(), &r->missing, &r->duplicate, em);
    pkg_tally_deinit(&tally);
    if (!rc) rc = drop_needed(w, r->duplicate, em);
    if (rc) return rc;
    json_array_foreach(r->missing, i, v) {
        name = json_string_value(v);
        pkg_faults_add(&r->faults, PKG_FAULT_MISSING_TENSOR, NULL, "tensor '%s' of the source is in no slice", name);
    }
    json_array_foreach(r->duplicate, i, v) {
        name = json_string_value(v);
        pkg_faults_add(&r->faults, PKG_FAULT_DUPLICATE_TENSOR, NULL, "tensor '%s' is in more than one slice", name);
    }
    return STRATA_OK;
}

static uint64_t bytes_of(const char *const *slices, size_t n) {
    uint64_t total = 0;
    struct stat st;
    for (size_t i = 0; i < n; i++)
        if (stat(slices[i], &st) == 0 && S_ISREG(st.st_mode)) total += (uint64_t)st.st_size;
    return total;
}

static strata_err run(struct work *w, const char *const *slices, size_t n, struct strata_errmsg *em) {
    struct pkg_validate_report *r = w->r;
    const struct pkg_validate_options *opt = w->opt;
    r->slices = calloc(n + 1, sizeof *r->slices);
    w->faults = calloc(n + 1, sizeof *w->faults);
    if (!r->slices || !w->faults) return err_nomem(em, "a report");
    r->n_slices = n;
    for (size_t i = 0; i < n; i++) r->slices[i].path = slices[i];
    progress_begin(&w->progress, opt->progress, "comparing", bytes_of(slices, n));
    strata_err rc = pool_run(opt->jobs ? opt->jobs : cpus_count(), n, validate_slice, w, em);
    progress_end(&w->progress);
    return rc ? rc : sum_up(w, em);
}

strata_err pkg_validate_run(const char *full, const char *const *slices, size_t n_slices,
                            const struct pkg_validate_options *opt, struct pkg_validate_report *out,
                            struct strata_errmsg *em) {
    struct pkg_validate_report r = {0};
    struct gguf_source *src = NULL;
    struct pkg_inventory inv = {0};
    struct work w = {.r = &r, .opt = opt};
    pkg_faults_init(&r.faults);
    strata_err rc = gguf_source_open(full, &src, em);
    if (!rc) rc = pkg_inventory_init(&inv, src, em);
    if (rc) goto out;
    r.full_tensor_count = inv.n_tensors;
    r.layer_count = inv.layer_count;
    w.src = src;
    w.inv = &inv;
    rc = run(&w, slices, n_slices, em);
    if (!rc && r.faults.out_of_memory) rc = err_nomem(em, "a report");
out:
    for (size_t i = 0; w.faults && i < n_slices; i++) pkg_faults_deinit(&w.faults[i]);
    free(w.faults);
    pkg_inventory_deinit(&inv);
    gguf_source_free(src);
    if (rc)
        pkg_validate_deinit(&r);
    else
        *out = r;
    return rc;
}

void pkg_validate_deinit(struct pkg_validate_report *r) {
    if (!r) return;
    for (size_t i = 0; i < r->n_slices; i++) pkg_compared_deinit(&r->slices[i].facts);
    free(r->slices);
    json_decref(r->missing);
    json_decref(r->duplicate);
    pkg_faults_deinit(&r->faults);
    *r = (struct pkg_validate_report){0};
}

bool pkg_validate_is_valid(const struct pkg_validate_report *r) {
    return r->faults.n_errors == 0;
}

/* ---- as JSON ---- */

static json_t *slice_to_json(const struct pkg_validate_slice *s, bool older) {
    json_t *o = json_object();
    int bad = json_object_set_new(o, "path", pkg_json_text(s->path));
    if (!bad) bad = json_object_set_new(o, "tensor_count", pkg_json_number(s->facts.tensor_count));
    if (!bad) bad = json_object_set_new(o, "owned_tensor_count", pkg_json_number(s->facts.owned_count));
    if (!bad) bad = json_object_set_new(o, "tensor_bytes", pkg_json_number(s->facts.tensor_bytes));
    if (!bad) bad = pkg_json_set_list(o, "missing_from_full", s->facts.unknown);
    if (!bad) bad = json_object_set_new(o, "sha256", s->facts.hashed ? pkg_json_hex(s->facts.sha256) : json_string(""));
    if (!bad && !older) bad = json_object_set_new(o, "opened", json_boolean(s->opened));
    if (!bad && !older) bad = json_object_set_new(o, "artifact_bytes", pkg_json_number(s->bytes));
    if (!bad && !older) bad = json_object_set_new(o, "compared_tensor_count", pkg_json_number(s->facts.compared_count));
    if (!bad && !older) bad = json_object_set_new(o, "compared_bytes", pkg_json_number(s->facts.compared_bytes));
    if (!bad && !older) bad = pkg_json_set_list(o, "mismatches", s->facts.mismatches);
    return pkg_json_finish(o, bad);
}

static int set_slices(json_t *o, const struct pkg_validate_report *r, bool older) {
    json_t *list = json_array();
    int bad = list ? 0 : -1;
    for (size_t i = 0; i < r->n_slices && !bad; i++)
        bad = json_array_append_new(list, slice_to_json(&r->slices[i], older));
    if (!bad) bad = json_object_set(o, "slices", list);
    json_decref(list);
    return bad;
}

strata_err pkg_validate_to_json(const struct pkg_validate_report *r, bool older, json_t **out,
                                struct strata_errmsg *em) {
    json_t *issues = NULL, *o = json_object();
    strata_err rc = older ? STRATA_OK : pkg_faults_to_json(&r->faults, &issues, em);
    int bad = rc ? -1 : json_object_set_new(o, "valid", json_boolean(pkg_validate_is_valid(r)));
    if (!bad) bad = json_object_set_new(o, "full_tensor_count", pkg_json_number(r->full_tensor_count));
    if (!bad) bad = json_object_set_new(o, "required_owned_tensor_count", pkg_json_number(r->required_owned_count));
    if (!bad) bad = json_object_set(o, "missing_owned_tensors", r->missing);
    if (!bad) bad = json_object_set(o, "duplicate_owned_tensors", r->duplicate);
    if (!bad) bad = set_slices(o, r, older);
    if (!bad && !older) bad = json_object_set_new(o, "layer_count", pkg_json_number(r->layer_count));
    if (!bad && !older) bad = json_object_set_new(o, "compared_tensor_count", pkg_json_number(r->compared_count));
    if (!bad && !older) bad = json_object_set_new(o, "compared_bytes", pkg_json_number(r->compared_bytes));
    if (!bad && !older) bad = json_object_set_new(o, "error_count", pkg_json_number(r->faults.n_errors));
    if (!bad && !older)
        bad = json_object_set_new(o, "issue_count", pkg_json_number(json_array_size(issues) + r->faults.n_dropped));
    if (!bad && !older) bad = json_object_set(o, "issues", issues);
    json_decref(issues);
    if (bad) {
        json_decref(o);
        return rc ? rc : err_nomem(em, "a report");
    }
    *out = o;
    return STRATA_OK;
}
