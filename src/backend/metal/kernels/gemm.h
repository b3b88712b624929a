// What the two kinds of matrix products of many rows have in common, that with matrices of a simdgroup and
// that with tensor operations: how a threadgroup finds its part of the work, and how weights come into
// threadgroup memory.
#ifndef GEMM_H
#define GEMM_H

#include "weights.h"

// Rows are pairs in the order of the experts, and each tile has its expert.
constant bool grouped [[function_constant(120)]];
// y = silu(gate x) up x; the columns of a tile are, eight by eight, of gate and of up.
constant bool gate_up [[function_constant(121)]];

// The rows that a threadgroup works on.
struct gemm_rows {
    uint first, count; // of y; grouped: of order, and none where W does not hold their expert
    ulong matrix_row;  // of W, where their expert's begin
};

// Rows first .. first + most - 1 or, grouped, those of a tile.
METAL_FUNC gemm_rows gemm_rows_of(constant gemm_parameters &given, uint4 tile, uint first, uint most) {
    gemm_rows rows = {first, min(most, given.rows - min(first, given.rows)), 0};
    if (grouped) {
        uint expert = tile.x - given.first_expert;
        rows.first = tile.y;
        rows.count = expert < given.experts ? tile.z : 0;
        rows.matrix_row = ulong(expert) * given.out;
    }
    return rows;
}

// 16 neighbouring columns of a row of W as they lie in memory.
struct weight_piece {
    uint4 low, high;
    float scale, bias;
};

METAL_FUNC weight_piece load_piece(uint kind, weight_matrix matrix, ulong at) {
    weight_piece piece;
    piece.low = piece.high = uint4(0u);
    piece.scale = piece.bias = 0.0f;
    if (WEIGHT_DTYPE(kind) == WEIGHT_AFFINE4 || WEIGHT_DTYPE(kind) == WEIGHT_AFFINE8) {
        if (WEIGHT_DTYPE(kind) == WEIGHT_AFFINE4)
            piece.low.xy = *(device const uint2 *)(matrix.values + at / 2);
        else
            piece.low = *(device const uint4 *)(matrix.values + at);
        piece.scale = weight_scale(kind, matrix.scales, at / 64);
        piece.bias = weight_scale(kind, matrix.biases, at / 64);
    } else { // BF16
        piece.low = *(device const uint4 *)(matrix.values + at * 2);
        piece.high = *(device const uint4 *)(matrix.values + at * 2 + 16);
    }
    return piece;
}

// Four codes of a word from bit `at` on, `bits` each, as scale * code + bias. The masked codes are too large
// by a power of two, and the scale is made smaller by it, exactly.
template <typename T>
METAL_FUNC vec<T, 4> dequantised(uint word, uint at, uint bits, float scale, float bias) {
    float4 values;
    uint mask = ((1u << bits) - 1) << at;
    float shrink = scale / float(1u << at);
#pragma unroll
    for (uint i = 0; i < 4; i++) {
        values[i] = fma(shrink, float(word & mask), bias);
        mask <<= bits;
        shrink /= float(1u << bits);
    }
    return vec<T, 4>{T(values.x), T(values.y), T(values.z), T(values.w)};
}

// Values 4 i .. 4 i + 3 of a piece.
template <typename T> METAL_FUNC vec<T, 4> piece_values(uint kind, weight_piece piece, uint i) {
    if (WEIGHT_DTYPE(kind) == WEIGHT_AFFINE4)
        return dequantised<T>(i < 2 ? piece.low.x : piece.low.y, i % 2 * 16, 4, piece.scale, piece.bias);
    if (WEIGHT_DTYPE(kind) == WEIGHT_AFFINE8)
        return dequantised<T>(piece.low[i], 0, 8, piece.scale, piece.bias);
    uint word = i < 2 ? piece.low[2 * i] : piece.high[2 * i - 4];
    uint next = i < 2 ? piece.low[2 * i + 1] : piece.high[2 * i - 3];
    return vec<T, 4>{T(as_type<float>(word << 16)), T(as_type<float>(word & 0xffff0000u)),
                     T(as_type<float>(next << 16)), T(as_type<float>(next & 0xffff0000u))};
}

// All of them to threadgroup memory, at a multiple of 16 bytes.
template <typename T> METAL_FUNC void store_piece(uint kind, weight_piece piece, threadgroup T *to) {
#pragma unroll
    for (uint i = 0; i < 4; i++)
        ((threadgroup vec<T, 4> *)to)[i] = piece_values<T>(kind, piece, i);
}

#endif
