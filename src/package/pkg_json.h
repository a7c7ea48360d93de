/*
 * Values for reports. Each is new, and NULL only without memory, which json_object_set_new then refuses: a report is
 * whole or it is not made.
 */
#ifndef PKG_JSON_H
#define PKG_JSON_H

#include "base/digest.h"
#include "base/jsonx.h"

json_t *pkg_json_text(const char *s);
/* null when s is NULL. */
json_t *pkg_json_text_or_null(const char *s);
json_t *pkg_json_number(uint64_t n);
json_t *pkg_json_hex(const uint8_t sha256[DIGEST_BYTES]);
/* v itself; with bad set, v is freed and the result NULL. */
json_t *pkg_json_finish(json_t *v, int bad);
/* Sets key to a list that the caller keeps, or to an empty one when there is none. */
int pkg_json_set_list(json_t *o, const char *key, json_t *list);

#endif
