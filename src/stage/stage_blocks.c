/* Kept blocks, in a hash table with open addressing. See stage_blocks.h. Owns the blocks' memory. */
#include "stage/stage_blocks.h"

#include <stdlib.h>

struct block {
    uint64_t id; /* 0: the place is free */
    size_t bytes;
    void *data;
};

struct stage_blocks {
    struct block *place;
    uint32_t max, n;
    size_t mask; /* places - 1; places are a power of two, at least twice max */
};

strata_err stage_blocks_new(uint32_t max, struct stage_blocks **out, struct strata_errmsg *em) {
    struct stage_blocks *b = calloc(1, sizeof *b);
    size_t places = 2;
    if (!b) return err_nomem(em, "the prefix cache");
    while (places < 2 * (size_t)max) places *= 2;
    b->max = max;
    b->mask = places - 1;
    b->place = calloc(places, sizeof *b->place);
    if (!b->place) {
        free(b);
        return err_nomem(em, "the prefix cache");
    }
    *out = b;
    return STRATA_OK;
}

void stage_blocks_free(struct stage_blocks *b) {
    if (!b) return;
    for (size_t i = 0; i <= b->mask; i++) free(b->place[i].data);
    free(b->place);
    free(b);
}

/* Numbers come one after another; a multiplication spreads them, runs of requests that ended included. */
static size_t home(const struct stage_blocks *b, uint64_t id) {
    return (size_t)(id * UINT64_C(0x9E3779B97F4A7C15) >> 32) & b->mask;
}

/* Where id is, or the free place where it would go: there always is one. */
static size_t find(const struct stage_blocks *b, uint64_t id) {
    size_t i = home(b, id);
    while (b->place[i].id && b->place[i].id != id) i = (i + 1) & b->mask;
    return i;
}

void *stage_blocks_put(struct stage_blocks *b, uint64_t id, size_t bytes) {
    size_t i = find(b, id);
    if (b->n >= b->max || b->place[i].id) return NULL;
    void *data = malloc(bytes ? bytes : 1);
    if (!data) return NULL;
    b->place[i] = (struct block){id, bytes, data};
    b->n++;
    return data;
}

const void *stage_blocks_get(const struct stage_blocks *b, uint64_t id, size_t *bytes) {
    size_t i = find(b, id);
    *bytes = b->place[i].bytes;
    return b->place[i].id ? b->place[i].data : NULL;
}

/* Frees a place, and moves up those behind it that would not be found past the hole. */
static void remove_at(struct stage_blocks *b, size_t hole) {
    free(b->place[hole].data);
    b->n--;
    for (size_t i = (hole + 1) & b->mask; b->place[i].id; i = (i + 1) & b->mask) {
        size_t distance = (i - home(b, b->place[i].id)) & b->mask;
        if (distance < ((i - hole) & b->mask)) continue;
        b->place[hole] = b->place[i];
        hole = i;
    }
    b->place[hole] = (struct block){0};
}

void stage_blocks_remove(struct stage_blocks *b, uint64_t first, uint32_t count) {
    for (uint64_t id = first; id - first < count && b->n; id++) {
        size_t i = find(b, id);
        if (id && b->place[i].id) remove_at(b, i);
    }
}

uint32_t stage_blocks_count(const struct stage_blocks *b) {
    return b->n;
}
