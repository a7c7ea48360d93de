/* Event log. See log.h. */
#include "base/log.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const names[] = {"debug", "info", "warn", "error"};

enum log_level log_level_from_env(enum log_level fallback) {
    const char *text = getenv("STRATA_LOG");
    for (size_t i = 0; text && i < sizeof names / sizeof names[0]; i++)
        if (strcmp(text, names[i]) == 0) return (enum log_level)i;
    return fallback;
}

void log_event(const struct log *log, enum log_level level, const char *event, const char *kv_fmt, ...) {
    if (!log || !log->out || level < log->level) return;
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    char stamp[32];
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &tm);
    char kv[1536];
    va_list ap;
    va_start(ap, kv_fmt);
    vsnprintf(kv, sizeof kv, kv_fmt, ap);
    va_end(ap);
    fprintf(log->out, "%s.%03ldZ %s %s %s%s%s\n", stamp, ts.tv_nsec / 1000000, names[level], log->component, event,
            kv[0] ? " " : "", kv);
    fflush(log->out);
}

const char *log_quote(char *out, size_t cap, const char *text) {
    size_t n = 0;
    if (cap < 3) {
        if (cap) out[0] = '\0';
        return out;
    }
    out[n++] = '"';
    for (; *text && n + 4 < cap; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') out[n++] = '\\';
        out[n++] = c < 0x20 || c == 0x7f ? '?' : (char)c;
    }
    out[n++] = '"';
    out[n] = '\0';
    return out;
}
