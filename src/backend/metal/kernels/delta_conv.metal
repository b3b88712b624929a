// The causal convolution of the delta layers, and their gates.
//
// A simdgroup works on one head of q, k or v over a block of rows, so that the norm of a head is one simd_sum. The
// simdgroup with the first rows is the only one that reads the ring, and it alone writes it, each lane its own
// channels, when it is done: one launch does both.
#include "delta_math.h"

// q, k and v of any size. Groups (units / simdgroups a group, blocks of rows), units being heads of q, k and v.
kernel void delta_conv(device const uint *record [[buffer(0)]], device const float *x [[buffer(1)]],
                       device const float *taps [[buffer(2)]], device float *ring [[buffer(3)]],
                       device float *q [[buffer(4)]], device float *k [[buffer(5)]], device float *v [[buffer(6)]],
                       constant conv_parameters &p [[buffer(7)]], uint3 group [[threadgroup_position_in_grid]],
                       uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint simdgroups [[simdgroups_per_threadgroup]]) {
    uint unit = group.x * simdgroups + simdgroup, begin = group.y * p.block;
    if (unit >= 2 * p.key_heads + p.value_heads)
        return;
    bool is_key = unit < 2 * p.key_heads, is_query = unit < p.key_heads;
    uint size = is_key ? p.key_size : p.value_size, position = record[0];
    uint head = is_query ? unit : is_key ? unit - p.key_heads : unit - 2 * p.key_heads;
    uint first = is_key ? unit * size : 2 * p.key_heads * p.key_size + head * size;
    uint stride = is_query ? p.q_stride : is_key ? p.k_stride : p.v_stride;
    device float *out = (is_query ? q : is_key ? k : v) + head * size;
    for (uint t = begin; t < min(begin + p.block, p.rows); t++) {
        float factor = 1.0f;
        if (is_key) {
            float squares = 0.0f;
            for (uint i = lane; i < size; i += 32) {
                float y = delta_convolve(x, taps, ring, p, position, t, first + i);
                squares += y * y;
            }
            factor = 1.0f / sqrt(simd_sum(squares) + p.epsilon);
            factor *= is_query ? 1.0f / sqrt(float(size)) : 1.0f;
        }
        for (uint i = lane; i < size; i += 32)
            out[ulong(t) * stride + i] = factor * delta_convolve(x, taps, ring, p, position, t, first + i);
    }
    if (begin == 0)
        for (uint t = p.rows > p.taps ? p.rows - p.taps : 0; t < p.rows; t++)
            for (uint i = lane; i < size; i += 32)
                ring[ulong((position + t) % p.taps) * p.ring_stride + first + i] = x[ulong(t) * p.x_stride + first + i];
}

// The same for heads of 128 and 4 taps: a lane has four neighbouring channels, and the last three rows of them in
// registers.
kernel void delta_conv_128(device const uint *record [[buffer(0)]], device const float *x [[buffer(1)]],
                           device const float4 *taps [[buffer(2)]], device float *ring [[buffer(3)]],
                           device float *q [[buffer(4)]], device float *k [[buffer(5)]], device float *v [[buffer(6)]],
                           constant conv_parameters &p [[buffer(7)]], uint3 group [[threadgroup_position_in_grid]],
                           uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                           uint simdgroups [[simdgroups_per_threadgroup]]) {
    uint unit = group.x * simdgroups + simdgroup, begin = group.y * p.block;
    if (unit >= 2 * p.key_heads + p.value_heads)
        return;
    bool is_key = unit < 2 * p.key_heads, is_query = unit < p.key_heads;
    uint head = is_query ? unit : is_key ? unit - p.key_heads : unit - 2 * p.key_heads;
    uint channel = unit * 128 + lane * 4, position = record[0];
    uint stride = is_query ? p.q_stride : is_key ? p.k_stride : p.v_stride;
    device float *out = (is_query ? q : is_key ? k : v) + head * 128 + lane * 4;
    float4 a = taps[channel], b = taps[channel + 1], c = taps[channel + 2], d = taps[channel + 3];
    float4 tap[4], past[3];
#pragma unroll
    for (uint j = 0; j < 4; j++)
        tap[j] = float4(a[j], b[j], c[j], d[j]);
#pragma unroll
    for (uint j = 0; j < 3; j++)
        past[j] = begin == 0 ? *(device const float4 *)(ring + ((position + j + 1) & 3) * p.ring_stride + channel)
                             : *(device const float4 *)(x + ulong(begin + j - 3) * p.x_stride + channel);
    for (uint t = begin; t < min(begin + p.block, p.rows); t++) {
        float4 input = *(device const float4 *)(x + ulong(t) * p.x_stride + channel);
        float4 sum = ((tap[0] * past[0] + tap[1] * past[1]) + tap[2] * past[2]) + tap[3] * input;
        float4 y = silu(sum);
        if (is_key) {
            float factor = 1.0f / sqrt(simd_sum(dot(y, y)) + p.epsilon);
            y *= is_query ? factor * 0.08838834764831845f : factor; // 128^-0.5
        }
        *(device float4 *)(out + ulong(t) * stride) = y;
        past[0] = past[1];
        past[1] = past[2];
        past[2] = input;
    }
    if (begin == 0)
        for (uint t = p.rows > 4 ? p.rows - 4 : 0; t < p.rows; t++)
            *(device float4 *)(ring + ((position + t) & 3) * p.ring_stride + channel) =
                *(device const float4 *)(x + ulong(t) * p.x_stride + channel);
}

// decay = exp(-exp(A_log) softplus(a + dt_bias)), beta = sigmoid(b), a thread an element.
kernel void delta_gates(device const float *a [[buffer(0)]], device const float *b [[buffer(1)]],
                        device const float *A_log [[buffer(2)]], device const float *dt_bias [[buffer(3)]],
                        device float *decay [[buffer(4)]], device float *beta [[buffer(5)]],
                        constant gates_parameters &p [[buffer(6)]], uint i [[thread_position_in_grid]]) {
    uint t = i / p.heads, head = i % p.heads;
    if (t >= p.rows)
        return;
    decay[ulong(t) * p.decay_stride + head] = delta_decay(a[ulong(t) * p.a_stride + head], A_log[head], dt_bias[head]);
    beta[ulong(t) * p.beta_stride + head] = delta_sigmoid(b[ulong(t) * p.b_stride + head]);
}
