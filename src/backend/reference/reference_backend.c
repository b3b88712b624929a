/* The reference backend: the ops of a plan one after the other, on the caller's thread. */
#include "backend/reference/reference.h"

static struct backend *reference_open(const struct backend_options *options, struct calla_error *error) {
    (void)options;
    return host_open(&reference_backend, 1, error);
}

static bool reference_run(struct device_session *session, struct program *program,
                          struct calla_error *error) {
    (void)session;
    if (!host_check_position(program, error))
        return false;
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct bound_op *op = &program->ops[i];
        const struct reference_op *reference = &reference_ops[op->op.kind];
        reference->run(op, 0, reference->units(op), program->workspaces[0].data);
    }
    return true;
}

const struct backend_class reference_backend = {
    .name = "reference",
    .open = reference_open,
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
    .run = reference_run,
};
