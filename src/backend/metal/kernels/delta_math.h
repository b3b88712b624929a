// Functions of the delta layers' kernels.
#ifndef CALLA_BACKEND_METAL_KERNELS_DELTA_MATH_H
#define CALLA_BACKEND_METAL_KERNELS_DELTA_MATH_H

#include <metal_stdlib>
using namespace metal;

#include "activations.h"
#include "delta_parameters.h"

METAL_FUNC float delta_sigmoid(float x) {
    return 1.0f / (1.0f + exp(-x));
}

// log(1 + x) for x in [0, 1]: Metal has no log1p. What 1 + x loses is put right by the quotient.
METAL_FUNC float delta_log1p(float x) {
    float sum = 1.0f + x;
    return sum == 1.0f ? x : log(sum) * (x / (sum - 1.0f));
}

// exp(-exp(A_log) softplus(a + dt_bias))
METAL_FUNC float delta_decay(float a, float A_log, float dt_bias) {
    float x = a + dt_bias;
    float softplus = max(x, 0.0f) + delta_log1p(exp(-fabs(x)));
    return exp(-exp(A_log) * softplus);
}

// An element of the convolution's output, of channel `channel` at row t: silu(sum_j taps[channel,j]
// x[t-W+1+j,channel]). Rows before the first come from the ring, where row p % W is that of position p.
METAL_FUNC float delta_convolve(device const float *x, device const float *taps, device const float *ring,
                                constant conv_parameters &p, uint position, uint t, uint channel) {
    float sum = 0.0f;
    for (uint j = 0; j < p.taps; j++) {
        uint later = t + j + 1;
        float input = later >= p.taps ? x[ulong(later - p.taps) * p.x_stride + channel]
                                      : ring[ulong((position + later) % p.taps) * p.ring_stride + channel];
        sum += taps[ulong(channel) * p.taps_stride + j] * input;
    }
    return silu(sum);
}

#endif
