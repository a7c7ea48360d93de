/* Parallel regions of the OpenMP library that ggml brings. See model_team.h. Owns nothing. */
#include "model/model_team.h"

#include "base/cpus.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* What a compiler calls for `#pragma omp parallel num_threads(n)`: part of the library's stable interface. Looked up
 * rather than linked, so that it is the library that ggml uses, whatever compiler built Strata, or none. */
typedef void parallel_fn(void (*fn)(void *), void *data, unsigned n_threads, unsigned flags);

/* NULL: there is no such library. */
static parallel_fn *find_parallel(void) {
    parallel_fn *parallel = NULL;
    void *sym = dlsym(RTLD_DEFAULT, "GOMP_parallel");
    /* A function pointer out of an object pointer, in the one way that ISO C leaves. */
    memcpy(&parallel, &sym, sizeof parallel);
    return parallel;
}

void model_team_run(uint32_t n_threads, void (*fn)(void *ctx), void *ctx) {
    parallel_fn *parallel = n_threads > 1 ? find_parallel() : NULL;
    if (parallel)
        parallel(fn, ctx, n_threads, 0);
    else
        fn(ctx);
}

struct places {
    pthread_t first;
    atomic_uint next;
};

/* The thread that leads the team takes the first processor, the workers the others in any order. */
static void take_place(void *ctx) {
    struct places *p = ctx;
    cpus_bind(pthread_equal(pthread_self(), p->first) ? 0 : atomic_fetch_add(&p->next, 1));
}

static void leave_place(void *ctx) {
    (void)ctx;
    cpus_release();
}

bool model_team_bind(uint32_t n_threads) {
    struct places places = {.first = pthread_self(), .next = 1};
    bool told = getenv("OMP_PROC_BIND") || getenv("OMP_PLACES") || getenv("GOMP_CPU_AFFINITY");
    if (told || n_threads < 2 || n_threads != cpus_count() || !find_parallel()) return false;
    model_team_run(n_threads, take_place, &places);
    return true;
}

void model_team_release(uint32_t n_threads) {
    model_team_run(n_threads, leave_place, NULL);
}
