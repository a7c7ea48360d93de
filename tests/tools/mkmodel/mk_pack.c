/* Random weights in the number formats of files. See mk.h. Only exact arithmetic, so that every machine agrees. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* a fused multiply-add would round differently; gcc leaves them out with -std=c17 */
#endif

#include "mk.h"

#include <math.h>
#include <string.h>

/* ---- random numbers ---- */

/* splitmix64: a counter and a mixer; enough for weights. */
static uint64_t next_u64(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Nearly normal with mean 0 and variance 1: the sum of eight uniform 16-bit numbers, centred and scaled. */
double mk_normal(uint64_t *state) {
    uint64_t sum = 0;
    for (int k = 0; k < 2; k++)
        for (uint64_t i = 0, v = next_u64(state); i < 4; i++, v >>= 16) sum += v & 0xffff;
    return ((double)sum - 8 * 32767.5) / 53509.621;
}

/* ---- number formats ---- */

static uint16_t to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Round to nearest even; all values here are finite and far below the largest half. */
static uint16_t to_f16(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = u >> 16 & 0x8000;
    int32_t exp = (int32_t)(u >> 23 & 0xff) - 127 + 15;
    uint32_t man = (u & 0x7fffff) | 0x800000;
    uint32_t shift = 13;
    if (exp <= 0) {
        if (exp < -10) return (uint16_t)sign;
        /* A subnormal has no hidden bit: the leading bit moves into the mantissa. */
        shift += (uint32_t)(1 - exp);
        exp = 1;
    }
    uint32_t half = man >> shift, rest = man & ((1u << shift) - 1), mid = 1u << (shift - 1);
    if (rest > mid || (rest == mid && (half & 1))) half++;
    return (uint16_t)(sign | (((uint32_t)(exp - 1) << 10) + half));
}

static float from_f16(uint16_t h) {
    int exp = h >> 10 & 31, man = h & 1023;
    double v = exp ? (1024 + man) / 1024.0 : man / 1024.0;
    for (int e = exp ? exp : 1; e < 15; e++) v /= 2;
    for (int e = 15; e < exp; e++) v *= 2;
    return (float)(h & 0x8000 ? -v : v);
}

static void put_u16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static int clamp(double v, int lo, int hi) {
    int r = (int)(v < 0 ? v - 0.5 : v + 0.5);
    return r < lo ? lo : r > hi ? hi : r;
}

/* 32 values: scale, then signed bytes. */
static void pack_q8_0(const float *x, uint8_t *dst) {
    double max = 0;
    for (int i = 0; i < 32; i++) max = fabs((double)x[i]) > max ? fabs((double)x[i]) : max;
    uint16_t d = to_f16((float)(max / 127));
    double step = (double)from_f16(d);
    put_u16(dst, d);
    for (int i = 0; i < 32; i++) dst[2 + i] = (uint8_t)(int8_t)(step > 0 ? clamp((double)x[i] / step, -127, 127) : 0);
}

/* 32 values: scale, [minimum,] then nibbles: value i in the low half of byte i, value i + 16 in the high half. */
static void pack_q4(const float *x, bool with_min, uint8_t *dst) {
    double lo = (double)x[0], hi = (double)x[0];
    for (int i = 1; i < 32; i++) {
        lo = (double)x[i] < lo ? (double)x[i] : lo;
        hi = (double)x[i] > hi ? (double)x[i] : hi;
    }
    double far = -lo > hi ? -lo : hi;
    uint16_t d = to_f16((float)(with_min ? (hi - lo) / 15 : far / 7)), m = to_f16((float)lo);
    double step = (double)from_f16(d), base = with_min ? (double)from_f16(m) : -8 * step;
    size_t head = 2;
    put_u16(dst, d);
    if (with_min) {
        put_u16(dst + 2, m);
        head = 4;
    }
    for (int i = 0; i < 16; i++) {
        int a = step > 0 ? clamp(((double)x[i] - base) / step, 0, 15) : 0;
        int b = step > 0 ? clamp(((double)x[i + 16] - base) / step, 0, 15) : 0;
        dst[head + (size_t)i] = (uint8_t)(a | b << 4);
    }
}

/*
 * 256 values as random codes below small scales: no quantizer is needed, the distribution is what matters. The factors
 * bring the values near the wanted deviation (4-bit: sub-scales and codes are uniform in 0..63 and 0..15).
 */
static void random_k_block(uint32_t type, double dev, uint64_t *rng, uint8_t *dst, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i++) dst[i] = (uint8_t)next_u64(rng);
    if (type == 12) { /* Q4_K: d, dmin, 12 bytes of 6-bit sub-scales, 128 bytes of codes */
        put_u16(dst, to_f16((float)(dev / 200)));
        put_u16(dst + 2, to_f16((float)(dev / 200 * 7.5)));
    } else { /* Q6_K: codes, 16 signed sub-scales, d at the end */
        put_u16(dst + 208, to_f16((float)(dev / 1370)));
    }
}

/* 32 values as random codes (0, 1, 2, 3, 4, 6, 8 or 12 halves, and a sign) below a power of 2. */
static void random_mxfp4(double dev, uint64_t *rng, uint8_t *dst) {
    int exponent;
    frexp(dev / 2.93, &exponent); /* 2.93: the deviation of a code's value */
    dst[0] = (uint8_t)(126 + exponent);
    for (int i = 1; i < 17; i++) dst[i] = (uint8_t)next_u64(rng);
}

const char *mk_pack(uint32_t type, const float *x, uint64_t n, double dev, uint64_t *rng, uint8_t *dst) {
    const struct gguf_tensor_type *t = gguf_types_tensor(type);
    for (uint64_t i = 0; i < n; i += t->block_elems, dst += t->block_bytes) {
        switch (type) {
        case GGUF_TENSOR_F32: memcpy(dst, x + i, 4); break;
        case GGUF_TENSOR_F16: put_u16(dst, to_f16(x[i])); break;
        case GGUF_TENSOR_BF16: put_u16(dst, to_bf16(x[i])); break;
        case GGUF_TENSOR_Q8_0: pack_q8_0(x + i, dst); break;
        case 2: pack_q4(x + i, false, dst); break;
        case 3: pack_q4(x + i, true, dst); break;
        case 12:
        case 14: random_k_block(type, dev, rng, dst, t->block_bytes); break;
        case 39: random_mxfp4(dev, rng, dst); break;
        default: return "this tensor type cannot be made; see --help";
        }
    }
    return NULL;
}
