#include "backend/metal/metal_describe.h"

#include <stdio.h>

/* The first family with matrix units in its cores: that of the M5. */
#define FAMILY_WITH_MATRIX_UNITS 10

void metal_describe_tensor_operations(const struct metal_facts *facts, const char *obstacle, char *line,
                                      size_t size) {
    if (facts->tensor_operations && obstacle != NULL)
        snprintf(line, size, "not used: %.200s; simdgroup matrices are used", obstacle);
    else if (facts->tensor_operations)
        snprintf(line, size, "used for prompts: they passed the self-test (GPU family Apple%u, %.40s)",
                 facts->family, facts->system);
    else if (facts->family < FAMILY_WITH_MATRIX_UNITS)
        snprintf(line, size,
                 "not used: the GPU is of family Apple%u, its cores have no matrix units (an M5's have); "
                 "simdgroup matrices are used",
                 facts->family);
    else
        snprintf(line, size, "not used: they need macOS 26.2, this is %.40s; simdgroup matrices are used",
                 facts->system);
}
