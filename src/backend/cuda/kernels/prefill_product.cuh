/* What a product of many rows by 4-bit matrices is told. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_PREFILL_PRODUCT_CUH
#define CALLA_BACKEND_CUDA_KERNELS_PREFILL_PRODUCT_CUH

#include <cuda_bf16.h>
#include <stdint.h>

#define GEMM_MATRICES 5

enum gemm_kind {
    GEMM_LINEAR,  /* up to GEMM_MATRICES matrices of one x, their features as if one after the other */
    GEMM_SPLIT,   /* the same; the computing warpgroups divide the columns of a tile among them */
    GEMM_GATE_UP, /* matrix 0: of the experts, matrix 1: the shared expert's; y = silu(gate x) * up x */
    GEMM_DOWN,    /* the same without gates */
};

struct gemm_matrix {
    const uint8_t *tiles, *more; /* more: of the up matrix, GEMM_GATE_UP */
    const __nv_bfloat16 *x;
    void *y;
    uint32_t features; /* of one expert: a multiple of 16 */
    uint32_t x_stride, y_stride;
    uint32_t first; /* features of the matrices before: set by gemm_join */
    uint32_t accumulate;
};

struct gemm_arguments {
    struct gemm_matrix matrices[GEMM_MATRICES];
    uint32_t matrix_count;
    uint32_t features;              /* of all matrices: GEMM_LINEAR */
    uint32_t groups, shared_groups; /* columns / 64; of the shared expert where that is another */
    uint32_t tokens;
    const int32_t *starts, *order; /* of the experts' pairs */
    uint32_t experts, pairs_a_row; /* row of x = pair / pairs_a_row */
};

#endif
