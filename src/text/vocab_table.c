/* Hash tables of a vocabulary. See vocab_table.h. Owns the slots, borrows the texts. */
#include "text/vocab_table.h"

#include <stdlib.h>
#include <string.h>

enum { PROBES_MAX = 2048 };

/* Eight bytes at a time: multiplying is what takes time, and most texts are shorter than that. */
static uint32_t hash_text(const char *s, size_t len) {
    const uint64_t prime = 0x9E3779B97F4A7C15ull;
    uint64_t h = len * prime, word;
    for (; len >= sizeof word; len -= sizeof word, s += sizeof word) {
        memcpy(&word, s, sizeof word);
        h = (h ^ word) * prime;
        h ^= h >> 32;
    }
    word = 0;
    for (size_t i = 0; i < len; i++) word = word << 8 | (unsigned char)s[i];
    h = (h ^ word) * prime;
    return (uint32_t)(h >> 32);
}

/* The smallest power of two that leaves the table at least half free. */
static size_t slots_for(size_t n) {
    size_t slots = 16;
    while (slots < 2 * n) slots *= 2;
    return slots;
}

static strata_err crowded(struct strata_errmsg *em) {
    return err_set(em, STRATA_EFORMAT, "the vocabulary's entries collide in a way that no honest vocabulary's do");
}

strata_err vocab_text_init(struct vocab_text_table *t, size_t n, struct strata_errmsg *em) {
    size_t slots = slots_for(n);
    t->slot = calloc(slots, sizeof *t->slot);
    if (!t->slot) return err_nomem(em, "the vocabulary's table");
    t->mask = slots - 1;
    return STRATA_OK;
}

void vocab_text_deinit(struct vocab_text_table *t) {
    free(t->slot);
    *t = (struct vocab_text_table){0};
}

strata_err vocab_text_add(struct vocab_text_table *t, const char *text, size_t len, int32_t id, int32_t *old,
                          struct strata_errmsg *em) {
    uint32_t h = hash_text(text, len);
    size_t i = h & t->mask;
    for (int probes = 0; t->slot[i].text; i = (i + 1) & t->mask) {
        const struct vocab_text_slot *s = &t->slot[i];
        if (s->hash == h && s->len == len && memcmp(s->text, text, len) == 0) {
            *old = s->id;
            return STRATA_OK;
        }
        if (++probes == PROBES_MAX) return crowded(em);
    }
    t->slot[i] = (struct vocab_text_slot){.text = text, .len = (uint32_t)len, .hash = h, .id = id};
    *old = -1;
    return STRATA_OK;
}

int32_t vocab_text_find(const struct vocab_text_table *t, const char *text, size_t len) {
    uint32_t h = hash_text(text, len);
    for (size_t i = h & t->mask; t->slot[i].text; i = (i + 1) & t->mask) {
        const struct vocab_text_slot *s = &t->slot[i];
        if (s->hash == h && s->len == len && memcmp(s->text, text, len) == 0) return s->id;
    }
    return -1;
}

strata_err vocab_merge_init(struct vocab_merge_table *t, size_t n, struct strata_errmsg *em) {
    size_t slots = slots_for(n);
    t->slot = malloc(slots * sizeof *t->slot);
    if (!t->slot) return err_nomem(em, "the vocabulary's merges");
    for (size_t i = 0; i < slots; i++) t->slot[i].pair = VOCAB_MERGE_FREE;
    t->mask = slots - 1;
    return STRATA_OK;
}

void vocab_merge_deinit(struct vocab_merge_table *t) {
    free(t->slot);
    *t = (struct vocab_merge_table){0};
}

strata_err vocab_merge_add(struct vocab_merge_table *t, int32_t left, int32_t right, uint32_t rank, int32_t id,
                           struct strata_errmsg *em) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t i = vocab_merge_hash(pair) & t->mask;
    for (int probes = 0; t->slot[i].pair != VOCAB_MERGE_FREE; i = (i + 1) & t->mask) {
        if (t->slot[i].pair == pair) return STRATA_OK;
        if (++probes == PROBES_MAX) return crowded(em);
    }
    t->slot[i] = (struct vocab_merge){.pair = pair, .rank = rank, .id = id};
    return STRATA_OK;
}
