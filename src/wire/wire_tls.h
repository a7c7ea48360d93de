/*
 * TLS as Strata uses it: version 1.3 only, both sides show a certificate, ALPN "strata/1".
 *
 * Any certificate passes the handshake, as long as its owner has the private key: there is no authority to ask. Whether
 * the key is trusted is decided by the link right after the handshake, before anything is read.
 */
#ifndef WIRE_TLS_H
#define WIRE_TLS_H

#include "wire/wire_key.h"

#include <openssl/ssl.h>

struct wire_tls {
    SSL_CTX *server;
    SSL_CTX *client;
    struct ed25519_pub pub; /* our own key */
};

/* The key may be freed afterwards. Freed by wire_tls_free, once no link uses it. */
strata_err wire_tls_new(const struct wire_key *key, struct wire_tls **out, struct strata_errmsg *em);
void wire_tls_free(struct wire_tls *tls);

/* After the handshake: that the protocol was agreed on, and the peer's key. */
strata_err wire_tls_peer(SSL *ssl, struct ed25519_pub *out, struct strata_errmsg *em);
/* The reason of the latest failure on this thread, for people; empties OpenSSL's error queue. Returns out. */
const char *wire_tls_reason(char *out, size_t cap);

#endif
