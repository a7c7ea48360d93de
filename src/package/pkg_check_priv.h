/* What the files of pkg_check share. See pkg_check.h. */
#ifndef PKG_CHECK_PRIV_H
#define PKG_CHECK_PRIV_H

#include "package/pkg_check.h"

/* Remembers a part's tensors in its item. */
strata_err pkg_check_keep_tensors(struct pkg_check_item *it, const struct gguf_reader *r, struct strata_errmsg *em);

/* Once every item was looked at: what must agree between the parts, and with the manifest. Fills inv, select, carrier
 * and complete. */
strata_err pkg_check_model(struct pkg_check_report *r, struct strata_errmsg *em);

/* Files that nothing in the package uses, and names that other programs would take for something else. */
strata_err pkg_check_files(struct pkg_check_report *r, struct strata_errmsg *em);

#endif
