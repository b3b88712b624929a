/* Between the encode files of matrix products: weights as kernels see them, and the product of a few rows
 * with several matrices. */
#ifndef CALLA_BACKEND_METAL_ENCODE_PRODUCTS_H
#define CALLA_BACKEND_METAL_ENCODE_PRODUCTS_H

#include "backend/metal/kernels/product_parameters.h"
#include "backend/metal/metal_encode.h"

/* The function constants of kernels/weights.h. */
enum product_constant {
    CONSTANT_KIND_A = 100,
    CONSTANT_KIND_B,
    CONSTANT_KIND_C,
    CONSTANT_KIND_D,
    CONSTANT_NORMALISE,
    CONSTANT_ACCUMULATE,
    CONSTANT_X_VECTORS,
    CONSTANT_HAS_SECOND, /* and the third, fourth, fifth */
};

/* The value of a constant kind_... */
uint32_t weight_kind(const struct metal_operand *matrix);

/* Slots slot, slot + 1, slot + 2: codes, scales, biases; a matrix without the latter has its values there. */
void bind_weight(struct metal_encoder *encoder, uint32_t slot, const struct metal_operand *matrix);

/* Whether rows of x may be read in vectors of four. */
bool vectors_fit(const struct metal_operand *x);

/* Simdgroups of a threadgroup of the pipeline in use: `wanted`, or fewer where it allows no more. */
uint32_t simdgroups_of(const struct metal_encoder *encoder, uint32_t wanted);

static inline uint32_t divide_up(uint32_t a, uint32_t b) {
    return (a + b - 1) / b;
}

/* Parts of a workspace, one after the other, each aligned. */
struct workspace_places {
    const struct metal_operand *workspace;
    uint64_t used; /* bytes */
};

struct metal_operand workspace_place(struct workspace_places *places, enum dtype dtype, uint32_t rows,
                                     uint32_t columns);

/* y = x W^T for `count` matrices that follow each other as W, y, W, y: what OP_LINEAR means. */
struct linear_products {
    const struct metal_operand *x, *norm; /* norm: NULL where nothing is normalised */
    const struct metal_operand *pairs;
    uint32_t count;
    float epsilon;
    bool accumulate;
};
void encode_linear_rows(const struct linear_products *products, struct metal_encoder *encoder);

#endif
