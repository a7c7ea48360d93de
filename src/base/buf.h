/*
 * A growing byte buffer with a stated maximum.
 *
 * Life cycle: buf_init, append any number of times, buf_deinit. Growth beyond `max` or a failed allocation makes
 * the append fail and leaves the content as it was. `data` is always NUL-terminated (the NUL is not counted in len)
 * once anything has been appended, and is NULL before.
 */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct buf {
    char *data;
    size_t len;
    size_t cap;
    size_t max;
};

void buf_init(struct buf *b, size_t max);
void buf_deinit(struct buf *b);
/* Forgets the content, keeps the memory. */
void buf_clear(struct buf *b);
/* Removes the first n bytes (all of them when n >= len). */
void buf_consume(struct buf *b, size_t n);
strata_err buf_append(struct buf *b, const void *data, size_t len, struct strata_errmsg *em);
strata_err buf_append_str(struct buf *b, const char *s, struct strata_errmsg *em);
strata_err buf_printf(struct buf *b, struct strata_errmsg *em, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Makes room for n more bytes and returns where they go (write there, then add to len), or NULL on failure. */
void *buf_reserve(struct buf *b, size_t n, struct strata_errmsg *em);
/* The content as a view; "" when empty. */
const char *buf_cstr(const struct buf *b);

#endif
