/* Mapping the weights in place. The pages are brought in before the first token needs them, block by block in
 * file order, so that loading shows its progress and the first token is as fast as the others.
 *
 * A token reads weights all over a map of many gigabytes, and with pages of 4 KiB each of them costs the
 * processor a walk through page tables that do not fit its caches either. Where the system keeps files in
 * larger pages on request, they are requested before the file is read. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/system.h"
#include "model/weights.h"

#define BLOCK ((uint64_t)32 << 20)

static bool file_unchanged(const struct file *file, struct calla_error *error) {
    struct stat status;
    if (fstat(file->descriptor, &status) == 0 && (uint64_t)status.st_size == file->size)
        return true;
    return error_set(error, CALLA_IO, "%s has changed its size since it was opened.", file->path);
}

static bool file_used(const struct weights *weights, uint32_t file) {
    for (uint32_t i = 0; i < weights->table.count; i++)
        for (uint32_t j = 0; j < weights->table.weights[i].part_count; j++)
            if (weights->table.weights[i].parts[j].file == file)
                return true;
    return false;
}

static uint64_t block_count(const struct file *file) {
    return (file->size + BLOCK - 1) / BLOCK;
}

/* Marks the blocks of every file in which weights lie; first[i] is the index of file i's first block. */
static void mark_blocks(const struct weights *weights, const uint64_t *first, bool *needed) {
    for (uint32_t i = 0; i < weights->table.count; i++) {
        const struct weight *weight = &weights->table.weights[i];
        for (uint32_t j = 0; j < weight->part_count; j++) {
            const struct weight_part *part = &weight->parts[j];
            for (uint64_t block = part->offset / BLOCK; block <= (part->offset + part->bytes - 1) / BLOCK;
                 block++)
                needed[first[part->file] + block] = true;
        }
    }
}

/* Brings a block's pages in; false on a read error. An older system can only touch the pages, where a read
 * error would end the process with SIGBUS. */
static bool populate(const uint8_t *block, size_t size) {
#ifdef MADV_POPULATE_READ
    void *address = (void *)(uintptr_t)block;
    for (;;) {
        if (madvise(address, size, MADV_POPULATE_READ) == 0)
            return true;
        if (errno == EINVAL || errno == ENOSYS)
            break;
        if (errno != EINTR && errno != EAGAIN)
            return false;
    }
#endif
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < size; i += page)
        (void)*(const volatile uint8_t *)(block + i);
    return true;
}

/* Keeps the disk busy: `left` bytes from `start` to the end of the map. Without large pages, this block and
 * the next are asked for; asking so would bring small pages in, and reading large ones asks for much anyway.
 */
static void read_ahead(const uint8_t *start, uint64_t left) {
    void *address = (void *)(uintptr_t)start;
#ifdef MADV_HUGEPAGE
    if (madvise(address, (size_t)(left < BLOCK ? left : BLOCK), MADV_HUGEPAGE) == 0)
        return;
#endif
    madvise(address, (size_t)(left < 2 * BLOCK ? left : 2 * BLOCK), MADV_WILLNEED);
}

static bool populate_file(const struct weights *weights, uint32_t file, const bool *needed, uint64_t *done,
                          uint64_t total, const struct calla_progress *progress, struct calla_error *error) {
    uint64_t size = weights->files[file].size, blocks = block_count(&weights->files[file]);
    for (uint64_t block = 0; block < blocks; block++) {
        if (!needed[block])
            continue;
        const uint8_t *start = weights->maps[file] + block * BLOCK;
        uint64_t length = size - block * BLOCK < BLOCK ? size - block * BLOCK : BLOCK;
        read_ahead(start, size - block * BLOCK);
        if (!populate(start, (size_t)length))
            return error_set(error, CALLA_IO, "%s cannot be read: %s.", weights->files[file].path,
                             strerror(errno));
        *done += length;
        if (progress != NULL && progress->report != NULL &&
            !progress->report(progress->user, "reading weights", *done < total ? *done : total, total))
            return error_set(error, CALLA_CANCELLED, "Reading the weights was cancelled.");
    }
    return true;
}

/* Bytes of the needed blocks. */
static uint64_t needed_bytes(const struct weights *weights, const uint64_t *first, const bool *needed) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < weights->file_count; i++)
        for (uint64_t block = 0; block < block_count(&weights->files[i]); block++)
            if (needed[first[i] + block]) {
                uint64_t rest = weights->files[i].size - block * BLOCK;
                total += rest < BLOCK ? rest : BLOCK;
            }
    return total;
}

static bool populate_all(const struct weights *weights, const struct calla_progress *progress,
                         struct calla_error *error) {
    uint64_t blocks = 0;
    uint64_t *first = calloc(weights->file_count, sizeof *first);
    if (first == NULL)
        return error_memory(error, "reading weights", weights->file_count * sizeof *first);
    for (uint32_t i = 0; i < weights->file_count; i++) {
        first[i] = blocks;
        blocks += block_count(&weights->files[i]);
    }
    bool *needed = calloc((size_t)blocks, sizeof *needed);
    if (needed == NULL) {
        free(first);
        return error_memory(error, "reading weights", (size_t)blocks);
    }
    mark_blocks(weights, first, needed);
    uint64_t done = 0, total = needed_bytes(weights, first, needed);
    bool ok = true;
    for (uint32_t i = 0; i < weights->file_count && ok; i++)
        if (weights->maps[i] != NULL)
            ok = populate_file(weights, i, needed + first[i], &done, total, progress, error);
    free(needed);
    free(first);
    return ok;
}

bool weights_map(struct weights *weights, const struct calla_progress *progress, struct calla_error *error) {
    if (weights->maps != NULL)
        return true;
    const uint8_t **maps = calloc(weights->file_count, sizeof *maps);
    if (maps == NULL)
        return error_memory(error, "maps of files", weights->file_count * sizeof *maps);
    weights->maps = maps;
    bool ok = true;
    for (uint32_t i = 0; i < weights->file_count && ok; i++)
        if (file_used(weights, i))
            ok = file_unchanged(&weights->files[i], error) &&
                 (maps[i] = file_map(&weights->files[i], error)) != NULL;
    /* With less memory than weights, pages read now would only push each other out. */
    uint64_t memory = system_memory();
    if (ok && (memory == 0 || weights->bytes < memory))
        ok = populate_all(weights, progress, error);
    if (!ok) {
        for (uint32_t i = 0; i < weights->file_count; i++)
            file_unmap(maps[i], weights->files[i].size);
        free((void *)maps);
        weights->maps = NULL;
    }
    return ok;
}
