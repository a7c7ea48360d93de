/*
 * Claims, checks and places the weights of a layer range. See model_weights.h.
 *
 * Owns the ggml context of the weights, the buffers that wrap mapped pages, and those of copied tensors. It writes to
 * no mapped page. Refuses missing, misshapen, unusable and damaged tensors, and those that the architecture does not
 * know.
 */
#include "model/model_weights.h"

#include "base/checked.h"
#include "model/model_numbers.h"
#include "model/model_repack.h"
#include "model/model_upload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Two tensors farther apart than this get buffers of their own, so that a buffer spans about one mapped part. */
enum { SPAN_GAP = 1 << 16 };

struct model_placed {
    const char *name;
    struct ggml_tensor *tensor; /* NULL: claimed, not used */
    const uint8_t *data;
    size_t bytes;
    bool joined;                     /* a second view of tensors that are listed on their own */
    bool host;                       /* stays in main memory though the device has memory of its own */
    ggml_backend_buffer_type_t buft; /* kept there in another order of its rows; NULL: as it is in the file */
};

strata_err model_weights_begin(struct model_loader *ld, struct model_weights *w, const struct pkg_model *pkg,
                               struct pkg_range range, const struct model_hparams *hp,
                               const struct model_backend *backend, struct strata_errmsg *em) {
    *w = (struct model_weights){.range = range};
    *ld = (struct model_loader){.pkg = pkg, .range = range, .hp = hp, .backend = backend, .weights = w};
    ld->is_first = range.first == 0;
    ld->is_last = range.end == hp->n_layer;
    size_t n_layers = range.end - range.first;
    /* Each tensor once, and two joined views a layer. */
    ld->max_tensors = pkg_model_tensor_count(pkg) + 2 * n_layers;
    w->layer = calloc(n_layers, sizeof *w->layer);
    ld->placed = calloc(ld->max_tensors, sizeof *ld->placed);
    if (!w->layer || !ld->placed) return err_nomem(em, "the table of weights");
    ld->cap_placed = ld->max_tensors;
    struct ggml_init_params params = {.mem_size = (ld->max_tensors + 1) * ggml_tensor_overhead(), .no_alloc = true};
    w->ctx = ggml_init(params);
    return w->ctx ? STRATA_OK : err_nomem(em, "the table of weights");
}

void model_loader_deinit(struct model_loader *ld) {
    free(ld->placed);
    ld->placed = NULL;
}

void model_weights_deinit(struct model_weights *w) {
    for (size_t i = 0; i < w->n_buffers; i++) ggml_backend_buffer_free(w->buffers[i]);
    free(w->buffers);
    free(w->repacked);
    if (w->ctx) ggml_free(w->ctx);
    free(w->layer);
    *w = (struct model_weights){.ctx = NULL};
}

enum { NAME_MAX_LEN = 96 };

static void full_name(char out[NAME_MAX_LEN], uint32_t layer, const char *name, const char *suffix) {
    if (layer == MODEL_NO_LAYER) {
        snprintf(out, NAME_MAX_LEN, "%s%s", name, suffix);
    } else {
        snprintf(out, NAME_MAX_LEN, "blk.%u.%s%s", (unsigned)layer, name, suffix);
    }
}

enum { SHAPE_MAX_LEN = 96 };

/* "[64, 80]": no ones at the end, but for a vector's single number. */
static const char *shape_text(char out[SHAPE_MAX_LEN], const uint64_t *ne, size_t n) {
    int len = snprintf(out, SHAPE_MAX_LEN, "[%llu", (unsigned long long)ne[0]);
    while (n > 1 && ne[n - 1] == 1) n--;
    for (size_t i = 1; i < n; i++)
        len += snprintf(out + len, SHAPE_MAX_LEN - (size_t)len, ", %llu", (unsigned long long)ne[i]);
    snprintf(out + len, SHAPE_MAX_LEN - (size_t)len, "]");
    return out;
}

/* Finds a tensor and checks its shape; *out is NULL when it is absent and not required. */
static strata_err find(const struct model_loader *ld, const char *name, uint64_t ne0, uint64_t ne1, uint64_t ne2,
                       bool required, const struct gguf_tensor **out, struct strata_errmsg *em) {
    const struct gguf_tensor *t = pkg_model_find(ld->pkg, name);
    *out = NULL;
    if (!t) {
        if (!required) return STRATA_OK;
        return err_set(em, STRATA_ENOENT, "tensor %s is missing; architecture %s needs it", name, ld->hp->arch);
    }
    const uint64_t want[] = {ne0, ne1, ne2, 1};
    char has[SHAPE_MAX_LEN], asked[SHAPE_MAX_LEN];
    if (memcmp(t->ne, want, sizeof want) != 0)
        return err_set(em, STRATA_EFORMAT, "tensor %s has the shape %s; the metadata asks for %s", name,
                       shape_text(has, t->ne, 4), shape_text(asked, want, 4));
    *out = t;
    return STRATA_OK;
}

/* Notes a checked tensor and gives it its ggml twin. */
static strata_err place(struct model_loader *ld, const struct gguf_tensor *t, bool use, bool host,
                        enum model_product product, struct ggml_tensor **out, struct strata_errmsg *em) {
    for (size_t i = 0; i < ld->n_placed; i++) {
        const struct model_placed *p = &ld->placed[i];
        if (p->data == t->data && strcmp(p->name, t->name) == 0 && p->tensor && (p->host == host || !use)) {
            if (out) *out = p->tensor; /* token_embd as the output of a tied model */
            return STRATA_OK;
        }
    }
    if (ld->n_placed == ld->cap_placed)
        return err_set(em, STRATA_EINTERNAL, "more tensors are claimed than the model holds (at %s)", t->name);
    struct ggml_tensor *g = NULL;
    if (use) {
        g = ggml_new_tensor_3d(ld->weights->ctx, (enum ggml_type)t->type, (int64_t)t->ne[0], (int64_t)t->ne[1],
                               (int64_t)t->ne[2]);
        if (ggml_nbytes(g) != t->bytes)
            return err_set(em, STRATA_EINTERNAL, "tensor %s: ggml counts %zu bytes, the file %llu", t->name,
                           ggml_nbytes(g), (unsigned long long)t->bytes);
        ggml_set_name(g, t->name);
    }
    ld->placed[ld->n_placed++] = (struct model_placed){.name = t->name,
                                                       .tensor = g,
                                                       .data = t->data,
                                                       .bytes = (size_t)t->bytes,
                                                       .host = host,
                                                       .buft = g ? model_repack_type(ld->backend, g, product) : NULL};
    if (out) *out = g;
    return STRATA_OK;
}

static strata_err claim_f32(struct model_loader *ld, const char *name, uint64_t n, uint64_t rows, bool required,
                            bool use, struct ggml_tensor **out, struct strata_errmsg *em) {
    const struct gguf_tensor *t;
    strata_err rc = find(ld, name, n, rows, 1, required, &t, em);
    if (rc || !t) return rc;
    if (t->type != GGUF_TENSOR_F32)
        return err_set(em, STRATA_EUNSUPPORTED, "tensor %s has the type %s; Strata needs F32 there", name,
                       gguf_types_tensor_name(t->type));
    return place(ld, t, use, false, MODEL_PRODUCT_NONE, out, em);
}

strata_err model_weights_vector(struct model_loader *ld, uint32_t layer, const char *name, uint64_t n, bool required,
                                struct ggml_tensor **out, struct strata_errmsg *em) {
    char full[NAME_MAX_LEN];
    full_name(full, layer, name, "");
    return claim_f32(ld, full, n, 1, required, true, out, em);
}

strata_err model_weights_table(struct model_loader *ld, uint32_t layer, const char *name, uint64_t width, uint64_t n,
                               bool required, struct ggml_tensor **out, struct strata_errmsg *em) {
    char full[NAME_MAX_LEN];
    full_name(full, layer, name, "");
    return claim_f32(ld, full, width, n, required, true, out, em);
}

/*
 * A matrix, or a stack of them, of a type that can be used as it will be. Beside a device with memory of its own, those
 * that it cannot use stay in main memory for the CPU, and so do tables in which rows are looked up: a row a token is
 * nothing to move, and a large vocabulary's table is much memory.
 */
static strata_err claim_matrix(struct model_loader *ld, const char *name, const uint64_t ne[3],
                               enum model_backend_use use, enum model_product product, bool required,
                               struct ggml_tensor **out, struct strata_errmsg *em) {
    const struct gguf_tensor *t;
    const struct model_backend *b = ld->backend;
    strata_err rc = find(ld, name, ne[0], ne[1], ne[2], required, &t, em);
    if (rc || !t) return rc;
    bool host = !b->in_place && (use == MODEL_BACKEND_LOOK_UP || !model_backend_can_use(b, t->type, use, false));
    if (!model_backend_can_use(b, t->type, use, host || b->in_place))
        return err_set(em, STRATA_EUNSUPPORTED,
                       "tensor %s has the type %s, which ggml's CPU backend cannot compute with; quantize the model to "
                       "another type",
                       name, gguf_types_tensor_name(t->type));
    return place(ld, t, true, host, product, out, em);
}

strata_err model_weights_matrix(struct model_loader *ld, uint32_t layer, const char *name, uint64_t n_in,
                                uint64_t n_out, bool rows, bool required, struct ggml_tensor **out,
                                struct strata_errmsg *em) {
    char full[NAME_MAX_LEN];
    full_name(full, layer, name, "");
    /* Embeddings are looked up in on the first stage; on the last one they must be multiplied with the same way. */
    bool only_products = !rows && strcmp(full, "token_embd.weight") != 0;
    enum model_product product = only_products ? MODEL_PRODUCT_MATRIX : MODEL_PRODUCT_NONE;
    return claim_matrix(ld, full, (const uint64_t[]){n_in, n_out, 1},
                        rows ? MODEL_BACKEND_LOOK_UP : MODEL_BACKEND_MULTIPLY, product, required, out, em);
}

strata_err model_weights_stack(struct model_loader *ld, uint32_t layer, const char *name, uint64_t n_in, uint64_t n_out,
                               uint64_t n, bool required, struct ggml_tensor **out, struct strata_errmsg *em) {
    char full[NAME_MAX_LEN];
    full_name(full, layer, name, "");
    return claim_matrix(ld, full, (const uint64_t[]){n_in, n_out, n}, MODEL_BACKEND_MULTIPLY, MODEL_PRODUCT_NONE,
                        required, out, em);
}

strata_err model_weights_experts(struct model_loader *ld, uint32_t layer, const char *name, uint64_t n_in,
                                 uint64_t n_out, uint64_t n_expert, bool required, struct model_linear *out,
                                 struct strata_errmsg *em) {
    char full[NAME_MAX_LEN];
    struct model_linear l = {.w = NULL};
    full_name(full, layer, name, ".weight");
    strata_err rc = claim_matrix(ld, full, (const uint64_t[]){n_in, n_out, n_expert}, MODEL_BACKEND_EXPERTS,
                                 MODEL_PRODUCT_EXPERTS, required, &l.w, em);
    if (rc || !l.w) return rc;
    full_name(full, layer, name, ".bias");
    rc = claim_f32(ld, full, n_out, n_expert, false, true, &l.b, em);
    if (rc) return rc;
    full_name(full, layer, name, ".scale");
    rc = claim_f32(ld, full, n_expert, 1, false, true, &l.scale, em);
    if (rc) return rc;
    full_name(full, layer, name, ".input_scale");
    rc = claim_f32(ld, full, n_expert, 1, false, false, NULL, em);
    if (!rc) *out = l;
    return rc;
}

strata_err model_weights_linear(struct model_loader *ld, uint32_t layer, const char *name, uint64_t n_in,
                                uint64_t n_out, bool required, struct model_linear *out, struct strata_errmsg *em) {
    char full[NAME_MAX_LEN];
    struct model_linear l = {.w = NULL};
    full_name(full, layer, name, ".weight");
    strata_err rc = model_weights_matrix(ld, MODEL_NO_LAYER, full, n_in, n_out, false, required, &l.w, em);
    if (rc || !l.w) return rc;
    full_name(full, layer, name, ".bias");
    rc = claim_f32(ld, full, n_out, 1, false, true, &l.b, em);
    if (rc) return rc;
    full_name(full, layer, name, ".scale");
    rc = claim_f32(ld, full, 1, 1, false, true, &l.scale, em);
    if (rc) return rc;
    full_name(full, layer, name, ".input_scale");
    rc = claim_f32(ld, full, 1, 1, false, false, NULL, em);
    if (!rc) *out = l;
    return rc;
}

strata_err model_weights_ignore(struct model_loader *ld, uint32_t layer, const char *name, struct strata_errmsg *em) {
    char full[NAME_MAX_LEN];
    full_name(full, layer, name, "");
    const struct gguf_tensor *t = pkg_model_find(ld->pkg, full);
    return t ? place(ld, t, false, false, MODEL_PRODUCT_NONE, NULL, em) : STRATA_OK;
}

static const struct model_placed *placed_of(const struct model_loader *ld, const struct ggml_tensor *tensor) {
    for (size_t i = ld->n_placed; i-- > 0;)
        if (ld->placed[i].tensor == tensor) return &ld->placed[i];
    return NULL;
}

static strata_err damaged(const char *name, struct strata_errmsg *em) {
    return err_set(em, STRATA_EFORMAT,
                   "tensor %s holds values that are no numbers (NaN or infinite): the file is damaged", name);
}

strata_err model_weights_check_numbers(const struct model_loader *ld, struct strata_errmsg *em) {
    if (ld->backend->dry) return STRATA_OK;
    struct model_numbers *t = malloc((ld->n_placed + 1) * sizeof *t);
    const struct model_numbers *bad = NULL;
    size_t n = 0;
    if (!t) return err_nomem(em, "a check of the weights");
    for (size_t i = 0; i < ld->n_placed; i++) {
        const struct model_placed *p = &ld->placed[i];
        /* What was copied to a device was looked at on its way. */
        if (p->tensor && !p->joined && (p->host || ld->backend->in_place))
            t[n++] = (struct model_numbers){p->name, (uint32_t)p->tensor->type, p->data, p->bytes};
    }
    strata_err rc = model_numbers_check(t, n, ld->backend->n_threads, &bad, em);
    if (bad) rc = damaged(bad->name, em);
    free(t);
    return rc;
}

/* Wherever the tensor lies, `data` being its address there: what is not in main memory is fetched some rows at a time.
 */
static bool holds_numbers(const struct ggml_tensor *t, const void *data) {
    enum { PIECE = 4 << 20 };
    size_t row = t->nb[1], rows = (size_t)ggml_nrows(t), step = row < PIECE ? PIECE / row : 1;
    if (ggml_backend_buffer_is_host(t->buffer) || data != t->data)
        return model_numbers_finite((uint32_t)t->type, data, ggml_nbytes(t));
    void *piece = malloc(row * step);
    bool good = true;
    for (size_t first = 0; piece && good && first < rows; first += step) {
        size_t n = rows - first < step ? rows - first : step;
        ggml_backend_tensor_get(t, piece, first * row, n * row);
        good = model_numbers_finite((uint32_t)t->type, piece, n * row);
    }
    free(piece);
    return good;
}

const char *model_weights_damaged(const struct model_weights *w, uint32_t layer) {
    char prefix[32] = "";
    if (layer != MODEL_NO_LAYER) snprintf(prefix, sizeof prefix, "blk.%u.", (unsigned)layer);
    for (struct ggml_tensor *t = ggml_get_first_tensor(w->ctx); t; t = ggml_get_next_tensor(w->ctx, t)) {
        bool in_layer = strncmp(t->name, "blk.", 4) == 0;
        if (in_layer != (layer != MODEL_NO_LAYER) || strncmp(t->name, prefix, strlen(prefix)) != 0) continue;
        const void *data = t->data;
        for (size_t i = 0; i < w->n_repacked; i++)
            if (w->repacked[i].tensor == t) data = w->repacked[i].data;
        if (data && t->name[strlen(t->name) - 1] != '+' && !holds_numbers(t, data)) return t->name;
    }
    return NULL;
}

static bool aligned(const struct model_loader *ld, const uint8_t *data) {
    return (uintptr_t)data % ld->backend->alignment == 0;
}

/* In groups of rows, one matrix is packed as a part of a longer one would be. */
static bool same_size(const struct model_placed *p) {
    return ggml_backend_buft_get_alloc_size(p->buft, p->tensor) == p->bytes &&
           p->bytes % ggml_backend_buft_get_alignment(p->buft) == 0;
}

struct ggml_tensor *model_weights_join(struct model_loader *ld, const struct model_linear *a,
                                       const struct model_linear *b) {
    if (!a->w || !b->w || a->b || b->b || a->scale || b->scale || !ld->backend->in_place) return NULL;
    if (a->w->type != b->w->type || a->w->ne[0] != b->w->ne[0]) return NULL;
    const struct model_placed *pa = placed_of(ld, a->w), *pb = placed_of(ld, b->w);
    if (!pa || !pb || pa->data + pa->bytes != pb->data || !aligned(ld, pa->data) || !aligned(ld, pb->data)) return NULL;
    if (ld->n_placed == ld->cap_placed || pa->buft != pb->buft || (pa->buft && !same_size(pa))) return NULL;
    ggml_backend_buffer_type_t buft = pa->buft;
    struct ggml_tensor *g = ggml_new_tensor_2d(ld->weights->ctx, a->w->type, a->w->ne[0], a->w->ne[1] + b->w->ne[1]);
    ggml_format_name(g, "%s+", pa->name);
    ld->placed[ld->n_placed++] = (struct model_placed){
        .name = pa->name, .tensor = g, .data = pa->data, .bytes = pa->bytes + pb->bytes, .joined = true, .buft = buft};
    return g;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct model_placed *)a)->name, ((const struct model_placed *)b)->name);
}

static int by_address(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const struct model_placed *)a)->data;
    uintptr_t y = (uintptr_t)((const struct model_placed *)b)->data;
    return (x > y) - (x < y);
}

static int host_first(const void *a, const void *b) {
    const struct model_placed *x = a, *y = b;
    return x->host != y->host ? y->host - x->host : by_address(a, b);
}

static strata_err check_all_claimed(struct model_loader *ld, struct strata_errmsg *em) {
    qsort(ld->placed, ld->n_placed, sizeof *ld->placed, by_name);
    for (size_t i = 0; i < pkg_model_tensor_count(ld->pkg); i++) {
        struct model_placed key = {.name = pkg_model_tensor(ld->pkg, i)->name};
        uint32_t layer;
        /* Prediction heads behind the trunk are not run here. */
        if (pkg_class_of(key.name, &layer) == PKG_CLASS_LAYER && layer >= ld->hp->n_layer) continue;
        if (!bsearch(&key, ld->placed, ld->n_placed, sizeof key, by_name))
            return err_set(em, STRATA_EUNSUPPORTED,
                           "tensor %s is not one that architecture %s is known to have; running without it would give "
                           "wrong numbers",
                           key.name, ld->hp->arch);
    }
    return STRATA_OK;
}

static strata_err add_buffer(struct model_weights *w, ggml_backend_buffer_t buffer, struct strata_errmsg *em) {
    if (!buffer) return err_nomem(em, "a buffer of weights");
    ggml_backend_buffer_t *grown = realloc(w->buffers, (w->n_buffers + 1) * sizeof(ggml_backend_buffer_t));
    if (!grown) {
        ggml_backend_buffer_free(buffer);
        return err_nomem(em, "the table of buffers");
    }
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    w->buffers = grown;
    w->buffers[w->n_buffers++] = buffer;
    return STRATA_OK;
}

/*
 * Asks for mapped pages before they are needed, so that the first tokens do not wait for one page fault after the
 * other. Weights that fit memory are made present at once; larger ones are only announced. Advice: failure is no error.
 */
static void read_ahead(void *at, size_t size) {
#ifdef MADV_POPULATE_READ
    if (size < model_backend_memory_available() && madvise(at, size, MADV_POPULATE_READ) == 0) return;
#endif
    madvise(at, size, MADV_WILLNEED);
}

/* What will be repacked is read once, by several threads; the rest of a span is kept. */
static void read_ahead_span(struct model_loader *ld, size_t begin, size_t end) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (size_t i = begin, k; i < end; i = k) {
        uintptr_t first = (uintptr_t)ld->placed[i].data & ~(page - 1), last = first;
        bool repack = ld->placed[i].buft != NULL;
        for (k = i; k < end && (ld->placed[k].buft != NULL) == repack; k++) {
            uintptr_t stop = (uintptr_t)ld->placed[k].data + ld->placed[k].bytes;
            if (stop > last) last = stop;
        }
        if (repack)
            madvise((void *)first, last - first, MADV_WILLNEED);
        else
            read_ahead((void *)first, last - first);
    }
}

/* Wraps the mapped pages from the first to the last of placed[begin..end) and puts the aligned tensors there. */
static strata_err map_span(struct model_loader *ld, size_t begin, size_t end, struct strata_errmsg *em) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)ld->placed[begin].data & ~(page - 1), last = 0;
    for (size_t i = begin; i < end; i++) {
        uintptr_t stop = (uintptr_t)ld->placed[i].data + ld->placed[i].bytes;
        if (stop > last) last = stop;
    }
    size_t size = last - first;
    read_ahead_span(ld, begin, end);
    strata_err rc = add_buffer(
        ld->weights, ggml_backend_dev_buffer_from_host_ptr(ld->backend->host_dev, (void *)first, size, size), em);
    if (rc) return rc;
    ggml_backend_buffer_t buffer = ld->weights->buffers[ld->weights->n_buffers - 1];
    for (size_t i = begin; i < end; i++) {
        struct model_placed *p = &ld->placed[i];
        if (!p->tensor || p->buft || !aligned(ld, p->data)) continue;
        if (ggml_backend_tensor_alloc(buffer, p->tensor, (void *)(uintptr_t)p->data) != GGML_STATUS_SUCCESS)
            return err_set(em, STRATA_EINTERNAL, "ggml refused the place of tensor %s", p->name);
    }
    return STRATA_OK;
}

static bool to_copy(const struct model_loader *ld, const struct model_placed *p) {
    return p->tensor && !p->buft && !aligned(ld, p->data);
}

/* Copies those of placed[0..n) whose place in the file ggml cannot use into one buffer of our own. */
static strata_err copy_unaligned(struct model_loader *ld, size_t n, struct strata_errmsg *em) {
    size_t align = ld->backend->alignment, total = 0;
    for (size_t i = 0; i < n; i++)
        if (to_copy(ld, &ld->placed[i])) total += GGML_PAD(ld->placed[i].bytes, align);
    if (total == 0) return STRATA_OK;
    strata_err rc = add_buffer(
        ld->weights, ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(ld->backend->host_dev), total), em);
    if (rc) return rc;
    ggml_backend_buffer_t buffer = ld->weights->buffers[ld->weights->n_buffers - 1];
    char *at = ggml_backend_buffer_get_base(buffer);
    for (size_t i = 0; i < n; i++) {
        struct model_placed *p = &ld->placed[i];
        if (!to_copy(ld, p)) continue;
        if (ggml_backend_tensor_alloc(buffer, p->tensor, at) != GGML_STATUS_SUCCESS)
            return err_set(em, STRATA_EINTERNAL, "ggml refused the place of tensor %s", p->name);
        ggml_backend_tensor_set(p->tensor, p->data, 0, p->bytes);
        at += GGML_PAD(p->bytes, align);
    }
    return STRATA_OK;
}

/* ---- repacked matrices ---- */

static size_t padded_size(const struct model_placed *p) {
    size_t align = ggml_backend_buft_get_alignment(p->buft);
    return GGML_PAD(ggml_backend_buft_get_alloc_size(p->buft, p->tensor), align);
}

/* Gives the matrices of one buffer type, from placed[first] on, their places; joined ones lie over their parts. */
static strata_err place_repacked(struct model_loader *ld, size_t first, struct strata_errmsg *em) {
    ggml_backend_buffer_type_t buft = ld->placed[first].buft;
    size_t total = 0;
    for (size_t i = first; i < ld->n_placed; i++)
        if (ld->placed[i].buft == buft && !ld->placed[i].joined) total += padded_size(&ld->placed[i]);
    strata_err rc = add_buffer(ld->weights, ggml_backend_buft_alloc_buffer(buft, total), em);
    if (rc) return rc;
    ggml_backend_buffer_t buffer = ld->weights->buffers[ld->weights->n_buffers - 1];
    char *at = ggml_backend_buffer_get_base(buffer);
    for (int joined = 0; joined < 2; joined++)
        for (size_t i = first; i < ld->n_placed; i++) {
            struct model_placed *p = &ld->placed[i];
            if (p->buft != buft || p->joined != joined) continue;
            char *place = at;
            for (size_t k = first; joined && k < ld->n_placed; k++)
                if (!ld->placed[k].joined && ld->placed[k].data == p->data) place = ld->placed[k].tensor->data;
            if (ggml_backend_tensor_alloc(buffer, p->tensor, place) != GGML_STATUS_SUCCESS)
                return err_set(em, STRATA_EINTERNAL, "ggml refused the place of tensor %s", p->name);
            if (joined) continue;
            at += padded_size(p);
            ld->weights->repacked[ld->weights->n_repacked++] =
                (struct model_repack_item){.tensor = p->tensor, .data = p->data};
        }
    return STRATA_OK;
}

/* The file's pages of what was repacked are not needed any more: they may leave this process. */
static void drop_pages(const struct model_weights *w) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < w->n_repacked; i++) {
        uintptr_t from = (uintptr_t)w->repacked[i].data, end = from + ggml_nbytes(w->repacked[i].tensor);
        from = (from + page - 1) & ~(page - 1);
        end &= ~(page - 1);
        if (from < end) madvise((void *)from, end - from, MADV_DONTNEED);
    }
}

strata_err model_weights_repack(struct model_loader *ld, struct strata_errmsg *em) {
    struct model_weights *w = ld->weights;
    strata_err rc = STRATA_OK;
    if (ld->backend->dry) return STRATA_OK;
    w->repacked = calloc(ld->n_placed ? ld->n_placed : 1, sizeof *w->repacked);
    if (!w->repacked) return err_nomem(em, "the table of weights");
    for (size_t i = 0; i < ld->n_placed && !rc; i++)
        if (ld->placed[i].buft && !ld->placed[i].tensor->buffer) rc = place_repacked(ld, i, em);
    if (!rc) rc = model_repack_run(ld->backend, w->repacked, w->n_repacked, em);
    if (!rc) drop_pages(w);
    return rc;
}

/* Wraps what stays in main memory: placed[0..n), in the order of addresses. */
static strata_err map_all(struct model_loader *ld, size_t n, struct strata_errmsg *em) {
    for (size_t begin = 0, i = 0; i < n; i++) {
        const struct model_placed *p = &ld->placed[i];
        bool ends = i + 1 == n || (uintptr_t)ld->placed[i + 1].data > (uintptr_t)p->data + p->bytes + SPAN_GAP;
        if (!ends) continue;
        strata_err rc = map_span(ld, begin, i + 1, em);
        if (rc) return rc;
        begin = i + 1;
    }
    return copy_unaligned(ld, n, em);
}

/* Looks at placed[first..) and copies it to the device. The file's pages go back to the system, which keeps them while
 * there is room. */
static strata_err upload(struct model_loader *ld, size_t first, struct strata_errmsg *em) {
    struct model_upload u;
    ggml_backend_buffer_t buffer;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    strata_err rc = model_upload_begin(&u, ld->backend, ld->weights->ctx, &buffer, em);
    if (!rc && buffer) rc = add_buffer(ld->weights, buffer, em);
    for (size_t i = first; i < ld->n_placed && !rc; i++) {
        const struct model_placed *p = &ld->placed[i];
        if (!p->tensor) continue;
        const struct model_numbers one = {p->name, (uint32_t)p->tensor->type, p->data, p->bytes}, *bad = NULL;
        uintptr_t begin = ((uintptr_t)p->data + page - 1) & ~(page - 1);
        uintptr_t end = ((uintptr_t)p->data + p->bytes) & ~(page - 1);
        madvise((void *)((uintptr_t)p->data & ~(page - 1)), p->bytes, MADV_WILLNEED);
        rc = model_numbers_check(&one, 1, ld->backend->n_threads, &bad, em);
        if (bad) rc = damaged(p->name, em);
        if (!rc) model_upload_tensor(&u, p->tensor, p->data, p->bytes);
        if (begin < end) madvise((void *)begin, end - begin, MADV_DONTNEED);
    }
    model_upload_end(&u);
    return rc;
}

/* ---- sums ---- */

/* Whether a tensor that stays with the host, placed[i], is on the device as well: the table of a tied model. */
static bool on_both_sides(const struct model_loader *ld, size_t i) {
    bool both = false;
    for (size_t k = i + 1; ld->placed[i].host && k < ld->n_placed && !both; k++)
        both = ld->placed[k].tensor && !ld->placed[k].host && ld->placed[k].data == ld->placed[i].data;
    return both;
}

/* What the range's weights take: placed[0..n_mapped) in main memory, the others on the device. */
static void count(struct model_loader *ld, size_t n_mapped) {
    struct model_weights *w = ld->weights;
    for (size_t i = 0; i < ld->n_placed; i++) {
        const struct model_placed *p = &ld->placed[i];
        if (!p->tensor) continue;
        bool both = on_both_sides(ld, i);
        if (both) w->both_bytes += p->bytes;
        if (!both && !p->joined) w->bytes += p->bytes;
        if (i < n_mapped && to_copy(ld, p)) w->copied_bytes += p->bytes;
        if (i >= n_mapped) w->uploaded_bytes += p->bytes;
        if (p->buft && !p->joined) w->repacked_bytes += p->bytes;
    }
}

/* Only to measure: places in the file stand for those that the tensors would have, and empty buffers tell on which side
 * that would be. */
static strata_err pretend(struct model_loader *ld, size_t n_mapped, struct strata_errmsg *em) {
    const struct model_backend *b = ld->backend;
    struct model_weights *w = ld->weights;
    strata_err rc = add_buffer(w, ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(b->host_dev), 0), em);
    if (!rc) rc = add_buffer(w, ggml_backend_buft_alloc_buffer(b->buft, 0), em);
    for (size_t i = 0; i < ld->n_placed && !rc; i++) {
        const struct model_placed *p = &ld->placed[i];
        if (!p->tensor) continue;
        p->tensor->data = (void *)(uintptr_t)p->data;
        p->tensor->buffer = w->buffers[i < n_mapped ? 0 : 1];
    }
    return rc;
}

strata_err model_weights_finish(struct model_loader *ld, struct strata_errmsg *em) {
    bool in_place = ld->backend->in_place;
    size_t n_mapped = ld->n_placed;
    strata_err rc = check_all_claimed(ld, em);
    if (rc) return rc;
    qsort(ld->placed, ld->n_placed, sizeof *ld->placed, host_first);
    while (!in_place && n_mapped > 0 && !ld->placed[n_mapped - 1].host) n_mapped--;
    count(ld, n_mapped);
    if (ld->backend->dry) return pretend(ld, n_mapped, em);
    rc = map_all(ld, n_mapped, em);
    if (!rc && !in_place) rc = upload(ld, n_mapped, em);
    return rc;
}
