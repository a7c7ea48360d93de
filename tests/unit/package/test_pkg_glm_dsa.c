/* The GLM-DSA contract: a model that fulfils it, every single breach by its message, packages, and the repair. */
#include "package/pkg_diff.h"
#include "package/pkg_generation.h"
#include "package/pkg_glm_dsa.h"
#include "package/pkg_inventory.h"

#include "glm_sample.h"

#include <sys/stat.h>

static struct tmp_folder T;

static int setup(void **state) {
    (void)state;
    tmp_folder_make(&T);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tmp_folder_remove(T.path);
    return 0;
}

static void check_with(const struct glm_sample *s, const json_t *generation, bool required,
                       struct pkg_glm_dsa_report *r) {
    struct gguf_source *src;
    struct pkg_inventory inv;
    struct strata_errmsg em;
    const char *path = tmp_path(&T, "model.gguf");
    const struct pkg_glm_dsa_options opt = {.require_generation_policy = required};
    glm_write(s, path);
    assert_int_equal(gguf_source_open(path, &src, &em), STRATA_OK);
    assert_int_equal(pkg_inventory_init(&inv, src, &em), STRATA_OK);
    assert_int_equal(pkg_glm_dsa_check(&inv, generation, &opt, r, &em), STRATA_OK);
    pkg_inventory_deinit(&inv);
    gguf_source_free(src);
}

static void check(const struct glm_sample *s, struct pkg_glm_dsa_report *r) {
    check_with(s, NULL, false, r);
}

static const char *line(const struct pkg_glm_dsa_report *r, enum pkg_glm_dsa_list list, size_t i) {
    return json_string_value(json_array_get(r->list[list], i));
}

static size_t lines(const struct pkg_glm_dsa_report *r, enum pkg_glm_dsa_list list) {
    return json_array_size(r->list[list]);
}

/* Exactly one error, in this list and of this text. */
static void expect_one(const struct glm_sample *s, enum pkg_glm_dsa_list list, const char *text) {
    struct pkg_glm_dsa_report r;
    size_t more;
    check(s, &r);
    const char *first = pkg_glm_dsa_first_error(&r, &more);
    if (r.valid || !first) fail_msg("valid; expected: %s", text);
    if (strcmp(first, text) != 0 || lines(&r, list) == 0) fail_msg("got '%s', expected '%s'", first, text);
    if (more) fail_msg("'%s', and %zu more", first, more);
    pkg_glm_dsa_deinit(&r);
}

/* Invalid, with this among the errors of the list. */
static void expect_among(const struct glm_sample *s, enum pkg_glm_dsa_list list, const char *text) {
    struct pkg_glm_dsa_report r;
    bool found = false;
    check(s, &r);
    for (size_t i = 0; i < lines(&r, list); i++) found |= strcmp(line(&r, list, i), text) == 0;
    if (!found) fail_msg("not there: '%s'; first is '%s'", text, pkg_glm_dsa_first_error(&r, NULL));
    assert_false(r.valid);
    pkg_glm_dsa_deinit(&r);
}

static void test_roles(void **state) {
    (void)state;
    static const struct {
        enum glm_roles roles;
        enum pkg_glm_dsa_roles source;
        size_t full;
    } rows[] = {{GLM_ROLES_STRINGS, PKG_GLM_DSA_TYPES, 3},       {GLM_ROLES_BOOLS, PKG_GLM_DSA_TYPES, 3},
                {GLM_ROLES_INTS, PKG_GLM_DSA_TYPES, 3},          {GLM_ROLES_BOTH, PKG_GLM_DSA_TYPES, 3},
                {GLM_ROLES_FREQUENCY, PKG_GLM_DSA_FREQUENCY, 3}, {GLM_ROLES_ONE_FULL, PKG_GLM_DSA_TYPES, 6}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pkg_glm_dsa_report r;
        const struct glm_sample s = {.roles = rows[i].roles};
        check(&s, &r);
        if (!r.valid) fail_msg("roles %d: %s", (int)rows[i].roles, pkg_glm_dsa_first_error(&r, NULL));
        assert_int_equal(r.role_source, rows[i].source);
        assert_int_equal(json_array_size(r.full_layers), rows[i].full);
        assert_int_equal(json_array_size(r.shared_layers), 6 - rows[i].full);
        for (size_t k = 0; rows[i].full == 3 && k < 3; k++)
            assert_int_equal(json_integer_value(json_array_get(r.full_layers, k)), k == 2 ? 4 : (json_int_t)k);
        assert_string_equal(r.architecture, "glm-dsa");
        assert_int_equal(r.layer_count, GLM_BLOCKS);
        assert_int_equal(r.decoder_layers, GLM_DECODER);
        assert_int_equal(r.nextn_layers, 1);
        assert_int_equal(lines(&r, PKG_GLM_DSA_WARNINGS), 0);
        pkg_glm_dsa_deinit(&r);
    }
    struct pkg_glm_dsa_report r;
    const struct glm_sample trunk = {.no_nextn = true}, unstated = {.no_mla = true};
    check(&trunk, &r);
    assert_true(r.valid);
    assert_int_equal(r.decoder_layers, GLM_DECODER);
    pkg_glm_dsa_deinit(&r);
    check(&unstated, &r);
    assert_true(r.valid);
    pkg_glm_dsa_deinit(&r);
}

#define TYPES "glm-dsa.attention.indexer.types"
#define NO_ROLES "missing IndexShare role metadata; expected indexer.types or top_k_frequency/skip_top_k_offset"

static void test_bad_roles(void **state) {
    (void)state;
    struct pkg_glm_dsa_report r;
    static const struct {
        struct glm_sample s;
        const char *text;
    } one[] = {
        {{.roles = GLM_ROLES_NONE}, NO_ROLES},
        {{.roles = GLM_ROLES_ZERO}, NO_ROLES},
        {{.roles = GLM_ROLES_SHORT}, TYPES " length 5 must match effective decoder layers 6"},
        {{.roles = GLM_ROLES_BAD_STRING}, TYPES "[3] must be full or shared"},
        {{.roles = GLM_ROLES_BAD_INT}, TYPES "[3] is 2; it must be 0 (shared) or 1 (full)"},
        {{.roles = GLM_ROLES_FLOATS}, TYPES " must hold strings, bools or whole numbers"},
        {{.roles = GLM_ROLES_FREQUENCY, .zero = "attention.indexer.top_k_frequency"},
         "glm-dsa.attention.indexer.top_k_frequency must be positive when present"},
        {{.roles = GLM_ROLES_FREQUENCY, .text = "attention.indexer.top_k_frequency"},
         "glm-dsa.attention.indexer.top_k_frequency must be a number of 32 bits"},
        {{.roles = GLM_ROLES_BOTH, .text = "attention.indexer.skip_top_k_offset"},
         "glm-dsa.attention.indexer.skip_top_k_offset must be a number of 32 bits"},
    };
    for (size_t i = 0; i < sizeof one / sizeof one[0]; i++) {
        if (one[i].s.roles == GLM_ROLES_BOTH)
            expect_among(&one[i].s, PKG_GLM_DSA_METADATA, one[i].text); /* an unknown offset makes other roles too */
        else
            expect_one(&one[i].s, PKG_GLM_DSA_METADATA, one[i].text);
        check(&one[i].s, &r);
        if (one[i].s.roles != GLM_ROLES_BOTH) assert_int_equal(r.role_source, PKG_GLM_DSA_PRESENCE);
        pkg_glm_dsa_deinit(&r);
    }
    const struct glm_sample no_offset = {.roles = GLM_ROLES_FREQUENCY,
                                         .without = "attention.indexer.skip_top_k_offset"};
    expect_among(&no_offset, PKG_GLM_DSA_METADATA,
                 "glm-dsa.attention.indexer.skip_top_k_offset is required when "
                 "glm-dsa.attention.indexer.top_k_frequency is present");
    expect_among(&no_offset, PKG_GLM_DSA_METADATA,
                 "layer 0 is Shared, but there is no Full layer before it whose choice it could use");
    const struct glm_sample clash = {.roles = GLM_ROLES_CLASH};
    check(&clash, &r); /* offset 3 makes layers 2 and 5 Full, and 4 Shared */
    assert_int_equal(lines(&r, PKG_GLM_DSA_METADATA), 3);
    assert_string_equal(line(&r, PKG_GLM_DSA_METADATA, 0),
                        TYPES " conflicts with top_k_frequency at layer 2: types=shared, frequency=full");
    assert_string_equal(line(&r, PKG_GLM_DSA_METADATA, 1),
                        TYPES " conflicts with top_k_frequency at layer 4: types=full, frequency=shared");
    assert_int_equal(lines(&r, PKG_GLM_DSA_TENSORS), 0); /* the types count */
    pkg_glm_dsa_deinit(&r);
}

static void test_numbers(void **state) {
    (void)state;
    char text[160];
    for (size_t i = 0; i < GLM_NUMBERS; i++) {
        const char *key = glm_numbers[i].key;
        const struct glm_sample absent = {.without = key}, zero = {.zero = key}, word = {.text = key};
        snprintf(text, sizeof text, "missing glm-dsa.%s", key);
        /* Without a number of dense layers every layer is a mixture of experts; the first is none. */
        bool alone = strcmp(key, "leading_dense_block_count") != 0;
        if (alone)
            expect_one(&absent, PKG_GLM_DSA_METADATA, text);
        else
            expect_among(&absent, PKG_GLM_DSA_METADATA, text);
        snprintf(text, sizeof text, "glm-dsa.%s must be > 0", key);
        expect_among(&zero, PKG_GLM_DSA_METADATA, text);
        snprintf(text, sizeof text, "glm-dsa.%s must be a number of 32 bits above 0; it is string", key);
        expect_among(&word, PKG_GLM_DSA_METADATA, text);
    }
    static const char *const others[] = {"attention.layer_norm_rms_epsilon", "expert_weights_scale",
                                         "expert_weights_norm"};
    for (size_t i = 0; i < 3; i++) {
        const struct glm_sample absent = {.without = others[i]}, word = {.text = others[i]};
        snprintf(text, sizeof text, "missing glm-dsa.%s", others[i]);
        expect_one(&absent, PKG_GLM_DSA_METADATA, text);
        snprintf(text, sizeof text, "glm-dsa.%s must be %s", others[i], i < 2 ? "a finite float" : "a bool");
        expect_one(&word, PKG_GLM_DSA_METADATA, text);
    }
}

static void test_numbers_together(void **state) {
    (void)state;
    static const struct {
        struct glm_sample s;
        enum pkg_glm_dsa_list list;
        const char *text;
    } rows[] = {
        {{.set = "rope.dimension_count", .set_to = 8},
         PKG_GLM_DSA_METADATA,
         "glm-dsa.attention.indexer.key_length 8 must be greater than glm-dsa.rope.dimension_count 8"},
        {{.set = "expert_used_count", .set_to = 5},
         PKG_GLM_DSA_METADATA,
         "glm-dsa.expert_used_count 5 must not exceed glm-dsa.expert_count 4"},
        {{.set = "attention.key_length_mla", .set_to = 4},
         PKG_GLM_DSA_METADATA,
         "glm-dsa.attention.key_length_mla 4 must be greater than glm-dsa.rope.dimension_count 4"},
        {{.set = "nextn_predict_layers", .set_to = 7},
         PKG_GLM_DSA_METADATA,
         "glm-dsa.nextn_predict_layers 7 must be less than glm-dsa.block_count 7"},
        {{.text = "nextn_predict_layers"},
         PKG_GLM_DSA_METADATA,
         "glm-dsa.nextn_predict_layers must be a number of 32 bits"},
        {{.set = "block_count", .set_to = 4000000000u},
         PKG_GLM_DSA_METADATA,
         "glm-dsa.block_count 4000000000 is more than 100000"},
        {{.set = "block_count", .set_to = 99999, .roles = GLM_ROLES_FREQUENCY},
         PKG_GLM_DSA_TENSORS,
         "missing tensors: blk.7 to blk.99998 have none at all"},
        {{.set = "block_count", .set_to = 6, .roles = GLM_ROLES_FREQUENCY},
         PKG_GLM_DSA_TENSORS,
         "blk.6.nextn.enorm.weight is beyond the model: glm-dsa.block_count is 6"},
        {{.zero = "nextn_predict_layers", .roles = GLM_ROLES_FREQUENCY},
         PKG_GLM_DSA_TENSORS,
         "blk.6.nextn.hnorm.weight stands in a decoder layer: glm-dsa.nextn_predict_layers is 0 of 7"},
        {{.without_of = "blk.3."}, PKG_GLM_DSA_TENSORS, "missing tensors: blk.3 has none at all"},
        {{.without_of = "blk.6."}, PKG_GLM_DSA_TENSORS, "missing tensors: blk.6 has none at all"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) expect_among(&rows[i].s, rows[i].list, rows[i].text);
    /* A model with a hundred thousand missing layers makes a short report. */
    struct pkg_glm_dsa_report r;
    const struct glm_sample huge = {.set = "block_count", .set_to = 99999, .roles = GLM_ROLES_FREQUENCY};
    check(&huge, &r);
    assert_true(lines(&r, PKG_GLM_DSA_TENSORS) < 20);
    pkg_glm_dsa_deinit(&r);
    const struct glm_sample other = {.architecture = "deepseek2"}, nameless = {.without = "general.architecture"};
    expect_one(&other, PKG_GLM_DSA_METADATA,
               "general.architecture must be glm-dsa; it is deepseek2, and this contract is for GLM-DSA models (GLM-5 "
               "and later) alone");
    expect_one(&nameless, PKG_GLM_DSA_METADATA, "general.architecture must be glm-dsa; it is missing or no string");
}

/* Each tensor is left out in turn, and bent in turn. */
static void test_tensors(void **state) {
    (void)state;
    static struct glm_tensor all[GLM_MAX_TENSORS];
    static const struct glm_sample good = {0};
    char text[200];
    size_t n = glm_list(&good, all);
    assert_int_equal(n, 148);
    for (size_t i = 0; i < n; i++) {
        const char *name = all[i].name;
        struct glm_sample s = {.without = name};
        uint32_t layer = 0;
        pkg_class_of(name, &layer);
        bool optional =
            strcmp(name, "output.weight") == 0 || strstr(name, "exp_probs_b") || strstr(name, "shared_head_norm");
        if (optional) {
            struct pkg_glm_dsa_report r;
            check(&s, &r);
            assert_true(r.valid);
            pkg_glm_dsa_deinit(&r);
        } else if (strstr(name, ".indexer.")) {
            if (layer < GLM_DECODER) {
                snprintf(text, sizeof text, "blk.%u has a partial group of indexer tensors (4/5)", layer);
                expect_among(&s, PKG_GLM_DSA_TENSORS, text);
                snprintf(text, sizeof text, "blk.%u is a Full layer but lacks complete indexer tensors", layer);
                expect_among(&s, PKG_GLM_DSA_TENSORS, text);
            } else {
                expect_one(&s, PKG_GLM_DSA_TENSORS, "blk.6 is a NextN layer but lacks complete indexer tensors (4/5)");
            }
        } else {
            snprintf(text, sizeof text, "missing tensor %s", name);
            expect_one(&s, PKG_GLM_DSA_TENSORS, text);
        }
        /* The vocabulary is not stated, and output.weight is none of the contract's. */
        if (strcmp(name, "token_embd.weight") == 0 || strcmp(name, "output.weight") == 0) continue;
        s = (struct glm_sample){.bent = name};
        struct pkg_glm_dsa_report r;
        check(&s, &r);
        if (lines(&r, PKG_GLM_DSA_TENSORS) != 1 || strncmp(line(&r, PKG_GLM_DSA_TENSORS, 0), name, strlen(name)) != 0)
            fail_msg("%s bent: '%s'", name, pkg_glm_dsa_first_error(&r, NULL));
        assert_non_null(strstr(line(&r, PKG_GLM_DSA_TENSORS, 0), "; the metadata asks for "));
        pkg_glm_dsa_deinit(&r);
    }
    const struct glm_sample shape = {.bent = "blk.2.attn_k_b.weight"};
    expect_one(&shape, PKG_GLM_DSA_TENSORS, "blk.2.attn_k_b.weight is 8 x 11 x 2; the metadata asks for 8 x 10 x 2");
    const struct glm_sample unsplit = {.extra = {{"blk.2.attn_kv_b.weight", {GLM_KV, 28}}}};
    expect_one(&unsplit, PKG_GLM_DSA_TENSORS,
               "blk.2.attn_kv_b.weight is the unsplit form; sparse attention needs attn_k_b and attn_v_b alone");
    const struct glm_sample indexed = {.extra = {{"blk.2.indexer.k_norm.weight", {GLM_INDEX_KEY}},
                                                 {"blk.2.indexer.k_norm.bias", {GLM_INDEX_KEY}},
                                                 {"blk.2.indexer.proj.weight", {GLM_EMBD, GLM_INDEX_HEADS}},
                                                 {"blk.2.indexer.attn_k.weight", {GLM_EMBD, GLM_INDEX_KEY}},
                                                 {"blk.2.indexer.attn_q_b.weight", {GLM_Q, 24}}}};
    expect_one(&indexed, PKG_GLM_DSA_TENSORS, "blk.2 is declared Shared but contains complete indexer tensors");
    const struct glm_sample partly = {.extra = {{"blk.2.indexer.k_norm.bias", {GLM_INDEX_KEY}}}};
    expect_one(&partly, PKG_GLM_DSA_TENSORS, "blk.2 has a partial group of indexer tensors (1/5)");
    const struct glm_sample stray = {.extra = {{"blk.2.nextn.enorm.weight", {GLM_EMBD}}}};
    expect_one(&stray, PKG_GLM_DSA_TENSORS,
               "blk.2.nextn.enorm.weight stands in a decoder layer: glm-dsa.nextn_predict_layers is 1 of 7");
}

/* ---- policy ---- */

static json_t *policy_block(void) {
    struct strata_errmsg em;
    json_t *g = json_object();
    bool changed = false;
    assert_int_equal(pkg_glm_dsa_set_policy(g, &changed, &em), STRATA_OK);
    assert_true(changed);
    return g;
}

static void test_set_policy(void **state) {
    (void)state;
    struct strata_errmsg em;
    bool changed = true;
    json_t *g = policy_block();
    char *text = json_dumps(g, JSON_COMPACT);
    assert_string_equal(
        text, "{\"policy\":{\"profile\":\"glm-dsa-v1\",\"decode\":\"compact-flash\",\"short_prefill\":\"dense\","
              "\"long_prefill\":\"sparse-chunked\",\"verify\":\"auto\",\"indexshare\":\"required\",\"experimental\":{"
              "\"selected_row_flash\":\"evidence-gated\",\"moe_weighted_down\":\"evidence-gated\","
              "\"moe_merged_shared_gate_up\":\"evidence-gated\"}},\"thresholds\":{\"short_prefill_max_tokens\":2048,"
              "\"direct_sparse_decode_max_top_k\":256,\"compact_flash_min_kv\":1,\"dense_mask_max_bytes\":268435456}}");
    free(text);
    assert_int_equal(pkg_glm_dsa_set_policy(g, &changed, &em), STRATA_OK);
    assert_false(changed);
    json_decref(g);
    /* What is there keeps its place, what is wrong is set right, what is unknown stays. */
    g = json_loads("{\"thresholds\":{\"mine\":1,\"compact_flash_min_kv\":9},\"x\":[1],\"policy\":{\"decode\":7,"
                   "\"profile\":\"old\",\"experimental\":{\"moe_weighted_down\":\"off\",\"k\":\"v\"}}}",
                   0, NULL);
    assert_int_equal(pkg_glm_dsa_set_policy(g, &changed, &em), STRATA_OK);
    assert_true(changed);
    text = json_dumps(g, JSON_COMPACT);
    assert_string_equal(
        text, "{\"thresholds\":{\"mine\":1,\"compact_flash_min_kv\":1,\"short_prefill_max_tokens\":2048,"
              "\"direct_sparse_decode_max_top_k\":256,\"dense_mask_max_bytes\":268435456},\"x\":[1],\"policy\":{"
              "\"decode\":\"compact-flash\",\"profile\":\"glm-dsa-v1\",\"experimental\":{\"moe_weighted_down\":\"off\","
              "\"k\":\"v\",\"selected_row_flash\":\"evidence-gated\",\"moe_merged_shared_gate_up\":"
              "\"evidence-gated\"},\"short_prefill\":\"dense\",\"long_prefill\":\"sparse-chunked\",\"verify\":\"auto\","
              "\"indexshare\":\"required\"}}");
    free(text);
    json_decref(g);
}

static void expect_policy(json_t *generation, bool required, enum pkg_glm_dsa_list list, const char *text) {
    static const struct glm_sample good = {0};
    struct pkg_glm_dsa_report r;
    size_t more = 0;
    check_with(&good, generation, required, &r);
    const char *first = list == PKG_GLM_DSA_WARNINGS ? line(&r, list, 0) : pkg_glm_dsa_first_error(&r, &more);
    if (!first || strcmp(first, text) != 0) fail_msg("got '%s', expected '%s'", first ? first : "nothing", text);
    assert_int_equal(lines(&r, list), 1);
    assert_int_equal(more, 0);
    assert_int_equal(r.valid, list == PKG_GLM_DSA_WARNINGS);
    pkg_glm_dsa_deinit(&r);
    json_decref(generation);
}

static json_t *with(const char *where, const char *key, json_t *value) {
    json_t *g = policy_block(), *at = json_object_get(g, where);
    assert_non_null(at);
    if (value)
        json_object_set_new(at, key, value);
    else
        json_object_del(at, key);
    return g;
}

static void test_policy(void **state) {
    (void)state;
    static const char *const fields[] = {"profile", "decode", "short_prefill", "long_prefill", "verify", "indexshare"};
    static const char *const wants[] = {"glm-dsa-v1", "compact-flash", "dense", "sparse-chunked", "auto", "required"};
    static const struct {
        const char *key;
        long long value;
    } numbers[] = {
        {"short_prefill_max_tokens", 2048}, {"compact_flash_min_kv", 1}, {"dense_mask_max_bytes", 268435456}};
    static const struct glm_sample good = {0};
    struct pkg_glm_dsa_report r;
    char text[200];
    json_t *g = policy_block();
    check_with(&good, g, true, &r);
    assert_true(r.valid);
    assert_string_equal(json_string_value(json_object_get(r.policy, "selected_row_flash")), "evidence-gated");
    assert_int_equal(json_integer_value(json_object_get(r.thresholds, "direct_sparse_decode_max_top_k")), 256);
    pkg_glm_dsa_deinit(&r);
    json_decref(g);
    for (size_t i = 0; i < 6; i++) {
        snprintf(text, sizeof text, "missing generation.policy.%s", fields[i]);
        expect_policy(with("policy", fields[i], NULL), false, PKG_GLM_DSA_POLICY, text);
        snprintf(text, sizeof text, "generation.policy.%s must be %s, got other", fields[i], wants[i]);
        expect_policy(with("policy", fields[i], json_string("other")), false, PKG_GLM_DSA_POLICY, text);
        snprintf(text, sizeof text, "generation.policy.%s must be %s; it is no string", fields[i], wants[i]);
        expect_policy(with("policy", fields[i], json_integer(1)), false, PKG_GLM_DSA_POLICY, text);
    }
    for (size_t i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "missing generation.thresholds.%s", numbers[i].key);
        expect_policy(with("thresholds", numbers[i].key, NULL), false, PKG_GLM_DSA_THRESHOLDS, text);
        snprintf(text, sizeof text, "generation.thresholds.%s must be %lld, got 7", numbers[i].key, numbers[i].value);
        expect_policy(with("thresholds", numbers[i].key, json_integer(7)), false, PKG_GLM_DSA_THRESHOLDS, text);
        snprintf(text, sizeof text, "generation.thresholds.%s must be %lld; it is no whole number", numbers[i].key,
                 numbers[i].value);
        expect_policy(with("thresholds", numbers[i].key, json_string("7")), false, PKG_GLM_DSA_THRESHOLDS, text);
    }
    expect_policy(with("policy", "experimental", NULL), false, PKG_GLM_DSA_POLICY,
                  "missing generation.policy.experimental.selected_row_flash");
    /* The standard dropped it: a package of the newest wording is sound. */
    expect_policy(with("thresholds", "direct_sparse_decode_max_top_k", NULL), true, PKG_GLM_DSA_WARNINGS,
                  "missing generation.thresholds.direct_sparse_decode_max_top_k: older validators refuse the package "
                  "without it");
    expect_policy(with("thresholds", "direct_sparse_decode_max_top_k", json_integer(7)), false, PKG_GLM_DSA_THRESHOLDS,
                  "generation.thresholds.direct_sparse_decode_max_top_k must be 256, got 7");
    expect_policy(NULL, true, PKG_GLM_DSA_POLICY, "model-package.json missing generation block");
    g = policy_block();
    json_object_del(g, "policy");
    expect_policy(json_incref(g), true, PKG_GLM_DSA_POLICY, "generation.policy is required for GLM-DSA packages");
    check_with(&good, g, false, &r); /* not required, and nothing wrong is said */
    assert_true(r.valid);
    pkg_glm_dsa_deinit(&r);
    json_decref(g);
    g = policy_block();
    json_object_set_new(g, "thresholds", json_array());
    expect_policy(g, false, PKG_GLM_DSA_THRESHOLDS, "generation.thresholds is required for GLM-DSA packages");
    /* The older place of the switch. */
    g = with("policy", "experimental", NULL);
    json_object_set_new(json_object_get(g, "policy"), "selected_row_flash", json_string("evidence-gated"));
    check_with(&good, g, true, &r);
    assert_true(r.valid);
    pkg_glm_dsa_deinit(&r);
    json_decref(g);
}

/* ---- the report ---- */

static void test_json(void **state) {
    (void)state;
    static const char *const keys[] = {"valid",
                                       "path",
                                       "artifact_kind",
                                       "gguf_files",
                                       "architecture",
                                       "tensor_count",
                                       "layer_count",
                                       "effective_decoder_layers",
                                       "nextn_predict_layers",
                                       "role_source",
                                       "full_layers",
                                       "shared_layers",
                                       "generation_policy_required",
                                       "generation_policy",
                                       "generation_thresholds",
                                       "metadata_errors",
                                       "tensor_errors",
                                       "generation_policy_errors",
                                       "generation_threshold_errors",
                                       "warnings"};
    static const struct glm_sample good = {0}, other = {.architecture = "llama"};
    struct pkg_glm_dsa_report r;
    struct strata_errmsg em;
    const char *key;
    json_t *v, *root, *g = policy_block();
    check_with(&good, g, true, &r);
    assert_int_equal(pkg_glm_dsa_to_json(&r, &root, &em), STRATA_OK);
    size_t n = 0;
    json_object_foreach(root, key, v) {
        assert_true(n < sizeof keys / sizeof keys[0]);
        assert_string_equal(key, keys[n++]);
    }
    assert_int_equal(n, sizeof keys / sizeof keys[0]);
    assert_string_equal(json_string_value(json_object_get(root, "role_source")), "metadata_types");
    assert_int_equal(json_object_size(json_object_get(root, "generation_policy")), 7);
    assert_int_equal(json_object_size(json_object_get(root, "generation_thresholds")), 4);
    json_decref(root);
    pkg_glm_dsa_deinit(&r);
    json_decref(g);
    check(&other, &r);
    assert_int_equal(pkg_glm_dsa_to_json(&r, &root, &em), STRATA_OK);
    assert_int_equal(json_object_size(root), sizeof keys / sizeof keys[0]);
    assert_true(json_is_null(json_object_get(root, "layer_count")));
    assert_true(json_is_null(json_object_get(root, "role_source")));
    assert_true(json_is_null(json_object_get(root, "generation_policy")));
    json_decref(root);
    pkg_glm_dsa_deinit(&r);
}

/* ---- on disk ---- */

static void expect_path(const char *path, const char *kind, size_t files, bool valid) {
    struct pkg_glm_dsa_report r;
    struct strata_errmsg em;
    const struct pkg_glm_dsa_options opt = {0};
    if (pkg_glm_dsa_check_path(path, &opt, &r, &em)) fail_msg("%s: %s", path, em.text);
    if (r.valid != valid) fail_msg("%s: '%s'", path, pkg_glm_dsa_first_error(&r, NULL));
    assert_string_equal(r.artifact_kind, kind);
    assert_string_equal(r.path, path);
    assert_int_equal(json_array_size(r.gguf_files), files);
    assert_int_equal(r.tensor_count, 148);
    pkg_glm_dsa_deinit(&r);
}

static void refuse_path(const char *path, const char *text) {
    struct pkg_glm_dsa_report r;
    struct strata_errmsg em;
    const struct pkg_glm_dsa_options opt = {0};
    assert_int_not_equal(pkg_glm_dsa_check_path(path, &opt, &r, &em), STRATA_OK);
    if (!strstr(em.text, text)) fail_msg("%s: '%s' does not say '%s'", path, em.text, text);
}

static void test_paths(void **state) {
    (void)state;
    static const struct glm_sample good = {0}, llama = {.architecture = "llama"};
    struct strata_errmsg em;
    assert_int_equal(file_mkdirs(tmp_path(&T, "many/below"), 0755, &em), STRATA_OK);
    assert_int_equal(file_mkdirs(tmp_path(&T, "mixed"), 0755, &em), STRATA_OK);
    assert_int_equal(file_mkdirs(tmp_path(&T, "empty"), 0755, &em), STRATA_OK);
    glm_write(&good, tmp_path(&T, "one.gguf"));
    expect_path(tmp_path(&T, "one.gguf"), "gguf_file", 1, true);
    glm_write_split(&good, tmp_path(&T, "many/below/m"));
    expect_path(tmp_path(&T, "many/below/m-00002-of-00002.gguf"), "gguf_file", 2, true);
    assert_int_equal(file_write_all(tmp_path(&T, "many/mmproj-f16.gguf"), "x", 1, 0644, &em), STRATA_OK);
    assert_int_equal(file_write_all(tmp_path(&T, "many/notes.txt"), "x", 1, 0644, &em), STRATA_OK);
    expect_path(tmp_path(&T, "many"), "gguf_directory", 2, true);
    glm_write_package(&good, tmp_path(&T, "package"), NULL);
    expect_path(tmp_path(&T, "package"), "model_package", 10, true);
    expect_path(tmp_path(&T, "package/model-package.json"), "model_package", 10, true);
    /* A package without its manifest is a folder of files that hold the same. */
    glm_write_package(&good, tmp_path(&T, "loose"), NULL);
    assert_int_equal(remove(tmp_path(&T, "loose/model-package.json")), 0);
    expect_path(tmp_path(&T, "loose"), "gguf_directory", 10, true);
    glm_write(&good, tmp_path(&T, "mixed/a.gguf"));
    glm_write(&llama, tmp_path(&T, "mixed/b.gguf"));
    refuse_path(tmp_path(&T, "mixed"), "are of different architectures");
    const struct glm_sample bent = {.bent = "blk.0.ffn_up.weight"};
    glm_write(&bent, tmp_path(&T, "mixed/b.gguf"));
    refuse_path(tmp_path(&T, "mixed"), "differs from its copy in another file");
    refuse_path(tmp_path(&T, "empty"), "no GGUF files found");
    refuse_path(tmp_path(&T, "nowhere"), "nowhere");
    /* A package whose policy is unreadable is shown as it is; one whose file is missing is not. */
    glm_write_package(&good, tmp_path(&T, "odd"), json_pack("{s:{s:s}}", "policy", "decode", ""));
    expect_path(tmp_path(&T, "odd"), "model_package", 10, false);
    assert_int_equal(remove(tmp_path(&T, "odd/layers/layer-00003.gguf")), 0);
    refuse_path(tmp_path(&T, "odd"), "layers/layer-00003.gguf is missing");
}

/* ---- repair ---- */

static char *read_text(const char *path) {
    struct buf b;
    struct strata_errmsg em;
    buf_init(&b, 1 << 20);
    assert_int_equal(file_read_all(path, 1 << 20, &b, &em), STRATA_OK);
    char *text = strdup(buf_cstr(&b));
    buf_deinit(&b);
    assert_non_null(text);
    return text;
}

static json_t *speculation(void) {
    return json_pack("{s:s, s:{s:s, s:{s:{s:s, s:i, s:[i]}}}}", "note", "kept", "speculative_decoding", "default",
                     "mtp", "strategies", "mtp", "type", "native-mtp", "prediction_depth", 1, "layer_indices", 6);
}

static void test_repair(void **state) {
    (void)state;
    static const struct glm_sample good = {0};
    struct pkg_glm_dsa_repair r;
    struct strata_errmsg em;
    struct stat st;
    const char *dir = tmp_path(&T, "mend"), *manifest = tmp_path(&T, "mend/model-package.json");
    glm_write_package(&good, dir, speculation());
    char *before = read_text(manifest);
    assert_int_equal(pkg_glm_dsa_repair(dir, true, &r, &em), STRATA_OK);
    assert_true(r.changed && !r.written && r.kept_speculation && !r.reformatted);
    assert_string_equal(r.manifest_path, manifest);
    assert_true(r.validation.valid && r.validation.policy_required);
    assert_int_equal(strncmp(r.diff, "--- model-package.json\n+++ model-package.json (repaired)\n@@ -", 60), 0);
    assert_non_null(strstr(r.diff, "\n+      \"decode\": \"compact-flash\",\n"));
    assert_null(strstr(r.diff, "\n-      \"default\"")); /* speculation is not shown as removed and added */
    pkg_glm_dsa_repair_deinit(&r);
    char *after = read_text(manifest);
    assert_string_equal(before, after); /* a dry run changes nothing */
    free(after);
    assert_int_equal(pkg_glm_dsa_repair(manifest, false, &r, &em), STRATA_OK); /* the manifest may be named too */
    assert_true(r.changed && r.written && r.kept_speculation);
    pkg_glm_dsa_repair_deinit(&r);
    after = read_text(manifest);
    assert_int_equal(stat(manifest, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    /* The same document but for the block, every key where it was. */
    json_t *a = json_loads(before, 0, NULL), *b = json_loads(after, 0, NULL);
    const json_t *generation = json_object_get(b, "generation");
    const char *key = json_object_iter_key(json_object_iter(json_object_get(b, "generation")));
    assert_string_equal(key, "note");
    assert_string_equal(json_string_value(json_object_get(json_object_get(generation, "policy"), "profile")),
                        "glm-dsa-v1");
    assert_true(json_equal(json_object_get(generation, "speculative_decoding"),
                           json_object_get(json_object_get(a, "generation"), "speculative_decoding")));
    json_object_set(a, "generation", json_object_get(b, "generation"));
    char *x = json_dumps(a, JSON_INDENT(2)), *y = json_dumps(b, JSON_INDENT(2));
    assert_string_equal(x, y);
    free(x);
    free(y);
    json_decref(a);
    json_decref(b);
    /* Once more there is nothing to do, and the file is left alone. */
    assert_int_equal(pkg_glm_dsa_repair(dir, false, &r, &em), STRATA_OK);
    assert_true(!r.changed && !r.written);
    assert_string_equal(r.diff, "");
    pkg_glm_dsa_repair_deinit(&r);
    char *again = read_text(manifest);
    assert_string_equal(after, again);
    free(before);
    free(after);
    free(again);
}

static void test_repair_faulty_block(void **state) {
    (void)state;
    static const struct glm_sample good = {0};
    struct pkg_glm_dsa_repair r;
    struct strata_errmsg em;
    const char *dir = tmp_path(&T, "faulty"), *manifest = tmp_path(&T, "faulty/model-package.json");
    glm_write_package(&good, dir,
                      json_pack("{s:{s:s, s:i}, s:[]}", "policy", "profile", "", "decode", 3, "thresholds"));
    /* Squeezed onto one line: the result says that more than the block changes in the file. */
    char *text = read_text(manifest);
    json_t *root = json_loads(text, 0, NULL);
    char *flat = json_dumps(root, JSON_COMPACT);
    assert_int_equal(file_write_all(manifest, flat, strlen(flat), 0600, &em), STRATA_OK);
    assert_int_equal(pkg_glm_dsa_repair(dir, false, &r, &em), STRATA_OK);
    assert_true(r.written && r.reformatted && !r.kept_speculation);
    pkg_glm_dsa_repair_deinit(&r);
    free(text);
    free(flat);
    json_decref(root);
    struct pkg_glm_dsa_report report;
    const struct pkg_glm_dsa_options opt = {.require_generation_policy = true};
    assert_int_equal(pkg_glm_dsa_check_path(dir, &opt, &report, &em), STRATA_OK);
    assert_true(report.valid);
    pkg_glm_dsa_deinit(&report);
}

static void refuse_repair(const char *path, const char *says) {
    struct pkg_glm_dsa_repair r;
    struct strata_errmsg em;
    assert_int_not_equal(pkg_glm_dsa_repair(path, false, &r, &em), STRATA_OK);
    if (!strstr(em.text, says)) fail_msg("'%s' does not say '%s'", em.text, says);
}

static void test_repair_refuses(void **state) {
    (void)state;
    static const struct glm_sample broken = {.without = "blk.4.indexer.proj.weight"}, good = {0};
    struct strata_errmsg em;
    const char *dir = tmp_path(&T, "broken"), *manifest = tmp_path(&T, "broken/model-package.json");
    glm_write_package(&broken, dir, NULL);
    char *before = read_text(manifest);
    refuse_repair(dir, "does not fulfil the GLM-DSA contract, so nothing was changed: blk.4 has a partial group");
    char *after = read_text(manifest);
    assert_string_equal(before, after);
    free(before);
    free(after);
    glm_write(&good, tmp_path(&T, "plain.gguf"));
    refuse_repair(tmp_path(&T, "plain.gguf"), "is not a layer package");
    glm_write_package(&good, dir, NULL);
    json_t *root = json_load_file(manifest, 0, NULL);
    json_object_del(root, "model_id");
    assert_int_equal(json_dump_file(root, manifest, 0), 0);
    json_decref(root);
    refuse_repair(dir, "model_id is missing");
    assert_int_equal(file_write_all(manifest, "{", 1, 0644, &em), STRATA_OK);
    refuse_repair(dir, "not valid JSON");
}

/* ---- diff ---- */

static void expect_diff(const char *a, const char *b, const char *want) {
    struct buf out;
    struct strata_errmsg em;
    buf_init(&out, 1 << 20);
    assert_int_equal(pkg_diff_unified("a", a, "b", b, &out, &em), STRATA_OK);
    assert_string_equal(buf_cstr(&out), want);
    buf_deinit(&out);
}

static void test_diff(void **state) {
    (void)state;
    expect_diff("1\n2\n", "1\n2\n", "");
    expect_diff("1\n2\n3\n", "1\nx\n3\n", "--- a\n+++ b\n@@ -1,3 +1,3 @@\n 1\n-2\n+x\n 3\n");
    expect_diff("", "x\n", "--- a\n+++ b\n@@ -0,0 +1,1 @@\n+x\n");
    expect_diff("x\n", "", "--- a\n+++ b\n@@ -1,1 +0,0 @@\n-x\n");
    expect_diff("1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\nx\n5\n6\n7\n8\n9\n",
                "--- a\n+++ b\n@@ -2,6 +2,7 @@\n 2\n 3\n 4\n+x\n 5\n 6\n 7\n");
    /* Six quiet lines join two changes, seven part them. */
    expect_diff("a\n1\n2\n3\n4\n5\n6\nb\n", "A\n1\n2\n3\n4\n5\n6\nB\n",
                "--- a\n+++ b\n@@ -1,8 +1,8 @@\n-a\n+A\n 1\n 2\n 3\n 4\n 5\n 6\n-b\n+B\n");
    expect_diff("a\n1\n2\n3\n4\n5\n6\n7\nb\n", "A\n1\n2\n3\n4\n5\n6\n7\nB\n",
                "--- a\n+++ b\n@@ -1,4 +1,4 @@\n-a\n+A\n 1\n 2\n 3\n@@ -6,4 +6,4 @@\n 5\n 6\n 7\n-b\n+B\n");
    /* Lines that move are one removal and one addition, and what stays between them stays. */
    expect_diff("a\nb\nc\n", "b\nc\na\n", "--- a\n+++ b\n@@ -1,3 +1,3 @@\n-a\n b\n c\n+a\n");
    /* Too many lines for a table: one block out, one block in. */
    static char big_a[40000], big_b[40000];
    for (size_t i = 0; i < 5000; i++) {
        snprintf(big_a + 5 * i, 8, "%04zu\n", i);
        snprintf(big_b + 5 * i, 8, "%04zu\n", i + 5000);
    }
    struct buf out;
    struct strata_errmsg em;
    buf_init(&out, 1 << 20);
    assert_int_equal(pkg_diff_unified("a", big_a, "b", big_b, &out, &em), STRATA_OK);
    static const char head[] = "--- a\n+++ b\n@@ -1,5000 +1,5000 @@\n-0000\n-0001\n";
    assert_memory_equal(buf_cstr(&out), head, sizeof head - 1);
    buf_deinit(&out);
    buf_init(&out, 100);
    assert_int_equal(pkg_diff_unified("a", big_a, "b", big_b, &out, &em), STRATA_ELIMIT);
    buf_deinit(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roles),
        cmocka_unit_test(test_bad_roles),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_numbers_together),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_set_policy),
        cmocka_unit_test(test_policy),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_repair),
        cmocka_unit_test(test_repair_faulty_block),
        cmocka_unit_test(test_repair_refuses),
        cmocka_unit_test(test_diff),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
