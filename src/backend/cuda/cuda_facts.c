/* Which GPU there is and what it can: asked before anything is opened. */
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/measure.h"

#include <stdio.h>

/* The oldest devices whose instructions the kernels use: bfloat16 matrix units, asynchronous copies. */
#define OLDEST_MAJOR 8

/* What is read to measure the bandwidth: far more than any cache holds. */
#define MEASURED_BYTES ((uint64_t)4 << 30)
#define MEASUREMENTS 8

bool cuda_available(struct calla_error *error) {
    int count = 0, major = 0, minor = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaSuccess && count > 0)
        status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    if (status == cudaSuccess && count > 0)
        status = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    if (status == cudaErrorInsufficientDriver)
        return error_set(error, CALLA_DEVICE,
                         "There is no NVIDIA driver that this program can use: install one for CUDA %d.%d or "
                         "newer, or use --backend cpu.",
                         CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0))
        return error_set(error, CALLA_DEVICE,
                         "There is no NVIDIA GPU that CUDA can use here: use --backend cpu.");
    if (status != cudaSuccess)
        return cuda_failed(status, "looking for a GPU", error);
    if (major < OLDEST_MAJOR)
        return error_set(
            error, CALLA_DEVICE,
            "The GPU is of compute capability %d.%d; %d.0 or newer is needed: use --backend cpu.", major,
            minor, OLDEST_MAJOR);
    return true;
}

/* Without a context on the device, which takes a third of a second. */
void cuda_device_facts(struct device_facts *facts) {
    *facts = (struct device_facts){.name = "an unknown GPU"};
    struct cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess)
        return;
    snprintf(facts->name, sizeof facts->name, "%.100s", properties.name);
    facts->memory = properties.totalGlobalMem;
}

uint64_t cuda_free_memory(const struct backend *base) {
    size_t available = 0, total = 0;
    (void)base;
    return cudaMemGetInfo(&available, &total) == cudaSuccess ? available : 0;
}

/* The fastest of several reads of the memory. */
static cudaError_t measure(const struct cuda_memory *memory, double *bandwidth) {
    cudaEvent_t events[2] = {NULL, NULL};
    cudaError_t status = cudaEventCreate(&events[0]);
    if (status == cudaSuccess)
        status = cudaEventCreate(&events[1]);
    for (int i = 0; i < MEASUREMENTS && status == cudaSuccess; i++) {
        float milliseconds = 0;
        cudaEventRecord(events[0], NULL);
        status = cuda_read_memory(memory->data, memory->size, NULL);
        cudaEventRecord(events[1], NULL);
        if (status == cudaSuccess)
            status = cudaEventSynchronize(events[1]);
        if (status == cudaSuccess)
            status = cudaEventElapsedTime(&milliseconds, events[0], events[1]);
        double found = milliseconds > 0 ? (double)memory->size / milliseconds * 1e3 : 0;
        *bandwidth = found > *bandwidth ? found : *bandwidth;
    }
    for (int i = 0; i < 2; i++)
        if (events[i] != NULL)
            cudaEventDestroy(events[i]);
    return status;
}

double cuda_bandwidth(struct calla_error *error) {
    struct cuda_memory memory;
    double bandwidth = 0;
    uint64_t half = cuda_free_memory(NULL) / 2,
             size = half < MEASURED_BYTES ? half / 4096 * 4096 : MEASURED_BYTES;
    if (!cuda_allocate(&memory, size, "measuring the memory's speed", error))
        return 0;
    cudaError_t status = cudaMemset(memory.data, 0, (size_t)size);
    if (status == cudaSuccess)
        status = measure(&memory, &bandwidth);
    cuda_release(&memory);
    if (status != cudaSuccess)
        cuda_failed(status, "measuring the memory's speed", error);
    return status == cudaSuccess ? bandwidth : 0;
}
