/* What the CPU backend computes with, once for each instruction set.
 *
 * Matrix products work on panels: PANEL_ROWS neighbouring rows of a weight, one to a vector lane. A panel's
 * columns are taken in order, so that a row's sum is one chain whatever else is computed beside it: the bits
 * of an output depend neither on how many rows of input there are, nor on the threads.
 *
 *   INT8: y = sum over groups g of 64 columns of  x.scale[g] * (scale[g] * D[g])  +  offset[g] * x.sum[g]
 *         D[g] = sum of code * x.code over the group, an exact integer
 *         term by term: y = fma(scale[g] * (float)D[g], x.scale[g], y); y = fma(offset[g], x.sum[g], y)
 *   BF16: y = sum over columns of bf16(scale * code + offset) * bf16(x), rising
 *   F32:  y = sum over columns of (scale * code + offset) * x, rising; unquantised weights as they are
 */
#ifndef CALLA_BACKEND_CPU_KERNELS_H
#define CALLA_BACKEND_CPU_KERNELS_H

#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/vector_kernels.h"
#include "backend/host.h"
#include "plan/policy.h"

#define PANEL_ROWS 32
/* Memory of a call's own for the unpacked panel, or as many of its columns as fit: 64-byte aligned. */
#define PANEL_BYTES (64 * 1024)

enum operand_format { OPERAND_INT8, OPERAND_BF16, OPERAND_F32, OPERAND_FORMAT_COUNT };

/* Groups of input whose values all lie below count as zeros: 127 / x stays finite, and x / 127 normal. */
#define INT8_SMALLEST 0x1p-100f

/* Rows of input made ready for products. A row is
 *   F32:  float x[columns], `row_bytes` from the next, aligned as floats are
 *   BF16: uint16_t x[columns], 64-byte aligned, zeros up to `row_bytes`
 *   INT8: 64-byte aligned: for each block of 128 columns, the last one filled up with zeros, 64 int8 codes of
 * its even columns, then 64 of its odd ones (so that the low and high halves of the weights' bytes meet them
 *         unshuffled); then float scale[2 * blocks]; then float sum[2 * blocks], sum = scale * (sum of
 * codes); one scale and sum a group of 64 columns, zeros for one that is not there. code = round to nearest
 * even of x * (127 / max|x|), scale = max|x| / 127. A group that holds an infinity or a NaN has a NaN for
 * scale and sum, and codes of zero; one whose values all lie below INT8_SMALLEST counts as zeros. */
struct operand_rows {
    enum operand_format format;
    size_t columns, row_bytes;
    const unsigned char *data;
};

static inline size_t int8_blocks(size_t columns) {
    return (columns + 127) / 128;
}

/* Offsets of the scales and of the sums in an INT8 row. */
static inline size_t int8_scales_offset(size_t columns) {
    return int8_blocks(columns) * 128;
}

static inline size_t int8_sums_offset(size_t columns) {
    return int8_blocks(columns) * (128 + 2 * sizeof(float));
}

/* row_bytes of a prepared row (INT8 and BF16): a multiple of 64. */
static inline size_t operand_row_bytes(enum operand_format format, size_t columns) {
    size_t bytes = format == OPERAND_INT8   ? int8_blocks(columns) * (128 + 4 * sizeof(float))
                   : format == OPERAND_BF16 ? columns * sizeof(uint16_t)
                                            : columns * sizeof(float);
    return (bytes + 63) / 64 * 64;
}

/* Products of `rows` (at most PANEL_ROWS) rows of a weight from row `first` with `count` rows of input: input
 * row index[i], or row i where index is NULL. out[count][PANEL_ROWS], 64-byte aligned: out[i][r] is row first
 * + r times the i-th input; elements past `rows` are left undefined. `panel`: PANEL_BYTES of scratch. INT8
 * takes DTYPE_AFFINE4 only, its columns a multiple of 64; the others take every type of weight. Nothing is
 * read past the rows [first, first + rows) of the weight and of its scales and offsets, which may lie
 * unaligned. */
typedef void multiply_function(const struct view *matrix, size_t first, size_t rows,
                               const struct operand_rows *x, const uint32_t *index, size_t count, float *out,
                               void *panel);

struct matrix_kernels {
    multiply_function *multiply[OPERAND_FORMAT_COUNT];
    /* One row of float32 as an operand row (INT8 and BF16). */
    void (*prepare[OPERAND_FORMAT_COUNT])(const float *x, size_t columns, void *row);
};

extern const struct matrix_kernels portable_matrix_kernels, avx2_matrix_kernels, avx512_matrix_kernels,
    avx512_vnni_matrix_kernels, avx512_bf16_matrix_kernels, neon_matrix_kernels, neon_i8mm_matrix_kernels;

/* The kernels of an instruction set. */
struct kernels {
    enum instruction_set instruction_set;
    const char *name;
    bool (*supported)(void); /* by this processor and system */
    const struct matrix_kernels *matrix;
    const struct vector_kernels *vector;
    const struct attention_kernels *attention;
};

/* The kernels asked for, or the best that this processor has; NULL with an error that says which it has. */
const struct kernels *kernels_find(enum instruction_set instruction_set, struct calla_error *error);
/* All that this program was built with, best first; NULL past the last. */
const struct kernels *kernels_at(size_t index);

#endif
