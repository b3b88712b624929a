/* What attention computes most of: the scores of TILE_ROWS rows of queries with two keys at a time, and
 * TILE_LANES elements of their sums of weighted values. All sums stay in registers.
 *
 * Pairs of bfloat16 are widened to a vector of the even elements and one of the odd, which takes one
 * operation each; so everything is kept in that order, TILE_LANES elements at a time. A template: see
 * attention_table.h. */
#ifndef CALLA_BACKEND_CPU_KERNELS_ATTENTION_TILE_H
#define CALLA_BACKEND_CPU_KERNELS_ATTENTION_TILE_H

#include <stdbool.h>

#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/kernels/shuffle.h"

#if LANES == 16 || defined(__aarch64__)
#define TILE_ROWS 8
#else
#define TILE_ROWS 4
#endif
#define TILE_LANES (2 * LANES)
/* Scores and weights of a tile are taken in steps of this: one key's, or two keys' if a vector holds as many.
 */
#define TILE_STEP (LANES > TILE_ROWS ? LANES : TILE_ROWS)
_Static_assert(TILE_STEP == TILE_ROWS || TILE_STEP == 2 * TILE_ROWS,
               "a vector holds one key's rows or two's");

static inline int_vector bits_load(const unsigned char *bytes) {
    int_vector bits;
    memcpy(&bits, bytes, sizeof bits);
    return bits;
}

static inline vector evens_of(int_vector pairs) {
    return vector_from_bits(pairs << 16);
}

static inline vector odds_of(int_vector pairs) {
    return vector_from_bits(pairs & -65536);
}

/* What is to be read next, fetched into the second cache a few lines at a time between other work. */
struct prefetch {
    const unsigned char *row;
    size_t at, row_bytes, stride, rows_left; /* at: bytes from the row's start */
};

#define PREFETCH_LINES 8
#define CACHE_LINE 64

/* Fetches the next PREFETCH_LINES lines: a few bytes too many at a row's end do no harm. */
static inline void prefetch_lines(struct prefetch *next) {
    if (next->rows_left == 0)
        return;
    for (size_t i = 0; i < PREFETCH_LINES; i++)
        __builtin_prefetch(next->row + next->at + i * CACHE_LINE, 0, 2);
    next->at += PREFETCH_LINES * CACHE_LINE;
    if (next->at >= next->row_bytes) {
        next->at = 0;
        next->row += next->stride;
        next->rows_left--;
    }
}

/* A vector that has been loaded into a register and stays there: GCC would rather read it from memory for
 * each product that it is in, and there are more products than reads in a cycle. */
static inline vector in_register(vector v) {
#if LANES >= 8
    __asm__("" : "+v"(v));
#endif
    return v;
}

/* scores[2][TILE_ROWS] = q keys of two keys: pairs of bfloat16, or float32 as `widen` leaves it. */
static inline __attribute__((always_inline)) void score_pair(const float *restrict q,
                                                             const unsigned char *keys[2], bool half,
                                                             size_t depth, float *restrict scores,
                                                             struct prefetch *next) {
    vector sums[2 * TILE_ROWS];
    for (size_t i = 0; i < 2 * TILE_ROWS; i++)
        sums[i] = vector_of(0);
    size_t step = TILE_LANES * (half ? sizeof(uint16_t) : sizeof(float));
    const unsigned char *first = keys[0], *second = keys[1];
    for (size_t d = 0; d < depth; d += TILE_LANES, q += TILE_ROWS * TILE_LANES) {
        if (d % (4 * TILE_LANES) == 0)
            prefetch_lines(next);
        int_vector bits[2] = {bits_load(first), bits_load(second)};
        vector evens[2], odds[2];
        for (size_t key = 0; key < 2; key++) {
            evens[key] = half ? evens_of(bits[key]) : vector_from_bits(bits[key]);
            odds[key] = half ? odds_of(bits[key])
                             : vector_from_bits(bits_load((key == 0 ? first : second) + sizeof *bits));
        }
        for (size_t row = 0; row < TILE_ROWS; row++) {
            vector even = in_register(vector_load(q + row * LANES));
            vector odd = in_register(vector_load(q + (TILE_ROWS + row) * LANES));
            sums[row] = vector_fma(odd, odds[0], vector_fma(even, evens[0], sums[row]));
            sums[TILE_ROWS + row] =
                vector_fma(odd, odds[1], vector_fma(even, evens[1], sums[TILE_ROWS + row]));
        }
        first += step;
        second += step;
    }
    for (size_t i = 0; i < 2 * TILE_ROWS; i += LANES)
        vector_store(scores + i, sums_of_lanes(sums + i));
}

/* scores[count][TILE_ROWS] of keys that are `stride` bytes apart; of an odd count, the last again. */
static void score_tile(const float *q, const unsigned char *keys, size_t stride, size_t count, size_t depth,
                       float *scores, struct prefetch *next) {
    for (size_t k = 0; k < count; k += 2, keys += 2 * stride) {
        const unsigned char *pair[] = {keys, k + 1 < count ? keys + stride : keys};
        score_pair(q, pair, false, depth, scores + k * TILE_ROWS, next);
    }
}

static void score_tile_bf16(const float *q, const unsigned char *keys, size_t stride, size_t count,
                            size_t depth, float *scores, struct prefetch *next) {
    for (size_t k = 0; k < count; k += 2, keys += 2 * stride) {
        const unsigned char *pair[] = {keys, k + 1 < count ? keys + stride : keys};
        score_pair(q, pair, true, depth, scores + k * TILE_ROWS, next);
    }
}

/* out[rows][TILE_LANES] += weights[keys][TILE_ROWS] values over rising positions, which are `stride`
 * bytes apart: pairs of bfloat16, or float32 as `widen` leaves it. */
static inline __attribute__((always_inline)) void mix(const float *restrict weights,
                                                      const unsigned char *restrict values, size_t stride,
                                                      bool half, size_t keys, float *restrict out,
                                                      size_t rows, struct prefetch *next) {
    vector evens[TILE_ROWS], odds[TILE_ROWS];
    for (size_t row = 0; row < rows; row++) {
        evens[row] = vector_load(out + row * TILE_LANES);
        odds[row] = vector_load(out + row * TILE_LANES + LANES);
    }
    for (size_t k = 0; k < keys; k++, values += stride, weights += TILE_ROWS) {
        if (k % PREFETCH_LINES == 0)
            prefetch_lines(next);
        int_vector bits = bits_load(values);
        vector even = half ? evens_of(bits) : vector_from_bits(bits);
        vector odd = half ? odds_of(bits) : vector_from_bits(bits_load(values + sizeof bits));
        for (size_t row = 0; row < rows; row++) {
            vector weight = vector_of(weights[row]);
            evens[row] = vector_fma(weight, even, evens[row]);
            odds[row] = vector_fma(weight, odd, odds[row]);
        }
    }
    for (size_t row = 0; row < rows; row++) {
        vector_store(out + row * TILE_LANES, evens[row]);
        vector_store(out + row * TILE_LANES + LANES, odds[row]);
    }
}

static void mix_tile(const float *weights, const float *values, size_t keys, float *out,
                     struct prefetch *next) {
    mix(weights, (const unsigned char *)values, TILE_LANES * sizeof(float), false, keys, out, TILE_ROWS,
        next);
}

static void mix_tile_bf16(const float *weights, const unsigned char *values, size_t stride, size_t keys,
                          float *out, struct prefetch *next) {
    mix(weights, values, stride, true, keys, out, TILE_ROWS, next);
}

static void mix_row(const float *weights, const float *values, size_t keys, float *out,
                    struct prefetch *next) {
    mix(weights, (const unsigned char *)values, TILE_LANES * sizeof(float), false, keys, out, 1, next);
}

#endif
