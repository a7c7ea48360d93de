/* The real backend of a stage: a package on disk and Strata's engine. */
#ifndef STAGE_ENGINE_H
#define STAGE_ENGINE_H

#include "package/pkg_sign.h"
#include "stage/stage_backend.h"

#include <stdio.h>

struct stage_engine;

/* All copied. */
struct stage_engine_options {
    const char *package; /* a package folder */
    const char *device;  /* as in struct engine_options; must be there */
    uint32_t n_threads;  /* 0: all cores */
    bool over_memory;    /* as in struct engine_options, as is the next one */
    bool keep_mapped;
    FILE *progress; /* where checking and loading show how far they are; NULL: nowhere */
    /* Whenever it is opened, the package must have a good signature by this key; NULL: none is needed. */
    const struct ed25519_pub *require_signature;
};

/* out->self is owned by the engine object. */
strata_err stage_engine_new(const struct stage_engine_options *opt, struct stage_engine **out,
                            struct strata_errmsg *em);
/* What the package's signature turned out to be when it was probed: a view. */
const struct pkg_signature *stage_engine_signature(const struct stage_engine *e);
/* The name of the device that computes: a view. */
const char *stage_engine_device(const struct stage_engine *e);
/* After every unit is freed. */
void stage_engine_free(struct stage_engine *e);
struct stage_backend stage_engine_backend(struct stage_engine *e);

#endif
