/* Attention of rows of queries over the KV cache. A template: see attention_table.h.
 *
 * A block's keys are transposed, so that a vector holds one element of as many keys as it has lanes: scores
 * need no sums across lanes. Its values are widened to float32. Both are then used by all rows, a tile of
 * TILE_ROWS rows and 2 vectors at a time, whose sums stay in registers. Rows and elements are filled up with
 * zeros to whole tiles. */
#ifndef CALLA_BACKEND_CPU_KERNELS_ATTENTION_H
#define CALLA_BACKEND_CPU_KERNELS_ATTENTION_H

#include <float.h>
#include <math.h>

#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/kernels/vector.h"

#if LANES == 16 || defined(__aarch64__)
#define TILE_ROWS 8
#else
#define TILE_ROWS 4
#endif
#define TILE_LANES (2 * LANES)

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (int_vector){__VA_ARGS__})
#endif
#if LANES == 16
#define LOW_HALVES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define EVENS 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define ODDS 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define HIGH_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif LANES == 8
#define LOW_HALVES 0, 8, 1, 9, 2, 10, 3, 11
#define EVENS 0, 2, 4, 6, 8, 10, 12, 14
#define ODDS 1, 3, 5, 7, 9, 11, 13, 15
#define HIGH_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LOW_HALVES 0, 4, 1, 5
#define EVENS 0, 2, 4, 6
#define ODDS 1, 3, 5, 7
#define HIGH_HALVES 2, 6, 3, 7
#endif

/* Element j of vector i and element i of vector j change places: first within squares of 4 by 4, then the
 * squares. */
static inline void transpose(int_vector rows[LANES]) {
#if LANES == 16
    __m512i squares[LANES];
    for (size_t i = 0; i < LANES; i += 4) {
        __m512i a = _mm512_unpacklo_epi32((__m512i)rows[i], (__m512i)rows[i + 1]);
        __m512i b = _mm512_unpacklo_epi32((__m512i)rows[i + 2], (__m512i)rows[i + 3]);
        __m512i c = _mm512_unpackhi_epi32((__m512i)rows[i], (__m512i)rows[i + 1]);
        __m512i d = _mm512_unpackhi_epi32((__m512i)rows[i + 2], (__m512i)rows[i + 3]);
        squares[i] = _mm512_unpacklo_epi64(a, b);
        squares[i + 1] = _mm512_unpackhi_epi64(a, b);
        squares[i + 2] = _mm512_unpacklo_epi64(c, d);
        squares[i + 3] = _mm512_unpackhi_epi64(c, d);
    }
    for (size_t i = 0; i < 4; i++) {
        __m512i a = _mm512_shuffle_i32x4(squares[i], squares[i + 4], 0x88);
        __m512i b = _mm512_shuffle_i32x4(squares[i + 8], squares[i + 12], 0x88);
        __m512i c = _mm512_shuffle_i32x4(squares[i], squares[i + 4], 0xdd);
        __m512i d = _mm512_shuffle_i32x4(squares[i + 8], squares[i + 12], 0xdd);
        rows[i] = (int_vector)_mm512_shuffle_i32x4(a, b, 0x88);
        rows[i + 4] = (int_vector)_mm512_shuffle_i32x4(c, d, 0x88);
        rows[i + 8] = (int_vector)_mm512_shuffle_i32x4(a, b, 0xdd);
        rows[i + 12] = (int_vector)_mm512_shuffle_i32x4(c, d, 0xdd);
    }
#elif LANES == 8
    __m256i squares[LANES];
    for (size_t i = 0; i < LANES; i += 4) {
        __m256i a = _mm256_unpacklo_epi32((__m256i)rows[i], (__m256i)rows[i + 1]);
        __m256i b = _mm256_unpacklo_epi32((__m256i)rows[i + 2], (__m256i)rows[i + 3]);
        __m256i c = _mm256_unpackhi_epi32((__m256i)rows[i], (__m256i)rows[i + 1]);
        __m256i d = _mm256_unpackhi_epi32((__m256i)rows[i + 2], (__m256i)rows[i + 3]);
        squares[i] = _mm256_unpacklo_epi64(a, b);
        squares[i + 1] = _mm256_unpackhi_epi64(a, b);
        squares[i + 2] = _mm256_unpacklo_epi64(c, d);
        squares[i + 3] = _mm256_unpackhi_epi64(c, d);
    }
    for (size_t i = 0; i < 4; i++) {
        rows[i] = (int_vector)_mm256_permute2x128_si256(squares[i], squares[i + 4], 0x20);
        rows[i + 4] = (int_vector)_mm256_permute2x128_si256(squares[i], squares[i + 4], 0x31);
    }
#else
    int_vector a = SHUFFLE(rows[0], rows[2], LOW_HALVES), b = SHUFFLE(rows[1], rows[3], LOW_HALVES);
    int_vector c = SHUFFLE(rows[0], rows[2], HIGH_HALVES), d = SHUFFLE(rows[1], rows[3], HIGH_HALVES);
    rows[0] = SHUFFLE(a, b, LOW_HALVES);
    rows[1] = SHUFFLE(a, b, HIGH_HALVES);
    rows[2] = SHUFFLE(c, d, LOW_HALVES);
    rows[3] = SHUFFLE(c, d, HIGH_HALVES);
#endif
}

static inline float vector_largest(vector v) {
#if LANES == 16
    return _mm512_reduce_max_ps((__m512)v);
#else
    float lanes[LANES];
    vector_store(lanes, v);
    for (size_t i = 1; i < LANES; i++)
        lanes[0] = lanes[i] > lanes[0] ? lanes[i] : lanes[0];
    return lanes[0];
#endif
}

/* The rows of a block and what is computed for them, in a thread's workspace. `rows` and `depth` are the
 * numbers of rows and of elements, filled up to whole tiles. */
struct attention_state {
    const struct attention_rows *of;
    size_t rows, depth;
    float *q;       /* [rows / TILE_ROWS][depth][TILE_ROWS], times size^-0.5 */
    float *scores;  /* [rows][ATTENTION_BLOCK]: of a block, then its weights */
    float *keys;    /* [depth][TILE_LANES]: some of a block's */
    float *values;  /* [depth / TILE_LANES][ATTENTION_BLOCK][TILE_LANES]: a block's */
    float *out;     /* [rows][depth]: weights times values, of a span, in the order of `values` */
    float *sums;    /* [rows][LANES]: weights, of a span, not yet summed over the lanes */
    float *largest; /* [rows]: score, of a span */
    float *total;   /* [rows][attention_partial_floats]: of all spans so far */
};

static size_t round_up(size_t value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

static size_t attention_workspace_bytes(size_t rows, size_t size) {
    size_t depth = round_up(size, TILE_LANES);
    rows = round_up(rows, TILE_ROWS);
    return (rows * (2 * depth + ATTENTION_BLOCK + LANES + attention_partial_floats(size)) +
            depth * (TILE_LANES + ATTENTION_BLOCK) + round_up(rows, 16)) *
           sizeof(float);
}

static struct attention_state attention_begin(const struct attention_rows *of, float *workspace) {
    struct attention_state state = {.of = of,
                                    .rows = round_up(of->tokens * of->group, TILE_ROWS),
                                    .depth = round_up(of->size, TILE_LANES)};
    state.q = workspace;
    state.out = state.q + state.rows * state.depth;
    state.keys = state.out + state.rows * state.depth;
    state.values = state.keys + state.depth * TILE_LANES;
    state.scores = state.values + state.depth * ATTENTION_BLOCK;
    state.sums = state.scores + state.rows * ATTENTION_BLOCK;
    state.largest = state.sums + state.rows * LANES;
    state.total = state.largest + round_up(state.rows, 16);

    float scale = 1.0f / sqrtf((float)of->size);
    memset(state.q, 0, state.rows * state.depth * sizeof *state.q);
    for (size_t row = 0; row < of->tokens * of->group; row++) {
        const float *q = float_row(of->q, of->row + row / of->group * of->heads + row % of->group);
        float *packed = state.q + row / TILE_ROWS * TILE_ROWS * state.depth + row % TILE_ROWS;
        for (size_t i = 0; i < of->size; i++)
            packed[i * TILE_ROWS] = q[i] * scale;
    }
    return state;
}

/* Positions from `first` on that a row sees. A row past the last counts as one of the last token's. */
static size_t keys_seen(const struct attention_state *state, size_t row, size_t first) {
    size_t token = row / state->of->group, last = state->of->tokens - 1;
    size_t count = state->of->position + (token < last ? token : last) + 1;
    return count > first ? count - first : 0;
}

/* Elements of the cache row of a position, in the columns of the KV head. */
static const unsigned char *cached(const struct attention_state *state, const struct view *cache,
                                   size_t position) {
    size_t element = cache->dtype == DTYPE_BF16 ? sizeof(uint16_t) : sizeof(float);
    return cache->bytes + (position * cache->stride + state->of->column) * element;
}

/* What is to be read next, fetched into the second cache a few lines at a time between other work. */
struct prefetch {
    const unsigned char *row;
    size_t line, row_bytes, stride, rows_left; /* line: bytes from the row's start */
};

#define PREFETCH_LINES 8

static inline void prefetch_lines(struct prefetch *next) {
    for (size_t i = 0; i < PREFETCH_LINES && next->rows_left > 0; i++) {
        __builtin_prefetch(next->row + next->line, 0, 2);
        next->line += 64;
        if (next->line >= next->row_bytes) {
            next->line = 0;
            next->row += next->stride;
            next->rows_left--;
        }
    }
}

static struct prefetch prefetch_of(const struct attention_state *state, const struct view *cache,
                                   size_t first, size_t count) {
    size_t element = cache->dtype == DTYPE_BF16 ? sizeof(uint16_t) : sizeof(float);
    return (struct prefetch){.row = cached(state, cache, first),
                             .row_bytes = state->of->size * element,
                             .stride = cache->stride * element,
                             .rows_left = count};
}

static inline int_vector bits_load(const unsigned char *bytes) {
    int_vector bits;
    memcpy(&bits, bytes, sizeof bits);
    return bits;
}

/* The elements of bfloat16 at even and at odd places. */
static inline vector evens_of(int_vector pairs) {
    return vector_from_bits(pairs << 16);
}

static inline vector odds_of(int_vector pairs) {
    return vector_from_bits(pairs & -65536);
}

/* LANES rows from element d on, transposed: keys[d ..][LANES of TILE_LANES]. */
static inline void keys_load_bf16(const unsigned char *const rows[LANES], size_t d, float *keys) {
    int_vector block[LANES];
    for (size_t k = 0; k < LANES; k++)
        block[k] = bits_load(rows[k] + d * sizeof(uint16_t));
    transpose(block);
    for (size_t i = 0; i < LANES; i++) {
        vector_store(keys + (d + 2 * i) * TILE_LANES, evens_of(block[i]));
        vector_store(keys + (d + 2 * i + 1) * TILE_LANES, odds_of(block[i]));
    }
}

static inline void keys_load_f32(const unsigned char *const rows[LANES], size_t d, float *keys) {
    int_vector block[LANES];
    for (size_t k = 0; k < LANES; k++)
        block[k] = bits_load(rows[k] + d * sizeof(float));
    transpose(block);
    for (size_t i = 0; i < LANES; i++)
        vector_store(keys + (d + i) * TILE_LANES, vector_from_bits(block[i]));
}

/* state->keys[d][k] = K[first + k][d] of `count` keys; the lanes past them hold the last of them again. */
static void keys_load(const struct attention_state *state, size_t first, size_t count) {
    const struct view *cache = state->of->keys;
    size_t step = cache->dtype == DTYPE_BF16 ? TILE_LANES : LANES, whole = state->of->size / step * step;
    for (size_t group = 0; group < TILE_LANES; group += LANES) {
        const unsigned char *rows[LANES];
        for (size_t k = 0; k < LANES; k++)
            rows[k] = cached(state, cache, first + (group + k < count ? group + k : count - 1));
        float *keys = state->keys + group;
        if (cache->dtype == DTYPE_BF16)
            for (size_t d = 0; d < whole; d += step)
                keys_load_bf16(rows, d, keys);
        else
            for (size_t d = 0; d < whole; d += step)
                keys_load_f32(rows, d, keys);
        for (size_t d = whole; d < state->depth; d++)
            for (size_t k = 0; k < LANES; k++)
                keys[d * TILE_LANES + k] = d < state->of->size ? float_load(rows[k], cache->dtype, d) : 0;
    }
}

/* state->values[d / TILE_LANES][k] = TILE_LANES elements of V[first + k] of `count` positions, those at even
 * places before those at odd ones. */
static void values_load(const struct attention_state *state, size_t first, size_t count) {
    const struct view *cache = state->of->values;
    size_t whole = state->of->size / TILE_LANES * TILE_LANES;
    for (size_t k = 0; k < count; k++) {
        const unsigned char *row = cached(state, cache, first + k);
        float *out = state->values + k * TILE_LANES;
        for (size_t d = 0; d < whole; d += TILE_LANES, out += TILE_LANES * ATTENTION_BLOCK) {
            if (cache->dtype == DTYPE_BF16) {
                int_vector pairs = bits_load(row + d * sizeof(uint16_t));
                vector_store(out, evens_of(pairs));
                vector_store(out + LANES, odds_of(pairs));
            } else {
                int_vector low = bits_load(row + d * sizeof(float));
                int_vector high = bits_load(row + (d + LANES) * sizeof(float));
                vector_store(out, vector_from_bits(SHUFFLE(low, high, EVENS)));
                vector_store(out + LANES, vector_from_bits(SHUFFLE(low, high, ODDS)));
            }
        }
        for (size_t d = whole; d < state->depth; d++)
            out[d % 2 * LANES + (d - whole) / 2] = d < state->of->size ? float_load(row, cache->dtype, d) : 0;
    }
}

/* scores[TILE_ROWS][TILE_LANES of ATTENTION_BLOCK] = q keys, summed over rising elements. */
static void score_tile(const float *restrict q, const float *restrict keys, size_t depth,
                       float *restrict scores, struct prefetch *next) {
    vector sums[TILE_ROWS][2];
    for (size_t row = 0; row < TILE_ROWS; row++)
        sums[row][0] = sums[row][1] = vector_of(0);
    for (size_t d = 0; d < depth; d += PREFETCH_LINES) {
        prefetch_lines(next);
        for (size_t i = 0; i < PREFETCH_LINES; i++, q += TILE_ROWS, keys += TILE_LANES) {
            vector low = vector_load(keys), high = vector_load(keys + LANES);
            for (size_t row = 0; row < TILE_ROWS; row++) {
                vector value = vector_of(q[row]);
                sums[row][0] = vector_fma(value, low, sums[row][0]);
                sums[row][1] = vector_fma(value, high, sums[row][1]);
            }
        }
    }
    for (size_t row = 0; row < TILE_ROWS; row++) {
        vector_store(scores + row * ATTENTION_BLOCK, sums[row][0]);
        vector_store(scores + row * ATTENTION_BLOCK + LANES, sums[row][1]);
    }
}

/* The scores of the first `keys` positions of a block become weights exp(score - largest), the others zero;
 * the row's sums so far are scaled to the new largest score. That starts from a finite number, so that
 * scores of -infinity weigh nothing, and passes NaN over: they are in the weights. */
static inline void weights_of_row(float *scores, size_t keys, float *largest, float *sums, float *out,
                                  size_t depth) {
    size_t end = round_up(keys, LANES);
    for (size_t k = keys; k < end; k++)
        scores[k] = -INFINITY;
    vector largest_lanes = vector_of(*largest);
    for (size_t k = 0; k < end; k += LANES)
        largest_lanes = vector_max(vector_load(scores + k), largest_lanes);
    float now_largest = vector_largest(largest_lanes);
    vector sum = vector_load(sums);
    if (now_largest > *largest) {
        vector scale = vector_exp(vector_of(*largest - now_largest));
        sum = sum * scale;
        for (size_t d = 0; d < depth; d += LANES)
            vector_store(out + d, vector_load(out + d) * scale);
        *largest = now_largest;
    }
    for (size_t k = 0; k < end; k += LANES) {
        vector weight = vector_exp(vector_load(scores + k) - vector_of(now_largest));
        vector_store(scores + k, weight);
        sum = sum + weight;
    }
    vector_store(sums, sum);
}

/* out[rows][TILE_LANES of depth] += weights values over `keys` rising positions, `stride` bytes apart: pairs
 * of bfloat16, or float32 as values_load leaves it. */
static inline __attribute__((always_inline)) void mix(const float *restrict weights,
                                                      const unsigned char *restrict values, size_t stride,
                                                      bool half, size_t keys, float *restrict out,
                                                      size_t depth, size_t rows, struct prefetch *next) {
    vector sums[TILE_ROWS][2];
    for (size_t row = 0; row < rows; row++) {
        sums[row][0] = vector_load(out + row * depth);
        sums[row][1] = vector_load(out + row * depth + LANES);
    }
    for (size_t k = 0; k < keys; k++, values += stride) {
        if (k % PREFETCH_LINES == 0)
            prefetch_lines(next);
        int_vector bits = bits_load(values);
        vector low = half ? evens_of(bits) : vector_from_bits(bits);
        vector high = half ? odds_of(bits) : vector_from_bits(bits_load(values + sizeof bits));
        for (size_t row = 0; row < rows; row++) {
            vector weight = vector_of(weights[row * ATTENTION_BLOCK + k]);
            sums[row][0] = vector_fma(weight, low, sums[row][0]);
            sums[row][1] = vector_fma(weight, high, sums[row][1]);
        }
    }
    for (size_t row = 0; row < rows; row++) {
        vector_store(out + row * depth, sums[row][0]);
        vector_store(out + row * depth + LANES, sums[row][1]);
    }
}

static void mix_tile(const float *weights, const float *values, size_t keys, float *out, size_t depth,
                     struct prefetch *next) {
    mix(weights, (const unsigned char *)values, TILE_LANES * sizeof(float), false, keys, out, depth,
        TILE_ROWS, next);
}

static void mix_tile_bf16(const float *weights, const unsigned char *values, size_t stride, size_t keys,
                          float *out, size_t depth, struct prefetch *next) {
    mix(weights, values, stride, true, keys, out, depth, TILE_ROWS, next);
}

static void mix_row(const float *weights, const float *values, size_t keys, float *out, size_t depth,
                    struct prefetch *next) {
    mix(weights, (const unsigned char *)values, TILE_LANES * sizeof(float), false, keys, out, depth, 1, next);
}

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

/* The scores of a block of positions. */
static void block_scores(struct attention_state *state, size_t first, size_t count, struct prefetch *next) {
    for (size_t k = 0; k < count; k += TILE_LANES) {
        keys_load(state, first + k, smaller(count - k, TILE_LANES));
        for (size_t row = 0; row < state->rows; row += TILE_ROWS)
            if (keys_seen(state, row + TILE_ROWS - 1, first) > k)
                score_tile(state->q + row * state->depth, state->keys, state->depth,
                           state->scores + row * ATTENTION_BLOCK + k, next);
    }
}

/* The values of a block, weighted. A single tile reads them from the cache, more from a widened copy. */
static void block_mix(struct attention_state *state, size_t first, size_t count, struct prefetch *next) {
    const struct view *cache = state->of->values;
    size_t depth = state->depth;
    if (state->rows == TILE_ROWS && cache->dtype == DTYPE_BF16 && state->of->size == depth &&
        keys_seen(state, 0, first) >= count) {
        const unsigned char *values = cached(state, cache, first);
        for (size_t d = 0; d < depth; d += TILE_LANES)
            mix_tile_bf16(state->scores, values + d * sizeof(uint16_t), cache->stride * sizeof(uint16_t),
                          count, state->out + d, depth, next);
        return;
    }
    values_load(state, first, count);
    for (size_t d = 0; d < depth; d += TILE_LANES) {
        const float *values = state->values + d * ATTENTION_BLOCK;
        for (size_t tile = 0; tile < state->rows; tile += TILE_ROWS) {
            const float *weights = state->scores + tile * ATTENTION_BLOCK;
            float *out = state->out + tile * depth + d;
            size_t seen = smaller(keys_seen(state, tile, first), count);
            if (seen == smaller(keys_seen(state, tile + TILE_ROWS - 1, first), count)) {
                mix_tile(weights, values, seen, out, depth, next);
                continue;
            }
            for (size_t row = 0; row < TILE_ROWS; row++)
                mix_row(weights + row * ATTENTION_BLOCK, values,
                        smaller(keys_seen(state, tile + row, first), count), out + row * depth, depth, next);
        }
    }
}

/* The block of positions from `first` to before `end`; the one after it is fetched meanwhile. */
static void block_pass(struct attention_state *state, size_t first, size_t end) {
    size_t count = end - first, left = state->of->position + state->of->tokens - end;
    size_t next_count = smaller(left, ATTENTION_BLOCK);
    struct prefetch next = prefetch_of(state, state->of->keys, end, next_count);
    block_scores(state, first, count, &next);
    for (size_t row = 0; row < state->rows; row++) {
        size_t seen = smaller(keys_seen(state, row, first), count);
        if (seen > 0)
            weights_of_row(state->scores + row * ATTENTION_BLOCK, seen, &state->largest[row],
                           state->sums + row * LANES, state->out + row * state->depth, state->depth);
    }
    next = prefetch_of(state, state->of->values, end, next_count);
    block_mix(state, first, count, &next);
}

static void span_pass(struct attention_state *state, size_t begin, size_t end) {
    memset(state->out, 0, state->rows * state->depth * sizeof *state->out);
    memset(state->sums, 0, state->rows * LANES * sizeof *state->sums);
    for (size_t row = 0; row < state->rows; row++)
        state->largest[row] = -FLT_MAX;
    for (size_t first = begin; first < end; first += ATTENTION_BLOCK)
        block_pass(state, first, smaller(first + ATTENTION_BLOCK, end));
}

static void partial_clear(float *total, size_t size) {
    memset(total, 0, attention_partial_floats(size) * sizeof *total);
    total[PARTIAL_LARGEST] = -FLT_MAX;
}

/* Adds a span's result to those before it: both are scaled to the larger of their largest scores. */
static void partial_add(float *total, float largest, float sum, const float *values, size_t size) {
    float before = total[PARTIAL_LARGEST], now = largest > before ? largest : before;
    vector keep = vector_exp(vector_of(before - now)), add = vector_exp(vector_of(largest - now));
    total[PARTIAL_LARGEST] = now;
    total[PARTIAL_TOTAL] = total[PARTIAL_TOTAL] * keep[0] + sum * add[0];
    for (float *to = total + PARTIAL_VALUES; to < total + PARTIAL_VALUES + round_up(size, TILE_LANES);
         to += LANES, values += LANES)
        vector_store(to, vector_fma(vector_load(values), add, vector_load(to) * keep));
}

/* y[size] = values / total * sigmoid(gate), in order again */
static void partial_end(const float *total, const float *gate, size_t size, float *y) {
    vector divisor = vector_of(total[PARTIAL_TOTAL]);
    for (size_t i = 0; i < size; i += TILE_LANES) {
        vector evens = vector_load(total + PARTIAL_VALUES + i) / divisor;
        vector odds = vector_load(total + PARTIAL_VALUES + i + LANES) / divisor;
        vector halves[] = {SHUFFLE(evens, odds, LOW_HALVES), SHUFFLE(evens, odds, HIGH_HALVES)};
        for (size_t half = 0, at = i; half < 2 && at < size; half++, at += LANES) {
            vector open = vector_sigmoid(vector_load_first(gate + at, size - at));
            vector_store_first(y + at, halves[half] * open, size - at);
        }
    }
}

static void attend(const struct attention_rows *rows, void *workspace) {
    struct attention_state state = attention_begin(rows, workspace);
    size_t stride = attention_partial_floats(rows->size), count = rows->tokens * rows->group;
    size_t end = rows->position + rows->tokens;
    for (size_t row = 0; row < count; row++)
        partial_clear(state.total + row * stride, rows->size);
    for (size_t begin = 0; begin < end; begin += ATTENTION_SPAN) {
        span_pass(&state, begin, smaller(begin + ATTENTION_SPAN, end));
        for (size_t row = 0; row < count; row++)
            if (keys_seen(&state, row, begin) > 0)
                partial_add(state.total + row * stride, state.largest[row],
                            vector_sum(vector_load(state.sums + row * LANES)), state.out + row * state.depth,
                            rows->size);
    }
    for (size_t row = 0; row < count; row++) {
        size_t at = rows->row + row / rows->group * rows->heads + row % rows->group;
        partial_end(state.total + row * stride, float_row(rows->gate, at), rows->size,
                    float_row(rows->y, at));
    }
}

static void attend_span(const struct attention_rows *rows, size_t begin, size_t end, float *partial,
                        void *workspace) {
    struct attention_state state = attention_begin(rows, workspace);
    span_pass(&state, begin, end);
    for (size_t row = 0; row < rows->group; row++) {
        float *to = partial + row * attention_partial_floats(rows->size);
        to[PARTIAL_LARGEST] = state.largest[row];
        to[PARTIAL_TOTAL] = vector_sum(vector_load(state.sums + row * LANES));
        memcpy(to + PARTIAL_VALUES, state.out + row * state.depth, state.depth * sizeof *to);
    }
}

static void combine(const float *partial, size_t stride, size_t spans, size_t size, const float *gate,
                    float *y, void *workspace) {
    float *total = workspace;
    partial_clear(total, size);
    for (size_t span = 0; span < spans; span++) {
        const float *from = partial + span * stride;
        partial_add(total, from[PARTIAL_LARGEST], from[PARTIAL_TOTAL], from + PARTIAL_VALUES, size);
    }
    partial_end(total, gate, size, y);
}

#endif
