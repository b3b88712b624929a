/* Norms over rows. A template: see vector_table.h. */
#ifndef CALLA_BACKEND_CPU_KERNELS_VECTOR_NORMS_H
#define CALLA_BACKEND_CPU_KERNELS_VECTOR_NORMS_H

#include <math.h>

#include "backend/cpu/kernels/vector.h"

/* Four chains, so that no sum waits for the one before. */
static inline float sum_of_squares(const float *x, size_t count) {
    vector sums[4] = {{0}};
    size_t i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES)
        for (size_t j = 0; j < 4; j++) {
            vector v = vector_load(x + i + j * LANES);
            sums[j] = vector_fma(v, v, sums[j]);
        }
    for (; i < count; i += LANES) {
        vector v = vector_load_first(x + i, count - i);
        sums[0] = vector_fma(v, v, sums[0]);
    }
    return vector_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

static inline float rms_scale(const float *x, size_t count, float epsilon) {
    return 1.0f / sqrtf(sum_of_squares(x, count) / (float)count + epsilon);
}

static void rms_norm(const float *x, const float *weight, float epsilon, float *y, size_t count) {
    float scale = rms_scale(x, count, epsilon);
    for (size_t i = 0; i < count; i += LANES) {
        size_t left = count - i;
        vector_store_first(
            y + i, vector_load_first(x + i, left) * scale * vector_load_first(weight + i, left), left);
    }
}

static void gated_norm(const float *x, const float *z, const float *weight, float epsilon, float *y,
                       size_t count) {
    float scale = rms_scale(x, count, epsilon);
    for (size_t i = 0; i < count; i += LANES) {
        size_t left = count - i;
        vector out = vector_load_first(x + i, left) * scale * vector_load_first(weight + i, left);
        vector_store_first(y + i, out * vector_silu(vector_load_first(z + i, left)), left);
    }
}

static void unit_norm(float *x, float epsilon, float factor, size_t count) {
    float scale = 1.0f / sqrtf(sum_of_squares(x, count) + epsilon) * factor;
    for (size_t i = 0; i < count; i += LANES)
        vector_store_first(x + i, vector_load_first(x + i, count - i) * scale, count - i);
}

#endif
