/* OP_EXPERT_SORT on the host. */
#ifndef CALLA_BACKEND_CUDA_HOST_SORT_H
#define CALLA_BACKEND_CUDA_HOST_SORT_H

#include "backend/cuda/cuda.h"

bool cuda_host_sort_fits(const struct cuda_op *op, const struct cuda_device *device);
cuda_workspace cuda_host_sort_pinned;
cuda_launcher cuda_host_sort;

#endif
