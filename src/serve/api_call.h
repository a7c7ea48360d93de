/*
 * One HTTP request: routing, body, answer. Internal to the API (api.c owns the server, this owns a call).
 *
 * The functions are callbacks of libmicrohttpd, which runs each connection in a thread of its own; so a call may block
 * on the generator, in steps of at most a second, after each of which it looks whether the client or the server left.
 */
#ifndef API_CALL_H
#define API_CALL_H

#include "base/digest.h"
#include "serve/api.h"
#include "serve/api_session.h"
#include "serve/api_watch.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

struct api {
    struct api_model model;
    bool has_key;
    uint8_t key_digest[DIGEST_BYTES];
    const struct log *log;
    uint32_t max_connections;
    uint32_t header_timeout_s, body_timeout_s, idle_timeout_s, send_timeout_s;
    struct MHD_Daemon *daemon;
    struct api_watch *watch;
    int listener; /* ours until the daemon has it, then -1 */
    uint16_t port;
    atomic_bool stopping;
    atomic_size_t body_bytes; /* of all bodies held now */
    pthread_mutex_t lock;     /* guards active */
    pthread_cond_t idle;      /* active became 0 */
    unsigned active;          /* answers being generated */
};

enum MHD_Result api_call_handle(void *cls, struct MHD_Connection *conn, const char *url, const char *method,
                                const char *version, const char *data, size_t *size, void **call);
void api_call_completed(void *cls, struct MHD_Connection *conn, void **call, enum MHD_RequestTerminationCode why);
void api_call_connection(void *cls, struct MHD_Connection *conn, void **entry,
                         enum MHD_ConnectionNotificationCode what);

#endif
