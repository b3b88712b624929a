/* Rows made ready for the matrix units: normalised if need be, and rounded to bf16, once for all that
 * multiply them. */
#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/prefill.cuh"

#define BLOCK 256

/* Holds the more shared memory the more it was compiled for, so that the host can tell. */
__global__ static void probe(int *x) {
#ifdef CALLA_HOPPER
    __shared__ int held[256];
    held[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = held[255 - threadIdx.x];
#else
    x[threadIdx.x] = 0;
#endif
}

bool prefill_on_hopper(const struct cuda_device *device) {
    struct cudaFuncAttributes attributes;
    return device->major == 9 && device->minor == 0 &&
           cudaFuncGetAttributes(&attributes, (const void *)probe) == cudaSuccess &&
           attributes.sharedSizeBytes >= 256 * sizeof(int);
}

/* x[T,n] -> y[T,n]: bf16(x rms_scale(x) weight), or bf16(x) without a weight. A block a row; n % 4 == 0. */
__global__ static void __launch_bounds__(BLOCK) to_bf16(const float *x, uint64_t stride, const float *weight,
                                                        float epsilon, __nv_bfloat16 *y, uint32_t columns) {
    __shared__ float sums[BLOCK / 32];
    cuda_let_next_start();
    cuda_await_previous();
    const float *row = x + blockIdx.x * stride;
    float scale = 1;
    if (weight != NULL) {
        float sum = 0;
        for (uint32_t i = 4 * threadIdx.x; i < columns; i += 4 * BLOCK) {
            float4 v = *(const float4 *)(row + i);
            sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        }
        for (int step = 16; step > 0; step /= 2)
            sum += __shfl_xor_sync(~0u, sum, step);
        if (threadIdx.x % 32 == 0)
            sums[threadIdx.x / 32] = sum;
        __syncthreads();
        sum = 0;
        for (int i = 0; i < BLOCK / 32; i++)
            sum += sums[i];
        scale = 1.0f / sqrtf(sum / columns + epsilon);
    }
    for (uint32_t i = 4 * threadIdx.x; i < columns; i += 4 * BLOCK) {
        float4 v = *(const float4 *)(row + i);
        if (weight != NULL) {
            float4 w = *(const float4 *)(weight + i);
            v = make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
        }
        __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
        *(uint2 *)(y + (uint64_t)blockIdx.x * columns + i) = *(uint2 *)pairs;
    }
}

cudaError_t prefill_rows(const struct cuda_view *x, const struct cuda_view *norm, float epsilon, void *memory,
                         struct cuda_view *rows, enum cuda_start start, cudaStream_t stream) {
    *rows = *x;
    if (x->dtype == DTYPE_BF16)
        return cudaSuccess;
    rows->data = memory;
    rows->dtype = DTYPE_BF16;
    rows->stride = x->columns;
    return cuda_launch(to_bf16, start, x->rows, BLOCK, 0, stream, (const float *)x->data, x->stride,
                       norm == NULL ? NULL : (const float *)norm->data, epsilon, (__nv_bfloat16 *)memory,
                       x->columns);
}
