/* A session's buffers, and the ways into and out of them: the processor copies, once the commands that the
 * session has committed have run. */
#include "backend/binding.h"
#include "backend/metal/metal_backend.h"

#include <stdlib.h>
#include <string.h>

#define SLOT_BYTES METAL_ALIGNMENT

const struct metal_memory *metal_session_memory(const struct metal_session *session, enum space space,
                                                uint32_t buffer) {
    switch (space) {
    case SPACE_STATE:
        return buffer < session->state_count ? &session->state[buffer] : NULL;
    case SPACE_KV:
        return buffer < session->kv_count ? &session->kv[buffer] : NULL;
    case SPACE_STEP:
        return buffer < STEP_BUFFER_COUNT ? &session->step[buffer] : NULL;
    default:
        return NULL;
    }
}

/* ---- Errors and waiting */

bool metal_session_usable(const struct metal_session *session, struct calla_error *error) {
    if (!metal_usable(session->backend, error))
        return false;
    if (session->lost.status == CALLA_OK)
        return true;
    return error_set(error, session->lost.status, "%s", session->lost.message);
}

bool metal_session_lose(struct metal_session *session, const struct calla_error *why) {
    struct metal_backend *backend = session->backend;
    if (session->lost.status == CALLA_OK)
        session->lost = *why;
    if (metal_device_lost(backend->device) && backend->lost.status == CALLA_OK)
        error_set(&backend->lost, CALLA_DEVICE, "The GPU %s takes no more work: %s Start the program again.",
                  backend->facts->name, why->message);
    return false;
}

bool metal_session_wait(struct metal_session *session, uint32_t turn, struct calla_error *error) {
    struct calla_error why = {0};
    if (session->running[turn]) {
        session->running[turn] = false;
        if (!metal_commands_wait(session->commands[turn], &why))
            metal_session_lose(session, &why);
    }
    return metal_session_usable(session, error);
}

/* The turn to be used next is the one that was committed first. */
bool metal_session_wait_all(struct metal_session *session, struct calla_error *error) {
    bool first = metal_session_wait(session, session->turn, error);
    return metal_session_wait(session, 1 - session->turn, first ? error : NULL) && first;
}

static int32_t *integers(const struct metal_memory *memory) {
    return (int32_t *)(void *)metal_memory_bytes(memory);
}

/* What a step changes where it is: the record, the token, its count. A row of the cache beyond the position
 * means nothing; nor does the row of a convolution's ring, which holds one more than are read. */
static void undo_step(struct metal_session *session) {
    int32_t drawn = *integers(&session->token_slots[1 - session->turn]);
    memcpy(metal_memory_bytes(&session->step[STEP_RECORD]), &session->record, sizeof session->record);
    *integers(&session->step[STEP_TOKENS]) = *integers(&session->token_slots[session->token_turn]);
    if (drawn >= 0)
        integers(&session->step[STEP_COUNTS])[drawn]--;
}

bool metal_session_idle(struct metal_session *session, struct calla_error *error) {
    bool ok = metal_session_wait_all(session, error);
    if (ok && session->ahead != NULL)
        undo_step(session);
    session->ahead = NULL;
    return ok;
}

/* ---- Opening and closing */

static uint64_t bytes_of(const struct buffer_shape *shapes, uint32_t count) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += metal_place(buffer_shape_bytes(&shapes[i]));
    return bytes;
}

/* Gives buffers their places from `*offset` on. */
static void lay_out(struct metal_memory *memories, const struct buffer_shape *shapes, uint32_t count,
                    struct metal_buffer *buffer, uint64_t *offset) {
    for (uint32_t i = 0; i < count; i++) {
        memories[i] = (struct metal_memory){
            .buffer = buffer, .offset = *offset, .size = buffer_shape_bytes(&shapes[i])};
        *offset += metal_place(memories[i].size);
    }
}

/* A buffer each for keys and values, which are long; one for all else. */
static bool allocate(struct metal_session *session, const struct session_layout *layout,
                     struct calla_error *error) {
    static const char *const what = "a session (a shorter context needs less)";
    bool twice = session->other_state != NULL;
    uint64_t states = bytes_of(layout->state, layout->state_count);
    uint64_t logits = layout->step[STEP_LOGITS].columns * sizeof(float);
    uint64_t small = 2 * SLOT_BYTES + states + bytes_of(layout->step, STEP_BUFFER_COUNT) +
                     (twice ? states + metal_place(logits) : 0);
    session->small = metal_allocate(session->backend, small, what, error);
    if (session->small == NULL)
        return false;
    uint64_t offset = 0;
    for (int i = 0; i < 2; i++, offset += SLOT_BYTES)
        session->token_slots[i] = (struct metal_memory){session->small, offset, sizeof(int32_t)};
    lay_out(session->state, layout->state, layout->state_count, session->small, &offset);
    lay_out(session->step, layout->step, STEP_BUFFER_COUNT, session->small, &offset);
    if (twice) {
        lay_out(session->other_state, layout->state, layout->state_count, session->small, &offset);
        session->other_logits = (struct metal_memory){session->small, offset, logits};
    }
    for (uint32_t i = 0; i < layout->kv_count; i++) {
        uint64_t size = buffer_shape_bytes(&layout->kv[i]);
        session->kv_buffers[i] = metal_allocate(session->backend, size, what, error);
        if (session->kv_buffers[i] == NULL)
            return false;
        session->kv[i] = (struct metal_memory){session->kv_buffers[i], 0, size};
        session->kv_row_bytes[i] = dtype_row_bytes(layout->kv[i].dtype, layout->kv[i].columns);
    }
    for (int i = 0; i < 2; i++) {
        session->commands[i] =
            metal_commands_new(session->backend->device, i == 0 ? "even step" : "odd step", error);
        if (session->commands[i] == NULL)
            return false;
    }
    return true;
}

struct device_session *metal_session_open(struct backend *base, const struct session_layout *layout,
                                          struct calla_error *error) {
    struct metal_backend *backend = (struct metal_backend *)base;
    if (!metal_usable(backend, error))
        return NULL;
    struct metal_session *session = calloc(1, sizeof *session);
    size_t kv = layout->kv_count + (size_t)1, count = 2 * (size_t)layout->state_count + kv;
    struct metal_memory *memories = calloc(count, sizeof *memories);
    struct metal_buffer **buffers = calloc(kv, sizeof *buffers);
    uint64_t *row_bytes = calloc(kv, sizeof *row_bytes);
    if (session == NULL || memories == NULL || buffers == NULL || row_bytes == NULL) {
        error_memory(error, "a session", count * sizeof *memories);
        free(session);
        free(memories);
        free((void *)buffers);
        free(row_bytes);
        return NULL;
    }
    *session = (struct metal_session){
        .backend = backend,
        .next = backend->sessions,
        .state = memories,
        .kv = memories + 2 * (size_t)layout->state_count,
        .other_state = backend->policy.token_on_device ? memories + layout->state_count : NULL,
        .kv_buffers = buffers,
        .kv_row_bytes = row_bytes,
        .state_count = layout->state_count,
        .kv_count = layout->kv_count};
    backend->sessions = session;
    if (allocate(session, layout, error) && metal_kv_open(session, layout, error))
        return (struct device_session *)session;
    metal_session_close((struct device_session *)session);
    return NULL;
}

void metal_session_close(struct device_session *base) {
    struct metal_session *session = (struct metal_session *)base;
    if (session == NULL)
        return;
    struct metal_backend *backend = session->backend;
    metal_session_idle(session, NULL);
    metal_give_up(session);
    struct metal_session **place = &backend->sessions;
    while (*place != session)
        place = &(*place)->next;
    *place = session->next;
    metal_kv_close(session);
    for (int i = 0; i < 2; i++)
        metal_commands_free(session->commands[i]);
    for (uint32_t i = 0; i < session->kv_count; i++)
        metal_release(backend, session->kv_buffers[i]);
    metal_release(backend, session->small);
    free((void *)session->kv_buffers);
    free(session->kv_row_bytes);
    free(session->state);
    free(session);
}

/* ---- In and out */

/* The bytes [offset, offset + size) of a session's buffer, when nothing runs that uses them. */
static unsigned char *session_bytes(struct metal_session *session, enum space space, uint32_t buffer,
                                    uint64_t offset, uint64_t size, struct calla_error *error) {
    if (!metal_session_idle(session, error))
        return NULL;
    const struct metal_memory *memory = metal_session_memory(session, space, buffer);
    if (memory != NULL && offset <= memory->size && size <= memory->size - offset)
        return metal_memory_bytes(memory) + offset;
    binding_not_in_session(space, buffer, offset, size, error);
    return NULL;
}

bool metal_write(struct device_session *base, enum space space, uint32_t buffer, uint64_t offset,
                 const void *bytes, uint64_t size, struct calla_error *error) {
    struct metal_session *session = (struct metal_session *)base;
    unsigned char *target = session_bytes(session, space, buffer, offset, size, error);
    if (target == NULL || size == 0)
        return target != NULL;
    if (space == SPACE_STEP && buffer == STEP_RECORD && offset < sizeof session->record) {
        uint64_t rest = sizeof session->record - offset;
        memcpy((char *)&session->record + offset, bytes, (size_t)(size < rest ? size : rest));
    }
    if (space == SPACE_KV)
        metal_kv_changes(session, offset / session->kv_row_bytes[buffer]);
    session->token_posted &= !(space == SPACE_STEP && buffer == STEP_TOKENS);
    memcpy(target, bytes, (size_t)size);
    return true;
}

bool metal_read(struct device_session *base, enum space space, uint32_t buffer, uint64_t offset, void *bytes,
                uint64_t size, struct calla_error *error) {
    struct metal_session *session = (struct metal_session *)base;
    bool token = session->token_posted && space == SPACE_STEP && buffer == STEP_TOKENS && offset == 0 &&
                 size == sizeof(int32_t);
    if (token) {
        if (!metal_session_wait(session, session->token_turn, error))
            return false;
        memcpy(bytes, metal_memory_bytes(&session->token_slots[session->token_turn]), (size_t)size);
        return true;
    }
    const unsigned char *source = session_bytes(session, space, buffer, offset, size, error);
    if (source == NULL)
        return false;
    memcpy(bytes, source, (size_t)size);
    return true;
}

bool metal_reset(struct device_session *base, struct calla_error *error) {
    struct metal_session *session = (struct metal_session *)base;
    metal_session_idle(session, NULL);
    if (!metal_usable(session->backend, error))
        return false;
    metal_give_up(session);
    session->lost = (struct calla_error){0};
    session->resets++;
    session->token_posted = false;
    metal_kv_changes(session, 0);
    for (uint32_t i = 0; i < session->state_count; i++)
        memset(metal_memory_bytes(&session->state[i]), 0, (size_t)session->state[i].size);
    return true;
}
