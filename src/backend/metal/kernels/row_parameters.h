/* What the kernels that work on single rows are told: for C and for Metal. Strides are in elements. */
#ifndef CALLA_BACKEND_METAL_KERNELS_ROW_PARAMETERS_H
#define CALLA_BACKEND_METAL_KERNELS_ROW_PARAMETERS_H

#ifndef __METAL_VERSION__
#include <stdint.h>
#endif

/* How the embedding's table lies in memory, as function constants: enum dtype. */
#define EMBED_F32 0
#define EMBED_F16 1
#define EMBED_BF16 2
#define EMBED_AFFINE4 6
#define EMBED_AFFINE8 7

struct embed_parameters {
    uint32_t rows, columns; /* of the table */
    uint32_t y_stride;
};

/* Rows of norms are heads of `size` elements; `heads` of them make a row of x, z and y. */
struct norm_parameters {
    uint32_t rows, heads, size;
    uint32_t x_stride, z_stride, y_stride;
    float epsilon;
};

struct swiglu_parameters {
    uint32_t columns, gate_stride, up_stride, y_stride;
};

struct combine_parameters {
    uint32_t columns, chosen;
    uint32_t routed_stride, shared_stride, scores_stride, y_stride;
};

#endif
