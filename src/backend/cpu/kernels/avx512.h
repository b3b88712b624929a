/* What the AVX-512 kernels of matrix products share. A panel is two stripes of 16 rows, a row to each 32-bit
 * lane: words of 16 rows are loaded along the rows and turned by `transpose`. */
#ifndef CALLA_BACKEND_CPU_KERNELS_AVX512_H
#define CALLA_BACKEND_CPU_KERNELS_AVX512_H

#include <immintrin.h>

#include "backend/cpu/kernels.h"

#define STRIPE_ROWS 16
#define STRIPES (PANEL_ROWS / STRIPE_ROWS)
/* Inputs that a pass over the panel takes at once: their sums fill half of the registers. */
#define TILE_INPUTS 8
/* Groups whose scales and offsets are turned at once: a cache line of bf16 values a row. */
#define SCALE_GROUPS 32

/* Before a loop of at most 16 turns: without it GCC moves all sums from register to register at each turn. */
#ifdef __clang__
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif
#define ALWAYS_INLINE static inline __attribute__((always_inline))

multiply_function avx512_vnni_multiply_int8;
/* BF16 with float32 products, and F32. */
multiply_function avx512_multiply_float;
void avx512_prepare_int8(const float *x, size_t columns, void *row);
void avx512_prepare_bf16(const float *x, size_t columns, void *row);

/* Scales and offsets of a panel, from a group on that is a multiple of SCALE_GROUPS. */
struct panel_scales {
    float scales[SCALE_GROUPS][PANEL_ROWS], offsets[SCALE_GROUPS][PANEL_ROWS];
};

/* The codes of 16 rows. Rows past the end of the panel repeat its last one. */
struct stripe {
    const unsigned char *codes[STRIPE_ROWS];
    size_t rows[STRIPE_ROWS];
};

/* Lanes below `count`, which may exceed their number. */
static inline __mmask16 lanes16(size_t count) {
    return (__mmask16)(count < 16 ? (1u << count) - 1 : 0xffffu);
}

static inline __mmask32 lanes32(size_t count) {
    return (__mmask32)(count < 32 ? (1u << count) - 1 : 0xffffffffu);
}

/* words[row] lane column -> words[column] lane row */
ALWAYS_INLINE void transpose(__m512i words[16]) {
    __m512i a[16], b[16];
    for (size_t i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32(words[i], words[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(words[i], words[i + 1]);
    }
    for (size_t i = 0; i < 16; i += 4)
        for (size_t j = 0; j < 2; j++) {
            b[i + 2 * j] = _mm512_unpacklo_epi64(a[i + j], a[i + 2 + j]);
            b[i + 2 * j + 1] = _mm512_unpackhi_epi64(a[i + j], a[i + 2 + j]);
        }
    for (size_t i = 0; i < 4; i++) {
        __m512i even0 = _mm512_shuffle_i32x4(b[i], b[4 + i], 0x88);
        __m512i odd0 = _mm512_shuffle_i32x4(b[i], b[4 + i], 0xdd);
        __m512i even1 = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0x88);
        __m512i odd1 = _mm512_shuffle_i32x4(b[8 + i], b[12 + i], 0xdd);
        words[i] = _mm512_shuffle_i32x4(even0, even1, 0x88);
        words[8 + i] = _mm512_shuffle_i32x4(even0, even1, 0xdd);
        words[4 + i] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
        words[12 + i] = _mm512_shuffle_i32x4(odd0, odd1, 0xdd);
    }
}

/* Stripe number `stripe` of the panel that begins at row `first`. */
static inline void stripe_init(struct stripe *stripe, const struct view *matrix, size_t first, size_t rows,
                               size_t number) {
    size_t row_bytes = (size_t)matrix->columns * dtype_bits(matrix->dtype) / 8;
    for (size_t r = 0; r < STRIPE_ROWS; r++) {
        size_t row = number * STRIPE_ROWS + r;
        stripe->rows[r] = first + (row < rows ? row : rows - 1);
        stripe->codes[r] = matrix->bytes + stripe->rows[r] * row_bytes;
    }
}

/* Up to 16 elements from `index` on as float32, zeros past `count`. */
static inline __m512 load_floats(const unsigned char *array, enum dtype dtype, size_t index, size_t count) {
    __mmask16 present = lanes16(count);
    if (dtype == DTYPE_F32)
        return _mm512_maskz_loadu_ps(present, array + index * 4);
    __m256i halves = _mm256_maskz_loadu_epi16(present, array + index * 2);
    if (dtype == DTYPE_F16)
        return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/* Eight bf16 values of each row at most, two a word: words[pair] lane row. */
ALWAYS_INLINE void load_narrow_rows(const struct stripe *stripe, const unsigned char *array, size_t groups,
                                    size_t group, __m512i words[4]) {
    __mmask8 present = (__mmask8)lanes16(groups - group);
    __m512i quads[4]; /* rows i, 4 + i, 8 + i and 12 + i */
    for (size_t i = 0; i < 4; i++) {
        __m128i rows[4];
        for (size_t j = 0; j < 4; j++)
            rows[j] = _mm_maskz_loadu_epi16(present, array + (stripe->rows[4 * j + i] * groups + group) * 2);
        quads[i] = _mm512_inserti32x4(_mm512_castsi128_si512(rows[0]), rows[1], 1);
        quads[i] = _mm512_inserti32x4(_mm512_inserti32x4(quads[i], rows[2], 2), rows[3], 3);
    }
    __m512i low0 = _mm512_unpacklo_epi32(quads[0], quads[1]),
            low1 = _mm512_unpacklo_epi32(quads[2], quads[3]);
    __m512i high0 = _mm512_unpackhi_epi32(quads[0], quads[1]),
            high1 = _mm512_unpackhi_epi32(quads[2], quads[3]);
    words[0] = _mm512_unpacklo_epi64(low0, low1);
    words[1] = _mm512_unpackhi_epi64(low0, low1);
    words[2] = _mm512_unpacklo_epi64(high0, high1);
    words[3] = _mm512_unpackhi_epi64(high0, high1);
}

/* Words of two bf16 values to a row of floats each. */
ALWAYS_INLINE void store_pairs(size_t pairs, const __m512i *words, float *out) {
    for (size_t i = 0; i < pairs; i++) {
        _mm512_store_si512(out + 2 * i * PANEL_ROWS, _mm512_slli_epi32(words[i], 16));
        _mm512_store_si512(out + (2 * i + 1) * PANEL_ROWS,
                           _mm512_and_si512(words[i], _mm512_set1_epi32(-65536)));
    }
}

/* Elements of rows of an array [.., groups], from `group` on, to out[SCALE_GROUPS][PANEL_ROWS], of which a
 * stripe is written. */
static inline void turn_scales(const struct stripe *stripe, const unsigned char *array, enum dtype dtype,
                               size_t groups, size_t group, float *out) {
    size_t count = groups - group;
    __m512i words[STRIPE_ROWS];
    if (dtype == DTYPE_BF16 && count <= 8) { /* the experts' second matrices have so few */
        load_narrow_rows(stripe, array, groups, group, words);
        store_pairs(4, words, out);
        return;
    }
    if (dtype == DTYPE_BF16) {
        for (size_t r = 0; r < STRIPE_ROWS; r++)
            words[r] =
                _mm512_maskz_loadu_epi16(lanes32(count), array + (stripe->rows[r] * groups + group) * 2);
        transpose(words);
        store_pairs(SCALE_GROUPS / 2, words, out);
        return;
    }
    for (size_t half = 0; half < SCALE_GROUPS && half < count; half += 16) {
        for (size_t r = 0; r < STRIPE_ROWS; r++)
            words[r] = _mm512_castps_si512(
                load_floats(array, dtype, stripe->rows[r] * groups + group + half, count - half));
        transpose(words);
        for (size_t i = 0; i < 16; i++)
            _mm512_store_si512(out + (half + i) * PANEL_ROWS, words[i]);
    }
}

static inline void panel_scales_load(struct panel_scales *panel, const struct stripe *stripe, size_t number,
                                     const struct view *matrix, size_t group) {
    size_t groups = matrix->columns / DTYPE_AFFINE_GROUP;
    turn_scales(stripe, matrix->scales, matrix->scale_dtype, groups, group,
                panel->scales[0] + number * STRIPE_ROWS);
    turn_scales(stripe, matrix->biases, matrix->bias_dtype, groups, group,
                panel->offsets[0] + number * STRIPE_ROWS);
}

static inline const unsigned char *input_row(const struct operand_rows *x, const uint32_t *index, size_t i) {
    return x->data + (index == NULL ? i : index[i]) * x->row_bytes;
}

/* How many of `left` inputs the next tile takes, `most` at most, so that none is much smaller than others. */
static inline size_t tile_size(size_t left, size_t most) {
    size_t tiles = (left + most - 1) / most;
    return (left + tiles - 1) / tiles;
}

#endif
