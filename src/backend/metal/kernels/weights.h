// Reading matrices of weights of every kind, and their products with a few rows at a time.
//
// The one idea: a lane takes 16 neighbouring columns, 32 lanes 512 of them, whatever the kind of the matrix.
// 16 columns lie in one group of 64, so that a lane's products with codes need one scale and one bias:
//     sum_i (scale q_i + bias) x_i = scale sum_i q_i x_i + bias sum_i x_i
// Which kind a matrix is of is a function constant: the branches below are gone from the compiled kernel.
#ifndef WEIGHTS_H
#define WEIGHTS_H

#include <metal_stdlib>
using namespace metal;
#include "activations.h"
#include "product_parameters.h"

constant uint kind_a [[function_constant(100)]];
constant uint kind_b [[function_constant(101)]];
constant uint kind_c [[function_constant(102)]];
constant uint kind_d [[function_constant(103)]];
constant bool normalise [[function_constant(104)]];
constant bool accumulate [[function_constant(105)]];
// Rows of x begin at multiples of 16 bytes and have whole vectors of four.
constant bool x_vectors [[function_constant(106)]];

// The slots of a matrix; scales and biases are of affine ones only.
struct weight_matrix {
    device const uchar *values;
    device const uchar *scales;
    device const uchar *biases;
};

METAL_FUNC float weight_scale(uint kind, device const uchar *scales, ulong group) {
    if (WEIGHT_SCALE_DTYPE(kind) == WEIGHT_F32)
        return ((device const float *)scales)[group];
    return float(((device const bfloat *)scales)[group]);
}

METAL_FUNC float weight_plain(uint kind, device const uchar *values, ulong at) {
    if (WEIGHT_DTYPE(kind) == WEIGHT_F32)
        return ((device const float *)values)[at];
    if (WEIGHT_DTYPE(kind) == WEIGHT_F16)
        return float(((device const half *)values)[at]);
    return float(((device const bfloat *)values)[at]);
}

// Columns column .. column + 15 of R rows of x, times the norm's weight where there is one, and their sums;
// adds the squares of x. Zeros beyond the last column; rows beyond the last are the last.
template <int R>
METAL_FUNC void load_inputs(device const float *x, ulong stride, uint rows, device const float *norm,
                            uint column, uint columns, thread float (&values)[R][16], thread float (&sums)[R],
                            thread float (&squares)[R]) {
    float weights[16];
    if (normalise) {
#pragma unroll
        for (uint i = 0; i < 16; i++)
            weights[i] = column + i < columns ? norm[column + i] : 0.0f;
    }
#pragma unroll
    for (uint r = 0; r < R; r++) {
        device const float *row = x + min(r, rows - 1) * stride + column;
        if (x_vectors) {
#pragma unroll
            for (uint i = 0; i < 16; i += 4) {
                float4 four = float4(0.0f);
                if (column + i < columns)
                    four = *(device const float4 *)(row + i);
                values[r][i] = four.x;
                values[r][i + 1] = four.y;
                values[r][i + 2] = four.z;
                values[r][i + 3] = four.w;
            }
        } else {
#pragma unroll
            for (uint i = 0; i < 16; i++)
                values[r][i] = column + i < columns ? row[i] : 0.0f;
        }
        sums[r] = 0.0f;
#pragma unroll
        for (uint i = 0; i < 16; i++) {
            if (normalise) {
                squares[r] += values[r][i] * values[r][i];
                values[r][i] *= weights[i];
            }
            sums[r] += values[r][i];
        }
    }
}

// out[r] += W[row, column .. column + 15] x[r]. Codes are masked where they are in their word, not shifted:
// what they are too large by, x is made smaller by, exactly, once for all rows of W.
template <int R>
METAL_FUNC void add_products(uint kind, weight_matrix matrix, ulong row, uint column, uint columns,
                             thread const float (&x)[R][16], thread const float (&sums)[R],
                             thread float (&out)[R]) {
    ulong at = row * columns + column;
    if (WEIGHT_DTYPE(kind) == WEIGHT_AFFINE4) {
        uint2 codes = *(device const uint2 *)(matrix.values + at / 2);
        float scale = weight_scale(kind, matrix.scales, at / 64),
              bias = weight_scale(kind, matrix.biases, at / 64);
#pragma unroll
        for (uint r = 0; r < R; r++) {
            float dot = 0.0f, shrink = 1.0f;
#pragma unroll
            for (uint i = 0; i < 8; i++) {
                dot += x[r][i] * shrink * float(codes.x & (15u << 4 * i));
                dot += x[r][8 + i] * shrink * float(codes.y & (15u << 4 * i));
                shrink *= 1.0f / 16;
            }
            out[r] += scale * dot + bias * sums[r];
        }
    } else if (WEIGHT_DTYPE(kind) == WEIGHT_AFFINE8) {
        uint4 codes = *(device const uint4 *)(matrix.values + at);
        float scale = weight_scale(kind, matrix.scales, at / 64),
              bias = weight_scale(kind, matrix.biases, at / 64);
#pragma unroll
        for (uint r = 0; r < R; r++) {
            float dot = 0.0f, shrink = 1.0f;
#pragma unroll
            for (uint i = 0; i < 4; i++) {
                dot += x[r][i] * shrink * float(codes.x & (255u << 8 * i));
                dot += x[r][4 + i] * shrink * float(codes.y & (255u << 8 * i));
                dot += x[r][8 + i] * shrink * float(codes.z & (255u << 8 * i));
                dot += x[r][12 + i] * shrink * float(codes.w & (255u << 8 * i));
                shrink *= 1.0f / 256;
            }
            out[r] += scale * dot + bias * sums[r];
        }
    } else {
#pragma unroll
        for (uint i = 0; i < 16; i++) {
            float weight = column + i < columns ? weight_plain(kind, matrix.values, at + i) : 0.0f;
#pragma unroll
            for (uint r = 0; r < R; r++)
                out[r] += x[r][i] * weight;
        }
    }
}

METAL_FUNC float norm_scale(float squares, uint columns, float epsilon) {
    return 1.0f / sqrt(squares / float(columns) + epsilon);
}

#endif
