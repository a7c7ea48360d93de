/*
 * Which rows the first stage puts into its next batch: a pure function.
 *
 * Decode steps come first, for somebody is waiting for each of them; what room is left goes to prompts. Everybody's
 * turn comes: whoever was served longest ago goes first. While others decode, prompts get a quarter of a batch only,
 * so that a long prompt delays every token of theirs a little instead of one of them a lot. Pieces of a prompt end at
 * multiples of the batch size, wherever that is possible, so that the same prompt is cut in the same places again.
 */
#ifndef STAGE_BATCH_H
#define STAGE_BATCH_H

#include <stdbool.h>
#include <stdint.h>

enum { STAGE_BATCH_PROMPT_SHARE = 4 };

struct stage_batch_limits {
    uint32_t n_batch;     /* most rows */
    uint32_t n_in_flight; /* batches that all decoding requests are split into */
    uint32_t n_decoding;  /* requests that decode, whether their next step can be computed yet or not */
};

/* What a request has ready, and what it gets. */
struct stage_batch_entry {
    uint32_t slot;
    uint32_t pos;     /* of the next row */
    uint32_t waiting; /* tokens of the prompt that wait; 0: a decode step waits */
    uint64_t served;  /* when it was served last, or began: smaller is longer ago */
    uint32_t n_rows;  /* out: rows of it in the batch */
};

/* Puts the n entries that get rows (n_rows above 0) first, decode steps before prompts, and returns how many. */
uint32_t stage_batch_choose(const struct stage_batch_limits *limits, struct stage_batch_entry *entries, uint32_t n);

#endif
