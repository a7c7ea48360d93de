/* Source digests. See pkg_hasher.h. Owns one thread. */
#include "package/pkg_hasher.h"

#define WINDOW ((uint64_t)512 << 20)
enum { PIECE = 1 << 20 };

/* Waits until `done` bytes may be hashed; false when the work is to stop. */
static bool may_go_on(struct pkg_hasher *h, uint64_t done) {
    pthread_mutex_lock(&h->lock);
    while (!h->stop && h->allowed < done) pthread_cond_wait(&h->moved, &h->lock);
    bool go = !h->stop;
    pthread_mutex_unlock(&h->lock);
    return go;
}

static strata_err hash_file(struct pkg_hasher *h, struct digest *d, size_t i, uint64_t *done) {
    size_t len;
    const uint8_t *data = gguf_source_shard_bytes(h->src, i, &len);
    for (size_t at = 0; at < len; at += PIECE) {
        size_t n = len - at < PIECE ? len - at : PIECE;
        *done += n;
        if (!may_go_on(h, *done)) return err_set(&h->em, STRATA_ECANCELLED, "cancelled");
        strata_err rc = digest_update(d, data + at, n, &h->em);
        if (rc) return rc;
    }
    return digest_final(d, h->sums[i], &h->em);
}

static void *hash_files(void *arg) {
    struct pkg_hasher *h = arg;
    struct digest *d = NULL;
    uint64_t done = 0;
    h->rc = digest_new(&d, &h->em);
    for (size_t i = 0; i < gguf_source_shard_count(h->src) && !h->rc; i++) h->rc = hash_file(h, d, i, &done);
    digest_free(d);
    return NULL;
}

strata_err pkg_hasher_start(struct pkg_hasher *h, const struct gguf_source *src, uint8_t (*sums)[DIGEST_BYTES],
                            struct strata_errmsg *em) {
    *h = (struct pkg_hasher){.src = src,
                             .sums = sums,
                             .lock = PTHREAD_MUTEX_INITIALIZER,
                             .moved = PTHREAD_COND_INITIALIZER,
                             .allowed = WINDOW};
    int e = pthread_create(&h->thread, NULL, hash_files, h);
    if (e) return err_sys(em, STRATA_ENOMEM, e, "cannot start a thread");
    h->running = true;
    return STRATA_OK;
}

void pkg_hasher_advance(struct pkg_hasher *h, uint64_t bytes) {
    pthread_mutex_lock(&h->lock);
    h->allowed += bytes;
    pthread_cond_signal(&h->moved);
    pthread_mutex_unlock(&h->lock);
}

strata_err pkg_hasher_join(struct pkg_hasher *h, bool stop, struct strata_errmsg *em) {
    if (!h->running) return STRATA_OK;
    pthread_mutex_lock(&h->lock);
    h->stop = stop;
    /* Nothing is written any more, so there is nobody to keep step with. */
    h->allowed = UINT64_MAX;
    pthread_cond_signal(&h->moved);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
    h->running = false;
    pthread_cond_destroy(&h->moved);
    pthread_mutex_destroy(&h->lock);
    if (stop || !h->rc) return STRATA_OK;
    if (em) *em = h->em;
    return h->rc;
}
