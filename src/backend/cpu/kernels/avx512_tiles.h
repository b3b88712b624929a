/* Products of unquantised or unpacked weights with AVX-512: panels of a block of columns, tiles of up to
 * TILE_INPUTS inputs. A template, included after what differs between element types:
 *
 *   struct block_panel  what a block is unpacked into; `scales` is its first member
 *   input_element       of a row of input as multiply_columns reads it
 *   unpack_stripe       a stripe of the block
 *   find_input          where input i of a tile has the block's columns
 *   multiply_columns    y[count][STRIPES] += of the block */
#ifndef CALLA_BACKEND_CPU_KERNELS_AVX512_TILES_H
#define CALLA_BACKEND_CPU_KERNELS_AVX512_TILES_H

#include "backend/cpu/kernels/avx512_weights.h"

_Static_assert(sizeof(struct block_panel) <= PANEL_BYTES, "the panel must fit its scratch");

/* out[count][PANEL_ROWS] += of `columns` columns; the inputs' are at inputs[i][0 .. columns). */
ALWAYS_INLINE void multiply_tile(size_t count, const struct block_panel *panel,
                                 const input_element *const *inputs, size_t columns, float *out) {
    __m512 y[TILE_INPUTS][STRIPES];
    for (size_t i = 0; i < count; i++)
        for (size_t s = 0; s < STRIPES; s++)
            y[i][s] = _mm512_load_ps(out + i * PANEL_ROWS + s * STRIPE_ROWS);
    multiply_columns(count, panel, inputs, columns, y);
    for (size_t i = 0; i < count; i++)
        for (size_t s = 0; s < STRIPES; s++)
            _mm512_store_ps(out + i * PANEL_ROWS + s * STRIPE_ROWS, y[i][s]);
}

static void multiply_tiles(struct block_panel *panel, const struct operand_rows *x, const uint32_t *index,
                           size_t count, size_t column, size_t columns, float *out) {
    for (size_t i = 0, size; i < count; i += size) {
        const input_element *inputs[TILE_INPUTS];
        float *tile = out + i * PANEL_ROWS;
        size = tile_size(count - i, TILE_INPUTS);
        for (size_t j = 0; j < size; j++)
            inputs[j] = find_input(panel, x, input_row(x, index, i + j), j, column, columns);
        switch (size) {
        case 8:
            multiply_tile(8, panel, inputs, columns, tile);
            break;
        case 7:
            multiply_tile(7, panel, inputs, columns, tile);
            break;
        case 6:
            multiply_tile(6, panel, inputs, columns, tile);
            break;
        case 5:
            multiply_tile(5, panel, inputs, columns, tile);
            break;
        case 4:
            multiply_tile(4, panel, inputs, columns, tile);
            break;
        case 3:
            multiply_tile(3, panel, inputs, columns, tile);
            break;
        case 2:
            multiply_tile(2, panel, inputs, columns, tile);
            break;
        default:
            multiply_tile(1, panel, inputs, columns, tile);
        }
    }
}

static void multiply_blocks(const struct view *matrix, size_t first, size_t rows,
                            const struct operand_rows *x, const uint32_t *index, size_t count, float *out,
                            void *scratch) {
    struct block_panel *panel = scratch;
    struct stripe stripes[STRIPES];
    for (size_t s = 0; s < STRIPES; s++)
        stripe_init(&stripes[s], matrix, first, rows, s);
    memset(out, 0, count * PANEL_ROWS * sizeof *out);
    for (size_t column = 0; column < matrix->columns; column += BLOCK_COLUMNS) {
        size_t left = matrix->columns - column, columns = left < BLOCK_COLUMNS ? left : BLOCK_COLUMNS;
        for (size_t s = 0; s < STRIPES; s++)
            unpack_stripe(matrix, &stripes[s], s, column, columns, x->format, panel);
        multiply_tiles(panel, x, index, count, column, columns, out);
    }
}

#endif
