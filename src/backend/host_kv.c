/* A session's keys and values, and snapshots of sessions.
 *
 * Blocks that lie wholly before a session's position are never written again, so a snapshot only counts
 * itself among their holders, and a session that goes on from it maps them. The rows of the last, partly
 * filled block are copied, as is the state. Whatever writes into a block that somebody else holds gets a copy
 * of it first. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backend/host.h"

/* Keys and values of a session */

bool host_kv_open(struct device_session *session, const struct session_layout *layout,
                  struct calla_error *error) {
    size_t *row_bytes = calloc(layout->kv_count + (size_t)1, sizeof *row_bytes);
    session->kv = calloc(layout->kv_count + (size_t)1, sizeof *session->kv);
    if (row_bytes == NULL || session->kv == NULL) {
        free(row_bytes);
        return error_memory(error, "a session", layout->kv_count * sizeof *session->kv);
    }
    session->kv_count = layout->kv_count;
    uint32_t rows = 0;
    for (uint32_t i = 0; i < layout->kv_count; i++) {
        struct buffer_shape row = layout->kv[i];
        row.rows = 1;
        row_bytes[i] = (size_t)buffer_shape_bytes(&row);
        rows = layout->kv[i].rows > rows ? layout->kv[i].rows : rows;
    }
    kv_geometry_make(&session->geometry, layout->kv_count, row_bytes);
    session->block_limit = rows / session->geometry.positions + (rows % session->geometry.positions > 0);
    session->blocks = calloc(session->block_limit + (size_t)1, sizeof *session->blocks);
    if (session->blocks == NULL)
        return error_memory(error, "a session", session->block_limit * sizeof *session->blocks);
    for (uint32_t i = 0; i < layout->kv_count; i++) {
        uint64_t size = (uint64_t)kv_geometry_bytes(&session->geometry, i) * session->block_limit;
        if (size > SIZE_MAX / 2)
            return error_memory(error, layout->kv[i].name, SIZE_MAX);
        session->kv[i].data = kv_range_new((size_t)size, error);
        if (session->kv[i].data == NULL)
            return false;
        session->kv[i].size = buffer_shape_bytes(&layout->kv[i]);
    }
    return true;
}

static size_t range_bytes(const struct device_session *session, uint32_t buffer, uint32_t blocks) {
    return kv_geometry_bytes(&session->geometry, buffer) * blocks;
}

static void count_mappings(struct device_session *session) {
    struct kv_store *store = &session->backend->blocks;
    uint64_t runs = session->block_count > 0;
    for (uint32_t i = 1; i < session->block_count; i++)
        runs += !kv_blocks_adjoin(session->blocks[i - 1], session->blocks[i]);
    store->mappings += runs * session->kv_count - session->mappings;
    session->mappings = runs * session->kv_count;
}

static void release_blocks(struct device_session *session) {
    for (uint32_t i = 0; i < session->block_count; i++)
        kv_block_release(&session->backend->blocks, session->blocks[i], false);
    session->block_count = 0;
    count_mappings(session);
}

bool host_kv_clear(struct device_session *session, struct calla_error *error) {
    for (uint32_t i = 0; i < session->kv_count; i++)
        if (!kv_range_clear(session->kv[i].data, range_bytes(session, i, session->block_count)))
            return error_set(error, CALLA_OUT_OF_MEMORY,
                             "A session's keys and values could not be unmapped.");
    release_blocks(session);
    return true;
}

void host_kv_close(struct device_session *session) {
    for (uint32_t i = 0; session->kv != NULL && i < session->kv_count; i++)
        kv_range_free(session->kv[i].data, range_bytes(session, i, session->block_limit));
    if (session->blocks != NULL)
        release_blocks(session);
    free(session->kv);
    free(session->blocks);
    free(session->geometry.row_bytes);
}

/* Lets the session have `block`, which it holds already, as its block number `index`. */
static bool map_block(struct device_session *session, uint32_t index, const struct kv_block *block,
                      struct calla_error *error) {
    for (uint32_t i = 0; i < session->kv_count; i++) {
        unsigned char *address = (unsigned char *)session->kv[i].data + range_bytes(session, i, index);
        if (!kv_block_map(block, i, address, error))
            return false;
    }
    return true;
}

static bool add_block(struct device_session *session, struct calla_error *error) {
    struct kv_store *store = &session->backend->blocks;
    uint32_t index = session->block_count;
    struct kv_block *block =
        kv_block_new(store, &session->geometry, index == 0 ? NULL : session->blocks[index - 1], 0, error);
    if (block == NULL)
        return false;
    /* It counts before it is mapped: what is mapped halfway must be cleared with the rest. */
    session->blocks[session->block_count++] = block;
    return map_block(session, index, block, error);
}

/* Replaces a block by a copy. `more`: see kv_block_new. */
static bool copy_block(struct device_session *session, uint32_t index, const struct kv_block *after,
                       uint32_t more, struct calla_error *error) {
    struct kv_store *store = &session->backend->blocks;
    struct kv_block *old = session->blocks[index];
    struct kv_block *copy = kv_block_new(store, &session->geometry, after, more, error);
    if (copy == NULL)
        return false;
    for (uint32_t i = 0; i < session->kv_count; i++)
        memcpy(kv_block_data(copy, i), kv_block_data(old, i), kv_geometry_bytes(&session->geometry, i));
    session->blocks[index] = copy;
    kv_block_release(store, old, false);
    return map_block(session, index, copy, error);
}

/* Where the sessions of the backend need too many mappings, puts the blocks of this one next to each other.
 * What it shared with snapshots it then has for itself. */
static bool bound_mappings(struct device_session *session, struct calla_error *error) {
    const struct kv_store *store = &session->backend->blocks;
    count_mappings(session);
    if (store->mappings <= (store->most_mappings > 0 ? store->most_mappings : KV_MAPPINGS) ||
        session->mappings <= session->kv_count)
        return true;
    const struct kv_block *after = NULL;
    for (uint32_t i = 0; i < session->block_count; i++) {
        if (!copy_block(session, i, after, 2 * (session->block_count - i), error))
            return false;
        after = session->blocks[i];
    }
    count_mappings(session);
    return true;
}

bool host_kv_prepare(struct device_session *session, uint64_t begin, uint64_t end,
                     struct calla_error *error) {
    uint64_t positions = session->geometry.positions;
    if (session->kv_count == 0 || begin >= end)
        return true;
    bool changes = false;
    for (uint64_t i = begin / positions; i < session->block_count && i * positions < end; i++) {
        if (session->blocks[i]->holders == 1)
            continue;
        changes = true;
        if (!copy_block(session, (uint32_t)i, NULL, 0, error))
            return false;
    }
    while (session->block_count < session->block_limit && session->block_count * positions < end) {
        changes = true;
        if (!add_block(session, error))
            return false;
    }
    return !changes || bound_mappings(session, error);
}

/* Snapshots */

struct device_snapshot {
    struct host_backend *backend;
    struct kv_geometry geometry; /* a copy */
    uint32_t positions;
    struct memory *state; /* [state_count] */
    struct memory *tail;  /* [geometry.buffers]: the rows after the last full block */
    uint32_t state_count, block_count;
    struct kv_block **blocks;
};

static uint32_t full_blocks(const struct device_session *session, uint32_t positions) {
    return positions / session->geometry.positions;
}

static uint32_t tail_rows(const struct kv_geometry *geometry, uint32_t positions) {
    return positions % geometry->positions;
}

static uint64_t own_bytes(const struct device_session *session, uint32_t positions) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < session->state_count; i++)
        bytes += session->state[i].size;
    for (uint32_t i = 0; i < session->kv_count; i++)
        bytes += session->geometry.row_bytes[i] * tail_rows(&session->geometry, positions);
    return bytes;
}

uint64_t host_snapshot_cost(const struct device_session *session, uint32_t positions) {
    uint64_t bytes = own_bytes(session, positions);
    for (uint32_t i = 0;
         session->kv_count > 0 && i < full_blocks(session, positions) && i < session->block_count; i++)
        if (session->blocks[i]->snapshots == 0)
            bytes += kv_block_bytes(session->blocks[i]);
    return bytes;
}

uint64_t host_snapshot_bytes(const struct backend *base) {
    const struct host_backend *backend = (const struct host_backend *)base;
    return backend->blocks.snapshot_bytes + backend->snapshot_bytes;
}

static uint64_t memories_bytes(const struct memory *memories, uint32_t count) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; memories != NULL && i < count; i++)
        bytes += memories[i].size;
    return bytes;
}

static struct memory *memories_copy(const struct memory *memories, uint32_t count,
                                    struct calla_error *error) {
    struct memory *copies = calloc(count + (size_t)1, sizeof *copies);
    if (copies == NULL)
        error_memory(error, "a snapshot", count * sizeof *copies);
    for (uint32_t i = 0; copies != NULL && i < count; i++) {
        copies[i].data = malloc((size_t)memories[i].size + 1);
        if (copies[i].data == NULL) {
            error_memory(error, "a snapshot", (size_t)memories[i].size);
            while (i-- > 0)
                free(copies[i].data);
            free(copies);
            return NULL;
        }
        copies[i].size = memories[i].size;
        memcpy(copies[i].data, memories[i].data, (size_t)memories[i].size);
    }
    return copies;
}

static void memories_free(struct memory *memories, uint32_t count) {
    for (uint32_t i = 0; memories != NULL && i < count; i++)
        free(memories[i].data);
    free(memories);
}

/* The rows of all KV buffers that lie in the block that is not full. */
static bool copy_tail(struct device_snapshot *snapshot, const struct device_session *session,
                      struct calla_error *error) {
    struct memory *rows = calloc(session->kv_count + (size_t)1, sizeof *rows);
    if (rows == NULL)
        return error_memory(error, "a snapshot", session->kv_count * sizeof *rows);
    for (uint32_t i = 0; i < session->kv_count; i++)
        rows[i] = (struct memory){
            .data = (unsigned char *)session->kv[i].data + range_bytes(session, i, snapshot->block_count),
            .size = session->geometry.row_bytes[i] * tail_rows(&session->geometry, snapshot->positions)};
    snapshot->tail = memories_copy(rows, session->kv_count, error);
    free(rows);
    return snapshot->tail != NULL;
}

static bool take(struct device_snapshot *snapshot, struct device_session *session,
                 struct calla_error *error) {
    uint32_t blocks = session->kv_count == 0 ? 0 : full_blocks(session, snapshot->positions);
    if (blocks > session->block_count)
        return error_set(error, CALLA_BAD_INPUT,
                         "A snapshot of %u positions was asked for; the session has %u.", snapshot->positions,
                         session->block_count * session->geometry.positions);
    size_t *row_bytes = calloc(session->kv_count + (size_t)1, sizeof *row_bytes);
    snapshot->blocks = calloc(blocks + (size_t)1, sizeof(struct kv_block *));
    snapshot->geometry = session->geometry;
    snapshot->geometry.row_bytes = row_bytes;
    if (snapshot->blocks == NULL || row_bytes == NULL)
        return error_memory(error, "a snapshot", blocks * sizeof(struct kv_block *));
    for (uint32_t i = 0; i < session->kv_count; i++)
        row_bytes[i] = session->geometry.row_bytes[i];
    for (; snapshot->block_count < blocks; snapshot->block_count++) {
        struct kv_block *block = session->blocks[snapshot->block_count];
        snapshot->blocks[snapshot->block_count] = block;
        kv_block_hold(&session->backend->blocks, block, true);
    }
    snapshot->state = memories_copy(session->state, session->state_count, error);
    return snapshot->state != NULL && copy_tail(snapshot, session, error);
}

struct device_snapshot *host_snapshot_take(struct device_session *session, uint32_t positions,
                                           struct calla_error *error) {
    struct device_snapshot *snapshot = calloc(1, sizeof *snapshot);
    if (snapshot == NULL) {
        error_memory(error, "a snapshot", sizeof *snapshot);
        return NULL;
    }
    snapshot->backend = session->backend;
    snapshot->positions = positions;
    snapshot->state_count = session->state_count;
    bool ok = take(snapshot, session, error);
    session->backend->snapshot_bytes += memories_bytes(snapshot->state, snapshot->state_count) +
                                        memories_bytes(snapshot->tail, session->kv_count);
    if (ok)
        return snapshot;
    host_snapshot_free(snapshot);
    return NULL;
}

void host_snapshot_free(struct device_snapshot *snapshot) {
    if (snapshot == NULL)
        return;
    uint32_t buffers = snapshot->geometry.buffers;
    snapshot->backend->snapshot_bytes -=
        memories_bytes(snapshot->state, snapshot->state_count) + memories_bytes(snapshot->tail, buffers);
    for (uint32_t i = 0; i < snapshot->block_count; i++)
        kv_block_release(&snapshot->backend->blocks, snapshot->blocks[i], true);
    memories_free(snapshot->state, snapshot->state_count);
    memories_free(snapshot->tail, buffers);
    free(snapshot->blocks);
    free(snapshot->geometry.row_bytes);
    free(snapshot);
}

static bool check_same_layout(const struct device_session *session, const struct device_snapshot *snapshot,
                              struct calla_error *error) {
    bool same = session->backend == snapshot->backend && session->state_count == snapshot->state_count &&
                kv_geometry_equal(&session->geometry, &snapshot->geometry);
    for (uint32_t i = 0; same && i < session->state_count; i++)
        same = session->state[i].size == snapshot->state[i].size;
    for (uint32_t i = 0; same && i < session->kv_count; i++)
        same = session->geometry.row_bytes[i] * snapshot->positions <= session->kv[i].size;
    return same ||
           error_set(error, CALLA_BAD_INPUT, "The snapshot of %u positions does not fit into this session.",
                     snapshot->positions);
}

bool host_snapshot_restore(struct device_session *session, const struct device_snapshot *snapshot,
                           struct calla_error *error) {
    if (!check_same_layout(session, snapshot, error) || !host_kv_clear(session, error))
        return false;
    session->resets++;
    for (uint32_t i = 0; i < snapshot->block_count; i++) {
        kv_block_hold(&session->backend->blocks, snapshot->blocks[i], false);
        session->blocks[session->block_count++] = snapshot->blocks[i];
        if (!map_block(session, i, snapshot->blocks[i], error))
            return false;
    }
    uint32_t rows = tail_rows(&session->geometry, snapshot->positions);
    if (!bound_mappings(session, error) ||
        !host_kv_prepare(session, snapshot->positions - rows, snapshot->positions, error))
        return false;
    for (uint32_t i = 0; i < session->kv_count; i++)
        if (rows > 0)
            memcpy((unsigned char *)session->kv[i].data + range_bytes(session, i, snapshot->block_count),
                   snapshot->tail[i].data, (size_t)snapshot->tail[i].size);
    for (uint32_t i = 0; i < session->state_count; i++)
        memcpy(session->state[i].data, snapshot->state[i].data, (size_t)session->state[i].size);
    return true;
}

bool host_snapshot_read(const struct device_snapshot *snapshot, enum space space, uint32_t buffer,
                        uint64_t offset, void *bytes, uint64_t size, struct calla_error *error) {
    bool kv = space == SPACE_KV && buffer < snapshot->geometry.buffers;
    if (!kv && !(space == SPACE_STATE && buffer < snapshot->state_count))
        return error_set(error, CALLA_BAD_INPUT, "A snapshot has no %s buffer %u.", space_name(space),
                         buffer);
    uint64_t block_bytes = kv ? kv_geometry_bytes(&snapshot->geometry, buffer) : 0;
    uint64_t all = kv ? snapshot->geometry.row_bytes[buffer] * (uint64_t)snapshot->positions
                      : snapshot->state[buffer].size;
    if (offset > all || size > all - offset)
        return error_set(error, CALLA_BAD_INPUT,
                         "Bytes %" PRIu64 " to %" PRIu64 " of %s buffer %u are not in the snapshot.", offset,
                         offset + size, space_name(space), buffer);
    if (!kv) {
        memcpy(bytes, (const unsigned char *)snapshot->state[buffer].data + offset, (size_t)size);
        return true;
    }
    unsigned char *out = bytes;
    while (size > 0) {
        uint64_t block = offset / block_bytes, within = offset % block_bytes;
        uint64_t piece = block_bytes - within < size ? block_bytes - within : size;
        const unsigned char *rows = block < snapshot->block_count
                                        ? kv_block_data(snapshot->blocks[block], buffer)
                                        : snapshot->tail[buffer].data;
        memcpy(out, rows + within, (size_t)piece);
        out += piece;
        offset += piece;
        size -= piece;
    }
    return true;
}
