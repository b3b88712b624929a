/* A session's buffers on the device, one allocation but for keys and values, and the ways into and out of
 * them. */
#include "backend/binding.h"
#include "backend/cuda/cuda_backend.h"

#include <stdlib.h>
#include <string.h>

/* How long a read waits for a token by looking, before it asks the device. */
#define LOOKS 2000000

struct cuda_memory *cuda_session_memory(struct cuda_session *session, enum space space, uint32_t buffer) {
    switch (space) {
    case SPACE_STATE:
        return buffer < session->state_count ? &session->state[buffer] : NULL;
    case SPACE_STEP:
        return buffer < STEP_BUFFER_COUNT ? &session->step[buffer] : NULL;
    default:
        return NULL;
    }
}

static uint64_t bytes_of(const struct buffer_shape *shapes, uint32_t count) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += cuda_place(buffer_shape_bytes(&shapes[i]));
    return bytes;
}

/* Gives buffers their places in memory from `*free` on. */
static void lay_out(struct cuda_memory *memories, const struct buffer_shape *shapes, uint32_t count,
                    char **free) {
    for (uint32_t i = 0; i < count; i++) {
        memories[i] = (struct cuda_memory){.data = *free, .size = buffer_shape_bytes(&shapes[i])};
        *free += cuda_place(memories[i].size);
    }
}

static bool allocate(struct cuda_session *session, const struct session_layout *layout,
                     struct calla_error *error) {
    const char *what = "a session (a shorter context needs less)";
    uint64_t bytes = CUDA_ALIGNMENT + bytes_of(layout->state, layout->state_count) +
                     bytes_of(layout->step, STEP_BUFFER_COUNT);
    struct cuda_memory memory;
    /* Keys and values come as they are needed; a context that can never be filled is refused now. */
    if (!cuda_has_room(bytes + cuda_kv_bytes(layout), what, error) ||
        !cuda_allocate(&memory, bytes, what, error))
        return false;
    session->memory = memory.data;
    char *next = (char *)memory.data + CUDA_ALIGNMENT;
    session->mailbox.count = memory.data;
    lay_out(session->state, layout->state, layout->state_count, &next);
    lay_out(session->step, layout->step, STEP_BUFFER_COUNT, &next);
    cudaError_t status = cudaMemsetAsync(memory.data, 0, (size_t)bytes, session->backend->stream);
    if (status == cudaSuccess)
        status = cudaHostAlloc((void **)&session->posted, sizeof *session->posted, cudaHostAllocMapped);
    if (status == cudaSuccess) {
        *session->posted = 0;
        status = cudaHostGetDevicePointer((void **)&session->mailbox.word, session->posted, 0);
    }
    for (int i = 0; i < 2 && status == cudaSuccess; i++)
        status = cudaEventCreateWithFlags(&session->ran[i], cudaEventDisableTiming | cudaEventBlockingSync);
    return status == cudaSuccess || cuda_lost(session->backend, status, "opening a session", error);
}

struct device_session *cuda_session_open(struct backend *base, const struct session_layout *layout,
                                         struct calla_error *error) {
    struct cuda_backend *backend = (struct cuda_backend *)base;
    if (!cuda_usable(backend, error))
        return NULL;
    struct cuda_session *session = calloc(1, sizeof *session);
    struct cuda_memory *memories = calloc(layout->state_count + (size_t)1, sizeof *memories);
    if (session == NULL || memories == NULL) {
        error_memory(error, "a session", layout->state_count * sizeof *memories);
        free(session);
        free(memories);
        return NULL;
    }
    session->backend = backend;
    session->state = memories;
    session->state_count = layout->state_count;
    if (allocate(session, layout, error) && cuda_kv_open(session, layout, error))
        return (struct device_session *)session;
    cuda_session_close((struct device_session *)session);
    return NULL;
}

void cuda_session_close(struct device_session *base) {
    struct cuda_session *session = (struct cuda_session *)base;
    if (session == NULL)
        return;
    cudaStreamSynchronize(session->backend->stream);
    for (int i = 0; i < 2; i++)
        if (session->ran[i] != NULL)
            cudaEventDestroy(session->ran[i]);
    cudaFreeHost(session->posted);
    cudaFree(session->memory);
    cuda_kv_close(session);
    free(session->state);
    free(session);
}

/* Copies bytes [offset, offset + size) of keys or values; rows that were not reached are zero. */
static bool copy_rows(struct cuda_session *session, uint32_t buffer, uint64_t offset, void *out,
                      const void *in, uint64_t size, struct calla_error *error) {
    const struct cuda_kv *kv = &session->kv;
    uint64_t row = buffer < kv->buffer_count ? kv->buffers[buffer].row_bytes : 0;
    uint64_t whole = row > 0 ? row * kv->buffers[buffer].rows : 0;
    if (offset > whole || size > whole - offset)
        return binding_not_in_session(SPACE_KV, buffer, offset, size, error);
    if (size == 0)
        return true;
    uint64_t first = offset / row, end = (offset + size + row - 1) / row;
    if (!(in != NULL ? cuda_kv_prepare(session, first, end, error) : cuda_kv_reach(session, end, error)))
        return false;
    const struct cuda_kv_range *range = &kv->ranges[kv->buffers[buffer].range];
    cudaStream_t stream = session->backend->stream;
    cudaError_t status =
        cuda_kv_copy(kv, buffer, range->base + first * range->stride, offset, out, in, size, stream);
    if (status == cudaSuccess && in == NULL)
        status = cudaStreamSynchronize(stream);
    return status == cudaSuccess || cuda_lost(session->backend, status, "copying keys and values", error);
}

/* The bytes [offset, offset + size) of another buffer of a session. */
static char *session_bytes(struct cuda_session *session, enum space space, uint32_t buffer, uint64_t offset,
                           uint64_t size, struct calla_error *error) {
    if (!cuda_usable(session->backend, error))
        return NULL;
    const struct cuda_memory *memory = cuda_session_memory(session, space, buffer);
    if (memory != NULL && offset <= memory->size && size <= memory->size - offset)
        return (char *)memory->data + offset;
    binding_not_in_session(space, buffer, offset, size, error);
    return NULL;
}

bool cuda_write(struct device_session *base, enum space space, uint32_t buffer, uint64_t offset,
                const void *bytes, uint64_t size, struct calla_error *error) {
    struct cuda_session *session = (struct cuda_session *)base;
    if (space == SPACE_KV)
        return cuda_usable(session->backend, error) &&
               copy_rows(session, buffer, offset, NULL, bytes, size, error);
    char *target = session_bytes(session, space, buffer, offset, size, error);
    if (target == NULL || size == 0)
        return target != NULL;
    if (space == SPACE_STEP && buffer == STEP_RECORD && offset < sizeof session->record) {
        uint64_t rest = sizeof session->record - offset;
        memcpy((char *)&session->record + offset, bytes, (size_t)(size < rest ? size : rest));
    }
    session->token_posted &= !(space == SPACE_STEP && buffer == STEP_TOKENS);
    cudaError_t status =
        cudaMemcpyAsync(target, bytes, (size_t)size, cudaMemcpyHostToDevice, session->backend->stream);
    return status == cudaSuccess || cuda_lost(session->backend, status, "writing to the session", error);
}

/* Waits for the token that the last program draws; false if it is not to be had this way. */
static bool wait_for_token(const struct cuda_session *session, int32_t *token) {
    for (uint32_t i = 0; i < LOOKS; i++) {
        uint64_t word = *(const volatile uint64_t *)session->posted; /* the device writes it */
        if ((uint32_t)(word >> 32) == session->samples) {
            *token = (int32_t)(uint32_t)word;
            return true;
        }
    }
    return false;
}

bool cuda_read(struct device_session *base, enum space space, uint32_t buffer, uint64_t offset, void *bytes,
               uint64_t size, struct calla_error *error) {
    struct cuda_session *session = (struct cuda_session *)base;
    if (space == SPACE_KV)
        return cuda_usable(session->backend, error) &&
               copy_rows(session, buffer, offset, bytes, NULL, size, error);
    const char *source = session_bytes(session, space, buffer, offset, size, error);
    if (source == NULL || size == 0)
        return source != NULL;
    int32_t token;
    if (session->token_posted && space == SPACE_STEP && buffer == STEP_TOKENS && offset == 0 &&
        size == sizeof token && wait_for_token(session, &token)) {
        memcpy(bytes, &token, sizeof token);
        return true;
    }
    cudaStream_t stream = session->backend->stream;
    cudaError_t status = cudaMemcpyAsync(bytes, source, (size_t)size, cudaMemcpyDeviceToHost, stream);
    if (status == cudaSuccess)
        status = cudaStreamSynchronize(stream);
    return status == cudaSuccess || cuda_lost(session->backend, status, "computing", error);
}

bool cuda_reset(struct device_session *base, struct calla_error *error) {
    struct cuda_session *session = (struct cuda_session *)base;
    if (!cuda_usable(session->backend, error))
        return false;
    cudaError_t status = cudaSuccess;
    for (uint32_t i = 0; i < session->state_count && status == cudaSuccess; i++)
        status = cudaMemsetAsync(session->state[i].data, 0, (size_t)session->state[i].size,
                                 session->backend->stream);
    if (status != cudaSuccess)
        return cuda_lost(session->backend, status, "resetting the session", error);
    return cuda_kv_clear(session, error);
}
