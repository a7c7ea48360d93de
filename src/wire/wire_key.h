/*
 * A machine's identity and whom it trusts.
 *
 * The identity is an Ed25519 key (base/ed25519.h) with a self-signed certificate around it: TLS wants one; only the key
 * counts. A key folder holds key.pem (0600), cert.pem and the text file `trusted`.
 *
 * Trust file: one "<base64> <name>" a line, '#' starts a comment line, the name may be left out. Anything else is an
 * error that names the line: a typing mistake must not silently remove or add trust.
 */
#ifndef WIRE_KEY_H
#define WIRE_KEY_H

#include "base/ed25519.h"
#include "base/err.h"

#include <openssl/x509.h>
#include <stdbool.h>
#include <stddef.h>

enum { WIRE_NAME_MAX = 64, WIRE_TRUST_MAX = 1024 };

/* The key inside a certificate; EAUTH when it is not an Ed25519 key. */
strata_err wire_pub_of_cert(X509 *cert, struct ed25519_pub *out, struct strata_errmsg *em);

struct wire_key {
    struct ed25519_key *own;
    X509 *cert;
    struct ed25519_pub pub; /* of both */
};

/* Makes dir (0700) and a new key in it; EBUSY when dir has a key already, which is never overwritten. */
strata_err wire_key_create(const char *dir, struct ed25519_pub *out, struct strata_errmsg *em);
/* Writes a key into a folder that exists, over what is there. */
strata_err wire_key_save(const struct wire_key *key, const char *dir, struct strata_errmsg *em);
/* Loads a key; refuses one that other users of the machine can read. Freed by wire_key_free. */
strata_err wire_key_load(const char *dir, struct wire_key **out, struct strata_errmsg *em);
/* A key that lives in memory only. */
strata_err wire_key_generate(struct wire_key **out, struct strata_errmsg *em);
void wire_key_free(struct wire_key *key);

struct wire_trust_entry {
    struct ed25519_pub pub;
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
const struct wire_trust_entry *wire_trust_find(const struct wire_trust *t, const struct ed25519_pub *pub);
/* Adds, or renames an entry that is there. name may be NULL: at most 63 of letters, digits, '.', '_', '-', '@'. */
strata_err wire_trust_add(struct wire_trust *t, const struct ed25519_pub *pub, const char *name,
                          struct strata_errmsg *em);
/* Removes by key or by name; ENOENT when nothing matches. */
strata_err wire_trust_remove(struct wire_trust *t, const char *key_or_name, struct strata_errmsg *em);

#endif
