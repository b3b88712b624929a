/* Reading weights as float32, and the dot product: the two inner loops that nearly all time is spent in. */
#include "backend/reference/reference.h"

/* The loops are written so that compilers vectorise them without changing a bit; on x86 the wider versions
 * are picked at run time. Sanitizers run before such a choice can be made. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) &&                 \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WIDE_VERSIONS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDE_VERSIONS
#endif

#define LANES 16

/* Adds the partial sums up in pairs. */
static inline float total(float sums[LANES]) {
    for (size_t width = LANES / 2; width > 0; width /= 2)
        for (size_t lane = 0; lane < width; lane++)
            sums[lane] += sums[lane + width];
    return sums[0];
}

WIDE_VERSIONS float dot(const float *a, const float *b, size_t count) {
    float sums[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++)
            sums[lane] += a[i + lane] * b[i + lane];
    for (size_t lane = 0; i + lane < count; lane++)
        sums[lane] += a[i + lane] * b[i + lane];
    return total(sums);
}

/* Four dot products with the same x: it is read once, and no sum waits for the one before. */
WIDE_VERSIONS static void dot4(const float *rows, const float *x, size_t count, float *out) {
    const float *a = rows, *b = a + count, *c = b + count, *d = c + count;
    float sums_a[LANES] = {0}, sums_b[LANES] = {0}, sums_c[LANES] = {0}, sums_d[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (size_t lane = 0; lane < LANES; lane++) {
            sums_a[lane] += a[i + lane] * x[i + lane];
            sums_b[lane] += b[i + lane] * x[i + lane];
            sums_c[lane] += c[i + lane] * x[i + lane];
            sums_d[lane] += d[i + lane] * x[i + lane];
        }
    for (size_t lane = 0; i + lane < count; lane++) {
        sums_a[lane] += a[i + lane] * x[i + lane];
        sums_b[lane] += b[i + lane] * x[i + lane];
        sums_c[lane] += c[i + lane] * x[i + lane];
        sums_d[lane] += d[i + lane] * x[i + lane];
    }
    out[0] = total(sums_a);
    out[1] = total(sums_b);
    out[2] = total(sums_c);
    out[3] = total(sums_d);
}

void dot_block(const float *rows, size_t row_count, const float *x, size_t count, float *out) {
    if (row_count == BLOCK_ROWS) {
        dot4(rows, x, count, out);
        return;
    }
    for (size_t i = 0; i < row_count; i++)
        out[i] = dot(rows + i * count, x, count);
}

/* 32 bytes of two codes each, the lower half of a byte first. */
WIDE_VERSIONS static void affine4_group(const unsigned char *codes, float scale, float bias, float *out) {
    for (size_t i = 0; i < DTYPE_AFFINE_GROUP / 2; i++) {
        out[2 * i] = scale * (float)(codes[i] & 15) + bias;
        out[2 * i + 1] = scale * (float)(codes[i] >> 4) + bias;
    }
}

WIDE_VERSIONS static void affine8_group(const unsigned char *codes, float scale, float bias, float *out) {
    for (size_t i = 0; i < DTYPE_AFFINE_GROUP; i++)
        out[i] = scale * (float)codes[i] + bias;
}

void matrix_row(const struct view *matrix, size_t row, float *out) {
    size_t columns = matrix->columns;
    if (matrix->dtype != DTYPE_AFFINE4 && matrix->dtype != DTYPE_AFFINE8) {
        for (size_t i = 0; i < columns; i++)
            out[i] = float_load(matrix->bytes, matrix->dtype, row * matrix->stride + i);
        return;
    }
    size_t groups = columns / DTYPE_AFFINE_GROUP;
    size_t group_bytes = DTYPE_AFFINE_GROUP * dtype_bits(matrix->dtype) / 8;
    for (size_t group = 0; group < groups; group++) {
        size_t index = row * groups + group;
        float scale = float_load(matrix->scales, matrix->scale_dtype, index);
        float bias = float_load(matrix->biases, matrix->bias_dtype, index);
        const unsigned char *codes = matrix->bytes + index * group_bytes;
        float *values = out + group * DTYPE_AFFINE_GROUP;
        if (matrix->dtype == DTYPE_AFFINE4)
            affine4_group(codes, scale, bias, values);
        else
            affine8_group(codes, scale, bias, values);
    }
}

void matrix_block(const struct view *matrix, size_t first, size_t row_count, float *out) {
    for (size_t i = 0; i < row_count; i++)
        matrix_row(matrix, first + i, out + i * matrix->columns);
}
