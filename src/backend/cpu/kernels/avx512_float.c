/* Matrix products of float32 with AVX-512: F32, and BF16 where the processor has no instructions for it. A
 * panel of 128 columns is unpacked to float32, 32 rows a column, for all inputs. */
#include "backend/cpu/kernels/avx512_weights.h"

struct block_panel {
    struct panel_scales scales;
    float weights[BLOCK_COLUMNS][PANEL_ROWS];
    float inputs[TILE_INPUTS][BLOCK_COLUMNS]; /* of BF16, as float32 */
};
typedef float input_element;

/* To nearest even, a NaN stays a NaN; the low 16 bits are left to be dropped. */
ALWAYS_INLINE __m512i round_to_bf16(__m512 value) {
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q), bits,
                                _mm512_set1_epi32(0x400000));
}

void avx512_prepare_bf16(const float *x, size_t columns, void *row) {
    size_t size = operand_row_bytes(OPERAND_BF16, columns) / sizeof(uint16_t);
    uint16_t *out = row;
    for (size_t i = 0; i < size; i += 16) {
        __m512 values = _mm512_setzero_ps();
        if (i < columns)
            values = _mm512_maskz_loadu_ps(lanes16(columns - i), x + i);
        __m256i halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_to_bf16(values), 16));
        _mm256_storeu_si256((__m256i *)(void *)(out + i), halves);
    }
}

struct float_target {
    float *weights; /* [columns][PANEL_ROWS], a stripe of each */
    bool rounded;
};

ALWAYS_INLINE __m512 as_rounded(__m512 weights, bool rounded) {
    if (!rounded)
        return weights;
    return _mm512_castsi512_ps(_mm512_and_si512(round_to_bf16(weights), _mm512_set1_epi32(-65536)));
}

ALWAYS_INLINE void put_float(void *argument, size_t column, __m512 even, __m512 odd) {
    const struct float_target *target = argument;
    _mm512_store_ps(target->weights + column * PANEL_ROWS, as_rounded(even, target->rounded));
    _mm512_store_ps(target->weights + (column + 1) * PANEL_ROWS, as_rounded(odd, target->rounded));
}

ALWAYS_INLINE void unpack_stripe(const struct view *matrix, const struct stripe *stripe, size_t number,
                                 size_t column, size_t columns, enum operand_format format,
                                 struct block_panel *panel) {
    struct float_target target = {panel->weights[0] + number * STRIPE_ROWS, format == OPERAND_BF16};
    unpack_weights(matrix, stripe, number, column, columns, &panel->scales, put_float, &target);
}

/* As float32: as it lies in the row, or widened into the panel. */
static const float *find_input(struct block_panel *panel, const struct operand_rows *x,
                               const unsigned char *row, size_t i, size_t column, size_t columns) {
    if (x->format == OPERAND_F32)
        return (const float *)(const void *)row + column;
    for (size_t c = 0; c < columns; c += 16)
        _mm512_store_ps(panel->inputs[i] + c, load_floats(row, DTYPE_BF16, column + c, columns - c));
    return panel->inputs[i];
}

ALWAYS_INLINE void multiply_columns(size_t count, const struct block_panel *panel, const float *const *inputs,
                                    size_t columns, __m512 y[TILE_INPUTS][STRIPES]) {
    for (size_t c = 0; c < columns; c++) {
        __m512 first = _mm512_load_ps(panel->weights[c]);
        __m512 second = _mm512_load_ps(panel->weights[c] + STRIPE_ROWS);
        for (size_t i = 0; i < count; i++) {
            __m512 x = _mm512_set1_ps(inputs[i][c]);
            y[i][0] = _mm512_fmadd_ps(first, x, y[i][0]);
            y[i][1] = _mm512_fmadd_ps(second, x, y[i][1]);
        }
    }
}

#include "backend/cpu/kernels/avx512_tiles.h"

/* A stripe's products with one input. */
struct float_sum {
    __m512 y;
    const float *input; /* of the block */
    size_t columns;
    bool rounded;
};

ALWAYS_INLINE void add_column(struct float_sum *sum, size_t column, __m512 weights) {
    if (column < sum->columns) /* those past the end would be zeros times whatever lies behind the input */
        sum->y =
            _mm512_fmadd_ps(as_rounded(weights, sum->rounded), _mm512_set1_ps(sum->input[column]), sum->y);
}

ALWAYS_INLINE void add_columns(void *argument, size_t column, __m512 even, __m512 odd) {
    add_column(argument, column, even);
    add_column(argument, column + 1, odd);
}

/* With one input (decoding), weights meet it as they are unpacked: the same sums. */
ALWAYS_INLINE void multiply_one(const struct view *matrix, size_t first, size_t rows,
                                const struct operand_rows *x, const uint32_t *index, bool rounded, float *out,
                                struct block_panel *panel) {
    struct stripe stripes[STRIPES];
    __m512 y[STRIPES];
    size_t used = rows > STRIPE_ROWS ? STRIPES : 1;
    for (size_t s = 0; s < used; s++) {
        stripe_init(&stripes[s], matrix, first, rows, s);
        y[s] = _mm512_setzero_ps();
    }
    for (size_t column = 0; column < matrix->columns; column += BLOCK_COLUMNS) {
        size_t left = matrix->columns - column, columns = left < BLOCK_COLUMNS ? left : BLOCK_COLUMNS;
        const float *input = find_input(panel, x, input_row(x, index, 0), 0, column, columns);
        for (size_t s = 0; s < used; s++) {
            struct float_sum sum = {y[s], input, columns, rounded};
            unpack_weights(matrix, &stripes[s], s, column, columns, &panel->scales, add_columns, &sum);
            y[s] = sum.y;
        }
    }
    for (size_t s = 0; s < used; s++)
        _mm512_store_ps(out + s * STRIPE_ROWS, y[s]);
}

void avx512_multiply_float(const struct view *matrix, size_t first, size_t rows, const struct operand_rows *x,
                           const uint32_t *index, size_t count, float *out, void *scratch) {
    if (count > 1)
        multiply_blocks(matrix, first, rows, x, index, count, out, scratch);
    else if (x->format == OPERAND_BF16)
        multiply_one(matrix, first, rows, x, index, true, out, scratch);
    else
        multiply_one(matrix, first, rows, x, index, false, out, scratch);
}
