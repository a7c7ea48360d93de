/*
 * Progress of long work on stderr: a bar that redraws itself on a terminal, a plain line every few seconds elsewhere.
 *
 * Life cycle: progress_begin, progress_add from one thread, progress_end. Nothing is drawn for work that ends within
 * a fifth of a second.
 */
#ifndef BASE_PROGRESS_H
#define BASE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct progress {
    FILE *out; /* NULL: draw nothing */
    const char *label;
    uint64_t total; /* bytes, 0 when not known */
    uint64_t done;
    uint64_t start_ns;
    uint64_t drawn_ns;
    bool tty;
    bool drawn;
};

void progress_begin(struct progress *p, FILE *out, const char *label, uint64_t total);
void progress_add(struct progress *p, uint64_t bytes);
/* Draws the final state when anything was drawn before. */
void progress_end(struct progress *p);

/* "12.3 MiB" and the like into out. Returns out. */
const char *progress_bytes(char *out, size_t cap, uint64_t bytes);

#endif
