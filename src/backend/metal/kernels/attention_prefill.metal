// Flash attention of many tokens at head size 256 with matrices of a simdgroup. A threadgroup of four simdgroups has
// `Rows` pairs of a token and a query head, all of one KV head, so that keys and values are read once for the group;
// it goes over the cache 64 positions at a time.
//
// Scores: each simdgroup those of 16 of the positions. Softmax: 128 / Rows lanes a row, online. Sums of values: each
// simdgroup 64 of the 256 dimensions, in registers. Keys and values come as they are from the cache, eight positions a
// matrix; the last eight, if not all of them are there, through threadgroup memory, with zeros for what is not.
#include <metal_stdlib>
using namespace metal;

#include "attention_parameters.h"

#define PREFILL_SIZE 256
#define PREFILL_STEP 64
#define PREFILL_STRIDE (PREFILL_SIZE + 8) // of a query in threadgroup memory

// Groups (tiles of tokens from first_row to end_row, KV heads) of 128 threads.
template <class T, uint Rows>
kernel void attention_prefill(device const uint *record [[buffer(0)]], device const float *q [[buffer(1)]],
                              device const float *gate [[buffer(2)]], device const T *keys [[buffer(3)]],
                              device const T *values [[buffer(4)]], device float *y [[buffer(5)]],
                              constant attention_parameters &p [[buffer(6)]],
                              uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                              uint simdgroup [[simdgroup_index_in_threadgroup]],
                              uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup float query_memory[Rows * PREFILL_STRIDE * sizeof(T) / 4];
    threadgroup float scores[Rows * PREFILL_STEP];
    threadgroup T tail[8 * PREFILL_SIZE];
    threadgroup float shrinks[Rows / 8][64], totals[Rows]; // shrinks: diagonal matrices
    threadgroup uint grown[4];
    threadgroup T *query = (threadgroup T *)query_memory, *weights = (threadgroup T *)scores;
    constexpr uint weight_stride = PREFILL_STEP * 4 / sizeof(T); // a row's weights lie where its scores were
    constexpr uint lanes = 128 / Rows, columns = PREFILL_STEP / lanes;
    uint sharing = p.heads / p.kv_heads, first = p.first_row + group.x * (Rows / sharing), head = group.y * sharing;
    uint last = min(first + Rows / sharing, p.end_row) - 1, column = group.y * PREFILL_SIZE;
    uint count = min(record[0] + last + 1, p.cache_rows);
    // The row that a thread has in the softmax. One past the end is worked on like another, as token `first`.
    uint row = thread_index / lanes, part = thread_index % lanes;
    uint reach = record[0] + (first + row / sharing <= last ? first + row / sharing : first);
    float largest = ATTENTION_LEAST, total = 0.0f;
    for (uint i = thread_index; i < Rows * PREFILL_SIZE / 4; i += 128) {
        uint r = i / 64, token = first + r / sharing;
        float4 x = float4(0.0f);
        if (token <= last)
            x = *(device const float4 *)(q + (ulong(token) * p.heads + head + r % sharing) * p.q_stride + i % 64 * 4);
        for (uint j = 0; j < 4; j++)
            query[r * PREFILL_STRIDE + i % 64 * 4 + j] = T(x[j]);
    }
    for (uint i = thread_index; i < Rows * 8; i += 128)
        shrinks[i / 64][i % 64] = 0.0f;
    simdgroup_float8x8 out[Rows / 8][8];
#pragma unroll
    for (uint r = 0; r < Rows / 8; r++)
#pragma unroll
        for (uint d = 0; d < 8; d++)
            out[r][d] = make_filled_simdgroup_matrix<float, 8>(0.0f);
    for (uint at = 0; at < count; at += PREFILL_STEP) {
        uint rest = min(count - at, uint(PREFILL_STEP)), whole = rest / 8, odd = rest % 8; // tiles of eight; positions
        device const T *key = keys + ulong(at) * p.key_stride + column;
        device const T *value = values + ulong(at) * p.value_stride + column;
        for (uint i = thread_index; odd > 0 && i < 8 * PREFILL_SIZE; i += 128) {
            uint from = i / PREFILL_SIZE;
            tail[i] = from < odd ? key[ulong(8 * whole + from) * p.key_stride + i % PREFILL_SIZE] : T(0.0f);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (simdgroup * 16 < rest) {
            simdgroup_matrix<T, 8, 8> a, b[2];
            simdgroup_float8x8 sum[Rows / 8][2];
#pragma unroll
            for (uint i = 0; i < 2; i++) {
                b[i] = make_filled_simdgroup_matrix<T, 8>(T(0.0f));
#pragma unroll
                for (uint r = 0; r < Rows / 8; r++)
                    sum[r][i] = make_filled_simdgroup_matrix<float, 8>(0.0f);
            }
            for (uint d = 0; d < PREFILL_SIZE; d += 8) {
#pragma unroll
                for (uint i = 0; i < 2; i++) {
                    uint tile = simdgroup * 2 + i;
                    if (tile < whole)
                        simdgroup_load(b[i], key + ulong(8 * tile) * p.key_stride + d, p.key_stride, ulong2(0, 0),
                                       true);
                    else if (tile * 8 < rest)
                        simdgroup_load(b[i], tail + d, PREFILL_SIZE, ulong2(0, 0), true);
                }
#pragma unroll
                for (uint r = 0; r < Rows / 8; r++) {
                    simdgroup_load(a, query + r * 8 * PREFILL_STRIDE + d, PREFILL_STRIDE);
                    simdgroup_multiply_accumulate(sum[r][0], a, b[0], sum[r][0]);
                    simdgroup_multiply_accumulate(sum[r][1], a, b[1], sum[r][1]);
                }
            }
#pragma unroll
            for (uint r = 0; r < Rows / 8; r++)
#pragma unroll
                for (uint i = 0; i < 2; i++)
                    simdgroup_store(sum[r][i], scores + r * 8 * PREFILL_STEP + (simdgroup * 2 + i) * 8, PREFILL_STEP);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float mine[columns], highest = largest;
#pragma unroll
        for (uint i = 0; i < columns; i++) {
            uint c = part + lanes * i;
            mine[i] = at + c <= reach && c < rest ? scores[row * PREFILL_STEP + c] * p.scale : ATTENTION_LEAST;
            highest = max(highest, mine[i]);
        }
        for (uint bit = 1; bit < lanes; bit *= 2)
            highest = max(highest, simd_shuffle_xor(highest, ushort(bit)));
        float shrink = fast::exp(largest - highest);
        bool grows = highest > largest;
        largest = highest;
        total *= shrink;
        simdgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
        for (uint i = 0; i < columns; i++) {
            float weight = fast::exp(mine[i] - highest);
            total += weight;
            weights[row * weight_stride + part + lanes * i] = T(weight);
        }
        if (part == 0)
            shrinks[row / 8][row % 8 * 9] = shrink;
        bool any = simd_any(grows);
        if (lane == 0)
            grown[simdgroup] = any ? 1 : 0;
        for (uint i = thread_index; odd > 0 && i < 8 * PREFILL_SIZE; i += 128) {
            uint from = i / PREFILL_SIZE;
            tail[i] = from < odd ? value[ulong(8 * whole + from) * p.value_stride + i % PREFILL_SIZE] : T(0.0f);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if ((grown[0] | grown[1] | grown[2] | grown[3]) != 0) {
#pragma unroll
            for (uint r = 0; r < Rows / 8; r++) {
                simdgroup_float8x8 factor;
                simdgroup_load(factor, &shrinks[r][0], 8);
#pragma unroll
                for (uint d = 0; d < 8; d++)
                    simdgroup_multiply(out[r][d], factor, out[r][d]);
            }
        }
        for (uint tile = 0; tile * 8 < rest; tile++) {
            simdgroup_matrix<T, 8, 8> a[Rows / 8], b;
#pragma unroll
            for (uint r = 0; r < Rows / 8; r++)
                simdgroup_load(a[r], weights + r * 8 * weight_stride + tile * 8, weight_stride);
#pragma unroll
            for (uint d = 0; d < 8; d++) {
                if (tile < whole)
                    simdgroup_load(b, value + ulong(8 * tile) * p.value_stride + simdgroup * 64 + d * 8, p.value_stride);
                else
                    simdgroup_load(b, tail + simdgroup * 64 + d * 8, PREFILL_SIZE);
#pragma unroll
                for (uint r = 0; r < Rows / 8; r++)
                    simdgroup_multiply_accumulate(out[r][d], a[r], b, out[r][d]);
            }
        }
    }
    for (uint bit = 1; bit < lanes; bit *= 2)
        total += simd_shuffle_xor(total, ushort(bit));
    if (part == 0)
        totals[row] = total;
    // Eight rows at a time through the memory of the queries, which nobody needs any more.
    threadgroup float *mine = query_memory + simdgroup * 512;
#pragma unroll
    for (uint r = 0; r < Rows / 8; r++) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
        for (uint d = 0; d < 8; d++)
            simdgroup_store(out[r][d], mine + 8 * d, 64);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = lane; i < 128; i += 32) {
            uint from = r * 8 + i / 16, token = first + from / sharing, d = simdgroup * 64 + i % 16 * 4;
            ulong to = ulong(token) * p.heads + head + from % sharing;
            float4 sum = *(threadgroup float4 *)(mine + i * 4) / totals[from];
            if (token <= last) {
                float4 opens = *(device const float4 *)(gate + to * p.gate_stride + d);
                *(device float4 *)(y + to * p.y_stride + d) = sum / (1.0f + exp(-opens));
            }
        }
    }
}
template [[host_name("attention_prefill_bfloat")]] [[kernel]] decltype(attention_prefill<bfloat, 32>) attention_prefill<bfloat, 32>;
template [[host_name("attention_prefill_float")]] [[kernel]] decltype(attention_prefill<float, 16>) attention_prefill<float, 16>;
