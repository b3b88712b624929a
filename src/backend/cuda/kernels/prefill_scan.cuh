/* The delta rule over many tokens with the state in registers: S = decay S; S += beta (v - S k) k^T; y = S q.
 *
 * A row of the state (128 values, one value of v and y) is held by 8 neighbouring lanes, 16 values each, from
 * the first token to the last. S k and S q are taken of the old state and summed over the lanes together, so
 * that a token costs one round of shuffles: with d = beta (v - decay S k) the output is decay S q + d (k q).
 * Tokens come through shared memory 32 at a time, the next 32 while these are worked on. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_PREFILL_SCAN_CUH
#define CALLA_BACKEND_CUDA_KERNELS_PREFILL_SCAN_CUH

#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/launch.cuh"

#define SCAN_SIZE 128  /* of keys and values */
#define SCAN_ROWS 32   /* of the state, a block */
#define SCAN_TOKENS 32 /* a tile */
#define SCAN_THREADS (8 * SCAN_ROWS)

struct scan_arguments {
    const float *q, *k, *v, *decay, *beta;
    float *state, *y;
    uint64_t q_stride, k_stride, v_stride, decay_stride, beta_stride,
        y_stride; /* floats from token to token */
    uint32_t tokens, heads, key_heads;
};

struct scan_tile {
    float q[SCAN_TOKENS][SCAN_SIZE], k[SCAN_TOKENS][SCAN_SIZE], v[SCAN_TOKENS][SCAN_ROWS];
    float decay[SCAN_TOKENS], beta[SCAN_TOKENS];
};

struct scan_memory {
    struct scan_tile tiles[2];
    float y[SCAN_TOKENS][SCAN_ROWS];
    float4 of_token[SCAN_TOKENS]; /* decay, beta, k q, - */
};

__device__ __forceinline__ void scan_fetch(const struct scan_arguments &a, struct scan_tile *tile,
                                           uint32_t first, uint32_t head, uint32_t row) {
    uint32_t count = min(a.tokens - first, SCAN_TOKENS), thread = threadIdx.x;
    uint32_t key = head * a.key_heads / a.heads * SCAN_SIZE;
    for (uint32_t i = thread; i < count * (SCAN_SIZE / 4); i += SCAN_THREADS) {
        uint32_t t = i / (SCAN_SIZE / 4), piece = i % (SCAN_SIZE / 4) * 4;
        copy_async_16(shared_address(&tile->q[t][piece]), a.q + (first + t) * a.q_stride + key + piece);
        copy_async_16(shared_address(&tile->k[t][piece]), a.k + (first + t) * a.k_stride + key + piece);
    }
    for (uint32_t i = thread; i < count * (SCAN_ROWS / 4); i += SCAN_THREADS) {
        uint32_t t = i / (SCAN_ROWS / 4), piece = i % (SCAN_ROWS / 4) * 4;
        copy_async_16(shared_address(&tile->v[t][piece]),
                      a.v + (first + t) * a.v_stride + head * SCAN_SIZE + row + piece);
    }
    if (thread < count) {
        copy_async_4(shared_address(&tile->decay[thread]),
                     a.decay + (first + thread) * a.decay_stride + head);
        copy_async_4(shared_address(&tile->beta[thread]), a.beta + (first + thread) * a.beta_stride + head);
    }
    copy_async_commit();
}

/* 16 values of a row of 128: pieces of 4, 32 apart. */
__device__ __forceinline__ void scan_load(float (&to)[16], const float *row, uint32_t part) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float4 v = *(const float4 *)(row + 32 * j + 4 * part);
        to[4 * j] = v.x, to[4 * j + 1] = v.y, to[4 * j + 2] = v.z, to[4 * j + 3] = v.w;
    }
}

__device__ __forceinline__ float scan_dot(const float (&a)[16], const float (&b)[16]) {
    float sums[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 16; i++)
        sums[i & 3] = fmaf(a[i], b[i], sums[i & 3]);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* Over the 8 lanes of a row. */
__device__ __forceinline__ float scan_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    x += __shfl_xor_sync(~0u, x, 2);
    return x + __shfl_xor_sync(~0u, x, 4);
}

/* Grid: parts of 32 rows x value heads. */
__global__ static void __launch_bounds__(SCAN_THREADS, 1)
    scan_kernel(const __grid_constant__ struct scan_arguments a) {
    extern __shared__ __align__(16) uint8_t shared[];
    struct scan_memory *memory = (struct scan_memory *)shared;
    uint32_t head = blockIdx.y, row = blockIdx.x * SCAN_ROWS, part = threadIdx.x % 8, mine = threadIdx.x / 8;
    float *state = a.state + ((uint64_t)head * SCAN_SIZE + row + mine) * SCAN_SIZE;
    float s[16];
    cuda_let_next_start();
    cuda_await_previous();
    scan_fetch(a, &memory->tiles[0], 0, head, row);
    scan_load(s, state, part);
    for (uint32_t first = 0, turn = 0; first < a.tokens; first += SCAN_TOKENS, turn ^= 1) {
        struct scan_tile *tile = &memory->tiles[turn];
        uint32_t count = min(a.tokens - first, SCAN_TOKENS);
        copy_async_wait<0>();
        __syncthreads();
        if (first + SCAN_TOKENS < a.tokens)
            scan_fetch(a, &memory->tiles[turn ^ 1], first + SCAN_TOKENS, head, row);
        float k[16], q[16];
        uint32_t token = min(mine, count - 1);
        scan_load(k, tile->k[token], part);
        scan_load(q, tile->q[token], part);
        float kq = scan_sum(scan_dot(k, q));
        if (part == 0)
            memory->of_token[token] = make_float4(tile->decay[token], tile->beta[token], kq, 0);
        __syncthreads();
        scan_load(k, tile->k[0], part);
        scan_load(q, tile->q[0], part);
#pragma unroll 2
        for (uint32_t t = 0; t < count; t++) {
            float4 c = memory->of_token[t];
            float v = tile->v[t][mine];
            float sk = scan_dot(s, k), sq = scan_dot(s, q);
            float next_k[16], next_q[16];
            uint32_t next = min(t + 1, SCAN_TOKENS - 1);
            scan_load(next_k, tile->k[next], part);
            scan_load(next_q, tile->q[next], part);
#pragma unroll
            for (int i = 0; i < 16; i++)
                s[i] *= c.x;
            sk = scan_sum(sk);
            sq = scan_sum(sq);
            float change = c.y * (v - c.x * sk);
#pragma unroll
            for (int i = 0; i < 16; i++)
                s[i] = fmaf(change, k[i], s[i]);
            if (part == 0)
                memory->y[t][mine] = fmaf(change, c.z, c.x * sq);
#pragma unroll
            for (int i = 0; i < 16; i++) {
                k[i] = next_k[i];
                q[i] = next_q[i];
            }
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < count * (SCAN_ROWS / 4); i += SCAN_THREADS) {
            uint32_t t = i / (SCAN_ROWS / 4), piece = i % (SCAN_ROWS / 4) * 4;
            *(float4 *)(a.y + (first + t) * a.y_stride + head * SCAN_SIZE + row + piece) =
                *(const float4 *)&memory->y[t][piece];
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        *(float4 *)(state + 32 * j + 4 * part) =
            make_float4(s[4 * j], s[4 * j + 1], s[4 * j + 2], s[4 * j + 3]);
}

static inline cudaError_t scan_launch(const struct scan_arguments &arguments, enum cuda_start start,
                                      cudaStream_t stream) {
    return cuda_launch(scan_kernel, start, dim3(SCAN_SIZE / SCAN_ROWS, arguments.heads), SCAN_THREADS,
                       sizeof(struct scan_memory), stream, arguments);
}

#endif
