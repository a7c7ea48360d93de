/* The queue of keys. See vocab_queue.h. Owns the buckets. */
#include "text/vocab_queue.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 8 * 256, KEEP = 4096 /* keys of a bucket whose memory is not given back when it was emptied */ };

static strata_err add(struct vocab_keys *k, uint64_t key, struct strata_errmsg *em) {
    if (k->len == k->cap) {
        size_t cap = k->cap ? k->cap * 2 : 16;
        uint64_t *p = realloc(k->key, cap * sizeof *p);
        if (!p) return err_nomem(em, "the tokenizer's queue");
        k->key = p;
        k->cap = cap;
    }
    k->key[k->len++] = key;
    return STRATA_OK;
}

void vocab_queue_deinit(struct vocab_queue *q) {
    for (int i = 0; i < BUCKETS && q->bucket; i++) free(q->bucket[i].key);
    free(q->bucket);
    free(q->late.key);
    *q = (struct vocab_queue){0};
}

void vocab_queue_reset(struct vocab_queue *q) {
    for (int byte = 0; byte < 8; byte++) {
        for (int i = 0; i < 4; i++) {
            for (uint64_t bits = q->full[byte][i]; bits; bits &= bits - 1) {
                q->bucket[byte * 256 + i * 64 + __builtin_ctzll(bits)].len = 0;
            }
            q->full[byte][i] = 0;
        }
    }
    q->least = 0;
    q->late.len = 0;
}

/* ---- keys that went down: a binary heap ---- */

static strata_err push_late(struct vocab_keys *h, uint64_t key, struct strata_errmsg *em) {
    strata_err rc = add(h, key, em);
    if (rc != STRATA_OK) return rc;
    size_t i = h->len - 1;
    for (; i > 0 && h->key[(i - 1) / 2] > key; i = (i - 1) / 2) h->key[i] = h->key[(i - 1) / 2];
    h->key[i] = key;
    return STRATA_OK;
}

static uint64_t pop_late(struct vocab_keys *h) {
    uint64_t top = h->key[0], last = h->key[--h->len];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= h->len) break;
        if (child + 1 < h->len && h->key[child + 1] < h->key[child]) child++;
        if (h->key[child] >= last) break;
        h->key[i] = h->key[child];
        i = child;
    }
    h->key[i] = last;
    return top;
}

/* ---- the others ---- */

static strata_err put(struct vocab_queue *q, uint64_t key, struct strata_errmsg *em) {
    uint64_t diff = key ^ q->least;
    unsigned byte = diff ? (63 - (unsigned)__builtin_clzll(diff)) / 8 : 0;
    unsigned value = (unsigned)(key >> byte * 8) & 0xFF;
    q->full[byte][value / 64] |= 1ull << value % 64;
    return add(&q->bucket[byte * 256 + value], key, em);
}

strata_err vocab_queue_push(struct vocab_queue *q, uint64_t key, struct strata_errmsg *em) {
    if (!q->bucket) {
        q->bucket = calloc(BUCKETS, sizeof *q->bucket);
        if (!q->bucket) return err_nomem(em, "the tokenizer's queue");
    }
    return key < q->least ? push_late(&q->late, key, em) : put(q, key, em);
}

/* The first byte and value whose bucket holds keys; false when none does. */
static bool first_full(const struct vocab_queue *q, unsigned *byte, unsigned *value) {
    for (*byte = 0; *byte < 8; ++*byte) {
        for (unsigned i = 0; i < 4; i++) {
            if (!q->full[*byte][i]) continue;
            *value = i * 64 + (unsigned)__builtin_ctzll(q->full[*byte][i]);
            return true;
        }
    }
    return false;
}

strata_err vocab_queue_pop(struct vocab_queue *q, uint64_t *key, bool *some, struct strata_errmsg *em) {
    *some = true;
    if (q->late.len > 0) {
        *key = pop_late(&q->late);
        return STRATA_OK;
    }
    unsigned byte, value;
    strata_err rc = STRATA_OK;
    while (rc == STRATA_OK && first_full(q, &byte, &value)) {
        struct vocab_keys *b = &q->bucket[byte * 256 + value];
        if (byte == 0) { /* all keys in it are equal */
            *key = q->least = b->key[--b->len];
            if (b->len == 0) q->full[0][value / 64] &= ~(1ull << value % 64);
            return STRATA_OK;
        }
        uint64_t above = byte == 7 ? 0 : q->least >> (byte + 1) * 8 << (byte + 1) * 8;
        q->least = above | (uint64_t)value << byte * 8;
        q->full[byte][value / 64] &= ~(1ull << value % 64);
        struct vocab_keys moved = *b;
        *b = (struct vocab_keys){0};
        for (size_t i = 0; i < moved.len && rc == STRATA_OK; i++) rc = put(q, moved.key[i], em);
        if (moved.cap <= KEEP && !b->key) {
            *b = (struct vocab_keys){moved.key, 0, moved.cap};
        } else {
            free(moved.key);
        }
    }
    *some = false;
    return rc;
}
