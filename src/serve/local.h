/*
 * Stages on this machine, as child processes of the coordinator: no keys to set up, none left behind.
 *
 * Keys are made in memory. A child gets its key through a private temporary folder that is removed as soon as the child
 * says that it listens. Children end when their standard input closes, and the kernel kills them when we die.
 */
#ifndef LOCAL_H
#define LOCAL_H

#include "base/log.h"
#include "wire/wire_addr.h"
#include "wire/wire_key.h"

struct local;

struct local_options {
    const char *program; /* path of the strata program; NULL: the running one */
    const char *package;
    uint32_t n_stages;             /* 1 to WIRE_MSG_STAGES */
    uint32_t n_threads;            /* for each; 0: all cores */
    const char *device;            /* that they compute on; NULL: the CPU */
    bool over_memory, keep_mapped; /* as in struct engine_options */
    const struct log *log;
};

/* Makes the keys; starts nothing yet. */
strata_err local_new(const struct local_options *opt, struct local **out, struct strata_errmsg *em);
/* The coordinator's key, and the list that trusts the stages. Views. */
const struct wire_key *local_key(const struct local *l);
const struct wire_trust *local_trust(const struct local *l);
/*
 * As chain_options.prepare, with the struct local as ctx: starts the children that do not run. When all of them run
 * although the chain had to be built again, one of them must be stuck, and all are started afresh.
 */
strata_err local_prepare(void *ctx, struct wire_addr *addrs, struct strata_errmsg *em);
/* As chain_options.abort. */
void local_abort(void *ctx);
/* Ends the children, by force when they take longer than a few seconds. NULL is allowed. */
void local_free(struct local *l);

#endif
