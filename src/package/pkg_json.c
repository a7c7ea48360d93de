/* Values for reports. See pkg_json.h. Owns nothing. */
#include "package/pkg_json.h"

#include <string.h>

json_t *pkg_json_text(const char *s) {
    return jsonx_text(s, strlen(s));
}

json_t *pkg_json_text_or_null(const char *s) {
    return s ? pkg_json_text(s) : json_null();
}

json_t *pkg_json_number(uint64_t n) {
    return json_integer((json_int_t)n);
}

json_t *pkg_json_hex(const uint8_t sha256[DIGEST_BYTES]) {
    char hex[DIGEST_HEX];
    digest_to_hex(sha256, DIGEST_BYTES, hex);
    return json_string(hex);
}

json_t *pkg_json_finish(json_t *v, int bad) {
    if (!bad) return v;
    json_decref(v);
    return NULL;
}

int pkg_json_set_list(json_t *o, const char *key, json_t *list) {
    return list ? json_object_set(o, key, list) : json_object_set_new(o, key, json_array());
}
