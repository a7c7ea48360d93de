/*
 * The one rule that says which parts and which tensors a layer range needs.
 *
 * Writer, checks, loader, planner and transfers all ask here, so that they cannot disagree, tied embeddings included:
 * a model without output.weight computes its logits with token_embd.weight, hence its last stage needs the embeddings
 * too.
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
};

/* Resolves PKG_RANGE_ALL and checks the bounds. `name` (a path) is for messages. *out is set only on success. */
strata_err pkg_select_resolve(struct pkg_range want, uint32_t layer_count, const char *name, struct pkg_range *out,
                              struct strata_errmsg *em);

bool pkg_select_is_first(const struct pkg_select *s);
bool pkg_select_is_last(const struct pkg_select *s);

/* Parts of a package. The metadata part is always needed. */
bool pkg_select_embeddings(const struct pkg_select *s);
bool pkg_select_output(const struct pkg_select *s);
bool pkg_select_layer(const struct pkg_select *s, uint32_t layer);
/* Whether the range needs an artifact, as far as its role tells: of schema 2's common parts, those may be left out
 * that hold no tensor of the range. Projectors belong to no range. */
bool pkg_select_artifact(const struct pkg_select *s, const struct pkg_artifact *a);

/* Whether the range needs a tensor of this name. */
bool pkg_select_tensor(const struct pkg_select *s, const char *name);

#endif
