/*
 * Errors, as every Strata library reports them.
 *
 * A function that can fail returns a strata_err (STRATA_OK is zero) and fills the caller's struct strata_errmsg.
 * The message is one line that says what happened, where, and what to do; it is written only on failure.
 * Out-parameters are set only on success.
 */
#ifndef STRATA_ERR_H
#define STRATA_ERR_H

#include <stddef.h>

typedef enum strata_err {
    STRATA_OK = 0,
    STRATA_ENOMEM,       /* memory could not be had */
    STRATA_EIO,          /* the disk or the network failed */
    STRATA_ENOENT,       /* a file, tensor or key that must exist does not */
    STRATA_EINVAL,       /* the caller, or the user, asked for something that makes no sense */
    STRATA_EFORMAT,      /* foreign data is malformed */
    STRATA_EUNSUPPORTED, /* foreign data is well formed, but not something Strata can do */
    STRATA_ELIMIT,       /* a stated maximum would be exceeded */
    STRATA_EDIGEST,      /* content differs from its recorded size or digest */
    STRATA_EAUTH,        /* the other side is not trusted, or does not trust us */
    STRATA_EPEER,        /* the other side went away or broke the protocol */
    STRATA_ETIMEOUT,     /* a deadline passed */
    STRATA_ECANCELLED,   /* the work was cancelled by its owner */
    STRATA_EBUSY,        /* the resource is in use */
    STRATA_EINTERNAL     /* one of our own invariants broke; always a defect in Strata */
} strata_err;

enum { STRATA_ERRMSG_MAX = 768 };

struct strata_errmsg {
    strata_err code;
    char text[STRATA_ERRMSG_MAX]; /* NUL-terminated UTF-8, one line, truncated when longer */
};

/* The lower-case name of a code, for JSON and logs: "format", "peer", ... Never NULL. */
const char *strata_err_name(strata_err code);

#endif
