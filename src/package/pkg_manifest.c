/*
 * Parser of model-package.json. See pkg_manifest.h.
 *
 * Refuses what the standard's "Consumer Validation" lists, and also entries that share a path, and layer counts beyond
 * what file names can number. Owns the JSON document and the tables.
 */
#include "package/pkg_manifest.h"

#include "base/file.h"
#include "base/path.h"
#include "gguf/gguf_index.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct checker {
    struct pkg_manifest *m;
    struct pkg_faults *faults;
    struct strata_errmsg *em;
};

const char *pkg_role_name(enum pkg_role role) {
    static const char *const names[] = {"metadata", "embeddings", "output", "layer", "projector"};
    return (unsigned)role < sizeof names / sizeof names[0] ? names[role] : "unknown";
}

static bool is_blank(const char *s) {
    return s[strspn(s, " \t\r\n")] == '\0';
}

/* A string that must say something. Absent is a fault only when required; blank always is. */
static const char *text(struct checker *c, const json_t *obj, const char *where, const char *key, bool required,
                        enum pkg_fault_code blank) {
    const char *s = NULL;
    struct strata_errmsg em;
    if (jsonx_get_str(obj, where, key, false, &s, &em)) {
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_FIELD, NULL, "%s", em.text);
        return NULL;
    }
    if (!s && !required) return NULL;
    if (!s || is_blank(s)) {
        pkg_faults_add(c->faults, blank, NULL, "%s%s%s is %s", where, *where ? "." : "", key, s ? "empty" : "missing");
        return NULL;
    }
    return s;
}

static uint64_t number(struct checker *c, const json_t *obj, const char *where, const char *key, bool required,
                       uint64_t max) {
    uint64_t v = 0;
    struct strata_errmsg em;
    if (jsonx_get_u64(obj, where, key, required, max, &v, &em))
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_FIELD, NULL, "%s", em.text);
    return v;
}

static const json_t *object(struct checker *c, const json_t *obj, const char *where, const char *key, bool required) {
    json_t *v = NULL;
    struct strata_errmsg em;
    if (jsonx_get_obj(obj, where, key, required, &v, &em))
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_FIELD, NULL, "%s", em.text);
    return v;
}

static const json_t *array(struct checker *c, const json_t *obj, const char *where, const char *key, bool required) {
    json_t *v = NULL;
    struct strata_errmsg em;
    if (jsonx_get_array(obj, where, key, required, &v, &em))
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_FIELD, NULL, "%s", em.text);
    return v;
}

static void check_source_file(struct checker *c, const json_t *entry, size_t i, struct pkg_source_file *f) {
    char where[48];
    snprintf(where, sizeof where, "source_model.files[%zu]", i);
    if (!json_is_object(entry)) {
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_FIELD, NULL, "%s must be an object", where);
        return;
    }
    f->path = text(c, entry, where, "path", true, PKG_FAULT_INVALID_SOURCE_MODEL_FILE);
    f->has_size = json_is_integer(json_object_get(entry, "size_bytes"));
    f->size_bytes = number(c, entry, where, "size_bytes", false, INT64_MAX);
    const char *sha = text(c, entry, where, "sha256", false, PKG_FAULT_INVALID_SOURCE_MODEL_FILE);
    if (!sha) return;
    f->has_sha256 = digest_from_hex(sha, f->sha256) == 0;
    if (!f->has_sha256)
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_SOURCE_MODEL_FILE, NULL, "%s.sha256 is not 64 hexadecimal digits",
                       where);
}

static strata_err check_source(struct checker *c) {
    struct pkg_source_model *s = &c->m->source;
    const char *where = "source_model";
    const json_t *obj = object(c, c->m->root, "", where, true);
    if (!obj) return STRATA_OK;
    s->path = text(c, obj, where, "path", true, PKG_FAULT_EMPTY_SOURCE_MODEL_PATH);
    const char *sha = text(c, obj, where, "sha256", true, PKG_FAULT_INVALID_SOURCE_MODEL_SHA256);
    if (sha && digest_from_hex(sha, s->sha256) != 0)
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_SOURCE_MODEL_SHA256, NULL,
                       "source_model.sha256 is not 64 hexadecimal digits");
    s->repo = text(c, obj, where, "repo", false, PKG_FAULT_EMPTY_SOURCE_MODEL_FIELD);
    s->revision = text(c, obj, where, "revision", false, PKG_FAULT_EMPTY_SOURCE_MODEL_FIELD);
    s->primary_file = text(c, obj, where, "primary_file", false, PKG_FAULT_EMPTY_SOURCE_MODEL_FIELD);
    s->canonical_ref = text(c, obj, where, "canonical_ref", false, PKG_FAULT_EMPTY_SOURCE_MODEL_FIELD);
    s->distribution_id = text(c, obj, where, "distribution_id", false, PKG_FAULT_EMPTY_SOURCE_MODEL_FIELD);
    const json_t *files = array(c, obj, where, "files", false);
    size_t n = json_array_size(files);
    if (n == 0) return STRATA_OK;
    s->files = calloc(n, sizeof *s->files);
    if (!s->files) return err_nomem(c->em, "a manifest");
    s->n_files = n;
    for (size_t i = 0; i < n; i++) check_source_file(c, json_array_get(files, i), i, &s->files[i]);
    return STRATA_OK;
}

/* The five fields that every artifact has. */
static void check_artifact(struct checker *c, const json_t *obj, const char *where, struct pkg_artifact *a) {
    const char *path = text(c, obj, where, "path", true, PKG_FAULT_UNSAFE_ARTIFACT_PATH), *why = "";
    if (path && !path_is_safe_relative(path, strlen(path), &why)) {
        pkg_faults_add(c->faults, PKG_FAULT_UNSAFE_ARTIFACT_PATH, path,
                       "%s.path '%.200s' is not a safe path inside the package: %s", where, path, why);
        path = NULL;
    }
    a->path = path;
    size_t before = c->faults->n_errors;
    a->tensor_count = number(c, obj, where, "tensor_count", true, INT64_MAX);
    a->tensor_bytes = number(c, obj, where, "tensor_bytes", true, INT64_MAX);
    a->artifact_bytes = number(c, obj, where, "artifact_bytes", true, INT64_MAX);
    bool readable = c->faults->n_errors == before;
    if (readable && a->artifact_bytes == 0)
        pkg_faults_add(c->faults, PKG_FAULT_EMPTY_ARTIFACT, path, "%s.artifact_bytes is 0", where);
    if (readable && (a->tensor_count == 0) != (a->tensor_bytes == 0))
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_TENSOR_BYTES, path,
                       "%s has %" PRIu64 " tensors of %" PRIu64 " bytes in all: both must be zero or neither", where,
                       a->tensor_count, a->tensor_bytes);
    const char *sha = text(c, obj, where, "sha256", true, PKG_FAULT_INVALID_ARTIFACT_SHA256);
    if (!sha) return;
    a->has_sha256 = digest_from_hex(sha, a->sha256) == 0;
    if (!a->has_sha256)
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_ARTIFACT_SHA256, path, "%s.sha256 is not 64 hexadecimal digits",
                       where);
}

static void check_shared(struct checker *c) {
    const json_t *shared = object(c, c->m->root, "", "shared", true);
    for (int role = 0; role < PKG_SHARED_COUNT; role++) {
        struct pkg_artifact *a = &c->m->shared[role];
        const char *name = pkg_role_name((enum pkg_role)role);
        char where[32];
        a->role = (enum pkg_role)role;
        snprintf(where, sizeof where, "shared.%s", name);
        const json_t *obj = shared ? object(c, shared, "shared", name, true) : NULL;
        if (obj) check_artifact(c, obj, where, a);
    }
}

static void check_layer(struct checker *c, const json_t *entry, size_t i) {
    char where[48];
    snprintf(where, sizeof where, "layers[%zu]", i);
    if (!json_is_object(entry)) {
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_FIELD, NULL, "%s must be an object", where);
        return;
    }
    size_t before = c->faults->n_errors;
    uint64_t index = number(c, entry, where, "layer_index", true, UINT32_MAX);
    if (c->faults->n_errors != before) return;
    if (index >= c->m->layer_count) {
        pkg_faults_add(c->faults, PKG_FAULT_LAYER_INDEX_OUT_OF_RANGE, NULL,
                       "%s.layer_index is %" PRIu64 ", but layer_count is %" PRIu32, where, index, c->m->layer_count);
        return;
    }
    struct pkg_artifact *a = &c->m->layers[index];
    if (a->role == PKG_ROLE_LAYER) {
        pkg_faults_add(c->faults, PKG_FAULT_DUPLICATE_LAYER, NULL, "%s: layer %" PRIu64 " is listed twice", where,
                       index);
        return;
    }
    a->role = PKG_ROLE_LAYER;
    a->layer = (uint32_t)index;
    check_artifact(c, entry, where, a);
}

/* One fault for each run of absent layers, so that a wrong layer_count does not flood the list. */
static void report_gaps(struct checker *c) {
    for (uint32_t i = 0; i < c->m->layer_count;) {
        uint32_t start = i;
        while (i < c->m->layer_count && c->m->layers[i].role != PKG_ROLE_LAYER) i++;
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

static strata_err check_layers(struct checker *c) {
    size_t before = c->faults->n_errors;
    uint64_t count = number(c, c->m->root, "", "layer_count", true, UINT32_MAX);
    if (c->faults->n_errors == before && (count == 0 || count > PKG_MANIFEST_MAX_LAYERS))
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_LAYER_COUNT, NULL,
                       "layer_count is %" PRIu64 "; it must be from 1 to %d", count, PKG_MANIFEST_MAX_LAYERS);
    if (c->faults->n_errors != before) count = 0;
    c->m->layers = calloc(count ? count : 1, sizeof *c->m->layers);
    if (!c->m->layers) return err_nomem(c->em, "a manifest");
    c->m->layer_count = (uint32_t)count;
    const json_t *list = array(c, c->m->root, "", "layers", true);
    for (size_t i = 0; i < json_array_size(list) && count > 0; i++) check_layer(c, json_array_get(list, i), i);
    if (list) report_gaps(c);
    /* Absent entries too say which layer they stand for. */
    for (uint32_t i = 0; i < c->m->layer_count; i++) {
        c->m->layers[i].role = PKG_ROLE_LAYER;
        c->m->layers[i].layer = i;
    }
    return STRATA_OK;
}

static strata_err check_projectors(struct checker *c) {
    const json_t *list = array(c, c->m->root, "", "projectors", false);
    size_t n = json_array_size(list);
    if (n == 0) return STRATA_OK;
    c->m->projectors = calloc(n, sizeof *c->m->projectors);
    if (!c->m->projectors) return err_nomem(c->em, "a manifest");
    c->m->n_projectors = n;
    for (size_t i = 0; i < n; i++) {
        const json_t *entry = json_array_get(list, i);
        struct pkg_artifact *a = &c->m->projectors[i];
        char where[48];
        snprintf(where, sizeof where, "projectors[%zu]", i);
        a->role = PKG_ROLE_PROJECTOR;
        if (!json_is_object(entry)) {
            pkg_faults_add(c->faults, PKG_FAULT_INVALID_FIELD, NULL, "%s must be an object", where);
            continue;
        }
        check_artifact(c, entry, where, a);
        a->kind = text(c, entry, where, "kind", true, PKG_FAULT_EMPTY_PROJECTOR_KIND);
        if (a->kind && strcmp(a->kind, "mmproj") != 0)
            pkg_faults_add(c->faults, PKG_FAULT_UNSUPPORTED_PROJECTOR_KIND, a->path,
                           "%s.kind is '%.60s'; only mmproj is known", where, a->kind);
    }
    return STRATA_OK;
}

/* "major.minor[.patch]": equal majors, and a minor not above ours. */
static void check_abi(struct checker *c) {
    const char *v = text(c, c->m->root, "", "skippy_abi_version", true, PKG_FAULT_MISSING_SKIPPY_ABI_VERSION);
    if (!v) return;
    c->m->abi_version = v;
    unsigned part[3] = {0};
    int n = 0;
    const char *p = v;
    while (n < 3) {
        size_t digits = strspn(p, "0123456789");
        if (digits == 0 || digits > 6) break;
        part[n++] = (unsigned)strtoul(p, NULL, 10);
        p += digits;
        if (*p != '.') break;
        p++;
    }
    bool well_formed = n >= 2 && *p == '\0' && p[-1] != '.';
    if (!well_formed)
        pkg_faults_add(c->faults, PKG_FAULT_INCOMPATIBLE_SKIPPY_ABI_VERSION, NULL,
                       "skippy_abi_version '%.60s' is not of the form major.minor.patch", v);
    else if (part[0] != PKG_MANIFEST_ABI_MAJOR || part[1] > PKG_MANIFEST_ABI_MINOR)
        pkg_faults_add(c->faults, PKG_FAULT_INCOMPATIBLE_SKIPPY_ABI_VERSION, NULL,
                       "skippy_abi_version %.60s cannot be read; this version reads %d.0 to %d.%d", v,
                       PKG_MANIFEST_ABI_MAJOR, PKG_MANIFEST_ABI_MAJOR, PKG_MANIFEST_ABI_MINOR);
}

static void check_width(struct checker *c) {
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

static strata_err check_paths(struct checker *c) {
    struct gguf_index seen = {0};
    size_t total = 0;
    while (pkg_manifest_artifact(c->m, total)) total++;
    strata_err rc = gguf_index_init(&seen, total, c->em);
    for (size_t i = 0; i < total && !rc; i++) {
        const char *path = pkg_manifest_artifact(c->m, i)->path;
        if (path && !gguf_index_put(&seen, path, i))
            pkg_faults_add(c->faults, PKG_FAULT_DUPLICATE_ARTIFACT_PATH, path, "two entries name the file %.200s",
                           path);
    }
    gguf_index_deinit(&seen);
    return rc;
}

static strata_err check_fields(struct checker *c) {
    struct pkg_manifest *m = c->m;
    const char *format = text(c, m->root, "", "format", true, PKG_FAULT_INVALID_FORMAT);
    if (format && strcmp(format, PKG_MANIFEST_FORMAT) != 0)
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_FORMAT, NULL, "format is '%.60s', not '%s'", format,
                       PKG_MANIFEST_FORMAT);
    m->model_id = text(c, m->root, "", "model_id", true, PKG_FAULT_EMPTY_MODEL_ID);
    check_width(c);
    check_shared(c);
    check_abi(c);
    m->created_at = number(c, m->root, "", "created_at_unix_secs", false, INT64_MAX);
    m->generation = object(c, m->root, "", "generation", false);
    strata_err rc = check_source(c);
    if (!rc) rc = check_layers(c);
    if (!rc) rc = check_projectors(c);
    if (!rc) rc = check_paths(c);
    return rc;
}

/* Version 1, or a fault: other versions have other fields, so nothing else can be checked. */
static bool check_version(const json_t *root, struct pkg_faults *faults) {
    const json_t *v = json_object_get(root, "schema_version");
    if (json_is_integer(v) && json_integer_value(v) == 1) return true;
    if (json_is_integer(v))
        pkg_faults_add(faults, PKG_FAULT_UNSUPPORTED_SCHEMA_VERSION, NULL,
                       "schema_version is %lld; this version of Strata reads 1", (long long)json_integer_value(v));
    else
        pkg_faults_add(faults, PKG_FAULT_UNSUPPORTED_SCHEMA_VERSION, NULL, "schema_version is missing or not a number");
    return false;
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
    if (jsonx_parse(data, len, &root, &why)) {
        pkg_faults_add(faults, PKG_FAULT_INVALID_MANIFEST_JSON, NULL, "%s", why.text);
        return STRATA_OK;
    }
    struct pkg_manifest *m = calloc(1, sizeof *m);
    if (!m) {
        json_decref(root);
        return err_nomem(em, "a manifest");
    }
    m->root = root;
    strata_err rc = digest_of(data, len, sha, em);
    if (rc) goto out;
    digest_to_hex(sha, sizeof sha, m->sha256);
    if (!json_is_object(root)) {
        pkg_faults_add(faults, PKG_FAULT_INVALID_MANIFEST_JSON, NULL, "the document is not an object");
        goto out;
    }
    if (!check_version(root, faults)) goto out;
    struct checker c = {.m = m, .faults = faults, .em = em};
    rc = check_fields(&c);
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
    free(m->layers);
    free(m->projectors);
    json_decref(m->root);
    free(m);
}

const struct pkg_artifact *pkg_manifest_artifact(const struct pkg_manifest *m, size_t i) {
    if (i < PKG_SHARED_COUNT) return &m->shared[i];
    i -= PKG_SHARED_COUNT;
    if (i < m->layer_count) return &m->layers[i];
    i -= m->layer_count;
    return i < m->n_projectors ? &m->projectors[i] : NULL;
}
