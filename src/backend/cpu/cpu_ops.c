/* Which functions compute an op. */
#include "backend/cpu/cpu.h"
#include "backend/reference/reference.h"

/* Ops that are too small to need more than the reference's definition. */
static size_t reference_units(const struct cpu_task *task) {
    return reference_ops[task->op->op.kind].units(task->op);
}

static void reference_run(const struct cpu_task *task, size_t begin, size_t end) {
    reference_ops[task->op->op.kind].run(task->op, begin, end, task->workspace);
}

static size_t reference_workspace(const struct cpu_task *task) {
    return reference_workspace_bytes(task->op);
}

static const struct cpu_op *const with_kernels[OP_KIND_COUNT] = {
    [OP_LINEAR] = &cpu_linear,
    [OP_HEAD] = &cpu_head,
    [OP_ROUTER] = &cpu_router,
    [OP_EXPERT_LINEAR] = &cpu_expert_linear,
    [OP_EXPERT_GATE_UP] = &cpu_expert_gate_up,
    [OP_EXPERT_DOWN] = &cpu_expert_down,
    [OP_HEAD_NORM] = &cpu_rms_norm,
    [OP_ROPE] = &cpu_rope,
    [OP_KV_WRITE] = &cpu_kv_write,
    [OP_QK_PREP] = &cpu_qk_prep,
    [OP_ATTENTION] = &cpu_attention,
    [OP_EXPERT_SORT] = &cpu_expert_sort,
    [OP_SWIGLU] = &cpu_swiglu,
    [OP_EXPERT_COMBINE] = &cpu_expert_combine,
    [OP_RMS_NORM] = &cpu_rms_norm,
    [OP_GATED_NORM] = &cpu_gated_norm,
    [OP_CONV_SILU] = &cpu_conv_silu,
    [OP_DELTA_GATES] = &cpu_delta_gates,
    [OP_DELTA_SCAN] = &cpu_delta_scan,
    [OP_DELTA_TAIL] = &cpu_delta_tail,
    [OP_DELTA_STEP] = &cpu_delta_step,
    [OP_SAMPLE] = &cpu_sample,
};

struct cpu_op cpu_op_of(enum op_kind kind) {
    if (with_kernels[kind] != NULL)
        return *with_kernels[kind];
    return (struct cpu_op){
        .units = reference_units, .run = reference_run, .workspace_bytes = reference_workspace};
}
