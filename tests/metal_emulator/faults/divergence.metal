// Kernels with one fault each: operations of several lanes that not all of them come to. See races.metal.
#include <metal_stdlib>
using namespace metal;

kernel void half_a_sum(device float *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    float sum = 0.0f;
    if (lane < 16)
        sum = simd_sum(1.0f); // here
    out[lane] = sum;
}

kernel void two_sums(device float *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    if (lane < 16)
        out[lane] = simd_sum(1.0f); // here
    else
        out[lane] = simd_max(1.0f);
}

kernel void returned_early(device float *out [[buffer(0)]], uint lane [[thread_index_in_threadgroup]]) {
    if (lane >= 40)
        return;
    out[lane] = 1.0f;
    threadgroup_barrier(mem_flags::mem_device); // here
    out[lane] = 2.0f;
}

kernel void barrier_in_a_branch(device float *out [[buffer(0)]], uint group [[simdgroup_index_in_threadgroup]],
                                uint lane [[thread_index_in_threadgroup]]) {
    if (group == 0)
        threadgroup_barrier(mem_flags::mem_threadgroup); // here
    out[lane] = 1.0f;
}

kernel void uneven_loops(device float *out [[buffer(0)]], uint lane [[thread_index_in_threadgroup]]) {
    float sum = 0.0f;
    for (uint i = 0; i < lane / 32 + 1; i++) {
        sum += 1.0f;
        threadgroup_barrier(mem_flags::mem_none); // here
    }
    out[lane] = sum;
}

kernel void half_a_matrix(device float *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    simdgroup_float8x8 a = make_filled_simdgroup_matrix<float, 8>(1.0f);
    if (lane % 2 == 0)
        simdgroup_store(a, out, 8); // here
}

kernel void shuffle_from_nowhere(device float *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    out[lane] = simd_shuffle(float(lane), ushort(lane + 1)); // here
}

kernel void shuffle_by_lane(device float *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    out[lane] = simd_shuffle_down(float(lane), ushort(lane)); // here
}
