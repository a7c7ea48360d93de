/* Attention of many queries against ggml's own operation: the same bits. */
#include "../base/tmp_folder.h"
#include "cpu_backends.h"
#include "model/model_attn.h"
#include "model/model_attn_kernel.h"
#include "model/model_own.h"

#include <dirent.h>
#include <ggml-alloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { UNUSED = 7 };

/* What is looked at, and by how many. */
struct shape {
    int64_t dim_k, dim_v, n_head, n_head_kv, n, n_kv, n_spans;
    float size;     /* of the numbers in queries: large ones see few cells only */
    int64_t window; /* 0: none */
    bool shared;    /* values are the beginning of the keys */
    bool sinks;
};

static const struct shape shapes[] = {
    {64, 64, 6, 2, 100, 256, 1, .size = 4},                   /* the usual */
    {64, 64, 9, 3, 512, 512, 1, .size = 1},                   /* */
    {40, 16, 5, 5, 300, 512, 1, .size = 8},                   /* odd widths, nothing shared */
    {128, 128, 8, 1, 65, 768, 2, .size = 4, .window = 70},    /* two sequences, whole tiles hidden */
    {256, 256, 4, 1, 127, 1024, 1, .size = 4, .window = 3},   /* */
    {64, 64, 14, 2, 71, 256, 1, .size = 4, .sinks = true},    /* blocks across tokens */
    {32, 32, 4, 2, 64, 256, 3, .size = 300},                  /* most weights below the least number */
    {576, 512, 40, 1, 66, 256, 1, .size = 4, .shared = true}, /* latent: more heads than lanes */
    {96, 48, 300, 1, 64, 256, 1, .size = 4, .shared = true},  /* more than a unit's lanes */
    {80, 80, 2, 2, 1000, 1280, 1, .size = 20, .window = 600}, /* */
};

enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

struct attention {
    struct shape s;
    struct ggml_context *ctx;
    ggml_backend_buffer_t buffer;
    struct ggml_tensor *q, *k, *v, *mask, *sinks; /* q: [dim_k, n_head, n, spans] */
    struct model_attn_args args;
    struct ggml_tensor *ours, *theirs;
    struct ggml_cgraph *graph;
};

/* Rows of the cache lie head by head, as the engine keeps them. */
static struct ggml_tensor *heads(struct attention *a, struct ggml_tensor *rows, int64_t dim, int64_t width) {
    return ggml_view_4d(a->ctx, rows, dim, a->s.n_kv, a->s.n_head_kv, a->s.n_spans, rows->nb[1],
                        ggml_row_size(rows->type, width), rows->nb[1] * (size_t)a->s.n_kv, 0);
}

static void describe(struct attention *a, const struct shape *s, enum ggml_type type) {
    struct ggml_init_params params = {
        .mem_size = 32 * (ggml_tensor_overhead() + model_own_overhead()) + ggml_graph_overhead(), .no_alloc = true};
    *a = (struct attention){.s = *s, .ctx = ggml_init(params)};
    assert_non_null(a->ctx);
    a->q = ggml_new_tensor_4d(a->ctx, GGML_TYPE_F32, s->dim_k, s->n_head, s->n, s->n_spans);
    a->k = ggml_new_tensor_2d(a->ctx, type, s->dim_k * s->n_head_kv, s->n_kv * s->n_spans);
    a->v = s->shared ? a->k : ggml_new_tensor_2d(a->ctx, type, s->dim_v * s->n_head_kv, s->n_kv * s->n_spans);
    a->mask = ggml_new_tensor_4d(a->ctx, GGML_TYPE_F16, s->n_kv, s->n, 1, s->n_spans);
    a->sinks = s->sinks ? ggml_new_tensor_1d(a->ctx, GGML_TYPE_F32, s->n_head) : NULL;
    a->args = (struct model_attn_args){.q = ggml_permute(a->ctx, a->q, 0, 2, 1, 3),
                                       .k = heads(a, a->k, s->dim_k, s->dim_k),
                                       .v = heads(a, a->v, s->dim_v, s->shared ? s->dim_k : s->dim_v),
                                       .mask = a->mask,
                                       .sinks = a->sinks,
                                       .scale = 0.17f};
}

static void begin(struct attention *a, const struct shape *s, const struct model_backend *b) {
    describe(a, s, GGML_TYPE_F16);
    a->ours = model_attn(a->ctx, &b->attn, &a->args);
    assert_non_null(a->ours);
    assert_int_equal(model_own_op(a->ours->view_src), GGML_OP_FLASH_ATTN_EXT);
    a->theirs =
        ggml_flash_attn_ext(a->ctx, a->args.q, a->args.k, a->args.v, a->mask, a->args.scale, 0.0f, a->args.softcap);
    ggml_prec_set_acc(a->theirs, GGML_PREC_F32);
    if (a->sinks) ggml_flash_attn_ext_add_sinks(a->theirs, a->sinks);
    assert_true(ggml_are_same_shape(a->ours, a->theirs));
    a->graph = ggml_new_graph(a->ctx);
    ggml_build_forward_expand(a->graph, a->ours);
    ggml_build_forward_expand(a->graph, a->theirs);
    a->buffer = ggml_backend_alloc_ctx_tensors(a->ctx, b->handle);
    assert_non_null(a->buffer);
}

static void end(struct attention *a) {
    ggml_backend_buffer_free(a->buffer);
    ggml_free(a->ctx);
}

static void set_rows(struct ggml_tensor *t, uint32_t seed) {
    ggml_fp16_t *to = t->data;
    for (int64_t i = 0; i < ggml_nelements(t); i++) to[i] = ggml_fp32_to_fp16(model_own_number(&seed));
}

/* Whether a token sees a cell: a prompt's part at the end of what the cache holds, but for some rows that are not in
 * use; with a window, the cells before it are those of others. */
static bool sees(const struct shape *s, int64_t token, int64_t cell) {
    int64_t at = s->n_kv - UNUSED - s->n + token;
    if (at < 0) at = token; /* a prompt that fills the cache */
    return cell <= at && (s->window == 0 || cell > at - s->window);
}

static void fill(struct attention *a) {
    uint32_t seed = 3, own = 4;
    for (int64_t i = 0; i < ggml_nelements(a->q); i++) ((float *)a->q->data)[i] = a->s.size * model_own_number(&seed);
    set_rows(a->k, 5);
    if (!a->s.shared) set_rows(a->v, 6);
    for (int64_t i = 0; i < a->s.n_kv * a->s.n * a->s.n_spans; i++)
        ((uint16_t *)a->mask->data)[i] = sees(&a->s, i / a->s.n_kv % a->s.n, i % a->s.n_kv) ? 0 : 0xfc00;
    for (int64_t i = 0; i < a->s.n_head && a->sinks; i++) ((float *)a->sinks->data)[i] = 9.0f * model_own_number(&own);
}

static void run(struct attention *a, const struct model_backend *b) {
    for (int i = 0; i < 2; i++) { /* the second time as well */
        memset(a->ours->data, 0xFF, ggml_nbytes(a->ours));
        assert_int_equal(ggml_backend_graph_compute(b->handle, a->graph), GGML_STATUS_SUCCESS);
    }
}

static bool agree(const struct attention *a) {
    return memcmp(a->ours->data, a->theirs->data, ggml_nbytes(a->theirs)) == 0;
}

static void need_kernel(void) {
    if (!backend[0].attn.kernel) skip();
}

static void test_numbers(void **state) {
    (void)state;
    need_kernel();
    for (int i = 0; i < N_SHAPES; i++)
        for (int t = 0; t < MAX_THREADS; t++) {
            struct attention a;
            begin(&a, &shapes[i], &backend[t]);
            fill(&a);
            run(&a, &backend[t]);
            if (!agree(&a)) fail_msg("shape %d with %d threads differs from ggml's", i, t + 1);
            end(&a);
        }
}

/* The last tokens of a prompt alone, with another number of threads: the same bits. */
static void test_cuts(void **state) {
    (void)state;
    need_kernel();
    for (int i = 0; i < N_SHAPES; i++)
        for (int64_t n = 64; n < shapes[i].n && shapes[i].n_spans == 1; n = 3 * n + 1) {
            struct attention whole, part;
            struct shape s = shapes[i];
            s.n = n;
            begin(&whole, &shapes[i], &backend[0]);
            begin(&part, &s, &backend[MAX_THREADS - 1]);
            fill(&whole);
            fill(&part);
            size_t queries = ggml_nbytes(part.q), masks = ggml_nbytes(part.mask), rows = ggml_nbytes(part.ours);
            memcpy(part.q->data, (char *)whole.q->data + ggml_nbytes(whole.q) - queries, queries);
            memcpy(part.mask->data, (char *)whole.mask->data + ggml_nbytes(whole.mask) - masks, masks);
            run(&whole, &backend[0]);
            run(&part, &backend[MAX_THREADS - 1]);
            if (memcmp((char *)whole.ours->data + ggml_nbytes(whole.ours) - rows, part.ours->data, rows) != 0)
                fail_msg("shape %d: the last %d tokens differ alone", i, (int)n);
            end(&whole);
            end(&part);
        }
}

/* What no query sees may hold anything; what one sees shows. */
static void test_not_numbers(void **state) {
    (void)state;
    need_kernel();
    const struct shape *s = &shapes[0];
    struct attention a;
    begin(&a, s, &backend[0]);
    fill(&a);
    run(&a, &backend[0]);
    float *before = malloc(ggml_nbytes(a.ours)), *after = a.ours->data;
    assert_non_null(before);
    memcpy(before, after, ggml_nbytes(a.ours));
    size_t row = a.k->nb[1], unused = row * UNUSED, end_of_used = row * (size_t)(s->n_kv - UNUSED);
    memset((char *)a.k->data + end_of_used, 0xFF, unused);
    memset((char *)a.v->data + end_of_used, 0xFF, unused);
    run(&a, &backend[0]);
    assert_memory_equal(before, after, ggml_nbytes(a.ours));
    float *last = after + (s->n - 1) * s->n_head * s->dim_v;
    const uint16_t infinite = 0x7c00;
    memcpy((char *)a.v->data + end_of_used - row, &infinite, sizeof infinite); /* the last token's own value */
    run(&a, &backend[0]);
    assert_true(isinf(last[0]));
    memcpy((char *)a.k->data + end_of_used - row, &infinite, sizeof infinite);
    run(&a, &backend[0]);
    assert_true(!isfinite(last[0]));
    free(before);
    end(&a);
}

/* Where ggml rounds otherwise than its tiles do. */
static void test_refused(void **state) {
    (void)state;
    need_kernel();
    struct shape few = shapes[0], odd = shapes[0];
    struct attention a;
    few.n = 63;
    odd.dim_v = 72;
    describe(&a, &few, GGML_TYPE_F16);
    assert_null(model_attn(a.ctx, &backend[0].attn, &a.args));
    ggml_free(a.ctx);
    describe(&a, &odd, GGML_TYPE_F16);
    assert_null(model_attn(a.ctx, &backend[0].attn, &a.args));
    ggml_free(a.ctx);
    describe(&a, &shapes[0], GGML_TYPE_Q8_0);
    assert_null(model_attn(a.ctx, &backend[0].attn, &a.args));
    ggml_free(a.ctx);
    describe(&a, &shapes[0], GGML_TYPE_F16);
    a.args.softcap = 1.0f;
    assert_null(model_attn(a.ctx, &backend[0].attn, &a.args));
    a.args.softcap = 0;
    assert_null(model_attn(a.ctx, &(struct model_attn){.n_threads = 1}, &a.args));
    ggml_free(a.ctx);
}

static void test_widen(void **state) {
    enum { ALL = 1 << 16, ODD = 37 };
    (void)state;
    uint16_t *half = malloc(ALL * sizeof *half);
    float *wide = malloc(ALL * sizeof *wide);
    assert_true(half && wide);
    for (int i = 0; i < ALL; i++) half[i] = (uint16_t)i;
    for (int i = 0; model_attn_kernel(i); i++) {
        const struct model_attn_kernel *k = model_attn_kernel(i);
        for (size_t n = ALL; n >= ALL - ODD; n -= ODD) {
            memset(wide, 0x55, ALL * sizeof *wide);
            k->widen(half, wide, n);
            for (size_t h = 0; h < n; h++) {
                float want = ggml_fp16_to_fp32((ggml_fp16_t)h);
                if (isnan(want) ? !isnan(wide[h]) : memcmp(&want, &wide[h], sizeof want) != 0)
                    fail_msg("%s: %zx becomes %a, not %a", k->name, h, (double)wide[h], (double)want);
            }
        }
    }
    free(half);
    free(wide);
}

/* ---- the kernel of other processors ---- */

/* A folder with ggml's libraries for one kind of processor alone. */
static bool only_backend(const char *kind, const struct tmp_folder *folder) {
    char from[512];
    bool found = false;
    DIR *d = opendir(STRATA_BACKEND_DIR);
    if (!d) return false;
    for (struct dirent *e; (e = readdir(d));) {
        if (!strstr(e->d_name, kind)) continue;
        snprintf(from, sizeof from, "%s/%s", STRATA_BACKEND_DIR, e->d_name);
        found = symlink(from, tmp_path(folder, e->d_name)) == 0;
    }
    closedir(d);
    return found;
}

/* 0: agrees everywhere. */
static int try_kernel(const char *dir, const char *name) {
    struct strata_errmsg em;
    if (model_backend_init(&backend[0], dir, NULL, 1, &em)) return 2;
    if (!backend[0].attn.kernel || strcmp(backend[0].attn.kernel->name, name) != 0) return 3;
    for (int i = 0; i < N_SHAPES; i++) {
        struct attention a;
        begin(&a, &shapes[i], &backend[0]);
        fill(&a);
        run(&a, &backend[0]);
        if (!agree(&a)) return 10 + i;
        end(&a);
    }
    return 0;
}

/* ggml for older processors, in a process of its own: it loads one library for the CPU only. */
static void test_avx2(void **state) {
    struct tmp_folder folder;
    int status = 0;
    (void)state;
    if (!model_attn_kernel(0)) skip();
    tmp_folder_make(&folder);
    bool found = only_backend("haswell", &folder);
    pid_t child = found ? fork() : 0;
    if (found && child == 0) _exit(try_kernel(folder.path, "AVX2"));
    pid_t ended = found ? waitpid(child, &status, 0) : 0;
    tmp_folder_remove(folder.path);
    if (!found) skip();
    assert_true(child > 0 && ended == child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void) {
    const struct CMUnitTest alone[] = {cmocka_unit_test(test_widen), cmocka_unit_test(test_avx2)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_not_numbers),
        cmocka_unit_test(test_refused),
    };
    int failed = cmocka_run_group_tests(alone, NULL, NULL); /* before any library of ggml's is loaded here */
    return failed + cmocka_run_group_tests(tests, open_backends, close_backends);
}
