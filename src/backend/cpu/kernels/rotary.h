/* Norms of heads, rotary positions, and rows written to a bfloat16 cache. A template: see attention_table.h.
 */
#ifndef CALLA_BACKEND_CPU_KERNELS_ROTARY_H
#define CALLA_BACKEND_CPU_KERNELS_ROTARY_H

#include <math.h>

#include "backend/cpu/kernels/vector.h"

static void head_norm(const float *x, const float *weight, size_t size, float epsilon, float *y) {
    vector squares = {0};
    for (size_t i = 0; i < size; i += LANES) {
        vector values = {0};
        memcpy(&values, x + i, (size - i < LANES ? size - i : LANES) * sizeof *x);
        squares = vector_fma(values, values, squares);
    }
    float scale = 1.0f / sqrtf(vector_sum(squares) / (float)size + epsilon);
    for (size_t i = 0; i < size; i++)
        y[i] = x[i] * scale * weight[i];
}

static void rotate(float *x, const float *cosines, const float *sines, size_t half) {
    for (size_t j = 0; j < half; j++) {
        float first = x[j], second = x[j + half];
        x[j] = first * cosines[j] - second * sines[j];
        x[j + half] = second * cosines[j] + first * sines[j];
    }
}

static void store_bf16(const float *x, size_t count, uint16_t *out) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16, nan = bits >> 16 | 0x40u;
        out[i] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
    }
}

#endif
