/* Norms over the last dimension: a block a row, or a head of it. */
#include "backend/cuda/kernels/generic.cuh"

#define BLOCK 128

/* 1 / sqrt(mean(x^2) + epsilon) */
__device__ static float rms_scale(const float *x, uint32_t count, float epsilon) {
    __shared__ float sums[WARP];
    float sum = 0;
    for (uint32_t i = threadIdx.x; i < count; i += BLOCK)
        sum += x[i] * x[i];
    return 1.0f / sqrtf(block_sum(sum, sums) / count + epsilon);
}

/* x[T,n], weight[n] -> y[T,n] = x rms_scale(x) weight */
__global__ static void rms_norm(const cuda_view x, const cuda_view weight, const cuda_view y, float epsilon) {
    begin();
    const float *in = float_row(x, blockIdx.x);
    float scale = rms_scale(in, x.columns, epsilon);
    for (uint32_t i = threadIdx.x; i < x.columns; i += BLOCK)
        float_row(y, blockIdx.x)[i] = in[i] * scale * vector_at(weight, i);
}

/* x[T,Hv*Dv], z[T,Hv*Dv], weight[Dv] -> y[T,Hv*Dv]: per head x rms_scale(x) weight silu(z); y may be x */
__global__ static void gated_norm(const cuda_view x, const cuda_view z, const cuda_view weight,
                                  const cuda_view y, float epsilon) {
    begin();
    uint32_t size = weight.columns, heads = x.columns / size;
    uint32_t row = blockIdx.x / heads, first = blockIdx.x % heads * size;
    const float *in = float_row(x, row) + first;
    float scale = rms_scale(in, size, epsilon);
    for (uint32_t i = threadIdx.x; i < size; i += BLOCK)
        float_row(y, row)[first + i] =
            in[i] * scale * vector_at(weight, i) * silu(float_row(z, row)[first + i]);
}

extern "C" cudaError_t cuda_generic_rms_norm(const cuda_op *op, const cuda_device *device, void *,
                                             cudaStream_t stream) {
    return cuda_launch(rms_norm, cuda_overlap(device), op->views[0].rows, BLOCK, 0, stream, op->views[0],
                       op->views[1], op->views[2], op->op.constants.epsilon);
}

extern "C" uint64_t cuda_generic_input_workspace(const cuda_op *op, const cuda_device *) {
    const cuda_view &x = op->views[0];
    return op->op.constants.normalise ? sizeof(float) * static_cast<uint64_t>(x.rows) * x.columns : 0;
}

cudaError_t cuda_generic_input(const cuda_op *op, const cuda_device *device, void *workspace, cuda_view *x,
                               cudaStream_t stream) {
    *x = op->views[0];
    if (!op->op.constants.normalise)
        return cudaSuccess;
    *x = workspace_view(workspace, x->rows, x->columns);
    return cuda_launch(rms_norm, cuda_overlap(device), x->rows, BLOCK, 0, stream, op->views[0], op->views[1],
                       *x, op->op.constants.epsilon);
}

cudaError_t cuda_generic_gated_norm_views(const cuda_view &x, const cuda_view &z, const cuda_view &weight,
                                          const cuda_view &y, float epsilon, const cuda_device *device,
                                          cudaStream_t stream) {
    return cuda_launch(gated_norm, cuda_overlap(device), x.rows * (x.columns / weight.columns), BLOCK, 0,
                       stream, x, z, weight, y, epsilon);
}

extern "C" cudaError_t cuda_generic_gated_norm(const cuda_op *op, const cuda_device *device, void *,
                                               cudaStream_t stream) {
    return cuda_generic_gated_norm_views(op->views[0], op->views[1], op->views[2], op->views[3],
                                         op->op.constants.epsilon, device, stream);
}
