/* The next batch. See stage_batch.h. Owns nothing. */
#include "stage/stage_batch.h"

#include <stdlib.h>

static int in_turn(const void *a, const void *b) {
    const struct stage_batch_entry *x = a, *y = b;
    bool x_prompt = x->waiting > 0, y_prompt = y->waiting > 0;
    if (x_prompt != y_prompt) return x_prompt - y_prompt;
    if (x->served != y->served) return x->served < y->served ? -1 : 1;
    return (x->slot > y->slot) - (x->slot < y->slot);
}

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

uint32_t stage_batch_choose(const struct stage_batch_limits *limits, struct stage_batch_entry *entries, uint32_t n) {
    uint32_t split = (limits->n_decoding + limits->n_in_flight - 1) / limits->n_in_flight;
    uint32_t steps = least(limits->n_batch, split ? split : 1), used = 0, taken = 0, kept = 0;
    uint32_t room = limits->n_batch;
    if (limits->n_decoding) room = (room + STAGE_BATCH_PROMPT_SHARE - 1) / STAGE_BATCH_PROMPT_SHARE;
    qsort(entries, n, sizeof *entries, in_turn);
    for (uint32_t i = 0; i < n; i++) {
        struct stage_batch_entry *e = &entries[i];
        if (e->waiting == 0) {
            e->n_rows = taken < steps;
            taken += e->n_rows;
        } else {
            uint32_t left = least(room, limits->n_batch - used);
            e->n_rows = least(e->waiting, least(left, limits->n_batch - e->pos % limits->n_batch));
            room -= e->n_rows;
        }
        used += e->n_rows;
        if (e->n_rows) entries[kept++] = *e;
    }
    return kept;
}
