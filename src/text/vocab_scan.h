/*
 * Hand-written splitters: for each pattern of a pre-tokenizer, what it matches at one place of a text.
 *
 * A rule has a pattern for PCRE2, which is the definition, and mostly a matcher, which finds the same matches several
 * times as fast and in linear time, whatever the text; the tests compare the two. A matcher looks at valid UTF-8 and at
 * nothing outside [p, end).
 */
#ifndef TEXT_VOCAB_SCAN_H
#define TEXT_VOCAB_SCAN_H

#include "text/vocab_class.h"

#include <stdbool.h>
#include <stddef.h>

struct vocab_range {
    uint32_t first, last;
};

/* What the matchers of one text remember, so that a run they have measured once is not measured again. */
struct vocab_scan {
    const uint8_t *class_of; /* by code point */
    const char *from, *to;   /* a run of white space or of digits; NULL: none yet */
    const char *line_end;    /* of white space: its last line break, behind it; NULL: none in it */
    size_t left;             /* of digits: how many there are */
};

struct vocab_rule;
/* Bytes of the match at p, or 0 when there is none. p < end. */
typedef size_t (*vocab_match)(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end);

/* How capital and small letters are told apart. */
enum vocab_case {
    VOCAB_CASE_ASCII, /* only a-z and A-Z have a case */
    VOCAB_CASE_NONE,  /* not at all */
};

struct vocab_rule {
    const char *pattern; /* for PCRE2 */
    vocab_match match;   /* NULL: PCRE2 does it */
    uint8_t word;        /* the classes of what is matched, or of what words are made of */
    uint8_t other;       /* classes that end a run of other characters, besides white space */
    uint8_t max;         /* longest run, of digits in particular; 0: no limit */
    bool contractions;
    enum vocab_case letters;
    const char *tail;                /* what may follow a run of other characters; "" nothing */
    const char *ascii;               /* further ASCII characters of the set, or NULL */
    const struct vocab_range *range; /* further characters of the set, white space left out; the last has first 0 */
};

/* The set is `word`, `ascii` and `range` together. [set]{1,max}; exactly max where max is written `exact`. */
size_t vocab_match_run(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end);
size_t vocab_match_exact(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end);
/* \s?[set]+ */
size_t vocab_match_spaced_run(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end);
/* \s+$ */
size_t vocab_match_last_space(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end);
/* [^\n]+|\n+ */
size_t vocab_match_lines(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end);
/* The words of GPT-2, of cl100k_base, of o200k_base and of DeepSeek-V3, and their relatives. */
size_t vocab_match_gpt2(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end);
size_t vocab_match_cl100k(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end);
size_t vocab_match_o200k(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end);
size_t vocab_match_deepseek(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end);
/* cl100k with white space in pieces of powers of two; with words that go on over single spaces. */
size_t vocab_match_jais(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end);
size_t vocab_match_exaone(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end);
/* o200k, but characters of `range` (Han) form words of their own. */
size_t vocab_match_kimi(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end);
/* cl100k, and U+017F counts as the s of a contraction. */
size_t vocab_match_k2_horizon(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end);
/* Digits (`word`) in threes counted from the right end of their run, what is left over first; the first ones together
 * with all that stands before them. */
size_t vocab_match_threes(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end);
/* From one place where a number of ASCII digits that threes divide is left of a run up to the next such place. */
size_t vocab_match_grouped(struct vocab_scan *s, const struct vocab_rule *r, const char *p, const char *end);

#endif
