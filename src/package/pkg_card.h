/*
 * The model card: README.md of a package, made from its manifest and, when there is one, its validation result.
 *
 * It holds what the standard's publishing rules list. The same manifest and result give the same bytes. All texts of a
 * manifest are foreign data: they appear as code, and none can start a line, a table cell, a link or an HTML element.
 *
 * A card that Strata wrote has a marker line with a digest of the rest. Only a card whose marker fits is ever written
 * over: a README.md that a publisher wrote, or changed, stays as it is.
 */
#ifndef PKG_CARD_H
#define PKG_CARD_H

#include "base/buf.h"
#include "package/pkg_manifest.h"

#define PKG_CARD_FILE "README.md"

enum { PKG_CARD_MAX_BYTES = 1 << 20 };

/* Appends the card. m: parsed without errors. validation: the document of validation.json, or NULL when there is none;
 * what it lacks is left out, and a result for another manifest is shown as such. */
strata_err pkg_card_text(const struct pkg_manifest *m, const json_t *validation, struct buf *out,
                         struct strata_errmsg *em);

enum pkg_card_state {
    PKG_CARD_ABSENT,
    PKG_CARD_OURS,   /* as Strata wrote it */
    PKG_CARD_FOREIGN /* the publisher's: written or changed by hand, a link, or no regular file */
};

strata_err pkg_card_look(const char *dir, enum pkg_card_state *out, struct strata_errmsg *em);

/* Writes dir/README.md, atomically, unless it is foreign; a card that would not change is not touched. */
strata_err pkg_card_update(const char *dir, const struct pkg_manifest *m, const json_t *validation,
                           struct strata_errmsg *em);
/* Brings the card in dir up to date with the manifest and the validation result there. No card is made where there is
 * none; a validation.json that cannot be read counts as none. */
strata_err pkg_card_refresh(const char *dir, struct strata_errmsg *em);

#endif
