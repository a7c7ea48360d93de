/* The state planes of a layer range. See model_state.h. Owns the mapped memory and the tensors over it. */
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
                               const struct model_backend *backend, struct strata_errmsg *em) {
    size_t n_layers = st->range.end - st->range.first;
    struct ggml_init_params params = {.mem_size = (MODEL_STATE_PLANES * n_layers + 1) * ggml_tensor_overhead(),
                                      .no_alloc = true};
    st->layer = calloc(n_layers, sizeof *st->layer);
    st->ctx = ggml_init(params);
    if (st->bytes && !backend->dry)
        st->buffer =
            ggml_backend_dev_buffer_from_host_ptr(backend->dev, st->memory, (size_t)st->bytes, (size_t)st->bytes);
    if (!st->layer || !st->ctx || (st->memory && !st->buffer)) return err_nomem(em, "the state's tables");
    /* Only to measure: any address that is none of ours. */
    uintptr_t at = backend->dry ? backend->alignment : (uintptr_t)st->memory;
    for (size_t i = 0; i < n_layers; i++) {
        struct model_plane_dims dims[MODEL_STATE_PLANES];
        dims_of(arch, hp, st->range.first + (uint32_t)i, dims);
        for (int p = 0; p < MODEL_STATE_PLANES; p++) {
            if (!dims[p].width) continue;
            uint32_t rows = rows_of(st, &dims[p]);
            struct ggml_tensor *t =
                ggml_new_tensor_2d(st->ctx, type_of(st, &dims[p]), dims[p].width, (int64_t)rows * st->n_slots);
            if (backend->dry)
                t->data = (void *)at;
            else if (ggml_backend_tensor_alloc(st->buffer, t, (void *)at) != GGML_STATUS_SUCCESS)
                return err_set(em, STRATA_EINTERNAL, "ggml refused the state's memory");
            at += plane_bytes(st, &dims[p], backend->alignment);
            /* A window that the context never exceeds is none. */
            uint32_t window = dims[p].window < st->n_rows ? dims[p].window : 0;
            st->layer[i][p] = (struct model_plane){.t = t, .rows = rows, .window = window};
        }
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
    char want[32];
    strata_err rc = total_bytes(&st, arch, hp, backend->alignment, opt->n_pool, em);
    if (rc) goto out;
    if (st.bytes && !backend->dry) {
        st.memory =
            mmap(NULL, (size_t)st.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (st.memory == MAP_FAILED) {
            int errnum = errno;
            st.memory = NULL;
            rc = err_sys(em, STRATA_ENOMEM, errnum,
                         "a context of %u positions needs %s for its state, which the system does not give; lower the "
                         "context length",
                         (unsigned)opt->n_ctx, progress_bytes(want, sizeof want, st.bytes));
            goto out;
        }
    }
    rc = make_tensors(&st, arch, hp, backend, em);
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
    free(st->layer);
    *st = (struct model_state){.memory = NULL};
}

uint32_t model_state_visible(const struct model_plane *p, uint32_t end) {
    uint64_t n = padded(end, MODEL_STATE_STEP);
    return n < p->rows ? (uint32_t)n : p->rows;
}

static char *row_of(const struct model_plane *p, uint32_t slot, uint32_t pos) {
    return (char *)p->t->data + ((uint64_t)slot * p->rows + pos % p->rows) * p->t->nb[1];
}

void model_state_clear(struct model_state *st, uint32_t slot) {
    enum { PAGE = 4096 };
    for (size_t i = 0; i < st->range.end - st->range.first; i++)
        for (int k = 0; k < MODEL_STATE_PLANES; k++) {
            const struct model_plane *p = &st->layer[i][k];
            if (!p->t) continue;
            /* Whole pages go back to the system; the ends, which neighbours share, are overwritten. */
            char *from = row_of(p, slot, 0), *end = from + (uint64_t)p->rows * p->t->nb[1];
            char *a = (char *)padded((uintptr_t)from, PAGE), *b = (char *)((uintptr_t)end / PAGE * PAGE);
            if (a >= b || madvise(a, (size_t)(b - a), MADV_DONTNEED) != 0) a = b = end;
            memset(from, 0, (size_t)(a - from));
            memset(b, 0, (size_t)(end - b));
        }
}

void model_state_wipe(struct model_state *st, uint32_t slot, uint32_t first, uint32_t end) {
    for (size_t i = 0; i < st->range.end - st->range.first; i++)
        for (int k = 0; k < MODEL_STATE_PLANES; k++) {
            const struct model_plane *p = &st->layer[i][k];
            for (uint32_t pos = first; p->t && pos < end; pos++) memset(row_of(p, slot, pos), 0, p->t->nb[1]);
        }
}

/* ---- rows ---- */

uint32_t model_state_needed_from(const struct model_plane *p, uint32_t first, uint32_t end) {
    uint32_t back = p->window ? p->window - 1 : p->rows;
    uint32_t from = end > back ? end - back : 0;
    return p->rows && from > first ? from : first;
}

/* Rows from position *pos on, up to `end`, as far as they lie side by side: their place in the plane and, returned,
 * their bytes. Moves *pos behind them. */
static size_t next_run(const struct model_plane *p, uint32_t slot, uint32_t *pos, uint32_t end, size_t *offset) {
    uint32_t row = *pos % p->rows, n = p->rows - row;
    if (n > end - *pos) n = end - *pos;
    *offset = ((size_t)slot * p->rows + row) * p->t->nb[1];
    *pos += n;
    return n * p->t->nb[1];
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
