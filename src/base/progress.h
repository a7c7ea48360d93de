/*
 * Progress of long work on stderr: a bar that redraws itself on a terminal, a plain line every few seconds elsewhere.
 *
 * Life cycle: progress_begin, progress_add from any thread, progress_end when no other thread adds any more. Nothing is
 * drawn for work that ends within a fifth of a second.
 */
#ifndef BASE_PROGRESS_H
#define BASE_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct progress {
    FILE *out; /* NULL: draw nothing */
    const char *label;
    uint64_t total;  /* bytes, 0 when not known */
    uint64_t passes; /* how often each byte is added; 1, unless it is set after progress_begin */
    _Atomic uint64_t done;
    atomic_flag drawing; /* held by the thread that draws; the others go on */
    uint64_t start_ns;
    _Atomic uint64_t drawn_ns; /* 0: nothing yet */
    bool tty;
};

void progress_begin(struct progress *p, FILE *out, const char *label, uint64_t total);
void progress_add(struct progress *p, uint64_t bytes);
/* Draws the final state when anything was drawn before. */
void progress_end(struct progress *p);

/* "12.3 MiB" and the like into out. Returns out. */
const char *progress_bytes(char *out, size_t cap, uint64_t bytes);

#endif
