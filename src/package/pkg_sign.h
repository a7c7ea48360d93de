/*
 * A publisher's signature over a package: the sidecar file model-package.sig.json beside the manifest.
 *
 *   {
 *     "schema_version": 1,
 *     "algorithm": "ed25519",
 *     "public_key": "<44 characters of base64>",
 *     "signed_file": "model-package.json",
 *     "manifest_sha256": "<64 lower-case hexadecimal digits>",
 *     "signature": "<88 characters of base64>"
 *   }
 *
 * Signed are the ASCII text "strata layer package manifest v1", one NUL byte, and the 32 bytes of the manifest's
 * SHA-256: no other use of the same key makes such a message. The manifest states size and SHA-256 of every part, so
 * the signature covers the whole package for whoever compares those. It does not depend on the schema of the manifest.
 *
 * A signature says that the holder of a key made this manifest. Whether that key is the publisher's, only a comparison
 * with what the publisher states can tell: that is what `require` is for.
 */
#ifndef PKG_SIGN_H
#define PKG_SIGN_H

#include "base/buf.h"
#include "base/digest.h"
#include "base/ed25519.h"
#include "package/pkg_fault.h"

#define PKG_SIGN_FILE "model-package.sig.json"

enum { PKG_SIGN_MAX_BYTES = 4 << 10, PKG_SIGN_REASON = 320, PKG_SIGN_TEXT = PKG_SIGN_REASON + 32 };

/* ---- the sidecar's bytes ---- */

/* What a sidecar says; nothing about it is proved yet. */
struct pkg_sign_doc {
    struct ed25519_pub pub;
    uint8_t manifest_sha256[DIGEST_BYTES];
    struct ed25519_sig sig;
};

/* Pure and strict: exactly the six keys, each value in its one spelling. EFORMAT, EUNSUPPORTED or ELIMIT. */
strata_err pkg_sign_parse(const void *data, size_t len, struct pkg_sign_doc *out, struct strata_errmsg *em);

/* Appends a sidecar. Deterministic: no time, no randomness. */
strata_err pkg_sign_format(const uint8_t manifest_sha256[DIGEST_BYTES], const struct ed25519_key *key, struct buf *out,
                           struct strata_errmsg *em);

/* ---- looking at a package ---- */

enum pkg_sign_state {
    PKG_SIGN_NONE, /* there is no sidecar */
    PKG_SIGN_GOOD, /* a good signature of this manifest */
    PKG_SIGN_BAD   /* a sidecar, but not a good signature of this manifest */
};

struct pkg_signature {
    enum pkg_sign_state state;
    struct ed25519_pub signer;    /* of PKG_SIGN_GOOD */
    char reason[PKG_SIGN_REASON]; /* of PKG_SIGN_BAD: one line */
};

/* The digest of dir/model-package.json as it stands, in lower-case hexadecimal. */
strata_err pkg_sign_digest(const char *dir, char manifest_sha256[DIGEST_HEX], struct strata_errmsg *em);

/* Compares dir's sidecar with the manifest whose digest the caller has. Whatever is wrong with the sidecar is a state,
 * not a failure: the result is an error only when memory runs out. */
strata_err pkg_sign_verify(const char *dir, const char *manifest_sha256, struct pkg_signature *out,
                           struct strata_errmsg *em);

/* EAUTH, with what to do, unless the package has a good signature by `want`. NULL wants nothing. */
strata_err pkg_sign_accept(const struct pkg_signature *s, const char *dir, const struct ed25519_pub *want,
                           struct strata_errmsg *em);

/* Both: what a loader calls as soon as it has read the manifest. *out is set on success. */
strata_err pkg_sign_require(const char *dir, const char *manifest_sha256, const struct ed25519_pub *want,
                            struct pkg_signature *out, struct strata_errmsg *em);

/* ---- telling ---- */

/* "signed", "unsigned", "bad". */
const char *pkg_sign_state_name(enum pkg_sign_state state);
/* "signed by KEY", "unsigned", "BAD signature: why". Returns out. */
const char *pkg_sign_text(const struct pkg_signature *s, char out[PKG_SIGN_TEXT]);
/* A new object {state, public_key?, reason?}: the key of a good signature alone, for that of a bad one proves nothing.
 */
strata_err pkg_sign_to_json(const struct pkg_signature *s, json_t **out, struct strata_errmsg *em);
/* Adds unsigned, bad_signature or untrusted_signature (not by `want`, when that is not NULL). */
void pkg_sign_add_faults(const struct pkg_signature *s, const struct ed25519_pub *want, struct pkg_faults *faults);

/* ---- signing ---- */

struct pkg_sign_result {
    char manifest_sha256[DIGEST_HEX];
    struct ed25519_pub pub;
    bool changed; /* false: the very same signature was there already */
};

/*
 * Signs dir's manifest, which must be one that can be read without errors. Written atomically. A sidecar that is bad or
 * by another key is replaced only with `force` (EBUSY).
 */
strata_err pkg_sign_write(const char *dir, const struct ed25519_key *key, bool force, struct pkg_sign_result *out,
                          struct strata_errmsg *em);

#endif
