/* All vector kernels as a table. <instruction set>_vector.c includes this, is compiled for that instruction
 * set, and so gives the table its width. */
#ifndef CALLA_BACKEND_CPU_KERNELS_VECTOR_TABLE_H
#define CALLA_BACKEND_CPU_KERNELS_VECTOR_TABLE_H

#include "backend/cpu/kernels/vector_activations.h"
#include "backend/cpu/vector_kernels.h"

#define VECTOR_KERNELS                                                                                       \
    { .swiglu = swiglu }

#endif
