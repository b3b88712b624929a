/* Matrix products with AVX-512 and its BF16 instructions: a lane takes two columns at a time, the second of
 * them first. Subnormal operands and results count as zero. */
#include "backend/cpu/kernels/avx512_weights.h"

struct pair_panel {
    struct panel_scales scales;
    uint32_t weights[BLOCK_COLUMNS / 2][PANEL_ROWS]; /* two columns of a row */
};
_Static_assert(sizeof(struct pair_panel) <= PANEL_BYTES, "the panel must fit its scratch");

ALWAYS_INLINE void put_pair(void *argument, size_t column, __m512 even, __m512 odd) {
    uint32_t *weights = argument;
    /* Words 0 to 15 are of the even column, 16 to 31 of the odd one. */
    __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                           7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_store_si512(weights + column / 2 * PANEL_ROWS, _mm512_permutexvar_epi16(order, halves));
}

/* out[count][PANEL_ROWS] += of `pairs` pairs of columns; the inputs' are at inputs[i][0 .. 2 * pairs). */
ALWAYS_INLINE void multiply_tile(size_t count, const struct pair_panel *panel, const uint16_t *const *inputs,
                                 size_t pairs, float *out) {
    __m512 y[TILE_INPUTS][STRIPES];
    for (size_t i = 0; i < count; i++)
        for (size_t s = 0; s < STRIPES; s++)
            y[i][s] = _mm512_load_ps(out + i * PANEL_ROWS + s * STRIPE_ROWS);
    for (size_t p = 0; p < pairs; p++) {
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
    for (size_t i = 0; i < count; i++)
        for (size_t s = 0; s < STRIPES; s++)
            _mm512_store_ps(out + i * PANEL_ROWS + s * STRIPE_ROWS, y[i][s]);
}

static void multiply_tiles(const struct pair_panel *panel, const struct operand_rows *x,
                           const uint32_t *index, size_t count, size_t column, size_t pairs, float *out) {
    for (size_t i = 0, size; i < count; i += size) {
        const uint16_t *inputs[TILE_INPUTS];
        float *tile = out + i * PANEL_ROWS;
        size = tile_size(count - i, TILE_INPUTS);
        for (size_t j = 0; j < size; j++)
            inputs[j] = (const uint16_t *)input_row(x, index, i + j) + column;
        switch (size) {
        case 8:
            multiply_tile(8, panel, inputs, pairs, tile);
            break;
        case 7:
            multiply_tile(7, panel, inputs, pairs, tile);
            break;
        case 6:
            multiply_tile(6, panel, inputs, pairs, tile);
            break;
        case 5:
            multiply_tile(5, panel, inputs, pairs, tile);
            break;
        case 4:
            multiply_tile(4, panel, inputs, pairs, tile);
            break;
        case 3:
            multiply_tile(3, panel, inputs, pairs, tile);
            break;
        case 2:
            multiply_tile(2, panel, inputs, pairs, tile);
            break;
        default:
            multiply_tile(1, panel, inputs, pairs, tile);
        }
    }
}

static void multiply_bf16(const struct view *matrix, size_t first, size_t rows, const struct operand_rows *x,
                          const uint32_t *index, size_t count, float *out, void *scratch) {
    struct pair_panel *panel = scratch;
    struct stripe stripes[STRIPES];
    for (size_t s = 0; s < STRIPES; s++)
        stripe_init(&stripes[s], matrix, first, rows, s);
    memset(out, 0, count * PANEL_ROWS * sizeof *out);
    for (size_t column = 0; column < matrix->columns; column += BLOCK_COLUMNS) {
        size_t left = matrix->columns - column, columns = left < BLOCK_COLUMNS ? left : BLOCK_COLUMNS;
        for (size_t s = 0; s < STRIPES; s++)
            unpack_weights(matrix, &stripes[s], s, column, columns, &panel->scales, put_pair,
                           panel->weights[0] + s * STRIPE_ROWS);
        multiply_tiles(panel, x, index, count, column, (columns + 1) / 2, out);
    }
}

const struct matrix_kernels avx512_bf16_matrix_kernels = {
    .multiply = {[OPERAND_INT8] = avx512_vnni_multiply_int8,
                 [OPERAND_BF16] = multiply_bf16,
                 [OPERAND_F32] = avx512_multiply_float},
    .prepare = {[OPERAND_INT8] = avx512_prepare_int8, [OPERAND_BF16] = avx512_prepare_bf16},
};
