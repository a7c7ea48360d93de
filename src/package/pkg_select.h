/*
 * The one rule that says which parts and which tensors a layer range needs.
 *
 * Writer, checks, loader, planner and transfers all ask here, so that they cannot disagree. Beside the first stage, the
 * token embeddings are needed by
 *   - the last stage of a tied model: without output.weight, logits are computed with token_embd.weight;
 *   - a stage that holds an MTP (multi-token prediction) layer without embeddings of its own, that is, a layer with
 *     blk.N.nextn.* tensors but no blk.N.nextn.embed_tokens.weight.
 * Both facts come from tensor names alone.
 *
 * Life cycle: pkg_select_init, pkg_select_note for every tensor name of the model (or at least, before a question about
 * a range is asked, for those of its layers and for output.weight), then set `range` and ask.
 */
#ifndef PKG_SELECT_H
#define PKG_SELECT_H

#include "base/err.h"
#include "package/pkg_class.h"
#include "package/pkg_manifest.h"

#include <stdbool.h>
#include <stdint.h>

/* Half-open. PKG_RANGE_ALL as `end` means "to the last layer". */
struct pkg_range {
    uint32_t first;
    uint32_t end;
};
#define PKG_RANGE_ALL UINT32_MAX

struct pkg_select {
    struct pkg_range range; /* resolved: first < end <= layer_count */
    uint32_t layer_count;
    bool tied; /* the model has no output.weight; matters for the last stage only */
    /* Of the last 64 layers, the last one first: which are MTP layers, and which of those have own embeddings. */
    uint64_t mtp, mtp_own;
};

/* A selection of no range, of a model of which nothing is known yet: tied, no MTP layers. */
void pkg_select_init(struct pkg_select *s, uint32_t layer_count);
/* Takes notice of a tensor that the model has. The order does not matter. */
void pkg_select_note(struct pkg_select *s, const char *name);
/* Whether a layer is known to be an MTP layer; and whether it is one that uses token_embd.weight. */
bool pkg_select_is_mtp(const struct pkg_select *s, uint32_t layer);
bool pkg_select_borrows(const struct pkg_select *s, uint32_t layer);

/* Resolves PKG_RANGE_ALL and checks the bounds. `name` (a path) is for messages. *out is set only on success. */
strata_err pkg_select_resolve(struct pkg_range want, uint32_t layer_count, const char *name, struct pkg_range *out,
                              struct strata_errmsg *em);

bool pkg_select_is_first(const struct pkg_select *s);
bool pkg_select_is_last(const struct pkg_select *s);

/* Parts of a package. The metadata part is always needed. */
bool pkg_select_embeddings(const struct pkg_select *s);
bool pkg_select_output(const struct pkg_select *s);
bool pkg_select_layer(const struct pkg_select *s, uint32_t layer);
/* Whether the range needs an artifact, as far as its role tells. For a part of schema 2 the carrier decides: see
 * pkg_carrier_select, which tells for both schemas. Projectors belong to no range. */
bool pkg_select_artifact(const struct pkg_select *s, const struct pkg_artifact *a);

/* Whether the range needs a tensor of this name. */
bool pkg_select_tensor(const struct pkg_select *s, const char *name);

#endif
