/* The rule for symbolic links in a package: none leads out of its folder. */
#ifndef PKG_INSIDE_H
#define PKG_INSIDE_H

#include "base/err.h"

#include <stdbool.h>

/*
 * Whether dir/name, all links followed, lies below dir. A hub's cache keeps a package as a folder of links,
 * <repo>/snapshots/<revision>, to files in <repo>/blobs: of such a folder those count as inside too.
 * ENOENT when the file, or what it links to, does not exist.
 */
strata_err pkg_inside(const char *dir, const char *name, bool *inside, struct strata_errmsg *em);

/*
 * Opens dir/name for reading under that rule; *fd is the caller's. What is opened is what was looked at: the way from
 * the folder to the file is walked without following a link, so that one put there meanwhile is refused as well.
 * ENOENT when there is no such file, EINVAL when it is not a regular one, EAUTH when it lies outside.
 */
strata_err pkg_inside_open(const char *dir, const char *name, int *fd, struct strata_errmsg *em);

#endif
