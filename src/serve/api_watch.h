/*
 * Deadlines of connections: one thread cuts off those that are overdue.
 *
 * The HTTP library only knows how long a connection has been silent, so a client that sends a byte now and then could
 * hold it for ever. Here each phase of a connection (headers, body, idle, sending) has an absolute end. The watch holds
 * a duplicate of each socket, so it can never hit a descriptor that was closed and reused meanwhile.
 * Thread-safe.
 */
#ifndef API_WATCH_H
#define API_WATCH_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct api_watch;
struct api_watch_entry;

strata_err api_watch_new(struct api_watch **out, struct strata_errmsg *em);
/* All entries must have been removed. NULL is allowed. */
void api_watch_free(struct api_watch *w);

/* NULL when memory or descriptors are short; then nothing watches the connection, and it must be refused. */
struct api_watch_entry *api_watch_add(struct api_watch *w, int socket);
/* NULL is allowed. */
void api_watch_remove(struct api_watch *w, struct api_watch_entry *e);
/* Sets the end of the current phase, seconds from now; 0: it has none. Replaces the one before. */
void api_watch_arm(struct api_watch *w, struct api_watch_entry *e, uint32_t seconds);
/* As api_watch_arm, for a connection that has not asked for anything yet: it may be cut off earlier, to make room. */
void api_watch_arm_waiting(struct api_watch *w, struct api_watch_entry *e, uint32_t seconds);
/*
 * Makes sure that fewer than max connections are there, by cutting off the one that waited longest without asking.
 * False: all max of them are at work.
 */
bool api_watch_make_room(struct api_watch *w, uint32_t max);
/* Notes that the connection was turned away, so that nothing it asks is done, and gives it `seconds` to leave. */
void api_watch_refuse(struct api_watch *w, struct api_watch_entry *e, uint32_t seconds);
bool api_watch_refused(struct api_watch *w, const struct api_watch_entry *e);
/* The watch's own descriptor of the socket. */
int api_watch_socket(const struct api_watch_entry *e);
/* Whether the client closed the connection, or its sending side, which counts as having gone. */
bool api_watch_gone(const struct api_watch_entry *e);

#endif
