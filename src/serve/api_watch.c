/* Deadlines of connections. See api_watch.h. */
#include "serve/api_watch.h"

#include "base/clock.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

struct api_watch_entry {
    struct api_watch_entry *prev, *next;
    int socket;
    uint64_t deadline_ns; /* 0: none */
    uint64_t waiting_ns;  /* since when it has not asked for anything; 0: it is at work */
    bool cut;
    bool refused;
};

struct api_watch {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    struct api_watch_entry *first;
    uint64_t wake_ns; /* when the thread looks again; UINT64_MAX: only when told */
    bool stop;
};

/* The connection's own thread wakes from this and cleans up. Called with the lock. */
static void cut(struct api_watch_entry *e) {
    shutdown(e->socket, SHUT_RDWR);
    e->deadline_ns = e->waiting_ns = 0;
    e->cut = true;
}

/* Cuts what is overdue and returns the next deadline. Called with the lock. */
static uint64_t sweep(struct api_watch *w) {
    uint64_t now = clock_now_ns(), next = UINT64_MAX;
    for (struct api_watch_entry *e = w->first; e; e = e->next) {
        if (!e->deadline_ns) continue;
        if (e->deadline_ns <= now) {
            cut(e);
        } else if (e->deadline_ns < next) {
            next = e->deadline_ns;
        }
    }
    return next;
}

static void *watch_main(void *arg) {
    struct api_watch *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        w->wake_ns = sweep(w);
        if (w->wake_ns == UINT64_MAX)
            pthread_cond_wait(&w->changed, &w->lock);
        else
            clock_cond_wait(&w->changed, &w->lock, w->wake_ns);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

strata_err api_watch_new(struct api_watch **out, struct strata_errmsg *em) {
    struct api_watch *w = calloc(1, sizeof *w);
    if (!w) return err_nomem(em, "the connection watch");
    w->wake_ns = UINT64_MAX;
    pthread_mutex_init(&w->lock, NULL);
    clock_cond_init(&w->changed);
    int err = pthread_create(&w->thread, NULL, watch_main, w);
    if (err) {
        pthread_cond_destroy(&w->changed);
        pthread_mutex_destroy(&w->lock);
        free(w);
        return err_sys(em, STRATA_EIO, err, "no thread for the connection watch");
    }
    *out = w;
    return STRATA_OK;
}

void api_watch_free(struct api_watch *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

struct api_watch_entry *api_watch_add(struct api_watch *w, int socket) {
    struct api_watch_entry *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->socket = fcntl(socket, F_DUPFD_CLOEXEC, 0);
    if (e->socket < 0) {
        free(e);
        return NULL;
    }
    pthread_mutex_lock(&w->lock);
    e->next = w->first;
    if (e->next) e->next->prev = e;
    w->first = e;
    pthread_mutex_unlock(&w->lock);
    return e;
}

void api_watch_remove(struct api_watch *w, struct api_watch_entry *e) {
    if (!e) return;
    pthread_mutex_lock(&w->lock);
    if (e->prev)
        e->prev->next = e->next;
    else
        w->first = e->next;
    if (e->next) e->next->prev = e->prev;
    pthread_mutex_unlock(&w->lock);
    close(e->socket);
    free(e);
}

static void arm(struct api_watch *w, struct api_watch_entry *e, uint32_t seconds, bool waiting) {
    uint64_t now = clock_now_ns();
    pthread_mutex_lock(&w->lock);
    if (!e->cut) {
        e->deadline_ns = seconds ? now + seconds * CLOCK_NS_PER_S : 0;
        e->waiting_ns = waiting ? now : 0;
    }
    if (e->deadline_ns && e->deadline_ns < w->wake_ns) pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

void api_watch_arm(struct api_watch *w, struct api_watch_entry *e, uint32_t seconds) {
    arm(w, e, seconds, false);
}

void api_watch_arm_waiting(struct api_watch *w, struct api_watch_entry *e, uint32_t seconds) {
    arm(w, e, seconds, true);
}

bool api_watch_make_room(struct api_watch *w, uint32_t max) {
    struct api_watch_entry *oldest = NULL;
    uint32_t n = 0;
    pthread_mutex_lock(&w->lock);
    for (struct api_watch_entry *e = w->first; e; e = e->next) {
        n += !e->cut && !e->refused;
        if (e->waiting_ns && (!oldest || e->waiting_ns < oldest->waiting_ns)) oldest = e;
    }
    if (n >= max && oldest) {
        cut(oldest);
        n--;
    }
    pthread_mutex_unlock(&w->lock);
    return n < max;
}

void api_watch_refuse(struct api_watch *w, struct api_watch_entry *e, uint32_t seconds) {
    arm(w, e, seconds, false);
    pthread_mutex_lock(&w->lock);
    e->refused = true;
    pthread_mutex_unlock(&w->lock);
}

bool api_watch_refused(struct api_watch *w, const struct api_watch_entry *e) {
    pthread_mutex_lock(&w->lock);
    bool refused = e->refused;
    pthread_mutex_unlock(&w->lock);
    return refused;
}

int api_watch_socket(const struct api_watch_entry *e) {
    return e->socket;
}

bool api_watch_gone(const struct api_watch_entry *e) {
    struct pollfd p = {.fd = e->socket, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}
