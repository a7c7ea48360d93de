/*
 * JSON from outside: strict parsing and typed getters over jansson, with errors that name the place.
 *
 * `where` is the dotted path of obj for messages, "" for the root: a missing key a in obj "shared" reads
 * "shared.a is missing". Returned strings, objects and arrays are views that live as long as the root.
 * With `required` false an absent or null key is no error and leaves *out untouched.
 */
#ifndef BASE_JSONX_H
#define BASE_JSONX_H

#include "base/buf.h"
#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parses one whole document; refuses duplicate keys, NUL in strings and trailing bytes. *out is freed by json_decref.
 */
strata_err jsonx_parse(const char *data, size_t len, json_t **out, struct strata_errmsg *em);

strata_err jsonx_get_str(const json_t *obj, const char *where, const char *key, bool required, const char **out,
                         struct strata_errmsg *em);
/* A whole number from 0 to max. */
strata_err jsonx_get_u64(const json_t *obj, const char *where, const char *key, bool required, uint64_t max,
                         uint64_t *out, struct strata_errmsg *em);
/* A finite number in [lo, hi]. */
strata_err jsonx_get_f64(const json_t *obj, const char *where, const char *key, bool required, double lo, double hi,
                         double *out, struct strata_errmsg *em);
strata_err jsonx_get_bool(const json_t *obj, const char *where, const char *key, bool required, bool *out,
                          struct strata_errmsg *em);
strata_err jsonx_get_obj(const json_t *obj, const char *where, const char *key, bool required, json_t **out,
                         struct strata_errmsg *em);
strata_err jsonx_get_array(const json_t *obj, const char *where, const char *key, bool required, json_t **out,
                           struct strata_errmsg *em);

/* A new string value of any bytes: what is not valid UTF-8 (or is NUL) becomes U+FFFD. NULL only without memory. */
json_t *jsonx_text(const char *data, size_t len);

/* Appends the document to out; pretty is two-space indent. Key order is kept. */
strata_err jsonx_dump(const json_t *root, bool pretty, struct buf *out, struct strata_errmsg *em);

#endif
