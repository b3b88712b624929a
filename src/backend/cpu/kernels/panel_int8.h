/* INT8 products with panels. A template for vectors of 4 and of 8 rows, included after what differs between
 * instruction sets:
 *
 *   float_lanes, int_lanes   vectors of VECTOR_ROWS floats and 32-bit integers, one to a row
 *   store_lanes              of floats, to where they are aligned
 *   scales_of_vector         the scales, or offsets, of a block's groups, one to a row
 *   int8_group, unpack_int8  a group of columns of a panel, unpacked
 *   INT8_TOKENS, INT8_STEP   rows of input that a tile takes at once, and that the rest is taken by
 *   int8_tile                groups of one or two vectors of rows, for INT8_TOKENS, INT8_STEP or one row of
 *                            input; with INT8_STEP 2 a row without a partner is its own, inputs[1]
 *   int8_stream_group        one group of a vector of rows for one or two rows of input, from the weights,
 *                            which with `prefetch` are asked for two groups ahead
 *   int8_terms               the terms of one group, added to y
 *
 * With three rows of input or more, a block of groups is unpacked once and met by all of them. With one or
 * two, the weights are streamed. The sums are exact, so both give the same bits. */
#ifndef CALLA_BACKEND_CPU_KERNELS_PANEL_INT8_H
#define CALLA_BACKEND_CPU_KERNELS_PANEL_INT8_H

#include "backend/cpu/kernels/panel.h"

static void unpack_scales(const struct view *matrix, const struct panel_rows *rows, size_t group,
                          size_t count, struct panel_scales *scales) {
    for (size_t vector = 0; vector < rows->vectors; vector++) {
        const size_t *first_group = rows->first_group + vector * VECTOR_ROWS;
        float_lanes scale[BLOCK_GROUPS], offset[BLOCK_GROUPS];
        scales_of_vector(matrix->scales, matrix->scale_dtype, first_group, group, count, scale);
        scales_of_vector(matrix->biases, matrix->bias_dtype, first_group, group, count, offset);
        for (size_t g = 0; g < BLOCK_GROUPS; g++) {
            store_lanes(&scales->scale[g][vector * VECTOR_ROWS], scale[g]);
            store_lanes(&scales->offset[g][vector * VECTOR_ROWS], offset[g]);
        }
    }
}

INLINE void int8_tiles(const struct int8_group *groups, const struct panel_scales *scales, size_t group,
                       size_t count, const struct int8_input *inputs, size_t tokens, size_t vectors,
                       float *out) {
    size_t vector = 0;
    for (; vector + 2 <= vectors; vector += 2)
        int8_tile(groups, scales, group, count, inputs, tokens, 2, vector * VECTOR_ROWS, out);
    if (vector < vectors)
        int8_tile(groups, scales, group, count, inputs, tokens, 1, vector * VECTOR_ROWS, out);
}

static void int8_many(const struct view *matrix, const struct panel_rows *rows, const struct operand_rows *x,
                      const uint32_t *index, size_t count, float *out, struct int8_group *panel) {
    struct panel_scales scales;
    size_t groups = matrix->columns / DTYPE_AFFINE_GROUP;
    memset(out, 0, count * PANEL_ROWS * sizeof *out);
    for (size_t group = 0; group < groups; group += BLOCK_GROUPS) {
        size_t block = groups - group < BLOCK_GROUPS ? groups - group : BLOCK_GROUPS;
        unpack_scales(matrix, rows, group, block, &scales);
        unpack_int8(rows, group, block, panel);
        for (size_t i = 0; i < count; i += INT8_TOKENS) {
            struct int8_input inputs[INT8_TOKENS];
            size_t tokens = count - i < INT8_TOKENS ? count - i : INT8_TOKENS;
            for (size_t t = 0; t < INT8_TOKENS; t++)
                inputs[t] = int8_input(x, index, i + (t < tokens ? t : tokens - 1));
            float *y = out + i * PANEL_ROWS;
            size_t t = 0;
            if (tokens == INT8_TOKENS) {
                int8_tiles(panel, &scales, group, block, inputs, INT8_TOKENS, rows->vectors, y);
                continue;
            }
            for (; t + INT8_STEP <= tokens; t += INT8_STEP)
                int8_tiles(panel, &scales, group, block, inputs + t, INT8_STEP, rows->vectors,
                           y + t * PANEL_ROWS);
            if (t < tokens)
                int8_tiles(panel, &scales, group, block, inputs + t, 1, rows->vectors, y + t * PANEL_ROWS);
        }
    }
}

/* One vector of rows, one or two rows of input, straight from the weights. */
INLINE void int8_stream(const struct view *matrix, const struct panel_rows *rows, size_t vector,
                        const struct int8_input *inputs, size_t tokens, float *out) {
    const unsigned char *const *codes = rows->codes + vector * VECTOR_ROWS;
    const size_t *first_group = rows->first_group + vector * VECTOR_ROWS;
    size_t groups = matrix->columns / DTYPE_AFFINE_GROUP;
    float_lanes y[2] = {{0}, {0}};
    for (size_t group = 0; group < groups; group += BLOCK_GROUPS) {
        size_t block = groups - group < BLOCK_GROUPS ? groups - group : BLOCK_GROUPS;
        float_lanes scale[BLOCK_GROUPS], offset[BLOCK_GROUPS];
        scales_of_vector(matrix->scales, matrix->scale_dtype, first_group, group, block, scale);
        scales_of_vector(matrix->biases, matrix->bias_dtype, first_group, group, block, offset);
        for (size_t g = 0; g < block; g++) {
            int_lanes products[2];
            int8_stream_group(matrix, codes, inputs, tokens, group + g, g % 2 == 0, products);
            for (size_t t = 0; t < tokens; t++)
                y[t] = int8_terms(y[t], products[t], scale[g], offset[g], &inputs[t], group + g);
        }
    }
    for (size_t t = 0; t < tokens; t++)
        store_lanes(out + t * PANEL_ROWS + vector * VECTOR_ROWS, y[t]);
}

static void multiply_int8(const struct view *matrix, size_t first, size_t rows, const struct operand_rows *x,
                          const uint32_t *index, size_t count, float *out, void *panel) {
    struct panel_rows panel_of = panel_rows(matrix, first, rows);
    if (count > 2) {
        int8_many(matrix, &panel_of, x, index, count, out, panel);
        return;
    }
    struct int8_input inputs[2];
    for (size_t t = 0; t < count; t++)
        inputs[t] = int8_input(x, index, t);
    for (size_t vector = 0; vector < panel_of.vectors; vector++)
        if (count == 1)
            int8_stream(matrix, &panel_of, vector, inputs, 1, out);
        else if (count == 2)
            int8_stream(matrix, &panel_of, vector, inputs, 2, out);
}

#endif
