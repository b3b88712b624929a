/* Which experts many tokens go to: logits of all experts with the matrix units, then softmax and the best.
 *
 * Scores decide which expert is chosen, so the logits are as exact as in float32: the weights' 8-bit codes
 * are exact in float16, and x, scaled by a power of two of its row, is taken as the sum of two float16
 * numbers (22 bits). Codes are summed per group of 64 columns; scale and bias are applied to the group's sums
 * in float32. Within a group the columns are taken in the order in which a lane loads them, 16 neighbours at
 * a time: 4 for each k16 step. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_PREFILL_ROUTER_CUH
#define CALLA_BACKEND_CUDA_KERNELS_PREFILL_ROUTER_CUH

#include "backend/cuda/kernels/launch.cuh"
#include "backend/cuda/kernels/mma.cuh"

#include <cuda_fp16.h>
#include <stdint.h>

#define ROUTER_EXPERTS 256               /* at most */
#define ROUTER_CHOSEN 32                 /* at most */
#define ROUTER_WARPS 16                  /* 16 experts each */
#define ROUTER_AHEAD 4                   /* groups whose codes are on their way */
#define ROUTER_CHUNK 512                 /* columns in shared memory at a time */
#define ROUTER_STRIDE (ROUTER_CHUNK + 8) /* no bank is hit twice */

struct router_arguments {
    const float *x, *norm; /* norm: NULL, or its weight */
    const uint8_t *codes, *gate_codes;
    const float2 *pairs, *gate_pairs; /* (scale, bias) of each group */
    int32_t *ids;
    float *scores;
    uint64_t x_stride, ids_stride, scores_stride;
    uint32_t tokens, columns, experts, chosen;
    float epsilon;
};

template <int BLOCKS> struct router_memory { /* of 8 tokens */
    __half high[8 * BLOCKS][ROUTER_STRIDE], low[8 * BLOCKS][ROUTER_STRIDE];
    float sums[8 * BLOCKS][ROUTER_CHUNK / 64];
    float logits[8 * BLOCKS][ROUTER_EXPERTS + 1];
    float norm[8 * BLOCKS], power[8 * BLOCKS], unpower[8 * BLOCKS], gate[8 * BLOCKS];
};

__device__ __forceinline__ float router_sum(float x) {
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(~0u, x, step);
    return x;
}

__device__ __forceinline__ float router_max(float x) {
    for (int step = 16; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

/* Two codes (bytes 0 and 1 or 2 and 3 of a word) as float16. */
template <int FIRST> __device__ __forceinline__ uint32_t router_codes(uint32_t word) {
    uint32_t raised = __byte_perm(word, 0x64646464, FIRST == 0 ? 0x4140 : 0x4342);
    __half2 codes = __hsub2(*(__half2 *)&raised, __floats2half2_rn(1024, 1024));
    return *(uint32_t *)&codes;
}

/* Norm and largest of each row. */
template <int BLOCKS>
__device__ __forceinline__ void router_measure(const struct router_arguments &a,
                                               struct router_memory<BLOCKS> *memory, uint32_t first,
                                               uint32_t warp, uint32_t lane) {
    for (uint32_t row = warp; row < 8 * BLOCKS; row += ROUTER_WARPS) {
        const float *x = a.x + (uint64_t)min(first + row, a.tokens - 1) * a.x_stride;
        float squares = 0, most = 0;
#pragma unroll 4
        for (uint32_t i = 4 * lane; i < a.columns; i += 128) {
            float4 v = *(const float4 *)(x + i);
            squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            if (a.norm != NULL) {
                float4 w = *(const float4 *)(a.norm + i);
                v = make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
            }
            most = fmaxf(fmaxf(fmaxf(most, fabsf(v.x)), fmaxf(fabsf(v.y), fabsf(v.z))), fabsf(v.w));
        }
        squares = router_sum(squares);
        float norm = a.norm != NULL ? 1.0f / sqrtf(squares / a.columns + a.epsilon) : 1.0f;
        most = router_max(most) * norm;
        if (lane == 0) {
            int exponent = 0;
            frexpf(most, &exponent);
            /* At most 2^8 after scaling; no infinite power for rows of zeros, infinities or NaN. */
            int power = max(-100, min(100, 8 - exponent));
            memory->power[row] = ldexpf(1.0f, power);
            memory->unpower[row] = ldexpf(1.0f, -power);
            memory->norm[row] = norm;
            memory->gate[row] = 0;
        }
    }
}

/* Columns [from, from + count) of the rows: split, and summed by group; the shared expert's gate on the way.
 */
template <int BLOCKS>
__device__ __forceinline__ void router_split(const struct router_arguments &a,
                                             struct router_memory<BLOCKS> *memory, uint32_t first,
                                             uint32_t from, uint32_t count, uint32_t warp, uint32_t lane) {
    for (uint32_t row = warp; row < 8 * BLOCKS; row += ROUTER_WARPS) {
        const float *x = a.x + (uint64_t)min(first + row, a.tokens - 1) * a.x_stride + from;
        float norm = memory->norm[row], power = memory->power[row], gate = 0;
#pragma unroll 4
        for (uint32_t i = 4 * lane; i < ROUTER_CHUNK; i += 128) {
            float4 v = make_float4(0, 0, 0, 0);
            if (i < count) {
                v = *(const float4 *)(x + i);
                float4 w = make_float4(norm, norm, norm, norm);
                if (a.norm != NULL) {
                    float4 of_norm = *(const float4 *)(a.norm + from + i);
                    v = make_float4(v.x * norm, v.y * norm, v.z * norm, v.w * norm);
                    w = of_norm;
                }
                v = make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
                uchar4 codes = *(const uchar4 *)(a.gate_codes + from + i);
                float2 pair = a.gate_pairs[(from + i) / 64];
                gate = fmaf(fmaf(pair.x, codes.x, pair.y), v.x, gate);
                gate = fmaf(fmaf(pair.x, codes.y, pair.y), v.y, gate);
                gate = fmaf(fmaf(pair.x, codes.z, pair.y), v.z, gate);
                gate = fmaf(fmaf(pair.x, codes.w, pair.y), v.w, gate);
            }
            float sum = (v.x + v.y) + (v.z + v.w);
            for (int step = 8; step > 0; step /= 2)
                sum += __shfl_xor_sync(~0u, sum, step);
            if (lane % 16 == 0)
                memory->sums[row][i / 64] = sum;
            v = make_float4(v.x * power, v.y * power, v.z * power, v.w * power);
            __half2 high[2] = {__floats2half2_rn(v.x, v.y), __floats2half2_rn(v.z, v.w)};
            float2 part[2] = {__half22float2(high[0]), __half22float2(high[1])};
            __half2 low[2] = {__floats2half2_rn(v.x - part[0].x, v.y - part[0].y),
                              __floats2half2_rn(v.z - part[1].x, v.w - part[1].y)};
            *(uint2 *)&memory->high[row][i] = make_uint2(*(uint32_t *)&high[0], *(uint32_t *)&high[1]);
            *(uint2 *)&memory->low[row][i] = make_uint2(*(uint32_t *)&low[0], *(uint32_t *)&low[1]);
        }
        gate = router_sum(gate);
        if (lane == 0)
            memory->gate[row] += gate;
    }
}

/* softmax over the experts, the `chosen` largest in falling order, the lower id first on a tie; scores that
 * sum to 1. Where a logit is not a number, all scores are not, and the first experts are chosen. By a warp.
 */
__device__ __forceinline__ void router_choose(const float *logits, uint32_t experts, uint32_t chosen,
                                              int32_t *ids, float *scores, uint32_t lane) {
    float p[ROUTER_EXPERTS / 32], most = -INFINITY, total = 0;
#pragma unroll
    for (int i = 0; i < ROUTER_EXPERTS / 32; i++) {
        p[i] = lane + 32 * i < experts ? logits[lane + 32 * i] : -INFINITY;
        most = fmaxf(most, p[i]);
    }
    most = router_max(most);
#pragma unroll
    for (int i = 0; i < ROUTER_EXPERTS / 32; i++) {
        p[i] = lane + 32 * i < experts ? expf(p[i] - most) : -1.0f;
        total += lane + 32 * i < experts ? p[i] : 0.0f;
    }
    total = router_sum(total);
    bool number = !isnan(total);
#pragma unroll
    for (int i = 0; i < ROUTER_EXPERTS / 32; i++)
        if (lane + 32 * i < experts)
            p[i] = p[i] / total;
    float mine = 0, sum = 0;
    int32_t my_id = 0;
    for (uint32_t k = 0; k < chosen; k++) {
        /* Probabilities are ordered as their bits are; -1, what is taken, counts as nothing. */
        uint32_t best = 0, at = ROUTER_EXPERTS;
#pragma unroll
        for (int i = 0; i < ROUTER_EXPERTS / 32; i++)
            best = max(best, p[i] < 0 ? 0 : __float_as_uint(p[i]) + 1);
        best = __reduce_max_sync(~0u, best);
#pragma unroll
        for (int i = ROUTER_EXPERTS / 32 - 1; i >= 0; i--)
            at = p[i] >= 0 && __float_as_uint(p[i]) + 1 == best ? lane + 32 * i : at;
        at = __reduce_min_sync(~0u, at);
        float score = __uint_as_float(best - 1);
        if (!number) {
            score = total;
            at = k;
        }
#pragma unroll
        for (int i = 0; i < ROUTER_EXPERTS / 32; i++)
            if (at == lane + 32 * i)
                p[i] = -1;
        sum += score;
        if (lane == k) {
            mine = score;
            my_id = at;
        }
    }
    if (lane < chosen) {
        ids[lane] = my_id;
        scores[lane] = mine / sum;
    }
}

/* A lane's part of a group: codes, scales and biases of two experts. */
struct router_group {
    uint4 codes[2];
    float2 pairs[2];
};

__device__ __forceinline__ void router_load(const struct router_arguments &a, const uint64_t (&expert)[2],
                                            uint32_t group, uint32_t t, struct router_group *to) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        to->codes[i] = *(const uint4 *)(a.codes + expert[i] * a.columns + 64 * group + 16 * t);
        to->pairs[i] = a.pairs[expert[i] * (a.columns / 64) + group];
    }
}

/* Adds a group's products of 16 experts and 8 * BLOCKS tokens; high, low: the group's columns of the first
 * token, STRIDE apart; sums: of its x, sums_stride apart. */
template <int BLOCKS, int STRIDE>
__device__ __forceinline__ void
router_multiply(const struct router_group &now, const __half *high, const __half *low, const float *sums_of_x,
                int sums_stride, const float *unpower, uint32_t g, uint32_t t, float (&totals)[BLOCKS][4]) {
    const uint32_t *words[2] = {&now.codes[0].x, &now.codes[1].x};
    float sums[BLOCKS][4] = {}, of_low[4] = {}; /* the latter: a shorter chain where there is but one */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t weights[2][4];
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                weights[j][i] = router_codes<0>(words[i][2 * half + j]);
                weights[j][2 + i] = router_codes<2>(words[i][2 * half + j]);
            }
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            uint32_t at = (8 * b + g) * STRIDE + 16 * t + 8 * half;
            uint4 first = *(const uint4 *)(high + at), second = *(const uint4 *)(low + at);
            multiply_half(sums[b], weights[0], first.x, first.y);
            multiply_half(sums[b], weights[1], first.z, first.w);
            multiply_half(BLOCKS == 1 ? of_low : sums[b], weights[0], second.x, second.y);
            multiply_half(BLOCKS == 1 ? of_low : sums[b], weights[1], second.z, second.w);
        }
    }
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t token = 8 * b + 2 * t + (i & 1);
            float2 pair = now.pairs[i / 2];
            totals[b][i] = fmaf(pair.x, (BLOCKS == 1 ? sums[b][i] + of_low[i] : sums[b][i]) * unpower[token],
                                totals[b][i]);
            totals[b][i] = fmaf(pair.y, sums_of_x[token * sums_stride], totals[b][i]);
        }
}

/* 8 * BLOCKS tokens a block. */
template <int BLOCKS>
__global__ void __launch_bounds__(32 * ROUTER_WARPS)
    router_kernel(const __grid_constant__ struct router_arguments a) {
    extern __shared__ __align__(16) uint8_t shared[];
    struct router_memory<BLOCKS> *memory = (struct router_memory<BLOCKS> *)shared;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t first = blockIdx.x * 8 * BLOCKS, groups = a.columns / 64;
    /* The warp's experts; those past the last are computed and left out. */
    uint64_t expert[2] = {min(16 * warp + g, a.experts - 1), min(16 * warp + g + 8, a.experts - 1)};
    struct router_group ahead[ROUTER_AHEAD];
#pragma unroll
    for (int i = 0; i < ROUTER_AHEAD; i++)
        router_load(a, expert, min((uint32_t)i, groups - 1), t, &ahead[i]);
    cuda_let_next_start();
    cuda_await_previous();
    router_measure<BLOCKS>(a, memory, first, warp, lane);
    __syncwarp();
    float totals[BLOCKS][4] = {};
    for (uint32_t base = 0; base < groups; base += ROUTER_AHEAD) {
        if (base % (ROUTER_CHUNK / 64) == 0) {
            __syncthreads();
            router_split<BLOCKS>(a, memory, first, 64 * base, min(a.columns - 64 * base, ROUTER_CHUNK), warp,
                                 lane);
            __syncthreads();
        }
#pragma unroll
        for (int slot = 0; slot < ROUTER_AHEAD; slot++) {
            uint32_t group = base + slot;
            if (group >= groups)
                break;
            struct router_group now = ahead[slot];
            router_load(a, expert, min(group + ROUTER_AHEAD, groups - 1), t, &ahead[slot]);
            uint32_t of_chunk = group % (ROUTER_CHUNK / 64);
            router_multiply<BLOCKS, ROUTER_STRIDE>(now, &memory->high[0][64 * of_chunk],
                                                   &memory->low[0][64 * of_chunk], &memory->sums[0][of_chunk],
                                                   ROUTER_CHUNK / 64, memory->unpower, g, t, totals);
        }
    }
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t e = 16 * warp + g + 8 * (i / 2);
            if (e < a.experts)
                memory->logits[8 * b + 2 * t + (i & 1)][e] = totals[b][i];
        }
    __syncthreads();
    for (uint32_t row = warp; row < 8 * BLOCKS && first + row < a.tokens; row += ROUTER_WARPS) {
        float *scores = a.scores + (first + row) * a.scores_stride;
        router_choose(memory->logits[row], a.experts, a.chosen, a.ids + (first + row) * a.ids_stride, scores,
                      lane);
        if (lane == 0)
            scores[a.chosen] = 1 / (1 + expf(-memory->gate[row]));
    }
}

/* ---- Few tokens: more blocks. The logits of 8 tokens are computed by several, then a warp chooses ---- */

#define ROUTER_SPREAD 64    /* experts of a block; 16 a warp */
#define ROUTER_QUARTERS 4   /* warps that divide the columns of 16 experts */
#define ROUTER_COLUMNS 2048 /* at most */
#define ROUTER_PIECES (ROUTER_COLUMNS / 256)

struct router_spread_memory {
    __half high[8][ROUTER_COLUMNS + 8], low[8][ROUTER_COLUMNS + 8];
    float sums[8][ROUTER_COLUMNS / 64];
    float partials[ROUTER_QUARTERS][8][ROUTER_SPREAD + 1];
    float squares[16], most[16], gate[16], unpower[8]; /* of each warp's half of a row; of a row */
};

/* Grid: 8 tokens x 64 experts. logits[T, experts + 1], the last the shared expert's gate. columns % 256 == 0.
 */
__global__ static void __launch_bounds__(32 * ROUTER_WARPS)
    router_spread(const __grid_constant__ struct router_arguments a, float *logits) {
    extern __shared__ __align__(16) uint8_t shared[];
    struct router_spread_memory *memory = (struct router_spread_memory *)shared;
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t first = blockIdx.x * 8, groups = a.columns / 64;
    uint32_t quarter = warp / 4, of_block = 16 * (warp % 4), base = blockIdx.y * ROUTER_SPREAD + of_block;
    uint32_t each = groups / ROUTER_QUARTERS, from = quarter * each, to = from + each;
    uint64_t expert[2] = {min(base + g, a.experts - 1), min(base + g + 8, a.experts - 1)};
    uint32_t row = warp / 2, column = warp % 2 * (a.columns / 2) + 4 * lane, pieces = a.columns / 256;
    bool own = row % gridDim.y == blockIdx.y; /* the block computes this row's gate */
    struct router_group ahead[ROUTER_AHEAD];
#pragma unroll
    for (int i = 0; i < ROUTER_AHEAD; i++)
        router_load(a, expert, min(from + i, groups - 1), t, &ahead[i]);
    cuda_let_next_start();
    cuda_await_previous();

    /* The warp's half of a row: measured, then split. */
    const float *x = a.x + (uint64_t)min(first + row, a.tokens - 1) * a.x_stride;
    float4 v[ROUTER_PIECES];
    float squares = 0, most = 0, gate = 0;
#pragma unroll
    for (int i = 0; i < ROUTER_PIECES; i++)
        v[i] = i < pieces ? *(const float4 *)(x + column + 128 * i) : make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < ROUTER_PIECES; i++)
        if (i < pieces) {
            squares += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
            if (a.norm != NULL) {
                float4 w = *(const float4 *)(a.norm + column + 128 * i);
                v[i] = make_float4(v[i].x * w.x, v[i].y * w.y, v[i].z * w.z, v[i].w * w.w);
            }
            most =
                fmaxf(fmaxf(fmaxf(most, fabsf(v[i].x)), fmaxf(fabsf(v[i].y), fabsf(v[i].z))), fabsf(v[i].w));
        }
    if (own)
#pragma unroll
        for (int i = 0; i < ROUTER_PIECES; i++)
            if (i < pieces) {
                uchar4 codes = *(const uchar4 *)(a.gate_codes + column + 128 * i);
                float2 pair = a.gate_pairs[(column + 128 * i) / 64];
                gate = fmaf(fmaf(pair.x, codes.x, pair.y), v[i].x, gate);
                gate = fmaf(fmaf(pair.x, codes.y, pair.y), v[i].y, gate);
                gate = fmaf(fmaf(pair.x, codes.z, pair.y), v[i].z, gate);
                gate = fmaf(fmaf(pair.x, codes.w, pair.y), v[i].w, gate);
            }
    squares = router_sum(squares);
    most = router_max(most);
    gate = router_sum(gate);
    if (lane == 0) {
        memory->squares[warp] = squares;
        memory->most[warp] = most;
        memory->gate[warp] = gate;
    }
    __syncthreads();
    squares = memory->squares[warp & ~1u] + memory->squares[warp | 1];
    most = fmaxf(memory->most[warp & ~1u], memory->most[warp | 1]);
    float norm = a.norm != NULL ? 1.0f / sqrtf(squares / a.columns + a.epsilon) : 1.0f;
    /* At most 2^8 after scaling, as in router_measure; powers of two by their exponent. */
    int exponent = (int)(__float_as_uint(most * norm) >> 23 & 255) - 126;
    int power = max(-100, min(100, 8 - exponent));
    float up = __uint_as_float((uint32_t)(power + 127) << 23) * norm;
    if (lane == 0)
        memory->unpower[row] = __uint_as_float((uint32_t)(127 - power) << 23);
#pragma unroll
    for (int i = 0; i < ROUTER_PIECES; i++)
        if (i < pieces) {
            uint32_t at = column + 128 * i;
            float sum = (v[i].x + v[i].y) + (v[i].z + v[i].w);
            for (int step = 8; step > 0; step /= 2)
                sum += __shfl_xor_sync(~0u, sum, step);
            if (lane % 16 == 0)
                memory->sums[row][at / 64] = sum * norm;
            float4 y = make_float4(v[i].x * up, v[i].y * up, v[i].z * up, v[i].w * up);
            __half2 high[2] = {__floats2half2_rn(y.x, y.y), __floats2half2_rn(y.z, y.w)};
            float2 part[2] = {__half22float2(high[0]), __half22float2(high[1])};
            __half2 low[2] = {__floats2half2_rn(y.x - part[0].x, y.y - part[0].y),
                              __floats2half2_rn(y.z - part[1].x, y.w - part[1].y)};
            *(uint2 *)&memory->high[row][at] = make_uint2(*(uint32_t *)&high[0], *(uint32_t *)&high[1]);
            *(uint2 *)&memory->low[row][at] = make_uint2(*(uint32_t *)&low[0], *(uint32_t *)&low[1]);
        }
    if (own && warp % 2 == 0 && lane == 0 && first + row < a.tokens)
        logits[(uint64_t)(first + row) * (a.experts + 1) + a.experts] =
            (memory->gate[warp] + memory->gate[warp + 1]) * norm;
    __syncthreads();

    float totals[1][4] = {};
    for (uint32_t next = from; next < to; next += ROUTER_AHEAD) {
#pragma unroll
        for (int slot = 0; slot < ROUTER_AHEAD; slot++) {
            uint32_t group = next + slot;
            if (group >= to)
                break;
            struct router_group now = ahead[slot];
            router_load(a, expert, min(group + ROUTER_AHEAD, to - 1), t, &ahead[slot]);
            router_multiply<1, ROUTER_COLUMNS + 8>(now, &memory->high[0][64 * group],
                                                   &memory->low[0][64 * group], &memory->sums[0][group],
                                                   ROUTER_COLUMNS / 64, memory->unpower, g, t, totals);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        memory->partials[quarter][2 * t + (i & 1)][of_block + g + 8 * (i / 2)] = totals[0][i];
    __syncthreads();
    uint32_t token = threadIdx.x / ROUTER_SPREAD, e = threadIdx.x % ROUTER_SPREAD;
    float sum = 0;
#pragma unroll
    for (int q = 0; q < ROUTER_QUARTERS; q++)
        sum += memory->partials[q][token][e];
    if (first + token < a.tokens && blockIdx.y * ROUTER_SPREAD + e < a.experts)
        logits[(uint64_t)(first + token) * (a.experts + 1) + blockIdx.y * ROUTER_SPREAD + e] = sum;
}

#define ROUTER_CHOOSERS 4 /* tokens of a block */

__global__ static void __launch_bounds__(32 * ROUTER_CHOOSERS)
    router_choose_spread(const __grid_constant__ struct router_arguments a, const float *logits) {
    uint32_t token = blockIdx.x * ROUTER_CHOOSERS + threadIdx.x / 32, lane = threadIdx.x % 32;
    cuda_let_next_start();
    cuda_await_previous();
    if (token >= a.tokens)
        return;
    const float *of_token = logits + (uint64_t)token * (a.experts + 1);
    float *scores = a.scores + token * a.scores_stride, gate = of_token[a.experts];
    router_choose(of_token, a.experts, a.chosen, a.ids + token * a.ids_stride, scores, lane);
    if (lane == 0)
        scores[a.chosen] = 1 / (1 + expf(-gate));
}

template <int BLOCKS>
cudaError_t router_launch_blocks(const struct router_arguments &arguments, enum cuda_start start,
                                 cudaStream_t stream) {
    return cuda_launch(router_kernel<BLOCKS>, start, cuda_blocks(arguments.tokens, 8 * BLOCKS),
                       32 * ROUTER_WARPS, sizeof(struct router_memory<BLOCKS>), stream, arguments);
}

/* The more tokens a block has, the less often the weights are read. */
/* Whether more blocks are worth a kernel more. */
static inline bool router_spreads(uint32_t tokens, uint32_t columns, int multiprocessors) {
    return tokens <= (uint32_t)multiprocessors * 2 && columns <= ROUTER_COLUMNS && columns % 256 == 0;
}

/* logits: float32 [T, experts + 1], NULL where router_spreads says no. */
static inline cudaError_t router_launch(const struct router_arguments &arguments, float *logits,
                                        int multiprocessors, enum cuda_start start, cudaStream_t stream) {
    if (logits != NULL) {
        dim3 grid(cuda_blocks(arguments.tokens, 8), cuda_blocks(arguments.experts, ROUTER_SPREAD));
        cudaError_t status = cuda_launch(router_spread, start, grid, 32 * ROUTER_WARPS,
                                         sizeof(struct router_spread_memory), stream, arguments, logits);
        if (status != cudaSuccess)
            return status;
        return cuda_launch(router_choose_spread, start, cuda_blocks(arguments.tokens, ROUTER_CHOOSERS),
                           32 * ROUTER_CHOOSERS, 0, stream, arguments, (const float *)logits);
    }
    if (arguments.tokens <= (uint32_t)multiprocessors * 8)
        return router_launch_blocks<1>(arguments, start, stream);
    if (arguments.tokens <= (uint32_t)multiprocessors * 16)
        return router_launch_blocks<2>(arguments, start, stream);
    return router_launch_blocks<4>(arguments, start, stream);
}

#endif
