/*
 * Samplers. See sampler.h.
 *
 * Owns its generator, the candidate list (n_vocab entries) and the look-back ring; sampler_pick allocates nothing. The
 * exponential and the generator are our own, in plain IEEE arithmetic, so that no C library can make two machines
 * differ.
 */
#include "decode/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* a fused multiply-add rounds differently; gcc's ISO mode has it off already */
#endif

enum { MAX_LAST_N = 1 << 16, MAX_VOCAB = 1 << 24 };

struct candidate {
    float logit;
    int32_t id;
};

struct sampler {
    struct sampler_params p;
    uint32_t n_vocab;
    uint64_t rng;
    struct candidate *cand; /* n_vocab */
    float *penalized;       /* n_vocab, when the penalty is on */
    int32_t *ring;          /* the last repeat_last_n tokens */
    uint32_t *count;        /* per token, how often it is in the ring */
    uint32_t n_ring, ring_at;
};

struct sampler_params sampler_defaults(void) {
    return (struct sampler_params){.temperature = 0, .top_k = 0, .top_p = 1, .min_p = 0, .repeat_penalty = 1};
}

static strata_err check_range(const char *name, float v, float lo, float hi, struct strata_errmsg *em) {
    if (isfinite(v) && v >= lo && v <= hi) return STRATA_OK;
    return err_set(em, STRATA_EINVAL, "%s is %g; it must be from %g to %g", name, (double)v, (double)lo, (double)hi);
}

strata_err sampler_check(const struct sampler_params *p, struct strata_errmsg *em) {
    strata_err rc = check_range("temperature", p->temperature, 0, 100, em);
    if (!rc) rc = check_range("top_p", p->top_p, 0, 1, em);
    if (!rc) rc = check_range("min_p", p->min_p, 0, 1, em);
    if (!rc) rc = check_range("repeat_penalty", p->repeat_penalty, 0.01f, 100, em);
    if (!rc && p->repeat_last_n > MAX_LAST_N)
        rc = err_set(em, STRATA_EINVAL, "repeat_last_n is %u; it must be from 0 to %d", (unsigned)p->repeat_last_n,
                     (int)MAX_LAST_N);
    return rc;
}

/* PCG-XSH-RR 64/32 (O'Neill, 2014), seeded through SplitMix64 so that near seeds give unrelated streams. */
static uint32_t next_u32(uint64_t *state) {
    uint64_t old = *state;
    *state = old * 6364136223846793005ull + 1442695040888963407ull;
    uint32_t x = (uint32_t)(((old >> 18) ^ old) >> 27), rot = (uint32_t)(old >> 59);
    return (x >> rot) | (x << ((32 - rot) & 31));
}

static uint64_t spread(uint64_t z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* Uniform in [0, 1), 53 bits. */
static double next_unit(uint64_t *state) {
    uint64_t hi = next_u32(state), lo = next_u32(state);
    return (double)((hi << 32 | lo) >> 11) * 0x1p-53;
}

/* e^x for x <= 0, to about one part in 1e15: x = k ln2 + r with |r| <= ln2 / 2, then Taylor to r^13. */
static double exp_neg(double x) {
    if (x < -700) return 0;
    double k = floor(x * 1.4426950408889634 + 0.5);
    double r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
    double sum = 1, term = 1;
    for (int i = 1; i <= 13; i++) {
        term = term * r / i;
        sum += term;
    }
    return ldexp(sum, (int)k);
}

static bool penalty_on(const struct sampler_params *p) {
    return p->repeat_penalty != 1.0f && p->repeat_last_n > 0;
}

strata_err sampler_new(const struct sampler_params *p, uint32_t n_vocab, struct sampler **out,
                       struct strata_errmsg *em) {
    strata_err rc = sampler_check(p, em);
    if (rc) return rc;
    if (n_vocab == 0 || n_vocab > MAX_VOCAB)
        return err_set(em, STRATA_EINVAL, "a vocabulary of %u tokens cannot be sampled from", (unsigned)n_vocab);
    struct sampler *s = calloc(1, sizeof *s);
    if (!s) return err_nomem(em, "a sampler");
    s->p = *p;
    s->n_vocab = n_vocab;
    s->rng = spread(p->seed);
    if (p->temperature > 0) s->cand = malloc(n_vocab * sizeof *s->cand);
    bool ok = p->temperature == 0 || s->cand;
    if (penalty_on(p)) {
        s->penalized = malloc(n_vocab * sizeof *s->penalized);
        s->count = calloc(n_vocab, sizeof *s->count);
        s->ring = malloc(p->repeat_last_n * sizeof *s->ring);
        ok = ok && s->penalized && s->count && s->ring;
    }
    if (!ok) {
        sampler_free(s);
        return err_nomem(em, "a sampler");
    }
    *out = s;
    return STRATA_OK;
}

void sampler_free(struct sampler *s) {
    if (!s) return;
    free(s->cand);
    free(s->penalized);
    free(s->ring);
    free(s->count);
    free(s);
}

void sampler_accept(struct sampler *s, int32_t token) {
    if (!s->ring || token < 0 || (uint32_t)token >= s->n_vocab) return;
    if (s->n_ring == s->p.repeat_last_n) {
        s->count[s->ring[s->ring_at]]--;
    } else {
        s->n_ring++;
    }
    s->ring[s->ring_at] = token;
    s->count[token]++;
    s->ring_at = (s->ring_at + 1) % s->p.repeat_last_n;
}

/* Four numbers at once: the compilers turn operations on these types into single instructions. */
typedef float quad __attribute__((vector_size(16)));
typedef int32_t quad_mask __attribute__((vector_size(16)));
enum { BLOCK = 256, QUADS = 4 };

/* The highest of BLOCK numbers. Adds to *poison, which is 0 then unless one of them is infinite or NaN. Four quads keep
 * the processor busy: a vocabulary is up to several hundred thousand numbers for each token. */
static float highest(const float *x, float *poison) {
    quad top[QUADS], v, bad = {0};
    memcpy(top, x, sizeof top);
    for (uint32_t i = 0; i < BLOCK; i += 4 * QUADS)
        for (uint32_t j = 0; j < QUADS; j++) {
            memcpy(&v, x + i + 4 * j, sizeof v);
            bad += v * 0.0f;
            quad_mask more = v > top[j];
            top[j] = (quad)((more & (quad_mask)v) | (~more & (quad_mask)top[j]));
        }
    float m = top[0][0];
    for (uint32_t j = 0; j < 4 * QUADS; j++)
        if (top[j / 4][j % 4] > m) m = top[j / 4][j % 4];
    for (uint32_t j = 0; j < 4; j++) *poison += bad[j];
    return m;
}

/* The highest logit, the lowest id on a tie; false when some value is not finite. */
static bool find_best(const float *logits, uint32_t n, uint32_t *best) {
    float top = logits[0], poison = 0;
    uint32_t at = 0, i = 0; /* at: where the block begins that top is in, or top itself */
    for (; i + BLOCK <= n; i += BLOCK) {
        float m = highest(logits + i, &poison);
        if (!(m > top)) continue;
        top = m;
        at = i;
    }
    for (; i < n; i++) {
        poison += logits[i] * 0.0f;
        if (!(logits[i] > top)) continue;
        top = logits[i];
        at = i;
    }
    while (at + 1 < n && logits[at] != top) at++;
    *best = at;
    return poison == 0;
}

static strata_err report_bad(const float *logits, uint32_t n, struct strata_errmsg *em) {
    uint32_t i = 0;
    while (i + 1 < n && isfinite(logits[i])) i++;
    return err_set(em, STRATA_EINTERNAL, "the logit of token %u is %g: the model computed no usable numbers",
                   (unsigned)i, (double)logits[i]);
}

/* Logits with repeated tokens made less likely: towards minus infinity, whatever their sign. */
static const float *apply_penalty(struct sampler *s, const float *logits) {
    if (!s->ring || s->n_ring == 0) return logits;
    memcpy(s->penalized, logits, s->n_vocab * sizeof *logits);
    for (uint32_t i = 0; i < s->n_ring; i++) {
        int32_t t = s->ring[i];
        s->penalized[t] = logits[t] > 0 ? logits[t] / s->p.repeat_penalty : logits[t] * s->p.repeat_penalty;
    }
    return s->penalized;
}

/* The order of candidates: by logit, then by id. */
static bool before(struct candidate a, struct candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* Restores a heap whose root is out of place. With `worst` the last in order is on top, else the first. */
static void sift(struct candidate *h, uint32_t n, uint32_t i, bool worst) {
    struct candidate v = h[i];
    for (;;) {
        uint32_t c = 2 * i + 1;
        if (c >= n) break;
        if (c + 1 < n && (worst ? before(h[c], h[c + 1]) : before(h[c + 1], h[c]))) c++;
        if (worst ? !before(v, h[c]) : !before(h[c], v)) break;
        h[i] = h[c];
        i = c;
    }
    h[i] = v;
}

static void heapify(struct candidate *h, uint32_t n, bool worst) {
    for (uint32_t i = n / 2; i-- > 0;) sift(h, n, i, worst);
}

/* The k best, in order: a heap of the k best so far, whose top is the one to beat. */
static uint32_t select_top_k(struct candidate *c, const float *logits, uint32_t n, uint32_t k) {
    for (uint32_t i = 0; i < k; i++) c[i] = (struct candidate){logits[i], (int32_t)i};
    heapify(c, k, true);
    for (uint32_t i = k; i < n; i++) {
        if (!(logits[i] > c[0].logit)) continue; /* on a tie the earlier id stays */
        c[0] = (struct candidate){logits[i], (int32_t)i};
        sift(c, k, 0, true);
    }
    for (uint32_t m = k; m > 1; m--) {
        struct candidate last = c[0];
        c[0] = c[m - 1];
        c[m - 1] = last;
        sift(c, m - 1, 0, true);
    }
    return k;
}

/*
 * The fewest best candidates whose probabilities add up to p. Without top-k the list is not in order: then it is a
 * heap from which the best are taken one by one into their final places, at the end of the array.
 */
static uint32_t select_top_p(struct candidate *c, uint32_t n, bool sorted, float best, float p) {
    double total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++) total += exp_neg((double)c[i].logit - (double)best);
    double want = (double)p * total;
    if (sorted) {
        for (uint32_t i = 0; i < n; i++) {
            sum += exp_neg((double)c[i].logit - (double)best);
            if (sum >= want) return i + 1;
        }
        return n;
    }
    heapify(c, n, false);
    uint32_t left = n;
    while (left > 0) {
        struct candidate top = c[0];
        left--;
        c[0] = c[left];
        sift(c, left, 0, false);
        c[left] = top;
        sum += exp_neg((double)top.logit - (double)best);
        if (sum >= want) break;
    }
    for (uint32_t i = 0, j = n; i < j;) { /* the taken ones stand in reverse at the end */
        struct candidate t = c[i];
        c[i++] = c[--j];
        c[j] = t;
    }
    return n - left;
}

/* Keeps what is at least min_p times as likely as the best; order stays. */
static uint32_t select_min_p(struct candidate *c, uint32_t n, float best, float min_p) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (exp_neg((double)c[i].logit - (double)best) >= (double)min_p) c[kept++] = c[i];
    return kept;
}

static int32_t draw(struct sampler *s, uint32_t n, float best) {
    double t = (double)s->p.temperature, total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++) total += exp_neg(((double)s->cand[i].logit - (double)best) / t);
    double at = next_unit(&s->rng) * total;
    for (uint32_t i = 0; i < n; i++) {
        sum += exp_neg(((double)s->cand[i].logit - (double)best) / t);
        if (at < sum) return s->cand[i].id;
    }
    return s->cand[n - 1].id; /* rounding: at was just below total */
}

strata_err sampler_pick(struct sampler *s, const float *logits, int32_t *token, struct strata_errmsg *em) {
    const struct sampler_params *p = &s->p;
    uint32_t best, n = s->n_vocab;
    const float *l = apply_penalty(s, logits);
    if (!find_best(l, n, &best)) return report_bad(logits, n, em);
    if (p->temperature == 0) {
        *token = (int32_t)best;
        return STRATA_OK;
    }
    float top = l[best];
    bool sorted = p->top_k > 0 && p->top_k < n;
    if (sorted) {
        n = select_top_k(s->cand, l, n, p->top_k);
    } else {
        for (uint32_t i = 0; i < n; i++) s->cand[i] = (struct candidate){l[i], (int32_t)i};
    }
    if (p->top_p < 1) n = select_top_p(s->cand, n, sorted, top, p->top_p);
    if (p->min_p > 0) n = select_min_p(s->cand, n, top, p->min_p);
    *token = draw(s, n, top);
    return STRATA_OK;
}
