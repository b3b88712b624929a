/* Which kernels compute an op: for each kind a list, of which the first that fits is taken. A kernel may also
 * compute the op after its own. */
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/decode.h"
#include "backend/cuda/generic.h"
#include "backend/cuda/host_sort.h"
#include "backend/cuda/prefill.h"

#define MAX_KERNELS 6

static const struct cuda_kernel kernels[OP_KIND_COUNT][MAX_KERNELS] = {
    [OP_EMBED] = {{NULL, NULL, cuda_generic_embed, NULL}},
    [OP_RMS_NORM] = {{NULL, NULL, cuda_generic_rms_norm, NULL}},
    [OP_LINEAR] = {{cuda_decode_sum_fits, NULL, cuda_decode_sum_launch, NULL},
                   {cuda_decode_linear_fits, NULL, cuda_decode_linear_launch, NULL},
                   {cuda_prefill_linear_fits, cuda_prefill_linear_workspace, cuda_prefill_linear, NULL},
                   {NULL, cuda_generic_input_workspace, cuda_generic_linear, NULL}},
    [OP_CONV_SILU] = {{cuda_prefill_conv_silu_fits, NULL, cuda_prefill_conv_silu, NULL},
                      {NULL, NULL, cuda_generic_conv_silu, NULL}},
    [OP_DELTA_GATES] = {{NULL, NULL, cuda_generic_delta_gates, NULL}},
    [OP_DELTA_SCAN] = {{cuda_prefill_delta_chunks_fits, cuda_prefill_delta_chunks_workspace,
                        cuda_prefill_delta_chunks, NULL},
                       {cuda_prefill_delta_scan_fits, NULL, cuda_prefill_delta_scan, NULL},
                       {NULL, NULL, cuda_generic_delta_scan, NULL}},
    [OP_GATED_NORM] = {{cuda_prefill_gated_norm_fits, NULL, cuda_prefill_gated_norm, NULL},
                       {NULL, NULL, cuda_generic_gated_norm, NULL}},
    [OP_DELTA_TAIL] = {{NULL, cuda_generic_delta_tail_workspace, cuda_generic_delta_tail, NULL}},
    [OP_DELTA_STEP] = {{cuda_decode_delta_step_fits, NULL, cuda_decode_delta_step_launch, NULL},
                       {NULL, cuda_generic_delta_step_workspace, cuda_generic_delta_step, NULL}},
    [OP_HEAD_NORM] = {{NULL, NULL, cuda_generic_rms_norm, NULL}},
    [OP_ROPE] = {{NULL, NULL, cuda_generic_rope, NULL}},
    [OP_KV_WRITE] = {{NULL, NULL, cuda_generic_kv_write, NULL}},
    [OP_QK_PREP] = {{cuda_decode_qk_prep_fits, NULL, cuda_decode_qk_prep_launch, NULL},
                    {NULL, NULL, cuda_generic_qk_prep, NULL}},
    [OP_ATTENTION] = {{cuda_decode_attention_fits, cuda_decode_attention_workspace,
                       cuda_decode_attention_launch, NULL},
                      {cuda_prefill_attention_fits, NULL, cuda_prefill_attention, NULL},
                      {NULL, NULL, cuda_generic_attention, NULL}},
    [OP_ROUTER] = {{cuda_decode_router_fits, cuda_decode_router_workspace, cuda_decode_router_launch, NULL},
                   {cuda_prefill_router_fits, cuda_prefill_router_workspace, cuda_prefill_router, NULL},
                   {NULL, cuda_generic_input_workspace, cuda_generic_router, NULL}},
    [OP_EXPERT_SORT] = {{cuda_host_sort_fits, NULL, cuda_host_sort, cuda_host_sort_pinned},
                        {cuda_prefill_expert_sort_fits, NULL, cuda_prefill_expert_sort, NULL},
                        {NULL, NULL, cuda_generic_expert_sort, NULL}},
    [OP_EXPERT_LINEAR] = {{NULL, NULL, cuda_generic_expert_linear, NULL}},
    [OP_SWIGLU] = {{NULL, NULL, cuda_generic_swiglu, NULL}},
    [OP_EXPERT_COMBINE] = {{NULL, NULL, cuda_generic_expert_combine, NULL}},
    [OP_EXPERT_GATE_UP] = {{cuda_decode_gate_up_fits, NULL, cuda_decode_gate_up_launch, NULL},
                           {cuda_prefill_expert_gate_up_fits, cuda_prefill_expert_gate_up_workspace,
                            cuda_prefill_expert_gate_up, NULL},
                           {NULL, cuda_generic_expert_gate_up_workspace, cuda_generic_expert_gate_up, NULL}},
    [OP_EXPERT_DOWN] = {{cuda_decode_down_fits, NULL, cuda_decode_down_launch, NULL},
                        {cuda_prefill_expert_down_fits, cuda_prefill_expert_down_workspace,
                         cuda_prefill_expert_down, NULL},
                        {NULL, cuda_generic_expert_down_workspace, cuda_generic_expert_down, NULL}},
    [OP_HEAD] = {{cuda_decode_linear_fits, NULL, cuda_decode_linear_launch, NULL},
                 {cuda_prefill_linear_fits, cuda_prefill_linear_workspace, cuda_prefill_linear, NULL},
                 {NULL, cuda_generic_input_workspace, cuda_generic_head, NULL}},
    [OP_SAMPLE] = {{NULL, cuda_generic_sample_workspace, cuda_generic_sample, NULL}},
};

static const struct cuda_kernel *kernel_of(const struct cuda_op *op, const struct cuda_device *device) {
    const struct cuda_kernel *kernel = kernels[op->op.kind];
    while (kernel->fits != NULL && !kernel->fits(op, device))
        kernel++;
    return kernel;
}

static cudaError_t launch_nothing(const struct cuda_op *op, const struct cuda_device *device, void *workspace,
                                  cudaStream_t stream) {
    (void)op;
    (void)device;
    (void)workspace;
    (void)stream;
    return cudaSuccess;
}

/* A router's kernel that computes the op after it too, and what is left of that one. */
static const struct cuda_kernel route = {.launch = cuda_decode_route_launch};
static const struct cuda_kernel covered = {.launch = launch_nothing};

void cuda_choose_kernels(const struct cuda_op *ops, uint32_t count, const struct cuda_device *device,
                         const struct cuda_kernel **chosen) {
    for (uint32_t i = 0; i < count; i++) {
        if (i + 1 < count && cuda_decode_route_fits(&ops[i], device)) {
            chosen[i++] = &route;
            chosen[i] = &covered;
        } else {
            chosen[i] = kernel_of(&ops[i], device);
        }
    }
}
