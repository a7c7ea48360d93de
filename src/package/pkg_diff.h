/* Shows what changes between two texts, line by line, as a unified diff: what programs and people know to read. */
#ifndef PKG_DIFF_H
#define PKG_DIFF_H

#include "base/buf.h"

/*
 * Appends the diff from text a to text b (NUL-terminated) to out, nothing when they are equal. Texts that differ in
 * very many lines are shown as one block removed and one added, so that time and memory stay bounded. Fails without
 * memory or when out is full.
 */
strata_err pkg_diff_unified(const char *a_name, const char *a, const char *b_name, const char *b, struct buf *out,
                            struct strata_errmsg *em);

#endif
