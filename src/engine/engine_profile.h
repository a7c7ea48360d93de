/*
 * Where the time of an engine's graphs goes: by kind of operation, by matrix, by layer.
 *
 * An engine made with options.profile computes each graph one operation at a time and notes how long each took. That
 * is slower than computing it whole, by the time to launch an operation, which is measured beforehand and counted
 * apart. Products and attention are set against the bytes that they must read, and the sum of those against the rate
 * at which this machine's memory can be read: no decoder is faster than that.
 *
 * Life cycle: engine_profile_new when the engine is made, engine_profile_compute for each graph, and whenever figures
 * are wanted engine_profile_print or engine_profile_json, then engine_profile_reset to count anew.
 */
#ifndef ENGINE_PROFILE_H
#define ENGINE_PROFILE_H

#include "model/model_backend.h"

#include <ggml.h>
#include <jansson.h>
#include <stdio.h>

enum { ENGINE_PROFILE_NAME = 64 };

/* Sums over operations that are counted together. */
struct engine_profile_row {
    char name[ENGINE_PROFILE_NAME];
    uint64_t count, ns;
    uint64_t bytes; /* of weights and state that products and attention read */
    double flops;   /* of products and attention */
};

struct engine_profile_table {
    struct engine_profile_row *row;
    size_t n, cap;
};

struct engine_profile {
    struct engine_profile_table by_op, by_matrix, by_layer;
    struct engine_profile_row all;
    uint64_t n_runs, n_tokens;
    uint64_t launch_ns;     /* spent on launching operations; not in the rows */
    uint64_t one_launch_ns; /* for one */
    double read_rate;       /* bytes of memory that all threads together read in a second; 0: not known */
    /* Owned, borrowed: */
    struct ggml_context *ctx;
    struct ggml_cgraph *one; /* a graph for one operation */
    const struct model_backend *backend;
};

/* Measures the launch of an operation and, on the CPU, the memory's rate, in about half a second. Borrows the backend.
 */
strata_err engine_profile_new(const struct model_backend *backend, struct engine_profile **out,
                              struct strata_errmsg *em);
void engine_profile_free(struct engine_profile *p);

/* Computes a graph whose tensors are named by model_graph (name_parts), and notes its operations. sched: that which
 * placed it, or NULL when it is computed in place. */
strata_err engine_profile_compute(struct engine_profile *p, struct ggml_cgraph *graph, ggml_backend_sched_t sched,
                                  uint32_t n_tokens, struct strata_errmsg *em);

/* Forgets the figures so far; measurements of the machine stay. */
void engine_profile_reset(struct engine_profile *p);

/* Tables for people. Sorts the rows. */
void engine_profile_print(struct engine_profile *p, const char *title, FILE *out);
/* The same numbers; NULL without memory. Sorts the rows. */
json_t *engine_profile_json(struct engine_profile *p);

/*
 * Bytes that `threads` threads together read in a second from a block of `bytes` (0: one that no cache holds), over and
 * over; 0 when there is no memory to try it with. With the bytes that a computation reads each time, caches help both
 * alike.
 */
double engine_profile_read_rate(unsigned threads, uint64_t bytes);

#endif
