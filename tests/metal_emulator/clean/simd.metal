// Kernels without a fault: they must give the same results under every order of lanes.
#include <metal_stdlib>
using namespace metal;

constant bool add_bias [[function_constant(0)]];
constant uint factor [[function_constant(1)]];
constant uint twice = factor * 2;
constant float table[4] = {1.0f, 2.0f, 3.0f, 4.0f};

// 32 numbers of each operation, row by row; the test knows what they are.
kernel void simd_operations(device const float *in [[buffer(0)]], device float *out [[buffer(1)]],
                            uint lane [[thread_index_in_simdgroup]]) {
    float x = in[lane];
    ushort half_way = ushort(lane ^ 16);
    out[lane] = simd_sum(x);
    out[32 + lane] = simd_max(x);
    out[64 + lane] = simd_min(x);
    out[96 + lane] = simd_shuffle_xor(x, 1);
    out[128 + lane] = simd_shuffle_down(x, 4);
    out[160 + lane] = simd_shuffle_up(x, 4);
    out[192 + lane] = simd_shuffle(x, half_way);
    out[224 + lane] = simd_broadcast(x, 7);
    out[256 + lane] = simd_prefix_exclusive_sum(x);
    out[288 + lane] = simd_prefix_inclusive_sum(x);
    out[320 + lane] = float(uint(ulong(simd_ballot(x > 3.0f)) & 0xffff));
    out[352 + lane] = quad_sum(x);
    out[384 + lane] = simd_broadcast_first(x);
    out[416 + lane] = simd_any(x == in[5]) && !simd_all(x == in[5]) ? 1.0f : 0.0f;
    out[448 + lane] = simd_shuffle_and_fill_down(x, -1.0f, 1);
    out[480 + lane] = float(simd_or(1u << lane) == 0xffffffffu);
}

// The sum of a row by all threads of a threadgroup.
kernel void row_sum(device const float4 *in [[buffer(0)]], device float *out [[buffer(1)]],
                    constant uint &columns [[buffer(2)]], uint row [[threadgroup_position_in_grid]],
                    uint thread_index [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                    uint simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float sums[32];
    float sum = 0.0f;
    device const float4 *from = in + row * (columns / 4);
    for (uint i = thread_index; i < columns / 4; i += threads)
        sum += dot(from[i], float4(1.0f));
    sum = simd_sum(sum);
    if (lane == 0)
        sums[simdgroup] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup == 0) {
        sum = simd_sum(lane < simdgroups ? sums[lane] : 0.0f);
        if (lane == 0)
            out[row] = add_bias ? sum + float(twice) + table[row & 3] : sum;
    }
}

// Counts in threadgroup memory, then in device memory, by several threadgroups.
kernel void histogram(device const uint *in [[buffer(0)]], device atomic_uint *counts [[buffer(1)]],
                      uint i [[thread_position_in_grid]], uint lane [[thread_index_in_threadgroup]]) {
    threadgroup atomic_uint local[16];
    if (lane < 16)
        atomic_store_explicit(&local[lane], 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    atomic_fetch_add_explicit(&local[in[i] & 15], 1u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane < 16)
        atomic_fetch_add_explicit(&counts[lane], atomic_load_explicit(&local[lane], memory_order_relaxed),
                                  memory_order_relaxed);
}

// A tile that is used again and again, with the barriers it needs.
kernel void tiles(device const float *in [[buffer(0)]], device float *out [[buffer(1)]],
                  threadgroup float *tile [[threadgroup(0)]], uint lane [[thread_index_in_threadgroup]]) {
    float sum = 0.0f;
    for (uint i = 0; i < 4; i++) {
        tile[lane] = in[64 * i + lane];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        sum += tile[63 - lane];
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    out[lane] = sum;
}

// c[8,8] = a[8,16] b[16,8] with matrices of a simdgroup, through threadgroup memory.
template <typename T>
kernel void matrices(device const T *a [[buffer(0)]], device const T *b [[buffer(1)]], device float *c [[buffer(2)]],
                     uint lane [[thread_index_in_simdgroup]]) {
    threadgroup T left[8 * 16];
    for (uint i = lane; i < 8 * 16; i += 32)
        left[i] = a[i];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8>(0.0f);
    for (uint k = 0; k < 16; k += 8) {
        simdgroup_matrix<T, 8, 8> x, y;
        simdgroup_load(x, left + k, 16);
        simdgroup_load(y, b + k * 8, 8);
        simdgroup_multiply_accumulate(sum, x, y, sum);
    }
    simdgroup_store(sum, c, 8);
}
template [[host_name("matrices_float")]] kernel void matrices<float>(device const float *, device const float *,
                                                                     device float *, uint);
template [[host_name("matrices_bfloat")]] [[kernel]] decltype(matrices<bfloat>) matrices<bfloat>;
template [[host_name("matrices_half")]] [[kernel]] decltype(matrices<half>) matrices<half>;

// Rows of a strided view, 16-bit numbers side by side.
kernel void scale_rows(device const bfloat4 *in [[buffer(0)]], device bfloat4 *out [[buffer(1)]],
                       uint2 at [[thread_position_in_grid]]) {
    float4 x = float4(in[at.y * 8 + at.x]);
    x.xy = x.yx * 2.0f;
    out[at.y * 8 + at.x] = bfloat4(x * float4(1.0f, 1.0f, 0.5f, 0.25f));
}

// Stamped out by a macro.
#define STAMP(name, type)                                                                                              \
    kernel void name(device const type *in [[buffer(0)]], device type *out [[buffer(1)]],                             \
                     uint i [[thread_position_in_grid]]) {                                                            \
        out[i] = in[i] + type(1);                                                                                      \
    }
STAMP(increment_float, float)
STAMP(increment_uint, uint)
