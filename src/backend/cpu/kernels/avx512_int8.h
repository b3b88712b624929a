/* INT8 products with AVX-512, for the files that include this: with VNNI's dot products of bytes where the
 * compiler may use them, else with those of pairs, whose 16-bit sums hold eight steps of codes up to 15.
 *
 * One or two inputs (decoding) are bound by memory: a row's codes meet the inputs' along the row, and only
 * the sums of 16 rows are turned. With more inputs the codes are turned once for all, so that a step is four
 * codes of each of 16 rows times four of an input, which all lanes share. The sums of a group are exact
 * integers and the rest is the same chain, so both give the same bits. */
#ifndef CALLA_BACKEND_CPU_KERNELS_AVX512_INT8_H
#define CALLA_BACKEND_CPU_KERNELS_AVX512_INT8_H

#include "backend/cpu/kernels/avx512.h"

/* Groups whose codes are unpacked at once: 8 KB, so that reading ahead goes on in short turns. */
#define CODE_GROUPS 4
/* Steps of a group of 64 columns. */
#define STEPS 16
#define BLOCK_BYTES 64 /* of the codes of two groups of a row */

/* 1.5 * 2^23: a float32 whose last bit is worth 1. An integer below 2^22 added to its bits is added to it. */
#define INTEGER_BASE 12582912.0f

struct int8_panel {
    struct panel_scales scales;
    /* Of row r at step s: the codes of columns 8 (s / 2) + s % 2 + {0, 2, 4, 6} of the group. */
    uint32_t codes[CODE_GROUPS][STEPS][PANEL_ROWS];
};
_Static_assert(sizeof(struct int8_panel) <= PANEL_BYTES, "the panel must fit its scratch");

/* A row of input. */
struct int8_input {
    const int8_t *codes;
    const float *scales, *sums;
};

static inline struct int8_input int8_input(const struct operand_rows *x, const uint32_t *index, size_t i) {
    const unsigned char *row = input_row(x, index, i);
    return (struct int8_input){(const int8_t *)row, (const float *)(row + int8_scales_offset(x->columns)),
                               (const float *)(row + int8_sums_offset(x->columns))};
}

/* A point in a function where a vector has been computed, and all memory written. */
#define IN_REGISTER(vector) __asm__ volatile("" : "+v"(vector) : : "memory")

/* Four codes of the input for all lanes. */
ALWAYS_INLINE __m512i broadcast_codes(const int8_t *codes) {
    int32_t word;
    memcpy(&word, codes, sizeof word);
    return _mm512_set1_epi32(word);
}

#ifdef __AVX512VNNI__
#define MOST_INPUTS TILE_INPUTS

/* Of each lane: four codes of the low halves with four of `even`, and of the high ones with `odd`. */
ALWAYS_INLINE __m512i dot_block(__m512i low, __m512i even, __m512i high, __m512i odd) {
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), low, even), high, odd);
}

/* sums[i][s] of stripe s = bits of INTEGER_BASE + the products of a group with input i */
ALWAYS_INLINE void dot_group(size_t count, const uint32_t (*steps)[PANEL_ROWS], const int8_t *const *inputs,
                             size_t at, __m512i sums[][STRIPES]) {
    for (size_t i = 0; i < count; i++)
        sums[i][0] = sums[i][1] = _mm512_castps_si512(_mm512_set1_ps(INTEGER_BASE));
    UNROLLED
    for (size_t s = 0; s < STEPS; s++) {
        __m512i first = _mm512_load_si512(steps[s]), second = _mm512_load_si512(steps[s] + STRIPE_ROWS);
        for (size_t i = 0; i < count; i++) {
            __m512i x = broadcast_codes(inputs[i] + at + s % 2 * 64 + s / 2 * 4);
            sums[i][0] = _mm512_dpbusd_epi32(sums[i][0], first, x);
            sums[i][1] = _mm512_dpbusd_epi32(sums[i][1], second, x);
        }
    }
}
#else
#define MOST_INPUTS 6 /* each takes four registers */

ALWAYS_INLINE __m512i dot_block(__m512i low, __m512i even, __m512i high, __m512i odd) {
    __m512i pairs = _mm512_add_epi16(_mm512_maddubs_epi16(low, even), _mm512_maddubs_epi16(high, odd));
    return _mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
}

ALWAYS_INLINE void dot_group(size_t count, const uint32_t (*steps)[PANEL_ROWS], const int8_t *const *inputs,
                             size_t at, __m512i sums[][STRIPES]) {
    const __m512i one = _mm512_set1_epi16(1);
    for (size_t i = 0; i < count; i++)
        sums[i][0] = sums[i][1] = _mm512_castps_si512(_mm512_set1_ps(INTEGER_BASE));
    UNROLLED
    for (size_t half = 0; half < STEPS; half += STEPS / 2) {
        __m512i pairs[TILE_INPUTS][STRIPES]; /* 8 steps of at most 2 * 15 * 127 fit 16 bits */
        for (size_t i = 0; i < count; i++)
            pairs[i][0] = pairs[i][1] = _mm512_setzero_si512();
        UNROLLED
        for (size_t s = half; s < half + STEPS / 2; s++) {
            __m512i first = _mm512_load_si512(steps[s]), second = _mm512_load_si512(steps[s] + STRIPE_ROWS);
            for (size_t i = 0; i < count; i++) {
                __m512i x = broadcast_codes(inputs[i] + at + s % 2 * 64 + s / 2 * 4);
                pairs[i][0] = _mm512_add_epi16(pairs[i][0], _mm512_maddubs_epi16(first, x));
                pairs[i][1] = _mm512_add_epi16(pairs[i][1], _mm512_maddubs_epi16(second, x));
                IN_REGISTER(pairs[i][0]);
                IN_REGISTER(pairs[i][1]);
            }
        }
        for (size_t i = 0; i < count; i++)
            for (size_t s = 0; s < STRIPES; s++)
                sums[i][s] = _mm512_add_epi32(sums[i][s], _mm512_madd_epi16(pairs[i][s], one));
    }
}
#endif

/* y += x.scale * (scale * D) + offset * x.sum, where `sums` holds the bits of INTEGER_BASE + D. A scale of
 * 16 bits times INTEGER_BASE is exact, so that one rounding gives scale * D; a scale of 32 bits takes two
 * operations. */
ALWAYS_INLINE __m512 add_group(__m512 y, __m512i sums, __m512 scale, __m512 offset, bool short_scale,
                               const float *x_scale, const float *x_sum) {
    const __m512 base = _mm512_set1_ps(INTEGER_BASE);
    __m512 value = _mm512_castsi512_ps(sums);
    __m512 product = short_scale ? _mm512_fmsub_ps(scale, value, _mm512_mul_ps(scale, base))
                                 : _mm512_mul_ps(scale, _mm512_sub_ps(value, base));
    y = _mm512_fmadd_ps(product, _mm512_set1_ps(*x_scale), y);
    return _mm512_fmadd_ps(offset, _mm512_set1_ps(*x_sum), y);
}

/* Sums over 128-bit lanes, rows side by side: lane 4 l + r of the result = sum of the four of part l of row r
 */
ALWAYS_INLINE __m512i sum_four_rows(const __m512i rows[4]) {
    __m512i a =
        _mm512_add_epi32(_mm512_unpacklo_epi32(rows[0], rows[1]), _mm512_unpackhi_epi32(rows[0], rows[1]));
    __m512i b =
        _mm512_add_epi32(_mm512_unpacklo_epi32(rows[2], rows[3]), _mm512_unpackhi_epi32(rows[2], rows[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* Of two vectors, the sums of their neighbouring 128-bit lanes: a01, a23, b01, b23. */
ALWAYS_INLINE __m512i sum_lane_pairs(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

/* Where the rows after a stripe lie. While it is multiplied they are read ahead, in the order in which they
 * will be used: the processor would not foresee 16 rows 1 KB apart. */
struct next_stripe {
    const char *codes, *scales, *offsets;
    size_t row_bytes;
};

ALWAYS_INLINE void read_ahead_block(const struct next_stripe *next, size_t block) {
    for (size_t i = 0; i < STRIPE_ROWS; i++)
        _mm_prefetch(next->codes + i * next->row_bytes + (block + 1) * BLOCK_BYTES - 1, _MM_HINT_T0);
    _mm_prefetch(next->scales + block * 64, _MM_HINT_T0);
    _mm_prefetch(next->offsets + block * 64, _MM_HINT_T0);
}

/* A stripe with one or two inputs. */
ALWAYS_INLINE void multiply_stripe(size_t count, const struct view *matrix, const struct stripe *stripe,
                                   const struct int8_input *inputs, struct panel_scales *panel, float *out) {
    const __m512i low_half = _mm512_set1_epi8(15);
    size_t groups = matrix->columns / DTYPE_AFFINE_GROUP;
    bool short_scale = matrix->scale_dtype != DTYPE_F32;
    bool last = stripe->rows[STRIPE_ROWS - 1] + 1 >= matrix->rows;
    size_t row_bytes = groups * (DTYPE_AFFINE_GROUP / 2), blocks = (groups + 1) / 2;
    size_t next_row = stripe->rows[0] + (last ? 0 : STRIPE_ROWS);
    struct next_stripe next = {(const char *)matrix->bytes + next_row * row_bytes,
                               (const char *)matrix->scales + next_row * groups * 2,
                               (const char *)matrix->biases + next_row * groups * 2, row_bytes};
    read_ahead_block(&next, 0); /* so that the memory is busy while the scales are turned */
    __m512 y[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (size_t begin = 0; begin < groups; begin += SCALE_GROUPS) {
        panel_scales_load(panel, stripe, 0, matrix, begin);
        for (size_t g = begin; g < groups && g < begin + SCALE_GROUPS; g += 2) {
            size_t block = g / 2;
            if (block + 1 < blocks)
                read_ahead_block(&next, block + 1);
            __mmask16 present = lanes16((groups - g) * 8);
            __m512i even[2], odd[2], quads[2][4];
            for (size_t i = 0; i < count; i++) {
                even[i] = _mm512_load_si512(inputs[i].codes + block * 128);
                odd[i] = _mm512_load_si512(inputs[i].codes + block * 128 + 64);
            }
            for (size_t quad = 0; quad < 4; quad++) {
                __m512i sums[2][4];
                for (size_t r = 0; r < 4; r++) {
                    __m512i codes =
                        _mm512_maskz_loadu_epi32(present, stripe->codes[quad * 4 + r] + block * BLOCK_BYTES);
                    __m512i low = _mm512_and_si512(codes, low_half);
                    __m512i high = _mm512_and_si512(_mm512_srli_epi16(codes, 4), low_half);
                    for (size_t i = 0; i < count; i++)
                        sums[i][r] = dot_block(low, even[i], high, odd[i]);
                }
                for (size_t i = 0; i < count; i++)
                    quads[i][quad] = sum_four_rows(sums[i]);
            }
            for (size_t i = 0; i < count; i++) {
                __m512i a = sum_lane_pairs(quads[i][0], quads[i][1]);
                __m512i b = sum_lane_pairs(quads[i][2], quads[i][3]);
                const __m512i base = _mm512_castps_si512(_mm512_set1_ps(INTEGER_BASE));
                y[i] = add_group(y[i], _mm512_add_epi32(base, _mm512_shuffle_i32x4(a, b, 0x88)),
                                 _mm512_load_ps(panel->scales[g - begin]),
                                 _mm512_load_ps(panel->offsets[g - begin]), short_scale, inputs[i].scales + g,
                                 inputs[i].sums + g);
                if (g + 1 < groups)
                    y[i] = add_group(y[i], _mm512_add_epi32(base, _mm512_shuffle_i32x4(a, b, 0xdd)),
                                     _mm512_load_ps(panel->scales[g + 1 - begin]),
                                     _mm512_load_ps(panel->offsets[g + 1 - begin]), short_scale,
                                     inputs[i].scales + g + 1, inputs[i].sums + g + 1);
            }
        }
    }
    for (size_t i = 0; i < count; i++)
        _mm512_store_ps(out + i * PANEL_ROWS, y[i]);
}

static void multiply_few(const struct view *matrix, size_t first, size_t rows, const struct operand_rows *x,
                         const uint32_t *index, size_t count, float *out, void *panel) {
    for (size_t number = 0; number * STRIPE_ROWS < rows; number++) {
        struct stripe stripe;
        stripe_init(&stripe, matrix, first, rows, number);
        float *stripe_out = out + number * STRIPE_ROWS;
        for (size_t i = 0; i < count; i += 2) {
            struct int8_input inputs[2] = {int8_input(x, index, i)};
            if (i + 1 == count) {
                multiply_stripe(1, matrix, &stripe, inputs, panel, stripe_out + i * PANEL_ROWS);
            } else {
                inputs[1] = int8_input(x, index, i + 1);
                multiply_stripe(2, matrix, &stripe, inputs, panel, stripe_out + i * PANEL_ROWS);
            }
        }
    }
}

/* The codes of two groups of a stripe into codes[2][STEPS][PANEL_ROWS]. */
ALWAYS_INLINE void unpack_block(const struct stripe *stripe, size_t group, size_t groups, uint32_t *codes) {
    const __m512i low_half = _mm512_set1_epi8(15);
    __mmask16 present = lanes16((groups - group) * 8);
    __m512i words[STRIPE_ROWS];
    for (size_t r = 0; r < STRIPE_ROWS; r++) {
        const unsigned char *block = stripe->codes[r] + group / 2 * BLOCK_BYTES;
        words[r] = _mm512_maskz_loadu_epi32(present, block);
        _mm_prefetch((const char *)block + 2 * BLOCK_BYTES - 1, _MM_HINT_T0);
    }
    transpose(words);
    for (size_t i = 0; i < 16; i++) {
        _mm512_store_si512(codes + 2 * i * PANEL_ROWS, _mm512_and_si512(words[i], low_half));
        _mm512_store_si512(codes + (2 * i + 1) * PANEL_ROWS,
                           _mm512_and_si512(_mm512_srli_epi16(words[i], 4), low_half));
    }
}

/* Cache lines that a group of a panel takes. */
#define GROUP_LINES (PANEL_ROWS * DTYPE_AFFINE_GROUP / 2 / 64)

struct int8_tile {
    const struct operand_rows *x;
    const uint32_t *index;
    size_t first_input, begin, end; /* groups, at most CODE_GROUPS */
    const char *next;               /* the codes of the next panel, */
    size_t first_line, end_line;    /* of which each group these lines are read ahead */
    float *out;                     /* [count][PANEL_ROWS] += */
};

ALWAYS_INLINE void multiply_tile(size_t count, const struct int8_panel *panel, const struct int8_tile *tile) {
    const struct operand_rows *x = tile->x;
    float *out = tile->out;
    const int8_t *inputs[TILE_INPUTS];
    for (size_t i = 0; i < count; i++)
        inputs[i] = (const int8_t *)input_row(x, tile->index, tile->first_input + i);
    size_t scales = int8_scales_offset(x->columns), sums = int8_sums_offset(x->columns);
    for (size_t g = tile->begin; g < tile->end; g++) {
        __m512i products[TILE_INPUTS][STRIPES];
        for (size_t line = tile->first_line; line < tile->end_line; line++)
            _mm_prefetch(tile->next + (g * GROUP_LINES + line) * 64, _MM_HINT_T1);
        dot_group(count, panel->codes[g - tile->begin], inputs, g / 2 * 128 + g % 2 * 32, products);
        /* All sums are done here, and outputs stay in memory: compilers would delay half of the sums, or
         * carry outputs from group to group, in registers that are not there. */
        for (size_t i = 0; i < count; i++)
            for (size_t s = 0; s < STRIPES; s++)
                IN_REGISTER(products[i][s]);
        for (size_t s = 0; s < STRIPES; s++) {
            __m512 scale = _mm512_load_ps(panel->scales.scales[g % SCALE_GROUPS] + s * STRIPE_ROWS);
            __m512 offset = _mm512_load_ps(panel->scales.offsets[g % SCALE_GROUPS] + s * STRIPE_ROWS);
            for (size_t i = 0; i < count; i++) {
                float *y = out + i * PANEL_ROWS + s * STRIPE_ROWS;
                _mm512_store_ps(y, add_group(_mm512_load_ps(y), products[i][s], scale, offset, true,
                                             (const float *)(inputs[i] + scales) + g,
                                             (const float *)(inputs[i] + sums) + g));
            }
        }
    }
}

#define TILE(size)                                                                                           \
    static __attribute__((noinline)) void multiply_tile_##size(const struct int8_panel *panel,               \
                                                               const struct int8_tile *tile) {               \
        multiply_tile(size, panel, tile);                                                                    \
    }
TILE(3)
TILE(4)
TILE(5)
TILE(6)
TILE(7)
TILE(8)
#undef TILE

static void multiply_tiles(const struct int8_panel *panel, size_t begin, size_t end,
                           const struct operand_rows *x, const uint32_t *index, size_t count,
                           const unsigned char *next, float *out) {
    static void (*const functions[])(const struct int8_panel *, const struct int8_tile *) = {
        multiply_tile_3, multiply_tile_4, multiply_tile_5, multiply_tile_6, multiply_tile_7, multiply_tile_8};
    for (size_t i = 0, size; i < count; i += size) {
        size = tile_size(count - i, MOST_INPUTS);
        struct int8_tile tile = {.x = x,
                                 .index = index,
                                 .first_input = i,
                                 .begin = begin,
                                 .end = end,
                                 .next = (const char *)next,
                                 .first_line = GROUP_LINES * i / count,
                                 .end_line = GROUP_LINES * (i + size) / count,
                                 .out = out + i * PANEL_ROWS};
        functions[size - 3](panel, &tile);
    }
}

static void multiply_int8(const struct view *matrix, size_t first, size_t rows, const struct operand_rows *x,
                          const uint32_t *index, size_t count, float *out, void *scratch) {
    if (count <= 2 || matrix->scale_dtype == DTYPE_F32) {
        multiply_few(matrix, first, rows, x, index, count, out, scratch);
        return;
    }
    struct int8_panel *panel = scratch;
    struct stripe stripes[STRIPES];
    for (size_t s = 0; s < STRIPES; s++)
        stripe_init(&stripes[s], matrix, first, rows, s);
    memset(out, 0, count * PANEL_ROWS * sizeof *out);
    size_t groups = matrix->columns / DTYPE_AFFINE_GROUP;
    /* What is read ahead: the processor would not foresee rows 1 KB apart. */
    size_t next = first + PANEL_ROWS < matrix->rows ? first + PANEL_ROWS : first;
    for (size_t begin = 0; begin < groups; begin += CODE_GROUPS) {
        size_t end = begin + CODE_GROUPS < groups ? begin + CODE_GROUPS : groups;
        for (size_t s = 0; s < STRIPES; s++) {
            if (begin % SCALE_GROUPS == 0)
                panel_scales_load(&panel->scales, &stripes[s], s, matrix, begin);
            for (size_t g = begin; g < end; g += 2) {
                _mm_prefetch((const char *)matrix->scales + next * groups * 2 + (g + s) * 64, _MM_HINT_T1);
                _mm_prefetch((const char *)matrix->biases + next * groups * 2 + (g + s) * 64, _MM_HINT_T1);
                unpack_block(&stripes[s], g, groups, panel->codes[g - begin][0] + s * STRIPE_ROWS);
            }
        }
        multiply_tiles(panel, begin, end, x, index, count,
                       matrix->bytes + next * groups * (DTYPE_AFFINE_GROUP / 2), out);
    }
}

#endif
