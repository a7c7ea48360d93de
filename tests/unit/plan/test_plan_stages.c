/* What the planner says a stage loads is what the loader opens, for every kind of model and every number of stages. */
#include "../base/tmp_folder.h"
#include "gguf/gguf_writer.h"
#include "plan/plan_stages.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { WIDTH = 8, MAX_ROWS = 64 };

struct kind {
    bool tied, rope, per_layer, mtp, mtp_own;
};

static struct tmp_folder T;
static struct strata_errmsg em;
static float payload[WIDTH * MAX_ROWS];

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

static void add(struct gguf_writer *w, const char *name, uint64_t rows) {
    const uint64_t ne[2] = {WIDTH, rows};
    assert_true(rows <= MAX_ROWS);
    assert_int_equal(gguf_writer_add_tensor(w, name, 2, ne, GGUF_TENSOR_F32, payload, &em), STRATA_OK);
}

/* Names live as long as the writer. */
static void write_model(const char *path, const struct kind *k, uint32_t layers) {
    static char names[64][48];
    struct gguf_writer *w;
    uint8_t sum[DIGEST_BYTES];
    uint64_t size;
    assert_int_equal(gguf_writer_new(32, &w, &em), STRATA_OK);
    assert_int_equal(gguf_writer_add_str(w, "general.architecture", "glm4moe", &em), STRATA_OK);
    add(w, "token_embd.weight", 40);
    if (k->per_layer) add(w, "per_layer_token_embd.weight", 21);
    if (k->rope) add(w, "rope_freqs.weight", 3);
    assert_true(layers * 2 < 60);
    for (uint32_t i = 0; i < layers; i++) {
        snprintf(names[2 * i], sizeof names[0], "blk.%u.attn_q.weight", i);
        snprintf(names[2 * i + 1], sizeof names[0], "blk.%u.ffn_down.weight", i);
        add(w, names[2 * i], 5 + i * 7 % 11);
        add(w, names[2 * i + 1], 9);
    }
    if (k->mtp) {
        snprintf(names[60], sizeof names[0], "blk.%u.nextn.eh_proj.weight", layers - 1);
        add(w, names[60], 6);
    }
    if (k->mtp_own) {
        snprintf(names[61], sizeof names[0], "blk.%u.nextn.embed_tokens.weight", layers - 1);
        add(w, names[61], 40);
    }
    add(w, "output_norm.weight", 1);
    if (!k->tied) add(w, "output.weight", 40);
    assert_int_equal(gguf_writer_to_file(w, path, NULL, sum, &size, &em), STRATA_OK);
    gguf_writer_free(w);
}

static struct pkg_model *open_range(const char *path, struct pkg_range range) {
    struct pkg_model *m;
    struct pkg_model_options opt = {.range = range};
    if (pkg_model_open(path, &opt, &m, &em)) fail_msg("%s", em.text);
    return m;
}

static uint64_t size_of(const struct pkg_inventory *inv, const char *name) {
    const struct pkg_tensor *x = pkg_inventory_find(inv, name);
    return x ? x->t->bytes : 0;
}

/* Sums that must hold whatever the cut. */
static void check_sums(const struct pkg_inventory *inv, const struct kind *k, const struct plan_stages *p) {
    uint64_t bytes = 0, loaded = 0, count = 0, largest = 0, all = 0;
    uint64_t rope = size_of(inv, "rope_freqs.weight");
    for (size_t i = 0; i < inv->n_tensors; i++) all += inv->tensors[i].t->bytes;
    for (uint32_t i = 0; i < p->n; i++) {
        const struct plan_stage *s = &p->list[i];
        assert_int_equal(s->loaded_bytes, s->layer_bytes + s->embedding_bytes + s->output_bytes + s->replicated_bytes);
        assert_int_equal(s->replicated_bytes, rope);
        bytes += s->tensor_bytes;
        count += s->tensor_count;
        loaded += s->loaded_bytes;
        if (s->loaded_bytes > largest) largest = s->loaded_bytes;
    }
    uint64_t again = rope * (p->n - 1);
    assert_int_equal(bytes, all + again);
    assert_int_equal(count, inv->n_tensors + (k->rope ? p->n - 1 : 0));
    /* Beside that, the token embeddings once more: on the last stage, when it is not the first. */
    bool borrowed = k->tied || (k->mtp && !k->mtp_own);
    assert_int_equal(loaded, bytes + (borrowed && p->n > 1 ? size_of(inv, "token_embd.weight") : 0));
    assert_int_equal(p->total_bytes, loaded);
    assert_int_equal(p->largest, largest);
    assert_int_equal(p->tied, k->tied);
    assert_int_equal(p->mtp_layers, k->mtp);
    assert_int_equal(p->mtp_borrows, k->mtp && !k->mtp_own);
    assert_true(plan_stages_balance(p) >= 1 - 1e-9 && plan_stages_balance(p) <= p->n);
}

/* The loader, asked for each stage's range, opens just that. */
static void check_loader(const char *path, const struct plan_stages *p) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        const struct plan_stage *s = &p->list[i];
        struct pkg_model *m = open_range(path, s->range);
        assert_int_equal(s->range.first, at);
        at = s->range.end;
        assert_int_equal(pkg_model_tensor_count(m), s->loaded_count);
        assert_int_equal(pkg_model_tensor_bytes(m), s->loaded_bytes);
        assert_int_equal(s->embeddings, i == 0);
        assert_int_equal(s->output, i == p->n - 1);
        pkg_model_free(m);
    }
    assert_int_equal(at, p->layer_count);
}

static void check_model(const char *path, const struct kind *k, uint32_t layers) {
    struct pkg_model *m = open_range(path, (struct pkg_range){0, PKG_RANGE_ALL});
    struct pkg_inventory inv;
    assert_int_equal(pkg_inventory_from_model(&inv, m, &em), STRATA_OK);
    for (uint32_t n = 1; n <= layers; n++)
        for (int by = PLAN_BY_BYTES; by <= PLAN_BY_COUNT; by++) {
            struct plan_stages p;
            strata_err rc = plan_stages_make(&inv, path, n, (enum plan_by)by, &p, &em);
            if (by == PLAN_BY_BYTES && k->mtp && n == layers) {
                assert_int_equal(rc, STRATA_EINVAL); /* the MTP layer stays with the one before it */
                continue;
            }
            if (rc) fail_msg("%s", em.text);
            check_sums(&inv, k, &p);
            check_loader(path, &p);
            assert_int_equal(p.has_other, by == PLAN_BY_BYTES || !k->mtp || n < layers);
            if (p.has_other && by == PLAN_BY_BYTES) assert_true(p.largest <= p.other_largest || k->mtp);
            if (p.has_other && by == PLAN_BY_COUNT) assert_true(p.largest >= p.other_largest || k->mtp);
            if (by == PLAN_BY_BYTES && k->mtp) assert_true(p.list[n - 1].range.first < layers - 1);
            plan_stages_deinit(&p);
        }
    pkg_inventory_deinit(&inv);
    pkg_model_free(m);
}

static void test_kinds(void **state) {
    (void)state;
    for (unsigned bits = 0; bits < 32; bits++) {
        struct kind k = {.tied = bits & 1,
                         .rope = (bits & 2) != 0,
                         .per_layer = (bits & 4) != 0,
                         .mtp = (bits & 8) != 0,
                         .mtp_own = (bits & 24) == 24};
        if ((bits & 24) == 16) continue;
        write_model(tmp_path(&T, "m.gguf"), &k, 7);
        check_model(tmp_path(&T, "m.gguf"), &k, 7);
    }
}

/* By bytes is never worse than any other cut, and here better than the one by count. */
static void test_uneven(void **state) {
    (void)state;
    struct kind k = {.tied = true};
    struct plan_stages p;
    struct pkg_inventory inv;
    const char *path = tmp_path(&T, "u.gguf");
    write_model(path, &k, 4);
    struct pkg_model *m = open_range(path, (struct pkg_range){0, PKG_RANGE_ALL});
    assert_int_equal(pkg_inventory_from_model(&inv, m, &em), STRATA_OK);
    /* Rows: embeddings 40; layers 14, 21, 17, 24; output norm 1 and the embeddings once more. */
    assert_int_equal(plan_stages_make(&inv, path, 3, PLAN_BY_BYTES, &p, &em), STRATA_OK);
    assert_int_equal(p.largest, 65 * WIDTH * 4);
    assert_int_equal(p.list[1].range.first, 1);
    assert_int_equal(p.list[1].range.end, 3);
    assert_int_equal(p.list[2].loaded_bytes, (24 + 41) * WIDTH * 4);
    assert_int_equal(p.list[2].embedding_bytes, 40 * WIDTH * 4);
    assert_int_equal(p.list[2].tensor_bytes, (24 + 1) * WIDTH * 4);
    assert_true(p.has_other);
    assert_int_equal(p.other_largest, 75 * WIDTH * 4);
    plan_stages_deinit(&p);
    pkg_inventory_deinit(&inv);
    pkg_model_free(m);
}

static void test_refusals(void **state) {
    (void)state;
    struct plan_stages p;
    struct pkg_inventory inv = {0};
    assert_int_equal(plan_stages_make(&inv, "nothing.gguf", 1, PLAN_BY_BYTES, &p, &em), STRATA_EUNSUPPORTED);
    assert_non_null(strstr(em.text, "nothing.gguf has no transformer layers"));
    struct kind k = {0};
    const char *path = tmp_path(&T, "r.gguf");
    write_model(path, &k, 3);
    struct pkg_model *m = open_range(path, (struct pkg_range){0, PKG_RANGE_ALL});
    assert_int_equal(pkg_inventory_from_model(&inv, m, &em), STRATA_OK);
    for (int by = PLAN_BY_BYTES; by <= PLAN_BY_COUNT; by++) {
        const uint32_t bad[] = {0, 4, 100000, UINT32_MAX};
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            assert_int_equal(plan_stages_make(&inv, path, bad[i], (enum plan_by)by, &p, &em), STRATA_EINVAL);
            assert_non_null(strstr(em.text, "1 to 3 stages"));
        }
    }
    pkg_inventory_deinit(&inv);
    pkg_model_free(m);
    plan_stages_deinit(NULL);
}

/* Every layer an MTP layer: nonsense, but it must not lead to a stage without a layer. */
static void test_nothing_but_mtp(void **state) {
    (void)state;
    struct gguf_tensor t[2] = {{.name = "blk.0.nextn.eh_proj.weight", .bytes = 4},
                               {.name = "blk.1.nextn.eh_proj.weight", .bytes = 4}};
    struct pkg_tensor list[2] = {{&t[0], PKG_CLASS_LAYER, 0}, {&t[1], PKG_CLASS_LAYER, 1}};
    struct pkg_inventory inv = {.tensors = list, .n_tensors = 2, .layer_count = 2, .mtp_layers = 2, .tied = true};
    struct plan_stages p;
    assert_int_equal(plan_stages_make(&inv, "x", 1, PLAN_BY_BYTES, &p, &em), STRATA_OK);
    assert_true(p.list[0].range.end == 2 && p.list[0].loaded_bytes == 8);
    plan_stages_deinit(&p);
    assert_int_equal(plan_stages_make(&inv, "x", 2, PLAN_BY_BYTES, &p, &em), STRATA_EINVAL);
    assert_int_equal(plan_stages_make(&inv, "x", 2, PLAN_BY_COUNT, &p, &em), STRATA_OK);
    assert_false(p.has_other);
    plan_stages_deinit(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_kinds, setup, teardown),
        cmocka_unit_test_setup_teardown(test_uneven, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
        cmocka_unit_test(test_nothing_but_mtp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
