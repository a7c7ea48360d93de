/* Monotonic time. Deadlines are absolute values of clock_now_ns. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define CLOCK_NS_PER_MS 1000000ull
#define CLOCK_NS_PER_S 1000000000ull

/* Nanoseconds of the monotonic clock. */
uint64_t clock_now_ns(void);
/* Seconds since `start`, a value of clock_now_ns. */
double clock_since_s(uint64_t start);

/* A condition that is waited for with deadlines, and such a wait under its lock: false when the deadline has passed. */
void clock_cond_init(pthread_cond_t *cond);
bool clock_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns);

#endif
