/* Matrix products of many rows, between the encode files: x is prepared (normalised, rounded to bfloat16),
 * then multiplied tile by tile. With experts, tiles are of rows that chose the same one, and the GPU counts
 * them. */
#ifndef CALLA_BACKEND_METAL_ENCODE_GEMM_H
#define CALLA_BACKEND_METAL_ENCODE_GEMM_H

#include "backend/metal/encode_products.h"

/* With so many rows or fewer, matrices are read row by row instead. */
#define FEW_ROWS 8

/* Whether products of x can be tiled, with matrices of any kind. */
bool gemm_fits(const struct metal_operand *x);

/* What x is rounded to for a product with W and, unless NULL, U: BF16, or nothing (F32) where the weights are
 * numbers of more bits. */
enum dtype gemm_dtype(const struct metal_operand *matrix, const struct metal_operand *up);

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
    const struct metal_operand *up;     /* U, or NULL */
    const struct metal_operand *y;
    uint32_t first_out; /* the row of W, or of each expert's, of the first column of y; without U */
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

/* The tiles of `groups`, for products of x, prepared, with `out` columns of y. */
void encode_expert_tiles(const struct gemm_groups *groups, const struct metal_operand *x, uint32_t out,
                         bool gate_up, struct metal_encoder *encoder);

/* After a phase. */
void encode_gemm(const struct gemm *gemm, struct metal_encoder *encoder);

#endif
