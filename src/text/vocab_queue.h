/*
 * A queue of 64-bit keys that gives out the smallest first, in constant time a key: the candidate merges of a text, or
 * the special tokens found in it.
 *
 * Keys are kept by the first byte in which they differ from the smallest one so far, and sorted out further only when
 * their turn comes, so that a key is moved at most eight times, and in order. This suits keys that seldom go down: a
 * key below one that was given out already goes to a heap of its own. Life cycle: zero the struct, push and pop,
 * vocab_queue_deinit. A queue that was emptied may be used again, after vocab_queue_reset.
 */
#ifndef TEXT_VOCAB_QUEUE_H
#define TEXT_VOCAB_QUEUE_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vocab_keys {
    uint64_t *key;
    size_t len, cap;
};

struct vocab_queue {
    struct vocab_keys *bucket; /* one for each value of each byte */
    uint64_t full[8][4];       /* which buckets hold keys */
    uint64_t least;            /* no key in a bucket is smaller */
    struct vocab_keys late;    /* a heap of the smaller ones */
};

void vocab_queue_deinit(struct vocab_queue *q);
/* Forgets what was given out; what is left in the queue is dropped. */
void vocab_queue_reset(struct vocab_queue *q);
strata_err vocab_queue_push(struct vocab_queue *q, uint64_t key, struct strata_errmsg *em);
/* *some false: the queue is empty. */
strata_err vocab_queue_pop(struct vocab_queue *q, uint64_t *key, bool *some, struct strata_errmsg *em);

#endif
