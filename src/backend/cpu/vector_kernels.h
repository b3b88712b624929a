/* The kernels that are not matrix products, once for each instruction set: the same source, compiled for
 * vectors of another width. */
#ifndef CALLA_BACKEND_CPU_VECTOR_KERNELS_H
#define CALLA_BACKEND_CPU_VECTOR_KERNELS_H

#include <stddef.h>

/* Pointers to floats need no more alignment than a float, and counts may be anything, unless it is said. */
struct vector_kernels {
    /* y[count] = silu(gate) * up; y may be gate or up */
    void (*swiglu)(const float *gate, const float *up, float *y, size_t count);
};

/* Of those that this program was built for; kernels.c says which. */
extern const struct vector_kernels portable_vector_kernels, avx2_vector_kernels, avx512_vector_kernels;

#endif
