/* Launching a kernel so that errors come back and so that it may begin before the one before it has ended. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_LAUNCH_CUH
#define CALLA_BACKEND_CUDA_KERNELS_LAUNCH_CUH

#include <cuda_runtime.h>

#include "backend/cuda/cuda.h"

/* EXCLUSIVE: begins when all that was queued before has ended. OVERLAPPING (programmatic dependent launch):
 * may begin as soon as every block of the kernel before has begun and called cuda_let_next_start, or has
 * ended. Such a kernel must call cuda_await_previous in every thread before it reads what an op wrote and
 * before it writes anything; weights it may read earlier. */
enum cuda_start { CUDA_EXCLUSIVE, CUDA_OVERLAPPING };

/* OVERLAPPING where the device can (compute capability 9.0) and the policy `concurrent` is on. */
static inline cuda_start cuda_overlap(const cuda_device *device) {
    return device->major >= 9 && device->policy->concurrent ? CUDA_OVERLAPPING : CUDA_EXCLUSIVE;
}

/* Returns when everything that was queued before has ended and its writes can be seen. */
__device__ static inline void cuda_await_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ static inline void cuda_let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Blocks in clusters of `cluster`; 1: none. */
template <typename... Parameters, typename... Arguments>
static inline cudaError_t cuda_launch_clusters(void (*kernel)(Parameters...), cuda_start start,
                                               unsigned cluster, dim3 grid, dim3 block, size_t shared_bytes,
                                               cudaStream_t stream, Arguments &&...arguments) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return cudaSuccess;         /* nothing to do */
    if (shared_bytes > 16 * 1024) { /* with what the kernel declares, 48 KiB need no leave */
        cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  static_cast<int>(shared_bytes));
        if (status != cudaSuccess)
            return status;
    }
    cudaLaunchAttribute attributes[2] = {};
    unsigned count = 0;
    if (start == CUDA_OVERLAPPING) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count].val.clusterDim.x = cluster;
        attributes[count].val.clusterDim.y = 1;
        attributes[count++].val.clusterDim.z = 1;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

template <typename... Parameters, typename... Arguments>
static inline cudaError_t cuda_launch(void (*kernel)(Parameters...), cuda_start start, dim3 grid, dim3 block,
                                      size_t shared_bytes, cudaStream_t stream, Arguments &&...arguments) {
    return cuda_launch_clusters(kernel, start, 1, grid, block, shared_bytes, stream,
                                static_cast<Arguments &&>(arguments)...);
}

CUDA_EVERYWHERE static inline unsigned cuda_blocks(uint64_t count, unsigned size) {
    return static_cast<unsigned>((count + size - 1) / size);
}

/* Called by one thread of a kernel that samples, once it has written the token and the record. */
__device__ static inline void cuda_post_token(const cuda_mailbox &mailbox, int32_t token) {
    if (mailbox.word == nullptr)
        return;
    uint64_t number = ++*mailbox.count;
    *const_cast<volatile uint64_t *>(mailbox.word) = number << 32 | static_cast<uint32_t>(token);
}

#endif
