/* The CUDA kernels for GPUs before Hopper run on newer ones too, so that one GPU tests them all. */
#ifndef CALLA_TESTS_OLDER_GPU_H
#define CALLA_TESTS_OLDER_GPU_H

#include "backend/backend.h"

#ifdef CALLA_CUDA
#include "backend/cuda/cuda_backend.h"
#endif

/* Makes a CUDA backend that was just opened take its device for one of compute capability 8.6, with the least
 * shared memory that any has. */
static inline void older_gpu_pretend(struct backend *backend) {
#ifdef CALLA_CUDA
    struct cuda_device *device = &((struct cuda_backend *)backend)->device;
    device->major = 8;
    device->minor = 6;
    device->shared_bytes = 99 * 1024;
#else
    (void)backend;
#endif
}

#endif
