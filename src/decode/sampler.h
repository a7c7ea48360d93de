/*
 * Samplers: logits of one position to one token id.
 *
 * The order is: repeat penalty, top-k, top-p, min-p, temperature, draw. temperature 0 is greedy: the highest logit, the
 * lowest id on a tie. With the same parameters, seed and logits the result is the same on every machine.
 */
#ifndef DECODE_SAMPLER_H
#define DECODE_SAMPLER_H

#include "base/err.h"

#include <stdint.h>

struct sampler_params {
    float temperature;      /* 0: greedy; else > 0 */
    uint32_t top_k;         /* 0: off */
    float top_p;            /* 1: off */
    float min_p;            /* 0: off */
    float repeat_penalty;   /* 1: off; > 0 */
    uint32_t repeat_last_n; /* tokens that the penalty looks back on; 0: off */
    uint64_t seed;
};

/* Greedy, everything off. */
struct sampler_params sampler_defaults(void);
/* Checks ranges; errors name the field and its bounds. */
strata_err sampler_check(const struct sampler_params *p, struct strata_errmsg *em);

struct sampler;

strata_err sampler_new(const struct sampler_params *p, uint32_t n_vocab, struct sampler **out,
                       struct strata_errmsg *em);
void sampler_free(struct sampler *s);
/* Tells the sampler of a token of the transcript (prompt tokens first, then each sampled one): for the penalty. */
void sampler_accept(struct sampler *s, int32_t token);
/* Picks a token. Logits that are not finite are an error (EINTERNAL names the first bad index). logits is not changed.
 */
strata_err sampler_pick(struct sampler *s, const float *logits, int32_t *token, struct strata_errmsg *em);

#endif
