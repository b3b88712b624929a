/* Matrix products in portable C: for processors that have no kernels of their own, and the plainest statement
 * of what all kernels compute. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/kernels/vector.h"

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

/* The panel holds one group of columns of all rows at a time, as 16-bit integers, the even columns before the
 * odd ones; the chain of a row's sum goes on in `out`. */
static void multiply_int8(const struct view *matrix, size_t first, size_t rows, const struct operand_rows *x,
                          const uint32_t *index, size_t count, float *out, void *panel) {
    enum { HALF = DTYPE_AFFINE_GROUP / 2 };
    size_t groups = matrix->columns / DTYPE_AFFINE_GROUP;
    int16_t *weights = panel; /* [rows][DTYPE_AFFINE_GROUP] */
    memset(out, 0, count * PANEL_ROWS * sizeof *out);
    for (size_t group = 0; group < groups; group++) {
        float scale[PANEL_ROWS], offset[PANEL_ROWS];
        for (size_t r = 0; r < rows; r++) {
            size_t at = (first + r) * groups + group;
            const unsigned char *codes = matrix->bytes + at * HALF;
            int16_t *row = weights + r * DTYPE_AFFINE_GROUP;
            for (size_t j = 0; j < HALF; j++) {
                row[j] = codes[j] & 15;
                row[HALF + j] = codes[j] >> 4;
            }
            scale[r] = float_load(matrix->scales, matrix->scale_dtype, at);
            offset[r] = float_load(matrix->biases, matrix->bias_dtype, at);
        }
        for (size_t i = 0; i < count; i++) {
            const unsigned char *input = operand_row(x, index, i);
            const float *scales = (const float *)(input + int8_scales_offset(x->columns));
            const float *sums = (const float *)(input + int8_sums_offset(x->columns));
            const int8_t *even = (const int8_t *)input + group / 2 * 128 + group % 2 * HALF;
            int16_t values[DTYPE_AFFINE_GROUP];
            for (size_t j = 0; j < HALF; j++) {
                values[j] = even[j];
                values[HALF + j] = even[64 + j];
            }
            for (size_t r = 0; r < rows; r++) {
                int32_t product = 0;
                for (size_t j = 0; j < DTYPE_AFFINE_GROUP; j++)
                    product += weights[r * DTYPE_AFFINE_GROUP + j] * values[j];
                float y = out[i * PANEL_ROWS + r];
                y += scale[r] * (float)product * scales[group];
                out[i * PANEL_ROWS + r] = y + offset[r] * sums[group];
            }
        }
    }
}

/* Elements [column, column + size) of a row of a weight, PANEL_ROWS apart; of an affine one size is that of a
 * group, and column the first of a group. */
static void weight_values(const struct view *matrix, size_t row, size_t column, size_t size, float *values) {
    if (matrix->dtype != DTYPE_AFFINE4 && matrix->dtype != DTYPE_AFFINE8) {
        for (size_t i = 0; i < size; i++)
            values[i * PANEL_ROWS] =
                float_load(matrix->bytes, matrix->dtype, row * matrix->stride + column + i);
        return;
    }
    size_t at = (row * matrix->columns + column) / DTYPE_AFFINE_GROUP;
    float scale = float_load(matrix->scales, matrix->scale_dtype, at);
    float offset = float_load(matrix->biases, matrix->bias_dtype, at);
    const unsigned char *codes = matrix->bytes + at * DTYPE_AFFINE_GROUP * dtype_bits(matrix->dtype) / 8;
    if (matrix->dtype == DTYPE_AFFINE8) {
        for (size_t i = 0; i < size; i++)
            values[i * PANEL_ROWS] = scale * (float)codes[i] + offset;
        return;
    }
    for (size_t i = 0; i < size / 2; i++) {
        values[2 * i * PANEL_ROWS] = scale * (float)(codes[i] & 15) + offset;
        values[(2 * i + 1) * PANEL_ROWS] = scale * (float)(codes[i] >> 4) + offset;
    }
}

/* y[rows] += the sum of weights[column][rows] * values[column] */
static void add_products(const float *weights, const float *values, size_t columns, float *y) {
    enum { VECTORS = 16 / LANES }; /* of sums at once, which registers hold */
    for (size_t first = 0; first < PANEL_ROWS; first += VECTORS * LANES) {
        vector sums[VECTORS];
        for (size_t v = 0; v < VECTORS; v++)
            sums[v] = vector_load(y + first + v * LANES);
        for (size_t column = 0; column < columns; column++)
            for (size_t v = 0; v < VECTORS; v++)
                sums[v] += vector_load(weights + column * PANEL_ROWS + first + v * LANES) * values[column];
        for (size_t v = 0; v < VECTORS; v++)
            vector_store(y + first + v * LANES, sums[v]);
    }
}

/* The panel holds one group of columns of all rows at a time; the chain of a row's sum goes on in `out`. */
static void multiply_float(const struct view *matrix, size_t first, size_t rows, const struct operand_rows *x,
                           const uint32_t *index, size_t count, float *out, void *panel) {
    bool rounded = x->format == OPERAND_BF16;
    float *weights = panel; /* [DTYPE_AFFINE_GROUP][PANEL_ROWS] */
    memset(weights, 0, DTYPE_AFFINE_GROUP * PANEL_ROWS * sizeof *weights);
    memset(out, 0, count * PANEL_ROWS * sizeof *out);
    for (size_t column = 0; column < matrix->columns; column += DTYPE_AFFINE_GROUP) {
        size_t left = matrix->columns - column, size = left < DTYPE_AFFINE_GROUP ? left : DTYPE_AFFINE_GROUP;
        for (size_t r = 0; r < rows; r++)
            weight_values(matrix, first + r, column, size, weights + r);
        for (size_t i = 0; rounded && i < size * PANEL_ROWS; i++)
            weights[i] = bf16_to_float(float_to_bf16(weights[i]));
        for (size_t i = 0; i < count; i++) {
            const unsigned char *input = operand_row(x, index, i);
            float values[DTYPE_AFFINE_GROUP];
            if (rounded)
                for (size_t j = 0; j < size; j++)
                    values[j] = bf16_to_float(((const uint16_t *)input)[column + j]);
            else
                memcpy(values, (const float *)input + column, size * sizeof *values);
            add_products(weights, values, size, out + i * PANEL_ROWS);
        }
    }
}

const struct matrix_kernels portable_matrix_kernels = {
    .multiply =
        {[OPERAND_INT8] = multiply_int8, [OPERAND_BF16] = multiply_float, [OPERAND_F32] = multiply_float},
    .prepare = {[OPERAND_INT8] = prepare_int8, [OPERAND_BF16] = prepare_bf16},
};
