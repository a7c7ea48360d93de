/*
 * Generation defaults that the model itself gives evidence for, and a publisher's own block from a file.
 *
 * A package must not promise what it cannot do: native MTP is claimed only when the metadata and the tensors say the
 * same, glm-dsa-v1 only when the whole contract holds. Whatever speaks against a claim that could have been made
 * becomes a note for people. N-gram and draft strategies and other policies are never inferred: no tensor shows them.
 */
#ifndef PKG_INFER_H
#define PKG_INFER_H

#include "base/jsonx.h"

#include <stddef.h>
#include <stdint.h>

struct pkg_inventory;

enum { PKG_INFER_MAX_NOTES = 4 };

/* Reasons why something was not claimed: which side says what. */
struct pkg_infer_notes {
    char *text[PKG_INFER_MAX_NOTES]; /* owned */
    size_t n;
};

void pkg_infer_notes_deinit(struct pkg_infer_notes *notes);

/* *out is a new generation block, or NULL when nothing may be claimed. *notes is overwritten, and must be freed with
 * pkg_infer_notes_deinit after success. Fails only without memory. */
strata_err pkg_infer_generation(const struct pkg_inventory *inv, json_t **out, struct pkg_infer_notes *notes,
                                struct strata_errmsg *em);

/*
 * Reads a block from a JSON file: the bare object, or a document with the object under "generation". Refused with all
 * its faults of severity error named, as far as a message holds them. schema is that of the package (the two have
 * different blocks), layer_count as in pkg_generation_check. *out is a new object.
 */
strata_err pkg_infer_load_file(const char *path, unsigned schema, uint32_t layer_count, json_t **out,
                               struct strata_errmsg *em);

#endif
