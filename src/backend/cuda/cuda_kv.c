/* Rows of several buffers lie side by side up to ROW_BYTES, in a range of addresses with chunks of its own.
 * The more lie side by side, the less memory a short text needs; but attention, which passes over 4 KiB for
 * each 1 that it reads at no loss, is slower when it is more.
 *
 * A chunk that lies wholly before a session's position is never written again. Of the one in which it lies,
 * the session that took it (the owner) writes on behind what snapshots hold; any other gets a copy first. */
#include "backend/cuda/cuda_kv.h"

#include <stdlib.h>

#include "backend/binding.h"
#include "backend/cuda/cuda_backend.h"

#define ROW_BYTES 4096
#define KEPT_BYTES ((uint64_t)80 << 20) /* by a session that is reset: 4,096 positions of the full size */

/* Rows of all buffers begin where the kernels' widest loads may. */
static uint64_t aligned(uint64_t bytes) {
    return (bytes + 127) / 128 * 128;
}

/* ---- Opening and closing */

/* Whether a buffer's rows begin a range of their own, for rows of `stride` bytes so far. */
static bool begins_range(const struct buffer_shape *shape, uint64_t stride) {
    return stride == 0 || stride + aligned(dtype_row_bytes(shape->dtype, shape->columns)) > ROW_BYTES;
}

uint64_t cuda_kv_bytes(const struct session_layout *layout) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < layout->kv_count; i++)
        bytes += aligned(dtype_row_bytes(layout->kv[i].dtype, layout->kv[i].columns)) * layout->kv[i].rows;
    return bytes;
}

/* Gives the buffers their places; `rows` of each range. */
static void lay_out(struct cuda_kv *kv, const struct session_layout *layout, uint32_t *rows) {
    for (uint32_t i = 0; i < layout->kv_count; i++) {
        const struct buffer_shape *shape = &layout->kv[i];
        if (i == 0 || begins_range(shape, kv->ranges[kv->range_count - 1].stride))
            kv->range_count++;
        uint32_t index = kv->range_count - 1;
        struct cuda_kv_range *range = &kv->ranges[index];
        kv->buffers[i] = (struct cuda_kv_buffer){.range = index,
                                                 .rows = shape->rows,
                                                 .place = range->stride,
                                                 .row_bytes = dtype_row_bytes(shape->dtype, shape->columns)};
        range->stride += aligned(kv->buffers[i].row_bytes);
        rows[index] = shape->rows > rows[index] ? shape->rows : rows[index];
    }
}

static bool open_range(const struct cuda_backend *backend, struct cuda_kv_range *range, uint32_t rows,
                       struct calla_error *error) {
    struct cuda_memory memory;
    if (backend->chunks == NULL) {
        if (!cuda_allocate(&memory, range->stride * rows, "a session (a shorter context needs less)", error))
            return false;
        range->base = memory.data;
        cudaError_t status = cudaMemsetAsync(memory.data, 0, (size_t)memory.size, backend->stream);
        return status == cudaSuccess || cuda_failed(status, "opening a session", error);
    }
    uint64_t chunk = cuda_chunk_bytes(backend->chunks);
    range->limit = (uint32_t)((range->stride * rows + chunk - 1) / chunk);
    range->chunks = calloc(range->limit + (size_t)1, sizeof *range->chunks);
    if (range->chunks == NULL)
        return error_memory(error, "a session", range->limit * sizeof *range->chunks);
    range->base = range->limit == 0 ? NULL : cuda_addresses_new(backend->chunks, range->limit * chunk, error);
    return range->limit == 0 || range->base != NULL;
}

bool cuda_kv_open(struct cuda_session *session, const struct session_layout *layout,
                  struct calla_error *error) {
    struct cuda_kv *kv = &session->kv;
    size_t count = layout->kv_count + (size_t)1;
    uint32_t *rows = calloc(count, sizeof *rows);
    kv->buffers = calloc(count, sizeof *kv->buffers);
    kv->ranges = calloc(count, sizeof *kv->ranges);
    bool ok = (rows != NULL && kv->buffers != NULL && kv->ranges != NULL) ||
              error_memory(error, "a session", count * sizeof *kv->ranges);
    if (ok) {
        kv->buffer_count = layout->kv_count;
        lay_out(kv, layout, rows);
    }
    for (uint32_t i = 0; ok && i < kv->range_count; i++)
        ok = open_range(session->backend, &kv->ranges[i], rows[i], error);
    free(rows);
    return ok && cuda_kv_reach(session, 1, error);
}

/* Gives up a range's chunks from number `from` on. What is queued must have ended. */
static void drop(struct cuda_session *session, struct cuda_kv_range *range, uint32_t from) {
    struct cuda_chunks *chunks = session->backend->chunks;
    if (range->count <= from)
        return;
    cuda_chunks_unmap(chunks, range->count - from, range->base + from * cuda_chunk_bytes(chunks));
    while (range->count > from) {
        struct cuda_chunk *chunk = range->chunks[--range->count];
        if (chunk->owner == session)
            chunk->owner = NULL;
        cuda_chunk_release(chunks, chunk, false);
    }
}

void cuda_kv_close(struct cuda_session *session) {
    struct cuda_kv *kv = &session->kv;
    for (uint32_t i = 0; kv->ranges != NULL && i < kv->range_count; i++) {
        struct cuda_kv_range *range = &kv->ranges[i];
        if (range->limit == 0) {
            cudaFree(range->base);
        } else if (range->base != NULL) {
            drop(session, range, 0);
            cuda_addresses_free(session->backend->chunks, range->base,
                                range->limit * cuda_chunk_bytes(session->backend->chunks));
        }
        free((void *)range->chunks);
    }
    free(kv->ranges);
    free(kv->buffers);
}

/* ---- Chunks of a session */

uint32_t cuda_kv_chunks(const struct cuda_session *session, const struct cuda_kv_range *range,
                        uint64_t rows) {
    if (range->limit == 0)
        return 0;
    uint64_t chunk = cuda_chunk_bytes(session->backend->chunks);
    uint64_t count = (rows * range->stride + chunk - 1) / chunk;
    return (uint32_t)(count < range->limit ? count : range->limit);
}

/* Lets what is queued end, so that addresses may change what they stand for. */
static bool settle(const struct cuda_session *session, struct calla_error *error) {
    cudaError_t status = cudaStreamSynchronize(session->backend->stream);
    return status == cudaSuccess || cuda_lost(session->backend, status, "computing", error);
}

bool cuda_kv_clear(struct cuda_session *session, struct calla_error *error) {
    struct cuda_kv *kv = &session->kv;
    if (kv->range_count == 0 || kv->ranges[0].limit == 0)
        return true;
    uint64_t most = KEPT_BYTES / cuda_chunk_bytes(session->backend->chunks) / kv->range_count;
    bool settled = false;
    for (uint32_t i = 0; i < kv->range_count; i++) {
        struct cuda_kv_range *range = &kv->ranges[i];
        uint32_t kept = 0;
        while (kept < range->count && kept < most && range->chunks[kept]->holders == 1)
            kept++;
        if (kept < range->count && !settled && !(settled = settle(session, error)))
            return false;
        drop(session, range, kept);
    }
    return true;
}

/* Takes chunks up to number `count`. */
static bool grow(struct cuda_session *session, struct cuda_kv_range *range, uint32_t count,
                 struct calla_error *error) {
    struct cuda_chunks *chunks = session->backend->chunks;
    uint64_t bytes = cuda_chunk_bytes(chunks);
    uint32_t before = range->count, now = before;
    while (now < count && (range->chunks[now] = cuda_chunk_new(chunks, session, error)) != NULL)
        now++;
    bool all = now >= count;
    char *address = range->base + before * bytes;
    if (!cuda_chunks_map(chunks, range->chunks + before, now - before, address, error)) {
        while (now-- > before)
            cuda_chunk_release(chunks, range->chunks[now], false);
        return false;
    }
    range->count = now;
    cudaError_t status = cudaSuccess;
    if (now > before)
        status = cudaMemsetAsync(address, 0, (size_t)((now - before) * bytes), session->backend->stream);
    return status == cudaSuccess ? all : cuda_lost(session->backend, status, "clearing memory", error);
}

/* Puts a copy in the place of a chunk. After a failure the rows from there on may be gone. */
static bool copy_chunk(struct cuda_session *session, struct cuda_kv_range *range, uint32_t index,
                       struct calla_error *error) {
    struct cuda_chunks *chunks = session->backend->chunks;
    cudaStream_t stream = session->backend->stream;
    size_t bytes = (size_t)cuda_chunk_bytes(chunks);
    char *address = range->base + index * bytes;
    struct cuda_chunk *copy = cuda_chunk_new(chunks, session, error);
    if (copy == NULL)
        return false;
    void *between = NULL; /* the addresses stand for one of the two at a time */
    cudaError_t status = cudaMallocAsync(&between, bytes, stream);
    if (status == cudaErrorMemoryAllocation)
        cudaGetLastError(); /* others may still find room */
    if (status == cudaSuccess)
        status = cudaMemcpyAsync(between, address, bytes, cudaMemcpyDeviceToDevice, stream);
    bool ok = status == cudaSuccess ? settle(session, error)
                                    : cuda_failed(status, "copying keys and values", error);
    if (ok) {
        cuda_chunks_unmap(chunks, 1, address);
        ok = cuda_chunks_map(chunks, &copy, 1, address, error);
        if (!ok && !cuda_chunks_map(chunks, &range->chunks[index], 1, address, NULL)) {
            drop(session, range, index + 1);
            cuda_chunk_release(chunks, range->chunks[--range->count], false);
        }
    }
    if (ok) {
        cuda_chunk_release(chunks, range->chunks[index], false);
        range->chunks[index] = copy;
        status = cudaMemcpyAsync(address, between, bytes, cudaMemcpyDeviceToDevice, stream);
        ok = status == cudaSuccess || cuda_lost(session->backend, status, "copying keys and values", error);
    } else {
        cuda_chunk_release(chunks, copy, false);
    }
    if (between != NULL)
        cudaFreeAsync(between, stream);
    return ok;
}

bool cuda_kv_reach(struct cuda_session *session, uint64_t end, struct calla_error *error) {
    for (uint32_t i = 0; i < session->kv.range_count; i++) {
        struct cuda_kv_range *range = &session->kv.ranges[i];
        uint32_t count = cuda_kv_chunks(session, range, end);
        if (range->count < count && !grow(session, range, count, error))
            return false;
    }
    return true;
}

/* Sees to it that nobody else sees what is written to rows [begin, end) of those that have chunks. */
static bool part(struct cuda_session *session, struct cuda_kv_range *range, uint64_t begin, uint64_t end,
                 struct calla_error *error) {
    uint32_t count = cuda_kv_chunks(session, range, end);
    uint64_t bytes = count > 0 ? cuda_chunk_bytes(session->backend->chunks) : 1,
             first = begin * range->stride;
    for (uint64_t i = first / bytes; i < range->count && i < count; i++) {
        struct cuda_chunk *chunk = range->chunks[i];
        if (chunk->holders == 1) {
            chunk->owner = session;
            chunk->kept = 0;
        } else if ((chunk->owner != session || first < i * bytes + chunk->kept) &&
                   !copy_chunk(session, range, (uint32_t)i, error)) {
            return false;
        }
    }
    return true;
}

bool cuda_kv_prepare(struct cuda_session *session, uint64_t begin, uint64_t end, struct calla_error *error) {
    for (uint32_t i = 0; begin < end && i < session->kv.range_count; i++)
        if (!part(session, &session->kv.ranges[i], begin, end, error))
            return false;
    return begin >= end || cuda_kv_reach(session, end, error);
}

bool cuda_kv_share(struct cuda_session *session, struct cuda_kv_range *range,
                   struct cuda_chunk *const *chunks, uint32_t count, struct calla_error *error) {
    struct cuda_chunks *all = session->backend->chunks;
    uint32_t same = 0;
    while (same < count && same < range->count && range->chunks[same] == chunks[same])
        same++;
    if (same < range->count && !settle(session, error))
        return false;
    drop(session, range, same);
    if (!cuda_chunks_map(all, chunks + same, count - same, range->base + same * cuda_chunk_bytes(all), error))
        return false;
    for (; range->count < count; range->count++) {
        cuda_chunk_hold(all, chunks[range->count], false);
        range->chunks[range->count] = chunks[range->count];
    }
    return true;
}

/* ---- Ways into and out of the rows */

bool cuda_kv_view(const struct cuda_kv *kv, const struct operand *operand, struct cuda_view *view) {
    if (operand->buffer >= kv->buffer_count)
        return false;
    const struct cuda_kv_buffer *buffer = &kv->buffers[operand->buffer];
    const struct cuda_kv_range *range = &kv->ranges[buffer->range];
    uint64_t element = dtype_row_bytes((enum dtype)operand->dtype, 1);
    if (!binding_inside(operand, buffer->row_bytes * buffer->rows) || element == 0 ||
        operand->stride * element != buffer->row_bytes ||
        operand->offset + operand->columns * element > buffer->row_bytes)
        return false;
    *view = (struct cuda_view){.data = range->base + buffer->place + operand->offset,
                               .dtype = operand->dtype,
                               .rows = operand->rows,
                               .columns = operand->columns,
                               .stride = range->stride / element};
    return true;
}

cudaError_t cuda_kv_copy(const struct cuda_kv *kv, uint32_t buffer, char *row, uint64_t offset, void *out,
                         const void *in, uint64_t size, cudaStream_t stream) {
    const struct cuda_kv_buffer *of = &kv->buffers[buffer];
    size_t stride = (size_t)kv->ranges[of->range].stride, bytes = (size_t)of->row_bytes;
    uint64_t column = offset % bytes, done = 0;
    cudaError_t status = cudaSuccess;
    while (done < size && status == cudaSuccess) {
        /* A part of a row, or as many rows as there are. */
        size_t left = (size_t)(size - done), rows = column > 0 || left < bytes ? 1 : left / bytes;
        size_t width = bytes - column < left ? (size_t)(bytes - column) : left;
        char *here = row + of->place + column;
        if (in != NULL)
            status = cudaMemcpy2DAsync(here, stride, (const char *)in + done, bytes, width, rows,
                                       cudaMemcpyHostToDevice, stream);
        else
            status = cudaMemcpy2DAsync((char *)out + done, bytes, here, stride, width, rows,
                                       cudaMemcpyDeviceToHost, stream);
        row += rows * stride;
        done += rows * width;
        column = 0;
    }
    return status;
}
