/* What a GPU's facts mean, in words. */
#ifndef CALLA_BACKEND_METAL_METAL_DESCRIBE_H
#define CALLA_BACKEND_METAL_METAL_DESCRIBE_H

#include "backend/metal/metal_device.h"

/* Whether the backend loads and tests the kernels with tensor operations (kernels/tensor_*.metal): not yet.
 */
#define METAL_USES_TENSOR_KERNELS false

/* One line on the Metal 4 tensor operations, for `calla info`: that they are used, or what is missing;
 * `built`: the program has kernels with them. */
void metal_describe_tensor_operations(const struct metal_facts *facts, bool built, char *line, size_t size);

#endif
