/* The real backend of a stage: a package on disk and Strata's engine. */
#ifndef STAGE_ENGINE_H
#define STAGE_ENGINE_H

#include "package/pkg_sign.h"
#include "stage/stage_backend.h"

struct stage_engine;

/* `package` is a package folder; n_threads 0 takes all cores; device is as in struct engine_options, and must be there
 * (copied; or NULL). With a key (copied; or NULL) the package must have a good
 * signature by it whenever it is opened. out->self is owned by the engine object. */
strata_err stage_engine_new(const char *package, uint32_t n_threads, const char *device,
                            const struct ed25519_pub *require_signature, struct stage_engine **out,
                            struct strata_errmsg *em);
/* What the package's signature turned out to be when it was probed: a view. */
const struct pkg_signature *stage_engine_signature(const struct stage_engine *e);
/* The name of the device that computes: a view. */
const char *stage_engine_device(const struct stage_engine *e);
/* After every unit is freed. */
void stage_engine_free(struct stage_engine *e);
struct stage_backend stage_engine_backend(struct stage_engine *e);

#endif
