/* A profile as text and as JSON. See engine_profile.h. Owns nothing. */
#include "engine/engine_profile.h"

#include <stdlib.h>

static int slowest_first(const void *a, const void *b) {
    const struct engine_profile_row *x = a, *y = b;
    return (x->ns < y->ns) - (x->ns > y->ns);
}

static void sort(struct engine_profile *p) {
    if (p->by_op.n) qsort(p->by_op.row, p->by_op.n, sizeof *p->by_op.row, slowest_first);
    if (p->by_matrix.n) qsort(p->by_matrix.row, p->by_matrix.n, sizeof *p->by_matrix.row, slowest_first);
}

static double ms(uint64_t ns) {
    return (double)ns / 1e6;
}

/* Of `ns`, in units of 1e9 a second. */
static double giga(double amount, uint64_t ns) {
    return ns ? amount / (double)ns : 0;
}

static double share(uint64_t part, uint64_t all) {
    return all ? (double)part / (double)all : 0;
}

/* The least time in which the memory could deliver what was read. */
static uint64_t bound_ns(const struct engine_profile *p) {
    return p->read_rate > 0 ? (uint64_t)((double)p->all.bytes / p->read_rate * 1e9) : 0;
}

/* ---- text ---- */

static void print_rows(const char *title, const struct engine_profile_table *t, const struct engine_profile_row *all,
                       FILE *out) {
    if (t->n == 0) return;
    fprintf(out, "  %-34s %7s %10s %8s %8s %9s\n", title, "share", "ms", "count", "GB/s", "GFLOP/s");
    for (size_t i = 0; i < t->n; i++) {
        const struct engine_profile_row *r = &t->row[i];
        fprintf(out, "  %-34s %6.1f%% %10.3f %8llu", r->name, 100 * share(r->ns, all->ns), ms(r->ns),
                (unsigned long long)r->count);
        if (r->bytes)
            fprintf(out, " %8.2f", giga((double)r->bytes, r->ns));
        else if (r->flops > 0)
            fprintf(out, " %8s", "");
        if (r->flops > 0) fprintf(out, " %9.2f", giga(r->flops, r->ns));
        fputc('\n', out);
    }
}

void engine_profile_print(struct engine_profile *p, const char *title, FILE *out) {
    if (p->n_runs == 0) return;
    sort(p);
    double runs = (double)p->n_runs;
    fprintf(
        out,
        "profile of %s: %llu tokens in %llu graphs; %llu operations took %.3f ms, and %.3f ms went by launching them "
        "one by one (%.1f us each)\n",
        title, (unsigned long long)p->n_tokens, (unsigned long long)p->n_runs, (unsigned long long)p->all.count,
        ms(p->all.ns), ms(p->launch_ns), (double)p->one_launch_ns / 1e3);
    print_rows("operation", &p->by_op, &p->all, out);
    print_rows("matrix", &p->by_matrix, &p->all, out);
    print_rows("layer", &p->by_layer, &p->all, out);
    fprintf(
        out,
        "  memory: a graph reads %.2f MB of weights and state; %u threads read %.2f GB/s here, so it takes at least "
        "%.3f ms, which is %.1f%% of the %.3f ms that it took\n",
        (double)p->all.bytes / runs / 1e6, (unsigned)p->backend->n_threads, p->read_rate / 1e9, ms(bound_ns(p)) / runs,
        100 * share(bound_ns(p), p->all.ns), ms(p->all.ns) / runs);
}

/* ---- JSON ---- */

static json_t *rows_json(const struct engine_profile_table *t, const struct engine_profile_row *all) {
    json_t *list = json_array();
    for (size_t i = 0; i < t->n && list; i++) {
        const struct engine_profile_row *r = &t->row[i];
        json_t *one =
            json_pack("{s:s, s:f, s:f, s:I, s:I, s:f, s:f}", "name", r->name, "share", share(r->ns, all->ns), "ms",
                      ms(r->ns), "count", (json_int_t)r->count, "bytes", (json_int_t)r->bytes, "gb_per_second",
                      giga((double)r->bytes, r->ns), "gflop_per_second", giga(r->flops, r->ns));
        if (!one || json_array_append_new(list, one)) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

json_t *engine_profile_json(struct engine_profile *p) {
    sort(p);
    return json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:I, s:f, s:f, s:f, s:o, s:o, s:o}", "runs", (json_int_t)p->n_runs,
                     "tokens", (json_int_t)p->n_tokens, "operations", (json_int_t)p->all.count, "ms", ms(p->all.ns),
                     "launch_ms", ms(p->launch_ns), "one_launch_us", (double)p->one_launch_ns / 1e3, "bytes",
                     (json_int_t)p->all.bytes, "memory_gb_per_second", p->read_rate / 1e9, "memory_bound_ms",
                     ms(bound_ns(p)), "memory_bound_share", share(bound_ns(p), p->all.ns), "by_operation",
                     rows_json(&p->by_op, &p->all), "by_matrix", rows_json(&p->by_matrix, &p->all), "by_layer",
                     rows_json(&p->by_layer, &p->all));
}
