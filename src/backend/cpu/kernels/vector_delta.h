/* The recurrence of the gated delta layers. A template: see vector_table.h.
 *
 * A token changes each row s of a head's state, which has a column for each key:
 *
 *   change = beta (v - decay (s.k));  s = decay s + change k;  y = s.q
 *
 * (the decay of s.k instead of s keeps the row out of the way to the change). Sums of several rows are added
 * up across lanes together. A single token passes over the rows in memory. For a chunk of tokens, rows that
 * fit stay in registers, which nothing else can feed fast enough. */
#ifndef CALLA_BACKEND_CPU_KERNELS_VECTOR_DELTA_H
#define CALLA_BACKEND_CPU_KERNELS_VECTOR_DELTA_H

#include <stdbool.h>

#include "backend/cpu/kernels/vector.h"
#include "backend/cpu/vector_kernels.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* Rows that are worked on side by side. */
#define GROUP_ROWS 4
/* Sums that s.k is cut into, one of each CHAINS vectors of columns, so that it is known sooner. */
#if LANES == 16
#define CHAINS 2
#else
#define CHAINS 1
#endif

/* The sums of the lanes of four vectors, out[0 .. 3]. */
static ALWAYS_INLINE void four_sums(const vector sums[4], float *out) {
    typedef float four __attribute__((vector_size(16)));
#if LANES == 4
    four joined = vector_join(vector_join(sums[0], sums[2], 2), vector_join(sums[1], sums[3], 2), 1);
#else
    /* Row r in quarter r of the vector. */
    vector quarters = vector_join(vector_join(sums[0], sums[2], LANES / 2),
                                  vector_join(sums[1], sums[3], LANES / 2), LANES / 4);
#if LANES == 16
    quarters = vector_join(quarters, quarters, 2);
#endif
    quarters = vector_join(quarters, quarters, 1);
    four joined = __builtin_shufflevector(quarters, quarters, 0, LANES / 4, LANES / 2, LANES * 3 / 4);
#endif
    memcpy(out, &joined, sizeof joined);
}

/* What a pass over rows does. */
struct pass {
    bool update; /* s = decay s + change k, a change for each row; y = s.q */
    const float *changes, *k, *q;
    float decay;
    float *y;
    bool multiply; /* then with_k = s.next_k */
    const float *next_k;
    float *with_k;
};

/* For `rows` rows s of the state, `keys` floats each; `whole`: GROUP_ROWS of whole vectors. */
static ALWAYS_INLINE void pass_group(float *state, size_t rows, size_t keys, const struct pass *pass,
                                     bool whole) {
    vector sums_k[GROUP_ROWS][CHAINS] = {{{0}}}, sums_q[GROUP_ROWS] = {{0}}, changes[GROUP_ROWS];
    vector decay = vector_of(pass->decay);
    if (pass->update)
        UNROLL for (size_t r = 0; r < GROUP_ROWS; r++) changes[r] = vector_of(pass->changes[r]);
    for (size_t i = 0; i < keys; i += CHAINS * LANES)
        UNROLL for (size_t chain = 0; chain < CHAINS; chain++) {
            size_t column = i + chain * LANES, left = whole ? LANES : keys - column;
            if (!whole && column >= keys)
                break;
            vector k = {0}, q = {0}, next_k = {0};
            if (pass->update) {
                k = vector_load_first(pass->k + column, left);
                q = vector_load_first(pass->q + column, left);
            }
            if (pass->multiply)
                next_k = vector_load_first(pass->next_k + column, left);
            UNROLL for (size_t r = 0; r < GROUP_ROWS; r++) {
                if (!whole && r >= rows)
                    break;
                vector s = vector_load_first(state + r * keys + column, left);
                if (pass->update) {
                    s = vector_fma(changes[r], k, s * decay);
                    vector_store_first(state + r * keys + column, s, left);
                    sums_q[r] = vector_fma(s, q, sums_q[r]);
                }
                if (pass->multiply)
                    sums_k[r][chain] = vector_fma(s, next_k, sums_k[r][chain]);
            }
        }
    if (pass->update)
        four_sums(sums_q, pass->y);
    if (pass->multiply) {
        UNROLL for (size_t r = 0; r < GROUP_ROWS && CHAINS == 2; r++) sums_k[r][0] += sums_k[r][CHAINS - 1];
        four_sums((vector[]){sums_k[0][0], sums_k[1][0], sums_k[2][0], sums_k[3][0]}, pass->with_k);
    }
}

static ALWAYS_INLINE void pass_rows(float *state, size_t rows, size_t keys, struct pass pass, bool whole) {
    for (size_t row = 0; row < rows; row += GROUP_ROWS) {
        pass_group(state + row * keys, rows - row, keys, &pass, whole);
        pass.changes += GROUP_ROWS;
        pass.y += GROUP_ROWS;
        pass.with_k += GROUP_ROWS;
    }
}

/* change = beta (v - decay with_k) */
static ALWAYS_INLINE vector change_of(vector v, vector with_k, float decay, float beta) {
    return vector_fma(vector_of(-decay), with_k, v) * beta;
}

/* Tokens over rows in memory, TILE_ROWS rows at a time; a row's change is known long before it is needed. */
#define TILE_ROWS 32

static ALWAYS_INLINE void scan_tile(const struct delta_rows *d, size_t first, size_t keys, bool whole) {
    float with_k[TILE_ROWS] = {0}, y[TILE_ROWS], changes[TILE_ROWS];
    size_t rows = d->rows - first < TILE_ROWS ? d->rows - first : TILE_ROWS;
    float *state = d->state + first * keys;
    struct pass pass = {.changes = changes, .y = y, .with_k = with_k, .multiply = true};
    pass.next_k = d->k;
    pass_rows(state, rows, keys, pass, whole);
    for (size_t t = 0; t < d->tokens; t++) {
        pass.decay = d->decay[t * d->decay_stride];
        for (size_t row = 0; row < rows; row += LANES)
            vector_store(changes + row,
                         change_of(vector_load_first(d->v + t * d->v_stride + first + row, rows - row),
                                   vector_load(with_k + row), pass.decay, d->beta[t * d->beta_stride]));
        pass.update = true;
        pass.k = d->k + t * d->k_stride;
        pass.q = d->q + t * d->q_stride;
        if (t + 1 < d->tokens) {
            pass.next_k = pass.k + d->k_stride;
            pass.multiply = true;
            pass_rows(state, rows, keys, pass, whole);
        } else {
            pass.multiply = false;
            pass_rows(state, rows, keys, pass, whole);
        }
        for (size_t row = 0; row < rows; row += LANES)
            vector_store_first(d->y + t * d->y_stride + first + row, vector_load(y + row), rows - row);
    }
}

#if LANES == 16
/* Rows of 128 keys that 24 of the 32 registers hold. */
#define HELD_ROWS 3
#define HELD_KEYS 128
/* Tokens whose k and q, side by side and aligned, stay in the first-level cache while all rows pass. */
#define HELD_TOKENS 32

/* Loaded once: the compiler would have each of its uses read memory again. */
static ALWAYS_INLINE vector load_kept(const float *values) {
    vector v = vector_load(values);
    __asm__("" : "+v"(v));
    return v;
}

/* The sum of the lanes in all of them. */
static ALWAYS_INLINE vector sum_everywhere(vector v) {
    v = vector_join(v, v, 8);
    v = vector_join(v, v, 4);
    v = vector_join(v, v, 2);
    return vector_join(v, v, 1);
}

/* The sums of the lanes of three vectors, of row r in all lanes of quarter r. */
static ALWAYS_INLINE vector three_sums(const vector sums[3]) {
    const vector zero = {0};
    vector joined = vector_join(vector_join(sums[0], sums[2], 8), vector_join(sums[1], zero, 8), 4);
    joined = vector_join(joined, joined, 2);
    return vector_join(joined, joined, 1);
}

#define HELD_VECTORS (HELD_KEYS / LANES)
#define EACH_ROW UNROLL for (size_t r = 0; r < HELD_ROWS; r++) if (r < rows)
#define EACH_VECTOR UNROLL for (size_t i = 0; i < HELD_VECTORS; i++)

/* y of the rows: s.q */
static ALWAYS_INLINE void held_outputs(vector s[HELD_ROWS][HELD_VECTORS], size_t rows, const float *q,
                                       float *y) {
    vector sums[HELD_ROWS] = {{0}};
    EACH_VECTOR {
        vector query = load_kept(q + i * LANES);
        EACH_ROW sums[r] = vector_fma(s[r][i], query, sums[r]);
    }
    const __m512i quarters = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    __m512 joined = _mm512_permutexvar_ps(quarters, (__m512)three_sums(sums));
    _mm_mask_storeu_ps(y, (__mmask8)((1u << rows) - 1), _mm512_castps512_ps128(joined));
}

/* Row `first` of a head's state and the ones after it through the tokens [begin, end), whose k and q are in
 * `pairs`. A token's y is added up beside the next one's s.k, off the way from change to change. */
static ALWAYS_INLINE void scan_held(const struct delta_rows *d, size_t first, size_t rows, size_t begin,
                                    size_t end, const float *pairs) {
    vector s[HELD_ROWS][HELD_VECTORS];
    EACH_ROW EACH_VECTOR s[r][i] = vector_load(d->state + (first + r) * HELD_KEYS + i * LANES);
    for (size_t t = begin; t < end; t++, pairs += 2 * HELD_KEYS) {
        vector with_k[HELD_ROWS][2] = {{{0}}}, changes[HELD_ROWS];
        EACH_VECTOR {
            vector k = load_kept(pairs + i * LANES);
            EACH_ROW with_k[r][i % 2] = vector_fma(s[r][i], k, with_k[r][i % 2]);
        }
        float decay = d->decay[t * d->decay_stride], beta = d->beta[t * d->beta_stride];
        EACH_ROW changes[r] = change_of(vector_of(d->v[t * d->v_stride + first + r]),
                                        sum_everywhere(with_k[r][0] + with_k[r][1]), decay, beta);
        if (t > begin)
            held_outputs(s, rows, pairs - HELD_KEYS, d->y + (t - 1) * d->y_stride + first);
        EACH_VECTOR {
            vector k = load_kept(pairs + i * LANES);
            EACH_ROW s[r][i] = vector_fma(changes[r], k, s[r][i] * decay);
        }
    }
    held_outputs(s, rows, pairs - HELD_KEYS, d->y + (end - 1) * d->y_stride + first);
    EACH_ROW EACH_VECTOR vector_store(d->state + (first + r) * HELD_KEYS + i * LANES, s[r][i]);
}

/* Functions of their own, so that compilers see each alone and find registers for all. */
static __attribute__((noinline)) void scan_three(const struct delta_rows *d, size_t first, size_t begin,
                                                 size_t end, const float *pairs) {
    scan_held(d, first, 3, begin, end, pairs);
}

static __attribute__((noinline)) void scan_two(const struct delta_rows *d, size_t first, size_t begin,
                                               size_t end, const float *pairs) {
    scan_held(d, first, 2, begin, end, pairs);
}

static __attribute__((noinline)) void scan_one(const struct delta_rows *d, size_t first, size_t begin,
                                               size_t end, const float *pairs) {
    scan_held(d, first, 1, begin, end, pairs);
}

static void scan_chunk(const struct delta_rows *d) {
    float pairs[HELD_TOKENS * 2 * HELD_KEYS] __attribute__((aligned(64)));
    for (size_t begin = 0, end; begin < d->tokens; begin = end) {
        end = begin + HELD_TOKENS < d->tokens ? begin + HELD_TOKENS : d->tokens;
        for (size_t t = begin; t < end; t++) {
            float *pair = pairs + (t - begin) * 2 * HELD_KEYS;
            memcpy(pair, d->k + t * d->k_stride, HELD_KEYS * sizeof *pair);
            memcpy(pair + HELD_KEYS, d->q + t * d->q_stride, HELD_KEYS * sizeof *pair);
        }
        size_t row = 0;
        for (; row + 3 <= d->rows; row += 3)
            scan_three(d, row, begin, end, pairs);
        if (d->rows - row == 2)
            scan_two(d, row, begin, end, pairs);
        else if (d->rows - row == 1)
            scan_one(d, row, begin, end, pairs);
    }
}
#endif

static void delta_scan(const struct delta_rows *d) {
#if LANES == 16
    if (d->tokens > 1 && d->keys == HELD_KEYS) {
        scan_chunk(d);
        return;
    }
#endif
    for (size_t row = 0; row < d->rows; row += TILE_ROWS)
        if (d->keys == 128 && d->rows % GROUP_ROWS == 0)
            scan_tile(d, row, 128, true);
        else if (d->keys == 64 && d->rows % GROUP_ROWS == 0)
            scan_tile(d, row, 64, true);
        else
            scan_tile(d, row, d->keys, false);
}

/* log(1 + e^x) without overflow: max(x, 0) + log(1 + u) with u = e^-|x|, and log(1 + u) = 2 atanh(w) with w =
 * u / (2 + u), at most 1/3: the series of atanh to w^15. */
static inline vector softplus(vector x) {
    vector u = vector_exp(vector_select(x > 0.0f, -x, x));
    vector w = u / (u + 2.0f), square = w * w;
    vector p = vector_of(1.0f / 15);
    for (int odd = 13; odd > 0; odd -= 2)
        p = vector_fma(p, square, vector_of(1.0f / (float)odd));
    return vector_max(vector_of(0), x) + 2.0f * w * p;
}

static void delta_gates(const float *a, const float *b, const float *A_log, const float *dt_bias,
                        float *decay, float *beta, size_t count) {
    for (size_t i = 0; i < count; i += LANES) {
        size_t left = count - i;
        vector x = softplus(vector_load_first(a + i, left) + vector_load_first(dt_bias + i, left));
        vector rate = vector_exp(vector_load_first(A_log + i, left));
        vector_store_first(decay + i, vector_exp(-rate * x), left);
        vector_store_first(beta + i, vector_sigmoid(vector_load_first(b + i, left)), left);
    }
}

#endif
