/*
 * Any bytes into the reader of signature sidecars. Nothing comes out without success, and every refusal says why; what
 * comes out, written down anew, reads back the same.
 */
#include "package/pkg_manifest.h"
#include "package/pkg_sign.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

static void write_again(const struct pkg_sign_doc *doc, struct buf *out) {
    char pub[ED25519_PUB_TEXT], sig[ED25519_SIG_TEXT], hex[DIGEST_HEX];
    digest_to_hex(doc->manifest_sha256, DIGEST_BYTES, hex);
    require(buf_printf(out, NULL,
                       "{\"signature\":\"%s\",\"manifest_sha256\":\"%s\",\"signed_file\":\"" PKG_MANIFEST_FILE
                       "\",\"public_key\":\"%s\",\"algorithm\":\"ed25519\",\"schema_version\":1}",
                       ed25519_sig_text(&doc->sig, sig), hex, ed25519_pub_text(&doc->pub, pub)) == STRATA_OK,
            "no memory");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct pkg_sign_doc doc, again, untouched;
    struct strata_errmsg em = {0};
    struct buf text;
    memset(&doc, 0x5a, sizeof doc);
    memcpy(&untouched, &doc, sizeof doc);
    strata_err rc = pkg_sign_parse(data, size, &doc, &em);
    if (rc) {
        require(em.code == rc && em.text[0] && !strchr(em.text, '\n'), "a refusal without one line that says why");
        require(memcmp(&doc, &untouched, sizeof doc) == 0, "a refusal that gives something out");
        return 0;
    }
    require(size <= PKG_SIGN_MAX_BYTES, "more than the limit was read");
    buf_init(&text, PKG_SIGN_MAX_BYTES);
    write_again(&doc, &text);
    require(pkg_sign_parse(buf_cstr(&text), text.len, &again, &em) == STRATA_OK, "what was read cannot be written");
    require(memcmp(&doc, &again, sizeof doc) == 0, "what was read changes when written");
    buf_deinit(&text);
    return 0;
}
