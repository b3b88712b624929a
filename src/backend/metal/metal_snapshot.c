/* Snapshots of sessions: the recurrent state, copied, and the rows of keys and values in blocks of positions.
 *
 * A block never changes and is shared by all snapshots that have its rows in common. A session knows which
 * blocks its own rows are still equal to, so that neither taking nor restoring a snapshot copies them again.
 * The bytes lie in the processor's memory, which is the GPU's, and outside of what the GPU keeps resident. */
#include <stdlib.h>
#include <string.h>

#include "backend/binding.h"
#include "backend/metal/metal_backend.h"

#define BLOCK_POSITIONS 256

/* `rows` rows of each KV buffer, buffer after buffer. */
struct metal_kv_block {
    uint32_t holders;   /* sessions and snapshots */
    uint32_t snapshots; /* among them */
    uint32_t rows;
    uint64_t size;
    unsigned char bytes[];
};

struct metal_snapshot {
    struct metal_backend *backend;
    unsigned char *state; /* all states, one after the other */
    uint64_t *state_sizes, *kv_row_bytes;
    uint64_t state_bytes;
    struct metal_kv_block **blocks;
    uint32_t state_count, kv_count, positions, block_count;
};

static uint32_t blocks_of(uint64_t positions) {
    return (uint32_t)((positions + BLOCK_POSITIONS - 1) / BLOCK_POSITIONS);
}

static uint32_t rows_of(uint32_t block, uint32_t positions) {
    uint32_t left = positions - block * BLOCK_POSITIONS;
    return left < BLOCK_POSITIONS ? left : BLOCK_POSITIONS;
}

static void hold(struct metal_backend *backend, struct metal_kv_block *block, bool snapshot) {
    block->holders++;
    if (snapshot && block->snapshots++ == 0)
        backend->snapshot_bytes += block->size;
}

static void let_go(struct metal_backend *backend, struct metal_kv_block *block, bool snapshot) {
    if (block == NULL)
        return;
    if (snapshot && --block->snapshots == 0)
        backend->snapshot_bytes -= block->size;
    if (--block->holders == 0)
        free(block);
}

/* ---- What a session's rows are still equal to */

bool metal_kv_open(struct metal_session *session, const struct session_layout *layout,
                   struct calla_error *error) {
    uint32_t rows = layout->kv_count > 0 ? layout->kv[0].rows : 0;
    for (uint32_t i = 1; i < layout->kv_count; i++)
        rows = layout->kv[i].rows < rows ? layout->kv[i].rows : rows;
    session->block_limit = blocks_of(rows);
    session->blocks = calloc(session->block_limit + (size_t)1, sizeof *session->blocks);
    return session->blocks != NULL ||
           error_memory(error, "a session", session->block_limit * sizeof *session->blocks);
}

void metal_kv_changes(struct metal_session *session, uint64_t position) {
    for (uint64_t i = position / BLOCK_POSITIONS; i < session->block_limit; i++) {
        let_go(session->backend, session->blocks[i], false);
        session->blocks[i] = NULL;
    }
}

void metal_kv_close(struct metal_session *session) {
    if (session->blocks != NULL)
        metal_kv_changes(session, 0);
    free((void *)session->blocks);
}

static void keep(struct metal_session *session, uint32_t index, struct metal_kv_block *block) {
    hold(session->backend, block, false);
    let_go(session->backend, session->blocks[index], false);
    session->blocks[index] = block;
}

/* The block that the session's rows are equal to, if it has as many. */
static struct metal_kv_block *known(const struct metal_session *session, uint32_t index, uint32_t rows) {
    struct metal_kv_block *block = session->blocks[index];
    return block != NULL && block->rows == rows ? block : NULL;
}

/* ---- Costs */

static uint64_t row_bytes(const struct metal_session *session) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < session->kv_count; i++)
        bytes += session->kv_row_bytes[i];
    return bytes;
}

static uint64_t block_size(const struct metal_session *session, uint32_t rows) {
    return sizeof(struct metal_kv_block) + rows * row_bytes(session);
}

static uint64_t state_bytes(const struct metal_session *session) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < session->state_count; i++)
        bytes += session->state[i].size;
    return bytes;
}

uint64_t metal_snapshot_cost(const struct device_session *base, uint32_t positions) {
    const struct metal_session *session = (const struct metal_session *)base;
    uint64_t bytes = state_bytes(session);
    for (uint32_t i = 0; i < blocks_of(positions) && i < session->block_limit; i++) {
        const struct metal_kv_block *block = known(session, i, rows_of(i, positions));
        if (block == NULL || block->snapshots == 0)
            bytes += block_size(session, rows_of(i, positions));
    }
    return bytes;
}

uint64_t metal_snapshot_bytes(const struct backend *base) {
    return ((const struct metal_backend *)base)->snapshot_bytes;
}

/* ---- Taking */

void metal_snapshot_free(struct device_snapshot *base) {
    struct metal_snapshot *snapshot = (struct metal_snapshot *)base;
    if (snapshot == NULL)
        return;
    if (snapshot->state != NULL)
        snapshot->backend->snapshot_bytes -= snapshot->state_bytes;
    for (uint32_t i = 0; snapshot->blocks != NULL && i < snapshot->block_count; i++)
        let_go(snapshot->backend, snapshot->blocks[i], true);
    free((void *)snapshot->blocks);
    free(snapshot->state);
    free(snapshot->state_sizes);
    free(snapshot->kv_row_bytes);
    free(snapshot);
}

/* A copy of the session's rows. */
static struct metal_kv_block *copy_block(const struct metal_session *session, uint32_t index, uint32_t rows,
                                         struct calla_error *error) {
    uint64_t size = block_size(session, rows);
    struct metal_kv_block *block = malloc((size_t)size);
    if (block == NULL) {
        error_memory(error, "a snapshot", (size_t)size);
        return NULL;
    }
    *block = (struct metal_kv_block){.rows = rows, .size = size};
    unsigned char *next = block->bytes;
    for (uint32_t i = 0; i < session->kv_count; i++) {
        uint64_t first = session->kv_row_bytes[i] * index * BLOCK_POSITIONS;
        uint64_t bytes = session->kv_row_bytes[i] * rows;
        memcpy(next, metal_memory_bytes(&session->kv[i]) + first, (size_t)bytes);
        next += bytes;
    }
    return block;
}

static bool take(struct metal_snapshot *snapshot, struct metal_session *session, struct calla_error *error) {
    unsigned char *next = snapshot->state;
    for (uint32_t i = 0; i < session->state_count; i++) {
        snapshot->state_sizes[i] = session->state[i].size;
        memcpy(next, metal_memory_bytes(&session->state[i]), (size_t)session->state[i].size);
        next += session->state[i].size;
    }
    if (session->kv_count > 0)
        memcpy(snapshot->kv_row_bytes, session->kv_row_bytes,
               session->kv_count * sizeof *session->kv_row_bytes);
    for (uint32_t i = 0; i < snapshot->block_count; i++) {
        uint32_t rows = rows_of(i, snapshot->positions);
        struct metal_kv_block *block = known(session, i, rows);
        if (block == NULL && (block = copy_block(session, i, rows, error)) == NULL)
            return false;
        hold(session->backend, block, true);
        snapshot->blocks[i] = block;
        keep(session, i, block);
    }
    return true;
}

struct device_snapshot *metal_snapshot_take(struct device_session *base, uint32_t positions,
                                            struct calla_error *error) {
    struct metal_session *session = (struct metal_session *)base;
    if (!metal_session_idle(session, error))
        return NULL;
    for (uint32_t i = 0; i < session->kv_count; i++)
        if (session->kv_row_bytes[i] * positions > session->kv[i].size) {
            error_set(error, CALLA_BAD_INPUT,
                      "A snapshot of %u positions was asked for; the session has fewer.", positions);
            return NULL;
        }
    uint32_t blocks = session->kv_count > 0 ? blocks_of(positions) : 0;
    struct metal_snapshot *snapshot = calloc(1, sizeof *snapshot);
    if (snapshot != NULL)
        *snapshot = (struct metal_snapshot){
            .backend = session->backend,
            .state_bytes = state_bytes(session),
            .state_sizes = calloc(session->state_count + (size_t)1, sizeof *snapshot->state_sizes),
            .kv_row_bytes = calloc(session->kv_count + (size_t)1, sizeof *snapshot->kv_row_bytes),
            .blocks = calloc(blocks + (size_t)1, sizeof *snapshot->blocks),
            .state_count = session->state_count,
            .kv_count = session->kv_count,
            .positions = positions,
            .block_count = blocks};
    if (snapshot != NULL)
        snapshot->state = malloc((size_t)snapshot->state_bytes + 1);
    if (snapshot != NULL && snapshot->state != NULL) /* as metal_snapshot_free takes it off again */
        session->backend->snapshot_bytes += snapshot->state_bytes;
    if (snapshot == NULL || snapshot->state == NULL || snapshot->state_sizes == NULL ||
        snapshot->kv_row_bytes == NULL || snapshot->blocks == NULL)
        error_memory(error, "a snapshot", (size_t)state_bytes(session));
    else if (take(snapshot, session, error))
        return (struct device_snapshot *)snapshot;
    metal_snapshot_free((struct device_snapshot *)snapshot);
    return NULL;
}

/* ---- Restoring and reading */

static bool fits(const struct metal_snapshot *snapshot, const struct metal_session *session) {
    bool same = session->backend == snapshot->backend && session->state_count == snapshot->state_count &&
                session->kv_count == snapshot->kv_count && snapshot->block_count <= session->block_limit;
    for (uint32_t i = 0; same && i < session->state_count; i++)
        same = session->state[i].size == snapshot->state_sizes[i];
    for (uint32_t i = 0; same && i < session->kv_count; i++)
        same = session->kv_row_bytes[i] == snapshot->kv_row_bytes[i] &&
               session->kv_row_bytes[i] * snapshot->positions <= session->kv[i].size;
    return same;
}

bool metal_snapshot_restore(struct device_session *base, const struct device_snapshot *taken,
                            struct calla_error *error) {
    struct metal_session *session = (struct metal_session *)base;
    const struct metal_snapshot *snapshot = (const struct metal_snapshot *)taken;
    if (!metal_session_idle(session, error))
        return false;
    if (!fits(snapshot, session))
        return error_set(error, CALLA_BAD_INPUT,
                         "The snapshot of %u positions does not fit into this session.", snapshot->positions);
    metal_give_up(session);
    session->token_posted = false;
    const unsigned char *state = snapshot->state;
    for (uint32_t i = 0; i < session->state_count; i++) {
        memcpy(metal_memory_bytes(&session->state[i]), state, (size_t)session->state[i].size);
        state += session->state[i].size;
    }
    for (uint32_t i = 0; i < snapshot->block_count; i++) {
        struct metal_kv_block *block = snapshot->blocks[i];
        if (session->blocks[i] == block)
            continue;
        const unsigned char *next = block->bytes;
        for (uint32_t j = 0; j < session->kv_count; j++) {
            uint64_t first = session->kv_row_bytes[j] * i * BLOCK_POSITIONS;
            uint64_t bytes = session->kv_row_bytes[j] * block->rows;
            memcpy(metal_memory_bytes(&session->kv[j]) + first, next, (size_t)bytes);
            next += bytes;
        }
        keep(session, i, block);
    }
    return true;
}

/* Bytes [offset, offset + size) of KV buffer `buffer`, block after block. */
static void read_kv(const struct metal_snapshot *snapshot, uint32_t buffer, uint64_t offset,
                    unsigned char *out, uint64_t size) {
    uint64_t row = snapshot->kv_row_bytes[buffer], each = row * BLOCK_POSITIONS, before = 0;
    for (uint32_t i = 0; i < buffer; i++)
        before += snapshot->kv_row_bytes[i];
    while (size > 0) {
        const struct metal_kv_block *block = snapshot->blocks[offset / each];
        uint64_t within = offset % each, here = row * block->rows - within;
        here = here < size ? here : size;
        memcpy(out, block->bytes + before * block->rows + within, (size_t)here);
        out += here;
        offset += here;
        size -= here;
    }
}

bool metal_snapshot_read(const struct device_snapshot *base, enum space space, uint32_t buffer,
                         uint64_t offset, void *bytes, uint64_t size, struct calla_error *error) {
    const struct metal_snapshot *snapshot = (const struct metal_snapshot *)base;
    bool kv = space == SPACE_KV && buffer < snapshot->kv_count;
    if (!kv && !(space == SPACE_STATE && buffer < snapshot->state_count))
        return error_set(error, CALLA_BAD_INPUT, "A snapshot has no %s buffer %u.", space_name(space),
                         buffer);
    uint64_t whole =
        kv ? snapshot->kv_row_bytes[buffer] * snapshot->positions : snapshot->state_sizes[buffer];
    if (offset > whole || size > whole - offset)
        return binding_not_in_session(space, buffer, offset, size, error);
    if (kv) {
        read_kv(snapshot, buffer, offset, bytes, size);
        return true;
    }
    uint64_t before = 0;
    for (uint32_t i = 0; i < buffer; i++)
        before += snapshot->state_sizes[i];
    memcpy(bytes, snapshot->state + before + offset, (size_t)size);
    return true;
}
