/* Parallel regions of the OpenMP library that ggml brings. See stage_team.h. Owns nothing. */
#include "stage/stage_team.h"

#include <dlfcn.h>
#include <string.h>

/* What a compiler calls for `#pragma omp parallel num_threads(n)`: part of the library's stable interface. Looked up
 * rather than linked, so that it is the library that ggml uses, whatever compiler built Strata, or none. */
typedef void parallel_fn(void (*fn)(void *), void *data, unsigned n_threads, unsigned flags);

void stage_team_run(uint32_t n_threads, void (*fn)(void *ctx), void *ctx) {
    parallel_fn *parallel = NULL;
    void *sym = n_threads > 1 ? dlsym(RTLD_DEFAULT, "GOMP_parallel") : NULL;
    /* A function pointer out of an object pointer, in the one way that ISO C leaves. */
    memcpy(&parallel, &sym, sizeof parallel);
    if (parallel)
        parallel(fn, ctx, n_threads, 0);
    else
        fn(ctx);
}
