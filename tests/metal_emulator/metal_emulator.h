/* The Metal emulator's own interface, beside metal_device.h, which it implements: what machine it plays, how
 * strictly it looks, and what it found. docs/metal-emulator.md describes it. */
#ifndef CALLA_METAL_EMULATOR_H
#define CALLA_METAL_EMULATOR_H

#include "backend/metal/metal_device.h"

struct metal_emulator_options {
    struct metal_facts facts;
    bool checked;       /* look at every load and store; else run fast, and trust the kernels */
    uint64_t seed;      /* of the order of lanes, simdgroups, threadgroups and dispatches; 0: all in order */
    int threads;        /* that run threadgroups when not checked; 0: one per processor core */
    bool padded_layout; /* cooperative tensors with another layout than an M5's, with gaps */
    /* Of matrix products. METAL_SUMS_WRONG: in tensor operations rows 8 and on are those from 0 on, as on a
     * system with a fault. */
    enum { METAL_SUMS_M5, METAL_SUMS_SEQUENTIAL, METAL_SUMS_REVERSED, METAL_SUMS_WRONG } sums;
    uint32_t pipeline_threads; /* maximum of every pipeline, as if kernels needed many registers; 0: 1024 */
    const char
        *fail_kernel; /* commands with this kernel fail, as a GPU's would that runs too long; or NULL */
    const char *refuse_kernel; /* of which no pipeline can be made, as if the compiler refused it; or NULL */
    uint64_t access_limit; /* loads and stores of one dispatch after which it counts as endless; 0: 2^32 */
};

/* An emulated M2 (no tensor operations, family 8), or an M5 with them; checked. */
struct metal_emulator_options metal_emulator_options(bool tensor_operations);

/* What devices opened by this thread from now on are. Before the first call: the M5, unless the environment
 * says otherwise: CALLA_EMULATOR_CHECKED=0 runs fast; SEED, FAMILY, MAX_BUFFER, PIPELINE_THREADS with the
 * same beginning are numbers; PADDED_LAYOUT=1; SUMS=sequential, reversed or wrong. */
void metal_emulator_use(const struct metal_emulator_options *options);

enum metal_fault_kind {
    METAL_FAULT_NONE,
    METAL_RACE_OF_SIMDGROUPS,   /* two simdgroups of a threadgroup, no barrier between */
    METAL_RACE_OF_LANES,        /* two lanes of a simdgroup, no barrier between */
    METAL_RACE_OF_THREADGROUPS, /* two threadgroups of a dispatch, not both atomic */
    METAL_RACE_OF_DISPATCHES,   /* two dispatches of one phase */
    METAL_RACE_WITH_HOST,       /* what committed commands see was changed by the processor before they ran */
    METAL_UNWRITTEN,            /* threadgroup memory read that nobody has written */
    METAL_LEFT_UNWRITTEN,       /* a byte of a METAL_ALL view that the dispatch did not write */
    METAL_OUTSIDE_BUFFER,
    METAL_OUTSIDE_OPERANDS, /* in a bound buffer, but in no view that allows this access */
    METAL_MISALIGNED,
    METAL_PARTIAL_SIMDGROUP, /* an operation of a simdgroup, reached by a part of it */
    METAL_PARTIAL_BARRIER,   /* a threadgroup's barrier, reached by a part of it */
    METAL_BAD_LANE,          /* a shuffle from a lane that is not there, or by different amounts */
    METAL_TOO_MUCH_THREADGROUP_MEMORY,
    METAL_TOO_MANY_THREADS, /* for the pipeline */
    METAL_BAD_BINDING,      /* slots: missing, too small, misaligned; sizes that cannot be */
    METAL_BAD_TENSOR,       /* tensor operations used as they must not be */
    METAL_ENDLESS,
    METAL_FAULT_COUNT
};

/* A fault is reported once for each pair of places in the source, and ends the commands that it is found in:
 * metal_commands_wait then fails with the first one's text. */
struct metal_fault {
    enum metal_fault_kind kind;
    char kernel[64];
    char text[512];
};

/* The faults of all commands of the device so far; cleared by metal_emulator_forget. */
uint32_t metal_emulator_faults(const struct metal_device *device, const struct metal_fault **faults);
void metal_emulator_forget(struct metal_device *device);

/* What was done since the device was opened. */
struct metal_emulator_counts {
    uint64_t command_buffers, dispatches, barriers, buffers;
    uint64_t objects; /* buffers, pipelines, libraries and what holds command buffers */
    uint64_t
        trace; /* a hash of all dispatches so far (kernels, constants, grids, phases), commits and waits */
};
struct metal_emulator_counts metal_emulator_counts(const struct metal_device *device);

#endif
