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

enum pkg_severity { PKG_NOTE, PKG_WARNING, PKG_ERROR };

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
    /* the manifest, what it does not need */
    PKG_FAULT_UNKNOWN_KEY,
    PKG_FAULT_MISSING_SOURCE_IDENTITY,
    PKG_FAULT_MISSING_SOURCE_DIGEST,
    /* files and fragments, seen together */
    PKG_FAULT_ARTIFACT_PATH_CASE_CLASH,
    PKG_FAULT_ARTIFACT_OUTSIDE_PACKAGE,
    PKG_FAULT_SPLIT_NAMED_ARTIFACT,
    PKG_FAULT_STRAY_FILE,
    PKG_FAULT_ARTIFACT_SHA256_UNREADABLE,
    PKG_FAULT_MISSING_SLICE_KEYS,
    PKG_FAULT_SLICE_KEYS_MISMATCH,
    PKG_FAULT_DUPLICATE_TENSOR,
    PKG_FAULT_REPLICA_MISMATCH,
    PKG_FAULT_ARCHITECTURE_MISMATCH,
    /* files cut from a model, compared with that model */
    PKG_FAULT_SOURCE_SHA256_MISMATCH,
    PKG_FAULT_SOURCE_FILE_MISMATCH,
    PKG_FAULT_SOURCE_LAYER_COUNT_MISMATCH,
    PKG_FAULT_SOURCE_WIDTH_MISMATCH,
    PKG_FAULT_UNKNOWN_TENSOR,
    PKG_FAULT_TENSOR_TYPE_MISMATCH,
    PKG_FAULT_TENSOR_SHAPE_MISMATCH,
    PKG_FAULT_TENSOR_PAYLOAD_MISMATCH,
    PKG_FAULT_METADATA_MISMATCH,
    PKG_FAULT_EMPTY_SLICE,
    PKG_FAULT_SOURCE_PROJECTOR_MISMATCH,
    /* stages */
    PKG_FAULT_INVALID_STAGE_COUNT,
    PKG_FAULT_STAGE_COUNT_EXCEEDS_LAYER_COUNT,
    /* the generation block */
    PKG_FAULT_INVALID_GENERATION_FIELD,
    PKG_FAULT_UNKNOWN_GENERATION_KEY,
    PKG_FAULT_UNSUPPORTED_GENERATION_POLICY,
    PKG_FAULT_EMPTY_GENERATION_POLICY_FIELD,
    PKG_FAULT_INVALID_GENERATION_THRESHOLD_ZERO,
    PKG_FAULT_EMPTY_SPECULATIVE_DEFAULT,
    PKG_FAULT_MISSING_SPECULATIVE_DEFAULT_STRATEGY,
    PKG_FAULT_EMPTY_SPECULATIVE_PROPOSER_NAME,
    PKG_FAULT_UNSUPPORTED_SPECULATIVE_PROPOSER_TYPE,
    PKG_FAULT_EMPTY_SPECULATIVE_STRATEGY_NAME,
    PKG_FAULT_EMPTY_SPECULATIVE_STRATEGY_TYPE,
    PKG_FAULT_UNSUPPORTED_SPECULATIVE_STRATEGY_TYPE,
    PKG_FAULT_UNUSED_SPECULATIVE_STRATEGY_TYPE,
    PKG_FAULT_MISSING_SPECULATIVE_PROPOSER,
    PKG_FAULT_NATIVE_MTP_STRATEGY_PROPOSER_TYPE_MISMATCH,
    PKG_FAULT_MISSING_NGRAM_STRATEGY_PROPOSER,
    PKG_FAULT_NGRAM_STRATEGY_PROPOSER_TYPE_MISMATCH,
    PKG_FAULT_MISSING_COMPOSITE_EXTENSION_POLICY,
    PKG_FAULT_MISSING_COMPOSITE_PRIMARY,
    PKG_FAULT_MISSING_COMPOSITE_EXTENDER,
    PKG_FAULT_INVALID_COMPOSITE_PRIMARY_TYPE,
    PKG_FAULT_INVALID_COMPOSITE_EXTENDER_TYPE,
    PKG_FAULT_UNSUPPORTED_NATIVE_MTP_PREDICTION_DEPTH,
    PKG_FAULT_MISSING_NATIVE_MTP_LAYERS,
    PKG_FAULT_NATIVE_MTP_LAYER_OUT_OF_RANGE,
    PKG_FAULT_NATIVE_MTP_LAYER_WITHOUT_TENSORS,
    PKG_FAULT_INVALID_NGRAM_PROPOSER_WINDOW,
    PKG_FAULT_INVALID_NGRAM_PROPOSER_MAX_TOKENS,
    PKG_FAULT_UNSUPPORTED_NGRAM_CACHE_MAX_WINDOW,
    PKG_FAULT_INVALID_NGRAM_CACHE_HISTORY_SCOPE,
    PKG_FAULT_UNSUPPORTED_NGRAM_SUFFIX_WINDOW,
    PKG_FAULT_INVALID_NGRAM_SUFFIX_HISTORY_SCOPE,
    PKG_FAULT_INVALID_EXTENSION_POLICY_TOKENS,
    PKG_FAULT_EMPTY_WINDOW_POLICY_DEFAULT,
    PKG_FAULT_INVALID_WINDOW_POLICY_ZERO,
    PKG_FAULT_INVALID_WINDOW_POLICY_BOUNDS,
    PKG_FAULT_INVALID_WINDOW_POLICY_INITIAL,
    PKG_FAULT_GLM_DSA_CONTRACT,
    /* schema version 2 */
    PKG_FAULT_UNKNOWN_FIELD,
    PKG_FAULT_MISSING_VALUE,
    PKG_FAULT_INVALID_DIGEST,
    PKG_FAULT_INVALID_IDENTIFIER,
    PKG_FAULT_INVALID_PATH,
    PKG_FAULT_UNKNOWN_SOURCE_FILE,
    PKG_FAULT_INVALID_METADATA_ARTIFACT,
    PKG_FAULT_SOURCE_IDENTITY_MISMATCH,
    PKG_FAULT_DUPLICATE_ARTIFACT,
    PKG_FAULT_DUPLICATE_SIDECAR,
    PKG_FAULT_LAYER_OUT_OF_BOUNDS,
    PKG_FAULT_UNKNOWN_ARTIFACT,
    PKG_FAULT_INVALID_ALIGNMENT,
    PKG_FAULT_MISALIGNED_OFFSET,
    PKG_FAULT_STORAGE_OUT_OF_BOUNDS,
    PKG_FAULT_INVALID_STORED_LENGTH,
    PKG_FAULT_OVERLAPPING_STORAGE,
    PKG_FAULT_PACKAGE_IDENTITY_MISMATCH,
    PKG_FAULT_UNKNOWN_STRATEGY,
    PKG_FAULT_UNKNOWN_PROPOSER,
    PKG_FAULT_INVALID_GENERATION_VALUE,
    /* the signature */
    PKG_FAULT_UNSIGNED,
    PKG_FAULT_BAD_SIGNATURE,
    PKG_FAULT_UNTRUSTED_SIGNATURE,
    PKG_FAULT_COUNT
};

/* "missing_layer" and the like: names are part of the output format. */
const char *pkg_fault_name(enum pkg_fault_code code);
const char *pkg_fault_remedy(enum pkg_fault_code code);
enum pkg_severity pkg_fault_severity(enum pkg_fault_code code);
/* "note", "warning" or "error". */
const char *pkg_severity_name(enum pkg_severity s);

struct pkg_fault {
    enum pkg_fault_code code;
    enum pkg_severity severity;
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

/* Moves all of `from` to the end of `to`; `from` is empty then. So threads can fill lists of their own. */
void pkg_faults_move(struct pkg_faults *to, struct pkg_faults *from);

/* Makes errors of the faults with this code, for readers that are stricter than this table. */
void pkg_faults_raise(struct pkg_faults *f, enum pkg_fault_code code);

/* STRATA_OK without errors; else the first one as "name: message", and the count of the others. Warnings are passed
 * over. */
strata_err pkg_faults_first(const struct pkg_faults *f, const char *name, struct strata_errmsg *em);

/* A new JSON array of {severity, code, message, path?, remediation}. */
strata_err pkg_faults_to_json(const struct pkg_faults *f, json_t **out, struct strata_errmsg *em);

/* As above, of the errors alone; manifest_path is the path of those that concern none (NULL: they have no path). */
strata_err pkg_faults_errors_to_json(const struct pkg_faults *f, const char *manifest_path, json_t **out,
                                     struct strata_errmsg *em);

#endif
