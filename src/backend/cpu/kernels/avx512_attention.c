/* Attention for x86 with AVX-512 (F, BW, VL, DQ). */
#include "backend/cpu/kernels/attention_table.h"

const struct attention_kernels avx512_attention_kernels = ATTENTION_KERNELS;
