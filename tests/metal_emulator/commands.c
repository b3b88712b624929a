/* Encoding, and what happens when encoded commands run. They are kept until somebody waits for them, or run
 * as they are committed, as the seed says: a program that looks at results too early, or changes inputs too
 * late, sees the difference. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/system.h"
#include "metal_emulator/emulator.h"

/* Function constants are variables of the module, so dispatches of all devices run one after the other. */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

/* A view of a dispatch and what it holds. */
struct watched {
    struct metal_view view;
    uint32_t dispatch, slot;
    uint64_t hash;
};

struct bytes_block {
    struct bytes_block *next;
    _Alignas(16) unsigned char bytes[];
};

struct metal_commands *metal_commands_new(struct metal_device *device, const char *label,
                                          struct calla_error *error) {
    struct metal_commands *commands = calloc(1, sizeof *commands);
    if (commands == NULL) {
        error_memory(error, "commands", sizeof *commands);
        return NULL;
    }
    commands->device = device;
    device->counts.objects++;
    snprintf(commands->label, sizeof commands->label, "%s", label);
    return commands;
}

static void forget_encoded(struct metal_commands *commands) {
    while (commands->bytes != NULL) {
        struct bytes_block *block = commands->bytes;
        commands->bytes = block->next;
        free(block);
    }
    free(commands->watched);
    commands->watched = NULL;
    commands->watched_count = 0;
    commands->count = commands->phase = 0;
    memset(&commands->pending, 0, sizeof commands->pending);
    commands->mistaken = false;
}

void metal_commands_free(struct metal_commands *commands) {
    if (commands == NULL)
        return;
    forget_encoded(commands);
    free(commands->dispatches);
    free(commands);
}

bool metal_commands_begin(struct metal_commands *commands, bool concurrent, struct calla_error *error) {
    if (commands->status == METAL_RUNNING)
        return error_set(error, CALLA_DEVICE, "The commands '%s' are begun anew while they run.",
                         commands->label);
    forget_encoded(commands);
    commands->concurrent = concurrent;
    commands->status = METAL_ENCODING;
    return true;
}

/* The first mistake is what the commit fails with. */
static void mistake(struct metal_commands *commands, enum metal_fault_kind kind, const char *format, ...)
    PRINTF_LIKE(3, 4);
static void mistake(struct metal_commands *commands, enum metal_fault_kind kind, const char *format, ...) {
    char text[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    struct metal_device *device = commands->device;
    const char *kernel =
        commands->pending.pipeline != NULL ? commands->pending.pipeline->kernel->name : "none";
    if (device->fault_count < MAX_FAULTS) {
        struct metal_fault *fault = &device->faults[device->fault_count++];
        fault->kind = kind;
        snprintf(fault->kernel, sizeof fault->kernel, "%s", kernel);
        snprintf(fault->text, sizeof fault->text, "Kernel '%s': %s.", kernel, text);
    }
    if (!commands->mistaken)
        error_set(&commands->error, CALLA_DEVICE, "Kernel '%s': %s.", kernel, text);
    commands->mistaken = true;
}

void metal_set_pipeline(struct metal_commands *commands, const struct metal_pipeline *pipeline) {
    commands->pending.pipeline = (struct metal_pipeline *)(uintptr_t)pipeline;
}

static bool slot_exists(struct metal_commands *commands, uint32_t slot) {
    if (slot < METAL_BUFFER_SLOTS)
        return true;
    mistake(commands, METAL_BAD_BINDING, "slot %u is set, but there are %d", slot, METAL_BUFFER_SLOTS);
    return false;
}

void metal_set_buffer(struct metal_commands *commands, uint32_t slot, const struct metal_view *view) {
    if (!slot_exists(commands, slot))
        return;
    const struct metal_buffer *buffer = view->buffer;
    if (buffer == NULL) {
        mistake(commands, METAL_BAD_BINDING, "slot %u is set to no buffer", slot);
        return;
    }
    uint64_t rows = view->rows, end = view->offset;
    if (rows > 0 && view->row_bytes > 0)
        end += (rows - 1) * view->stride + view->row_bytes;
    if (rows > 1 && (view->stride < view->row_bytes || view->stride > UINT64_MAX / 2 / rows))
        mistake(commands, METAL_BAD_BINDING, "slot %u: rows of %llu bytes lie %llu bytes apart", slot,
                (unsigned long long)view->row_bytes, (unsigned long long)view->stride);
    else if (view->offset > buffer->size || end > buffer->size)
        mistake(commands, METAL_BAD_BINDING,
                "slot %u: the view ends at byte %llu of buffer '%s', which has %llu", slot,
                (unsigned long long)end, buffer->label, (unsigned long long)buffer->size);
    else if (buffer->device != commands->device)
        mistake(commands, METAL_BAD_BINDING, "slot %u: buffer '%s' is another device's", slot, buffer->label);
    else
        commands->pending.slots[slot] = (struct slot){.view = *view,
                                                      .bytes = buffer->bytes + view->offset,
                                                      .size = buffer->size - view->offset,
                                                      .set = true};
}

void metal_set_bytes(struct metal_commands *commands, uint32_t slot, const void *bytes, size_t size) {
    if (!slot_exists(commands, slot))
        return;
    if (size == 0 || size > METAL_MAX_BYTES) {
        mistake(commands, METAL_BAD_BINDING, "slot %u: %zu bytes are set directly, but 1 to %d can be", slot,
                size, METAL_MAX_BYTES);
        return;
    }
    struct bytes_block *block = malloc(sizeof *block + size);
    if (block == NULL) {
        mistake(commands, METAL_BAD_BINDING, "no memory for %zu bytes", size);
        return;
    }
    memcpy(block->bytes, bytes, size);
    block->next = commands->bytes;
    commands->bytes = block;
    commands->pending.slots[slot] = (struct slot){.bytes = block->bytes, .size = size, .set = true};
}

void metal_set_threadgroup_memory(struct metal_commands *commands, uint32_t index, uint32_t size) {
    if (index >= METAL_BUFFER_SLOTS || size % 16 != 0)
        mistake(commands, METAL_BAD_BINDING,
                "threadgroup memory %u of %u bytes: there are %d, and multiples of 16 bytes", index, size,
                METAL_BUFFER_SLOTS);
    else
        commands->pending.shared[index] = size;
}

/* Whether the kernel has this argument: it may depend on a function constant, whose place in its file tells
 * its number. */
static bool has_argument(const struct metal_pipeline *pipeline, const struct emulator_argument *argument) {
    if (argument->condition == NULL)
        return true;
    bool given = false;
    for (const struct emulator_constant *constant = *pipeline->unit->constants; constant != NULL;
         constant = constant->next)
        for (uint32_t j = 0; j < pipeline->constant_count; j++)
            if (constant->value == argument->condition && pipeline->constants[j].index == constant->index)
                given = pipeline->constants[j].value.boolean;
    return given;
}

/* Whether slots and threadgroup memory are what the kernel's arguments ask for. */
static bool check_arguments(struct metal_commands *commands) {
    const struct dispatch *dispatch = &commands->pending;
    const struct emulator_kernel *kernel = dispatch->pipeline->kernel;
    for (uint32_t i = 0; i < kernel->argument_count; i++) {
        const struct emulator_argument *argument = &kernel->arguments[i];
        if (!has_argument(dispatch->pipeline, argument))
            continue;
        if (argument->kind == EMULATOR_THREADGROUP) {
            if (dispatch->shared[argument->index] == 0) {
                mistake(commands, METAL_BAD_BINDING, "threadgroup memory %u ('%s') is not set",
                        argument->index, argument->name);
                return false;
            }
            continue;
        }
        if (argument->kind != EMULATOR_BUFFER)
            continue;
        const struct slot *slot = &dispatch->slots[argument->index];
        if (!slot->set) {
            mistake(commands, METAL_BAD_BINDING, "slot %u ('%s') is not set", argument->index,
                    argument->name);
            return false;
        }
        if ((uintptr_t)slot->bytes % argument->alignment != 0) {
            mistake(commands, METAL_BAD_BINDING,
                    "slot %u ('%s') starts at byte %llu, but its type needs a multiple of %u",
                    argument->index, argument->name, (unsigned long long)slot->view.offset,
                    argument->alignment);
            return false;
        }
        if (slot->size < argument->size) {
            mistake(commands, METAL_BAD_BINDING, "slot %u ('%s') has %llu bytes, but its type has %u",
                    argument->index, argument->name, (unsigned long long)slot->size, argument->size);
            return false;
        }
    }
    return true;
}

static bool check_threads(struct metal_commands *commands, struct metal_size threads) {
    const struct metal_pipeline *pipeline = commands->pending.pipeline;
    uint64_t count = (uint64_t)threads.x * threads.y * threads.z;
    if (count == 0 || threads.x > MAX_LANES || threads.y > MAX_LANES || threads.z > MAX_LANES ||
        count > pipeline->limits.max_threads) {
        mistake(commands, METAL_TOO_MANY_THREADS,
                "%u x %u x %u threads a threadgroup, but the pipeline can run 1 to %u", threads.x, threads.y,
                threads.z, pipeline->limits.max_threads);
        return false;
    }
    const uint32_t *required = pipeline->kernel->required;
    if (required[0] != 0 &&
        (required[0] != threads.x || required[1] != threads.y || required[2] != threads.z)) {
        mistake(commands, METAL_TOO_MANY_THREADS,
                "%u x %u x %u threads a threadgroup, but the kernel requires %u x %u x %u", threads.x,
                threads.y, threads.z, required[0], required[1], required[2]);
        return false;
    }
    uint64_t shared = 0;
    for (uint32_t i = 0; i < METAL_BUFFER_SLOTS; i++)
        shared += commands->pending.shared[i];
    if (shared > METAL_MAX_THREADGROUP_BYTES) {
        mistake(commands, METAL_TOO_MUCH_THREADGROUP_MEMORY,
                "%llu bytes of threadgroup memory are set, but there are %d", (unsigned long long)shared,
                METAL_MAX_THREADGROUP_BYTES);
        return false;
    }
    return true;
}

/* Only what the kernel's arguments name is bound: slots left over from other kernels are not. */
static void keep_arguments(struct dispatch *dispatch) {
    bool used[METAL_BUFFER_SLOTS] = {false}, shared[METAL_BUFFER_SLOTS] = {false};
    const struct emulator_kernel *kernel = dispatch->pipeline->kernel;
    for (uint32_t i = 0; i < kernel->argument_count; i++) {
        if (!has_argument(dispatch->pipeline, &kernel->arguments[i]))
            continue;
        used[kernel->arguments[i].index] |= kernel->arguments[i].kind == EMULATOR_BUFFER;
        shared[kernel->arguments[i].index] |= kernel->arguments[i].kind == EMULATOR_THREADGROUP;
    }
    for (uint32_t i = 0; i < METAL_BUFFER_SLOTS; i++) {
        struct slot *slot = &dispatch->slots[i];
        slot->set = slot->set && used[i];
        dispatch->shared[i] = shared[i] ? dispatch->shared[i] : 0;
    }
    for (uint32_t i = 0; i < METAL_BUFFER_SLOTS; i++) {
        struct slot *slot = &dispatch->slots[i];
        slot->tracked = (slot->view.access & METAL_WRITE) != 0;
        for (uint32_t j = 0; j < METAL_BUFFER_SLOTS && slot->set; j++)
            if (dispatch->slots[j].set && (dispatch->slots[j].view.access & METAL_WRITE) != 0)
                slot->tracked = slot->tracked || views_overlap(&slot->view, &dispatch->slots[j].view);
    }
}

static void trace(struct metal_device *device, const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++)
        device->counts.trace = (device->counts.trace ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
}

static void trace_dispatch(struct metal_device *device, const struct dispatch *dispatch) {
    const struct metal_pipeline *pipeline = dispatch->pipeline;
    trace(device, pipeline->kernel->name, strlen(pipeline->kernel->name));
    for (uint32_t i = 0; i < pipeline->constant_count; i++)
        trace(device, &pipeline->constants[i].value,
              pipeline->constants[i].type == METAL_BOOL ? 1 : sizeof(uint32_t));
    trace(device, &dispatch->groups, sizeof dispatch->groups);
    trace(device, &dispatch->threads, sizeof dispatch->threads);
    trace(device, &dispatch->phase, sizeof dispatch->phase);
}

static void add_dispatch(struct metal_commands *commands, struct metal_size groups, struct metal_size threads,
                         struct metal_buffer *indirect, uint64_t offset) {
    if (commands->pending.pipeline == NULL) {
        mistake(commands, METAL_BAD_BINDING, "a dispatch without a pipeline");
        return;
    }
    if (!check_threads(commands, threads) || !check_arguments(commands))
        return;
    if (commands->count == commands->capacity) {
        uint32_t capacity = commands->capacity == 0 ? 64 : 2 * commands->capacity;
        struct dispatch *larger = realloc(commands->dispatches, capacity * sizeof *larger);
        if (larger == NULL) {
            mistake(commands, METAL_BAD_BINDING, "no memory for %u dispatches", capacity);
            return;
        }
        commands->dispatches = larger;
        commands->capacity = capacity;
    }
    struct dispatch *dispatch = &commands->dispatches[commands->count++];
    *dispatch = commands->pending;
    dispatch->groups = groups;
    dispatch->threads = threads;
    dispatch->indirect = indirect;
    dispatch->indirect_offset = offset;
    dispatch->phase = commands->phase;
    if (!commands->concurrent)
        commands->phase++;
    keep_arguments(dispatch);
    trace_dispatch(commands->device, dispatch);
}

void metal_dispatch(struct metal_commands *commands, struct metal_size groups, struct metal_size threads) {
    if (groups.x == 0 || groups.y == 0 || groups.z == 0)
        mistake(commands, METAL_BAD_BINDING, "%u x %u x %u threadgroups", groups.x, groups.y, groups.z);
    else
        add_dispatch(commands, groups, threads, NULL, 0);
}

void metal_dispatch_indirect(struct metal_commands *commands, struct metal_buffer *buffer, uint64_t offset,
                             struct metal_size threads) {
    if (offset % 4 != 0 || offset + 12 > buffer->size)
        mistake(commands, METAL_BAD_BINDING,
                "the counts of an indirect dispatch are at byte %llu of buffer '%s', which has %llu",
                (unsigned long long)offset, buffer->label, (unsigned long long)buffer->size);
    else
        add_dispatch(commands, (struct metal_size){0, 0, 0}, threads, buffer, offset);
}

void metal_barrier(struct metal_commands *commands) {
    commands->device->counts.barriers++;
    commands->phase++;
}

/* ---- Running */

/* Two dispatches between which there is no barrier: what the one may write, the other may not touch. */
static bool check_pair(struct metal_device *device, const struct dispatch *a, const struct dispatch *b) {
    for (uint32_t i = 0; i < METAL_BUFFER_SLOTS; i++) {
        if (!a->slots[i].set || (a->slots[i].view.access & METAL_WRITE) == 0)
            continue;
        const struct metal_view *written = &a->slots[i].view;
        for (uint32_t j = 0; j < METAL_BUFFER_SLOTS; j++)
            if (b->slots[j].set && views_overlap(written, &b->slots[j].view)) {
                report(device, a, METAL_RACE_OF_DISPATCHES, NULL, b->pipeline->kernel,
                       "writes slot %u (buffer '%s'), which kernel '%s' of the same phase %s as slot %u", i,
                       written->buffer->label, b->pipeline->kernel->name,
                       (b->slots[j].view.access & METAL_WRITE) != 0 ? "writes" : "reads", j);
                return false;
            }
        struct metal_view counts = metal_bytes(b->indirect, b->indirect_offset, 12, METAL_READ);
        if (b->indirect != NULL && views_overlap(written, &counts)) {
            report(device, a, METAL_RACE_OF_DISPATCHES, NULL, b->pipeline->kernel,
                   "writes slot %u (buffer '%s'), where kernel '%s' of the same phase has its counts of "
                   "threadgroups",
                   i, written->buffer->label, b->pipeline->kernel->name);
            return false;
        }
    }
    return true;
}

static bool read_counts(struct metal_device *device, struct dispatch *dispatch) {
    if (dispatch->indirect == NULL)
        return true;
    uint32_t counts[3];
    memcpy(counts, dispatch->indirect->bytes + dispatch->indirect_offset, sizeof counts);
    dispatch->groups = (struct metal_size){counts[0], counts[1], counts[2]};
    if ((uint64_t)counts[0] * counts[1] < 1u << 28 && (uint64_t)counts[0] * counts[1] * counts[2] < 1u << 28)
        return true;
    report(device, dispatch, METAL_BAD_BINDING, NULL, NULL,
           "an indirect dispatch of %u x %u x %u threadgroups", counts[0], counts[1], counts[2]);
    return false;
}

static void run_phase(struct metal_device *device, struct dispatch *dispatches, uint32_t count) {
    if (device->options.checked)
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t j = 0; j < count; j++)
                if (i != j && !check_pair(device, &dispatches[i], &dispatches[j]))
                    return;
    uint32_t order[256];
    for (uint32_t i = 0; i < count && i < 256; i++)
        order[i] = i;
    for (uint32_t i = count < 256 ? count : 256; i > 1 && device->options.seed != 0; i--) {
        uint32_t j = random_below(&device->random, i), swapped = order[i - 1];
        order[i - 1] = order[j];
        order[j] = swapped;
    }
    for (uint32_t i = 0; i < count && !atomic_load(&device->failed); i++) {
        struct dispatch *dispatch = &dispatches[i < 256 ? order[i] : i];
        device->counts.dispatches++;
        const char *fails = device->options.fail_kernel;
        if (fails != NULL && strcmp(fails, dispatch->pipeline->kernel->name) == 0)
            report(device, dispatch, METAL_ENDLESS, NULL, NULL, "made to fail, as if it had run too long");
        else if (read_counts(device, dispatch))
            dispatch_run(device, dispatch);
    }
}

/* ---- Between the commit and the run nobody but commands before may change what a dispatch sees. */

static uint64_t hash_of(const struct metal_view *view) {
    uint64_t hash = 14695981039346656037u;
    for (uint64_t row = 0; row < view->rows; row++) {
        const unsigned char *bytes = view->buffer->bytes + view->offset + row * view->stride;
        uint64_t i = 0, word;
        for (; i + sizeof word <= view->row_bytes; i += sizeof word) {
            memcpy(&word, bytes + i, sizeof word);
            hash = (hash ^ word) * 1099511628211u;
            hash ^= hash >> 29;
        }
        for (; i < view->row_bytes; i++)
            hash = (hash ^ bytes[i]) * 1099511628211u;
    }
    return hash;
}

static bool is_watched(const struct metal_commands *commands, const struct metal_view *view) {
    for (uint32_t i = 0; i < commands->watched_count; i++) {
        const struct metal_view *other = &commands->watched[i].view;
        if (other->buffer == view->buffer && other->offset == view->offset && other->rows == view->rows &&
            other->row_bytes == view->row_bytes && other->stride == view->stride)
            return true;
    }
    return false;
}

static void watch(struct metal_commands *commands) {
    commands->watched = calloc(commands->count * (size_t)METAL_BUFFER_SLOTS + 1, sizeof *commands->watched);
    for (uint32_t i = 0; commands->watched != NULL && i < commands->count; i++)
        for (uint32_t slot = 0; slot < METAL_BUFFER_SLOTS; slot++) {
            const struct slot *set = &commands->dispatches[i].slots[slot];
            if (set->set && set->view.buffer != NULL && !is_watched(commands, &set->view))
                commands->watched[commands->watched_count++] =
                    (struct watched){set->view, i, slot, hash_of(&set->view)};
        }
}

/* After other commands have run. */
static void watch_anew(struct metal_commands *commands) {
    for (uint32_t i = 0; i < commands->watched_count; i++)
        commands->watched[i].hash = hash_of(&commands->watched[i].view);
}

static void check_watched(struct metal_commands *commands) {
    for (uint32_t i = 0; i < commands->watched_count; i++) {
        const struct watched *watched = &commands->watched[i];
        if (hash_of(&watched->view) == watched->hash)
            continue;
        report(commands->device, &commands->dispatches[watched->dispatch], METAL_RACE_WITH_HOST, NULL, NULL,
               "the processor changed what slot %u (buffer '%s') holds after these commands were committed "
               "and before they ran",
               watched->slot, watched->view.buffer->label);
        return;
    }
}

static void run(struct metal_commands *commands) {
    struct metal_device *device = commands->device;
    uint32_t faults = device->fault_count;
    atomic_store(&device->failed, false);
    commands->times.gpu_start = system_seconds();
    check_watched(commands);
    pthread_mutex_lock(&one_at_a_time);
    for (uint32_t i = 0; i < commands->count && !atomic_load(&device->failed);) {
        uint32_t end = i + 1;
        while (end < commands->count && commands->dispatches[end].phase == commands->dispatches[i].phase)
            end++;
        run_phase(device, &commands->dispatches[i], end - i);
        i = end;
    }
    pthread_mutex_unlock(&one_at_a_time);
    commands->times.gpu_end = system_seconds();
    device->counts.command_buffers++;
    commands->status = METAL_COMPLETED;
    if (!atomic_load(&device->failed))
        return;
    commands->status = METAL_FAILED;
    error_set(&commands->error, CALLA_DEVICE, "%s",
              faults < device->fault_count ? device->faults[faults].text
                                           : "The emulated GPU found a fault that it has reported before.");
}

void commands_run(struct metal_device *device, const struct metal_commands *last) {
    bool done = false;
    while (device->committed != NULL && !done) {
        struct metal_commands *commands = device->committed;
        device->committed = commands->next;
        done = commands == last;
        run(commands);
        for (struct metal_commands *next = device->committed; next != NULL; next = next->next)
            watch_anew(next);
    }
}

bool metal_commands_commit(struct metal_commands *commands, struct calla_error *error) {
    struct metal_device *device = commands->device;
    if (commands->status != METAL_ENCODING)
        return error_set(error, CALLA_DEVICE, "The commands '%s' are committed without having been begun.",
                         commands->label);
    if (commands->mistaken) {
        commands->status = METAL_FAILED;
        if (error != NULL)
            *error = commands->error;
        return false;
    }
    struct metal_commands **end = &device->committed;
    while (*end != NULL)
        end = &(*end)->next;
    *end = commands;
    commands->next = NULL;
    commands->status = METAL_RUNNING;
    trace(device, "commit", 6);
    /* At once, or when it is waited for. */
    if (device->options.seed % 2 == 0)
        commands_run(device, commands);
    else if (device->options.checked)
        watch(commands);
    return true;
}

bool metal_commands_wait(struct metal_commands *commands, struct calla_error *error) {
    trace(commands->device, "wait", 4);
    if (commands->status == METAL_RUNNING)
        commands_run(commands->device, commands);
    if (commands->status == METAL_COMPLETED)
        return true;
    if (commands->status == METAL_FAILED) {
        if (error != NULL)
            *error = commands->error;
        return false;
    }
    return error_set(error, CALLA_DEVICE, "The commands '%s' are waited for, but were not committed.",
                     commands->label);
}

enum metal_status metal_commands_status(const struct metal_commands *commands) {
    return commands->status;
}

struct metal_times metal_commands_times(const struct metal_commands *commands) {
    return commands->times;
}
