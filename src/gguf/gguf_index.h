/*
 * A hash table from names to small numbers, of a size fixed when it is made.
 *
 * Names are borrowed: they must outlive the table. Life cycle: gguf_index_init, any number of puts up to `max`,
 * gguf_index_deinit. A zeroed struct is an empty table.
 */
#ifndef GGUF_INDEX_H
#define GGUF_INDEX_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GGUF_INDEX_NONE SIZE_MAX

struct gguf_index_slot {
    const char *name; /* NULL: free */
    size_t value;
};

struct gguf_index {
    struct gguf_index_slot *slots;
    size_t mask; /* slot count - 1; the count is a power of two */
    size_t max, used;
    uint64_t seed;
};

/* Makes room for at most max names. */
strata_err gguf_index_init(struct gguf_index *ix, size_t max, struct strata_errmsg *em);
void gguf_index_deinit(struct gguf_index *ix);
/* False, and nothing is changed, when the name is there already or the table is full. */
bool gguf_index_put(struct gguf_index *ix, const char *name, size_t value);
/* The value of a name, or GGUF_INDEX_NONE. */
size_t gguf_index_get(const struct gguf_index *ix, const char *name);

#endif
