/*
 * What a stage keeps of the prefix cache: the state of a range for 64 positions each, under the coordinator's numbers.
 *
 * The coordinator says what is kept and what goes (it knows the tokens, and which block was used last); the store only
 * bounds how many there are. Used by the compute thread alone.
 */
#ifndef STAGE_BLOCKS_H
#define STAGE_BLOCKS_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct stage_blocks;

/* At most `max` blocks; 0 keeps none. */
strata_err stage_blocks_new(uint32_t max, struct stage_blocks **out, struct strata_errmsg *em);
void stage_blocks_free(struct stage_blocks *b);

/* Room for a block, to be filled by the caller; it belongs to the store. NULL when the store is full, memory is short,
 * or the number is taken. `id` is not 0. */
void *stage_blocks_put(struct stage_blocks *b, uint64_t id, size_t bytes);
/* NULL when there is none. */
const void *stage_blocks_get(const struct stage_blocks *b, uint64_t id, size_t *bytes);
void stage_blocks_remove(struct stage_blocks *b, uint64_t first, uint32_t count);
uint32_t stage_blocks_count(const struct stage_blocks *b);

#endif
