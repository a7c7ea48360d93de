/*
 * Merging: of all neighbouring symbols that make a token, those with the lowest rank are joined, leftmost first, until
 * no two are left that do. One algorithm for both kinds of vocabulary; they differ in where symbols begin (bytes or
 * characters) and in how a pair is looked up (by its ids, or by its text).
 */
#include "text/vocab_impl.h"

#include <string.h>

enum { SMALL = 48 /* bytes up to which looking at every pair beats the queue */, DEAD = -2 /* joined to the left */ };
#define NO_PAIR UINT32_MAX

/* A score as a rank: higher scores first. */
static uint32_t score_rank(float score) {
    uint32_t bits;
    score += 0.0f; /* one zero, not two */
    memcpy(&bits, &score, sizeof bits);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return ~bits;
}

static int32_t find_text(const struct vocab *v, const char *s, size_t n) {
    if (n > v->max_len) return -1;
    int32_t id = vocab_text_find(&v->by_text, s, n);
    return id >= 0 && vocab_mergeable(&v->token[id]) ? id : -1;
}

/* The rank of a pair and what it becomes, or NO_PAIR. `text` is where the left symbol begins, n their length. */
static inline uint32_t pair_rank(const struct vocab *v, int32_t left, int32_t right, const char *text, size_t n,
                                 int32_t *id) {
    if (v->kind == VOCAB_KIND_BPE) {
        const struct vocab_merge *m = vocab_merge_find(&v->merges, left, right);
        if (!m) return NO_PAIR;
        *id = m->id;
        return m->rank;
    }
    *id = find_text(v, text, n);
    return *id < 0 ? NO_PAIR : score_rank(v->token[*id].score);
}

/* The symbol that begins at s: its length and its token, or -1. */
static inline uint32_t first_symbol(const struct vocab *v, const char *s, size_t left, int32_t *id) {
    if (v->kind == VOCAB_KIND_BPE) {
        *id = v->byte_id[(unsigned char)*s];
        return 1;
    }
    uint32_t n = vocab_symbol_len(s, left);
    *id = find_text(v, s, n);
    return n;
}

static strata_err emit(const struct vocab *v, int32_t id, const char *s, size_t n, struct vocab_ids *out,
                       struct strata_errmsg *em) {
    if (id >= 0) return vocab_ids_add(out, id, em);
    return v->kind == VOCAB_KIND_BPE ? STRATA_OK : vocab_spm_bytes(v, s, n, out, em);
}

static strata_err merge_small(const struct vocab *v, const char *text, size_t len, struct vocab_ids *out,
                              struct strata_errmsg *em) {
    int32_t id[SMALL], merged[SMALL];
    uint32_t rank[SMALL];
    uint8_t start[SMALL + 1];
    size_t n = 0;
    for (size_t at = 0; at < len; n++) {
        start[n] = (uint8_t)at;
        at += first_symbol(v, text + at, len - at, &id[n]);
    }
    start[n] = (uint8_t)len;
    for (size_t i = 0; i + 1 < n; i++) {
        rank[i] = pair_rank(v, id[i], id[i + 1], text + start[i], (size_t)(start[i + 2] - start[i]), &merged[i]);
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (rank[i] < rank[best]) best = i;
        }
        if (rank[best] == NO_PAIR) break;
        id[best] = merged[best];
        n--;
        for (size_t i = best + 1; i <= n; i++) start[i] = start[i + 1];
        for (size_t i = best + 1; i < n; i++) id[i] = id[i + 1];
        for (size_t i = best + 1; i + 1 < n; i++) {
            rank[i] = rank[i + 1];
            merged[i] = merged[i + 1];
        }
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            rank[i] = pair_rank(v, id[i], id[i + 1], text + start[i], (size_t)(start[i + 2] - start[i]), &merged[i]);
        }
    }
    strata_err rc = STRATA_OK;
    for (size_t i = 0; i < n && rc == STRATA_OK; i++) {
        rc = emit(v, id[i], text + start[i], (size_t)(start[i + 1] - start[i]), out, em);
    }
    return rc;
}

/* Queues the pair whose left symbol begins at `left`, if it makes a token. */
static inline strata_err queue_pair(const struct vocab *v, struct vocab_work *w, const char *text, size_t len,
                                    uint32_t left, struct strata_errmsg *em) {
    uint32_t right = left + w->len[left];
    int32_t id;
    if (right >= len) return STRATA_OK;
    uint32_t rank = pair_rank(v, w->id[left], w->id[right], text + left, (size_t)w->len[left] + w->len[right], &id);
    return rank == NO_PAIR ? STRATA_OK : vocab_queue_push(&w->queue, (uint64_t)rank << 32 | left, em);
}

/* One entry of the queue: joins the pair unless either side has been joined with something else since. */
static strata_err take(const struct vocab *v, struct vocab_work *w, const char *text, size_t len, uint64_t key,
                       struct strata_errmsg *em) {
    uint32_t left = (uint32_t)key;
    if (w->id[left] == DEAD) return STRATA_OK;
    uint32_t right = left + w->len[left];
    if (right >= len) return STRATA_OK;
    uint32_t n = (uint32_t)w->len[left] + w->len[right];
    int32_t id = -1;
    if (pair_rank(v, w->id[left], w->id[right], text + left, n, &id) != key >> 32) return STRATA_OK;
    w->id[right] = DEAD;
    w->id[left] = id;
    w->len[left] = (uint16_t)n; /* a token has at most VOCAB_TOKEN_BYTES_MAX */
    w->len[left + n - 1] = (uint16_t)n;
    strata_err rc = STRATA_OK;
    if (left > 0) rc = queue_pair(v, w, text, len, left - w->len[left - 1], em);
    return rc == STRATA_OK ? queue_pair(v, w, text, len, left, em) : rc;
}

/*
 * The same for texts of any length, in linear time. w->id and w->len tell for each byte that begins a symbol its token
 * and its length; w->len tells the length for the symbol's last byte as well, so that its left neighbour can be found.
 */
static strata_err merge_large(const struct vocab *v, const char *text, size_t len, struct vocab_work *w,
                              struct vocab_ids *out, struct strata_errmsg *em) {
    strata_err rc = vocab_work_symbols(w, len, em);
    if (rc != STRATA_OK) return rc;
    vocab_queue_reset(&w->queue);
    for (size_t i = 0; i < len;) {
        uint32_t n = first_symbol(v, text + i, len - i, &w->id[i]);
        w->len[i] = w->len[i + n - 1] = (uint16_t)n;
        i += n;
    }
    for (uint32_t i = 0; i < len && rc == STRATA_OK; i += w->len[i]) rc = queue_pair(v, w, text, len, i, em);
    for (bool some = true; rc == STRATA_OK && some;) {
        uint64_t key;
        rc = vocab_queue_pop(&w->queue, &key, &some, em);
        if (rc == STRATA_OK && some) rc = take(v, w, text, len, key, em);
    }
    for (uint32_t i = 0; i < len && rc == STRATA_OK; i += w->len[i])
        rc = emit(v, w->id[i], text + i, w->len[i], out, em);
    return rc;
}

strata_err vocab_merge(const struct vocab *v, const char *text, size_t len, struct vocab_work *w, struct vocab_ids *out,
                       struct strata_errmsg *em) {
    return len <= SMALL ? merge_small(v, text, len, out, em) : merge_large(v, text, len, w, out, em);
}
