/* Monotonic time. */
#include "base/clock.h"

#include <time.h>

uint64_t clock_now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * CLOCK_NS_PER_S + (uint64_t)ts.tv_nsec;
}

double clock_since_s(uint64_t start) {
    return (double)(clock_now_ns() - start) / (double)CLOCK_NS_PER_S;
}
