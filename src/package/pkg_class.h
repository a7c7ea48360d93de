/*
 * Tensor classes: which part of a layer package a tensor belongs to, decided by its name alone.
 *
 * One table for everyone: writer, checks, selection, inspection and planning all ask here.
 * Schema 1 gives every name that matches nothing else the class METADATA, which is copied into every part
 * (rope_freqs.weight is the usual one); the other classes are owned by exactly one part.
 */
#ifndef PKG_CLASS_H
#define PKG_CLASS_H

#include <stdbool.h>
#include <stdint.h>

enum pkg_class {
    PKG_CLASS_METADATA,   /* replicated in every part */
    PKG_CLASS_EMBEDDING,  /* shared/embeddings.gguf */
    PKG_CLASS_LAYER,      /* layers/layer-NNNNN.gguf */
    PKG_CLASS_FINAL_NORM, /* shared/output.gguf */
    PKG_CLASS_OUTPUT,     /* shared/output.gguf */
    PKG_CLASS_COUNT
};

/* The highest layer index that a five-digit file name can hold. */
enum { PKG_CLASS_MAX_LAYER = 99999 };

/*
 * The class of a tensor. *layer (may be NULL) is set for PKG_CLASS_LAYER only. An index above PKG_CLASS_MAX_LAYER
 * makes no layer name, so such a tensor is METADATA.
 */
enum pkg_class pkg_class_of(const char *name, uint32_t *layer);

/* "layer", "embedding", "final_norm", "output" or "metadata". */
const char *pkg_class_name(enum pkg_class c);

/* Whether exactly one part of a package owns tensors of this class. */
bool pkg_class_is_owned(enum pkg_class c);

#endif
