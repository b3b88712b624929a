/* What a GPU's facts mean, in words. */
#ifndef CALLA_BACKEND_METAL_METAL_DESCRIBE_H
#define CALLA_BACKEND_METAL_METAL_DESCRIBE_H

#include "backend/metal/metal_device.h"

/* One line on the Metal 4 tensor operations (kernels/tensor_*.metal): that they are used, or what is missing.
 * `obstacle`: why not, where GPU and system have them; NULL when they passed their self-test. */
void metal_describe_tensor_operations(const struct metal_facts *facts, const char *obstacle, char *line,
                                      size_t size);

#endif
