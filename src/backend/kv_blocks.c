/* Blocks come from segments, memory files of about a gigabyte of address space. In a segment the rows of each
 * buffer lie together, block after block, so that blocks that follow each other in a session as they do in
 * the segment need one mapping a buffer and not one each: a process can have 65,530 mappings on Linux. */
#include "backend/kv_blocks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/system.h"

#define SEGMENT_BYTES ((size_t)1 << 30)
#define SEGMENT_BLOCKS 1024 /* at most */

struct kv_segment {
    struct kv_segment *next;
    struct kv_geometry geometry; /* a copy */
    int descriptor;
    unsigned char *base; /* the whole file */
    size_t size, block_bytes;
    size_t *areas; /* [buffers]: where a buffer's rows begin */
    uint32_t block_count, used;
    struct kv_block *blocks;
};

void kv_geometry_make(struct kv_geometry *geometry, uint32_t buffers, size_t *row_bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    *geometry = (struct kv_geometry){.buffers = buffers, .positions = KV_BLOCK_POSITIONS};
    geometry->row_bytes = row_bytes;
    for (uint32_t i = 0; i < buffers; i++)
        while (row_bytes[i] * geometry->positions % page != 0)
            geometry->positions *= 2;
}

bool kv_geometry_equal(const struct kv_geometry *a, const struct kv_geometry *b) {
    return a->buffers == b->buffers && a->positions == b->positions &&
           (a->buffers == 0 || memcmp(a->row_bytes, b->row_bytes, a->buffers * sizeof *a->row_bytes) == 0);
}

size_t kv_geometry_bytes(const struct kv_geometry *geometry, uint32_t buffer) {
    return geometry->row_bytes[buffer] * geometry->positions;
}

/* Segments */

/* A memory file that nobody else can open; -1 with errno. */
static int memory_file(size_t size) {
#if defined(__linux__)
    int descriptor = memfd_create("calla keys and values", MFD_CLOEXEC);
#else
    char name[32];
    snprintf(name, sizeof name, "/calla-%08x", (unsigned)system_random());
    int descriptor = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (descriptor >= 0)
        shm_unlink(name);
#endif
    if (descriptor >= 0 && ftruncate(descriptor, (off_t)size) != 0) {
        int reason = errno;
        close(descriptor);
        errno = reason;
        return -1;
    }
    return descriptor;
}

static void segment_free(struct kv_segment *segment) {
    if (segment == NULL)
        return;
    if (segment->base != NULL)
        munmap(segment->base, segment->size);
    if (segment->descriptor >= 0)
        close(segment->descriptor);
    free(segment->geometry.row_bytes);
    free(segment->areas);
    free(segment->blocks);
    free(segment);
}

static bool map_segment(struct kv_segment *segment, struct calla_error *error) {
    segment->descriptor = memory_file(segment->size);
    void *base = segment->descriptor < 0
                     ? MAP_FAILED
                     : mmap(NULL, segment->size, PROT_READ | PROT_WRITE, MAP_SHARED, segment->descriptor, 0);
    if (base == MAP_FAILED)
        return error_set(error, CALLA_OUT_OF_MEMORY, "There is no memory for keys and values: %s.",
                         strerror(errno));
    segment->base = base;
    return true;
}

static struct kv_segment *segment_new(const struct kv_geometry *geometry, struct calla_error *error) {
    struct kv_segment *segment = calloc(1, sizeof *segment);
    if (segment == NULL) {
        error_memory(error, "keys and values", sizeof *segment);
        return NULL;
    }
    segment->descriptor = -1;
    segment->geometry = *geometry;
    segment->geometry.row_bytes = calloc(geometry->buffers + (size_t)1, sizeof *geometry->row_bytes);
    segment->areas = calloc(geometry->buffers + (size_t)1, sizeof *segment->areas);
    for (uint32_t i = 0; i < geometry->buffers; i++)
        segment->block_bytes += kv_geometry_bytes(geometry, i);
    size_t count = segment->block_bytes == 0 ? 1 : SEGMENT_BYTES / segment->block_bytes;
    segment->block_count = (uint32_t)(count < 1 ? 1 : count > SEGMENT_BLOCKS ? SEGMENT_BLOCKS : count);
    segment->blocks = calloc(segment->block_count, sizeof *segment->blocks);
    if (segment->geometry.row_bytes == NULL || segment->areas == NULL || segment->blocks == NULL) {
        error_memory(error, "keys and values", segment->block_count * sizeof *segment->blocks);
        segment_free(segment);
        return NULL;
    }
    for (uint32_t i = 0; i < geometry->buffers; i++) {
        segment->geometry.row_bytes[i] = geometry->row_bytes[i];
        segment->areas[i] = segment->size;
        size_t area = kv_geometry_bytes(geometry, i) * segment->block_count;
        segment->size += (area + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    }
    for (uint32_t i = 0; i < segment->block_count; i++)
        segment->blocks[i] = (struct kv_block){.segment = segment, .index = i};
    if (map_segment(segment, error))
        return segment;
    segment_free(segment);
    return NULL;
}

uint32_t kv_store_segments(const struct kv_store *store) {
    uint32_t count = 0;
    for (const struct kv_segment *segment = store->segments; segment != NULL; segment = segment->next)
        count++;
    return count;
}

void kv_store_close(struct kv_store *store) {
    while (store->segments != NULL) {
        struct kv_segment *segment = store->segments;
        store->segments = segment->next;
        segment_free(segment);
    }
}

/* Blocks */

static size_t place_of(const struct kv_block *block, uint32_t buffer) {
    return block->segment->areas[buffer] +
           kv_geometry_bytes(&block->segment->geometry, buffer) * block->index;
}

/* Has the system find the memory now: where it comes page by page as it is touched, a lack of it would end
 * the program. */
static bool reserve(const struct kv_block *block) {
#if defined(__linux__)
    const struct kv_segment *segment = block->segment;
    for (uint32_t i = 0; i < segment->geometry.buffers; i++)
        if (fallocate(segment->descriptor, 0, (off_t)place_of(block, i),
                      (off_t)kv_geometry_bytes(&segment->geometry, i)) != 0)
            return false;
#else
    (void)block;
#endif
    return true;
}

/* Gives the memory back. Elsewhere than on Linux it goes with the segment. */
static void punch(const struct kv_block *block) {
#if defined(__linux__)
    const struct kv_segment *segment = block->segment;
    for (uint32_t i = 0; i < segment->geometry.buffers; i++)
        fallocate(segment->descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)place_of(block, i),
                  (off_t)kv_geometry_bytes(&segment->geometry, i));
#else
    (void)block;
#endif
}

/* Some free blocks next to each other. */
struct run {
    struct kv_segment *segment;
    uint32_t begin, count;
};

static struct run longest_run(const struct kv_store *store, const struct kv_geometry *geometry) {
    struct run longest = {0};
    for (struct kv_segment *segment = store->segments; segment != NULL; segment = segment->next) {
        if (segment->used == segment->block_count || !kv_geometry_equal(&segment->geometry, geometry))
            continue;
        for (uint32_t i = 0, count = 0; i < segment->block_count; i++) {
            count = segment->blocks[i].holders == 0 ? count + 1 : 0;
            if (count > longest.count)
                longest = (struct run){segment, i + 1 - count, count};
        }
    }
    return longest;
}

bool kv_blocks_adjoin(const struct kv_block *first, const struct kv_block *second) {
    return first->segment == second->segment && first->index + 1 == second->index;
}

static struct kv_block *find_free(const struct kv_store *store, const struct kv_geometry *geometry,
                                  const struct kv_block *after, uint32_t more) {
    if (after != NULL && after->index + 1 < after->segment->block_count &&
        after->segment->blocks[after->index + 1].holders == 0)
        return &after->segment->blocks[after->index + 1];
    struct run run = longest_run(store, geometry);
    if (run.count == 0 || (more >= run.count && run.count < run.segment->block_count))
        return NULL;
    /* In the middle of the room behind a block that is in use, whose session may want to go on. */
    bool middle = more == 0 && run.begin > 0;
    return &run.segment->blocks[run.begin + (middle ? run.count / 2 : 0)];
}

/* A segment without blocks in use goes, the memory for its bookkeeping too. */
static void drop_empty(struct kv_store *store, const struct kv_segment *segment) {
    for (struct kv_segment **link = &store->segments; *link != NULL; link = &(*link)->next) {
        if (*link != segment || segment->used > 0)
            continue;
        struct kv_segment *empty = *link;
        *link = empty->next;
        segment_free(empty);
        return;
    }
}

struct kv_block *kv_block_new(struct kv_store *store, const struct kv_geometry *geometry,
                              const struct kv_block *after, uint32_t more, struct calla_error *error) {
    struct kv_block *block = find_free(store, geometry, after, more);
    if (block == NULL) {
        struct kv_segment *segment = segment_new(geometry, error);
        if (segment == NULL)
            return NULL;
        segment->next = store->segments;
        store->segments = segment;
        block = &segment->blocks[0];
    }
    if (!reserve(block)) {
        error_set(error, CALLA_OUT_OF_MEMORY, "There is no memory for keys and values: %s.", strerror(errno));
        punch(block);
        drop_empty(store, block->segment);
        return NULL;
    }
    block->holders = 1;
    block->segment->used++;
    return block;
}

void kv_block_hold(struct kv_store *store, struct kv_block *block, bool snapshot) {
    block->holders++;
    if (snapshot && block->snapshots++ == 0)
        store->snapshot_bytes += block->segment->block_bytes;
}

void kv_block_release(struct kv_store *store, struct kv_block *block, bool snapshot) {
    if (snapshot && --block->snapshots == 0)
        store->snapshot_bytes -= block->segment->block_bytes;
    if (--block->holders > 0)
        return;
    punch(block);
    block->segment->used--;
    drop_empty(store, block->segment);
}

uint64_t kv_block_bytes(const struct kv_block *block) {
    return block->segment->block_bytes;
}

unsigned char *kv_block_data(const struct kv_block *block, uint32_t buffer) {
    return block->segment->base + place_of(block, buffer);
}

/* Makes a huge page of what lies at `address` and before, as far as the block completes one. Memory files
 * seldom get huge pages by themselves (they are off in shmem_enabled), but whoever asks for one gets it. A
 * range that is not all the file's, in order, is refused, which does no harm. */
static void join_pages(const struct kv_block *block, uint32_t buffer, void *address, size_t size) {
#if defined(__linux__)
#if !defined(MADV_COLLAPSE)
#define MADV_COLLAPSE 25
#endif
    uintptr_t begin = (uintptr_t)address / HUGE_PAGE * HUGE_PAGE;
    uintptr_t end = ((uintptr_t)address + size) / HUGE_PAGE * HUGE_PAGE;
    if (begin < end && ((uintptr_t)address - place_of(block, buffer)) % HUGE_PAGE == 0)
        madvise((unsigned char *)address - ((uintptr_t)address - begin), end - begin, MADV_COLLAPSE);
#else
    (void)block, (void)buffer, (void)address, (void)size;
#endif
}

bool kv_block_map(const struct kv_block *block, uint32_t buffer, void *address, struct calla_error *error) {
    size_t size = kv_geometry_bytes(&block->segment->geometry, buffer);
    if (size == 0)
        return true;
    if (mmap(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, block->segment->descriptor,
             (off_t)place_of(block, buffer)) == MAP_FAILED)
        return error_set(error, CALLA_OUT_OF_MEMORY, "Keys and values could not be mapped: %s.",
                         strerror(errno));
#if defined(MADV_HUGEPAGE)
    madvise(address, size, MADV_HUGEPAGE); /* where the system lets memory files have huge pages */
#endif
    join_pages(block, buffer, address, size);
    return true;
}

/* Ranges */

#if !defined(MAP_NORESERVE)
#define MAP_NORESERVE 0
#endif
#define RANGE_FLAGS (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

void *kv_range_new(size_t size, struct calla_error *error) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (size + page) / page * page;
    unsigned char *range = mmap(NULL, whole + HUGE_PAGE, PROT_READ, RANGE_FLAGS, -1, 0);
    if (range != MAP_FAILED) {
        /* From where a huge page can begin. */
        size_t before = (HUGE_PAGE - (uintptr_t)range % HUGE_PAGE) % HUGE_PAGE;
        if (before > 0)
            munmap(range, before);
        munmap(range + before + whole, HUGE_PAGE - before);
        return range + before;
    }
    error_set(error, CALLA_OUT_OF_MEMORY, "There are no addresses for %zu bytes of keys and values: %s.",
              size, strerror(errno));
    return NULL;
}

bool kv_range_clear(void *range, size_t size) {
    return size == 0 || mmap(range, size, PROT_READ, RANGE_FLAGS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

void kv_range_free(void *range, size_t size) {
    if (range != NULL)
        munmap(range, size + 1);
}
