/*
 * The tables of schema version 2. See pkg_schema2.h.
 *
 * The order of the rows is that of the canonical form from which package_id is computed (see pkg_package_id.h): a row
 * must not be moved.
 */
#include "package/pkg_schema2.h"

#include <string.h>

enum {
    REQUIRED = PKG_SHAPE_REQUIRED,
    NOT_BLANK = PKG_SHAPE_NOT_BLANK,
    NAME = PKG_SHAPE_REQUIRED | PKG_SHAPE_NOT_BLANK,
    SKIP_EMPTY = PKG_SHAPE_SKIP_EMPTY,
    LOW = PKG_SHAPE_LOW,
    ABOVE = PKG_SHAPE_ABOVE,
    WITHIN = PKG_SHAPE_LOW | PKG_SHAPE_HIGH
};

#define TEXT(name, f)                                                                                                  \
    { .key = name, .kind = PKG_SHAPE_TEXT, .flags = (f) }
#define WORD(name, f, list)                                                                                            \
    { .key = name, .kind = PKG_SHAPE_TEXT, .flags = (f), .words = (list) }
#define INTEGER(name, type, f)                                                                                         \
    { .key = name, .kind = (type), .flags = (f) }
#define F64(name, f, from, to)                                                                                         \
    { .key = name, .kind = PKG_SHAPE_F64, .flags = (f), .low = (from), .high = (to) }
#define I32(name, f, from, to)                                                                                         \
    { .key = name, .kind = PKG_SHAPE_I32, .flags = (f), .low = (from), .high = (to) }
#define TEXTS(name, f)                                                                                                 \
    { .key = name, .kind = PKG_SHAPE_TEXTS, .flags = (f) }
#define NESTED(name, type, f, fields)                                                                                  \
    { .key = name, .kind = (type), .flags = (f), .sub = (fields) }

/* ---- sampling profiles ---- */

static const char *const enabled_words[] = {"auto", "off", "on", NULL};
static const char *const format_words[] = {"auto", "none", "deepseek", "deepseek-legacy", "hidden", NULL};
static const char *const budget_words[] = {"auto", "low", "medium", "high", "unrestricted", NULL};
static const char *const sampler_words[] = {"penalties", "dry",   "top_n_sigma", "top_k",       "typical_p", "typ_p",
                                            "top_p",     "min_p", "xtc",         "temperature", "temp",      NULL};

static const struct pkg_shape dry[] = {F64("multiplier", LOW, 0, 0),     F64("base", ABOVE, 0, 0),
                                       I32("allowed_length", LOW, 0, 0), I32("penalty_last_n", LOW, -1, 0),
                                       TEXTS("sequence_breakers", 0),    {0}};
static const struct pkg_shape xtc[] = {F64("probability", WITHIN, 0, 1), F64("threshold", WITHIN, 0, 1), {0}};
static const struct pkg_shape reasoning[] = {WORD("enabled", 0, enabled_words),
                                             WORD("format", 0, format_words),
                                             {.key = "budget", .kind = PKG_SHAPE_U32_OR_WORD, .words = budget_words},
                                             {0}};
static const struct pkg_shape provenance[] = {TEXT("source_repo", NAME), TEXT("revision", NAME), TEXT("file", NAME),
                                              TEXT("section", NAME),     TEXT("url", NAME),      {0}};

static const struct pkg_shape profile[] = {
    {.key = "max_tokens", .kind = PKG_SHAPE_U32, .flags = LOW, .low = 1},
    TEXTS("stop", NOT_BLANK),
    F64("temperature", WITHIN, 0, 100),
    F64("top_p", WITHIN, 0, 1),
    I32("top_k", LOW, 0, 0),
    F64("min_p", WITHIN, 0, 1),
    F64("typical_p", WITHIN, 0, 1),
    F64("top_nsigma", LOW, -1, 0),
    F64("presence_penalty", WITHIN, -2, 2),
    F64("frequency_penalty", WITHIN, -2, 2),
    {.key = "seed", .kind = PKG_SHAPE_U64, .flags = PKG_SHAPE_HIGH, .high = UINT32_MAX},
    {.key = "logit_bias", .kind = PKG_SHAPE_F64_MAP, .flags = WITHIN, .low = -100, .high = 100},
    F64("repeat_penalty", ABOVE, 0, 0),
    I32("repeat_last_n", LOW, -1, 0),
    F64("dynatemp_range", LOW, 0, 0),
    F64("dynatemp_exponent", LOW, 0, 0),
    NESTED("dry", PKG_SHAPE_OBJECT, 0, dry),
    NESTED("xtc", PKG_SHAPE_OBJECT, 0, xtc),
    I32("mirostat_mode", WITHIN, 0, 2),
    F64("mirostat_entropy", ABOVE, 0, 0),
    F64("mirostat_learning_rate", ABOVE, 0, 0),
    {.key = "samplers", .kind = PKG_SHAPE_TEXTS, .flags = NOT_BLANK, .words = sampler_words},
    TEXT("sampler_sequence", NOT_BLANK),
    INTEGER("ignore_eos", PKG_SHAPE_BOOL, 0),
    NESTED("reasoning", PKG_SHAPE_OBJECT, 0, reasoning),
    NESTED("provenance", PKG_SHAPE_OBJECT, REQUIRED, provenance),
    {0}};

static const struct pkg_shape selection[] = {
    TEXT("default", NAME), TEXT("reasoning_enabled", NOT_BLANK), TEXT("reasoning_disabled", NOT_BLANK), {0}};
static const struct pkg_shape request_defaults[] = {NESTED("selection", PKG_SHAPE_OBJECT, REQUIRED, selection),
                                                    NESTED("profiles", PKG_SHAPE_MAP, REQUIRED, profile),
                                                    {0}};

/* ---- speculation ---- */

static const struct pkg_shape window_policy[] = {TEXT("default", NAME),
                                                 INTEGER("initial_window", PKG_SHAPE_U32, REQUIRED),
                                                 INTEGER("min_window", PKG_SHAPE_U32, REQUIRED),
                                                 INTEGER("max_window", PKG_SHAPE_U32, REQUIRED),
                                                 INTEGER("pipeline_depth", PKG_SHAPE_U32, 0),
                                                 {0}};
static const struct pkg_shape extension_policy[] = {INTEGER("max_tokens", PKG_SHAPE_U32, REQUIRED),
                                                    INTEGER("initial_tokens", PKG_SHAPE_U32, 0),
                                                    INTEGER("tail_backoff_proposals", PKG_SHAPE_U32, 0),
                                                    {0}};

static const struct pkg_shape mtp_proposer[] = {
    INTEGER("prediction_depth", PKG_SHAPE_U32, REQUIRED), INTEGER("layer_indices", PKG_SHAPE_U32S, REQUIRED), {0}};
static const struct pkg_shape ngram_proposer[] = {INTEGER("ngram_min", PKG_SHAPE_U32, REQUIRED),
                                                  INTEGER("ngram_max", PKG_SHAPE_U32, REQUIRED),
                                                  INTEGER("max_proposal_tokens", PKG_SHAPE_U32, REQUIRED),
                                                  TEXT("history_scope", NAME),
                                                  {0}};
static const struct pkg_shape proposers[] = {NESTED("native-mtp", PKG_SHAPE_OBJECT, 0, mtp_proposer),
                                             NESTED("ngram-cache", PKG_SHAPE_OBJECT, 0, ngram_proposer),
                                             NESTED("ngram-suffix", PKG_SHAPE_OBJECT, 0, ngram_proposer),
                                             {0}};

static const struct pkg_shape mtp_strategy[] = {TEXT("proposer", NOT_BLANK),
                                                INTEGER("prediction_depth", PKG_SHAPE_U32, 0),
                                                INTEGER("layer_indices", PKG_SHAPE_U32S, SKIP_EMPTY),
                                                NESTED("window_policy", PKG_SHAPE_OBJECT, 0, window_policy),
                                                {0}};
static const struct pkg_shape ngram_strategy[] = {
    TEXT("proposer", NAME), NESTED("window_policy", PKG_SHAPE_OBJECT, 0, window_policy), {0}};
static const struct pkg_shape composite_strategy[] = {
    TEXT("primary", NAME),
    TEXT("extender", NAME),
    NESTED("extension_policy", PKG_SHAPE_OBJECT, REQUIRED, extension_policy),
    NESTED("window_policy", PKG_SHAPE_OBJECT, 0, window_policy),
    {0}};
static const struct pkg_shape strategies[] = {NESTED("native-mtp", PKG_SHAPE_OBJECT, 0, mtp_strategy),
                                              NESTED("ngram-cache", PKG_SHAPE_OBJECT, 0, ngram_strategy),
                                              NESTED("ngram-suffix", PKG_SHAPE_OBJECT, 0, ngram_strategy),
                                              NESTED("composite", PKG_SHAPE_OBJECT, 0, composite_strategy),
                                              {0}};

static const struct pkg_shape speculative_decoding[] = {
    TEXT("default", NAME),
    NESTED("proposers", PKG_SHAPE_VARIANTS, SKIP_EMPTY, proposers),
    NESTED("strategies", PKG_SHAPE_VARIANTS, SKIP_EMPTY, strategies),
    {0}};

const struct pkg_shape pkg_schema2_generation[] = {
    NESTED("request_defaults", PKG_SHAPE_OBJECT, 0, request_defaults),
    NESTED("speculative_decoding", PKG_SHAPE_OBJECT, 0, speculative_decoding),
    {0}};

/* ---- the root ---- */

const char *const pkg_schema2_sidecar_kinds[] = {"mmproj", NULL};
const char *const pkg_schema2_publisher_roles[] = {"model_config",  "generation_config", "tokenizer_config",
                                                   "chat_template", "hf_quant_config",   NULL};
static const char *const dtype_words[] = {"f16", "bf16", "f32", "fp8", "fp8_e4m3", "fp8_e5m2", "q8_0", "q4_0", NULL};

static const char *text_of(const json_t *obj, const char *key) {
    return json_string_value(json_object_get(obj, key)); /* NULL when absent */
}

/* Byte by byte; an absent text comes before all others. */
static int by_text(const json_t *a, const json_t *b, const char *key) {
    const char *x = text_of(a, key), *y = text_of(b, key);
    if (!x || !y) return (x != NULL) - (y != NULL);
    return strcmp(x, y);
}

static int by_path(const json_t *a, const json_t *b) {
    return by_text(a, b, "path");
}

static int by_id(const json_t *a, const json_t *b) {
    return by_text(a, b, "id");
}

static int by_sidecar(const json_t *a, const json_t *b) {
    int d = by_text(a, b, "kind");
    if (!d) d = by_text(a, b, "name");
    return d ? d : by_text(a, b, "artifact_id");
}

static size_t role_rank(const json_t *o) {
    const char *role = text_of(o, "role");
    size_t i = 0;
    while (role && pkg_schema2_publisher_roles[i] && strcmp(pkg_schema2_publisher_roles[i], role) != 0) i++;
    return i;
}

static int by_publisher(const json_t *a, const json_t *b) {
    static const char *const keys[] = {"artifact_id", "source_repo", "source_revision", "source_path"};
    size_t x = role_rank(a), y = role_rank(b);
    int d = (x > y) - (x < y);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && !d; i++) d = by_text(a, b, keys[i]);
    return d;
}

static const struct pkg_shape source_file[] = {
    TEXT("path", REQUIRED), INTEGER("byte_size", PKG_SHAPE_U64, REQUIRED), TEXT("sha256", REQUIRED), {0}};
static const struct pkg_shape source_model[] = {
    TEXT("sha256", REQUIRED),
    TEXT("metadata_artifact_id", NAME),
    TEXT("repo", NOT_BLANK),
    TEXT("revision", NOT_BLANK),
    TEXT("primary_file", NAME),
    TEXT("canonical_ref", NOT_BLANK),
    TEXT("distribution_id", NOT_BLANK),
    {.key = "files", .kind = PKG_SHAPE_LIST, .flags = REQUIRED | SKIP_EMPTY, .sub = source_file, .order = by_path},
    {0}};
static const struct pkg_shape artifact[] = {TEXT("id", REQUIRED),
                                            TEXT("path", REQUIRED),
                                            INTEGER("byte_size", PKG_SHAPE_U64, REQUIRED),
                                            TEXT("sha256", REQUIRED),
                                            {0}};
static const struct pkg_shape artifact_catalog[] = {
    {.key = "entries", .kind = PKG_SHAPE_LIST, .flags = REQUIRED, .sub = artifact, .order = by_id}, {0}};
static const struct pkg_shape sidecar[] = {{.key = "kind",
                                            .kind = PKG_SHAPE_TEXT,
                                            .flags = REQUIRED,
                                            .words = pkg_schema2_sidecar_kinds,
                                            .value_code = PKG_FAULT_UNSUPPORTED_PROJECTOR_KIND},
                                           TEXT("artifact_id", NAME),
                                           TEXT("name", NOT_BLANK),
                                           {0}};
static const struct pkg_shape publisher_file[] = {WORD("role", REQUIRED, pkg_schema2_publisher_roles),
                                                  TEXT("artifact_id", NAME),
                                                  TEXT("source_repo", NAME),
                                                  TEXT("source_revision", NAME),
                                                  TEXT("source_path", REQUIRED),
                                                  {0}};
static const struct pkg_shape dtype[] = {
    WORD("dtype", REQUIRED, dtype_words), TEXT("artifact_id", NAME), TEXT("json_path", NAME), {0}};
static const struct pkg_shape publisher_defaults[] = {
    NESTED("compute_dtype", PKG_SHAPE_OBJECT, 0, dtype), NESTED("kv_cache_dtype", PKG_SHAPE_OBJECT, 0, dtype), {0}};

const struct pkg_shape pkg_schema2_root[] = {
    INTEGER("schema_version", PKG_SHAPE_U32, REQUIRED),
    TEXT("package_id", REQUIRED),
    TEXT("model_id", NAME),
    NESTED("source_model", PKG_SHAPE_OBJECT, REQUIRED, source_model),
    TEXT("format", NAME),
    INTEGER("layer_count", PKG_SHAPE_U32, REQUIRED),
    NESTED("artifact_catalog", PKG_SHAPE_OBJECT, REQUIRED, artifact_catalog),
    {.key = "sidecars", .kind = PKG_SHAPE_LIST, .flags = SKIP_EMPTY, .sub = sidecar, .order = by_sidecar},
    {.key = "publisher_metadata",
     .kind = PKG_SHAPE_LIST,
     .flags = SKIP_EMPTY,
     .sub = publisher_file,
     .order = by_publisher},
    NESTED("publisher_defaults", PKG_SHAPE_OBJECT, 0, publisher_defaults),
    NESTED("generation", PKG_SHAPE_OBJECT, PKG_SHAPE_APART, pkg_schema2_generation),
    TEXT("native_abi_version", NAME),
    TEXT("generator_version", NAME),
    INTEGER("created_at_unix_secs", PKG_SHAPE_U64, REQUIRED),
    {0}};
