/* Measuring the device. */
#ifndef CALLA_BACKEND_CUDA_MEASURE_H
#define CALLA_BACKEND_CUDA_MEASURE_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads `size` bytes of device memory, a multiple of 4096, once. */
cudaError_t cuda_read_memory(void *memory, uint64_t size, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
