/* Generation defaults from evidence; a publisher's own block; and a block against the model's tensors. */
#include "package/pkg_generation.h"
#include "package/pkg_glm_dsa.h"
#include "package/pkg_infer.h"
#include "package/pkg_inventory.h"

#include "glm_sample.h"

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

/* An opened sample. */
struct opened {
    struct gguf_source *src;
    struct pkg_inventory inv;
};

static void open_sample(const struct glm_sample *s, struct opened *o) {
    struct strata_errmsg em;
    const char *path = tmp_path(&T, "model.gguf");
    glm_write(s, path);
    assert_int_equal(gguf_source_open(path, &o->src, &em), STRATA_OK);
    assert_int_equal(pkg_inventory_init(&o->inv, o->src, &em), STRATA_OK);
}

static void close_sample(struct opened *o) {
    pkg_inventory_deinit(&o->inv);
    gguf_source_free(o->src);
}

static json_t *infer(const struct glm_sample *s, struct pkg_infer_notes *notes) {
    struct opened o;
    struct strata_errmsg em;
    json_t *block = NULL;
    open_sample(s, &o);
    assert_int_equal(pkg_infer_generation(&o.inv, &block, notes, &em), STRATA_OK);
    close_sample(&o);
    return block;
}

#define MTP_AT(layers)                                                                                                 \
    "{\"default\":\"mtp\",\"proposers\":{\"mtp\":{\"type\":\"native-mtp\",\"prediction_depth\":1,\"layer_indices\":"   \
    "[" layers "]}},\"strategies\":{\"mtp\":{\"type\":\"native-mtp\",\"proposer\":\"mtp\",\"prediction_depth\":1,"     \
    "\"layer_indices\":[" layers "],\"window_policy\":{\"default\":\"fixed\",\"initial_window\":1,\"min_window\":1,"   \
    "\"max_window\":1,\"pipeline_depth\":1}}}}"

static void expect_text(const json_t *v, const char *want) {
    char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    assert_non_null(text);
    assert_string_equal(text, want);
    free(text);
}

/* The whole contract and a NextN layer: both are claimed, and the claim is sound in itself and against the model. */
static void test_everything(void **state) {
    (void)state;
    static const struct glm_sample good = {0};
    struct pkg_infer_notes notes;
    struct pkg_faults faults;
    struct strata_errmsg em;
    struct opened o;
    bool changed = true;
    json_t *block = infer(&good, &notes);
    assert_int_equal(notes.n, 0);
    pkg_infer_notes_deinit(&notes);
    assert_int_equal(json_object_size(block), 3);
    expect_text(json_object_get(block, "speculative_decoding"), MTP_AT("6"));
    assert_int_equal(pkg_glm_dsa_set_policy(block, &changed, &em), STRATA_OK);
    assert_false(changed);
    pkg_faults_init(&faults);
    assert_int_equal(pkg_generation_check(block, GLM_BLOCKS, &faults, NULL, &em), STRATA_OK);
    open_sample(&good, &o);
    assert_int_equal(pkg_generation_check_tensors(block, &o.inv, &faults, &em), STRATA_OK);
    close_sample(&o);
    if (faults.n) fail_msg("%s", faults.list[0].message);
    pkg_faults_deinit(&faults);
    json_decref(block);
}

static void test_mtp(void **state) {
    (void)state;
    struct pkg_infer_notes notes;
    /* Another architecture: MTP alone. */
    const struct glm_sample other = {.architecture = "glm4moe"};
    json_t *block = infer(&other, &notes);
    assert_int_equal(json_object_size(block), 1);
    expect_text(json_object_get(block, "speculative_decoding"), MTP_AT("6"));
    assert_int_equal(notes.n, 0);
    pkg_infer_notes_deinit(&notes);
    json_decref(block);
    /* Two NextN layers, the last ones. */
    const struct glm_sample two = {.architecture = "glm4moe",
                                   .set = "nextn_predict_layers",
                                   .set_to = 2,
                                   .extra = {{"blk.7.nextn.eh_proj.weight", {2 * GLM_EMBD, GLM_EMBD}},
                                             {"blk.7.nextn.enorm.weight", {GLM_EMBD}},
                                             {"blk.7.nextn.hnorm.weight", {GLM_EMBD}}}};
    block = infer(&two, &notes);
    expect_text(json_object_get(block, "speculative_decoding"), MTP_AT("6,7"));
    pkg_infer_notes_deinit(&notes);
    json_decref(block);
    /* Nothing on either side: nothing is claimed, and nothing is said. */
    const struct glm_sample none = {.architecture = "glm4moe", .no_nextn = true};
    assert_null(infer(&none, &notes));
    assert_int_equal(notes.n, 0);
    pkg_infer_notes_deinit(&notes);
}

/* Both sides disagree: no claim, and one note that tells which says what. */
static void test_mtp_disagreement(void **state) {
    (void)state;
    static const struct {
        struct glm_sample s;
        const char *text;
    } rows[] = {
        {{.without_of = "blk.6.nextn."},
         "glm4moe.nextn_predict_layers is 1, but no layer holds NextN tensors (blk.N.nextn.*)"},
        {{.without = "nextn_predict_layers"},
         "layers 6 to 6 hold NextN tensors, but glm4moe.nextn_predict_layers is missing"},
        {{.zero = "nextn_predict_layers"}, "layers 6 to 6 hold NextN tensors, but glm4moe.nextn_predict_layers is 0"},
        {{.set = "nextn_predict_layers", .set_to = 2},
         "glm4moe.nextn_predict_layers is 2 of 7 layers, but NextN tensors are in 1 layers, 6 to 6; they must be in "
         "exactly the last ones"},
        {{.extra = {{"blk.2.nextn.enorm.weight", {GLM_EMBD}}}},
         "glm4moe.nextn_predict_layers is 1 of 7 layers, but NextN tensors are in 2 layers, 2 to 6; they must be in "
         "exactly the last ones"},
        {{.without_of = "blk.6.nextn.", .extra = {{"blk.5.nextn.enorm.weight", {GLM_EMBD}}}},
         "glm4moe.nextn_predict_layers is 1 of 7 layers, but NextN tensors are in 1 layers, 5 to 5; they must be in "
         "exactly the last ones"},
        {{.without = "blk.6.nextn.eh_proj.weight"},
         "glm4moe.nextn_predict_layers is 1, but blk.6.nextn.eh_proj.weight is missing"},
        {{.without = "blk.6.nextn.enorm.weight"},
         "glm4moe.nextn_predict_layers is 1, but blk.6.nextn.enorm.weight is missing"},
        {{.without = "blk.6.nextn.hnorm.weight"},
         "glm4moe.nextn_predict_layers is 1, but blk.6.nextn.hnorm.weight is missing"},
        {{.text = "nextn_predict_layers"},
         "metadata key 'glm4moe.nextn_predict_layers' is string; expected a whole number"},
        {{.without = "general.architecture"}, "metadata key 'general.architecture' is missing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct glm_sample s = rows[i].s;
        struct pkg_infer_notes notes;
        s.architecture = "glm4moe";
        json_t *block = infer(&s, &notes);
        if (block) fail_msg("row %zu: something was claimed", i);
        assert_int_equal(notes.n, 1);
        if (!strstr(notes.text[0], rows[i].text)) fail_msg("row %zu: '%s'", i, notes.text[0]);
        assert_int_equal(strncmp(notes.text[0], "native MTP is not declared: ", 28), 0);
        pkg_infer_notes_deinit(&notes);
    }
}

/* One breach of the contract: no policy, and a note with the reason. MTP is a claim of its own. */
static void test_policy_only_when_whole(void **state) {
    (void)state;
    static const struct glm_sample rows[] = {
        {.without = "blk.4.indexer.proj.weight"},
        {.roles = GLM_ROLES_NONE},
        {.bent = "blk.3.ffn_gate_exps.weight"},
        {.zero = "attention.indexer.top_k"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pkg_infer_notes notes;
        json_t *block = infer(&rows[i], &notes);
        assert_int_equal(json_object_size(block), 1);
        expect_text(json_object_get(block, "speculative_decoding"), MTP_AT("6"));
        assert_int_equal(notes.n, 1);
        assert_non_null(strstr(notes.text[0], "glm-dsa-v1 is not declared"));
        pkg_infer_notes_deinit(&notes);
        json_decref(block);
    }
    struct pkg_infer_notes notes;
    const struct glm_sample trunk = {.no_nextn = true}; /* the contract holds without NextN layers */
    json_t *block = infer(&trunk, &notes);
    assert_int_equal(json_object_size(block), 2);
    assert_null(json_object_get(block, "speculative_decoding"));
    pkg_infer_notes_deinit(&notes);
    json_decref(block);
}

/* ---- a block against the tensors ---- */

static void against(const struct glm_sample *s, json_t *block, enum pkg_fault_code want, size_t n) {
    struct opened o;
    struct pkg_faults faults;
    struct strata_errmsg em;
    pkg_faults_init(&faults);
    open_sample(s, &o);
    assert_int_equal(pkg_generation_check_tensors(block, &o.inv, &faults, &em), STRATA_OK);
    close_sample(&o);
    assert_int_equal(faults.n, n);
    for (size_t i = 0; i < n; i++) assert_int_equal(faults.list[i].code, want);
    pkg_faults_deinit(&faults);
    json_decref(block);
}

static json_t *mtp(const char *layers) {
    json_t *list = json_loads(layers, 0, NULL);
    json_t *v =
        json_pack("{s:{s:s, s:{s:{s:s, s:O}}, s:{s:{s:s, s:s}, s:{s:s, s:O}, s:{s:s, s:O}}}}", "speculative_decoding",
                  "default", "mtp", "proposers", "mtp", "type", "native-mtp", "layer_indices", list, "strategies",
                  "mtp", "type", "native-mtp", "proposer", "mtp", "inline", "type", "native-mtp", "layer_indices", list,
                  "other", "type", "draft-model", "layer_indices", list);
    json_decref(list);
    assert_non_null(v);
    return v;
}

static void test_tensors(void **state) {
    (void)state;
    static const struct glm_sample good = {0}, partial = {.without = "blk.6.nextn.hnorm.weight"},
                                   broken = {.without = "blk.3.ffn_norm.weight"}, llama = {.architecture = "llama"};
    const enum pkg_fault_code code = PKG_FAULT_NATIVE_MTP_LAYER_WITHOUT_TENSORS;
    against(&good, mtp("[6]"), code, 0);
    against(&good, mtp("[5]"), code, 2); /* the proposer and the inline strategy; not the one of another type */
    against(&good, mtp("[6,0]"), code, 2);
    against(&good, mtp("[7,-1,\"6\",99999999999]"), code, 0); /* the block's own check tells of these */
    against(&partial, mtp("[6]"), code, 2);
    against(&good, json_pack("{s:{s:s}}", "policy", "profile", "glm-dsa-v1"), PKG_FAULT_GLM_DSA_CONTRACT, 0);
    against(&broken, json_pack("{s:{s:s}}", "policy", "profile", "glm-dsa-v1"), PKG_FAULT_GLM_DSA_CONTRACT, 1);
    against(&llama, json_pack("{s:{s:s}}", "policy", "profile", "glm-dsa-v1"), PKG_FAULT_GLM_DSA_CONTRACT, 1);
    against(&broken, json_pack("{s:{s:s}}", "policy", "profile", "glm-dsa-v2"), PKG_FAULT_GLM_DSA_CONTRACT, 0);
    against(&broken, json_pack("{s:[], s:i}", "policy", "speculative_decoding", 1), PKG_FAULT_GLM_DSA_CONTRACT, 0);
    against(&broken, json_integer(1), PKG_FAULT_GLM_DSA_CONTRACT, 0);
}

/* ---- a publisher's file ---- */

static void refuse_file(const char *text, size_t len, const char *const says[]) {
    const char *path = tmp_path(&T, "generation.json");
    struct strata_errmsg em;
    json_t *block = NULL;
    assert_int_equal(file_write_all(path, text, len, 0644, &em), STRATA_OK);
    assert_int_not_equal(pkg_infer_load_file(path, 1, 48, &block, &em), STRATA_OK);
    assert_null(block);
    for (; *says; says++)
        if (!strstr(em.text, *says)) fail_msg("'%s' does not say '%s'", em.text, *says);
}

static void test_file(void **state) {
    (void)state;
    static const char bare[] = "{\"thresholds\":{\"compact_flash_min_kv\":2},\"of_tomorrow\":1}";
    static const char wrapped[] = "{\"generation\":{\"thresholds\":{\"compact_flash_min_kv\":2},\"of_tomorrow\":1}}\n";
    const char *path = tmp_path(&T, "generation.json");
    struct strata_errmsg em;
    json_t *block;
    for (int i = 0; i < 2; i++) {
        const char *text = i ? wrapped : bare;
        assert_int_equal(file_write_all(path, text, strlen(text), 0644, &em), STRATA_OK);
        assert_int_equal(pkg_infer_load_file(path, 1, 48, &block, &em), STRATA_OK);
        expect_text(block, bare); /* notes do not hinder, and the key stays */
        json_decref(block);
    }
    assert_int_not_equal(pkg_infer_load_file(tmp_path(&T, "nowhere.json"), 1, 48, &block, &em), STRATA_OK);
    refuse_file("", 0, (const char *const[]){"generation.json: not valid JSON", NULL});
    refuse_file("[1]", 3, (const char *const[]){"invalid_generation_field: generation must be an object", NULL});
    static const char null_block[] = "{\"generation\":null}";
    refuse_file(null_block, sizeof null_block - 1, (const char *const[]){"generation must be an object", NULL});
    static const char two[] = "{\"thresholds\":{\"compact_flash_min_kv\":0},\"speculative_decoding\":{\"default\":"
                              "\"x\",\"strategies\":{}}}";
    refuse_file(two, sizeof two - 1,
                (const char *const[]){"generation.json: not a sound generation block: ",
                                      "invalid_generation_threshold_zero: generation.thresholds.compact_flash_min_kv",
                                      "; missing_speculative_default_strategy: ", NULL});
    /* More than a line holds: the first in full, the others by name. */
    static const char many[] =
        "{\"policy\":{},\"thresholds\":{\"compact_flash_min_kv\":0},\"speculative_decoding\":{\"strategies\":{\"a\":{"
        "\"type\":\"composite\"},\"b\":{\"type\":\"native-mtp\",\"layer_indices\":[48]}}}}";
    refuse_file(many, sizeof many - 1,
                (const char *const[]){"12 errors: empty_generation_policy_field: generation.policy.profile is missing",
                                      "; also invalid_generation_threshold_zero, ", "missing_composite_primary",
                                      "native_mtp_layer_out_of_range", NULL});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything),       cmocka_unit_test(test_mtp),
        cmocka_unit_test(test_mtp_disagreement), cmocka_unit_test(test_policy_only_when_whole),
        cmocka_unit_test(test_tensors),          cmocka_unit_test(test_file),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
