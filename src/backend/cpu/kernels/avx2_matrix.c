/* Matrix products with AVX2 and FMA. A vector holds 8 rows of a weight, one to a lane; 32-bit words of their
 * codes (8 columns of 4 bits, 4 of 8, 2 of 16) reach the lanes by transposing 8 rows by 8 words.
 *
 * INT8 with three rows of input or more: the codes of some groups of columns are unpacked to bytes once,
 * words of 4 even or 4 odd columns a lane, and met by all rows of input. With one or two, the weights are
 * streamed: one row a vector, sums of groups added across it. The sums are exact, so both give the same bits.
 * maddubs adds two products of a code (0..15) and an input (-127..127): 8 of them fit into 16 bits. */
#define VECTOR_ROWS 8
#include "backend/cpu/kernels/panel.h"

#include <immintrin.h>
#include <math.h>

/* Rows of input that a tile takes at once: as many sums as registers hold. */
#define INT8_TOKENS 3
#define INT8_STEP 1
#define FLOAT_TOKENS 3

typedef __m256 float_lanes;
typedef __m256i int_lanes, word_lanes;

INLINE void store_lanes(float *to, __m256 values) {
    _mm256_store_ps(to, values);
}

INLINE __m256 load_lanes(const float *from) {
    return _mm256_load_ps(from);
}

/* One group of columns, unpacked. */
struct int8_group {
    uint32_t even[8][PANEL_ROWS], odd[8][PANEL_ROWS];
};

/* v[row] of 8 words -> v[word] of 8 rows */
INLINE void transpose(__m256i v[8]) {
    __m256i pairs[8], quads[8];
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            quads[i + 2 * j] = _mm256_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
            quads[i + 2 * j + 1] = _mm256_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
        }
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x20);
        v[i + 4] = _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x31);
    }
}

/* 32 bytes of each of 8 rows, as 8 words a lane */
INLINE void load_words(const unsigned char *const rows[VECTOR_ROWS], size_t offset, __m256i words[8]) {
    for (int r = 0; r < VECTOR_ROWS; r++)
        words[r] = _mm256_loadu_si256((const __m256i *)(rows[r] + offset));
    transpose(words);
}

/* `count` (at most 8) elements of an array of 16- or 32-bit floats; zeros after them */
INLINE __m256 load_floats(const unsigned char *array, enum dtype dtype, size_t at, size_t count) {
    unsigned char copy[32] = {0};
    const unsigned char *from = array + at * (dtype == DTYPE_F32 ? 4 : 2);
    if (count < 8)
        from = memcpy(copy, from, count * (dtype == DTYPE_F32 ? 4 : 2));
    if (dtype == DTYPE_F32)
        return _mm256_loadu_ps((const float *)from);
    __m128i halves = _mm_loadu_si128((const __m128i *)from);
    if (dtype == DTYPE_F16)
        return _mm256_cvtph_ps(halves);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* `count` groups from `group` on; those of the block that are not there get zeros. A NaN loses its payload,
 * so that one in a product survives being rounded. */
INLINE void scales_of_vector(const unsigned char *array, enum dtype dtype,
                             const size_t first_group[VECTOR_ROWS], size_t group, size_t count,
                             __m256 lanes[BLOCK_GROUPS]) {
    const __m256 nan = _mm256_set1_ps(NAN);
    __m256i v[8];
    for (int r = 0; r < VECTOR_ROWS; r++) {
        __m256 values = load_floats(array, dtype, first_group[r] + group, count);
        values = _mm256_blendv_ps(values, nan, _mm256_cmp_ps(values, values, _CMP_UNORD_Q));
        v[r] = _mm256_castps_si256(values);
    }
    transpose(v);
    for (int g = 0; g < BLOCK_GROUPS; g++)
        lanes[g] = _mm256_castsi256_ps(v[g]);
}

/* INT8 */

static void unpack_int8(const struct panel_rows *rows, size_t group, size_t count,
                        struct int8_group *groups) {
    const __m256i low = _mm256_set1_epi8(15);
    for (size_t vector = 0; vector < rows->vectors; vector++)
        for (size_t g = 0; g < count; g++) {
            __m256i words[8];
            load_words(rows->codes + vector * VECTOR_ROWS, (group + g) * GROUP_BYTES, words);
            for (size_t w = 0; w < 8; w++) {
                _mm256_store_si256((__m256i *)&groups[g].even[w][vector * VECTOR_ROWS],
                                   _mm256_and_si256(words[w], low));
                _mm256_store_si256((__m256i *)&groups[g].odd[w][vector * VECTOR_ROWS],
                                   _mm256_and_si256(_mm256_srli_epi32(words[w], 4), low));
            }
        }
}

INLINE __m256i broadcast_word(const int8_t *at) {
    int32_t word;
    memcpy(&word, at, sizeof word);
    return _mm256_set1_epi32(word);
}

/* The terms of one group, added to y. */
INLINE __m256 int8_terms(__m256 y, __m256i product, __m256 scale, __m256 offset,
                         const struct int8_input *input, size_t group) {
    y = _mm256_fmadd_ps(_mm256_mul_ps(scale, _mm256_cvtepi32_ps(product)),
                        _mm256_set1_ps(input->scales[group]), y);
    return _mm256_fmadd_ps(offset, _mm256_set1_ps(input->sums[group]), y);
}

/* `vectors` vectors of rows from `first`, `tokens` rows of input, `count` unpacked groups. */
INLINE void int8_tile(const struct int8_group *groups, const struct panel_scales *scales, size_t group,
                      size_t count, const struct int8_input *inputs, size_t tokens, size_t vectors,
                      size_t first, float *out) {
    const __m256i ones = _mm256_set1_epi16(1);
    for (size_t g = 0; g < count; g++) {
        __m256i products[2][INT8_TOKENS];
        for (size_t half = 0; half < 2; half++) {
            __m256i sums[2][INT8_TOKENS] = {0};
            for (size_t w = half * 4; w < half * 4 + 4; w++)
                for (size_t odd = 0; odd < 2; odd++) {
                    const uint32_t *words = odd ? groups[g].odd[w] : groups[g].even[w];
                    __m256i codes[2];
                    for (size_t v = 0; v < vectors; v++)
                        codes[v] = _mm256_load_si256((const __m256i *)(words + first) + v);
                    for (size_t t = 0; t < tokens; t++) {
                        __m256i x =
                            broadcast_word(int8_group_codes(&inputs[t], group + g) + odd * 64 + w * 4);
                        for (size_t v = 0; v < vectors; v++)
                            sums[v][t] = _mm256_add_epi16(sums[v][t], _mm256_maddubs_epi16(codes[v], x));
                    }
                }
            for (size_t v = 0; v < vectors; v++)
                for (size_t t = 0; t < tokens; t++) {
                    __m256i sum = _mm256_madd_epi16(sums[v][t], ones);
                    products[v][t] = half == 0 ? sum : _mm256_add_epi32(products[v][t], sum);
                }
        }
        for (size_t v = 0; v < vectors; v++) {
            __m256 scale = _mm256_load_ps(scales->scale[g] + first + v * VECTOR_ROWS);
            __m256 offset = _mm256_load_ps(scales->offset[g] + first + v * VECTOR_ROWS);
            for (size_t t = 0; t < tokens; t++) {
                float *y = out + t * PANEL_ROWS + first + v * VECTOR_ROWS;
                _mm256_store_ps(
                    y, int8_terms(_mm256_load_ps(y), products[v][t], scale, offset, &inputs[t], group + g));
            }
        }
    }
}

/* Sums across each of 8 vectors of 16-bit sums of four products: lane r that of sums[r]. Four sums of four
 * products still fit into 16 bits. */
INLINE __m256i sum_across(const __m256i sums[8]) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i quads[2];
    for (int i = 0; i < 2; i++)
        quads[i] = _mm256_madd_epi16(_mm256_hadd_epi16(_mm256_hadd_epi16(sums[4 * i], sums[4 * i + 1]),
                                                       _mm256_hadd_epi16(sums[4 * i + 2], sums[4 * i + 3])),
                                     ones);
    return _mm256_add_epi32(_mm256_permute2x128_si256(quads[0], quads[1], 0x20),
                            _mm256_permute2x128_si256(quads[0], quads[1], 0x31));
}

/* One group of a vector of rows, for one or two rows of input. */
INLINE void int8_stream_group(const struct view *matrix, const unsigned char *const codes[VECTOR_ROWS],
                              const struct int8_input *inputs, size_t tokens, size_t group, bool prefetch,
                              __m256i products[2]) {
    const __m256i low = _mm256_set1_epi8(15);
    __m256i sums[2][VECTOR_ROWS];
    for (size_t r = 0; r < VECTOR_ROWS; r++) {
        const unsigned char *at = codes[r] + group * GROUP_BYTES;
        __m256i packed = _mm256_loadu_si256((const __m256i *)at);
        /* The row 8 below comes next. Nothing is fetched from where there is no memory. */
        if (prefetch)
            _mm_prefetch((const char *)((uintptr_t)at + VECTOR_ROWS * matrix->columns / 2), _MM_HINT_T0);
        __m256i even = _mm256_and_si256(packed, low);
        __m256i odd = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low);
        for (size_t t = 0; t < tokens; t++) {
            const __m256i *input = (const __m256i *)int8_group_codes(&inputs[t], group);
            sums[t][r] = _mm256_add_epi16(_mm256_maddubs_epi16(even, _mm256_load_si256(input)),
                                          _mm256_maddubs_epi16(odd, _mm256_load_si256(input + 2)));
        }
    }
    for (size_t t = 0; t < tokens; t++)
        products[t] = sum_across(sums[t]);
}

#include "backend/cpu/kernels/panel_int8.h"

/* BF16 and F32 */

/* To the nearest bfloat16, even when in the middle. A NaN must have zeros in its low half. */
INLINE __m256 round_to_bf16(__m256 values) {
    __m256i bits = _mm256_castps_si256(values);
    __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    bits = _mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff)));
    return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32((int)0xffff0000u)));
}

/* Columns of `bits` bits from words of 8 rows: panel[column][PANEL_ROWS] = scale * code + offset */
INLINE void expand_affine(const __m256i words[8], int bits, __m256 scale, __m256 offset, bool rounded,
                          float *panel) {
    const __m256i mask = _mm256_set1_epi32((1 << bits) - 1);
    for (int w = 0; w < 8; w++)
        for (int k = 0; k < 32 / bits; k++) {
            __m256 code = _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(words[w], bits * k), mask));
            __m256 value = _mm256_add_ps(_mm256_mul_ps(scale, code), offset);
            _mm256_store_ps(panel + (w * (32 / bits) + k) * PANEL_ROWS,
                            rounded ? round_to_bf16(value) : value);
        }
}

INLINE __m256 quiet(__m256 values) {
    return _mm256_blendv_ps(values, _mm256_set1_ps(NAN), _mm256_cmp_ps(values, values, _CMP_UNORD_Q));
}

/* The same for 16 columns of 16-bit floats, or 8 of float32 */
INLINE void expand_floats(const __m256i words[8], enum dtype dtype, bool rounded, float *panel) {
    for (int w = 0; w < 8; w++) {
        if (dtype == DTYPE_F32) {
            __m256 value = _mm256_castsi256_ps(words[w]);
            _mm256_store_ps(panel + w * PANEL_ROWS, rounded ? round_to_bf16(quiet(value)) : value);
            continue;
        }
        for (int k = 0; k < 2; k++) {
            __m256i high = k == 0 ? _mm256_slli_epi32(words[w], 16) : words[w];
            high = _mm256_and_si256(high, _mm256_set1_epi32((int)0xffff0000u));
            __m256 value = _mm256_castsi256_ps(high);
            if (dtype == DTYPE_F16) {
                __m256i halves = _mm256_srli_epi32(high, 16);
                halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(halves, halves), 0x08);
                value = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
                value = rounded ? round_to_bf16(quiet(value)) : value;
            }
            _mm256_store_ps(panel + (2 * w + k) * PANEL_ROWS, value);
        }
    }
}

/* out[t][rows] += sum of panel[column][rows] * x[t][column], `vectors` vectors of rows */
INLINE void float_tile(const float *panel, size_t columns, const float *const *x, size_t tokens,
                       size_t vectors, float *out) {
    __m256 y[FLOAT_TOKENS][PANEL_VECTORS];
    for (size_t t = 0; t < tokens; t++)
        for (size_t v = 0; v < vectors; v++)
            y[t][v] = _mm256_load_ps(out + t * PANEL_ROWS + v * VECTOR_ROWS);
    for (size_t column = 0; column < columns; column++)
        for (size_t t = 0; t < tokens; t++) {
            __m256 value = _mm256_set1_ps(x[t][column]);
            for (size_t v = 0; v < vectors; v++)
                y[t][v] = _mm256_fmadd_ps(_mm256_load_ps(panel + column * PANEL_ROWS + v * VECTOR_ROWS),
                                          value, y[t][v]);
        }
    for (size_t t = 0; t < tokens; t++)
        for (size_t v = 0; v < vectors; v++)
            _mm256_store_ps(out + t * PANEL_ROWS + v * VECTOR_ROWS, y[t][v]);
}

static void float_tiles(const float *panel, size_t columns, const float *const *x, size_t tokens,
                        size_t vectors, float *out) {
    if (vectors == PANEL_VECTORS && tokens == FLOAT_TOKENS)
        float_tile(panel, columns, x, FLOAT_TOKENS, PANEL_VECTORS, out);
    else if (vectors == PANEL_VECTORS)
        for (size_t t = 0; t < tokens; t++)
            float_tile(panel, columns, x + t, 1, PANEL_VECTORS, out + t * PANEL_ROWS);
    else
        for (size_t v = 0; v < vectors; v++)
            for (size_t t = 0; t < tokens; t++)
                float_tile(panel + v * VECTOR_ROWS, columns, x + t, 1, 1,
                           out + t * PANEL_ROWS + v * VECTOR_ROWS);
}

#include "backend/cpu/kernels/panel_floats.h"

/* Input rows */

static void prepare_int8(const float *x, size_t columns, void *row) {
    unsigned char *codes = row;
    float *scales = (float *)(codes + int8_scales_offset(columns));
    float *sums = (float *)(codes + int8_sums_offset(columns));
    const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const __m256i even_first = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4,
                                                6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    memset(row, 0, operand_row_bytes(OPERAND_INT8, columns));
    for (size_t group = 0; group < columns / DTYPE_AFFINE_GROUP; group++) {
        const float *values = x + group * DTYPE_AFFINE_GROUP;
        /* As integers, magnitudes are in order, infinity after all numbers and NaNs after it. */
        __m256i largest = _mm256_setzero_si256();
        for (size_t i = 0; i < DTYPE_AFFINE_GROUP; i += VECTOR_ROWS)
            largest = _mm256_max_epi32(
                largest, _mm256_castps_si256(_mm256_and_ps(_mm256_loadu_ps(values + i), magnitude)));
        __m128i four = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
        four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
        float maximum = float_from_bits((uint32_t)_mm_cvtsi128_si32(four));
        scales[group] = sums[group] = isfinite(maximum) ? 0 : NAN;
        if (!isfinite(maximum) || maximum < INT8_SMALLEST)
            continue;
        __m256 inverse = _mm256_set1_ps(127.0f / maximum);
        __m256i total = _mm256_setzero_si256();
        for (size_t half = 0; half < 2; half++) {
            __m256i whole[4];
            for (size_t i = 0; i < 4; i++) {
                __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(values + half * 32 + i * VECTOR_ROWS), inverse);
                whole[i] = _mm256_cvtps_epi32(scaled);
                total = _mm256_add_epi32(total, whole[i]);
            }
            __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]),
                                               _mm256_packs_epi32(whole[2], whole[3]));
            bytes = _mm256_shuffle_epi8(bytes, even_first);
            __m128i front = _mm256_castsi256_si128(bytes), back = _mm256_extracti128_si256(bytes, 1);
            unsigned char *to = codes + group / 2 * 128 + group % 2 * 32 + half * 16;
            _mm_storeu_si128((__m128i *)to, _mm_unpacklo_epi16(front, back));
            _mm_storeu_si128((__m128i *)(to + 64), _mm_unpackhi_epi16(front, back));
        }
        four = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
        scales[group] = maximum / 127.0f;
        sums[group] = scales[group] * (float)_mm_cvtsi128_si32(four);
    }
}

static void prepare_bf16(const float *x, size_t columns, void *row) {
    uint16_t *out = row;
    memset(row, 0, operand_row_bytes(OPERAND_BF16, columns));
    size_t i = 0;
    for (; i + VECTOR_ROWS <= columns; i += VECTOR_ROWS) {
        __m256i bits = _mm256_castps_si256(round_to_bf16(quiet(_mm256_loadu_ps(x + i))));
        bits = _mm256_srli_epi32(bits, 16);
        bits = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08);
        _mm_storeu_si128((__m128i *)(out + i), _mm256_castsi256_si128(bits));
    }
    for (; i < columns; i++)
        out[i] = float_to_bf16(x[i]);
}

const struct matrix_kernels avx2_matrix_kernels = {
    .multiply =
        {[OPERAND_INT8] = multiply_int8, [OPERAND_BF16] = multiply_float, [OPERAND_F32] = multiply_float},
    .prepare = {[OPERAND_INT8] = prepare_int8, [OPERAND_BF16] = prepare_bf16},
};
