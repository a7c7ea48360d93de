/* The generation block: the standard's samples are sound, and every fault is found where it is and nowhere else. */
#include "package/pkg_generation.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* JSON with single quotes, for easier reading. */
static json_t *json(const char *text) {
    char *copy = strdup(text);
    json_error_t je;
    assert_non_null(copy);
    for (char *p = copy; *p; p++)
        if (*p == '\'') *p = '"';
    json_t *v = json_loads(copy, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &je);
    if (!v) fail_msg("test data: %s in %s", je.text, copy);
    free(copy);
    return v;
}

#define POLICY                                                                                                         \
    "'policy':{'profile':'glm-dsa-v1','decode':'compact-flash','short_prefill':'dense',"                               \
    "'long_prefill':'sparse-chunked','verify':'auto','indexshare':'required','experimental':{"                         \
    "'selected_row_flash':'evidence-gated','moe_weighted_down':'evidence-gated',"                                      \
    "'moe_merged_shared_gate_up':'evidence-gated'}}"
#define THRESHOLDS                                                                                                     \
    "'thresholds':{'short_prefill_max_tokens':2048,'compact_flash_min_kv':1,'dense_mask_max_bytes':268435456}"
#define WINDOW "'window_policy':{'default':'fixed','initial_window':1,'min_window':1,'max_window':1,'pipeline_depth':1}"

/* Every kind of proposer and strategy that the standard names. */
static const char menu[] =
    "{" POLICY "," THRESHOLDS ",'speculative_decoding':{'default':'mtp','proposers':{"
    "'mtp':{'type':'native-mtp','prediction_depth':1,'layer_indices':[47]},"
    "'cache':{'type':'ngram-cache','ngram_min':2,'ngram_max':4,'max_proposal_tokens':10,'history_scope':'request'},"
    "'suffix':{'type':'ngram-suffix','ngram_min':3,'ngram_max':64,'max_proposal_tokens':6,'history_scope':'request'}},"
    "'strategies':{"
    "'mtp':{'type':'native-mtp','proposer':'mtp'},"
    "'inline':{'type':'native-mtp','prediction_depth':1,'layer_indices':[46,47]," WINDOW "},"
    "'ngram-cache':{'type':'ngram-cache','proposer':'cache'},"
    "'ngram-suffix':{'type':'ngram-suffix','proposer':'suffix','window_policy':{'default':'adaptive',"
    "'initial_window':2,'min_window':1,'max_window':4}},"
    "'mtp-cache':{'type':'composite','primary':'mtp','extender':'cache','extension_policy':{'max_tokens':8}},"
    "'mtp-suffix':{'type':'composite','primary':'mtp','extender':'suffix','extension_policy':{'initial_tokens':2,"
    "'max_tokens':48,'tail_backoff_proposals':2}}}}}";

static const char *const sound[] = {
    /* the shape of the manifest */
    "{" POLICY "," THRESHOLDS ",'speculative_decoding':{'default':'mtp','strategies':{'mtp':{'type':'native-mtp',"
    "'prediction_depth':1,'layer_indices':[47]," WINDOW "}}}}",
    /* the shape of an execution policy */
    "{'policy':{'profile':'glm-dsa-v1','decode':'compact-flash','short_prefill':'dense','long_prefill':"
    "'sparse-chunked','verify':'auto','indexshare':'required','experimental':{'selected_row_flash':"
    "'evidence-gated'}}," THRESHOLDS "}",
    /* the shape of a composite */
    "{'speculative_decoding':{'default':'mtp-cache','proposers':{'mtp':{'type':'native-mtp','prediction_depth':1,"
    "'layer_indices':[47]},'cache':{'type':'ngram-cache','ngram_min':2,'ngram_max':4,'max_proposal_tokens':10,"
    "'history_scope':'request'}},'strategies':{'mtp-cache':{'type':'composite','primary':'mtp','extender':'cache',"
    "'extension_policy':{'max_tokens':8}}}}}",
    /* the contributors' document, which spells the strategy as it was before */
    "{" POLICY "," THRESHOLDS ",'speculative_decoding':{'default':'native-mtp-n1','strategies':{'native-mtp-n1':{"
    "'type':'native-mtp','prediction_depth':1,'layer_indices':[47]," WINDOW "}}}}",
    menu,
    "{}",
    "{'policy':null,'thresholds':null,'speculative_decoding':null}",
    "{'thresholds':{}}",
    /* the older place of a switch, and the threshold that left the standard */
    "{'policy':{'profile':'glm-dsa-v1','decode':'dense','short_prefill':'direct-sparse','long_prefill':'fallback',"
    "'verify':'auto','selected_row_flash':'evidence-gated'},'thresholds':{'direct_sparse_decode_max_top_k':256}}",
};

static void check(const json_t *block, uint32_t layers, struct pkg_faults *faults) {
    struct strata_errmsg em;
    pkg_faults_init(faults);
    assert_int_equal(pkg_generation_check(block, layers, faults, NULL, &em), STRATA_OK);
}

static bool has(const struct pkg_faults *f, enum pkg_fault_code code) {
    for (size_t i = 0; i < f->n; i++)
        if (f->list[i].code == code) return true;
    return false;
}

static void test_sound(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof sound / sizeof sound[0]; i++) {
        struct pkg_faults f;
        json_t *block = json(sound[i]);
        check(block, 48, &f);
        if (f.n) fail_msg("sample %zu: %s: %s", i, pkg_fault_name(f.list[0].code), f.list[0].message);
        pkg_faults_deinit(&f);
        json_decref(block);
    }
}

/* Sets the value at a '/'-separated place of the menu, or removes the key when text is NULL. */
static json_t *edited(const char *place, const char *text) {
    json_t *root = json(menu), *at = root;
    char key[64];
    if (*place == '\0') {
        json_decref(root);
        return json(text);
    }
    for (const char *p = place;;) {
        size_t n = strcspn(p, "/");
        assert_true(n < sizeof key);
        memcpy(key, p, n);
        key[n] = '\0';
        p += n;
        if (*p == '\0') break;
        p++;
        at = json_object_get(at, key);
        assert_non_null(at);
    }
    if (text)
        assert_int_equal(json_object_set_new(at, key, json(text)), 0);
    else
        json_object_del(at, key); /* it may not be there at all */
    return root;
}

struct row {
    const char *place;
    const char *bad;  /* NULL: without the key */
    const char *near; /* almost the same, and no such fault; NULL: without the key */
    enum pkg_fault_code code;
};

#define SD "speculative_decoding/"
#define CACHE SD "proposers/cache/"
#define SUFFIX SD "proposers/suffix/"
#define INLINE SD "strategies/inline/"
#define COMPOSITE SD "strategies/mtp-cache/"
#define ANY_WINDOW(i, lo, hi, depth)                                                                                   \
    "{'default':'fixed','initial_window':" #i ",'min_window':" #lo ",'max_window':" #hi ",'pipeline_depth':" #depth "}"

static const struct row rows[] = {
    {"", "[]", "{}", PKG_FAULT_INVALID_GENERATION_FIELD},
    {"", "'text'", "{}", PKG_FAULT_INVALID_GENERATION_FIELD},
    {"policy", "'x'", NULL, PKG_FAULT_INVALID_GENERATION_FIELD},
    {"policy/decode", "3", "'dense'", PKG_FAULT_INVALID_GENERATION_FIELD},
    {"policy/experimental", "[]", "{}", PKG_FAULT_INVALID_GENERATION_FIELD},
    {"policy/experimental/selected_row_flash", "true", NULL, PKG_FAULT_INVALID_GENERATION_FIELD},
    {"thresholds", "[]", "{}", PKG_FAULT_INVALID_GENERATION_FIELD},
    {"thresholds/compact_flash_min_kv", "'1'", "1", PKG_FAULT_INVALID_GENERATION_FIELD},
    {"thresholds/compact_flash_min_kv", "-1", "2", PKG_FAULT_INVALID_GENERATION_FIELD},
    {"thresholds/compact_flash_min_kv", "4294967296", "4294967295", PKG_FAULT_INVALID_GENERATION_FIELD},
    {"thresholds/dense_mask_max_bytes", "1.5", "4294967296", PKG_FAULT_INVALID_GENERATION_FIELD},
    {"speculative_decoding", "7", NULL, PKG_FAULT_INVALID_GENERATION_FIELD},
    {SD "default", "1", "'inline'", PKG_FAULT_INVALID_GENERATION_FIELD},
    {SD "proposers/mtp", "'x'", "{}", PKG_FAULT_INVALID_GENERATION_FIELD},
    {SD "proposers/mtp/layer_indices", "47", "[47]", PKG_FAULT_INVALID_GENERATION_FIELD},
    {SD "proposers/mtp/layer_indices", "['47']", "[0]", PKG_FAULT_INVALID_GENERATION_FIELD},
    {SD "proposers/mtp/layer_indices", "[-1]", "[0]", PKG_FAULT_INVALID_GENERATION_FIELD},
    {SD "proposers/mtp/type", "1", "'ngram'", PKG_FAULT_INVALID_GENERATION_FIELD},
    {SD "strategies", "[]", "{}", PKG_FAULT_INVALID_GENERATION_FIELD},
    {SD "strategies/inline", "1", "{}", PKG_FAULT_INVALID_GENERATION_FIELD},
    {SD "strategies/inline/type", "{}", "'native-mtp'", PKG_FAULT_INVALID_GENERATION_FIELD},
    {COMPOSITE "primary", "1", "'mtp'", PKG_FAULT_INVALID_GENERATION_FIELD},
    {COMPOSITE "extension_policy/max_tokens", "'8'", "9", PKG_FAULT_INVALID_GENERATION_FIELD},
    {COMPOSITE "extension_policy/tail_backoff_proposals", "'8'", "0", PKG_FAULT_INVALID_GENERATION_FIELD},
    {INLINE "window_policy", "'fixed'", NULL, PKG_FAULT_INVALID_GENERATION_FIELD},
    {INLINE "window_policy/min_window", NULL, "1", PKG_FAULT_INVALID_GENERATION_FIELD},
    {CACHE "ngram_min", "'2'", "3", PKG_FAULT_INVALID_GENERATION_FIELD},
    {CACHE "history_scope", "1", "'request'", PKG_FAULT_INVALID_GENERATION_FIELD},
    {"glm_dsa", "{}", NULL, PKG_FAULT_UNKNOWN_GENERATION_KEY},
    {"policy/metal", "'x'", NULL, PKG_FAULT_UNKNOWN_GENERATION_KEY},
    {"thresholds/other_max", "0", NULL, PKG_FAULT_UNKNOWN_GENERATION_KEY},
    {SD "other", "0", NULL, PKG_FAULT_UNKNOWN_GENERATION_KEY},
    {CACHE "window_policy", "{}", NULL, PKG_FAULT_UNKNOWN_GENERATION_KEY},
    {INLINE "note", "1", NULL, PKG_FAULT_UNKNOWN_GENERATION_KEY},
    {INLINE "window_policy/step", "1", NULL, PKG_FAULT_UNKNOWN_GENERATION_KEY},
    {COMPOSITE "extension_policy/step", "1", NULL, PKG_FAULT_UNKNOWN_GENERATION_KEY},
    {"policy/profile", "'glm-dsa-v2'", "'glm-dsa-v1'", PKG_FAULT_UNSUPPORTED_GENERATION_POLICY},
    {"policy/decode", "'metal-flash'", "'direct-sparse'", PKG_FAULT_UNSUPPORTED_GENERATION_POLICY},
    {"policy/long_prefill", "'Dense'", "'fallback'", PKG_FAULT_UNSUPPORTED_GENERATION_POLICY},
    {"policy/indexshare", "'dense'", "'required'", PKG_FAULT_UNSUPPORTED_GENERATION_POLICY},
    {"policy/experimental/selected_row_flash", "'on'", "'evidence-gated'", PKG_FAULT_UNSUPPORTED_GENERATION_POLICY},
    {"policy/experimental/kernel_7", "'evidence-gated'", NULL, PKG_FAULT_UNSUPPORTED_GENERATION_POLICY},
    {INLINE "window_policy/default", "'wide'", "'adaptive'", PKG_FAULT_UNSUPPORTED_GENERATION_POLICY},
    {INLINE "window_policy", ANY_WINDOW(1, 1, 2, 1), ANY_WINDOW(1, 1, 1, 2), PKG_FAULT_UNSUPPORTED_GENERATION_POLICY},
    {"policy/profile", "' '", "'glm-dsa-v1'", PKG_FAULT_EMPTY_GENERATION_POLICY_FIELD},
    {"policy/verify", NULL, "'auto'", PKG_FAULT_EMPTY_GENERATION_POLICY_FIELD},
    {"policy/indexshare", "''", NULL, PKG_FAULT_EMPTY_GENERATION_POLICY_FIELD},
    {"policy/experimental/moe_weighted_down", "''", NULL, PKG_FAULT_EMPTY_GENERATION_POLICY_FIELD},
    {"thresholds/short_prefill_max_tokens", "0", "1", PKG_FAULT_INVALID_GENERATION_THRESHOLD_ZERO},
    {"thresholds/direct_sparse_decode_max_top_k", "0", "1", PKG_FAULT_INVALID_GENERATION_THRESHOLD_ZERO},
    {"thresholds/dense_mask_max_bytes", "0", NULL, PKG_FAULT_INVALID_GENERATION_THRESHOLD_ZERO},
    {SD "default", "''", "'mtp'", PKG_FAULT_EMPTY_SPECULATIVE_DEFAULT},
    {SD "default", NULL, "'mtp'", PKG_FAULT_EMPTY_SPECULATIVE_DEFAULT},
    {SD "default", "'disabled'", "'ngram-cache'", PKG_FAULT_MISSING_SPECULATIVE_DEFAULT_STRATEGY},
    {SD "strategies", NULL, "{'mtp':{'type':'native-mtp','proposer':'mtp'}}",
     PKG_FAULT_MISSING_SPECULATIVE_DEFAULT_STRATEGY},
    {SD "proposers/ ", "{'type':'native-mtp','prediction_depth':1,'layer_indices':[47]}", NULL,
     PKG_FAULT_EMPTY_SPECULATIVE_PROPOSER_NAME},
    {SD "proposers/cache/type", "'draft-model'", "'ngram-cache'", PKG_FAULT_UNSUPPORTED_SPECULATIVE_PROPOSER_TYPE},
    {SD "proposers/cache/type", NULL, "'ngram-cache'", PKG_FAULT_UNSUPPORTED_SPECULATIVE_PROPOSER_TYPE},
    {SD "strategies/ ", "{'type':'ngram-cache','proposer':'cache'}", NULL, PKG_FAULT_EMPTY_SPECULATIVE_STRATEGY_NAME},
    {SD "strategies/mtp/type", "''", "'native-mtp'", PKG_FAULT_EMPTY_SPECULATIVE_STRATEGY_TYPE},
    {SD "strategies/mtp/type", NULL, "'native-mtp'", PKG_FAULT_EMPTY_SPECULATIVE_STRATEGY_TYPE},
    /* the default, and another one */
    {SD "strategies/mtp", "{'type':'draft-model'}", "{'type':'native-mtp','proposer':'mtp'}",
     PKG_FAULT_UNSUPPORTED_SPECULATIVE_STRATEGY_TYPE},
    {SD "strategies/draft", "{'type':'draft-model','draft_model':'org/small','window_policy':7}",
     "{'type':'ngram-cache','proposer':'cache'}", PKG_FAULT_UNUSED_SPECULATIVE_STRATEGY_TYPE},
    {SD "strategies/mtp/proposer", "'mtp2'", "'mtp'", PKG_FAULT_MISSING_SPECULATIVE_PROPOSER},
    {SD "proposers/suffix", NULL,
     "{'type':'ngram-suffix','ngram_min':3,'ngram_max':3,'max_proposal_tokens':1,"
     "'history_scope':'request'}",
     PKG_FAULT_MISSING_SPECULATIVE_PROPOSER},
    {SD "strategies/mtp/proposer", "'cache'", "'mtp'", PKG_FAULT_NATIVE_MTP_STRATEGY_PROPOSER_TYPE_MISMATCH},
    {SD "strategies/ngram-cache/proposer", NULL, "'cache'", PKG_FAULT_MISSING_NGRAM_STRATEGY_PROPOSER},
    {SD "strategies/ngram-cache/proposer", "'suffix'", "'cache'", PKG_FAULT_NGRAM_STRATEGY_PROPOSER_TYPE_MISMATCH},
    {SD "strategies/ngram-suffix/proposer", "'mtp'", "'suffix'", PKG_FAULT_NGRAM_STRATEGY_PROPOSER_TYPE_MISMATCH},
    {COMPOSITE "extension_policy", NULL, "{'max_tokens':1}", PKG_FAULT_MISSING_COMPOSITE_EXTENSION_POLICY},
    {COMPOSITE "primary", NULL, "'mtp'", PKG_FAULT_MISSING_COMPOSITE_PRIMARY},
    {COMPOSITE "extender", NULL, "'suffix'", PKG_FAULT_MISSING_COMPOSITE_EXTENDER},
    {COMPOSITE "primary", "'cache'", "'mtp'", PKG_FAULT_INVALID_COMPOSITE_PRIMARY_TYPE},
    {COMPOSITE "extender", "'mtp'", "'suffix'", PKG_FAULT_INVALID_COMPOSITE_EXTENDER_TYPE},
    {SD "proposers/mtp/prediction_depth", "2", "1", PKG_FAULT_UNSUPPORTED_NATIVE_MTP_PREDICTION_DEPTH},
    {SD "proposers/mtp/prediction_depth", NULL, "1", PKG_FAULT_UNSUPPORTED_NATIVE_MTP_PREDICTION_DEPTH},
    {INLINE "prediction_depth", "0", "1", PKG_FAULT_UNSUPPORTED_NATIVE_MTP_PREDICTION_DEPTH},
    {SD "strategies/mtp/prediction_depth", "3", "1", PKG_FAULT_UNSUPPORTED_NATIVE_MTP_PREDICTION_DEPTH},
    {SD "proposers/mtp/layer_indices", "[]", "[0]", PKG_FAULT_MISSING_NATIVE_MTP_LAYERS},
    {INLINE "layer_indices", NULL, "[47]", PKG_FAULT_MISSING_NATIVE_MTP_LAYERS},
    {INLINE "layer_indices", "[47,48]", "[47]", PKG_FAULT_NATIVE_MTP_LAYER_OUT_OF_RANGE},
    {CACHE "ngram_min", "0", "1", PKG_FAULT_INVALID_NGRAM_PROPOSER_WINDOW},
    {CACHE "ngram_min", "5", "4", PKG_FAULT_INVALID_NGRAM_PROPOSER_WINDOW},
    {SUFFIX "ngram_max", NULL, "64", PKG_FAULT_INVALID_NGRAM_PROPOSER_WINDOW},
    {CACHE "max_proposal_tokens", "0", "1", PKG_FAULT_INVALID_NGRAM_PROPOSER_MAX_TOKENS},
    {SUFFIX "max_proposal_tokens", NULL, "1", PKG_FAULT_INVALID_NGRAM_PROPOSER_MAX_TOKENS},
    {CACHE "ngram_max", "5", "4", PKG_FAULT_UNSUPPORTED_NGRAM_CACHE_MAX_WINDOW},
    {CACHE "history_scope", "'session'", "'request'", PKG_FAULT_INVALID_NGRAM_CACHE_HISTORY_SCOPE},
    {CACHE "history_scope", NULL, "'request'", PKG_FAULT_INVALID_NGRAM_CACHE_HISTORY_SCOPE},
    {SUFFIX "ngram_max", "65", "64", PKG_FAULT_UNSUPPORTED_NGRAM_SUFFIX_WINDOW},
    {SUFFIX "ngram_min", "2", "3", PKG_FAULT_UNSUPPORTED_NGRAM_SUFFIX_WINDOW},
    {SUFFIX "history_scope", "'Request'", "'request'", PKG_FAULT_INVALID_NGRAM_SUFFIX_HISTORY_SCOPE},
    {COMPOSITE "extension_policy/max_tokens", "0", "1", PKG_FAULT_INVALID_EXTENSION_POLICY_TOKENS},
    {COMPOSITE "extension_policy/max_tokens", NULL, "1", PKG_FAULT_INVALID_EXTENSION_POLICY_TOKENS},
    {COMPOSITE "extension_policy/initial_tokens", "9", "8", PKG_FAULT_INVALID_EXTENSION_POLICY_TOKENS},
    {INLINE "window_policy/default", "''", "'fixed'", PKG_FAULT_EMPTY_WINDOW_POLICY_DEFAULT},
    {INLINE "window_policy/default", NULL, "'fixed'", PKG_FAULT_EMPTY_WINDOW_POLICY_DEFAULT},
    {INLINE "window_policy", ANY_WINDOW(0, 1, 1, 1), ANY_WINDOW(1, 1, 1, 1), PKG_FAULT_INVALID_WINDOW_POLICY_ZERO},
    {INLINE "window_policy", ANY_WINDOW(1, 0, 1, 1), ANY_WINDOW(1, 1, 1, 2), PKG_FAULT_INVALID_WINDOW_POLICY_ZERO},
    {INLINE "window_policy/pipeline_depth", "0", NULL, PKG_FAULT_INVALID_WINDOW_POLICY_ZERO},
    {SD "strategies/ngram-suffix/window_policy", ANY_WINDOW(3, 3, 2, 1), ANY_WINDOW(3, 3, 3, 1),
     PKG_FAULT_INVALID_WINDOW_POLICY_BOUNDS},
    {INLINE "window_policy/pipeline_depth", "65", "64", PKG_FAULT_INVALID_WINDOW_POLICY_BOUNDS},
    {SD "strategies/ngram-suffix/window_policy", ANY_WINDOW(5, 2, 4, 1), ANY_WINDOW(4, 2, 4, 1),
     PKG_FAULT_INVALID_WINDOW_POLICY_INITIAL},
    {SD "strategies/ngram-suffix/window_policy", ANY_WINDOW(1, 2, 4, 1), ANY_WINDOW(2, 2, 4, 1),
     PKG_FAULT_INVALID_WINDOW_POLICY_INITIAL},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static void test_rows(void **state) {
    (void)state;
    bool covered[PKG_FAULT_COUNT] = {0};
    struct pkg_faults f;
    for (size_t i = 0; i < N_ROWS; i++) {
        const struct row *r = &rows[i];
        json_t *block = edited(r->place, r->bad);
        check(block, 48, &f);
        if (!has(&f, r->code))
            fail_msg("row %zu, %s = %s: no %s (%zu faults)", i, r->place, r->bad ? r->bad : "(gone)",
                     pkg_fault_name(r->code), f.n);
        /* A plain mistake is told once. */
        size_t same = 0;
        for (size_t k = 0; k < f.n; k++) same += f.list[k].code == r->code;
        bool twice = r->code == PKG_FAULT_MISSING_SPECULATIVE_PROPOSER; /* two strategies name it */
        if (same > (twice ? 2 : 1)) fail_msg("row %zu: %s told %zu times", i, pkg_fault_name(r->code), same);
        pkg_faults_deinit(&f);
        json_decref(block);
        block = edited(r->place, r->near);
        check(block, 48, &f);
        if (has(&f, r->code))
            fail_msg("row %zu, %s = %s: %s", i, r->place, r->near ? r->near : "(gone)", f.list[0].message);
        pkg_faults_deinit(&f);
        json_decref(block);
        covered[r->code] = true;
    }
    for (int c = PKG_FAULT_INVALID_GENERATION_FIELD; c < PKG_FAULT_GLM_DSA_CONTRACT; c++)
        if (!covered[c] && c != PKG_FAULT_NATIVE_MTP_LAYER_WITHOUT_TENSORS)
            fail_msg("no row for %s", pkg_fault_name((enum pkg_fault_code)c));
}

static void test_severities(void **state) {
    (void)state;
    struct pkg_faults f;
    json_t *block = edited(SD "strategies/draft", "{'type':'draft-model'}");
    json_object_set_new(block, "metal", json_object());
    json_object_set_new(json_object_get(block, "policy"), "decode", json_string("new-path"));
    check(block, 48, &f);
    assert_int_equal(f.n, 3); /* all are tolerated */
    assert_int_equal(f.n_errors, 0);
    pkg_faults_deinit(&f);
    json_decref(block);
    /* Every thing that is wrong is told, not only the first. */
    block = json("{'policy':{},'thresholds':{'compact_flash_min_kv':0},'speculative_decoding':{'strategies':"
                 "{'a':{'type':'composite'}}}}");
    check(block, 48, &f);
    assert_int_equal(f.n_errors, 5 + 1 + 1 + 3);
    pkg_faults_deinit(&f);
    json_decref(block);
}

/* Without a layer count there is nothing to compare with. */
static void test_unknown_layer_count(void **state) {
    (void)state;
    struct pkg_faults f;
    json_t *block = edited(INLINE "layer_indices", "[99999]");
    check(block, 0, &f);
    assert_int_equal(f.n, 0);
    pkg_faults_deinit(&f);
    check(block, 48, &f);
    assert_int_equal(f.n_errors, 1);
    pkg_faults_deinit(&f);
    json_decref(block);
}

static void test_summary(void **state) {
    (void)state;
    struct pkg_faults f;
    struct strata_errmsg em;
    json_t *block = json(menu), *summary = NULL;
    json_object_set_new(json_object_get(block, "policy"), "future", json_integer(1));
    json_object_set_new(json_object_get(json_object_get(block, "speculative_decoding"), "proposers"), "odd",
                        json_integer(1));
    pkg_faults_init(&f);
    assert_int_equal(pkg_generation_check(block, 48, &f, &summary, &em), STRATA_OK);
    pkg_faults_deinit(&f);
    json_t *want = json(
        "{" POLICY "," THRESHOLDS ",'speculative_decoding':{'default':'mtp','proposers':["
        "{'name':'cache','type':'ngram-cache','ngram_min':2,'ngram_max':4,'max_proposal_tokens':10,"
        "'history_scope':'request'},"
        "{'name':'mtp','type':'native-mtp','prediction_depth':1,'layer_indices':[47]},"
        "{'name':'suffix','type':'ngram-suffix','ngram_min':3,'ngram_max':64,'max_proposal_tokens':6,"
        "'history_scope':'request'}],"
        "'strategies':["
        "{'name':'inline','type':'native-mtp','prediction_depth':1,'layer_indices':[46,47]," WINDOW "},"
        "{'name':'mtp','type':'native-mtp','proposer':'mtp'},"
        "{'name':'mtp-cache','type':'composite','primary':'mtp','extender':'cache','extension_policy':{'max_tokens':"
        "8}},"
        "{'name':'mtp-suffix','type':'composite','primary':'mtp','extender':'suffix','extension_policy':{"
        "'initial_tokens':2,'max_tokens':48,'tail_backoff_proposals':2}},"
        "{'name':'ngram-cache','type':'ngram-cache','proposer':'cache'},"
        "{'name':'ngram-suffix','type':'ngram-suffix','proposer':'suffix','window_policy':{'default':'adaptive',"
        "'initial_window':2,'min_window':1,'max_window':4}}]}}");
    json_object_set_new(json_object_get(want, "policy"), "future", json_integer(1));
    char *a = json_dumps(summary, JSON_COMPACT), *b = json_dumps(want, JSON_COMPACT); /* the order of keys counts */
    assert_string_equal(a, b);
    free(a);
    free(b);
    json_decref(summary);
    json_decref(want);
    json_decref(block);
    /* A copy: the block was left alone, and outlived by the summary. Anything becomes an object. */
    static const char *const odd[] = {"7", "[]", "{'speculative_decoding':3,'policy':[1]}",
                                      "{'speculative_decoding':{'strategies':[],'proposers':{'a':1}}}"};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        block = json(odd[i]);
        assert_int_equal(pkg_generation_summary(block, &summary, &em), STRATA_OK);
        json_decref(block);
        assert_true(json_is_object(summary));
        json_decref(summary);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound),      cmocka_unit_test(test_rows),
        cmocka_unit_test(test_severities), cmocka_unit_test(test_unknown_layer_count),
        cmocka_unit_test(test_summary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
