/* Rotary positions, and rows written to a bfloat16 cache. A template: see attention_table.h. */
#ifndef CALLA_BACKEND_CPU_KERNELS_ROTARY_H
#define CALLA_BACKEND_CPU_KERNELS_ROTARY_H

#include "backend/cpu/kernels/vector.h"

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
