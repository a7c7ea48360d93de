/* What a file of schema 1, a fragment or a stage's slice, holds, and says of itself in its skippy.slice.* keys. */
#ifndef PKG_SLICE_H
#define PKG_SLICE_H

#include "gguf/gguf_reader.h"
#include "package/pkg_manifest.h"
#include "package/pkg_select.h"

struct pkg_slice {
    uint32_t stage_index;
    struct pkg_range range; /* may be empty: shared parts hold no layer */
    bool embeddings, output;
    bool tokens_only; /* of the embeddings, only token_embd.weight: what a stage other than the first needs */
};

/* Whether a slice holds a tensor; one of class METADATA is in every slice. layer: as pkg_class_of gives it. */
bool pkg_slice_holds(const struct pkg_slice *s, const char *name, enum pkg_class class, uint32_t layer);

/*
 * Reads the keys. *complete is false when one is missing (older packages have none), and *out is not set then.
 * EFORMAT when a key is of the wrong kind, or the range is no range.
 */
strata_err pkg_slice_read(const struct gguf_reader *r, struct pkg_slice *out, bool *complete, struct strata_errmsg *em);

/* Whether that is what the fragment of an artifact must say. Which number it calls its stage does not matter. */
bool pkg_slice_fits(const struct pkg_slice *s, const struct pkg_artifact *a);

#endif
