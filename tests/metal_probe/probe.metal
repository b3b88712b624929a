// What a Mac's tensor operations take and how they lie: one kernel a question. probe.c compiles each alone (PROBE_ONE and
// PROBE_<name>), since a shape that the compiler refuses takes its whole file with it. All compute c[M,N] = a[M,K] w[N,K]^T.
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

// Operands in device memory; K is whatever the tensors have.
#define MEMORY(NAME, M, N, K, SIMDGROUPS)                                                                      \
    kernel void NAME(device bfloat *a [[buffer(0)]], device bfloat *w [[buffer(1)]],                           \
                     device float *c [[buffer(2)]]) {                                                          \
        auto left = tensor(a, dextents<int, 2>{K, M}, array<int, 2>{1, K});                                    \
        auto right = tensor(w, dextents<int, 2>{K, N}, array<int, 2>{1, K});                                   \
        auto out = tensor(c, dextents<int, 2>{N, M}, array<int, 2>{1, N});                                     \
        constexpr auto descriptor = matmul2d_descriptor(M, N, dynamic_extent, false, true, false);             \
        matmul2d<descriptor, execution_simdgroups<SIMDGROUPS>> product;                                        \
        auto tile = product.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();      \
        product.run(left, right, tile);                                                                        \
        tile.store(out);                                                                                       \
    }

// Operands and destination in registers, K = 16 or 32 at a time; then where each lane's elements are, as row * 256 +
// column, or -1.
#define REGISTERS(NAME, M, N, K, DEPTH)                                                                        \
    kernel void NAME(device bfloat *a [[buffer(0)]], device bfloat *w [[buffer(1)]],                           \
                     device float *c [[buffer(2)]], device int *places [[buffer(3)]],                          \
                     uint lane [[thread_index_in_simdgroup]]) {                                                \
        constexpr auto descriptor =                                                                            \
            matmul2d_descriptor(M, N, K, false, true, false, matmul2d_descriptor::mode::multiply_accumulate);  \
        matmul2d<descriptor, execution_simdgroup> product;                                                     \
        auto left = product.get_left_input_cooperative_tensor<bfloat, bfloat, float>();                        \
        auto right = product.get_right_input_cooperative_tensor<bfloat, bfloat, float>();                      \
        auto sum = product.get_destination_cooperative_tensor<decltype(left), decltype(right), float>();       \
        for (int i = 0; i < sum.get_capacity(); i++)                                                           \
            sum[i] = 0.0f;                                                                                     \
        for (int k = 0; k < DEPTH; k += K) {                                                                   \
            for (int i = 0; i < left.get_capacity(); i++)                                                      \
                if (left.is_valid_element(i)) {                                                                \
                    auto at = left.get_multidimensional_index(i);                                              \
                    left[i] = a[at[1] * DEPTH + k + at[0]];                                                    \
                }                                                                                              \
            for (int i = 0; i < right.get_capacity(); i++)                                                     \
                if (right.is_valid_element(i)) {                                                               \
                    auto at = right.get_multidimensional_index(i);                                             \
                    right[i] = w[at[1] * DEPTH + k + at[0]];                                                   \
                }                                                                                              \
            product.run(left, right, sum);                                                                     \
        }                                                                                                      \
        for (int i = 0; i < 32; i++)                                                                           \
            places[int(lane) * 32 + i] = -1;                                                                   \
        for (int i = 0; i < sum.get_capacity(); i++)                                                           \
            if (sum.is_valid_element(i)) {                                                                     \
                auto at = sum.get_multidimensional_index(i);                                                   \
                c[at[1] * N + at[0]] = sum[i];                                                                 \
                if (i < 32)                                                                                    \
                    places[int(lane) * 32 + i] = int(at[1]) * 256 + int(at[0]);                                \
            }                                                                                                  \
    }

#if !defined PROBE_ONE || defined PROBE_memory_16_32
MEMORY(memory_16_32, 16, 32, 64, 1)
#endif
#if !defined PROBE_ONE || defined PROBE_memory_32_64
MEMORY(memory_32_64, 32, 64, 64, 4)
#endif
#if !defined PROBE_ONE || defined PROBE_memory_64_32
MEMORY(memory_64_32, 64, 32, 64, 4)
#endif
#if !defined PROBE_ONE || defined PROBE_memory_64_128
MEMORY(memory_64_128, 64, 128, 64, 4)
#endif
#if !defined PROBE_ONE || defined PROBE_registers_16_32_16
REGISTERS(registers_16_32_16, 16, 32, 16, 64)
#endif
#if !defined PROBE_ONE || defined PROBE_registers_32_16_16
REGISTERS(registers_32_16_16, 32, 16, 16, 64)
#endif
#if !defined PROBE_ONE || defined PROBE_registers_16_16_32
REGISTERS(registers_16_16_32, 16, 16, 32, 64)
#endif
