/* Activations of rows of float32. A template: see vector_table.h. */
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

#endif
