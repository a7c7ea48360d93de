/*
 * A model as the package tools see it: its metadata, and every tensor with its class and layer.
 *
 * Planner, writer, validators and inference of defaults all work on this list, so that they agree on what belongs
 * where. Everything is a view into the source it was made from, which must outlive it.
 * Life cycle: pkg_inventory_init (or pkg_inventory_from_model), pkg_inventory_deinit; a zeroed struct is empty.
 */
#ifndef PKG_INVENTORY_H
#define PKG_INVENTORY_H

#include "gguf/gguf_index.h"
#include "gguf/gguf_source.h"
#include "package/pkg_class.h"
#include "package/pkg_model.h"

#include <stdbool.h>

struct pkg_tensor {
    const struct gguf_tensor *t; /* view */
    enum pkg_class class;
    uint32_t layer; /* of PKG_CLASS_LAYER */
};

struct pkg_inventory {
    const struct gguf_reader *meta; /* view */
    struct pkg_tensor *tensors;     /* owned; in source order */
    size_t n_tensors;
    uint32_t layer_count; /* highest layer index + 1, MTP layers included; 0 when there is none */
    uint32_t mtp_layers;  /* how many of the last layers hold NextN (multi-token prediction) tensors */
    bool tied;            /* no output.weight: logits are computed with token_embd.weight */
    struct gguf_index index;
};

strata_err pkg_inventory_init(struct pkg_inventory *inv, const struct gguf_source *src, struct strata_errmsg *em);
/* Of the tensors that an opened model (package or file) shows for its range. */
strata_err pkg_inventory_from_model(struct pkg_inventory *inv, const struct pkg_model *m, struct strata_errmsg *em);
void pkg_inventory_deinit(struct pkg_inventory *inv);

/* NULL when there is no such tensor. Constant time. */
const struct pkg_tensor *pkg_inventory_find(const struct pkg_inventory *inv, const char *name);

/* Whether a layer holds NextN (multi-token prediction) tensors: a name blk.<layer>.nextn.*. */
bool pkg_inventory_is_mtp_layer(const struct pkg_inventory *inv, uint32_t layer);

/* "<architecture>.<key>" into out, e.g. "llama.block_count"; fails without general.architecture or when too long. */
strata_err pkg_inventory_key(const struct pkg_inventory *inv, const char *key, char *out, size_t cap,
                             struct strata_errmsg *em);
/* <architecture>.embedding_length, which must be there and above 0. */
strata_err pkg_inventory_width(const struct pkg_inventory *inv, uint32_t *width, struct strata_errmsg *em);

#endif
