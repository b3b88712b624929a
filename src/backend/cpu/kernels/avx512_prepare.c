/* Rows of input as 8-bit integers with AVX-512. */
#include "backend/cpu/kernels/avx512.h"

#include <math.h>

/* Into even[32] and odd[32]; the sum of the codes is returned. */
ALWAYS_INLINE int32_t quantize_group(const __m512 values[4], __m512 inverse, int8_t *even, int8_t *odd) {
    __m512i words[4];
    for (size_t i = 0; i < 4; i++)
        words[i] = _mm512_cvtps_epi32(_mm512_mul_ps(values[i], inverse));
    /* Packing works on 128-bit lanes: lane l gets four bytes each of words 0 to 3. */
    __m512i bytes =
        _mm512_packs_epi16(_mm512_packs_epi32(words[0], words[1]), _mm512_packs_epi32(words[2], words[3]));
    bytes = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
                                     bytes);
    _mm256_store_si256((__m256i *)(void *)even, _mm512_cvtepi16_epi8(bytes));
    _mm256_store_si256((__m256i *)(void *)odd, _mm512_cvtepi16_epi8(_mm512_srli_epi16(bytes, 8)));
    __m512i pairs = _mm512_maddubs_epi16(_mm512_set1_epi8(1), bytes);
    return _mm512_reduce_add_epi32(_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}

void avx512_prepare_int8(const float *x, size_t columns, void *row) {
    int8_t *codes = row;
    float *scales = (float *)((char *)row + int8_scales_offset(columns));
    float *sums = (float *)((char *)row + int8_sums_offset(columns));
    size_t groups = columns / DTYPE_AFFINE_GROUP;
    for (size_t group = 0; group < groups; group++) {
        __m512 values[4];
        __m512i largest_bits = _mm512_setzero_si512(); /* of magnitudes: in the order of the values */
        for (size_t i = 0; i < 4; i++) {
            values[i] = _mm512_loadu_ps(x + group * DTYPE_AFFINE_GROUP + i * 16);
            largest_bits = _mm512_max_epi32(largest_bits, _mm512_and_si512(_mm512_castps_si512(values[i]),
                                                                           _mm512_set1_epi32(0x7fffffff)));
        }
        float largest = float_from_bits((uint32_t)_mm512_reduce_max_epi32(largest_bits));
        int8_t *even = codes + group / 2 * 128 + group % 2 * 32;
        if (!isfinite(largest) || largest < INT8_SMALLEST) {
            memset(even, 0, 32);
            memset(even + 64, 0, 32);
            scales[group] = sums[group] = isfinite(largest) ? 0 : NAN;
            continue;
        }
        int32_t sum = quantize_group(values, _mm512_set1_ps(127.0f / largest), even, even + 64);
        scales[group] = largest / 127.0f;
        sums[group] = scales[group] * (float)sum;
    }
    if (groups % 2 != 0) {
        int8_t *even = codes + groups / 2 * 128 + 32;
        memset(even, 0, 32);
        memset(even + 64, 0, 32);
        scales[groups] = sums[groups] = 0;
    }
}
