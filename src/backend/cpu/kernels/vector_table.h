/* All vector kernels as a table. <instruction set>_vector.c includes this, is compiled for that instruction
 * set, and so gives the table its width. */
#ifndef CALLA_BACKEND_CPU_KERNELS_VECTOR_TABLE_H
#define CALLA_BACKEND_CPU_KERNELS_VECTOR_TABLE_H

#include "backend/cpu/kernels/vector_activations.h"
#include "backend/cpu/kernels/vector_delta.h"
#include "backend/cpu/kernels/vector_logits.h"
#include "backend/cpu/kernels/vector_norms.h"
#include "backend/cpu/vector_kernels.h"

#define VECTOR_KERNELS                                                                                       \
    {                                                                                                        \
        .swiglu = swiglu, .rms_norm = rms_norm, .gated_norm = gated_norm, .unit_norm = unit_norm,            \
        .conv_four_taps = conv_four_taps, .conv_silu = conv_silu, .delta_gates = delta_gates,                \
        .delta_scan = delta_scan, .expert_combine = expert_combine, .adjust_logits = adjust_logits,          \
        .sum_weights = sum_weights,                                                                          \
    }

#endif
