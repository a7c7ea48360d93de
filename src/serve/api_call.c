/*
 * One HTTP request, from its first header to its last byte. See api_call.h.
 *
 * Refuses before it reads: wrong key, unknown path, wrong method and too large a body are known from the headers. A
 * body that will be refused is thrown away while it arrives, never kept.
 */
#include "serve/api_call.h"

#include "base/clock.h"
#include "base/jsonx.h"
#include "serve/api_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

enum {
    MAX_ALL_BODIES = 256 << 20, /* bytes of bodies held for all connections together */
    MAX_ANSWER = 64 << 20,
    REQUEST_ID_MAX = 64,
    LINGER_IDLE_MS = 2000,
    LINGER_TOTAL_S = 30,
    FIRST_TOKEN_STEPS = 2 /* seconds in which a failure before the first token is still an HTTP status */
};

enum route { ROUTE_NONE, ROUTE_HEALTH, ROUTE_MODELS, ROUTE_MODEL, ROUTE_CHAT, ROUTE_COMPLETIONS, ROUTE_ANY };

struct api_call {
    struct api *api;
    struct api_watch_entry *watch;
    enum route route;
    char id[REQUEST_ID_MAX];
    char answer_id[REQUEST_ID_MAX];
    char method[16];
    char path[512];
    uint64_t start_ns;
    unsigned status; /* of the answer; 0: none was given */
    bool refused;    /* `problem` is the answer; the body is thrown away */
    bool linger;     /* answered before the body was read */
    bool counted;    /* in api->active */
    struct api_problem problem;
    struct buf body;
    uint64_t body_seen;
    struct api_request *request;
    struct api_session *session;
    struct api_stream *stream;
};

static const struct {
    const char *path;
    bool prefix;
    bool post;
    enum route route;
} routes[] = {
    {"/health", false, false, ROUTE_HEALTH},
    {"/v1/models", false, false, ROUTE_MODELS},
    {"/v1/models/", true, false, ROUTE_MODEL},
    {"/v1/chat/completions", false, true, ROUTE_CHAT},
    {"/v1/completions", false, true, ROUTE_COMPLETIONS},
};

static const char *allowed(enum route route) {
    if (route == ROUTE_ANY) return "GET, HEAD, POST, OPTIONS";
    return route == ROUTE_CHAT || route == ROUTE_COMPLETIONS ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
}

/* ---- Answers ---- */

static enum MHD_Result queue(struct api_call *c, struct MHD_Connection *conn, unsigned status,
                             struct MHD_Response *resp) {
    if (!resp) return MHD_NO;
    MHD_add_response_header(resp, "x-request-id", c->id);
    c->status = status;
    enum MHD_Result ok = MHD_queue_response(conn, status, resp);
    MHD_destroy_response(resp);
    return ok;
}

/* Answers with a whole document; takes the content of body. */
static enum MHD_Result respond(struct api_call *c, struct MHD_Connection *conn, unsigned status, struct buf *body) {
    struct MHD_Response *resp = MHD_create_response_from_buffer(body->len, body->data, MHD_RESPMEM_MUST_FREE);
    if (!resp) {
        buf_deinit(body);
        return MHD_NO;
    }
    *body = (struct buf){.max = body->max};
    MHD_add_response_header(resp, "Content-Type", "application/json");
    if (c->problem.retry_after_s) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%u", c->problem.retry_after_s);
        MHD_add_response_header(resp, "Retry-After", seconds);
    }
    if (status == 405) MHD_add_response_header(resp, "Allow", allowed(c->route));
    if (status == 401) MHD_add_response_header(resp, "WWW-Authenticate", "Bearer");
    api_watch_arm(c->api->watch, c->watch, 2 * c->api->send_timeout_s);
    return queue(c, conn, status, resp);
}

static enum MHD_Result respond_problem(struct api_call *c, struct MHD_Connection *conn) {
    struct strata_errmsg em;
    struct buf body;
    buf_init(&body, MAX_ANSWER);
    if (api_json_error(&c->problem, &body, &em)) {
        buf_deinit(&body);
        return MHD_NO;
    }
    return respond(c, conn, c->problem.status, &body);
}

/* Our own failure while an answer was being put together. */
static enum MHD_Result respond_internal(struct api_call *c, struct MHD_Connection *conn, struct buf *body,
                                        const struct strata_errmsg *em) {
    buf_deinit(body);
    api_problem_set(&c->problem, em->code, 500, "internal_error", NULL, "%s", em->text);
    return respond_problem(c, conn);
}

/*
 * Answers in the middle of a body, which the HTTP library cannot: straight to the socket. The connection ends
 * afterwards, so nothing else can be in flight on it.
 */
static void respond_raw(struct api_call *c) {
    struct strata_errmsg em;
    struct buf body, head;
    buf_init(&body, MAX_ANSWER);
    buf_init(&head, MAX_ANSWER);
    if (!api_json_error(&c->problem, &body, &em) &&
        !buf_printf(&head, &em,
                    "HTTP/1.1 %u %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nx-request-id: %s\r\n"
                    "Connection: close\r\n\r\n%s",
                    c->problem.status, MHD_get_reason_phrase_for(c->problem.status), body.len, c->id, body.data)) {
        /* Small enough for an empty socket buffer; a client that never takes it gets the close alone. */
        (void)!send(api_watch_socket(c->watch), head.data, head.len, MSG_NOSIGNAL | MSG_DONTWAIT);
        c->status = c->problem.status;
        c->linger = true;
    }
    buf_deinit(&head);
    buf_deinit(&body);
}

/*
 * The answer is out, and the client may still be sending its body. Closing now would reset the connection and could
 * destroy the answer before the client reads it; so what arrives is thrown away for a while.
 */
static void linger(struct api_call *c) {
    int fd = api_watch_socket(c->watch);
    uint64_t end = clock_now_ns() + LINGER_TOTAL_S * CLOCK_NS_PER_S;
    static const size_t scratch_bytes = 64 << 10;
    char *scratch = malloc(scratch_bytes);
    api_watch_arm(c->api->watch, c->watch, LINGER_TOTAL_S);
    shutdown(fd, SHUT_WR);
    while (scratch && clock_now_ns() < end && !atomic_load(&c->api->stopping)) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, LINGER_IDLE_MS) <= 0 || recv(fd, scratch, scratch_bytes, MSG_DONTWAIT) <= 0) break;
    }
    free(scratch);
}

/* ---- Beginning of a call ---- */

static bool valid_request_id(const char *s) {
    size_t n = s ? strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") : 0;
    return n > 0 && n < REQUEST_ID_MAX && s[n] == '\0';
}

static struct api_call *call_new(struct api *api, struct MHD_Connection *conn, const char *url, const char *method) {
    struct strata_errmsg em;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct api_watch_entry *watch = info ? info->socket_context : NULL;
    if (!watch || api_watch_refused(api->watch, watch)) return NULL;
    struct api_call *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->api = api;
    c->watch = watch;
    c->start_ns = clock_now_ns();
    buf_init(&c->body, API_MAX_BODY);
    snprintf(c->method, sizeof c->method, "%s", method);
    snprintf(c->path, sizeof c->path, "%s", url);
    const char *id = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, "x-request-id");
    if (valid_request_id(id)) {
        snprintf(c->id, sizeof c->id, "%s", id);
    } else if (api_json_id("req-", c->id, sizeof c->id, &em)) {
        free(c);
        return NULL;
    }
    return c;
}

static bool key_matches(const struct api *api, struct MHD_Connection *conn) {
    const char *h = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, "Authorization");
    struct strata_errmsg em;
    uint8_t digest[DIGEST_BYTES];
    if (!h || strncasecmp(h, "Bearer ", 7) != 0) return false;
    h += 7;
    h += strspn(h, " ");
    /* Digests have one length, and their comparison takes the same time wherever they differ. */
    if (digest_of(h, strlen(h), digest, &em)) return false;
    return CRYPTO_memcmp(digest, api->key_digest, DIGEST_BYTES) == 0;
}

static enum route find_route(const char *path, bool *post) {
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        size_t n = strlen(routes[i].path);
        if (strncmp(path, routes[i].path, n) != 0) continue;
        if (routes[i].prefix ? path[n] == '\0' : path[n] != '\0') continue;
        *post = routes[i].post;
        return routes[i].route;
    }
    return ROUTE_NONE;
}

/* What the headers alone decide. */
static void check_head(struct api_call *c, struct MHD_Connection *conn, const char *method) {
    bool post = false;
    c->route = strcmp(c->path, "*") == 0 ? ROUTE_ANY : find_route(c->path, &post);
    c->refused = true;
    if (c->api->has_key && c->route != ROUTE_HEALTH && !key_matches(c->api, conn)) {
        api_problem_set(&c->problem, STRATA_EAUTH, 401, "invalid_api_key", NULL,
                        "a valid API key is needed; send it as `Authorization: Bearer KEY`");
    } else if (c->route == ROUTE_NONE) {
        api_problem_set(&c->problem, STRATA_ENOENT, 404, "not_found", NULL,
                        "there is no %.200s here; try /v1/models, /v1/chat/completions or /v1/completions", c->path);
    } else if (strcmp(method, "OPTIONS") == 0) {
        c->refused = false;
    } else if (post ? strcmp(method, "POST") != 0 : strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
        api_problem_set(&c->problem, STRATA_EINVAL, 405, "method_not_allowed", NULL, "%.200s takes %s, not %.20s",
                        c->path, post ? "POST" : "GET", c->method);
    } else {
        c->refused = false;
    }
}

static void too_large(struct api_call *c) {
    if (c->refused) return;
    c->refused = true;
    api_problem_set(&c->problem, STRATA_ELIMIT, 413, "request_too_large", NULL,
                    "the request body has more than %d MiB, which is the limit", API_MAX_BODY >> 20);
}

static enum MHD_Result call_begin(struct api_call *c, struct MHD_Connection *conn, const char *method) {
    const char *length = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, "Content-Length");
    const char *expect = MHD_lookup_connection_value(conn, MHD_HEADER_KIND, "Expect");
    api_watch_arm(c->api->watch, c->watch, c->api->body_timeout_s);
    check_head(c, conn, method);
    bool huge = length && strtoull(length, NULL, 10) > API_MAX_BODY;
    if (huge) too_large(c);
    if (!huge && !(c->refused && expect)) return MHD_YES;
    c->linger = true;
    return respond_problem(c, conn);
}

static enum MHD_Result call_body(struct api_call *c, const char *data, size_t *size) {
    struct strata_errmsg em;
    size_t n = *size;
    *size = 0;
    c->body_seen += n;
    if (c->body_seen > API_MAX_BODY) {
        too_large(c);
        respond_raw(c);
        return MHD_NO;
    }
    if (c->refused || (c->route != ROUTE_CHAT && c->route != ROUTE_COMPLETIONS)) return MHD_YES;
    size_t all = atomic_fetch_add(&c->api->body_bytes, n) + n;
    if (all > MAX_ALL_BODIES || buf_append(&c->body, data, n, &em)) {
        atomic_fetch_sub(&c->api->body_bytes, n);
        c->refused = true;
        api_problem_set(&c->problem, STRATA_ELIMIT, 503, "overloaded", NULL,
                        "too many large requests at once; try again later");
        c->problem.retry_after_s = 1;
    }
    return MHD_YES;
}

static void drop_body(struct api_call *c) {
    atomic_fetch_sub(&c->api->body_bytes, c->body.len);
    buf_deinit(&c->body);
}

/* ---- End points ---- */

static enum MHD_Result answer_health(struct api_call *c, struct MHD_Connection *conn) {
    struct strata_errmsg em;
    struct buf body;
    json_t *status = NULL;
    struct gen *g = c->api->model.gen;
    bool ok = g->ops->health(g, &status);
    buf_init(&body, MAX_ANSWER);
    strata_err rc = status ? jsonx_dump(status, false, &body, &em) : err_nomem(&em, "the health report");
    json_decref(status);
    return rc ? respond_internal(c, conn, &body, &em) : respond(c, conn, ok ? 200 : 503, &body);
}

/* A client may name the model in full, by the last part of its name, or not at all. */
static bool model_matches(const char *served, const char *asked) {
    const char *slash = strrchr(served, '/');
    return asked[0] == '\0' || strcmp(asked, served) == 0 || (slash && strcmp(asked, slash + 1) == 0);
}

static void no_such_model(struct api_call *c, const char *asked) {
    api_problem_set(&c->problem, STRATA_ENOENT, 404, "model_not_found", "model",
                    "model \"%.200s\" is not served here; this server has \"%.200s\"", asked, c->api->model.id);
}

static enum MHD_Result answer_models(struct api_call *c, struct MHD_Connection *conn) {
    struct strata_errmsg em;
    struct buf body;
    const struct api_model *m = &c->api->model;
    if (c->route == ROUTE_MODEL && !model_matches(m->id, c->path + strlen("/v1/models/"))) {
        no_such_model(c, c->path + strlen("/v1/models/"));
        return respond_problem(c, conn);
    }
    buf_init(&body, MAX_ANSWER);
    if (api_json_model(m->id, m->created, c->route == ROUTE_MODELS, &body, &em))
        return respond_internal(c, conn, &body, &em);
    return respond(c, conn, 200, &body);
}

/* Whether to give up waiting; c->problem tells why if the client is still there. */
static bool must_end(struct api_call *c) {
    if (api_watch_gone(c->watch)) return true;
    if (!atomic_load(&c->api->stopping)) return false;
    api_problem_set(&c->problem, STRATA_ECANCELLED, 503, "shutting_down", NULL, "the server is shutting down");
    c->problem.retry_after_s = 5;
    return true;
}

static uint64_t next_look(void) {
    return clock_now_ns() + CLOCK_NS_PER_S;
}

static struct api_answer answer_of(const struct api_call *c) {
    return (struct api_answer){.endpoint = c->request->endpoint,
                               .id = c->answer_id,
                               .model = c->api->model.id,
                               .created = (int64_t)time(NULL),
                               .usage_field = c->request->include_usage};
}

static enum MHD_Result answer_whole(struct api_call *c, struct MHD_Connection *conn) {
    struct strata_errmsg em;
    struct buf text, body;
    struct api_session *s = c->session;
    enum MHD_Result ok = MHD_NO;
    strata_err rc = STRATA_OK;
    buf_init(&text, MAX_ANSWER / 4);
    buf_init(&body, MAX_ANSWER);
    while (!s->finish && (!rc || rc == STRATA_ETIMEOUT)) {
        rc = must_end(c) ? STRATA_ECANCELLED : api_session_step(s, next_look(), &text, &c->problem);
    }
    if (!s->finish) {
        /* Without a status here the client has gone, and the connection is closed. */
        ok = c->problem.status ? respond_problem(c, conn) : MHD_NO;
    } else {
        struct api_answer a = answer_of(c);
        rc = api_json_answer(&a, buf_cstr(&text), text.len, s->finish, &s->usage, &body, &em);
        ok = rc ? respond_internal(c, conn, &body, &em) : respond(c, conn, 200, &body);
    }
    buf_deinit(&text);
    buf_deinit(&body);
    return ok;
}

static ssize_t stream_read(void *cls, uint64_t pos, char *to, size_t max) {
    struct api_call *c = cls;
    struct api_stream *s = c->stream;
    struct strata_errmsg em;
    (void)pos;
    api_watch_arm(c->api->watch, c->watch, 0); /* the wait for tokens is ours, not the client's */
    while (!s->out.len) {
        if (s->ended) return MHD_CONTENT_READER_END_OF_STREAM;
        strata_err rc;
        if (!must_end(c))
            rc = api_stream_pull(s, next_look(), &em);
        else if (c->problem.status)
            rc = api_stream_fail(s, &c->problem, &em);
        else
            return MHD_CONTENT_READER_END_WITH_ERROR;
        if (rc) return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    size_t n = s->out.len < max ? s->out.len : max;
    memcpy(to, s->out.data, n);
    buf_consume(&s->out, n);
    api_watch_arm(c->api->watch, c->watch, c->api->send_timeout_s);
    return (ssize_t)n;
}

static enum MHD_Result answer_stream(struct api_call *c, struct MHD_Connection *conn) {
    struct api_answer a = answer_of(c);
    if (api_stream_new(c->session, &a, &c->stream, &c->problem)) return respond_problem(c, conn);
    strata_err rc = STRATA_ETIMEOUT;
    for (int i = 0; i < FIRST_TOKEN_STEPS && rc == STRATA_ETIMEOUT; i++) {
        if (must_end(c)) return c->problem.status ? respond_problem(c, conn) : MHD_NO;
        rc = api_stream_first(c->stream, next_look(), &c->problem);
    }
    if (rc && rc != STRATA_ETIMEOUT) return respond_problem(c, conn);
    struct MHD_Response *resp = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 8192, stream_read, c, NULL);
    if (!resp) return MHD_NO;
    MHD_add_response_header(resp, "Content-Type", "text/event-stream; charset=utf-8");
    MHD_add_response_header(resp, "Cache-Control", "no-cache");
    return queue(c, conn, 200, resp);
}

static void count_answer(struct api_call *c) {
    pthread_mutex_lock(&c->api->lock);
    c->api->active++;
    pthread_mutex_unlock(&c->api->lock);
    c->counted = true;
}

static enum MHD_Result answer_completion(struct api_call *c, struct MHD_Connection *conn) {
    bool chat = c->route == ROUTE_CHAT;
    const struct api_model *m = &c->api->model;
    if (api_request_parse(chat ? API_CHAT : API_COMPLETIONS, buf_cstr(&c->body), c->body.len, &c->request, &c->problem))
        return respond_problem(c, conn);
    drop_body(c); /* the parsed request has its own copy */
    if (!model_matches(m->id, c->request->model)) {
        no_such_model(c, c->request->model);
        return respond_problem(c, conn);
    }
    struct strata_errmsg em;
    if (api_json_id(chat ? "chatcmpl-" : "cmpl-", c->answer_id, sizeof c->answer_id, &em)) {
        api_problem_set(&c->problem, em.code, 500, "internal_error", NULL, "%s", em.text);
        return respond_problem(c, conn);
    }
    count_answer(c);
    if (must_end(c)) return c->problem.status ? respond_problem(c, conn) : MHD_NO;
    if (api_session_new(m, c->request, c->id, &c->session, &c->problem)) return respond_problem(c, conn);
    return c->request->stream ? answer_stream(c, conn) : answer_whole(c, conn);
}

static enum MHD_Result answer_options(struct api_call *c, struct MHD_Connection *conn) {
    struct MHD_Response *resp = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (!resp) return MHD_NO;
    MHD_add_response_header(resp, "Allow", allowed(c->route));
    return queue(c, conn, 204, resp);
}

static enum MHD_Result call_answer(struct api_call *c, struct MHD_Connection *conn) {
    api_watch_arm(c->api->watch, c->watch, 0);
    if (c->refused) return respond_problem(c, conn);
    if (strcmp(c->method, "OPTIONS") == 0) return answer_options(c, conn);
    switch (c->route) {
    case ROUTE_HEALTH: return answer_health(c, conn);
    case ROUTE_MODELS:
    case ROUTE_MODEL: return answer_models(c, conn);
    case ROUTE_CHAT:
    case ROUTE_COMPLETIONS: return answer_completion(c, conn);
    default:
        api_problem_set(&c->problem, STRATA_EINVAL, 400, "invalid_request", NULL, "only OPTIONS can be sent to *");
        return respond_problem(c, conn);
    }
}

/* ---- Callbacks of the HTTP library ---- */

enum MHD_Result api_call_handle(void *cls, struct MHD_Connection *conn, const char *url, const char *method,
                                const char *version, const char *data, size_t *size, void **call) {
    (void)version;
    struct api_call *c = *call;
    if (!c) {
        c = call_new(cls, conn, url, method);
        if (!c) return MHD_NO;
        *call = c;
        return call_begin(c, conn, method);
    }
    return *size ? call_body(c, data, size) : call_answer(c, conn);
}

static void log_call(const struct api_call *c, enum MHD_RequestTerminationCode why) {
    char path[160], method[40];
    const char *end = why == MHD_REQUEST_TERMINATED_COMPLETED_OK      ? "sent"
                      : why == MHD_REQUEST_TERMINATED_DAEMON_SHUTDOWN ? "shutdown"
                                                                      : "client_gone";
    if (c->linger) end = "sent";
    const struct api_session *s = c->session;
    log_event(
        c->api->log, LOG_LEVEL_INFO, "request",
        "id=%s method=%s path=%s status=%u code=%s end=%s prompt_tokens=%u completion_tokens=%u finish=%s ms=%.0f",
        c->id, log_quote(method, sizeof method, c->method), log_quote(path, sizeof path, c->path), c->status,
        c->problem.code ? c->problem.code : "-", end, s ? s->usage.prompt : 0, s ? s->usage.completion : 0,
        s && s->finish ? s->finish : "-", clock_since_s(c->start_ns) * 1e3);
}

void api_call_completed(void *cls, struct MHD_Connection *conn, void **call, enum MHD_RequestTerminationCode why) {
    struct api *api = cls;
    struct api_call *c = *call;
    (void)conn;
    if (!c) return;
    *call = NULL;
    api_stream_free(c->stream);
    /* The log needs the session's counts, and the job must end before anything slow happens. */
    struct gen *g = api->model.gen;
    if (c->session && c->session->job) {
        g->ops->job_free(g, c->session->job);
        c->session->job = NULL;
    }
    log_call(c, why);
    api_session_free(c->session);
    api_request_free(c->request);
    drop_body(c);
    if (c->counted) {
        pthread_mutex_lock(&api->lock);
        if (--api->active == 0) pthread_cond_broadcast(&api->idle);
        pthread_mutex_unlock(&api->lock);
    }
    if (c->linger)
        linger(c);
    else
        api_watch_arm_waiting(api->watch, c->watch, api->idle_timeout_s);
    free(c);
}

/* Runs in the thread that accepts connections, so it must not wait. */
static void refuse_connection(int fd) {
    static const char answer[] =
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        "Connection: close\r\n\r\n{\"error\":{\"message\":\"too many connections at once; try again later\","
        "\"type\":\"server_error\",\"param\":null,\"code\":\"overloaded\"}}";
    (void)!send(fd, answer, sizeof answer - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(fd, SHUT_WR); /* its thread still reads the request, so that no reset overtakes the answer */
}

/*
 * A client whose machine or network went away says no goodbye. The system then finds out within about half a minute,
 * and the waits for tokens see the connection as gone. Best effort: without it only the finding out takes longer.
 */
static void notice_dead_clients(int fd, uint32_t send_timeout_s) {
    int on = 1, idle_s = 15, interval_s = 5, probes = 3;
    unsigned unacknowledged_ms = send_timeout_s * 1000;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacknowledged_ms, sizeof unacknowledged_ms);
}

void api_call_connection(void *cls, struct MHD_Connection *conn, void **entry,
                         enum MHD_ConnectionNotificationCode what) {
    struct api *api = cls;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        api_watch_remove(api->watch, *entry);
        *entry = NULL;
        return;
    }
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(conn, MHD_CONNECTION_INFO_CONNECTION_FD);
    notice_dead_clients(info->connect_fd, api->send_timeout_s);
    bool room = api_watch_make_room(api->watch, api->max_connections);
    struct api_watch_entry *e = api_watch_add(api->watch, info->connect_fd);
    *entry = e;
    if (!e) {
        shutdown(info->connect_fd, SHUT_RDWR); /* nothing could ever cut it off */
        return;
    }
    if (room) {
        api_watch_arm_waiting(api->watch, e, api->header_timeout_s);
    } else {
        api_watch_refuse(api->watch, e, 1);
        refuse_connection(info->connect_fd);
    }
}
