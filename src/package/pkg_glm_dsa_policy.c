/* Policy and thresholds of glm-dsa-v1: one table for the check, the writer's inference and the repair. Owns nothing. */
#include "package/pkg_glm_dsa_priv.h"

#include "package/pkg_generation.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *key;
    const char *value;
} fields[] = {
    {"profile", PKG_GENERATION_GLM_DSA_V1}, {"decode", "compact-flash"}, {"short_prefill", "dense"},
    {"long_prefill", "sparse-chunked"},     {"verify", "auto"},          {"indexshare", "required"},
};
enum { N_FIELDS = sizeof fields / sizeof fields[0] };

/* All are written; the contract asks for the first alone, the others being a publisher's to decide. */
static const char *const switches[] = {"selected_row_flash", "moe_weighted_down", "moe_merged_shared_gate_up"};
static const char switch_value[] = "evidence-gated";

/*
 * direct_sparse_decode_max_top_k is gone from the standard, but existing validators of schema 1 refuse a package
 * without it, so it is written; its absence is a warning here, not an error.
 */
static const struct {
    const char *key;
    json_int_t value;
    bool required;
} thresholds[] = {
    {"short_prefill_max_tokens", 2048, true},
    {"direct_sparse_decode_max_top_k", 256, false},
    {"compact_flash_min_kv", 1, true},
    {"dense_mask_max_bytes", 268435456, true},
};
enum { N_THRESHOLDS = sizeof thresholds / sizeof thresholds[0] };

/* ---- check ---- */

static void check_text(struct pkg_glm_dsa_report *r, const char *where, const json_t *v, const char *key,
                       const char *want) {
    const char *s = json_string_value(v);
    if (!v || json_is_null(v))
        pkg_glm_dsa_add(r, PKG_GLM_DSA_POLICY, "missing %s.%s", where, key);
    else if (!s)
        pkg_glm_dsa_add(r, PKG_GLM_DSA_POLICY, "%s.%s must be %s; it is no string", where, key, want);
    else if (strcmp(s, want) != 0)
        pkg_glm_dsa_add(r, PKG_GLM_DSA_POLICY, "%s.%s must be %s, got %.60s", where, key, want, s);
}

/* selected_row_flash stands in `experimental`; older packages have it beside the others. */
static const json_t *row_flash(const json_t *policy) {
    const json_t *v = json_object_get(json_object_get(policy, "experimental"), switches[0]);
    return v ? v : json_object_get(policy, switches[0]);
}

static int keep(json_t *o, const char *key, const json_t *v, bool good) {
    return json_object_set_new(o, key, v && good ? json_deep_copy(v) : json_null());
}

static void check_policy(struct pkg_glm_dsa_report *r, const json_t *policy) {
    r->policy = json_object();
    for (size_t i = 0; i < N_FIELDS; i++) {
        const json_t *v = json_object_get(policy, fields[i].key);
        check_text(r, "generation.policy", v, fields[i].key, fields[i].value);
        if (keep(r->policy, fields[i].key, v, json_is_string(v))) r->out_of_memory = true;
    }
    const json_t *v = row_flash(policy);
    check_text(r, "generation.policy.experimental", v, switches[0], switch_value);
    if (keep(r->policy, switches[0], v, json_is_string(v))) r->out_of_memory = true;
}

static void check_thresholds(struct pkg_glm_dsa_report *r, const json_t *block) {
    r->thresholds = json_object();
    for (size_t i = 0; i < N_THRESHOLDS; i++) {
        const json_t *v = json_object_get(block, thresholds[i].key);
        bool there = v && !json_is_null(v);
        if (!there)
            pkg_glm_dsa_add(r, thresholds[i].required ? PKG_GLM_DSA_THRESHOLDS : PKG_GLM_DSA_WARNINGS,
                            "missing generation.thresholds.%s%s", thresholds[i].key,
                            thresholds[i].required ? "" : ": older validators refuse the package without it");
        else if (!json_is_integer(v))
            pkg_glm_dsa_add(r, PKG_GLM_DSA_THRESHOLDS, "generation.thresholds.%s must be %lld; it is no whole number",
                            thresholds[i].key, (long long)thresholds[i].value);
        else if (json_integer_value(v) != thresholds[i].value)
            pkg_glm_dsa_add(r, PKG_GLM_DSA_THRESHOLDS, "generation.thresholds.%s must be %lld, got %lld",
                            thresholds[i].key, (long long)thresholds[i].value, (long long)json_integer_value(v));
        if (keep(r->thresholds, thresholds[i].key, v, json_is_integer(v))) r->out_of_memory = true;
    }
}

void pkg_glm_dsa_check_policy(struct pkg_glm_dsa_report *r, const json_t *generation) {
    const json_t *policy = json_object_get(generation, "policy");
    const json_t *block = json_object_get(generation, "thresholds");
    if (!generation) {
        if (r->policy_required) pkg_glm_dsa_add(r, PKG_GLM_DSA_POLICY, "model-package.json missing generation block");
        return;
    }
    if (json_is_object(policy))
        check_policy(r, policy);
    else if (r->policy_required || (policy && !json_is_null(policy)))
        pkg_glm_dsa_add(r, PKG_GLM_DSA_POLICY, "generation.policy is required for GLM-DSA packages");
    if (json_is_object(block))
        check_thresholds(r, block);
    else if (r->policy_required || (block && !json_is_null(block)))
        pkg_glm_dsa_add(r, PKG_GLM_DSA_THRESHOLDS, "generation.thresholds is required for GLM-DSA packages");
}

/* ---- set ---- */

/* The object under a key, made when it is not there; what stands there and is no object is replaced. */
static json_t *enter(json_t *obj, const char *key, bool *changed) {
    json_t *v = json_object_get(obj, key);
    if (json_is_object(v)) return v;
    *changed = true;
    return json_object_set_new(obj, key, json_object()) ? NULL : json_object_get(obj, key);
}

/* Takes want. */
static int set(json_t *obj, const char *key, json_t *want, bool *changed) {
    if (want && json_equal(json_object_get(obj, key), want)) {
        json_decref(want);
        return 0;
    }
    *changed = true;
    return json_object_set_new(obj, key, want); /* keeps the key's place when it has one */
}

strata_err pkg_glm_dsa_set_policy(json_t *generation, bool *changed, struct strata_errmsg *em) {
    int bad = 0;
    *changed = false;
    json_t *policy = enter(generation, "policy", changed);
    for (size_t i = 0; i < N_FIELDS && !bad; i++)
        bad = set(policy, fields[i].key, json_string(fields[i].value), changed);
    json_t *experimental = enter(policy, "experimental", changed);
    if (!bad) bad = set(experimental, switches[0], json_string(switch_value), changed);
    for (size_t i = 1; i < sizeof switches / sizeof switches[0] && !bad; i++)
        if (!json_object_get(experimental, switches[i]))
            bad = set(experimental, switches[i], json_string(switch_value), changed);
    json_t *block = enter(generation, "thresholds", changed);
    for (size_t i = 0; i < N_THRESHOLDS && !bad; i++)
        bad = set(block, thresholds[i].key, json_integer(thresholds[i].value), changed);
    return bad ? err_nomem(em, "a generation block") : STRATA_OK;
}
