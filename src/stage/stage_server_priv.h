/* The inside of a stage's server, shared by stage_server.c (links, start, stop) and stage_session.c (one session). */
#ifndef STAGE_SERVER_PRIV_H
#define STAGE_SERVER_PRIV_H

#include "stage/stage_compute.h"
#include "stage/stage_flow.h"
#include "stage/stage_server.h"

enum { STAGE_HELLO_MS = 5000, STAGE_TICK_MS = 250, STAGE_MAX_PEERS = 64 };

/* What an accepted or dialled link is to us. */
enum peer_kind { PEER_NEW, PEER_CONTROL, PEER_PREV, PEER_NEXT };

struct peer {
    struct stage_server *server;
    enum peer_kind kind;
    bool trusted; /* by the trust list, not only as a neighbour of the session */
    struct wire_link *link;
    struct peer *prev_peer, *next_peer; /* the server's list of peers */
};

enum session_state {
    SESSION_NONE,
    SESSION_WELCOMED, /* control link open, nothing assigned */
    SESSION_LOADING,
    SESSION_LOADED,
    SESSION_CONNECTING,
    SESSION_READY
};

struct session {
    enum session_state state;
    uint64_t generation;
    struct peer *control, *prev, *next;
    char who[WIRE_NAME_MAX + WIRE_ADDR_TEXT]; /* the coordinator, for people */
    uint64_t heard_ns;                        /* when the coordinator last said anything */
    uint64_t loading_ns, told_ns;
    struct wire_msg_assign assign;
    struct stage_unit_info info;
    struct stage_flow flow;
};

/* Everything but the tasks is the loop thread's. */
struct stage_server {
    struct stage_backend backend;
    struct stage_probe probe;
    char *key_dir; /* NULL: `trust` holds */
    struct wire_trust trust;
    const struct log *log;
    struct wire_loop *loop;
    struct wire_tls *tls;
    struct stage_compute *compute;
    struct wire_listener *listener;
    struct wire_addr addr;
    int listen_fd;
    strata_err start_rc;
    struct strata_errmsg start_em;
    uv_timer_t tick;
    bool stopping;
    struct peer *peers;
    unsigned n_peers;
    uint64_t generations; /* sessions so far */
    struct session session;
    struct wire_task load_task, room_task;
};

/* stage_server.c */
extern const struct wire_link_ops stage_peer_ops;
struct peer *stage_peer_new(struct stage_server *s);
/* Closes the link and frees the peer. */
void stage_peer_free(struct peer *p);
/* Tells the peer why, then as stage_peer_free. */
void stage_peer_refuse(struct peer *p, strata_err code, const char *text);
/* Sends a control frame with a JSON payload; a failure shows as the link's close. */
void stage_peer_send_json(struct peer *p, uint8_t type, uint32_t seq, const struct buf *json);
void stage_peer_send_fault(struct peer *p, uint32_t seq, const struct strata_errmsg *em);

/* stage_session.c */
void stage_session_start(struct stage_server *s, struct peer *control);
/* Drops the session and everything loaded for it. The log says why. */
void stage_session_end(struct stage_server *s, const char *why);
void stage_session_on_control(struct stage_server *s, const struct wire_frame *f, struct wire_buf *payload);
void stage_session_on_prev(struct stage_server *s, const struct wire_frame *f, struct wire_buf *payload);
void stage_session_on_next(struct stage_server *s, const struct wire_frame *f, struct wire_buf *payload);
/* A link of the session is gone (its peer is freed by the caller). */
void stage_session_lost(struct stage_server *s, enum peer_kind kind, const struct strata_errmsg *why);
/* NULL when a neighbour with this HELLO and key belongs to the session, else why not. */
const char *stage_session_check_prev(const struct stage_server *s, const struct wire_msg_hello *hello,
                                     const struct ed25519_pub *key);
void stage_session_on_loaded(struct stage_server *s);
void stage_session_tick(struct stage_server *s);

#endif
