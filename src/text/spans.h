/*
 * Parts of a text, as byte ranges in rising order that do not touch: what of a rendered prompt came from the
 * conversation, and is therefore never read as a control token. Life cycle: zero the struct, text_spans_add in order,
 * text_spans_deinit.
 */
#ifndef TEXT_SPANS_H
#define TEXT_SPANS_H

#include "base/err.h"

#include <stddef.h>

struct text_span {
    size_t start, end;
};

struct text_spans {
    struct text_span *span;
    size_t len, cap;
};

/* Adds [start, end), which begins no earlier than the last one ends; joins the two where they touch. */
strata_err text_spans_add(struct text_spans *s, size_t start, size_t end, struct strata_errmsg *em);
void text_spans_deinit(struct text_spans *s);

#endif
