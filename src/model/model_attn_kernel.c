/* The kernels of attention, and which of them a processor can run. See model_attn_kernel.h. Owns nothing. */
#include "model/model_attn_kernel.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/*
 * e^b by a polynomial with an error of 1.5 units in the last place (from Arm's optimized routines, by way of ggml), and
 * 2^n of a whole number n that z, a float, has in its lowest bits. The wider processors scale by an instruction of
 * their own; the others by a product that rounds with the last sum, in two parts where 2^n alone would be too small.
 */
#define C1 0x1.ffffecp-1f
#define C2 0x1.fffdb6p-2f
#define C3 0x1.555e66p-3f
#define C4 0x1.573e2ep-5f
#define C5 0x1.0e4020p-7f

/* ---- AVX-512 ---- */

#define NAME(x) x##_avx512
#define TARGET __attribute__((target("avx512f,avx512dq,avx2,fma,f16c")))
#define VEC __m512
#define WIDTH 16
#define DOWN 8
#define FMA _mm512_fmadd_ps
#define SPLAT _mm512_set1_ps
#define WIDEN(p) _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(p)))

static inline TARGET __m512 power_avx512(__m512 b, __m512 n, __m512 z) {
    __m512 u = b * b, upper = FMA(FMA(SPLAT(C5), b, SPLAT(C4)), u, FMA(SPLAT(C3), b, SPLAT(C2)));
    (void)z;
    return _mm512_scalef_ps(FMA(upper, u, FMA(SPLAT(C1), b, SPLAT(1.0f))), n);
}

#include "model/model_attn_kernel_code.h"

/* ---- AVX2 ---- */

#define NAME(x) x##_avx2
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define VEC __m256
#define WIDTH 8
#define DOWN 4
#define FMA _mm256_fmadd_ps
#define SPLAT _mm256_set1_ps
#define WIDEN(p) _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p)))

static inline TARGET __m256 power_avx2(__m256 b, __m256 n, __m256 z) {
    __m256 u = b * b, upper = FMA(FMA(SPLAT(C5), b, SPLAT(C4)), u, FMA(SPLAT(C3), b, SPLAT(C2)));
    __m256 y = FMA(upper, u, SPLAT(C1) * b); /* e^b - 1 */
    __m256i e = _mm256_slli_epi32(_mm256_castps_si256(z), 23);
    __m256 all = _mm256_castsi256_ps(_mm256_add_epi32(e, _mm256_set1_epi32(0x3f800000)));  /* 2^n */
    __m256 part = _mm256_castsi256_ps(_mm256_add_epi32(e, _mm256_set1_epi32(0x7e000000))); /* 2^(n + 125) */
    __m256 small = FMA(part, y, part) * SPLAT(0x1p-125f);
    return _mm256_blendv_ps(FMA(all, y, all), small, _mm256_cmp_ps(n, SPLAT(-126.0f), _CMP_LT_OQ));
}

#include "model/model_attn_kernel_code.h"

static const struct model_attn_kernel all[] = {{"AVX-512", step_avx512, widen_avx512}, {"AVX2", step_avx2, widen_avx2}};

enum { COUNT = sizeof all / sizeof all[0] };

/* How many at the begin of the list are beyond this processor. All with AVX2 have the halves of F16C. */
static int beyond(void) {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return COUNT;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") ? 0 : 1;
}

const struct model_attn_kernel *model_attn_kernel(int i) {
    int at = beyond() + i;
    return at < COUNT ? &all[at] : NULL;
}

#else

/* None yet for other processors: ggml's operation remains. */
const struct model_attn_kernel *model_attn_kernel(int i) {
    (void)i;
    return NULL;
}

#endif
