/* Runs one dispatch: the threadgroups of its grid, on one worker in the seed's order when checked, on all of
 * them otherwise. */
#include <stdlib.h>
#include <sys/mman.h>

#include "metal_emulator/emulator.h"

static bool worker_open(struct metal_device *device, struct worker *worker, struct calla_error *error) {
    worker->device = device;
    worker->lanes = calloc(MAX_LANES, sizeof *worker->lanes);
    worker->arena = aligned_alloc(64, ARENA_BYTES);
    worker->cells = device->options.checked ? calloc(ARENA_BYTES, sizeof *worker->cells) : NULL;
    unsigned char *stacks = mmap(NULL, MAX_LANES * STACK_BYTES, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (worker->lanes == NULL || worker->arena == NULL ||
        (worker->cells == NULL && device->options.checked) || stacks == MAP_FAILED)
        return error_memory(error, "an emulated GPU", MAX_LANES * STACK_BYTES);
    for (uint32_t i = 0; i < MAX_LANES; i++) {
        worker->lanes[i].index = (uint16_t)i;
        worker->lanes[i].stack = stacks + i * STACK_BYTES;
    }
    return true;
}

bool workers_open(struct metal_device *device, struct calla_error *error) {
    int threads = device->options.checked ? 1 : device->options.threads;
    device->threads = threads_open(threads, error);
    if (device->threads == NULL)
        return false;
    device->worker_count = threads_count(device->threads);
    device->workers = calloc((size_t)device->worker_count, sizeof *device->workers);
    if (device->workers == NULL)
        return error_memory(error, "an emulated GPU", (size_t)device->worker_count * sizeof *device->workers);
    for (int i = 0; i < device->worker_count; i++)
        if (!worker_open(device, &device->workers[i], error))
            return false;
    return true;
}

void workers_close(struct metal_device *device) {
    for (int i = 0; i < device->worker_count && device->workers != NULL; i++) {
        struct worker *worker = &device->workers[i];
        if (worker->lanes != NULL && worker->lanes[0].stack != NULL) {
            fiber_forget((struct fiber_stack){worker->lanes[0].stack, MAX_LANES * STACK_BYTES});
            munmap(worker->lanes[0].stack, MAX_LANES * STACK_BYTES);
        }
        for (uint32_t j = 0; j < MAX_SIMDGROUPS; j++)
            free(worker->simdgroups[j].shared.memory);
        free(worker->shared.memory);
        free(worker->lanes);
        free(worker->arena);
        free(worker->cells);
    }
    free(device->workers);
    threads_close(device->threads);
}

static void set_position(uint32_t value[3], uint32_t x, uint32_t y, uint32_t z) {
    value[0] = x;
    value[1] = y;
    value[2] = z;
}

/* What is the same for all threadgroups of the dispatch. */
static void prepare_lanes(struct worker *worker, const struct dispatch *dispatch) {
    const struct metal_size groups = dispatch->groups, threads = dispatch->threads;
    worker->lane_count = threads.x * threads.y * threads.z;
    for (uint32_t i = 0; i < worker->lane_count; i++) {
        struct emulator_launch *launch = &worker->lanes[i].launch;
        for (uint32_t j = 0; j < METAL_BUFFER_SLOTS; j++)
            launch->buffers[j] = dispatch->slots[j].set ? dispatch->slots[j].bytes : NULL;
        uint32_t(*positions)[3] = launch->positions;
        set_position(positions[EMULATOR_THREADS_PER_GRID], groups.x * threads.x, groups.y * threads.y,
                     groups.z * threads.z);
        set_position(positions[EMULATOR_THREADGROUPS_PER_GRID], groups.x, groups.y, groups.z);
        set_position(positions[EMULATOR_THREAD_POSITION_IN_THREADGROUP], i % threads.x,
                     i / threads.x % threads.y, i / threads.x / threads.y);
        set_position(positions[EMULATOR_THREADS_PER_THREADGROUP], threads.x, threads.y, threads.z);
        set_position(positions[EMULATOR_THREAD_INDEX_IN_THREADGROUP], i, 0, 0);
        set_position(positions[EMULATOR_THREAD_INDEX_IN_SIMDGROUP], i % METAL_SIMD_WIDTH, 0, 0);
        set_position(positions[EMULATOR_SIMDGROUP_INDEX_IN_THREADGROUP], i / METAL_SIMD_WIDTH, 0, 0);
        set_position(positions[EMULATOR_SIMDGROUPS_PER_THREADGROUP],
                     (worker->lane_count + METAL_SIMD_WIDTH - 1) / METAL_SIMD_WIDTH, 0, 0);
        set_position(positions[EMULATOR_THREADS_PER_SIMDGROUP], METAL_SIMD_WIDTH, 0, 0);
        set_position(positions[EMULATOR_THREAD_INDEX_IN_QUADGROUP], i % 4, 0, 0);
        set_position(positions[EMULATOR_QUADGROUP_INDEX_IN_THREADGROUP], i / 4, 0, 0);
    }
    worker->last_slot = NULL;
    worker->accesses = 0;
    worker->random = worker->device->random;
}

/* `turn` counts the threadgroups in the order in which they run. */
static void run_group(struct worker *worker, struct dispatch *dispatch, uint64_t number, uint64_t turn) {
    const struct metal_size groups = dispatch->groups;
    const uint32_t x = (uint32_t)(number % groups.x), y = (uint32_t)(number / groups.x % groups.y),
                   z = (uint32_t)(number / groups.x / groups.y);
    worker->dispatch = dispatch;
    worker->group = (struct metal_size){x, y, z};
    worker->run = dispatch->first_run + (uint32_t)turn;
    worker->arena_used = worker->variable_count = 0;
    worker->unwritten.site = NULL;
    uint32_t faults = worker->device->fault_count;
    worker_enter(worker);
    /* Not what a kernel could take for a number that somebody wrote: NaNs, large indices. */
    if (worker->device->options.checked)
        memset(worker->arena, 0xff, METAL_MAX_THREADGROUP_BYTES);
    void *shared[METAL_BUFFER_SLOTS] = {NULL};
    bool any_shared = false;
    static const char *const names[METAL_BUFFER_SLOTS] = {"threadgroup(0)", "threadgroup(1)",
                                                          "threadgroup(2)", "threadgroup(3)"};
    for (uint32_t i = 0; i < METAL_BUFFER_SLOTS; i++)
        if (dispatch->shared[i] > 0) {
            any_shared = true;
            shared[i] = memory_variable(UINT32_MAX - i, dispatch->shared[i], 16,
                                        names[i] != NULL ? names[i] : "threadgroup(4) or later");
        }
    for (uint32_t i = 0; i < worker->lane_count; i++) {
        struct emulator_launch *launch = &worker->lanes[i].launch;
        if (any_shared)
            memcpy(launch->shared, shared, sizeof shared);
        set_position(launch->positions[EMULATOR_THREADGROUP_POSITION_IN_GRID], x, y, z);
        const uint32_t *own = launch->positions[EMULATOR_THREAD_POSITION_IN_THREADGROUP];
        set_position(launch->positions[EMULATOR_THREAD_POSITION_IN_GRID], x * dispatch->threads.x + own[0],
                     y * dispatch->threads.y + own[1], z * dispatch->threads.z + own[2]);
    }
    if (!atomic_load(&worker->device->failed) || worker->device->options.checked)
        lanes_run(worker);
    if (faults == worker->device->fault_count || worker->aborted)
        memory_report_unwritten(worker);
    worker_enter(NULL);
}

struct work {
    struct metal_device *device;
    struct dispatch *dispatch;
    uint64_t groups;
    _Atomic uint64_t next;
};

static void run_groups(void *argument, size_t task) {
    struct work *work = argument;
    struct worker *worker = &work->device->workers[task];
    prepare_lanes(worker, work->dispatch);
    for (;;) {
        uint64_t number = atomic_fetch_add(&work->next, 1);
        if (number >= work->groups || (atomic_load(&work->device->failed)))
            return;
        run_group(worker, work->dispatch, number, number);
    }
}

static void run_checked(struct metal_device *device, struct dispatch *dispatch, uint64_t groups) {
    struct worker *worker = &device->workers[0];
    memory_poison(dispatch);
    prepare_lanes(worker, dispatch);
    /* A step without a factor in common with the number of groups goes through all of them. */
    uint64_t step = 1, at = 0;
    if (device->options.seed != 0) {
        at = random_next(&device->random) % groups;
        for (step = 1 + random_next(&device->random) % groups;; step++) {
            uint64_t a = step, b = groups;
            while (b != 0) {
                uint64_t rest = a % b;
                a = b;
                b = rest;
            }
            if (a == 1)
                break;
        }
    }
    for (uint64_t i = 0; i < groups; i++, at = (at + step) % groups) {
        run_group(worker, dispatch, at, i);
        if (worker->aborted)
            return;
    }
    memory_check_written(device, dispatch);
}

/* The function constants of all kernels of a file are its variables: set for each dispatch. */
static void set_constants(const struct metal_pipeline *pipeline) {
    struct emulator_constant *in_order[256];
    uint32_t count = 0;
    for (struct emulator_constant *constant = *pipeline->unit->constants; constant != NULL && count < 256;
         constant = constant->next)
        in_order[count++] = constant;
    while (count-- > 0) {
        struct emulator_constant *constant = in_order[count];
        if (constant->derive != NULL) {
            constant->derive();
            continue;
        }
        size_t size = constant->type == EMULATOR_BOOL                                         ? 1
                      : constant->type == EMULATOR_SHORT || constant->type == EMULATOR_USHORT ? 2
                                                                                              : 4;
        *constant->defined = false;
        memset(constant->value, 0, size);
        for (uint32_t i = 0; i < pipeline->constant_count; i++) {
            const struct metal_constant *given = &pipeline->constants[i];
            if (given->index != constant->index)
                continue;
            memcpy(constant->value, &given->value, size);
            *constant->defined = true;
        }
    }
}

void dispatch_run(struct metal_device *device, struct dispatch *dispatch) {
    uint64_t groups = (uint64_t)dispatch->groups.x * dispatch->groups.y * dispatch->groups.z;
    if (groups == 0)
        return;
    set_constants(dispatch->pipeline);
    dispatch->first_run = device->runs + 1;
    device->runs += (uint32_t)groups;
    if (device->options.checked) {
        run_checked(device, dispatch, groups);
        return;
    }
    struct work work = {device, dispatch, groups, 0};
    threads_run(device->threads, run_groups, &work, (size_t)(groups > 1 ? device->worker_count : 1));
}
