// What a Mac's tensor operations take and how they lie: one kernel a question. probe.c compiles each alone (PROBE_ONE and
// PROBE_<name>), since a shape that the compiler refuses takes its whole file with it. All compute c[M,N] = a[M,K] w[N,K]^T,
// but for VALUES, whose w is [K,N]. TILES, KEYS and VALUES are what tensor_gemm.metal and tensor_attention.metal do,
// piece by piece; the rest is what they might do.
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

// Where the elements of a cooperative tensor are of which each thread has a part: row * 256 + column, or -1.
#define NOTE_PLACES(TILE, THREAD)                                                                              \
    for (int i = 0; i < 64; i++)                                                                               \
        places[int(THREAD) * 64 + i] = -1;                                                                     \
    for (int i = 0; i < TILE.get_capacity() && i < 64; i++)                                                    \
        if (TILE.is_valid_element(i)) {                                                                        \
            auto place = TILE.get_multidimensional_index(i);                                                   \
            places[int(THREAD) * 64 + i] = int(place[1]) * 256 + int(place[0]);                                \
        }

// Operands and destination in registers, K = 16 or 32 at a time.
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
        for (int i = 0; i < sum.get_capacity(); i++)                                                           \
            if (sum.is_valid_element(i)) {                                                                     \
                auto at = sum.get_multidimensional_index(i);                                                   \
                c[at[1] * N + at[0]] = sum[i];                                                                 \
            }                                                                                                  \
        NOTE_PLACES(sum, lane)                                                                                 \
    }

// As in tensor_gemm: tiles in threadgroup memory, 64 of K at a time, added to two cooperative tensors of one shape, of
// which the second gets each product twice; c is their difference, so that both must be right and lie alike.
#define TILES(NAME, M)                                                                                         \
    kernel void NAME(device bfloat *a [[buffer(0)]], device bfloat *w [[buffer(1)]],                           \
                     device float *c [[buffer(2)]], device int *places [[buffer(3)]],                          \
                     uint thread_index [[thread_index_in_threadgroup]]) {                                      \
        threadgroup bfloat a_tile[M * 64];                                                                     \
        threadgroup bfloat w_tile[64 * 64];                                                                    \
        using operand = tensor<threadgroup bfloat, dextents<int, 2>, tensor_inline>;                           \
        constexpr auto descriptor =                                                                            \
            matmul2d_descriptor(M, 64, 64, false, true, false, matmul2d_descriptor::mode::multiply_accumulate); \
        matmul2d<descriptor, execution_simdgroups<4>> product;                                                 \
        operand left(a_tile, dextents<int, 2>{64, M}, array<int, 2>{1, 64});                                   \
        operand right(w_tile, dextents<int, 2>{64, 64}, array<int, 2>{1, 64});                                 \
        auto sums = product.get_destination_cooperative_tensor<operand, operand, float>();                     \
        auto twice = product.get_destination_cooperative_tensor<operand, operand, float>();                    \
        for (int i = 0; i < sums.get_capacity(); i++)                                                          \
            sums[i] = twice[i] = 0.0f;                                                                         \
        for (uint k = 0; k < 256; k += 64) {                                                                   \
            for (uint i = thread_index; i < M * 64; i += 128)                                                  \
                a_tile[i] = a[i / 64 * 256 + k + i % 64];                                                      \
            for (uint i = thread_index; i < 64 * 64; i += 128)                                                 \
                w_tile[i] = w[i / 64 * 256 + k + i % 64];                                                      \
            threadgroup_barrier(mem_flags::mem_threadgroup);                                                   \
            product.run(left, right, sums);                                                                    \
            product.run(left, right, twice);                                                                   \
            product.run(left, right, twice);                                                                   \
            threadgroup_barrier(mem_flags::mem_threadgroup);                                                   \
        }                                                                                                      \
        for (int i = 0; i < sums.get_capacity(); i++)                                                          \
            if (sums.is_valid_element(i)) {                                                                    \
                auto place = sums.get_multidimensional_index(i);                                               \
                c[int(place[1]) * 64 + int(place[0])] = twice[i] - sums[i];                                    \
            }                                                                                                  \
        NOTE_PLACES(sums, thread_index)                                                                        \
    }

// As in tensor_attention: queries in threadgroup memory times keys in a cache with other things between its rows, N of
// the 32 positions there; stored in threadgroup memory.
#define KEYS(NAME, N)                                                                                          \
    kernel void NAME(device bfloat *a [[buffer(0)]], device bfloat *w [[buffer(1)]],                           \
                     device float *c [[buffer(2)]], device int *places [[buffer(3)]],                          \
                     uint thread_index [[thread_index_in_threadgroup]]) {                                      \
        threadgroup bfloat query[32 * 256];                                                                    \
        threadgroup float scores[32 * 32];                                                                     \
        using threadgroup_tensor = tensor<threadgroup bfloat, dextents<int, 2>, tensor_inline>;                \
        using score_tensor = tensor<threadgroup float, dextents<int, 2>, tensor_inline>;                       \
        using cache_tensor = tensor<device bfloat, dextents<int, 2>, tensor_inline>;                           \
        constexpr auto descriptor = matmul2d_descriptor(32, 32, 256, false, true, false);                      \
        matmul2d<descriptor, execution_simdgroups<4>> product;                                                 \
        for (uint i = thread_index; i < 32 * 256; i += 128)                                                    \
            query[i] = a[i];                                                                                   \
        threadgroup_tensor left(query, dextents<int, 2>{256, 32}, array<int, 2>{1, 256});                      \
        cache_tensor right(w, dextents<int, 2>{256, N}, array<int, 2>{1, 512});                                \
        score_tensor out(scores, dextents<int, 2>{32, 32}, array<int, 2>{1, 32});                              \
        threadgroup_barrier(mem_flags::mem_threadgroup);                                                       \
        auto tile = product.get_destination_cooperative_tensor<threadgroup_tensor, cache_tensor, float>();     \
        product.run(left, right, tile);                                                                        \
        tile.store(out);                                                                                       \
        threadgroup_barrier(mem_flags::mem_threadgroup);                                                       \
        for (uint i = thread_index; i < 32 * N; i += 128)                                                      \
            c[i] = scores[i / N * 32 + i % N];                                                                 \
        NOTE_PLACES(tile, thread_index)                                                                        \
    }

// And weights in threadgroup memory times the values of K positions, 32 at a time and the rest: the extents end where the
// cache does. Each sum is scaled by its row on the way, by one.
#define VALUES(NAME, K)                                                                                        \
    kernel void NAME(device bfloat *a [[buffer(0)]], device bfloat *w [[buffer(1)]],                           \
                     device float *c [[buffer(2)]], device int *places [[buffer(3)]],                          \
                     uint thread_index [[thread_index_in_threadgroup]]) {                                      \
        threadgroup bfloat weights[32 * 32];                                                                   \
        threadgroup float ones[32];                                                                            \
        using threadgroup_tensor = tensor<threadgroup bfloat, dextents<int, 2>, tensor_inline>;                \
        using cache_tensor = tensor<device bfloat, dextents<int, 2>, tensor_inline>;                           \
        constexpr auto descriptor = matmul2d_descriptor(32, 256, dynamic_extent, false, false, false,          \
                                                        matmul2d_descriptor::mode::multiply_accumulate);       \
        matmul2d<descriptor, execution_simdgroups<4>> product;                                                 \
        auto out = product.get_destination_cooperative_tensor<threadgroup_tensor, cache_tensor, float>();      \
        for (int i = 0; i < out.get_capacity(); i++)                                                           \
            out[i] = 0.0f;                                                                                     \
        if (thread_index < 32)                                                                                 \
            ones[thread_index] = 1.0f;                                                                         \
        for (int at = 0; at < K; at += 32) {                                                                   \
            int rest = min(K - at, 32);                                                                        \
            for (int i = int(thread_index); i < 32 * rest; i += 128)                                           \
                weights[i / rest * 32 + i % rest] = a[i / rest * K + at + i % rest];                           \
            threadgroup_barrier(mem_flags::mem_threadgroup);                                                   \
            threadgroup_tensor left(weights, dextents<int, 2>{rest, 32}, array<int, 2>{1, 32});                \
            cache_tensor right(w + at * 512, dextents<int, 2>{256, rest}, array<int, 2>{1, 512});              \
            for (int i = 0; i < out.get_capacity(); i++)                                                       \
                if (out.is_valid_element(i))                                                                   \
                    out[i] *= ones[out.get_multidimensional_index(i)[1]];                                      \
            product.run(left, right, out);                                                                     \
            threadgroup_barrier(mem_flags::mem_threadgroup);                                                   \
        }                                                                                                      \
        for (int i = 0; i < out.get_capacity(); i++)                                                           \
            if (out.is_valid_element(i)) {                                                                     \
                auto place = out.get_multidimensional_index(i);                                                \
                c[int(place[1]) * 256 + int(place[0])] = out[i];                                               \
            }                                                                                                  \
        NOTE_PLACES(out, thread_index)                                                                         \
    }

#if !defined PROBE_ONE || defined PROBE_tiles_16
TILES(tiles_16, 16)
#endif
#if !defined PROBE_ONE || defined PROBE_tiles_32
TILES(tiles_32, 32)
#endif
#if !defined PROBE_ONE || defined PROBE_tiles_64
TILES(tiles_64, 64)
#endif
#if !defined PROBE_ONE || defined PROBE_keys_32
KEYS(keys_32, 32)
#endif
#if !defined PROBE_ONE || defined PROBE_keys_13
KEYS(keys_13, 13)
#endif
#if !defined PROBE_ONE || defined PROBE_values_64
VALUES(values_64, 64)
#endif
#if !defined PROBE_ONE || defined PROBE_values_45
VALUES(values_45, 45)
#endif
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
