/* SHA-256, streamed (OpenSSL EVP behind our header). */
#ifndef BASE_DIGEST_H
#define BASE_DIGEST_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { DIGEST_BYTES = 32, DIGEST_HEX = 65 /* 64 digits and a NUL */ };

struct digest; /* one running hash; owned by whoever made it */

strata_err digest_new(struct digest **out, struct strata_errmsg *em);
void digest_free(struct digest *d);
strata_err digest_update(struct digest *d, const void *data, size_t len, struct strata_errmsg *em);
/* Ends the hash; afterwards the digest is ready for a new one. */
strata_err digest_final(struct digest *d, uint8_t out[DIGEST_BYTES], struct strata_errmsg *em);

/* Hash of one piece of memory. */
strata_err digest_of(const void *data, size_t len, uint8_t out[DIGEST_BYTES], struct strata_errmsg *em);

/* Lower-case hexadecimal of any bytes; hex must hold 2 * len + 1. */
void digest_to_hex(const uint8_t *bytes, size_t len, char *hex);
/* Reads exactly 64 hexadecimal digits of either case. Returns 0, or -1 when text is anything else. */
int digest_from_hex(const char *text, uint8_t out[DIGEST_BYTES]);

#endif
