/* Which stage needs the token embeddings: what MTP layers change, and where the knowledge ends. */
#include "package/pkg_select.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static struct pkg_select model(uint32_t layers, const char *const *names) {
    struct pkg_select s;
    pkg_select_init(&s, layers);
    for (size_t i = 0; names[i]; i++) pkg_select_note(&s, names[i]);
    return s;
}

static bool needs(struct pkg_select s, uint32_t first, uint32_t end) {
    s.range = (struct pkg_range){first, end};
    bool part = pkg_select_embeddings(&s);
    assert_int_equal(pkg_select_tensor(&s, "token_embd.weight"), part);
    assert_int_equal(pkg_select_tensor(&s, "per_layer_token_embd.weight"), first == 0);
    const struct pkg_artifact a = {.role = PKG_ROLE_EMBEDDINGS};
    assert_int_equal(pkg_select_artifact(&s, &a), part);
    return part;
}

static void test_rule(void **state) {
    (void)state;
    static const char *const plain[] = {"output.weight", "blk.3.attn_norm.weight", NULL};
    static const char *const tied[] = {"output_norm.weight", NULL};
    static const char *const mtp[] = {"output.weight", "blk.3.nextn.eh_proj.weight", "blk.3.nextn.enorm.weight", NULL};
    static const char *const own[] = {"output.weight", "blk.3.nextn.embed_tokens.weight", "blk.3.nextn.enorm.weight",
                                      NULL};
    static const char *const two[] = {"output.weight", "blk.2.nextn.eh_proj.weight", "blk.3.nextn.eh_proj.weight",
                                      "blk.3.nextn.embed_tokens.weight", NULL};
    static const struct {
        const char *const *names;
        bool first, middle, late, last; /* 0..1, 1..2, 2..3, 3..4 */
    } rows[] = {{plain, true, false, false, false},
                {tied, true, false, false, true},
                {mtp, true, false, false, true},
                {own, true, false, false, false},
                {two, true, false, true, false}}; /* each MTP layer by itself */
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct pkg_select s = model(4, rows[i].names);
        assert_int_equal(needs(s, 0, 1), rows[i].first);
        assert_int_equal(needs(s, 1, 2), rows[i].middle);
        assert_int_equal(needs(s, 2, 3), rows[i].late);
        assert_int_equal(needs(s, 3, 4), rows[i].last);
        assert_int_equal(needs(s, 1, 4), rows[i].late || rows[i].last);
        assert_int_equal(pkg_select_is_mtp(&s, 3), i >= 2);
        assert_int_equal(pkg_select_borrows(&s, 3), i == 2);
    }
}

/* Only the last 64 layers can be MTP layers; numbers beyond the model change nothing; names must fit exactly. */
static void test_limits(void **state) {
    (void)state;
    static const char *const names[] = {"blk.36.nextn.eh_proj.weight",
                                        "blk.35.nextn.eh_proj.weight",
                                        "blk.100.nextn.eh_proj.weight",
                                        "blk.99999.nextn.eh_proj.weight",
                                        "blk.50.nextnx.eh_proj.weight",
                                        "blk.51.x.nextn.weight",
                                        "cache_k_l52",
                                        "blk.nextn.weight",
                                        "output.weight",
                                        NULL};
    struct pkg_select s = model(100, names);
    for (uint32_t layer = 0; layer < 100; layer++) assert_int_equal(pkg_select_is_mtp(&s, layer), layer == 36);
    assert_false(pkg_select_is_mtp(&s, 100));
    assert_false(pkg_select_is_mtp(&s, UINT32_MAX));
    assert_true(needs(s, 36, 37));
    assert_true(needs(s, 1, 100));
    assert_false(needs(s, 37, 100));
    assert_false(needs(s, 1, 36));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rule), cmocka_unit_test(test_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
