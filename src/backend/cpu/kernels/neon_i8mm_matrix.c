/* Matrix products for 64-bit ARM with dot products, 8-bit integer and bfloat16 matrix instructions. These
 * multiply two rows by two rows: 2 rows of input [2][8] by 2 rows of a weight [2][8] give [2][2] sums of
 * integers, [2][4] by [2][4] those of bfloat16. So a panel is kept in pairs of rows, each row's columns side
 * by side, and nothing needs transposing but scales.
 *
 * INT8 with three rows of input or more: the codes of some groups of columns are unpacked to bytes once and
 * met by all rows of input. With one or two, the weights are streamed through dot products. Both sums are
 * exact. BF16 is always the matrix instruction, whose roundings are its own: a row of input without a partner
 * is its own partner. */
#include "backend/cpu/kernels/neon.h"

#define PAIRS (PANEL_ROWS / 2)
#define TILE_PAIRS 4 /* of rows of the weight, and of input */
#define TILE_ROWS (2 * TILE_PAIRS)
#define INT8_TOKENS TILE_ROWS
#define INT8_STEP 2
#define BF16_COLUMNS 256 /* of a panel: half of a small first-level cache */

/* Four vectors of pairs of sums (of two rows of input and two rows of the weight each) as rows of input:
 * sums[pair of the weight] -> rows[input][vector of four rows of the weight] */
INLINE int32x4_t row_of_pairs(int32x4_t a, int32x4_t b, size_t input) {
    int64x2_t first = vreinterpretq_s64_s32(a), second = vreinterpretq_s64_s32(b);
    return vreinterpretq_s32_s64(input == 0 ? vzip1q_s64(first, second) : vzip2q_s64(first, second));
}

/* The 16 bytes of two rows, as two pairs of 8 bytes. */
INLINE void pairs_of_rows(const void *first, const void *second, uint8x16_t pairs[2]) {
    uint64x2_t a = vreinterpretq_u64_u8(vld1q_u8(first)), b = vreinterpretq_u64_u8(vld1q_u8(second));
    pairs[0] = vreinterpretq_u8_u64(vzip1q_u64(a, b));
    pairs[1] = vreinterpretq_u8_u64(vzip2q_u64(a, b));
}

/* INT8 */

/* One group of columns, unpacked: 4 parts of 16 columns, of which 8 are even and 8 odd. */
struct int8_group {
    uint8_t even[4][PAIRS][16], odd[4][PAIRS][16];
};

static void unpack_int8(const struct panel_rows *rows, size_t group, size_t count,
                        struct int8_group *groups) {
    for (size_t pair = 0; pair < rows->vectors * VECTOR_ROWS / 2; pair++)
        for (size_t g = 0; g < count; g++)
            for (size_t part = 0; part < 4; part += 2) {
                size_t offset = (group + g) * GROUP_BYTES + part * 8;
                uint8x16_t packed[2];
                pairs_of_rows(rows->codes[2 * pair] + offset, rows->codes[2 * pair + 1] + offset, packed);
                for (size_t i = 0; i < 2; i++) {
                    vst1q_u8(groups[g].even[part + i][pair], vandq_u8(packed[i], vdupq_n_u8(15)));
                    vst1q_u8(groups[g].odd[part + i][pair], vshrq_n_u8(packed[i], 4));
                }
            }
}

/* `vectors` vectors of rows from `row`, `tokens` rows of input, `count` unpacked groups. */
INLINE void int8_tile(const struct int8_group *groups, const struct panel_scales *scales, size_t group,
                      size_t count, const struct int8_input *x, size_t tokens, size_t vectors, size_t row,
                      float *out) {
    size_t inputs = (tokens + 1) / 2, pairs = vectors * VECTOR_ROWS / 2, first = row / 2;
    for (size_t g = 0; g < count; g++) {
        int32x4_t sums[TILE_PAIRS][TILE_PAIRS];
        for (size_t t = 0; t < inputs; t++)
            for (size_t p = 0; p < pairs; p++)
                sums[t][p] = vdupq_n_s32(0);
        for (size_t part = 0; part < 4; part += 2)
            for (size_t odd = 0; odd < 2; odd++) {
                int8x16_t codes[TILE_PAIRS][2];
                for (size_t p = 0; p < pairs; p++)
                    for (size_t i = 0; i < 2; i++) {
                        const uint8_t(*from)[16] = odd ? groups[g].odd[part + i] : groups[g].even[part + i];
                        codes[p][i] = vreinterpretq_s8_u8(vld1q_u8(from[first + p]));
                    }
                for (size_t t = 0; t < inputs; t++) {
                    uint8x16_t values[2];
                    const struct int8_input *second = &x[tokens == 1 ? 0 : 2 * t + 1];
                    pairs_of_rows(int8_group_codes(&x[2 * t], group + g) + odd * 64 + part * 8,
                                  int8_group_codes(second, group + g) + odd * 64 + part * 8, values);
                    for (size_t i = 0; i < 2; i++)
                        for (size_t p = 0; p < pairs; p++)
                            sums[t][p] = vmmlaq_s32(sums[t][p], vreinterpretq_s8_u8(values[i]), codes[p][i]);
                }
            }
        for (size_t v = 0; v < vectors; v++) {
            size_t at = row + v * VECTOR_ROWS;
            float32x4_t scale = vld1q_f32(scales->scale[g] + at), offset = vld1q_f32(scales->offset[g] + at);
            for (size_t t = 0; t < tokens; t++) {
                int32x4_t product = row_of_pairs(sums[t / 2][2 * v], sums[t / 2][2 * v + 1], t % 2);
                float *y = out + t * PANEL_ROWS + at;
                vst1q_f32(y, int8_terms(vld1q_f32(y), product, scale, offset, &x[t], group + g));
            }
        }
    }
}

/* One group of a vector of rows, for one or two rows of input. */
INLINE void int8_stream_group(const struct view *matrix, const unsigned char *const codes[VECTOR_ROWS],
                              const struct int8_input *inputs, size_t tokens, size_t group, bool prefetch,
                              int32x4_t products[2]) {
    (void)matrix, (void)prefetch;
    int32x4_t sums[2][VECTOR_ROWS];
    for (size_t r = 0; r < VECTOR_ROWS; r++)
        for (size_t half = 0; half < 2; half++) {
            uint8x16_t packed = vld1q_u8(codes[r] + group * GROUP_BYTES + half * 16);
            int8x16_t even = vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15)));
            int8x16_t odd = vreinterpretq_s8_u8(vshrq_n_u8(packed, 4));
            for (size_t t = 0; t < tokens; t++) {
                const int8_t *input = int8_group_codes(&inputs[t], group) + half * 16;
                int32x4_t sum = half == 0 ? vdupq_n_s32(0) : sums[t][r];
                sum = vdotq_s32(sum, even, vld1q_s8(input));
                sums[t][r] = vdotq_s32(sum, odd, vld1q_s8(input + 64));
            }
        }
    for (size_t t = 0; t < tokens; t++)
        products[t] = vpaddq_s32(vpaddq_s32(sums[t][0], sums[t][1]), vpaddq_s32(sums[t][2], sums[t][3]));
}

#include "backend/cpu/kernels/panel_int8.h"

/* BF16 */

/* The rows of input [i, i + TILE_ROWS) and where their outputs go. If their count is odd, the last one has a
 * partner whose output nobody reads. */
static size_t tile_inputs(size_t i, size_t count, float *out, float *nowhere, float *outs[TILE_ROWS]) {
    size_t rows = count - i < TILE_ROWS ? count - i : TILE_ROWS;
    for (size_t t = 0; t < TILE_ROWS; t++)
        outs[t] = t < rows ? out + (i + t) * PANEL_ROWS : nowhere;
    return rows;
}

/* Four columns of a pair of rows. */
struct bf16_pairs {
    uint16_t values[PAIRS][2][4];
};

INLINE uint16x8_t to_bf16(float32x4_t low, float32x4_t high) {
    return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high));
}

INLINE float32x4_t affine(uint32x4_t codes, float scale, float offset) {
    return vaddq_f32(vmulq_n_f32(vcvtq_f32_u32(codes), scale), vdupq_n_f32(offset));
}

/* 8 columns of a row, four to a place of the panel. */
INLINE void store_columns(struct bf16_pairs *panel, size_t column, size_t row, uint16x8_t values) {
    vst1_u16(panel[column / 4].values[row / 2][row % 2], vget_low_u16(values));
    vst1_u16(panel[column / 4 + 1].values[row / 2][row % 2], vget_high_u16(values));
}

/* A group of 4-bit codes: its 16 values are looked up, the bytes of each by themselves. */
INLINE void unpack_affine4(const unsigned char *codes, float scale, float offset, struct bf16_pairs *panel,
                           size_t column, size_t row) {
    static const uint32_t counting[4] = {0, 1, 2, 3};
    uint32x4_t first = vld1q_u32(counting);
    uint16x8_t values[2];
    for (uint32_t i = 0; i < 2; i++)
        values[i] = to_bf16(affine(vaddq_u32(first, vdupq_n_u32(8 * i)), scale, offset),
                            affine(vaddq_u32(first, vdupq_n_u32(8 * i + 4)), scale, offset));
    uint8x16_t front = vreinterpretq_u8_u16(values[0]), back = vreinterpretq_u8_u16(values[1]);
    uint8x16_t low = vuzp1q_u8(front, back), high = vuzp2q_u8(front, back);
    for (size_t half = 0; half < 2; half++) {
        uint8x16_t packed = vld1q_u8(codes + half * 16);
        uint8x16_t even = vandq_u8(packed, vdupq_n_u8(15)), odd = vshrq_n_u8(packed, 4);
        uint8x16_t ordered[2] = {vzip1q_u8(even, odd), vzip2q_u8(even, odd)};
        for (size_t i = 0; i < 2; i++) {
            uint8x16_t lows = vqtbl1q_u8(low, ordered[i]), highs = vqtbl1q_u8(high, ordered[i]);
            size_t at = column + half * 32 + i * 16;
            store_columns(panel, at, row, vreinterpretq_u16_u8(vzip1q_u8(lows, highs)));
            store_columns(panel, at + 8, row, vreinterpretq_u16_u8(vzip2q_u8(lows, highs)));
        }
    }
}

INLINE void unpack_affine8(const unsigned char *codes, float scale, float offset, struct bf16_pairs *panel,
                           size_t column, size_t row) {
    for (size_t i = 0; i < DTYPE_AFFINE_GROUP; i += 8) {
        uint16x8_t wide = vmovl_u8(vld1_u8(codes + i));
        store_columns(panel, column + i, row,
                      to_bf16(affine(vmovl_u16(vget_low_u16(wide)), scale, offset),
                              affine(vmovl_u16(vget_high_u16(wide)), scale, offset)));
    }
}

/* `count` columns of an unquantised row, zeros up to the next multiple of 8. */
INLINE void unpack_floats(const unsigned char *values, enum dtype dtype, size_t count,
                          struct bf16_pairs *panel, size_t row) {
    for (size_t i = 0; i < count; i += 8) {
        size_t left = count - i, low = left < 4 ? left : 4, high = left < 4 ? 0 : left < 8 ? left - 4 : 4;
        store_columns(panel, i, row,
                      to_bf16(load_floats(values, dtype, i, low),
                              load_floats(values, dtype, high > 0 ? i + 4 : i, high)));
    }
}

static void unpack_bf16(const struct view *matrix, const struct panel_rows *rows, size_t column, size_t count,
                        struct bf16_pairs *panel) {
    for (size_t r = 0; r < rows->vectors * VECTOR_ROWS; r++) {
        const unsigned char *codes = rows->codes[r] + column * dtype_bits(matrix->dtype) / 8;
        if (!is_affine(matrix->dtype)) {
            unpack_floats(codes, matrix->dtype, count, panel, r);
            continue;
        }
        for (size_t done = 0; done < count; done += DTYPE_AFFINE_GROUP) {
            size_t group = rows->first_group[r] + (column + done) / DTYPE_AFFINE_GROUP;
            float scale = float_load(matrix->scales, matrix->scale_dtype, group);
            float offset = float_load(matrix->biases, matrix->bias_dtype, group);
            if (matrix->dtype == DTYPE_AFFINE4)
                unpack_affine4(codes + done / 2, scale, offset, panel, done, r);
            else
                unpack_affine8(codes + done, scale, offset, panel, done, r);
        }
    }
}

/* Adds the products of `columns` columns (a multiple of 8) to the outputs of `inputs` pairs of rows of input
 * and `pairs` pairs of rows from `first`. */
INLINE void bf16_tile(const struct bf16_pairs *panel, size_t columns, const uint16_t *const *x, size_t inputs,
                      size_t pairs, size_t first, float *const *out) {
    float32x4_t sums[TILE_PAIRS][TILE_PAIRS];
    for (size_t t = 0; t < inputs; t++)
        for (size_t p = 0; p < pairs; p++)
            sums[t][p] = vcombine_f32(vld1_f32(out[2 * t] + 2 * (first + p)),
                                      vld1_f32(out[2 * t + 1] + 2 * (first + p)));
    for (size_t column = 0; column < columns; column += 8) {
        bfloat16x8_t weights[TILE_PAIRS][2];
        for (size_t p = 0; p < pairs; p++)
            for (size_t i = 0; i < 2; i++)
                weights[p][i] = vreinterpretq_bf16_u16(vld1q_u16(panel[column / 4 + i].values[first + p][0]));
        for (size_t t = 0; t < inputs; t++) {
            uint8x16_t values[2];
            pairs_of_rows(x[2 * t] + column, x[2 * t + 1] + column, values);
            for (size_t i = 0; i < 2; i++)
                for (size_t p = 0; p < pairs; p++)
                    sums[t][p] = vbfmmlaq_f32(sums[t][p], vreinterpretq_bf16_u8(values[i]), weights[p][i]);
        }
    }
    for (size_t t = 0; t < inputs; t++)
        for (size_t p = 0; p < pairs; p++) {
            vst1_f32(out[2 * t] + 2 * (first + p), vget_low_f32(sums[t][p]));
            vst1_f32(out[2 * t + 1] + 2 * (first + p), vget_high_f32(sums[t][p]));
        }
}

INLINE void bf16_tiles(const struct bf16_pairs *panel, size_t columns, const uint16_t *const *x,
                       size_t inputs, size_t vectors, float *const *out) {
    size_t vector = 0;
    for (; vector + 2 <= vectors; vector += 2)
        bf16_tile(panel, columns, x, inputs, TILE_PAIRS, 2 * vector, out);
    if (vector < vectors)
        bf16_tile(panel, columns, x, inputs, 2, 2 * vector, out);
}

static void multiply_bf16(const struct view *matrix, size_t first, size_t rows, const struct operand_rows *x,
                          const uint32_t *index, size_t count, float *out, void *panel) {
    struct panel_rows panel_of = panel_rows(matrix, first, rows);
    float nowhere[PANEL_ROWS] = {0};
    memset(out, 0, count * PANEL_ROWS * sizeof *out);
    for (size_t column = 0; column < matrix->columns; column += BF16_COLUMNS) {
        size_t left = matrix->columns - column, columns = left < BF16_COLUMNS ? left : BF16_COLUMNS;
        unpack_bf16(matrix, &panel_of, column, columns, panel);
        columns = (columns + 7) / 8 * 8; /* the rows of input, too, end in zeros */
        for (size_t i = 0; i < count; i += TILE_ROWS) {
            const uint16_t *inputs[TILE_ROWS];
            float *outs[TILE_ROWS];
            size_t tokens = tile_inputs(i, count, out, nowhere, outs);
            for (size_t t = 0; t < TILE_ROWS; t++)
                inputs[t] =
                    (const uint16_t *)operand_row(x, index, i + (t < tokens ? t : tokens - 1)) + column;
            if (tokens == TILE_ROWS)
                bf16_tiles(panel, columns, inputs, TILE_PAIRS, panel_of.vectors, outs);
            else
                for (size_t t = 0; t < tokens; t += 2)
                    bf16_tiles(panel, columns, inputs + t, 1, panel_of.vectors, outs + t);
        }
    }
}

const struct matrix_kernels neon_i8mm_matrix_kernels = {
    .multiply =
        {[OPERAND_INT8] = multiply_int8, [OPERAND_BF16] = multiply_bf16, [OPERAND_F32] = neon_multiply_float},
    .prepare = {[OPERAND_INT8] = neon_prepare_int8, [OPERAND_BF16] = neon_prepare_bf16},
};
