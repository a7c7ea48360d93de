/* The model card as a file. See pkg_card.h. */
#include "base/file.h"
#include "base/path.h"
#include "package/pkg_card_priv.h"
#include "package/pkg_check.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* The marker is a line of its own below the front matter: these, and 64 hexadecimal digits between. */
static const char marker_head[] = "<!-- Strata keeps this card up to date as long as nobody changes it: sha256 ";
static const char marker_tail[] = " -->\n";

enum { VALIDATION_MAX = PKG_MANIFEST_MAX_BYTES };

/* Digest of the card without its marker. */
static strata_err card_digest(const char *front, size_t front_len, const char *body, size_t body_len,
                              char hex[DIGEST_HEX], struct strata_errmsg *em) {
    struct digest *d = NULL;
    uint8_t sum[DIGEST_BYTES];
    strata_err rc = digest_new(&d, em);
    if (!rc) rc = digest_update(d, front, front_len, em);
    if (!rc) rc = digest_update(d, body, body_len, em);
    if (!rc) rc = digest_final(d, sum, em);
    if (!rc) digest_to_hex(sum, sizeof sum, hex);
    digest_free(d);
    return rc;
}

strata_err pkg_card_text(const struct pkg_manifest *m, const json_t *validation, struct buf *out,
                         struct strata_errmsg *em) {
    char hex[DIGEST_HEX];
    struct buf front, body;
    buf_init(&front, PKG_CARD_MAX_BYTES);
    buf_init(&body, PKG_CARD_MAX_BYTES);
    strata_err rc = pkg_card_front(m, &front, em);
    if (!rc) rc = pkg_card_body(m, validation, &body, em);
    if (!rc) rc = card_digest(front.data, front.len, body.data, body.len, hex, em);
    if (!rc) rc = buf_append(out, front.data, front.len, em);
    if (!rc) rc = buf_printf(out, em, "%s%s%s", marker_head, hex, marker_tail);
    if (!rc) rc = buf_append(out, body.data, body.len, em);
    buf_deinit(&front);
    buf_deinit(&body);
    return rc;
}

/* Whether a text is a card as pkg_card_text made it. */
static strata_err is_ours(const char *text, size_t len, bool *ours, struct strata_errmsg *em) {
    char hex[DIGEST_HEX];
    const size_t head = sizeof marker_head - 1, digits = DIGEST_HEX - 1, tail = sizeof marker_tail - 1;
    *ours = false;
    const char *at = memmem(text, len, marker_head, head);
    if (!at) return STRATA_OK;
    size_t left = len - (size_t)(at - text), whole = head + digits + tail;
    if (left < whole || memcmp(at + head + digits, marker_tail, tail) != 0) return STRATA_OK;
    strata_err rc = card_digest(text, (size_t)(at - text), at + whole, left - whole, hex, em);
    if (!rc) *ours = memcmp(at + head, hex, digits) == 0;
    return rc;
}

/* old gets the present text when the card is ours. */
static strata_err look(const char *path, struct buf *old, enum pkg_card_state *out, struct strata_errmsg *em) {
    struct stat st;
    bool ours;
    if (lstat(path, &st) != 0) {
        if (errno != ENOENT) return err_sys(em, STRATA_EIO, errno, "cannot look at %s", path);
        *out = PKG_CARD_ABSENT;
        return STRATA_OK;
    }
    *out = PKG_CARD_FOREIGN;
    if (!S_ISREG(st.st_mode) || st.st_size > PKG_CARD_MAX_BYTES) return STRATA_OK;
    strata_err rc = file_read_all(path, PKG_CARD_MAX_BYTES, old, em);
    if (!rc) rc = is_ours(buf_cstr(old), old->len, &ours, em);
    if (!rc && ours) *out = PKG_CARD_OURS;
    return rc;
}

strata_err pkg_card_look(const char *dir, enum pkg_card_state *out, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    struct buf old;
    buf_init(&old, PKG_CARD_MAX_BYTES);
    strata_err rc = path_join(path, sizeof path, dir, PKG_CARD_FILE, em);
    if (!rc) rc = look(path, &old, out, em);
    buf_deinit(&old);
    return rc;
}

static strata_err update(const char *dir, const struct pkg_manifest *m, const json_t *validation, bool create,
                         struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    enum pkg_card_state state = PKG_CARD_FOREIGN;
    struct buf old, text;
    buf_init(&old, PKG_CARD_MAX_BYTES);
    buf_init(&text, PKG_CARD_MAX_BYTES);
    strata_err rc = path_join(path, sizeof path, dir, PKG_CARD_FILE, em);
    if (!rc) rc = look(path, &old, &state, em);
    if (rc || state == PKG_CARD_FOREIGN || (state == PKG_CARD_ABSENT && !create)) goto out;
    rc = pkg_card_text(m, validation, &text, em);
    if (rc || (state == PKG_CARD_OURS && old.len == text.len && memcmp(old.data, text.data, old.len) == 0)) goto out;
    rc = file_write_all(path, text.data, text.len, 0644, em);
out:
    buf_deinit(&old);
    buf_deinit(&text);
    return rc;
}

strata_err pkg_card_update(const char *dir, const struct pkg_manifest *m, const json_t *validation,
                           struct strata_errmsg *em) {
    return update(dir, m, validation, true, em);
}

/* NULL when there is none that could be read. Fails only without memory. */
static strata_err read_validation(const char *dir, json_t **out, struct strata_errmsg *em) {
    char path[PATH_MAX_LEN];
    struct strata_errmsg why;
    struct buf text;
    buf_init(&text, VALIDATION_MAX);
    *out = NULL;
    strata_err rc = path_join(path, sizeof path, dir, PKG_CHECK_VALIDATION_FILE, &why);
    if (!rc) rc = file_read_all(path, VALIDATION_MAX, &text, &why);
    if (!rc) rc = jsonx_parse(buf_cstr(&text), text.len, out, &why);
    buf_deinit(&text);
    return rc == STRATA_ENOMEM ? err_nomem(em, "a validation result") : STRATA_OK;
}

strata_err pkg_card_refresh(const char *dir, struct strata_errmsg *em) {
    struct pkg_manifest *m = NULL;
    json_t *validation = NULL;
    strata_err rc = pkg_manifest_load(dir, &m, em);
    if (!rc) rc = read_validation(dir, &validation, em);
    if (!rc) rc = update(dir, m, validation, false, em);
    json_decref(validation);
    pkg_manifest_free(m);
    return rc;
}
