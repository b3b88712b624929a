/* Moving elements between lanes of vectors of any width, and sums over the lanes of many vectors at once. */
#ifndef CALLA_BACKEND_CPU_KERNELS_SHUFFLE_H
#define CALLA_BACKEND_CPU_KERNELS_SHUFFLE_H

#include "backend/cpu/kernels/vector.h"

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (int_vector){__VA_ARGS__})
#endif
#if LANES == 16
#define EVENS 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODDS 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define LOW_MERGED 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_MERGED 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define HALVES_SWAPPED 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7
#elif LANES == 8
#define EVENS 0, 2, 4, 6, 8, 10, 12, 14
#define ODDS 1, 3, 5, 7, 9, 11, 13, 15
#define LOW_MERGED 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_MERGED 4, 12, 5, 13, 6, 14, 7, 15
#define HALVES_SWAPPED 4, 5, 6, 7, 0, 1, 2, 3
#else
#define EVENS 0, 2, 4, 6
#define ODDS 1, 3, 5, 7
#define LOW_MERGED 0, 4, 1, 5
#define HIGH_MERGED 2, 6, 3, 7
#define HALVES_SWAPPED 2, 3, 0, 1
#endif

/* A vector whose lane i is the sum of the lanes of vector i. */
static inline vector sums_of_lanes(const vector v[LANES]) {
#if LANES == 16
    __m512 fours[4];
    for (size_t i = 0; i < 4; i++) {
        __m512 a = (__m512)v[4 * i], b = (__m512)v[4 * i + 1], c = (__m512)v[4 * i + 2],
               d = (__m512)v[4 * i + 3];
        __m512d ab = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
        __m512d cd = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
        fours[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                                 _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
    }
    __m512 low = _mm512_add_ps(_mm512_shuffle_f32x4(fours[0], fours[1], 0x88),
                               _mm512_shuffle_f32x4(fours[0], fours[1], 0xdd));
    __m512 high = _mm512_add_ps(_mm512_shuffle_f32x4(fours[2], fours[3], 0x88),
                                _mm512_shuffle_f32x4(fours[2], fours[3], 0xdd));
    return (vector)_mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88),
                                 _mm512_shuffle_f32x4(low, high, 0xdd));
#elif LANES == 8
    __m256 fours[2];
    for (size_t i = 0; i < 2; i++)
        fours[i] = _mm256_hadd_ps(_mm256_hadd_ps((__m256)v[4 * i], (__m256)v[4 * i + 1]),
                                  _mm256_hadd_ps((__m256)v[4 * i + 2], (__m256)v[4 * i + 3]));
    return (vector)_mm256_add_ps(_mm256_permute2f128_ps(fours[0], fours[1], 0x20),
                                 _mm256_permute2f128_ps(fours[0], fours[1], 0x31));
#elif defined(__aarch64__)
    return (vector)vpaddq_f32(vpaddq_f32((float32x4_t)v[0], (float32x4_t)v[1]),
                              vpaddq_f32((float32x4_t)v[2], (float32x4_t)v[3]));
#else
    vector low = SHUFFLE(v[0], v[1], EVENS) + SHUFFLE(v[0], v[1], ODDS);
    vector high = SHUFFLE(v[2], v[3], EVENS) + SHUFFLE(v[2], v[3], ODDS);
    return SHUFFLE(low, high, EVENS) + SHUFFLE(low, high, ODDS);
#endif
}

#endif
