// Matrix products with tensor operations, without a fault: right under both layouts of cooperative tensors and all
// orders of sums. All compute c[M,N] = a[M,K] w[N,K]^T.
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

struct shape {
    int rows, columns, depth;
};

// Operands in device memory, the destination cooperative, one tile of 32 x 64 a threadgroup of 128 threads. Rows and
// columns beyond the matrix are neither read nor written.
kernel void tensor_tiles(device bfloat *a [[buffer(0)]], device bfloat *w [[buffer(1)]], device float *c [[buffer(2)]],
                         constant shape &size [[buffer(3)]], uint2 group [[threadgroup_position_in_grid]]) {
    auto left = tensor(a, dextents<int, 2>{size.depth, size.rows}, array<int, 2>{1, size.depth});
    auto right = tensor(w, dextents<int, 2>{size.depth, size.columns}, array<int, 2>{1, size.depth});
    auto out = tensor(c, dextents<int, 2>{size.columns, size.rows}, array<int, 2>{1, size.columns});
    constexpr auto descriptor = matmul2d_descriptor(32, 64, dynamic_extent, false, true, false);
    matmul2d<descriptor, execution_simdgroups<4>> product;
    auto rows = left.slice(0, int(group.y) * 32);
    auto columns = right.slice(0, int(group.x) * 64);
    auto tile = product.get_destination_cooperative_tensor<decltype(rows), decltype(columns), float>();
    product.run(rows, columns, tile);
    auto place = out.slice(int(group.x) * 64, int(group.y) * 32);
    tile.store(place);
}

// 4-bit weights as they are, a group of 64 at a time; scale and bias go onto the cooperative destination.
kernel void tensor_codes(device bfloat *a [[buffer(0)]], device uchar *codes [[buffer(1)]],
                         device const float *scales [[buffer(2)]], device float *c [[buffer(3)]],
                         constant shape &size [[buffer(4)]], uint lane [[thread_index_in_threadgroup]]) {
    constexpr auto descriptor = matmul2d_descriptor(16, 64, 64, false, true, false);
    matmul2d<descriptor, execution_simdgroups<2>> product;
    using left_tensor = tensor<device bfloat, dextents<int, 2>, tensor_inline>;
    using right_tensor = tensor<device uint4b_format, dextents<int, 2>, tensor_inline>;
    threadgroup float sums[64];
    auto sum = product.get_destination_cooperative_tensor<left_tensor, right_tensor, float>();
    for (int i = 0; i < sum.get_capacity(); i++)
        sum[i] = 0.0f;
    for (int k = 0; k < size.depth; k += 64) {
        sums[lane] = scales[(k / 64) * 64 + int(lane)];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        left_tensor left(a + k, dextents<int, 2>{64, size.rows}, array<int, 2>{1, size.depth});
        right_tensor right(codes + k / 2, dextents<int, 2>{64, size.columns}, array<int, 2>{1, size.depth});
        auto part = product.get_destination_cooperative_tensor<left_tensor, right_tensor, float>();
        product.run(left, right, part);
        for (int i = 0; i < part.get_capacity(); i++)
            if (part.is_valid_element(i)) {
                auto at = part.get_multidimensional_index(i);
                sum[i] += part[i] * sums[at[0]];
            }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    auto out = tensor(c, dextents<int, 2>{size.columns, size.rows}, array<int, 2>{1, size.columns});
    sum.store(out);
}

// Cooperative inputs: a tile of 16 x 32, K = 16 at a time, each simdgroup for itself; the right operand comes through
// threadgroup memory.
kernel void tensor_registers(device const bfloat *a [[buffer(0)]], device const bfloat *w [[buffer(1)]],
                             device float *c [[buffer(2)]], constant shape &size [[buffer(3)]],
                             uint lane [[thread_index_in_simdgroup]]) {
    constexpr auto descriptor =
        matmul2d_descriptor(16, 32, 16, false, true, false, matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<descriptor, execution_simdgroup> product;
    auto left = product.get_left_input_cooperative_tensor<bfloat, bfloat, float>();
    auto right = product.get_right_input_cooperative_tensor<bfloat, bfloat, float>();
    auto sum = product.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();
    threadgroup bfloat tile[32 * 16];
    for (int i = 0; i < sum.get_capacity(); i++)
        sum[i] = 0.0f;
    for (int k = 0; k < size.depth; k += 16) {
        for (int i = int(lane); i < 32 * 16; i += 32)
            tile[i] = w[(i / 16) * size.depth + k + i % 16];
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (int i = 0; i < left.get_capacity(); i++)
            if (left.is_valid_element(i)) {
                auto at = left.get_multidimensional_index(i);
                left[i] = a[at[1] * size.depth + k + at[0]];
            }
        for (int i = 0; i < right.get_capacity(); i++)
            if (right.is_valid_element(i)) {
                auto at = right.get_multidimensional_index(i);
                right[i] = tile[at[1] * 16 + at[0]];
            }
        product.run(left, right, sum);
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (int i = 0; i < sum.get_capacity(); i++)
        if (sum.is_valid_element(i)) {
            auto at = sum.get_multidimensional_index(i);
            c[at[1] * 32 + at[0]] = sum[i];
        }
}
