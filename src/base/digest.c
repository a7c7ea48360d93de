/* SHA-256. See digest.h. */
#include "base/digest.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

struct digest {
    EVP_MD_CTX *ctx;
};

static strata_err start(struct digest *d, struct strata_errmsg *em) {
    if (EVP_DigestInit_ex(d->ctx, EVP_sha256(), NULL) != 1)
        /* OpenSSL does not tell these two apart; memory is the likelier one. */
        return err_set(em, STRATA_ENOMEM, "a digest could not be started: no memory, or no SHA-256 in this OpenSSL");
    return STRATA_OK;
}

strata_err digest_new(struct digest **out, struct strata_errmsg *em) {
    strata_err rc;
    struct digest *d = calloc(1, sizeof *d);
    if (!d) return err_nomem(em, "a digest");
    d->ctx = EVP_MD_CTX_new();
    if (!d->ctx) {
        rc = err_nomem(em, "a digest");
        goto out;
    }
    rc = start(d, em);
    if (rc) goto out;
    *out = d;
    d = NULL;
out:
    digest_free(d);
    return rc;
}

void digest_free(struct digest *d) {
    if (!d) return;
    EVP_MD_CTX_free(d->ctx);
    free(d);
}

strata_err digest_update(struct digest *d, const void *data, size_t len, struct strata_errmsg *em) {
    if (EVP_DigestUpdate(d->ctx, data, len) != 1) return err_set(em, STRATA_EINTERNAL, "SHA-256 failed");
    return STRATA_OK;
}

strata_err digest_final(struct digest *d, uint8_t out[DIGEST_BYTES], struct strata_errmsg *em) {
    unsigned n = 0;
    if (EVP_DigestFinal_ex(d->ctx, out, &n) != 1 || n != DIGEST_BYTES)
        return err_set(em, STRATA_EINTERNAL, "SHA-256 failed");
    return start(d, em);
}

strata_err digest_of(const void *data, size_t len, uint8_t out[DIGEST_BYTES], struct strata_errmsg *em) {
    struct digest *d = NULL;
    strata_err rc = digest_new(&d, em);
    if (!rc) rc = digest_update(d, data, len, em);
    if (!rc) rc = digest_final(d, out, em);
    digest_free(d);
    return rc;
}

void digest_to_hex(const uint8_t *bytes, size_t len, char *hex) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < len; i++) {
        hex[2 * i] = digits[bytes[i] >> 4];
        hex[2 * i + 1] = digits[bytes[i] & 15];
    }
    hex[2 * len] = '\0';
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

int digest_from_hex(const char *text, uint8_t out[DIGEST_BYTES]) {
    uint8_t tmp[DIGEST_BYTES];
    if (strlen(text) != 2 * DIGEST_BYTES) return -1;
    for (size_t i = 0; i < DIGEST_BYTES; i++) {
        int hi = hex_value(text[2 * i]);
        int lo = hex_value(text[2 * i + 1]);
        if (hi < 0 || lo < 0) return -1;
        tmp[i] = (uint8_t)(hi << 4 | lo);
    }
    memcpy(out, tmp, sizeof tmp);
    return 0;
}
