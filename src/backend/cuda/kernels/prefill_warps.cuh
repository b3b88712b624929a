/* y[token, feature] = sum_k W[feature, k] x[token, k] for many tokens on any GPU from 8.0 on: what
 * prefill_gemm.cuh does with Hopper's matrix units, with those of a single warp.
 *
 * A block works through a list of items. Group of 64 columns after group, its threads copy the tokens' rows
 * (gathered, swizzled) and the features' tiles (cuda.h) into a ring of *stages* in shared memory, some groups
 * ahead. Of the product of a stage each warp has TILES tiles of 16 features by BLOCKS times 8 tokens: it
 * makes bf16 weights of its codes, the operand A, and multiplies each by all its tokens. Several blocks share
 * a multiprocessor, so that one copies or stores while another multiplies. Sums run over rising columns, so
 * an element does not depend on the others of its item. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_PREFILL_WARPS_CUH
#define CALLA_BACKEND_CUDA_KERNELS_PREFILL_WARPS_CUH

#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/launch.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/prefill_items.cuh"

/* WIDE warps side by side over the features and TALL over the tokens; TOGETHER blocks on a multiprocessor, at
 * least. The memory of two of them fits the 100 KiB of the smallest multiprocessors. */
template <int WIDE_, int TALL_, int TILES_, int BLOCKS_, int STAGES_, int TOGETHER_> struct warps_shape {
    static constexpr int wide = WIDE_, tall = TALL_, tiles = TILES_, blocks = BLOCKS_, stages = STAGES_,
                         together = TOGETHER_;
    static constexpr int threads = 32 * WIDE_ * TALL_, slots = WIDE_ * TILES_, tokens = 8 * BLOCKS_ * TALL_;
    static constexpr int sharing = threads / slots; /* threads that copy a tile */
    static constexpr int token_bytes = 128 * tokens;
    static_assert(tokens % (threads / 8) == 0 && threads / 8 % 8 == 0 && BLOCKS_ % 4 == 0, "");

    CUDA_EVERYWHERE static constexpr int features(int kind) {
        return 16 * slots / (kind == GEMM_GATE_UP ? 2 : 1);
    }
    CUDA_EVERYWHERE static constexpr int head_bytes(int kind) { /* the experts' tiles */
        return kind == GEMM_LINEAR ? 0 : (GEMM_EXPERTS + 1) * 4 + 124;
    }
    CUDA_EVERYWHERE static constexpr int stage_bytes(int tile_bytes) {
        return token_bytes + slots * tile_bytes;
    }
    CUDA_EVERYWHERE static constexpr int shared_bytes(int kind, int tile_bytes) {
        return head_bytes(kind) + STAGES_ * stage_bytes(tile_bytes);
    }
};

/* What a thread copies of each group of an item. */
template <int KIND, int TILE_BYTES, typename SHAPE> struct warps_source {
    static constexpr int rows = SHAPE::tokens / (SHAPE::threads / 8), pieces = TILE_BYTES / 16;
    static constexpr int tile_copies = (pieces + SHAPE::sharing - 1) / SHAPE::sharing;
    const uint4 *x, *tile;
    uint32_t offsets[rows]; /* of x, in 16 bytes */

    __device__ __forceinline__ void find(const struct gemm_arguments &a, const struct gemm_item &item) {
        const struct gemm_matrix &matrix = *item.matrix;
        x = (const uint4 *)matrix.x;
#pragma unroll
        for (int i = 0; i < rows; i++) {
            uint32_t row = item.row + min(threadIdx.x / 8 + SHAPE::threads / 8 * i, item.rows - 1);
            if (item.order != NULL)
                row = (uint32_t)item.order[row] / item.divisor;
            offsets[i] = row * (matrix.x_stride / 8) + threadIdx.x % 8;
        }
        uint32_t slot = threadIdx.x / SHAPE::sharing, row_tile = item.feature / 16;
        const struct gemm_matrix *of_slot = &matrix;
        const uint8_t *first = matrix.tiles;
        if (KIND == GEMM_LINEAR) {
            of_slot = gemm_matrix_of(a, 16 * (row_tile + slot));
            first = of_slot->tiles;
            row_tile += slot - of_slot->first / 16;
        } else if (KIND == GEMM_GATE_UP) { /* of each warp, half of the tiles are the gate's */
            uint32_t of_warp = slot % SHAPE::tiles, half = SHAPE::tiles / 2;
            row_tile += slot / SHAPE::tiles * half + of_warp % half;
            first = of_warp < half ? matrix.tiles : matrix.more;
        } else {
            row_tile += slot;
        }
        uint32_t row_tiles = of_slot->features / 16;
        uint64_t at = min(row_tile, row_tiles - 1) + (uint64_t)item.expert * row_tiles;
        tile = (const uint4 *)(first + at * item.groups * TILE_BYTES) + threadIdx.x % SHAPE::sharing;
    }

    /* Rows past the last stay what they were: nobody stores what comes of them. */
    __device__ __forceinline__ void copy(uint32_t stage, uint32_t group, uint32_t tokens) const {
        uint32_t row = threadIdx.x / 8, slot = threadIdx.x / SHAPE::sharing,
                 piece = threadIdx.x % SHAPE::sharing;
        uint32_t to = stage + row * 128 + ((threadIdx.x % 8 ^ (row & 7)) << 4);
#pragma unroll
        for (int i = 0; i < rows; i++)
            if (row + SHAPE::threads / 8 * i < tokens)
                copy_async_16(to + SHAPE::threads * 16 * i, x + offsets[i] + 8 * group);
        to = stage + SHAPE::token_bytes + slot * TILE_BYTES + piece * 16;
#pragma unroll
        for (int i = 0; i < tile_copies; i++)
            if (piece + SHAPE::sharing * i < pieces)
                copy_async_16(to + SHAPE::sharing * 16 * i,
                              tile + (uint64_t)group * pieces + SHAPE::sharing * i);
    }
};

/* Adds a stage's products with the first COUNT blocks of the warp's tokens. */
template <int COUNT, int TILE_BYTES, int TILES, int BLOCKS>
__device__ __forceinline__ void warps_multiply(uint32_t x, uint32_t tiles, uint32_t lane,
                                               float (&sums)[TILES][BLOCKS][4]) {
    struct gemm_codes<TILE_BYTES> codes[TILES];
#pragma unroll
    for (int i = 0; i < TILES; i++)
        codes[i].load(tiles + i * TILE_BYTES, lane);
    x += (lane / 16 * 8 + lane % 8) * 128;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t b[COUNT][2];
#pragma unroll
        for (int n = 0; n < COUNT; n += 2)
            load_matrices(b[n], x + n * 1024 + ((2 * j + lane / 8 % 2 ^ lane % 8) << 4));
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            uint32_t weights[4];
            codes[i].dequantise(j, weights);
#pragma unroll
            for (int n = 0; n < COUNT; n++)
                multiply_bf16(sums[i][n], weights, b[n][0], b[n][1]);
        }
    }
}

/* Stores what a warp has of a tile, y at its first feature: token 8 n + t is row to(8 n + t) of y. */
template <int BLOCKS, typename ROW>
__device__ __forceinline__ void warps_store(float *y, uint64_t stride, bool accumulate, uint32_t tokens,
                                            const float (&sums)[BLOCKS][4], uint32_t lane, ROW to) {
    float before[BLOCKS][4]; /* all on their way before the first is needed */
#pragma unroll
    for (int n = 0; n < BLOCKS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t token = 8 * n + lane % 4 * 2 + i % 2;
            before[n][i] = 0;
            if (accumulate && token < tokens)
                before[n][i] = y[to(token) * stride + lane / 4 + i / 2 * 8];
        }
#pragma unroll
    for (int n = 0; n < BLOCKS; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t token = 8 * n + lane % 4 * 2 + i % 2;
            if (token < tokens)
                y[to(token) * stride + lane / 4 + i / 2 * 8] = before[n][i] + sums[n][i];
        }
}

template <int BLOCKS, typename ROW>
__device__ __forceinline__ void warps_store(__nv_bfloat16 *y, uint64_t stride, bool, uint32_t tokens,
                                            const float (&sums)[BLOCKS][4], uint32_t lane, ROW to) {
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
        uint32_t token = 8 * n + lane / 4;
        uint64_t row = token < tokens ? to(token) : 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            __nv_bfloat162 pair = __floats2bfloat162_rn(sums[n][2 * i], sums[n][2 * i + 1]);
            uint32_t turned = transpose_matrix(*(uint32_t *)&pair);
            if (token < tokens)
                *(uint32_t *)(y + row * stride + 8 * i + lane % 4 * 2) = turned;
        }
    }
}

template <int KIND, int TILE_BYTES, typename OUT, typename SHAPE>
__device__ __forceinline__ void warps_compute(const struct gemm_arguments &a, const struct gemm_item &item,
                                              uint32_t ring) {
    constexpr int TILES = SHAPE::tiles, BLOCKS = SHAPE::blocks, STAGES = SHAPE::stages;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, wide = warp % SHAPE::wide,
             first = warp / SHAPE::wide * 8 * BLOCKS;
    uint32_t tokens = item.rows > first ? item.rows - first : 0; /* of this warp */
    struct warps_source<KIND, TILE_BYTES, SHAPE> source;
    source.find(a, item);
    float sums[TILES][BLOCKS][4] = {};
    __syncthreads(); /* the item before has been multiplied */
#pragma unroll
    for (uint32_t stage = 0; stage < STAGES - 1; stage++) {
        if (stage < item.groups)
            source.copy(ring + stage * SHAPE::stage_bytes(TILE_BYTES), stage, item.rows);
        copy_async_commit();
    }
    uint32_t stage = 0, ahead = STAGES - 1; /* places in the ring */
    for (uint32_t group = 0; group < item.groups; group++) {
        copy_async_wait<STAGES - 2>();
        __syncthreads();
        if (group + STAGES - 1 < item.groups)
            source.copy(ring + ahead * SHAPE::stage_bytes(TILE_BYTES), group + STAGES - 1, item.rows);
        copy_async_commit();
        uint32_t x = ring + stage * SHAPE::stage_bytes(TILE_BYTES),
                 tiles = x + SHAPE::token_bytes + wide * TILES * TILE_BYTES;
        x += first * 128;
        if (tokens > 4 * BLOCKS)
            warps_multiply<BLOCKS, TILE_BYTES>(x, tiles, lane, sums);
        else if (tokens > 0)
            warps_multiply<BLOCKS / 2, TILE_BYTES>(x, tiles, lane, sums);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        ahead = ahead + 1 == STAGES ? 0 : ahead + 1;
    }
    const int32_t *order = item.order;
    uint32_t row = item.row + first;
    auto to = [=](uint32_t token) { return order != NULL ? (uint32_t)order[row + token] : row + token; };
    constexpr int OUTPUTS = KIND == GEMM_GATE_UP ? TILES / 2 : TILES;
#pragma unroll
    for (int i = 0; i < OUTPUTS; i++) {
        uint32_t feature = item.feature + 16 * (wide * OUTPUTS + i);
        const struct gemm_matrix *matrix = item.matrix;
        if (KIND == GEMM_LINEAR) {
            matrix = gemm_matrix_of(a, feature);
            feature -= matrix->first;
        }
        if (KIND == GEMM_GATE_UP) {
#pragma unroll
            for (int n = 0; n < BLOCKS; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float gate = sums[i][n][j];
                    sums[i][n][j] = __fdividef(gate, 1 + __expf(-gate)) * sums[TILES - OUTPUTS + i][n][j];
                }
        }
        warps_store<BLOCKS>((OUT *)matrix->y + feature, matrix->y_stride, matrix->accumulate,
                            feature < matrix->features ? tokens : 0, sums[i], lane, to);
    }
}

template <int KIND, int TILE_BYTES, typename OUT, typename SHAPE>
__global__ void __launch_bounds__(SHAPE::threads, SHAPE::together)
    warps_kernel(const __grid_constant__ struct gemm_arguments a) {
    extern __shared__ __align__(128) uint8_t memory[];
    uint32_t *prefix = (uint32_t *)memory;
    cuda_let_next_start();
    cuda_await_previous();
    if (KIND != GEMM_LINEAR)
        gemm_count_tiles<SHAPE::tokens>(a, prefix);
    struct gemm_item item;
    for (uint32_t index = blockIdx.x;
         gemm_find<KIND == GEMM_LINEAR, SHAPE::features(KIND), SHAPE::tokens>(a, prefix, index, &item);
         index += gridDim.x)
        if (item.rows > 0)
            warps_compute<KIND, TILE_BYTES, OUT, SHAPE>(a, item,
                                                        shared_address(memory) + SHAPE::head_bytes(KIND));
}

/* Queues a product: a block an item where their number is known, otherwise as many as there is room for. */
template <int KIND, int TILE_BYTES, typename OUT, typename SHAPE>
cudaError_t warps_launch(struct gemm_arguments arguments, int multiprocessors, enum cuda_start start,
                         cudaStream_t stream) {
    uint32_t blocks = SHAPE::together * multiprocessors;
    if (KIND == GEMM_LINEAR) {
        gemm_join(&arguments);
        blocks = cuda_blocks(arguments.features, SHAPE::features(KIND)) *
                 cuda_blocks(arguments.tokens, SHAPE::tokens);
    }
    return cuda_launch(warps_kernel<KIND, TILE_BYTES, OUT, SHAPE>, start, blocks, SHAPE::threads,
                       SHAPE::shared_bytes(KIND, TILE_BYTES), stream, arguments);
}

#endif
