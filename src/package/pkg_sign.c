/* Signatures of packages. See pkg_sign.h. Nothing of a sidecar is believed before its signature is verified. */
#include "package/pkg_sign.h"

#include "base/file.h"
#include "base/path.h"
#include "package/pkg_inside.h"
#include "package/pkg_manifest.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define ALGORITHM "ed25519"

/* Its NUL is part of the message. */
static const char domain[] = "strata layer package manifest v1";

enum { SCHEMA = 1, MESSAGE_BYTES = sizeof domain + DIGEST_BYTES };

static void make_message(const uint8_t manifest_sha256[DIGEST_BYTES], uint8_t out[MESSAGE_BYTES]) {
    memcpy(out, domain, sizeof domain);
    memcpy(out + sizeof domain, manifest_sha256, DIGEST_BYTES);
}

/* ---- the sidecar's bytes ---- */

/* A version that is not known may have other keys, so it is looked at first. */
static strata_err check_version(const json_t *root, struct strata_errmsg *em) {
    uint64_t version;
    strata_err rc = jsonx_get_u64(root, "", "schema_version", true, INT64_MAX, &version, em);
    if (!rc && version != SCHEMA)
        rc = err_set(em, STRATA_EUNSUPPORTED, "schema_version is %llu; this version of Strata reads %d",
                     (unsigned long long)version, SCHEMA);
    return rc;
}

/* What is not signed must not be there to mislead anybody. */
static strata_err check_keys(const json_t *root, struct strata_errmsg *em) {
    static const char *const known[] = {"schema_version", "algorithm",       "public_key",
                                        "signed_file",    "manifest_sha256", "signature"};
    enum { N_KNOWN = sizeof known / sizeof known[0] };
    /* An iterator of jansson wants a pointer that is not const; nothing is changed. */
    json_t *obj = (json_t *)(uintptr_t)root;
    for (void *it = json_object_iter(obj); it; it = json_object_iter_next(obj, it)) {
        size_t i = 0;
        while (i < N_KNOWN && strcmp(known[i], json_object_iter_key(it)) != 0) i++;
        if (i == N_KNOWN) return err_set(em, STRATA_EFORMAT, "unknown key '%.60s'", json_object_iter_key(it));
    }
    return STRATA_OK;
}

static strata_err expect(const json_t *root, const char *key, const char *value, struct strata_errmsg *em) {
    const char *text;
    strata_err rc = jsonx_get_str(root, "", key, true, &text, em);
    if (!rc && strcmp(text, value) != 0)
        rc = err_set(em, STRATA_EUNSUPPORTED, "%s is '%.60s', not '%s'", key, text, value);
    return rc;
}

static strata_err get_sha256(const json_t *root, uint8_t out[DIGEST_BYTES], struct strata_errmsg *em) {
    const char *text;
    char again[DIGEST_HEX];
    strata_err rc = jsonx_get_str(root, "", "manifest_sha256", true, &text, em);
    if (rc) return rc;
    if (digest_from_hex(text, out) == 0) {
        digest_to_hex(out, DIGEST_BYTES, again);
        if (strcmp(again, text) == 0) return STRATA_OK;
    }
    return err_set(em, STRATA_EFORMAT, "manifest_sha256 must be 64 lower-case hexadecimal digits");
}

static strata_err parse_fields(const json_t *root, struct pkg_sign_doc *out, struct strata_errmsg *em) {
    const char *pub, *sig;
    strata_err rc = json_is_object(root) ? STRATA_OK : err_set(em, STRATA_EFORMAT, "the document is not an object");
    if (!rc) rc = check_version(root, em);
    if (!rc) rc = check_keys(root, em);
    if (!rc) rc = expect(root, "algorithm", ALGORITHM, em);
    if (!rc) rc = expect(root, "signed_file", PKG_MANIFEST_FILE, em);
    if (!rc) rc = get_sha256(root, out->manifest_sha256, em);
    if (!rc) rc = jsonx_get_str(root, "", "public_key", true, &pub, em);
    if (!rc) rc = jsonx_get_str(root, "", "signature", true, &sig, em);
    if (rc) return rc;
    if (ed25519_pub_parse(pub, &out->pub, NULL))
        return err_set(em, STRATA_EFORMAT, "public_key must be 44 characters of base64");
    if (ed25519_sig_parse(sig, &out->sig, NULL))
        return err_set(em, STRATA_EFORMAT, "signature must be 88 characters of base64");
    return STRATA_OK;
}

strata_err pkg_sign_parse(const void *data, size_t len, struct pkg_sign_doc *out, struct strata_errmsg *em) {
    json_t *root = NULL;
    struct pkg_sign_doc doc = {0};
    if (len > PKG_SIGN_MAX_BYTES)
        return err_set(em, STRATA_ELIMIT, "it has %zu bytes; at most %d are accepted", len, PKG_SIGN_MAX_BYTES);
    strata_err rc = jsonx_parse(data, len, &root, em);
    if (!rc) rc = parse_fields(root, &doc, em);
    if (!rc) *out = doc;
    json_decref(root);
    return rc;
}

strata_err pkg_sign_format(const uint8_t manifest_sha256[DIGEST_BYTES], const struct ed25519_key *key, struct buf *out,
                           struct strata_errmsg *em) {
    uint8_t message[MESSAGE_BYTES];
    struct ed25519_sig sig;
    char pub_text[ED25519_PUB_TEXT], sig_text[ED25519_SIG_TEXT], hex[DIGEST_HEX];
    make_message(manifest_sha256, message);
    strata_err rc = ed25519_sign(key, message, sizeof message, &sig, em);
    if (rc) return rc;
    digest_to_hex(manifest_sha256, DIGEST_BYTES, hex);
    json_t *root = json_pack("{s:i, s:s, s:s, s:s, s:s, s:s}", "schema_version", SCHEMA, "algorithm", ALGORITHM,
                             "public_key", ed25519_pub_text(ed25519_key_pub(key), pub_text), "signed_file",
                             PKG_MANIFEST_FILE, "manifest_sha256", hex, "signature", ed25519_sig_text(&sig, sig_text));
    if (!root) return err_nomem(em, "a signature");
    rc = jsonx_dump(root, true, out, em);
    if (!rc) rc = buf_append_str(out, "\n", em);
    json_decref(root);
    return rc;
}

/* ---- looking at a package ---- */

strata_err pkg_sign_digest(const char *dir, char manifest_sha256[DIGEST_HEX], struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    uint8_t sha[DIGEST_BYTES];
    struct buf text;
    buf_init(&text, PKG_MANIFEST_MAX_BYTES);
    strata_err rc = path_join(path, sizeof path, dir, PKG_MANIFEST_FILE, em);
    if (!rc) rc = file_read_all(path, PKG_MANIFEST_MAX_BYTES, &text, em);
    if (!rc) rc = digest_of(buf_cstr(&text), text.len, sha, em);
    if (!rc) digest_to_hex(sha, sizeof sha, manifest_sha256);
    buf_deinit(&text);
    return rc;
}

/* Reads the sidecar; *there is false when no entry of that name exists, a broken link included. */
static strata_err read_sidecar(const char *dir, bool *there, struct buf *out, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    struct stat st;
    bool inside = false;
    strata_err rc = path_join(path, sizeof path, dir, PKG_SIGN_FILE, em);
    if (rc) return rc;
    *there = lstat(path, &st) == 0 || errno != ENOENT;
    if (!*there) return STRATA_OK;
    rc = pkg_inside(dir, PKG_SIGN_FILE, &inside, em);
    if (!rc && !inside) rc = err_set(em, STRATA_EFORMAT, "it is a link that leads out of the package");
    return rc ? rc : file_read_all(path, PKG_SIGN_MAX_BYTES, out, em);
}

/* A sidecar that can be read, against the manifest. */
static strata_err judge(const struct buf *text, const uint8_t manifest_sha256[DIGEST_BYTES], struct pkg_signature *s,
                        struct strata_errmsg *em) {
    struct pkg_sign_doc doc;
    uint8_t message[MESSAGE_BYTES];
    char key[ED25519_PUB_TEXT];
    bool good = false;
    strata_err rc = pkg_sign_parse(buf_cstr(text), text->len, &doc, em);
    if (rc) return rc;
    if (memcmp(doc.manifest_sha256, manifest_sha256, DIGEST_BYTES) != 0)
        return err_set(em, STRATA_EDIGEST,
                       "it is for another manifest: this one was changed since, or the two do not belong together");
    make_message(manifest_sha256, message);
    rc = ed25519_verify(&doc.pub, message, sizeof message, &doc.sig, &good, em);
    if (rc) return rc;
    if (!good)
        return err_set(em, STRATA_EAUTH, "it was not made with the key %s that it names",
                       ed25519_pub_text(&doc.pub, key));
    *s = (struct pkg_signature){.state = PKG_SIGN_GOOD, .signer = doc.pub};
    return STRATA_OK;
}

strata_err pkg_sign_verify(const char *dir, const char *manifest_sha256, struct pkg_signature *out,
                           struct strata_errmsg *em) {
    struct strata_errmsg why;
    struct pkg_signature s = {.state = PKG_SIGN_NONE};
    struct buf text;
    uint8_t sha[DIGEST_BYTES];
    bool there = true;
    if (digest_from_hex(manifest_sha256, sha) != 0)
        return err_set(em, STRATA_EINTERNAL, "'%.70s' is not the digest of a manifest", manifest_sha256);
    buf_init(&text, PKG_SIGN_MAX_BYTES);
    strata_err rc = read_sidecar(dir, &there, &text, &why);
    if (!rc && there) rc = judge(&text, sha, &s, &why);
    buf_deinit(&text);
    if (rc == STRATA_ENOMEM || rc == STRATA_EINTERNAL) return err_set(em, rc, "%s", why.text);
    if (rc) {
        s.state = PKG_SIGN_BAD;
        snprintf(s.reason, sizeof s.reason, "%.*s", PKG_SIGN_REASON - 1, why.text);
    }
    *out = s;
    return STRATA_OK;
}

strata_err pkg_sign_accept(const struct pkg_signature *s, const char *dir, const struct ed25519_pub *want,
                           struct strata_errmsg *em) {
    char have[ED25519_PUB_TEXT], need[ED25519_PUB_TEXT];
    if (!want) return STRATA_OK;
    ed25519_pub_text(want, need);
    switch (s->state) {
    case PKG_SIGN_GOOD:
        if (ed25519_pub_equal(&s->signer, want)) return STRATA_OK;
        return err_set(em, STRATA_EAUTH,
                       "%.200s is signed by %s, not by the required key %s; compare the two with the key that the "
                       "publisher states",
                       dir, ed25519_pub_text(&s->signer, have), need);
    case PKG_SIGN_NONE:
        return err_set(em, STRATA_EAUTH,
                       "%.200s is not signed, and a signature by %s is required; get %s from the publisher, or do not "
                       "require a signature if you know where the package comes from",
                       dir, need, PKG_SIGN_FILE);
    default:
        return err_set(em, STRATA_EAUTH,
                       "%.200s has a bad signature, and one by %s is required: %s: %s; do not use this package, fetch "
                       "it again",
                       dir, need, PKG_SIGN_FILE, s->reason);
    }
}

strata_err pkg_sign_require(const char *dir, const char *manifest_sha256, const struct ed25519_pub *want,
                            struct pkg_signature *out, struct strata_errmsg *em) {
    struct pkg_signature s;
    strata_err rc = pkg_sign_verify(dir, manifest_sha256, &s, em);
    if (!rc) rc = pkg_sign_accept(&s, dir, want, em);
    if (!rc) *out = s;
    return rc;
}

/* ---- telling ---- */

const char *pkg_sign_state_name(enum pkg_sign_state state) {
    static const char *const names[] = {"unsigned", "signed", "bad"};
    return names[state];
}

const char *pkg_sign_text(const struct pkg_signature *s, char out[PKG_SIGN_TEXT]) {
    char key[ED25519_PUB_TEXT];
    switch (s->state) {
    case PKG_SIGN_GOOD: snprintf(out, PKG_SIGN_TEXT, "signed by %s", ed25519_pub_text(&s->signer, key)); break;
    case PKG_SIGN_NONE: snprintf(out, PKG_SIGN_TEXT, "unsigned"); break;
    default: snprintf(out, PKG_SIGN_TEXT, "BAD signature: %s", s->reason); break;
    }
    return out;
}

strata_err pkg_sign_to_json(const struct pkg_signature *s, json_t **out, struct strata_errmsg *em) {
    char key[ED25519_PUB_TEXT];
    json_t *root = json_pack("{s:s}", "state", pkg_sign_state_name(s->state));
    int failed = root ? 0 : -1;
    if (root && s->state == PKG_SIGN_GOOD)
        failed = json_object_set_new(root, "public_key", json_string(ed25519_pub_text(&s->signer, key)));
    if (root && s->state == PKG_SIGN_BAD)
        failed = json_object_set_new(root, "reason", jsonx_text(s->reason, strlen(s->reason)));
    if (failed) {
        json_decref(root);
        return err_nomem(em, "a report");
    }
    *out = root;
    return STRATA_OK;
}

void pkg_sign_add_faults(const struct pkg_signature *s, const struct ed25519_pub *want, struct pkg_faults *faults) {
    struct strata_errmsg em;
    if (s->state == PKG_SIGN_NONE)
        pkg_faults_add(faults, PKG_FAULT_UNSIGNED, NULL, "the package has no %s", PKG_SIGN_FILE);
    if (s->state == PKG_SIGN_BAD)
        pkg_faults_add(faults, PKG_FAULT_BAD_SIGNATURE, PKG_SIGN_FILE, "bad signature: %s", s->reason);
    else if (pkg_sign_accept(s, "the package", want, &em))
        pkg_faults_add(faults, PKG_FAULT_UNTRUSTED_SIGNATURE, s->state == PKG_SIGN_GOOD ? PKG_SIGN_FILE : NULL, "%s",
                       em.text);
}

/* ---- signing ---- */

/* Whether what stands there may be replaced; *same when it is the very document that would be written. */
static strata_err may_replace(const char *dir, const struct pkg_sign_result *r, bool force, const struct buf *doc,
                              bool *same, struct strata_errmsg *em) {
    struct pkg_signature s;
    struct buf old;
    bool there = false;
    char key[ED25519_PUB_TEXT];
    buf_init(&old, PKG_SIGN_MAX_BYTES);
    strata_err rc = pkg_sign_verify(dir, r->manifest_sha256, &s, em);
    if (rc || s.state == PKG_SIGN_NONE) goto out;
    if (s.state == PKG_SIGN_BAD && !force)
        rc = err_set(em, STRATA_EBUSY, "%.200s/%s is not a good signature of this package: %s; --force replaces it",
                     dir, PKG_SIGN_FILE, s.reason);
    if (s.state == PKG_SIGN_GOOD && !ed25519_pub_equal(&s.signer, &r->pub) && !force)
        rc = err_set(em, STRATA_EBUSY, "%.200s is signed by another key, %s; --force replaces that signature", dir,
                     ed25519_pub_text(&s.signer, key));
    if (rc) goto out;
    *same = !read_sidecar(dir, &there, &old, NULL) && old.len == doc->len &&
            memcmp(buf_cstr(&old), buf_cstr(doc), doc->len) == 0;
out:
    buf_deinit(&old);
    return rc;
}

strata_err pkg_sign_write(const char *dir, const struct ed25519_key *key, bool force, struct pkg_sign_result *out,
                          struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    struct pkg_manifest *m = NULL;
    struct pkg_sign_result r = {.pub = *ed25519_key_pub(key)};
    struct buf doc;
    uint8_t sha[DIGEST_BYTES];
    bool same = false;
    buf_init(&doc, PKG_SIGN_MAX_BYTES);
    strata_err rc = path_join(path, sizeof path, dir, PKG_SIGN_FILE, em);
    if (!rc) rc = pkg_manifest_load(dir, &m, em);
    if (rc) goto out;
    memcpy(r.manifest_sha256, m->sha256, sizeof r.manifest_sha256);
    if (digest_from_hex(m->sha256, sha) != 0) {
        rc = err_set(em, STRATA_EINTERNAL, "%s has no digest", dir);
        goto out;
    }
    rc = pkg_sign_format(sha, key, &doc, em);
    if (!rc) rc = may_replace(dir, &r, force, &doc, &same, em);
    if (!rc && !same) rc = file_write_all(path, buf_cstr(&doc), doc.len, 0644, em);
    if (rc) goto out;
    r.changed = !same;
    *out = r;
out:
    pkg_manifest_free(m);
    buf_deinit(&doc);
    return rc;
}
