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
    ulong matrix_row;  // of W, where theirs begin
};

// Rows first .. first + most - 1 or, grouped, those of a tile.
METAL_FUNC gemm_rows gemm_rows_of(constant gemm_parameters &given, uint4 tile, uint first, uint most) {
    gemm_rows rows = {first, min(most, given.rows - min(first, given.rows)), given.first_out};
    if (grouped) {
        uint expert = tile.x - given.first_expert;
        rows.first = tile.y;
        rows.count = expert < given.experts ? tile.z : 0;
        rows.matrix_row += ulong(expert) * given.expert_rows;
    }
    return rows;
}

// 16 neighbouring columns of a row of W as they lie in memory: one word for 4-bit codes, four for 32-bit
// numbers.
struct weight_piece {
    uint4 words[4];
    float scale, bias;
};

METAL_FUNC weight_piece load_piece(uint kind, weight_matrix matrix, ulong at) {
    weight_piece piece;
    piece.scale = piece.bias = 0.0f;
#pragma unroll
    for (uint i = 0; i < 4; i++)
        piece.words[i] = uint4(0u);
    if (WEIGHT_DTYPE(kind) == WEIGHT_AFFINE4 || WEIGHT_DTYPE(kind) == WEIGHT_AFFINE8) {
        if (WEIGHT_DTYPE(kind) == WEIGHT_AFFINE4)
            piece.words[0].xy = *(device const uint2 *)(matrix.values + at / 2);
        else
            piece.words[0] = *(device const uint4 *)(matrix.values + at);
        piece.scale = weight_scale(kind, matrix.scales, at / 64);
        piece.bias = weight_scale(kind, matrix.biases, at / 64);
    } else {
        const uint bytes = WEIGHT_DTYPE(kind) == WEIGHT_F32 ? 4 : 2;
#pragma unroll
        for (uint i = 0; i < bytes; i++)
            piece.words[i] = *(device const uint4 *)(matrix.values + at * bytes + 16 * i);
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

// Number `i` of two in a word, of 16 bits each.
METAL_FUNC float half_of_word(uint kind, uint word, uint i) {
    uint bits = word >> 16 * i & 0xffffu;
    return WEIGHT_DTYPE(kind) == WEIGHT_F16 ? float(as_type<half>(ushort(bits))) : as_type<float>(bits << 16);
}

// Values 4 i .. 4 i + 3 of a piece.
template <typename T> METAL_FUNC vec<T, 4> piece_values(uint kind, weight_piece piece, uint i) {
    if (WEIGHT_DTYPE(kind) == WEIGHT_AFFINE4)
        return dequantised<T>(i < 2 ? piece.words[0].x : piece.words[0].y, i % 2 * 16, 4, piece.scale,
                              piece.bias);
    if (WEIGHT_DTYPE(kind) == WEIGHT_AFFINE8)
        return dequantised<T>(piece.words[0][i], 0, 8, piece.scale, piece.bias);
    if (WEIGHT_DTYPE(kind) == WEIGHT_F32) {
        uint4 words = piece.words[i];
        return vec<T, 4>{T(as_type<float>(words.x)), T(as_type<float>(words.y)), T(as_type<float>(words.z)),
                         T(as_type<float>(words.w))};
    }
    uint word = piece.words[i / 2][i % 2 * 2], next = piece.words[i / 2][i % 2 * 2 + 1];
    return vec<T, 4>{T(half_of_word(kind, word, 0)), T(half_of_word(kind, word, 1)),
                     T(half_of_word(kind, next, 0)), T(half_of_word(kind, next, 1))};
}

// All of them to threadgroup memory, at a multiple of 16 bytes.
template <typename T> METAL_FUNC void store_piece(uint kind, weight_piece piece, threadgroup T *to) {
#pragma unroll
    for (uint i = 0; i < 4; i++)
        ((threadgroup vec<T, 4> *)to)[i] = piece_values<T>(kind, piece, i);
}

#endif
