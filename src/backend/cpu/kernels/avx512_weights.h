/* Weights of every type as float32, 16 rows a vector, with AVX-512: what the products of floats unpack. */
#ifndef CALLA_BACKEND_CPU_KERNELS_AVX512_WEIGHTS_H
#define CALLA_BACKEND_CPU_KERNELS_AVX512_WEIGHTS_H

#include "backend/cpu/kernels/avx512.h"

/* Columns unpacked at once. */
#define BLOCK_COLUMNS 128

/* How far a row is read ahead. */
#define AHEAD_BYTES 512

/* Takes columns `column` and column + 1 of the block, of 16 rows. */
typedef void put_function(void *argument, size_t column, __m512 even, __m512 odd);

/* 16 words of codes of each row, whose columns begin at `column` of the block; `groups` of scales for them.
 */
ALWAYS_INLINE void unpack_words(const __m512i words[16], unsigned bits, size_t column, const float *scales,
                                const float *offsets, put_function *put, void *argument) {
    size_t codes = 32 / bits, words_per_group = DTYPE_AFFINE_GROUP / codes;
    const __m512i mask = _mm512_set1_epi32((1 << bits) - 1);
    for (size_t w = 0; w < 16; w++) {
        __m512 scale = _mm512_load_ps(scales + w / words_per_group * PANEL_ROWS);
        __m512 offset = _mm512_load_ps(offsets + w / words_per_group * PANEL_ROWS);
        UNROLLED
        for (unsigned c = 0; c < codes; c += 2) {
            __m512i even = _mm512_and_si512(_mm512_srli_epi32(words[w], c * bits), mask);
            __m512i odd = _mm512_and_si512(_mm512_srli_epi32(words[w], (c + 1) * bits), mask);
            put(argument, column + w * codes + c, _mm512_fmadd_ps(_mm512_cvtepi32_ps(even), scale, offset),
                _mm512_fmadd_ps(_mm512_cvtepi32_ps(odd), scale, offset));
        }
    }
}

/* Columns [column, column + columns) of a stripe, a block at most, given to `put` in pairs, the last one
 * filled up with a column of zeros. `column` is a multiple of BLOCK_COLUMNS, and these come in order. */
ALWAYS_INLINE void unpack_weights(const struct view *matrix, const struct stripe *stripe, size_t number,
                                  size_t column, size_t columns, struct panel_scales *panel,
                                  put_function *put, void *argument) {
    __m512i words[STRIPE_ROWS];
    if (matrix->dtype != DTYPE_AFFINE4 && matrix->dtype != DTYPE_AFFINE8) {
        for (size_t c = 0; c < columns; c += 16) {
            for (size_t r = 0; r < STRIPE_ROWS; r++)
                words[r] = _mm512_castps_si512(load_floats(matrix->bytes, matrix->dtype,
                                                           stripe->rows[r] * matrix->stride + column + c,
                                                           columns - c));
            transpose(words);
            for (size_t i = 0; i < 16; i += 2)
                put(argument, c + i, _mm512_castsi512_ps(words[i]), _mm512_castsi512_ps(words[i + 1]));
        }
        return;
    }
    unsigned bits = dtype_bits(matrix->dtype);
    /* The same columns of the next panel are read ahead; of the last one, columns further on. */
    bool has_next = stripe->rows[0] + PANEL_ROWS < matrix->rows;
    size_t next = has_next ? PANEL_ROWS : 0;
    size_t group = column / DTYPE_AFFINE_GROUP % SCALE_GROUPS, groups = matrix->columns / DTYPE_AFFINE_GROUP;
    if (group == 0) {
        panel_scales_load(panel, stripe, number, matrix, column / DTYPE_AFFINE_GROUP);
        for (size_t r = 0; r < STRIPE_ROWS; r++) {
            size_t at = ((stripe->rows[r] + next) * groups + column / DTYPE_AFFINE_GROUP) * 2;
            _mm_prefetch((const char *)matrix->scales + at, _MM_HINT_T1);
            _mm_prefetch((const char *)matrix->biases + at, _MM_HINT_T1);
        }
    }
    size_t ahead = has_next ? PANEL_ROWS * (size_t)matrix->columns * bits / 8 : AHEAD_BYTES;
    size_t word_columns = 16 * 32 / bits; /* that 16 words of a row hold */
    for (size_t c = 0; c < columns; c += word_columns, group += word_columns / DTYPE_AFFINE_GROUP) {
        for (size_t r = 0; r < STRIPE_ROWS; r++) {
            const unsigned char *codes = stripe->codes[r] + (column + c) * bits / 8;
            words[r] = _mm512_maskz_loadu_epi32(lanes16((columns - c) * bits / 32), codes);
            _mm_prefetch((const char *)codes + ahead, _MM_HINT_T1);
        }
        transpose(words);
        const float *scales = panel->scales[group] + number * STRIPE_ROWS;
        const float *offsets = panel->offsets[group] + number * STRIPE_ROWS;
        if (matrix->dtype == DTYPE_AFFINE4)
            unpack_words(words, 4, c, scales, offsets, put, argument);
        else
            unpack_words(words, 8, c, scales, offsets, put, argument);
    }
}

#endif
