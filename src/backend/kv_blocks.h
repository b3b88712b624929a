/* Memory for keys and values in blocks of positions, each with its holders counted, so that sessions and
 * snapshots share what they have in common.
 *
 * A kernel wants a session's keys as one array. So a block is no piece of the heap but a piece of a memory
 * file, which can be mapped at several addresses: each session has a range of addresses for each of its
 * buffers, into which its blocks are mapped one after the other. */
#ifndef CALLA_BACKEND_KV_BLOCKS_H
#define CALLA_BACKEND_KV_BLOCKS_H

#include "base/error.h"

/* What the blocks of some sessions look like: `positions` rows of each buffer, whole pages of memory. */
struct kv_geometry {
    uint32_t buffers, positions;
    size_t *row_bytes; /* [buffers], owned */
};

/* The smallest blocks of at least KV_BLOCK_POSITIONS positions. Takes the array over. */
#define KV_BLOCK_POSITIONS 512
void kv_geometry_make(struct kv_geometry *geometry, uint32_t buffers, size_t *row_bytes);
bool kv_geometry_equal(const struct kv_geometry *a, const struct kv_geometry *b);
size_t kv_geometry_bytes(const struct kv_geometry *geometry, uint32_t buffer); /* of a block's rows */

struct kv_segment;

struct kv_block {
    struct kv_segment *segment;
    uint32_t index;     /* in the segment */
    uint32_t holders;   /* sessions and snapshots; 0: the block is free */
    uint32_t snapshots; /* among them */
};

/* All blocks of a backend. A zeroed store is empty. */
struct kv_store {
    struct kv_segment *segments;
    uint64_t snapshot_bytes; /* of the blocks that snapshots hold, each counted once */
    uint64_t mappings;       /* of all sessions: one for each buffer of each run of neighbours */
    uint64_t
        most_mappings; /* sessions whose blocks lie scattered are put together above that; 0: KV_MAPPINGS */
};

/* Linux lets a process have 65,530, unless it was told otherwise; others need some too. */
#define KV_MAPPINGS 32000

/* Each is a file, and mapped once as a whole. */
uint32_t kv_store_segments(const struct kv_store *store);

/* When nobody holds a block any more. */
void kv_store_close(struct kv_store *store);

/* A block, held once by a session; contents undefined. `after` (may be NULL) is the block that lies before it
 * in the session: neighbours in the file need one mapping. Where the place behind it is taken, the new one
 * lies where so many more have room behind it, or (0) where sessions that grow at the same time get least
 * into each other's way. The memory is reserved: using it cannot fail. */
struct kv_block *kv_block_new(struct kv_store *store, const struct kv_geometry *geometry,
                              const struct kv_block *after, uint32_t more, struct calla_error *error);
/* Whether the second lies right behind the first. */
bool kv_blocks_adjoin(const struct kv_block *first, const struct kv_block *second);
void kv_block_hold(struct kv_store *store, struct kv_block *block, bool snapshot);
void kv_block_release(struct kv_store *store, struct kv_block *block, bool snapshot);

uint64_t kv_block_bytes(const struct kv_block *block);
/* The rows of one buffer, at an address of the store's own. */
unsigned char *kv_block_data(const struct kv_block *block, uint32_t buffer);
/* Maps them at `address` as well, in place of what is mapped there. Blocks that follow each other in both get
 * huge pages, as soon as they fill one, where the system can do that. */
bool kv_block_map(const struct kv_block *block, uint32_t buffer, void *address, struct calla_error *error);

/* Addresses for `size` bytes, all zero and read only until blocks are mapped there; NULL with an error. */
void *kv_range_new(size_t size, struct calla_error *error);
/* Unmaps the blocks that are mapped in it. */
bool kv_range_clear(void *range, size_t size);
void kv_range_free(void *range, size_t size);

#endif
