/* The reference backend: the ops of a plan one after the other, on the caller's thread. */
#include "backend/reference/reference.h"

static struct backend *reference_open(const struct backend_options *options, struct calla_error *error) {
    (void)options;
    return host_open(&reference_backend, sizeof(struct host_backend), 1, error);
}

static struct program *reference_compile(struct device_session *session, const struct plan *plan,
                                         struct calla_error *error) {
    struct program *program = host_compile(session, plan, sizeof *program, error);
    size_t bytes = 0;
    for (uint32_t i = 0; program != NULL && i < program->op_count; i++) {
        size_t needed = reference_workspace_bytes(&program->ops[i]);
        bytes = needed > bytes ? needed : bytes;
    }
    if (program != NULL && host_reserve_workspaces(session->backend, bytes, error))
        return program;
    host_program_free(program);
    return NULL;
}

static bool reference_run(struct device_session *session, struct program *program, double seconds,
                          bool *finished, struct calla_error *error) {
    (void)seconds;
    *finished = true;
    if (!host_ready(session, program, error))
        return false;
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct bound_op *op = &program->ops[i];
        const struct reference_op *reference = &reference_ops[op->op.kind];
        reference->run(op, 0, reference->units(op), session->backend->workspaces[0].data);
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
    .compile = reference_compile,
    .program_free = host_program_free,
    .run = reference_run,
    .snapshot_take = host_snapshot_take,
    .snapshot_restore = host_snapshot_restore,
    .snapshot_read = host_snapshot_read,
    .snapshot_free = host_snapshot_free,
    .snapshot_cost = host_snapshot_cost,
    .snapshot_bytes = host_snapshot_bytes,
};
