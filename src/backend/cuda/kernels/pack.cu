/* Weights from the checkpoint's layout into that of cuda.h. A thread writes what one lane will load. */
#include "backend/cuda/pack.h"

#include "backend/cuda/kernels/generic.cuh"

#define BLOCK 256

/* The code at (row, column) of the file: two in a byte, the lower half first; 0 past the last row. */
__device__ static uint32_t raw_code(const cuda_raw_rows &raw, uint32_t row, uint32_t column) {
    if (row >= raw.rows)
        return 0;
    uint8_t byte =
        static_cast<const uint8_t *>(raw.values)[(static_cast<uint64_t>(row) * raw.columns + column) / 2];
    return column % 2 == 0 ? byte & 15 : byte >> 4;
}

/* The 4 words of lane `lane` of a tile. */
__device__ static uint4 lane_words(const cuda_raw_rows &raw, uint32_t tile_row, uint32_t tile_column,
                                   uint32_t lane) {
    uint32_t words[4];
    for (uint32_t word = 0; word < 4; word++) {
        uint32_t row = tile_row * CUDA_TILE_ROWS + lane / 4 + word / 2 * 8;
        uint32_t column = tile_column * CUDA_TILE_COLUMNS + lane % 4 * 2 + word % 2 * 8;
        words[word] = 0;
        for (uint32_t j = 0; j < 4; j++)
            for (uint32_t odd = 0; odd < 2; odd++)
                words[word] |= raw_code(raw, row, column + 16 * j + odd) << (4 * (j + 4 * odd));
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

__global__ static void pack_tiles(const cuda_raw_rows raw, char *out, uint32_t scale_dtype) {
    uint32_t groups = raw.columns / CUDA_TILE_COLUMNS, tile_rows = cuda_blocks(raw.rows, CUDA_TILE_ROWS);
    uint64_t thread = static_cast<uint64_t>(blockIdx.x) * BLOCK + threadIdx.x, tile = thread / WARP;
    if (tile >= static_cast<uint64_t>(tile_rows) * groups)
        return;
    uint32_t lane = thread % WARP, tile_row = tile / groups, tile_column = tile % groups;
    char *target = out + tile * cuda_tile_bytes(static_cast<dtype>(scale_dtype));
    reinterpret_cast<uint4 *>(target)[lane] = lane_words(raw, tile_row, tile_column, lane);
    /* Lane 2 p writes the scale of pair p, lane 2 p + 1 its bias. */
    uint32_t pair = lane / 2, row = tile_row * CUDA_TILE_ROWS + pair / 2 + pair % 2 * 8;
    float value = 0;
    if (row < raw.rows) {
        uint64_t index = static_cast<uint64_t>(row) * groups + tile_column;
        value = lane % 2 == 0 ? float_at(raw.scales, raw.scale_dtype, index)
                              : float_at(raw.biases, raw.bias_dtype, index);
    }
    if (scale_dtype == DTYPE_BF16)
        reinterpret_cast<__nv_bfloat16 *>(target + CUDA_TILE_CODES)[lane] = __float2bfloat16_rn(value);
    else
        reinterpret_cast<float *>(target + CUDA_TILE_CODES)[lane] = value;
}

__global__ static void pack_pairs(const cuda_raw_rows raw, float2 *pairs, uint64_t count) {
    uint64_t index = static_cast<uint64_t>(blockIdx.x) * BLOCK + threadIdx.x;
    if (index < count)
        pairs[index] = make_float2(float_at(raw.scales, raw.scale_dtype, index),
                                   float_at(raw.biases, raw.bias_dtype, index));
}

__global__ static void widen(const cuda_raw_rows raw, float *out, uint64_t count) {
    uint64_t index = static_cast<uint64_t>(blockIdx.x) * BLOCK + threadIdx.x;
    if (index < count)
        out[index] = float_at(raw.values, raw.dtype, index);
}

extern "C" cudaError_t cuda_pack(const cuda_raw_rows *raw, const cuda_view *view, uint64_t first,
                                 cudaStream_t stream) {
    uint64_t groups = raw->columns / DTYPE_AFFINE_GROUP;
    uint64_t elements = static_cast<uint64_t>(raw->rows) * raw->columns;
    char *data = static_cast<char *>(view->data);
    if (view->dtype == DTYPE_AFFINE4) {
        uint64_t tiles = cuda_blocks(raw->rows, CUDA_TILE_ROWS) * groups;
        char *out =
            data + first / CUDA_TILE_ROWS * groups * cuda_tile_bytes(static_cast<dtype>(view->scale_dtype));
        return cuda_launch(pack_tiles, CUDA_EXCLUSIVE, cuda_blocks(tiles * WARP, BLOCK), BLOCK, 0, stream,
                           *raw, out, view->scale_dtype);
    }
    if (view->dtype == DTYPE_AFFINE8) {
        float2 *pairs = static_cast<float2 *>(const_cast<void *>(view->scales)) + first * groups;
        cudaError_t status = cudaMemcpyAsync(data + first * raw->columns, raw->values, elements,
                                             cudaMemcpyDeviceToDevice, stream);
        if (status != cudaSuccess)
            return status;
        return cuda_launch(pack_pairs, CUDA_EXCLUSIVE, cuda_blocks(raw->rows * groups, BLOCK), BLOCK, 0,
                           stream, *raw, pairs, raw->rows * groups);
    }
    if (view->dtype == DTYPE_F32 && raw->dtype != DTYPE_F32) {
        float *out = reinterpret_cast<float *>(data) + first * raw->columns;
        return cuda_launch(widen, CUDA_EXCLUSIVE, cuda_blocks(elements, BLOCK), BLOCK, 0, stream, *raw, out,
                           elements);
    }
    uint64_t width = dtype_bits(static_cast<dtype>(view->dtype)) / 8;
    return cudaMemcpyAsync(data + first * raw->columns * width, raw->values, elements * width,
                           cudaMemcpyDeviceToDevice, stream);
}
