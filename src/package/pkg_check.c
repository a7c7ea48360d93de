/*
 * Preflight of a package: the manifest, and each of its files. See pkg_check.h.
 *
 * Owns the report until it is handed over. Threads work on one item each, with a list of faults of its own; the lists
 * are joined in the manifest's order, so that the report does not depend on who was faster.
 */
#include "package/pkg_check.h"

#include "base/cpus.h"
#include "base/file.h"
#include "base/path.h"
#include "base/pool.h"
#include "package/pkg_check_priv.h"
#include "package/pkg_generation.h"
#include "package/pkg_scan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the manifest ---- */

static strata_err read_manifest(struct pkg_check_report *r, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    struct buf text;
    struct strata_errmsg why;
    buf_init(&text, PKG_MANIFEST_MAX_BYTES);
    strata_err rc = path_join(path, sizeof path, r->dir, PKG_MANIFEST_FILE, em);
    if (rc) goto out;
    strata_err read_rc = file_read_all(path, PKG_MANIFEST_MAX_BYTES, &text, &why);
    if (read_rc == STRATA_ENOMEM)
        rc = err_nomem(em, "a manifest");
    else if (read_rc == STRATA_ELIMIT)
        pkg_faults_add(&r->faults, PKG_FAULT_MANIFEST_TOO_LARGE, PKG_MANIFEST_FILE, "%s", why.text);
    else if (read_rc)
        pkg_faults_add(&r->faults, PKG_FAULT_MISSING_MANIFEST, PKG_MANIFEST_FILE, "%s", why.text);
    else
        rc = pkg_manifest_check(buf_cstr(&text), text.len, &r->faults, &r->manifest, em);
out:
    buf_deinit(&text);
    return rc;
}

/* What may be missing, but should not be when a package is published. Schema 2 requires it. */
static void check_provenance(struct pkg_check_report *r) {
    const struct pkg_source_model *s = &r->manifest->source;
    if (r->manifest->schema != 1) return;
    if (!s->repo || !s->revision || !s->primary_file)
        pkg_faults_add(&r->faults, PKG_FAULT_MISSING_SOURCE_IDENTITY, NULL, "source_model does not state %s",
                       !s->repo       ? "repo"
                       : !s->revision ? "revision"
                                      : "primary_file");
    size_t bare = 0;
    for (size_t i = 0; i < s->n_files; i++) bare += !s->files[i].has_sha256 || !s->files[i].has_size;
    if (s->n_files == 0)
        pkg_faults_add(&r->faults, PKG_FAULT_MISSING_SOURCE_DIGEST, NULL, "source_model.files is missing");
    else if (bare)
        pkg_faults_add(&r->faults, PKG_FAULT_MISSING_SOURCE_DIGEST, NULL,
                       "source_model.files lacks the size or the digest of %zu of %zu files", bare, s->n_files);
}

static strata_err check_manifest(struct pkg_check_report *r, const struct pkg_check_options *opt,
                                 struct strata_errmsg *em) {
    const struct pkg_manifest *m = r->manifest;
    strata_err rc = pkg_sign_verify(r->dir, m->sha256, &r->signature, em);
    if (rc) return rc;
    pkg_sign_add_faults(&r->signature, opt->require_signature, &r->faults);
    check_provenance(r);
    if (!m->generation) return STRATA_OK;
    /* Schema 2's block is stricter, and was checked with the manifest. */
    if (m->schema == 1) return pkg_generation_check(m->generation, m->layer_count, &r->faults, &r->generation, em);
    return pkg_generation_summary(m->generation, &r->generation, em);
}

/* ---- one item ---- */

struct work {
    struct pkg_check_report *r;
    const struct pkg_check_options *opt;
    struct progress progress;
    struct pkg_faults *faults; /* one list for each item */
    size_t *order;             /* the items, largest file first: no thread is left alone with it at the end */
};

strata_err pkg_check_keep_tensors(struct pkg_check_item *it, const struct gguf_reader *r, struct strata_errmsg *em) {
    size_t n = gguf_reader_tensor_count(r);
    it->tensors = calloc(n + 1, sizeof *it->tensors);
    it->names = calloc(n + 1, sizeof *it->names);
    if (!it->tensors || !it->names) return err_nomem(em, "the list of tensors");
    for (size_t i = 0; i < n; i++) {
        it->tensors[i] = *gguf_reader_tensor(r, i);
        /* The reader refuses longer names. */
        memcpy(it->names[i], it->tensors[i].name, strnlen(it->tensors[i].name, sizeof it->names[i] - 1));
        it->tensors[i].name = it->names[i];
        it->tensors[i].data = NULL;
        it->tensors[i].offset += gguf_reader_data_offset(r);
    }
    it->n_tensors = n;
    return STRATA_OK;
}

/* Schema 1 copies tensors that belong to no part into every part: they must be those of the metadata part. Lists the
 * pairs whose bytes can be compared, and tells of the others; one that the metadata lacks is told once, elsewhere. */
static strata_err list_replicas(const struct work *w, const struct pkg_part *p, struct pkg_faults *faults,
                                struct pkg_scan *scan, struct strata_errmsg *em) {
    const struct pkg_artifact *a = p->artifact;
    const struct gguf_reader *meta = w->r->meta.reader;
    bool compared = a->role == PKG_ROLE_EMBEDDINGS || a->role == PKG_ROLE_OUTPUT || a->role == PKG_ROLE_LAYER;
    if (!meta || !p->reader || !compared || w->r->manifest->schema != 1) return STRATA_OK;
    size_t n = gguf_reader_tensor_count(p->reader);
    scan->pairs = calloc(n + 1, sizeof *scan->pairs);
    if (!scan->pairs) return err_nomem(em, "the list of tensors");
    for (size_t i = 0; i < n; i++) {
        const struct gguf_tensor *t = gguf_reader_tensor(p->reader, i);
        if (pkg_class_is_owned(pkg_class_of(t->name, NULL))) continue;
        const struct gguf_tensor *want = gguf_reader_find_tensor(meta, t->name);
        if (want && (want->type != t->type || memcmp(want->ne, t->ne, sizeof t->ne) != 0))
            pkg_faults_add(faults, PKG_FAULT_REPLICA_MISMATCH, a->path,
                           "tensor '%s' of %.200s has another type or shape than in the metadata part", t->name,
                           a->path);
        else if (want)
            scan->pairs[scan->n_pairs++] = (struct pkg_scan_pair){.have = t, .want = want};
    }
    return STRATA_OK;
}

static strata_err scan_item(struct work *w, struct pkg_part *p, struct pkg_faults *faults, struct strata_errmsg *em) {
    const struct pkg_artifact *a = p->artifact;
    struct strata_errmsg why;
    struct pkg_scan scan = {.map = p->map,
                            .name = a->path,
                            .other = w->r->manifest->artifacts[PKG_ROLE_METADATA].path,
                            .hash = a->has_sha256,
                            .progress = &w->progress,
                            .cancelled = w->opt->cancelled};
    strata_err rc = list_replicas(w, p, faults, &scan, em);
    if (rc || w->opt->skip_digests) goto out;
    rc = pkg_scan_run(&scan, &why);
    if (rc && rc != STRATA_EIO) {
        if (em) *em = why;
        goto out;
    }
    if (scan.hash) pkg_part_judge(p, rc ? NULL : scan.sha256, why.text, faults);
    rc = STRATA_OK;
    /* A damaged file was told of; its copies differ for that reason. */
    for (size_t i = 0; i < scan.n_pairs && (p->digest_ok || !scan.hash); i++)
        if (scan.pairs[i].differs)
            pkg_faults_add(faults, PKG_FAULT_REPLICA_MISMATCH, a->path,
                           "tensor '%s' of %.200s differs from its copy in the metadata part at byte %" PRIu64,
                           scan.pairs[i].have->name, a->path, scan.pairs[i].first);
out:
    free(scan.pairs);
    return rc;
}

static void check_architecture(const struct work *w, const struct pkg_part *p, struct pkg_faults *faults) {
    static const char key[] = "general.architecture";
    const struct pkg_artifact *a = p->artifact;
    struct gguf_str mine = {0}, want = {0};
    struct strata_errmsg why;
    bool compared = pkg_part_is_fragment(a) && a->role != PKG_ROLE_METADATA;
    if (!compared || !w->r->meta.reader || gguf_reader_get_str(w->r->meta.reader, key, true, &want, &why)) return;
    if (gguf_reader_get_str(p->reader, key, true, &mine, &why))
        pkg_faults_add(faults, PKG_FAULT_ARCHITECTURE_MISMATCH, a->path, "%s", why.text);
    else if (mine.len != want.len || memcmp(mine.data, want.data, want.len) != 0)
        pkg_faults_add(faults, PKG_FAULT_ARCHITECTURE_MISMATCH, a->path,
                       "%.200s is of architecture '%.*s', but the package of '%.*s'", a->path,
                       (int)(mine.len < 60 ? mine.len : 60), mine.data, (int)(want.len < 60 ? want.len : 60),
                       want.data);
}

static strata_err check_part(struct work *w, size_t i, struct pkg_part *p, struct strata_errmsg *em) {
    struct pkg_check_item *it = &w->r->items[i];
    struct pkg_faults *faults = &w->faults[i];
    bool mapped = p->present && p->actual_bytes == it->artifact->artifact_bytes && p->map.size == p->actual_bytes;
    strata_err rc = STRATA_OK;
    it->present = p->present;
    it->actual_bytes = p->actual_bytes;
    it->opened = p->reader != NULL;
    it->has_slice_keys = p->has_slice_keys;
    if (p->reader) check_architecture(w, p, faults);
    if (p->reader && pkg_part_is_fragment(it->artifact)) rc = pkg_check_keep_tensors(it, p->reader, em);
    if (!rc && mapped) rc = scan_item(w, p, faults, em);
    it->digest_checked = p->digest_checked;
    it->digest_ok = p->digest_ok;
    /* A file of another size is another file: there is no need to hash it to know that. */
    if (p->present && !mapped && !w->opt->skip_digests && it->artifact->has_sha256) it->digest_checked = true;
    return rc;
}

static strata_err check_item(void *user, size_t k, struct strata_errmsg *em) {
    struct work *w = user;
    size_t i = w->order[k];
    struct pkg_part part;
    if (w->opt->cancelled && w->opt->cancelled()) return err_set(em, STRATA_ECANCELLED, "interrupted");
    if (i == PKG_ROLE_METADATA) return check_part(w, i, &w->r->meta, em);
    strata_err rc = pkg_part_open(w->r->dir, w->r->items[i].artifact, false, NULL, &w->faults[i], &part, em);
    if (!rc) rc = check_part(w, i, &part, em);
    pkg_part_close(&part);
    return rc;
}

/* ---- all items ---- */

struct sized {
    uint64_t bytes;
    size_t item;
};

static int largest_first(const void *a, const void *b) {
    const struct sized *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return (x->item > y->item) - (x->item < y->item);
}

/* Makes the items, and the order in which they are taken. *total is for the bar only. */
static strata_err make_items(struct work *w, uint64_t *total, struct strata_errmsg *em) {
    struct pkg_check_report *r = w->r;
    const struct pkg_manifest *m = r->manifest;
    size_t n = m->n_artifacts;
    struct sized *list = calloc(n + 1, sizeof *list);
    r->items = calloc(n + 1, sizeof *r->items);
    w->faults = calloc(n + 1, sizeof *w->faults);
    w->order = calloc(n + 1, sizeof *w->order);
    if (!list || !r->items || !w->faults || !w->order) {
        free(list);
        return err_nomem(em, "a report");
    }
    r->n_items = n;
    for (size_t i = 0; i < n; i++) {
        uint64_t bytes = m->artifacts[i].artifact_bytes;
        r->items[i].artifact = &m->artifacts[i];
        pkg_faults_init(&w->faults[i]);
        list[i] = (struct sized){bytes, i};
        *total = bytes < UINT64_MAX - *total ? *total + bytes : UINT64_MAX;
    }
    qsort(list, n, sizeof *list, largest_first);
    for (size_t i = 0; i < n; i++) w->order[i] = list[i].item;
    free(list);
    return STRATA_OK;
}

static strata_err check_items(struct pkg_check_report *r, const struct pkg_check_options *opt,
                              struct strata_errmsg *em) {
    struct work w = {.r = r, .opt = opt};
    uint64_t total = 0;
    strata_err rc = make_items(&w, &total, em);
    if (rc) goto out;
    /* The metadata part is what the others are compared with: it stays open to the end. */
    rc = pkg_part_open(r->dir, r->items[0].artifact, false, NULL, &w.faults[0], &r->meta, em);
    if (rc) goto out;
    progress_begin(&w.progress, opt->skip_digests ? NULL : opt->progress, "verifying", total);
    rc = pool_run(opt->jobs ? opt->jobs : cpus_count(), r->n_items, check_item, &w, em);
    progress_end(&w.progress);
    for (size_t i = 0; i < r->n_items; i++) {
        r->checked_bytes += r->items[i].actual_bytes;
        pkg_faults_move(&r->faults, &w.faults[i]);
    }
out:
    for (size_t i = 0; w.faults && i < r->n_items; i++) pkg_faults_deinit(&w.faults[i]);
    free(w.faults);
    free(w.order);
    return rc;
}

/* ---- the whole ---- */

static strata_err check_all(struct pkg_check_report *r, const struct pkg_check_options *opt, struct strata_errmsg *em) {
    strata_err rc = read_manifest(r, em);
    if (rc || !r->manifest) return rc;
    rc = check_manifest(r, opt, em);
    if (!rc) rc = check_items(r, opt, em);
    if (!rc) rc = pkg_check_model(r, em);
    if (!rc) rc = pkg_check_files(r, em);
    return rc;
}

strata_err pkg_check_run(const char *path, const struct pkg_check_options *opt, struct pkg_check_report *out,
                         struct strata_errmsg *em) {
    char dir[PATH_MAX_LEN];
    struct pkg_check_report r = {0};
    strata_err rc = STRATA_OK;
    pkg_faults_init(&r.faults);
    bool folder = pkg_part_folder(path, dir, sizeof dir);
    r.dir = strdup(folder ? dir : path);
    if (!r.dir)
        rc = err_nomem(em, "a report");
    else if (folder)
        rc = check_all(&r, opt, em);
    else
        pkg_faults_add(&r.faults, PKG_FAULT_MISSING_MANIFEST, PKG_MANIFEST_FILE,
                       "%s is not a layer package: give its folder or its %s", path, PKG_MANIFEST_FILE);
    if (!rc && r.faults.out_of_memory) rc = err_nomem(em, "a report");
    if (rc)
        pkg_check_deinit(&r);
    else
        *out = r;
    return rc;
}

void pkg_check_deinit(struct pkg_check_report *r) {
    if (!r) return;
    for (size_t i = 0; i < r->n_stages; i++) free(r->stages[i].parts);
    free(r->stages);
    pkg_inventory_deinit(&r->inv);
    pkg_carrier_deinit(&r->carrier);
    pkg_part_close(&r->meta);
    for (size_t i = 0; i < r->n_items; i++) {
        free(r->items[i].tensors);
        free(r->items[i].names);
    }
    free(r->items);
    json_decref(r->generation);
    pkg_manifest_free(r->manifest);
    pkg_faults_deinit(&r->faults);
    free(r->dir);
    *r = (struct pkg_check_report){0};
}

bool pkg_check_is_valid(const struct pkg_check_report *r) {
    return r->faults.n_errors == 0;
}
