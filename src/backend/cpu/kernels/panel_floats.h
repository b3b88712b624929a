/* Products of float32, and of BF16 as float32, with panels. A template for vectors of 4 and of 8 rows,
 * included after panel_int8.h and what differs between instruction sets:
 *
 *   word_lanes, load_words        VECTOR_ROWS words of 32 bits of each row of a vector, one row to a lane
 *   load_lanes                    of floats, from where they are aligned
 *   expand_affine, expand_floats  the columns that such words hold, as float32
 *   FLOAT_TOKENS, float_tiles     rows of input that a tile takes at once; their products with a panel
 *
 * A block of columns is unpacked to float32, one panel's rows a column, and met by all rows of input. */
#ifndef CALLA_BACKEND_CPU_KERNELS_PANEL_FLOATS_H
#define CALLA_BACKEND_CPU_KERNELS_PANEL_FLOATS_H

#include "backend/cpu/kernels/panel_int8.h"

#define FLOAT_COLUMNS 128                     /* of a panel: half of a small first-level cache */
#define WORDS_BYTES (VECTOR_ROWS * (size_t)4) /* of a row, that are expanded at once */

/* Columns [column, column + count) of all rows: panel[count][PANEL_ROWS] */
static void unpack_floats(const struct view *matrix, const struct panel_rows *rows,
                          const struct panel_scales *scales, size_t column, size_t count, bool rounded,
                          float *panel) {
    size_t bits = dtype_bits(matrix->dtype), step = WORDS_BYTES * 8 / bits;
    for (size_t vector = 0; vector < rows->vectors; vector++)
        for (size_t done = 0; done < count; done += step) {
            const unsigned char *const *codes = rows->codes + vector * VECTOR_ROWS;
            unsigned char copy[VECTOR_ROWS][WORDS_BYTES] = {{0}};
            const unsigned char *copies[VECTOR_ROWS];
            size_t offset = (column + done) * bits / 8;
            size_t group = (column + done) / DTYPE_AFFINE_GROUP % BLOCK_GROUPS;
            if (count - done < step) { /* nothing may be read past a row's end */
                for (size_t r = 0; r < VECTOR_ROWS; r++)
                    copies[r] = memcpy(copy[r], codes[r] + offset, (count - done) * bits / 8);
                codes = copies;
                offset = 0;
            }
            word_lanes words[VECTOR_ROWS];
            load_words(codes, offset, words);
            float *to = panel + done * PANEL_ROWS + vector * VECTOR_ROWS;
            if (!is_affine(matrix->dtype)) {
                expand_floats(words, matrix->dtype, rounded, to);
                continue;
            }
            float_lanes scale = load_lanes(scales->scale[group] + vector * VECTOR_ROWS);
            float_lanes shift = load_lanes(scales->offset[group] + vector * VECTOR_ROWS);
            if (matrix->dtype == DTYPE_AFFINE4)
                expand_affine(words, 4, scale, shift, rounded, to);
            else
                expand_affine(words, 8, scale, shift, rounded, to);
        }
}

static void multiply_float(const struct view *matrix, size_t first, size_t rows, const struct operand_rows *x,
                           const uint32_t *index, size_t count, float *out, void *panel) {
    struct panel_rows panel_of = panel_rows(matrix, first, rows);
    bool rounded = x->format == OPERAND_BF16;
    struct panel_scales scales;
    memset(out, 0, count * PANEL_ROWS * sizeof *out);
    for (size_t column = 0; column < matrix->columns; column += FLOAT_COLUMNS) {
        size_t left = matrix->columns - column, columns = left < FLOAT_COLUMNS ? left : FLOAT_COLUMNS;
        size_t groups = left < BLOCK_COLUMNS ? left / DTYPE_AFFINE_GROUP : BLOCK_GROUPS;
        if (is_affine(matrix->dtype) && column % BLOCK_COLUMNS == 0)
            unpack_scales(matrix, &panel_of, column / DTYPE_AFFINE_GROUP, groups, &scales);
        unpack_floats(matrix, &panel_of, &scales, column, columns, rounded, panel);
        for (size_t i = 0; i < count; i += FLOAT_TOKENS) {
            float values[FLOAT_TOKENS][FLOAT_COLUMNS];
            const float *inputs[FLOAT_TOKENS];
            size_t tokens = count - i < FLOAT_TOKENS ? count - i : FLOAT_TOKENS;
            for (size_t t = 0; t < tokens; t++) {
                const unsigned char *row = operand_row(x, index, i + t);
                inputs[t] = rounded ? values[t] : (const float *)row + column;
                for (size_t j = 0; rounded && j < columns; j++)
                    values[t][j] = bf16_to_float(((const uint16_t *)row)[column + j]);
            }
            float_tiles(panel, columns, inputs, tokens, panel_of.vectors, out + i * PANEL_ROWS);
        }
    }
}

#endif
