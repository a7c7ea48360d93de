/*
 * Parser of model-package.json, schema 1, and what both schemas share. See pkg_manifest.h.
 *
 * Refuses what the standard's "Consumer Validation" lists, and also entries that share a path, and layer counts beyond
 * what file names can number. Owns the JSON document and the tables.
 */
#include "package/pkg_manifest.h"

#include "base/file.h"
#include "base/path.h"
#include "gguf/gguf_index.h"
#include "package/pkg_checker.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *pkg_role_name(enum pkg_role role) {
    static const char *const names[] = {"metadata", "embeddings", "output",   "common",
                                        "layer",    "projector",  "publisher"};
    return (unsigned)role < sizeof names / sizeof names[0] ? names[role] : "unknown";
}

static void check_source_file(struct pkg_checker *c, const json_t *entry, size_t i, struct pkg_source_file *f) {
    char where[48];
    snprintf(where, sizeof where, "source_model.files[%zu]", i);
    if (!json_is_object(entry)) {
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_FIELD, NULL, "%s must be an object", where);
        return;
    }
    static const char *const known[] = {"path", "size_bytes", "sha256", NULL};
    pkg_checker_keys(c, entry, where, known, PKG_FAULT_UNKNOWN_KEY);
    f->path = pkg_checker_text(c, entry, where, "path", true, PKG_FAULT_INVALID_SOURCE_MODEL_FILE);
    f->has_size = json_is_integer(json_object_get(entry, "size_bytes"));
    f->size_bytes = pkg_checker_number(c, entry, where, "size_bytes", false, INT64_MAX);
    const char *sha = pkg_checker_text(c, entry, where, "sha256", false, PKG_FAULT_INVALID_SOURCE_MODEL_FILE);
    if (!sha) return;
    f->has_sha256 = digest_from_hex(sha, f->sha256) == 0;
    if (!f->has_sha256)
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_SOURCE_MODEL_FILE, NULL, "%s.sha256 is not 64 hexadecimal digits",
                       where);
}

static strata_err check_source(struct pkg_checker *c) {
    static const char *const known[] = {"path",          "sha256",          "repo",  "revision", "primary_file",
                                        "canonical_ref", "distribution_id", "files", NULL};
    struct pkg_source_model *s = &c->m->source;
    const char *where = "source_model";
    const json_t *obj = pkg_checker_object(c, c->m->root, "", where, true);
    if (!obj) return STRATA_OK;
    pkg_checker_keys(c, obj, where, known, PKG_FAULT_UNKNOWN_KEY);
    s->path = pkg_checker_text(c, obj, where, "path", true, PKG_FAULT_EMPTY_SOURCE_MODEL_PATH);
    const char *sha = pkg_checker_text(c, obj, where, "sha256", true, PKG_FAULT_INVALID_SOURCE_MODEL_SHA256);
    if (sha && digest_from_hex(sha, s->sha256) != 0)
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_SOURCE_MODEL_SHA256, NULL,
                       "source_model.sha256 is not 64 hexadecimal digits");
    s->repo = pkg_checker_text(c, obj, where, "repo", false, PKG_FAULT_EMPTY_SOURCE_MODEL_FIELD);
    s->revision = pkg_checker_text(c, obj, where, "revision", false, PKG_FAULT_EMPTY_SOURCE_MODEL_FIELD);
    s->primary_file = pkg_checker_text(c, obj, where, "primary_file", false, PKG_FAULT_EMPTY_SOURCE_MODEL_FIELD);
    s->canonical_ref = pkg_checker_text(c, obj, where, "canonical_ref", false, PKG_FAULT_EMPTY_SOURCE_MODEL_FIELD);
    s->distribution_id = pkg_checker_text(c, obj, where, "distribution_id", false, PKG_FAULT_EMPTY_SOURCE_MODEL_FIELD);
    const json_t *files = pkg_checker_array(c, obj, where, "files", false);
    size_t n = json_array_size(files);
    if (n == 0) return STRATA_OK;
    s->files = calloc(n, sizeof *s->files);
    if (!s->files) return err_nomem(c->em, "a manifest");
    s->n_files = n;
    for (size_t i = 0; i < n; i++) check_source_file(c, json_array_get(files, i), i, &s->files[i]);
    return STRATA_OK;
}

/* The five fields that every artifact has. */
static void check_artifact(struct pkg_checker *c, const json_t *obj, const char *where, struct pkg_artifact *a) {
    static const char *const known[] = {"path",   "tensor_count", "tensor_bytes", "artifact_bytes",
                                        "sha256", "layer_index",  "kind",         NULL};
    pkg_checker_keys(c, obj, where, known, PKG_FAULT_UNKNOWN_KEY);
    const char *path = pkg_checker_text(c, obj, where, "path", true, PKG_FAULT_UNSAFE_ARTIFACT_PATH), *why = "";
    if (path && !path_is_safe_relative(path, strlen(path), &why)) {
        pkg_faults_add(c->faults, PKG_FAULT_UNSAFE_ARTIFACT_PATH, path,
                       "%s.path '%.200s' is not a safe path inside the package: %s", where, path, why);
        path = NULL;
    }
    a->path = path;
    a->has_counts = true;
    size_t before = c->faults->n_errors;
    a->tensor_count = pkg_checker_number(c, obj, where, "tensor_count", true, INT64_MAX);
    a->tensor_bytes = pkg_checker_number(c, obj, where, "tensor_bytes", true, INT64_MAX);
    a->artifact_bytes = pkg_checker_number(c, obj, where, "artifact_bytes", true, INT64_MAX);
    bool readable = c->faults->n_errors == before;
    if (readable && a->artifact_bytes == 0)
        pkg_faults_add(c->faults, PKG_FAULT_EMPTY_ARTIFACT, path, "%s.artifact_bytes is 0", where);
    if (readable && (a->tensor_count == 0) != (a->tensor_bytes == 0))
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_TENSOR_BYTES, path,
                       "%s has %" PRIu64 " tensors of %" PRIu64 " bytes in all: both must be zero or neither", where,
                       a->tensor_count, a->tensor_bytes);
    const char *sha = pkg_checker_text(c, obj, where, "sha256", true, PKG_FAULT_INVALID_ARTIFACT_SHA256);
    if (!sha) return;
    a->has_sha256 = digest_from_hex(sha, a->sha256) == 0;
    if (!a->has_sha256)
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_ARTIFACT_SHA256, path, "%s.sha256 is not 64 hexadecimal digits",
                       where);
}

static void check_shared(struct pkg_checker *c) {
    static const char *const known[] = {"metadata", "embeddings", "output", NULL};
    const json_t *shared = pkg_checker_object(c, c->m->root, "", "shared", true);
    if (shared) pkg_checker_keys(c, shared, "shared", known, PKG_FAULT_UNKNOWN_KEY);
    for (int role = 0; role < PKG_SHARED_COUNT; role++) {
        const char *name = pkg_role_name((enum pkg_role)role);
        char where[32];
        snprintf(where, sizeof where, "shared.%s", name);
        const json_t *obj = shared ? pkg_checker_object(c, shared, "shared", name, true) : NULL;
        if (obj) check_artifact(c, obj, where, &c->m->artifacts[role]);
    }
}

/* Entries may stand in any order; *seen tells which layers had one. */
static void check_layer(struct pkg_checker *c, const json_t *entry, size_t i, bool *seen) {
    char where[48];
    snprintf(where, sizeof where, "layers[%zu]", i);
    if (!json_is_object(entry)) {
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_FIELD, NULL, "%s must be an object", where);
        return;
    }
    size_t before = c->faults->n_errors;
    uint64_t index = pkg_checker_number(c, entry, where, "layer_index", true, UINT32_MAX);
    if (c->faults->n_errors != before) return;
    if (index >= c->m->layer_count) {
        pkg_faults_add(c->faults, PKG_FAULT_LAYER_INDEX_OUT_OF_RANGE, NULL,
                       "%s.layer_index is %" PRIu64 ", but layer_count is %" PRIu32, where, index, c->m->layer_count);
        return;
    }
    if (seen[index]) {
        pkg_faults_add(c->faults, PKG_FAULT_DUPLICATE_LAYER, NULL, "%s: layer %" PRIu64 " is listed twice", where,
                       index);
        return;
    }
    seen[index] = true;
    check_artifact(c, entry, where, &c->m->artifacts[PKG_SHARED_COUNT + index]);
}

/* One fault for each run of absent layers, so that a wrong layer_count does not flood the list. */
static void report_gaps(struct pkg_checker *c, const bool *seen) {
    for (uint32_t i = 0; i < c->m->layer_count;) {
        uint32_t start = i;
        while (i < c->m->layer_count && !seen[i]) i++;
        if (i == start + 1)
            pkg_faults_add(c->faults, PKG_FAULT_MISSING_LAYER, NULL, "layer %" PRIu32 " is not listed in layers",
                           start);
        else if (i > start)
            pkg_faults_add(c->faults, PKG_FAULT_MISSING_LAYER, NULL,
                           "layers %" PRIu32 " to %" PRIu32 " are not listed in layers", start, i - 1);
        else
            i++;
    }
}

/* The number of layers, 0 when it is not to be believed. */
static uint32_t layer_count(struct pkg_checker *c) {
    size_t before = c->faults->n_errors;
    uint64_t count = pkg_checker_number(c, c->m->root, "", "layer_count", true, UINT32_MAX);
    if (c->faults->n_errors == before && (count == 0 || count > PKG_MANIFEST_MAX_LAYERS))
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_LAYER_COUNT, NULL,
                       "layer_count is %" PRIu64 "; it must be from 1 to %d", count, PKG_MANIFEST_MAX_LAYERS);
    return c->faults->n_errors == before ? (uint32_t)count : 0;
}

/* Room for every artifact that there should be, in order: shared parts, layers, projectors. */
static strata_err make_artifacts(struct pkg_checker *c, size_t n_projectors) {
    struct pkg_manifest *m = c->m;
    m->layer_count = layer_count(c);
    m->n_artifacts = PKG_SHARED_COUNT + (size_t)m->layer_count + n_projectors;
    m->artifacts = calloc(m->n_artifacts, sizeof *m->artifacts);
    if (!m->artifacts) return err_nomem(c->em, "a manifest");
    for (size_t i = 0; i < m->n_artifacts; i++) {
        struct pkg_artifact *a = &m->artifacts[i];
        bool shared = i < PKG_SHARED_COUNT, layer = !shared && i < PKG_SHARED_COUNT + (size_t)m->layer_count;
        a->role = shared ? (enum pkg_role)i : layer ? PKG_ROLE_LAYER : PKG_ROLE_PROJECTOR;
        if (layer) a->layer = (uint32_t)(i - PKG_SHARED_COUNT);
    }
    return pkg_checker_index_layers(c);
}

static strata_err check_layers(struct pkg_checker *c) {
    const json_t *list = pkg_checker_array(c, c->m->root, "", "layers", true);
    bool *seen = calloc((size_t)c->m->layer_count + 1, sizeof *seen);
    if (!seen) return err_nomem(c->em, "a manifest");
    for (size_t i = 0; i < json_array_size(list) && c->m->layer_count > 0; i++)
        check_layer(c, json_array_get(list, i), i, seen);
    if (list) report_gaps(c, seen);
    free(seen);
    return STRATA_OK;
}

static void check_projectors(struct pkg_checker *c, const json_t *list) {
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++) {
        const json_t *entry = json_array_get(list, i);
        struct pkg_artifact *a = &c->m->artifacts[c->m->n_artifacts - n + i];
        char where[48];
        snprintf(where, sizeof where, "projectors[%zu]", i);
        if (!json_is_object(entry)) {
            pkg_faults_add(c->faults, PKG_FAULT_INVALID_FIELD, NULL, "%s must be an object", where);
            continue;
        }
        check_artifact(c, entry, where, a);
        a->kind = pkg_checker_text(c, entry, where, "kind", true, PKG_FAULT_EMPTY_PROJECTOR_KIND);
        if (a->kind && strcmp(a->kind, "mmproj") != 0)
            pkg_faults_add(c->faults, PKG_FAULT_UNSUPPORTED_PROJECTOR_KIND, a->path,
                           "%s.kind is '%.60s'; only mmproj is known", where, a->kind);
    }
}

static void check_width(struct pkg_checker *c) {
    const json_t *v = json_object_get(c->m->root, "activation_width");
    if (!v || json_is_null(v)) {
        pkg_faults_add(c->faults, PKG_FAULT_MISSING_ACTIVATION_WIDTH, NULL, "activation_width is missing");
        return;
    }
    json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n <= 0 || n > UINT32_MAX)
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_ACTIVATION_WIDTH, NULL,
                       "activation_width must be a whole number above 0");
    else
        c->m->activation_width = (uint32_t)n;
}

static strata_err check_fields(struct pkg_checker *c) {
    static const char *const known[] = {"schema_version",
                                        "model_id",
                                        "source_model",
                                        "format",
                                        "layer_count",
                                        "generation",
                                        "shared",
                                        "activation_width",
                                        "layers",
                                        "projectors",
                                        "created_at_unix_secs",
                                        "skippy_abi_version",
                                        NULL};
    struct pkg_manifest *m = c->m;
    pkg_checker_keys(c, m->root, "", known, PKG_FAULT_UNKNOWN_KEY);
    const char *format = pkg_checker_text(c, m->root, "", "format", true, PKG_FAULT_INVALID_FORMAT);
    if (format && strcmp(format, PKG_MANIFEST_FORMAT) != 0)
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_FORMAT, NULL, "format is '%.60s', not '%s'", format,
                       PKG_MANIFEST_FORMAT);
    m->model_id = pkg_checker_text(c, m->root, "", "model_id", true, PKG_FAULT_EMPTY_MODEL_ID);
    check_width(c);
    m->abi_version = pkg_checker_abi(c, "skippy_abi_version");
    m->created_at = pkg_checker_number(c, m->root, "", "created_at_unix_secs", false, INT64_MAX);
    m->generation = pkg_checker_object(c, m->root, "", "generation", false);
    const json_t *projectors = pkg_checker_array(c, m->root, "", "projectors", false);
    strata_err rc = check_source(c);
    if (!rc) rc = make_artifacts(c, json_array_size(projectors));
    if (!rc) check_shared(c);
    if (!rc) rc = check_layers(c);
    if (!rc) check_projectors(c, projectors);
    if (!rc) rc = pkg_checker_paths(c);
    return rc;
}

/* A known version, or a fault and 0: other versions have other fields, so nothing else can be checked. */
static unsigned check_version(const json_t *root, struct pkg_faults *faults) {
    const json_t *v = json_object_get(root, "schema_version");
    json_int_t n = json_integer_value(v);
    if (json_is_integer(v) && (n == 1 || n == 2)) return (unsigned)n;
    if (json_is_integer(v))
        pkg_faults_add(faults, PKG_FAULT_UNSUPPORTED_SCHEMA_VERSION, NULL,
                       "schema_version is %lld; this version of Strata reads 1 and 2", (long long)n);
    else
        pkg_faults_add(faults, PKG_FAULT_UNSUPPORTED_SCHEMA_VERSION, NULL, "schema_version is missing or not a number");
    return 0;
}

strata_err pkg_manifest_check(const void *data, size_t len, struct pkg_faults *faults, struct pkg_manifest **out,
                              struct strata_errmsg *em) {
    json_t *root;
    struct strata_errmsg why;
    uint8_t sha[DIGEST_BYTES];
    *out = NULL;
    if (len > PKG_MANIFEST_MAX_BYTES) {
        pkg_faults_add(faults, PKG_FAULT_MANIFEST_TOO_LARGE, NULL,
                       "the manifest has %zu bytes; at most %d are accepted", len, PKG_MANIFEST_MAX_BYTES);
        return STRATA_OK;
    }
    strata_err rc = jsonx_parse(data, len, &root, &why);
    if (rc == STRATA_ENOMEM) return err_nomem(em, "a manifest");
    if (rc) {
        pkg_faults_add(faults, PKG_FAULT_INVALID_MANIFEST_JSON, NULL, "%s", why.text);
        return STRATA_OK;
    }
    struct pkg_manifest *m = calloc(1, sizeof *m);
    if (!m) {
        json_decref(root);
        return err_nomem(em, "a manifest");
    }
    m->root = root;
    rc = digest_of(data, len, sha, em);
    if (rc) goto out;
    digest_to_hex(sha, sizeof sha, m->sha256);
    if (!json_is_object(root)) {
        pkg_faults_add(faults, PKG_FAULT_INVALID_MANIFEST_JSON, NULL, "the document is not an object");
        goto out;
    }
    m->schema = check_version(root, faults);
    if (!m->schema) goto out;
    struct pkg_checker c = {.m = m, .faults = faults, .em = em};
    rc = m->schema == 2 ? pkg_manifest2_check(&c) : check_fields(&c);
    if (rc) goto out;
    *out = m;
    m = NULL;
out:
    pkg_manifest_free(m);
    return rc;
}

strata_err pkg_manifest_parse(const void *data, size_t len, const char *name, struct pkg_manifest **out,
                              struct strata_errmsg *em) {
    struct pkg_faults faults;
    struct pkg_manifest *m = NULL;
    pkg_faults_init(&faults);
    strata_err rc = pkg_manifest_check(data, len, &faults, &m, em);
    if (!rc) rc = pkg_faults_first(&faults, name, em);
    if (rc) goto out;
    *out = m;
    m = NULL;
out:
    pkg_manifest_free(m);
    pkg_faults_deinit(&faults);
    return rc;
}

strata_err pkg_manifest_load(const char *dir, struct pkg_manifest **out, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    struct buf text_buf;
    buf_init(&text_buf, PKG_MANIFEST_MAX_BYTES);
    strata_err rc = path_join(path, sizeof path, dir, PKG_MANIFEST_FILE, em);
    if (!rc) rc = file_read_all(path, PKG_MANIFEST_MAX_BYTES, &text_buf, em);
    if (!rc) rc = pkg_manifest_parse(buf_cstr(&text_buf), text_buf.len, path, out, em);
    buf_deinit(&text_buf);
    return rc;
}

void pkg_manifest_free(struct pkg_manifest *m) {
    if (!m) return;
    free(m->source.files);
    free(m->artifacts);
    free(m->layer_at);
    json_decref(m->root);
    free(m);
}

const struct pkg_artifact *pkg_manifest_shared(const struct pkg_manifest *m, enum pkg_role role) {
    for (size_t i = 0; i < m->n_artifacts && m->artifacts[i].role <= role; i++)
        if (m->artifacts[i].role == role) return &m->artifacts[i];
    return NULL;
}

const struct pkg_artifact *pkg_manifest_layer(const struct pkg_manifest *m, uint32_t layer, size_t *n_parts) {
    *n_parts = m->layer_at[layer + 1] - m->layer_at[layer];
    return &m->artifacts[m->layer_at[layer]];
}
