/* Streaming detokenizer. See detok.h. Owns the bytes of the character that is not complete yet. */
#include "text/detok.h"
#include "base/utf8.h"

#include <string.h>

enum { PIECE_MAX = 1 << 20 };

void detok_init(struct detok *d, const struct vocab *v, bool special) {
    *d = (struct detok){.vocab = v, .special = special};
    buf_init(&d->scratch, PIECE_MAX);
}

void detok_deinit(struct detok *d) {
    buf_deinit(&d->scratch);
    d->n_pending = 0;
}

/* Writes what is complete in d->scratch, keeps the rest in d->pending. */
static strata_err drain(struct detok *d, struct buf *out, struct strata_errmsg *em) {
    const char *s = buf_cstr(&d->scratch);
    size_t len = d->scratch.len, i = 0, start = 0;
    strata_err rc = STRATA_OK;
    d->n_pending = 0;
    while (i < len && rc == STRATA_OK) {
        bool ok;
        size_t n = utf8_stream_unit(s + i, len - i, &ok);
        if (n == 0) break;
        if (!ok) {
            rc = buf_append(out, s + start, i - start, em);
            if (rc == STRATA_OK) rc = buf_append_str(out, UTF8_REPLACEMENT, em);
            start = i + n;
        }
        i += n;
    }
    if (rc == STRATA_OK) rc = buf_append(out, s + start, i - start, em);
    if (rc == STRATA_OK && i < len) { /* the beginning of a character: at most three bytes */
        d->n_pending = len - i;
        memcpy(d->pending, s + i, d->n_pending);
    }
    return rc;
}

strata_err detok_push(struct detok *d, int32_t id, struct buf *out, struct strata_errmsg *em) {
    buf_clear(&d->scratch);
    strata_err rc = buf_append(&d->scratch, d->pending, d->n_pending, em);
    size_t before = d->scratch.len;
    if (rc == STRATA_OK) rc = vocab_piece(d->vocab, id, d->special, &d->scratch, em);
    if (rc != STRATA_OK) return rc;
    if (!d->started && d->scratch.len > before && !vocab_is_control(d->vocab, id)) {
        d->started = true;
        if (vocab_add_space_prefix(d->vocab) && d->scratch.data[before] == ' ') {
            d->scratch.len--;
            memmove(d->scratch.data + before, d->scratch.data + before + 1, d->scratch.len - before);
        }
    }
    return drain(d, out, em);
}

strata_err detok_flush(struct detok *d, struct buf *out, struct strata_errmsg *em) {
    if (d->n_pending == 0) return STRATA_OK;
    d->n_pending = 0;
    return buf_append_str(out, UTF8_REPLACEMENT, em);
}
