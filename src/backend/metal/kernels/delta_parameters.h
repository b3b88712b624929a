/* What the kernels of the delta layers are told: for C and for Metal. Strides are in elements. */
#ifndef CALLA_BACKEND_METAL_KERNELS_DELTA_PARAMETERS_H
#define CALLA_BACKEND_METAL_KERNELS_DELTA_PARAMETERS_H

#ifndef __METAL_VERSION__
#include <stdint.h>
#endif

struct conv_parameters {
    uint32_t rows, key_heads, value_heads, key_size, value_size, taps;
    uint32_t block; /* rows that one simdgroup works on: at least taps - 1 */
    uint32_t x_stride, taps_stride, ring_stride, q_stride, k_stride, v_stride;
    float epsilon;
};

struct gates_parameters {
    uint32_t rows, heads, a_stride, b_stride, decay_stride, beta_stride;
};

struct scan_parameters {
    uint32_t rows, key_heads, value_heads, key_size, value_size;
    uint32_t q_stride, k_stride, v_stride;
    uint32_t decay_stride, beta_stride; /* of a and b, where the gates are computed on the way */
    uint32_t state_stride, y_stride;
};

struct step_parameters {
    uint32_t key_heads, value_heads, ring_stride, state_stride;
    float l2_epsilon, epsilon;
};

#endif
