/* What the launchers of ops of many rows share: rows made ready for the matrix units. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_PREFILL_CUH
#define CALLA_BACKEND_CUDA_KERNELS_PREFILL_CUH

#include "backend/cuda/kernels/launch.cuh"
#include "backend/cuda/prefill.h"

#include <cuda_bf16.h>

struct gemm_arguments;

/* Whether the kernels for Hopper are in this program and this is a Hopper GPU. */
bool prefill_on_hopper(const struct cuda_device *device);

/* Whether a matrix can be multiplied by the kernels of prefill_gemm.cuh and prefill_warps.cuh: `features`
 * rows an expert. */
static inline bool prefill_matrix(const struct cuda_view *matrix, uint32_t features) {
    return matrix->dtype == DTYPE_AFFINE4 && features % 16 == 0 && features > 0 && matrix->columns % 64 == 0;
}

/* A view of float32 or bf16 whose rows begin at multiples of 16 bytes. */
static inline bool prefill_aligned(const struct cuda_view *view) {
    uint32_t size = view->dtype == DTYPE_BF16 ? 2 : 4;
    return (uintptr_t)view->data % 16 == 0 && view->stride * size % 16 == 0 && view->columns * size % 16 == 0;
}

/* An op's input x[T,n], x or rms_norm(x) * norm, as dense bf16 rows in `memory`; the view of them. Rows that
 * are bf16 already and need no norm are taken where they are. */
static inline uint64_t prefill_rows_bytes(const struct cuda_view *x) {
    return x->dtype == DTYPE_BF16 ? 0 : ((uint64_t)x->rows * x->columns * 2 + 255) / 256 * 256;
}
cudaError_t prefill_rows(const struct cuda_view *x, const struct cuda_view *norm, float epsilon, void *memory,
                         struct cuda_view *rows, enum cuda_start start, cudaStream_t stream);

/* The experts' products (enum gemm_kind: GEMM_GATE_UP or GEMM_DOWN) for few rows an expert, on any GPU
 * from 8.0 on: prefill_stream.cuh. GEMM_DOWN writes bf16. */
bool prefill_stream_takes(int kind, const struct gemm_arguments &arguments, uint32_t pairs,
                          uint32_t scale_dtype, const struct cuda_device *device);
cudaError_t prefill_stream(int kind, const struct gemm_arguments &arguments, uint32_t pairs,
                           uint32_t out_dtype, uint32_t scale_dtype, const struct cuda_device *device,
                           cudaStream_t stream);

/* Products on GPUs other than Hopper's, from 8.0 on: prefill_warps.cuh. Of the experts' those whose scales
 * and biases are bf16, and which write bf16. */
cudaError_t prefill_warps_linear(const struct gemm_arguments &arguments, uint32_t scale_dtype,
                                 const struct cuda_device *device, cudaStream_t stream);
cudaError_t prefill_warps_experts(int kind, const struct gemm_arguments &arguments,
                                  const struct cuda_device *device, cudaStream_t stream);

#endif
