/* What the host's files of the CUDA backend share. One stream carries everything that a backend does, so that
 * its programs share their scratch memory and what is queued first happens first. */
#ifndef CALLA_BACKEND_CUDA_CUDA_BACKEND_H
#define CALLA_BACKEND_CUDA_CUDA_BACKEND_H

#include "backend/backend.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/cuda_kv.h"

struct cuda_memory {
    void *data;
    uint64_t size;
};

/* What a part of an allocation takes, so that the next one is aligned for every kernel; never 0, so that each
 * part has an address of its own. */
#define CUDA_ALIGNMENT 256
static inline uint64_t cuda_place(uint64_t bytes) {
    return (bytes + CUDA_ALIGNMENT) / CUDA_ALIGNMENT * CUDA_ALIGNMENT;
}

struct cuda_backend {
    struct backend base;
    struct cuda_device device;
    struct policy policy;
    char name[64];
    cudaStream_t stream;
    const struct weights *weights;
    struct cuda_view *weight_views; /* of the whole weights, in the table's order */
    void *weight_memory;
    /* For small programs, such as a decode step's, and for large ones: a program whose memory has moved must
     * be recorded again, and a growing chunk shall not do that to the step. */
    struct cuda_memory scratch[2];
    struct cuda_chunks *chunks; /* of keys and values; NULL: there is no virtual memory management */
    uint64_t snapshot_bytes;    /* of snapshots, without the chunks that they hold */
    struct calla_error lost;    /* why the device cannot be used any more; CALLA_OK while it can */
};

struct cuda_session {
    struct cuda_backend *backend;
    void *memory; /* of all buffers but keys and values */
    struct cuda_memory *state, step[STEP_BUFFER_COUNT];
    struct cuda_kv kv;
    uint32_t state_count;
    struct step_record record; /* as it will be when all that is queued is done */
    cudaEvent_t ran[2];        /* after the last program and the one before */
    uint64_t runs;
    struct cuda_mailbox mailbox; /* addresses on the device */
    uint64_t *posted;            /* its word, as the host sees it */
    uint32_t samples;            /* programs queued that sample */
    bool token_posted;           /* element 0 of STEP_TOKENS is what the last of them draws */
};

/* Fills the error for a failed call: "CUDA: WHAT: ..."; returns false. */
bool cuda_failed(cudaError_t status, const char *what, struct calla_error *error);

/* The same for calls after which nothing on the device can be relied on: from now on every call fails. */
bool cuda_lost(struct cuda_backend *backend, cudaError_t status, const char *what, struct calla_error *error);

/* Whether the device has not been lost. */
bool cuda_usable(const struct cuda_backend *backend, struct calla_error *error);

/* The error for `size` bytes more than there are; returns false. */
bool cuda_too_little(uint64_t size, const char *what, struct calla_error *error);
/* Whether `size` bytes are free, the same error if not. */
bool cuda_has_room(uint64_t size, const char *what, struct calla_error *error);

/* Device memory; `what` names it where there is not enough. */
bool cuda_allocate(struct cuda_memory *memory, uint64_t size, const char *what, struct calla_error *error);
void cuda_release(struct cuda_memory *memory);

/* cuda_facts.c */
bool cuda_available(struct calla_error *error);
void cuda_device_facts(struct device_facts *facts);
uint64_t cuda_free_memory(const struct backend *base);
double cuda_bandwidth(struct calla_error *error);

/* cuda_upload.c */
bool cuda_load(struct backend *base, struct weights *weights, const struct calla_progress *progress,
               struct calla_error *error);

/* cuda_session.c */
struct device_session *cuda_session_open(struct backend *base, const struct session_layout *layout,
                                         struct calla_error *error);
void cuda_session_close(struct device_session *base);
bool cuda_write(struct device_session *base, enum space space, uint32_t buffer, uint64_t offset,
                const void *bytes, uint64_t size, struct calla_error *error);
bool cuda_read(struct device_session *base, enum space space, uint32_t buffer, uint64_t offset, void *bytes,
               uint64_t size, struct calla_error *error);
bool cuda_reset(struct device_session *base, struct calla_error *error);
/* A session's buffer of the other spaces than keys and values, NULL when there is none of that number. */
struct cuda_memory *cuda_session_memory(struct cuda_session *session, enum space space, uint32_t buffer);

/* cuda_snapshot.c */
struct device_snapshot *cuda_snapshot_take(struct device_session *base, uint32_t positions,
                                           struct calla_error *error);
bool cuda_snapshot_restore(struct device_session *base, const struct device_snapshot *taken,
                           struct calla_error *error);
bool cuda_snapshot_read(const struct device_snapshot *base, enum space space, uint32_t buffer,
                        uint64_t offset, void *bytes, uint64_t size, struct calla_error *error);
void cuda_snapshot_free(struct device_snapshot *base);
uint64_t cuda_snapshot_cost(const struct device_session *base, uint32_t positions);
uint64_t cuda_snapshot_bytes(const struct backend *base);

/* cuda_program.c */
struct program *cuda_compile(struct device_session *base, const struct plan *plan, struct calla_error *error);
void cuda_program_free(struct program *base);
bool cuda_run(struct device_session *base, struct program *compiled, double seconds, bool *finished,
              struct calla_error *error);

/* cuda_ops.c: for each op of a program (checked and bound) the first kernel that fits it; there always is
 * one. Where a kernel computes two ops in a row, the second has one that launches nothing. */
void cuda_choose_kernels(const struct cuda_op *ops, uint32_t count, const struct cuda_device *device,
                         const struct cuda_kernel **chosen);

#endif
