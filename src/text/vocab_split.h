/*
 * Pre-tokenizers: how byte-level BPE cuts text into the pieces within which tokens may form.
 *
 * A pre-tokenizer is a list of rules applied one after the other; each cuts every piece so far into its matches and
 * the gaps between them, and sees nothing of a piece's surroundings. Most rules have a hand-written matcher
 * (vocab_scan.h), the others go through PCRE2 (with its JIT where there is one); the two give the same cuts. A splitter
 * is read-only after vocab_split_new; what a call needs lives in struct vocab_split_work, so several threads may share
 * one.
 */
#ifndef TEXT_VOCAB_SPLIT_H
#define TEXT_VOCAB_SPLIT_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vocab_split;

struct vocab_split_ends {
    uint32_t *end;
    size_t len, cap;
};

/* Zero it before the first use; may serve many calls of one thread. */
struct vocab_split_work {
    struct vocab_split_ends ends;  /* after a run: where each piece ends, rising, the last at the end of the text */
    struct vocab_split_ends spare; /* the other half of the double buffer */
    void *match;                   /* pcre2_match_data */
    void *context;                 /* pcre2_match_context */
};
void vocab_split_work_deinit(struct vocab_split_work *w);

/* What goes with a pre-tokenizer besides its rules. */
struct vocab_split_traits {
    bool ignore_merges; /* a piece that is a token is taken whole */
    bool add_bos;       /* default when the metadata says nothing */
    const char *lstrip; /* the text of a token that swallows the white space before it, or NULL */
};

/*
 * `name` is tokenizer.ggml.pre; an unknown one is EUNSUPPORTED, and the message lists those that are known, one of each
 * kind. `patterns`: use PCRE2 even for rules that have a matcher; for tests.
 */
strata_err vocab_split_new(const char *name, size_t len, bool patterns, struct vocab_split **out,
                           struct vocab_split_traits *traits, struct strata_errmsg *em);
void vocab_split_free(struct vocab_split *s);

/*
 * Cuts text, which must be valid UTF-8 of at most VOCAB_SPLIT_MAX bytes, into pieces: w->ends. An error of the pattern
 * engine (its limits on steps, stack and memory included) is an error here, never another cut. Time is linear in len.
 */
strata_err vocab_split_run(const struct vocab_split *s, const char *text, size_t len, struct vocab_split_work *w,
                           struct strata_errmsg *em);

#define VOCAB_SPLIT_MAX ((size_t)1 << 30)

#endif
