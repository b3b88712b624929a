/* Attention for any processor; on aarch64 these are the kernels for NEON. */
#include "backend/cpu/kernels/attention_table.h"

const struct attention_kernels portable_attention_kernels = ATTENTION_KERNELS;
