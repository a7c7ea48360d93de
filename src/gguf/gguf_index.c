/* Names to numbers by open addressing. See gguf_index.h. Owns the slots, never the names. */
#include "gguf/gguf_index.h"

#include <stdlib.h>
#include <string.h>

/*
 * Names come from foreign files, which must not be able to choose names that all fall into one slot. The address of the
 * table differs from run to run and is not known to whoever wrote the file, so it is a good enough key; it
 * decides where names lie in the table and nothing that a caller can see.
 */
static uint64_t hash(uint64_t seed, const char *name) {
    uint64_t h = seed ^ 0x9e3779b97f4a7c15u;
    for (const unsigned char *p = (const unsigned char *)name; *p; p++) {
        h = (h ^ *p) * 0xff51afd7ed558ccdu;
        h ^= h >> 29;
    }
    return h ^ (h >> 32);
}

strata_err gguf_index_init(struct gguf_index *ix, size_t max, struct strata_errmsg *em) {
    size_t count = 8;
    if (max > SIZE_MAX / 64) return err_set(em, STRATA_ELIMIT, "too many names for a table: %zu", max);
    while (count < max * 2) count *= 2;
    struct gguf_index_slot *slots = calloc(count, sizeof *slots);
    if (!slots) return err_nomem(em, "a table of names");
    *ix = (struct gguf_index){.slots = slots, .mask = count - 1, .max = max};
    ix->seed = (uint64_t)(uintptr_t)slots * 0xc4ceb9fe1a85ec53u;
    return STRATA_OK;
}

void gguf_index_deinit(struct gguf_index *ix) {
    free(ix->slots);
    *ix = (struct gguf_index){0};
}

/* The slot of a name, or the free one where it belongs. At most half of the slots are used, so the walk ends. */
static size_t locate(const struct gguf_index *ix, const char *name) {
    size_t i = (size_t)hash(ix->seed, name) & ix->mask;
    while (ix->slots[i].name && strcmp(ix->slots[i].name, name) != 0) i = (i + 1) & ix->mask;
    return i;
}

bool gguf_index_put(struct gguf_index *ix, const char *name, size_t value) {
    if (ix->used >= ix->max) return false;
    struct gguf_index_slot *s = &ix->slots[locate(ix, name)];
    if (s->name) return false;
    *s = (struct gguf_index_slot){.name = name, .value = value};
    ix->used++;
    return true;
}

size_t gguf_index_get(const struct gguf_index *ix, const char *name) {
    if (!ix->slots) return GGUF_INDEX_NONE;
    const struct gguf_index_slot *s = &ix->slots[locate(ix, name)];
    return s->name ? s->value : GGUF_INDEX_NONE;
}
