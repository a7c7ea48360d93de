/* Parts of a text. See spans.h. */
#include "text/spans.h"

#include <stdlib.h>

strata_err text_spans_add(struct text_spans *s, size_t start, size_t end, struct strata_errmsg *em) {
    if (start >= end) return STRATA_OK;
    if (s->len > 0 && s->span[s->len - 1].end >= start) {
        if (s->span[s->len - 1].end < end) s->span[s->len - 1].end = end;
        return STRATA_OK;
    }
    if (s->len == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 16;
        struct text_span *p = realloc(s->span, cap * sizeof *p);
        if (!p) return err_nomem(em, "the parts of a text");
        s->span = p;
        s->cap = cap;
    }
    s->span[s->len++] = (struct text_span){start, end};
    return STRATA_OK;
}

void text_spans_deinit(struct text_spans *s) {
    free(s->span);
    *s = (struct text_spans){0};
}
