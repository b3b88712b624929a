/* A session's keys and values. Kernels see matrices in one range of addresses; what lies there comes in
 * chunks (cuda_chunks.h) as positions are reached, and snapshots and the sessions that go on from them share
 * it. */
#ifndef CALLA_BACKEND_CUDA_CUDA_KV_H
#define CALLA_BACKEND_CUDA_CUDA_KV_H

#include "backend/cuda/cuda.h"
#include "backend/cuda/cuda_chunks.h"
#include "plan/plan.h"

struct cuda_session;

/* Rows of some buffers, side by side. */
struct cuda_kv_range {
    char *base;                 /* of row 0; NULL in a snapshot of chunks */
    uint64_t stride;            /* bytes from row to row */
    struct cuda_chunk **chunks; /* [limit]: mapped from `base` on, the first `count` */
    uint32_t count, limit;      /* limit 0: there are no chunks, all memory is there from the beginning */
};

struct cuda_kv_buffer {
    uint32_t range, rows;
    uint64_t place, row_bytes; /* where in the range's rows those of the buffer begin */
};

struct cuda_kv {
    struct cuda_kv_buffer *buffers;
    struct cuda_kv_range *ranges;
    uint32_t buffer_count, range_count;
};

/* What all rows would take. */
uint64_t cuda_kv_bytes(const struct session_layout *layout);
/* session->kv; cuda_kv_close may follow a failure. */
bool cuda_kv_open(struct cuda_session *session, const struct session_layout *layout,
                  struct calla_error *error);
void cuda_kv_close(struct cuda_session *session);
/* Gives up the rows, all but some memory that nobody else holds: the next prompt begins at once. */
bool cuda_kv_clear(struct cuda_session *session, struct calla_error *error);
/* Sees to it that rows up to `end` have memory, ... */
bool cuda_kv_reach(struct cuda_session *session, uint64_t end, struct calla_error *error);
/* ... and, before rows [begin, end) are written, that nobody else sees what becomes of it. */
bool cuda_kv_prepare(struct cuda_session *session, uint64_t begin, uint64_t end, struct calla_error *error);

/* An operand's matrix; false if it is not one of whole rows, or of columns of all rows, of a buffer. */
bool cuda_kv_view(const struct cuda_kv *kv, const struct operand *operand, struct cuda_view *view);

/* Bytes [offset, offset + size) of a buffer, to the host's `out` or, if `in` is not NULL, from there. `row`
 * is where the range's row lies in which they begin. */
cudaError_t cuda_kv_copy(const struct cuda_kv *kv, uint32_t buffer, char *row, uint64_t offset, void *out,
                         const void *in, uint64_t size, cudaStream_t stream);

/* Chunks that `rows` rows need. */
uint32_t cuda_kv_chunks(const struct cuda_session *session, const struct cuda_kv_range *range, uint64_t rows);
/* Makes the first chunks of the range those of `chunks`, which the session then holds too, and gives up the
 * others. */
bool cuda_kv_share(struct cuda_session *session, struct cuda_kv_range *range,
                   struct cuda_chunk *const *chunks, uint32_t count, struct calla_error *error);

#endif
