/* What the files of the model card share. */
#ifndef PKG_CARD_PRIV_H
#define PKG_CARD_PRIV_H

#include "package/pkg_card.h"
#include "package/pkg_card_md.h"

/* The YAML block at the top, and all the rest: appended to out. */
strata_err pkg_card_front(const struct pkg_manifest *m, struct buf *out, struct strata_errmsg *em);
strata_err pkg_card_body(const struct pkg_manifest *m, const json_t *validation, struct buf *out,
                         struct strata_errmsg *em);

/* Sections. generation and validation may be NULL, or anything at all: what is not as expected is left out. */
void pkg_card_generation(struct pkg_card_md *md, const json_t *generation);
void pkg_card_validation(struct pkg_card_md *md, const struct pkg_manifest *m, const json_t *validation);

#endif
