/* Vector kernels for any processor; on aarch64 these are the ones for NEON. */
#include "backend/cpu/kernels/vector_table.h"

const struct vector_kernels portable_vector_kernels = VECTOR_KERNELS;
