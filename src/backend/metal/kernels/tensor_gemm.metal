// gemm.metal with the products as tensor operations, for an M5: tiles of weights, and rows of x beside them, come into
// threadgroup memory as bfloats, 64 columns at a time, which is a group of the weights' codes. The sums are cooperative
// tensors of float over all four simdgroups. Which lane has which element differs between GPUs, so each element is asked
// where it belongs; gate and up are two products of one shape, whose elements lie alike.
#include "gemm.h"
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace mpp::tensor_ops;

// A tile of Rows by GEMM_COLUMNS; the constant gate_up is GateUp. The slots are those of gemm.
template <uint Rows, bool GateUp>
kernel void tensor_gemm(constant gemm_parameters &given [[buffer(0)]], device const bfloat *x [[buffer(1)]],
                        device const uchar *values [[buffer(2)]], device const uchar *scales [[buffer(3)]],
                        device const uchar *biases [[buffer(4)]],
                        device const uchar *up_values [[buffer(5), function_constant(gate_up)]],
                        device const uchar *up_scales [[buffer(6), function_constant(gate_up)]],
                        device const uchar *up_biases [[buffer(7), function_constant(gate_up)]],
                        device float *y [[buffer(8)]],
                        device const uint4 *tiles [[buffer(9), function_constant(grouped)]],
                        device const int *order [[buffer(10), function_constant(grouped)]],
                        uint2 group [[threadgroup_position_in_grid]],
                        uint thread_index [[thread_index_in_threadgroup]]) {
    constexpr uint x_count = Rows * TENSOR_DEPTH / GEMM_THREADS; // elements of x that a thread brings
    constexpr uint w_size = GEMM_COLUMNS * TENSOR_DEPTH, vector = 16 / sizeof(bfloat);
    threadgroup uint4 x_memory[Rows * TENSOR_DEPTH / vector];
    threadgroup uint4 w_memory[(GateUp ? 2 : 1) * w_size / vector];
    threadgroup bfloat *x_tile = (threadgroup bfloat *)x_memory, *w_tile = (threadgroup bfloat *)w_memory;
    uint4 tile = uint4(0u);
    if (grouped)
        tile = tiles[group.y];
    const gemm_rows rows = gemm_rows_of(given, tile, group.y * Rows, Rows);
    if (rows.count == 0 || group.x * GEMM_COLUMNS >= given.out) // groups are counted for the widest part of y
        return;
    // What this thread brings: x_count elements of a row of x, 32 of a row of W and of U.
    uint x_row = thread_index / (GEMM_THREADS / Rows), x_column = thread_index % (GEMM_THREADS / Rows) * x_count;
    uint w_row = thread_index / 2, w_column = thread_index % 2 * 32;
    ulong from_row = rows.first + min(x_row, rows.count - 1);
    if (grouped)
        from_row = uint(order[from_row]) / given.pairs_of_row;
    uint columns = given.columns, first_column = group.x * GEMM_COLUMNS;
    device const bfloat4 *x_from = (device const bfloat4 *)(x + from_row * columns + x_column);
    ulong w_from = (rows.matrix_row + min(first_column + w_row, given.out - 1)) * columns + w_column;
    weight_matrix matrix = {values, scales, biases}, up = matrix;
    if (gate_up)
        up = weight_matrix{up_values, up_scales, up_biases};
    threadgroup bfloat4 *x_to = (threadgroup bfloat4 *)(x_tile + x_row * TENSOR_DEPTH + x_column);
    threadgroup bfloat *w_to = w_tile + w_row * TENSOR_DEPTH + w_column;

    using operand = tensor<threadgroup bfloat, dextents<int, 2>, tensor_inline>;
    constexpr auto descriptor = matmul2d_descriptor(Rows, GEMM_COLUMNS, TENSOR_DEPTH, false, true, false,
                                                    matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<descriptor, execution_simdgroups<GEMM_THREADS / 32>> product;
    operand left(x_tile, dextents<int, 2>{TENSOR_DEPTH, int(Rows)}, array<int, 2>{1, TENSOR_DEPTH});
    operand right(w_tile, dextents<int, 2>{TENSOR_DEPTH, GEMM_COLUMNS}, array<int, 2>{1, TENSOR_DEPTH});
    operand right_up(w_tile + (GateUp ? w_size : 0), dextents<int, 2>{TENSOR_DEPTH, GEMM_COLUMNS},
                     array<int, 2>{1, TENSOR_DEPTH});
    auto sums = product.template get_destination_cooperative_tensor<operand, operand, float>();
    auto up_sums = product.template get_destination_cooperative_tensor<operand, operand, float>();
#pragma unroll
    for (int i = 0; i < sums.get_capacity(); i++)
        sums[i] = up_sums[i] = 0.0f;
    bfloat4 x_next[x_count / 4];
    weight_piece w_next[2], up_next[2];
#pragma unroll
    for (uint i = 0; i < x_count / 4; i++)
        x_next[i] = x_from[i];
#pragma unroll
    for (uint i = 0; i < 2; i++) {
        w_next[i] = load_piece(kind_a, matrix, w_from + 16 * i);
        if (GateUp)
            up_next[i] = load_piece(kind_b, up, w_from + 16 * i);
    }
    for (uint k = 0; k < columns; k += TENSOR_DEPTH) {
#pragma unroll
        for (uint i = 0; i < x_count / 4; i++)
            x_to[i] = x_next[i];
#pragma unroll
        for (uint i = 0; i < 2; i++) {
            store_piece<bfloat>(kind_a, w_next[i], w_to + 16 * i);
            if (GateUp)
                store_piece<bfloat>(kind_b, up_next[i], w_to + w_size + 16 * i);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        // What comes next is under way while this is multiplied.
        if (k + TENSOR_DEPTH < columns) {
#pragma unroll
            for (uint i = 0; i < x_count / 4; i++)
                x_next[i] = x_from[(k + TENSOR_DEPTH) / 4 + i];
#pragma unroll
            for (uint i = 0; i < 2; i++) {
                w_next[i] = load_piece(kind_a, matrix, w_from + k + TENSOR_DEPTH + 16 * i);
                if (GateUp)
                    up_next[i] = load_piece(kind_b, up, w_from + k + TENSOR_DEPTH + 16 * i);
            }
        }
        product.run(left, right, sums);
        if (GateUp)
            product.run(left, right_up, up_sums);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
#pragma unroll
    for (int i = 0; i < sums.get_capacity(); i++)
        if (sums.is_valid_element(i)) {
            auto place = sums.get_multidimensional_index(i);
            uint row = uint(place[1]), column = first_column + uint(place[0]);
            if (row >= rows.count || column >= given.out)
                continue;
            ulong to_row = rows.first + row;
            if (grouped)
                to_row = uint(order[to_row]);
            device float *to = y + to_row * given.y_stride + column;
            float value = GateUp ? silu(sums[i]) * up_sums[i] : sums[i];
            *to = accumulate ? *to + value : value;
        }
}
template [[host_name("tensor_gemm_16")]] [[kernel]] decltype(tensor_gemm<16, false>) tensor_gemm<16, false>;
template [[host_name("tensor_gemm_32")]] [[kernel]] decltype(tensor_gemm<32, false>) tensor_gemm<32, false>;
template [[host_name("tensor_gemm_64")]] [[kernel]] decltype(tensor_gemm<64, false>) tensor_gemm<64, false>;
template [[host_name("tensor_gate_up_16")]] [[kernel]] decltype(tensor_gemm<16, true>) tensor_gemm<16, true>;
template [[host_name("tensor_gate_up_32")]] [[kernel]] decltype(tensor_gemm<32, true>) tensor_gemm<32, true>;
