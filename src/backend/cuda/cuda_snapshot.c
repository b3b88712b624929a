/* Snapshots of sessions: copies on the device, in one allocation, of the state and of the rows of keys and
 * values that are in use. Memory is taken and given back in the order of the stream, so that nothing waits.
 */
#include "backend/binding.h"
#include "backend/cuda/cuda_backend.h"

#include <stdlib.h>

struct cuda_snapshot {
    struct cuda_backend *backend;
    struct cuda_memory memory;
    struct cuda_memory *buffers; /* states, then keys and values: parts of `memory` */
    uint64_t *kv_row_bytes;
    uint32_t state_count, kv_count, positions;
    cudaEvent_t taken;
};

uint64_t cuda_snapshot_cost(const struct device_session *base, uint32_t positions) {
    const struct cuda_session *session = (const struct cuda_session *)base;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < session->state_count; i++)
        bytes += cuda_place(session->state[i].size);
    for (uint32_t i = 0; i < session->kv_count; i++)
        bytes += cuda_place(session->kv_row_bytes[i] * positions);
    return bytes;
}

uint64_t cuda_snapshot_bytes(const struct backend *base) {
    return ((const struct cuda_backend *)base)->snapshot_bytes;
}

void cuda_snapshot_free(struct device_snapshot *base) {
    struct cuda_snapshot *snapshot = (struct cuda_snapshot *)base;
    if (snapshot == NULL)
        return;
    snapshot->backend->snapshot_bytes -= snapshot->memory.size;
    if (snapshot->taken != NULL)
        cudaEventDestroy(snapshot->taken);
    if (snapshot->memory.data != NULL)
        cudaFreeAsync(snapshot->memory.data, snapshot->backend->stream);
    free(snapshot->buffers);
    free(snapshot->kv_row_bytes);
    free(snapshot);
}

static cudaError_t copy(void *target, const void *source, uint64_t size, cudaStream_t stream) {
    return size == 0 ? cudaSuccess
                     : cudaMemcpyAsync(target, source, (size_t)size, cudaMemcpyDeviceToDevice, stream);
}

static bool take(struct cuda_snapshot *snapshot, const struct cuda_session *session,
                 struct calla_error *error) {
    struct cuda_backend *backend = session->backend;
    for (uint32_t i = 0; i < session->kv_count; i++)
        if (session->kv_row_bytes[i] * snapshot->positions > session->kv[i].size)
            return error_set(error, CALLA_BAD_INPUT,
                             "A snapshot of %u positions was asked for; the session has fewer.",
                             snapshot->positions);
    uint64_t bytes = cuda_snapshot_cost((const struct device_session *)session, snapshot->positions);
    cudaError_t status = cudaMallocAsync(&snapshot->memory.data, (size_t)bytes + 1, backend->stream);
    if (status == cudaErrorMemoryAllocation)
        cudaGetLastError(); /* others may still find room */
    if (status != cudaSuccess)
        return cuda_failed(status, "memory for a snapshot", error);
    snapshot->memory.size = bytes;
    backend->snapshot_bytes += bytes;
    char *next = snapshot->memory.data;
    status = cudaEventCreateWithFlags(&snapshot->taken, cudaEventDisableTiming);
    for (uint32_t i = 0; i < session->state_count + session->kv_count && status == cudaSuccess; i++) {
        bool is_state = i < session->state_count;
        uint32_t kv = i - session->state_count;
        const struct cuda_memory *source = is_state ? &session->state[i] : &session->kv[kv];
        uint64_t size = is_state ? source->size : session->kv_row_bytes[kv] * snapshot->positions;
        if (!is_state)
            snapshot->kv_row_bytes[kv] = session->kv_row_bytes[kv];
        snapshot->buffers[i] = (struct cuda_memory){.data = next, .size = size};
        next += cuda_place(size);
        status = copy(snapshot->buffers[i].data, source->data, size, backend->stream);
    }
    if (status == cudaSuccess)
        status = cudaEventRecord(snapshot->taken, backend->stream);
    return status == cudaSuccess || cuda_lost(backend, status, "taking a snapshot", error);
}

struct device_snapshot *cuda_snapshot_take(struct device_session *base, uint32_t positions,
                                           struct calla_error *error) {
    struct cuda_session *session = (struct cuda_session *)base;
    if (!cuda_usable(session->backend, error))
        return NULL;
    struct cuda_snapshot *snapshot = calloc(1, sizeof *snapshot);
    if (snapshot == NULL) {
        error_memory(error, "a snapshot", sizeof *snapshot);
        return NULL;
    }
    size_t count = (size_t)session->state_count + session->kv_count + 1;
    *snapshot = (struct cuda_snapshot){.backend = session->backend,
                                       .buffers = calloc(count, sizeof *snapshot->buffers),
                                       .kv_row_bytes = calloc(count, sizeof *snapshot->kv_row_bytes),
                                       .state_count = session->state_count,
                                       .kv_count = session->kv_count,
                                       .positions = positions};
    if (snapshot->buffers == NULL || snapshot->kv_row_bytes == NULL)
        error_memory(error, "a snapshot", count * sizeof *snapshot->buffers);
    else if (take(snapshot, session, error))
        return (struct device_snapshot *)snapshot;
    cuda_snapshot_free((struct device_snapshot *)snapshot);
    return NULL;
}

static bool fits(const struct cuda_snapshot *snapshot, const struct cuda_session *session) {
    bool same = session->backend == snapshot->backend && session->state_count == snapshot->state_count &&
                session->kv_count == snapshot->kv_count;
    for (uint32_t i = 0; same && i < session->state_count; i++)
        same = session->state[i].size == snapshot->buffers[i].size;
    for (uint32_t i = 0; same && i < session->kv_count; i++)
        same = session->kv_row_bytes[i] == snapshot->kv_row_bytes[i] &&
               snapshot->buffers[snapshot->state_count + i].size <= session->kv[i].size;
    return same;
}

bool cuda_snapshot_restore(struct device_session *base, const struct device_snapshot *taken,
                           struct calla_error *error) {
    struct cuda_session *session = (struct cuda_session *)base;
    const struct cuda_snapshot *snapshot = (const struct cuda_snapshot *)taken;
    if (!cuda_usable(session->backend, error))
        return false;
    if (!fits(snapshot, session))
        return error_set(error, CALLA_BAD_INPUT,
                         "The snapshot of %u positions does not fit into this session.", snapshot->positions);
    cudaError_t status = cudaSuccess;
    for (uint32_t i = 0; i < snapshot->state_count + snapshot->kv_count && status == cudaSuccess; i++) {
        struct cuda_memory *target =
            i < session->state_count ? &session->state[i] : &session->kv[i - session->state_count];
        status = copy(target->data, snapshot->buffers[i].data, snapshot->buffers[i].size,
                      session->backend->stream);
    }
    return status == cudaSuccess || cuda_lost(session->backend, status, "restoring a snapshot", error);
}

/* Waits for the copies of the snapshot alone: other threads may be using the backend's stream. */
bool cuda_snapshot_read(const struct device_snapshot *base, enum space space, uint32_t buffer,
                        uint64_t offset, void *bytes, uint64_t size, struct calla_error *error) {
    const struct cuda_snapshot *snapshot = (const struct cuda_snapshot *)base;
    bool kv = space == SPACE_KV && buffer < snapshot->kv_count;
    if (!kv && !(space == SPACE_STATE && buffer < snapshot->state_count))
        return error_set(error, CALLA_BAD_INPUT, "A snapshot has no %s buffer %u.", space_name(space),
                         buffer);
    const struct cuda_memory *memory = &snapshot->buffers[kv ? snapshot->state_count + buffer : buffer];
    if (offset > memory->size || size > memory->size - offset)
        return binding_not_in_session(space, buffer, offset, size, error);
    if (size == 0)
        return true;
    cudaError_t status = cudaEventSynchronize(snapshot->taken);
    if (status == cudaSuccess)
        status = cudaMemcpy(bytes, (const char *)memory->data + offset, (size_t)size, cudaMemcpyDeviceToHost);
    return status == cudaSuccess || cuda_failed(status, "reading a snapshot", error);
}
