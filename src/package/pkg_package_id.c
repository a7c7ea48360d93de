/* The canonical digest of a schema-2 manifest. See pkg_package_id.h. Owns nothing. */
#include "package/pkg_package_id.h"

#include "base/digest.h"
#include "package/pkg_schema2.h"

#include <stdint.h>
#include <string.h>

/* A shallow copy; json_copy would leave out what it has no memory for. */
static json_t *copy_fields(const json_t *manifest) {
    json_t *out = json_object(), *value;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)manifest, key, value) {
        if (!out || json_object_set(out, key, value) == 0) continue;
        json_decref(out);
        out = NULL;
    }
    return out;
}

static strata_err compute(const json_t *manifest, json_int_t created_at, char out[PKG_PACKAGE_ID_MAX],
                          struct strata_errmsg *em) {
    struct buf text;
    uint8_t sum[DIGEST_BYTES];
    strata_err rc = STRATA_OK;
    buf_init(&text, 2 * PKG_MANIFEST_MAX_BYTES);
    json_t *root = copy_fields(manifest);
    if (!root || json_object_set_new(root, "package_id", json_string("")) ||
        json_object_set_new(root, "created_at_unix_secs", json_integer(created_at)))
        rc = err_nomem(em, "a manifest");
    if (!rc) rc = pkg_shape_canonical(pkg_schema2_root, root, &text, em);
    if (!rc) rc = digest_of(buf_cstr(&text), text.len, sum, em);
    if (!rc) {
        memcpy(out, "sha256:", 7);
        digest_to_hex(sum, sizeof sum, out + 7);
    }
    json_decref(root);
    buf_deinit(&text);
    return rc;
}

strata_err pkg_package_id(const json_t *manifest, char out[PKG_PACKAGE_ID_MAX], struct strata_errmsg *em) {
    return compute(manifest, 0, out, em);
}

strata_err pkg_package_id_matches(const json_t *manifest, bool *matches, struct strata_errmsg *em) {
    const char *stated = json_string_value(json_object_get(manifest, "package_id"));
    json_int_t created = json_integer_value(json_object_get(manifest, "created_at_unix_secs"));
    char id[PKG_PACKAGE_ID_MAX];
    bool same = false;
    strata_err rc = STRATA_OK;
    for (int variant = 0; variant < 2 && !same && !rc && stated; variant++) {
        rc = compute(manifest, variant ? created : 0, id, em);
        if (!rc) same = strcmp(id, stated) == 0;
    }
    if (!rc) *matches = same;
    return rc;
}
