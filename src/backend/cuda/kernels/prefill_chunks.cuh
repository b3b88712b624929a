/* The delta rule over many tokens in chunks of 64, with the matrix units. With G the sums of log decay within
 * a chunk and S the state before it (S[value, key]; formulas for rows i, j of the chunk):
 *
 *   A[i,j] = beta_i k_i.k_j exp(G_i - G_j) for j < i,  T = (I + A)^-1 diag(beta),  P[i,j] = q_i.k_j exp(G_i -
 * G_j), j <= i V = T (v - exp(G) (S k)),  y = exp(G) (S q) + P V,  S = exp(G_64) S + sum_j exp(G_64 - G_j)
 * V_j k_j^T
 *
 * T and P do not depend on the state: chunks_prepare computes them for all chunks at once. chunks_scan then
 * goes from chunk to chunk with 32 rows of a head's state in float32 registers. What is multiplied is rounded
 * to float16 (11 bits; k and q are unit vectors and |T| <= 1, so it fits), sums are float32. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_PREFILL_CHUNKS_CUH
#define CALLA_BACKEND_CUDA_KERNELS_PREFILL_CHUNKS_CUH

#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/prefill_scan.cuh"

#define CHUNK 64      /* tokens */
#define CHUNK_PART 32 /* rows of the state, a block of chunks_scan */
#define CHUNK_KEY_BYTES (CHUNK * SCAN_SIZE * 2)
#define CHUNK_SQUARE_BYTES (CHUNK * CHUNK * 2)
#define CHUNK_THREADS 256

/* Between the kernels: of each chunk and key head k and q, of each chunk and value head T and P (float16),
 * exp(G) and exp(G_64 - G). Tiles are swizzled: 16-byte piece p of row r lies at p ^ (r & 7). */
struct chunks_memory {
    uint8_t *keys, *squares;
    float *gates;
};

static inline uint64_t chunks_bytes(uint32_t tokens, uint32_t heads, uint32_t key_heads,
                                    struct chunks_memory *memory, void *base) {
    uint64_t chunks = (tokens + CHUNK - 1) / CHUNK;
    uint64_t keys = chunks * key_heads * 2 * CHUNK_KEY_BYTES,
             squares = chunks * heads * 2 * CHUNK_SQUARE_BYTES;
    memory->keys = (uint8_t *)base;
    memory->squares = memory->keys + keys;
    memory->gates = (float *)(memory->squares + squares);
    return keys + squares + chunks * heads * 2 * CHUNK * sizeof(float);
}

/* Two float32 as float16, large ones as the largest. */
__device__ __forceinline__ uint32_t chunk_pack(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

template <bool TRANSPOSED> __device__ __forceinline__ void chunk_load(uint32_t (&r)[4], uint32_t address) {
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
}

/* Byte offset of a 16-byte piece in a tile of rows of BYTES. */
template <int BYTES> __device__ __forceinline__ uint32_t chunk_at(uint32_t row, uint32_t piece) {
    uint32_t turn = BYTES == 64 ? row >> 1 & 3 : row & 7;
    return row * BYTES + ((piece ^ turn) << 4);
}

/* Operands of a 16 x 16 step. The tile's rows are the operand's rows (A: m, B: n) or, transposed, the depth.
 * Of B two blocks of 8 columns: registers 0, 1 and 2, 3. */
template <int BYTES>
__device__ __forceinline__ void chunk_a(uint32_t (&r)[4], uint32_t tile, uint32_t row, uint32_t piece) {
    uint32_t lane = threadIdx.x % 32;
    chunk_load<false>(r, tile + chunk_at<BYTES>(row + lane % 16, piece + lane / 16));
}
template <int BYTES>
__device__ __forceinline__ void chunk_a_transposed(uint32_t (&r)[4], uint32_t tile, uint32_t depth,
                                                   uint32_t piece) {
    uint32_t lane = threadIdx.x % 32;
    chunk_load<true>(r, tile + chunk_at<BYTES>(depth + lane / 16 * 8 + lane % 8, piece + lane / 8 % 2));
}
template <int BYTES>
__device__ __forceinline__ void chunk_b(uint32_t (&r)[4], uint32_t tile, uint32_t row, uint32_t piece) {
    uint32_t lane = threadIdx.x % 32;
    chunk_load<false>(r, tile + chunk_at<BYTES>(row + lane / 16 * 8 + lane % 8, piece + lane / 8 % 2));
}
template <int BYTES>
__device__ __forceinline__ void chunk_b_transposed(uint32_t (&r)[4], uint32_t tile, uint32_t depth,
                                                   uint32_t piece) {
    uint32_t lane = threadIdx.x % 32;
    chunk_load<true>(r, tile + chunk_at<BYTES>(depth + lane % 16, piece + lane / 16));
}

struct chunks_prepare_memory {
    uint8_t keys[2 * CHUNK_KEY_BYTES]; /* k, q; later T */
    float A[2][CHUNK][CHUNK];
    float G[2][CHUNK], beta[2][CHUNK];
};

/* Column c of (I + A)^-1, from row FROM on: rows before it are zero. */
template <int FROM>
__device__ __forceinline__ void chunk_invert(const float (*A)[CHUNK], uint32_t column, float beta,
                                             uint32_t tile) {
    float t[CHUNK - FROM];
#pragma unroll
    for (int i = FROM; i < CHUNK; i++) {
        float sums[4] = {i == (int)column ? 1.0f : 0.0f, 0, 0, 0};
#pragma unroll
        for (int j = FROM; j < i; j += 4) {
            float4 a = *(const float4 *)&A[i][j];
            sums[0] = fmaf(-a.x, t[j - FROM], sums[0]);
            if (j + 1 < i)
                sums[1] = fmaf(-a.y, t[j + 1 - FROM], sums[1]);
            if (j + 2 < i)
                sums[2] = fmaf(-a.z, t[j + 2 - FROM], sums[2]);
            if (j + 3 < i)
                sums[3] = fmaf(-a.w, t[j + 3 - FROM], sums[3]);
        }
        t[i - FROM] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
#pragma unroll
    for (int i = FROM; i < CHUNK; i++)
        asm volatile("st.shared.b16 [%0], %1;" ::"r"(tile + chunk_at<128>(i, column / 8) + column % 8 * 2),
                     "h"((uint16_t)chunk_pack(t[i - FROM] * beta, 0))
                     : "memory");
}

/* Grid: chunks x key heads. Value heads of the key head two at a time. */
__global__ static void __launch_bounds__(CHUNK_THREADS)
    chunks_prepare(const __grid_constant__ struct scan_arguments a,
                   const __grid_constant__ struct chunks_memory to) {
    extern __shared__ __align__(16) uint8_t shared[];
    struct chunks_prepare_memory *memory = (struct chunks_prepare_memory *)shared;
    uint32_t chunk = blockIdx.x, key_head = blockIdx.y, first = chunk * CHUNK,
             sharing = a.heads / a.key_heads;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t count = min(a.tokens - first, CHUNK);
    uint8_t *keys = to.keys + ((uint64_t)chunk * a.key_heads + key_head) * 2 * CHUNK_KEY_BYTES;
    cuda_let_next_start();
    cuda_await_previous();
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < 2 * CHUNK * 16; i += CHUNK_THREADS) {
        uint32_t of_q = i / (CHUNK * 16), row = i / 16 % CHUNK, piece = i % 16;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (row < count) {
            const float *from = (of_q ? a.q + (first + row) * a.q_stride : a.k + (first + row) * a.k_stride) +
                                key_head * SCAN_SIZE + 8 * piece;
            float4 low = *(const float4 *)from, high = *(const float4 *)(from + 4);
            v = make_uint4(chunk_pack(low.x, low.y), chunk_pack(low.z, low.w), chunk_pack(high.x, high.y),
                           chunk_pack(high.z, high.w));
        }
        uint32_t at = of_q * CHUNK_KEY_BYTES + chunk_at<256>(row, piece);
        *(uint4 *)(memory->keys + at) = v;
        *(uint4 *)(keys + at) = v;
    }
    __syncthreads();

    /* k k^T by the first four warps, q k^T by the others; 16 rows each, columns up to the diagonal. */
    uint32_t rows = 16 * (warp % 4), k_tile = shared_address(memory->keys), of_q = warp / 4;
    float products[8][4] = {};
    for (uint32_t step = 0; step < SCAN_SIZE / 16; step++) {
        uint32_t left[4], right[4];
        chunk_a<256>(left, k_tile + of_q * CHUNK_KEY_BYTES, rows, 2 * step);
#pragma unroll
        for (int n = 0; n < 4; n++)
            if (16 * n <= rows) {
                chunk_b<256>(right, k_tile, 16 * n, 2 * step);
                multiply_half(products[2 * n], left, right[0], right[1]);
                multiply_half(products[2 * n + 1], left, right[2], right[3]);
            }
    }
    for (uint32_t pair = 0; pair < sharing; pair += 2) {
        uint32_t together = min(sharing - pair, 2u);
        __syncthreads();
        if (warp < together) {
            uint32_t head = key_head * sharing + pair + warp;
            float of_lane[2], beta[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t row = 2 * lane + i;
                float decay = row < count ? a.decay[(first + row) * a.decay_stride + head] : 1.0f;
                float log_decay = logf(decay);
                of_lane[i] = log_decay < -100.0f ? -100.0f : log_decay;
                beta[i] = row < count ? a.beta[(first + row) * a.beta_stride + head] : 0.0f;
            }
            float sum = of_lane[0] + of_lane[1];
            for (int step = 1; step < 32; step *= 2) {
                float other = __shfl_up_sync(~0u, sum, step);
                sum += lane >= (uint32_t)step ? other : 0;
            }
            float last = __shfl_sync(~0u, sum, 31);
            float G[2] = {sum - of_lane[1], sum};
            float *gates = to.gates + ((uint64_t)chunk * a.heads + head) * 2 * CHUNK;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                memory->G[warp][2 * lane + i] = G[i];
                memory->beta[warp][2 * lane + i] = beta[i];
                gates[2 * lane + i] = expf(G[i]);
                gates[CHUNK + 2 * lane + i] = expf(last - G[i]);
            }
        }
        __syncthreads();
        for (uint32_t h = 0; h < together; h++) {
            uint8_t *squares = to.squares + ((uint64_t)chunk * a.heads + key_head * sharing + pair + h) * 2 *
                                                CHUNK_SQUARE_BYTES;
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    if (8 * n >= (int)rows + 16)
                        continue;
                    uint32_t i = rows + g + 8 * half, j = 8 * n + 2 * t;
                    float at = memory->G[h][i];
                    float first_of = products[n][2 * half] * expf(at - memory->G[h][j]);
                    float second_of = products[n][2 * half + 1] * expf(at - memory->G[h][j + 1]);
                    if (of_q) {
                        *(uint32_t *)(squares + CHUNK_SQUARE_BYTES + chunk_at<128>(i, n) + 4 * t) =
                            chunk_pack(j <= i ? first_of : 0, j + 1 <= i ? second_of : 0);
                    } else {
                        float beta = memory->beta[h][i];
                        *(float2 *)&memory->A[h][i][j] =
                            make_float2(j < i ? beta * first_of : 0, j + 1 < i ? beta * second_of : 0);
                    }
                }
        }
        __syncthreads();
        uint32_t T = k_tile;
        if (warp < 2 * together) {
            uint32_t h = warp / 2, column = warp % 2 * 32 + lane;
            float beta = memory->beta[h][column];
            if (warp % 2 == 0)
                chunk_invert<0>(memory->A[h], column, beta, T + h * CHUNK_SQUARE_BYTES);
            else
                chunk_invert<32>(memory->A[h], column, beta, T + h * CHUNK_SQUARE_BYTES);
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < together * (CHUNK_SQUARE_BYTES / 16); i += CHUNK_THREADS) {
            uint32_t h = i / (CHUNK_SQUARE_BYTES / 16), at = i % (CHUNK_SQUARE_BYTES / 16) * 16;
            *(uint4 *)(to.squares +
                       ((uint64_t)chunk * a.heads + key_head * sharing + pair + h) * 2 * CHUNK_SQUARE_BYTES +
                       at) = *(const uint4 *)(memory->keys + h * CHUNK_SQUARE_BYTES + at);
        }
    }
}

/* Queries and T are done with early in a chunk, so that the next chunk's can come to the same place. */
struct chunks_scan_memory {
    struct {
        uint8_t keys[CHUNK_KEY_BYTES], products[CHUNK_SQUARE_BYTES]; /* products: P */
        float gates[2 * CHUNK];
    } buffers[2];
    uint8_t queries[CHUNK_KEY_BYTES], inverse[CHUNK_SQUARE_BYTES]; /* inverse: T */
    uint8_t state[CHUNK_PART * SCAN_SIZE * 2];                     /* rows of values, float16 */
    uint8_t rest[CHUNK * CHUNK_PART * 2];                          /* v - exp(G) S k */
    uint8_t values[CHUNK * CHUNK_PART * 2];                        /* V */
    uint8_t remaining[CHUNK * CHUNK_PART * 2];                     /* exp(G_64 - G) V */
};

template <uint32_t BYTES> __device__ __forceinline__ void chunks_copy(uint8_t *to, const void *from) {
#pragma unroll
    for (uint32_t i = 0; i < BYTES; i += 16 * CHUNK_THREADS)
        if (i + 16 * threadIdx.x < BYTES)
            copy_async_16(shared_address(to) + i + 16 * threadIdx.x,
                          (const uint8_t *)from + i + 16 * threadIdx.x);
}

/* Where a chunk's parts are: keys, then queries; T, then P. */
struct chunks_source {
    const uint8_t *keys, *squares;
    const float *gates;
};

__device__ __forceinline__ struct chunks_source
chunks_find(const struct scan_arguments &a, const struct chunks_memory &from, uint32_t chunk, uint32_t head) {
    uint32_t key_head = head * a.key_heads / a.heads;
    return {from.keys + ((uint64_t)chunk * a.key_heads + key_head) * 2 * CHUNK_KEY_BYTES,
            from.squares + ((uint64_t)chunk * a.heads + head) * 2 * CHUNK_SQUARE_BYTES,
            from.gates + ((uint64_t)chunk * a.heads + head) * 2 * CHUNK};
}

__device__ __forceinline__ void chunks_fetch(const struct chunks_source &from,
                                             struct chunks_scan_memory *memory, uint32_t chunk) {
    auto *buffer = &memory->buffers[chunk % 2];
    chunks_copy<CHUNK_KEY_BYTES>(buffer->keys, from.keys);
    chunks_copy<CHUNK_SQUARE_BYTES>(buffer->products, from.squares + CHUNK_SQUARE_BYTES);
    chunks_copy<2 * CHUNK * sizeof(float)>((uint8_t *)buffer->gates, from.gates);
}

/* The warp's 16 keys of all 32 values of the state as float16, for the next chunk. */
__device__ __forceinline__ void chunks_keep(const float (&s)[2][2][4], uint32_t tile, uint32_t warp,
                                            uint32_t lane) {
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                asm volatile(
                    "st.shared.b32 [%0], %1;" ::"r"(
                        tile + chunk_at<256>(16 * m + lane / 4 + 8 * half, 2 * warp + n) + lane % 4 * 4),
                    "r"(chunk_pack(s[m][n][2 * half], s[m][n][2 * half + 1]))
                    : "memory");
}

/* Grid: parts of 32 rows of the state x value heads. Warps 0 .. 3 have 16 tokens' keys each, 4 .. 7 their
 * queries; of the state every warp has 16 keys. */
__global__ static void __launch_bounds__(CHUNK_THREADS, 1)
    chunks_scan(const __grid_constant__ struct scan_arguments a,
                const __grid_constant__ struct chunks_memory from) {
    extern __shared__ __align__(16) uint8_t shared[];
    struct chunks_scan_memory *memory = (struct chunks_scan_memory *)shared;
    uint32_t head = blockIdx.y, column = head * SCAN_SIZE + blockIdx.x * CHUNK_PART;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t chunks = (a.tokens + CHUNK - 1) / CHUNK, rows = 16 * (warp % 4);
    bool of_q = warp >= 4;
    uint32_t state_tile = shared_address(memory->state), rest = shared_address(memory->rest);
    uint32_t values = shared_address(memory->values), remaining = shared_address(memory->remaining);
    uint32_t q_tile = shared_address(memory->queries), T = shared_address(memory->inverse);
    float *state = a.state + (uint64_t)column * SCAN_SIZE + 16 * warp + 2 * t;
    float s[2][2][4];
    cuda_let_next_start();
    cuda_await_previous();
    struct chunks_source source = chunks_find(a, from, 0, head);
    chunks_fetch(source, memory, 0);
    chunks_copy<CHUNK_KEY_BYTES>(memory->queries, source.keys + CHUNK_KEY_BYTES);
    chunks_copy<CHUNK_SQUARE_BYTES>(memory->inverse, source.squares);
    copy_async_commit();
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float2 v = *(const float2 *)(state + (16 * m + g + 8 * half) * SCAN_SIZE + 8 * n);
                s[m][n][2 * half] = v.x;
                s[m][n][2 * half + 1] = v.y;
            }
    chunks_keep(s, state_tile, warp, lane);
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        auto *buffer = &memory->buffers[chunk % 2];
        uint32_t k_tile = shared_address(buffer->keys), P = shared_address(buffer->products);
        bool more = chunk + 1 < chunks;
        copy_async_wait<0>();
        __syncthreads();
        if (more) {
            source = chunks_find(a, from, chunk + 1, head);
            chunks_fetch(source, memory, chunk + 1);
        }
        copy_async_commit();
        float v[4][4];
        if (!of_q) {
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    uint32_t token = chunk * CHUNK + rows + g + 8 * half;
                    float2 pair = make_float2(0, 0);
                    if (token < a.tokens)
                        pair = *(const float2 *)(a.v + token * a.v_stride + column + 8 * n + 2 * t);
                    v[n][2 * half] = pair.x;
                    v[n][2 * half + 1] = pair.y;
                }
        }
        /* S k and S q */
        float sums[4][4] = {};
#pragma unroll
        for (int step = 0; step < SCAN_SIZE / 16; step++) {
            uint32_t left[4], right[4];
            chunk_a<256>(left, of_q ? q_tile : k_tile, rows, 2 * step);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                chunk_b<256>(right, state_tile, 16 * n, 2 * step);
                multiply_half(sums[2 * n], left, right[0], right[1]);
                multiply_half(sums[2 * n + 1], left, right[2], right[3]);
            }
        }
        float decayed[2] = {buffer->gates[rows + g], buffer->gates[rows + g + 8]};
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float x = sums[n][2 * half] * decayed[half], y = sums[n][2 * half + 1] * decayed[half];
                sums[n][2 * half] = x;
                sums[n][2 * half + 1] = y;
                if (!of_q)
                    asm volatile(
                        "st.shared.b32 [%0], %1;" ::"r"(rest + chunk_at<64>(rows + g + 8 * half, n) + 4 * t),
                        "r"(chunk_pack(v[n][2 * half] - x, v[n][2 * half + 1] - y))
                        : "memory");
            }
        __syncthreads();
        if (more)
            chunks_copy<CHUNK_KEY_BYTES>(memory->queries, source.keys + CHUNK_KEY_BYTES);
        copy_async_commit();
        /* V: 16 tokens and 16 values a warp */
        float products[2][4] = {};
#pragma unroll
        for (int step = 0; step < 4; step++)
            if (16 * step <= rows) {
                uint32_t left[4], right[4];
                chunk_a<128>(left, T, rows, 2 * step);
                chunk_b_transposed<64>(right, rest, 16 * step, 2 * (warp / 4));
                multiply_half(products[0], left, right[0], right[1]);
                multiply_half(products[1], left, right[2], right[3]);
            }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t row = rows + g + 8 * half, at = chunk_at<64>(row, 2 * (warp / 4) + n) + 4 * t;
                float x = products[n][2 * half], y = products[n][2 * half + 1],
                      left = buffer->gates[CHUNK + row];
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(values + at), "r"(chunk_pack(x, y)) : "memory");
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(remaining + at),
                             "r"(chunk_pack(x * left, y * left))
                             : "memory");
            }
        __syncthreads();
        if (more)
            chunks_copy<CHUNK_SQUARE_BYTES>(memory->inverse, source.squares);
        copy_async_commit();
        float all = buffer->gates[CHUNK - 1];
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    s[m][n][i] *= all;
#pragma unroll
        for (int step = 0; step < 4; step++) {
            uint32_t left[4], right[4];
            chunk_b_transposed<256>(right, k_tile, 16 * step, 2 * warp);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                chunk_a_transposed<64>(left, remaining, 16 * step, 2 * m);
                multiply_half(s[m][0], left, right[0], right[1]);
                multiply_half(s[m][1], left, right[2], right[3]);
            }
        }
        chunks_keep(s, state_tile, warp, lane);
        if (of_q) {
#pragma unroll
            for (int step = 0; step < 4; step++)
                if (16 * step <= rows) {
                    uint32_t left[4], right[4];
                    chunk_a<128>(left, P, rows, 2 * step);
#pragma unroll
                    for (int n = 0; n < 2; n++) {
                        chunk_b_transposed<64>(right, values, 16 * step, 2 * n);
                        multiply_half(sums[2 * n], left, right[0], right[1]);
                        multiply_half(sums[2 * n + 1], left, right[2], right[3]);
                    }
                }
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    uint32_t token = chunk * CHUNK + rows + g + 8 * half;
                    if (token < a.tokens)
                        *(float2 *)(a.y + token * a.y_stride + column + 8 * n + 2 * t) =
                            make_float2(sums[n][2 * half], sums[n][2 * half + 1]);
                }
        }
    }
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *(float2 *)(state + (16 * m + g + 8 * half) * SCAN_SIZE + 8 * n) =
                    make_float2(s[m][n][2 * half], s[m][n][2 * half + 1]);
}

static inline cudaError_t chunks_launch(const struct scan_arguments &arguments, void *workspace,
                                        enum cuda_start start, cudaStream_t stream) {
    struct chunks_memory memory;
    chunks_bytes(arguments.tokens, arguments.heads, arguments.key_heads, &memory, workspace);
    cudaError_t status =
        cuda_launch(chunks_prepare, start, dim3(cuda_blocks(arguments.tokens, CHUNK), arguments.key_heads),
                    CHUNK_THREADS, sizeof(struct chunks_prepare_memory), stream, arguments, memory);
    if (status != cudaSuccess)
        return status;
    return cuda_launch(chunks_scan, start, dim3(SCAN_SIZE / CHUNK_PART, arguments.heads), CHUNK_THREADS,
                       sizeof(struct chunks_scan_memory), stream, arguments, memory);
}

#endif
