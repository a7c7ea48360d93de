/*
 * Where the weights of a range lie.
 *
 * What is read whole for every token is copied into memory of our own where that is faster (see model_repack.h): with
 * large pages, which the file's pages rarely are, and with the matrices that are multiplied with the same vector side
 * by side. Copies that only move numbers may wait, with their tensors in the file's pages until then. All else stays in
 * the mapped file. A device with memory of its own gets a copy of what it computes with, once.
 *
 * Used by model_weights.c alone. While a range is opened: model_place_all when everything is claimed, then, when the
 * numbers were looked at, model_place_copies. Copies that wait have their places by then, and are made by
 * model_place_settle.
 */
#ifndef MODEL_PLACE_H
#define MODEL_PLACE_H

#include "model/model_repack.h"
#include "model/model_weights.h"

enum { MODEL_PLACE_PARTS = 3 };

struct model_placed {
    const char *name;
    struct ggml_tensor *tensor; /* NULL: claimed, not used */
    const uint8_t *data;        /* in the mapped file */
    size_t bytes;
    bool host;                       /* stays in main memory though the device has memory of its own */
    ggml_backend_buffer_type_t buft; /* of the memory that it is copied to; NULL: stays in the file's pages */
    bool later;                      /* its copy waits; until then it is in the file's pages */
    /* Of a second view of tensors that are listed on their own: these, in the order of their rows. */
    struct ggml_tensor *part[MODEL_PLACE_PARTS];
};

/* A tensor with a place in memory of our own, and its bytes in the file. */
struct model_copy {
    struct ggml_tensor *tensor;
    const uint8_t *data;
    ggml_backend_buffer_t buffer; /* the place */
    char *at;
    bool later;
    uint32_t layer; /* MODEL_NO_LAYER: outside the layers */
};

/* Whether ggml can work with bytes at that place of the file. */
bool model_place_aligned(const struct model_loader *ld, const uint8_t *data);
/* Whether p takes its own size in the memory that it is copied to, so that its rows can go on with those of another
 * matrix. */
bool model_place_is_tight(const struct model_placed *p);

/* Gives all tensors their places, asks the system for the file's pages, counts, and uploads. */
strata_err model_place_all(struct model_loader *ld, struct strata_errmsg *em);
/* Fills the memory of those that are copied, and lets their pages of the file go; of all but those that wait. */
strata_err model_place_copies(struct model_loader *ld, struct strata_errmsg *em);
/* Fills `bytes` more of the memory of those that wait. */
void model_place_settle(struct model_weights *w, uint32_t n_threads, uint64_t bytes);

/* "tensor ... holds values that are no numbers": STRATA_EFORMAT. */
strata_err model_place_damaged(const char *name, struct strata_errmsg *em);

#endif
