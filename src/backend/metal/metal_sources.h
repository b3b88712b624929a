/* The kernels of src/backend/metal/kernels/ as the build has put them into the program (embed.cmake); the
 * emulator's are only names (tests/metal_emulator/sources.c). */
#ifndef CALLA_BACKEND_METAL_METAL_SOURCES_H
#define CALLA_BACKEND_METAL_METAL_SOURCES_H

#include "backend/metal/metal_device.h"

extern const struct metal_sources metal_kernels;        /* for every GPU */
extern const struct metal_sources metal_tensor_kernels; /* tensor_*.metal: for GPUs with tensor operations */

#endif
