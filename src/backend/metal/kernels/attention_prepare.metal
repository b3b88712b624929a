// What comes before attention: norms of heads, rotary positions, the KV cache.
#include <metal_stdlib>
using namespace metal;

#include "attention_parameters.h"

constant bool cache_is_bfloat [[function_constant(310)]]; // else float

METAL_FUNC void cache_write(device uchar *cache, ulong index, float value) {
    if (cache_is_bfloat)
        ((device bfloat *)cache)[index] = bfloat(value);
    else
        ((device float *)cache)[index] = value;
}

// The pair (first, second) turned by position * frequency.
METAL_FUNC float2 rope_turn(float first, float second, uint position, float frequency) {
    float angle = float(position) * frequency, cosine = cos(angle), sine = sin(angle);
    return float2(first * cosine - second * sine, second * cosine + first * sine);
}

// x[T*heads,D] in place, a thread a pair. Frequencies come from the host, for a power of a GPU is not exact enough for
// late positions.
kernel void rope(device const uint *record [[buffer(0)]], device float *x [[buffer(1)]],
                 constant float *frequencies [[buffer(2)]], constant rope_parameters &p [[buffer(3)]],
                 uint i [[thread_position_in_grid]]) {
    uint row = i / p.half_size, j = i % p.half_size;
    if (row >= p.rows)
        return;
    device float *at = x + ulong(row) * p.stride + j;
    float2 turned = rope_turn(at[0], at[p.half_size], record[0] + row / p.heads, frequencies[j]);
    at[0] = turned.x;
    at[p.half_size] = turned.y;
}

// k and v into rows position .. of the caches, a thread an element.
kernel void kv_write(device const uint *record [[buffer(0)]], device const float *k [[buffer(1)]],
                     device const float *v [[buffer(2)]], device uchar *keys [[buffer(3)]],
                     device uchar *values [[buffer(4)]], constant kv_write_parameters &p [[buffer(5)]],
                     uint i [[thread_position_in_grid]]) {
    uint t = i / p.columns, column = i % p.columns, row = record[0] + t;
    if (t >= p.rows || row >= p.cache_rows)
        return;
    cache_write(keys, ulong(row) * p.key_stride + column, k[ulong(t) * p.k_stride + column]);
    cache_write(values, ulong(row) * p.value_stride + column, v[ulong(t) * p.v_stride + column]);
}

// A simdgroup a head of a row: query heads and key heads are normed and turned, heads of v copied. The result of a pair
// needs nothing but what was read, so lanes need not wait for each other.
kernel void qk_prep(device const uint *record [[buffer(0)]], device const float *q [[buffer(1)]],
                    device const float *k [[buffer(2)]], device const float *v [[buffer(3)]],
                    device const float *q_norm [[buffer(4)]], device const float *k_norm [[buffer(5)]],
                    device float *y [[buffer(6)]], device uchar *keys [[buffer(7)]], device uchar *values [[buffer(8)]],
                    constant float *frequencies [[buffer(9)]], constant qk_prep_parameters &p [[buffer(10)]],
                    uint group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
    uint units = p.heads + 2 * p.kv_heads, unit = group * simdgroups + simdgroup;
    uint t = unit / units, head = unit % units, size = p.head_size;
    if (t >= p.rows)
        return;
    uint position = record[0] + t;
    bool is_query = head < p.heads, is_cached = position < p.cache_rows;
    if (head >= p.heads + p.kv_heads) {
        uint column = (head - p.heads - p.kv_heads) * size;
        for (uint i = lane; is_cached && i < size; i += 32)
            cache_write(values, ulong(position) * p.value_stride + column + i,
                        v[ulong(t) * p.v_stride + column + i]);
        return;
    }
    uint column = is_query ? 0 : (head - p.heads) * size;
    ulong row = ulong(t) * p.heads + head;
    device const float *x = is_query ? q + row * p.q_stride : k + ulong(t) * p.k_stride + column;
    device const float *weight = is_query ? q_norm : k_norm;
    float squares = 0.0f;
    for (uint i = lane; i < size; i += 32)
        squares += x[i] * x[i];
    float scale = 1.0f / sqrt(simd_sum(squares) / float(size) + p.epsilon);
    ulong place = is_query ? row * p.y_stride : ulong(position) * p.key_stride + column;
    for (uint j = lane; j < size - p.half_size; j += 32) {
        // Pairs, then, from half_size on, the elements that do not turn.
        bool turns = j < p.half_size;
        uint i = turns ? j : j + p.half_size;
        float2 result = float2(x[i] * scale * weight[i], 0.0f);
        if (turns)
            result = rope_turn(result.x, x[i + p.half_size] * scale * weight[i + p.half_size], position, frequencies[j]);
        for (uint part = 0; part < (turns ? 2u : 1u); part++) {
            ulong index = place + i + part * p.half_size;
            if (is_query)
                y[index] = result[part];
            else if (is_cached)
                cache_write(keys, index, result[part]);
        }
    }
}
