/* Hashing and comparing in one pass. See pkg_scan.h. Owns nothing but a running digest. */
#include "package/pkg_scan.h"

#include <stdlib.h>
#include <string.h>

/* A piece is fetched and given back at once: large, for each costs a few system calls and a word to the other threads'
 * processors; smaller where as much of another file is resident beside it. A bite is hashed and then compared: small
 * enough that it is still in the cache. */
enum { PIECE = 16 << 20, PIECE_OF_TWO = 4 << 20, MUCH = 1 << 20, BITE = 256 << 10 };

static size_t piece_of(const struct pkg_scan *s) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < s->n_pairs; i++) bytes += s->pairs[i].have->bytes;
    return bytes > MUCH ? PIECE_OF_TWO : PIECE;
}

static int by_place(const void *a, const void *b) {
    const uint8_t *x = ((const struct pkg_scan_pair *)a)->have->data;
    const uint8_t *y = ((const struct pkg_scan_pair *)b)->have->data;
    return (x > y) - (x < y);
}

/* The part of [at, at + len) that a pair's tensor covers: where it starts in the tensor, and its bytes (0: none). */
static size_t overlap(const struct pkg_scan_pair *p, const uint8_t *at, size_t len, uint64_t *start) {
    const uint8_t *from = p->have->data, *end = from + p->have->bytes;
    if (from < at) from = at;
    if (end > at + len) end = at + len;
    if (from >= end) return 0;
    *start = (uint64_t)(from - p->have->data);
    return (size_t)(end - from);
}

/* Pairs before the returned index end before `at`. They do not overlap one another. */
static size_t skip(const struct pkg_scan *s, size_t i, const uint8_t *at) {
    while (i < s->n_pairs && s->pairs[i].have->data + s->pairs[i].have->bytes <= at) i++;
    return i;
}

static void compare(struct pkg_scan *s, size_t i, const uint8_t *at, size_t len) {
    uint64_t start = 0;
    size_t n;
    for (; i < s->n_pairs && s->pairs[i].have->data < at + len; i++) {
        struct pkg_scan_pair *p = &s->pairs[i];
        if (p->differs || (n = overlap(p, at, len, &start)) == 0) continue;
        const uint8_t *x = p->have->data + start, *y = p->want->data + start;
        if (memcmp(x, y, n) == 0) continue;
        p->differs = true;
        p->first = start;
        while (*x == *y) x++, y++, p->first++;
    }
}

enum page_work { FETCH, DROP };

/* The pages of the other side that a piece will be, or has been, compared with. */
static strata_err others(const struct pkg_scan *s, enum page_work work, size_t i, const uint8_t *at, size_t len,
                         struct strata_errmsg *em) {
    uint64_t start = 0;
    size_t n;
    strata_err rc = STRATA_OK;
    for (; i < s->n_pairs && s->pairs[i].have->data < at + len && !rc; i++) {
        const struct pkg_scan_pair *p = &s->pairs[i];
        if ((n = overlap(p, at, len, &start)) == 0) continue;
        if (work == FETCH && !p->differs)
            rc = file_map_fetch(p->want->data + start, n, s->other, em);
        else if (work == DROP)
            file_map_drop(p->want->data + start, n);
    }
    return rc;
}

/* One piece; i is the first pair that may reach into it. */
static strata_err scan_piece(struct pkg_scan *s, struct digest *d, size_t i, const uint8_t *at, size_t len,
                             struct strata_errmsg *em) {
    strata_err rc = file_map_fetch(at, len, s->name, em);
    if (!rc) rc = others(s, FETCH, i, at, len, em);
    for (size_t done = 0; done < len && !rc; done += BITE) {
        size_t n = len - done < BITE ? len - done : BITE;
        if (d) rc = digest_update(d, at + done, n, em);
        if (!rc) compare(s, i, at + done, n);
    }
    file_map_drop(at, len);
    others(s, DROP, i, at, len, NULL);
    return rc;
}

strata_err pkg_scan_run(struct pkg_scan *s, struct strata_errmsg *em) {
    struct digest *d = NULL;
    strata_err rc = s->hash ? digest_new(&d, em) : STRATA_OK;
    size_t pair = 0, n, piece = piece_of(s);
    if (s->n_pairs > 1) qsort(s->pairs, s->n_pairs, sizeof *s->pairs, by_place);
    for (size_t done = 0; done < s->map.size && !rc; done += n) {
        const uint8_t *at = s->map.data + done;
        n = s->map.size - done < piece ? s->map.size - done : piece;
        size_t ahead = s->map.size - done - n < piece ? s->map.size - done - n : piece;
        pair = skip(s, pair, at);
        bool wanted = d || (pair < s->n_pairs && s->pairs[pair].have->data < at + n);
        if (s->cancelled && s->cancelled()) {
            rc = err_set(em, STRATA_ECANCELLED, "interrupted");
        } else if (wanted) {
            file_map_ahead(at + n, ahead);
            rc = scan_piece(s, d, pair, at, n, em);
        }
        if (s->progress && !rc) progress_add(s->progress, n);
    }
    if (!rc && d) rc = digest_final(d, s->sha256, em);
    digest_free(d);
    return rc;
}
