/* The fast kernels for one row: which ops they take, and how they are launched. */
#ifndef CALLA_BACKEND_CUDA_DECODE_H
#define CALLA_BACKEND_CUDA_DECODE_H

#include "backend/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

bool cuda_decode_linear_fits(const struct cuda_op *op, const struct cuda_device *device); /* and OP_HEAD */
bool cuda_decode_sum_fits(const struct cuda_op *op, const struct cuda_device *device);    /* OP_LINEAR */
bool cuda_decode_router_fits(const struct cuda_op *op, const struct cuda_device *device);
bool cuda_decode_gate_up_fits(const struct cuda_op *op, const struct cuda_device *device);
/* ops[0] and ops[1]: an OP_ROUTER and the OP_EXPERT_GATE_UP of what it chooses; the launcher, given ops[0],
 * computes both. */
bool cuda_decode_route_fits(const struct cuda_op *ops, const struct cuda_device *device);
bool cuda_decode_down_fits(const struct cuda_op *op, const struct cuda_device *device);
bool cuda_decode_delta_step_fits(const struct cuda_op *op, const struct cuda_device *device);
bool cuda_decode_qk_prep_fits(const struct cuda_op *op, const struct cuda_device *device);
bool cuda_decode_attention_fits(const struct cuda_op *op, const struct cuda_device *device);

cuda_launcher cuda_decode_linear_launch;
cuda_launcher cuda_decode_sum_launch;
cuda_launcher cuda_decode_router_launch;
cuda_workspace cuda_decode_router_workspace;
cuda_launcher cuda_decode_gate_up_launch;
cuda_launcher cuda_decode_route_launch;
cuda_launcher cuda_decode_down_launch;
cuda_launcher cuda_decode_delta_step_launch;
cuda_launcher cuda_decode_qk_prep_launch;
cuda_launcher cuda_decode_attention_launch;
cuda_workspace cuda_decode_attention_workspace;

#ifdef __cplusplus
}
#endif

#endif
