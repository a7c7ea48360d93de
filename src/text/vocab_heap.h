/*
 * A binary min-heap of 64-bit keys with two 32-bit values, grown as needed: the queue of candidate merges and matches.
 * Life cycle: zero the struct, push and pop, heap_deinit. Equal keys come out in no stated order.
 */
#ifndef TEXT_VOCAB_HEAP_H
#define TEXT_VOCAB_HEAP_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct vocab_heap_item {
    uint64_t key;
    uint32_t a, b;
};

struct vocab_heap {
    struct vocab_heap_item *item;
    size_t len, cap;
};

static inline void vocab_heap_deinit(struct vocab_heap *h) {
    free(h->item);
    *h = (struct vocab_heap){0};
}

static inline strata_err vocab_heap_push(struct vocab_heap *h, struct vocab_heap_item it, struct strata_errmsg *em) {
    if (h->len == h->cap) {
        size_t cap = h->cap ? h->cap * 2 : 64;
        struct vocab_heap_item *p = realloc(h->item, cap * sizeof *p);
        if (!p) return err_nomem(em, "the tokenizer's queue");
        h->item = p;
        h->cap = cap;
    }
    size_t i = h->len++;
    while (i > 0 && h->item[(i - 1) / 2].key > it.key) {
        h->item[i] = h->item[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h->item[i] = it;
    return STRATA_OK;
}

/* False when the heap is empty. */
static inline bool vocab_heap_pop(struct vocab_heap *h, struct vocab_heap_item *out) {
    if (h->len == 0) return false;
    *out = h->item[0];
    struct vocab_heap_item last = h->item[--h->len];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= h->len) break;
        if (child + 1 < h->len && h->item[child + 1].key < h->item[child].key) child++;
        if (h->item[child].key >= last.key) break;
        h->item[i] = h->item[child];
        i = child;
    }
    if (h->len > 0) h->item[i] = last;
    return true;
}

#endif
