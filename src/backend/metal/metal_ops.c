/* Which kernels compute an op: for each kind a list, of which the first that fits is taken. */
#include "backend/metal/metal_backend.h"

static const struct metal_kernel *const kernels[OP_KIND_COUNT] = {
    [OP_EMBED] = metal_embed,
    [OP_RMS_NORM] = metal_rms_norm,
    [OP_LINEAR] = metal_linear,
    [OP_CONV_SILU] = metal_conv_silu,
    [OP_DELTA_GATES] = metal_delta_gates,
    [OP_DELTA_SCAN] = metal_delta_scan,
    [OP_GATED_NORM] = metal_gated_norm,
    [OP_DELTA_TAIL] = metal_delta_tail,
    [OP_DELTA_STEP] = metal_delta_step,
    [OP_HEAD_NORM] = metal_head_norm,
    [OP_ROPE] = metal_rope,
    [OP_KV_WRITE] = metal_kv_write,
    [OP_QK_PREP] = metal_qk_prep,
    [OP_ATTENTION] = metal_attention,
    [OP_ROUTER] = metal_router,
    [OP_EXPERT_SORT] = metal_expert_sort,
    [OP_EXPERT_LINEAR] = metal_expert_linear,
    [OP_SWIGLU] = metal_swiglu,
    [OP_EXPERT_COMBINE] = metal_expert_combine,
    [OP_EXPERT_GATE_UP] = metal_expert_gate_up,
    [OP_EXPERT_DOWN] = metal_expert_down,
    [OP_HEAD] = metal_head,
    [OP_SAMPLE] = metal_sample,
};

const struct metal_kernel *metal_kernel_of(const struct metal_op *op, const struct metal_encoder *encoder) {
    const struct metal_kernel *kernel = kernels[op->op->kind];
    while (kernel != NULL && kernel->fits != NULL && !kernel->fits(op, encoder))
        kernel++;
    return kernel;
}
