/* Snapshots of sessions: a copy on the device of the state, and the chunks of keys and values, which are the
 * session's own; where there are no chunks, a copy of the rows in use. Memory for copies is taken and given
 * back in the order of the stream, so that nothing waits. */
#include <stdlib.h>
#include <string.h>

#include "backend/binding.h"
#include "backend/cuda/cuda_backend.h"

struct cuda_snapshot {
    struct cuda_backend *backend;
    struct cuda_memory memory; /* of all copies */
    struct cuda_memory *state; /* parts of it */
    struct cuda_kv kv;         /* as the session's; ranges without chunks are parts of `memory` too */
    uint32_t state_count, positions;
    cudaEvent_t taken;
};

/* What the copies take. */
static uint64_t copied_bytes(const struct cuda_session *session, uint32_t positions) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < session->state_count; i++)
        bytes += cuda_place(session->state[i].size);
    for (uint32_t i = 0; i < session->kv.range_count; i++)
        if (session->kv.ranges[i].limit == 0)
            bytes += cuda_place(session->kv.ranges[i].stride * positions);
    return bytes;
}

uint64_t cuda_snapshot_cost(const struct device_session *base, uint32_t positions) {
    const struct cuda_session *session = (const struct cuda_session *)base;
    uint64_t bytes = copied_bytes(session, positions);
    for (uint32_t i = 0; i < session->kv.range_count; i++) {
        const struct cuda_kv_range *range = &session->kv.ranges[i];
        uint32_t count = cuda_kv_chunks(session, range, positions);
        for (uint32_t c = 0; c < count && c < range->count; c++)
            if (range->chunks[c]->snapshots == 0)
                bytes += cuda_chunk_bytes(session->backend->chunks);
    }
    return bytes;
}

uint64_t cuda_snapshot_bytes(const struct backend *base) {
    const struct cuda_backend *backend = (const struct cuda_backend *)base;
    return backend->snapshot_bytes +
           (backend->chunks == NULL ? 0 : cuda_chunks_in_snapshots(backend->chunks));
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
    for (uint32_t i = 0; snapshot->kv.ranges != NULL && i < snapshot->kv.range_count; i++) {
        struct cuda_kv_range *range = &snapshot->kv.ranges[i];
        for (uint32_t c = 0; c < range->count; c++)
            cuda_chunk_release(snapshot->backend->chunks, range->chunks[c], true);
        free((void *)range->chunks);
    }
    free(snapshot->kv.ranges);
    free(snapshot->kv.buffers);
    free(snapshot->state);
    free(snapshot);
}

static cudaError_t copy(void *target, const void *source, uint64_t size, cudaStream_t stream) {
    return size == 0 ? cudaSuccess
                     : cudaMemcpyAsync(target, source, (size_t)size, cudaMemcpyDeviceToDevice, stream);
}

/* Holds the chunks of the snapshot's positions. */
static bool share(struct cuda_snapshot *snapshot, struct cuda_kv_range *range,
                  const struct cuda_kv_range *source, uint32_t count, struct calla_error *error) {
    struct cuda_chunks *chunks = snapshot->backend->chunks;
    range->chunks = calloc(count + (size_t)1, sizeof *range->chunks);
    if (range->chunks == NULL)
        return error_memory(error, "a snapshot", count * sizeof *range->chunks);
    uint64_t bytes = cuda_chunk_bytes(chunks), end = range->stride * snapshot->positions;
    for (; range->count < count; range->count++) {
        struct cuda_chunk *chunk = source->chunks[range->count];
        uint64_t kept = end - range->count * bytes < bytes ? end - range->count * bytes : bytes;
        chunk->kept = kept > chunk->kept ? kept : chunk->kept;
        cuda_chunk_hold(chunks, chunk, true);
        range->chunks[range->count] = chunk;
    }
    return true;
}

/* Whether the session has that many positions. */
static bool has(const struct cuda_session *session, uint32_t positions) {
    for (uint32_t i = 0; i < session->kv.buffer_count; i++)
        if (positions > session->kv.buffers[i].rows)
            return false;
    for (uint32_t i = 0; i < session->kv.range_count; i++)
        if (cuda_kv_chunks(session, &session->kv.ranges[i], positions) > session->kv.ranges[i].count)
            return false;
    return true;
}

static bool take(struct cuda_snapshot *snapshot, const struct cuda_session *session,
                 struct calla_error *error) {
    struct cuda_backend *backend = session->backend;
    if (!has(session, snapshot->positions))
        return error_set(error, CALLA_BAD_INPUT,
                         "A snapshot of %u positions was asked for; the session has fewer.",
                         snapshot->positions);
    uint64_t bytes = copied_bytes(session, snapshot->positions);
    cudaError_t status = cudaMallocAsync(&snapshot->memory.data, (size_t)bytes + 1, backend->stream);
    if (status == cudaErrorMemoryAllocation)
        cudaGetLastError(); /* others may still find room */
    if (status != cudaSuccess)
        return cuda_failed(status, "memory for a snapshot", error);
    snapshot->memory.size = bytes;
    backend->snapshot_bytes += bytes;
    char *next = snapshot->memory.data;
    status = cudaEventCreateWithFlags(&snapshot->taken, cudaEventDisableTiming);
    for (uint32_t i = 0; i < session->state_count && status == cudaSuccess; i++) {
        snapshot->state[i] = (struct cuda_memory){.data = next, .size = session->state[i].size};
        next += cuda_place(session->state[i].size);
        status =
            copy(snapshot->state[i].data, session->state[i].data, session->state[i].size, backend->stream);
    }
    for (uint32_t i = 0; i < session->kv.range_count && status == cudaSuccess; i++) {
        const struct cuda_kv_range *source = &session->kv.ranges[i];
        struct cuda_kv_range *range = &snapshot->kv.ranges[i];
        uint64_t size = source->stride * snapshot->positions;
        *range = (struct cuda_kv_range){.stride = source->stride};
        snapshot->kv.range_count = i + 1;
        if (source->limit > 0) {
            if (!share(snapshot, range, source, cuda_kv_chunks(session, source, snapshot->positions), error))
                return false;
            continue;
        }
        range->base = next;
        next += cuda_place(size);
        status = copy(range->base, source->base, size, backend->stream);
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
    size_t count = session->kv.buffer_count + (size_t)1;
    *snapshot =
        (struct cuda_snapshot){.backend = session->backend,
                               .state = calloc(session->state_count + (size_t)1, sizeof *snapshot->state),
                               .state_count = session->state_count,
                               .kv = {.buffers = calloc(count, sizeof *snapshot->kv.buffers),
                                      .ranges = calloc(count, sizeof *snapshot->kv.ranges),
                                      .buffer_count = session->kv.buffer_count},
                               .positions = positions};
    bool ok = snapshot->state != NULL && snapshot->kv.buffers != NULL && snapshot->kv.ranges != NULL;
    if (ok)
        memcpy(snapshot->kv.buffers, session->kv.buffers,
               snapshot->kv.buffer_count * sizeof *snapshot->kv.buffers);
    else
        error_memory(error, "a snapshot", count * sizeof *snapshot->kv.ranges);
    if (ok && take(snapshot, session, error))
        return (struct device_snapshot *)snapshot;
    cuda_snapshot_free((struct device_snapshot *)snapshot);
    return NULL;
}

static bool fits(const struct cuda_snapshot *snapshot, const struct cuda_session *session) {
    bool same = session->backend == snapshot->backend && session->state_count == snapshot->state_count &&
                session->kv.buffer_count == snapshot->kv.buffer_count;
    for (uint32_t i = 0; same && i < session->state_count; i++)
        same = session->state[i].size == snapshot->state[i].size;
    for (uint32_t i = 0; same && i < session->kv.buffer_count; i++) {
        const struct cuda_kv_buffer *a = &session->kv.buffers[i], *b = &snapshot->kv.buffers[i];
        same = a->range == b->range && a->place == b->place && a->row_bytes == b->row_bytes &&
               a->rows >= snapshot->positions;
    }
    return same;
}

bool cuda_snapshot_restore(struct device_session *base, const struct device_snapshot *taken,
                           struct calla_error *error) {
    struct cuda_session *session = (struct cuda_session *)base;
    const struct cuda_snapshot *snapshot = (const struct cuda_snapshot *)taken;
    cudaStream_t stream = session->backend->stream;
    if (!cuda_usable(session->backend, error))
        return false;
    if (!fits(snapshot, session))
        return error_set(error, CALLA_BAD_INPUT,
                         "The snapshot of %u positions does not fit into this session.", snapshot->positions);
    cudaError_t status = cudaSuccess;
    for (uint32_t i = 0; i < snapshot->state_count && status == cudaSuccess; i++)
        status = copy(session->state[i].data, snapshot->state[i].data, snapshot->state[i].size, stream);
    for (uint32_t i = 0; i < snapshot->kv.range_count && status == cudaSuccess; i++) {
        const struct cuda_kv_range *source = &snapshot->kv.ranges[i];
        struct cuda_kv_range *range = &session->kv.ranges[i];
        if (range->limit == 0)
            status = copy(range->base, source->base, source->stride * snapshot->positions, stream);
        else if (!cuda_kv_share(session, range, source->chunks, source->count, error))
            return false;
    }
    return status == cudaSuccess || cuda_lost(session->backend, status, "restoring a snapshot", error);
}

/* Rows of keys or values, by way of addresses for their chunks that last as long. */
static bool read_rows(const struct cuda_snapshot *snapshot, uint32_t buffer, uint64_t offset, void *bytes,
                      uint64_t size, struct calla_error *error) {
    const struct cuda_kv_buffer *of = &snapshot->kv.buffers[buffer];
    const struct cuda_kv_range *range = &snapshot->kv.ranges[of->range];
    const struct cuda_chunks *chunks = snapshot->backend->chunks;
    uint64_t first = offset / of->row_bytes * range->stride; /* in the range */
    uint64_t end = ((offset + size - 1) / of->row_bytes + 1) * range->stride;
    char *row = NULL;
    void *addresses = NULL;
    uint64_t chunk = 0;
    uint32_t skipped = 0, count = 0;
    if (range->count == 0) {
        row = range->base + first;
    } else {
        chunk = cuda_chunk_bytes(chunks);
        skipped = (uint32_t)(first / chunk);
        count = (uint32_t)((end + chunk - 1) / chunk) - skipped;
        addresses = cuda_addresses_new(chunks, count * chunk, error);
        if (addresses == NULL)
            return false;
        if (!cuda_chunks_map(chunks, range->chunks + skipped, count, addresses, error)) {
            cuda_addresses_free(chunks, addresses, count * chunk);
            return false;
        }
        row = (char *)addresses + (first - skipped * chunk);
    }
    cudaError_t status = cuda_kv_copy(&snapshot->kv, buffer, row, offset, bytes, NULL, size, NULL);
    cudaError_t ended = cudaStreamSynchronize(NULL);
    if (addresses != NULL) {
        cuda_chunks_unmap(chunks, count, addresses);
        cuda_addresses_free(chunks, addresses, count * chunk);
    }
    status = status == cudaSuccess ? ended : status;
    return status == cudaSuccess || cuda_failed(status, "reading a snapshot", error);
}

/* Waits for the copies of the snapshot alone: other threads may be using the backend's stream. */
bool cuda_snapshot_read(const struct device_snapshot *base, enum space space, uint32_t buffer,
                        uint64_t offset, void *bytes, uint64_t size, struct calla_error *error) {
    const struct cuda_snapshot *snapshot = (const struct cuda_snapshot *)base;
    bool kv = space == SPACE_KV && buffer < snapshot->kv.buffer_count;
    if (!kv && !(space == SPACE_STATE && buffer < snapshot->state_count))
        return error_set(error, CALLA_BAD_INPUT, "A snapshot has no %s buffer %u.", space_name(space),
                         buffer);
    uint64_t whole =
        kv ? snapshot->kv.buffers[buffer].row_bytes * snapshot->positions : snapshot->state[buffer].size;
    if (offset > whole || size > whole - offset)
        return binding_not_in_session(space, buffer, offset, size, error);
    if (size == 0)
        return true;
    cudaError_t status = cudaSetDevice(snapshot->backend->device.ordinal); /* of this thread */
    if (status == cudaSuccess)
        status = cudaEventSynchronize(snapshot->taken);
    if (status == cudaSuccess && kv)
        return read_rows(snapshot, buffer, offset, bytes, size, error);
    if (status == cudaSuccess)
        status = cudaMemcpy(bytes, (const char *)snapshot->state[buffer].data + offset, (size_t)size,
                            cudaMemcpyDeviceToHost);
    return status == cudaSuccess || cuda_failed(status, "reading a snapshot", error);
}
