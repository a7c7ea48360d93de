/*
 * The process that serves one layer range: a loop thread for links, a compute thread for the engine.
 *
 * Life cycle: stage_server_start listens at once and serves one coordinator at a time until stage_server_stop. A
 * session goes WELCOME -> ASSIGN -> (LOADING ...) LOADED -> CONNECT -> READY -> requests, and ends when the
 * coordinator's link does; the stage then frees what it loaded and waits for the next. A second coordinator is refused
 * with a text that names the first. Nothing that a peer sends ends the process.
 */
#ifndef STAGE_SERVER_H
#define STAGE_SERVER_H

#include "base/log.h"
#include "stage/stage_backend.h"
#include "wire/wire_link.h"

struct stage_server;

struct stage_server_options {
    struct stage_backend backend; /* self must outlive the server */
    const struct wire_key *key;   /* borrowed during the start only */
    /* Whom to trust: the list in this folder, read anew for every connection; or, with NULL, `trust` as it is. */
    const char *key_dir;
    const struct wire_trust *trust; /* copied */
    struct wire_addr listen;
    const struct log *log; /* NULL: silent; outlives the server */
};

/* Probes the package and listens. EBUSY when the port is in use. */
strata_err stage_server_start(const struct stage_server_options *opt, struct stage_server **out,
                              struct strata_errmsg *em);
/* Where it listens, with the real port. */
const struct wire_addr *stage_server_addr(const struct stage_server *s);
const struct stage_probe *stage_server_probe(const struct stage_server *s);
/* False when the engine could not be stopped within a few seconds (it may be loading): the process should then exit
 * without freeing more. NULL is allowed. */
bool stage_server_stop(struct stage_server *s);

#endif
