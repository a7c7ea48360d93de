/* Ed25519. See ed25519.h. Memory that held a private key is wiped before it is given back. */
#include "base/ed25519.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/path.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PEM_MAX = 16 << 10, PUB_FILE_MAX = 4 << 10 };

struct ed25519_key {
    EVP_PKEY *pkey;
    struct ed25519_pub pub;
};

static strata_err ssl_fail(struct strata_errmsg *em, const char *what) {
    char text[160];
    ERR_error_string_n(ERR_peek_last_error(), text, sizeof text);
    ERR_clear_error();
    /* OpenSSL does not tell the two apart; memory is the likelier one. */
    return err_set(em, STRATA_ENOMEM, "%s: no memory, or no Ed25519 in this OpenSSL (%s)", what, text);
}

/* ---- text ---- */

bool ed25519_pub_equal(const struct ed25519_pub *a, const struct ed25519_pub *b) {
    return CRYPTO_memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

const char *ed25519_pub_text(const struct ed25519_pub *pub, char out[ED25519_PUB_TEXT]) {
    EVP_EncodeBlock((unsigned char *)out, pub->bytes, ED25519_PUB_BYTES);
    return out;
}

const char *ed25519_sig_text(const struct ed25519_sig *sig, char out[ED25519_SIG_TEXT]) {
    EVP_EncodeBlock((unsigned char *)out, sig->bytes, ED25519_SIG_BYTES);
    return out;
}

/* n bytes, at most a signature's, from their one base64 spelling. */
static bool from_base64(const char *text, uint8_t *out, size_t n) {
    unsigned char raw[ED25519_SIG_BYTES + 2];
    unsigned char again[ED25519_SIG_TEXT];
    size_t len = (n + 2) / 3 * 4;
    if (strlen(text) != len || EVP_DecodeBlock(raw, (const unsigned char *)text, (int)len) < (int)n) return false;
    /* The decoder accepts stray bits and white space; writing it anew shows them. */
    EVP_EncodeBlock(again, raw, (int)n);
    if (memcmp(again, text, len) != 0) return false;
    memcpy(out, raw, n);
    return true;
}

strata_err ed25519_pub_parse(const char *text, struct ed25519_pub *out, struct strata_errmsg *em) {
    if (from_base64(text, out->bytes, sizeof out->bytes)) return STRATA_OK;
    return err_set(em, STRATA_EINVAL,
                   "'%.80s' is not a public key: 44 characters of base64, as 'strata key show' prints", text);
}

strata_err ed25519_sig_parse(const char *text, struct ed25519_sig *out, struct strata_errmsg *em) {
    if (from_base64(text, out->bytes, sizeof out->bytes)) return STRATA_OK;
    return err_set(em, STRATA_EINVAL, "'%.100s' is not a signature: 88 characters of base64", text);
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* What the file holds is never repeated: it may be a private key, named by mistake. */
static strata_err pub_from_file(const char *path, struct ed25519_pub *out, struct strata_errmsg *em) {
    struct buf text;
    buf_init(&text, PUB_FILE_MAX + 1);
    strata_err rc = file_read_all(path, PUB_FILE_MAX, &text, em);
    if (rc) goto out;
    while (text.len && is_blank(text.data[text.len - 1])) text.data[--text.len] = '\0';
    const char *start = buf_cstr(&text);
    while (is_blank(*start)) start++;
    if (strlen(buf_cstr(&text)) != text.len || ed25519_pub_parse(start, out, NULL))
        rc = err_set(em, STRATA_EINVAL,
                     "%s does not hold one public key and nothing else: 44 characters of base64, as 'strata key show' "
                     "prints",
                     path);
out:
    if (text.data) OPENSSL_cleanse(text.data, text.cap);
    buf_deinit(&text);
    return rc;
}

strata_err ed25519_pub_arg(const char *text_or_file, struct ed25519_pub *out, struct strata_errmsg *em) {
    if (ed25519_pub_parse(text_or_file, out, NULL) == STRATA_OK) return STRATA_OK;
    if (file_is_regular(text_or_file)) return pub_from_file(text_or_file, out, em);
    return err_set(em, STRATA_EINVAL,
                   "'%.80s' is neither a public key (44 characters of base64, as 'strata key show' prints) nor a file "
                   "that holds one",
                   text_or_file);
}

/* ---- keys ---- */

strata_err ed25519_key_dir(char *out, size_t cap, struct strata_errmsg *em) {
    const char *xdg = getenv("XDG_CONFIG_HOME");
    const char *home = getenv("HOME");
    if (xdg && xdg[0] == '/') return path_join(out, cap, xdg, "strata", em);
    if (!home || home[0] != '/')
        return err_set(em, STRATA_EINVAL,
                       "neither XDG_CONFIG_HOME nor HOME is set, so this machine's key folder is unknown: name one");
    return path_join(out, cap, home, ".config/strata", em);
}

strata_err ed25519_pub_of_evp(const EVP_PKEY *pkey, struct ed25519_pub *out, struct strata_errmsg *em) {
    struct ed25519_pub pub;
    size_t len = sizeof pub.bytes;
    if (EVP_PKEY_get_base_id(pkey) != EVP_PKEY_ED25519 || EVP_PKEY_get_raw_public_key(pkey, pub.bytes, &len) != 1 ||
        len != sizeof pub.bytes) {
        ERR_clear_error();
        return err_set(em, STRATA_EAUTH, "the key is not an Ed25519 key");
    }
    *out = pub;
    return STRATA_OK;
}

/* Takes over pkey, also on failure. */
static strata_err wrap(EVP_PKEY *pkey, struct ed25519_key **out, struct strata_errmsg *em) {
    struct ed25519_key *key = calloc(1, sizeof *key);
    if (!key) {
        EVP_PKEY_free(pkey);
        return err_nomem(em, "a key");
    }
    key->pkey = pkey;
    strata_err rc = ed25519_pub_of_evp(pkey, &key->pub, em);
    if (rc) {
        ed25519_key_free(key);
        return rc;
    }
    *out = key;
    return STRATA_OK;
}

strata_err ed25519_key_generate(struct ed25519_key **out, struct strata_errmsg *em) {
    EVP_PKEY *pkey = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    return pkey ? wrap(pkey, out, em) : ssl_fail(em, "cannot make a key");
}

void ed25519_key_free(struct ed25519_key *key) {
    if (!key) return;
    EVP_PKEY_free(key->pkey);
    free(key);
}

const struct ed25519_pub *ed25519_key_pub(const struct ed25519_key *key) {
    return &key->pub;
}

EVP_PKEY *ed25519_key_evp(const struct ed25519_key *key) {
    return key->pkey;
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

static int no_password(char *out, int size, int rwflag, void *ctx) {
    (void)out, (void)size, (void)rwflag, (void)ctx;
    return -1;
}

static strata_err load_file(const char *path, struct ed25519_key **out, struct strata_errmsg *em) {
    struct buf text;
    BIO *bio = NULL;
    EVP_PKEY *pkey;
    buf_init(&text, PEM_MAX + 1);
    strata_err rc = check_private(path, em);
    if (!rc) rc = file_read_all(path, PEM_MAX, &text, em);
    if (rc) goto out;
    bio = BIO_new_mem_buf(buf_cstr(&text), (int)text.len);
    if (!bio) {
        rc = err_nomem(em, "a key file");
        goto out;
    }
    pkey = PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL);
    ERR_clear_error();
    if (!pkey) {
        rc = err_set(em, STRATA_EFORMAT, "%s is not a private key without a password in PEM form", path);
        goto out;
    }
    rc = wrap(pkey, out, em);
    if (rc) rc = err_prefix(em, "%s", path);
out:
    BIO_free(bio);
    if (text.data) OPENSSL_cleanse(text.data, text.cap);
    buf_deinit(&text);
    return rc;
}

strata_err ed25519_key_load(const char *path, struct ed25519_key **out, struct strata_errmsg *em) {
    char inside[PATH_MAX_LEN];
    if (!file_is_dir(path)) return load_file(path, out, em);
    strata_err rc = path_join(inside, sizeof inside, path, ED25519_KEY_FILE, em);
    return rc ? rc : load_file(inside, out, em);
}

strata_err ed25519_key_save(const struct ed25519_key *key, const char *path, struct strata_errmsg *em) {
    strata_err rc;
    char *data;
    BIO *bio = BIO_new(BIO_s_secmem());
    if (!bio || PEM_write_bio_PKCS8PrivateKey(bio, key->pkey, NULL, NULL, 0, NULL, NULL) != 1) {
        rc = ssl_fail(em, "cannot encode the key");
        goto out;
    }
    long len = BIO_get_mem_data(bio, &data);
    rc = file_write_all(path, data, (size_t)len, 0600, em);
out:
    BIO_free(bio);
    return rc;
}

/* ---- signatures ---- */

strata_err ed25519_sign(const struct ed25519_key *key, const void *data, size_t len, struct ed25519_sig *out,
                        struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    struct ed25519_sig sig;
    size_t n = sizeof sig.bytes;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    if (!ctx) return err_nomem(em, "a signature");
    if (EVP_DigestSignInit(ctx, NULL, NULL, NULL, key->pkey) != 1 ||
        EVP_DigestSign(ctx, sig.bytes, &n, data, len) != 1 || n != sizeof sig.bytes) {
        rc = ssl_fail(em, "cannot sign");
        goto out;
    }
    *out = sig;
out:
    EVP_MD_CTX_free(ctx);
    return rc;
}

/* 1: it fits, 0: it does not, or memory ran out somewhere inside, -1: it could not be looked at. */
static int verify_once(const struct ed25519_pub *pub, const void *data, size_t len, const struct ed25519_sig *sig) {
    int rc = -1;
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    EVP_PKEY *pkey = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, pub->bytes, sizeof pub->bytes);
    if (ctx && pkey && EVP_DigestVerifyInit(ctx, NULL, NULL, NULL, pkey) == 1) {
        ERR_clear_error();
        rc = EVP_DigestVerify(ctx, sig->bytes, sizeof sig->bytes, data, len) == 1;
        if (!rc && ERR_peek_error() != 0) rc = -1;
    }
    EVP_PKEY_free(pkey);
    EVP_MD_CTX_free(ctx);
    return rc;
}

/* The first signature of RFC 8032, 7.1: that of the empty message. Where it does not fit, none would. */
static bool verification_works(void) {
    static const struct ed25519_pub pub = {{0xd7, 0x5a, 0x98, 0x01, 0x82, 0xb1, 0x0a, 0xb7, 0xd5, 0x4b, 0xfe,
                                            0xd3, 0xc9, 0x64, 0x07, 0x3a, 0x0e, 0xe1, 0x72, 0xf3, 0xda, 0xa6,
                                            0x23, 0x25, 0xaf, 0x02, 0x1a, 0x68, 0xf7, 0x07, 0x51, 0x1a}};
    static const struct ed25519_sig sig = {
        {0xe5, 0x56, 0x43, 0x00, 0xc3, 0x60, 0xac, 0x72, 0x90, 0x86, 0xe2, 0xcc, 0x80, 0x6e, 0x82, 0x8a,
         0x84, 0x87, 0x7f, 0x1e, 0xb8, 0xe5, 0xd9, 0x74, 0xd8, 0x73, 0xe0, 0x65, 0x22, 0x49, 0x01, 0x55,
         0x5f, 0xb8, 0x82, 0x15, 0x90, 0xa3, 0x3b, 0xac, 0xc6, 0x1e, 0x39, 0x70, 0x1c, 0xf9, 0xb4, 0x6b,
         0xd2, 0x5b, 0xf5, 0xf0, 0x59, 0x5b, 0xbe, 0x24, 0x65, 0x51, 0x41, 0x43, 0x8e, 0x7a, 0x10, 0x0b}};
    return verify_once(&pub, "", 0, &sig) == 1;
}

/* "It does not fit" is an accusation: it is made only when verification works before, and the second look agrees. */
strata_err ed25519_verify(const struct ed25519_pub *pub, const void *data, size_t len, const struct ed25519_sig *sig,
                          bool *good, struct strata_errmsg *em) {
    int rc = verify_once(pub, data, len, sig);
    if (rc == 0) rc = verification_works() ? verify_once(pub, data, len, sig) : -1;
    if (rc < 0) return ssl_fail(em, "cannot verify a signature");
    *good = rc == 1;
    ERR_clear_error();
    return STRATA_OK;
}
