/* A parallel loop. See pool.h. Owns its threads during the call. */
#include "base/pool.h"

#include "base/cpus.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

enum { MAX_THREADS = 256 };

struct loop {
    pool_fn fn;
    void *user;
    size_t n;
    atomic_size_t next;
    atomic_bool failed;
    pthread_mutex_t lock; /* guards rc and em */
    strata_err rc;
    struct strata_errmsg em;
};

static void *work(void *arg) {
    struct loop *l = arg;
    while (!atomic_load(&l->failed)) {
        size_t i = atomic_fetch_add(&l->next, 1);
        if (i >= l->n) break;
        struct strata_errmsg em = {0};
        strata_err rc = l->fn(l->user, i, &em);
        if (!rc) continue;
        pthread_mutex_lock(&l->lock);
        if (!atomic_exchange(&l->failed, true)) {
            l->rc = rc;
            l->em = em;
        }
        pthread_mutex_unlock(&l->lock);
    }
    return NULL;
}

strata_err pool_run(unsigned threads, size_t n, pool_fn fn, void *user, struct strata_errmsg *em) {
    pthread_t ids[MAX_THREADS];
    unsigned started = 0;
    struct loop l = {.fn = fn, .user = user, .n = n, .lock = PTHREAD_MUTEX_INITIALIZER};
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    if (threads > n) threads = (unsigned)n;
    pthread_attr_t anywhere; /* the caller may be bound to one processor */
    cpus_attr_init(&anywhere);
    while (started + 1 < threads && pthread_create(&ids[started], &anywhere, work, &l) == 0) started++;
    pthread_attr_destroy(&anywhere);
    work(&l);
    for (unsigned i = 0; i < started; i++) pthread_join(ids[i], NULL);
    pthread_mutex_destroy(&l.lock);
    if (l.rc && em) *em = l.em;
    return l.rc;
}
