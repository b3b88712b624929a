/* Vector kernels for x86 with AVX2 and FMA. */
#include "backend/cpu/kernels/vector_table.h"

const struct vector_kernels avx2_vector_kernels = VECTOR_KERNELS;
