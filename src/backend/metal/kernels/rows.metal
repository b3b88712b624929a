// Ops on single rows: the embedding, the norms, and what is element by element.
#include <metal_stdlib>
using namespace metal;

#include "activations.h"
#include "row_parameters.h"

constant uint embed_dtype [[function_constant(0)]];
constant uint embed_scale_dtype [[function_constant(1)]];
constant bool embed_is_affine [[function_constant(2)]];

static float embed_plain(device const uchar *values, ulong at, uint dtype) {
    if (dtype == EMBED_F32)
        return ((device const float *)values)[at];
    if (dtype == EMBED_F16)
        return float(((device const half *)values)[at]);
    return float(((device const bfloat *)values)[at]);
}

// tokens[T], table[V,H] -> y[T,H]: y[t] = table[tokens[t]]; an id outside the table reads row 0. A thread an element.
kernel void embed(device const int *tokens [[buffer(0)]], device const uchar *table [[buffer(1)]],
                  device const uchar *scales [[buffer(2), function_constant(embed_is_affine)]],
                  device const uchar *biases [[buffer(3), function_constant(embed_is_affine)]],
                  device float *y [[buffer(4)]], constant embed_parameters &p [[buffer(5)]],
                  uint2 place [[thread_position_in_grid]]) {
    uint column = place.x, t = place.y;
    if (column >= p.columns)
        return;
    int token = tokens[t];
    ulong row = token >= 0 && uint(token) < p.rows ? uint(token) : 0;
    ulong at = row * p.columns + column;
    float value;
    if (embed_is_affine) {
        uint code = embed_dtype == EMBED_AFFINE8 ? table[at] : table[at / 2] >> (at % 2 * 4) & 15;
        value = embed_plain(scales, at / 64, embed_scale_dtype) * float(code) +
                embed_plain(biases, at / 64, embed_scale_dtype);
    } else {
        value = embed_plain(table, at, embed_dtype);
    }
    y[ulong(t) * p.y_stride + column] = value;
}

// 1 / sqrt(mean(x^2) + epsilon) over `size` elements, by all threads of a threadgroup; `sums` holds 32.
static float row_scale(device const float *x, uint size, float epsilon, threadgroup float *sums, uint thread_index,
                       uint threads, uint lane, uint simdgroup) {
    float sum = 0.0f;
    for (uint i = thread_index; i < size; i += threads)
        sum += x[i] * x[i];
    sum = simd_sum(sum);
    if (lane == 0)
        sums[simdgroup] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum = simd_sum(lane < threads / 32 ? sums[lane] : 0.0f);
    return 1.0f / sqrt(sum / float(size) + epsilon);
}

// x[T,n], weight[n] -> y[T,n] = x / sqrt(mean(x^2) + epsilon) * weight. A threadgroup a row.
kernel void rms_norm(device const float *x [[buffer(0)]], device const float *weight [[buffer(1)]],
                     device float *y [[buffer(2)]], constant norm_parameters &p [[buffer(3)]],
                     uint group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                     uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float sums[32];
    device const float *row = x + ulong(group) * p.x_stride;
    float scale = row_scale(row, p.size, p.epsilon, sums, index, threads, lane, simdgroup);
    for (uint i = index; i < p.size; i += threads)
        y[ulong(group) * p.y_stride + i] = row[i] * scale * weight[i];
}

// x[T,Hv*Dv], z[T,Hv*Dv], weight[Dv] -> y[T,Hv*Dv]: per head y = rms_norm(x) * weight * silu(z). A threadgroup a head.
// y may be x.
kernel void gated_norm(device const float *x [[buffer(0)]], device const float *z [[buffer(1)]],
                       device const float *weight [[buffer(2)]], device float *y [[buffer(3)]],
                       constant norm_parameters &p [[buffer(4)]], uint group [[threadgroup_position_in_grid]],
                       uint index [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float sums[32];
    ulong row = group / p.heads, first = group % p.heads * p.size;
    device const float *x_head = x + row * p.x_stride + first, *z_head = z + row * p.z_stride + first;
    float scale = row_scale(x_head, p.size, p.epsilon, sums, index, threads, lane, simdgroup);
    for (uint i = index; i < p.size; i += threads) {
        y[row * p.y_stride + first + i] = x_head[i] * scale * weight[i] * silu(z_head[i]);
    }
}

// gate[R,I], up[R,I] -> y[R,I] = silu(gate) * up. A thread an element.
kernel void swiglu(device const float *gate [[buffer(0)]], device const float *up [[buffer(1)]],
                   device float *y [[buffer(2)]], constant swiglu_parameters &p [[buffer(3)]],
                   uint2 place [[thread_position_in_grid]]) {
    ulong row = place.y;
    uint column = place.x;
    if (column >= p.columns)
        return;
    y[row * p.y_stride + column] = silu(gate[row * p.gate_stride + column]) * up[row * p.up_stride + column];
}

// routed[T*K,H], shared[T,H], scores[T,K+1], y[T,H] -> y += sum_k scores[k] routed[k] + scores[K] shared. A thread an
// element.
kernel void expert_combine(device const float *routed [[buffer(0)]], device const float *shared [[buffer(1)]],
                           device const float *scores [[buffer(2)]], device float *y [[buffer(3)]],
                           constant combine_parameters &p [[buffer(4)]], uint2 place [[thread_position_in_grid]]) {
    ulong t = place.y;
    uint column = place.x;
    if (column >= p.columns)
        return;
    device const float *score = scores + t * p.scores_stride;
    float sum = 0.0f;
    for (uint k = 0; k < p.chosen; k++)
        sum += score[k] * routed[(t * p.chosen + k) * p.routed_stride + column];
    sum += score[p.chosen] * shared[t * p.shared_stride + column];
    y[t * p.y_stride + column] += sum;
}
