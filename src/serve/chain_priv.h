/* The inside of the chain, shared by chain.c (start, stop, jobs), chain_build.c (set-up) and chain_run.c (requests). */
#ifndef CHAIN_PRIV_H
#define CHAIN_PRIV_H

#include "serve/chain.h"
#include "serve/prefix.h"
#include "wire/wire_rows.h"

#include <pthread.h>

enum {
    CHAIN_TICK_MS = 100,
    CHAIN_PING_MS = 400,
    CHAIN_LOST_MS = 1500,     /* silence of a stage that serves; with a tick less than the 2 s that are promised */
    CHAIN_LOADING_MS = 30000, /* silence of a stage that loads */
    CHAIN_CONNECT_MS = 20000, /* for the stages to find each other */
    CHAIN_VERDICT_MS = 150,   /* from a report that a neighbour is gone to the search for the culprit being over */
    CHAIN_BACKOFF_MIN_MS = 500,
    CHAIN_BACKOFF_MAX_MS = 10000
};

enum chain_state {
    CHAIN_PREPARING, /* local stages are being started */
    CHAIN_DIALLING,  /* until every stage has said WELCOME */
    CHAIN_LOADING,   /* until every stage has said LOADED */
    CHAIN_LINKING,   /* until every stage has said READY */
    CHAIN_READY,
    CHAIN_DEGRADED, /* waiting to be built again */
    CHAIN_STOPPED
};

enum stage_progress { STAGE_DIALLED, STAGE_WELCOMED, STAGE_IS_LOADED, STAGE_IS_READY };

struct stage {
    struct chain *chain;
    uint32_t index;
    struct wire_addr addr;
    uint32_t first, end;
    struct wire_link *link; /* loop thread */
    struct ed25519_pub key;
    enum stage_progress progress;
    uint64_t heard_ns, pinged_ns;
    struct wire_msg_loaded loaded; /* under the lock */
};

/* A request's part in the prefix cache. Loop thread. */
struct job_prefix {
    struct prefix_node *tip; /* the last known block of its sequence, held */
    uint64_t base;           /* number of its block 0 at the stages; 0: it keeps none */
    uint32_t n_restored;     /* blocks that it started from */
    uint32_t n_known;        /* blocks up to tip; once it is cut off, all that were complete */
    bool cut_off;            /* there was no room for a block: nothing behind it can be found, or is kept */
    uint32_t n_reserved;
};

enum job_state { JOB_QUEUED, JOB_ACTIVE, JOB_DONE };

struct gen_job {
    char id[64];
    int32_t *prompt;
    uint32_t n_prompt, max_tokens;
    struct sampler_params sampling;
    int32_t *stop_ids;
    uint32_t n_stop_ids;
    struct gen_job *next;
    /* Under the chain's lock. */
    enum job_state state;
    bool orphan; /* its owner has let go; the loop frees it */
    uint32_t seq, slot;
    struct job_prefix prefix;
    int32_t *tokens; /* room for all that can come */
    uint32_t n_tokens, n_read, cap;
    enum gen_finish finish;
    strata_err rc; /* JOB_DONE: how it ended */
    struct strata_errmsg em;
    uint64_t begun_ns;
    pthread_cond_t changed;
};

struct chain {
    struct gen gen; /* must be first */
    struct chain_options opt;
    char *key_dir;
    struct wire_trust trust;
    char manifest_sha256[WIRE_MSG_DIGEST];
    struct wire_loop *loop;
    struct wire_tls *tls;
    struct stage *stages;
    uint32_t n_stages;
    struct wire_addr *addrs; /* what prepare fills in */
    struct wire_task pump_task;

    /* Loop thread. */
    uv_timer_t tick, backoff, verdict;
    struct stage *witness;          /* has reported a fault of the session; see chain_build.c */
    struct strata_errmsg testimony; /* what it said */
    bool timers;
    uint64_t ticked_ns, phase_ns;
    uint32_t backoff_ms;
    char session[WIRE_MSG_SESSION];
    uint32_t seq;
    struct prefix *prefix; /* NULL: none is kept */
    uv_work_t work;
    bool working;
    strata_err work_rc;
    struct strata_errmsg work_em;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* state */
    enum chain_state state;
    bool stood;              /* has been READY once */
    struct strata_errmsg em; /* why it does not stand now */
    struct gen_job *queue, **queue_end;
    uint32_t n_queued;
    struct gen_job *active[WIRE_MAX_SPANS]; /* by slot */
    uint32_t n_active;
    uint32_t n_pool_taken; /* positions that the active jobs may come to have */
    struct prefix_stats prefix_stats;
};

/* "stage 2 of 3 (HOST:PORT, layers 10..20)" into out. Returns out. */
enum { CHAIN_NAME = WIRE_ADDR_TEXT + 80 };
const char *chain_stage_name(const struct stage *s, char out[CHAIN_NAME]);

/* chain_build.c, loop thread */
void chain_build(struct chain *c);
void chain_on_tick(uv_timer_t *timer);
void chain_on_backoff(uv_timer_t *timer);
/* Ends every request, closes every link, and plans the next build; before the first READY it is final. */
void chain_fail(struct chain *c, const struct strata_errmsg *em);
void chain_close_links(struct chain *c);

/* chain_run.c, loop thread */
void chain_pump(void *chain);
/* EPEER when the frame as a whole is wrong; what is wrong with one request ends that one. */
strata_err chain_on_tokens(struct stage *s, const struct wire_frame *f, const struct wire_buf *payload,
                           struct strata_errmsg *em);
/* As prefix_new's forget, with the chain as ctx. */
void chain_forget_blocks(void *chain, uint64_t first, uint32_t count);
/* A stage reports that request seq failed there. */
void chain_on_fault(struct stage *s, uint32_t seq, const struct strata_errmsg *em);
/* Under the lock: ends every job. */
void chain_end_jobs(struct chain *c, const struct strata_errmsg *em);
void chain_job_delete(struct gen_job *job);

#endif
