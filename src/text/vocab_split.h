/*
 * Pre-tokenizers: how byte-level BPE cuts text into the pieces within which tokens may form.
 *
 * A pre-tokenizer is a list of patterns applied one after the other; each cuts every piece so far into its matches and
 * the gaps between them, and sees nothing of a piece's surroundings. The patterns are fixed in this file, never taken
 * from a model. A splitter is compiled once (PCRE2 with its JIT where there is one) and read-only afterwards; what a
 * call needs lives in struct vocab_split_work, so several threads may share a splitter.
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

/* What goes with a pre-tokenizer besides its patterns. */
struct vocab_split_traits {
    bool ignore_merges; /* a piece that is a token is taken whole */
    bool add_bos;       /* default when the metadata says nothing */
};

/* `name` is tokenizer.ggml.pre; an unknown one is EUNSUPPORTED, and the message lists those that are known. */
strata_err vocab_split_new(const char *name, size_t len, struct vocab_split **out, struct vocab_split_traits *traits,
                           struct strata_errmsg *em);
void vocab_split_free(struct vocab_split *s);

/*
 * Cuts text, which must be valid UTF-8 of at most VOCAB_SPLIT_MAX bytes, into pieces: w->ends. An error of the pattern
 * engine is an error here, never another cut. Time is linear in len.
 */
strata_err vocab_split_run(const struct vocab_split *s, const char *text, size_t len, struct vocab_split_work *w,
                           struct strata_errmsg *em);

#define VOCAB_SPLIT_MAX ((size_t)1 << 30)

#endif
