/*
 * The JSON payloads of control frames, as pure functions: struct to text, (bytes, length) to struct.
 *
 * Every field has a stated range; an unknown key is ignored (the version check at HELLO keeps builds apart), a missing
 * or ill-typed one is an error that names it. Encoders append to a caller's buffer.
 */
#ifndef WIRE_MSG_H
#define WIRE_MSG_H

#include "base/buf.h"
#include "base/err.h"
#include "decode/sampler.h"
#include "engine/engine.h"
#include "wire/wire_addr.h"
#include "wire/wire_frame.h"
#include "wire/wire_key.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    WIRE_MSG_VERSION = 32,
    WIRE_MSG_SESSION = 33, /* 32 hexadecimal digits and a NUL */
    WIRE_MSG_MODEL = 256,
    WIRE_MSG_DIGEST = 65,
    WIRE_MSG_STAGES = 64,   /* most stages in a chain */
    WIRE_MSG_LAYERS = 4096, /* most layers of a model */
    WIRE_MSG_STOP_IDS = 256,
    WIRE_MSG_HISTORY = 16384,
    WIRE_MSG_BLOCK = 64,            /* positions of a block of the prefix cache */
    WIRE_MSG_RESTORE = 4096,        /* most blocks that a request starts from */
    WIRE_MSG_CACHE_BLOCKS = 1 << 20 /* most blocks that a stage keeps */
};

enum wire_role { WIRE_ROLE_CONTROL, WIRE_ROLE_FORWARD, WIRE_ROLE_RETURN };

/* HELLO: the first frame of the dialer. session and index (of the dialling stage) only for FORWARD and RETURN. */
struct wire_msg_hello {
    uint32_t protocol;
    char version[WIRE_MSG_VERSION];
    enum wire_role role;
    char session[WIRE_MSG_SESSION];
    uint32_t index;
};

/* WELCOME: the answer to HELLO. For FORWARD and RETURN links the model fields are those of the session. */
struct wire_msg_welcome {
    uint32_t protocol;
    char version[WIRE_MSG_VERSION];
    char model_id[WIRE_MSG_MODEL];
    char manifest_sha256[WIRE_MSG_DIGEST];
    uint32_t layer_count;
};

/* ASSIGN: load layers first..end (half-open) of the package with this digest. */
struct wire_msg_assign {
    char session[WIRE_MSG_SESSION];
    uint32_t index, count; /* this stage's place, from 0, and how many there are */
    uint32_t first, end;
    uint32_t n_ctx, n_batch;
    uint32_t n_seq;        /* requests at once: slots 0 to n_seq - 1 */
    uint32_t n_pool;       /* positions of all of them together */
    uint32_t cache_blocks; /* blocks of the prefix cache; 0: none is kept */
    uint32_t n_in_flight;  /* batches that decode is split into, so that several stages work at once; 1: not split */
    enum engine_kv_type kv_type;
    char manifest_sha256[WIRE_MSG_DIGEST];
    /* With count > 1: whom to dial (the next stage, or the first from the last), and whose dialling to accept (the
     * previous stage's key, or the last one's at the first stage). */
    struct wire_addr next_addr;
    struct ed25519_pub next_key;
    struct ed25519_pub prev_key;
};

struct wire_msg_loading {
    uint64_t elapsed_ms;
};

struct wire_msg_loaded {
    uint64_t weight_bytes, copied_bytes, kv_bytes, scratch_bytes, rss_bytes;
    uint64_t cache_bytes; /* of the prefix cache when it is full */
    uint32_t n_embd, n_vocab, n_ctx, n_batch, n_threads;
};

/* REFUSED and ERROR. */
struct wire_msg_fault {
    strata_err code;
    char text[STRATA_ERRMSG_MAX];
};

/*
 * BEGIN: where a request lives, what it starts from, and what the last stage needs to sample it.
 *
 * Blocks of the prefix cache have numbers that the coordinator gives and never uses twice. Block k of a request holds
 * the state of positions [k, k + 1) * WIRE_MSG_BLOCK; every stage keeps it as store_base + k when it has computed them.
 */
struct wire_msg_begin {
    uint32_t slot;
    uint64_t store_base; /* number of the request's block 0; 0: keep none */
    uint32_t n_restore;  /* the request starts from these blocks, in order; rows come for what follows them */
    uint64_t *restore;
    struct sampler_params sampling;
    uint32_t max_tokens, n_prompt;
    uint32_t n_stop_ids, n_history;
    int32_t *stop_ids; /* tokens that end generation */
    int32_t *history;  /* the end of the prompt, for the repeat penalty */
};

/* FORGET: blocks first to first + count - 1. */
struct wire_msg_forget {
    uint64_t first;
    uint32_t count;
};

strata_err wire_msg_hello_encode(const struct wire_msg_hello *m, struct buf *out, struct strata_errmsg *em);
strata_err wire_msg_hello_decode(const void *data, size_t len, struct wire_msg_hello *out, struct strata_errmsg *em);
strata_err wire_msg_welcome_encode(const struct wire_msg_welcome *m, struct buf *out, struct strata_errmsg *em);
strata_err wire_msg_welcome_decode(const void *data, size_t len, struct wire_msg_welcome *out,
                                   struct strata_errmsg *em);
strata_err wire_msg_assign_encode(const struct wire_msg_assign *m, struct buf *out, struct strata_errmsg *em);
strata_err wire_msg_assign_decode(const void *data, size_t len, struct wire_msg_assign *out, struct strata_errmsg *em);
strata_err wire_msg_loading_encode(const struct wire_msg_loading *m, struct buf *out, struct strata_errmsg *em);
strata_err wire_msg_loading_decode(const void *data, size_t len, struct wire_msg_loading *out,
                                   struct strata_errmsg *em);
strata_err wire_msg_loaded_encode(const struct wire_msg_loaded *m, struct buf *out, struct strata_errmsg *em);
strata_err wire_msg_loaded_decode(const void *data, size_t len, struct wire_msg_loaded *out, struct strata_errmsg *em);
strata_err wire_msg_fault_encode(const struct wire_msg_fault *m, struct buf *out, struct strata_errmsg *em);
strata_err wire_msg_fault_decode(const void *data, size_t len, struct wire_msg_fault *out, struct strata_errmsg *em);
strata_err wire_msg_begin_encode(const struct wire_msg_begin *m, struct buf *out, struct strata_errmsg *em);
/* The arrays of *out are freed by wire_msg_begin_deinit. */
strata_err wire_msg_begin_decode(const void *data, size_t len, struct wire_msg_begin *out, struct strata_errmsg *em);
void wire_msg_begin_deinit(struct wire_msg_begin *m);
strata_err wire_msg_forget_encode(const struct wire_msg_forget *m, struct buf *out, struct strata_errmsg *em);
strata_err wire_msg_forget_decode(const void *data, size_t len, struct wire_msg_forget *out, struct strata_errmsg *em);

#endif
