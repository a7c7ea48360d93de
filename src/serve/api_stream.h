/*
 * A streamed answer as bytes: server-sent events from the tokens of a session. No I/O of its own.
 *
 * Life cycle: api_stream_new, api_stream_first (whose failure is still an ordinary HTTP error), then take the bytes of
 * s->out and call api_stream_pull for more until s->ended; api_stream_free. The session is borrowed.
 */
#ifndef API_STREAM_H
#define API_STREAM_H

#include "serve/api_session.h"

struct api_stream {
    struct api_session *session;
    struct api_answer answer;
    struct buf text;  /* scratch */
    struct buf out;   /* bytes for the client */
    uint64_t last_ns; /* when out got bytes last */
    bool ended;       /* nothing more will come */
    bool failed;      /* it ended with an error event */
};

/* The strings of answer must outlive the stream. */
strata_err api_stream_new(struct api_session *session, const struct api_answer *answer, struct api_stream **out,
                          struct api_problem *p);
void api_stream_free(struct api_stream *s);
/* Waits until deadline_ns for the first token. STRATA_ETIMEOUT: none yet, call it again or go on with api_stream_pull.
 */
strata_err api_stream_first(struct api_stream *s, uint64_t deadline_ns, struct api_problem *p);
/*
 * Waits until deadline_ns for a token. A failure of the generator becomes an error event and the end of the stream;
 * a long silence becomes a comment, so that both sides notice a dead connection. The result is a failure only when the
 * event itself could not be made (memory): then the connection has to be cut.
 */
strata_err api_stream_pull(struct api_stream *s, uint64_t deadline_ns, struct strata_errmsg *em);
/* Ends the stream with this error. */
strata_err api_stream_fail(struct api_stream *s, const struct api_problem *p, struct strata_errmsg *em);

#endif
