// attention_prefill.metal with the products as tensor operations, for an M5 and a cache of bfloats: 32 pairs of a token
// and a query head, 32 positions at a time, both products over all four simdgroups. The sums of values are a
// cooperative tensor, scaled where a row's maximum has grown. Extents end where the cache's positions do, so that
// nothing is read beyond them; scores of positions that are not there are never looked at.
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

#include "attention_parameters.h"

#define TENSOR_ROWS 32
#define TENSOR_STEP 32
#define TENSOR_SIZE 256

// Groups (tiles of tokens from first_row to end_row, KV heads) of 128 threads.
kernel void tensor_attention(device const uint *record [[buffer(0)]], device const float *q [[buffer(1)]],
                             device const float *gate [[buffer(2)]], device bfloat *keys [[buffer(3)]],
                             device bfloat *values [[buffer(4)]], device float *y [[buffer(5)]],
                             constant attention_parameters &p [[buffer(6)]],
                             uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]],
                             uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup bfloat query[TENSOR_ROWS * TENSOR_SIZE], weights[TENSOR_ROWS * TENSOR_STEP];
    threadgroup float scores[TENSOR_ROWS * TENSOR_STEP], shrinks[TENSOR_ROWS], totals[TENSOR_ROWS];
    threadgroup uint grown[4];
    uint sharing = p.heads / p.kv_heads, first = p.first_row + group.x * (TENSOR_ROWS / sharing);
    uint head = group.y * sharing, column = group.y * TENSOR_SIZE;
    uint last = min(first + TENSOR_ROWS / sharing, p.end_row) - 1;
    uint count = min(record[0] + last + 1, p.cache_rows);
    // Four threads a row in the softmax. A row past the end is worked on like another, as token `first`.
    uint row = thread_index / 4, part = thread_index % 4;
    uint reach = record[0] + (first + row / sharing <= last ? first + row / sharing : first);
    float largest = ATTENTION_LEAST, total = 0.0f;
    for (uint i = thread_index; i < TENSOR_ROWS * TENSOR_SIZE / 4; i += 128) {
        uint r = i / 64, token = first + r / sharing;
        float4 x = float4(0.0f);
        if (token <= last)
            x = *(device const float4 *)(q + (ulong(token) * p.heads + head + r % sharing) * p.q_stride + i % 64 * 4);
        for (uint j = 0; j < 4; j++)
            query[i * 4 + j] = bfloat(x[j]);
    }
    using threadgroup_tensor = tensor<threadgroup bfloat, dextents<int, 2>, tensor_inline>;
    using score_tensor = tensor<threadgroup float, dextents<int, 2>, tensor_inline>;
    using cache_tensor = tensor<device bfloat, dextents<int, 2>, tensor_inline>;
    constexpr auto by_keys = matmul2d_descriptor(TENSOR_ROWS, TENSOR_STEP, TENSOR_SIZE, false, true, false);
    constexpr auto by_values = matmul2d_descriptor(TENSOR_ROWS, TENSOR_SIZE, dynamic_extent, false, false, false,
                                                   matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<by_keys, execution_simdgroups<4>> key_product;
    matmul2d<by_values, execution_simdgroups<4>> value_product;
    threadgroup_tensor queries(query, dextents<int, 2>{TENSOR_SIZE, TENSOR_ROWS}, array<int, 2>{1, TENSOR_SIZE});
    score_tensor score_tile(scores, dextents<int, 2>{TENSOR_STEP, TENSOR_ROWS}, array<int, 2>{1, TENSOR_STEP});
    auto out = value_product.get_destination_cooperative_tensor<threadgroup_tensor, cache_tensor, float>();
#pragma unroll
    for (int i = 0; i < out.get_capacity(); i++)
        out[i] = 0.0f;
    for (uint at = 0; at < count; at += TENSOR_STEP) {
        int rest = int(min(count - at, uint(TENSOR_STEP)));
        // Pointers in 64 bits: offsets of slices are not.
        cache_tensor key(keys + ulong(at) * p.key_stride + column, dextents<int, 2>{TENSOR_SIZE, rest},
                         array<int, 2>{1, int(p.key_stride)});
        cache_tensor value(values + ulong(at) * p.value_stride + column, dextents<int, 2>{TENSOR_SIZE, rest},
                           array<int, 2>{1, int(p.value_stride)});
        threadgroup_barrier(mem_flags::mem_threadgroup);
        auto scored = key_product.get_destination_cooperative_tensor<threadgroup_tensor, cache_tensor, float>();
        key_product.run(queries, key, scored);
        scored.store(score_tile);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float mine[TENSOR_STEP / 4], highest = largest;
#pragma unroll
        for (uint i = 0; i < TENSOR_STEP / 4; i++) {
            uint c = part + 4 * i;
            mine[i] = at + c <= reach && c < uint(rest) ? scores[row * TENSOR_STEP + c] * p.scale : ATTENTION_LEAST;
            highest = max(highest, mine[i]);
        }
        highest = max(highest, simd_shuffle_xor(highest, 1));
        highest = max(highest, simd_shuffle_xor(highest, 2));
        float shrink = fast::exp(largest - highest);
        bool any = simd_any(highest > largest);
        largest = highest;
        total *= shrink;
#pragma unroll
        for (uint i = 0; i < TENSOR_STEP / 4; i++) {
            float weight = fast::exp(mine[i] - highest);
            total += weight;
            weights[row * TENSOR_STEP + part + 4 * i] = bfloat(weight);
        }
        if (part == 0)
            shrinks[row] = shrink;
        if (lane == 0)
            grown[simdgroup] = any ? 1 : 0;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if ((grown[0] | grown[1] | grown[2] | grown[3]) != 0) {
#pragma unroll
            for (int i = 0; i < out.get_capacity(); i++)
                if (out.is_valid_element(i))
                    out[i] *= shrinks[out.get_multidimensional_index(i)[1]];
        }
        threadgroup_tensor weight_tile(weights, dextents<int, 2>{rest, TENSOR_ROWS}, array<int, 2>{1, TENSOR_STEP});
        value_product.run(weight_tile, value, out);
    }
    total += simd_shuffle_xor(total, 1);
    total += simd_shuffle_xor(total, 2);
    if (part == 0)
        totals[row] = total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int i = 0; i < out.get_capacity(); i++)
        if (out.is_valid_element(i)) {
            auto place = out.get_multidimensional_index(i);
            uint from = uint(place[1]), token = first + from / sharing;
            ulong to = ulong(token) * p.heads + head + from % sharing;
            if (token <= last)
                y[to * p.y_stride + place[0]] =
                    out[i] / totals[from] / (1.0f + exp(-gate[to * p.gate_stride + place[0]]));
        }
}
