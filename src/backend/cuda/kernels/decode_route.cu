/* OP_ROUTER and the OP_EXPERT_GATE_UP that follows it, for one row, in one kernel: so nothing has to end and
 * begin between the choice of the experts and the copies of their matrices, which everything waits for.
 *
 * Every cluster of blocks computes the whole router for itself (all but one read its matrix from the L2
 * cache, and before the input is there) and sends the logits to all of its blocks; each block chooses and
 * copies the tiles of its units. A unit is 16 rows of the gate and the same of the up matrix; the shared
 * expert's come first, and are on their way before the input is. */
#include "backend/cuda/decode.h"
#include "backend/cuda/kernels/decode_router.cuh"

#define WARPS ROUTER_WARPS
#define MAX_UNITS 3
#define CLUSTERS 16

struct route_parameters {
    const float *x, *norm;
    const unsigned char *codes, *gate_codes; /* of the router, of the shared expert's gate */
    const float2 *pairs, *gate_pairs;
    const unsigned char *gate, *up, *shared_gate, *shared_up;
    int32_t *ids;
    float *scores, *routed, *shared;
    uint32_t experts, chosen, quads;
    uint32_t expert_tiles, shared_tiles; /* row tiles of one expert's matrix, of the shared one's */
    float router_epsilon, epsilon;
};

static __device__ __forceinline__ float silu(float x) {
    return x / (1 + __expf(-x));
}

template <bool WIDE_SCALES, bool NORMALISE>
static __global__ __maxnreg__(96) void decode_route(const __grid_constant__ route_parameters p) {
    constexpr uint32_t TILE = CUDA_TILE_CODES + CUDA_TILE_ROWS * (WIDE_SCALES ? 8 : 4);
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ uint64_t barriers[MAX_UNITS], received;
    __shared__ float logits[ROUTER_EXPERTS], router_partials[ROUTER_QUADS][ROUTER_ROWS];
    __shared__ float squares[ROUTER_QUADS], gate_parts[ROUTER_QUADS];
    __shared__ __align__(16) uint2 bytes[WARPS][4][32];
    __shared__ float partials[MAX_UNITS][2][ROUTER_QUADS][CUDA_TILE_ROWS];
    __shared__ int32_t ids[ROUTER_CHOSEN];
    __shared__ float scores[ROUTER_CHOSEN];
    uint32_t row_tile_bytes = p.quads * QUAD_TILES * TILE, columns = p.quads * QUAD_COLUMNS;
    uint32_t rank = cluster_rank(), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t quad = warp % ROUTER_QUADS, turn = warp / ROUTER_QUADS;
    uint32_t router_row = rank * ROUTER_ROWS + turn * CUDA_TILE_ROWS;
    uint32_t units = p.shared_tiles + p.chosen * p.expert_tiles;
    uint32_t count = blockIdx.x < units ? (units - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
    bool works = quad < p.quads, routes = works && router_row < p.experts;
    bool gates = turn == 1 && quad == rank && works && blockIdx.x < ROUTER_CLUSTER;

    auto start_copies = [&](uint32_t i, const unsigned char *gate, const unsigned char *up,
                            uint32_t row_tile) {
        unsigned char *to = shared + 2 * i * row_tile_bytes;
        uint64_t policy = evict_first_policy();
        copy_expect(&barriers[i], 2 * row_tile_bytes);
        copy_start(to, gate + (uint64_t)row_tile * row_tile_bytes, row_tile_bytes, &barriers[i], policy);
        copy_start(to + row_tile_bytes, up + (uint64_t)row_tile * row_tile_bytes, row_tile_bytes,
                   &barriers[i], policy);
    };
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < MAX_UNITS; i++)
            barrier_init(&barriers[i], 1);
        barrier_init(&received, 1);
        barrier_fence();
        copy_expect(&received, (p.experts + (blockIdx.x == 0 ? p.quads : 0)) * (uint32_t)sizeof(float));
        for (uint32_t i = 0; i < count; i++)
            if (blockIdx.x + i * gridDim.x < p.shared_tiles)
                start_copies(i, p.shared_gate, p.shared_up, blockIdx.x + i * gridDim.x);
    }
    __syncwarp();
    cluster_arrive();
    router_codes loaded;
    float norm[8], gate_weights[8];
    if (routes)
        loaded = router_load(p.codes, p.pairs, router_row, columns, quad, lane);
    if (NORMALISE && works)
        quad_load(p.norm + quad * QUAD_COLUMNS, lane, norm);
    if (gates)
        gate_load(p.gate_codes, p.gate_pairs, NULL, quad, lane, gate_weights);
    cluster_wait();
    __syncthreads();
    cuda_await_previous();

    float x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (works)
        quad_load(p.x + quad * QUAD_COLUMNS, lane, x);
    if (NORMALISE && works) {
        float square = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            square = fmaf(x[i], x[i], square);
            x[i] *= norm[i];
        }
        square = sum_of_warp(square);
        if (turn == 0 && lane == 0)
            squares[quad] = square;
    }
    if (routes) {
        float sums[2];
        router_product(loaded, x, lane, bytes[warp], sums);
        if (lane % 4 < 2)
            router_partials[quad][turn * CUDA_TILE_ROWS + lane / 4 + lane % 4 * 8] =
                lane % 4 ? sums[1] : sums[0];
    }
    __syncthreads();
    float mean = 0;
    if (NORMALISE) {
        for (uint32_t i = 0; i < p.quads; i++)
            mean += squares[i];
        mean /= (float)columns;
    }
    float router_scale = NORMALISE ? rsqrtf(mean + p.router_epsilon) : 1;
    if (threadIdx.x < ROUTER_ROWS && rank * ROUTER_ROWS + threadIdx.x < p.experts) {
        float sum = 0;
        for (uint32_t i = 0; i < p.quads; i++)
            sum += router_partials[i][threadIdx.x];
        for (uint32_t i = 0; i < ROUTER_CLUSTER; i++)
            send(&logits[rank * ROUTER_ROWS + threadIdx.x], sum * router_scale, &received, i);
    }
    if (gates) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum = fmaf(gate_weights[i], x[i], sum);
        sum = sum_of_warp(sum);
        if (lane == 0)
            send(&gate_parts[quad], sum, &received, 0);
    }
    if (warp == 0) {
        barrier_wait(&received, 0);
        choose(logits, p.experts, p.chosen, lane, ids, scores);
        __syncwarp();
        uint32_t unit = blockIdx.x + lane * gridDim.x;
        if (lane < count && unit >= p.shared_tiles) {
            unit -= p.shared_tiles;
            start_copies(lane, p.gate, p.up,
                         (uint32_t)ids[unit / p.expert_tiles] * p.expert_tiles + unit % p.expert_tiles);
        }
        if (blockIdx.x == 0) {
            for (uint32_t i = lane; i < p.chosen; i += 32) {
                p.ids[i] = ids[i];
                p.scores[i] = scores[i];
            }
            float sum = 0;
            for (uint32_t i = 0; i < p.quads; i++)
                sum += gate_parts[i];
            if (lane == 0)
                p.scores[p.chosen] = 1 / (1 + expf(-sum * router_scale));
            __threadfence();
        }
        __syncwarp();
    }
    quad_input input = quad_prepare(x, lane);
    for (uint32_t i = turn; i < count && works; i += WARPS / ROUTER_QUADS) {
        barrier_wait(&barriers[i], 0);
        const unsigned char *tiles = shared + 2 * i * row_tile_bytes + quad * QUAD_TILES * TILE;
        const unsigned char *from[2] = {tiles, tiles + row_tile_bytes};
        float sums[2][2] = {{0, 0}, {0, 0}};
        if (warp == 0 && i + WARPS / ROUTER_QUADS >= count)
            cuda_let_next_start();
        quad_products<2, WIDE_SCALES>(from, input, lane, sums);
        float gate0 = sum_of_groups(sums[0][0]), gate1 = sum_of_groups(sums[0][1]);
        float up0 = sum_of_groups(sums[1][0]), up1 = sum_of_groups(sums[1][1]);
        uint32_t which = lane % 4;
        partials[i][which / 2][quad][lane / 4 + which % 2 * 8] = which == 0   ? gate0
                                                                 : which == 1 ? gate1
                                                                 : which == 2 ? up0
                                                                              : up1;
    }
    __syncthreads();
    if (threadIdx.x < count * CUDA_TILE_ROWS) {
        uint32_t i = threadIdx.x / CUDA_TILE_ROWS, row = threadIdx.x % CUDA_TILE_ROWS;
        uint32_t unit = blockIdx.x + i * gridDim.x;
        float gate = 0, up = 0, scale = NORMALISE ? rsqrtf(mean + p.epsilon) : 1;
        for (uint32_t j = 0; j < p.quads; j++) {
            gate += partials[i][0][j][row];
            up += partials[i][1][j][row];
        }
        float result = silu(gate * scale) * (up * scale);
        if (unit < p.shared_tiles)
            p.shared[unit * CUDA_TILE_ROWS + row] = result;
        else
            p.routed[(unit - p.shared_tiles) * CUDA_TILE_ROWS + row] = result;
    }
}

/* Whether two ops in a row are a router and the gate and up products of what it chooses. */
bool cuda_decode_route_fits(const struct cuda_op *router, const struct cuda_op *gate_up,
                            const struct cuda_device *device) {
    bool normalise = router->op.constants.normalise;
    if (router->op.kind != OP_ROUTER || gate_up->op.kind != OP_EXPERT_GATE_UP ||
        gate_up->op.constants.normalise != normalise || !cuda_decode_router_fits(router, device) ||
        !cuda_decode_gate_up_fits(gate_up, device))
        return false;
    const struct cuda_view *chosen = &router->views[normalise ? 4 : 3],
                           *ids = &gate_up->views[normalise ? 2 : 1];
    const struct cuda_view *routed = &ids[5], *shared = &ids[6];
    uint32_t units = (routed->rows * routed->columns + shared->columns) / CUDA_TILE_ROWS;
    return router->views[0].data == gate_up->views[0].data && chosen->data == ids->data &&
           (!normalise || router->views[1].data == gate_up->views[1].data) &&
           units <= MAX_UNITS * CLUSTERS * ROUTER_CLUSTER;
}

/* Queues both: `op` is the router, and the other comes right after it in memory. */
cudaError_t cuda_decode_route_launch(const struct cuda_op *op, const struct cuda_device *device,
                                     void *workspace, cudaStream_t stream) {
    (void)workspace;
    route_parameters p = {};
    bool normalise = op->op.constants.normalise;
    const struct cuda_view *matrices = &op->views[normalise ? 2 : 1], *ids = &op[1].views[normalise ? 2 : 1];
    p.x = (const float *)op->views[0].data;
    p.norm = normalise ? (const float *)op->views[1].data : NULL;
    p.codes = (const unsigned char *)matrices[0].data;
    p.pairs = (const float2 *)matrices[0].scales;
    p.gate_codes = (const unsigned char *)matrices[1].data;
    p.gate_pairs = (const float2 *)matrices[1].scales;
    p.ids = (int32_t *)matrices[2].data;
    p.scores = (float *)matrices[3].data;
    p.gate = (const unsigned char *)ids[1].data;
    p.up = (const unsigned char *)ids[2].data;
    p.shared_gate = (const unsigned char *)ids[3].data;
    p.shared_up = (const unsigned char *)ids[4].data;
    p.routed = (float *)ids[5].data;
    p.shared = (float *)ids[6].data;
    p.experts = matrices[0].rows;
    p.chosen = matrices[2].columns;
    p.quads = op->views[0].columns / QUAD_COLUMNS;
    p.expert_tiles = ids[5].columns / CUDA_TILE_ROWS;
    p.shared_tiles = ids[6].columns / CUDA_TILE_ROWS;
    p.router_epsilon = op->op.constants.epsilon;
    p.epsilon = op[1].op.constants.epsilon;
    uint32_t units = p.shared_tiles + p.chosen * p.expert_tiles, blocks = CLUSTERS * ROUTER_CLUSTER;
    uint32_t each = (units + blocks - 1) / blocks, threads = 32 * WARPS;
    bool wide_scales = wide(&ids[1]);
    size_t shared_bytes =
        (size_t)each * 2 * p.quads * QUAD_TILES * cuda_tile_bytes((enum dtype)ids[1].scale_dtype);
    auto kernel = wide_scales ? (normalise ? decode_route<true, true> : decode_route<true, false>)
                              : (normalise ? decode_route<false, true> : decode_route<false, false>);
    return cuda_launch_clusters(kernel, cuda_overlap(device), ROUTER_CLUSTER, blocks, threads, shared_bytes,
                                stream, p);
}
