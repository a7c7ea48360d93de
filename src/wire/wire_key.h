/*
 * A machine's identity and whom it trusts.
 *
 * The identity is an Ed25519 key with a self-signed certificate around it (TLS wants one; only the key counts). A key
 * folder holds key.pem (0600), cert.pem and the text file `trusted`. A public key travels between people as its 32 raw
 * bytes in base64, 44 characters.
 *
 * Trust file: one "<base64> <name>" a line, '#' starts a comment line, the name may be left out. Anything else is an
 * error that names the line: a typing mistake must not silently remove or add trust.
 */
#ifndef WIRE_KEY_H
#define WIRE_KEY_H

#include "base/err.h"

#include <openssl/evp.h>
#include <openssl/x509.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WIRE_PUB_BYTES = 32, WIRE_PUB_TEXT = 45, WIRE_NAME_MAX = 64, WIRE_TRUST_MAX = 1024 };

struct wire_pub {
    uint8_t bytes[WIRE_PUB_BYTES];
};

bool wire_pub_equal(const struct wire_pub *a, const struct wire_pub *b);
/* Returns out. */
const char *wire_pub_text(const struct wire_pub *pub, char out[WIRE_PUB_TEXT]);
/* Strict: exactly 44 characters of canonical base64. */
strata_err wire_pub_parse(const char *text, struct wire_pub *out, struct strata_errmsg *em);
/* The key inside a certificate; EAUTH when it is not an Ed25519 key. */
strata_err wire_pub_of_cert(X509 *cert, struct wire_pub *out, struct strata_errmsg *em);

struct wire_key {
    EVP_PKEY *pkey;
    X509 *cert;
    struct wire_pub pub;
};

/* $XDG_CONFIG_HOME/strata or ~/.config/strata. */
strata_err wire_key_default_dir(char *out, size_t cap, struct strata_errmsg *em);
/* Makes dir (0700) and a new key in it; EBUSY when dir has a key already, which is never overwritten. */
strata_err wire_key_create(const char *dir, struct wire_pub *out, struct strata_errmsg *em);
/* Writes a key into a folder that exists, over what is there. */
strata_err wire_key_save(const struct wire_key *key, const char *dir, struct strata_errmsg *em);
/* Loads a key; refuses one that other users of the machine can read. Freed by wire_key_free. */
strata_err wire_key_load(const char *dir, struct wire_key **out, struct strata_errmsg *em);
/* A key that lives in memory only. */
strata_err wire_key_generate(struct wire_key **out, struct strata_errmsg *em);
void wire_key_free(struct wire_key *key);

struct wire_trust_entry {
    struct wire_pub pub;
    char name[WIRE_NAME_MAX]; /* "" when none was given */
};

struct wire_trust {
    struct wire_trust_entry *entries;
    size_t n;
};

/* Reads dir/trusted; a file that does not exist is an empty list. */
strata_err wire_trust_load(const char *dir, struct wire_trust *out, struct strata_errmsg *em);
strata_err wire_trust_parse(const char *text, size_t len, struct wire_trust *out, struct strata_errmsg *em);
/* Rewrites the file atomically (comments go). */
strata_err wire_trust_save(const char *dir, const struct wire_trust *t, struct strata_errmsg *em);
void wire_trust_deinit(struct wire_trust *t);
/* NULL when the key is not in the list. */
const struct wire_trust_entry *wire_trust_find(const struct wire_trust *t, const struct wire_pub *pub);
/* Adds, or renames an entry that is there. name may be NULL: at most 63 of letters, digits, '.', '_', '-', '@'. */
strata_err wire_trust_add(struct wire_trust *t, const struct wire_pub *pub, const char *name, struct strata_errmsg *em);
/* Removes by key or by name; ENOENT when nothing matches. */
strata_err wire_trust_remove(struct wire_trust *t, const char *key_or_name, struct strata_errmsg *em);

#endif
