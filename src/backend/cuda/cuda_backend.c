/* The CUDA backend: its class, its errors, its memory. */
#include "backend/cuda/cuda_backend.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool cuda_failed(cudaError_t status, const char *what, struct calla_error *error) {
    return error_set(error, status == cudaErrorMemoryAllocation ? CALLA_OUT_OF_MEMORY : CALLA_DEVICE,
                     "CUDA: %s: %s.", what, cudaGetErrorString(status));
}

bool cuda_lost(struct cuda_backend *backend, cudaError_t status, const char *what,
               struct calla_error *error) {
    if (backend->lost.status == CALLA_OK)
        error_set(&backend->lost, CALLA_DEVICE,
                  "The GPU %s cannot be used any more: %s: %s; start the program again.", backend->name, what,
                  cudaGetErrorString(status));
    return cuda_usable(backend, error);
}

bool cuda_usable(const struct cuda_backend *backend, struct calla_error *error) {
    if (backend->lost.status == CALLA_OK)
        return true;
    return error_set(error, backend->lost.status, "%s", backend->lost.message);
}

bool cuda_too_little(uint64_t size, const char *what, struct calla_error *error) {
    size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    return error_set(error, CALLA_OUT_OF_MEMORY,
                     "The GPU has too little memory for %s: %" PRIu64
                     " MB are needed, %zu of %zu MB are free.",
                     what, size / 1000000 + 1, available / 1000000, total / 1000000);
}

bool cuda_has_room(uint64_t size, const char *what, struct calla_error *error) {
    size_t available = 0, total = 0;
    return cudaMemGetInfo(&available, &total) != cudaSuccess || size <= available ||
           cuda_too_little(size, what, error);
}

bool cuda_allocate(struct cuda_memory *memory, uint64_t size, const char *what, struct calla_error *error) {
    void *data = NULL;
    if (!cuda_has_room(size, what, error))
        return false;
    cudaError_t status = cudaMalloc(&data, size > 0 ? (size_t)size : 1);
    if (status != cudaSuccess)
        return cuda_failed(status, what, error);
    *memory = (struct cuda_memory){.data = data, .size = size};
    return true;
}

void cuda_release(struct cuda_memory *memory) {
    cudaFree(memory->data);
    *memory = (struct cuda_memory){.data = NULL};
}

static cudaError_t describe_device(struct cuda_backend *backend) {
    struct cuda_device *device = &backend->device;
    const struct {
        int *value;
        enum cudaDeviceAttr attribute;
    } facts[] = {{&device->major, cudaDevAttrComputeCapabilityMajor},
                 {&device->minor, cudaDevAttrComputeCapabilityMinor},
                 {&device->multiprocessors, cudaDevAttrMultiProcessorCount},
                 {&device->shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin}};
    cudaError_t status = cudaSetDevice(device->ordinal);
    for (size_t i = 0; status == cudaSuccess && i < sizeof facts / sizeof *facts; i++)
        status = cudaDeviceGetAttribute(facts[i].value, facts[i].attribute, device->ordinal);
    struct device_facts known;
    cuda_device_facts(&known);
    snprintf(backend->name, sizeof backend->name, "%.63s", known.name);
    return status;
}

static void cuda_close(struct backend *base) {
    struct cuda_backend *backend = (struct cuda_backend *)base;
    if (backend == NULL)
        return;
    if (backend->stream != NULL)
        cudaStreamDestroy(backend->stream);
    cuda_release(&backend->scratch[0]);
    cuda_release(&backend->scratch[1]);
    cudaFree(backend->weight_memory);
    free(backend->weight_views);
    cuda_chunks_close(backend->chunks);
    free(backend);
}

static struct backend *cuda_open(const struct backend_options *options, struct calla_error *error) {
    if (!cuda_available(error))
        return NULL;
    struct cuda_backend *backend = calloc(1, sizeof *backend);
    if (backend == NULL) {
        error_memory(error, "a backend", sizeof *backend);
        return NULL;
    }
    backend->base.class = &cuda_backend;
    policy_defaults(&backend->policy, "cuda");
    if (options->policy != NULL)
        backend->policy = *options->policy;
    backend->device.policy = &backend->policy;
    cudaError_t status = describe_device(backend);
    if (status == cudaSuccess)
        status = cudaStreamCreateWithFlags(&backend->stream, cudaStreamNonBlocking);
    if (status != cudaSuccess)
        cuda_failed(status, "opening the GPU", error);
    else if (cuda_chunks_open(&backend->chunks, backend->device.ordinal, error))
        return &backend->base;
    cuda_close(&backend->base);
    return NULL;
}

/* The host's threads have nothing to do but queue. */
static int cuda_threads(const struct backend *base) {
    (void)base;
    return 1;
}

const struct backend_class cuda_backend = {
    .name = "cuda",
    .available = cuda_available,
    .device = cuda_device_facts,
    .free_memory = cuda_free_memory,
    .bandwidth = cuda_bandwidth,
    .open = cuda_open,
    .close = cuda_close,
    .threads = cuda_threads,
    .load = cuda_load,
    .session_open = cuda_session_open,
    .session_close = cuda_session_close,
    .write = cuda_write,
    .read = cuda_read,
    .reset = cuda_reset,
    .compile = cuda_compile,
    .program_free = cuda_program_free,
    .run = cuda_run,
    .snapshot_take = cuda_snapshot_take,
    .snapshot_restore = cuda_snapshot_restore,
    .snapshot_read = cuda_snapshot_read,
    .snapshot_free = cuda_snapshot_free,
    .snapshot_cost = cuda_snapshot_cost,
    .snapshot_bytes = cuda_snapshot_bytes,
};
