/*
 * package_id of schema 2: "sha256:" and the SHA-256 of the manifest's canonical form.
 *
 * The canonical form is compact JSON of the manifest with package_id empty and created_at_unix_secs 0, source files
 * sorted by path, artifacts by id, sidecars by kind, name and id, publisher files by role and their other fields; keys
 * in a fixed order, absent ones left out, maps sorted by name. Early writers kept the creation time in it: an id that
 * fits that variant is accepted too.
 *
 * What is known and what is not: order, omissions and number format follow what the existing implementation's source
 * says; no published package was at hand to prove it. A mismatch is therefore a warning, never an error: sizes and
 * digests bind the files whatever the id says.
 */
#ifndef PKG_PACKAGE_ID_H
#define PKG_PACKAGE_ID_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>

enum { PKG_PACKAGE_ID_MAX = 7 + 64 + 1 };

/* The id of a manifest that has been checked against pkg_schema2_root; its own package_id does not matter. */
strata_err pkg_package_id(const json_t *manifest, char out[PKG_PACKAGE_ID_MAX], struct strata_errmsg *em);

/* Whether the manifest's package_id is that, or that of the variant with the creation time. */
strata_err pkg_package_id_matches(const json_t *manifest, bool *matches, struct strata_errmsg *em);

#endif
