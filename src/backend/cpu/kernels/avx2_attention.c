/* Attention for x86 with AVX2 and FMA. */
#include "backend/cpu/kernels/attention_table.h"

const struct attention_kernels avx2_attention_kernels = ATTENTION_KERNELS;
