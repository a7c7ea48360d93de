/* Processors and affinity. See cpus.h. */
#include "base/cpus.h"

#include <sched.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static cpu_set_t all;
static unsigned count; /* 0: not known */

static void look(void) {
    CPU_ZERO(&all);
    if (sched_getaffinity(0, sizeof all, &all) == 0) count = (unsigned)CPU_COUNT(&all);
}

unsigned cpus_count(void) {
    pthread_once(&once, look);
    return count ? count : 1;
}

bool cpus_bind(unsigned i) {
    cpu_set_t one;
    CPU_ZERO(&one);
    if (i >= cpus_count()) return false;
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all) || i-- > 0) continue;
        CPU_SET(cpu, &one);
        break;
    }
    return sched_setaffinity(0, sizeof one, &one) == 0;
}

void cpus_release(void) {
    if (cpus_count() > 1) sched_setaffinity(0, sizeof all, &all);
}

void cpus_attr_init(pthread_attr_t *attr) {
    pthread_attr_init(attr);
    if (cpus_count() > 1) pthread_attr_setaffinity_np(attr, sizeof all, &all);
}
