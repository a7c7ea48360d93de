/* The list of faults and the table of their codes. See pkg_fault.h. Owns the texts. */
#include "package/pkg_fault.h"

#include "package/pkg_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FAULTS = 2000 };

static const char rewrite[] = "write the package again with 'strata write-package'";
static const char restore[] = "fetch or copy this file again from where the package was published";
static const char gen[] = "correct the generation block of model-package.json, or leave it out";
static const char source[] = "compare with the very file that the package was made from, or write the package again";
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
                                              "use a package of schema version 1 or 2, or a newer Strata", PKG_ERROR,
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
    [PKG_FAULT_UNKNOWN_KEY] = {"unknown_manifest_key",
                               "nothing, if another program wrote it on purpose: Strata leaves it alone", PKG_NOTE,
                               STRATA_EFORMAT},
    [PKG_FAULT_MISSING_SOURCE_IDENTITY] =
        {"missing_source_identity",
         "write the package again with --model-id, --source-revision and --source-file before publishing it", PKG_NOTE,
         STRATA_EFORMAT},
    [PKG_FAULT_MISSING_SOURCE_DIGEST] =
        {"missing_source_digest",
         "write the package again: every source file should be named with its size and SHA-256", PKG_NOTE,
         STRATA_EFORMAT},
    [PKG_FAULT_ARTIFACT_PATH_CASE_CLASH] = {"artifact_path_case_clash", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_ARTIFACT_OUTSIDE_PACKAGE] =
        {"artifact_outside_package",
         "do not use this package unless you trust it: a link in it leads out of its folder", PKG_ERROR,
         STRATA_EFORMAT},
    [PKG_FAULT_SPLIT_NAMED_ARTIFACT] =
        {"split_named_artifact", "rename the file: other programs would look for the other parts of a split model",
         PKG_WARNING, STRATA_EFORMAT},
    [PKG_FAULT_STRAY_FILE] = {"stray_file",
                              "remove it, or leave it if you know what it is: nothing in the package uses it",
                              PKG_WARNING, STRATA_EFORMAT},
    [PKG_FAULT_ARTIFACT_SHA256_UNREADABLE] = {"artifact_sha256_unreadable", "check the permissions and the disk",
                                              PKG_ERROR, STRATA_EIO},
    [PKG_FAULT_MISSING_SLICE_KEYS] = {"missing_slice_keys", rewrite, PKG_WARNING, STRATA_EFORMAT},
    [PKG_FAULT_SLICE_KEYS_MISMATCH] = {"slice_keys_mismatch", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_DUPLICATE_TENSOR] = {"duplicate_tensor", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_REPLICA_MISMATCH] = {"replica_mismatch", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_ARCHITECTURE_MISMATCH] = {"architecture_mismatch", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_SOURCE_SHA256_MISMATCH] = {"source_sha256_mismatch", source, PKG_ERROR, STRATA_EDIGEST},
    [PKG_FAULT_SOURCE_FILE_MISMATCH] = {"source_file_mismatch", source, PKG_ERROR, STRATA_EDIGEST},
    [PKG_FAULT_SOURCE_LAYER_COUNT_MISMATCH] = {"source_layer_count_mismatch", source, PKG_ERROR, STRATA_EDIGEST},
    [PKG_FAULT_SOURCE_WIDTH_MISMATCH] = {"source_activation_width_mismatch",
                                         "set activation_width to the model's embedding length", PKG_ERROR,
                                         STRATA_EDIGEST},
    [PKG_FAULT_UNKNOWN_TENSOR] = {"unknown_tensor", source, PKG_ERROR, STRATA_EDIGEST},
    [PKG_FAULT_TENSOR_TYPE_MISMATCH] = {"tensor_type_mismatch", source, PKG_ERROR, STRATA_EDIGEST},
    [PKG_FAULT_TENSOR_SHAPE_MISMATCH] = {"tensor_shape_mismatch", source, PKG_ERROR, STRATA_EDIGEST},
    [PKG_FAULT_TENSOR_PAYLOAD_MISMATCH] = {"tensor_payload_mismatch", source, PKG_ERROR, STRATA_EDIGEST},
    [PKG_FAULT_METADATA_MISMATCH] = {"metadata_mismatch", source, PKG_ERROR, STRATA_EDIGEST},
    [PKG_FAULT_EMPTY_SLICE] = {"empty_slice", "leave this file out: it holds no tensor", PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_SOURCE_PROJECTOR_MISMATCH] = {"source_projector_mismatch",
                                             "compare with the very projectors that the package was made with",
                                             PKG_ERROR, STRATA_EDIGEST},
    [PKG_FAULT_INVALID_STAGE_COUNT] = {"invalid_stage_count", "give a number of stages of at least 1", PKG_ERROR,
                                       STRATA_EINVAL},
    [PKG_FAULT_STAGE_COUNT_EXCEEDS_LAYER_COUNT] = {"stage_count_exceeds_layer_count",
                                                   "give at most as many stages as the model has layers", PKG_ERROR,
                                                   STRATA_EINVAL},
    [PKG_FAULT_INVALID_GENERATION_FIELD] = {"invalid_generation_field", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_UNKNOWN_GENERATION_KEY] = {"unknown_generation_key",
                                          "nothing, if a reader you publish for knows this key; else remove it",
                                          PKG_NOTE, STRATA_EFORMAT},
    [PKG_FAULT_UNSUPPORTED_GENERATION_POLICY] =
        {"unsupported_generation_policy", "use a value that the standard names; others are treated as not supported",
         PKG_WARNING, STRATA_EUNSUPPORTED},
    [PKG_FAULT_EMPTY_GENERATION_POLICY_FIELD] = {"empty_generation_policy_field", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_GENERATION_THRESHOLD_ZERO] = {"invalid_generation_threshold_zero", gen, PKG_ERROR,
                                                     STRATA_EFORMAT},
    [PKG_FAULT_EMPTY_SPECULATIVE_DEFAULT] = {"empty_speculative_default", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_MISSING_SPECULATIVE_DEFAULT_STRATEGY] = {"missing_speculative_default_strategy", gen, PKG_ERROR,
                                                        STRATA_EFORMAT},
    [PKG_FAULT_EMPTY_SPECULATIVE_PROPOSER_NAME] = {"empty_speculative_proposer_name", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_UNSUPPORTED_SPECULATIVE_PROPOSER_TYPE] = {"unsupported_speculative_proposer_type", gen, PKG_ERROR,
                                                         STRATA_EUNSUPPORTED},
    [PKG_FAULT_EMPTY_SPECULATIVE_STRATEGY_NAME] = {"empty_speculative_strategy_name", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_EMPTY_SPECULATIVE_STRATEGY_TYPE] = {"empty_speculative_strategy_type", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_UNSUPPORTED_SPECULATIVE_STRATEGY_TYPE] = {"unsupported_speculative_strategy_type", gen, PKG_ERROR,
                                                         STRATA_EUNSUPPORTED},
    [PKG_FAULT_UNUSED_SPECULATIVE_STRATEGY_TYPE] =
        {"unused_speculative_strategy_type",
         "nothing: readers ignore a strategy of a type that they do not know unless it is the default", PKG_NOTE,
         STRATA_EUNSUPPORTED},
    [PKG_FAULT_MISSING_SPECULATIVE_PROPOSER] = {"missing_speculative_proposer", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_NATIVE_MTP_STRATEGY_PROPOSER_TYPE_MISMATCH] = {"native_mtp_strategy_proposer_type_mismatch", gen,
                                                              PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_MISSING_NGRAM_STRATEGY_PROPOSER] = {"missing_ngram_strategy_proposer", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_NGRAM_STRATEGY_PROPOSER_TYPE_MISMATCH] = {"ngram_strategy_proposer_type_mismatch", gen, PKG_ERROR,
                                                         STRATA_EFORMAT},
    [PKG_FAULT_MISSING_COMPOSITE_EXTENSION_POLICY] = {"missing_composite_extension_policy", gen, PKG_ERROR,
                                                      STRATA_EFORMAT},
    [PKG_FAULT_MISSING_COMPOSITE_PRIMARY] = {"missing_composite_primary", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_MISSING_COMPOSITE_EXTENDER] = {"missing_composite_extender", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_COMPOSITE_PRIMARY_TYPE] = {"invalid_composite_primary_type", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_COMPOSITE_EXTENDER_TYPE] = {"invalid_composite_extender_type", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_UNSUPPORTED_NATIVE_MTP_PREDICTION_DEPTH] = {"unsupported_native_mtp_prediction_depth",
                                                           "set prediction_depth to 1", PKG_ERROR, STRATA_EUNSUPPORTED},
    [PKG_FAULT_MISSING_NATIVE_MTP_LAYERS] = {"missing_native_mtp_layers",
                                             "list in layer_indices the layers that hold the NextN tensors", PKG_ERROR,
                                             STRATA_EFORMAT},
    [PKG_FAULT_NATIVE_MTP_LAYER_OUT_OF_RANGE] = {"native_mtp_layer_out_of_range",
                                                 "list in layer_indices the layers that hold the NextN tensors",
                                                 PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_NATIVE_MTP_LAYER_WITHOUT_TENSORS] = {"native_mtp_layer_without_tensors",
                                                    "list in layer_indices the layers that hold the NextN tensors",
                                                    PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_NGRAM_PROPOSER_WINDOW] = {"invalid_ngram_proposer_window", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_NGRAM_PROPOSER_MAX_TOKENS] = {"invalid_ngram_proposer_max_tokens", gen, PKG_ERROR,
                                                     STRATA_EFORMAT},
    [PKG_FAULT_UNSUPPORTED_NGRAM_CACHE_MAX_WINDOW] = {"unsupported_ngram_cache_max_window",
                                                      "set ngram_max to at most 4", PKG_ERROR, STRATA_EUNSUPPORTED},
    [PKG_FAULT_INVALID_NGRAM_CACHE_HISTORY_SCOPE] = {"invalid_ngram_cache_history_scope",
                                                     "set history_scope to \"request\"", PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_UNSUPPORTED_NGRAM_SUFFIX_WINDOW] = {"unsupported_ngram_suffix_window",
                                                   "keep 3 <= ngram_min <= ngram_max <= 64", PKG_ERROR,
                                                   STRATA_EUNSUPPORTED},
    [PKG_FAULT_INVALID_NGRAM_SUFFIX_HISTORY_SCOPE] = {"invalid_ngram_suffix_history_scope",
                                                      "set history_scope to \"request\"", PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_EXTENSION_POLICY_TOKENS] = {"invalid_extension_policy_tokens", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_EMPTY_WINDOW_POLICY_DEFAULT] = {"empty_window_policy_default", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_WINDOW_POLICY_ZERO] = {"invalid_window_policy_zero", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_WINDOW_POLICY_BOUNDS] = {"invalid_window_policy_bounds", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_WINDOW_POLICY_INITIAL] = {"invalid_window_policy_initial", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_GLM_DSA_CONTRACT] =
        {"glm_dsa_contract",
         "'strata validate-glm-dsa-contract' lists what is missing; do not advertise glm-dsa-v1 without it", PKG_ERROR,
         STRATA_EFORMAT},
    [PKG_FAULT_UNKNOWN_FIELD] = {"unknown_field",
                                 "remove the field: schema version 2 allows none that it does not define", PKG_ERROR,
                                 STRATA_EFORMAT},
    [PKG_FAULT_MISSING_VALUE] = {"missing_value", fix, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_DIGEST] = {"invalid_digest", fix, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_IDENTIFIER] = {"invalid_identifier", fix, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_PATH] = {"invalid_path",
                                "do not use this package unless you trust it: paths must stay inside it", PKG_ERROR,
                                STRATA_EFORMAT},
    [PKG_FAULT_UNKNOWN_SOURCE_FILE] = {"unknown_source_file", fix, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_METADATA_ARTIFACT] = {"invalid_metadata_artifact", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_SOURCE_IDENTITY_MISMATCH] = {"source_identity_mismatch", fix, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_DUPLICATE_ARTIFACT] = {"duplicate_artifact", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_DUPLICATE_SIDECAR] = {"duplicate_sidecar", fix, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_LAYER_OUT_OF_BOUNDS] = {"layer_out_of_bounds", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_UNKNOWN_ARTIFACT] = {"unknown_artifact", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_ALIGNMENT] = {"invalid_alignment", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_MISALIGNED_OFFSET] = {"misaligned_offset", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_STORAGE_OUT_OF_BOUNDS] = {"storage_out_of_bounds", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_STORED_LENGTH] = {"invalid_stored_length", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_OVERLAPPING_STORAGE] = {"overlapping_storage", rewrite, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_PACKAGE_IDENTITY_MISMATCH] =
        {"package_identity_mismatch",
         "compare package_id with what the publisher states; the digests of the files still bind", PKG_WARNING,
         STRATA_EDIGEST},
    [PKG_FAULT_UNKNOWN_STRATEGY] = {"unknown_strategy", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_UNKNOWN_PROPOSER] = {"unknown_proposer", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_INVALID_GENERATION_VALUE] = {"invalid_generation_value", gen, PKG_ERROR, STRATA_EFORMAT},
    [PKG_FAULT_UNSIGNED] = {"unsigned",
                            "nothing, unless you require a signature: ask the publisher for one (strata sign)",
                            PKG_NOTE, STRATA_EAUTH},
    [PKG_FAULT_BAD_SIGNATURE] = {"bad_signature",
                                 "do not use this package: fetch it again, and check the publisher's public key",
                                 PKG_ERROR, STRATA_EAUTH},
    [PKG_FAULT_UNTRUSTED_SIGNATURE] = {"untrusted_signature",
                                       "compare the signing key with the one the publisher states", PKG_ERROR,
                                       STRATA_EAUTH},
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

const char *pkg_severity_name(enum pkg_severity s) {
    static const char *const names[] = {"note", "warning", "error"};
    return names[s];
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

/* Notes and warnings must not crowd out what matters. */
static bool is_full(const struct pkg_faults *f, enum pkg_severity severity) {
    static const size_t max[] = {[PKG_NOTE] = MAX_FAULTS / 4, [PKG_WARNING] = MAX_FAULTS / 2, [PKG_ERROR] = MAX_FAULTS};
    return f->n >= max[severity];
}

/* Takes the fault's texts, which may be NULL when there was no memory for them. */
static void put(struct pkg_faults *f, struct pkg_fault fault, bool whole) {
    if (fault.severity == PKG_ERROR) f->n_errors++;
    bool full = is_full(f, fault.severity);
    if (full) f->n_dropped++;
    if (!full && whole && reserve(f)) {
        f->list[f->n++] = fault;
        return;
    }
    if (!full) f->out_of_memory = true;
    free(fault.message);
    free(fault.path);
}

void pkg_faults_add(struct pkg_faults *f, enum pkg_fault_code code, const char *path, const char *fmt, ...) {
    /* err_set's rules apply: bounded, and no control characters from foreign data. */
    char text[STRATA_ERRMSG_MAX];
    struct strata_errmsg em;
    struct pkg_fault fault = {.code = code, .severity = codes[code].severity};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(&em, codes[code].err, "%s", text);
    bool keep = !is_full(f, fault.severity);
    fault.message = keep ? strdup(em.text) : NULL;
    fault.path = keep && path ? strdup(path) : NULL;
    put(f, fault, fault.message && (!path || fault.path));
}

void pkg_faults_move(struct pkg_faults *to, struct pkg_faults *from) {
    size_t listed = 0; /* errors among those that are listed; the others were dropped */
    for (size_t i = 0; i < from->n; i++) {
        listed += from->list[i].severity == PKG_ERROR;
        put(to, from->list[i], true);
    }
    to->n_errors += from->n_errors - listed;
    to->n_dropped += from->n_dropped;
    to->out_of_memory = to->out_of_memory || from->out_of_memory;
    free(from->list);
    *from = (struct pkg_faults){0};
}

void pkg_faults_raise(struct pkg_faults *f, enum pkg_fault_code code) {
    for (size_t i = 0; i < f->n; i++) {
        struct pkg_fault *x = &f->list[i];
        if (x->code != code || x->severity == PKG_ERROR) continue;
        x->severity = PKG_ERROR;
        f->n_errors++;
    }
}

strata_err pkg_faults_first(const struct pkg_faults *f, const char *name, struct strata_errmsg *em) {
    if (f->out_of_memory) return err_nomem(em, "the list of faults");
    if (f->n_errors == 0) return STRATA_OK;
    const struct pkg_fault *first = NULL;
    for (size_t i = 0; i < f->n && !first; i++)
        if (f->list[i].severity == PKG_ERROR) first = &f->list[i];
    if (!first) return err_set(em, STRATA_EFORMAT, "%s: %zu faults", name, f->n_errors);
    char more[64] = "";
    if (f->n_errors > 1) snprintf(more, sizeof more, " (and %zu more; 'strata preflight' lists them)", f->n_errors - 1);
    return err_set(em, codes[first->code].err, "%s: %s%s: %s", name, first->message, more, codes[first->code].remedy);
}

/* NULL without memory: jansson refuses a value that could not be made. */
static json_t *to_json(const struct pkg_fault *x, const char *path) {
    json_t *o = json_object();
    int bad = json_object_set_new(o, "severity", json_string(pkg_severity_name(x->severity)));
    if (!bad) bad = json_object_set_new(o, "code", json_string(codes[x->code].name));
    if (!bad) bad = json_object_set_new(o, "message", pkg_json_text(x->message));
    if (!bad && path) bad = json_object_set_new(o, "path", pkg_json_text(path));
    if (!bad) bad = json_object_set_new(o, "remediation", json_string(codes[x->code].remedy));
    return pkg_json_finish(o, bad);
}

static strata_err list_to_json(const struct pkg_faults *f, enum pkg_severity least, const char *no_path, json_t **out,
                               struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    json_t *list = json_array();
    if (!list || f->out_of_memory) rc = err_nomem(em, "the list of faults");
    for (size_t i = 0; i < f->n && !rc; i++) {
        const struct pkg_fault *x = &f->list[i];
        if (x->severity < least) continue;
        json_t *o = to_json(x, x->path ? x->path : no_path);
        if (!o || json_array_append_new(list, o) != 0) rc = err_nomem(em, "the list of faults");
    }
    if (rc) {
        json_decref(list);
        return rc;
    }
    *out = list;
    return STRATA_OK;
}

strata_err pkg_faults_to_json(const struct pkg_faults *f, json_t **out, struct strata_errmsg *em) {
    return list_to_json(f, PKG_NOTE, NULL, out, em);
}

strata_err pkg_faults_errors_to_json(const struct pkg_faults *f, const char *manifest_path, json_t **out,
                                     struct strata_errmsg *em) {
    return list_to_json(f, PKG_ERROR, manifest_path, out, em);
}
