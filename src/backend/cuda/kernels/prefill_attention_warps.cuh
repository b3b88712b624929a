/* Attention of many rows over the growing cache on any GPU from 8.0 on: what prefill_attention.cuh does with
 * Hopper's matrix units, with those of a single warp.
 *
 * A block takes 128 rows, the query heads of one KV head for a few neighbouring tokens, and runs over the
 * cache in tiles of 32 positions, a ring of three in shared memory: 96 KiB, what the smallest
 * multiprocessors have. Each of its eight warps has 16 rows: their queries, as bf16, and their sums stay in
 * its registers. Blocks of late tokens, which have the longest way, come first. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_PREFILL_ATTENTION_WARPS_CUH
#define CALLA_BACKEND_CUDA_KERNELS_PREFILL_ATTENTION_WARPS_CUH

#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/launch.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/prefill_softmax.cuh"

#define ROWS_WARPS (ATTENTION_ROWS / 16)
#define ROWS_TILE 32 /* positions */
#define ROWS_STAGES 3
#define ROWS_PITCH (ATTENTION_SIZE * 2) /* bytes of a position */
#define ROWS_TILE_BYTES (ROWS_TILE * ROWS_PITCH)
#define ROWS_SHARED (ROWS_STAGES * 2 * ROWS_TILE_BYTES) /* keys and values */

/* Copies tile `tile` of keys and values to `stage`, 16-byte piece c of a position at c ^ (position & 7);
 * positions past the last are copies of it, whose weight is zero. */
__device__ __forceinline__ void rows_copy(const struct attention_arguments &a, uint32_t stage,
                                          uint32_t kv_head, uint32_t tile, uint32_t last) {
    uint32_t piece = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < ROWS_TILE / ROWS_WARPS; i++) {
        uint32_t position = threadIdx.x / 32 + ROWS_WARPS * i;
        uint64_t from =
            min(tile * ROWS_TILE + position, last) * a.cache_stride + kv_head * ATTENTION_SIZE + piece * 8;
        uint32_t to = stage + position * ROWS_PITCH + ((piece ^ (position & 7)) << 4);
        copy_async_16(to, a.keys + from);
        copy_async_16(to + ROWS_TILE_BYTES, a.values + from);
    }
}

/* scores = q K^T of the warp's 16 rows and a tile. */
__device__ __forceinline__ void rows_scores(const uint32_t (&q)[ATTENTION_SIZE / 16][4], uint32_t keys,
                                            uint32_t lane, float (&scores)[ROWS_TILE / 8][4]) {
#pragma unroll
    for (int n = 0; n < ROWS_TILE / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            scores[n][i] = 0;
    keys += (lane / 16 * 8 + lane % 8) * ROWS_PITCH;
#pragma unroll
    for (int k = 0; k < ATTENTION_SIZE / 16; k++)
#pragma unroll
        for (int n = 0; n < ROWS_TILE / 8; n += 2) {
            uint32_t b[4];
            load_matrices(b, keys + n * 8 * ROWS_PITCH + ((2 * k + lane / 8 % 2 ^ lane % 8) << 4));
            multiply_bf16(scores[n], q[k], b[0], b[1]);
            multiply_bf16(scores[n + 1], q[k], b[2], b[3]);
        }
}

/* sums += weights V of a tile. */
__device__ __forceinline__ void rows_weigh(const uint32_t (&weights)[ROWS_TILE / 4], uint32_t values,
                                           uint32_t lane, float (&sums)[ATTENTION_SIZE / 8][4]) {
    values += lane % 16 * ROWS_PITCH;
#pragma unroll
    for (int k = 0; k < ROWS_TILE / 16; k++)
#pragma unroll
        for (int n = 0; n < ATTENTION_SIZE / 8; n += 2) {
            uint32_t b[4];
            load_matrices_transposed(b, values + k * 16 * ROWS_PITCH + ((n + lane / 16 ^ lane % 8) << 4));
            multiply_bf16(sums[n], weights + 4 * k, b[0], b[1]);
            multiply_bf16(sums[n + 1], weights + 4 * k, b[2], b[3]);
        }
}

/* Grid: blocks of tokens x KV heads. */
template <typename OUT>
__global__ void __launch_bounds__(32 * ROWS_WARPS, 1)
    attention_warps_kernel(const __grid_constant__ struct attention_arguments a) {
    extern __shared__ __align__(128) uint8_t memory[];
    uint32_t ring = shared_address(memory), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    cuda_let_next_start();
    cuda_await_previous();
    uint32_t group = a.heads / a.kv_heads, tokens = ATTENTION_ROWS / group;
    uint32_t first_token = (gridDim.x - 1 - blockIdx.x) * tokens, kv_head = blockIdx.y;
    uint32_t position = *a.position;
    uint32_t last = min(position + min(first_token + tokens, a.rows), a.limit) - 1;
    uint32_t tiles = last / ROWS_TILE + 1;
    uint32_t unmasked = (position + first_token + 1) / ROWS_TILE; /* tiles that all rows see whole */
#pragma unroll
    for (uint32_t tile = 0; tile < ROWS_STAGES - 1; tile++) {
        if (tile < tiles)
            rows_copy(a, ring + tile * 2 * ROWS_TILE_BYTES, kv_head, tile, last);
        copy_async_commit();
    }
    uint32_t row[2] = {16 * warp + lane / 4, 16 * warp + lane / 4 + 8}, limits[2];
    uint32_t q[ATTENTION_SIZE / 16][4]; /* the operand A of each k16 step */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t token = first_token + row[half] / group;
        limits[half] = position + token + 1;
        const float *from =
            a.q + lane % 4 * 2 +
            (uint64_t)(min(token, a.rows - 1) * a.heads + kv_head * group + row[half] % group) * a.q_stride;
#pragma unroll
        for (int i = 0; i < ATTENTION_SIZE / 8; i++) {
            float2 v = *(const float2 *)(from + 8 * i);
            __nv_bfloat162 pair = __floats2bfloat162_rn(v.x, v.y);
            q[i / 2][i % 2 * 2 + half] = *(uint32_t *)&pair;
        }
    }
    float largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0}, shrink[2];
    float sums[ATTENTION_SIZE / 8][4] = {};
    uint32_t stage = 0, ahead = ROWS_STAGES - 1; /* places in the ring */
    for (uint32_t tile = 0; tile < tiles; tile++) {
        copy_async_wait<ROWS_STAGES - 2>();
        __syncthreads();
        if (tile + ROWS_STAGES - 1 < tiles)
            rows_copy(a, ring + ahead * 2 * ROWS_TILE_BYTES, kv_head, tile + ROWS_STAGES - 1, last);
        copy_async_commit();
        uint32_t keys = ring + stage * 2 * ROWS_TILE_BYTES;
        float scores[ROWS_TILE / 8][4];
        uint32_t weights[ROWS_TILE / 4];
        rows_scores(q, keys, lane, scores);
        attention_exponentials((float(&)[ROWS_TILE / 2]) scores, largest, total, shrink, tile * ROWS_TILE,
                               limits, tile >= unmasked);
        attention_pack((float(&)[ROWS_TILE / 2]) scores, weights);
        if (__any_sync(~0u, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
            for (int n = 0; n < ATTENTION_SIZE / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sums[n][i] *= shrink[i / 2];
        }
        rows_weigh(weights, keys + ROWS_TILE_BYTES, lane, sums);
        stage = stage + 1 == ROWS_STAGES ? 0 : stage + 1;
        ahead = ahead + 1 == ROWS_STAGES ? 0 : ahead + 1;
    }
    attention_store<OUT>(a, (float(&)[ATTENTION_SIZE / 2]) sums, total, row, kv_head, first_token);
}

template <typename OUT>
cudaError_t attention_warps_launch(const struct attention_arguments &arguments, enum cuda_start start,
                                   cudaStream_t stream) {
    uint32_t tokens = ATTENTION_ROWS / (arguments.heads / arguments.kv_heads);
    return cuda_launch(attention_warps_kernel<OUT>, start,
                       dim3(cuda_blocks(arguments.rows, tokens), arguments.kv_heads), 32 * ROWS_WARPS,
                       ROWS_SHARED, stream, arguments);
}

#endif
