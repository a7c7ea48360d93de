/* Matchers for the patterns of pre-tokenizers. See vocab_scan.h. Owns nothing. */
#include "text/vocab_scan.h"

#include <string.h>

enum { WORD = CLASS_LETTER, MARKED_WORD = CLASS_LETTER | CLASS_MARK };

static bool in_set(const struct vocab_scan *s, const struct vocab_rule *r, uint32_t cp) {
    uint8_t c = s->class_of[cp];
    if (c & r->word) return true;
    if (r->ascii && cp > 0 && cp < 0x80 && strchr(r->ascii, (int)cp)) return true;
    for (const struct vocab_range *g = r->range; g && g->first; g++) {
        if (cp >= g->first && cp <= g->last) return !(c & CLASS_SPACE);
    }
    return false;
}

/* Where the run of set characters that begins at p ends. */
static const char *set_end(const struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    unsigned n;
    while (p < end && in_set(s, r, vocab_class_next(p, &n))) p += n;
    return p;
}

/* Where the run of characters of any of these classes ends. */
static const char *class_end(const struct vocab_scan *s, uint8_t classes, const char *p, const char *end) {
    unsigned n;
    while (p < end && (s->class_of[vocab_class_next(p, &n)] & classes)) p += n;
    return p;
}

/* Where the run of characters of none of these classes ends. */
static const char *other_end(const struct vocab_scan *s, uint8_t classes, const char *p, const char *end) {
    unsigned n;
    while (p < end && !(s->class_of[vocab_class_next(p, &n)] & classes)) p += n;
    return p;
}

static uint8_t class_at(const struct vocab_scan *s, const char *p, const char *end) {
    unsigned n;
    return p < end ? s->class_of[vocab_class_next(p, &n)] : 0;
}

static bool is_break(char c) {
    return c == '\r' || c == '\n';
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* The length of 's, 't, 're, 've, 'm, 'll or 'd at p, or 0. */
static size_t contraction(const char *p, const char *end, bool any_case) {
    if (end - p < 2 || p[0] != '\'') return 0;
    int fold = any_case ? 0x20 : 0;
    int a = p[1] | fold, b = end - p > 2 ? p[2] | fold : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* Measures the run of white space at p, and finds its last line break, unless that was done before. */
static void measure_space(struct vocab_scan *s, const char *p, const char *end) {
    if (s->from && p >= s->from && p < s->to) return;
    unsigned n;
    s->from = p;
    s->line_end = NULL;
    for (; p < end && (s->class_of[vocab_class_next(p, &n)] & CLASS_SPACE); p += n) {
        if (is_break(*p)) s->line_end = p + 1;
    }
    s->to = p;
}

/* Where the last character before p begins. */
static const char *before(const char *p) {
    do p--;
    while (((unsigned char)*p & 0xC0) == 0x80);
    return p;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ at white space: up to the last line break; else all, or all but the last character where
 * something follows. */
static size_t match_space(struct vocab_scan *s, const char *p, const char *end) {
    measure_space(s, p, end);
    if (s->line_end && s->line_end > p) return (size_t)(s->line_end - p);
    if (s->to == end) return (size_t)(s->to - p);
    const char *last = before(s->to);
    return (size_t)((last > p ? last : s->to) - p);
}

/* " ?[^\s other]+" and the tail. The end of the match, or p. */
static const char *match_other(const struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    const char *q = other_end(s, r->other | CLASS_SPACE, p + (*p == ' '), end);
    if (q == p + (*p == ' ')) return p;
    while (q < end && r->tail[0] && strchr(r->tail, *q) && *q) q++;
    return q;
}

size_t vocab_match_run(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    if (r->max == 0) return (size_t)(set_end(s, r, p, end) - p);
    const char *q = p;
    unsigned n;
    for (int i = 0; i < r->max && q < end && in_set(s, r, vocab_class_next(q, &n)); i++) q += n;
    return (size_t)(q - p);
}

size_t vocab_match_exact(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    const char *q = p;
    unsigned n;
    for (int i = 0; i < r->max; i++, q += n) {
        if (q >= end || !in_set(s, r, vocab_class_next(q, &n))) return 0;
    }
    return (size_t)(q - p);
}

size_t vocab_match_spaced_run(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    unsigned n;
    uint32_t cp = vocab_class_next(p, &n);
    if (s->class_of[cp] & CLASS_SPACE) {
        const char *q = set_end(s, r, p + n, end);
        if (q > p + n) return (size_t)(q - p);
    }
    return (size_t)(set_end(s, r, p, end) - p);
}

size_t vocab_match_last_space(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    (void)r;
    measure_space(s, p, end);
    return s->to == end && s->to > p ? (size_t)(s->to - p) : 0;
}

size_t vocab_match_lines(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    (void)s;
    (void)r;
    const char *q = p;
    if (*p == '\n') {
        while (q < end && *q == '\n') q++;
    } else {
        q = memchr(p, '\n', (size_t)(end - p));
    }
    return (size_t)((q ? q : end) - p);
}

size_t vocab_match_gpt2(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    size_t n = contraction(p, end, false);
    if (n) return n;
    const char *q = p + (*p == ' ');
    uint8_t c = class_at(s, q, end);
    if (q < end && !(c & CLASS_SPACE)) {
        const char *e = c & CLASS_LETTER   ? class_end(s, CLASS_LETTER, q, end)
                        : c & CLASS_NUMBER ? class_end(s, CLASS_NUMBER, q, end)
                                           : other_end(s, r->other | CLASS_SPACE, q, end);
        return (size_t)(e - p);
    }
    measure_space(s, p, end);
    /* \s+(?!\S): one character before something else is left alone. */
    return (size_t)((s->to == end ? end : before(s->to)) - p);
}

/* [^\r\n\p{L}\p{N}]?[word]+; 0 when there is none. */
static size_t match_word(const struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    unsigned n;
    uint32_t cp = vocab_class_next(p, &n);
    uint8_t c = s->class_of[cp];
    if (!(c & (CLASS_LETTER | CLASS_NUMBER)) && cp != '\r' && cp != '\n') {
        const char *q = r->range ? set_end(s, r, p + n, end) : class_end(s, r->word, p + n, end);
        if (q > p + n) return (size_t)(q - p);
    }
    return (size_t)((r->range ? set_end(s, r, p, end) : class_end(s, r->word, p, end)) - p);
}

static size_t match_digits(const struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    const char *q = p;
    unsigned n;
    for (int i = 0; (r->max == 0 || i < r->max) && q < end; i++, q += n) {
        if (!(s->class_of[vocab_class_next(q, &n)] & CLASS_NUMBER)) break;
    }
    return (size_t)(q - p);
}

size_t vocab_match_cl100k(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    size_t n = r->contractions ? contraction(p, end, true) : 0;
    if (!n) n = match_word(s, r, p, end);
    if (!n) n = match_digits(s, r, p, end);
    if (!n) n = (size_t)(match_other(s, r, p, end) - p);
    return n ? n : match_space(s, p, end);
}

size_t vocab_match_k2_horizon(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    static const char long_s[] = "'\xC5\xBF";
    if (end - p >= 3 && memcmp(p, long_s, 3) == 0) return 3;
    return vocab_match_cl100k(s, r, p, end);
}

/* Bytes of the first n characters at p. */
static size_t skip(const char *p, size_t n) {
    const char *q = p;
    for (unsigned k; n > 0; n--, q += k) (void)vocab_class_next(q, &k);
    return (size_t)(q - p);
}

size_t vocab_match_jais(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    size_t n = contraction(p, end, true);
    if (!n) n = match_word(s, r, p, end);
    if (!n) n = match_digits(s, r, p, end);
    if (!n) n = (size_t)(match_other(s, r, p, end) - p);
    if (n) return n;
    measure_space(s, p, end);
    if (s->line_end && s->line_end > p) return (size_t)(s->line_end - p);
    /* \s{512}(?!\S)|...|\s{4}(?!\S)|\s{1,2}(?!\S)|\s: what may be taken ends before the last character, or at the end.
     */
    enum { LONGEST = 512 };
    const char *stop = s->to == end ? end : before(s->to), *q = p;
    size_t room = 0;
    for (unsigned k; q < stop && room < LONGEST; room++, q += k) (void)vocab_class_next(q, &k);
    size_t take = LONGEST;
    while (take > room) take /= 2;
    return skip(p, take ? take : 1);
}

/* (?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+ : letters with their marks, single spaces between letters included. */
static const char *joined_words_end(const struct vocab_scan *s, const char *p, const char *end) {
    const char *done = p;
    for (;;) {
        const char *q = done + (done > p && done < end && *done == ' ');
        if (!(class_at(s, q, end) & CLASS_LETTER)) return done;
        unsigned n;
        (void)vocab_class_next(q, &n);
        done = class_end(s, CLASS_MARK, q + n, end);
    }
}

size_t vocab_match_exaone(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    size_t n = contraction(p, end, true);
    if (n) return n;
    unsigned k;
    uint32_t cp = vocab_class_next(p, &k);
    bool prefix = !(s->class_of[cp] & (CLASS_LETTER | CLASS_NUMBER)) && cp != '\r' && cp != '\n';
    const char *word = p + (prefix ? k : 0), *q = joined_words_end(s, word, end);
    if (q > word) return (size_t)(q - p);
    n = match_digits(s, r, p, end);
    if (n) return n;
    q = other_end(s, r->other | CLASS_SPACE, p + (*p == ' '), end);
    if (q > p + (*p == ' ')) {
        if (q < end && (is_break(*q) || *q == '/')) q++;
        return (size_t)(q - p);
    }
    return match_space(s, p, end);
}

struct letters {
    bool capital, small; /* may stand in a word's first part; in its last part */
};

static struct letters letter(const struct vocab_scan *s, const struct vocab_rule *r, const char *p, unsigned *n) {
    uint32_t cp = vocab_class_next(p, n);
    uint8_t c = s->class_of[cp];
    struct letters out = {0};
    if (!(c & r->word)) return out;
    for (const struct vocab_range *g = r->range; g && g->first; g++) {
        if (cp >= g->first && cp <= g->last) return out;
    }
    out.capital = r->letters == VOCAB_CASE_NONE || !(cp >= 'a' && cp <= 'z');
    out.small = r->letters == VOCAB_CASE_NONE || !(cp >= 'A' && cp <= 'Z');
    return out;
}

/*
 * capital*small+ at p: its end, or p when there is none. *capitals: where capital+ alone ends. When nothing small
 * follows the capitals, the pattern gives back characters until the last one that may be small as well.
 */
static const char *cased_word(const struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end,
                              const char **capitals) {
    const char *q = p, *small_end = p;
    unsigned n = 0;
    struct letters c = {0};
    while (q < end && (c = letter(s, r, q, &n)).capital) {
        q += n;
        if (c.small) small_end = q;
    }
    *capitals = q;
    if (q == end || !c.small) return small_end;
    while (q < end && letter(s, r, q, &n).small) q += n;
    return q;
}

/* The words of o200k_base at p, or 0. */
static size_t match_cased(const struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    unsigned n;
    uint32_t cp = vocab_class_next(p, &n);
    bool prefix = !(s->class_of[cp] & (CLASS_LETTER | CLASS_NUMBER)) && cp != '\r' && cp != '\n';
    const char *capitals_1 = p, *capitals_0 = p, *from = p + n, *q = p;
    if (prefix) {
        q = cased_word(s, r, from, end, &capitals_1);
        if (q == from) q = p;
    }
    if (q == p) q = cased_word(s, r, p, end, &capitals_0);
    if (q == p && prefix && capitals_1 > from) q = capitals_1;
    if (q == p) q = capitals_0;
    if (q > p && r->contractions) q += contraction(q, end, true);
    return (size_t)(q - p);
}

size_t vocab_match_o200k(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    size_t n = match_cased(s, r, p, end);
    if (!n) n = match_digits(s, r, p, end);
    if (!n) n = (size_t)(match_other(s, r, p, end) - p);
    return n ? n : match_space(s, p, end);
}

size_t vocab_match_kimi(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    const struct vocab_rule han = {.range = r->range};
    const char *q = set_end(s, &han, p, end);
    return q > p ? (size_t)(q - p) : vocab_match_o200k(s, r, p, end);
}

static bool ascii_punct(char c) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

static bool ascii_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

size_t vocab_match_deepseek(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    (void)r;
    const char *q = p + 1;
    if (ascii_punct(*p) && q < end && ascii_letter(*q)) {
        while (q < end && ascii_letter(*q)) q++;
        return (size_t)(q - p);
    }
    unsigned n;
    uint32_t cp = vocab_class_next(p, &n);
    uint8_t c = s->class_of[cp];
    if (!(c & (CLASS_LETTER | CLASS_PUNCT | CLASS_SYMBOL)) && cp != '\r' && cp != '\n') {
        q = class_end(s, MARKED_WORD, p + n, end);
        if (q > p + n) return (size_t)(q - p);
    }
    q = class_end(s, MARKED_WORD, p, end);
    if (q > p) return (size_t)(q - p);
    const char *from = p + (*p == ' ');
    q = class_end(s, CLASS_PUNCT | CLASS_SYMBOL, from, end);
    if (q > from) {
        while (q < end && is_break(*q)) q++;
        return (size_t)(q - p);
    }
    return c & CLASS_SPACE ? match_space(s, p, end) : 0;
}

/* Measures the run of digits at p unless that was done before, and counts what is left of it from p on. */
static size_t digits_left(struct vocab_scan *s, uint8_t classes, const char *p, const char *end) {
    if (!s->from || p < s->from || p >= s->to) {
        const char *q = p;
        unsigned n;
        s->left = 0;
        for (; q < end; q += n, s->left++) {
            uint32_t cp = vocab_class_next(q, &n);
            if (classes ? !(s->class_of[cp] & classes) : !is_digit(*q)) break;
        }
        s->from = p;
        s->to = q;
        return s->left;
    }
    for (unsigned n; s->from < p; s->from += n, s->left--) (void)vocab_class_next(s->from, &n);
    return s->left;
}

size_t vocab_match_threes(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    const char *q = other_end(s, r->word, p, end);
    if (q == end) return (size_t)(end - p);
    size_t left = digits_left(s, r->word, q, end);
    return (size_t)(q - p) + skip(q, left % 3 ? left % 3 : 3);
}

size_t vocab_match_grouped(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end) {
    (void)r;
    size_t left = is_digit(*p) ? digits_left(s, 0, p, end) : 0;
    if (left == 0 || left % 3) return 0;
    const char *q = p + 3;
    while (q < end) { /* up to the next place of this kind */
        left = is_digit(*q) ? digits_left(s, 0, q, end) : 0;
        if (left && left % 3 == 0) break;
        q += is_digit(*q) ? 1 : skip(q, 1);
    }
    return (size_t)(q - p);
}
