/* How library code fills a struct strata_errmsg. See include/strata/err.h for the rules. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include "strata/err.h"

#include <stdarg.h>

/*
 * Records a failure and returns its code, so that a function can end with `rc = err_set(em, ...); goto out;`.
 * em may be NULL. Control characters in the finished text (they could come from foreign data) become '?'.
 */
strata_err err_set(struct strata_errmsg *em, strata_err code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* As err_set, and appends ": " and the system's text for errnum. */
strata_err err_sys(struct strata_errmsg *em, strata_err code, int errnum, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Puts "context: " before a message set by a callee; returns the callee's code. */
strata_err err_prefix(struct strata_errmsg *em, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Memory could not be had for `what`. */
strata_err err_nomem(struct strata_errmsg *em, const char *what);

#endif
