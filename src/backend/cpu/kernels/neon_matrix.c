/* Matrix products for any 64-bit ARM. A vector holds 4 rows of a weight, one to a lane; 32-bit words of their
 * codes (8 columns of 4 bits, 4 of 8, 2 of 16) reach the lanes by transposing 4 rows by 4 words.
 *
 * INT8 with three rows of input or more: the codes of some groups of columns are unpacked to bytes once,
 * words of 4 even or 4 odd columns a lane, and met by all rows of input. With one or two, the weights are
 * streamed: one row a vector, sums of groups added across it. The sums are exact, so both give the same bits.
 * The products of a code (0..15) and an input (-127..127) are added in 16 bits, where 16 of them fit. */
#include "backend/cpu/kernels/neon.h"

#include <math.h>

#define INT8_TOKENS 4 /* rows of input that a tile takes at once */
#define INT8_STEP 1
#define FLOAT_TOKENS 4
#define FLOAT_VECTORS 4 /* and vectors of rows, of float32 */

/* INT8 */

/* One group of columns, unpacked. */
struct int8_group {
    uint32_t even[8][PANEL_ROWS], odd[8][PANEL_ROWS];
};

/* 16 bytes of each of 4 rows, as 4 words a lane */
INLINE void load_words(const unsigned char *const rows[VECTOR_ROWS], size_t offset, uint32x4_t words[4]) {
    for (int r = 0; r < VECTOR_ROWS; r++)
        words[r] = vreinterpretq_u32_u8(vld1q_u8(rows[r] + offset));
    transpose(words);
}

INLINE void split(uint32x4_t words, uint8x16_t *even, uint8x16_t *odd) {
    *even = vandq_u8(vreinterpretq_u8_u32(words), vdupq_n_u8(15));
    *odd = vshrq_n_u8(vreinterpretq_u8_u32(words), 4);
}

static void unpack_int8(const struct panel_rows *rows, size_t group, size_t count,
                        struct int8_group *groups) {
    for (size_t vector = 0; vector < rows->vectors; vector++)
        for (size_t g = 0; g < count; g++)
            for (size_t half = 0; half < 2; half++) {
                uint32x4_t words[4];
                load_words(rows->codes + vector * VECTOR_ROWS, (group + g) * GROUP_BYTES + half * 16, words);
                for (size_t w = 0; w < 4; w++) {
                    uint8x16_t even, odd;
                    split(words[w], &even, &odd);
                    vst1q_u32(&groups[g].even[half * 4 + w][vector * VECTOR_ROWS],
                              vreinterpretq_u32_u8(even));
                    vst1q_u32(&groups[g].odd[half * 4 + w][vector * VECTOR_ROWS], vreinterpretq_u32_u8(odd));
                }
            }
}

/* `vectors` vectors of rows from row `first`, `tokens` rows of input, `count` unpacked groups. */
INLINE void int8_tile(const struct int8_group *groups, const struct panel_scales *scales, size_t group,
                      size_t count, const struct int8_input *inputs, size_t tokens, size_t vectors,
                      size_t first, float *out) {
    for (size_t g = 0; g < count; g++) {
        int16x8_t sums[2][INT8_TOKENS][2]; /* of four columns a row; of the rows 0, 1 and 2, 3 of a vector */
        for (size_t v = 0; v < vectors; v++)
            for (size_t t = 0; t < tokens; t++)
                sums[v][t][0] = sums[v][t][1] = vdupq_n_s16(0);
        for (size_t w = 0; w < 8; w++)
            for (size_t odd = 0; odd < 2; odd++) {
                const uint32_t *words = odd ? groups[g].odd[w] : groups[g].even[w];
                for (size_t t = 0; t < tokens; t++) {
                    const int8_t *input = int8_group_codes(&inputs[t], group + g) + odd * 64 + w * 4;
                    int8x16_t x = vreinterpretq_s8_s32(vld1q_dup_s32((const int32_t *)(const void *)input));
                    for (size_t v = 0; v < vectors; v++) {
                        int8x16_t codes = vreinterpretq_s8_u32(vld1q_u32(words + first + v * VECTOR_ROWS));
                        sums[v][t][0] = vmlal_s8(sums[v][t][0], vget_low_s8(codes), vget_low_s8(x));
                        sums[v][t][1] = vmlal_high_s8(sums[v][t][1], codes, x);
                    }
                }
            }
        for (size_t v = 0; v < vectors; v++) {
            float32x4_t scale = vld1q_f32(scales->scale[g] + first + v * VECTOR_ROWS);
            float32x4_t offset = vld1q_f32(scales->offset[g] + first + v * VECTOR_ROWS);
            for (size_t t = 0; t < tokens; t++) {
                float *y = out + t * PANEL_ROWS + first + v * VECTOR_ROWS;
                int32x4_t product = vpaddq_s32(vpaddlq_s16(sums[v][t][0]), vpaddlq_s16(sums[v][t][1]));
                vst1q_f32(y, int8_terms(vld1q_f32(y), product, scale, offset, &inputs[t], group + g));
            }
        }
    }
}

/* One group of a vector of rows, for one or two rows of input. */
INLINE void int8_stream_group(const struct view *matrix, const unsigned char *const codes[VECTOR_ROWS],
                              const struct int8_input *inputs, size_t tokens, size_t group, bool prefetch,
                              int32x4_t products[2]) {
    (void)matrix, (void)prefetch;
    int16x8_t sums[2][VECTOR_ROWS];
    for (size_t r = 0; r < VECTOR_ROWS; r++)
        for (size_t half = 0; half < 2; half++) {
            uint8x16_t even, odd;
            const unsigned char *at = codes[r] + group * GROUP_BYTES + half * 16;
            split(vreinterpretq_u32_u8(vld1q_u8(at)), &even, &odd);
            int8x16_t low = vreinterpretq_s8_u8(even), high = vreinterpretq_s8_u8(odd);
            for (size_t t = 0; t < tokens; t++) {
                const int8_t *input = int8_group_codes(&inputs[t], group) + half * 16;
                int8x16_t x_even = vld1q_s8(input), x_odd = vld1q_s8(input + 64);
                int16x8_t sum = half == 0 ? vmull_s8(vget_low_s8(low), vget_low_s8(x_even))
                                          : vmlal_s8(sums[t][r], vget_low_s8(low), vget_low_s8(x_even));
                sum = vmlal_high_s8(sum, low, x_even);
                sum = vmlal_s8(sum, vget_low_s8(high), vget_low_s8(x_odd));
                sums[t][r] = vmlal_high_s8(sum, high, x_odd);
            }
        }
    /* Each lane has the sum of 8 products, so two lanes still fit into 16 bits. */
    for (size_t t = 0; t < tokens; t++)
        products[t] = vpaddq_s32(vpaddlq_s16(vpaddq_s16(sums[t][0], sums[t][1])),
                                 vpaddlq_s16(vpaddq_s16(sums[t][2], sums[t][3])));
}

#include "backend/cpu/kernels/panel_int8.h"

/* BF16 and F32 */

/* To the nearest bfloat16, even when in the middle. A NaN must have zeros in its low half. */
INLINE float32x4_t round_to_bf16(float32x4_t values) {
    uint32x4_t bits = vreinterpretq_u32_f32(values);
    uint32x4_t last = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    bits = vaddq_u32(bits, vaddq_u32(last, vdupq_n_u32(0x7fff)));
    return vreinterpretq_f32_u32(vandq_u32(bits, vdupq_n_u32(0xffff0000u)));
}

/* Columns of `bits` bits from words of 4 rows: panel[column][PANEL_ROWS] = scale * code + offset */
INLINE void expand_affine(const uint32x4_t words[4], int bits, float32x4_t scale, float32x4_t offset,
                          bool rounded, float *panel) {
    const uint32x4_t mask = vdupq_n_u32((1u << bits) - 1);
    for (int w = 0; w < 4; w++)
        for (int k = 0; k < 32 / bits; k++) {
            uint32x4_t code = vandq_u32(vshlq_u32(words[w], vdupq_n_s32(-bits * k)), mask);
            float32x4_t value = vaddq_f32(vmulq_f32(scale, vcvtq_f32_u32(code)), offset);
            vst1q_f32(panel + (w * (32 / bits) + k) * PANEL_ROWS, rounded ? round_to_bf16(value) : value);
        }
}

/* The same for 8 columns of 16-bit floats, or 4 of float32 */
INLINE void expand_floats(const uint32x4_t words[4], enum dtype dtype, bool rounded, float *panel) {
    for (int w = 0; w < 4; w++) {
        if (dtype == DTYPE_F32) {
            float32x4_t value = vreinterpretq_f32_u32(words[w]);
            vst1q_f32(panel + w * PANEL_ROWS, rounded ? round_to_bf16(quiet(value)) : value);
            continue;
        }
        for (int k = 0; k < 2; k++) {
            uint16x4_t halves = k == 0 ? vmovn_u32(words[w]) : vshrn_n_u32(words[w], 16);
            float32x4_t value = vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
            if (dtype == DTYPE_F16) {
                value = vcvt_f32_f16(vreinterpret_f16_u16(halves));
                value = rounded ? round_to_bf16(quiet(value)) : value;
            }
            vst1q_f32(panel + (2 * w + k) * PANEL_ROWS, value);
        }
    }
}

/* out[t][rows] += sum of panel[column][rows] * x[t][column], `vectors` vectors of rows */
INLINE void float_tile(const float *panel, size_t columns, const float *const *x, size_t tokens,
                       size_t vectors, float *out) {
    float32x4_t y[FLOAT_TOKENS][FLOAT_VECTORS];
    for (size_t t = 0; t < tokens; t++)
        for (size_t v = 0; v < vectors; v++)
            y[t][v] = vld1q_f32(out + t * PANEL_ROWS + v * VECTOR_ROWS);
    for (size_t column = 0; column < columns; column++)
        for (size_t v = 0; v < vectors; v++) {
            float32x4_t weights = vld1q_f32(panel + column * PANEL_ROWS + v * VECTOR_ROWS);
            for (size_t t = 0; t < tokens; t++)
                y[t][v] = vfmaq_n_f32(y[t][v], weights, x[t][column]);
        }
    for (size_t t = 0; t < tokens; t++)
        for (size_t v = 0; v < vectors; v++)
            vst1q_f32(out + t * PANEL_ROWS + v * VECTOR_ROWS, y[t][v]);
}

static void float_tiles(const float *panel, size_t columns, const float *const *x, size_t tokens,
                        size_t vectors, float *out) {
    size_t v = 0;
    for (; v + FLOAT_VECTORS <= vectors; v += FLOAT_VECTORS)
        if (tokens == FLOAT_TOKENS)
            float_tile(panel + v * VECTOR_ROWS, columns, x, FLOAT_TOKENS, FLOAT_VECTORS,
                       out + v * VECTOR_ROWS);
        else
            for (size_t t = 0; t < tokens; t++)
                float_tile(panel + v * VECTOR_ROWS, columns, x + t, 1, FLOAT_VECTORS,
                           out + t * PANEL_ROWS + v * VECTOR_ROWS);
    for (; v < vectors; v++)
        for (size_t t = 0; t < tokens; t++)
            float_tile(panel + v * VECTOR_ROWS, columns, x + t, 1, 1, out + t * PANEL_ROWS + v * VECTOR_ROWS);
}

#include "backend/cpu/kernels/panel_floats.h"

void neon_multiply_float(const struct view *matrix, size_t first, size_t rows, const struct operand_rows *x,
                         const uint32_t *index, size_t count, float *out, void *panel) {
    multiply_float(matrix, first, rows, x, index, count, out, panel);
}

/* Input rows */

void neon_prepare_int8(const float *x, size_t columns, void *row) {
    int8_t *codes = row;
    float *scales = (float *)((char *)row + int8_scales_offset(columns));
    float *sums = (float *)((char *)row + int8_sums_offset(columns));
    memset(row, 0, operand_row_bytes(OPERAND_INT8, columns));
    for (size_t group = 0; group < columns / DTYPE_AFFINE_GROUP; group++) {
        const float *values = x + group * DTYPE_AFFINE_GROUP;
        /* As integers, magnitudes are in order, infinity after all numbers and NaNs after it. */
        uint32x4_t largest = vdupq_n_u32(0);
        for (size_t i = 0; i < DTYPE_AFFINE_GROUP; i += VECTOR_ROWS)
            largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(values + i))));
        float maximum = float_from_bits(vmaxvq_u32(largest));
        scales[group] = sums[group] = isfinite(maximum) ? 0 : NAN;
        if (!isfinite(maximum) || maximum < INT8_SMALLEST)
            continue;
        float inverse = 127.0f / maximum;
        int32x4_t total = vdupq_n_s32(0);
        int8_t *to = codes + group / 2 * 128 + group % 2 * 32;
        for (size_t i = 0; i < DTYPE_AFFINE_GROUP; i += 16) {
            float32x4x2_t low = vld2q_f32(values + i), high = vld2q_f32(values + i + 8);
            for (int odd = 0; odd < 2; odd++) {
                int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(low.val[odd], inverse));
                int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(high.val[odd], inverse));
                total = vaddq_s32(total, vaddq_s32(a, b));
                vst1_s8(to + odd * 64 + i / 2, vqmovn_s16(vcombine_s16(vqmovn_s32(a), vqmovn_s32(b))));
            }
        }
        scales[group] = maximum / 127.0f;
        sums[group] = scales[group] * (float)vaddvq_s32(total);
    }
}

void neon_prepare_bf16(const float *x, size_t columns, void *row) {
    uint16_t *out = row;
    memset(row, 0, operand_row_bytes(OPERAND_BF16, columns));
    size_t i = 0;
    for (; i + VECTOR_ROWS <= columns; i += VECTOR_ROWS) {
        float32x4_t rounded = round_to_bf16(quiet(vld1q_f32(x + i)));
        vst1_u16(out + i, vshrn_n_u32(vreinterpretq_u32_f32(rounded), 16));
    }
    for (; i < columns; i++)
        out[i] = float_to_bf16(x[i]);
}

const struct matrix_kernels neon_matrix_kernels = {
    .multiply = {[OPERAND_INT8] = multiply_int8,
                 [OPERAND_BF16] = neon_multiply_float,
                 [OPERAND_F32] = neon_multiply_float},
    .prepare = {[OPERAND_INT8] = neon_prepare_int8, [OPERAND_BF16] = neon_prepare_bf16},
};
