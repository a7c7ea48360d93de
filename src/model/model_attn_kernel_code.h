/*
 * The code of one kernel of model_attn_kernel.h, for one kind of processor. Included by model_attn_kernel.c alone, once
 * for each kind, which says before:
 *   NAME(x)   a name for x of this kind
 *   TARGET    attributes of functions that may use its instructions
 *   VEC       a register of floats
 *   WIDTH     how many it has, and one of ggml's; twice as many divide MODEL_ATTN_LANES
 *   DOWN      cells, or dimensions, for each of which two registers are kept at once; divides MODEL_ATTN_STEP
 *   FMA(a, b, c), SPLAT(x), WIDEN(p)
 *             a * b + c rounded once, x everywhere, and WIDTH halves at p as floats
 * and has functions NAME(power): see there. Ends with all of these undefined again.
 */
#define vec NAME(vec)
#define bits NAME(bits)
#define wide NAME(wide)
#define INLINE static inline __attribute__((always_inline)) TARGET

typedef VEC vec;
typedef int32_t bits __attribute__((vector_size(WIDTH * sizeof(int32_t))));
typedef double wide __attribute__((vector_size(WIDTH * sizeof(double))));

/* Lanes in memory have the address of any float. */
INLINE vec NAME(get)(const float *p) {
    vec x;
    memcpy(&x, p, sizeof x);
    return x;
}

INLINE void NAME(put)(float *p, vec x) {
    memcpy(p, &x, sizeof x);
}

INLINE vec NAME(pick)(bits which, vec a, vec b) {
    return (vec)((which & (bits)a) | (~which & (bits)b));
}

/* e^x for x up to 0: e^b 2^n, with n the nearest whole number to x / ln 2. NaN stays NaN. */
INLINE vec NAME(exp)(vec x) {
    const vec round = SPLAT(0x1.8p23f); /* added, it leaves the whole number in the lowest bits */
    vec z = FMA(x, SPLAT(0x1.715476p+0f), round), n = z - round;
    vec b = FMA(-n, SPLAT(0x1.7f7d1cp-20f), FMA(-n, SPLAT(0x1.62e4p-1f), x)); /* ln 2 in two parts */
    return NAME(pick)(n < -192.0f, (vec){0}, NAME(power)(b, n, z));
}

/* scores[first..end) of the two registers from lane `at` on. */
INLINE void NAME(multiply_keys)(const struct model_attn_step *s, size_t at) {
    for (size_t c = s->first; c < s->end; c += DOWN) {
        const float *k = s->k + c * s->k_stride, *q = s->q + at;
        vec sum[DOWN][2] = {{{0}}};
        for (size_t d = 0; d < s->dim_k; d++, q += MODEL_ATTN_LANES) {
            vec q0 = NAME(get)(q), q1 = NAME(get)(q + WIDTH);
#pragma GCC unroll 8
            for (size_t j = 0; j < DOWN; j++) {
                vec x = SPLAT(k[j * s->k_stride + d]);
                sum[j][0] = FMA(q0, x, sum[j][0]);
                sum[j][1] = FMA(q1, x, sum[j][1]);
            }
        }
        float *to = s->scores + c * MODEL_ATTN_LANES + at;
#pragma GCC unroll 8
        for (size_t j = 0; j < DOWN; j++, to += MODEL_ATTN_LANES) {
            NAME(put)(to, sum[j][0] * s->scale);
            NAME(put)(to + WIDTH, sum[j][1] * s->scale);
        }
    }
}

/* DOWN of the dimensions from d on, of the two registers from lane `at` on: what they were, times `keep`, and the
 * values times their weights. */
INLINE void NAME(add_values)(const struct model_attn_step *s, size_t at, size_t d, vec keep0, vec keep1) {
    float *to = s->out + d * MODEL_ATTN_LANES + at;
    vec sum[DOWN][2];
#pragma GCC unroll 8
    for (size_t j = 0; j < DOWN; j++) {
        sum[j][0] = NAME(get)(to + j * MODEL_ATTN_LANES) * keep0;
        sum[j][1] = NAME(get)(to + j * MODEL_ATTN_LANES + WIDTH) * keep1;
    }
    const float *v = s->v + s->first * s->v_stride + d, *w = s->scores + s->first * MODEL_ATTN_LANES + at;
    for (size_t c = s->first; c < s->end; c++, v += s->v_stride, w += MODEL_ATTN_LANES) {
        vec w0 = NAME(get)(w), w1 = NAME(get)(w + WIDTH);
#pragma GCC unroll 8
        for (size_t j = 0; j < DOWN; j++) {
            vec x = SPLAT(v[j]);
            sum[j][0] = FMA(w0, x, sum[j][0]);
            sum[j][1] = FMA(w1, x, sum[j][1]);
        }
    }
#pragma GCC unroll 8
    for (size_t j = 0; j < DOWN; j++) {
        NAME(put)(to + j * MODEL_ATTN_LANES, sum[j][0]);
        NAME(put)(to + j * MODEL_ATTN_LANES + WIDTH, sum[j][1]);
    }
}

/* The largest score of each lane of a register, `most` or more. */
INLINE vec NAME(largest)(const struct model_attn_step *s, size_t at, vec most) {
    for (size_t c = s->first; c < s->end; c++) {
        float *score = s->scores + c * MODEL_ATTN_LANES + at;
        vec x = NAME(get)(score);
        if (s->mask) NAME(put)(score, x += NAME(get)(s->mask + c * MODEL_ATTN_LANES + at));
        most = NAME(pick)(x > most, x, most);
    }
    return most;
}

/* e^(score - base) of WIDTH cells in their places; the sum of them, by halves. */
INLINE vec NAME(weigh_some)(float *score, vec base) {
    vec sum[WIDTH];
#pragma GCC unroll 16
    for (size_t i = 0; i < WIDTH; i++) {
        sum[i] = NAME(exp)(NAME(get)(score + i * MODEL_ATTN_LANES) - base);
        NAME(put)(score + i * MODEL_ATTN_LANES, sum[i]);
    }
#pragma GCC unroll 4
    for (size_t half = WIDTH / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (size_t i = 0; i < half; i++) sum[i] += sum[i + half];
    return sum[0];
}

/* Scores of one register become weights; returns what is to be kept of what was summed before. */
INLINE vec NAME(weigh)(const struct model_attn_step *s, size_t at) {
    vec before = NAME(get)(s->max + at), most = NAME(largest)(s, at, before), keep = SPLAT(1.0f);
    for (size_t i = 0; i < WIDTH; i++)
        if (most[i] > before[i]) keep[i] = expf(before[i] - most[i]);
    NAME(put)(s->max + at, most);
    NAME(put)(s->sum + at, NAME(get)(s->sum + at) * keep);
    /* A query that has seen nothing yet must not take infinity from infinity. */
    vec base = NAME(pick)(most == -INFINITY, (vec){0}, most);
    wide sum = {0};
    for (size_t c = s->first; c < s->end; c += WIDTH)
        sum += __builtin_convertvector(NAME(weigh_some)(s->scores + c * MODEL_ATTN_LANES + at, base), wide);
    sum += __builtin_convertvector(NAME(get)(s->sum + at), wide);
    NAME(put)(s->sum + at, __builtin_convertvector(sum, vec));
    return keep;
}

static TARGET void NAME(step)(const struct model_attn_step *s) {
    for (size_t at = 0; at < MODEL_ATTN_LANES; at += 2 * WIDTH) {
        NAME(multiply_keys)(s, at);
        vec keep0 = NAME(weigh)(s, at), keep1 = NAME(weigh)(s, at + WIDTH);
        for (size_t d = 0; d < s->dim_v; d += DOWN) NAME(add_values)(s, at, d, keep0, keep1);
    }
}

static TARGET void NAME(widen)(const void *half, float *out, size_t n) {
    const uint16_t *in = half;
    size_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) NAME(put)(out + i, WIDEN(in + i));
    if (i == n) return;
    uint16_t rest[WIDTH] = {0};
    memcpy(rest, in + i, (n - i) * sizeof *in);
    vec last = WIDEN(rest);
    memcpy(out + i, &last, (n - i) * sizeof *out);
}

#undef vec
#undef bits
#undef wide
#undef INLINE
#undef NAME
#undef TARGET
#undef VEC
#undef WIDTH
#undef DOWN
#undef FMA
#undef SPLAT
#undef WIDEN
