/* Matrix products of many rows, between the encode files: x is prepared (normalised, rounded to bfloat16),
 * then multiplied tile by tile. With experts, tiles are of rows that chose the same one, and the GPU counts
 * them. */
#ifndef CALLA_BACKEND_METAL_ENCODE_GEMM_H
#define CALLA_BACKEND_METAL_ENCODE_GEMM_H

#include "backend/metal/encode_products.h"

/* With so many rows or fewer, matrices are read row by row instead. */
#define FEW_ROWS 8

/* Whether a product of x with this matrix can be tiled. */
bool gemm_fits(const struct metal_operand *x, const struct metal_operand *matrix);

/* Which rows are multiplied with which expert's matrix. */
struct gemm_groups {
    const struct metal_operand *starts, *order;
    struct metal_operand tiles, counts; /* of the workspace */
    uint32_t tile_rows, experts;
    uint32_t pairs_of_row; /* of x: 1 where it has a row for each pair */
};

/* y = x W^T, or y = silu(x W^T) (x U^T). */
struct gemm {
    const struct metal_operand *x;      /* prepared */
    const struct metal_operand *matrix; /* W */
    const struct metal_operand *up;     /* U, of the same kind as W, or NULL */
    const struct metal_operand *y;
    const struct gemm_groups *groups;     /* NULL: all rows with all of W */
    const struct metal_operand *expanded; /* where dequant_in_gemm is off: memory for weights */
    bool accumulate;
};

/* The memory for expanded weights, where the policy wants them expanded; of 0 rows where it does not.
 * Products of one op may share it; each then begins with a phase. */
struct metal_operand expanded_place(struct workspace_places *places, const struct metal_encoder *encoder,
                                    const struct metal_operand *matrix, const struct metal_operand *up,
                                    uint32_t experts);

/* x or its rms_norm, rounded to the dtype of `prepared`, BF16 or F32. */
void encode_prepare(const struct metal_operand *x, const struct metal_operand *norm, float epsilon,
                    const struct metal_operand *prepared, struct metal_encoder *encoder);

struct gemm_groups gemm_groups_place(struct workspace_places *places, const struct metal_encoder *encoder,
                                     const struct metal_operand *starts, const struct metal_operand *order);

/* The tiles of `groups`, for products with `out` columns of y. */
void encode_expert_tiles(const struct gemm_groups *groups, uint32_t out, bool gate_up,
                         struct metal_encoder *encoder);

/* After a phase. */
void encode_gemm(const struct gemm *gemm, struct metal_encoder *encoder);

#endif
