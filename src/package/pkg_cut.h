/*
 * The cut of a model into files: which tensors each file holds and what its metadata says, before a byte is written.
 *
 * A piece is one file to be. The pieces of a schema-1 package, of stage files and of a single slice differ only in
 * their slices: one rule (pkg_slice_holds) says which tensors a slice holds. The inventory must outlive the cut.
 * Life cycle: one of the pkg_cut_... makers, pkg_cut_deinit.
 */
#ifndef PKG_CUT_H
#define PKG_CUT_H

#include "gguf/gguf_writer.h"
#include "package/pkg_inventory.h"
#include "package/pkg_manifest.h"
#include "package/pkg_slice.h"

struct pkg_piece {
    enum pkg_role role;
    uint32_t layer, part;   /* of PKG_ROLE_LAYER; part counts within a layer, or within the common tensors */
    char path[64];          /* relative to the output folder */
    char id[32];            /* schema 2, else "" */
    struct pkg_slice slice; /* schema 1 */
    const size_t *tensors;  /* view: indices into the inventory, in the order in which they are written */
    size_t n_tensors;
};

struct pkg_cut {
    const struct pkg_inventory *inv;
    unsigned schema; /* 1 or 2: which keys the pieces carry */
    bool slim;       /* schema 1: only shared/metadata.gguf carries the whole metadata */
    struct pkg_piece *pieces;
    size_t n_pieces;
    size_t *tensors; /* owned: the lists of all pieces, one after the other */
};

/* Schema 1: shared/{metadata,embeddings,output}.gguf and layers/layer-NNNNN.gguf. Fails for a model without layers,
 * with gaps between its layers, or without token_embd.weight. */
strata_err pkg_cut_package(const struct pkg_inventory *inv, struct pkg_cut *out, struct strata_errmsg *em);
/* One file for each slice; paths[i] is its name. */
strata_err pkg_cut_slices(const struct pkg_inventory *inv, const struct pkg_slice *slices, const char *const *paths,
                          size_t n, struct pkg_cut *out, struct strata_errmsg *em);
/* Schema 2, in pkg_cut2.c: the carrier shared/metadata.gguf, shared/common[-partNN].gguf,
 * layers/layer-NNNNN[-partNN].gguf; a group above max_bytes is divided. */
strata_err pkg_cut_package2(const struct pkg_inventory *inv, uint64_t max_bytes, struct pkg_cut *out,
                            struct strata_errmsg *em);
void pkg_cut_deinit(struct pkg_cut *c);

/* Refuses a model without layers, or with gaps between them. */
strata_err pkg_cut_check_layers(const struct pkg_inventory *inv, struct strata_errmsg *em);

/* Schema 2: adds the keys that say in which part each tensor of w lies. Also in pkg_cut2.c. */
strata_err pkg_cut2_carrier(const struct pkg_cut *c, struct gguf_writer *w, struct strata_errmsg *em);

/* Whether piece i is written without payloads: schema 2's carrier lists tensors that lie in other files. */
bool pkg_cut_is_header_only(const struct pkg_cut *c, size_t i);
/* A writer that holds piece i whole: metadata and tensors. Freed by gguf_writer_free. */
strata_err pkg_cut_writer(const struct pkg_cut *c, size_t i, struct gguf_writer **out, struct strata_errmsg *em);

#endif
