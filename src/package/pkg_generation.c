/* The generation block by itself: types, names, bounds and references. See pkg_generation.h. Owns nothing. */
#include "package/pkg_generation.h"

#include "package/pkg_checker.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { WHERE_MAX = 160 };

static const char speculation[] = "generation.speculative_decoding";

struct checker {
    struct pkg_faults *faults;
    uint32_t layer_count;    /* 0: not known */
    const json_t *proposers; /* NULL when there are none */
    const char *fallback;    /* the default strategy's name, or NULL */
};

/* What a key holds: nothing, something of a wrong type (a fault is in the list then), or a value. */
enum found { ABSENT, WRONG, FOUND };

/* jansson iterates over non-const objects only; nothing is changed. */
static json_t *iterable(const json_t *v) {
    return (json_t *)(uintptr_t)v;
}

static bool is_blank(const char *s) {
    return s[strspn(s, " \t\r\n")] == '\0';
}

static enum found wrong(struct checker *c, const struct strata_errmsg *em) {
    pkg_faults_add(c->faults, PKG_FAULT_INVALID_GENERATION_FIELD, NULL, "%s", em->text);
    return WRONG;
}

static enum found text(struct checker *c, const json_t *obj, const char *where, const char *key, const char **out) {
    struct strata_errmsg em;
    *out = NULL;
    if (jsonx_get_str(obj, where, key, false, out, &em)) return wrong(c, &em);
    return *out ? FOUND : ABSENT;
}

static enum found number(struct checker *c, const json_t *obj, const char *where, const char *key, uint64_t max,
                         uint64_t *out) {
    struct strata_errmsg em;
    *out = 0;
    if (jsonx_get_u64(obj, where, key, false, max, out, &em)) return wrong(c, &em);
    return json_is_integer(json_object_get(obj, key)) ? FOUND : ABSENT;
}

static enum found object(struct checker *c, const json_t *obj, const char *where, const char *key, const json_t **out) {
    struct strata_errmsg em;
    json_t *v = NULL;
    *out = NULL;
    if (jsonx_get_obj(obj, where, key, false, &v, &em)) return wrong(c, &em);
    *out = v;
    return v ? FOUND : ABSENT;
}

static void note_keys(struct checker *c, const json_t *obj, const char *where, const char *const *known) {
    struct pkg_checker k = {.faults = c->faults};
    pkg_checker_keys(&k, obj, where, known, PKG_FAULT_UNKNOWN_GENERATION_KEY);
}

static bool is_one_of(const char *s, const char *const *list) {
    while (*list && strcmp(*list, s) != 0) list++;
    return *list != NULL;
}

/* ---- policy and thresholds ---- */

static const char *const profiles[] = {PKG_GENERATION_GLM_DSA_V1, NULL};
static const char *const paths[] = {"auto",     "dense", "direct-sparse", "compact-flash", "sparse-chunked",
                                    "fallback", NULL};
static const char *const indexshare_values[] = {"required", "auto", NULL};
static const char *const switch_values[] = {"evidence-gated", NULL};
static const char *const switches[] = {"selected_row_flash", "moe_weighted_down", "moe_merged_shared_gate_up", NULL};

/* Existing readers cannot read a policy that lacks one of the required fields. */
static const struct {
    const char *key;
    bool required;
    const char *const *values;
} policy_fields[] = {
    {"profile", true, profiles},
    {"decode", true, paths},
    {"short_prefill", true, paths},
    {"long_prefill", true, paths},
    {"verify", true, paths},
    {"indexshare", false, indexshare_values},
    {"selected_row_flash", false, switch_values}, /* its place before there was `experimental` */
};

static void check_policy_text(struct checker *c, const json_t *obj, const char *where, const char *key, bool required,
                              const char *const *values) {
    const char *s;
    enum found f = text(c, obj, where, key, &s);
    if (f == WRONG || (f == ABSENT && !required)) return;
    if (f == ABSENT || is_blank(s))
        pkg_faults_add(c->faults, PKG_FAULT_EMPTY_GENERATION_POLICY_FIELD, NULL, "%s.%.60s is %s", where, key,
                       f == ABSENT ? "missing" : "empty");
    else if (!is_one_of(s, values))
        pkg_faults_add(c->faults, PKG_FAULT_UNSUPPORTED_GENERATION_POLICY, NULL,
                       "%s.%.60s is '%.60s', which the standard does not name", where, key, s);
}

/* An object of strings. Any name is allowed, but only some are known. */
static void check_experimental(struct checker *c, const json_t *policy) {
    static const char where[] = "generation.policy.experimental";
    const json_t *obj;
    const char *key;
    json_t *value;
    if (object(c, policy, "generation.policy", "experimental", &obj) != FOUND) return;
    json_object_foreach(iterable(obj), key, value) {
        if (!is_one_of(key, switches))
            pkg_faults_add(c->faults, PKG_FAULT_UNSUPPORTED_GENERATION_POLICY, NULL,
                           "%s.%.60s is not a switch that the standard names", where, key);
        check_policy_text(c, obj, where, key, false, switch_values);
    }
}

static void check_policy(struct checker *c, const json_t *generation) {
    static const char *const known[] = {"profile", "decode",       "short_prefill", "long_prefill",
                                        "verify",  "experimental", "indexshare",    "selected_row_flash",
                                        NULL};
    const json_t *obj;
    if (object(c, generation, "generation", "policy", &obj) != FOUND) return;
    for (size_t i = 0; i < sizeof policy_fields / sizeof policy_fields[0]; i++)
        check_policy_text(c, obj, "generation.policy", policy_fields[i].key, policy_fields[i].required,
                          policy_fields[i].values);
    check_experimental(c, obj);
    note_keys(c, obj, "generation.policy", known);
}

static void check_thresholds(struct checker *c, const json_t *generation) {
    static const char *const known[] = {"short_prefill_max_tokens", "direct_sparse_decode_max_top_k",
                                        "compact_flash_min_kv", "dense_mask_max_bytes", NULL};
    static const char where[] = "generation.thresholds";
    const json_t *obj;
    uint64_t n;
    if (object(c, generation, "generation", "thresholds", &obj) != FOUND) return;
    for (size_t i = 0; known[i]; i++) {
        bool bytes = strcmp(known[i], "dense_mask_max_bytes") == 0; /* the others are counts of 32 bits */
        if (number(c, obj, where, known[i], bytes ? INT64_MAX : UINT32_MAX, &n) == FOUND && n == 0)
            pkg_faults_add(c->faults, PKG_FAULT_INVALID_GENERATION_THRESHOLD_ZERO, NULL,
                           "%s.%s is 0; leave it out if there is no threshold", where, known[i]);
    }
    note_keys(c, obj, where, known);
}

/* ---- speculative decoding: what proposers and strategies share ---- */

/* prediction_depth and layer_indices. A strategy that names a proposer need not repeat them. */
static void check_mtp(struct checker *c, const json_t *obj, const char *where, bool required) {
    uint64_t depth, layer;
    json_t *list = NULL;
    struct strata_errmsg em;
    enum found f = number(c, obj, where, "prediction_depth", UINT32_MAX, &depth);
    if ((f == ABSENT && required) || (f == FOUND && depth != PKG_GENERATION_MTP_DEPTH)) {
        char is[32] = "missing";
        if (f == FOUND) snprintf(is, sizeof is, "%" PRIu64, depth);
        pkg_faults_add(c->faults, PKG_FAULT_UNSUPPORTED_NATIVE_MTP_PREDICTION_DEPTH, NULL,
                       "%s.prediction_depth is %s; only %d is supported", where, is, PKG_GENERATION_MTP_DEPTH);
    }
    if (jsonx_get_array(obj, where, "layer_indices", false, &list, &em)) {
        wrong(c, &em);
        return;
    }
    if (json_array_size(list) == 0 && (list || required))
        pkg_faults_add(c->faults, PKG_FAULT_MISSING_NATIVE_MTP_LAYERS, NULL, "%s.layer_indices lists no layer", where);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t n = json_integer_value(v);
        if (!json_is_integer(v) || n < 0 || n > UINT32_MAX) {
            pkg_faults_add(c->faults, PKG_FAULT_INVALID_GENERATION_FIELD, NULL,
                           "%s.layer_indices[%zu] must be a layer's number", where, i);
            continue;
        }
        layer = (uint64_t)n;
        if (c->layer_count && layer >= c->layer_count)
            pkg_faults_add(c->faults, PKG_FAULT_NATIVE_MTP_LAYER_OUT_OF_RANGE, NULL,
                           "%s.layer_indices names layer %" PRIu64 ", but layer_count is %" PRIu32, where, layer,
                           c->layer_count);
    }
}

/* ---- proposers ---- */

static bool is_ngram(const char *type) {
    return type && (strcmp(type, PKG_GENERATION_NGRAM_CACHE) == 0 || strcmp(type, PKG_GENERATION_NGRAM_SUFFIX) == 0);
}

static void check_ngram_window(struct checker *c, const json_t *obj, const char *where, bool cache) {
    uint64_t min, max;
    enum found a = number(c, obj, where, "ngram_min", UINT32_MAX, &min);
    enum found b = number(c, obj, where, "ngram_max", UINT32_MAX, &max);
    if (a == WRONG || b == WRONG) return;
    if (min == 0 || max == 0 || min > max)
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_NGRAM_PROPOSER_WINDOW, NULL,
                       "%s: ngram_min %" PRIu64 " and ngram_max %" PRIu64
                       " (0 when missing) are no range of at least one token",
                       where, min, max);
    else if (cache && max > PKG_GENERATION_CACHE_MAX)
        pkg_faults_add(c->faults, PKG_FAULT_UNSUPPORTED_NGRAM_CACHE_MAX_WINDOW, NULL,
                       "%s.ngram_max is %" PRIu64 "; a cache matches at most %d tokens", where, max,
                       PKG_GENERATION_CACHE_MAX);
    else if (!cache && (min < PKG_GENERATION_SUFFIX_MIN || max > PKG_GENERATION_SUFFIX_MAX))
        pkg_faults_add(c->faults, PKG_FAULT_UNSUPPORTED_NGRAM_SUFFIX_WINDOW, NULL,
                       "%s: ngram_min %" PRIu64 " and ngram_max %" PRIu64 " leave %d..%d", where, min, max,
                       PKG_GENERATION_SUFFIX_MIN, PKG_GENERATION_SUFFIX_MAX);
}

static void check_ngram(struct checker *c, const json_t *obj, const char *where, bool cache) {
    uint64_t n;
    const char *scope;
    check_ngram_window(c, obj, where, cache);
    if (number(c, obj, where, "max_proposal_tokens", UINT32_MAX, &n) != WRONG && n == 0)
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_NGRAM_PROPOSER_MAX_TOKENS, NULL,
                       "%s.max_proposal_tokens must be at least 1", where);
    enum found f = text(c, obj, where, "history_scope", &scope);
    if (f == ABSENT || (f == FOUND && strcmp(scope, "request") != 0))
        pkg_faults_add(
            c->faults,
            cache ? PKG_FAULT_INVALID_NGRAM_CACHE_HISTORY_SCOPE : PKG_FAULT_INVALID_NGRAM_SUFFIX_HISTORY_SCOPE, NULL,
            "%s.history_scope is '%.60s'; one request must not see another's tokens", where, f == FOUND ? scope : "");
}

static void check_proposer(struct checker *c, const char *name, const json_t *obj) {
    static const char *const known[] = {"type",      "prediction_depth",    "layer_indices", "ngram_min",
                                        "ngram_max", "max_proposal_tokens", "history_scope", NULL};
    char where[WHERE_MAX];
    const char *type;
    snprintf(where, sizeof where, "%s.proposers.%.60s", speculation, name);
    if (is_blank(name))
        pkg_faults_add(c->faults, PKG_FAULT_EMPTY_SPECULATIVE_PROPOSER_NAME, NULL, "%s.proposers has an empty name",
                       speculation);
    if (!json_is_object(obj)) {
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_GENERATION_FIELD, NULL, "%s must be an object", where);
        return;
    }
    enum found f = text(c, obj, where, "type", &type);
    if (f == WRONG) return;
    if (f == FOUND && strcmp(type, PKG_GENERATION_MTP) == 0)
        check_mtp(c, obj, where, true);
    else if (is_ngram(type))
        check_ngram(c, obj, where, strcmp(type, PKG_GENERATION_NGRAM_CACHE) == 0);
    else
        pkg_faults_add(c->faults, PKG_FAULT_UNSUPPORTED_SPECULATIVE_PROPOSER_TYPE, NULL,
                       "%s.type is '%.60s'; known are " PKG_GENERATION_MTP ", " PKG_GENERATION_NGRAM_CACHE
                       " and " PKG_GENERATION_NGRAM_SUFFIX,
                       where, f == FOUND ? type : "");
    note_keys(c, obj, where, known);
}

/* ---- strategies ---- */

/*
 * The type of the proposer that a strategy names under key. NULL when the strategy names none (the fault `missing`
 * then, unless it is PKG_FAULT_COUNT), or one that is not declared or has no type; each of these has its fault.
 * *named tells whether the key is there.
 */
static const char *proposer_type(struct checker *c, const json_t *obj, const char *where, const char *key,
                                 enum pkg_fault_code missing, bool *named) {
    const char *name;
    enum found f = text(c, obj, where, key, &name);
    *named = f != ABSENT;
    if (f == WRONG) return NULL;
    if (f == ABSENT) {
        if (missing != PKG_FAULT_COUNT) pkg_faults_add(c->faults, missing, NULL, "%s.%s is missing", where, key);
        return NULL;
    }
    const json_t *proposer = json_object_get(c->proposers, name);
    if (!proposer)
        pkg_faults_add(c->faults, PKG_FAULT_MISSING_SPECULATIVE_PROPOSER, NULL,
                       "%s.%s names '%.60s', which is not in %s.proposers", where, key, name, speculation);
    return json_string_value(json_object_get(proposer, "type"));
}

static void check_window(struct checker *c, const json_t *strategy, const char *of, bool mtp) {
    static const char *const known[] = {"default",    "initial_window", "min_window",
                                        "max_window", "pipeline_depth", NULL};
    static const char *const defaults[] = {"fixed", "adaptive", NULL};
    const json_t *obj;
    const char *s;
    struct strata_errmsg em;
    char where[WHERE_MAX + 16];
    uint64_t n[3] = {0}, depth; /* initial, min, max: in the order of `known` */
    bool sound = true;
    snprintf(where, sizeof where, "%s.window_policy", of);
    if (object(c, strategy, of, "window_policy", &obj) != FOUND) return;
    enum found f = text(c, obj, where, "default", &s);
    if (f == ABSENT || (f == FOUND && is_blank(s)))
        pkg_faults_add(c->faults, PKG_FAULT_EMPTY_WINDOW_POLICY_DEFAULT, NULL, "%s.default is %s", where,
                       f == FOUND ? "empty" : "missing");
    else if (f == FOUND && !is_one_of(s, defaults))
        pkg_faults_add(c->faults, PKG_FAULT_UNSUPPORTED_GENERATION_POLICY, NULL,
                       "%s.default is '%.60s'; known are fixed and adaptive", where, s);
    for (size_t i = 0; i < 3; i++) {
        if (jsonx_get_u64(obj, where, known[i + 1], true, UINT32_MAX, &n[i], &em)) {
            wrong(c, &em);
            sound = false;
        } else if (n[i] == 0) {
            pkg_faults_add(c->faults, PKG_FAULT_INVALID_WINDOW_POLICY_ZERO, NULL, "%s.%s is 0", where, known[i + 1]);
            sound = false;
        }
    }
    if (sound && n[1] > n[2])
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_WINDOW_POLICY_BOUNDS, NULL,
                       "%s: min_window %" PRIu64 " is above max_window %" PRIu64, where, n[1], n[2]);
    else if (sound && (n[0] < n[1] || n[0] > n[2]))
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_WINDOW_POLICY_INITIAL, NULL,
                       "%s: initial_window %" PRIu64 " is outside %" PRIu64 "..%" PRIu64, where, n[0], n[1], n[2]);
    else if (sound && mtp && n[2] > PKG_GENERATION_MTP_DEPTH)
        pkg_faults_add(c->faults, PKG_FAULT_UNSUPPORTED_GENERATION_POLICY, NULL,
                       "%s.max_window is %" PRIu64 ", but " PKG_GENERATION_MTP " predicts one token", where, n[2]);
    f = number(c, obj, where, "pipeline_depth", UINT32_MAX, &depth);
    if (f == FOUND && (depth == 0 || depth > PKG_GENERATION_PIPELINE_MAX))
        pkg_faults_add(c->faults, depth ? PKG_FAULT_INVALID_WINDOW_POLICY_BOUNDS : PKG_FAULT_INVALID_WINDOW_POLICY_ZERO,
                       NULL, "%s.pipeline_depth is %" PRIu64 "; it must be from 1 to %d", where, depth,
                       PKG_GENERATION_PIPELINE_MAX);
    note_keys(c, obj, where, known);
}

/* How far an n-gram tail may reach behind an MTP prefix. */
static void check_extension(struct checker *c, const json_t *strategy, const char *of, bool required) {
    static const char *const known[] = {"max_tokens", "initial_tokens", "tail_backoff_proposals", NULL};
    const json_t *obj;
    char where[WHERE_MAX + 20];
    uint64_t max, initial, backoff;
    snprintf(where, sizeof where, "%s.extension_policy", of);
    enum found f = object(c, strategy, of, "extension_policy", &obj);
    if (f == ABSENT && required)
        pkg_faults_add(c->faults, PKG_FAULT_MISSING_COMPOSITE_EXTENSION_POLICY, NULL, "%s is missing", where);
    if (f != FOUND) return;
    enum found m = number(c, obj, where, "max_tokens", UINT32_MAX, &max);
    enum found i = number(c, obj, where, "initial_tokens", UINT32_MAX, &initial);
    number(c, obj, where, "tail_backoff_proposals", UINT32_MAX, &backoff);
    if (m != WRONG && max == 0)
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_EXTENSION_POLICY_TOKENS, NULL, "%s.max_tokens must be at least 1",
                       where);
    else if (m == FOUND && i == FOUND && initial > max)
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_EXTENSION_POLICY_TOKENS, NULL,
                       "%s: initial_tokens %" PRIu64 " is above max_tokens %" PRIu64, where, initial, max);
    note_keys(c, obj, where, known);
}

/* A native-mtp strategy states its layers, or names a proposer that does. */
static void check_mtp_strategy(struct checker *c, const json_t *obj, const char *where) {
    bool named;
    const char *type = proposer_type(c, obj, where, "proposer", PKG_FAULT_COUNT, &named);
    if (type && strcmp(type, PKG_GENERATION_MTP) != 0)
        pkg_faults_add(c->faults, PKG_FAULT_NATIVE_MTP_STRATEGY_PROPOSER_TYPE_MISMATCH, NULL,
                       "%s.proposer is of type '%.60s', not " PKG_GENERATION_MTP, where, type);
    check_mtp(c, obj, where, !named);
}

static void check_ngram_strategy(struct checker *c, const json_t *obj, const char *where, const char *own) {
    bool named;
    const char *type = proposer_type(c, obj, where, "proposer", PKG_FAULT_MISSING_NGRAM_STRATEGY_PROPOSER, &named);
    if (type && strcmp(type, own) != 0)
        pkg_faults_add(c->faults, PKG_FAULT_NGRAM_STRATEGY_PROPOSER_TYPE_MISMATCH, NULL,
                       "%s.proposer is of type '%.60s', not %s", where, type, own);
}

static void check_composite(struct checker *c, const json_t *obj, const char *where) {
    bool named;
    const char *type = proposer_type(c, obj, where, "primary", PKG_FAULT_MISSING_COMPOSITE_PRIMARY, &named);
    if (type && strcmp(type, PKG_GENERATION_MTP) != 0)
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_COMPOSITE_PRIMARY_TYPE, NULL,
                       "%s.primary is of type '%.60s', not " PKG_GENERATION_MTP, where, type);
    type = proposer_type(c, obj, where, "extender", PKG_FAULT_MISSING_COMPOSITE_EXTENDER, &named);
    if (type && !is_ngram(type))
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_COMPOSITE_EXTENDER_TYPE, NULL,
                       "%s.extender is of type '%.60s', not an n-gram proposer", where, type);
    /* Not a composite's own key, but a name is a name. */
    proposer_type(c, obj, where, "proposer", PKG_FAULT_COUNT, &named);
}

/* A type that is not known must be passed over, unless it is what a request would get. */
static void check_other_strategy(struct checker *c, const char *name, const char *where, const char *type) {
    bool selected = c->fallback && strcmp(c->fallback, name) == 0;
    pkg_faults_add(c->faults,
                   selected ? PKG_FAULT_UNSUPPORTED_SPECULATIVE_STRATEGY_TYPE
                            : PKG_FAULT_UNUSED_SPECULATIVE_STRATEGY_TYPE,
                   NULL, "%s.type '%.60s' is not known%s", where, type,
                   selected ? ", and it is the default" : "; nothing selects it by itself");
}

static void check_strategy(struct checker *c, const char *name, const json_t *obj) {
    static const char *const known[] = {"type",          "prediction_depth", "layer_indices",
                                        "window_policy", "proposer",         "primary",
                                        "extender",      "extension_policy", NULL};
    char where[WHERE_MAX];
    const char *type;
    snprintf(where, sizeof where, "%s.strategies.%.60s", speculation, name);
    if (is_blank(name))
        pkg_faults_add(c->faults, PKG_FAULT_EMPTY_SPECULATIVE_STRATEGY_NAME, NULL, "%s.strategies has an empty name",
                       speculation);
    if (!json_is_object(obj)) {
        pkg_faults_add(c->faults, PKG_FAULT_INVALID_GENERATION_FIELD, NULL, "%s must be an object", where);
        return;
    }
    enum found f = text(c, obj, where, "type", &type);
    if (f == WRONG) return;
    if (f == ABSENT || is_blank(type)) {
        pkg_faults_add(c->faults, PKG_FAULT_EMPTY_SPECULATIVE_STRATEGY_TYPE, NULL, "%s.type is %s", where,
                       f == FOUND ? "empty" : "missing");
        return;
    }
    bool mtp = strcmp(type, PKG_GENERATION_MTP) == 0, composite = strcmp(type, PKG_GENERATION_COMPOSITE) == 0;
    if (mtp) {
        check_mtp_strategy(c, obj, where);
    } else if (is_ngram(type)) {
        check_ngram_strategy(c, obj, where, type);
    } else if (composite) {
        check_composite(c, obj, where);
    } else {
        check_other_strategy(c, name, where, type);
        return; /* its keys are its own */
    }
    check_extension(c, obj, where, composite);
    check_window(c, obj, where, mtp);
    note_keys(c, obj, where, known);
}

static void check_speculation(struct checker *c, const json_t *generation) {
    static const char *const known[] = {"default", "proposers", "strategies", NULL};
    const json_t *obj, *strategies;
    const char *name;
    json_t *value;
    if (object(c, generation, "generation", "speculative_decoding", &obj) != FOUND) return;
    object(c, obj, speculation, "proposers", &c->proposers);
    enum found s = object(c, obj, speculation, "strategies", &strategies);
    enum found f = text(c, obj, speculation, "default", &c->fallback);
    if (f == ABSENT || (f == FOUND && is_blank(c->fallback)))
        pkg_faults_add(c->faults, PKG_FAULT_EMPTY_SPECULATIVE_DEFAULT, NULL, "%s.default is %s", speculation,
                       f == FOUND ? "empty" : "missing");
    else if (f == FOUND && s != WRONG && !json_object_get(strategies, c->fallback))
        pkg_faults_add(c->faults, PKG_FAULT_MISSING_SPECULATIVE_DEFAULT_STRATEGY, NULL,
                       "%s.default is '%.60s', which is not in strategies", speculation, c->fallback);
    json_object_foreach(iterable(c->proposers), name, value) {
        check_proposer(c, name, value);
    }
    json_object_foreach(iterable(strategies), name, value) {
        check_strategy(c, name, value);
    }
    note_keys(c, obj, speculation, known);
}

strata_err pkg_generation_check(const json_t *generation, uint32_t layer_count, struct pkg_faults *faults,
                                json_t **summary, struct strata_errmsg *em) {
    static const char *const known[] = {"policy", "thresholds", "speculative_decoding", NULL};
    struct checker c = {.faults = faults, .layer_count = layer_count};
    if (!json_is_object(generation)) {
        pkg_faults_add(faults, PKG_FAULT_INVALID_GENERATION_FIELD, NULL, "generation must be an object");
    } else {
        check_policy(&c, generation);
        check_thresholds(&c, generation);
        check_speculation(&c, generation);
        note_keys(&c, generation, "generation", known);
    }
    if (faults->out_of_memory) return err_nomem(em, "the list of faults");
    return summary ? pkg_generation_summary(generation, summary, em) : STRATA_OK;
}
