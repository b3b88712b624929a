// Kernels with one fault each: tensor operations. See races.metal.
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

// 64 threads for a product of four simdgroups.
kernel void too_few_simdgroups(device float *out [[buffer(0)]]) {
    auto memory = tensor(out, dextents<int, 2>{32, 32}, array<int, 2>{1, 32});
    constexpr auto descriptor = matmul2d_descriptor(32, 32, dynamic_extent);
    matmul2d<descriptor, execution_simdgroups<4>> product;
    auto tile = product.get_destination_cooperative_tensor<decltype(memory), decltype(memory), float>();
    product.run(memory, memory, tile); // here
    tile.store(memory);
}

// The tensors have 24 of the 32 that the product sums over.
kernel void short_of_k(device float *in [[buffer(0)]], device float *out [[buffer(1)]]) {
    auto left = tensor(in, dextents<int, 2>{24, 32}, array<int, 2>{1, 24});
    auto right = tensor(in, dextents<int, 2>{32, 24}, array<int, 2>{1, 32});
    auto to = tensor(out, dextents<int, 2>{32, 32}, array<int, 2>{1, 32});
    constexpr auto descriptor = matmul2d_descriptor(32, 32, 32);
    matmul2d<descriptor, execution_simdgroup> product;
    product.run(left, right, to); // here
}

// What the threads put into threadgroup memory is multiplied before all have.
kernel void product_without_barrier(device float *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float tile[32 * 32];
    for (uint i = lane; i < 32 * 32; i += 32)
        tile[i] = 1.0f;
    auto in = tensor(tile, dextents<int, 2>{32, 32}, array<int, 2>{1, 32});
    auto to = tensor(out, dextents<int, 2>{32, 32}, array<int, 2>{1, 32});
    constexpr auto descriptor = matmul2d_descriptor(32, 32, 32);
    matmul2d<descriptor, execution_simdgroup> product;
    product.run(in, in, to); // here
}

// The extents say more than the buffer has.
kernel void beyond_the_buffer(device float *in [[buffer(0)]], device float *out [[buffer(1)]]) {
    auto from = tensor(in, dextents<int, 2>{32, 33}, array<int, 2>{1, 32});
    auto to = tensor(out, dextents<int, 2>{32, 32}, array<int, 2>{1, 32});
    constexpr auto descriptor = matmul2d_descriptor(32, 32, dynamic_extent, true, false);
    matmul2d<descriptor, execution_simdgroup> product;
    product.run(from, from, to); // here
}

// 16 columns from 24 on, of 32.
kernel void slice_beyond(device float *in [[buffer(0)]], device float *out [[buffer(1)]]) {
    auto from = tensor(in, dextents<int, 2>{32, 32}, array<int, 2>{1, 32});
    auto to = tensor(out, dextents<int, 2>{16, 32}, array<int, 2>{1, 16});
    auto part = from.slice<16, 32>(24, 0); // here
    constexpr auto descriptor = matmul2d_descriptor(32, 16, dynamic_extent);
    matmul2d<descriptor, execution_simdgroup> product;
    product.run(from, part, to);
}

// Offsets of slices have 32 bits: this one, of 2^32 bytes, comes back to the tensor's first row.
kernel void slice_far(device float *in [[buffer(0)]], device float *out [[buffer(1)]]) {
    auto from = tensor(in, dextents<int, 2>{32, (1 << 25) + 32}, array<int, 2>{1, 32});
    auto to = tensor(out, dextents<int, 2>{32, 32}, array<int, 2>{1, 32});
    auto part = from.slice(0, 1 << 25); // here
    constexpr auto descriptor = matmul2d_descriptor(32, 32, dynamic_extent);
    matmul2d<descriptor, execution_simdgroup> product;
    product.run(part, part, to);
}

// A part of the scope only.
kernel void product_in_a_branch(device float *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    auto to = tensor(out, dextents<int, 2>{32, 32}, array<int, 2>{1, 32});
    constexpr auto descriptor = matmul2d_descriptor(32, 32, 32);
    matmul2d<descriptor, execution_simdgroup> product;
    auto tile = product.get_destination_cooperative_tensor<decltype(to), decltype(to), float>();
    for (int i = 0; i < tile.get_capacity(); i++)
        tile[i] = 1.0f;
    if (lane < 16)
        tile.store(to); // here
}
