/* OP_ROUTER for one row: logits of all experts, softmax, the largest, and the shared expert's gate. One
 * cluster of blocks, whose logits meet in the first block's shared memory; where there are no clusters as
 * many blocks, which leave theirs in device memory to a kernel of one warp. */
#include "backend/cuda/kernels/decode_router.cuh"

/* What the blocks leave. */
struct router_results {
    float logits[ROUTER_EXPERTS], gate_parts[ROUTER_QUADS], scale;
};

static __device__ __forceinline__ void choose_and_gate(const router_parameters &p, const float *logits,
                                                       const float *gate_parts, float scale, uint32_t lane) {
    choose(logits, p.experts, p.chosen, lane, p.ids, p.scores);
    if (lane == 0) {
        float gate = 0;
        for (uint32_t i = 0; i < p.columns / QUAD_COLUMNS; i++)
            gate += gate_parts[i];
        p.scores[p.chosen] = 1 / (1 + expf(-gate * scale));
    }
}

/* results: NULL in a cluster. */
template <bool NORMALISE, bool CLUSTER>
static __global__
__launch_bounds__(32 * (ROUTER_WARPS + 1)) void decode_router(const __grid_constant__ router_parameters p,
                                                              router_results *results) {
    __shared__ float logits[ROUTER_EXPERTS], partials[ROUTER_QUADS][ROUTER_ROWS];
    __shared__ float squares[ROUTER_QUADS], gate_parts[ROUTER_QUADS];
    __shared__ __align__(16) uint2 bytes[ROUTER_WARPS][4][32];
    __shared__ uint64_t received;
    uint32_t rank = CLUSTER ? cluster_rank() : blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32,
             quads = p.columns / QUAD_COLUMNS;
    uint32_t quad = warp % ROUTER_QUADS, row = rank * ROUTER_ROWS + warp / ROUTER_QUADS * CUDA_TILE_ROWS;
    bool works = warp < ROUTER_WARPS && quad < quads && row < p.experts,
         gates = warp == ROUTER_WARPS && rank < quads;
    if (CLUSTER) {
        if (threadIdx.x == 0) {
            barrier_init(&received, 1);
            barrier_fence();
            copy_expect(&received, (p.experts + quads) * (uint32_t)sizeof(float));
        }
        __syncwarp();
        cluster_arrive();
    }
    router_codes loaded;
    float norm[8], gate_weights[8];
    if (works) {
        loaded = router_load(p.codes, p.pairs, row, p.columns, quad, lane);
        if (NORMALISE)
            quad_load(p.norm + quad * QUAD_COLUMNS, lane, norm);
    }
    if (gates)
        gate_load(p.gate_codes, p.gate_pairs, p.norm, rank, lane, gate_weights);
    if (CLUSTER)
        cluster_wait();
    cuda_let_next_start();
    cuda_await_previous();

    if (works) {
        float x[8], sums[2];
        quad_load(p.x + quad * QUAD_COLUMNS, lane, x);
        if (NORMALISE) {
            float square = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                square = fmaf(x[i], x[i], square);
                x[i] *= norm[i];
            }
            square = sum_of_warp(square);
            if (warp < ROUTER_QUADS && lane == 0)
                squares[quad] = square;
        }
        router_product(loaded, x, lane, bytes[warp], sums);
        if (lane % 4 < 2)
            partials[quad][warp / ROUTER_QUADS * CUDA_TILE_ROWS + lane / 4 + lane % 4 * 8] =
                lane % 4 ? sums[1] : sums[0];
    }
    if (gates) {
        float x[8], gate = 0;
        quad_load(p.x + rank * QUAD_COLUMNS, lane, x);
#pragma unroll
        for (int i = 0; i < 8; i++)
            gate = fmaf(gate_weights[i], x[i], gate);
        gate = sum_of_warp(gate);
        if (lane == 0 && CLUSTER)
            send(&gate_parts[rank], gate, &received, 0);
        else if (lane == 0)
            results->gate_parts[rank] = gate;
    }
    __syncthreads();
    float scale = 1;
    if (NORMALISE) {
        float square = 0;
        for (uint32_t i = 0; i < quads; i++)
            square += squares[i];
        scale = rsqrtf(square / (float)p.columns + p.epsilon);
    }
    if (threadIdx.x < ROUTER_ROWS && rank * ROUTER_ROWS + threadIdx.x < p.experts) {
        float sum = 0;
        for (uint32_t i = 0; i < quads; i++)
            sum += partials[i][threadIdx.x];
        if (CLUSTER)
            send(&logits[rank * ROUTER_ROWS + threadIdx.x], sum * scale, &received, 0);
        else
            results->logits[rank * ROUTER_ROWS + threadIdx.x] = sum * scale;
    }
    if (!CLUSTER && rank == 0 && threadIdx.x == 0)
        results->scale = scale;
    if (CLUSTER && rank == 0 && warp == 0) {
        barrier_wait(&received, 0);
        choose_and_gate(p, logits, gate_parts, scale, lane);
    }
}

static __global__ void decode_router_choose(const __grid_constant__ router_parameters p,
                                            const router_results *results) {
    cuda_let_next_start();
    cuda_await_previous();
    choose_and_gate(p, results->logits, results->gate_parts, results->scale, threadIdx.x);
}

bool cuda_decode_router_fits(const struct cuda_op *op, const struct cuda_device *) {
    const struct cuda_view *matrices = &op->views[op->op.constants.normalise ? 2 : 1];
    return router_fits(&op->views[0], matrices, matrices[2].columns);
}

uint64_t cuda_decode_router_workspace(const struct cuda_op *, const struct cuda_device *device) {
    return decode_on_hopper(device) ? 0 : sizeof(router_results);
}

cudaError_t cuda_decode_router_launch(const struct cuda_op *op, const struct cuda_device *device,
                                      void *workspace, cudaStream_t stream) {
    router_parameters p = router_parameters_of(op);
    uint32_t threads = 32 * (ROUTER_WARPS + 1);
    router_results *none = NULL, *results = (router_results *)workspace;
    if (decode_on_hopper(device))
        return decode_launch(p.norm != NULL ? decode_router<true, true> : decode_router<false, true>, device,
                             ROUTER_CLUSTER, ROUTER_CLUSTER, threads, 0, stream, p, none);
    cudaError_t status =
        decode_launch(p.norm != NULL ? decode_router<true, false> : decode_router<false, false>, device, 1,
                      ROUTER_CLUSTER, threads, 0, stream, p, results);
    if (status != cudaSuccess)
        return status;
    return decode_launch(decode_router_choose, device, 1, 1, 32, 0, stream, p,
                         (const router_results *)results);
}
