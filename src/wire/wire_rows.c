/* Tables of spans and tokens. See wire_rows.h. */
#include "wire/wire_rows.h"

#include "wire/wire_bytes.h"

#include <stdbool.h>

static void put_entry(uint8_t *p, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    wire_put32(p, a);
    wire_put32(p + 4, b);
    wire_put32(p + 8, c);
    wire_put32(p + 12, d);
}

void wire_spans_encode(const struct wire_span *spans, uint32_t n, uint8_t *out) {
    for (uint32_t i = 0; i < n; i++)
        put_entry(out + (size_t)WIRE_ROW_ENTRY * i, spans[i].seq, spans[i].pos, spans[i].n_rows, spans[i].flags);
}

void wire_tokens_encode(const struct wire_token *tokens, uint32_t n, uint8_t *out) {
    for (uint32_t i = 0; i < n; i++)
        put_entry(out + (size_t)WIRE_ROW_ENTRY * i, tokens[i].seq, tokens[i].pos, (uint32_t)tokens[i].id,
                  tokens[i].flags);
}

strata_err wire_spans_decode(const struct wire_frame *f, const uint8_t *payload, struct wire_span *out,
                             struct strata_errmsg *em) {
    uint64_t rows = 0;
    for (uint32_t i = 0; i < f->pos; i++) {
        const uint8_t *p = payload + (size_t)WIRE_ROW_ENTRY * i;
        struct wire_span s = {wire_get32(p), wire_get32(p + 4), wire_get32(p + 8), wire_get32(p + 12)};
        if (s.seq == 0 || s.n_rows == 0 || s.n_rows > f->n_rows || s.pos > INT32_MAX - s.n_rows ||
            (s.flags & ~(uint32_t)WIRE_SPAN_SAMPLE))
            return err_set(em, STRATA_EPEER, "bad frame: span %u of request %u: rows %u at position %u, flags %u", i,
                           s.seq, s.n_rows, s.pos, s.flags);
        for (uint32_t k = 0; k < i; k++)
            if (out[k].seq == s.seq)
                return err_set(em, STRATA_EPEER, "bad frame: request %u has two spans in one batch", s.seq);
        rows += s.n_rows;
        out[i] = s;
    }
    if (rows != f->n_rows)
        return err_set(em, STRATA_EPEER, "bad frame: spans of %llu rows in a frame of %u", (unsigned long long)rows,
                       f->n_rows);
    return STRATA_OK;
}

strata_err wire_tokens_decode(const struct wire_frame *f, const uint8_t *payload, struct wire_token *out,
                              struct strata_errmsg *em) {
    for (uint32_t i = 0; i < f->n_rows; i++) {
        const uint8_t *p = payload + (size_t)WIRE_ROW_ENTRY * i;
        uint32_t id = wire_get32(p + 8);
        struct wire_token t = {wire_get32(p), wire_get32(p + 4), (int32_t)(id & INT32_MAX), wire_get32(p + 12)};
        bool eog_alone = (t.flags & WIRE_TOKEN_EOG) && !(t.flags & WIRE_TOKEN_FINAL);
        if (t.seq == 0 || t.pos > INT32_MAX || id > INT32_MAX || eog_alone ||
            (t.flags & ~(uint32_t)(WIRE_TOKEN_FINAL | WIRE_TOKEN_EOG)))
            return err_set(em, STRATA_EPEER, "bad frame: token %u of request %u at position %u, flags %u", id, t.seq,
                           t.pos, t.flags);
        for (uint32_t k = 0; k < i; k++)
            if (out[k].seq == t.seq)
                return err_set(em, STRATA_EPEER, "bad frame: request %u has two tokens of one batch", t.seq);
        out[i] = t;
    }
    return STRATA_OK;
}
