/* Looks up the kernels of ggml's CPU backend for single rows. See model_rows.h. Owns nothing. */
#include "model/model_backend.h"
#include "model/model_repack.h"
#include "model/model_rows_priv.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 16, TILES = 8, SLOW_TILES = 11 };

/* The CPU backend is a library of its own that ggml has loaded; any of its functions leads to it. NULL: it is not. */
static void *open_library(ggml_backend_t cpu) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu));
    void *inside = ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
    Dl_info info;
    return inside && dladdr(inside, &info) ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
}

/* ---- rows in the file's order ---- */

typedef const struct ggml_type_traits_cpu *traits_fn(enum ggml_type type);
typedef int has_fn(void);

/*
 * How many vectors the kernel for one row is still the fastest for. ggml has others from 2 on for processors that take
 * two rows at once, and where it was built with those of llamafile; on x86 from 8 on for types with blocks of 256,
 * which pay for two of these from 11 on only (docs/engine.md, Speed).
 */
static void set_limits(struct model_rows_kernel *k, enum ggml_type type, bool pairs) {
    bool slow_tiles = type == GGML_TYPE_Q2_K || type == GGML_TYPE_Q6_K;
    k->most = pairs ? 1 : k->vector_type == GGML_TYPE_Q8_K ? TILES - 1 : MOST;
    k->most_apart = slow_tiles && !pairs ? SLOW_TILES - 1 : k->most;
}

static void find_dots(struct model_rows *r, traits_fn *traits, bool tiles) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const struct ggml_type_traits_cpu *t = traits((enum ggml_type)i);
        const struct ggml_type_traits_cpu *v = t->vec_dot ? traits(t->vec_dot_type) : NULL;
        bool as_it_is = t->vec_dot_type == GGML_TYPE_F32;
        struct model_rows_kernel *k = &r->kernel[i];
        if (!v || (!as_it_is && !v->from_float)) continue;
        k->dot = t->vec_dot;
        k->convert = as_it_is ? NULL : v->from_float;
        k->vector_type = t->vec_dot_type;
        set_limits(k, (enum ggml_type)i, tiles || t->nrows > 1);
    }
}

static void fill(float *x, size_t n) {
    uint32_t seed = 1;
    for (size_t i = 0; i < n; i++) x[i] = model_own_number(&seed);
}

enum { TRIAL_N = 512, TRIAL_ROWS = MODEL_ROWS_PACK };

/* Q5_0 can be had as Q8_0, if these kernels agree to the last bit. */
static void find_wide(struct model_rows *r) {
    struct model_rows_kernel *k = &r->kernel[GGML_TYPE_Q5_0];
    const struct model_rows_kernel *wide = &r->kernel[GGML_TYPE_Q8_0];
    uint8_t row[TRIAL_N], wide_row[2 * TRIAL_N], vector[2 * TRIAL_N];
    float x[TRIAL_ROWS * TRIAL_N], y[TRIAL_ROWS], out[TRIAL_ROWS];
    if (!k->dot || !wide->dot || k->vector_type != wide->vector_type || !k->convert || k->most < MOST) return;
    fill(x, TRIAL_ROWS * TRIAL_N);
    k->convert(x, vector, TRIAL_N);
    for (int i = 0; i < TRIAL_ROWS; i++) {
        ggml_quantize_chunk(GGML_TYPE_Q5_0, x + i * TRIAL_N, row, 0, 1, TRIAL_N, NULL);
        model_rows_widen_q5_0(row, wide_row, TRIAL_N);
        k->dot(TRIAL_N, &y[i], 0, row, 0, vector, 0, 1);
        wide->dot(TRIAL_N, &out[i], 0, wide_row, 0, vector, 0, 1);
    }
    if (memcmp(y, out, sizeof y) != 0) return;
    k->widen = model_rows_widen_q5_0;
    k->wide_type = GGML_TYPE_Q8_0;
    k->wide_dot = wide->dot;
}

/* ---- rows in the kernels' order ---- */

/* A product small enough to be computed twice: with ggml, and with the kernel in question. */
struct trial {
    struct ggml_context *ctx;
    struct ggml_tensor *w, *x, *y;
    ggml_backend_buffer_t packed, plain;
};

static bool begin_trial(struct trial *t, const struct model_backend *b, enum ggml_type type) {
    struct model_backend packs = *b;
    struct ggml_init_params params = {.mem_size = 8 * ggml_tensor_overhead() + ggml_graph_overhead(), .no_alloc = true};
    packs.copies = MODEL_BACKEND_PACKED;
    t->ctx = ggml_init(params);
    if (!t->ctx) return false;
    t->w = ggml_new_tensor_2d(t->ctx, type, TRIAL_N, TRIAL_ROWS);
    ggml_backend_buffer_type_t buft = model_repack_type(&packs, t->w, MODEL_PRODUCT_MATRIX);
    t->packed = buft ? ggml_backend_buft_alloc_buffer(buft, ggml_backend_buft_get_alloc_size(buft, t->w)) : NULL;
    if (!t->packed || ggml_backend_tensor_alloc(t->packed, t->w, ggml_backend_buffer_get_base(t->packed))) return false;
    t->x = ggml_new_tensor_1d(t->ctx, GGML_TYPE_F32, TRIAL_N);
    t->y = ggml_mul_mat(t->ctx, t->w, t->x);
    t->plain = ggml_backend_alloc_ctx_tensors(t->ctx, b->handle);
    return t->plain != NULL;
}

/* Whether the kernel gives ggml's result, to the last bit. */
static bool same_result(struct trial *t, const struct model_backend *b, const struct model_rows_kernel *k,
                        model_rows_packed_fn *packed) {
    float y[TRIAL_ROWS], out[TRIAL_ROWS];
    _Alignas(64) uint8_t vector[TRIAL_N * sizeof(float)];
    size_t row = t->w->nb[1];
    float *numbers = malloc((size_t)TRIAL_ROWS * TRIAL_N * sizeof *numbers);
    void *rows = malloc(TRIAL_ROWS * row);
    bool same = false;
    if (!numbers || !rows) goto out;
    fill(numbers, (size_t)TRIAL_ROWS * TRIAL_N);
    ggml_quantize_chunk(t->w->type, numbers, rows, 0, TRIAL_ROWS, TRIAL_N, NULL);
    ggml_backend_tensor_set(t->w, rows, 0, TRIAL_ROWS * row);
    ggml_backend_tensor_set(t->x, numbers, 0, ggml_nbytes(t->x)); /* those of the first row */
    struct ggml_cgraph *graph = ggml_new_graph(t->ctx);
    ggml_build_forward_expand(graph, t->y);
    if (ggml_backend_graph_compute(b->handle, graph) != GGML_STATUS_SUCCESS) goto out;
    ggml_backend_tensor_get(t->y, y, 0, sizeof y);
    k->convert(numbers, vector, TRIAL_N);
    packed(TRIAL_N, out, TRIAL_ROWS, t->w->data, vector, 1, TRIAL_ROWS);
    same = memcmp(y, out, sizeof y) == 0;
out:
    free(numbers);
    free(rows);
    return same;
}

static void find_packed(struct model_rows_kernel *k, const struct model_backend *b, enum ggml_type type,
                        model_rows_packed_fn *packed) {
    struct trial t = {.ctx = NULL};
    if (begin_trial(&t, b, type) && same_result(&t, b, k, packed)) {
        k->packed = packed;
        k->packed_in = ggml_backend_buffer_get_type(t.packed);
    }
    if (t.plain) ggml_backend_buffer_free(t.plain);
    if (t.packed) ggml_backend_buffer_free(t.packed);
    if (t.ctx) ggml_free(t.ctx);
}

/* The kernels that the orders of x86 processors are for. They are in none of ggml's headers: hence the trial. */
static void find_all_packed(struct model_rows *r, const struct model_backend *b, void *lib) {
#ifdef __x86_64__
    static const struct {
        enum ggml_type type;
        const char *name;
    } known[] = {{GGML_TYPE_Q4_0, "ggml_gemv_q4_0_8x8_q8_0"},
                 {GGML_TYPE_Q2_K, "ggml_gemv_q2_K_8x8_q8_K"},
                 {GGML_TYPE_Q4_K, "ggml_gemv_q4_K_8x8_q8_K"},
                 {GGML_TYPE_IQ4_NL, "ggml_gemv_iq4_nl_8x8_q8_0"},
                 {GGML_TYPE_MXFP4, "ggml_gemv_mxfp4_8x8_q8_0"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        void *sym = dlsym(lib, known[i].name);
        model_rows_packed_fn *packed;
        memcpy(&packed, &sym, sizeof packed);
        struct model_rows_kernel *k = &r->kernel[known[i].type];
        if (packed && k->convert) find_packed(k, b, known[i].type, packed);
    }
#else
    (void)r;
    (void)b;
    (void)lib;
#endif
}

void model_rows_find(struct model_rows *r, const struct model_backend *b) {
    void *lib = open_library(b->handle);
    traits_fn *traits;
    has_fn *has_llamafile;
    *r = (struct model_rows){.kernel = {{.dot = NULL}}};
    if (!lib) return;
    void *traits_sym = dlsym(lib, "ggml_get_type_traits_cpu"), *has_sym = dlsym(lib, "ggml_cpu_has_llamafile");
    memcpy(&traits, &traits_sym, sizeof traits); /* ISO C has no cast from data to function pointers */
    memcpy(&has_llamafile, &has_sym, sizeof has_llamafile);
    if (traits) {
        find_dots(r, traits, has_llamafile && has_llamafile());
        find_wide(r);
        find_all_packed(r, b, lib);
    }
    dlclose(lib); /* ggml keeps it */
}
