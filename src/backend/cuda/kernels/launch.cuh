/* Launching a kernel so that errors come back and so that it may overlap the one before it. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_LAUNCH_CUH
#define CALLA_BACKEND_CUDA_KERNELS_LAUNCH_CUH

#include <cuda_runtime.h>

#include "backend/cuda/cuda.h"

/* EXCLUSIVE: begins when all that was queued before is done. OVERLAPPING: may begin earlier (programmatic
 * dependent launch); the kernel must call cudaGridDependencySynchronize() in every thread before it reads
 * what an op has written and before it writes anything. A kernel lets its successor begin early with
 * cudaTriggerProgrammaticLaunchCompletion(). */
enum cuda_start { CUDA_EXCLUSIVE, CUDA_OVERLAPPING };

template <typename... Parameters, typename... Arguments>
static inline cudaError_t cuda_launch(void (*kernel)(Parameters...), cuda_start start, dim3 grid, dim3 block,
                                      size_t shared_bytes, cudaStream_t stream, Arguments &&...arguments) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return cudaSuccess; /* nothing to do */
    if (shared_bytes > 48 * 1024) {
        cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  static_cast<int>(shared_bytes));
        if (status != cudaSuccess)
            return status;
    }
    cudaLaunchAttribute overlap;
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = start == CUDA_OVERLAPPING ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

CUDA_EVERYWHERE static inline unsigned cuda_blocks(uint64_t count, unsigned size) {
    return static_cast<unsigned>((count + size - 1) / size);
}

#endif
