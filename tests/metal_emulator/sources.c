/* The emulator finds the kernels that clang has compiled by the names of their libraries. */
#include "backend/metal/metal_sources.h"

const struct metal_sources metal_kernels = {.name = "kernels", .language = METAL_LANGUAGE(3, 1)};
const struct metal_sources metal_tensor_kernels = {.name = "tensor_kernels",
                                                   .language = METAL_LANGUAGE(4, 0)};
