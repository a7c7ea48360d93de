/* Growing byte buffers. See buf.h. */
#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_init(struct buf *b, size_t max) {
    *b = (struct buf){.max = max};
}

void buf_deinit(struct buf *b) {
    free(b->data);
    *b = (struct buf){.max = b->max};
}

void buf_clear(struct buf *b) {
    b->len = 0;
    if (b->data) b->data[0] = '\0';
}

void buf_consume(struct buf *b, size_t n) {
    if (n >= b->len) {
        buf_clear(b);
        return;
    }
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
    b->data[b->len] = '\0';
}

/* Makes room for n more bytes and a NUL. */
static strata_err grow(struct buf *b, size_t n, struct strata_errmsg *em) {
    if (n > b->max || b->len > b->max - n)
        return err_set(em, STRATA_ELIMIT, "a buffer would grow beyond its limit of %zu bytes", b->max);
    size_t need = b->len + n + 1;
    if (need > b->cap) {
        size_t cap = b->cap ? b->cap : 64;
        while (cap < need) cap = cap > SIZE_MAX / 2 ? need : cap * 2;
        char *data = realloc(b->data, cap);
        if (!data) return err_nomem(em, "a buffer");
        b->data = data;
        b->cap = cap;
    }
    b->data[b->len + n] = '\0';
    return STRATA_OK;
}

void *buf_reserve(struct buf *b, size_t n, struct strata_errmsg *em) {
    return grow(b, n, em) ? NULL : b->data + b->len;
}

strata_err buf_append(struct buf *b, const void *data, size_t len, struct strata_errmsg *em) {
    strata_err rc = grow(b, len, em);
    if (rc) return rc;
    if (len) memcpy(b->data + b->len, data, len);
    b->len += len;
    return STRATA_OK;
}

strata_err buf_append_str(struct buf *b, const char *s, struct strata_errmsg *em) {
    return buf_append(b, s, strlen(s), em);
}

strata_err buf_printf(struct buf *b, struct strata_errmsg *em, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) return err_set(em, STRATA_EINTERNAL, "a text could not be formatted");
    strata_err rc = grow(b, (size_t)n, em);
    if (rc) return rc;
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return STRATA_OK;
}

const char *buf_cstr(const struct buf *b) {
    return b->data ? b->data : "";
}
