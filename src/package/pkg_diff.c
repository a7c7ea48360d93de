/*
 * Unified diff by longest common subsequence. See pkg_diff.h. Owns its tables.
 *
 * Equal lines at both ends are set aside first; between them the table of common lengths is filled from the end, so
 * that walking it from the start gives the edits in order.
 */
#include "package/pkg_diff.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 3, MAX_CELLS = 1 << 20 };

struct line {
    const char *text;
    size_t len;
};

struct lines {
    struct line *list;
    size_t n;
};

/* One line of the result: ' ', '-' or '+'. */
struct edit {
    char sign;
    struct line line;
};

struct edits {
    struct edit *list;
    size_t n;
};

static strata_err split(const char *text, struct lines *out, struct strata_errmsg *em) {
    size_t n = 1;
    for (const char *p = text; *p; p++) n += *p == '\n';
    out->list = calloc(n, sizeof *out->list);
    if (!out->list) return err_nomem(em, "a diff");
    while (*text) {
        size_t len = strcspn(text, "\n");
        out->list[out->n++] = (struct line){text, len};
        text += len + (text[len] == '\n');
    }
    return STRATA_OK;
}

static bool same(const struct line *a, const struct line *b) {
    return a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
}

static void put(struct edits *e, char sign, const struct line *line) {
    e->list[e->n++] = (struct edit){sign, *line};
}

/* The lines between the equal ends. Without a table: all of a goes, all of b comes. */
static void walk(struct edits *e, const struct line *a, size_t n, const struct line *b, size_t m,
                 const uint32_t *table) {
    size_t i = 0, k = 0, width = m + 1;
    while (i < n || k < m) {
        if (i < n && k < m && table && same(&a[i], &b[k])) {
            put(e, ' ', &a[i++]);
            k++;
        } else if (i < n && (k == m || !table || table[(i + 1) * width + k] >= table[i * width + k + 1])) {
            put(e, '-', &a[i++]);
        } else {
            put(e, '+', &b[k++]);
        }
    }
}

/* table[i][k]: how many lines a[i..] and b[k..] have in common. NULL when it would be too large, or without memory. */
static uint32_t *common(const struct line *a, size_t n, const struct line *b, size_t m) {
    if (n >= MAX_CELLS || m >= MAX_CELLS || (n + 1) * (m + 1) > MAX_CELLS) return NULL;
    size_t width = m + 1;
    uint32_t *table = calloc((n + 1) * width, sizeof *table);
    for (size_t i = n; table && i-- > 0;)
        for (size_t k = m; k-- > 0;) {
            uint32_t down = table[(i + 1) * width + k], right = table[i * width + k + 1];
            table[i * width + k] = same(&a[i], &b[k]) ? table[(i + 1) * width + k + 1] + 1
                                   : down > right     ? down
                                                      : right;
        }
    return table;
}

static strata_err compare(const struct lines *a, const struct lines *b, struct edits *e, struct strata_errmsg *em) {
    size_t head = 0, tail = 0, least = a->n < b->n ? a->n : b->n;
    e->list = calloc(a->n + b->n + 1, sizeof *e->list);
    if (!e->list) return err_nomem(em, "a diff");
    while (head < least && same(&a->list[head], &b->list[head])) head++;
    while (tail < least - head && same(&a->list[a->n - 1 - tail], &b->list[b->n - 1 - tail])) tail++;
    size_t n = a->n - head - tail, m = b->n - head - tail;
    uint32_t *table = common(a->list + head, n, b->list + head, m);
    for (size_t i = 0; i < head; i++) put(e, ' ', &a->list[i]);
    walk(e, a->list + head, n, b->list + head, m, table);
    for (size_t i = a->n - tail; i < a->n; i++) put(e, ' ', &a->list[i]);
    free(table);
    return STRATA_OK;
}

/* The end of the hunk that starts at `at`: changes at most twice the context apart belong together. */
static size_t hunk_end(const struct edits *e, size_t at) {
    size_t end = at, quiet = 0;
    for (size_t i = at; i < e->n && quiet <= 2 * CONTEXT; i++) {
        quiet = e->list[i].sign == ' ' ? quiet + 1 : 0;
        if (quiet == 0) end = i + 1;
    }
    return end + CONTEXT < e->n ? end + CONTEXT : e->n;
}

static strata_err print_hunk(const struct edits *e, size_t from, size_t to, size_t a_line, size_t b_line,
                             struct buf *out, struct strata_errmsg *em) {
    size_t a_n = 0, b_n = 0;
    for (size_t i = from; i < to; i++) {
        if (e->list[i].sign != '+') a_n++;
        if (e->list[i].sign != '-') b_n++;
    }
    /* An empty side counts the line before it. */
    strata_err rc = buf_printf(out, em, "@@ -%zu,%zu +%zu,%zu @@\n", a_n ? a_line : a_line - 1, a_n,
                               b_n ? b_line : b_line - 1, b_n);
    for (size_t i = from; i < to && !rc; i++) {
        rc = buf_append(out, &e->list[i].sign, 1, em);
        if (!rc) rc = buf_append(out, e->list[i].line.text, e->list[i].line.len, em);
        if (!rc) rc = buf_append(out, "\n", 1, em);
    }
    return rc;
}

static strata_err print(const struct edits *e, struct buf *out, struct strata_errmsg *em) {
    size_t a_line = 1, b_line = 1, i = 0;
    strata_err rc = STRATA_OK;
    while (!rc) {
        size_t change = i;
        while (change < e->n && e->list[change].sign == ' ') change++;
        if (change == e->n) break;
        size_t from = change - i > CONTEXT ? change - CONTEXT : i, to = hunk_end(e, change);
        a_line += from - i;
        b_line += from - i;
        rc = print_hunk(e, from, to, a_line, b_line, out, em);
        for (i = from; i < to; i++) {
            a_line += e->list[i].sign != '+';
            b_line += e->list[i].sign != '-';
        }
    }
    return rc;
}

strata_err pkg_diff_unified(const char *a_name, const char *a, const char *b_name, const char *b, struct buf *out,
                            struct strata_errmsg *em) {
    struct lines x = {0}, y = {0};
    struct edits e = {0};
    if (strcmp(a, b) == 0) return STRATA_OK;
    strata_err rc = split(a, &x, em);
    if (!rc) rc = split(b, &y, em);
    if (!rc) rc = compare(&x, &y, &e, em);
    if (!rc) rc = buf_printf(out, em, "--- %s\n+++ %s\n", a_name, b_name);
    if (!rc) rc = print(&e, out, em);
    free(x.list);
    free(y.list);
    free(e.list);
    return rc;
}
