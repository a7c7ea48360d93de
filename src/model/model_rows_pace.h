/*
 * Which of two ways to read a matrix is the faster on this machine: found out while computing.
 *
 * Some processors look far enough ahead by themselves as long as a thread reads on in one place, and lose by being
 * asked for what is to come; others gain half of their speed by it. Both ways give the same bits. So products of one
 * kind are computed in one way and in the other by turns, until enough pairs have shown which one is sooner done.
 *
 * What is known is the process's, for all engines: it is about the machine.
 */
#ifndef MODEL_ROWS_PACE_H
#define MODEL_ROWS_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum model_rows_way {
    MODEL_ROWS_ASKING, /* small pieces, and what is to come is asked for */
    MODEL_ROWS_PLAIN   /* large pieces, and the processor sees for itself */
};

/* Products of one kind. Opaque but for model_rows_pace.c. */
struct model_rows_kind;

/* A product: how it is computed this time, and what it took in either way. Written between two runs, by one thread. */
struct model_rows_pace {
    struct model_rows_kind *kind; /* NULL: there are too many */
    enum model_rows_way way;
    int64_t began_ns, took_ns[2];
};

/* For a product of a matrix of `type` [width, rows], in an order of the kernels' own or not, with `columns` vectors.
 * Any thread may call it. */
struct model_rows_pace model_rows_pace_of(int type, bool packed, int64_t width, int64_t rows, int64_t columns);
/* When the first thread begins, and when the last one has ended: the way for the next time. */
void model_rows_pace_begin(struct model_rows_pace *p);
void model_rows_pace_end(struct model_rows_pace *p);

/* ---- for tests ---- */

/* As model_rows_pace_end, with a product that took `ns`. */
void model_rows_pace_note(struct model_rows_pace *p, int64_t ns);

#endif
