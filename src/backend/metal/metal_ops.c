/* Which kernels compute an op: for each kind a list, of which the first that fits is taken. */
#include "backend/metal/metal_backend.h"

static const struct metal_kernel *const kernels[OP_KIND_COUNT] = {
    [OP_EMBED] = metal_embed,           [OP_RMS_NORM] = metal_rms_norm,
    [OP_GATED_NORM] = metal_gated_norm, [OP_HEAD_NORM] = metal_head_norm,
    [OP_SWIGLU] = metal_swiglu,         [OP_EXPERT_COMBINE] = metal_expert_combine,
    [OP_SAMPLE] = metal_sample,
};

const struct metal_kernel *metal_kernel_of(const struct metal_op *op, const struct metal_encoder *encoder) {
    const struct metal_kernel *kernel = kernels[op->op->kind];
    while (kernel != NULL && kernel->fits != NULL && !kernel->fits(op, encoder))
        kernel++;
    return kernel;
}
