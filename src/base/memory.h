/* How much main memory this process could still have: the machine's, and that of the control groups it is in. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the large pages that the system can be asked for, and where such a page begins. */
#define MEMORY_LARGE_PAGE ((size_t)2 << 20)

/*
 * Bytes that could be had now without swapping. Pages of files count as free: they can be given back and read again.
 * Of the machine and of every control group (version 1 or 2) with a limit, the least. UINT64_MAX when nothing is known.
 */
uint64_t memory_available(void);

/* The same with /proc and /sys below another root, for tests ("": the real one). */
uint64_t memory_available_below(const char *root);

#endif
