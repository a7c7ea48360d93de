/* The generation block of schema 2. See pkg_generation2.h. Owns nothing. */
#include "package/pkg_generation2.h"

#include "package/pkg_generation.h"
#include "package/pkg_schema2.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char defaults[] = "generation.request_defaults";
enum { WHERE_MAX = 160, COMMIT_DIGITS = 40, BREAKER_MAX = 15 };

static json_t *iterable(const json_t *v) {
    return (json_t *)(uintptr_t)v;
}

static void bad(struct pkg_faults *f, const char *where, const char *key, const char *want) {
    pkg_faults_add(f, PKG_FAULT_INVALID_GENERATION_VALUE, NULL, "%s.%.60s must %s", where, key, want);
}

/* ---- profiles ---- */

static bool is_identifier(const char *s) {
    for (const char *p = s; *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '-' && *p != '_' && *p != '.') return false;
    return *s != '\0';
}

/* Whether text has word between two of the separators, or at an end. */
static bool has_segment(const char *text, const char *word, const char *separators) {
    size_t len = strlen(word);
    for (const char *p = text;; p++) {
        size_t n = strcspn(p, separators);
        if (n == len && memcmp(p, word, len) == 0) return true;
        p += n;
        if (!*p) return false;
    }
}

static void check_provenance(const json_t *o, const char *where, struct pkg_faults *f) {
    const char *revision = json_string_value(json_object_get(o, "revision")),
               *url = json_string_value(json_object_get(o, "url"));
    char at[WHERE_MAX + 16];
    snprintf(at, sizeof at, "%s.provenance", where);
    bool commit = strlen(revision) == COMMIT_DIGITS && strspn(revision, "0123456789abcdefABCDEF") == COMMIT_DIGITS;
    if (!commit) bad(f, at, "revision", "be a commit: 40 hexadecimal digits");
    if (strncmp(url, "https://", 8) != 0 && strncmp(url, "http://", 7) != 0)
        bad(f, at, "url", "begin with https:// or http://");
    else if (commit && !has_segment(url, revision, "/?#&="))
        bad(f, at, "url", "hold the revision as a part of its path or query");
}

static void check_logit_bias(const json_t *map, const char *where, struct pkg_faults *f) {
    const char *key;
    json_t *v;
    json_object_foreach(iterable(map), key, v) {
        size_t digits = strspn(key, "0123456789");
        bool token = digits > 0 && digits <= 10 && !key[digits] && strtoull(key, NULL, 10) <= INT32_MAX;
        if (!token) bad(f, where, "logit_bias", "have token numbers as names");
    }
}

static void check_profile(const json_t *o, const char *where, struct pkg_faults *f) {
    const char *sequence = json_string_value(json_object_get(o, "sampler_sequence"));
    const json_t *breakers = json_object_get(json_object_get(o, "dry"), "sequence_breakers");
    check_logit_bias(json_object_get(o, "logit_bias"), where, f);
    for (const char *p = sequence; p && *p; p++) {
        if (isspace((unsigned char)*p) || strchr("edskypmxt", *p)) continue;
        bad(f, where, "sampler_sequence", "be made of the letters e d s k y p m x t");
        break;
    }
    for (size_t i = 0; i < json_array_size(breakers); i++) {
        size_t len = strlen(json_string_value(json_array_get(breakers, i)));
        if (len == 0 || len > BREAKER_MAX) bad(f, where, "dry.sequence_breakers", "hold texts of 1 to 15 bytes");
    }
    check_provenance(json_object_get(o, "provenance"), where, f);
}

static void check_defaults(const json_t *o, struct pkg_faults *f) {
    static const char *const selected[] = {"default", "reasoning_enabled", "reasoning_disabled"};
    const json_t *profiles = json_object_get(o, "profiles"), *selection = json_object_get(o, "selection");
    const char *name;
    json_t *v;
    if (json_object_size(profiles) == 0)
        pkg_faults_add(f, PKG_FAULT_MISSING_VALUE, NULL, "%s.profiles is empty", defaults);
    json_object_foreach(iterable(profiles), name, v) {
        char where[WHERE_MAX];
        snprintf(where, sizeof where, "%s.profiles[%.60s]", defaults, name);
        if (!is_identifier(name))
            pkg_faults_add(f, PKG_FAULT_INVALID_IDENTIFIER, NULL,
                           "%s: a profile's name may have letters, digits, '-', '_' and '.'", where);
        check_profile(v, where, f);
    }
    for (size_t i = 0; i < sizeof selected / sizeof selected[0]; i++) {
        const char *want = json_string_value(json_object_get(selection, selected[i]));
        if (want && !json_object_get(profiles, want))
            pkg_faults_add(f, PKG_FAULT_INVALID_GENERATION_VALUE, NULL,
                           "%s.selection.%s names '%.60s', which is no profile", defaults, selected[i], want);
    }
}

/* ---- speculation ---- */

/* The code of schema 2 for a fault of schema 1's check. What existing readers refuse though the schema allows it keeps
 * its own, more telling code. PKG_FAULT_COUNT: no fault here. */
static enum pkg_fault_code translate(enum pkg_fault_code code) {
    switch (code) {
    case PKG_FAULT_UNKNOWN_GENERATION_KEY: return PKG_FAULT_COUNT; /* the shape has been checked */
    case PKG_FAULT_MISSING_SPECULATIVE_DEFAULT_STRATEGY: return PKG_FAULT_UNKNOWN_STRATEGY;
    case PKG_FAULT_MISSING_SPECULATIVE_PROPOSER: return PKG_FAULT_UNKNOWN_PROPOSER;
    case PKG_FAULT_NATIVE_MTP_LAYER_OUT_OF_RANGE: return PKG_FAULT_LAYER_OUT_OF_BOUNDS;
    case PKG_FAULT_UNSUPPORTED_NATIVE_MTP_PREDICTION_DEPTH:
    case PKG_FAULT_UNSUPPORTED_NGRAM_CACHE_MAX_WINDOW:
    case PKG_FAULT_UNSUPPORTED_NGRAM_SUFFIX_WINDOW:
    case PKG_FAULT_UNSUPPORTED_GENERATION_POLICY: return code;
    default: return PKG_FAULT_INVALID_GENERATION_VALUE;
    }
}

/* A native-mtp strategy names a proposer or has the proposer's fields itself, never both. */
static void check_forms(const json_t *speculation, struct pkg_faults *f) {
    const char *name;
    json_t *v;
    json_object_foreach(json_object_get(speculation, "strategies"), name, v) {
        bool mtp = strcmp(json_string_value(json_object_get(v, "type")), PKG_GENERATION_MTP) == 0;
        bool inlined = json_object_get(v, "prediction_depth") || json_array_size(json_object_get(v, "layer_indices"));
        if (mtp && inlined && json_object_get(v, "proposer"))
            pkg_faults_add(f, PKG_FAULT_INVALID_GENERATION_VALUE, NULL,
                           "generation.speculative_decoding.strategies[%.60s] has both a proposer and its own "
                           "prediction_depth or layer_indices",
                           name);
    }
}

static strata_err check_speculation(const json_t *generation, uint32_t layer_count, struct pkg_faults *faults,
                                    struct strata_errmsg *em) {
    struct pkg_faults found;
    pkg_faults_init(&found);
    strata_err rc = pkg_generation_check(generation, layer_count, &found, NULL, em);
    for (size_t i = 0; i < found.n && !rc; i++) {
        enum pkg_fault_code code = translate(found.list[i].code);
        if (code != PKG_FAULT_COUNT) pkg_faults_add(faults, code, NULL, "%s", found.list[i].message);
    }
    if (!rc && found.out_of_memory) rc = err_nomem(em, "the list of faults");
    pkg_faults_deinit(&found);
    if (!rc) check_forms(json_object_get(generation, "speculative_decoding"), faults);
    return rc;
}

strata_err pkg_generation2_check(const json_t *generation, uint32_t layer_count, struct pkg_faults *faults,
                                 struct strata_errmsg *em) {
    size_t before = faults->n_errors;
    pkg_shape_check(pkg_schema2_generation, generation, "generation", PKG_FAULT_INVALID_GENERATION_VALUE, faults);
    if (faults->n_errors != before) return STRATA_OK; /* what follows relies on the shape */
    const json_t *d = json_object_get(generation, "request_defaults"),
                 *s = json_object_get(generation, "speculative_decoding");
    if (json_is_object(d)) check_defaults(d, faults);
    return json_is_object(s) ? check_speculation(generation, layer_count, faults, em) : STRATA_OK;
}

/* ---- the other schema ---- */

static void note_dropped(const char *key, char *dropped, size_t cap) {
    size_t n = strlen(dropped);
    snprintf(dropped + n, cap - n, "%s%.60s", n ? ", " : "", key);
}

/* Schema 1 tolerates keys inside the block that schema 2 does not. */
static strata_err fits(const json_t *speculation, uint32_t layer_count, bool *ok, struct strata_errmsg *em) {
    struct pkg_faults faults;
    json_t *block = json_pack("{s:O}", "speculative_decoding", iterable(speculation));
    pkg_faults_init(&faults);
    strata_err rc = block ? pkg_generation2_check(block, layer_count, &faults, em) : err_nomem(em, "a manifest");
    *ok = faults.n_errors == 0;
    pkg_faults_deinit(&faults);
    json_decref(block);
    return rc;
}

strata_err pkg_generation2_convert(const json_t *generation, unsigned to_schema, uint32_t layer_count, json_t **out,
                                   char *dropped, size_t cap, struct strata_errmsg *em) {
    const char *key;
    json_t *v, *kept = NULL;
    dropped[0] = '\0';
    json_object_foreach(iterable(generation), key, v) {
        bool keep = strcmp(key, "speculative_decoding") == 0;
        if (keep && to_schema == 2) {
            strata_err rc = fits(v, layer_count, &keep, em);
            if (rc) return rc;
        }
        if (keep)
            kept = v;
        else
            note_dropped(key, dropped, cap);
    }
    *out = NULL;
    if (!kept) return STRATA_OK;
    *out = json_pack("{s:O}", "speculative_decoding", kept);
    return *out ? STRATA_OK : err_nomem(em, "a manifest");
}
