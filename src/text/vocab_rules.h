/*
 * What the names of tokenizer.ggml.pre stand for: rules that are applied one after the other, and what else goes with
 * a pre-tokenizer. A table, fixed in vocab_rules.c, never taken from a model.
 */
#ifndef TEXT_VOCAB_RULES_H
#define TEXT_VOCAB_RULES_H

#include "text/vocab_scan.h"

enum { VOCAB_PASSES_MAX = 6 };

struct vocab_family {
    const char *names; /* space-separated, with one before and after; the first one stands for all */
    const struct vocab_rule *pass[VOCAB_PASSES_MAX];
    bool ignore_merges; /* a piece that is a token is taken whole */
    bool add_bos;       /* unless the metadata says otherwise */
    const char *lstrip; /* a token that swallows the white space before it, or NULL */
};

extern const struct vocab_family vocab_families[];
extern const int vocab_n_families;

#endif
