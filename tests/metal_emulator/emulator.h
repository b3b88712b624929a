/* What the emulator's files share. A device's commands run dispatch by dispatch; a dispatch runs threadgroup
 * by threadgroup on workers; a worker runs a threadgroup's threads as fibers, which change places only where
 * they wait for each other. */
#ifndef CALLA_METAL_EMULATOR_INTERNAL_H
#define CALLA_METAL_EMULATOR_INTERNAL_H

#include <stdatomic.h>
#include <string.h>

#include "base/threads.h"
#include "metal_emulator/fiber.h"
#include "metal_emulator/metal_emulator.h"
#include "metal_emulator/module.h"

#define MAX_LANES 1024
#define MAX_SIMDGROUPS (MAX_LANES / METAL_SIMD_WIDTH)
#define ARENA_BYTES                                                                                          \
    (4 * METAL_MAX_THREADGROUP_BYTES) /* more than allowed, to tell by how much it is exceeded */
/* Not a power of two, so that the stacks of a simdgroup do not all fall on the same lines of the cache. */
#define STACK_BYTES (((size_t)64 << 10) + 17 * 64)
#define MAX_FAULTS 16

/* ---- Memory (memory.c) */

/* What is known of one byte: who last wrote and read it, when, and from which place of the kernel. `run`
 * numbers threadgroups over all dispatches, `epoch` the barriers of a threadgroup, `simd_epoch` those of a
 * simdgroup. */
struct touch {
    uint32_t run, epoch, simd_epoch, site;
    uint16_t lane;
    uint8_t kind;              /* enum emulator_access_kind */
    bool lanes, simdgroups;    /* reads: other lanes of this simdgroup, other simdgroups read it as well, */
    bool groups, groups_plain; /* other threadgroups, and not with an atomic operation */
};

struct cell {
    struct touch write, read;
};

struct metal_buffer {
    struct metal_device *device;
    char label[64];
    unsigned char *bytes;
    uint64_t size;
    void *memory; /* that is the buffer's own, with what lies around it; NULL when it is wrapped */
    uint64_t mapped;
    struct cell *cells; /* one a byte, made when first needed */
};

/* A slot of a dispatch. */
struct slot {
    struct metal_view view; /* view.buffer NULL: bytes */
    unsigned char *bytes;   /* what the kernel gets */
    uint64_t size;          /* from there to the end of the view */
    bool set, tracked;      /* tracked: written, or read where another slot writes */
};

/* ---- Dispatches */

struct metal_pipeline {
    struct metal_library *library;
    const struct emulator_kernel *kernel;
    const struct emulator_unit *unit;
    struct metal_constant *constants;
    uint32_t constant_count;
    struct metal_limits limits;
};

struct dispatch {
    struct metal_pipeline *pipeline;
    struct slot slots[METAL_BUFFER_SLOTS];
    uint32_t shared[METAL_BUFFER_SLOTS]; /* bytes of threadgroup memory */
    struct metal_size groups, threads;
    struct metal_buffer *indirect;
    uint64_t indirect_offset;
    uint32_t phase;
    uint32_t first_run; /* filled when it runs */
};

/* ---- Lanes (lanes.c) */

enum request_kind {
    REQUEST_NONE,
    REQUEST_GROUP_BARRIER,
    REQUEST_SIMD_BARRIER,
    REQUEST_REDUCE,
    REQUEST_SHUFFLE,
    REQUEST_BALLOT,
    REQUEST_MULTIPLY,
    REQUEST_TOGETHER,
    REQUEST_MEET
};

/* What a lane waits for. */
struct request {
    enum request_kind kind;
    bool whole_group;
    int32_t what, type; /* reduction or shuffle; memory; simdgroups */
    uint32_t count, width, index;
    void *value;
    const void *fill;
    const float *matrices[3];
    uint64_t votes;
    const char *name;
    const void *site;
};

struct lane {
    void *stack_pointer;
    unsigned char *stack; /* its lowest address */
    uint16_t index;
    bool finished;
    struct request request;
    const void *last_together; /* where it last was in an operation of its simdgroup */
    struct emulator_launch launch;
};

/* Memory that lanes share in operations on tensors. */
struct shared {
    void *memory;
    size_t size;
};

struct simdgroup {
    uint32_t lanes, arrived;
    uint32_t epoch[2]; /* of device and of threadgroup memory */
    struct shared shared;
};

struct variable {
    uint32_t id, offset, size;
    const char *name;
};

/* The first read of threadgroup memory that nobody had written: kept to the group's end, for if somebody
 * writes it then without a barrier it was a race. */
struct unwritten {
    const char *variable;
    uint32_t offset, lane;
    const void *site;
};

struct worker {
    struct metal_device *device;
    struct dispatch *dispatch;
    struct lane *lanes;
    struct simdgroup simdgroups[MAX_SIMDGROUPS];
    uint32_t lane_count, simdgroup_count, arrived, live;
    uint16_t ready[MAX_LANES];
    uint32_t ready_first, ready_count;
    struct lane *current;
    void *stack_pointer; /* of the worker itself */
    struct fiber_stack stack;
    bool aborted;
    uint64_t random;
    /* threadgroup memory */
    unsigned char *arena;
    struct cell *cells;
    uint32_t arena_used;
    struct variable variables[64];
    uint32_t variable_count;
    struct unwritten unwritten;
    struct shared shared;
    uint32_t run, epoch[2];
    struct metal_size group;
    uint64_t accesses;
    const struct slot *last_slot;
};

/* ---- Devices and commands */

struct metal_library {
    struct metal_device *device;
    void *handle;
    const struct emulator_module *module;
    uintptr_t low, high; /* where its image lies */
    char name[32], path[512];
    struct metal_library *next; /* of the device, which keeps them: pipelines outlive metal_library_free */
};

struct metal_commands {
    struct metal_device *device;
    char label[64];
    enum metal_status status;
    bool concurrent;
    struct metal_commands *next; /* committed and not yet run */
    struct dispatch pending;     /* what the next dispatch gets */
    struct dispatch *dispatches;
    uint32_t count, capacity, phase;
    struct bytes_block *bytes; /* copies made by metal_set_bytes */
    struct watched *watched;   /* [watched_count]: the views of all dispatches, while they wait to be run */
    uint32_t watched_count;
    struct calla_error error; /* the first mistake in encoding, or why it failed */
    bool mistaken;
    struct metal_times times;
};

struct metal_device {
    struct metal_emulator_options options;
    struct metal_commands *committed; /* in order */
    struct metal_library *libraries;
    struct threads *threads;
    struct worker *workers;
    int worker_count;
    uint32_t runs;
    struct metal_fault faults[MAX_FAULTS];
    _Atomic uint32_t fault_count;
    uint64_t seen[MAX_FAULTS]; /* pairs of sites that have been reported */
    uint64_t random;
    struct metal_emulator_counts counts;
    _Atomic bool failed; /* the dispatch that runs has a fault that ends it */
};

/* device.c */
extern const struct emulator_runtime emulator_runtime;
uint64_t random_next(uint64_t *state);
/* A number below `limit`. */
uint32_t random_below(uint64_t *state, uint32_t limit);

/* commands.c: runs what was committed, up to and with `last`. */
void commands_run(struct metal_device *device, const struct metal_commands *last);

/* dispatch.c */
void dispatch_run(struct metal_device *device, struct dispatch *dispatch);
bool workers_open(struct metal_device *device, struct calla_error *error);
void workers_close(struct metal_device *device);

/* lanes.c */
struct worker *worker_current(void);
void worker_enter(struct worker *worker); /* NULL: leaves */
void lanes_run(struct worker *worker);    /* a threadgroup, to its end */
/* The lane that runs waits until its simdgroup, or its whole threadgroup, has come to the same request. */
void lane_wait(struct worker *worker, const struct request *request);
/* Ends the dispatch; does not return when a lane runs. */
void worker_abort(struct worker *worker);

/* Makes shared memory large enough; ends the dispatch if there is none. */
void shared_reserve(struct worker *worker, struct shared *shared, size_t size);

/* collectives.c: does what a complete simdgroup or threadgroup has asked for. */
void simdgroup_complete(struct worker *worker, struct simdgroup *simdgroup, struct lane *first);

/* memory.c */
void memory_access(const void *address, uint32_t size, uint32_t kind, const void *site);
void *memory_variable(uint32_t id, uint32_t size, uint32_t alignment, const char *name);
void memory_report_unwritten(struct worker *worker);
/* Whether the views share a byte. */
bool views_overlap(const struct metal_view *a, const struct metal_view *b);
void memory_poison(struct dispatch *dispatch);
void memory_check_written(struct metal_device *device, struct dispatch *dispatch);

/* report.c: notes a fault of the dispatch; `site` and `other` are places in the kernel or NULL. */
void report(struct metal_device *device, const struct dispatch *dispatch, enum metal_fault_kind kind,
            const void *site, const void *other, const char *format, ...) PRINTF_LIKE(6, 7);
/* "lane 3 of simdgroup 1 of threadgroup (0, 2, 0)" */
const char *lane_name(const struct worker *worker, uint32_t lane, char text[96]);
/* Whether two places come from one line of the source. */
bool same_line(const struct metal_library *library, const void *a, const void *b);

#endif
