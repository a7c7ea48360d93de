/*
 * SHA-256 of every file of a source, by a thread of its own while the source's tensors are being written.
 *
 * The writers read the same bytes: the hasher keeps at most a window ahead of them, so that a model larger than the
 * machine's memory is read from the disk once, not twice.
 * Life cycle: pkg_hasher_start, pkg_hasher_advance from any thread, pkg_hasher_join in any case after a start.
 */
#ifndef PKG_HASHER_H
#define PKG_HASHER_H

#include "base/digest.h"
#include "gguf/gguf_source.h"

#include <pthread.h>
#include <stdbool.h>

struct pkg_hasher {
    const struct gguf_source *src;
    uint8_t (*sums)[DIGEST_BYTES]; /* the caller's: one for each file */
    pthread_mutex_t lock;          /* guards the next four */
    pthread_cond_t moved;
    uint64_t allowed; /* bytes that may have been hashed by now */
    bool stop;
    strata_err rc;
    struct strata_errmsg em;
    pthread_t thread;
    bool running;
};

strata_err pkg_hasher_start(struct pkg_hasher *h, const struct gguf_source *src, uint8_t (*sums)[DIGEST_BYTES],
                            struct strata_errmsg *em);
/* The writers got on by so many bytes. */
void pkg_hasher_advance(struct pkg_hasher *h, uint64_t bytes);
/* Waits for the sums; with stop set, only for the thread to end (then the result is always STRATA_OK). */
strata_err pkg_hasher_join(struct pkg_hasher *h, bool stop, struct strata_errmsg *em);

#endif
