/* What the files of this folder share of an engine. Not for others. */
#ifndef ENGINE_INTERNAL_H
#define ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "model/model.h"

const struct model_state *engine_state(const struct engine *e);
struct model_state *engine_state_mut(struct engine *e);
const struct pkg_model *engine_package(const struct engine *e);
const struct model *engine_model(const struct engine *e);

/* The first position that the sequence could be truncated to, 0 aside, which it always can. */
uint32_t engine_reach(const struct engine *e, uint32_t seq);

/* Whether rows of positions [first, end) may follow the first `first` positions of a sequence, its later ones gone. */
strata_err engine_check_restore(const struct engine *e, uint32_t seq, uint32_t first, uint32_t end,
                                struct strata_errmsg *em);
/* Rows up to `end` were put into the state: from `low` on it is whole. */
void engine_note_restored(struct engine *e, uint32_t seq, uint32_t end, uint32_t low);

#endif
