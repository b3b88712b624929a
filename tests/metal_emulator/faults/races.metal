// Kernels with one fault each: accesses of several lanes with nothing in between that orders them. The test expects
// the emulator to name the fault and the line that has "here" on it.
#include <metal_stdlib>
using namespace metal;

// 64 threads: a simdgroup reads what the other writes.
kernel void race_of_simdgroups(device float *out [[buffer(0)]], uint lane [[thread_index_in_threadgroup]]) {
    threadgroup float shared[64];
    shared[lane] = float(lane);
    out[lane] = shared[63 - lane]; // here
}

// The barrier is of the wrong memory.
kernel void barrier_of_other_memory(device float *out [[buffer(0)]], uint lane [[thread_index_in_threadgroup]]) {
    threadgroup float shared[64];
    shared[lane] = float(lane);
    threadgroup_barrier(mem_flags::mem_device);
    out[lane] = shared[63 - lane]; // here
}

// The same with device memory, between the simdgroups of one threadgroup.
kernel void barrier_of_threadgroup_memory(device float *out [[buffer(0)]], uint lane [[thread_index_in_threadgroup]]) {
    out[lane] = float(lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float other = out[63 - lane]; // here
    threadgroup_barrier(mem_flags::mem_device);
    out[lane] = other;
}

// A loop that reuses its tile without a barrier at its end.
kernel void reused_tile(device const float *in [[buffer(0)]], device float *out [[buffer(1)]],
                        uint lane [[thread_index_in_threadgroup]]) {
    threadgroup float tile[64];
    float sum = 0.0f;
    for (uint i = 0; i < 4; i++) {
        tile[lane] = in[64 * i + lane]; // here
        threadgroup_barrier(mem_flags::mem_threadgroup);
        sum += tile[63 - lane];
    }
    out[lane] = sum;
}

// 32 threads: a simdgroup operation moves values, but orders no memory.
kernel void race_of_lanes(device float *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float shared[32];
    shared[lane] = simd_sum(float(lane));
    out[lane] = shared[31 - lane]; // here
}

// 16-bit neighbours are no race, the same element is.
kernel void two_writers(device bfloat *out [[buffer(0)]], uint lane [[thread_index_in_threadgroup]]) {
    out[lane / 2] = bfloat(float(lane)); // here
}

// A matrix is stored by the simdgroup; which lane stores what is nobody's business.
kernel void matrix_without_barrier(device float *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float tile[64];
    simdgroup_float8x8 a = make_filled_simdgroup_matrix<float, 8>(2.0f);
    simdgroup_store(a, tile, 8);
    out[lane] = tile[lane]; // here
}

// Two threadgroups of 32.
kernel void race_of_threadgroups(device float *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]],
                                 uint group [[threadgroup_position_in_grid]]) {
    out[lane] = float(group); // here
}

// One threadgroup counts, the other looks.
kernel void count_and_look(device atomic_uint *count [[buffer(0)]], device uint *plain [[buffer(1)]],
                           uint group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    if (group == 0)
        atomic_fetch_add_explicit(&count[lane], 1u, memory_order_relaxed);
    else
        plain[32 + lane] = plain[lane]; // here
}

// Nobody has written the second half.
kernel void unwritten(device float *out [[buffer(0)]], uint lane [[thread_index_in_threadgroup]]) {
    threadgroup float shared[64];
    if (lane < 32)
        shared[lane] = 1.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[lane] = shared[lane]; // here
}

// The last quarter of the output stays what it was.
kernel void left_unwritten(device float *out [[buffer(0)]], uint lane [[thread_index_in_threadgroup]]) {
    if (lane < 24)
        out[lane] = 1.0f;
}

// For two dispatches of one phase.
kernel void add_one(device const float *in [[buffer(0)]], device float *out [[buffer(1)]],
                    uint i [[thread_position_in_grid]]) {
    out[i] = in[i] + 1.0f;
}
