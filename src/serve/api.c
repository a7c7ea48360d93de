/*
 * The HTTP server of the API: its port, its limits, its beginning and end. See api.h.
 *
 * libmicrohttpd runs one thread per connection. A connection holds at most HEADER_BYTES besides its body, and is cut
 * off by api_watch when a phase of it takes too long.
 */
#include "serve/api.h"

#include "base/clock.h"
#include "serve/api_call.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    HEADER_BYTES = 32 << 10,
    DEFAULT_CONNECTIONS = 128,
    MAX_CONNECTIONS = 10000, /* each is a thread */
    SPARE_CONNECTIONS = 64,  /* those that were cut off and are being cleaned up, or are told that there is no room */
    BACKLOG = 256,
    STOP_WAIT_S = 3 /* for running answers, which look at the flag every second */
};

/* One address of the host: a listening socket, or -1 with errno set. */
static int listen_on(const struct addrinfo *a) {
    int one = 1;
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) return -1;
    /* A server that was just stopped leaves connections in TIME_WAIT; they must not block its successor. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) return fd;
    int err = errno;
    close(fd);
    errno = err;
    return -1;
}

static strata_err listen_error(struct strata_errmsg *em, int err, const char *host, unsigned port) {
    if (err == EADDRINUSE)
        return err_set(em, STRATA_EBUSY, "cannot listen on %s:%u: the port is in use; stop its user or choose another",
                       host, port);
    if (err == EACCES)
        return err_set(em, STRATA_EAUTH,
                       "cannot listen on %s:%u: ports below 1024 need more rights; choose a higher one", host, port);
    return err_sys(em, STRATA_EINVAL, err, "cannot listen on %s:%u", host, port);
}

static strata_err open_port(struct api *api, const char *host, uint16_t port, struct strata_errmsg *em) {
    char service[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list = NULL;
    snprintf(service, sizeof service, "%u", port);
    int gai = getaddrinfo(host, service, &hints, &list);
    if (gai) return err_set(em, STRATA_EINVAL, "cannot listen on %s:%u: %s", host, port, gai_strerror(gai));
    int err = 0;
    for (const struct addrinfo *a = list; a && api->listener < 0; a = a->ai_next) {
        api->listener = listen_on(a);
        if (api->listener < 0 && !err) err = errno;
    }
    freeaddrinfo(list);
    if (api->listener < 0) return listen_error(em, err, host, port);
    struct sockaddr_storage bound;
    socklen_t len = sizeof bound;
    if (getsockname(api->listener, (struct sockaddr *)&bound, &len) != 0)
        return err_sys(em, STRATA_EIO, errno, "cannot tell the port listened on");
    api->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                  : ((struct sockaddr_in *)&bound)->sin_port);
    return STRATA_OK;
}

/* Messages of the HTTP library: about a single connection as a rule, so of interest only when debugging. */
static void log_library(void *cls, const char *fmt, va_list ap) {
    struct api *api = cls;
    char text[256], quoted[300];
    vsnprintf(text, sizeof text, fmt, ap);
    text[strcspn(text, "\n")] = '\0';
    log_event(api->log, LOG_LEVEL_DEBUG, "http", "text=%s", log_quote(quoted, sizeof quoted, text));
}

static strata_err start_daemon(struct api *api, struct strata_errmsg *em) {
    unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC |
                     MHD_USE_ERROR_LOG;
    api->daemon =
        MHD_start_daemon(flags, 0, NULL, NULL, api_call_handle, api, MHD_OPTION_EXTERNAL_LOGGER, log_library,
                         (void *)api, MHD_OPTION_LISTEN_SOCKET, api->listener, MHD_OPTION_CONNECTION_LIMIT,
                         (unsigned)api->max_connections + SPARE_CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                         (size_t)HEADER_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, 0u, MHD_OPTION_STRICT_FOR_CLIENT, 1,
                         MHD_OPTION_NOTIFY_COMPLETED, api_call_completed, (void *)api, MHD_OPTION_NOTIFY_CONNECTION,
                         api_call_connection, (void *)api, MHD_OPTION_END);
    if (!api->daemon) return err_set(em, STRATA_EIO, "the HTTP server could not be started");
    api->listener = -1; /* the daemon closes it */
    return STRATA_OK;
}

static uint32_t or_default(uint32_t value, uint32_t preset) {
    return value ? value : preset;
}

static strata_err api_new(const struct api_options *o, struct api **out, struct strata_errmsg *em) {
    if (!o->model_id || !o->model_id[0] || !o->vocab || !o->gen)
        return err_set(em, STRATA_EINVAL, "the API needs a model id, a vocabulary and a generator");
    if (o->max_connections > MAX_CONNECTIONS)
        return err_set(em, STRATA_EINVAL, "the API can serve at most %d connections at once", MAX_CONNECTIONS);
    if (o->api_key && !o->api_key[0])
        return err_set(em, STRATA_EINVAL, "the API key is empty; give one, or none at all");
    struct api *api = calloc(1, sizeof *api);
    if (!api) return err_nomem(em, "the API");
    api->listener = -1;
    api->model = (struct api_model){.id = o->model_id,
                                    .vocab = o->vocab,
                                    .chat = o->chat,
                                    .bos_text = o->bos_text,
                                    .eos_text = o->eos_text,
                                    .gen = o->gen,
                                    .created = (int64_t)time(NULL)};
    api->log = o->log;
    api->max_connections = or_default(o->max_connections, DEFAULT_CONNECTIONS);
    api->header_timeout_s = or_default(o->header_timeout_s, 20);
    api->body_timeout_s = or_default(o->body_timeout_s, 60);
    api->idle_timeout_s = or_default(o->idle_timeout_s, 60);
    api->send_timeout_s = or_default(o->send_timeout_s, 30);
    pthread_mutex_init(&api->lock, NULL);
    clock_cond_init(&api->idle);
    *out = api;
    return STRATA_OK;
}

strata_err api_start(const struct api_options *o, struct api **out, struct strata_errmsg *em) {
    struct api *api = NULL;
    const char *host = o->host ? o->host : "127.0.0.1";
    strata_err rc = api_new(o, &api, em);
    if (rc) return rc;
    rc = api_model_init(&api->model, em);
    if (rc) goto out;
    if (o->api_key) {
        rc = digest_of(o->api_key, strlen(o->api_key), api->key_digest, em);
        if (rc) goto out;
        api->has_key = true;
    }
    rc = api_watch_new(&api->watch, em);
    if (!rc) rc = open_port(api, host, o->port, em);
    if (!rc) rc = start_daemon(api, em);
    if (rc) goto out;
    log_event(api->log, LOG_LEVEL_INFO, "listening", "host=%s port=%u key=%s", host, api->port,
              api->has_key ? "yes" : "no");
    *out = api;
    api = NULL;
out:
    api_stop(api);
    return rc;
}

uint16_t api_port(const struct api *api) {
    return api->port;
}

/* Answers see the flag within a second and end by themselves, with a last event to their clients. */
static void wait_for_answers(struct api *api) {
    uint64_t end = clock_now_ns() + STOP_WAIT_S * CLOCK_NS_PER_S;
    pthread_mutex_lock(&api->lock);
    while (api->active && clock_cond_wait(&api->idle, &api->lock, end)) continue;
    pthread_mutex_unlock(&api->lock);
}

void api_stop(struct api *api) {
    if (!api) return;
    atomic_store(&api->stopping, true);
    if (api->daemon) {
        MHD_socket fd = MHD_quiesce_daemon(api->daemon);
        if (fd != MHD_INVALID_SOCKET) close(fd);
        wait_for_answers(api);
        MHD_stop_daemon(api->daemon);
    }
    if (api->listener >= 0) close(api->listener);
    api_watch_free(api->watch);
    pthread_cond_destroy(&api->idle);
    pthread_mutex_destroy(&api->lock);
    free(api);
}
