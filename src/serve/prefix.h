/*
 * Which prefixes the stages keep: a tree of blocks, found by the tokens in them.
 *
 * A block holds the state of 64 positions at every stage, under a number; its place in the tree says which tokens came
 * before. This is the one place that decides what is kept and what goes: the stages only follow. At most max_blocks are
 * known or reserved; the one used least recently goes first, and only one that no other continues and that nobody
 * holds. `forget` is called for every number that the stages need not keep any more.
 *
 * Not thread-safe: the chain's loop thread uses it. A tip is the last block of a prefix, held for a request; NULL is
 * the empty prefix.
 */
#ifndef PREFIX_H
#define PREFIX_H

#include "base/err.h"
#include "wire/wire_msg.h"

#include <stdbool.h>
#include <stdint.h>

enum { PREFIX_BLOCK = WIRE_MSG_BLOCK };

struct prefix;
struct prefix_node;

struct prefix_stats {
    uint64_t hits, misses;     /* requests long enough for a block that started from at least one, and from none */
    uint64_t reused_positions; /* that were not computed again */
    uint64_t evictions;
    uint32_t blocks, max_blocks;
};

strata_err prefix_new(uint32_t max_blocks, void (*forget)(void *ctx, uint64_t first, uint32_t count), void *ctx,
                      struct prefix **out, struct strata_errmsg *em);
void prefix_free(struct prefix *p);
/* Forgets everything, silently: the stages have done so too. Every tip that is held becomes invalid. */
void prefix_clear(struct prefix *p);
void prefix_stats(const struct prefix *p, struct prefix_stats *out);

/* The longest known prefix of tokens, of at most max blocks; held until prefix_release. Counts a hit or a miss,
 * unless max is 0. */
struct prefix_node *prefix_match(struct prefix *p, const int32_t *tokens, uint32_t max, uint32_t *n_blocks);
/* The numbers of a prefix's n blocks, in order. */
void prefix_ids(const struct prefix_node *tip, uint64_t *ids, uint32_t n);
void prefix_release(struct prefix *p, struct prefix_node *tip);

/* Makes room for n more blocks, which then count as reserved; false, and nothing reserved, when that cannot be. */
bool prefix_reserve(struct prefix *p, uint32_t n);
void prefix_unreserve(struct prefix *p, uint32_t n);
/* n numbers that were never used; the first of them. */
uint64_t prefix_numbers(struct prefix *p, uint32_t n);
/*
 * The stages keep block `id` now, with these PREFIX_BLOCK tokens after tip, for which room was reserved. The hold moves
 * on to the block, which is returned: or to one that is known already, and then `id` is forgotten. NULL when memory is
 * short: `id` is forgotten, and tip is still held.
 */
struct prefix_node *prefix_extend(struct prefix *p, struct prefix_node *tip, const int32_t *tokens, uint64_t id);
/* A stage did not have one of these blocks: gives up the hold, and none of them is found any more, nor what continues
 * them. Those that nobody needs are forgotten at once, the others when they get old. */
void prefix_discard(struct prefix *p, struct prefix_node *tip);

#endif
