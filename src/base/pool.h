/*
 * A loop over independent pieces of work on several threads.
 *
 * The threads live for one call. Errors of all threads meet in the caller's errmsg: the first failure counts.
 */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include "base/err.h"

#include <stddef.h>

/* Does piece i. Called from several threads at once; em is the thread's own. */
typedef strata_err (*pool_fn)(void *user, size_t i, struct strata_errmsg *em);

/*
 * Calls fn for each i below n, in rising order of start, on up to `threads` threads (the caller's is one of them).
 * After a failure no new piece is started; those under way end first. Threads that cannot be made are done without.
 */
strata_err pool_run(unsigned threads, size_t n, pool_fn fn, void *user, struct strata_errmsg *em);

#endif
