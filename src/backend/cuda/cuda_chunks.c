/* The driver's virtual memory management. The program is not linked with the driver: its functions are looked
 * up, and where one is missing, or the device cannot do it, there are no chunks. */
#include "backend/cuda/cuda_chunks.h"

#include <cudaTypedefs.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_backend.h"

struct cuda_chunks {
    PFN_cuMemAddressReserve_v10020 reserve;
    PFN_cuMemAddressFree_v10020 unreserve;
    PFN_cuMemCreate_v10020 create;
    PFN_cuMemRelease_v10020 release;
    PFN_cuMemMap_v10020 map;
    PFN_cuMemUnmap_v10020 unmap;
    PFN_cuMemSetAccess_v10020 set_access;
    CUmemAllocationProp properties;
    uint64_t chunk_bytes, snapshot_bytes;
};

/* NULL if the driver has none of that name. */
static void *driver_function(const char *name) {
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaError_t status = cudaGetDriverEntryPointByVersion(name, &function, 10020, cudaEnableDefault, &result);
#else
    cudaError_t status = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &result);
#endif
    return status == cudaSuccess && result == cudaDriverEntryPointSuccess ? function : NULL;
}

/* Finds the functions and what a chunk is; false where that is not to be had. */
static bool find(struct cuda_chunks *chunks, int device) {
    PFN_cuDeviceGetAttribute_v2000 attribute = NULL;
    PFN_cuMemGetAllocationGranularity_v10020 granularity = NULL;
    const struct {
        const char *name;
        void *function; /* a pointer to it */
    } wanted[] = {{"cuDeviceGetAttribute", &attribute},
                  {"cuMemGetAllocationGranularity", &granularity},
                  {"cuMemCreate", &chunks->create},
                  {"cuMemRelease", &chunks->release},
                  {"cuMemMap", &chunks->map},
                  {"cuMemUnmap", &chunks->unmap},
                  {"cuMemSetAccess", &chunks->set_access},
                  {"cuMemAddressReserve", &chunks->reserve},
                  {"cuMemAddressFree", &chunks->unreserve}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *function = driver_function(wanted[i].name);
        if (function == NULL)
            return false;
        memcpy(wanted[i].function, &function, sizeof function);
    }
    int supported = 0;
    size_t bytes = 0;
    chunks->properties = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                               .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    chunks->properties.location.id = device;
    if (attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) !=
            CUDA_SUCCESS ||
        !supported ||
        granularity(&bytes, &chunks->properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS)
        return false;
    chunks->chunk_bytes = bytes;
    return bytes > 0;
}

bool cuda_chunks_open(struct cuda_chunks **chunks, int device, struct calla_error *error) {
    *chunks = calloc(1, sizeof **chunks);
    if (*chunks == NULL)
        return error_memory(error, "a backend", sizeof **chunks);
    if (!find(*chunks, device)) {
        cuda_chunks_close(*chunks);
        *chunks = NULL;
        cudaGetLastError(); /* that something is missing shall not be found by the next call */
    }
    return true;
}

void cuda_chunks_close(struct cuda_chunks *chunks) {
    free(chunks);
}

uint64_t cuda_chunk_bytes(const struct cuda_chunks *chunks) {
    return chunks->chunk_bytes;
}

uint64_t cuda_chunks_in_snapshots(const struct cuda_chunks *chunks) {
    return chunks->snapshot_bytes;
}

static bool failed(CUresult status, const char *what, struct calla_error *error) {
    return error_set(error, status == CUDA_ERROR_OUT_OF_MEMORY ? CALLA_OUT_OF_MEMORY : CALLA_DEVICE,
                     "CUDA: %s: the driver's error %d.", what, (int)status);
}

struct cuda_chunk *cuda_chunk_new(struct cuda_chunks *chunks, const void *owner, struct calla_error *error) {
    struct cuda_chunk *chunk = calloc(1, sizeof *chunk);
    if (chunk == NULL) {
        error_memory(error, "keys and values", sizeof *chunk);
        return NULL;
    }
    CUmemGenericAllocationHandle memory;
    CUresult status = chunks->create(&memory, (size_t)chunks->chunk_bytes, &chunks->properties, 0);
    if (status == CUDA_SUCCESS) {
        *chunk = (struct cuda_chunk){.memory = memory, .holders = 1, .owner = owner};
        return chunk;
    }
    free(chunk);
    if (status == CUDA_ERROR_OUT_OF_MEMORY)
        cuda_too_little(chunks->chunk_bytes, "more keys and values (close other sessions or keep less)",
                        error);
    else
        failed(status, "memory for keys and values", error);
    return NULL;
}

void cuda_chunk_hold(struct cuda_chunks *chunks, struct cuda_chunk *chunk, bool snapshot) {
    chunk->holders++;
    if (snapshot && chunk->snapshots++ == 0)
        chunks->snapshot_bytes += chunks->chunk_bytes;
}

void cuda_chunk_release(struct cuda_chunks *chunks, struct cuda_chunk *chunk, bool snapshot) {
    if (snapshot && --chunk->snapshots == 0)
        chunks->snapshot_bytes -= chunks->chunk_bytes;
    if (--chunk->holders > 0)
        return;
    chunks->release(chunk->memory);
    free(chunk);
}

void *cuda_addresses_new(const struct cuda_chunks *chunks, uint64_t size, struct calla_error *error) {
    CUdeviceptr addresses = 0;
    CUresult status = chunks->reserve(&addresses, (size_t)size, 0, 0, 0);
    if (status != CUDA_SUCCESS)
        failed(status, "addresses for keys and values", error);
    return status == CUDA_SUCCESS ? (void *)(uintptr_t)addresses : NULL;
}

void cuda_addresses_free(const struct cuda_chunks *chunks, void *addresses, uint64_t size) {
    if (addresses != NULL)
        chunks->unreserve((CUdeviceptr)(uintptr_t)addresses, (size_t)size);
}

void cuda_chunks_unmap(const struct cuda_chunks *chunks, uint32_t count, void *address) {
    if (count > 0)
        chunks->unmap((CUdeviceptr)(uintptr_t)address, (size_t)(count * chunks->chunk_bytes));
}

bool cuda_chunks_map(const struct cuda_chunks *chunks, struct cuda_chunk *const *list, uint32_t count,
                     void *address, struct calla_error *error) {
    const CUmemAccessDesc access = {chunks->properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)address;
    CUresult status = CUDA_SUCCESS;
    uint32_t mapped = 0;
    for (; mapped < count && status == CUDA_SUCCESS; mapped += status == CUDA_SUCCESS)
        status = chunks->map(at + mapped * chunks->chunk_bytes, (size_t)chunks->chunk_bytes, 0,
                             list[mapped]->memory, 0);
    if (status == CUDA_SUCCESS && count > 0)
        status = chunks->set_access(at, (size_t)(count * chunks->chunk_bytes), &access, 1);
    if (status == CUDA_SUCCESS)
        return true;
    cuda_chunks_unmap(chunks, mapped, address);
    return failed(status, "mapping keys and values", error);
}
