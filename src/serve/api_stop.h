/*
 * Stop strings over a stream of text.
 *
 * Text is held back while its end might be the beginning of a stop string. A match is the stop string that is complete
 * first; text after its first byte is dropped. Because the automaton takes one byte at a time, the result does not
 * depend on how the text was cut into pieces. Work per byte is constant on average, whatever the stop strings are.
 * Life cycle: api_stop_init, api_stop_push per piece, api_stop_flush at the end, api_stop_deinit.
 */
#ifndef API_STOP_H
#define API_STOP_H

#include "base/buf.h"
#include "serve/api_request.h"

struct api_stop {
    size_t n;
    struct {
        char *text;     /* owned */
        uint16_t *fall; /* owned; fall[i]: longest proper border of the first i + 1 bytes */
        size_t len;
        size_t state; /* bytes that match now */
    } word[API_MAX_STOPS];
    struct buf held;
    bool matched;
};

/* Copies the strings; each has 1 to API_MAX_STOP_BYTES bytes. On failure nothing is left to free. */
strata_err api_stop_init(struct api_stop *s, const char *const *words, size_t n, struct strata_errmsg *em);
void api_stop_deinit(struct api_stop *s);
/* Takes text and appends what is certain to out. After a match s->matched is set and further text is ignored. */
strata_err api_stop_push(struct api_stop *s, const char *text, size_t len, struct buf *out, struct strata_errmsg *em);
/* The stream ended: what was held back is ordinary text. */
strata_err api_stop_flush(struct api_stop *s, struct buf *out, struct strata_errmsg *em);

#endif
