/* The list of what a streaming product (prefill_stream.cuh) does, and a block's part of it. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_PREFILL_STREAM_PLAN_CUH
#define CALLA_BACKEND_CUDA_KERNELS_PREFILL_STREAM_PLAN_CUH

#include "backend/cuda/kernels/prefill_product.cuh"

#define STREAM_PASSES 256     /* of a block, at most */
#define STREAM_PLAN_BYTES 640 /* stream_count of 32 warps, and three numbers */

struct stream_pass {
    uint32_t expert; /* number of experts: the shared one */
    uint32_t row, rows;
    uint32_t start, end; /* in the block's part of the list; the same: no unit of the pass is in it */
    uint32_t unit;       /* of the pass, at `start` */
};

/* What a unit of a pass of so many rows takes, in eighths of one of 8 rows. */
__device__ __forceinline__ uint32_t stream_cost(uint32_t rows) {
    return 8 + 4 * ((rows - 1) / 8);
}

struct stream_count {
    uint32_t passes, units, cost;
};

/* An expert's passes, or those of the shared expert, which is the last. */
template <int KIND, int MOST>
__device__ __forceinline__ struct stream_count stream_count_of(const struct gemm_arguments &a,
                                                               uint32_t expert) {
    uint32_t rows = expert < a.experts ? a.starts[expert + 1] - a.starts[expert] : a.tokens;
    uint32_t units = a.matrices[expert == a.experts].features / (KIND == GEMM_GATE_UP ? 16 : 32);
    uint32_t whole = rows / MOST, rest = rows % MOST, passes = whole + (rest > 0);
    return {passes, passes * units, units * (whole * stream_cost(MOST) + (rest > 0 ? stream_cost(rest) : 0))};
}

/* The block's part of the list, which costs as much as those of the others; returns its passes' number. A
 * unit belongs to the block in whose part of the cost it begins. By the whole block. */
template <int KIND, typename SHAPE>
__device__ __forceinline__ uint32_t stream_plan(const struct gemm_arguments &a, struct stream_count *sums,
                                                struct stream_pass *passes) {
    constexpr uint32_t most = 8 * SHAPE::widest;
    uint32_t thread = threadIdx.x, each = (a.experts + SHAPE::threads) / SHAPE::threads;
    uint32_t from = min(thread * each, a.experts + 1), to = min(from + each, a.experts + 1);
    struct stream_count own = {0, 0, 0};
    for (uint32_t e = from; e < to; e++) {
        struct stream_count of = stream_count_of<KIND, most>(a, e);
        own = {own.passes + of.passes, own.units + of.units, own.cost + of.cost};
    }
    struct stream_count at = own; /* of this thread and those before it in the warp */
    for (uint32_t step = 1; step < 32; step *= 2) {
        struct stream_count other = {__shfl_up_sync(~0u, at.passes, step),
                                     __shfl_up_sync(~0u, at.units, step), __shfl_up_sync(~0u, at.cost, step)};
        if (thread % 32 >= step)
            at = {at.passes + other.passes, at.units + other.units, at.cost + other.cost};
    }
    if (thread % 32 == 31)
        sums[thread / 32] = at;
    __syncthreads();
    at = {at.passes - own.passes, at.units - own.units, at.cost - own.cost};
    uint64_t all = 0;
#pragma unroll
    for (uint32_t w = 0; w < SHAPE::threads / 32; w++) {
        if (w < thread / 32)
            at = {at.passes + sums[w].passes, at.units + sums[w].units, at.cost + sums[w].cost};
        all += sums[w].cost;
    }
    uint32_t begin = (uint32_t)(all * blockIdx.x / gridDim.x),
             end = (uint32_t)(all * (blockIdx.x + 1) / gridDim.x);
    uint32_t *bounds =
        (uint32_t *)&sums[SHAPE::threads / 32]; /* the first pass, the first unit, the last pass */
    /* First where the part begins and ends, then what is between. */
#pragma unroll
    for (int turn = 0; turn < 2; turn++) {
        struct stream_count now = at;
        for (uint32_t e = from; e < to; e++) {
            uint32_t row = e < a.experts ? a.starts[e] : 0,
                     row_end = e < a.experts ? a.starts[e + 1] : a.tokens;
            uint32_t units = a.matrices[e == a.experts].features / (KIND == GEMM_GATE_UP ? 16 : 32);
            for (; row < row_end; row += most) {
                uint32_t rows = min(most, row_end - row), cost = stream_cost(rows);
                struct stream_count next = {now.passes + 1, now.units + units, now.cost + units * cost};
                uint32_t first = begin > now.cost ? (begin - now.cost + cost - 1) / cost : 0;
                uint32_t last = min(units, (end - min(end, now.cost) + cost - 1) / cost);
                if (turn == 0 && now.cost <= begin && begin < next.cost) {
                    bounds[0] = now.passes;
                    bounds[1] = now.units + first;
                }
                if (turn == 0 && now.cost < end && end <= next.cost)
                    bounds[2] = now.passes;
                uint32_t place = now.passes - bounds[0];
                if (turn == 1 && now.cost < end && next.cost > begin && place < STREAM_PASSES)
                    passes[place] = {
                        e, row, rows, now.units + first - bounds[1], now.units + last - bounds[1], first};
                now = next;
            }
        }
        __syncthreads();
    }
    return end > begin ? bounds[2] + 1 - bounds[0] : 0;
}

#endif
