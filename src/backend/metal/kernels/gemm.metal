// Matrix products of many rows with matrices of a simdgroup, on every Apple GPU: y = x W^T. Weights become bfloat (for the
// router float) a tile at a time in threadgroup memory, sums are float. Rows of x are prepared first: normalised where the
// op says so, rounded, without gaps. With weights of more bits nothing is rounded: gemm_float, which the router has too.
#include "gemm.h"

// y[T, columns] = x, or rms_norm(x) * norm, as T. A threadgroup a row.
template <typename T>
kernel void prepare_rows(constant prepare_parameters &given [[buffer(0)]], device const float *x [[buffer(1)]],
                         device const float *norm [[buffer(2)]], device T *y [[buffer(3)]],
                         uint row [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                         uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]],
                         uint simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float squares[32];
    uint columns = given.columns;
    x += ulong(row) * given.stride;
    y += ulong(row) * columns;
    float scale = 1.0f;
    if (normalise) {
        float sum = 0.0f;
        for (uint i = thread_index; i < columns; i += threads)
            sum += x[i] * x[i];
        sum = simd_sum(sum);
        if (lane == 0)
            squares[simdgroup] = sum;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        sum = simd_sum(lane < simdgroups ? squares[lane] : 0.0f);
        scale = norm_scale(sum, columns, given.epsilon);
    }
    for (uint i = thread_index; i < columns; i += threads)
        y[i] = normalise ? T(x[i] * scale * norm[i]) : T(x[i]);
}
template [[host_name("prepare_rows_bfloat")]] [[kernel]] decltype(prepare_rows<bfloat>) prepare_rows<bfloat>;
template [[host_name("prepare_rows_float")]] [[kernel]] decltype(prepare_rows<float>) prepare_rows<float>;

// Where the policy dequant_in_gemm is off: pieces of 16 columns of W from first_piece on as bfloat, a thread each.
kernel void expand_weights(constant expand_parameters &given [[buffer(0)]], device const uchar *values [[buffer(1)]],
                           device const uchar *scales [[buffer(2)]], device const uchar *biases [[buffer(3)]],
                           device bfloat4 *y [[buffer(4)]], uint i [[thread_position_in_grid]]) {
    if (i >= given.pieces)
        return;
    weight_matrix matrix = {values, scales, biases};
    weight_piece piece = load_piece(kind_a, matrix, (given.first_piece + i) * 16);
#pragma unroll
    for (uint j = 0; j < 4; j++)
        y[ulong(i) * 4 + j] = piece_values<bfloat>(kind_a, piece, j);
}

// starts[E+1] -> the tiles of the pairs of every expert, and the threadgroups that they take. Threadgroup e, one simdgroup,
// counts the tiles of the experts before; the last one has counted all.
kernel void expert_tiles(constant expert_tiles_parameters &given [[buffer(0)]], device const int *starts [[buffer(1)]],
                         device uint4 *tiles [[buffer(2)]], device uint *groups [[buffer(3)]],
                         uint expert [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    uint below = 0, tile_rows = given.tile_rows;
    for (uint e = lane; e < expert; e += 32)
        below += (uint(starts[e + 1] - starts[e]) + tile_rows - 1) / tile_rows;
    below = simd_sum(below);
    if (expert == given.experts) {
        if (lane < 3)
            groups[lane] = lane == 0 ? given.column_tiles : lane == 1 ? below : 1;
        return;
    }
    uint start = uint(starts[expert]), count = uint(starts[expert + 1]) - start;
    for (uint i = lane; i * tile_rows < count; i += 32)
        tiles[below + i] = uint4(expert, start + i * tile_rows, min(tile_rows, count - i * tile_rows), 0);
}

// A piece of W, or of U, which may be of another kind.
METAL_FUNC weight_piece load_either(bool is_up, weight_matrix matrix, ulong at) {
    if (gate_up && kind_a != kind_b && is_up)
        return load_piece(kind_b, matrix, at);
    return load_piece(kind_a, matrix, at);
}

template <typename T> METAL_FUNC void store_either(bool is_up, weight_piece piece, threadgroup T *to) {
    if (gate_up && kind_a != kind_b && is_up)
        store_piece<T>(kind_b, piece, to);
    else
        store_piece<T>(kind_a, piece, to);
}

// A tile of Rows by GEMM_COLUMNS. Four simdgroups side by side have 16 columns each, or with 64 rows a quarter each.
template <typename T, uint Rows>
kernel void gemm(constant gemm_parameters &given [[buffer(0)]], device const T *x [[buffer(1)]],
                 device const uchar *values [[buffer(2)]], device const uchar *scales [[buffer(3)]],
                 device const uchar *biases [[buffer(4)]],
                 device const uchar *up_values [[buffer(5), function_constant(gate_up)]],
                 device const uchar *up_scales [[buffer(6), function_constant(gate_up)]],
                 device const uchar *up_biases [[buffer(7), function_constant(gate_up)]],
                 device float *y [[buffer(8)]], device const uint4 *tiles [[buffer(9), function_constant(grouped)]],
                 device const int *order [[buffer(10), function_constant(grouped)]],
                 uint2 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    constexpr uint stride = GEMM_DEPTH + 16 / sizeof(T); // rows of tiles in memory, multiples of 16 bytes
    constexpr uint own_rows = Rows == 64 ? 32 : Rows, own_columns = Rows == 64 ? 32 : 16;
    constexpr uint x_count = Rows * GEMM_DEPTH / GEMM_THREADS; // elements of x that a thread brings
    threadgroup uint4 memory[(Rows + GEMM_COLUMNS) * stride * sizeof(T) / 16];
    threadgroup float block_memory[GEMM_THREADS / 32 * 64];
    threadgroup T *x_tile = (threadgroup T *)memory, *w_tile = x_tile + Rows * stride;
    uint4 tile = uint4(0u);
    if (grouped)
        tile = tiles[group.y];
    const gemm_rows own = gemm_rows_of(given, tile, group.y * Rows, Rows);
    if (own.count == 0)
        return;
    uint columns = given.columns, first_row = own.first, rows = own.count;
    // What this thread brings: x_count elements of a row of x, 16 of a row of W.
    uint x_row = thread_index / (GEMM_THREADS / Rows), x_column = thread_index % (GEMM_THREADS / Rows) * x_count;
    uint w_row = thread_index / 2, w_column = thread_index % 2 * 16;
    ulong from_row = first_row + min(x_row, rows - 1);
    if (grouped)
        from_row = uint(order[from_row]) / given.pairs_of_row;
    device const vec<T, 4> *x_from = (device const vec<T, 4> *)(x + from_row * columns + x_column);
    weight_matrix matrix = {values, scales, biases};
    uint first_column = group.x * GEMM_COLUMNS, column = first_column + w_row;
    const bool is_up = gate_up && w_row % 16 >= 8;
    if (gate_up) {
        first_column /= 2;
        column = first_column + w_row / 16 * 8 + w_row % 8;
        if (is_up)
            matrix = weight_matrix{up_values, up_scales, up_biases};
    }
    if (first_column >= given.out) // groups are counted for the widest part of y
        return;
    ulong w_from = (own.matrix_row + min(column, given.out - 1)) * columns + w_column;
    threadgroup vec<T, 4> *x_to = (threadgroup vec<T, 4> *)(x_tile + x_row * stride + x_column);
    threadgroup T *w_to = w_tile + w_row * stride + w_column;

    uint block_row = Rows == 64 ? simdgroup / 2 * 32 : 0, block_column = Rows == 64 ? simdgroup % 2 * 32 : simdgroup * 16;
    simdgroup_matrix<float, 8, 8> sums[own_rows / 8][own_columns / 8];
#pragma unroll
    for (uint i = 0; i < own_rows / 8; i++)
#pragma unroll
        for (uint j = 0; j < own_columns / 8; j++)
            sums[i][j] = make_filled_simdgroup_matrix<float, 8>(0.0f);
    vec<T, 4> x_next[x_count / 4];
    weight_piece w_next = load_either(is_up, matrix, w_from);
#pragma unroll
    for (uint i = 0; i < x_count / 4; i++)
        x_next[i] = x_from[i];
    for (uint k = 0; k < columns; k += GEMM_DEPTH) {
#pragma unroll
        for (uint i = 0; i < x_count / 4; i++)
            x_to[i] = x_next[i];
        store_either<T>(is_up, w_next, w_to);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        // What comes next is under way while this is multiplied.
        if (k + GEMM_DEPTH < columns) {
#pragma unroll
            for (uint i = 0; i < x_count / 4; i++)
                x_next[i] = x_from[(k + GEMM_DEPTH) / 4 + i];
            w_next = load_either(is_up, matrix, w_from + k + GEMM_DEPTH);
        }
#pragma unroll
        for (uint depth = 0; depth < GEMM_DEPTH; depth += 8) {
            simdgroup_matrix<T, 8, 8> left[own_rows / 8], right[own_columns / 8];
#pragma unroll
            for (uint i = 0; i < own_rows / 8; i++)
                simdgroup_load(left[i], x_tile + (block_row + 8 * i) * stride + depth, stride);
#pragma unroll
            for (uint j = 0; j < own_columns / 8; j++)
                simdgroup_load(right[j], w_tile + (block_column + 8 * j) * stride + depth, stride, 0, true);
#pragma unroll
            for (uint i = 0; i < own_rows / 8; i++)
#pragma unroll
                for (uint j = 0; j < own_columns / 8; j++)
                    simdgroup_multiply_accumulate(sums[i][j], left[i], right[j], sums[i][j]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    // Which lane has which element is not documented: blocks go through memory, a lane then has two of a row.
    threadgroup float *block = block_memory + simdgroup * 64;
    uint row_in_block = lane / 4, column_in_block = lane % 4 * 2;
#pragma unroll
    for (uint i = 0; i < own_rows / 8; i++)
#pragma unroll
        for (uint j = 0; j < own_columns / 8; j++) {
            if (gate_up && j % 2 == 1)
                continue;
            uint at = block_column + 8 * j;
            if (gate_up) {
                at /= 2;
#pragma unroll
                for (uint e = 0; e < 2; e++)
                    sums[i][j].thread_elements()[e] =
                        silu(sums[i][j].thread_elements()[e]) * sums[i][j + 1].thread_elements()[e];
            }
            simdgroup_store(sums[i][j], block, 8);
            simdgroup_barrier(mem_flags::mem_threadgroup);
            uint row = block_row + 8 * i + row_in_block;
            if (row < rows) {
                ulong to_row = first_row + row;
                if (grouped)
                    to_row = uint(order[to_row]);
                device float *to = y + to_row * given.y_stride;
#pragma unroll
                for (uint e = 0; e < 2; e++) {
                    uint to_column = first_column + at + column_in_block + e;
                    float value = block[row_in_block * 8 + column_in_block + e];
                    if (to_column < given.out)
                        to[to_column] = accumulate ? to[to_column] + value : value;
                }
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
}
template [[host_name("gemm_16")]] [[kernel]] decltype(gemm<bfloat, 16>) gemm<bfloat, 16>;
template [[host_name("gemm_32")]] [[kernel]] decltype(gemm<bfloat, 32>) gemm<bfloat, 32>;
template [[host_name("gemm_64")]] [[kernel]] decltype(gemm<bfloat, 64>) gemm<bfloat, 64>;
template [[host_name("gemm_float_16")]] [[kernel]] decltype(gemm<float, 16>) gemm<float, 16>;
template [[host_name("gemm_float_32")]] [[kernel]] decltype(gemm<float, 32>) gemm<float, 32>;
