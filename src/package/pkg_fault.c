/* The list of faults and the table of their codes. See pkg_fault.h. Owns the texts. */
#include "package/pkg_fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FAULTS = 2000 };

static const char rewrite[] = "write the package again with 'strata write-package'";
static const char restore[] = "fetch or copy this file again from where the package was published";
static const char fix[] = "correct this field of model-package.json, or write the package again";

static const struct {
    const char *name;
    const char *remedy;
    enum pkg_severity severity;
    strata_err err;
} codes[PKG_FAULT_COUNT] = {
    [PKG_FAULT_MISSING_MANIFEST] = {"missing_manifest", "give the folder that holds model-package.json", PKG_ERROR,
                                    STRATA_ENOENT},
    [PKG_FAULT_MANIFEST_TOO_LARGE] = {"manifest_too_large", rewrite, PKG_ERROR, STRATA_ELIMIT},
    [PKG_FAULT_INVALID_MANIFEST_JSON] = {"invalid_manifest_json", restore, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_FIELD] = {"invalid_manifest_field", fix, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_UNSUPPORTED_SCHEMA_VERSION] = {"unsupported_schema_version",
                                              "use a package of schema version 1, or a newer Strata", PKG_ERROR,
                                              STRATA_EUNSUPPORTED},
    [PKG_FAULT_INVALID_FORMAT] = {"invalid_format", "set format to \"layer-package\"", PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_EMPTY_MODEL_ID] = {"empty_model_id", "set model_id to the model's coordinate, such as org/repo:variant",
                                  PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_LAYER_COUNT] = {"invalid_layer_count", fix, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_ACTIVATION_WIDTH] = {"invalid_activation_width", fix, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_MISSING_ACTIVATION_WIDTH] = {"missing_activation_width",
                                            "add activation_width, the model's embedding length", PKG_WARNING,
                                            STRATA_EFORMAT},
    [PKG_FAULT_EMPTY_SOURCE_MODEL_PATH] = {"empty_source_model_path", fix, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_SOURCE_MODEL_SHA256] = {"invalid_source_model_sha256", fix, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_SOURCE_MODEL_FILE] = {"invalid_source_model_file", fix, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_EMPTY_SOURCE_MODEL_FIELD] = {"empty_source_model_field", "fill this field or leave it out", PKG_ERROR,
                                            STRATA_EFORMAT},
    [PKG_FAULT_MISSING_SKIPPY_ABI_VERSION] = {"missing_skippy_abi_version", fix, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INCOMPATIBLE_SKIPPY_ABI_VERSION] = {"incompatible_skippy_abi_version",
                                                   "use a package written for this version, or a newer Strata",
                                                   PKG_ERROR, STRATA_EUNSUPPORTED},
    [PKG_FAULT_EMPTY_PROJECTOR_KIND] = {"empty_projector_kind", "set kind to \"mmproj\"", PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_UNSUPPORTED_PROJECTOR_KIND] = {"unsupported_projector_kind", "set kind to \"mmproj\"", PKG_ERROR,
                                              STRATA_EUNSUPPORTED},
    [PKG_FAULT_LAYER_INDEX_OUT_OF_RANGE] = {"layer_index_out_of_range", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_MISSING_LAYER] = {"missing_layer", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_DUPLICATE_LAYER] = {"duplicate_layer", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_UNSAFE_ARTIFACT_PATH] = {"unsafe_artifact_path",
                                        "do not use this package unless you trust it: paths must stay inside it",
                                        PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_DUPLICATE_ARTIFACT_PATH] = {"duplicate_artifact_path", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_EMPTY_ARTIFACT] = {"empty_artifact", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_TENSOR_BYTES] = {"invalid_tensor_bytes", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_ARTIFACT_SHA256] = {"invalid_artifact_sha256", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_MISSING_ARTIFACT] = {"missing_artifact", restore, PKG_ERROR, STRATA_ENOENT},
    [PKG_FAULT_ARTIFACT_NOT_FILE] = {"artifact_not_file", restore, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_ARTIFACT_UNREADABLE] = {"artifact_unreadable", "check the permissions and the disk", PKG_ERROR,
                                       STRATA_EIO},
    [PKG_FAULT_ARTIFACT_SIZE_MISMATCH] = {"artifact_size_mismatch", restore, PKG_ERROR, STRATA_EDIGEST},
    [PKG_FAULT_ARTIFACT_SHA256_MISMATCH] = {"artifact_sha256_mismatch", restore, PKG_ERROR, STRATA_EDIGEST},
    [PKG_FAULT_INVALID_ARTIFACT_GGUF] = {"invalid_artifact_gguf", restore, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_TENSOR_COUNT_MISMATCH] = {"tensor_count_mismatch", rewrite, PKG_ERROR, STRATA_EDIGEST},
    [PKG_FAULT_TENSOR_BYTES_MISMATCH] = {"tensor_bytes_mismatch", rewrite, PKG_ERROR, STRATA_EDIGEST},
    [PKG_FAULT_FOREIGN_TENSOR] = {"foreign_tensor", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_MISSING_TENSOR] = {"missing_tensor", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_ACTIVATION_WIDTH_MISMATCH] = {"activation_width_mismatch", fix, PKG_WARNING, STRATA_EFORMAT},
    [PKG_FAULT_LAYER_COUNT_MISMATCH] = {"layer_count_mismatch",
                                        "compare with the source model: the metadata and the layers disagree",
                                        PKG_WARNING, STRATA_EFORMAT},
};

const char *pkg_fault_name(enum pkg_fault_code code) {
    return codes[code].name;
}

const char *pkg_fault_remedy(enum pkg_fault_code code) {
    return codes[code].remedy;
}

enum pkg_severity pkg_fault_severity(enum pkg_fault_code code) {
    return codes[code].severity;
}

void pkg_faults_init(struct pkg_faults *f) {
    *f = (struct pkg_faults){0};
}

void pkg_faults_deinit(struct pkg_faults *f) {
    for (size_t i = 0; i < f->n; i++) {
        free(f->list[i].message);
        free(f->list[i].path);
    }
    free(f->list);
    *f = (struct pkg_faults){0};
}

static bool reserve(struct pkg_faults *f) {
    if (f->n < f->cap) return true;
    size_t cap = f->cap ? f->cap * 2 : 16;
    struct pkg_fault *list = reallocarray(f->list, cap, sizeof *list);
    if (!list) return false;
    f->list = list;
    f->cap = cap;
    return true;
}

void pkg_faults_add(struct pkg_faults *f, enum pkg_fault_code code, const char *path, const char *fmt, ...) {
    if (codes[code].severity == PKG_ERROR) f->n_errors++;
    if (f->n == MAX_FAULTS) {
        f->n_dropped++;
        return;
    }
    /* err_set's rules apply: bounded, and no control characters from foreign data. */
    char text[STRATA_ERRMSG_MAX];
    struct strata_errmsg em;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(&em, codes[code].err, "%s", text);
    struct pkg_fault fault = {.code = code, .message = strdup(em.text), .path = path ? strdup(path) : NULL};
    if (!fault.message || (path && !fault.path) || !reserve(f)) {
        f->out_of_memory = true;
        free(fault.message);
        free(fault.path);
        return;
    }
    f->list[f->n++] = fault;
}

strata_err pkg_faults_first(const struct pkg_faults *f, const char *name, struct strata_errmsg *em) {
    if (f->out_of_memory) return err_nomem(em, "the list of faults");
    if (f->n_errors == 0) return STRATA_OK;
    const struct pkg_fault *first = NULL;
    for (size_t i = 0; i < f->n && !first; i++)
        if (codes[f->list[i].code].severity == PKG_ERROR) first = &f->list[i];
    if (!first) return err_set(em, STRATA_EFORMAT, "%s: %zu faults", name, f->n_errors);
    char more[64] = "";
    if (f->n_errors > 1) snprintf(more, sizeof more, " (and %zu more; 'strata preflight' lists them)", f->n_errors - 1);
    return err_set(em, codes[first->code].err, "%s: %s%s: %s", name, first->message, more, codes[first->code].remedy);
}

strata_err pkg_faults_to_json(const struct pkg_faults *f, json_t **out, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    json_t *list = json_array();
    if (!list || f->out_of_memory) rc = err_nomem(em, "the list of faults");
    for (size_t i = 0; i < f->n && !rc; i++) {
        const struct pkg_fault *x = &f->list[i];
        json_t *path = x->path ? jsonx_text(x->path, strlen(x->path)) : NULL;
        json_t *o = json_pack("{s:s, s:s, s:o, s:o*, s:s}", "severity",
                              codes[x->code].severity == PKG_ERROR ? "error" : "warning", "code", codes[x->code].name,
                              "message", jsonx_text(x->message, strlen(x->message)), "path", path, "remediation",
                              codes[x->code].remedy);
        if (!o || json_array_append_new(list, o) != 0) rc = err_nomem(em, "the list of faults");
    }
    if (rc) {
        json_decref(list);
        return rc;
    }
    *out = list;
    return STRATA_OK;
}
