/* Vector kernels for x86 with AVX-512 (F, BW, VL, DQ). */
#include "backend/cpu/kernels/vector_table.h"

const struct vector_kernels avx512_vector_kernels = VECTOR_KERNELS;
