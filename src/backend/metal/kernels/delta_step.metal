// The whole tail of a delta layer for one token in one launch, for heads of 128 and 4 taps: a threadgroup of 256
// threads has a value head. Simdgroups 0 to 2 convolve q, k and v, 3 computes the gates; then each simdgroup has 16 rows
// of S, which were on their way all the while; then simdgroup 0 norms the result.
//
// The new S goes to next_state: to where the old one was, or to another place, so that the step can be undone.
//
// Value heads that share a key head convolve it each for themselves. The first of them writes it into the ring: into
// the row of this position, which nobody reads.
#include "delta_math.h"

constant bool step_convolves [[function_constant(302)]]; // else q, k and v are there already

// The convolution of the lane's four channels of one head, put into the ring where it is the caller's to write.
METAL_FUNC float4 step_convolve(device const float *x, device const float4 *taps, device float *ring, uint ring_stride,
                                uint position, uint channel, bool writes) {
    float4 a = taps[channel], b = taps[channel + 1], c = taps[channel + 2], d = taps[channel + 3];
    float4 input = *(device const float4 *)(x + channel), sum = float4(0.0f);
#pragma unroll
    for (uint j = 0; j < 4; j++) {
        float4 tap = float4(a[j], b[j], c[j], d[j]);
        float4 past = j == 3 ? input : *(device const float4 *)(ring + ((position + j + 1) & 3) * ring_stride + channel);
        sum += tap * past;
    }
    if (writes)
        *(device float4 *)(ring + (position & 3) * ring_stride + channel) = input;
    return silu(sum);
}

kernel void delta_step(device const uint *record [[buffer(0)]], device const float *x [[buffer(1)]],
                       device const float *a [[buffer(2)]], device const float *b [[buffer(3)]],
                       device const float4 *taps [[buffer(4)]], device const float *A_log [[buffer(5)]],
                       device const float *dt_bias [[buffer(6)]], device const float4 *z [[buffer(7)]],
                       device const float4 *weight [[buffer(8)]], device float *ring [[buffer(9)]],
                       device const float4 *state [[buffer(10)]], device float4 *y [[buffer(11)]],
                       device const float4 *q [[buffer(12)]], device const float4 *k [[buffer(13)]],
                       device const float4 *v [[buffer(14)]], constant step_parameters &p [[buffer(15)]],
                       device float4 *next_state [[buffer(16)]], uint head [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float4 query[32], keys[32], value[32], out[32];
    threadgroup float2 gates;
    uint key_head = head * p.key_heads / p.value_heads, row = lane / 8, part = lane % 8;
    // Rows 16 simdgroup + 4 i + row of S, of each the elements 32 j + 4 part ...
    ulong place = (ulong(head) * 128 + simdgroup * 16 + row) * (p.state_stride / 4) + part;
    device const float4 *memory = state + place;
    device float4 *next = next_state + place;
    float4 s[4][4];
#pragma unroll
    for (uint i = 0; i < 4; i++)
#pragma unroll
        for (uint j = 0; j < 4; j++)
            s[i][j] = memory[ulong(i) * p.state_stride + 8 * j];
    if (simdgroup < 3) {
        uint from = simdgroup == 2 ? head : key_head, channel = lane * 4 + from * 128;
        float4 mixed;
        if (step_convolves) {
            channel += simdgroup * p.key_heads * 128;
            bool writes = simdgroup == 2 || head == 0 || (head - 1) * p.key_heads / p.value_heads != key_head;
            mixed = step_convolve(x, taps, ring, p.ring_stride, record[0], channel, writes);
            if (simdgroup < 2) {
                float factor = 1.0f / sqrt(simd_sum(dot(mixed, mixed)) + p.l2_epsilon);
                mixed *= simdgroup == 0 ? factor * 0.08838834764831845f : factor; // 128^-0.5
            }
        } else {
            mixed = (simdgroup == 0 ? q : simdgroup == 1 ? k : v)[channel / 4];
        }
        if (simdgroup == 0)
            query[lane] = mixed;
        else if (simdgroup == 1)
            keys[lane] = mixed;
        else
            value[lane] = mixed;
    } else if (simdgroup == 3 && lane == 0) {
        gates = float2(delta_decay(a[head], A_log[head], dt_bias[head]), delta_sigmoid(b[head]));
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float4 own_keys[4], own_query[4];
#pragma unroll
    for (uint j = 0; j < 4; j++) {
        own_keys[j] = keys[8 * j + part];
        own_query[j] = query[8 * j + part];
    }
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        float4 sums = float4(0.0f);
#pragma unroll
        for (uint j = 0; j < 4; j++) {
            s[i][j] *= gates.x;
            sums = fma(s[i][j], own_keys[j], sums);
        }
        float known = (sums.x + sums.y) + (sums.z + sums.w);
        known += simd_shuffle_xor(known, 1);
        known += simd_shuffle_xor(known, 2);
        known += simd_shuffle_xor(known, 4);
        uint at = simdgroup * 16 + 4 * i + row;
        float change = gates.y * (value[at / 4][at % 4] - known);
        sums = float4(0.0f);
#pragma unroll
        for (uint j = 0; j < 4; j++) {
            s[i][j] = fma(float4(change), own_keys[j], s[i][j]);
            sums = fma(s[i][j], own_query[j], sums);
            next[ulong(i) * p.state_stride + 8 * j] = s[i][j];
        }
        float result = (sums.x + sums.y) + (sums.z + sums.w);
        result += simd_shuffle_xor(result, 1);
        result += simd_shuffle_xor(result, 2);
        result += simd_shuffle_xor(result, 4);
        if (part == 0)
            ((threadgroup float *)out)[at] = result;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup == 0) {
        float4 result = out[lane], gate = z[head * 32 + lane];
        float scale = 1.0f / sqrt(simd_sum(dot(result, result)) / 128.0f + p.epsilon);
        y[head * 32 + lane] = result * scale * weight[lane] * silu(gate);
    }
}
