/* Monotonic time. */
#include "base/clock.h"

#include <errno.h>
#include <time.h>

uint64_t clock_now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * CLOCK_NS_PER_S + (uint64_t)ts.tv_nsec;
}

double clock_since_s(uint64_t start) {
    return (double)(clock_now_ns() - start) / (double)CLOCK_NS_PER_S;
}

void clock_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

bool clock_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns) {
    struct timespec ts = {.tv_sec = (time_t)(deadline_ns / CLOCK_NS_PER_S),
                          .tv_nsec = (long)(deadline_ns % CLOCK_NS_PER_S)};
    return pthread_cond_timedwait(cond, lock, &ts) != ETIMEDOUT;
}
