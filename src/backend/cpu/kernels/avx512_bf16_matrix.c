/* Matrix products with AVX-512 and its BF16 instructions: a lane takes two columns at a time, the second of
 * them first. Subnormal operands and results count as zero. */
#include "backend/cpu/kernels/avx512_weights.h"

struct block_panel {
    struct panel_scales scales;
    uint32_t weights[BLOCK_COLUMNS / 2][PANEL_ROWS]; /* two columns of a row */
};
typedef uint16_t input_element;

ALWAYS_INLINE void put_pair(void *argument, size_t column, __m512 even, __m512 odd) {
    uint32_t *weights = argument;
    /* Words 0 to 15 are of the even column, 16 to 31 of the odd one. */
    __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                           7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_store_si512(weights + column / 2 * PANEL_ROWS, _mm512_permutexvar_epi16(order, halves));
}

ALWAYS_INLINE void unpack_stripe(const struct view *matrix, const struct stripe *stripe, size_t number,
                                 size_t column, size_t columns, enum operand_format format,
                                 struct block_panel *panel) {
    (void)format;
    unpack_weights(matrix, stripe, number, column, columns, &panel->scales, put_pair,
                   panel->weights[0] + number * STRIPE_ROWS);
}

ALWAYS_INLINE const uint16_t *find_input(struct block_panel *panel, const struct operand_rows *x,
                                         const unsigned char *row, size_t i, size_t column, size_t columns) {
    (void)panel, (void)x, (void)i, (void)columns;
    return (const uint16_t *)(const void *)row + column;
}

ALWAYS_INLINE void multiply_columns(size_t count, const struct block_panel *panel,
                                    const uint16_t *const *inputs, size_t columns,
                                    __m512 y[TILE_INPUTS][STRIPES]) {
    for (size_t p = 0; p < (columns + 1) / 2; p++) {
        __m512bh first = (__m512bh)_mm512_load_si512(panel->weights[p]);
        __m512bh second = (__m512bh)_mm512_load_si512(panel->weights[p] + STRIPE_ROWS);
        for (size_t i = 0; i < count; i++) {
            int32_t word;
            memcpy(&word, inputs[i] + 2 * p, sizeof word);
            __m512bh x = (__m512bh)_mm512_set1_epi32(word);
            y[i][0] = _mm512_dpbf16_ps(y[i][0], first, x);
            y[i][1] = _mm512_dpbf16_ps(y[i][1], second, x);
        }
    }
}

#include "backend/cpu/kernels/avx512_tiles.h"

const struct matrix_kernels avx512_bf16_matrix_kernels = {
    .multiply = {[OPERAND_INT8] = avx512_vnni_multiply_int8,
                 [OPERAND_BF16] = multiply_blocks,
                 [OPERAND_F32] = avx512_multiply_float},
    .prepare = {[OPERAND_INT8] = avx512_prepare_int8, [OPERAND_BF16] = avx512_prepare_bf16},
};
