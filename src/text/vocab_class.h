/*
 * The class of every Unicode code point, as the tokenizers that models were trained with see it: Unicode 15.1, whatever
 * version other libraries on the machine know. vocab_class_data.c holds where classes change (tests/tools/mkclass.py
 * writes it); a splitter spreads that out into a table of one byte per code point.
 */
#ifndef TEXT_VOCAB_CLASS_H
#define TEXT_VOCAB_CLASS_H

#include "base/err.h"

#include <stdint.h>

enum {
    CLASS_LETTER = 1,
    CLASS_MARK = 2,
    CLASS_NUMBER = 4,
    CLASS_PUNCT = 8,
    CLASS_SYMBOL = 16,
    CLASS_SPACE = 32,
    CLASS_COUNT = 0x110000
};

/* First code point << 8 | class, rising; each entry holds up to the next one. */
extern const uint32_t vocab_class_changes[];
extern const unsigned vocab_class_n_changes;

/* *out: a new table of CLASS_COUNT bytes, to be freed by the caller. */
strata_err vocab_class_new(uint8_t **out, struct strata_errmsg *em);

/* The character at p, which begins a valid one; *n gets its length. */
static inline uint32_t vocab_class_next(const char *p, unsigned *n) {
    const unsigned char *u = (const unsigned char *)p;
    if (u[0] < 0x80) {
        *n = 1;
        return u[0];
    }
    if (u[0] < 0xE0) {
        *n = 2;
        return (uint32_t)(u[0] & 0x1F) << 6 | (u[1] & 0x3Fu);
    }
    if (u[0] < 0xF0) {
        *n = 3;
        return (uint32_t)(u[0] & 0x0F) << 12 | (uint32_t)(u[1] & 0x3F) << 6 | (u[2] & 0x3Fu);
    }
    *n = 4;
    return (uint32_t)(u[0] & 0x07) << 18 | (uint32_t)(u[1] & 0x3F) << 12 | (uint32_t)(u[2] & 0x3F) << 6 |
           (u[3] & 0x3Fu);
}

#endif
