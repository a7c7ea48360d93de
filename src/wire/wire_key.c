/* Keys: making, storing, loading. The trust list is in wire_trust.c. See wire_key.h. */
#include "wire/wire_key.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/path.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <sys/stat.h>

#define CERT_FILE "cert.pem"

enum { PEM_MAX = 16 << 10 };

static strata_err ssl_fail(struct strata_errmsg *em, const char *what) {
    char text[160];
    ERR_error_string_n(ERR_peek_last_error(), text, sizeof text);
    ERR_clear_error();
    return err_set(em, STRATA_EINTERNAL, "%s: %s", what, text);
}

strata_err wire_pub_of_cert(X509 *cert, struct ed25519_pub *out, struct strata_errmsg *em) {
    EVP_PKEY *pkey = X509_get0_pubkey(cert);
    if (!pkey) {
        ERR_clear_error();
        return err_set(em, STRATA_EAUTH, "the certificate has no usable key");
    }
    return ed25519_pub_of_evp(pkey, out, em);
}

/* The certificate says nothing but the key: no name that could be believed, a validity that never matters. */
static strata_err make_cert(EVP_PKEY *pkey, X509 **out, struct strata_errmsg *em) {
    uint64_t serial;
    X509 *cert = X509_new();
    bool ok = cert && RAND_bytes((unsigned char *)&serial, sizeof serial) == 1 &&
              X509_set_version(cert, X509_VERSION_3) &&
              ASN1_INTEGER_set_uint64(X509_get_serialNumber(cert), (serial >> 1) | 1) &&
              X509_gmtime_adj(X509_getm_notBefore(cert), -86400) &&
              ASN1_TIME_set_string(X509_getm_notAfter(cert), "99991231235959Z") && X509_set_pubkey(cert, pkey) &&
              X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                                         (const unsigned char *)"strata", -1, -1, 0) &&
              X509_set_issuer_name(cert, X509_get_subject_name(cert)) && X509_sign(cert, pkey, NULL) > 0;
    if (!ok) {
        X509_free(cert);
        return ssl_fail(em, "cannot make a certificate");
    }
    *out = cert;
    return STRATA_OK;
}

strata_err wire_key_generate(struct wire_key **out, struct strata_errmsg *em) {
    struct wire_key *key = calloc(1, sizeof *key);
    if (!key) return err_nomem(em, "a key");
    strata_err rc = ed25519_key_generate(&key->own, em);
    if (!rc) rc = make_cert(ed25519_key_evp(key->own), &key->cert, em);
    if (rc) goto out;
    key->pub = *ed25519_key_pub(key->own);
    *out = key;
    key = NULL;
out:
    wire_key_free(key);
    return rc;
}

void wire_key_free(struct wire_key *key) {
    if (!key) return;
    ed25519_key_free(key->own);
    X509_free(key->cert);
    free(key);
}

static strata_err save_cert(X509 *cert, const char *path, struct strata_errmsg *em) {
    strata_err rc;
    char *data;
    BIO *bio = BIO_new(BIO_s_mem());
    if (!bio || PEM_write_bio_X509(bio, cert) != 1) {
        rc = ssl_fail(em, "cannot encode the certificate");
        goto out;
    }
    long len = BIO_get_mem_data(bio, &data);
    rc = file_write_all(path, data, (size_t)len, 0644, em);
out:
    BIO_free(bio);
    return rc;
}

strata_err wire_key_save(const struct wire_key *key, const char *dir, struct strata_errmsg *em) {
    char key_path[PATH_MAX_LEN], cert_path[PATH_MAX_LEN];
    strata_err rc = path_join(key_path, sizeof key_path, dir, ED25519_KEY_FILE, em);
    if (!rc) rc = path_join(cert_path, sizeof cert_path, dir, CERT_FILE, em);
    if (!rc) rc = save_cert(key->cert, cert_path, em);
    /* The private key comes last: where key.pem is, the pair is whole. */
    return rc ? rc : ed25519_key_save(key->own, key_path, em);
}

strata_err wire_key_create(const char *dir, struct ed25519_pub *out, struct strata_errmsg *em) {
    struct wire_key *key = NULL;
    char path[PATH_MAX_LEN];
    struct stat st;
    strata_err rc = path_join(path, sizeof path, dir, ED25519_KEY_FILE, em);
    if (rc) return rc;
    if (lstat(path, &st) == 0)
        return err_set(em, STRATA_EBUSY, "%s exists already and is kept; 'strata key show' prints its public key",
                       path);
    if (!file_is_dir(dir)) {
        rc = file_mkdirs(dir, 0700, em);
        if (rc) return rc;
    }
    rc = wire_key_generate(&key, em);
    if (!rc) rc = wire_key_save(key, dir, em);
    if (!rc) *out = key->pub;
    wire_key_free(key);
    return rc;
}

static strata_err load_cert(const char *path, X509 **out, struct strata_errmsg *em) {
    struct buf text;
    BIO *bio = NULL;
    buf_init(&text, PEM_MAX + 1);
    strata_err rc = file_read_all(path, PEM_MAX, &text, em);
    if (rc) goto out;
    bio = BIO_new_mem_buf(buf_cstr(&text), (int)text.len);
    if (!bio) {
        rc = err_nomem(em, "a certificate");
        goto out;
    }
    char no_password[] = ""; /* given, so that nobody is asked for one */
    X509 *cert = PEM_read_bio_X509(bio, NULL, NULL, no_password);
    ERR_clear_error();
    if (!cert) {
        rc = err_set(em, STRATA_EFORMAT, "%s is not a certificate in PEM form", path);
        goto out;
    }
    *out = cert;
out:
    BIO_free(bio);
    buf_deinit(&text);
    return rc;
}

strata_err wire_key_load(const char *dir, struct wire_key **out, struct strata_errmsg *em) {
    char key_path[PATH_MAX_LEN], cert_path[PATH_MAX_LEN];
    struct wire_key *key = calloc(1, sizeof *key);
    struct ed25519_pub cert_pub;
    strata_err rc = key ? STRATA_OK : err_nomem(em, "a key");
    if (!rc) rc = path_join(key_path, sizeof key_path, dir, ED25519_KEY_FILE, em);
    if (!rc) rc = path_join(cert_path, sizeof cert_path, dir, CERT_FILE, em);
    if (!rc) rc = ed25519_key_load(key_path, &key->own, em);
    if (!rc) rc = load_cert(cert_path, &key->cert, em);
    if (rc) goto out;
    key->pub = *ed25519_key_pub(key->own);
    rc = wire_pub_of_cert(key->cert, &cert_pub, em);
    if (rc) {
        rc = err_prefix(em, "%s", cert_path);
        goto out;
    }
    if (!ed25519_pub_equal(&key->pub, &cert_pub)) {
        rc = err_set(em, STRATA_EFORMAT, "%s and %s do not belong together; remove both and run 'strata key new'",
                     key_path, cert_path);
        goto out;
    }
    *out = key;
    key = NULL;
out:
    wire_key_free(key);
    return rc;
}
