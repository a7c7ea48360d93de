/*
 * A list of everything that is wrong with a package: each fault has a stable code, a message, the path it concerns and
 * a remedy. Checks add to the list and go on, so that a publisher sees all faults at once; a loader asks for the first.
 *
 * Life cycle: pkg_faults_init, any number of additions, pkg_faults_deinit.
 */
#ifndef PKG_FAULT_H
#define PKG_FAULT_H

#include "base/err.h"
#include "base/jsonx.h"

#include <stdbool.h>
#include <stddef.h>

enum pkg_severity { PKG_WARNING, PKG_ERROR };

enum pkg_fault_code {
    /* the manifest as a file */
    PKG_FAULT_MISSING_MANIFEST,
    PKG_FAULT_MANIFEST_TOO_LARGE,
    PKG_FAULT_INVALID_MANIFEST_JSON,
    /* its fields */
    PKG_FAULT_INVALID_FIELD,
    PKG_FAULT_UNSUPPORTED_SCHEMA_VERSION,
    PKG_FAULT_INVALID_FORMAT,
    PKG_FAULT_EMPTY_MODEL_ID,
    PKG_FAULT_INVALID_LAYER_COUNT,
    PKG_FAULT_INVALID_ACTIVATION_WIDTH,
    PKG_FAULT_MISSING_ACTIVATION_WIDTH,
    PKG_FAULT_EMPTY_SOURCE_MODEL_PATH,
    PKG_FAULT_INVALID_SOURCE_MODEL_SHA256,
    PKG_FAULT_INVALID_SOURCE_MODEL_FILE,
    PKG_FAULT_EMPTY_SOURCE_MODEL_FIELD,
    PKG_FAULT_MISSING_SKIPPY_ABI_VERSION,
    PKG_FAULT_INCOMPATIBLE_SKIPPY_ABI_VERSION,
    PKG_FAULT_EMPTY_PROJECTOR_KIND,
    PKG_FAULT_UNSUPPORTED_PROJECTOR_KIND,
    PKG_FAULT_LAYER_INDEX_OUT_OF_RANGE,
    PKG_FAULT_MISSING_LAYER,
    PKG_FAULT_DUPLICATE_LAYER,
    /* its artifact entries */
    PKG_FAULT_UNSAFE_ARTIFACT_PATH,
    PKG_FAULT_DUPLICATE_ARTIFACT_PATH,
    PKG_FAULT_EMPTY_ARTIFACT,
    PKG_FAULT_INVALID_TENSOR_BYTES,
    PKG_FAULT_INVALID_ARTIFACT_SHA256,
    /* the artifacts as files */
    PKG_FAULT_MISSING_ARTIFACT,
    PKG_FAULT_ARTIFACT_NOT_FILE,
    PKG_FAULT_ARTIFACT_UNREADABLE,
    PKG_FAULT_ARTIFACT_SIZE_MISMATCH,
    PKG_FAULT_ARTIFACT_SHA256_MISMATCH,
    PKG_FAULT_INVALID_ARTIFACT_GGUF,
    PKG_FAULT_TENSOR_COUNT_MISMATCH,
    PKG_FAULT_TENSOR_BYTES_MISMATCH,
    PKG_FAULT_FOREIGN_TENSOR,
    PKG_FAULT_MISSING_TENSOR,
    PKG_FAULT_ACTIVATION_WIDTH_MISMATCH,
    PKG_FAULT_LAYER_COUNT_MISMATCH,
    PKG_FAULT_COUNT
};

/* "missing_layer" and the like: names are part of the output format. */
const char *pkg_fault_name(enum pkg_fault_code code);
const char *pkg_fault_remedy(enum pkg_fault_code code);
enum pkg_severity pkg_fault_severity(enum pkg_fault_code code);

struct pkg_fault {
    enum pkg_fault_code code;
    char *message; /* owned */
    char *path;    /* owned; relative to the package, or NULL */
};

struct pkg_faults {
    struct pkg_fault *list;
    size_t n, cap;
    size_t n_errors;  /* those of severity error, the dropped ones included */
    size_t n_dropped; /* faults beyond the list's maximum */
    bool out_of_memory;
};

void pkg_faults_init(struct pkg_faults *f);
void pkg_faults_deinit(struct pkg_faults *f);

/* path may be NULL. A failed allocation is remembered in out_of_memory and reported by pkg_faults_first. */
void pkg_faults_add(struct pkg_faults *f, enum pkg_fault_code code, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* STRATA_OK without errors; else the first one as "name: message", and the count of the others. Warnings are passed
 * over. */
strata_err pkg_faults_first(const struct pkg_faults *f, const char *name, struct strata_errmsg *em);

/* A new JSON array of {severity, code, message, path?, remediation}. */
strata_err pkg_faults_to_json(const struct pkg_faults *f, json_t **out, struct strata_errmsg *em);

#endif
