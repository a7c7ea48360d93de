/* Pre-tokenizers: the passes over a text. See vocab_split.h. Owns compiled patterns and the table of classes. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/vocab_split.h"
#include "text/vocab_rules.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { PATTERN_MAX = 1 << 16 };

struct pass {
    const struct vocab_rule *rule;
    pcre2_code *code; /* NULL: the rule's matcher does it */
};

struct vocab_split {
    struct pass pass[VOCAB_PASSES_MAX];
    int passes;
    uint8_t *class_of;
};

void vocab_split_work_deinit(struct vocab_split_work *w) {
    free(w->ends.end);
    free(w->spare.end);
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->context);
    *w = (struct vocab_split_work){0};
}

static const struct vocab_family *find_family(const char *name, size_t len) {
    if (len == 0) return NULL;
    for (int i = 0; i < vocab_n_families; i++) {
        const char *at = vocab_families[i].names;
        const char *end;
        for (at++; (end = strchr(at, ' ')) != NULL; at = end + 1) {
            if ((size_t)(end - at) == len && memcmp(at, name, len) == 0) return &vocab_families[i];
        }
    }
    return NULL;
}

/* All names would not fit a message: each kind is named once. */
static strata_err unknown_name(const char *name, size_t len, struct strata_errmsg *em) {
    char list[512] = "";
    size_t used = 0;
    for (int i = 0; i < vocab_n_families; i++) {
        size_t n = strcspn(vocab_families[i].names + 1, " ") + 1;
        if (used + n >= sizeof list) break;
        memcpy(list + used, vocab_families[i].names, n);
        used += n;
        list[used] = '\0';
    }
    return err_set(em, STRATA_EUNSUPPORTED,
                   "the pre-tokenizer '%.*s' is not supported; known are:%s, and the other names of these "
                   "(docs/tokenizers.md)",
                   len > 64 ? 64 : (int)len, name, list);
}

static strata_err pcre_error(struct strata_errmsg *em, const char *doing, int code) {
    PCRE2_UCHAR text[160];
    if (pcre2_get_error_message(code, text, sizeof text) < 0) text[0] = '\0';
    strata_err rc = code == PCRE2_ERROR_NOMEMORY ? STRATA_ENOMEM
                    : code == PCRE2_ERROR_MATCHLIMIT || code == PCRE2_ERROR_HEAPLIMIT ||
                            code == PCRE2_ERROR_DEPTHLIMIT || code == PCRE2_ERROR_JIT_STACKLIMIT
                        ? STRATA_ELIMIT
                        : STRATA_EINTERNAL;
    return err_set(em, rc, "%s with PCRE2 failed: %s (%d)", doing, (const char *)text, code);
}

/* The rule's pattern with its ranges in place of each @. */
static strata_err spell(const struct vocab_rule *r, struct buf *out, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    for (const char *p = r->pattern; *p && rc == STRATA_OK; p++) {
        if (*p != '@' || !r->range) {
            rc = buf_append(out, p, 1, em);
            continue;
        }
        for (const struct vocab_range *g = r->range; g->first && rc == STRATA_OK; g++) {
            rc = buf_printf(out, em, "\\x{%X}-\\x{%X}", (unsigned)g->first, (unsigned)g->last);
        }
    }
    return rc;
}

static strata_err compile(const struct vocab_rule *r, pcre2_code **out, struct strata_errmsg *em) {
    struct buf pattern;
    int code;
    PCRE2_SIZE at;
    buf_init(&pattern, PATTERN_MAX);
    strata_err rc = spell(r, &pattern, em);
    if (rc != STRATA_OK) goto out;
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)pattern.data, pattern.len, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    if (!c) {
        rc = pcre_error(em, "compiling a pre-tokenizer's pattern", code);
        goto out;
    }
    /* Without a JIT (unsupported processor, no executable memory) the interpreter gives the same matches. */
    (void)pcre2_jit_compile(c, PCRE2_JIT_COMPLETE);
    *out = c;
out:
    buf_deinit(&pattern);
    return rc;
}

strata_err vocab_split_new(const char *name, size_t len, bool patterns, struct vocab_split **out,
                           struct vocab_split_traits *traits, struct strata_errmsg *em) {
    strata_err rc = STRATA_OK;
    struct vocab_split *s = NULL;
    const struct vocab_family *f = find_family(name, len);
    if (!f) {
        rc = unknown_name(name, len, em);
        goto out;
    }
    s = calloc(1, sizeof *s);
    if (!s) {
        rc = err_nomem(em, "a pre-tokenizer");
        goto out;
    }
    rc = vocab_class_new(&s->class_of, em);
    for (int i = 0; i < VOCAB_PASSES_MAX && f->pass[i] && rc == STRATA_OK; i++) {
        struct pass *p = &s->pass[s->passes++];
        p->rule = f->pass[i];
        if (patterns || !p->rule->match) rc = compile(p->rule, &p->code, em);
    }
    if (rc != STRATA_OK) goto out;
    *traits = (struct vocab_split_traits){f->ignore_merges, f->add_bos, f->lstrip};
    *out = s;
    s = NULL;
out:
    vocab_split_free(s);
    return rc;
}

void vocab_split_free(struct vocab_split *s) {
    if (!s) return;
    for (int i = 0; i < s->passes; i++) pcre2_code_free(s->pass[i].code);
    free(s->class_of);
    free(s);
}

static strata_err grow(struct vocab_split_ends *e, struct strata_errmsg *em) {
    size_t cap = e->cap ? e->cap * 2 : 256;
    uint32_t *p = realloc(e->end, cap * sizeof *p);
    if (!p) return err_nomem(em, "the pieces of a text");
    e->end = p;
    e->cap = cap;
    return STRATA_OK;
}

static inline strata_err add_end(struct vocab_split_ends *e, size_t end, struct strata_errmsg *em) {
    if (e->len == e->cap) {
        strata_err rc = grow(e, em);
        if (rc != STRATA_OK) return rc;
    }
    e->end[e->len++] = (uint32_t)end;
    return STRATA_OK;
}

/* Cuts one piece, [start, end) of text, with one pattern. */
static strata_err match_pattern(const pcre2_code *code, const char *text, size_t start, size_t end,
                                struct vocab_split_work *w, struct strata_errmsg *em) {
    PCRE2_SPTR subject = (PCRE2_SPTR)text + start;
    size_t len = end - start, at = 0;
    while (at < len) {
        int n = pcre2_match(code, subject, len, at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, w->match, w->context);
        if (n == PCRE2_ERROR_NOMATCH) break;
        if (n < 0) return pcre_error(em, "cutting text into words", n);
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(w->match);
        if (range[0] < at || range[1] <= range[0] || range[1] > len) {
            return err_set(em, STRATA_EINTERNAL, "PCRE2 gave a match outside the text");
        }
        strata_err rc = range[0] > at ? add_end(&w->ends, start + range[0], em) : STRATA_OK;
        if (rc == STRATA_OK) rc = add_end(&w->ends, start + range[1], em);
        if (rc != STRATA_OK) return rc;
        at = range[1];
    }
    return at < len ? add_end(&w->ends, end, em) : STRATA_OK;
}

/* The same with a matcher. */
static strata_err match_rule(const struct vocab_rule *r, struct vocab_scan *scan, const char *text, size_t start,
                             size_t end, struct vocab_split_work *w, struct strata_errmsg *em) {
    const char *p = text + start, *stop = text + end, *cut = p;
    strata_err rc = STRATA_OK;
    while (p < stop && rc == STRATA_OK) {
        size_t n = r->match(scan, r, p, stop);
        if (n == 0) { /* part of a gap */
            unsigned k;
            (void)vocab_class_next(p, &k);
            p += k;
            continue;
        }
        if (p > cut) rc = add_end(&w->ends, (size_t)(p - text), em);
        p += n;
        cut = p;
        if (rc == STRATA_OK) rc = add_end(&w->ends, (size_t)(p - text), em);
    }
    return rc == STRATA_OK && cut < stop ? add_end(&w->ends, end, em) : rc;
}

static strata_err prepare(const struct vocab_split *s, size_t len, struct vocab_split_work *w,
                          struct strata_errmsg *em) {
    if (len > VOCAB_SPLIT_MAX) {
        return err_set(em, STRATA_ELIMIT, "a text of %zu bytes is too long to tokenize; the limit is %zu", len,
                       VOCAB_SPLIT_MAX);
    }
    bool engine = false;
    for (int i = 0; i < s->passes; i++) engine = engine || s->pass[i].code;
    if (!engine) return STRATA_OK;
    if (!w->match) w->match = pcre2_match_data_create(32, NULL);
    if (!w->context) w->context = pcre2_match_context_create(NULL);
    if (!w->match || !w->context) return err_nomem(em, "matching");
    /* The engine counts a few steps per character of the longest run; far more means that a pattern went wrong. */
    uint64_t limit = 1000000 + 16 * (uint64_t)len;
    pcre2_set_match_limit(w->context, limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit);
    return STRATA_OK;
}

strata_err vocab_split_run(const struct vocab_split *s, const char *text, size_t len, struct vocab_split_work *w,
                           struct strata_errmsg *em) {
    w->ends.len = 0;
    strata_err rc = prepare(s, len, w, em);
    if (rc == STRATA_OK && len > 0) rc = add_end(&w->ends, len, em);
    for (int i = 0; i < s->passes && rc == STRATA_OK; i++) {
        const struct pass *pass = &s->pass[i];
        struct vocab_scan scan = {.class_of = s->class_of};
        struct vocab_split_ends before = w->ends;
        w->ends = w->spare;
        w->spare = before;
        w->ends.len = 0;
        size_t start = 0;
        for (size_t k = 0; k < before.len && rc == STRATA_OK; k++) {
            rc = pass->code ? match_pattern(pass->code, text, start, before.end[k], w, em)
                            : match_rule(pass->rule, &scan, text, start, before.end[k], w, em);
            start = before.end[k];
        }
    }
    return rc;
}
