/* The recurrence of the gated delta layers. A template: see vector_table.h.
 *
 * A token changes a row s of a head's state, of one key a column, in three steps: s = decay s; s += beta (v -
 * s.k) k; y = s.q. Both products can be taken of the row as it was, in one reading of it:
 *
 *   change = beta (v - decay (s.k));  y = decay (s.q) + change (k.q);  s = decay s + change k
 *
 * Rows are worked on in groups of LANES. Their LANES sums are added up together, which leaves the sum of row
 * r in lane r, where its v and y are too. */
#ifndef CALLA_BACKEND_CPU_KERNELS_VECTOR_DELTA_H
#define CALLA_BACKEND_CPU_KERNELS_VECTOR_DELTA_H

#include <stdbool.h>

#include "backend/cpu/kernels/vector.h"
#include "backend/cpu/vector_kernels.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* A quarter of the lanes: what a group's rows are apart that are multiplied side by side. */
#define QUARTER (LANES / 4)

/* The sums over the columns of the rows QUARTER apart, added up as far as a quarter of the lanes: row j's
 * in quarter j. */
static ALWAYS_INLINE vector join_quarters(const vector sums[4]) {
    return vector_join(vector_join(sums[0], sums[2], LANES / 2), vector_join(sums[1], sums[3], LANES / 2),
                       QUARTER);
}

/* quarters[r]: of the rows r, r + QUARTER, ... . The sum of row i in lane i. */
static ALWAYS_INLINE vector join_rows(const vector quarters[QUARTER]) {
#if LANES == 16
    return vector_join(vector_join(quarters[0], quarters[2], 2), vector_join(quarters[1], quarters[3], 2), 1);
#elif LANES == 8
    return vector_join(quarters[0], quarters[1], 1);
#else
    return quarters[0];
#endif
}

#define UNROLL _Pragma("GCC unroll 16")

/* with_k = s.k and with_q = s.q for LANES rows s of the state, `keys` floats apart. */
static ALWAYS_INLINE void group_products(const float *state, size_t rows, size_t keys, const float *k,
                                         const float *q, vector *with_k, vector *with_q, bool whole) {
    vector quarters_k[QUARTER], quarters_q[QUARTER];
    for (size_t r = 0; r < QUARTER; r++) {
        vector sums_k[4] = {{0}}, sums_q[4] = {{0}};
        for (size_t i = 0; i < keys; i += LANES) {
            size_t left = whole ? LANES : keys - i;
            vector key = vector_load_first(k + i, left), query = vector_load_first(q + i, left);
            UNROLL for (size_t j = 0; j < 4; j++) {
                if (!whole && r + j * QUARTER >= rows)
                    continue;
                vector s = vector_load_first(state + (r + j * QUARTER) * keys + i, left);
                sums_k[j] = vector_fma(s, key, sums_k[j]);
                sums_q[j] = vector_fma(s, query, sums_q[j]);
            }
        }
        quarters_k[r] = join_quarters(sums_k);
        quarters_q[r] = join_quarters(sums_q);
    }
    *with_k = join_rows(quarters_k);
    *with_q = join_rows(quarters_q);
}

/* s = decay s + change k for the same rows. */
static ALWAYS_INLINE void group_update(float *state, size_t rows, size_t keys, const float *k, float decay,
                                       vector change, bool whole) {
    float changes[LANES];
    vector_store(changes, change);
    vector decays = vector_of(decay);
    for (size_t row = 0; row < (whole ? LANES : rows); row += 4)
        for (size_t i = 0; i < keys; i += LANES) {
            size_t left = whole ? LANES : keys - i;
            vector key = vector_load_first(k + i, left);
            UNROLL for (size_t j = 0; j < 4; j++) {
                if (!whole && row + j >= rows)
                    continue;
                float *s = state + (row + j) * keys + i;
                vector kept = vector_load_first(s, left) * decays;
                vector_store_first(s, vector_fma(vector_of(changes[row + j]), key, kept), left);
            }
        }
}

static ALWAYS_INLINE float dot(const float *a, const float *b, size_t count) {
    vector sum = {0};
    for (size_t i = 0; i < count; i += LANES)
        sum = vector_fma(vector_load_first(a + i, count - i), vector_load_first(b + i, count - i), sum);
    return vector_sum(sum);
}

static ALWAYS_INLINE void scan_rows(const struct delta_rows *d, size_t keys, bool whole) {
    const float *q = d->q, *k = d->k, *v = d->v;
    float *y = d->y;
    for (size_t t = 0; t < d->tokens; t++) {
        float decay = d->decay[t * d->decay_stride], beta = d->beta[t * d->beta_stride];
        float key_query = dot(k, q, keys);
        for (size_t row = 0; row < d->rows; row += LANES) {
            vector with_k, with_q;
            size_t left = whole || d->rows - row > LANES ? LANES : d->rows - row;
            group_products(d->state + row * keys, left, keys, k, q, &with_k, &with_q, whole);
            vector change = (vector_load_first(v + row, left) - with_k * decay) * beta;
            group_update(d->state + row * keys, left, keys, k, decay, change, whole);
            vector_store_first(y + row, with_q * decay + change * key_query, left);
        }
        q += d->q_stride;
        k += d->k_stride;
        v += d->v_stride;
        y += d->y_stride;
    }
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

static void delta_scan(const struct delta_rows *d) {
    if (d->keys == 128 && d->rows % LANES == 0)
        scan_rows(d, 128, true);
    else if (d->keys == 64 && d->rows % LANES == 0)
        scan_rows(d, 64, true);
    else
        scan_rows(d, d->keys, false);
}

#endif
