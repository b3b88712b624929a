// Kernels with one fault each: accesses where there is nothing for them. See races.metal.
#include <metal_stdlib>
using namespace metal;

kernel void past_the_end(device const float *in [[buffer(0)]], device float *out [[buffer(1)]],
                         uint lane [[thread_index_in_simdgroup]]) {
    out[lane] = in[lane + 1]; // here
}

kernel void before_the_start(device const float *in [[buffer(0)]], device float *out [[buffer(1)]],
                             uint lane [[thread_index_in_simdgroup]]) {
    out[lane] = in[int(lane) - 1]; // here
}

kernel void past_a_vector(device const float4 *in [[buffer(0)]], device float *out [[buffer(1)]],
                          uint lane [[thread_index_in_simdgroup]]) {
    out[lane] = in[lane].w; // here
}

// The view that the host declares has rows of 16 floats, 32 apart.
kernel void between_the_rows(device const float *in [[buffer(0)]], device float *out [[buffer(1)]],
                             uint lane [[thread_index_in_simdgroup]]) {
    out[lane] = in[lane]; // here
}

// The host declares that it reads.
kernel void writes_its_input(device float *in [[buffer(0)]], device float *out [[buffer(1)]],
                             uint lane [[thread_index_in_simdgroup]]) {
    out[lane] = in[lane];
    in[lane] = 0.0f; // here
}

// The host declares that it writes.
kernel void reads_its_output(device float *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    out[lane] = 1.0f;
    out[lane] += out[32 + lane]; // here
}

static uint calls;

kernel void counts_its_calls(device uint *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    calls += lane; // here
    out[lane] = calls;
}

struct parameters {
    uint count;
    uint rest[3];
};

// The host sets 16 bytes.
kernel void past_the_bytes(constant uint *numbers [[buffer(0)]], device uint *out [[buffer(1)]],
                           uint lane [[thread_index_in_simdgroup]]) {
    out[lane] = numbers[lane]; // here
}

kernel void takes_parameters(constant parameters &given [[buffer(0)]], device uint *out [[buffer(1)]],
                             uint lane [[thread_index_in_simdgroup]]) {
    out[lane] = given.rest[lane % 3];
}

kernel void copies_structures(device const parameters *in [[buffer(0)]], device parameters *out [[buffer(1)]],
                              uint lane [[thread_index_in_simdgroup]]) {
    out[lane].count = in[lane].count; // here
}

// A vector at an odd place.
kernel void misaligned(device const float *in [[buffer(0)]], device float *out [[buffer(1)]],
                       uint lane [[thread_index_in_simdgroup]]) {
    device const float4 *vectors = (device const float4 *)(in + 1);
    out[lane] = dot(vectors[lane], float4(1.0f)); // here
}

kernel void past_shared(device float *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float shared[32];
    shared[lane] = 1.0f;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    out[lane] = shared[lane + 1]; // here
}

kernel void too_much_memory(device float *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float first[4096];
    threadgroup float second[4097];
    first[lane] = second[lane] = 0.0f;
    out[lane] = 0.0f;
}

kernel void takes_memory(threadgroup float *shared [[threadgroup(0)]], device float *out [[buffer(0)]],
                         uint lane [[thread_index_in_simdgroup]]) {
    shared[lane] = 1.0f;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    out[lane] = shared[31 - lane];
}

[[kernel, max_total_threads_per_threadgroup(64)]] void few_threads(device float *out [[buffer(0)]],
                                                                   uint lane [[thread_index_in_threadgroup]]) {
    out[lane] = 1.0f;
}

[[kernel, required_threads_per_threadgroup(64, 1, 1)]] void as_many_threads(device float *out [[buffer(0)]],
                                                                            uint lane [[thread_index_in_threadgroup]]) {
    out[lane] = 1.0f;
}

// Waits for what no other thread will ever do.
kernel void endless(device atomic_uint *flag [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    while (atomic_load_explicit(flag, memory_order_relaxed) == 0) // here
        ;
    atomic_store_explicit(flag + lane, 1u, memory_order_relaxed);
}
