/*
 * Ed25519 keys: their text, their files, and signatures (OpenSSL EVP behind our header).
 *
 * A public key travels between people as its 32 raw bytes in base64, 44 characters. A private key is a PKCS #8 file in
 * PEM form, without a password, that only its owner can read; it leaves that file for a struct ed25519_key alone, and
 * no message or output has a byte of it. A machine's key folder holds it as key.pem.
 */
#ifndef BASE_ED25519_H
#define BASE_ED25519_H

#include "base/err.h"

#include <openssl/types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ED25519_KEY_FILE "key.pem"

enum { ED25519_PUB_BYTES = 32, ED25519_PUB_TEXT = 45, ED25519_SIG_BYTES = 64, ED25519_SIG_TEXT = 89 };

struct ed25519_pub {
    uint8_t bytes[ED25519_PUB_BYTES];
};

struct ed25519_sig {
    uint8_t bytes[ED25519_SIG_BYTES];
};

/* ---- text ---- */

bool ed25519_pub_equal(const struct ed25519_pub *a, const struct ed25519_pub *b);
/* Both return out. */
const char *ed25519_pub_text(const struct ed25519_pub *pub, char out[ED25519_PUB_TEXT]);
const char *ed25519_sig_text(const struct ed25519_sig *sig, char out[ED25519_SIG_TEXT]);
/* Strict: exactly 44 (88) characters of canonical base64, so that a key (a signature) has one spelling only. */
strata_err ed25519_pub_parse(const char *text, struct ed25519_pub *out, struct strata_errmsg *em);
strata_err ed25519_sig_parse(const char *text, struct ed25519_sig *out, struct strata_errmsg *em);
/* What a user gives as a public key: its text, or the name of a file that holds it and nothing else. */
strata_err ed25519_pub_arg(const char *text_or_file, struct ed25519_pub *out, struct strata_errmsg *em);

/* ---- keys ---- */

struct ed25519_key;

/* The machine's key folder: $XDG_CONFIG_HOME/strata or ~/.config/strata. */
strata_err ed25519_key_dir(char *out, size_t cap, struct strata_errmsg *em);
/* A new key, in memory only. */
strata_err ed25519_key_generate(struct ed25519_key **out, struct strata_errmsg *em);
/* path: a PEM file, or a folder with key.pem. A file that other users can read is refused (EAUTH). */
strata_err ed25519_key_load(const char *path, struct ed25519_key **out, struct strata_errmsg *em);
/* Writes the file atomically with mode 0600, over what is there. */
strata_err ed25519_key_save(const struct ed25519_key *key, const char *path, struct strata_errmsg *em);
void ed25519_key_free(struct ed25519_key *key);

const struct ed25519_pub *ed25519_key_pub(const struct ed25519_key *key);
/* View for TLS and certificates. */
EVP_PKEY *ed25519_key_evp(const struct ed25519_key *key);
/* The public half of any key object; EAUTH when it is not an Ed25519 key. */
strata_err ed25519_pub_of_evp(const EVP_PKEY *pkey, struct ed25519_pub *out, struct strata_errmsg *em);

/* ---- signatures ---- */

/* Deterministic: the same key and bytes give the same signature (RFC 8032, without a context or a prehash). */
strata_err ed25519_sign(const struct ed25519_key *key, const void *data, size_t len, struct ed25519_sig *out,
                        struct strata_errmsg *em);
/* *good: sig is pub's signature over the bytes. A signature that is not is no failure of the function. */
strata_err ed25519_verify(const struct ed25519_pub *pub, const void *data, size_t len, const struct ed25519_sig *sig,
                          bool *good, struct strata_errmsg *em);

#endif
