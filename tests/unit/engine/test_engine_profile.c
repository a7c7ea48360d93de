/* Profiles: the same numbers as without, every operation counted once in each table, and the bytes that are read. */
#include "engine/engine_profile.h"

#include "chain.h"

static struct tmp_folder folder;
static const int32_t tokens[12] = {1, 7, 3, 9, 12, 5, 44, 61, 2, 30, 8, 19};

static int make_folder(void **state) {
    (void)state;
    tmp_folder_make(&folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    tmp_folder_remove(folder.path);
    return 0;
}

static const struct engine_profile_row *find(const struct engine_profile_table *t, const char *name) {
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->row[i].name, name) == 0) return &t->row[i];
    fail_msg("there is no row %s", name);
    return NULL;
}

static struct engine_profile_row sum_of(const struct engine_profile_table *t) {
    struct engine_profile_row sum = {.count = 0};
    for (size_t i = 0; i < t->n; i++) {
        sum.count += t->row[i].count;
        sum.ns += t->row[i].ns;
        sum.bytes += t->row[i].bytes;
        sum.flops += t->row[i].flops;
    }
    return sum;
}

static void assert_sums(const struct engine_profile *p) {
    const struct engine_profile_table *const tables[] = {&p->by_op, &p->by_layer};
    for (int i = 0; i < 2; i++) {
        struct engine_profile_row sum = sum_of(tables[i]);
        assert_int_equal(sum.count, p->all.count);
        assert_int_equal(sum.ns, p->all.ns);
        assert_int_equal(sum.bytes, p->all.bytes);
        assert_true(fabs(sum.flops - p->all.flops) < 1);
    }
}

/* A chunk of 8 tokens and 4 single ones. */
static void run(struct test_chain *c, float **logits) {
    *logits = chain_logits(c, tokens, 12, (const uint32_t[]){8, 1, 0});
}

static void test_same_numbers(void **state) {
    (void)state;
    struct model_file f = model_file_small();
    const char *path = tmp_path(&folder, "plain.gguf");
    struct engine_options opt = {.n_ctx = 64, .n_threads = 2};
    float *want, *got;
    f.bias = f.scale = true;
    model_file_write(&f, path);
    for (int cut = 0; cut < 2; cut++) {
        const uint32_t cuts[] = {cut ? 2 : 0, 0};
        struct test_chain plain, profiled;
        chain_open(&plain, path, cuts, &opt);
        opt.profile = true;
        chain_open(&profiled, path, cuts, &opt);
        opt.profile = false;
        run(&plain, &want);
        run(&profiled, &got);
        assert_memory_equal(want, got, 12 * f.vocab * sizeof(float));
        for (uint32_t i = 0; i < plain.n; i++) {
            assert_null(engine_profile(plain.engine[i]));
            assert_sums(engine_profile(profiled.engine[i]));
        }
        free(want);
        free(got);
        chain_close(&plain);
        chain_close(&profiled);
    }
}

/* Every matrix is read once a graph, whatever the number of tokens. */
static void test_counts(void **state) {
    (void)state;
    struct model_file f = model_file_small();
    const char *path = tmp_path(&folder, "counts.gguf");
    struct engine_options opt = {.n_ctx = 64, .n_threads = 1, .profile = true};
    struct test_chain c;
    float *logits;
    model_file_write(&f, path);
    chain_open(&c, path, NULL, &opt);
    struct engine_profile *p = engine_profile(c.engine[0]);
    assert_true(p->read_rate > 1e6);
    run(&c, &logits);
    free(logits);
    assert_int_equal(p->n_runs, 5);
    assert_int_equal(p->n_tokens, 12);
    const struct engine_profile_row *down = find(&p->by_matrix, "ffn_down.weight f32");
    assert_int_equal(down->count, 5 * f.layers);
    assert_int_equal(down->bytes, (uint64_t)5 * f.layers * f.ff * f.embd * 4);
    assert_true(fabs(down->flops - 2.0 * 12 * f.layers * f.ff * f.embd) < 1);
    const struct engine_profile_row *out = find(&p->by_layer, "output");
    assert_int_equal(out->bytes, (uint64_t)5 * f.vocab * f.embd * 4);
    assert_int_equal(find(&p->by_layer, "blk.4")->count, find(&p->by_layer, "blk.1")->count);
    assert_int_equal(p->by_layer.n, f.layers + 2);
    assert_true(find(&p->by_op, "FLASH_ATTN_EXT")->bytes > 0);
    assert_sums(p);
    engine_profile_reset(p);
    assert_int_equal(p->all.count + p->n_runs + p->n_tokens + p->by_op.n + p->by_layer.n + p->launch_ns, 0);
    assert_true(p->one_launch_ns > 0);
    chain_close(&c);
}

/* Of experts, only those that a token went to are read. */
static void test_experts(void **state) {
    (void)state;
    struct model_file f = model_file_small();
    const char *path = tmp_path(&folder, "experts.gguf");
    struct engine_options opt = {.n_ctx = 64, .n_threads = 1, .profile = true};
    struct test_chain c;
    f.experts = 8;
    f.used = 2;
    f.layers = 1;
    model_file_write(&f, path);
    chain_open(&c, path, NULL, &opt);
    struct engine_profile *p = engine_profile(c.engine[0]);
    uint64_t one = (uint64_t)f.ff * f.embd * 4;
    chain_step(&c, 0, tokens, 1, ENGINE_OUT_LAST);
    assert_int_equal(find(&p->by_matrix, "ffn_down_exps.weight f32")->bytes, 2 * one);
    engine_profile_reset(p);
    chain_step(&c, 1, tokens, 12, ENGINE_OUT_ALL);
    uint64_t many = find(&p->by_matrix, "ffn_up_exps.weight f32")->bytes / one;
    assert_in_range(many, 3, 8);
    assert_int_equal(find(&p->by_matrix, "ffn_up_exps.weight f32")->bytes, many * one);
    chain_close(&c);
}

static void test_reports(void **state) {
    (void)state;
    struct model_file f = model_file_small();
    const char *path = tmp_path(&folder, "reports.gguf");
    struct engine_options opt = {.n_ctx = 64, .n_threads = 1, .profile = true};
    struct test_chain c;
    char *text = NULL;
    size_t len = 0;
    model_file_write(&f, path);
    chain_open(&c, path, NULL, &opt);
    struct engine_profile *p = engine_profile(c.engine[0]);
    FILE *out = open_memstream(&text, &len);
    assert_non_null(out);
    engine_profile_print(p, "nothing", out);
    fflush(out);
    assert_int_equal(len, 0);
    chain_step(&c, 0, tokens, 12, ENGINE_OUT_LAST);
    engine_profile_print(p, "a test", out);
    fclose(out);
    const char *const parts[] = {"profile of a test: 12 tokens in 1 graphs",
                                 "\n  operation ",
                                 "\n  MUL_MAT f32 ",
                                 "\n  ffn_gate.weight",
                                 "\n  blk.4 ",
                                 "\n  memory: a graph reads "};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (!strstr(text, parts[i])) fail_msg("'%s' is not in:\n%s", parts[i], text);
    free(text);
    json_t *j = engine_profile_json(p);
    assert_non_null(j);
    assert_int_equal(json_integer_value(json_object_get(j, "tokens")), 12);
    assert_int_equal(json_integer_value(json_object_get(j, "operations")), p->all.count);
    double share = 0;
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(j, "by_operation"), i, row) {
        share += json_real_value(json_object_get(row, "share"));
        if (i) assert_true(p->by_op.row[i].ns <= p->by_op.row[i - 1].ns);
    }
    assert_int_equal(i, p->by_op.n);
    assert_true(fabs(share - 1) < 1e-9);
    assert_int_equal(json_array_size(json_object_get(j, "by_layer")), f.layers + 2);
    json_decref(j);
    chain_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_numbers),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_reports),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
