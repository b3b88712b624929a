/* Matrix products with AVX-512 and VNNI: dot products of bytes. */
#include "backend/cpu/kernels/avx512_int8.h"

void avx512_vnni_multiply_int8(const struct view *matrix, size_t first, size_t rows,
                               const struct operand_rows *x, const uint32_t *index, size_t count, float *out,
                               void *panel) {
    multiply_int8(matrix, first, rows, x, index, count, out, panel);
}

const struct matrix_kernels avx512_vnni_matrix_kernels = {
    .multiply = {[OPERAND_INT8] = avx512_vnni_multiply_int8,
                 [OPERAND_BF16] = avx512_multiply_float,
                 [OPERAND_F32] = avx512_multiply_float},
    .prepare = {[OPERAND_INT8] = avx512_prepare_int8, [OPERAND_BF16] = avx512_prepare_bf16},
};
