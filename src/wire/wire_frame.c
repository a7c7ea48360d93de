/* Frame headers. See wire_frame.h. */
#include "wire/wire_frame.h"

#include "wire/wire_bytes.h"

/* Token ids and hidden states go over the wire as they lie in memory. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "Strata's frames need a little-endian machine");

void wire_frame_encode(const struct wire_frame *f, uint8_t out[WIRE_FRAME_HEADER]) {
    wire_put32(out, WIRE_FRAME_MAGIC);
    out[4] = f->type;
    out[5] = out[6] = out[7] = 0;
    wire_put32(out + 8, f->seq);
    wire_put32(out + 12, f->pos);
    wire_put32(out + 16, f->n_rows);
    wire_put32(out + 20, f->payload);
}

/* The exact payload size that a data frame must have, or UINT64_MAX when the type is not known. */
static uint64_t expected_payload(const struct wire_frame *f, uint32_t width) {
    switch (f->type) {
    case WIRE_TOKENS: return 4ull * f->n_rows;
    case WIRE_HIDDEN:
        if (!width || f->pos == 0 || f->pos > WIRE_MAX_SPANS || f->pos > f->n_rows || f->n_rows > UINT32_MAX / 4)
            return UINT64_MAX;
        return WIRE_ROW_ENTRY * (uint64_t)f->pos + 4ull * f->n_rows * width;
    case WIRE_TOKEN: return f->n_rows <= WIRE_MAX_SPANS ? WIRE_ROW_ENTRY * (uint64_t)f->n_rows : UINT64_MAX;
    case WIRE_CANCEL:
    case WIRE_PING:
    case WIRE_PONG: return 0;
    default: return UINT64_MAX;
    }
}

static int is_json(uint8_t type) {
    return (type >= WIRE_HELLO && type <= WIRE_FORGET) || type == WIRE_BEGIN;
}

static int has_rows(uint8_t type) {
    return type == WIRE_TOKENS || type == WIRE_HIDDEN || type == WIRE_TOKEN;
}

strata_err wire_frame_decode(const uint8_t in[WIRE_FRAME_HEADER], uint32_t width, struct wire_frame *out,
                             struct strata_errmsg *em) {
    struct wire_frame f = {.type = in[4],
                           .seq = wire_get32(in + 8),
                           .pos = wire_get32(in + 12),
                           .n_rows = wire_get32(in + 16),
                           .payload = wire_get32(in + 20)};
    if (wire_get32(in) != WIRE_FRAME_MAGIC)
        return err_set(em, STRATA_EPEER, "the other side does not speak Strata's protocol (bad frame magic)");
    if (in[5] || in[6] || in[7]) return err_set(em, STRATA_EPEER, "bad frame: reserved bits are set");
    if (is_json(f.type)) {
        if (f.payload < 2 || f.payload > WIRE_FRAME_MAX_CONTROL)
            return err_set(em, STRATA_EPEER, "bad frame: control message of %u bytes", f.payload);
    } else {
        if (f.payload > WIRE_FRAME_MAX_PAYLOAD || f.payload != expected_payload(&f, width))
            return err_set(em, STRATA_EPEER, "bad frame: type %u with %u rows has a payload of %u bytes", f.type,
                           f.n_rows, f.payload);
    }
    if (has_rows(f.type) ? f.n_rows == 0 : f.n_rows != 0)
        return err_set(em, STRATA_EPEER, "bad frame: type %u with %u rows", f.type, f.n_rows);
    *out = f;
    return STRATA_OK;
}
