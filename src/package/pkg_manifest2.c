/*
 * Parser of model-package.json, schema 2. See pkg_manifest.h.
 *
 * The shape of the document (fields, types) is checked first, by table; the rest reads what is there and adds what
 * tables cannot tell. Owns nothing but what it puts into the manifest.
 */
#include "base/path.h"
#include "gguf/gguf_index.h"
#include "package/pkg_checker.h"
#include "package/pkg_generation2.h"
#include "package/pkg_package_id.h"
#include "package/pkg_schema2.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WHERE_MAX = 80, COMMIT_DIGITS = 40 };

struct parser {
    struct pkg_checker *c;
    const json_t *entries; /* artifact_catalog.entries; NULL when it is no array */
    size_t n;              /* of them */
    enum pkg_role *roles;  /* owned; of each entry */
    size_t *orders;        /* owned; sidecars and publisher files keep the order of their lists */
    struct gguf_index ids; /* id to entry */
    size_t metadata;       /* the entry of the carrier, or GGUF_INDEX_NONE */
};

static void add(struct parser *p, enum pkg_fault_code code, const char *where, const char *what) {
    pkg_faults_add(p->c->faults, code, NULL, "%s %s", where, what);
}

/* NULL when absent or no text: the shape's fault. */
static const char *text(const json_t *obj, const char *key) {
    return json_string_value(json_object_get(obj, key));
}

static uint64_t number(const json_t *obj, const char *key) {
    json_int_t v = json_integer_value(json_object_get(obj, key));
    return v > 0 ? (uint64_t)v : 0;
}

/* ---- texts with a form ---- */

/* Lower-case digits only, so that a digest has one spelling. */
static bool digest(struct parser *p, const char *s, const char *where, uint8_t out[DIGEST_BYTES]) {
    if (!s) return false;
    if (strspn(s, "0123456789abcdef") == strlen(s) && digest_from_hex(s, out) == 0) return true;
    add(p, PKG_FAULT_INVALID_DIGEST, where, "is not 64 lower-case hexadecimal digits");
    return false;
}

/* s, or NULL when it is not a safe path. */
static const char *safe_path(struct parser *p, const char *s, const char *where) {
    const char *why = "";
    if (!s || path_is_safe_relative(s, strlen(s), &why)) return s;
    pkg_faults_add(p->c->faults, PKG_FAULT_INVALID_PATH, s, "%s '%.200s' is not a safe relative path: %s", where, s,
                   why);
    return NULL;
}

static bool is_identifier(const char *s) {
    for (const char *q = s; *q; q++)
        if (!strchr("-_.", *q) && !((*q >= '0' && *q <= '9') || ((*q | 0x20) >= 'a' && (*q | 0x20) <= 'z')))
            return false;
    return *s != '\0';
}

/* Decimal digits at *s, at least `min` and at most 9; false when there are others. Advances *s. */
static bool digits(const char **s, size_t min, size_t max, uint32_t *out) {
    size_t n = strspn(*s, "0123456789");
    if (n < min || n > max || n > 9) return false;
    *out = (uint32_t)strtoul(*s, NULL, 10);
    *s += n;
    return true;
}

/* "layer-NNNNN" or "layer-NNNNN-partMM". */
static bool is_layer_id(const char *id, uint32_t *layer, uint32_t *part) {
    *part = 0;
    if (strncmp(id, "layer-", 6) != 0) return false;
    id += 6;
    if (!digits(&id, 5, 5, layer)) return false;
    if (!*id) return true;
    if (strncmp(id, "-part", 5) != 0) return false;
    id += 5;
    return digits(&id, 2, 9, part) && !*id;
}

/* ---- source_model ---- */

static void check_source_file(struct parser *p, const json_t *o, size_t i, struct pkg_source_file *f) {
    char where[WHERE_MAX];
    snprintf(where, sizeof where, "source_model.files[%zu].path", i);
    f->path = safe_path(p, text(o, "path"), where);
    f->has_size = json_is_integer(json_object_get(o, "byte_size"));
    f->size_bytes = number(o, "byte_size");
    snprintf(where, sizeof where, "source_model.files[%zu].sha256", i);
    f->has_sha256 = digest(p, text(o, "sha256"), where, f->sha256);
}

/* sound: source_model.sha256 could be read. */
static strata_err check_source_files(struct parser *p, const json_t *list, bool sound) {
    struct pkg_source_model *s = &p->c->m->source;
    struct gguf_index seen = {0};
    size_t n = json_array_size(list);
    if (json_is_array(list) && n == 0)
        pkg_faults_add(p->c->faults, PKG_FAULT_MISSING_VALUE, NULL, "source_model.files is empty");
    if (n == 0) return STRATA_OK;
    s->files = calloc(n, sizeof *s->files);
    strata_err rc = s->files ? gguf_index_init(&seen, n, p->c->em) : err_nomem(p->c->em, "a manifest");
    for (size_t i = 0; i < n && !rc; i++) {
        struct pkg_source_file *f = &s->files[i];
        check_source_file(p, json_array_get(list, i), i, f);
        if (f->path && !gguf_index_put(&seen, f->path, i))
            pkg_faults_add(p->c->faults, PKG_FAULT_INVALID_PATH, f->path, "source_model.files lists '%.200s' twice",
                           f->path);
        s->n_files = i + 1;
    }
    size_t primary = !rc && s->primary_file ? gguf_index_get(&seen, s->primary_file) : GGUF_INDEX_NONE;
    if (!rc && s->primary_file && primary == GGUF_INDEX_NONE)
        pkg_faults_add(p->c->faults, PKG_FAULT_UNKNOWN_SOURCE_FILE, NULL,
                       "source_model.primary_file '%.200s' is not among source_model.files", s->primary_file);
    if (sound && primary != GGUF_INDEX_NONE && s->files[primary].has_sha256 &&
        memcmp(s->files[primary].sha256, s->sha256, DIGEST_BYTES) != 0)
        pkg_faults_add(p->c->faults, PKG_FAULT_SOURCE_IDENTITY_MISMATCH, NULL,
                       "source_model.sha256 is not that of source_model.primary_file");
    gguf_index_deinit(&seen);
    return rc;
}

static strata_err check_source(struct parser *p) {
    struct pkg_source_model *s = &p->c->m->source;
    const json_t *o = json_object_get(p->c->m->root, "source_model");
    bool sound = digest(p, text(o, "sha256"), "source_model.sha256", s->sha256);
    s->repo = text(o, "repo");
    s->revision = text(o, "revision");
    s->primary_file = safe_path(p, text(o, "primary_file"), "source_model.primary_file");
    s->path = s->primary_file;
    s->canonical_ref = text(o, "canonical_ref");
    s->distribution_id = text(o, "distribution_id");
    return check_source_files(p, json_object_get(o, "files"), sound);
}

/* ---- the catalogue ---- */

static strata_err index_ids(struct parser *p) {
    p->entries = json_object_get(json_object_get(p->c->m->root, "artifact_catalog"), "entries");
    p->n = json_array_size(p->entries);
    if (json_is_array(p->entries) && p->n == 0)
        pkg_faults_add(p->c->faults, PKG_FAULT_MISSING_VALUE, NULL, "artifact_catalog.entries is empty");
    p->roles = calloc(p->n + 1, sizeof *p->roles);
    p->orders = calloc(p->n + 1, sizeof *p->orders);
    if (!p->roles || !p->orders) return err_nomem(p->c->em, "a manifest");
    strata_err rc = gguf_index_init(&p->ids, p->n, p->c->em);
    for (size_t i = 0; i < p->n && !rc; i++) {
        const char *id = text(json_array_get(p->entries, i), "id");
        uint32_t layer, part;
        p->roles[i] = id && is_layer_id(id, &layer, &part) ? PKG_ROLE_LAYER : PKG_ROLE_COMMON;
        if (!id) continue;
        if (!is_identifier(id))
            pkg_faults_add(p->c->faults, PKG_FAULT_INVALID_IDENTIFIER, NULL,
                           "artifact_catalog.entries[%zu].id '%.60s' may have letters, digits, '-', '_' and '.' only",
                           i, id);
        if (!gguf_index_put(&p->ids, id, i))
            pkg_faults_add(p->c->faults, PKG_FAULT_DUPLICATE_ARTIFACT, NULL, "two artifacts have the id '%.60s'", id);
    }
    return rc;
}

/* The entry that an artifact id names, or GGUF_INDEX_NONE. */
static size_t refer(struct parser *p, const char *id, const char *where) {
    size_t i = id ? gguf_index_get(&p->ids, id) : GGUF_INDEX_NONE;
    if (id && *id && i == GGUF_INDEX_NONE)
        pkg_faults_add(p->c->faults, PKG_FAULT_UNKNOWN_ARTIFACT, NULL,
                       "%s names '%.60s', which is not in the catalogue", where, id);
    return i;
}

static void check_metadata(struct parser *p) {
    const char *where = "source_model.metadata_artifact_id";
    p->metadata = refer(p, text(json_object_get(p->c->m->root, "source_model"), "metadata_artifact_id"), where);
    if (p->metadata == GGUF_INDEX_NONE) return;
    const char *path = text(json_array_get(p->entries, p->metadata), "path");
    size_t len = path ? strlen(path) : 0;
    if (path && (len < 6 || strcmp(path + len - 5, ".gguf") != 0))
        add(p, PKG_FAULT_INVALID_METADATA_ARTIFACT, where, "names a file that is not a GGUF file");
    p->roles[p->metadata] = PKG_ROLE_METADATA;
}

/* Gives an entry a role beside the parts; the carrier cannot have one. */
static void assign(struct parser *p, size_t entry, enum pkg_role role, size_t order, const char *where) {
    if (entry == GGUF_INDEX_NONE) return;
    if (entry == p->metadata)
        add(p, PKG_FAULT_INVALID_METADATA_ARTIFACT, where, "names the metadata artifact, which can be nothing else");
    else if (p->roles[entry] != PKG_ROLE_PROJECTOR) {
        p->roles[entry] = role;
        p->orders[entry] = order;
    }
}

/* Adds duplicate_sidecar when an earlier item of the list has the same two texts (absent is a text of its own). */
static strata_err check_twins(struct parser *p, const json_t *list, const char *name, const char *a, const char *b) {
    struct gguf_index seen = {0};
    size_t n = json_array_size(list), len = 1;
    for (size_t i = 0; i < n; i++) {
        const char *x = text(json_array_get(list, i), a), *y = text(json_array_get(list, i), b);
        len += (x ? strlen(x) : 0) + (y ? strlen(y) : 0) + 4;
    }
    char *keys = malloc(len), *at = keys;
    strata_err rc = keys ? gguf_index_init(&seen, n, p->c->em) : err_nomem(p->c->em, "a manifest");
    for (size_t i = 0; i < n && !rc; i++) {
        const char *x = text(json_array_get(list, i), a), *y = text(json_array_get(list, i), b);
        int size = snprintf(at, len - (size_t)(at - keys), "%s/%s%s", x ? x : "", y ? "=" : "", y ? y : "");
        if (size > 0 && !gguf_index_put(&seen, at, i))
            pkg_faults_add(p->c->faults, PKG_FAULT_DUPLICATE_SIDECAR, NULL,
                           "%s has two entries of the %s '%.60s' and %s '%.60s'", name, a, x ? x : "", b, y ? y : "");
        at += size + 1;
    }
    gguf_index_deinit(&seen);
    free(keys);
    return rc;
}

static strata_err check_sidecars(struct parser *p) {
    const json_t *list = json_object_get(p->c->m->root, "sidecars");
    for (size_t i = 0; i < json_array_size(list); i++) {
        char where[WHERE_MAX];
        snprintf(where, sizeof where, "sidecars[%zu].artifact_id", i);
        assign(p, refer(p, text(json_array_get(list, i), "artifact_id"), where), PKG_ROLE_PROJECTOR, i, where);
    }
    return check_twins(p, list, "sidecars", "kind", "name");
}

/* ---- the publisher's files ---- */

static bool same(const char *a, const char *b) {
    return a && b && strcmp(a, b) == 0;
}

static void check_publisher_file(struct parser *p, const json_t *o, size_t i) {
    const struct pkg_source_model *s = &p->c->m->source;
    const char *repo = text(o, "source_repo"), *revision = text(o, "source_revision");
    char where[WHERE_MAX];
    snprintf(where, sizeof where, "publisher_metadata[%zu].artifact_id", i);
    assign(p, refer(p, text(o, "artifact_id"), where), PKG_ROLE_PUBLISHER, i, where);
    snprintf(where, sizeof where, "publisher_metadata[%zu].source_path", i);
    safe_path(p, text(o, "source_path"), where);
    snprintf(where, sizeof where, "publisher_metadata[%zu]", i);
    if (revision && (strlen(revision) != COMMIT_DIGITS || strspn(revision, "0123456789abcdefABCDEF") != COMMIT_DIGITS))
        add(p, PKG_FAULT_SOURCE_IDENTITY_MISMATCH, where, "has a source_revision that is not a commit of 40 digits");
    if (repo && revision && !(same(repo, s->repo) && same(revision, s->revision)))
        add(p, PKG_FAULT_SOURCE_IDENTITY_MISMATCH, where, "does not come from the repo and revision of source_model");
}

static const json_t *find_publisher_file(const json_t *list, const char *id) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (same(text(json_array_get(list, i), "artifact_id"), id)) return json_array_get(list, i);
    return NULL;
}

static void check_publisher_default(struct parser *p, const char *name, const json_t *files) {
    const json_t *o = json_object_get(json_object_get(p->c->m->root, "publisher_defaults"), name);
    const char *id = text(o, "artifact_id");
    char where[WHERE_MAX];
    snprintf(where, sizeof where, "publisher_defaults.%s.artifact_id", name);
    if (refer(p, id, where) == GGUF_INDEX_NONE) return;
    const char *role = text(find_publisher_file(files, id), "role");
    bool kv = strcmp(name, "kv_cache_dtype") == 0;
    if (!same(role, "model_config") && !(kv && same(role, "hf_quant_config")))
        add(p, PKG_FAULT_SOURCE_IDENTITY_MISMATCH, where, "names no file of publisher_metadata that could state it");
}

static strata_err check_publisher(struct parser *p) {
    const json_t *list = json_object_get(p->c->m->root, "publisher_metadata");
    for (size_t i = 0; i < json_array_size(list); i++) check_publisher_file(p, json_array_get(list, i), i);
    check_publisher_default(p, "compute_dtype", list);
    check_publisher_default(p, "kv_cache_dtype", list);
    return check_twins(p, list, "publisher_metadata", "role", "source_path");
}

/* ---- the list of artifacts ---- */

struct sortable {
    struct pkg_artifact a;
    size_t order; /* among those of one role and layer */
};

static int by_place(const void *a, const void *b) {
    const struct sortable *x = a, *y = b;
    if (x->a.role != y->a.role) return x->a.role > y->a.role ? 1 : -1;
    if (x->a.layer != y->a.layer) return x->a.layer > y->a.layer ? 1 : -1;
    if (x->order != y->order) return x->order > y->order ? 1 : -1;
    return strcmp(x->a.id ? x->a.id : "", y->a.id ? y->a.id : "");
}

static void fill_artifact(struct parser *p, size_t i, struct sortable *s) {
    const json_t *o = json_array_get(p->entries, i);
    struct pkg_artifact *a = &s->a;
    uint32_t part = 0;
    char where[WHERE_MAX];
    *s = (struct sortable){.a = {.role = p->roles[i], .id = text(o, "id")}, .order = p->orders[i]};
    snprintf(where, sizeof where, "artifact_catalog.entries[%zu].path", i);
    a->path = safe_path(p, text(o, "path"), where);
    snprintf(where, sizeof where, "artifact_catalog.entries[%zu].sha256", i);
    a->has_sha256 = digest(p, text(o, "sha256"), where, a->sha256);
    a->artifact_bytes = number(o, "byte_size");
    if (json_is_integer(json_object_get(o, "byte_size")) && a->artifact_bytes == 0)
        pkg_faults_add(p->c->faults, PKG_FAULT_EMPTY_ARTIFACT, a->path, "artifact_catalog.entries[%zu].byte_size is 0",
                       i);
    if (a->role == PKG_ROLE_PROJECTOR) a->kind = pkg_schema2_sidecar_kinds[0];
    if (a->role != PKG_ROLE_LAYER) return;
    is_layer_id(a->id, &a->layer, &part);
    s->order = part;
    if (a->layer >= p->c->m->layer_count && p->c->m->layer_count > 0)
        pkg_faults_add(p->c->faults, PKG_FAULT_LAYER_OUT_OF_BOUNDS, a->path,
                       "artifact '%.60s' is beyond layer_count, which is %" PRIu32, a->id, p->c->m->layer_count);
}

/* The metadata comes first, even when the document does not name it: its entry is empty then. */
static strata_err list_artifacts(struct parser *p) {
    struct pkg_manifest *m = p->c->m;
    size_t extra = p->metadata == GGUF_INDEX_NONE, parts = 0;
    struct sortable *list = calloc(p->n + 1, sizeof *list);
    m->artifacts = calloc(p->n + 1, sizeof *m->artifacts);
    if (!list || !m->artifacts) {
        free(list);
        return err_nomem(p->c->em, "a manifest");
    }
    for (size_t i = 0; i < p->n; i++) {
        fill_artifact(p, i, &list[i]);
        parts += p->roles[i] == PKG_ROLE_COMMON || p->roles[i] == PKG_ROLE_LAYER;
    }
    if (p->n > 0 && parts == 0)
        pkg_faults_add(p->c->faults, PKG_FAULT_MISSING_VALUE, NULL,
                       "artifact_catalog.entries has no artifact that holds tensors");
    qsort(list, p->n, sizeof *list, by_place);
    for (size_t i = 0; i < p->n; i++) m->artifacts[extra + i] = list[i].a;
    m->n_artifacts = extra + p->n;
    free(list);
    return pkg_checker_index_layers(p->c);
}

/* ---- all together ---- */

static void check_head(struct parser *p) {
    struct pkg_manifest *m = p->c->m;
    const char *format = text(m->root, "format");
    uint8_t id[DIGEST_BYTES];
    m->package_id = text(m->root, "package_id");
    if (m->package_id && strncmp(m->package_id, "sha256:", 7) != 0)
        add(p, PKG_FAULT_INVALID_DIGEST, "package_id", "is not of the form sha256:<digits>");
    else if (m->package_id)
        digest(p, m->package_id + 7, "package_id", id);
    m->model_id = text(m->root, "model_id");
    if (format && *format && strcmp(format, PKG_SCHEMA2_FORMAT) != 0)
        pkg_faults_add(p->c->faults, PKG_FAULT_INVALID_FORMAT, NULL, "format is '%.60s', not '%s'", format,
                       PKG_SCHEMA2_FORMAT);
    uint64_t layers = number(m->root, "layer_count");
    if (layers > 0 && layers <= PKG_MANIFEST_MAX_LAYERS)
        m->layer_count = (uint32_t)layers;
    else if (json_is_integer(json_object_get(m->root, "layer_count")))
        pkg_faults_add(p->c->faults, layers ? PKG_FAULT_INVALID_LAYER_COUNT : PKG_FAULT_MISSING_VALUE, NULL,
                       "layer_count is %" PRIu64 "; it must be from 1 to %d", layers, PKG_MANIFEST_MAX_LAYERS);
    if (text(m->root, "native_abi_version") && *text(m->root, "native_abi_version"))
        m->abi_version = pkg_checker_abi(p->c, "native_abi_version");
    m->created_at = number(m->root, "created_at_unix_secs");
    const json_t *generation = json_object_get(m->root, "generation");
    m->generation = json_is_object(generation) ? generation : NULL;
}

/* Only of a document without other faults: the canonical form is that of a valid one. */
static strata_err check_identity(struct parser *p) {
    bool matches = false;
    strata_err rc = pkg_package_id_matches(p->c->m->root, &matches, p->c->em);
    if (!rc && !matches)
        pkg_faults_add(p->c->faults, PKG_FAULT_PACKAGE_IDENTITY_MISMATCH, NULL,
                       "package_id is not the digest of the manifest's canonical form");
    return rc;
}

strata_err pkg_manifest2_check(struct pkg_checker *c) {
    struct parser p = {.c = c, .metadata = GGUF_INDEX_NONE};
    size_t before = c->faults->n_errors;
    pkg_shape_check(pkg_schema2_root, c->m->root, "", PKG_FAULT_INVALID_FIELD, c->faults);
    check_head(&p);
    strata_err rc = check_source(&p);
    if (!rc) rc = index_ids(&p);
    if (!rc) check_metadata(&p);
    if (!rc) rc = check_sidecars(&p);
    if (!rc) rc = check_publisher(&p);
    if (!rc) rc = list_artifacts(&p);
    if (!rc) rc = pkg_checker_paths(c);
    if (!rc && c->m->generation) rc = pkg_generation2_check(c->m->generation, c->m->layer_count, c->faults, c->em);
    if (!rc && c->faults->n_errors == before) rc = check_identity(&p);
    free(p.roles);
    free(p.orders);
    gguf_index_deinit(&p.ids);
    return rc;
}
