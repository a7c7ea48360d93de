/*
 * The tables inside data frames, as pure functions over bytes: which request a batch's rows belong to, and which tokens
 * a batch gave. Every entry is four little-endian u32.
 */
#ifndef WIRE_ROWS_H
#define WIRE_ROWS_H

#include "wire/wire_frame.h"

/* HIDDEN: a run of rows of one request. */
struct wire_span {
    uint32_t seq;    /* the request; never 0 */
    uint32_t pos;    /* position of the first row in the request's sequence */
    uint32_t n_rows; /* at least 1 */
    uint32_t flags;  /* WIRE_SPAN_* */
};
enum { WIRE_SPAN_SAMPLE = 1 /* a token is to be sampled after the last row */ };

/* TOKEN: a token that was sampled. */
struct wire_token {
    uint32_t seq; /* the request; never 0 */
    uint32_t pos; /* the token's position in the request's sequence */
    int32_t id;   /* at least 0 */
    uint32_t flags;
};
enum {
    WIRE_TOKEN_FINAL = 1, /* generation ends with this token (end of generation or length) */
    WIRE_TOKEN_EOG = 2    /* it ended because the token ends generation */
};

/* out: WIRE_ROW_ENTRY * n bytes. */
void wire_spans_encode(const struct wire_span *spans, uint32_t n, uint8_t *out);
void wire_tokens_encode(const struct wire_token *tokens, uint32_t n, uint8_t *out);

/*
 * For a frame that wire_frame_decode accepted, and its payload. EPEER when an entry is impossible, a request appears
 * twice, or the spans' rows are not the frame's. out has room for WIRE_MAX_SPANS.
 */
strata_err wire_spans_decode(const struct wire_frame *f, const uint8_t *payload, struct wire_span *out,
                             struct strata_errmsg *em);
strata_err wire_tokens_decode(const struct wire_frame *f, const uint8_t *payload, struct wire_token *out,
                              struct strata_errmsg *em);

#endif
