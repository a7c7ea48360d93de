/* The real backend of a stage: a package on disk and Strata's engine. */
#ifndef STAGE_ENGINE_H
#define STAGE_ENGINE_H

#include "stage/stage_backend.h"

struct stage_engine;

/* `package` is a package folder; n_threads 0 takes all cores. out->self is owned by the engine object. */
strata_err stage_engine_new(const char *package, uint32_t n_threads, struct stage_engine **out,
                            struct strata_errmsg *em);
/* After every unit is freed. */
void stage_engine_free(struct stage_engine *e);
struct stage_backend stage_engine_backend(struct stage_engine *e);

#endif
