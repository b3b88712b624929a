/* Vectors of float32 as wide as the instruction set that the including file is compiled for: what the kernels
 * that are not matrix products are written in, once for all processors. Include it in files under kernels/
 * only. */
#ifndef CALLA_BACKEND_CPU_KERNELS_VECTOR_H
#define CALLA_BACKEND_CPU_KERNELS_VECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#include <immintrin.h>
#elif defined(__AVX2__) && defined(__FMA__)
#define LANES 8
#include <immintrin.h>
#else
#define LANES 4
#if defined(__aarch64__)
#include <arm_neon.h>
#endif
#endif

typedef float vector __attribute__((vector_size(LANES * 4)));
typedef int32_t int_vector __attribute__((vector_size(LANES * 4)));
typedef uint16_t half_vector __attribute__((vector_size(LANES * 2)));

static inline vector vector_load(const float *values) {
    vector v;
    memcpy(&v, values, sizeof v);
    return v;
}

static inline void vector_store(float *values, vector v) {
    memcpy(values, &v, sizeof v);
}

/* The first `count` of the lanes, or all if count is larger: others load as 0 and are not stored. */
static inline vector vector_load_first(const float *values, size_t count) {
    if (count >= LANES)
        return vector_load(values);
#if LANES == 16
    return (vector)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), values);
#else
    vector v = {0};
    memcpy(&v, values, count * sizeof *values);
    return v;
#endif
}

static inline void vector_store_first(float *values, vector v, size_t count) {
    if (count >= LANES) {
        vector_store(values, v);
        return;
    }
#if LANES == 16
    _mm512_mask_storeu_ps(values, (__mmask16)((1u << count) - 1), (__m512)v);
#else
    memcpy(values, &v, count * sizeof *values);
#endif
}

static inline vector vector_of(float value) {
    return value - (vector){0};
}

static inline vector vector_from_bits(int_vector bits) {
    vector v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static inline int_vector vector_bits(vector v) {
    int_vector bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/* LANES elements of bfloat16. */
static inline vector vector_load_bf16(const uint16_t *values) {
    half_vector half;
    memcpy(&half, values, sizeof half);
    return vector_from_bits(__builtin_convertvector(half, int_vector) << 16);
}

/* mask ? a : b, the mask's lanes all ones or all zeros (the outcome of a comparison) */
static inline vector vector_select(int_vector mask, vector a, vector b) {
    return vector_from_bits((mask & vector_bits(a)) | (~mask & vector_bits(b)));
}

/* Whether a bit of any lane is set. */
static inline bool vector_any(int_vector v) {
#if LANES == 16
    return _mm512_test_epi32_mask((__m512i)v, (__m512i)v) != 0;
#elif LANES == 8
    return !_mm256_testz_si256((__m256i)v, (__m256i)v);
#else
    return (v[0] | v[1] | v[2] | v[3]) != 0;
#endif
}

static inline vector vector_max(vector a, vector b) {
    return vector_select(a > b, a, b);
}

/* a * b + c, rounded once where the processor can. */
static inline vector vector_fma(vector a, vector b, vector c) {
#if LANES == 16
    return (vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif LANES == 8
    return (vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vector)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* Indices of lanes for __builtin_shufflevector. */
#if LANES == 16
#define EVEN_LANES 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODD_LANES 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#elif LANES == 8
#define EVEN_LANES 0, 2, 4, 6, 8, 10, 12, 14
#define ODD_LANES 1, 3, 5, 7, 9, 11, 13, 15
#else
#define EVEN_LANES 0, 2, 4, 6
#define ODD_LANES 1, 3, 5, 7
#endif

/* Of each pair of lanes `width` apart (a power of two, known when compiled) the sum: of a in the lower lane
 * of the pair, of b in the upper one. log2(LANES) rounds of it with widths from LANES / 2 down to 1 add up
 * LANES vectors at once, in the order of vector_sum. */
#define LOWER_LANE(i, width) ((i) & (width) ? LANES + (i) : (i))
#define OTHER_LANE(i, width) ((i) & (width) ? LANES + (i) - (width) : (i) + (width))
#define FOUR_LANES(OF, i, width) OF(i, width), OF(i + 1, width), OF(i + 2, width), OF(i + 3, width)
#if LANES == 16
#define ALL_LANES(OF, width)                                                                                 \
    FOUR_LANES(OF, 0, width), FOUR_LANES(OF, 4, width), FOUR_LANES(OF, 8, width), FOUR_LANES(OF, 12, width)
#elif LANES == 8
#define ALL_LANES(OF, width) FOUR_LANES(OF, 0, width), FOUR_LANES(OF, 4, width)
#else
#define ALL_LANES(OF, width) FOUR_LANES(OF, 0, width)
#endif
#define vector_join(a, b, width)                                                                             \
    (__builtin_shufflevector(a, b, ALL_LANES(LOWER_LANE, width)) +                                           \
     __builtin_shufflevector(a, b, ALL_LANES(OTHER_LANE, width)))

/* The sum of the lanes, in pairs. */
static inline float vector_sum(vector v) {
#if LANES == 16
    v = vector_join(v, v, 8);
#endif
#if LANES >= 8
    v = vector_join(v, v, 4);
#endif
    v = vector_join(v, v, 2);
    return v[0] + v[1];
}

/* e^x to about one unit in the last place: x = n ln 2 + r with |r| <= ln 2 / 2, and a polynomial for e^r (the
 * Taylor series to r^7). 0 below -87.3, the largest powers from 88.7 on; a NaN stays one. */
static inline vector vector_exp(vector x) {
    const vector low = vector_of(-87.3f), high = vector_of(88.7f);
#if LANES == 16
    vector clamped = (vector)_mm512_min_ps((__m512)high, (__m512)x); /* the second of them if it is NaN */
#else
    vector clamped = vector_select(x > high, high, vector_select(x < low, low, x));
#endif
    const vector magic = vector_of(0x1.8p23f); /* adding it rounds to a whole number, in the low bits */
    vector shifted = vector_fma(clamped, vector_of(0x1.715476p0f), magic);
    vector n = shifted - magic;
    vector r = vector_fma(n, vector_of(-0x1.62e4p-1f), clamped); /* ln 2 in two parts */
    r = vector_fma(n, vector_of(-0x1.7f7d1cp-20f), r);
    vector p = vector_of(1.0f / 5040);
    p = vector_fma(p, r, vector_of(1.0f / 720));
    p = vector_fma(p, r, vector_of(1.0f / 120));
    p = vector_fma(p, r, vector_of(1.0f / 24));
    p = vector_fma(p, r, vector_of(1.0f / 6));
    p = vector_fma(p, r, vector_of(0.5f));
    p = vector_fma(p, r, vector_of(1.0f));
    p = vector_fma(p, r, vector_of(1.0f));
#if LANES == 16
    __mmask16 not_below = _mm512_cmp_ps_mask((__m512)x, (__m512)low, _CMP_NLT_UQ);
    return (vector)_mm512_maskz_scalef_ps(not_below, (__m512)p, (__m512)n);
#else
    vector result = vector_from_bits(vector_bits(p) + (vector_bits(shifted) << 23));
    result = vector_select(x != x, x, result);
    return vector_select(x < low, vector_of(0), result);
#endif
}

/* 1 / x to about one unit in the last place, for x from 1 on. */
static inline vector vector_reciprocal(vector x) {
#if LANES == 16
    /* Division would take longer than all of vector_exp: 14 bits, then a step of Newton's method. */
    vector estimate = (vector)_mm512_rcp14_ps((__m512)x);
    vector error = vector_fma(-x, estimate, vector_of(1.0f));
    return vector_fma(estimate, error, estimate);
#else
    return 1.0f / x;
#endif
}

/* 1 / (1 + e^-x) and x / (1 + e^-x) */
static inline vector vector_sigmoid(vector x) {
    return vector_reciprocal(1.0f + vector_exp(-x));
}

static inline vector vector_silu(vector x) {
    return x * vector_sigmoid(x);
}

#endif
