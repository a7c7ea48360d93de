/* TLS contexts. See wire_tls.h. */
#include "wire/wire_tls.h"

#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Length-prefixed, as ALPN wants it. */
static const unsigned char alpn[] = "\x08strata/1";
enum { ALPN_LEN = sizeof alpn - 1, READ_BUFFER = 64 << 10 };

const char *wire_tls_reason(char *out, size_t cap) {
    unsigned long e = ERR_peek_last_error();
    const char *reason = e ? ERR_reason_error_string(e) : NULL;
    snprintf(out, cap, "%s", reason ? reason : "the connection was closed");
    ERR_clear_error();
    return out;
}

static int accept_any(X509_STORE_CTX *store, void *arg) {
    (void)arg;
    X509_STORE_CTX_set_error(store, X509_V_OK);
    return 1;
}

static int choose_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_len, const unsigned char *in,
                       unsigned in_len, void *arg) {
    (void)ssl, (void)arg;
    unsigned char *chosen;
    if (SSL_select_next_proto(&chosen, out_len, alpn, ALPN_LEN, in, in_len) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static SSL_CTX *make_ctx(const SSL_METHOD *method, const struct wire_key *key) {
    SSL_CTX *ctx = SSL_CTX_new(method);
    if (!ctx) return NULL;
    bool ok = SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) == 1 &&
              SSL_CTX_set_max_proto_version(ctx, TLS1_3_VERSION) == 1 &&
              SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256:"
                                            "TLS_AES_256_GCM_SHA384") == 1 &&
              SSL_CTX_set1_groups_list(ctx, "X25519") == 1 && SSL_CTX_set1_sigalgs_list(ctx, "ed25519") == 1 &&
              SSL_CTX_use_certificate(ctx, key->cert) == 1 &&
              SSL_CTX_use_PrivateKey(ctx, ed25519_key_evp(key->own)) == 1 &&
              SSL_CTX_set_alpn_protos(ctx, alpn, ALPN_LEN) == 0;
    if (!ok) {
        SSL_CTX_free(ctx);
        return NULL;
    }
    SSL_CTX_set_alpn_select_cb(ctx, choose_alpn, NULL);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    SSL_CTX_set_cert_verify_callback(ctx, accept_any, NULL);
    /* A resumed session would skip the certificates, which are the point; and tickets cost a write. */
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_num_tickets(ctx, 0);
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    /* Header and body of a record in one system call. */
    SSL_CTX_set_read_ahead(ctx, 1);
    SSL_CTX_set_default_read_buffer_len(ctx, READ_BUFFER);
    return ctx;
}

strata_err wire_tls_new(const struct wire_key *key, struct wire_tls **out, struct strata_errmsg *em) {
    char reason[128];
    struct wire_tls *tls = calloc(1, sizeof *tls);
    if (!tls) return err_nomem(em, "TLS");
    tls->pub = key->pub;
    tls->server = make_ctx(TLS_server_method(), key);
    tls->client = make_ctx(TLS_client_method(), key);
    if (!tls->server || !tls->client) {
        wire_tls_free(tls);
        return err_set(em, STRATA_EINTERNAL, "cannot set up TLS: %s", wire_tls_reason(reason, sizeof reason));
    }
    *out = tls;
    return STRATA_OK;
}

void wire_tls_free(struct wire_tls *tls) {
    if (!tls) return;
    SSL_CTX_free(tls->server);
    SSL_CTX_free(tls->client);
    free(tls);
}

strata_err wire_tls_peer(SSL *ssl, struct ed25519_pub *out, struct strata_errmsg *em) {
    const unsigned char *proto;
    unsigned len;
    SSL_get0_alpn_selected(ssl, &proto, &len);
    if (len != ALPN_LEN - 1 || memcmp(proto, alpn + 1, len) != 0)
        return err_set(em, STRATA_EPEER, "the other side speaks TLS, but not Strata's protocol (ALPN strata/1)");
    X509 *cert = SSL_get0_peer_certificate(ssl);
    if (!cert) return err_set(em, STRATA_EAUTH, "the other side showed no certificate");
    return wire_pub_of_cert(cert, out, em);
}
