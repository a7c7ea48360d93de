/* Keys: making, storing, loading. The trust list is in wire_trust.c. See wire_key.h. */
#include "wire/wire_key.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/path.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PEM_MAX = 16 << 10 };

bool wire_pub_equal(const struct wire_pub *a, const struct wire_pub *b) {
    return CRYPTO_memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

const char *wire_pub_text(const struct wire_pub *pub, char out[WIRE_PUB_TEXT]) {
    EVP_EncodeBlock((unsigned char *)out, pub->bytes, WIRE_PUB_BYTES);
    return out;
}

strata_err wire_pub_parse(const char *text, struct wire_pub *out, struct strata_errmsg *em) {
    unsigned char raw[WIRE_PUB_BYTES + 1];
    struct wire_pub pub;
    char again[WIRE_PUB_TEXT];
    size_t len = strlen(text);
    if (len != WIRE_PUB_TEXT - 1 || text[len - 1] != '=' ||
        EVP_DecodeBlock(raw, (const unsigned char *)text, (int)len) != WIRE_PUB_BYTES + 1)
        goto bad;
    memcpy(pub.bytes, raw, WIRE_PUB_BYTES);
    /* The decoder accepts stray bits and white space; a key has one spelling only. */
    if (strcmp(wire_pub_text(&pub, again), text) != 0) goto bad;
    *out = pub;
    return STRATA_OK;
bad:
    return err_set(em, STRATA_EINVAL,
                   "'%.80s' is not a public key: 44 characters of base64, as 'strata key show' prints", text);
}

static strata_err ssl_fail(struct strata_errmsg *em, const char *what) {
    char text[160];
    ERR_error_string_n(ERR_peek_last_error(), text, sizeof text);
    ERR_clear_error();
    return err_set(em, STRATA_EINTERNAL, "%s: %s", what, text);
}

static strata_err raw_public(EVP_PKEY *pkey, struct wire_pub *out, struct strata_errmsg *em) {
    struct wire_pub pub;
    size_t len = sizeof pub.bytes;
    if (EVP_PKEY_get_base_id(pkey) != EVP_PKEY_ED25519 || EVP_PKEY_get_raw_public_key(pkey, pub.bytes, &len) != 1 ||
        len != sizeof pub.bytes)
        return err_set(em, STRATA_EAUTH, "the key is not an Ed25519 key");
    *out = pub;
    return STRATA_OK;
}

strata_err wire_pub_of_cert(X509 *cert, struct wire_pub *out, struct strata_errmsg *em) {
    EVP_PKEY *pkey = X509_get0_pubkey(cert);
    if (!pkey) {
        ERR_clear_error();
        return err_set(em, STRATA_EAUTH, "the certificate has no usable key");
    }
    return raw_public(pkey, out, em);
}

strata_err wire_key_default_dir(char *out, size_t cap, struct strata_errmsg *em) {
    const char *xdg = getenv("XDG_CONFIG_HOME");
    const char *home = getenv("HOME");
    if (xdg && xdg[0] == '/') return path_join(out, cap, xdg, "strata", em);
    if (!home || home[0] != '/')
        return err_set(em, STRATA_EINVAL, "neither XDG_CONFIG_HOME nor HOME is set; give --key-dir");
    return path_join(out, cap, home, ".config/strata", em);
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
    strata_err rc = STRATA_OK;
    if (!key) return err_nomem(em, "a key");
    key->pkey = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    if (!key->pkey) {
        rc = ssl_fail(em, "cannot make a key");
        goto out;
    }
    rc = make_cert(key->pkey, &key->cert, em);
    if (!rc) rc = raw_public(key->pkey, &key->pub, em);
    if (rc) goto out;
    *out = key;
    key = NULL;
out:
    wire_key_free(key);
    return rc;
}

void wire_key_free(struct wire_key *key) {
    if (!key) return;
    EVP_PKEY_free(key->pkey);
    X509_free(key->cert);
    free(key);
}

/* Writes what is in a memory BIO to a file of its own. */
static strata_err write_bio(BIO *bio, const char *dir, const char *name, unsigned mode, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    char *data;
    long len = BIO_get_mem_data(bio, &data);
    strata_err rc = path_join(path, sizeof path, dir, name, em);
    if (rc) return rc;
    return file_write_all(path, data, (size_t)len, mode, em);
}

strata_err wire_key_save(const struct wire_key *key, const char *dir, struct strata_errmsg *em) {
    strata_err rc;
    BIO *priv = BIO_new(BIO_s_secmem());
    BIO *cert = BIO_new(BIO_s_mem());
    if (!priv || !cert || PEM_write_bio_PKCS8PrivateKey(priv, key->pkey, NULL, NULL, 0, NULL, NULL) != 1 ||
        PEM_write_bio_X509(cert, key->cert) != 1) {
        rc = ssl_fail(em, "cannot encode the key");
        goto out;
    }
    rc = write_bio(cert, dir, "cert.pem", 0644, em);
    /* The private key comes last: where key.pem is, the pair is whole. */
    if (!rc) rc = write_bio(priv, dir, "key.pem", 0600, em);
out:
    BIO_free(priv);
    BIO_free(cert);
    return rc;
}

strata_err wire_key_create(const char *dir, struct wire_pub *out, struct strata_errmsg *em) {
    struct wire_key *key = NULL;
    char path[PATH_MAX_LEN];
    struct stat st;
    strata_err rc = path_join(path, sizeof path, dir, "key.pem", em);
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

static int no_password(char *out, int size, int rwflag, void *ctx) {
    (void)out, (void)size, (void)rwflag, (void)ctx;
    return -1;
}

/* Reads a small PEM file into a BIO that owns a copy. */
static strata_err read_bio(const char *path, BIO **out, struct strata_errmsg *em) {
    struct buf text;
    buf_init(&text, PEM_MAX);
    strata_err rc = file_read_all(path, PEM_MAX, &text, em);
    if (rc) goto out;
    BIO *bio = BIO_new(BIO_s_mem());
    if (!bio || BIO_write(bio, buf_cstr(&text), (int)text.len) != (int)text.len) {
        BIO_free(bio);
        rc = err_nomem(em, "a key file");
        goto out;
    }
    *out = bio;
out:
    if (text.data) OPENSSL_cleanse(text.data, text.cap);
    buf_deinit(&text);
    return rc;
}

static strata_err check_private(const char *path, struct strata_errmsg *em) {
    struct stat st;
    if (stat(path, &st) != 0) {
        if (errno == ENOENT)
            return err_set(em, STRATA_ENOENT, "there is no key at %s; make one with 'strata key new'", path);
        return err_sys(em, STRATA_EIO, errno, "cannot read %s", path);
    }
    if (st.st_mode & 077)
        return err_set(em, STRATA_EAUTH, "%s can be read by other users (mode %04o); run: chmod 600 %s", path,
                       st.st_mode & 07777u, path);
    return STRATA_OK;
}

strata_err wire_key_load(const char *dir, struct wire_key **out, struct strata_errmsg *em) {
    char key_path[PATH_MAX_LEN], cert_path[PATH_MAX_LEN];
    BIO *key_bio = NULL, *cert_bio = NULL;
    struct wire_key *key = calloc(1, sizeof *key);
    struct wire_pub cert_pub;
    strata_err rc = key ? STRATA_OK : err_nomem(em, "a key");
    if (!rc) rc = path_join(key_path, sizeof key_path, dir, "key.pem", em);
    if (!rc) rc = path_join(cert_path, sizeof cert_path, dir, "cert.pem", em);
    if (!rc) rc = check_private(key_path, em);
    if (!rc) rc = read_bio(key_path, &key_bio, em);
    if (!rc) rc = read_bio(cert_path, &cert_bio, em);
    if (rc) goto out;
    key->pkey = PEM_read_bio_PrivateKey(key_bio, NULL, no_password, NULL);
    key->cert = PEM_read_bio_X509(cert_bio, NULL, no_password, NULL);
    ERR_clear_error();
    if (!key->pkey || !key->cert) {
        rc = err_set(em, STRATA_EFORMAT, "%s is not a %s in PEM form", key->pkey ? cert_path : key_path,
                     key->pkey ? "certificate" : "private key without a password");
        goto out;
    }
    rc = raw_public(key->pkey, &key->pub, em);
    if (!rc) rc = wire_pub_of_cert(key->cert, &cert_pub, em);
    if (rc) {
        rc = err_prefix(em, "%s", key_path);
        goto out;
    }
    if (!wire_pub_equal(&key->pub, &cert_pub)) {
        rc = err_set(em, STRATA_EFORMAT, "%s and %s do not belong together; remove both and run 'strata key new'",
                     key_path, cert_path);
        goto out;
    }
    *out = key;
    key = NULL;
out:
    BIO_free(key_bio);
    BIO_free(cert_bio);
    wire_key_free(key);
    return rc;
}
