/*
 * The processors that this process may use, and threads that keep to one of them.
 *
 * What may be used is what it was when it was first asked for: a thread that was bound, and those that it makes, see
 * only one. Any thread may call any of these.
 */
#ifndef BASE_CPUS_H
#define BASE_CPUS_H

#include <pthread.h>
#include <stdbool.h>

/* At least 1. */
unsigned cpus_count(void);
/* Binds the calling thread to the i-th of them, i below cpus_count(). False when the system refuses. */
bool cpus_bind(unsigned i);
/* Lets the calling thread run on all of them. */
void cpus_release(void);
/* Attributes of a thread that may run on all of them from its start, whoever makes it. pthread_attr_destroy them. */
void cpus_attr_init(pthread_attr_t *attr);

#endif
