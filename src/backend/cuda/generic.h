/* Launchers that take any op of their kind: every shape, every type that op_check allows. They come last in
 * cuda_ops.c's lists. */
#ifndef CALLA_BACKEND_CUDA_GENERIC_H
#define CALLA_BACKEND_CUDA_GENERIC_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

cuda_launcher cuda_generic_embed, cuda_generic_linear, cuda_generic_head;
cuda_launcher cuda_generic_rms_norm, cuda_generic_gated_norm;
cuda_launcher cuda_generic_conv_silu, cuda_generic_delta_gates, cuda_generic_delta_scan;
cuda_launcher cuda_generic_delta_tail, cuda_generic_delta_step;
cuda_launcher cuda_generic_rope, cuda_generic_kv_write, cuda_generic_qk_prep, cuda_generic_attention;
cuda_launcher cuda_generic_router, cuda_generic_expert_sort, cuda_generic_expert_linear;
cuda_launcher cuda_generic_swiglu, cuda_generic_expert_combine;
cuda_launcher cuda_generic_expert_gate_up, cuda_generic_expert_down;
cuda_launcher cuda_generic_sample;

cuda_workspace cuda_generic_input_workspace; /* linear, head, router */
cuda_workspace cuda_generic_delta_tail_workspace, cuda_generic_delta_step_workspace;
cuda_workspace cuda_generic_expert_gate_up_workspace, cuda_generic_expert_down_workspace;
cuda_workspace cuda_generic_sample_workspace;

#ifdef __cplusplus
}
#endif

#endif
