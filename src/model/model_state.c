/* The state planes of a layer range. See model_state.h. Owns the memory, mapped or a device's, and the tensors over it.
 */
#include "model/model_state.h"

#include "base/checked.h"
#include "base/progress.h"
#include "model/arch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static uint64_t padded(uint64_t n, uint64_t align) {
    return (n + align - 1) / align * align;
}

static void dims_of(const struct arch *arch, const struct model_hparams *hp, uint32_t il,
                    struct model_plane_dims dims[MODEL_STATE_PLANES]) {
    const struct model_layer_dims *d = &hp->layer[il];
    dims[0] =
        (struct model_plane_dims){.width = d->n_head_kv * hp->head_dim_k, .part = hp->head_dim_k, .window = d->window};
    dims[1] =
        (struct model_plane_dims){.width = d->n_head_kv * hp->head_dim_v, .part = hp->head_dim_v, .window = d->window};
    if (arch->planes) arch->planes(hp, il, dims);
}

/* Rows of a ring: whole steps, so that graphs look at the same numbers of rows as in planes that keep everything. */
static uint32_t rows_of(const struct model_state *st, const struct model_plane_dims *d) {
    if (!d->window || d->window >= st->n_rows) return st->n_rows;
    uint64_t rows = padded((uint64_t)d->window + st->slack, MODEL_STATE_STEP);
    return rows < st->n_rows ? (uint32_t)rows : st->n_rows;
}

static enum ggml_type type_of(const struct model_state *st, const struct model_plane_dims *d) {
    return d->exact ? GGML_TYPE_F32 : st->type;
}

/* Widths and counts are bounded (model_hparams.h): a row is below 2^28 bytes, a plane below 2^61. */
static uint64_t plane_bytes(const struct model_state *st, const struct model_plane_dims *d, size_t align) {
    return padded((uint64_t)ggml_row_size(type_of(st, d), d->width) * rows_of(st, d) * st->n_slots, align);
}

/* A row of a quantized type is made of blocks, and what is read of it on its own must not begin or end inside one. */
static strata_err check_blocks(const struct model_state *st, const struct model_plane_dims *d, uint32_t il,
                               struct strata_errmsg *em) {
    uint32_t block = (uint32_t)ggml_blck_size(type_of(st, d));
    uint32_t part = d->part ? d->part : d->width;
    if (d->width % block == 0 && part % block == 0) return STRATA_OK;
    return err_set(em, STRATA_EINVAL,
                   "a cache of type %s holds blocks of %u numbers, and layer %u has heads of %u in rows of %u: choose "
                   "f16 or bf16",
                   ggml_type_name(st->type), (unsigned)block, (unsigned)il, (unsigned)part, (unsigned)d->width);
}

static strata_err total_bytes(struct model_state *st, const struct arch *arch, const struct model_hparams *hp,
                              size_t align, uint32_t n_pool, struct strata_errmsg *em) {
    strata_err rc;
    for (uint32_t il = st->range.first; il < st->range.end; il++) {
        struct model_plane_dims dims[MODEL_STATE_PLANES];
        dims_of(arch, hp, il, dims);
        for (int p = 0; p < MODEL_STATE_PLANES; p++) {
            if (!dims[p].width) continue;
            rc = check_blocks(st, &dims[p], il, em);
            if (rc) return rc;
            bool ring = rows_of(st, &dims[p]) < st->n_rows;
            st->pool_bytes += ring ? plane_bytes(st, &dims[p], align)
                                   : (uint64_t)ggml_row_size(type_of(st, &dims[p]), dims[p].width) * n_pool;
            if (!checked_add(st->bytes, plane_bytes(st, &dims[p], align), &st->bytes) || st->bytes > INT64_MAX)
                return err_set(em, STRATA_ELIMIT,
                               "%u sequences of %u positions are beyond any memory; lower the context or their number",
                               (unsigned)st->n_slots, (unsigned)st->n_rows);
        }
    }
    return STRATA_OK;
}

static strata_err make_tensors(struct model_state *st, const struct arch *arch, const struct model_hparams *hp,
                               struct strata_errmsg *em) {
    size_t n_layers = st->range.end - st->range.first;
    struct ggml_init_params params = {.mem_size = (MODEL_STATE_PLANES * n_layers + 1) * ggml_tensor_overhead(),
                                      .no_alloc = true};
    st->layer = calloc(n_layers, sizeof *st->layer);
    st->ctx = ggml_init(params);
    if (!st->layer || !st->ctx) return err_nomem(em, "the state's tables");
    for (size_t i = 0; i < n_layers; i++) {
        struct model_plane_dims dims[MODEL_STATE_PLANES];
        dims_of(arch, hp, st->range.first + (uint32_t)i, dims);
        for (int p = 0; p < MODEL_STATE_PLANES; p++) {
            if (!dims[p].width) continue;
            uint32_t rows = rows_of(st, &dims[p]);
            struct ggml_tensor *t =
                ggml_new_tensor_2d(st->ctx, type_of(st, &dims[p]), dims[p].width, (int64_t)rows * st->n_slots);
            /* A window that the context never exceeds is none. */
            uint32_t window = dims[p].window < st->n_rows ? dims[p].window : 0;
            st->layer[i][p] = (struct model_plane){.t = t, .rows = rows, .window = window};
        }
    }
    return STRATA_OK;
}

/* ---- memory ---- */

/* Main memory: zeros that become resident as they are written. */
static strata_err map_memory(struct model_state *st, const struct model_backend *backend, struct strata_errmsg *em) {
    char want[32];
    if (!st->bytes) return STRATA_OK;
    void *memory =
        mmap(NULL, (size_t)st->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return err_sys(em, STRATA_ENOMEM, errno,
                       "a context of %u positions needs %s for its state, which the system does not give; lower the "
                       "context length",
                       (unsigned)st->n_rows, progress_bytes(want, sizeof want, st->bytes));
    st->memory = memory;
    st->buffer = ggml_backend_dev_buffer_from_host_ptr(backend->dev, st->memory, (size_t)st->bytes, (size_t)st->bytes);
    if (!st->buffer) return err_nomem(em, "the state's buffer");
    char *at = st->memory;
    for (struct ggml_tensor *t = ggml_get_first_tensor(st->ctx); t; t = ggml_get_next_tensor(st->ctx, t)) {
        if (ggml_backend_tensor_alloc(st->buffer, t, at) != GGML_STATUS_SUCCESS)
            return err_set(em, STRATA_EINTERNAL, "ggml refused the state's memory");
        at += padded(ggml_nbytes(t), backend->alignment);
    }
    return STRATA_OK;
}

/* What a device wants for it: all of it, as its memory is not known to come page by page. */
static strata_err size_there(struct model_state *st, const struct model_backend *backend, struct strata_errmsg *em) {
    for (struct ggml_tensor *t = ggml_get_first_tensor(st->ctx); t; t = ggml_get_next_tensor(st->ctx, t))
        if (!model_backend_can_use(backend, t->type, MODEL_BACKEND_STORE, false))
            return err_set(em, STRATA_EUNSUPPORTED, "%s cannot write a cache of type %s; choose another type, f16 say",
                           ggml_backend_dev_name(backend->dev), ggml_type_name(t->type));
    st->bytes = st->pool_bytes = ggml_backend_alloc_ctx_tensors_from_buft_size(st->ctx, backend->buft);
    return STRATA_OK;
}

static strata_err take_memory(struct model_state *st, const struct model_backend *backend, struct strata_errmsg *em) {
    char want[32], have[32];
    uint64_t available = model_backend_memory_free(backend);
    if (!st->bytes) return STRATA_OK;
    if (st->bytes <= available) st->buffer = ggml_backend_alloc_ctx_tensors_from_buft(st->ctx, backend->buft);
    st->zeros = calloc(1, MODEL_STATE_ZEROS);
    if (!st->zeros) return err_nomem(em, "the state's tables");
    if (!st->buffer)
        return err_set(em, STRATA_ENOMEM,
                       "the KV cache of %u sequences of %u positions needs %s of the memory of %s, which has %s free; "
                       "lower the context length or the number of sequences",
                       (unsigned)st->n_slots, (unsigned)st->n_rows, progress_bytes(want, sizeof want, st->bytes),
                       ggml_backend_dev_name(backend->dev), progress_bytes(have, sizeof have, available));
    ggml_backend_buffer_clear(st->buffer, 0);
    return STRATA_OK;
}

/* Only to measure: addresses that are none of ours, and an empty buffer that tells on which side they would be. */
static strata_err pretend(struct model_state *st, const struct model_backend *backend, struct strata_errmsg *em) {
    uintptr_t at = backend->alignment;
    st->buffer = ggml_backend_buft_alloc_buffer(backend->buft, 0);
    if (!st->buffer) return err_nomem(em, "the state's buffer");
    for (struct ggml_tensor *t = ggml_get_first_tensor(st->ctx); t; t = ggml_get_next_tensor(st->ctx, t)) {
        t->data = (void *)at;
        t->buffer = st->buffer;
        at += padded(ggml_nbytes(t), backend->alignment);
    }
    return STRATA_OK;
}

strata_err model_state_init(struct model_state *out, const struct arch *arch, const struct model_hparams *hp,
                            struct pkg_range range, const struct model_backend *backend,
                            const struct model_state_options *opt, struct strata_errmsg *em) {
    struct model_state st = {.range = range,
                             .n_slots = opt->n_slots,
                             .n_rows = (uint32_t)padded(opt->n_ctx, MODEL_STATE_STEP),
                             .slack = opt->n_batch,
                             .type = opt->type};
    strata_err rc = total_bytes(&st, arch, hp, backend->alignment, opt->n_pool, em);
    if (!rc) rc = make_tensors(&st, arch, hp, em);
    if (!rc && !backend->in_place) rc = size_there(&st, backend, em);
    if (!rc && backend->dry)
        rc = pretend(&st, backend, em);
    else if (!rc)
        rc = backend->in_place ? map_memory(&st, backend, em) : take_memory(&st, backend, em);
    if (rc) goto out;
    *out = st;
out:
    if (rc) model_state_deinit(&st);
    return rc;
}

void model_state_deinit(struct model_state *st) {
    if (st->buffer) ggml_backend_buffer_free(st->buffer);
    if (st->ctx) ggml_free(st->ctx);
    if (st->memory) munmap(st->memory, (size_t)st->bytes);
    free(st->zeros);
    free(st->layer);
    *st = (struct model_state){.memory = NULL};
}

uint32_t model_state_visible(const struct model_plane *p, uint32_t end) {
    uint64_t n = padded(end, MODEL_STATE_STEP);
    return n < p->rows ? (uint32_t)n : p->rows;
}

/* ---- clearing ---- */

/* Rows from position *pos on, up to `end`, as far as they lie side by side: their place in the plane and, returned,
 * their bytes. Moves *pos behind them. */
static size_t next_run(const struct model_plane *p, uint32_t slot, uint32_t *pos, uint32_t end, size_t *offset) {
    uint32_t row = *pos % p->rows, n = p->rows - row;
    if (n > end - *pos) n = end - *pos;
    *offset = ((size_t)slot * p->rows + row) * p->t->nb[1];
    *pos += n;
    return n * p->t->nb[1];
}

static void zero(const struct model_state *st, const struct model_plane *p, size_t offset, size_t n) {
    if (st->memory) {
        memset((char *)p->t->data + offset, 0, n);
        return;
    }
    /* Not every device can fill its memory by itself. */
    for (size_t piece; n > 0; offset += piece, n -= piece) {
        piece = n < MODEL_STATE_ZEROS ? n : MODEL_STATE_ZEROS;
        ggml_backend_tensor_set(p->t, st->zeros, offset, piece);
    }
}

static void clear_mapped(const struct model_state *st, const struct model_plane *p, uint32_t slot) {
    enum { PAGE = 4096 };
    uint32_t pos = 0;
    size_t offset, n = next_run(p, slot, &pos, p->rows, &offset);
    /* Whole pages go back to the system; the ends, which neighbours share, are overwritten. */
    char *from = (char *)p->t->data + offset, *end = from + n;
    char *a = (char *)padded((uintptr_t)from, PAGE), *b = (char *)((uintptr_t)end / PAGE * PAGE);
    if (a >= b || madvise(a, (size_t)(b - a), MADV_DONTNEED) != 0) a = b = end;
    zero(st, p, offset, (size_t)(a - from));
    zero(st, p, offset + (size_t)(b - from), (size_t)(end - b));
}

void model_state_clear(struct model_state *st, uint32_t slot, uint32_t end) {
    for (size_t i = 0; i < st->range.end - st->range.first; i++)
        for (int k = 0; k < MODEL_STATE_PLANES; k++) {
            const struct model_plane *p = &st->layer[i][k];
            uint32_t pos = 0;
            size_t offset;
            if (!p->t) continue;
            if (st->memory) {
                clear_mapped(st, p, slot);
            } else {
                size_t n = next_run(p, slot, &pos, end < p->rows ? end : p->rows, &offset);
                zero(st, p, offset, n);
            }
        }
}

void model_state_wipe(struct model_state *st, uint32_t slot, uint32_t first, uint32_t end) {
    for (size_t i = 0; i < st->range.end - st->range.first; i++)
        for (int k = 0; k < MODEL_STATE_PLANES; k++) {
            const struct model_plane *p = &st->layer[i][k];
            for (uint32_t pos = first; p->t && pos < end;) {
                size_t offset, n = next_run(p, slot, &pos, end, &offset);
                zero(st, p, offset, n);
            }
        }
}

/* ---- rows ---- */

uint32_t model_state_needed_from(const struct model_plane *p, uint32_t first, uint32_t end) {
    uint32_t back = p->window ? p->window - 1 : p->rows;
    uint32_t from = end > back ? end - back : 0;
    return p->rows && from > first ? from : first;
}

char *model_state_save_rows(const struct model_plane *p, uint32_t slot, uint32_t from, uint32_t end, char *out) {
    for (uint32_t pos = from; pos < end;) {
        size_t offset, n = next_run(p, slot, &pos, end, &offset);
        ggml_backend_tensor_get(p->t, out, offset, n);
        out += n;
    }
    return out;
}

const char *model_state_load_rows(const struct model_plane *p, uint32_t slot, uint32_t from, uint32_t end,
                                  const char *in) {
    for (uint32_t pos = from; pos < end;) {
        size_t offset, n = next_run(p, slot, &pos, end, &offset);
        ggml_backend_tensor_set(p->t, in, offset, n);
        in += n;
    }
    return in;
}

uint64_t model_state_rows_bytes(const struct model_state *st, uint32_t first, uint32_t end) {
    uint64_t n = 0;
    for (size_t i = 0; i < st->range.end - st->range.first; i++)
        for (int k = 0; k < MODEL_STATE_PLANES; k++) {
            const struct model_plane *p = &st->layer[i][k];
            if (p->t) n += (uint64_t)(end - model_state_needed_from(p, first, end)) * p->t->nb[1];
        }
    return n;
}

uint32_t model_state_whole_from(const struct model_state *st, uint32_t first, uint32_t end) {
    for (size_t i = 0; i < st->range.end - st->range.first; i++)
        for (int k = 0; k < MODEL_STATE_PLANES; k++) {
            const struct model_plane *p = &st->layer[i][k];
            if (p->t && model_state_needed_from(p, first, end) > first) return end;
        }
    return first;
}

void model_state_save(const struct model_state *st, uint32_t slot, uint32_t first, uint32_t end, void *out) {
    char *at = out;
    for (size_t i = 0; i < st->range.end - st->range.first; i++)
        for (int k = 0; k < MODEL_STATE_PLANES; k++) {
            const struct model_plane *p = &st->layer[i][k];
            if (p->t) at = model_state_save_rows(p, slot, model_state_needed_from(p, first, end), end, at);
        }
}

void model_state_load(struct model_state *st, uint32_t slot, uint32_t first, uint32_t end, const void *in) {
    const char *at = in;
    for (size_t i = 0; i < st->range.end - st->range.first; i++)
        for (int k = 0; k < MODEL_STATE_PLANES; k++) {
            const struct model_plane *p = &st->layer[i][k];
            if (p->t) at = model_state_load_rows(p, slot, model_state_needed_from(p, first, end), end, at);
        }
}
