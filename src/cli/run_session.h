/* `strata run --session`: a sequence's state, kept in a file from one run to the next. */
#ifndef RUN_SESSION_H
#define RUN_SESSION_H

#include "engine/engine.h"

/* Whether a file could be written there, before anything is computed for it. */
strata_err run_session_probe(const char *path, struct strata_errmsg *em);

/*
 * Restores as many of the n ids as the file's sequence begins with, but for the last one, whose logits are wanted;
 * *restored is their number. A file that is not there restores nothing. What is found and done is said on stderr. A
 * file that is damaged, or of another model or type of cache, is an error.
 */
strata_err run_session_restore(const char *path, struct engine *e, const int32_t *ids, uint32_t n, uint32_t *restored,
                               struct strata_errmsg *em);

/* Saves what the engine has of the ids, instead of what the file holds. */
strata_err run_session_save(const char *path, const struct engine *e, const int32_t *ids, struct strata_errmsg *em);

#endif
