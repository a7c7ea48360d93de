/*
 * How many files own each tensor of a source: none, and the model cannot be put together again; several, and it is not
 * clear which one counts.
 *
 * Life cycle: pkg_tally_init, pkg_tally_add for each file, pkg_tally_lists, pkg_tally_deinit.
 */
#ifndef PKG_TALLY_H
#define PKG_TALLY_H

#include "package/pkg_compare.h"

struct pkg_tally {
    const struct pkg_inventory *source; /* view */
    unsigned *count;                    /* owned; one for each tensor of the source */
};

strata_err pkg_tally_init(struct pkg_tally *t, const struct pkg_inventory *source, struct strata_errmsg *em);
void pkg_tally_deinit(struct pkg_tally *t);
void pkg_tally_add(struct pkg_tally *t, const struct pkg_compared *file);

/* How many tensors there are whose class is among the bits 1 << class. */
size_t pkg_tally_required(const struct pkg_tally *t, unsigned classes);

/* New arrays of names, sorted: of those tensors, the ones that no file owns, and of all the ones that several own.
 * Both are to be freed by json_decref. */
strata_err pkg_tally_lists(const struct pkg_tally *t, unsigned classes, json_t **missing, json_t **duplicate,
                           struct strata_errmsg *em);

#endif
