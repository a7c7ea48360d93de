/* The rule that nothing is written into a package but what belongs to it. */
#ifndef PKG_APART_H
#define PKG_APART_H

#include "base/err.h"

/*
 * Refuses (EINVAL) a path, of a file or a folder, that lies below a folder with a model-package.json, links resolved;
 * of folders that do not exist yet, the nearest one above them that does counts. What stands at the path itself is not
 * looked at.
 */
strata_err pkg_apart_check(const char *path, struct strata_errmsg *em);

#endif
