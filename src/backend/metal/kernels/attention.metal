// Causal attention over the KV cache with an output gate, for any shape: query head n of row t against positions
// 0 .. position + t of KV head n * G / N.
#include <metal_stdlib>
using namespace metal;

#include "attention_parameters.h"

constant bool attention_bfloat [[function_constant(320)]]; // the cache's type, else float

METAL_FUNC float attention_cached(device const uchar *cache, ulong index) {
    return attention_bfloat ? float(((device const bfloat *)cache)[index]) : ((device const float *)cache)[index];
}

// A threadgroup a query head of a row. Each simdgroup takes every n-th position and keeps its own maximum, total and
// weighted sum of values (online softmax), which are put together at the end. `sums` is [simdgroups][D].
kernel void attention(device const uint *record [[buffer(0)]], device const float *q [[buffer(1)]],
                      device const float *gate [[buffer(2)]], device const uchar *keys [[buffer(3)]],
                      device const uchar *values [[buffer(4)]], device float *y [[buffer(5)]],
                      constant attention_parameters &p [[buffer(6)]], threadgroup float *sums [[threadgroup(0)]],
                      uint group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]],
                      uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup float maxima[32], totals[32];
    uint t = p.first_row + group / p.heads, head = group % p.heads, size = p.head_size;
    ulong row = ulong(t) * p.heads + head;
    uint count = min(record[0] + t + 1, p.cache_rows), column = head * p.kv_heads / p.heads * size;
    device const float *query = q + row * p.q_stride;
    threadgroup float *mine = sums + simdgroup * size;
    for (uint i = lane; i < size; i += 32)
        mine[i] = 0.0f;
    float largest = -INFINITY, total = 0.0f;
    for (uint position = simdgroup; position < count; position += simdgroups) {
        ulong key = ulong(position) * p.key_stride + column, value = ulong(position) * p.value_stride + column;
        float score = 0.0f;
        for (uint i = lane; i < size; i += 32)
            score += query[i] * attention_cached(keys, key + i);
        score = simd_sum(score) * p.scale;
        float before = largest;
        largest = max(largest, score);
        float shrink = exp(before - largest), weight = exp(score - largest);
        total = total * shrink + weight;
        for (uint i = lane; i < size; i += 32)
            mine[i] = mine[i] * shrink + weight * attention_cached(values, value + i);
    }
    if (lane == 0) {
        maxima[simdgroup] = largest;
        totals[simdgroup] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < simdgroups; i++)
        largest = max(largest, maxima[i]);
    total = 0.0f;
    for (uint i = 0; i < simdgroups; i++)
        total += totals[i] * exp(maxima[i] - largest);
    for (uint i = thread_index; i < size; i += simdgroups * 32) {
        float sum = 0.0f;
        for (uint j = 0; j < simdgroups; j++)
            sum += sums[j * size + i] * exp(maxima[j] - largest);
        y[row * p.y_stride + i] = sum / total / (1.0f + exp(-gate[row * p.gate_stride + i]));
    }
}
