/* Matrix products in portable C: for processors that have no kernels of their own, and the plainest statement
 * of what all kernels compute. */
#include "backend/cpu/kernels.h"

#include <math.h>
#include <string.h>

static void prepare_int8(const float *x, size_t columns, void *row) {
    int8_t *codes = row;
    float *scales = (float *)((char *)row + int8_scales_offset(columns));
    float *sums = (float *)((char *)row + int8_sums_offset(columns));
    memset(row, 0, operand_row_bytes(OPERAND_INT8, columns));
    for (size_t group = 0; group < columns / DTYPE_AFFINE_GROUP; group++) {
        const float *values = x + group * DTYPE_AFFINE_GROUP;
        float largest = 0;
        bool finite = true;
        for (size_t i = 0; i < DTYPE_AFFINE_GROUP; i++) {
            finite = finite && isfinite(values[i]);
            largest = fabsf(values[i]) > largest ? fabsf(values[i]) : largest;
        }
        scales[group] = sums[group] = finite ? 0 : NAN;
        if (!finite || largest < INT8_SMALLEST)
            continue;
        float inverse = 127.0f / largest;
        int8_t *even = codes + group / 2 * 128 + group % 2 * 32, *odd = even + 64;
        int32_t sum = 0;
        for (size_t i = 0; i < DTYPE_AFFINE_GROUP; i += 2) {
            even[i / 2] = (int8_t)lrintf(values[i] * inverse);
            odd[i / 2] = (int8_t)lrintf(values[i + 1] * inverse);
            sum += even[i / 2] + odd[i / 2];
        }
        scales[group] = largest / 127.0f;
        sums[group] = scales[group] * (float)sum;
    }
}

static void prepare_bf16(const float *x, size_t columns, void *row) {
    uint16_t *out = row;
    memset(row, 0, operand_row_bytes(OPERAND_BF16, columns));
    for (size_t i = 0; i < columns; i++)
        out[i] = float_to_bf16(x[i]);
}

static const unsigned char *operand_row(const struct operand_rows *x, const uint32_t *index, size_t i) {
    return x->data + (index == NULL ? i : index[i]) * x->row_bytes;
}

static void multiply_int8(const struct view *matrix, size_t first, size_t rows, const struct operand_rows *x,
                          const uint32_t *index, size_t count, float *out, void *panel) {
    (void)panel;
    size_t groups = matrix->columns / DTYPE_AFFINE_GROUP;
    for (size_t i = 0; i < count; i++) {
        const unsigned char *input = operand_row(x, index, i);
        const float *scales = (const float *)(input + int8_scales_offset(x->columns));
        const float *sums = (const float *)(input + int8_sums_offset(x->columns));
        for (size_t r = 0; r < rows; r++) {
            float y = 0;
            for (size_t group = 0; group < groups; group++) {
                size_t at = (first + r) * groups + group;
                const unsigned char *codes = matrix->bytes + at * (DTYPE_AFFINE_GROUP / 2);
                const int8_t *even = (const int8_t *)input + group / 2 * 128 + group % 2 * 32;
                int32_t product = 0;
                for (size_t j = 0; j < DTYPE_AFFINE_GROUP / 2; j++)
                    product += (codes[j] & 15) * even[j] + (codes[j] >> 4) * even[64 + j];
                y += float_load(matrix->scales, matrix->scale_dtype, at) * (float)product * scales[group];
                y += float_load(matrix->biases, matrix->bias_dtype, at) * sums[group];
            }
            out[i * PANEL_ROWS + r] = y;
        }
    }
}

/* Elements [column, column + size) of a row of a weight; of an affine one size is that of a group at most,
 * and column the first of a group. */
static void weight_values(const struct view *matrix, size_t row, size_t column, size_t size, float *values) {
    if (matrix->dtype != DTYPE_AFFINE4 && matrix->dtype != DTYPE_AFFINE8) {
        for (size_t i = 0; i < size; i++)
            values[i] = float_load(matrix->bytes, matrix->dtype, row * matrix->stride + column + i);
        return;
    }
    size_t at = (row * matrix->columns + column) / DTYPE_AFFINE_GROUP;
    float scale = float_load(matrix->scales, matrix->scale_dtype, at);
    float offset = float_load(matrix->biases, matrix->bias_dtype, at);
    const unsigned char *codes = matrix->bytes + at * DTYPE_AFFINE_GROUP * dtype_bits(matrix->dtype) / 8;
    for (size_t i = 0; i < size; i++) {
        unsigned code = matrix->dtype == DTYPE_AFFINE8 ? codes[i] : codes[i / 2] >> i % 2 * 4 & 15u;
        values[i] = scale * (float)code + offset;
    }
}

/* The panel holds one group of columns of all rows at a time; the chain of a row's sum goes on in `out`. */
static void multiply_float(const struct view *matrix, size_t first, size_t rows, const struct operand_rows *x,
                           const uint32_t *index, size_t count, float *out, void *panel) {
    bool rounded = x->format == OPERAND_BF16;
    float *weights = panel; /* [PANEL_ROWS][DTYPE_AFFINE_GROUP] */
    memset(out, 0, count * PANEL_ROWS * sizeof *out);
    for (size_t column = 0; column < matrix->columns; column += DTYPE_AFFINE_GROUP) {
        size_t left = matrix->columns - column, size = left < DTYPE_AFFINE_GROUP ? left : DTYPE_AFFINE_GROUP;
        for (size_t r = 0; r < rows; r++)
            weight_values(matrix, first + r, column, size, weights + r * DTYPE_AFFINE_GROUP);
        for (size_t i = 0; rounded && i < rows * DTYPE_AFFINE_GROUP; i++)
            weights[i] = bf16_to_float(float_to_bf16(weights[i]));
        for (size_t i = 0; i < count; i++) {
            const unsigned char *input = operand_row(x, index, i);
            float values[DTYPE_AFFINE_GROUP];
            for (size_t j = 0; j < size; j++)
                values[j] = float_load(input, rounded ? DTYPE_BF16 : DTYPE_F32, column + j);
            for (size_t r = 0; r < rows; r++) {
                float y = out[i * PANEL_ROWS + r];
                for (size_t j = 0; j < size; j++)
                    y += weights[r * DTYPE_AFFINE_GROUP + j] * values[j];
                out[i * PANEL_ROWS + r] = y;
            }
        }
    }
}

const struct matrix_kernels portable_matrix_kernels = {
    .multiply =
        {[OPERAND_INT8] = multiply_int8, [OPERAND_BF16] = multiply_float, [OPERAND_F32] = multiply_float},
    .prepare = {[OPERAND_INT8] = prepare_int8, [OPERAND_BF16] = prepare_bf16},
};
