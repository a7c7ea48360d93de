/* Names to classes, and ranges to parts and tensors. */
#include "package/pkg_select.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void test_classes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        enum pkg_class class;
        uint32_t layer;
    } rows[] = {
        {"token_embd.weight", PKG_CLASS_EMBEDDING, 0},
        {"per_layer_token_embd.weight", PKG_CLASS_EMBEDDING, 0},
        {"token_embd.weight.scale", PKG_CLASS_METADATA, 0},
        {"token_embd_norm.weight", PKG_CLASS_METADATA, 0},
        {"output.weight", PKG_CLASS_OUTPUT, 0},
        {"output.bias", PKG_CLASS_OUTPUT, 0},
        {"output_norm.weight", PKG_CLASS_FINAL_NORM, 0},
        {"output_norm.bias", PKG_CLASS_FINAL_NORM, 0},
        {"output_norm_enc.weight", PKG_CLASS_METADATA, 0},
        {"rope_freqs.weight", PKG_CLASS_METADATA, 0},
        {"rope_factors_long.weight", PKG_CLASS_METADATA, 0},
        {"blk.0.attn_q.weight", PKG_CLASS_LAYER, 0},
        {"blk.47.nextn.eh_proj.weight", PKG_CLASS_LAYER, 47},
        {"blk.3.indexer.proj.weight", PKG_CLASS_LAYER, 3},
        {"blk.99999.x", PKG_CLASS_LAYER, 99999},
        {"blk.100000.x", PKG_CLASS_METADATA, 0},
        {"blk.4294967296.x", PKG_CLASS_METADATA, 0},
        {"blk.18446744073709551617.x", PKG_CLASS_METADATA, 0},
        {"blk.007.x", PKG_CLASS_LAYER, 7},
        {"blk..x", PKG_CLASS_METADATA, 0},
        {"blk.-1.x", PKG_CLASS_METADATA, 0},
        {"blk.+1.x", PKG_CLASS_METADATA, 0},
        {"blk. 1.x", PKG_CLASS_METADATA, 0},
        {"blk.1", PKG_CLASS_METADATA, 0},
        {"blk.1x.y", PKG_CLASS_METADATA, 0},
        {"enc.blk.1.x", PKG_CLASS_METADATA, 0},
        {"cache_k_l12", PKG_CLASS_LAYER, 12},
        {"cache_r_state_l3", PKG_CLASS_LAYER, 3},
        {"cache_l3", PKG_CLASS_METADATA, 0},
        {"cache_k_l", PKG_CLASS_METADATA, 0},
        {"cache_k_lx", PKG_CLASS_METADATA, 0},
        {"", PKG_CLASS_METADATA, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint32_t layer = 0;
        enum pkg_class got = pkg_class_of(rows[i].name, &layer);
        if (got != rows[i].class || layer != rows[i].layer)
            fail_msg("'%s': got %s, layer %u", rows[i].name, pkg_class_name(got), layer);
        pkg_class_of(rows[i].name, NULL);
    }
    assert_false(pkg_class_is_owned(PKG_CLASS_METADATA));
    assert_true(pkg_class_is_owned(PKG_CLASS_LAYER));
}

static void test_resolve(void **state) {
    (void)state;
    static const struct {
        struct pkg_range want;
        uint32_t layers;
        strata_err rc;
        struct pkg_range got;
    } rows[] = {
        {{0, PKG_RANGE_ALL}, 5, STRATA_OK, {0, 5}},
        {{2, PKG_RANGE_ALL}, 5, STRATA_OK, {2, 5}},
        {{0, 5}, 5, STRATA_OK, {0, 5}},
        {{4, 5}, 5, STRATA_OK, {4, 5}},
        {{0, 6}, 5, STRATA_EINVAL, {9, 9}},
        {{5, 5}, 5, STRATA_EINVAL, {9, 9}},
        {{3, 3}, 5, STRATA_EINVAL, {9, 9}},
        {{4, 2}, 5, STRATA_EINVAL, {9, 9}},
        {{UINT32_MAX, PKG_RANGE_ALL}, 5, STRATA_EINVAL, {9, 9}},
        {{0, UINT32_MAX - 1}, 5, STRATA_EINVAL, {9, 9}},
        {{0, PKG_RANGE_ALL}, 0, STRATA_EUNSUPPORTED, {9, 9}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pkg_range out = {9, 9};
        struct strata_errmsg em;
        assert_int_equal(pkg_select_resolve(rows[i].want, rows[i].layers, "m", &out, &em), rows[i].rc);
        assert_int_equal(out.first, rows[i].got.first);
        assert_int_equal(out.end, rows[i].got.end);
    }
    struct strata_errmsg em;
    struct pkg_range out;
    pkg_select_resolve((struct pkg_range){0, 31}, 30, "model", &out, &em);
    assert_non_null(strstr(em.text, "30 layers"));
}

static void test_selection(void **state) {
    (void)state;
    static const struct {
        struct pkg_range range;
        bool tied;
        bool embeddings, output;           /* parts */
        bool token, per_layer, norm, head; /* tensors */
    } rows[] = {
        {{0, 4}, false, true, true, true, true, true, true},
        {{0, 2}, false, true, false, true, true, false, false},
        {{1, 3}, false, false, false, false, false, false, false},
        {{2, 4}, false, false, true, false, false, true, true},
        {{0, 4}, true, true, true, true, true, true, true},
        {{0, 2}, true, true, false, true, true, false, false},
        {{1, 3}, true, false, false, false, false, false, false},
        /* The tied last stage needs the token embeddings, and of the embeddings part nothing else. */
        {{2, 4}, true, true, true, true, false, true, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pkg_select s = {.range = rows[i].range, .layer_count = 4, .tied = rows[i].tied};
        assert_int_equal(pkg_select_embeddings(&s), rows[i].embeddings);
        assert_int_equal(pkg_select_output(&s), rows[i].output);
        assert_int_equal(pkg_select_tensor(&s, "token_embd.weight"), rows[i].token);
        assert_int_equal(pkg_select_tensor(&s, "per_layer_token_embd.weight"), rows[i].per_layer);
        assert_int_equal(pkg_select_tensor(&s, "output_norm.weight"), rows[i].norm);
        assert_int_equal(pkg_select_tensor(&s, "output.weight"), rows[i].head);
        assert_true(pkg_select_tensor(&s, "rope_freqs.weight"));
        for (uint32_t layer = 0; layer < 4; layer++) {
            char name[] = {'b', 'l', 'k', '.', (char)('0' + layer), '.', 'x', '\0'};
            bool want = layer >= rows[i].range.first && layer < rows[i].range.end;
            assert_int_equal(pkg_select_tensor(&s, name), want);
            assert_int_equal(pkg_select_layer(&s, layer), want);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_classes), cmocka_unit_test(test_resolve),
                                       cmocka_unit_test(test_selection)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
