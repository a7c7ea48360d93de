/*
 * The chain of stages as the coordinator sees it; the implementation of struct gen behind the HTTP API.
 *
 * Life cycle: chain_start returns at once and builds the chain on its own loop thread: dial every stage, compare
 * packages, have each load its range, have them connect to each other. chain_wait waits for the outcome; the first
 * failure to build is final. Later, when a stage is lost, every request ends with EPEER and the chain is built again in
 * the background, with growing pauses, until chain_stop. Requests start in the order they came, up to n_seq of them run
 * at once, and a prefix that the stages have computed before is not computed again.
 */
#ifndef CHAIN_H
#define CHAIN_H

#include "base/log.h"
#include "engine/engine.h"
#include "serve/gen.h"
#include "wire/wire_link.h"
#include "wire/wire_msg.h"

struct chain;

enum { CHAIN_QUEUE_MAX = 64 };

struct chain_stage {
    struct wire_addr addr; /* filled in by `prepare` when there is one */
    uint32_t first, end;   /* half-open layers */
};

struct chain_options {
    const struct chain_stage *stages; /* in order; their ranges cover all layers; copied */
    uint32_t n_stages;
    /*
     * Called before every build, on a thread that may block: makes sure that the stages run, and fills in addrs
     * (n_stages of them). NULL: the addresses given are used. `abort` makes a running prepare return soon.
     */
    strata_err (*prepare)(void *ctx, struct wire_addr *addrs, struct strata_errmsg *em);
    void (*abort)(void *ctx);
    void *prepare_ctx;
    const struct wire_key *key;     /* borrowed during the start only */
    const char *key_dir;            /* whose trust list names the stages, read at every dial; NULL: `trust` */
    const struct wire_trust *trust; /* copied */
    const char *manifest_sha256;    /* of our own package; copied */
    uint32_t layer_count;
    uint32_t n_ctx, n_batch; /* both at least 1 */
    uint32_t n_seq;          /* requests at once, 1 to WIRE_MAX_SPANS and at most n_batch */
    uint32_t n_pool;         /* positions of all of them together, at least n_ctx */
    uint32_t cache_blocks;   /* of the prefix cache, PREFIX_BLOCK positions each; 0: none is kept */
    uint32_t n_in_flight;    /* batches that decode is split into: the number of machines */
    enum engine_kv_type kv_type;
    const struct log *log; /* outlives the chain */
};

strata_err chain_start(const struct chain_options *opt, struct chain **out, struct strata_errmsg *em);
/* STRATA_OK once the chain has stood; ETIMEOUT at deadline_ns (clock_now_ns) while it is still being built. */
strata_err chain_wait(struct chain *c, uint64_t deadline_ns, struct strata_errmsg *em);
struct gen *chain_gen(struct chain *c);

struct chain_stage_info {
    struct wire_addr addr;
    uint32_t first, end;
    struct wire_msg_loaded loaded; /* zero until it is loaded */
};
void chain_stage_info(struct chain *c, uint32_t index, struct chain_stage_info *out);

/* Ends every request with ECANCELLED and every link. No other call may be running or come later, job_free included. */
void chain_stop(struct chain *c);

#endif
