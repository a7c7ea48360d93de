/*
 * Event log: one line per event, `time level component event key=value ...`, on a stream (stderr as a rule).
 * Never log a secret, a prompt or generated text. A NULL log drops everything, so libraries need no special case.
 * Lines of several threads do not mix: each is written by one call.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdio.h>

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR };

struct log {
    FILE *out;
    enum log_level level;  /* lines below this are dropped */
    const char *component; /* for example "stage" or "serve" */
};

/* kv_fmt formats the `key=value ...` part; it may be "". Values with spaces are the caller's to quote (see log_quote).
 */
void log_event(const struct log *log, enum log_level level, const char *event, const char *kv_fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* The level that the environment variable STRATA_LOG names (debug, info, warn, error); fallback when it names none. */
enum log_level log_level_from_env(enum log_level fallback);

/* Writes text into out between double quotes, with '"', '\' and control characters escaped; truncates to fit. Returns
 * out. */
const char *log_quote(char *out, size_t cap, const char *text);

#endif
