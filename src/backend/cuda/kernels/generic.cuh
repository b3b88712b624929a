/* What the generic kernels share: elements of views of any type, sums over a warp or a block. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_GENERIC_CUH
#define CALLA_BACKEND_CUDA_KERNELS_GENERIC_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/generic.h"
#include "backend/cuda/kernels/launch.cuh"

#define WARP 32
#define ALL_LANES 0xffffffffu

/* What every generic kernel does first. Blocks of the next kernel that wait take room from those of a large
 * grid. */
#define SMALL_GRID 1024
__device__ static inline void begin() {
    if (gridDim.x * gridDim.y * gridDim.z <= SMALL_GRID)
        cuda_let_next_start();
    cuda_await_previous();
}

/* A row of a buffer of float32, int32. */
__device__ static inline float *float_row(const cuda_view &view, uint64_t row) {
    return static_cast<float *>(view.data) + row * view.stride;
}

__device__ static inline int32_t *int_row(const cuda_view &view, uint64_t row) {
    return static_cast<int32_t *>(view.data) + row * view.stride;
}

__device__ static inline step_record *record_of(const cuda_view &view) {
    return static_cast<step_record *>(view.data);
}

/* Element `index` of an array of floats of any width. */
__device__ static inline float float_at(const void *array, uint32_t dtype, uint64_t index) {
    if (dtype == DTYPE_F32)
        return static_cast<const float *>(array)[index];
    if (dtype == DTYPE_BF16)
        return __bfloat162float(static_cast<const __nv_bfloat16 *>(array)[index]);
    return __half2float(static_cast<const __half *>(array)[index]);
}

/* The code at (row, column) of a packed 4-bit matrix, and where its tile's scales begin. */
__device__ static inline uint32_t affine4_code(const cuda_view &matrix, uint64_t row, uint32_t column,
                                               const char **scales) {
    uint32_t tile_bytes = cuda_tile_bytes(static_cast<dtype>(matrix.scale_dtype));
    const char *tile =
        static_cast<const char *>(matrix.data) +
        (row / CUDA_TILE_ROWS * (matrix.columns / CUDA_TILE_COLUMNS) + column / CUDA_TILE_COLUMNS) *
            tile_bytes;
    uint32_t r = row % CUDA_TILE_ROWS, c = column % CUDA_TILE_COLUMNS, in_step = c % 16;
    uint32_t lane = r % 8 * 4 + in_step % 8 / 2, word = in_step / 8 + r / 8 * 2;
    uint32_t nibble = c / 16 + in_step % 2 * 4;
    *scales = tile + CUDA_TILE_CODES;
    return reinterpret_cast<const uint32_t *>(tile)[lane * 4 + word] >> (4 * nibble) & 15;
}

/* scale * code + bias, rounded after each, as the reference has it. */
__device__ static inline float affine(float scale, uint32_t code, float bias) {
    return __fadd_rn(__fmul_rn(scale, static_cast<float>(code)), bias);
}

/* Element (row, column) of a weight of any type. */
__device__ static inline float matrix_at(const cuda_view &matrix, uint64_t row, uint32_t column) {
    if (matrix.dtype == DTYPE_AFFINE4) {
        const char *scales;
        uint32_t code = affine4_code(matrix, row, column, &scales);
        uint32_t pair = row % 8 * 2 + row % CUDA_TILE_ROWS / 8;
        return affine(float_at(scales, matrix.scale_dtype, pair * 2), code,
                      float_at(scales, matrix.scale_dtype, pair * 2 + 1));
    }
    if (matrix.dtype == DTYPE_AFFINE8) {
        uint64_t group = row * (matrix.columns / DTYPE_AFFINE_GROUP) + column / DTYPE_AFFINE_GROUP;
        float2 pair = static_cast<const float2 *>(matrix.scales)[group];
        return affine(pair.x, static_cast<const uint8_t *>(matrix.data)[row * matrix.columns + column],
                      pair.y);
    }
    return float_at(matrix.data, matrix.dtype, row * matrix.stride + column);
}

__device__ static inline float vector_at(const cuda_view &vector, uint32_t index) {
    return float_at(vector.data, vector.dtype, index);
}

__device__ static inline float warp_sum(float value) {
    for (int offset = WARP / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(ALL_LANES, value, offset);
    return value;
}

/* The sum over a block of whole warps; `shared` holds 32 floats. All threads must come. */
__device__ static inline float block_sum(float value, float *shared) {
    uint32_t warps = blockDim.x / WARP;
    value = warp_sum(value);
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = value;
    __syncthreads();
    return warp_sum(threadIdx.x % WARP < warps ? shared[threadIdx.x % WARP] : 0.0f);
}

__device__ static inline float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

__device__ static inline float silu(float x) {
    return x / (1.0f + expf(-x));
}

/* Matrix products, generic_linear.cu. y = x W^T, or y += x W^T. With experts row p of y, a pair of a row of
 * `ids` and a slot, is W's matrix ids[p] times row p / chosen of x, or row p if x has a row a pair. */
struct cuda_product {
    cuda_view x, matrix, y;
    bool accumulate;
    uint32_t experts, chosen;     /* experts: 0 for one matrix */
    cuda_view ids, starts, order; /* starts and order without data: one row of x, unsorted */
};
cudaError_t cuda_generic_product(const cuda_product &product, const cuda_device *device, cudaStream_t stream);

/* generic_norm.cu: the rows that an op multiplies: x or, where it normalises, rms_norm of x, computed into
 * the first cuda_generic_input_workspace bytes of workspace. */
cudaError_t cuda_generic_input(const cuda_op *op, const cuda_device *device, void *workspace, cuda_view *x,
                               cudaStream_t stream);

/* What follows x and, where there is one, its norm's weight. */
static inline const cuda_view *after_input(const cuda_op *op) {
    return op->views + (op->op.constants.normalise ? 2 : 1);
}

cudaError_t cuda_generic_gated_norm_views(const cuda_view &x, const cuda_view &z, const cuda_view &weight,
                                          const cuda_view &y, float epsilon, const cuda_device *device,
                                          cudaStream_t stream);

/* A dense view of float32 workspace. */
static inline cuda_view workspace_view(void *data, uint32_t rows, uint32_t columns) {
    cuda_view view = {};
    view.data = data;
    view.dtype = DTYPE_F32;
    view.rows = rows;
    view.columns = columns;
    view.stride = columns;
    return view;
}

#endif
