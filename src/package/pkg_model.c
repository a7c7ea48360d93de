/*
 * Opens a model for one layer range. See pkg_model.h.
 *
 * Owns the maps and readers of the parts it opened. A plain file and a package differ only in where the tensors are
 * listed from: one selection rule (pkg_select) decides what is visible in both.
 */
#include "package/pkg_model.h"

#include "base/file.h"
#include "base/path.h"
#include "gguf/gguf_index.h"
#include "gguf/gguf_source.h"
#include "package/pkg_part.h"

#include <stdlib.h>
#include <string.h>

struct pkg_model {
    struct gguf_source *source;    /* of a plain file, else NULL */
    struct pkg_manifest *manifest; /* of a package, else NULL */
    struct pkg_part *parts;        /* opened parts of a package; the first is the metadata */
    size_t n_parts;
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

/* Blocks and tiedness, from the whole tensor table. */
static void survey_source(const struct gguf_source *src, uint32_t *layer_count, bool *tied) {
    *layer_count = 0;
    *tied = gguf_source_find_tensor(src, "output.weight") == NULL;
    for (size_t i = 0; i < gguf_source_tensor_count(src); i++) {
        uint32_t layer;
        const struct gguf_tensor *t = gguf_source_tensor(src, i, NULL);
        if (pkg_class_of(t->name, &layer) == PKG_CLASS_LAYER && layer >= *layer_count) *layer_count = layer + 1;
    }
}

static strata_err open_plain(struct pkg_model *m, const char *path, const struct pkg_model_options *opt,
                             struct strata_errmsg *em) {
    strata_err rc = gguf_source_open(path, &m->source, em);
    if (rc) return rc;
    m->meta = gguf_source_meta(m->source);
    survey_source(m->source, &m->sel.layer_count, &m->sel.tied);
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
    bool verify;
    bool metadata_only; /* then the selection is empty */
    struct progress progress;
    struct pkg_faults faults;
    struct strata_errmsg *em;
};

static strata_err open_part(struct opener *o, const struct pkg_artifact *a) {
    struct pkg_part *p = &o->m->parts[o->m->n_parts];
    o->m->n_parts++; /* from now on pkg_model_free closes it */
    strata_err rc = pkg_part_open(o->dir, a, o->verify, &o->progress, &o->faults, p, o->em);
    if (!rc) rc = pkg_faults_first(&o->faults, o->dir, o->em);
    if (!rc && a->role != PKG_ROLE_METADATA) pkg_part_release_pages(p);
    return rc;
}

/* Opens every artifact of a role that the range needs. */
static strata_err open_role(struct opener *o, enum pkg_role role) {
    const struct pkg_manifest *mf = o->m->manifest;
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < mf->n_artifacts && mf->artifacts[i].role <= role && !rc; i++)
        if (mf->artifacts[i].role == role && pkg_select_artifact(&o->m->sel, &mf->artifacts[i]))
            rc = open_part(o, &mf->artifacts[i]);
    return rc;
}

/* The output part comes before the embeddings: whether it holds output.weight decides if a last stage needs them. */
static strata_err open_parts(struct opener *o) {
    struct pkg_model *m = o->m;
    strata_err rc = open_role(o, PKG_ROLE_METADATA);
    if (rc) return rc;
    m->meta = m->parts[0].reader;
    if (o->metadata_only) return STRATA_OK;
    rc = open_role(o, PKG_ROLE_OUTPUT);
    if (!rc && m->n_parts > 1) m->sel.tied = gguf_reader_find_tensor(m->parts[1].reader, "output.weight") == NULL;
    if (!rc) rc = open_role(o, PKG_ROLE_EMBEDDINGS);
    return rc ? rc : open_role(o, PKG_ROLE_LAYER);
}

static uint64_t bytes_to_verify(const struct pkg_manifest *mf, const struct pkg_select *sel) {
    uint64_t sum = 0;
    for (size_t i = 0; i < mf->n_artifacts; i++)
        if (pkg_select_artifact(sel, &mf->artifacts[i])) sum += mf->artifacts[i].artifact_bytes;
    return sum;
}

static strata_err list_package_tensors(struct pkg_model *m, struct strata_errmsg *em) {
    size_t total = 0;
    for (size_t i = 0; i < m->n_parts; i++) total += gguf_reader_tensor_count(m->parts[i].reader);
    strata_err rc = reserve_tensors(m, total, em);
    for (size_t i = 0; i < m->n_parts && !rc; i++) {
        const struct gguf_reader *r = m->parts[i].reader;
        for (size_t k = 0; k < gguf_reader_tensor_count(r) && !rc; k++)
            rc = add_tensor(m, gguf_reader_tensor(r, k), gguf_reader_name(r), em);
    }
    return rc;
}

static strata_err open_package(struct pkg_model *m, const char *dir, const struct pkg_model_options *opt,
                               struct strata_errmsg *em) {
    struct opener o = {.m = m,
                       .dir = dir,
                       .verify = opt->flags & PKG_MODEL_VERIFY,
                       .metadata_only = opt->flags & PKG_MODEL_METADATA_ONLY,
                       .em = em};
    pkg_faults_init(&o.faults);
    strata_err rc = pkg_manifest_load(dir, &m->manifest, em);
    if (rc) goto out;
    m->sel.layer_count = m->manifest->layer_count;
    if (!o.metadata_only) rc = pkg_select_resolve(opt->range, m->sel.layer_count, dir, &m->sel.range, em);
    if (rc) goto out;
    m->parts = calloc(m->manifest->n_artifacts, sizeof *m->parts);
    m->id = strdup(m->manifest->model_id);
    if (!m->parts || !m->id) {
        rc = err_nomem(em, "a package");
        goto out;
    }
    progress_begin(&o.progress, o.verify ? opt->progress : NULL, "verifying", bytes_to_verify(m->manifest, &m->sel));
    rc = open_parts(&o);
    progress_end(&o.progress);
    if (!rc && !o.metadata_only) rc = list_package_tensors(m, em);
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
    for (size_t i = 0; i < m->n_parts; i++) pkg_part_close(&m->parts[i]);
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

const char *pkg_model_manifest_sha256(const struct pkg_model *m) {
    return m->manifest ? m->manifest->sha256 : "";
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

/* ---- layer sizes ---- */

struct sizes {
    uint64_t *layers;
    uint32_t count;
    uint64_t embedding, output;
};

static strata_err alloc_sizes(struct sizes *s, uint32_t count, struct strata_errmsg *em) {
    s->layers = calloc(count, sizeof *s->layers);
    s->count = count;
    return s->layers ? STRATA_OK : err_nomem(em, "layer sizes");
}

static void add_size(struct sizes *s, const struct gguf_tensor *t, bool tied) {
    uint32_t layer;
    switch (pkg_class_of(t->name, &layer)) {
    case PKG_CLASS_LAYER: s->layers[layer] += t->bytes; break;
    case PKG_CLASS_EMBEDDING:
        s->embedding += t->bytes;
        if (tied && strcmp(t->name, "token_embd.weight") == 0) s->output += t->bytes;
        break;
    case PKG_CLASS_FINAL_NORM:
    case PKG_CLASS_OUTPUT: s->output += t->bytes; break;
    default: break; /* in every stage, so it does not matter for a cut */
    }
}

static strata_err sizes_plain(const char *path, struct sizes *s, struct strata_errmsg *em) {
    struct gguf_source *src = NULL;
    struct pkg_range all = {0, PKG_RANGE_ALL}, resolved;
    uint32_t count;
    bool tied;
    strata_err rc = gguf_source_open(path, &src, em);
    if (rc) return rc;
    survey_source(src, &count, &tied);
    rc = pkg_select_resolve(all, count, path, &resolved, em);
    if (!rc) rc = alloc_sizes(s, count, em);
    for (size_t i = 0; !rc && i < gguf_source_tensor_count(src); i++)
        add_size(s, gguf_source_tensor(src, i, NULL), tied);
    gguf_source_free(src);
    return rc;
}

/* What an artifact adds to a stage: the copies of replicated tensors, which every part holds, do not count. */
static uint64_t own_bytes(const struct pkg_manifest *mf, const struct pkg_artifact *a) {
    uint64_t replicated = mf->artifacts[PKG_ROLE_METADATA].tensor_bytes;
    return a->tensor_bytes >= replicated ? a->tensor_bytes - replicated : a->tensor_bytes;
}

/* Bytes of a tensor in a shared part, 0 when it is not there. */
static strata_err tensor_in_part(const char *dir, const struct pkg_artifact *a, const char *name, uint64_t *bytes,
                                 struct strata_errmsg *em) {
    struct pkg_faults faults;
    struct pkg_part part;
    pkg_faults_init(&faults);
    strata_err rc = pkg_part_open(dir, a, false, NULL, &faults, &part, em);
    if (!rc) rc = pkg_faults_first(&faults, dir, em);
    if (!rc) {
        const struct gguf_tensor *t = gguf_reader_find_tensor(part.reader, name);
        *bytes = t ? t->bytes : 0;
    }
    pkg_part_close(&part);
    pkg_faults_deinit(&faults);
    return rc;
}

/* Two headers are looked into, for the one fact that the manifest does not state: whether the output is tied. */
static strata_err sizes_package(const char *dir, struct sizes *s, struct strata_errmsg *em) {
    struct pkg_manifest *mf = NULL;
    uint64_t head = 0, embd = 0;
    size_t n;
    strata_err rc = pkg_manifest_load(dir, &mf, em);
    if (rc) return rc;
    rc = alloc_sizes(s, mf->layer_count, em);
    if (!rc) rc = tensor_in_part(dir, &mf->artifacts[PKG_ROLE_OUTPUT], "output.weight", &head, em);
    if (!rc && head == 0) rc = tensor_in_part(dir, &mf->artifacts[PKG_ROLE_EMBEDDINGS], "token_embd.weight", &embd, em);
    if (rc) goto out;
    for (uint32_t i = 0; i < mf->layer_count; i++) s->layers[i] = own_bytes(mf, pkg_manifest_layer(mf, i, &n));
    s->embedding = own_bytes(mf, &mf->artifacts[PKG_ROLE_EMBEDDINGS]);
    s->output = own_bytes(mf, &mf->artifacts[PKG_ROLE_OUTPUT]) + embd;
out:
    pkg_manifest_free(mf);
    return rc;
}

strata_err pkg_model_layer_sizes(const char *path, uint64_t **sizes, uint32_t *layer_count, uint64_t *embedding_bytes,
                                 uint64_t *output_bytes, struct strata_errmsg *em) {
    char dir[PATH_MAX_LEN];
    struct sizes s = {0};
    strata_err rc = pkg_part_folder(path, dir, sizeof dir) ? sizes_package(dir, &s, em) : sizes_plain(path, &s, em);
    if (rc) goto out;
    *sizes = s.layers;
    *layer_count = s.count;
    *embedding_bytes = s.embedding;
    *output_bytes = s.output;
    s.layers = NULL;
out:
    free(s.layers);
    return rc;
}
