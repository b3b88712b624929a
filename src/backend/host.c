#include "backend/host.h"

#include <stdlib.h>
#include <string.h>

#include "backend/binding.h"
#include "base/system.h"
#include "plan/op_check.h"

struct backend *host_open(const struct backend_class *class, size_t size, int threads,
                          struct calla_error *error) {
    struct host_backend *backend = calloc(1, size);
    if (backend == NULL) {
        error_memory(error, "a backend", size);
        return NULL;
    }
    backend->base.class = class;
    backend->threads = threads_open(threads, error);
    if (backend->threads == NULL) {
        free(backend);
        return NULL;
    }
    size_t count = (size_t)threads_count(backend->threads);
    backend->workspaces = calloc(count, sizeof *backend->workspaces);
    if (backend->workspaces == NULL) {
        error_memory(error, "a backend", count * sizeof *backend->workspaces);
        host_close(&backend->base);
        return NULL;
    }
    return &backend->base;
}

void host_close(struct backend *base) {
    if (base == NULL)
        return;
    struct host_backend *backend = (struct host_backend *)base;
    for (int i = 0; backend->workspaces != NULL && i < threads_count(backend->threads); i++)
        free(backend->workspaces[i].data);
    free(backend->workspaces);
    free(backend->scratch[0].data);
    free(backend->scratch[1].data);
    threads_close(backend->threads);
    kv_store_close(&backend->blocks);
    free(backend);
}

int host_threads(const struct backend *base) {
    return threads_count(((const struct host_backend *)base)->threads);
}

bool host_load(struct backend *base, struct weights *weights, const struct calla_progress *progress,
               struct calla_error *error) {
    struct host_backend *backend = (struct host_backend *)base;
    if (!weights_map(weights, progress, error))
        return false;
    backend->weights = weights;
    return true;
}

/* Zeroed memory; with `whole` all of it will be used. */
static bool memory_new(struct memory *memory, uint64_t size, bool whole, const char *what,
                       struct calla_error *error) {
    memory->size = size;
    if (size >= SIZE_MAX)
        memory->data = NULL;
    else if (!whole || size == 0)
        memory->data = calloc(1, (size_t)size + 1);
    else if ((memory->data = system_allocate((size_t)size)) != NULL)
        memset(memory->data, 0, (size_t)size);
    return memory->data != NULL || error_memory(error, what, (size_t)size);
}

bool memory_reserve(struct memory *memory, size_t size, const char *what, struct calla_error *error) {
    if (size <= memory->size)
        return true;
    void *data = system_allocate(size);
    if (data == NULL)
        return error_memory(error, what, size); /* programs that work in what there is go on to */
    free(memory->data);
    *memory = (struct memory){.data = data, .size = size};
    return true;
}

bool host_reserve_workspaces(struct host_backend *backend, size_t size, struct calla_error *error) {
    for (int i = 0; i < threads_count(backend->threads); i++)
        if (!memory_reserve(&backend->workspaces[i], size, "workspace", error))
            return false;
    return true;
}

static struct memory *memories_new(const struct buffer_shape *shapes, uint32_t count, bool whole,
                                   struct calla_error *error) {
    struct memory *memories = calloc(count + (size_t)1, sizeof *memories);
    if (memories == NULL) {
        error_memory(error, "a session", count * sizeof *memories);
        return NULL;
    }
    for (uint32_t i = 0; i < count; i++)
        if (!memory_new(&memories[i], buffer_shape_bytes(&shapes[i]), whole, shapes[i].name, error)) {
            while (i-- > 0)
                free(memories[i].data);
            free(memories);
            return NULL;
        }
    return memories;
}

static void memories_free(struct memory *memories, uint32_t count) {
    for (uint32_t i = 0; memories != NULL && i < count; i++)
        free(memories[i].data);
    free(memories);
}

struct device_session *host_session_open(struct backend *base, const struct session_layout *layout,
                                         struct calla_error *error) {
    struct device_session *session = calloc(1, sizeof *session);
    if (session == NULL) {
        error_memory(error, "a session", sizeof *session);
        return NULL;
    }
    session->backend = (struct host_backend *)base;
    session->state_count = layout->state_count;
    session->state = memories_new(layout->state, layout->state_count, true, error);
    if (session->state != NULL && host_kv_open(session, layout, error))
        session->step = memories_new(layout->step, STEP_BUFFER_COUNT, false, error);
    if (session->step != NULL)
        return session;
    host_session_close(session);
    return NULL;
}

void host_session_close(struct device_session *session) {
    if (session == NULL)
        return;
    memories_free(session->state, session->state_count);
    host_kv_close(session);
    memories_free(session->step, STEP_BUFFER_COUNT);
    free(session);
}

/* A session's buffer, NULL when there is none of that number. */
static struct memory *session_memory(struct device_session *session, enum space space, uint32_t buffer) {
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

/* The bytes [offset, offset + size) of a session's buffer. */
static unsigned char *session_bytes(struct device_session *session, enum space space, uint32_t buffer,
                                    uint64_t offset, uint64_t size, struct calla_error *error) {
    struct memory *memory = session_memory(session, space, buffer);
    if (memory != NULL && offset <= memory->size && size <= memory->size - offset)
        return (unsigned char *)memory->data + offset;
    binding_not_in_session(space, buffer, offset, size, error);
    return NULL;
}

bool host_write(struct device_session *session, enum space space, uint32_t buffer, uint64_t offset,
                const void *bytes, uint64_t size, struct calla_error *error) {
    unsigned char *target = session_bytes(session, space, buffer, offset, size, error);
    if (target == NULL || size == 0)
        return target != NULL;
    if (space == SPACE_KV) {
        uint64_t row = session->geometry.row_bytes[buffer];
        if (!host_kv_prepare(session, offset / row, (offset + size + row - 1) / row, error))
            return false;
    }
    memcpy(target, bytes, (size_t)size);
    return true;
}

bool host_read(struct device_session *session, enum space space, uint32_t buffer, uint64_t offset,
               void *bytes, uint64_t size, struct calla_error *error) {
    const unsigned char *source = session_bytes(session, space, buffer, offset, size, error);
    if (source != NULL && size > 0)
        memcpy(bytes, source, (size_t)size);
    return source != NULL;
}

bool host_reset(struct device_session *session, struct calla_error *error) {
    session->resets++;
    for (uint32_t i = 0; i < session->state_count; i++)
        memset(session->state[i].data, 0, (size_t)session->state[i].size);
    return host_kv_clear(session, error);
}

/* A weight as a view of the mapped files. */
static bool bind_weight(struct view *view, const struct operand *operand,
                        const struct host_backend *backend) {
    const struct weight *weight = binding_weight(operand, backend->weights);
    if (weight == NULL)
        return false;
    view->bytes = weights_part(backend->weights, operand->buffer, 0);
    if (weight->part_count == 3) {
        view->scales = weights_part(backend->weights, operand->buffer, 1);
        view->biases = weights_part(backend->weights, operand->buffer, 2);
        view->scale_dtype = weight->parts[1].dtype;
        view->bias_dtype = weight->parts[2].dtype;
    }
    return true;
}

static bool bind_memory(struct view *view, const struct operand *operand, const struct memory *memory) {
    if (memory == NULL || !binding_inside(operand, memory->size))
        return false;
    view->data = (unsigned char *)memory->data + operand->offset;
    view->bytes = view->data;
    return true;
}

/* Fills the views of one op whose operands op_check has passed. */
static bool bind(struct bound_op *bound, struct device_session *session, const struct memory *scratch,
                 uint32_t scratch_count, struct calla_error *error) {
    for (uint32_t i = 0; i < bound->op.operand_count; i++) {
        const struct operand *operand = &bound->op.operands[i];
        struct view *view = &bound->views[i];
        *view = (struct view){.dtype = (enum dtype)operand->dtype,
                              .rows = operand->rows,
                              .columns = operand->columns,
                              .stride = operand->stride};
        bool inside;
        if (operand->space == SPACE_WEIGHT)
            inside = bind_weight(view, operand, session->backend);
        else if (operand->space == SPACE_SCRATCH)
            inside = bind_memory(view, operand,
                                 operand->buffer < scratch_count ? &scratch[operand->buffer] : NULL);
        else
            inside = bind_memory(view, operand,
                                 session_memory(session, (enum space)operand->space, operand->buffer));
        if (!inside)
            return binding_refuse(&bound->op, i, error);
    }
    return true;
}

/* Bytes that a scratch buffer takes: the next one begins on a cache line, and is no neighbour in the same
 * one. */
static size_t scratch_place(uint64_t bytes) {
    return ((size_t)bytes + 127) / 64 * 64;
}

bool host_moves_large_scratch(const struct host_backend *backend, const struct plan *plan) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < plan->scratch_count; i++) {
        uint64_t more = buffer_shape_bytes(&plan->scratch[i]);
        if (more > SIZE_MAX / 2 || bytes > SIZE_MAX / 2)
            return false; /* it will not be compiled */
        bytes += scratch_place(more);
    }
    return bytes > HOST_SMALL_SCRATCH && bytes > backend->scratch[true].size;
}

static struct memory *scratch_of(const struct program *program, struct host_backend *backend) {
    return &backend->scratch[program_is_large(program)];
}

/* Binds all ops to where the backend's scratch memory is now. */
static bool bind_ops(struct program *program, struct device_session *session, struct calla_error *error) {
    const struct memory *scratch = scratch_of(program, session->backend);
    size_t offset = 0;
    for (uint32_t i = 0; i < program->scratch_count; i++) {
        program->scratch[i].data = (unsigned char *)scratch->data + offset;
        offset += scratch_place(program->scratch[i].size);
    }
    for (uint32_t i = 0; i < program->op_count; i++)
        if (!bind(&program->ops[i], session, program->scratch, program->scratch_count, error))
            return false;
    program->scratch_base = scratch->data;
    return true;
}

/* The sizes of the plan's scratch buffers, and memory for them. */
static bool lay_out_scratch(struct program *program, const struct plan *plan, struct host_backend *backend,
                            struct calla_error *error) {
    for (uint32_t i = 0; i < plan->scratch_count; i++) {
        uint64_t bytes = buffer_shape_bytes(&plan->scratch[i]);
        if (bytes > SIZE_MAX / 2 || program->scratch_bytes > SIZE_MAX / 2)
            return error_memory(error, plan->scratch[i].name, SIZE_MAX);
        program->scratch[i].size = bytes;
        program->scratch_bytes += scratch_place(bytes);
    }
    program->scratch_count = plan->scratch_count;
    return memory_reserve(scratch_of(program, backend), program->scratch_bytes, "scratch memory", error);
}

static bool check_ops(struct program *program, const struct plan *plan, struct calla_error *error) {
    for (uint32_t i = 0; i < plan->op_count; i++) {
        program->ops[i].op = plan->ops[i];
        if (!op_check(&program->ops[i].op, error))
            return false;
    }
    program->op_count = plan->op_count;
    return true;
}

struct program *host_compile(struct device_session *session, const struct plan *plan, size_t size,
                             struct calla_error *error) {
    struct program *program = calloc(1, size);
    if (program == NULL) {
        error_memory(error, "a program", size);
        return NULL;
    }
    program->ops = calloc(plan->op_count + (size_t)1, sizeof *program->ops);
    program->scratch = calloc(plan->scratch_count + (size_t)1, sizeof *program->scratch);
    if (program->ops == NULL || program->scratch == NULL)
        error_memory(error, "a program", plan->op_count * sizeof *program->ops);
    else if (check_ops(program, plan, error) && lay_out_scratch(program, plan, session->backend, error) &&
             bind_ops(program, session, error))
        return program;
    host_program_free(program);
    return NULL;
}

void host_program_free(struct program *program) {
    if (program == NULL)
        return;
    free(program->scratch);
    free(program->ops);
    free(program);
}

/* Whether the cache has room for the rows of every op that reads or writes it; gives it the memory. */
static bool prepare_position(struct device_session *session, const struct program *program,
                             struct calla_error *error) {
    uint64_t begin = UINT64_MAX, end = 0;
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct bound_op *bound = &program->ops[i];
        uint64_t rows, limit;
        if (!binding_cache_rows(&bound->op, &rows, &limit))
            continue;
        uint32_t position = record_of(&bound->views[0])->position;
        if (position + rows > limit)
            return binding_context_full(rows, position, limit, error);
        begin = position < begin ? position : begin;
        end = position + rows > end ? position + rows : end;
    }
    return host_kv_prepare(session, begin, end, error);
}

bool host_ready(struct device_session *session, struct program *program, struct calla_error *error) {
    return (program->scratch_base == scratch_of(program, session->backend)->data ||
            bind_ops(program, session, error)) &&
           prepare_position(session, program, error);
}
