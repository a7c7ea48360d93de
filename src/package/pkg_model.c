/*
 * Opens a model for one layer range. See pkg_model.h.
 *
 * Owns the maps and readers of the parts it opened. A plain file and a package differ only in where the tensors are
 * listed from: one selection rule (pkg_select) decides what is visible in both.
 */
#include "package/pkg_model.h"

#include "base/cpus.h"
#include "base/file.h"
#include "base/path.h"
#include "base/pool.h"
#include "gguf/gguf_index.h"
#include "gguf/gguf_source.h"
#include "package/pkg_carrier.h"
#include "package/pkg_part.h"
#include "package/pkg_scan.h"

#include <stdlib.h>
#include <string.h>

struct pkg_model {
    struct gguf_source *source;    /* of a plain file, else NULL */
    struct pkg_manifest *manifest; /* of a package, else NULL */
    struct pkg_signature signature;
    struct pkg_part *parts;     /* of a package: one for each artifact, closed (all zero) when the range needs it not */
    struct pkg_carrier carrier; /* of a schema-2 package */
    const struct gguf_reader *meta;
    struct pkg_select sel;
    char *id;
    const struct gguf_tensor **tensors;
    size_t n_tensors;
    struct gguf_index index;
    uint64_t tensor_bytes;
};

static strata_err reserve_tensors(struct pkg_model *m, size_t n, struct strata_errmsg *em) {
    strata_err rc = gguf_index_init(&m->index, n, em);
    if (rc) return rc;
    m->tensors = calloc(n ? n : 1, sizeof *m->tensors);
    return m->tensors ? STRATA_OK : err_nomem(em, "the list of tensors");
}

/* Makes a tensor visible when the range needs it. The first one of a name counts: replicas must be alike. */
static strata_err add_tensor(struct pkg_model *m, const struct gguf_tensor *t, const char *file,
                             struct strata_errmsg *em) {
    if (!pkg_select_tensor(&m->sel, t->name)) return STRATA_OK;
    if (gguf_index_put(&m->index, t->name, m->n_tensors)) {
        m->tensors[m->n_tensors++] = t;
        m->tensor_bytes += t->bytes;
        return STRATA_OK;
    }
    const struct gguf_tensor *have = pkg_model_find(m, t->name);
    if (!have) return err_set(em, STRATA_EINTERNAL, "%s: no room for tensor '%s'", file, t->name);
    if (have->type != t->type || memcmp(have->ne, t->ne, sizeof t->ne) != 0)
        return err_set(em, STRATA_EFORMAT, "%s: tensor '%s' differs from its copy in another part", file, t->name);
    return STRATA_OK;
}

/* ---- plain files ---- */

static strata_err name_plain(struct pkg_model *m, const char *path, struct strata_errmsg *em) {
    struct gguf_str s = {0};
    strata_err rc = gguf_reader_get_str(m->meta, "general.name", false, &s, em);
    if (rc) return rc;
    if (s.len == 0 || memchr(s.data, '\0', s.len)) {
        s.data = path_basename(path);
        s.len = strlen(s.data);
        if (s.len > 5 && strcmp(s.data + s.len - 5, ".gguf") == 0) s.len -= 5;
    }
    m->id = strndup(s.data, s.len);
    return m->id ? STRATA_OK : err_nomem(em, "a model name");
}

/* The whole tensor table: how many blocks there are, and what a selection must know. */
static void survey_source(const struct gguf_source *src, struct pkg_select *sel) {
    size_t n = gguf_source_tensor_count(src);
    uint32_t count = 0, layer;
    for (size_t i = 0; i < n; i++)
        if (pkg_class_of(gguf_source_tensor(src, i, NULL)->name, &layer) == PKG_CLASS_LAYER && layer >= count)
            count = layer + 1;
    pkg_select_init(sel, count);
    for (size_t i = 0; i < n; i++) pkg_select_note(sel, gguf_source_tensor(src, i, NULL)->name);
}

static strata_err open_plain(struct pkg_model *m, const char *path, const struct pkg_model_options *opt,
                             struct strata_errmsg *em) {
    if (opt->require_signature)
        return err_set(em, STRATA_EAUTH,
                       "%s is a plain GGUF file, which carries no signature, and one is required; use a signed layer "
                       "package",
                       path);
    strata_err rc = gguf_source_open(path, &m->source, em);
    if (rc) return rc;
    m->meta = gguf_source_meta(m->source);
    survey_source(m->source, &m->sel);
    rc = name_plain(m, path, em);
    if (rc || opt->flags & PKG_MODEL_METADATA_ONLY) return rc;
    rc = pkg_select_resolve(opt->range, m->sel.layer_count, path, &m->sel.range, em);
    if (!rc) rc = reserve_tensors(m, gguf_source_tensor_count(m->source), em);
    for (size_t i = 0; !rc && i < gguf_source_tensor_count(m->source); i++) {
        size_t shard;
        const struct gguf_tensor *t = gguf_source_tensor(m->source, i, &shard);
        rc = add_tensor(m, t, gguf_source_shard_path(m->source, shard), em);
    }
    return rc;
}

/* ---- packages ---- */

struct opener {
    struct pkg_model *m;
    const char *dir;
    const struct pkg_model_options *opt;
    bool verify;
    bool metadata_only; /* then the selection is empty */
    struct progress progress;
    struct pkg_faults faults;
    struct strata_errmsg *em;
};

static strata_err open_part(struct opener *o, size_t i) {
    struct pkg_part *p = &o->m->parts[i];
    strata_err rc = pkg_part_open(o->dir, &o->m->manifest->artifacts[i], false, NULL, &o->faults, p, o->em);
    return rc ? rc : pkg_faults_first(&o->faults, o->dir, o->em);
}

static strata_err open_needed(struct opener *o, size_t i) {
    struct pkg_model *m = o->m;
    if (m->parts[i].reader || !pkg_select_artifact(&m->sel, &m->manifest->artifacts[i])) return STRATA_OK;
    strata_err rc = open_part(o, i);
    const struct gguf_reader *r = m->parts[i].reader;
    for (size_t k = 0; !rc && k < gguf_reader_tensor_count(r); k++)
        pkg_select_note(&m->sel, gguf_reader_tensor(r, k)->name);
    return rc;
}

/* Schema 1. Whether the embeddings are needed is to be read in the headers of the output and of the layers. */
static strata_err open_parts1(struct opener *o) {
    strata_err rc = open_needed(o, PKG_ROLE_OUTPUT);
    if (!rc) rc = open_needed(o, PKG_ROLE_EMBEDDINGS);
    for (size_t i = PKG_SHARED_COUNT; i < o->m->manifest->n_artifacts && !rc; i++) rc = open_needed(o, i);
    return rc ? rc : open_needed(o, PKG_ROLE_EMBEDDINGS);
}

/* Schema 2. The carrier, which is open, tells what is needed, and how each part must look. */
static strata_err open_parts2(struct opener *o) {
    struct pkg_model *m = o->m;
    const struct pkg_manifest *mf = m->manifest;
    bool *needed = calloc(mf->n_artifacts, sizeof *needed);
    if (!needed) return err_nomem(o->em, "a package");
    pkg_carrier_note(&m->carrier, &m->sel);
    pkg_carrier_select(&m->carrier, mf, &m->sel, needed);
    strata_err rc = STRATA_OK;
    for (size_t i = PKG_ROLE_METADATA + 1; i < mf->n_artifacts && !rc; i++) {
        if (!needed[i]) continue;
        rc = open_part(o, i);
        if (!rc) pkg_carrier_check_part(&m->carrier, mf, i, m->parts[i].reader, &o->faults);
        if (!rc) rc = pkg_faults_first(&o->faults, o->dir, o->em);
    }
    free(needed);
    return rc;
}

static strata_err open_parts(struct opener *o) {
    struct pkg_model *m = o->m;
    strata_err rc = open_part(o, PKG_ROLE_METADATA);
    if (rc) return rc;
    m->meta = m->parts[PKG_ROLE_METADATA].reader;
    if (m->manifest->schema == 2) {
        rc = pkg_carrier_init(&m->carrier, m->meta, m->manifest, &o->faults, o->em);
        if (!rc) rc = pkg_faults_first(&o->faults, o->dir, o->em);
    }
    if (rc || o->metadata_only) return rc;
    return m->manifest->schema == 2 ? open_parts2(o) : open_parts1(o);
}

/* ---- digests ---- */

struct verifier {
    struct opener *o;
    uint8_t (*sums)[DIGEST_BYTES]; /* one for each artifact */
};

/* One part; called by several threads. */
static strata_err hash_part(void *user, size_t i, struct strata_errmsg *em) {
    struct verifier *v = user;
    const struct pkg_part *p = &v->o->m->parts[i];
    if (!p->reader || !p->artifact->has_sha256) return STRATA_OK;
    struct pkg_scan scan = {.map = p->map, .name = p->artifact->path, .hash = true, .progress = &v->o->progress};
    strata_err rc = pkg_scan_run(&scan, em);
    if (!rc) memcpy(v->sums[i], scan.sha256, DIGEST_BYTES);
    return rc;
}

/* Hashes every part that is open. */
static strata_err verify_parts(struct opener *o) {
    struct pkg_model *m = o->m;
    size_t n = m->manifest->n_artifacts;
    uint64_t total = 0;
    struct verifier v = {.o = o, .sums = calloc(n, sizeof *v.sums)};
    if (!v.sums) return err_nomem(o->em, "a package");
    for (size_t i = 0; i < n; i++)
        if (m->parts[i].reader) total += m->parts[i].map.size; /* what is mapped fits into memory: no wrap */
    progress_begin(&o->progress, o->opt->progress, "verifying", total);
    strata_err rc = pool_run(cpus_count(), n, hash_part, &v, o->em);
    progress_end(&o->progress);
    for (size_t i = 0; i < n && !rc; i++)
        if (m->parts[i].reader && m->parts[i].artifact->has_sha256)
            pkg_part_judge(&m->parts[i], v.sums[i], NULL, &o->faults);
    free(v.sums);
    return rc ? rc : pkg_faults_first(&o->faults, o->dir, o->em);
}

/* ---- the tensors of the range ---- */

/* Parts of schema 1 in the order in which their tensors are listed, that of most models: embeddings, layers, output. */
static size_t listed(const struct pkg_manifest *m, size_t k) {
    if (k == 0) return PKG_ROLE_EMBEDDINGS;
    return k < m->layer_count + (size_t)1 ? PKG_SHARED_COUNT + k - 1 : PKG_ROLE_OUTPUT;
}

/*
 * Schema 1: tensors that all parts repeat divide each part's list into stretches. Stretch by stretch, part by part: so
 * each part's own order is kept, and a package that is written from this list has the same fragments again.
 */
static strata_err list_tensors1(struct pkg_model *m, struct strata_errmsg *em) {
    size_t n_parts = (size_t)m->manifest->layer_count + 2, total = gguf_reader_tensor_count(m->meta);
    size_t *at = calloc(n_parts, sizeof *at);
    for (size_t k = 0; k < n_parts; k++) {
        const struct gguf_reader *r = m->parts[listed(m->manifest, k)].reader;
        if (r) total += gguf_reader_tensor_count(r);
    }
    strata_err rc = at ? reserve_tensors(m, total, em) : err_nomem(em, "the list of tensors");
    size_t n_marks = rc ? 0 : gguf_reader_tensor_count(m->meta);
    for (size_t mark = 0; mark <= n_marks && !rc; mark++) {
        const struct gguf_tensor *end = mark < n_marks ? gguf_reader_tensor(m->meta, mark) : NULL;
        for (size_t k = 0; k < n_parts && !rc; k++) {
            const struct gguf_reader *r = m->parts[listed(m->manifest, k)].reader;
            for (size_t n = r ? gguf_reader_tensor_count(r) : 0; at[k] < n && !rc; at[k]++) {
                const struct gguf_tensor *t = gguf_reader_tensor(r, at[k]);
                if (end && strcmp(t->name, end->name) == 0) break;
                rc = add_tensor(m, t, gguf_reader_name(r), em);
            }
        }
        if (end && !rc) rc = add_tensor(m, end, gguf_reader_name(m->meta), em);
    }
    free(at);
    return rc;
}

/* Schema 2: in the carrier's order, from where the carrier places them. */
static strata_err list_tensors2(struct pkg_model *m, struct strata_errmsg *em) {
    size_t n = gguf_reader_tensor_count(m->meta);
    strata_err rc = reserve_tensors(m, n, em);
    for (size_t i = 0; i < n && !rc; i++) {
        const char *name = gguf_reader_tensor(m->meta, i)->name;
        const struct gguf_reader *r = m->parts[m->carrier.places[i].artifact].reader;
        if (r && pkg_select_tensor(&m->sel, name))
            rc = add_tensor(m, gguf_reader_find_tensor(r, name), gguf_reader_name(r), em);
    }
    return rc;
}

static strata_err open_package(struct pkg_model *m, const char *dir, const struct pkg_model_options *opt,
                               struct strata_errmsg *em) {
    struct opener o = {.m = m,
                       .dir = dir,
                       .opt = opt,
                       .verify = opt->flags & PKG_MODEL_VERIFY || opt->require_signature,
                       .metadata_only = opt->flags & PKG_MODEL_METADATA_ONLY,
                       .em = em};
    pkg_faults_init(&o.faults);
    strata_err rc = pkg_manifest_load(dir, &m->manifest, em);
    if (!rc) rc = pkg_sign_require(dir, m->manifest->sha256, opt->require_signature, &m->signature, em);
    if (rc) goto out;
    pkg_select_init(&m->sel, m->manifest->layer_count);
    if (!o.metadata_only) rc = pkg_select_resolve(opt->range, m->sel.layer_count, dir, &m->sel.range, em);
    if (rc) goto out;
    m->parts = calloc(m->manifest->n_artifacts, sizeof *m->parts);
    m->id = strdup(m->manifest->model_id);
    if (!m->parts || !m->id) {
        rc = err_nomem(em, "a package");
        goto out;
    }
    rc = open_parts(&o);
    if (!rc && o.verify) rc = verify_parts(&o);
    if (!rc && !o.metadata_only) rc = m->manifest->schema == 2 ? list_tensors2(m, em) : list_tensors1(m, em);
    for (size_t i = PKG_ROLE_METADATA + 1; i < m->manifest->n_artifacts && !rc; i++)
        if (m->parts[i].reader) pkg_part_release_pages(&m->parts[i]);
out:
    pkg_faults_deinit(&o.faults);
    return rc;
}

/* ---- both ---- */

strata_err pkg_model_open(const char *path, const struct pkg_model_options *opt, struct pkg_model **out,
                          struct strata_errmsg *em) {
    char dir[PATH_MAX_LEN];
    struct pkg_model *m = calloc(1, sizeof *m);
    if (!m) return err_nomem(em, "a model");
    strata_err rc =
        pkg_part_folder(path, dir, sizeof dir) ? open_package(m, dir, opt, em) : open_plain(m, path, opt, em);
    if (rc) goto out;
    *out = m;
    m = NULL;
out:
    pkg_model_free(m);
    return rc;
}

void pkg_model_free(struct pkg_model *m) {
    if (!m) return;
    gguf_index_deinit(&m->index);
    free(m->tensors);
    pkg_carrier_deinit(&m->carrier);
    for (size_t i = 0; m->parts && i < m->manifest->n_artifacts; i++) pkg_part_close(&m->parts[i]);
    free(m->parts);
    pkg_manifest_free(m->manifest);
    gguf_source_free(m->source);
    free(m->id);
    free(m);
}

const struct gguf_reader *pkg_model_meta(const struct pkg_model *m) {
    return m->meta;
}

uint32_t pkg_model_layer_count(const struct pkg_model *m) {
    return m->sel.layer_count;
}

struct pkg_range pkg_model_range(const struct pkg_model *m) {
    return m->sel.range;
}

bool pkg_model_is_package(const struct pkg_model *m) {
    return m->manifest != NULL;
}

size_t pkg_model_part_count(const struct pkg_model *m) {
    size_t n = 0;
    for (size_t i = 0; m->manifest && i < m->manifest->n_artifacts; i++) n += m->parts[i].reader != NULL;
    return n;
}

const struct pkg_manifest *pkg_model_manifest(const struct pkg_model *m) {
    return m->manifest;
}

const char *pkg_model_manifest_sha256(const struct pkg_model *m) {
    return m->manifest ? m->manifest->sha256 : "";
}

/* A shard's header, its size, and samples of the rest, evenly over it. */
static strata_err hash_shard(struct digest *d, const uint8_t *data, uint64_t len, uint64_t header,
                             struct strata_errmsg *em) {
    enum { SAMPLES = 64, SAMPLE_BYTES = 4096 };
    uint8_t size[8];
    for (int i = 0; i < 8; i++) size[i] = (uint8_t)(len >> 8 * i);
    if (header > len) header = len;
    strata_err rc = digest_update(d, size, sizeof size, em);
    if (!rc) rc = digest_update(d, data, (size_t)header, em);
    for (uint64_t i = 0; i < SAMPLES && !rc; i++) {
        uint64_t at = header + (len - header) / SAMPLES * i, n = len - at < SAMPLE_BYTES ? len - at : SAMPLE_BYTES;
        rc = file_map_fetch(data + at, (size_t)n, "the model", em);
        if (!rc) rc = digest_update(d, data + at, (size_t)n, em);
    }
    return rc;
}

strata_err pkg_model_identity(const struct pkg_model *m, uint8_t out[DIGEST_BYTES], struct strata_errmsg *em) {
    struct digest *d = NULL;
    if (m->manifest) {
        if (digest_from_hex(m->manifest->sha256, out) == 0) return STRATA_OK;
        return err_set(em, STRATA_EINTERNAL, "the manifest has no digest");
    }
    strata_err rc = digest_new(&d, em);
    for (size_t i = 0; !rc && i < gguf_source_shard_count(m->source); i++) {
        size_t len;
        const void *data = gguf_source_shard_bytes(m->source, i, &len);
        rc = hash_shard(d, data, len, gguf_reader_data_offset(gguf_source_shard(m->source, i)), em);
    }
    if (!rc) rc = digest_final(d, out, em);
    digest_free(d);
    return rc;
}

const struct pkg_signature *pkg_model_signature(const struct pkg_model *m) {
    return m->manifest ? &m->signature : NULL;
}

const char *pkg_model_id(const struct pkg_model *m) {
    return m->id;
}

const struct gguf_tensor *pkg_model_find(const struct pkg_model *m, const char *name) {
    size_t i = gguf_index_get(&m->index, name);
    return i == GGUF_INDEX_NONE ? NULL : m->tensors[i];
}

size_t pkg_model_tensor_count(const struct pkg_model *m) {
    return m->n_tensors;
}

const struct gguf_tensor *pkg_model_tensor(const struct pkg_model *m, size_t i) {
    return m->tensors[i];
}

uint64_t pkg_model_tensor_bytes(const struct pkg_model *m) {
    return m->tensor_bytes;
}
