/* The GPU as the Metal backend sees it: a narrow C interface with two implementations. metal_device.m is the
 * real one, thin Objective-C over Metal; tests/metal_emulator/ runs the same kernels on any computer and
 * checks what they do. Whatever can be decided without a GPU is decided above this interface, in plain C.
 *
 * The one idea: work is *encoded* into commands, committed, and waited for. A kernel sees memory only through
 * the slots that were set for its dispatch, and each slot says which bytes of its buffer the kernel may read
 * and write. A GPU takes no notice of that; the emulator holds every load and store against it.
 *
 * Objects belong to one thread at a time. All objects of a device must be freed before it is closed. */
#ifndef CALLA_BACKEND_METAL_METAL_DEVICE_H
#define CALLA_BACKEND_METAL_METAL_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define METAL_BUFFER_SLOTS 31
#define METAL_MAX_BYTES 4096              /* of one metal_set_bytes */
#define METAL_MAX_THREADGROUP_BYTES 32768 /* of one threadgroup, static and dynamic together */
#define METAL_SIMD_WIDTH 32

struct metal_device;
struct metal_buffer;
struct metal_library;
struct metal_pipeline;
struct metal_commands;

/* ---- The device */

struct metal_facts {
    char name[64];         /* "Apple M2 Max" */
    char architecture[64]; /* "applegpu_g14s", "" where the system does not say */
    char system[64];       /* "macOS 15.1" */
    uint32_t family;       /* the largest n with MTLGPUFamilyApple<n>: 7 is M1, 9 M3 and M4, 10 M5; 0 none */
    uint32_t language;     /* the newest language version that it compiles, as METAL_LANGUAGE(major, minor) */
    bool tensor_operations; /* matrix units in the GPU, and a system with the Metal 4 tensor operations */
    bool residency_sets;    /* macOS 15 and later: metal_make_resident does something */
    uint64_t working_set;   /* recommended maximum of all buffers in use, bytes */
    uint64_t max_buffer;    /* of one buffer, bytes */
    uint32_t max_threads;   /* of a threadgroup, whatever the pipeline */
    uint32_t threadgroup_bytes;
    size_t page_size; /* of metal_buffer_wrap */
};

#define METAL_LANGUAGE(major, minor) ((uint32_t)(major) << 16 | (uint32_t)(minor))

/* The system's default GPU with a command queue of its own. Fails when there is none, or when it is not an
 * Apple GPU. */
struct metal_device *metal_device_open(struct calla_error *error);

/* Everything that was committed must have been waited for. NULL is allowed. */
void metal_device_close(struct metal_device *device);

const struct metal_facts *metal_device_facts(const struct metal_device *device);

/* ---- Buffers: memory that processor and GPU share. Hazards are not tracked: a dispatch sees what an earlier
 * one wrote only after a barrier or in later commands. */

/* `size` > 0 bytes, zero, aligned to a page. `label` is kept for error messages and tools. */
struct metal_buffer *metal_buffer_new(struct metal_device *device, uint64_t size, const char *label,
                                      struct calla_error *error);

/* The same over memory that is there already, such as a mapped file; nothing is copied. `pages` is aligned to
 * the page size and `size` a multiple of it. The memory stays the caller's and must stay mapped until the
 * buffer is freed; where it is mapped read-only, no kernel may write it. */
struct metal_buffer *metal_buffer_wrap(struct metal_device *device, void *pages, uint64_t size,
                                       const char *label, struct calla_error *error);

/* No commands that use it may be running. NULL is allowed. */
void metal_buffer_free(struct metal_buffer *buffer);

/* The bytes, for the processor. What it wrote before commands were committed they see; what they wrote it
 * sees after metal_commands_wait; anything between is a race. The pointer is good until the buffer is freed.
 */
void *metal_buffer_contents(const struct metal_buffer *buffer);
uint64_t metal_buffer_size(const struct metal_buffer *buffer);

/* Keeps these buffers wired into GPU memory until they are freed, which spares the first commands after a
 * pause their page faults. Does nothing where the system has no residency sets. */
bool metal_make_resident(struct metal_device *device, struct metal_buffer *const *buffers, uint32_t count,
                         struct calla_error *error);

/* ---- Kernels */

/* What the build made of a set of .metal files. */
struct metal_sources {
    const char *name;     /* "kernels", "tensor_kernels": the emulator finds what it compiled by it */
    uint32_t language;    /* METAL_LANGUAGE of `text` */
    const char *text;     /* one text without includes of the program's own; NULL where there is a metallib */
    const void *metallib; /* or NULL */
    size_t metallib_size;
};

/* Loads the metallib, or compiles the text, without fast math: a kernel that wants an approximate function
 * names it (fast::exp). The error has the compiler's words. */
struct metal_library *metal_library_new(struct metal_device *device, const struct metal_sources *sources,
                                        struct calla_error *error);

/* Its pipelines stay good. NULL is allowed. */
void metal_library_free(struct metal_library *library);

/* The value of `constant T name [[function_constant(index)]]`. */
struct metal_constant {
    uint32_t index;
    enum { METAL_BOOL, METAL_INT, METAL_UINT, METAL_FLOAT } type;
    union {
        bool boolean;
        int32_t integer;
        uint32_t unsigned_integer;
        float real;
    } value;
};

struct metal_limits {
    uint32_t max_threads; /* of a threadgroup: fewer than the device's where the kernel needs registers */
    uint32_t
        threadgroup_bytes; /* that the kernel declares itself; the emulator learns it as the kernel runs */
};

/* The kernel `function` with all function constants that it uses given. */
struct metal_pipeline *metal_pipeline_new(struct metal_library *library, const char *function,
                                          const struct metal_constant *constants, uint32_t constant_count,
                                          struct calla_error *error);
void metal_pipeline_free(struct metal_pipeline *pipeline);
const struct metal_limits *metal_pipeline_limits(const struct metal_pipeline *pipeline);
const char *metal_pipeline_name(const struct metal_pipeline *pipeline);

/* ---- Commands
 *
 *   metal_commands_begin(commands, concurrent, &error)
 *   for each dispatch: metal_set_pipeline, metal_set_buffer ..., metal_dispatch; metal_barrier where a phase
 * ends metal_commands_commit(commands, &error) metal_commands_wait(commands, &error)
 *
 * Commands run in the order in which they were committed, each after all of the one before it. Two objects
 * used in turn keep the GPU busy: one runs while the other is encoded. What was set stays set until it is set
 * anew or the commands begin anew, as in Metal. A mistake in a metal_set_... or metal_dispatch... (a slot, a
 * size or a number of threads that cannot be) does not stop the encoding; the commit then fails with the
 * first one. */

struct metal_commands *metal_commands_new(struct metal_device *device, const char *label,
                                          struct calla_error *error);

/* Not while they run. NULL is allowed. */
void metal_commands_free(struct metal_commands *commands);

/* Starts anew; not while they run. `concurrent`: dispatches may overlap up to the next metal_barrier; else
 * each sees all that those before it wrote. */
bool metal_commands_begin(struct metal_commands *commands, bool concurrent, struct calla_error *error);

void metal_set_pipeline(struct metal_commands *commands, const struct metal_pipeline *pipeline);

enum metal_access {
    METAL_READ = 1,
    METAL_WRITE = 2,
    /* With METAL_WRITE alone: every byte of the view is written whatever it held. The emulator fills it with
     * NaNs first and says which bytes were left. */
    METAL_ALL = 4
};

/* What a kernel gets in a slot, and what it may touch through it: `rows` pieces of `row_bytes`, `stride`
 * bytes from the start of one to the next. A view of everything from `offset` has one row. */
struct metal_view {
    struct metal_buffer *buffer;
    uint64_t offset; /* of the pointer that the kernel gets; a multiple of its element type's alignment */
    uint64_t rows, row_bytes, stride;
    uint32_t access; /* enum metal_access */
};

/* A view without gaps of `size` bytes. */
static inline struct metal_view metal_bytes(struct metal_buffer *buffer, uint64_t offset, uint64_t size,
                                            uint32_t access) {
    return (struct metal_view){buffer, offset, 1, size, size, access};
}

/* [[buffer(slot)]], slot < METAL_BUFFER_SLOTS. A kernel that touches parts that do not make one view (the
 * codes, scales and biases of a weight) gets several slots. */
void metal_set_buffer(struct metal_commands *commands, uint32_t slot, const struct metal_view *view);

/* The same with a copy of up to METAL_MAX_BYTES bytes, read-only. */
void metal_set_bytes(struct metal_commands *commands, uint32_t slot, const void *bytes, size_t size);

/* [[threadgroup(index)]]: `size` bytes for each threadgroup, a multiple of 16. */
void metal_set_threadgroup_memory(struct metal_commands *commands, uint32_t index, uint32_t size);

struct metal_size {
    uint32_t x, y, z;
};

/* Runs the pipeline on groups.x * groups.y * groups.z threadgroups of threads.x * threads.y * threads.z
 * threads. No count is 0. */
void metal_dispatch(struct metal_commands *commands, struct metal_size groups, struct metal_size threads);

/* The same with the counts of groups read from three uint32 at `offset` (a multiple of 4) when the dispatch
 * runs; 0 is allowed and runs nothing. It counts as a read of those 12 bytes. */
void metal_dispatch_indirect(struct metal_commands *commands, struct metal_buffer *buffer, uint64_t offset,
                             struct metal_size threads);

/* What comes after waits for, and sees, all that came before. To be called at the end of each phase, of
 * serial commands too, where their order alone does it. */
void metal_barrier(struct metal_commands *commands);

/* Hands them to the GPU, which may start at once. */
bool metal_commands_commit(struct metal_commands *commands, struct calla_error *error);

/* Sleeps until they have run. False with the reason, and the kernel as far as it is known, when they failed:
 * too long, out of memory, a bad address. Sessions whose commands failed are lost; when the GPU refuses all
 * work from then on (`metal_device_lost`), so is the device. Waiting twice gives the same answer. */
bool metal_commands_wait(struct metal_commands *commands, struct calla_error *error);

enum metal_status {
    METAL_IDLE,     /* never committed */
    METAL_ENCODING, /* begun */
    METAL_RUNNING,  /* committed */
    METAL_COMPLETED,
    METAL_FAILED
};

/* Without waiting. */
enum metal_status metal_commands_status(const struct metal_commands *commands);

/* Whether an error was of the kind after which a GPU ignores what else is committed. */
bool metal_device_lost(const struct metal_device *device);

/* When they ran, in seconds of one clock, after a wait that succeeded; zeros where the system does not tell.
 */
struct metal_times {
    double gpu_start, gpu_end;
};

struct metal_times metal_commands_times(const struct metal_commands *commands);

#endif
