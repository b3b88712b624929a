/* Threads of a threadgroup as fibers. They change places only where they wait for each other: races are found
 * by what is written down of every access (memory.c), not by luck with the order; the order, which the seed
 * decides, is for faults of the kernel's results. */
#include <stdlib.h>

#include "metal_emulator/emulator.h"

static _Thread_local struct worker *this_worker;

/* Not to be inlined: a fiber's thread never changes, but a compiler may keep the address of a thread's
 * variable. */
__attribute__((noinline)) struct worker *worker_current(void) {
    return this_worker;
}

void worker_enter(struct worker *worker) {
    this_worker = worker;
}

/* ---- Who runs next */

enum order { IN_ORDER, RANDOM, LAST_FIRST, SIMDGROUPS_REVERSED, SIMDGROUPS_FIRST, ORDER_COUNT };

static enum order order_of(const struct worker *worker) {
    uint64_t seed = worker->device->options.seed;
    return seed == 0 ? IN_ORDER : (enum order)(1 + (seed - 1) % (ORDER_COUNT - 1));
}

static void make_ready(struct worker *worker, struct lane *lane) {
    worker->ready[(worker->ready_first + worker->ready_count++) % MAX_LANES] = lane->index;
}

static struct lane *take_ready(struct worker *worker) {
    if (worker->ready_count == 0)
        return NULL;
    uint32_t chosen = 0, count = worker->ready_count, first = worker->ready_first;
    switch (order_of(worker)) {
    case RANDOM:
        chosen = random_below(&worker->random, count);
        break;
    case LAST_FIRST:
        chosen = count - 1;
        break;
    case SIMDGROUPS_REVERSED: /* the highest lane that can run */
        for (uint32_t i = 1; i < count; i++)
            if (worker->ready[(first + i) % MAX_LANES] > worker->ready[(first + chosen) % MAX_LANES])
                chosen = i;
        break;
    case SIMDGROUPS_FIRST: /* the lowest: a simdgroup runs as far as it can before the next one starts */
        for (uint32_t i = 1; i < count; i++)
            if (worker->ready[(first + i) % MAX_LANES] < worker->ready[(first + chosen) % MAX_LANES])
                chosen = i;
        break;
    default:
        break;
    }
    uint32_t at = (first + chosen) % MAX_LANES;
    uint16_t index = worker->ready[at];
    if (chosen == 0) {
        worker->ready_first = (first + 1) % MAX_LANES;
    } else {
        worker->ready[at] = worker->ready[(first + count - 1) % MAX_LANES];
    }
    worker->ready_count--;
    return &worker->lanes[index];
}

/* ---- Switching */

static struct fiber_stack stack_of(const struct lane *lane) {
    return (struct fiber_stack){lane->stack, STACK_BYTES};
}

/* Goes on with a lane, or with the worker itself if there is none; what runs now stops at *from. */
static void go_on(struct worker *worker, void **from, struct lane *next) {
    worker->current = next;
    fiber_leaves(next != NULL ? stack_of(next) : worker->stack);
    fiber_switch(from, next != NULL ? next->stack_pointer : worker->stack_pointer);
    fiber_arrives(NULL);
}

static void lane_start(void) {
    struct worker *worker = worker_current();
    fiber_arrives(worker->stack.low == NULL ? &worker->stack : NULL);
    struct lane *lane = worker->current;
    worker->dispatch->pipeline->kernel->launch(&lane->launch);
    worker = worker_current();
    lane = worker->current;
    lane->finished = true;
    worker->live--;
    void *dropped;
    go_on(worker, &dropped, take_ready(worker));
}

static void lane_leave(struct worker *worker, struct lane *lane) {
    struct lane *next = take_ready(worker);
    if (next != lane)
        go_on(worker, &lane->stack_pointer, next);
}

void worker_abort(struct worker *worker) {
    struct lane *lane = worker->current;
    worker->aborted = true;
    atomic_store(&worker->device->failed, true);
    if (lane != NULL)
        go_on(worker, &lane->stack_pointer, NULL);
}

/* ---- Meeting */

static bool same_request(const struct worker *worker, const struct request *a, const struct request *b) {
    return a->kind == b->kind && a->whole_group == b->whole_group && a->what == b->what &&
           a->type == b->type && a->count == b->count && a->width == b->width &&
           (a->site == b->site || same_line(worker->dispatch->pipeline->library, a->site, b->site));
}

static void mixed(struct worker *worker, const struct lane *a, const struct lane *b) {
    char first[96], second[96];
    bool barrier = a->request.whole_group;
    report(worker->device, worker->dispatch, barrier ? METAL_PARTIAL_BARRIER : METAL_PARTIAL_SIMDGROUP,
           a->request.site, b->request.site, "%s is at %s while %s is at %s",
           lane_name(worker, a->index, first), a->request.name, lane_name(worker, b->index, second),
           b->request.name);
    worker_abort(worker);
}

static void release(struct worker *worker, struct lane *lane) {
    lane->request.kind = REQUEST_NONE;
    make_ready(worker, lane);
}

void shared_reserve(struct worker *worker, struct shared *shared, size_t size) {
    if (size <= shared->size)
        return;
    free(shared->memory);
    shared->memory = malloc(size);
    shared->size = shared->memory != NULL ? size : 0;
    if (shared->memory == NULL)
        worker_abort(worker);
}

static void group_complete(struct worker *worker) {
    const struct request *request = &worker->lanes[0].request;
    for (uint32_t i = 1; i < worker->lane_count; i++)
        if (!same_request(worker, request, &worker->lanes[i].request))
            mixed(worker, &worker->lanes[0], &worker->lanes[i]);
    if (request->kind == REQUEST_GROUP_BARRIER) {
        for (int memory = 0; memory < 2; memory++)
            worker->epoch[memory] += request->what >> memory & 1;
    } else {
        shared_reserve(worker, &worker->shared, request->count);
    }
    worker->arrived = 0;
    for (uint32_t i = 0; i < worker->lane_count; i++)
        release(worker, &worker->lanes[i]);
}

static void simdgroup_arrived(struct worker *worker, struct simdgroup *simdgroup) {
    struct lane *first = &worker->lanes[(simdgroup - worker->simdgroups) * METAL_SIMD_WIDTH];
    for (uint32_t i = 1; i < simdgroup->lanes; i++)
        if (!same_request(worker, &first->request, &first[i].request))
            mixed(worker, first, &first[i]);
    simdgroup_complete(worker, simdgroup, first);
    simdgroup->arrived = 0;
    for (uint32_t i = 0; i < simdgroup->lanes; i++)
        release(worker, &first[i]);
}

void lane_wait(struct worker *worker, const struct request *request) {
    struct lane *lane = worker->current;
    lane->request = *request;
    lane->last_together = request->site;
    if (request->whole_group) {
        if (++worker->arrived == worker->lane_count)
            group_complete(worker);
    } else {
        struct simdgroup *simdgroup = &worker->simdgroups[lane->index / METAL_SIMD_WIDTH];
        if (++simdgroup->arrived == simdgroup->lanes)
            simdgroup_arrived(worker, simdgroup);
    }
    lane_leave(worker, lane);
}

/* Nobody can go on, and some wait: for lanes that wait elsewhere or have ended. */
static void report_stuck(struct worker *worker) {
    const struct lane *waiting = NULL, *other = NULL;
    for (uint32_t i = 0; i < worker->lane_count; i++) {
        const struct lane *lane = &worker->lanes[i];
        /* A simdgroup that is divided tells more than the others that wait for it. */
        if (!lane->finished &&
            (waiting == NULL || (waiting->request.whole_group && !lane->request.whole_group)))
            waiting = lane;
    }
    bool whole = waiting->request.whole_group;
    uint32_t missing = 0, first = whole ? 0 : waiting->index / METAL_SIMD_WIDTH * METAL_SIMD_WIDTH;
    uint32_t end = whole ? worker->lane_count : first + worker->simdgroups[first / METAL_SIMD_WIDTH].lanes;
    for (uint32_t i = first; i < end; i++)
        if (worker->lanes[i].finished ||
            !same_request(worker, &worker->lanes[i].request, &waiting->request)) {
            missing++;
            other = other == NULL ? &worker->lanes[i] : other;
        }
    char name[96], absent[96];
    report(worker->device, worker->dispatch, whole ? METAL_PARTIAL_BARRIER : METAL_PARTIAL_SIMDGROUP,
           waiting->request.site, other->finished ? NULL : other->request.site,
           "%s is reached by %s, but not by %u of %u lanes of the %s: %s %s%s", waiting->request.name,
           lane_name(worker, waiting->index, name), missing, end - first, whole ? "threadgroup" : "simdgroup",
           lane_name(worker, other->index, absent), other->finished ? "has ended" : "is at ",
           other->finished ? "" : other->request.name);
    worker_abort(worker);
}

void lanes_run(struct worker *worker) {
    worker->aborted = false;
    worker->arrived = 0;
    worker->ready_first = worker->ready_count = 0;
    worker->live = worker->lane_count;
    worker->simdgroup_count = (worker->lane_count + METAL_SIMD_WIDTH - 1) / METAL_SIMD_WIDTH;
    for (uint32_t i = 0; i < worker->simdgroup_count; i++) {
        uint32_t left = worker->lane_count - i * METAL_SIMD_WIDTH;
        worker->simdgroups[i].lanes = left < METAL_SIMD_WIDTH ? left : METAL_SIMD_WIDTH;
        worker->simdgroups[i].arrived = 0;
    }
    for (uint32_t i = 0; i < worker->lane_count; i++) {
        struct lane *lane = &worker->lanes[i];
        lane->finished = false;
        lane->request.kind = REQUEST_NONE;
        fiber_forget(stack_of(lane));
        lane->stack_pointer = fiber_new(lane->stack + STACK_BYTES, lane_start);
        make_ready(worker, lane);
    }
    worker->stack.low = NULL; /* asked for by the first lane */
    go_on(worker, &worker->stack_pointer, take_ready(worker));
    if (!worker->aborted && worker->live > 0)
        report_stuck(worker);
}
