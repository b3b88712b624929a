/* What is done to rows of float32 element by element. A template: see vector_table.h. */
#ifndef CALLA_BACKEND_CPU_KERNELS_VECTOR_ACTIVATIONS_H
#define CALLA_BACKEND_CPU_KERNELS_VECTOR_ACTIVATIONS_H

#include "backend/cpu/kernels/vector.h"

static void swiglu(const float *gate, const float *up, float *y, size_t count) {
    for (size_t i = 0; i < count; i += LANES) {
        size_t left = count - i;
        vector out = vector_silu(vector_load_first(gate + i, left)) * vector_load_first(up + i, left);
        vector_store_first(y + i, out, left);
    }
}

/* Rounded after each product and sum, in the reference's order. */
static void expert_combine(const float *routed, size_t stride, const float *shared, const float *scores,
                           size_t chosen, float *y, size_t count) {
    for (size_t i = 0; i < count; i += LANES) {
        size_t left = count - i;
        vector sum = {0};
        for (size_t k = 0; k < chosen; k++)
            sum += scores[k] * vector_load_first(routed + k * stride + i, left);
        sum += scores[chosen] * vector_load_first(shared + i, left);
        vector_store_first(y + i, vector_load_first(y + i, left) + sum, left);
    }
}

static void conv_silu(const float *const *inputs, const float *taps, size_t width, float *y, size_t count) {
    for (size_t i = 0; i < count; i += LANES) {
        size_t left = count - i;
        vector sum = {0};
        for (size_t j = 0; j < width; j++)
            sum = vector_fma(vector_load_first(taps + j * count + i, left),
                             vector_load_first(inputs[j] + i, left), sum);
        vector_store_first(y + i, vector_silu(sum), left);
    }
}

#endif
