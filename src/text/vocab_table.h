/*
 * The two hash tables of a vocabulary: token text to id, and pair of ids to merge. Filled once, then read-only.
 * Open addressing, at most half full. A table whose entries collide more than any honest vocabulary's would is refused.
 */
#ifndef TEXT_VOCAB_TABLE_H
#define TEXT_VOCAB_TABLE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vocab_text_slot {
    const char *text; /* NULL: free; borrowed */
    uint32_t len;
    uint32_t hash;
    int32_t id;
};

struct vocab_text_table {
    struct vocab_text_slot *slot;
    size_t mask;
};

/* Room for n entries. */
strata_err vocab_text_init(struct vocab_text_table *t, size_t n, struct strata_errmsg *em);
void vocab_text_deinit(struct vocab_text_table *t);
/* *old is -1, or the id that the text already has; then nothing is added. */
strata_err vocab_text_add(struct vocab_text_table *t, const char *text, size_t len, int32_t id, int32_t *old,
                          struct strata_errmsg *em);
/* The id of a text, or -1. */
int32_t vocab_text_find(const struct vocab_text_table *t, const char *text, size_t len);

struct vocab_merge {
    uint64_t pair; /* left id in the high half, right id in the low half; VOCAB_MERGE_FREE when unused */
    uint32_t rank; /* lower merges first */
    int32_t id;    /* what the pair becomes */
};
#define VOCAB_MERGE_FREE UINT64_MAX

struct vocab_merge_table {
    struct vocab_merge *slot;
    size_t mask;
};

strata_err vocab_merge_init(struct vocab_merge_table *t, size_t n, struct strata_errmsg *em);
void vocab_merge_deinit(struct vocab_merge_table *t);
/* The first rank given to a pair stays. Ids are not negative. */
strata_err vocab_merge_add(struct vocab_merge_table *t, int32_t left, int32_t right, uint32_t rank, int32_t id,
                           struct strata_errmsg *em);

static inline size_t vocab_merge_hash(uint64_t pair) {
    return (size_t)((pair * 0x9E3779B97F4A7C15ull) >> 24);
}

/* The merge of two symbols, or NULL; an id of -1 (a byte the vocabulary lacks) merges with nothing. */
static inline const struct vocab_merge *vocab_merge_find(const struct vocab_merge_table *t, int32_t left,
                                                         int32_t right) {
    if (left < 0 || right < 0) return NULL;
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (size_t i = vocab_merge_hash(pair) & t->mask;; i = (i + 1) & t->mask) {
        if (t->slot[i].pair == pair) return &t->slot[i];
        if (t->slot[i].pair == VOCAB_MERGE_FREE) return NULL;
    }
}

#endif
