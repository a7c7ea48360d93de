/*
 * The generation block of schema 2: sampling profiles that the publisher recommends, and speculation as in schema 1,
 * but strict and with the codes of schema 2. Policy and thresholds do not exist here.
 */
#ifndef PKG_GENERATION2_H
#define PKG_GENERATION2_H

#include "package/pkg_fault.h"

#include <stdint.h>

/* Checks a block (of any JSON type): fields, types, bounds, references. Fails only without memory. */
strata_err pkg_generation2_check(const json_t *generation, uint32_t layer_count, struct pkg_faults *faults,
                                 struct strata_errmsg *em);

/*
 * What of a block of one schema the other one can hold, as a new object that shares its parts with the given
 * one; *out is NULL when nothing is left. What had to go is told in `dropped` ("policy, thresholds"), empty when
 * nothing had to.
 */
strata_err pkg_generation2_convert(const json_t *generation, unsigned to_schema, uint32_t layer_count, json_t **out,
                                   char *dropped, size_t cap, struct strata_errmsg *em);

#endif
