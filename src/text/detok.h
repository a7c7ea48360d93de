/*
 * Streaming detokenizer: token ids in, whole UTF-8 characters out.
 *
 * Bytes of an unfinished character are held back until it is complete; bytes that can never become a valid character
 * come out as U+FFFD. Life cycle: detok_init, detok_push per token, detok_flush at the end, detok_deinit.
 */
#ifndef TEXT_DETOK_H
#define TEXT_DETOK_H

#include "text/vocab.h"

struct detok {
    const struct vocab *vocab; /* borrowed */
    bool special;              /* show control tokens */
    bool started;              /* for vocabularies that put a space before the first word */
    char pending[4];
    size_t n_pending;
    struct buf scratch;
};

void detok_init(struct detok *d, const struct vocab *v, bool special);
void detok_deinit(struct detok *d);
/* Appends the text that became complete with this token to out. */
strata_err detok_push(struct detok *d, int32_t id, struct buf *out, struct strata_errmsg *em);
/* Ends the stream: what was held back comes out as U+FFFD. */
strata_err detok_flush(struct detok *d, struct buf *out, struct strata_errmsg *em);

#endif
