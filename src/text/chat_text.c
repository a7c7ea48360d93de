/* Texts with marks. See chat_text.h. Owns the two buffers. */
#include "text/chat_text.h"

#include <stdio.h>
#include <string.h>

void chat_text_init(struct chat_text *t, struct chat_arena *arena, size_t max) {
    buf_init(&t->text, max);
    buf_init(&t->marks, max);
    t->arena = arena;
}

void chat_text_deinit(struct chat_text *t) {
    buf_deinit(&t->text);
    buf_deinit(&t->marks);
}

/* Appends n marks, `from` them or all as `one` says, behind those of the text so far. */
static strata_err add_marks(struct chat_text *t, const unsigned char *from, bool one, size_t n,
                            struct strata_errmsg *em) {
    size_t missing = t->text.len - t->marks.len;
    char *at = buf_reserve(&t->marks, missing + n, em);
    if (!at) return em->code;
    memset(at, 0, missing);
    if (from) {
        memcpy(at + missing, from, n);
    } else {
        memset(at + missing, one, n);
    }
    t->marks.len += missing + n;
    return STRATA_OK;
}

strata_err chat_text_add(struct chat_text *t, const char *ptr, size_t len, struct strata_errmsg *em) {
    const unsigned char *from = len ? chat_arena_marks(t->arena, ptr) : NULL;
    bool marked = from && memchr(from, 1, len);
    strata_err rc = marked || t->marks.len > 0 ? add_marks(t, marked ? from : NULL, false, len, em) : STRATA_OK;
    return rc == STRATA_OK ? buf_append(&t->text, ptr, len, em) : rc;
}

strata_err chat_text_add_str(struct chat_text *t, const char *s, struct strata_errmsg *em) {
    return chat_text_add(t, s, strlen(s), em);
}

strata_err chat_text_add_like(struct chat_text *t, const char *ptr, size_t len, const char *like,
                              struct strata_errmsg *em) {
    const unsigned char *from = chat_arena_marks(t->arena, like);
    bool marked = from && *from;
    strata_err rc = marked || t->marks.len > 0 ? add_marks(t, NULL, marked, len, em) : STRATA_OK;
    return rc == STRATA_OK ? buf_append(&t->text, ptr, len, em) : rc;
}

strata_err chat_text_printf(struct chat_text *t, struct strata_errmsg *em, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof text) return err_set(em, STRATA_EINTERNAL, "a number does not fit its text");
    return chat_text_add(t, text, (size_t)n, em);
}

strata_err chat_text_take(const struct chat_text *t, struct chat_value *out, struct strata_errmsg *em) {
    strata_err rc = chat_string_copy(t->arena, buf_cstr(&t->text), t->text.len, out, em);
    if (rc != STRATA_OK || t->marks.len == 0) return rc;
    return chat_arena_mark(t->arena, out->s.ptr, (const unsigned char *)t->marks.data, t->text.len, em);
}
