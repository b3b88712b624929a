/* Causal attention of many tokens over a growing cache (head size 256, bf16 keys and values), with the output
 * gate: y = softmax(q K^T / 16) V * sigmoid(gate).
 *
 * A block takes 128 rows, the query heads of one KV head for a few neighbouring tokens, and runs over the
 * cache in tiles of 64 positions. One warpgroup fetches (a ring of four tiles: keys of the next beside values
 * of this one), two compute 64 rows each with the sums in registers: while the matrix units work on the next
 * scores, the weights of this tile are brought to a common maximum, and while they weigh the values, the next
 * tile's exponentials are taken. Blocks of late tokens, which have the longest way, come first. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_PREFILL_ATTENTION_CUH
#define CALLA_BACKEND_CUDA_KERNELS_PREFILL_ATTENTION_CUH

#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/launch.cuh"
#include "backend/cuda/kernels/prefill_softmax.cuh"
#include "backend/cuda/kernels/wgmma.cuh"

#define ATTENTION_TILE 64 /* positions */
#define ATTENTION_RING 4
#define ATTENTION_TILE_BYTES (ATTENTION_TILE * ATTENTION_SIZE * 2)
#define ATTENTION_QUERY_BYTES (ATTENTION_ROWS * ATTENTION_SIZE * 2)
#define ATTENTION_SHARED (2048 + ATTENTION_QUERY_BYTES + ATTENTION_RING * ATTENTION_TILE_BYTES)
#define ATTENTION_THREADS 384

#ifdef CALLA_HOPPER

/* One tile of 64 cache rows into ring place `to`, four blocks of [64][64] swizzled; rows past the last are
 * copies of it, whose weight is zero. */
__device__ __forceinline__ void attention_copy(uint32_t to, const __nv_bfloat16 *cache, uint64_t stride,
                                               uint32_t first, uint32_t last) {
    uint32_t thread = threadIdx.x % 128, piece = thread % 32;
#pragma unroll
    for (int i = 0; i < ATTENTION_TILE / 4; i++) {
        uint32_t row = thread / 32 + 4 * i;
        const __nv_bfloat16 *from = cache + (uint64_t)min(first + row, last) * stride + piece * 8;
        copy_async_16(to + piece / 8 * (ATTENTION_TILE * 128) + row * 128 + (((piece & 7) ^ (row & 7)) << 4),
                      from);
    }
}

__device__ __forceinline__ void attention_fetch(const struct attention_arguments &a, uint32_t ring,
                                                uint32_t full, uint32_t empty, uint32_t kv_head,
                                                uint32_t tiles, uint32_t last) {
    const __nv_bfloat16 *keys = a.keys + kv_head * ATTENTION_SIZE,
                        *values = a.values + kv_head * ATTENTION_SIZE;
    uint32_t loads = 2 * tiles, place = 0, parity = 0;
    /* keys 0, keys 1, values 0, keys 2, values 1, ...: as the computing warpgroups take them */
    for (uint32_t load = 0; load < loads + 1; load++) {
        if (load < loads) {
            bool of_keys = load == 0 || (load % 2 == 1 && load + 1 < loads);
            uint32_t tile = load == 0           ? 0
                            : load + 1 == loads ? tiles - 1
                            : of_keys           ? (load + 1) / 2
                                                : load / 2 - 1;
            barrier_wait(empty + 8 * place, parity ^ 1);
            attention_copy(ring + place * ATTENTION_TILE_BYTES, of_keys ? keys : values, a.cache_stride,
                           tile * ATTENTION_TILE, last);
            copy_async_commit();
            copy_async_wait<1>();
        } else {
            copy_async_wait<0>();
        }
        if (load > 0) {
            fence_for_matrix_units();
            barrier_arrive(full + 8 * ((place + ATTENTION_RING - 1) % ATTENTION_RING));
        }
        if (++place == ATTENTION_RING) {
            place = 0;
            parity ^= 1;
        }
    }
}

struct attention_ring {
    uint32_t full, empty, memory, place, parity;
};

__device__ __forceinline__ uint32_t attention_take(struct attention_ring *ring) {
    barrier_wait(ring->full + 8 * ring->place, ring->parity);
    uint32_t place = ring->place;
    if (++ring->place == ATTENTION_RING) {
        ring->place = 0;
        ring->parity ^= 1;
    }
    return place;
}

__device__ __forceinline__ void attention_give(const struct attention_ring *ring, uint32_t place) {
    barrier_arrive(ring->empty + 8 * place);
}

/* scores = q K^T of the warpgroup's 64 rows and a tile. */
__device__ __forceinline__ void attention_scores(float (&scores)[32], uint32_t query, uint32_t keys) {
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < ATTENTION_SIZE / 16; k++)
        wgmma_shared(scores, matrix_of_rows(query + k / 4 * (ATTENTION_ROWS * 128)) + k % 4 * 2,
                     matrix_of_rows(keys + k / 4 * (ATTENTION_TILE * 128)) + k % 4 * 2, k == 0);
    wgmma_commit();
}

/* sums += weights V of a tile. */
__device__ __forceinline__ void attention_weigh(float (&sums)[ATTENTION_SIZE / 2],
                                                const uint32_t (&weights)[16], uint32_t values) {
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < ATTENTION_TILE / 16; k++)
        wgmma_registers_transposed(sums, weights + 4 * k,
                                   matrix_of_columns(values + k * 2048, ATTENTION_TILE * 128));
    wgmma_commit();
}

template <typename OUT>
__device__ __forceinline__ void attention_compute(const struct attention_arguments &a, uint32_t query,
                                                  struct attention_ring ring, uint32_t kv_head,
                                                  uint32_t first_token, uint32_t position, uint32_t tiles) {
    uint32_t warpgroup = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    uint32_t group = a.heads / a.kv_heads;
    /* The warpgroup's queries as bf16, swizzled like the keys; four loads in flight. */
    for (uint32_t first = threadIdx.x % 128; first < 64 * (ATTENTION_SIZE / 8); first += 4 * 128) {
        float4 low[4], high[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t row = 64 * warpgroup + (first + 128 * i) / (ATTENTION_SIZE / 8);
            uint32_t token = min(first_token + row / group, a.rows - 1), head = kv_head * group + row % group;
            const float4 *from =
                (const float4 *)(a.q + (uint64_t)(token * a.heads + head) * a.q_stride + first % 32 * 8);
            low[i] = from[0];
            high[i] = from[1];
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t row = 64 * warpgroup + (first + 128 * i) / (ATTENTION_SIZE / 8), piece = first % 32;
            __nv_bfloat162 v[4] = {
                __floats2bfloat162_rn(low[i].x, low[i].y), __floats2bfloat162_rn(low[i].z, low[i].w),
                __floats2bfloat162_rn(high[i].x, high[i].y), __floats2bfloat162_rn(high[i].z, high[i].w)};
            uint32_t to =
                query + piece / 8 * (ATTENTION_ROWS * 128) + row * 128 + (((piece & 7) ^ (row & 7)) << 4);
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(*(uint32_t *)&v[0]),
                         "r"(*(uint32_t *)&v[1]), "r"(*(uint32_t *)&v[2]), "r"(*(uint32_t *)&v[3])
                         : "memory");
        }
    }
    fence_for_matrix_units();
    asm volatile("bar.sync %0, 128;" ::"r"(1 + warpgroup) : "memory");
    query += warpgroup * (64 * 128);

    uint32_t row[2] = {64 * warpgroup + 16 * warp + lane / 4, 64 * warpgroup + 16 * warp + lane / 4 + 8};
    uint32_t limits[2] = {position + first_token + row[0] / group + 1,
                          position + first_token + row[1] / group + 1};
    uint32_t unmasked = (position + first_token + 1) / ATTENTION_TILE; /* tiles that all rows see whole */
    float largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0}, shrink[2];
    float sums[ATTENTION_SIZE / 2], scores[32];
#pragma unroll
    for (int i = 0; i < ATTENTION_SIZE / 2; i++)
        sums[i] = 0;
    uint32_t keys = attention_take(&ring);
    attention_scores(scores, query, ring.memory + keys * ATTENTION_TILE_BYTES);
    wgmma_wait<0>();
    wgmma_hold(scores);
    attention_give(&ring, keys);
    attention_exponentials(scores, largest, total, shrink, 0, limits, unmasked == 0);
    uint32_t weights[16];
    attention_pack(scores, weights);
    uint32_t values;
    for (uint32_t tile = 1; tile < tiles; tile++) {
        keys = attention_take(&ring);
        attention_scores(scores, query, ring.memory + keys * ATTENTION_TILE_BYTES);
        values = attention_take(&ring);
        attention_weigh(sums, weights, ring.memory + values * ATTENTION_TILE_BYTES);
        wgmma_wait<1>();
        wgmma_hold(scores);
        attention_give(&ring, keys);
        attention_exponentials(scores, largest, total, shrink, tile * ATTENTION_TILE, limits,
                               tile >= unmasked);
        wgmma_wait<0>();
        wgmma_hold(sums);
        attention_give(&ring, values);
        attention_pack(scores, weights);
#pragma unroll
        for (int i = 0; i < ATTENTION_SIZE / 2; i++)
            sums[i] *= shrink[i / 2 & 1];
    }
    values = attention_take(&ring);
    attention_weigh(sums, weights, ring.memory + values * ATTENTION_TILE_BYTES);
    wgmma_wait<0>();
    wgmma_hold(sums);
    attention_give(&ring, values);
    attention_store<OUT>(a, sums, total, row, kv_head, first_token);
}

#endif

/* Grid: blocks of tokens x KV heads. */
template <typename OUT>
__global__ void __launch_bounds__(ATTENTION_THREADS, 1)
    attention_kernel(const __grid_constant__ struct attention_arguments a) {
#ifdef CALLA_HOPPER
    extern __shared__ uint8_t shared[];
    uint32_t memory = (shared_address(shared) + 1023) & ~1023u;
    struct attention_ring ring = {memory, memory + 64, memory + 1024 + ATTENTION_QUERY_BYTES, 0, 0};
    if (threadIdx.x == 0) {
        for (int i = 0; i < ATTENTION_RING; i++) {
            barrier_init(ring.full + 8 * i, 128);
            barrier_init(ring.empty + 8 * i, 256);
        }
        fence_for_matrix_units();
    }
    __syncthreads();
    cuda_let_next_start();
    cuda_await_previous();
    uint32_t tokens = ATTENTION_ROWS / (a.heads / a.kv_heads);
    uint32_t first_token = (gridDim.x - 1 - blockIdx.x) * tokens, kv_head = blockIdx.y;
    uint32_t position = *a.position;
    uint32_t last = min(position + min(first_token + tokens, a.rows), a.limit) - 1;
    uint32_t tiles = last / ATTENTION_TILE + 1;
    if (threadIdx.x < 128) {
        registers_fewer<40>();
        attention_fetch(a, ring.memory, ring.full, ring.empty, kv_head, tiles, last);
    } else {
        registers_more<232>();
        attention_compute<OUT>(a, memory + 1024, ring, kv_head, first_token, position, tiles);
    }
#endif
}

template <typename OUT>
cudaError_t attention_launch(const struct attention_arguments &arguments, enum cuda_start start,
                             cudaStream_t stream) {
    uint32_t tokens = ATTENTION_ROWS / (arguments.heads / arguments.kv_heads);
    return cuda_launch(attention_kernel<OUT>, start,
                       dim3(cuda_blocks(arguments.rows, tokens), arguments.kv_heads), ATTENTION_THREADS,
                       ATTENTION_SHARED, stream, arguments);
}

#endif
