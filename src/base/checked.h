/* Arithmetic on foreign numbers: each function returns false, and leaves *out alone, when the result would not fit. */
#ifndef BASE_CHECKED_H
#define BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool checked_add(uint64_t a, uint64_t b, uint64_t *out) {
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

static inline bool checked_mul(uint64_t a, uint64_t b, uint64_t *out) {
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

/* Rounds a up to a multiple of align, which must be a power of two. */
static inline bool checked_align(uint64_t a, uint64_t align, uint64_t *out) {
    uint64_t r;
    if (!checked_add(a, align - 1, &r)) return false;
    *out = r & ~(align - 1);
    return true;
}

#endif
