/*
 * How fast this machine reads its main memory with a number of threads. See engine_profile.h.
 *
 * Each thread reads its part of a block; the best of several passes counts, since others may use the machine meanwhile.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "base/pool.h"
#include "engine/engine_profile.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MIN_PASSES = 3, MAX_PASSES = 50, LINE_WORDS = 8, AHEAD = 4096 };
#define BLOCK_BYTES ((size_t)1 << 30) /* server processors have caches of hundreds of megabytes */
#define TIME_NS (300 * CLOCK_NS_PER_MS)

struct block {
    uint64_t *words;
    size_t n, pieces;
    bool fill; /* the first pass makes the pages present */
    uint64_t *sums;
};

static strata_err read_piece(void *user, size_t i, struct strata_errmsg *em) {
    struct block *b = user;
    size_t from = b->n / b->pieces * i, end = i + 1 == b->pieces ? b->n : b->n / b->pieces * (i + 1);
    uint64_t sum = 0;
    (void)em;
    if (b->fill) {
        memset(b->words + from, 1, (end - from) * sizeof *b->words);
        return STRATA_OK;
    }
    /* A number of each line brings the whole line. Asking some way ahead keeps as many on their way as there can be. */
    for (const uint64_t *w = b->words + from, *stop = b->words + end; stop - w >= LINE_WORDS; w += LINE_WORDS) {
        __builtin_prefetch((const char *)w + AHEAD);
        sum += *w;
    }
    b->sums[i] += sum;
    return STRATA_OK;
}

double engine_profile_read_rate(unsigned threads, uint64_t want) {
    struct strata_errmsg em;
    double best = 0;
    size_t bytes = want && want < BLOCK_BYTES ? (size_t)want : BLOCK_BYTES;
    while (bytes > 1 << 20 && bytes > model_backend_memory_available() / 4) bytes /= 2;
    bytes = GGML_PAD(bytes, MEMORY_LARGE_PAGE);
    struct block b = {.n = bytes / sizeof *b.words, .pieces = threads ? threads : 1, .fill = true};
    b.words = aligned_alloc(MEMORY_LARGE_PAGE, bytes);
    if (b.words) madvise(b.words, bytes, MADV_HUGEPAGE); /* as for weights, see model_place.c; advice only */
    b.sums = calloc(b.pieces, sizeof *b.sums);
    if (!b.words || !b.sums || pool_run((unsigned)b.pieces, b.pieces, read_piece, &b, &em)) goto out;
    b.fill = false;
    uint64_t begin = clock_now_ns();
    for (int i = 0; i < MAX_PASSES && (i < MIN_PASSES || clock_now_ns() - begin < TIME_NS); i++) {
        uint64_t start = clock_now_ns();
        if (pool_run((unsigned)b.pieces, b.pieces, read_piece, &b, &em)) break;
        double rate = (double)bytes / clock_since_s(start);
        if (rate > best) best = rate;
    }
    /* The sums are all known; looking at one keeps the reading from being left out. */
    if (b.sums[0] == 1) best = 0;
out:
    free(b.words);
    free(b.sums);
    return best;
}
