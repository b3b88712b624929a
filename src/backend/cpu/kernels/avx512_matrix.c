/* Matrix products with AVX-512 (F, BW, VL, DQ), without VNNI. */
#include "backend/cpu/kernels/avx512_int8.h"

const struct matrix_kernels avx512_matrix_kernels = {
    .multiply = {[OPERAND_INT8] = multiply_int8,
                 [OPERAND_BF16] = avx512_multiply_float,
                 [OPERAND_F32] = avx512_multiply_float},
    .prepare = {[OPERAND_INT8] = avx512_prepare_int8, [OPERAND_BF16] = avx512_prepare_bf16},
};
