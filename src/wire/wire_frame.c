/* Frame headers. See wire_frame.h. */
#include "wire/wire_frame.h"

/* Token ids and hidden states go over the wire as they lie in memory. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "Strata's frames need a little-endian machine");

static void put32(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
    p[2] = (uint8_t)(v >> 16);
    p[3] = (uint8_t)(v >> 24);
}

static uint32_t get32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

void wire_frame_encode(const struct wire_frame *f, uint8_t out[WIRE_FRAME_HEADER]) {
    put32(out, WIRE_FRAME_MAGIC);
    out[4] = f->type;
    out[5] = f->flags;
    out[6] = out[7] = 0;
    put32(out + 8, f->seq);
    put32(out + 12, f->pos);
    put32(out + 16, f->n_rows);
    put32(out + 20, f->payload);
}

/* The exact payload size that a data frame must have, or UINT64_MAX when the type is not known. */
static uint64_t expected_payload(const struct wire_frame *f, uint32_t width) {
    switch (f->type) {
    case WIRE_TOKENS: return 4ull * f->n_rows;
    case WIRE_HIDDEN: return width && f->n_rows <= UINT32_MAX / 4 ? 4ull * f->n_rows * width : UINT64_MAX;
    case WIRE_TOKEN: return 4;
    case WIRE_CANCEL:
    case WIRE_PING:
    case WIRE_PONG: return 0;
    default: return UINT64_MAX;
    }
}

static int is_json(uint8_t type) {
    return (type >= WIRE_HELLO && type <= WIRE_ERROR) || type == WIRE_BEGIN;
}

static int allowed_flags(uint8_t type) {
    if (type == WIRE_TOKENS || type == WIRE_HIDDEN) return WIRE_FLAG_SAMPLE;
    return type == WIRE_TOKEN ? WIRE_FLAG_FINAL | WIRE_FLAG_EOG : 0;
}

static int has_rows(uint8_t type) {
    return type == WIRE_TOKENS || type == WIRE_HIDDEN || type == WIRE_TOKEN;
}

strata_err wire_frame_decode(const uint8_t in[WIRE_FRAME_HEADER], uint32_t width, struct wire_frame *out,
                             struct strata_errmsg *em) {
    struct wire_frame f = {.type = in[4],
                           .flags = in[5],
                           .seq = get32(in + 8),
                           .pos = get32(in + 12),
                           .n_rows = get32(in + 16),
                           .payload = get32(in + 20)};
    if (get32(in) != WIRE_FRAME_MAGIC)
        return err_set(em, STRATA_EPEER, "the other side does not speak Strata's protocol (bad frame magic)");
    if (in[6] || in[7]) return err_set(em, STRATA_EPEER, "bad frame: reserved bits are set");
    if (f.flags & ~allowed_flags(f.type))
        return err_set(em, STRATA_EPEER, "bad frame: type %u with flags %u", f.type, f.flags);
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
    if (f.type == WIRE_TOKEN && f.n_rows != 1) return err_set(em, STRATA_EPEER, "bad frame: more than one token");
    *out = f;
    return STRATA_OK;
}
