/* The encoder: turns what encode functions ask for into calls of metal_device.h, or, while a program is
 * compiled, into pipelines. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/metal/metal_backend.h"

const struct policy *metal_policy(const struct metal_encoder *encoder) {
    return &encoder->backend->policy;
}

const struct metal_facts *metal_facts(const struct metal_encoder *encoder) {
    return encoder->backend->facts;
}

uint32_t metal_position(const struct metal_encoder *encoder) {
    return encoder->position;
}

bool metal_tensors(const struct metal_encoder *encoder) {
    return encoder->backend->tensors;
}

static void keep_error(struct metal_encoder *encoder, const struct calla_error *error) {
    if (!encoder->failed)
        encoder->error = *error;
    encoder->failed = true;
}

void metal_fail(struct metal_encoder *encoder, const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    struct calla_error error = {0};
    error_set(&error, CALLA_UNSUPPORTED, "Metal: %s", text);
    keep_error(encoder, &error);
}

/* ---- Pipelines */

void metal_pipelines_free(struct metal_pipelines *pipelines) {
    for (uint32_t i = 0; i < pipelines->capacity; i++)
        metal_pipeline_free(pipelines->entries[i].pipeline);
    free(pipelines->entries);
    *pipelines = (struct metal_pipelines){.entries = NULL};
}

static bool same_constants(const struct metal_constant *a, const struct metal_constant *b, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (a[i].index != b[i].index || a[i].type != b[i].type)
            return false;
        if (a[i].type == METAL_BOOL ? a[i].value.boolean != b[i].value.boolean
                                    : a[i].value.unsigned_integer != b[i].value.unsigned_integer)
            return false;
    }
    return true;
}

static uint32_t hash_of(const char *function, const struct metal_constant *constants, uint32_t count) {
    uint32_t hash = 2166136261u;
    for (; *function != 0; function++)
        hash = (hash ^ (unsigned char)*function) * 16777619u;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t value = constants[i].type == METAL_BOOL ? constants[i].value.boolean
                                                         : constants[i].value.unsigned_integer;
        hash = (hash ^ constants[i].index) * 16777619u;
        hash = (hash ^ value ^ value >> 15) * 16777619u;
    }
    return hash ^ hash >> 13;
}

/* The entry of a pipeline, or the free one where it belongs. */
static struct metal_pipeline_entry *find(const struct metal_pipelines *pipelines, const char *function,
                                         const struct metal_constant *constants, uint32_t count) {
    for (uint32_t place = hash_of(function, constants, count);; place++) {
        struct metal_pipeline_entry *entry = &pipelines->entries[place & (pipelines->capacity - 1)];
        if (entry->pipeline == NULL || (entry->count == count && strcmp(entry->function, function) == 0 &&
                                        same_constants(entry->constants, constants, count)))
            return entry;
    }
}

/* Room for one more, with at least half of the places free. */
static bool grow(struct metal_pipelines *pipelines, struct calla_error *error) {
    if (2 * (pipelines->count + 1) <= pipelines->capacity)
        return true;
    struct metal_pipelines larger = {.capacity = pipelines->capacity == 0 ? 128 : 2 * pipelines->capacity,
                                     .count = pipelines->count};
    larger.entries = calloc(larger.capacity, sizeof *larger.entries);
    if (larger.entries == NULL)
        return error_memory(error, "the list of kernels", larger.capacity * sizeof *larger.entries);
    for (uint32_t i = 0; i < pipelines->capacity; i++) {
        const struct metal_pipeline_entry *entry = &pipelines->entries[i];
        if (entry->pipeline != NULL)
            *find(&larger, entry->function, entry->constants, entry->count) = *entry;
    }
    free(pipelines->entries);
    *pipelines = larger;
    return true;
}

/* The pipeline, which is made if need be. */
static const struct metal_pipeline *make_pipeline(struct metal_backend *backend, const char *function,
                                                  const struct metal_constant *constants, uint32_t count,
                                                  struct calla_error *error) {
    struct metal_pipelines *pipelines = &backend->pipelines;
    bool tensor = strncmp(function, "tensor_", 7) == 0;
    struct metal_pipeline_entry *entry =
        pipelines->capacity > 0 ? find(pipelines, function, constants, count) : NULL;
    if (entry != NULL && entry->pipeline != NULL)
        return entry->pipeline;
    if (tensor && backend->tensor_kernels == NULL) {
        error_set(error, CALLA_UNSUPPORTED,
                  "Metal: kernel '%s' needs tensor operations, which this GPU does not have.", function);
        return NULL;
    }
    struct metal_pipeline *made = NULL;
    if (grow(pipelines, error))
        made = metal_pipeline_new(tensor ? backend->tensor_kernels : backend->kernels, function, constants,
                                  count, error);
    if (made == NULL)
        return NULL;
    entry = find(pipelines, function, constants, count);
    *entry = (struct metal_pipeline_entry){.function = function, .count = count, .pipeline = made};
    if (count > 0)
        memcpy(entry->constants, constants, count * sizeof *constants);
    pipelines->count++;
    return made;
}

/* The same for an encoder, which has it made only while compiling. NULL after a mistake. */
static const struct metal_pipeline *pipeline_of(struct metal_encoder *encoder, const char *function,
                                                const struct metal_constant *constants, uint32_t count) {
    const struct metal_pipelines *pipelines = &encoder->backend->pipelines;
    struct calla_error error = {0};
    if (count > METAL_MAX_CONSTANTS) {
        metal_fail(encoder, "kernel '%s' is given %u constants; at most %d can be.", function, count,
                   METAL_MAX_CONSTANTS);
        return NULL;
    }
    if (encoder->commands != NULL &&
        (pipelines->capacity == 0 || find(pipelines, function, constants, count)->pipeline == NULL)) {
        metal_fail(encoder, "kernel '%s' is used that was not prepared when the plan was compiled.",
                   function);
        return NULL;
    }
    const struct metal_pipeline *pipeline =
        make_pipeline(encoder->backend, function, constants, count, &error);
    if (pipeline == NULL)
        keep_error(encoder, &error);
    return pipeline;
}

void metal_use(struct metal_encoder *encoder, const char *function, const struct metal_constant *constants,
               uint32_t count) {
    if (encoder->counts != NULL)
        return;
    encoder->pipeline = pipeline_of(encoder, function, constants, count);
}

void metal_need(struct metal_encoder *encoder, const char *function, const struct metal_constant *constants,
                uint32_t count) {
    if (encoder->commands == NULL && encoder->counts == NULL)
        pipeline_of(encoder, function, constants, count);
}

bool metal_allows(const struct metal_encoder *encoder, const char *function,
                  const struct metal_constant *constants, uint32_t count, uint32_t threads) {
    struct calla_error error = {0};
    if (encoder->counts != NULL)
        return true;
    const struct metal_pipeline *pipeline =
        make_pipeline(encoder->backend, function, constants, count, &error);
    return pipeline != NULL && metal_pipeline_limits(pipeline)->max_threads >= threads;
}

const struct metal_limits *metal_use_limits(const struct metal_encoder *encoder) {
    static const struct metal_limits none = {.max_threads = METAL_SIMD_WIDTH}, most = {.max_threads = 1024};
    if (encoder->counts != NULL)
        return &most;
    return encoder->pipeline != NULL ? metal_pipeline_limits(encoder->pipeline) : &none;
}

/* ---- Slots */

static struct metal_slot *slot_of(struct metal_encoder *encoder, uint32_t slot) {
    if (slot < METAL_BUFFER_SLOTS)
        return &encoder->slots[slot];
    metal_fail(encoder, "slot %u is bound; there are %d.", slot, METAL_BUFFER_SLOTS);
    return NULL;
}

static void bind_view(struct metal_encoder *encoder, uint32_t slot, struct metal_view view) {
    struct metal_slot *bound = slot_of(encoder, slot);
    if (bound == NULL)
        return;
    bound->kind = METAL_SLOT_VIEW;
    bound->sent = false;
    bound->view = view;
}

static bool is_affine(const struct metal_operand *operand) {
    return operand->dtype == DTYPE_AFFINE4 || operand->dtype == DTYPE_AFFINE8;
}

/* Bytes of `elements` elements, or codes, in a row. */
static uint64_t bytes_of(const struct metal_operand *operand, uint64_t elements) {
    return elements * dtype_bits((enum dtype)operand->dtype) / 8;
}

static struct metal_view view_of(const struct metal_operand *operand, uint32_t first, uint32_t rows,
                                 uint32_t access) {
    uint64_t stride = bytes_of(operand, operand->stride), row = bytes_of(operand, operand->columns);
    bool whole = stride == row;
    return (struct metal_view){.buffer = operand->buffer,
                               .offset = operand->offset + first * stride,
                               .rows = whole ? 1 : rows,
                               .row_bytes = whole ? rows * row : row,
                               .stride = whole ? rows * row : stride,
                               .access = access};
}

_Static_assert((int)METAL_READ == ACCESS_READ && (int)METAL_WRITE == ACCESS_WRITE, "one access as the other");

void metal_bind(struct metal_encoder *encoder, uint32_t slot, const struct metal_operand *operand) {
    bind_view(encoder, slot, view_of(operand, 0, operand->rows, operand->access));
}

void metal_bind_output(struct metal_encoder *encoder, uint32_t slot, const struct metal_operand *operand) {
    bind_view(encoder, slot, view_of(operand, 0, operand->rows, METAL_WRITE | METAL_ALL));
}

void metal_bind_rows(struct metal_encoder *encoder, uint32_t slot, const struct metal_operand *operand,
                     uint32_t first_row, uint32_t rows, uint32_t access) {
    if (first_row > operand->rows || rows > operand->rows - first_row)
        metal_fail(encoder, "rows %u to %u of an operand of %u are bound.", first_row, first_row + rows,
                   operand->rows);
    else
        bind_view(encoder, slot, view_of(operand, first_row, rows, access));
}

static void bind_groups(struct metal_encoder *encoder, uint32_t slot, const struct metal_operand *operand,
                        uint64_t offset) {
    uint64_t groups = (uint64_t)operand->rows * (operand->columns / DTYPE_AFFINE_GROUP);
    uint64_t size = groups * dtype_bits((enum dtype)operand->scale_dtype) / 8;
    if (is_affine(operand))
        bind_view(encoder, slot, metal_bytes(operand->buffer, offset, size, METAL_READ));
    else
        metal_fail(encoder, "scales or biases are bound of an operand that has none.");
}

void metal_bind_scales(struct metal_encoder *encoder, uint32_t slot, const struct metal_operand *operand) {
    bind_groups(encoder, slot, operand, operand->scales);
}

void metal_bind_biases(struct metal_encoder *encoder, uint32_t slot, const struct metal_operand *operand) {
    bind_groups(encoder, slot, operand, operand->biases);
}

void metal_bind_part(struct metal_encoder *encoder, uint32_t slot, const struct metal_operand *whole,
                     uint64_t offset, uint64_t size, uint32_t access) {
    uint64_t all =
        whole->rows == 0 ? 0 : bytes_of(whole, (uint64_t)(whole->rows - 1) * whole->stride + whole->columns);
    if (offset > all || size > all - offset)
        metal_fail(encoder, "bytes %llu to %llu of an operand of %llu are bound.", (unsigned long long)offset,
                   (unsigned long long)(offset + size), (unsigned long long)all);
    else
        bind_view(encoder, slot, metal_bytes(whole->buffer, whole->offset + offset, size, access));
}

void metal_bind_bytes(struct metal_encoder *encoder, uint32_t slot, const void *bytes, size_t size) {
    struct metal_slot *bound = slot_of(encoder, slot);
    if (bound == NULL)
        return;
    if (size == 0 || size > METAL_MAX_BYTES) {
        metal_fail(encoder, "%zu bytes are bound directly; 1 to %d can be.", size, METAL_MAX_BYTES);
        return;
    }
    bound->kind = METAL_SLOT_BYTES;
    bound->sent = false;
    bound->size = (uint32_t)size;
    memcpy(bound->bytes, bytes, size);
}

void metal_bind_memory(struct metal_encoder *encoder, uint32_t index, uint32_t size) {
    if (index >= METAL_BUFFER_SLOTS || size % 16 != 0 || size > encoder->backend->facts->threadgroup_bytes)
        metal_fail(encoder, "threadgroup memory %u of %u bytes: multiples of 16 up to %u are possible.",
                   index, size, encoder->backend->facts->threadgroup_bytes);
    else
        encoder->memory[index] = size;
}

/* ---- Launches */

void metal_encoder_begin(struct metal_encoder *encoder, struct metal_commands *commands) {
    encoder->commands = commands;
    encoder->sent_pipeline = NULL;
    for (uint32_t i = 0; i < METAL_BUFFER_SLOTS; i++)
        encoder->slots[i].sent = false;
    memset(encoder->sent_memory, 0, sizeof encoder->sent_memory);
    encoder->dispatches = 0;
    encoder->barrier_due = false;
    encoder->work = 0;
}

void metal_encoder_op(struct metal_encoder *encoder, double work, uint32_t done_pieces) {
    for (uint32_t i = 0; i < METAL_BUFFER_SLOTS; i++)
        encoder->slots[i].kind = METAL_SLOT_EMPTY;
    memset(encoder->memory, 0, sizeof encoder->memory);
    encoder->pipeline = NULL;
    encoder->op_work = work;
    encoder->op_begins = true;
    encoder->piece = 0;
    encoder->done_pieces = done_pieces;
    encoder->passing = false;
}

void metal_encoder_barrier(struct metal_encoder *encoder) {
    if (encoder->commands != NULL && encoder->barrier_due)
        metal_barrier(encoder->commands);
    if (encoder->counts != NULL && encoder->barrier_due)
        encoder->counts->phases++;
    encoder->barrier_due = false;
}

/* Before launches of so much work: ends the command buffer if they would be too much for it. */
static void begin_piece(struct metal_encoder *encoder, double work) {
    if (encoder->commands == NULL || encoder->stopped)
        return;
    uint32_t piece = encoder->piece++;
    encoder->passing = piece < encoder->done_pieces;
    if (encoder->passing)
        return;
    if (encoder->dispatches > 0 && encoder->work + work > encoder->budget && !encoder->next(encoder)) {
        encoder->stopped = encoder->passing = true;
        encoder->stopped_piece = piece;
        return;
    }
    encoder->work += work;
}

void metal_piece(struct metal_encoder *encoder, double flops) {
    encoder->op_begins = false;
    begin_piece(encoder, flops);
}

void metal_phase(struct metal_encoder *encoder) {
    if (!encoder->passing)
        metal_encoder_barrier(encoder);
}

bool metal_wait(struct metal_encoder *encoder) {
    encoder->op_begins = false;
    return encoder->commands != NULL && !encoder->stopped && !encoder->failed && encoder->wait(encoder);
}

void *metal_operand_bytes(const struct metal_operand *operand) {
    return (unsigned char *)metal_buffer_contents(operand->buffer) + operand->offset;
}

static uint64_t end_of(const struct metal_view *view) {
    return view->offset + (view->rows - 1) * view->stride + view->row_bytes;
}

/* An output in the place of an input is not one of which nothing is read. */
static bool is_read_elsewhere(const struct metal_encoder *encoder, uint32_t output) {
    const struct metal_view *view = &encoder->slots[output].view;
    for (uint32_t i = 0; i < METAL_BUFFER_SLOTS; i++) {
        const struct metal_view *other = &encoder->slots[i].view;
        if (i != output && encoder->slots[i].kind == METAL_SLOT_VIEW && other->buffer == view->buffer &&
            (other->access & METAL_READ) != 0 && other->offset < end_of(view) && view->offset < end_of(other))
            return true;
    }
    return false;
}

static void send(struct metal_encoder *encoder) {
    if (encoder->sent_pipeline != encoder->pipeline)
        metal_set_pipeline(encoder->commands, encoder->pipeline);
    encoder->sent_pipeline = encoder->pipeline;
    for (uint32_t i = 0; i < METAL_BUFFER_SLOTS; i++) {
        struct metal_slot *slot = &encoder->slots[i];
        if (encoder->memory[i] != 0 && encoder->memory[i] != encoder->sent_memory[i]) {
            metal_set_threadgroup_memory(encoder->commands, i, encoder->memory[i]);
            encoder->sent_memory[i] = encoder->memory[i];
        }
        if (slot->sent || slot->kind == METAL_SLOT_EMPTY)
            continue;
        if (slot->kind == METAL_SLOT_VIEW && (slot->view.access & METAL_ALL) != 0 &&
            is_read_elsewhere(encoder, i))
            slot->view.access &= ~(uint32_t)METAL_ALL;
        if (slot->kind == METAL_SLOT_VIEW)
            metal_set_buffer(encoder->commands, i, &slot->view);
        else
            metal_set_bytes(encoder->commands, i, slot->bytes, slot->size);
        slot->sent = true;
    }
}

/* Whether to dispatch now: not while compiling, not what has been done. */
static bool may_launch(struct metal_encoder *encoder, struct metal_size threads) {
    uint64_t count = (uint64_t)threads.x * threads.y * threads.z;
    if (encoder->op_begins) {
        encoder->op_begins = false;
        begin_piece(encoder, encoder->op_work);
    }
    if (encoder->failed)
        return false;
    if (encoder->counts != NULL) {
        encoder->counts->kernels++;
        encoder->barrier_due = true;
        return false;
    }
    if (encoder->pipeline == NULL) {
        metal_fail(encoder, "a launch without a pipeline.");
        return false;
    }
    const struct metal_limits *limits = metal_use_limits(encoder);
    if (count == 0 || count > limits->max_threads) {
        metal_fail(encoder, "kernel '%s' is launched with %llu threads a threadgroup; it can have 1 to %u.",
                   metal_pipeline_name(encoder->pipeline), (unsigned long long)count, limits->max_threads);
        return false;
    }
    if (encoder->commands == NULL || encoder->passing)
        return false;
    send(encoder);
    encoder->dispatches++;
    encoder->barrier_due = true;
    return true;
}

void metal_launch(struct metal_encoder *encoder, struct metal_size groups, struct metal_size threads) {
    if (groups.x == 0 || groups.y == 0 || groups.z == 0)
        metal_fail(encoder, "kernel '%s' is launched with no threadgroups.",
                   encoder->pipeline != NULL ? metal_pipeline_name(encoder->pipeline) : "none");
    else if (may_launch(encoder, threads))
        metal_dispatch(encoder->commands, groups, threads);
}

void metal_launch_indirect(struct metal_encoder *encoder, const struct metal_operand *counts, uint64_t offset,
                           struct metal_size threads) {
    if (may_launch(encoder, threads))
        metal_dispatch_indirect(encoder->commands, counts->buffer, counts->offset + offset, threads);
}

struct metal_operand metal_token_slot(const struct metal_encoder *encoder) {
    return (struct metal_operand){.buffer = encoder->token_slot.buffer,
                                  .offset = encoder->token_slot.offset,
                                  .dtype = DTYPE_I32,
                                  .rows = 1,
                                  .columns = 1,
                                  .stride = 1,
                                  .access = ACCESS_WRITE};
}
