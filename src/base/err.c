/* Error texts: formatting, truncation, and the names of the codes. Owns nothing. */
#include "base/err.h"

#include <stdio.h>
#include <string.h>

const char *strata_err_name(strata_err code) {
    static const char *const names[] = {
        [STRATA_OK] = "ok",
        [STRATA_ENOMEM] = "out_of_memory",
        [STRATA_EIO] = "io",
        [STRATA_ENOENT] = "not_found",
        [STRATA_EINVAL] = "invalid_argument",
        [STRATA_EFORMAT] = "malformed",
        [STRATA_EUNSUPPORTED] = "unsupported",
        [STRATA_ELIMIT] = "limit",
        [STRATA_EDIGEST] = "digest_mismatch",
        [STRATA_EAUTH] = "not_trusted",
        [STRATA_EPEER] = "peer_lost",
        [STRATA_ETIMEOUT] = "timeout",
        [STRATA_ECANCELLED] = "cancelled",
        [STRATA_EBUSY] = "busy",
        [STRATA_EINTERNAL] = "internal",
    };
    size_t i = (size_t)code;
    return i < sizeof names / sizeof names[0] ? names[i] : "unknown";
}

/* Foreign names end up in messages: a newline or an escape sequence in one must not reach a terminal or a log. */
static void make_printable(char *s) {
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c < 0x20 || c == 0x7f) *s = '?';
    }
}

static void format(struct strata_errmsg *em, strata_err code, const char *fmt, va_list ap) {
    em->code = code;
    vsnprintf(em->text, sizeof em->text, fmt, ap);
    make_printable(em->text);
}

strata_err err_set(struct strata_errmsg *em, strata_err code, const char *fmt, ...) {
    if (em) {
        va_list ap;
        va_start(ap, fmt);
        format(em, code, fmt, ap);
        va_end(ap);
    }
    return code;
}

strata_err err_sys(struct strata_errmsg *em, strata_err code, int errnum, const char *fmt, ...) {
    if (em) {
        va_list ap;
        va_start(ap, fmt);
        format(em, code, fmt, ap);
        va_end(ap);
        size_t len = strlen(em->text);
        snprintf(em->text + len, sizeof em->text - len, ": %s", strerror(errnum));
    }
    return code;
}

strata_err err_prefix(struct strata_errmsg *em, const char *fmt, ...) {
    strata_err code = STRATA_EINTERNAL;
    if (em) {
        struct strata_errmsg inner = *em;
        va_list ap;
        va_start(ap, fmt);
        format(em, inner.code, fmt, ap);
        va_end(ap);
        size_t len = strlen(em->text);
        snprintf(em->text + len, sizeof em->text - len, ": %s", inner.text);
        code = inner.code;
    }
    return code;
}

strata_err err_nomem(struct strata_errmsg *em, const char *what) {
    return err_set(em, STRATA_ENOMEM, "out of memory for %s", what);
}
