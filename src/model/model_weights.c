/*
 * Claims and checks the weights of a layer range; model_place.h says where they lie. See model_weights.h.
 *
 * Owns the ggml context of the weights, the buffers that wrap mapped pages, and those of copied tensors. Refuses
 * missing, misshapen, unusable and damaged tensors, and those that the architecture does not know.
 */
#include "model/model_weights.h"

#include "base/checked.h"
#include "model/model_numbers.h"
#include "model/model_place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    free(w->copy);
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

/* Decides which memory a tensor is copied to, if any, and when. */
static void choose_memory(const struct model_loader *ld, struct model_placed *p, enum model_product product) {
    const struct model_backend *b = ld->backend;
    ggml_backend_buffer_type_t plain = ggml_backend_dev_buffer_type(b->host_dev);
    bool usable = model_place_aligned(ld, p->data), must = (b->in_place || p->host) && !usable;
    p->buft = model_repack_type(b, p->tensor, product);
    if (!p->buft && must) p->buft = plain;
    p->later = b->settle_later && p->buft == plain && usable; /* in another order numbers are rounded otherwise */
}

/* Notes a checked tensor and gives it its ggml twin. */
static strata_err place(struct model_loader *ld, const struct gguf_tensor *t, bool use, bool host,
                        enum model_product product, struct ggml_tensor **out, struct strata_errmsg *em) {
    for (size_t i = 0; i < ld->n_placed; i++) {
        struct model_placed *p = &ld->placed[i];
        if (p->data == t->data && strcmp(p->name, t->name) == 0 && p->tensor && (p->host == host || !use)) {
            if (out) *out = p->tensor; /* token_embd as the output of a tied model */
            if (!p->buft) choose_memory(ld, p, product);
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
    struct model_placed p = {.name = t->name, .tensor = g, .data = t->data, .bytes = (size_t)t->bytes, .host = host};
    if (g) choose_memory(ld, &p, product);
    ld->placed[ld->n_placed++] = p;
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
    bool tied = strcmp(full, "token_embd.weight") == 0;
    enum model_product product = rows ? MODEL_PRODUCT_NONE : tied ? MODEL_PRODUCT_AS_IT_IS : MODEL_PRODUCT_MATRIX;
    return claim_matrix(ld, full, (const uint64_t[]){n_in, n_out, 1},
                        rows ? MODEL_BACKEND_LOOK_UP : MODEL_BACKEND_MULTIPLY, product, required, out, em);
}

strata_err model_weights_stack(struct model_loader *ld, uint32_t layer, const char *name, uint64_t n_in, uint64_t n_out,
                               uint64_t n, bool required, struct ggml_tensor **out, struct strata_errmsg *em) {
    char full[NAME_MAX_LEN];
    full_name(full, layer, name, "");
    return claim_matrix(ld, full, (const uint64_t[]){n_in, n_out, n}, MODEL_BACKEND_MULTIPLY, MODEL_PRODUCT_AS_IT_IS,
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
        for (size_t i = 0; i < w->n_copies; i++) /* in an order of its own it cannot be read */
            if (w->copy[i].tensor == t && !ggml_backend_buffer_is_host(t->buffer)) data = w->copy[i].data;
        if (data && t->name[strlen(t->name) - 1] != '+' && !holds_numbers(t, data)) return t->name;
    }
    return NULL;
}

struct ggml_tensor *model_weights_join(struct model_loader *ld, const struct model_linear *const *part, int n) {
    const struct model_linear *a = part[0];
    struct model_placed all = {.bytes = 0};
    int64_t rows = 0;
    if (!ld->backend->in_place || ld->n_placed == ld->cap_placed || n > MODEL_PLACE_PARTS) return NULL;
    for (int i = 0; i < n; i++) {
        const struct model_linear *l = part[i];
        if (!l->w || l->scale || l->w->type != a->w->type || l->w->ne[0] != a->w->ne[0]) return NULL;
        const struct model_placed *p = placed_of(ld, l->w);
        if (i == 0) all = (struct model_placed){.name = p->name, .data = p->data, .buft = p->buft, .later = p->later};
        bool follows = p->buft ? model_place_is_tight(p) : p->data == all.data + all.bytes;
        if (p->buft != all.buft || p->later != all.later || !follows) return NULL;
        all.part[i] = l->w;
        all.bytes += p->bytes;
        rows += l->w->ne[1];
    }
    all.tensor = ggml_new_tensor_2d(ld->weights->ctx, a->w->type, a->w->ne[0], rows);
    ggml_format_name(all.tensor, "%s+", all.name);
    ld->placed[ld->n_placed++] = all;
    return all.tensor;
}

bool model_weights_are_joined(const struct ggml_tensor *all, const struct ggml_tensor *first) {
    return all && (!first || first->data == all->data);
}

bool model_weights_settle(struct model_weights *w, uint32_t n_threads, uint64_t bytes) {
    size_t before = w->n_settled;
    if (!model_weights_are_settled(w)) model_place_settle(w, n_threads, bytes);
    return w->n_settled > before;
}

bool model_weights_are_settled(const struct model_weights *w) {
    return w->n_settled == w->n_copies;
}

/* What is copied to a device is looked at on its way, and parts of a whole on their own. */
static bool stays_in_main_memory(const struct model_loader *ld, const struct model_placed *p) {
    return p->tensor && !p->part[0] && (p->host || ld->backend->in_place);
}

/* Every byte is looked at, and then copied, if it is: what is not copied is done with after a look. */
enum { PASSES = 2 };

/* Refuses weights with NaN or infinite values, by the tensor's name. */
static strata_err check_numbers(struct model_loader *ld, struct strata_errmsg *em) {
    if (ld->backend->dry) return STRATA_OK;
    struct model_numbers *t = malloc((ld->n_placed + 1) * sizeof *t);
    const struct model_numbers *bad = NULL;
    size_t n = 0;
    if (!t) return err_nomem(em, "a check of the weights");
    for (size_t i = 0; i < ld->n_placed; i++) {
        const struct model_placed *p = &ld->placed[i];
        bool copied = p->buft && !p->later;
        if (stays_in_main_memory(ld, p))
            t[n++] = (struct model_numbers){p->name, (uint32_t)p->tensor->type, p->data, p->bytes, copied ? 1 : PASSES};
    }
    strata_err rc = model_numbers_check(t, n, ld->backend->n_threads, &ld->progress, &bad, em);
    if (bad) rc = model_place_damaged(bad->name, em);
    free(t);
    return rc;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct model_placed *)a)->name, ((const struct model_placed *)b)->name);
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

static void begin_progress(struct model_loader *ld) {
    uint64_t n = 0;
    for (size_t i = 0; i < ld->n_placed; i++)
        if (stays_in_main_memory(ld, &ld->placed[i])) n += ld->placed[i].bytes;
    progress_begin(&ld->progress, ld->backend->dry ? NULL : ld->backend->progress, "loading weights", n);
    ld->progress.passes = PASSES;
}

strata_err model_weights_finish(struct model_loader *ld, struct strata_errmsg *em) {
    begin_progress(ld);
    strata_err rc = check_all_claimed(ld, em);
    if (!rc) rc = model_place_all(ld, em);
    if (!rc) rc = check_numbers(ld, em);
    if (!rc) rc = model_place_copies(ld, em);
    progress_end(&ld->progress);
    return rc;
}
