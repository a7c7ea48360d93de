/*
 * Frames between Strata processes, as pure functions over bytes: no I/O, no allocation.
 *
 * Every frame is a 24-byte little-endian header and a payload:
 *
 *   offset 0  u32 magic "STR1"      offset 12 u32 pos        position of the first row in the sequence
 *          4  u8  type                     16 u32 n_rows     tokens or hidden states in the payload
 *          5  u8  zero                     20 u32 payload    bytes that follow
 *          6  u16 zero
 *          8  u32 seq  the request this belongs to; 0 for none
 *
 * Hidden states travel as f32 rows of the model's width; there are no pointers, shapes or graphs on the wire. A HIDDEN
 * frame carries a whole batch, with rows of one or many requests: its pos is the number of spans, its seq means
 * nothing, and a
 * table of spans (wire_rows.h) stands before the rows. A TOKEN frame carries the tokens that one batch gave, as a
 * table.
 */
#ifndef WIRE_FRAME_H
#define WIRE_FRAME_H

#include "base/err.h"

#include <stdint.h>

enum { WIRE_FRAME_HEADER = 24, WIRE_PROTOCOL = 2 };
#define WIRE_FRAME_MAGIC 0x31525453u
/* Control messages are JSON of at most this size; data payloads are bounded by rows and width as well. */
#define WIRE_FRAME_MAX_CONTROL (256u << 10)
#define WIRE_FRAME_MAX_PAYLOAD (64u << 20)

enum wire_frame_type {
    /* control, JSON payload */
    WIRE_HELLO = 1, /* dialer: who I am and what this link is for */
    WIRE_WELCOME,   /* acceptor: what I hold */
    WIRE_REFUSED,   /* acceptor or dialer: why not; the link closes after it */
    WIRE_ASSIGN,    /* coordinator: load this range, your neighbours are these */
    WIRE_LOADING,   /* stage: progress of loading */
    WIRE_LOADED,    /* stage: loaded, with sizes */
    WIRE_CONNECT,   /* coordinator: dial your neighbour */
    WIRE_READY,     /* stage: neighbour connected */
    WIRE_ERROR,     /* either: what failed; seq names the request, 0 the session */
    WIRE_FORGET,    /* coordinator: blocks of the prefix cache that are not needed any more */
    /* data */
    WIRE_BEGIN = 32, /* JSON payload: a request's sampling; travels down the chain before its rows */
    WIRE_TOKENS,     /* i32 ids of a prompt: coordinator to the first stage */
    WIRE_HIDDEN,     /* table of spans, f32 rows: stage to stage */
    WIRE_TOKEN,      /* table of sampled ids: last stage to first stage and to the coordinator */
    WIRE_CANCEL,     /* request seq is over */
    WIRE_PING,
    WIRE_PONG
};

/* Most requests with rows in one frame, and entries of a table; its entries are of WIRE_ROW_ENTRY bytes. */
enum { WIRE_MAX_SPANS = 64, WIRE_ROW_ENTRY = 16 };

struct wire_frame {
    uint8_t type;
    uint32_t seq;
    uint32_t pos;
    uint32_t n_rows;
    uint32_t payload;
};

void wire_frame_encode(const struct wire_frame *f, uint8_t out[WIRE_FRAME_HEADER]);

/*
 * Decodes and checks a header: magic, known type, zero bits, payload within the type's bound and consistent with
 * n_rows: TOKENS 4 * n_rows; HIDDEN 16 * spans + 4 * n_rows * width, with 1 to n_rows spans; TOKEN 16 * n_rows; PING /
 * PONG / CANCEL 0. width is the model's hidden size; 0 when none is agreed yet, and then HIDDEN is refused.
 */
strata_err wire_frame_decode(const uint8_t in[WIRE_FRAME_HEADER], uint32_t width, struct wire_frame *out,
                             struct strata_errmsg *em);

#endif
