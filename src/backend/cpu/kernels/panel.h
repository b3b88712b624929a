/* Panels of a weight for vectors of 4 or 8 rows: where the rows lie, their scales, a row of INT8 input.
 * Before it is included, VECTOR_ROWS says how many rows a vector holds, one to a lane. */
#ifndef CALLA_BACKEND_CPU_KERNELS_PANEL_H
#define CALLA_BACKEND_CPU_KERNELS_PANEL_H

#include "backend/cpu/kernels.h"

#define PANEL_VECTORS (PANEL_ROWS / VECTOR_ROWS)
#define GROUP_BYTES (DTYPE_AFFINE_GROUP / 2) /* of 4-bit codes */
#define BLOCK_GROUPS 8                       /* whose scales are transposed at once */
#define BLOCK_COLUMNS (BLOCK_GROUPS * DTYPE_AFFINE_GROUP)
#define INLINE static inline __attribute__((always_inline))

/* Where the rows of a panel begin. Lanes past the last row repeat it. */
struct panel_rows {
    const unsigned char *codes[PANEL_ROWS];
    size_t first_group[PANEL_ROWS]; /* its scales' and offsets' index */
    size_t vectors;
};

/* Scales and offsets of a block of groups. */
struct panel_scales {
    _Alignas(32) float scale[BLOCK_GROUPS][PANEL_ROWS];
    _Alignas(32) float offset[BLOCK_GROUPS][PANEL_ROWS];
};

static inline bool is_affine(enum dtype dtype) {
    return dtype == DTYPE_AFFINE4 || dtype == DTYPE_AFFINE8;
}

static inline struct panel_rows panel_rows(const struct view *matrix, size_t first, size_t rows) {
    struct panel_rows panel = {.vectors = (rows + VECTOR_ROWS - 1) / VECTOR_ROWS};
    size_t stride = is_affine(matrix->dtype) ? matrix->columns : matrix->stride;
    for (size_t r = 0; r < panel.vectors * VECTOR_ROWS; r++) {
        size_t row = first + (r < rows ? r : rows - 1);
        panel.codes[r] = matrix->bytes + row * stride * dtype_bits(matrix->dtype) / 8;
        panel.first_group[r] = row * (matrix->columns / DTYPE_AFFINE_GROUP);
    }
    return panel;
}

INLINE const unsigned char *operand_row(const struct operand_rows *x, const uint32_t *index, size_t i) {
    return x->data + (index == NULL ? i : index[i]) * x->row_bytes;
}

/* A row of INT8 input. */
struct int8_input {
    const int8_t *codes;
    const float *scales, *sums;
};

INLINE struct int8_input int8_input(const struct operand_rows *x, const uint32_t *index, size_t i) {
    const unsigned char *row = operand_row(x, index, i);
    return (struct int8_input){.codes = (const int8_t *)row,
                               .scales = (const float *)(row + int8_scales_offset(x->columns)),
                               .sums = (const float *)(row + int8_sums_offset(x->columns))};
}

/* The even columns' codes of a group; the odd ones' are 64 bytes further. */
INLINE const int8_t *int8_group_codes(const struct int8_input *input, size_t group) {
    return input->codes + group / 2 * 128 + group % 2 * 32;
}

#endif
