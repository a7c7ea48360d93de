/*
 * Maps, copies and uploads the weights of a layer range. See model_place.h.
 *
 * Owns nothing: the buffers are those of struct model_weights. Writes to no mapped page.
 */
#include "model/model_place.h"

#include "base/memory.h"
#include "base/pool.h"
#include "model/model_numbers.h"
#include "model/model_upload.h"
#include "package/pkg_class.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Two tensors farther apart than this get buffers of their own, so that a buffer spans about one mapped part. */
enum { SPAN_GAP = 1 << 16 };

bool model_place_aligned(const struct model_loader *ld, const uint8_t *data) {
    return (uintptr_t)data % ld->backend->alignment == 0;
}

strata_err model_place_damaged(const char *name, struct strata_errmsg *em) {
    return err_set(em, STRATA_EFORMAT,
                   "tensor %s holds values that are no numbers (NaN or infinite): the file is damaged", name);
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

/* The whole pages of a part of the file that is not needed any more: they may leave this process. */
static void drop_pages(const uint8_t *data, size_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)data + page - 1) & ~(page - 1), end = ((uintptr_t)data + bytes) & ~(page - 1);
    if (begin < end) madvise((void *)begin, end - begin, MADV_DONTNEED);
}

/* Whether it lies in the file's pages when the range is open. Several are seen as one only where they lie at last. */
static bool is_mapped(const struct model_placed *p) {
    return p->tensor && (!p->buft || (p->later && !p->part[0]));
}

static strata_err put(struct ggml_tensor *t, ggml_backend_buffer_t buffer, void *at, struct strata_errmsg *em) {
    t->buffer = NULL; /* it may have had another place */
    t->data = NULL;
    if (ggml_backend_tensor_alloc(buffer, t, at) == GGML_STATUS_SUCCESS) return STRATA_OK;
    return err_set(em, STRATA_EINTERNAL, "ggml refused the place of tensor %s", t->name);
}

/* Wraps the mapped pages from the first to the last of placed[begin..end) and puts the tensors that stay there. */
static strata_err map_span(struct model_loader *ld, size_t begin, size_t end, struct strata_errmsg *em) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = (uintptr_t)ld->placed[begin].data & ~(page - 1), last = 0;
    for (size_t i = begin; i < end; i++) {
        uintptr_t stop = (uintptr_t)ld->placed[i].data + ld->placed[i].bytes;
        if (stop > last) last = stop;
    }
    size_t size = last - first;
    /* From the disk they come while several threads look at the numbers, whose faults map the pages as well: sooner
     * than if they were asked to be present at once, which one thread would wait for. Advice: failure is no error. */
    madvise((void *)first, size, MADV_WILLNEED);
    strata_err rc = add_buffer(
        ld->weights, ggml_backend_dev_buffer_from_host_ptr(ld->backend->host_dev, (void *)first, size, size), em);
    if (rc) return rc;
    ggml_backend_buffer_t buffer = ld->weights->buffers[ld->weights->n_buffers - 1];
    for (size_t i = begin; i < end && !rc; i++) {
        const struct model_placed *p = &ld->placed[i];
        if (is_mapped(p)) rc = put(p->tensor, buffer, (void *)(uintptr_t)p->data, em);
    }
    return rc;
}

/* ---- copies ---- */

/*
 * Large pages for what every token reads from end to end: with small ones the processor walks page tables for a good
 * part of that time. Copies begin at the border of one and end inside one, so that no part of them lies in small pages.
 */

/* Bytes to take for `total` bytes of copies. */
static size_t with_borders(size_t total) {
    return total < MEMORY_LARGE_PAGE ? total : total + 2 * MEMORY_LARGE_PAGE;
}

/* Where copies begin in a buffer for `total` bytes of them. That there are no large pages is no error. */
static char *begin_of_copies(ggml_backend_buffer_t buffer, size_t total) {
    char *at = ggml_backend_buffer_get_base(buffer);
    if (total < MEMORY_LARGE_PAGE) return at;
    at += GGML_PAD((uintptr_t)at, MEMORY_LARGE_PAGE) - (uintptr_t)at;
    madvise(at, GGML_PAD(total, MEMORY_LARGE_PAGE), MADV_HUGEPAGE);
    return at;
}

static size_t padded_size(const struct model_placed *p) {
    size_t align = ggml_backend_buft_get_alignment(p->buft);
    return GGML_PAD(ggml_backend_buft_get_alloc_size(p->buft, p->tensor), align);
}

bool model_place_is_tight(const struct model_placed *p) {
    return padded_size(p) == p->bytes;
}

/* The next place in a buffer of copies. */
struct spot {
    ggml_backend_buffer_t buffer;
    char *at;
};

/* A view of several matrices, and these below it. */
static strata_err put_joined(struct spot *s, const struct model_placed *p, struct strata_errmsg *em) {
    strata_err rc = put(p->tensor, s->buffer, s->at, em);
    for (int i = 0; i < MODEL_PLACE_PARTS && p->part[i] && !rc; i++) {
        rc = put(p->part[i], s->buffer, s->at, em);
        s->at += ggml_nbytes(p->part[i]); /* tight: see model_weights_join */
    }
    return rc;
}

static void note_copy(struct model_weights *w, const struct model_placed *p) {
    struct model_copy c = {.tensor = p->tensor,
                           .data = p->data,
                           .buffer = p->tensor->buffer,
                           .at = p->tensor->data,
                           .later = p->later,
                           .layer = MODEL_NO_LAYER};
    uint32_t layer;
    if (pkg_class_of(p->name, &layer) == PKG_CLASS_LAYER) c.layer = layer;
    w->copy[w->n_copies++] = c;
}

/* Gives the tensors of one buffer type, from placed[first] on, their places, and notes what is to be copied there. */
static strata_err reserve(struct model_loader *ld, size_t first, struct strata_errmsg *em) {
    struct model_weights *w = ld->weights;
    ggml_backend_buffer_type_t buft = ld->placed[first].buft;
    size_t total = 0;
    for (size_t i = first; i < ld->n_placed; i++)
        if (ld->placed[i].buft == buft && !ld->placed[i].part[0]) total += padded_size(&ld->placed[i]);
    strata_err rc = add_buffer(w, ggml_backend_buft_alloc_buffer(buft, with_borders(total)), em);
    if (rc) return rc;
    struct spot s = {.buffer = w->buffers[w->n_buffers - 1]};
    s.at = begin_of_copies(s.buffer, total);
    for (size_t i = first; i < ld->n_placed && !rc; i++)
        if (ld->placed[i].buft == buft && ld->placed[i].part[0]) rc = put_joined(&s, &ld->placed[i], em);
    for (size_t i = first; i < ld->n_placed && !rc; i++) {
        const struct model_placed *p = &ld->placed[i];
        if (p->buft != buft || p->part[0]) continue;
        if (!p->tensor->buffer) { /* not a part */
            rc = put(p->tensor, s.buffer, s.at, em);
            s.at += padded_size(p);
        }
        note_copy(w, p);
    }
    return rc;
}

/* Those that are made while the range is opened come first. */
static int in_order_of_making(const void *a, const void *b) {
    const struct model_copy *x = a, *y = b;
    if (x->later != y->later) return x->later - y->later;
    if (x->layer != y->layer && x->later) return x->layer < y->layer ? -1 : 1;
    return (x->data > y->data) - (x->data < y->data);
}

/* All of placed[0..n_placed) that are to be copied. */
static strata_err reserve_copies(struct model_loader *ld, struct strata_errmsg *em) {
    struct model_weights *w = ld->weights;
    strata_err rc = STRATA_OK;
    w->copy = calloc(ld->n_placed ? ld->n_placed : 1, sizeof *w->copy);
    if (!w->copy) return err_nomem(em, "the table of weights");
    for (size_t i = 0; i < ld->n_placed && !rc; i++)
        if (ld->placed[i].buft && !ld->placed[i].tensor->buffer) rc = reserve(ld, i, em);
    qsort(w->copy, w->n_copies, sizeof *w->copy, in_order_of_making);
    return rc;
}

/* The file's pages of what was copied are not needed any more: they leave this process at once, so that no more than a
 * few tensors are there twice. */
static strata_err copy_one(void *user, size_t i, struct strata_errmsg *em) {
    struct model_loader *ld = user;
    const struct model_copy *c = &ld->weights->copy[i];
    size_t bytes = ggml_nbytes(c->tensor);
    (void)em;
    ggml_backend_tensor_set(c->tensor, c->data, 0, bytes);
    drop_pages(c->data, bytes);
    progress_add(&ld->progress, bytes);
    return STRATA_OK;
}

strata_err model_place_copies(struct model_loader *ld, struct strata_errmsg *em) {
    struct model_weights *w = ld->weights;
    while (w->n_settled < w->n_copies && !w->copy[w->n_settled].later) w->n_settled++;
    return pool_run(ld->backend->n_threads, w->n_settled, copy_one, ld, em);
}

/* ---- copies that wait ---- */

/* Threads take pieces of this size: no two of them then ask for the same large page. */
enum { PIECE_BYTES = 2 << 20 };

/* Pieces of the copies that wait, from one on. */
struct step {
    const struct model_copy *copy;
    size_t first;
};

static size_t count_pieces(const struct model_copy *c) {
    return (ggml_nbytes(c->tensor) + PIECE_BYTES - 1) / PIECE_BYTES;
}

static size_t piece_bytes(const struct model_copy *c, size_t i) {
    size_t left = ggml_nbytes(c->tensor) - i * PIECE_BYTES;
    return left < PIECE_BYTES ? left : PIECE_BYTES;
}

static strata_err copy_piece(void *user, size_t i, struct strata_errmsg *em) {
    const struct step *s = user;
    const struct model_copy *c = s->copy;
    (void)em;
    for (i += s->first; i >= count_pieces(c); c++) i -= count_pieces(c);
    memcpy(c->at + i * PIECE_BYTES, c->data + i * PIECE_BYTES, piece_bytes(c, i));
    return STRATA_OK;
}

/* How many of the next pieces have that many bytes together, or more. */
static size_t next_pieces(const struct model_weights *w, uint64_t bytes) {
    size_t n = 0, seen = 0;
    uint64_t sum = 0;
    for (const struct model_copy *c = w->copy + w->n_settled; c < w->copy + w->n_copies && sum < bytes; c++)
        for (size_t i = 0; i < count_pieces(c) && sum < bytes; i++) {
            if (seen++ < w->n_pieces) continue;
            sum += piece_bytes(c, i);
            n++;
        }
    return n;
}

/* Lets the next layer's tensors lie where their copies are, once all of these are made. */
static bool settle_layer(struct model_weights *w) {
    struct model_copy *c = &w->copy[w->n_settled];
    size_t n = 0, pieces = 0;
    for (; w->n_settled + n < w->n_copies && c[n].layer == c->layer; n++) pieces += count_pieces(&c[n]);
    if (n == 0 || w->n_pieces < pieces) return false;
    for (size_t i = 0; i < n; i++) {
        c[i].tensor->buffer = c[i].buffer; /* both in main memory, which keeps no account of its tensors */
        c[i].tensor->data = c[i].at;
        drop_pages(c[i].data, ggml_nbytes(c[i].tensor));
    }
    w->n_settled += n;
    w->n_pieces -= pieces;
    return true;
}

void model_place_settle(struct model_weights *w, uint32_t n_threads, uint64_t bytes) {
    struct step s = {.copy = w->copy + w->n_settled, .first = w->n_pieces};
    size_t n = next_pieces(w, bytes);
    pool_run(n_threads, n, copy_piece, &s, NULL); /* no piece can fail */
    w->n_pieces += n;
    while (settle_layer(w)) {
    }
}

/* ---- the rest ---- */

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
    return STRATA_OK;
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
        const struct model_numbers one = {p->name, (uint32_t)p->tensor->type, p->data, p->bytes, 1}, *bad = NULL;
        madvise((void *)((uintptr_t)p->data & ~(page - 1)), p->bytes, MADV_WILLNEED);
        rc = model_numbers_check(&one, 1, ld->backend->n_threads, NULL, &bad, em);
        if (bad) rc = model_place_damaged(p->name, em);
        if (!rc) model_upload_tensor(&u, p->tensor, p->data, p->bytes);
        drop_pages(p->data, p->bytes);
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
    ggml_backend_buffer_type_t plain = ggml_backend_dev_buffer_type(ld->backend->host_dev);
    for (size_t i = 0; i < ld->n_placed; i++) {
        const struct model_placed *p = &ld->placed[i];
        if (!p->tensor) continue;
        bool both = on_both_sides(ld, i);
        if (both) w->both_bytes += p->bytes;
        if (i >= n_mapped) w->uploaded_bytes += p->bytes;
        if (p->part[0]) continue;
        if (!both) w->bytes += p->bytes;
        if (p->buft) *(p->buft == plain ? &w->copied_bytes : &w->repacked_bytes) += p->bytes;
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

strata_err model_place_all(struct model_loader *ld, struct strata_errmsg *em) {
    bool in_place = ld->backend->in_place;
    size_t n_mapped = ld->n_placed;
    qsort(ld->placed, ld->n_placed, sizeof *ld->placed, host_first);
    while (!in_place && n_mapped > 0 && !ld->placed[n_mapped - 1].host) n_mapped--;
    count(ld, n_mapped);
    if (ld->backend->dry) return pretend(ld, n_mapped, em);
    strata_err rc = reserve_copies(ld, em);
    if (!rc) rc = map_all(ld, n_mapped, em); /* also what leaves its place in a copy empty for now */
    /* An upload takes memory for all that have none. */
    if (!rc && !in_place) rc = upload(ld, n_mapped, em);
    return rc;
}
