/* The CPU backend: the reference's functions on all worker threads. The units of all ops of a phase are cut
 * into slices that the threads take one by one; they meet at the phase's end. */
#include <stdatomic.h>

#include "backend/reference/reference.h"

/* Slices that an op is cut into, a thread: enough to even out slices of unequal work. */
#define SLICES_PER_THREAD 4

struct phase {
    const struct program *program;
    const struct bound_op *ops;
    uint32_t op_count;
    size_t slices; /* an op */
    atomic_size_t next;
};

/* What one thread does: slices until there are none. Its number picks its workspace. */
static void work(void *argument, size_t thread) {
    struct phase *phase = argument;
    for (;;) {
        size_t task = atomic_fetch_add_explicit(&phase->next, 1, memory_order_relaxed);
        if (task >= phase->op_count * phase->slices)
            return;
        const struct bound_op *op = &phase->ops[task / phase->slices];
        const struct reference_op *reference = &reference_ops[op->op.kind];
        size_t units = reference->units(op), slice = task % phase->slices;
        size_t begin = units * slice / phase->slices, end = units * (slice + 1) / phase->slices;
        if (begin < end)
            reference->run(op, begin, end, phase->program->workspaces[thread].data);
    }
}

static bool cpu_run(struct device_session *session, struct program *program, struct calla_error *error) {
    if (!host_check_position(program, error))
        return false;
    size_t threads = (size_t)threads_count(session->backend->threads);
    for (uint32_t first = 0, last; first < program->op_count; first = last) {
        for (last = first + 1; last < program->op_count; last++)
            if (program->ops[last].op.phase != program->ops[first].op.phase)
                break;
        struct phase phase = {.program = program,
                              .ops = &program->ops[first],
                              .op_count = last - first,
                              .slices = threads == 1 ? 1 : threads * SLICES_PER_THREAD};
        atomic_init(&phase.next, 0);
        threads_run(session->backend->threads, work, &phase, threads);
    }
    return true;
}

static struct backend *cpu_open(const struct backend_options *options, struct calla_error *error) {
    return host_open(&cpu_backend, options->threads, error);
}

const struct backend_class cpu_backend = {
    .name = "cpu",
    .open = cpu_open,
    .close = host_close,
    .threads = host_threads,
    .load = host_load,
    .session_open = host_session_open,
    .session_close = host_session_close,
    .write = host_write,
    .read = host_read,
    .reset = host_reset,
    .compile = host_compile,
    .program_free = host_program_free,
    .run = cpu_run,
};
