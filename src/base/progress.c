/* Progress of long work. See progress.h. */
#include "base/progress.h"

#include "base/clock.h"

#include <string.h>
#include <unistd.h>

#define FIRST_DRAW_NS (CLOCK_NS_PER_S / 5)
#define TTY_DRAW_NS (CLOCK_NS_PER_S / 10)
#define PLAIN_DRAW_NS (5 * CLOCK_NS_PER_S)

const char *progress_bytes(char *out, size_t cap, uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    size_t u = 0;
    while (v >= 1024.0 && u + 1 < sizeof units / sizeof units[0]) {
        v /= 1024.0;
        u++;
    }
    snprintf(out, cap, u == 0 ? "%.0f %s" : "%.1f %s", v, units[u]);
    return out;
}

void progress_begin(struct progress *p, FILE *out, const char *label, uint64_t total) {
    *p = (struct progress){.out = out, .label = label, .total = total, .passes = 1, .start_ns = clock_now_ns()};
    atomic_flag_clear(&p->drawing);
    p->tty = out && isatty(fileno(out));
}

/* "1:05:09", "2:03" or "7 s" */
static const char *duration(char *out, size_t cap, double seconds) {
    unsigned long s = seconds < 1e9 ? (unsigned long)(seconds + 0.5) : 1000000000ul;
    if (s < 60)
        snprintf(out, cap, "%lu s", s);
    else if (s < 3600)
        snprintf(out, cap, "%lu:%02lu", s / 60, s % 60);
    else
        snprintf(out, cap, "%lu:%02lu:%02lu", s / 3600, s / 60 % 60, s % 60);
    return out;
}

static void draw(struct progress *p, bool last) {
    enum { WIDTH = 28 };
    char done[32], total[32], rate[32], left[32], bar[WIDTH + 1];
    uint64_t n = p->done / p->passes;
    double elapsed = clock_since_s(p->start_ns);
    double per_s = elapsed > 0 ? (double)n / elapsed : 0;
    double share = p->total ? (double)n / (double)p->total : 0;
    if (share > 1) share = 1;
    size_t full = (size_t)(share * WIDTH);
    memset(bar, '.', WIDTH);
    memset(bar, '#', full);
    bar[WIDTH] = '\0';
    progress_bytes(done, sizeof done, n);
    progress_bytes(total, sizeof total, p->total);
    progress_bytes(rate, sizeof rate, (uint64_t)per_s);
    duration(left, sizeof left, per_s > 0 && p->total > n ? (double)(p->total - n) / per_s : 0);
    if (p->tty)
        fprintf(p->out, "\r%s [%s] %3.0f%%  %s of %s  %s/s  %s left \033[K%s", p->label, bar, share * 100, done, total,
                rate, left, last ? "\n" : "");
    else
        fprintf(p->out, "%s %.0f%% (%s of %s, %s/s, %s left)\n", p->label, share * 100, done, total, rate, left);
    fflush(p->out);
    p->drawn_ns = clock_now_ns();
}

void progress_add(struct progress *p, uint64_t bytes) {
    p->done += bytes;
    if (!p->out) return;
    uint64_t now = clock_now_ns(), drawn = p->drawn_ns;
    uint64_t gap = p->tty ? TTY_DRAW_NS : PLAIN_DRAW_NS;
    if (now - p->start_ns < (p->tty ? FIRST_DRAW_NS : PLAIN_DRAW_NS) || (drawn && now - drawn < gap)) return;
    if (atomic_flag_test_and_set(&p->drawing)) return;
    draw(p, false);
    atomic_flag_clear(&p->drawing);
}

void progress_end(struct progress *p) {
    if (p->out && p->drawn_ns) draw(p, true);
}
