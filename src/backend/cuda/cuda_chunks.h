/* Chunks of the device's memory that are mapped at several addresses: what sessions and snapshots share. */
#ifndef CALLA_BACKEND_CUDA_CUDA_CHUNKS_H
#define CALLA_BACKEND_CUDA_CUDA_CHUNKS_H

#include "base/error.h"

struct cuda_chunks; /* of a backend */

/* Held by sessions, which map it, and by snapshots. Its holders change in the backend's thread alone. */
struct cuda_chunk {
    unsigned long long memory; /* the driver's handle */
    uint32_t holders, snapshots;
    /* The session that may write behind `kept`, the bytes from its beginning on that snapshots hold; all
     * others must copy what others hold too. */
    const void *owner;
    uint64_t kept;
};

/* *chunks is NULL where the driver or the device has no virtual memory management, which is no failure. */
bool cuda_chunks_open(struct cuda_chunks **chunks, int device, struct calla_error *error);
void cuda_chunks_close(struct cuda_chunks *chunks); /* when nobody holds a chunk any more; NULL is fine */
uint64_t cuda_chunk_bytes(const struct cuda_chunks *chunks);
/* Of the chunks that snapshots hold, each counted once. */
uint64_t cuda_chunks_in_snapshots(const struct cuda_chunks *chunks);

/* Held once, by the owner; contents undefined. */
struct cuda_chunk *cuda_chunk_new(struct cuda_chunks *chunks, const void *owner, struct calla_error *error);
void cuda_chunk_hold(struct cuda_chunks *chunks, struct cuda_chunk *chunk, bool snapshot);
void cuda_chunk_release(struct cuda_chunks *chunks, struct cuda_chunk *chunk, bool snapshot);

/* Addresses for `size` bytes, whole chunks; NULL with an error. */
void *cuda_addresses_new(const struct cuda_chunks *chunks, uint64_t size, struct calla_error *error);
void cuda_addresses_free(const struct cuda_chunks *chunks, void *addresses, uint64_t size);
/* Maps chunks one after the other from `address` on: all of them, or none with an error. Any thread may. */
bool cuda_chunks_map(const struct cuda_chunks *chunks, struct cuda_chunk *const *list, uint32_t count,
                     void *address, struct calla_error *error);
/* Nothing that runs may be using the addresses. */
void cuda_chunks_unmap(const struct cuda_chunks *chunks, uint32_t count, void *address);

#endif
