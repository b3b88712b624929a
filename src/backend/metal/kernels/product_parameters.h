/* What matrix products get from the host beside their operands; read by C and by Metal. */
#ifndef CALLA_BACKEND_METAL_PRODUCT_PARAMETERS_H
#define CALLA_BACKEND_METAL_PRODUCT_PARAMETERS_H

#ifndef __METAL_VERSION__
#include <stdint.h>
#endif

/* How a matrix lies in memory, as a function constant: its dtype, and 16 times that of its scales. */
#define WEIGHT_F32 0
#define WEIGHT_F16 1
#define WEIGHT_BF16 2
#define WEIGHT_AFFINE4 6
#define WEIGHT_AFFINE8 7
#define WEIGHT_DTYPE(kind) ((kind)&15u)
#define WEIGHT_SCALE_DTYPE(kind) ((kind) >> 4)

/* Output rows of a matrix that a simdgroup computes side by side. */
#define VECTOR_ROWS 4

#define LINEAR_MATRICES 5

struct linear_matrix {
    uint32_t rows, y_stride;
    uint32_t first_group; /* of the threadgroups that work on it */
};

struct linear_parameters {
    uint32_t rows, columns, x_stride; /* of x */
    float epsilon;
    struct linear_matrix matrices[LINEAR_MATRICES];
};

/* Products of T rows with the matrices of the experts that they chose. */
struct expert_parameters {
    uint32_t rows, chosen, columns; /* T, K, columns of x */
    uint32_t x_stride, ids_stride;
    uint32_t x_of_pairs; /* x has a row for each pair, not for each token */
    uint32_t out, y_stride;
    float epsilon;
    /* of gate and up: the shared expert's */
    uint32_t shared_out, shared_y_stride;
    uint32_t experts; /* where they are chosen in the same launch */
};

struct expert_down_parameters {
    uint32_t chosen, hidden, width, shared_width;
    uint32_t routed_stride, shared_stride, ids_stride, scores_stride, y_stride;
};

struct route_parameters {
    uint32_t experts, chosen, ids_stride, scores_stride;
};

struct expert_sort_parameters {
    uint32_t experts, pairs, chosen, ids_stride;
};

/* ---- Many rows */

/* A tile of a matrix product of many rows: GEMM_COLUMNS columns of y by 16, 32 or 64 rows; gate and up
 * together have half as many columns. Each of GEMM_THREADS threads brings GEMM_DEPTH / 2 columns of a row of
 * W. */
#define GEMM_COLUMNS 64
#define GEMM_DEPTH 32
#define GEMM_THREADS 128
#define TENSOR_DEPTH 64 /* that of tensor operations */

struct gemm_parameters {
    uint32_t rows;        /* of y; grouped: of order */
    uint32_t columns;     /* of x and W, a multiple of GEMM_DEPTH (of TENSOR_DEPTH with tensor operations) */
    uint32_t out;         /* columns of y: rows of W, of an expert's where grouped, ... */
    uint32_t first_out;   /* ... from this one on ... */
    uint32_t expert_rows; /* ... of so many; grouped */
    uint32_t y_stride;
    uint32_t pairs_of_row;          /* grouped: pair p is of row p / pairs_of_row of x */
    uint32_t first_expert, experts; /* grouped: those that W holds */
};

/* Up to 16, 32 (rows of a tile) pairs of one expert: order[first] .. order[first + rows - 1] */
struct expert_tile {
    uint32_t expert, first, rows, unused;
};

struct expert_tiles_parameters {
    uint32_t experts, tile_rows;
    uint32_t column_tiles; /* threadgroups for each tile */
};

struct prepare_parameters {
    uint32_t columns, stride;
    float epsilon;
};

struct expand_parameters {
    uint64_t first_piece; /* of 16 columns */
    uint32_t pieces;
};

#endif
