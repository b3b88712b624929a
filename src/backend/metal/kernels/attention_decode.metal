// Attention of one token at head size 256: the cache is read once for `Pack` query heads of a KV head (policy gqa_pack).
//
// Positions are dealt to threadgroups (parts), within a part to simdgroups. A simdgroup keeps for each of its heads a
// maximum, a total and 256 sums of values, eight a lane (online softmax); they are put together at the end, over
// simdgroups here, over parts by attention_join.
#include <metal_stdlib>
using namespace metal;

#include "attention_parameters.h"

constant bool decode_bfloat [[function_constant(330)]];    // the cache's type, else float
constant bool decode_coalesced [[function_constant(331)]]; // policy kv_coalesced
constant bool decode_in_parts [[function_constant(332)]];  // results are parts for attention_join

#define DECODE_SIZE 256
#define DECODE_SIMDGROUPS 8 // at most

struct decode_eight {
    float4 low, high;
};

// Elements index .. index + 7 of the cache in one or two loads.
METAL_FUNC decode_eight decode_load(device const uchar *cache, ulong index) {
    decode_eight x;
    if (decode_bfloat) {
        uint4 words = *(device const uint4 *)(cache + index * 2);
        x.low = float4(as_type<float>(words.x << 16), as_type<float>(words.x & 0xffff0000u),
                       as_type<float>(words.y << 16), as_type<float>(words.y & 0xffff0000u));
        x.high = float4(as_type<float>(words.z << 16), as_type<float>(words.z & 0xffff0000u),
                        as_type<float>(words.w << 16), as_type<float>(words.w & 0xffff0000u));
    } else {
        x.low = *(device const float4 *)(cache + index * 4);
        x.high = *(device const float4 *)(cache + index * 4 + 16);
    }
    return x;
}

// The same one by one.
METAL_FUNC decode_eight decode_gather(device const uchar *cache, ulong index) {
    decode_eight x;
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        x.low[i] = decode_bfloat ? float(((device const bfloat *)cache)[index + i])
                                 : ((device const float *)cache)[index + i];
        x.high[i] = decode_bfloat ? float(((device const bfloat *)cache)[index + 4 + i])
                                  : ((device const float *)cache)[index + 4 + i];
    }
    return x;
}

METAL_FUNC float decode_dot(decode_eight a, decode_eight b) {
    float4 sum = fma(a.high, b.high, a.low * b.low);
    return (sum.x + sum.y) + (sum.z + sum.w);
}

// Groups (query heads / Pack, parts). `partial` is [heads][parts][256] and then [heads][parts][2]: maximum and total.
template <uint Pack>
kernel void attention_decode(device const uint *record [[buffer(0)]], device const float *q [[buffer(1)]],
                             device const float *gate [[buffer(2)]], device const uchar *keys [[buffer(3)]],
                             device const uchar *values [[buffer(4)]], device float *y [[buffer(5)]],
                             constant attention_parameters &p [[buffer(6)]], device float *partial [[buffer(7)]],
                             uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]],
                             uint simdgroups [[simdgroups_per_threadgroup]],
                             uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup float shared[DECODE_SIMDGROUPS * DECODE_SIZE], maxima[DECODE_SIMDGROUPS], totals[DECODE_SIMDGROUPS];
    constexpr uint step = 32 / Pack; // positions that a simdgroup scores at once: a lane each, for each of its heads
    uint first_head = group.x * Pack, column = first_head * p.kv_heads / p.heads * DECODE_SIZE;
    uint count = min(record[0] + 1, p.cache_rows);
    uint each = p.block > 0 ? p.block : (count + p.parts - 1) / p.parts;
    uint begin = min(group.y * each, count), end = min(begin + each, count);
    decode_eight query[Pack], sums[Pack];
    float largest[Pack], total[Pack];
#pragma unroll
    for (uint h = 0; h < Pack; h++) {
        device const float4 *from = (device const float4 *)(q + ulong(first_head + h) * p.q_stride) + 2 * lane;
        query[h].low = from[0];
        query[h].high = from[1];
        sums[h].low = sums[h].high = float4(0.0f);
        largest[h] = ATTENTION_LEAST;
        total[h] = 0.0f;
    }
    if (decode_coalesced) {
        // The lanes share a row of keys. Their 32 parts of sums, Pack heads by `step` positions, are added while they
        // are dealt out: what lane l ends with is score number l, of head l / step and position l % step.
        float top = ATTENTION_LEAST, weights = 0.0f; // of the lane's head
        for (uint at = begin + simdgroup * step; at < end; at += simdgroups * step) {
            float parts[32];
#pragma unroll
            for (uint i = 0; i < step; i++) {
                decode_eight key =
                    decode_load(keys, ulong(min(at + i, end - 1)) * p.key_stride + column + lane * 8);
#pragma unroll
                for (uint h = 0; h < Pack; h++)
                    parts[h * step + i] = decode_dot(query[h], key);
            }
#pragma unroll
            for (uint bit = 16; bit > 0; bit /= 2)
#pragma unroll
                for (uint i = 0; i < bit; i++) {
                    bool upper = (lane & bit) != 0;
                    float given = upper ? parts[i] : parts[i + bit];
                    parts[i] = (upper ? parts[i + bit] : parts[i]) + simd_shuffle_xor(given, ushort(bit));
                }
            float score = at + lane % step < end ? parts[0] * p.scale : ATTENTION_LEAST, highest = score;
            for (uint bit = 1; bit < step; bit *= 2)
                highest = max(highest, simd_shuffle_xor(highest, ushort(bit)));
            highest = max(highest, top);
            float shrink = fast::exp(top - highest), weight = fast::exp(score - highest);
            top = highest;
            weights = weights * shrink + weight;
#pragma unroll
            for (uint h = 0; h < Pack; h++) {
                float factor = simd_shuffle(shrink, ushort(h * step));
                sums[h].low *= factor;
                sums[h].high *= factor;
            }
#pragma unroll
            for (uint i = 0; i < step; i++) {
                decode_eight value =
                    decode_load(values, ulong(min(at + i, end - 1)) * p.value_stride + column + lane * 8);
#pragma unroll
                for (uint h = 0; h < Pack; h++) {
                    float factor = simd_shuffle(weight, ushort(h * step + i));
                    sums[h].low = fma(float4(factor), value.low, sums[h].low);
                    sums[h].high = fma(float4(factor), value.high, sums[h].high);
                }
            }
        }
        for (uint bit = 1; bit < step; bit *= 2)
            weights += simd_shuffle_xor(weights, ushort(bit));
#pragma unroll
        for (uint h = 0; h < Pack; h++) {
            largest[h] = simd_shuffle(top, ushort(h * step));
            total[h] = simd_shuffle(weights, ushort(h * step));
        }
    } else {
        // Each lane has a row of keys to itself; queries come from device memory, the same for all lanes.
        for (uint at = begin + simdgroup * 32; at < end; at += simdgroups * 32) {
            ulong key = ulong(min(at + lane, end - 1)) * p.key_stride + column;
            float score[Pack], weight[Pack];
#pragma unroll
            for (uint h = 0; h < Pack; h++)
                score[h] = 0.0f;
            for (uint i = 0; i < DECODE_SIZE; i += 8) {
                decode_eight row = decode_load(keys, key + i), part;
#pragma unroll
                for (uint h = 0; h < Pack; h++) {
                    device const float4 *from = (device const float4 *)(q + ulong(first_head + h) * p.q_stride + i);
                    part.low = from[0];
                    part.high = from[1];
                    score[h] += decode_dot(part, row);
                }
            }
#pragma unroll
            for (uint h = 0; h < Pack; h++) {
                float mine = at + lane < end ? score[h] * p.scale : ATTENTION_LEAST;
                float highest = max(largest[h], simd_max(mine)), shrink = fast::exp(largest[h] - highest);
                weight[h] = fast::exp(mine - highest);
                largest[h] = highest;
                total[h] = total[h] * shrink + simd_sum(weight[h]);
                sums[h].low *= shrink;
                sums[h].high *= shrink;
            }
            for (uint i = 0; i < min(32u, end - at); i++) {
                decode_eight value = decode_gather(values, ulong(at + i) * p.value_stride + column + lane * 8);
#pragma unroll
                for (uint h = 0; h < Pack; h++) {
                    float factor = simd_shuffle(weight[h], ushort(i));
                    sums[h].low = fma(float4(factor), value.low, sums[h].low);
                    sums[h].high = fma(float4(factor), value.high, sums[h].high);
                }
            }
        }
    }
#pragma unroll
    for (uint h = 0; h < Pack; h++) {
        uint head = first_head + h;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        ((threadgroup float4 *)shared)[simdgroup * 64 + 2 * lane] = sums[h].low;
        ((threadgroup float4 *)shared)[simdgroup * 64 + 2 * lane + 1] = sums[h].high;
        if (lane == 0) {
            maxima[simdgroup] = largest[h];
            totals[simdgroup] = total[h];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float highest = ATTENTION_LEAST, all = 0.0f;
        for (uint i = 0; i < simdgroups; i++)
            highest = max(highest, maxima[i]);
        for (uint i = 0; i < simdgroups; i++)
            all += totals[i] * fast::exp(maxima[i] - highest);
        for (uint d = thread_index; d < DECODE_SIZE; d += simdgroups * 32) {
            float sum = 0.0f;
            for (uint i = 0; i < simdgroups; i++)
                sum += shared[i * DECODE_SIZE + d] * fast::exp(maxima[i] - highest);
            if (decode_in_parts)
                partial[(ulong(head) * p.parts + group.y) * DECODE_SIZE + d] = sum;
            else
                y[ulong(head) * p.y_stride + d] =
                    sum / all / (1.0f + exp(-gate[ulong(head) * p.gate_stride + d]));
        }
        if (decode_in_parts && thread_index == 0) {
            device float *facts =
                partial + ulong(p.heads) * p.parts * DECODE_SIZE + (ulong(head) * p.parts + group.y) * 2;
            facts[0] = highest;
            facts[1] = all;
        }
    }
}
template [[host_name("attention_decode_1")]] [[kernel]] decltype(attention_decode<1>) attention_decode<1>;
template [[host_name("attention_decode_2")]] [[kernel]] decltype(attention_decode<2>) attention_decode<2>;
template [[host_name("attention_decode_4")]] [[kernel]] decltype(attention_decode<4>) attention_decode<4>;

// Puts the parts of a head together, at most 256 of them, and applies the gate. A threadgroup a head.
kernel void attention_join(device const float *gate [[buffer(0)]], device const float *partial [[buffer(1)]],
                           device float *y [[buffer(2)]], constant attention_parameters &p [[buffer(3)]],
                           uint head [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                           uint simdgroup [[simdgroup_index_in_threadgroup]],
                           uint simdgroups [[simdgroups_per_threadgroup]],
                           uint thread_index [[thread_index_in_threadgroup]],
                           uint threads [[threads_per_threadgroup]]) {
    threadgroup float weights[256], maxima[DECODE_SIMDGROUPS], totals[DECODE_SIMDGROUPS];
    device const float *facts = partial + ulong(p.heads) * p.parts * DECODE_SIZE + ulong(head) * p.parts * 2;
    float highest = ATTENTION_LEAST, total = 0.0f;
    for (uint i = thread_index; i < p.parts; i += threads)
        highest = max(highest, facts[2 * i]);
    highest = simd_max(highest);
    if (lane == 0)
        maxima[simdgroup] = highest;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < simdgroups; i++)
        highest = max(highest, maxima[i]);
    for (uint i = thread_index; i < p.parts; i += threads) {
        weights[i] = fast::exp(facts[2 * i] - highest);
        total += weights[i] * facts[2 * i + 1];
    }
    total = simd_sum(total);
    if (lane == 0)
        totals[simdgroup] = total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    total = 0.0f;
    for (uint i = 0; i < simdgroups; i++)
        total += totals[i];
    for (uint column = thread_index; column < DECODE_SIZE; column += threads) {
        device const float *from = partial + ulong(head) * p.parts * DECODE_SIZE + column;
        float sum = 0.0f;
        for (uint i = 0; i < p.parts; i++)
            sum += weights[i] * from[ulong(i) * DECODE_SIZE];
        y[ulong(head) * p.y_stride + column] =
            sum / total / (1.0f + exp(-gate[ulong(head) * p.gate_stride + column]));
    }
}
