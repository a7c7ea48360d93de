/* The CPU, opened with 1 to MAX_THREADS threads, for a group of tests. */
#ifndef CPU_BACKENDS_H
#define CPU_BACKENDS_H

#include "model/model_backend.h"

enum { MAX_THREADS = 3 };

static struct model_backend backend[MAX_THREADS]; /* backend[i] has i + 1 threads */

static inline int open_backends(void **state) {
    struct strata_errmsg em;
    (void)state;
    for (int i = 0; i < MAX_THREADS; i++)
        if (model_backend_init(&backend[i], NULL, NULL, (uint32_t)i + 1, &em)) return -1;
    return 0;
}

static inline int close_backends(void **state) {
    (void)state;
    for (int i = 0; i < MAX_THREADS; i++) model_backend_deinit(&backend[i]);
    return 0;
}

#endif
