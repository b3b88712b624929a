/* Launchers for ops of many rows, on any GPU from 8.0 on; where Hopper's matrix units are worth kernels of
 * their own the launchers choose. Each has a function that says which ops it takes; cuda_ops.c asks. */
#ifndef CALLA_BACKEND_CUDA_PREFILL_H
#define CALLA_BACKEND_CUDA_PREFILL_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x W^T for 4-bit matrices; OP_HEAD too */
bool cuda_prefill_linear_fits(const struct cuda_op *op, const struct cuda_device *device);
cuda_workspace cuda_prefill_linear_workspace;
cuda_launcher cuda_prefill_linear;

/* The experts */
bool cuda_prefill_router_fits(const struct cuda_op *op, const struct cuda_device *device);
cuda_workspace cuda_prefill_router_workspace;
cuda_launcher cuda_prefill_router;
bool cuda_prefill_expert_sort_fits(const struct cuda_op *op, const struct cuda_device *device);
cuda_launcher cuda_prefill_expert_sort;
bool cuda_prefill_expert_gate_up_fits(const struct cuda_op *op, const struct cuda_device *device);
cuda_workspace cuda_prefill_expert_gate_up_workspace;
cuda_launcher cuda_prefill_expert_gate_up;
bool cuda_prefill_expert_down_fits(const struct cuda_op *op, const struct cuda_device *device);
cuda_workspace cuda_prefill_expert_down_workspace;
cuda_launcher cuda_prefill_expert_down;

/* Heads of 256 over a bf16 cache */
bool cuda_prefill_attention_fits(const struct cuda_op *op, const struct cuda_device *device);
cuda_launcher cuda_prefill_attention;

/* The delta layers: heads of 128 */
bool cuda_prefill_conv_silu_fits(const struct cuda_op *op, const struct cuda_device *device);
cuda_launcher cuda_prefill_conv_silu;
bool cuda_prefill_delta_scan_fits(const struct cuda_op *op, const struct cuda_device *device);
cuda_launcher cuda_prefill_delta_scan;
bool cuda_prefill_delta_chunks_fits(const struct cuda_op *op, const struct cuda_device *device);
cuda_workspace cuda_prefill_delta_chunks_workspace;
cuda_launcher cuda_prefill_delta_chunks;
bool cuda_prefill_gated_norm_fits(const struct cuda_op *op, const struct cuda_device *device);
cuda_launcher cuda_prefill_gated_norm;

#ifdef __cplusplus
}
#endif

#endif
