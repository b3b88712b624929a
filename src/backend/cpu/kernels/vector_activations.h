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

/* Four taps a channel in bfloat16, two of them to an integer. */
static void conv_four_taps(const unsigned char *taps, size_t count, float *out) {
    for (size_t i = 0; i < count; i += LANES) {
        size_t left = count - i < LANES ? count - i : LANES;
        int_vector pairs[2] = {{0}};
        memcpy(pairs, taps + i * 8, left * 8);
        int_vector first = __builtin_shufflevector(pairs[0], pairs[1], EVEN_LANES);
        int_vector second = __builtin_shufflevector(pairs[0], pairs[1], ODD_LANES);
        const int_vector upper = (int_vector){0} - 0x10000;
        vector_store_first(out + i, vector_from_bits(first << 16), left);
        vector_store_first(out + count + i, vector_from_bits(first & upper), left);
        vector_store_first(out + 2 * count + i, vector_from_bits(second << 16), left);
        vector_store_first(out + 3 * count + i, vector_from_bits(second & upper), left);
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
