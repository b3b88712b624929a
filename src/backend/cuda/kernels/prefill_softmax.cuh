/* What the kernels for attention of many rows share: a warp has 16 of the block's rows, each lane two of them
 * (lane / 4 and lane / 4 + 8) in the layout of the matrix units' sums: block i / 4 of 8 columns, columns
 * 8 (i / 4) + 2 (lane % 4) + i % 2, row i / 2 % 2. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_PREFILL_SOFTMAX_CUH
#define CALLA_BACKEND_CUDA_KERNELS_PREFILL_SOFTMAX_CUH

#include <cuda_bf16.h>
#include <stdint.h>

#define ATTENTION_SIZE 256 /* of a head */
#define ATTENTION_ROWS 128 /* of a block */

struct attention_arguments {
    const uint32_t *position; /* of row 0 */
    const float *q, *gate;    /* [T * heads, 256], strides in elements */
    const __nv_bfloat16 *keys, *values;
    void *y; /* [T * heads, 256] */
    uint64_t q_stride, gate_stride, y_stride, cache_stride;
    uint32_t rows, heads, kv_heads, limit; /* rows: T; limit: rows of the cache */
};

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Scores of a tile of positions into exponentials relative to the rows' new maxima, sums brought on; returns
 * by what the earlier sums shrink. Limits: positions that the lane's two rows see. */
template <int COUNT>
__device__ __forceinline__ void attention_exponentials(float (&scores)[COUNT], float (&largest)[2],
                                                       float (&total)[2], float (&shrink)[2], uint32_t first,
                                                       const uint32_t (&limits)[2], bool masked) {
    const float factor = 1.4426950408889634f / 16;
    if (masked) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            uint32_t position = first + i / 4 * 8 + threadIdx.x % 4 * 2 + (i & 1);
            scores[i] = position < limits[i / 2 & 1] ? scores[i] : -INFINITY;
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = largest[half];
#pragma unroll
        for (int i = 0; i < COUNT; i += 4)
            most = fmaxf(most, fmaxf(scores[i + 2 * half], scores[i + 2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        shrink[half] = exp2_fast((largest[half] - most) * factor);
        largest[half] = most;
        float offset = most * factor, sum = 0;
#pragma unroll
        for (int i = 0; i < COUNT; i += 4)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float e = exp2_fast(scores[i + 2 * half + j] * factor - offset);
                scores[i + 2 * half + j] = e;
                sum += e;
            }
        total[half] = total[half] * shrink[half] + sum;
    }
}

/* The exponentials as bf16, in the order of the operand A: that of the sums. */
template <int COUNT>
__device__ __forceinline__ void attention_pack(const float (&scores)[COUNT], uint32_t (&weights)[COUNT / 2]) {
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(scores[2 * i], scores[2 * i + 1]);
        weights[i] = *(uint32_t *)&pair;
    }
}

/* y = sums / total * sigmoid(gate) of the lane's two rows of the block, which begins at first_token. */
template <typename OUT>
__device__ __forceinline__ void
attention_store(const struct attention_arguments &a, const float (&sums)[ATTENTION_SIZE / 2],
                float (&total)[2], const uint32_t (&row)[2], uint32_t kv_head, uint32_t first_token) {
    uint32_t group = a.heads / a.kv_heads, lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        total[half] += __shfl_xor_sync(~0u, total[half], 1);
        total[half] += __shfl_xor_sync(~0u, total[half], 2);
        uint32_t token = first_token + row[half] / group, head = kv_head * group + row[half] % group;
        if (token >= a.rows)
            continue;
        const float *gate = a.gate + (uint64_t)(token * a.heads + head) * a.gate_stride + lane % 4 * 2;
        OUT *y = (OUT *)a.y + (uint64_t)(token * a.heads + head) * a.y_stride + lane % 4 * 2;
        float scale = 1 / total[half];
#pragma unroll
        for (int first = 0; first < ATTENTION_SIZE / 8; first += 8) {
            float2 gates[8];
#pragma unroll
            for (int i = 0; i < 8; i++)
                gates[i] = *(const float2 *)(gate + 8 * (first + i));
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float *pair = &sums[4 * (first + i) + 2 * half];
                float2 out = make_float2(__fdividef(pair[0] * scale, 1 + __expf(-gates[i].x)),
                                         __fdividef(pair[1] * scale, 1 + __expf(-gates[i].y)));
                if (sizeof(OUT) == 4)
                    *(float2 *)(y + 8 * (first + i)) = out;
                else
                    *(__nv_bfloat162 *)(y + 8 * (first + i)) = __floats2bfloat162_rn(out.x, out.y);
            }
        }
    }
}

#endif
