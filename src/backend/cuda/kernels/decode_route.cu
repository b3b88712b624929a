/* OP_ROUTER and the OP_EXPERT_GATE_UP that follows it, for one row, in one kernel: so nothing has to end and
 * begin between the choice of the experts and the copies of their matrices, which everything waits for.
 *
 * Every cluster of blocks computes the whole router for itself (all but one read its matrix from the L2
 * cache, and before the input is there) and sends the logits to all of its blocks, each of which chooses. A
 * unit is 16 rows of the gate and the same of the up matrix; the shared expert's come first. Block b has the
 * units b, b + blocks, ...; a warp has one quad of columns of their gate or of their up rows, and copies its
 * own tiles, SLOTS quads ahead. */
#include "backend/cuda/kernels/decode_router.cuh"

#define WARPS ROUTER_WARPS
#define MAX_UNITS 4
#define CLUSTERS 12 /* with 14 or 16, some find no room beside the kernels before and come late */
#define BLOCKS (CLUSTERS * ROUTER_CLUSTER)
#define SLOTS 3 /* quads of a warp that are on their way at once */

struct route_parameters {
    router_parameters router;
    const unsigned char *matrices[2], *shared[2]; /* gate, up */
    float *routed, *shared_y;
    uint32_t quads;
    uint32_t expert_tiles, shared_tiles; /* row tiles of one expert's matrix, of the shared one's */
    float epsilon;
};

template <bool WIDE_SCALES, bool NORMALISE>
static __global__ __maxnreg__(96) void decode_route(const __grid_constant__ route_parameters p) {
    constexpr uint32_t TILE = CUDA_TILE_CODES + CUDA_TILE_ROWS * (WIDE_SCALES ? 8 : 4),
                       QUAD = QUAD_TILES * TILE;
    extern __shared__ __align__(128) unsigned char shared[]; /* [WARPS][SLOTS][QUAD] */
    __shared__ uint64_t barriers[WARPS][SLOTS], received;
    __shared__ float logits[ROUTER_EXPERTS], router_partials[ROUTER_QUADS][ROUTER_ROWS];
    __shared__ float squares[ROUTER_QUADS], gate_parts[ROUTER_QUADS];
    __shared__ __align__(16) uint2 bytes[WARPS][4][32];
    __shared__ float partials[MAX_UNITS][2][ROUTER_QUADS][CUDA_TILE_ROWS];
    __shared__ int32_t ids[ROUTER_CHOSEN];
    __shared__ float scores[ROUTER_CHOSEN];
    uint32_t columns = p.router.columns;
    uint32_t rank = cluster_rank(), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t quad = warp % ROUTER_QUADS, turn = warp / ROUTER_QUADS;
    uint32_t router_row = rank * ROUTER_ROWS + turn * CUDA_TILE_ROWS;
    uint32_t units = p.shared_tiles + p.router.chosen * p.expert_tiles;
    uint32_t count = blockIdx.x < units ? (units - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
    bool works = quad < p.quads, routes = works && router_row < p.router.experts;
    bool gates = turn == 1 && quad == rank && works && blockIdx.x < ROUTER_CLUSTER;
    unsigned char *slots = shared + warp * SLOTS * QUAD;

    auto is_shared = [&](uint32_t i) { return blockIdx.x + i * gridDim.x < p.shared_tiles; };
    auto start_copy = [&](uint32_t i) {
        uint32_t unit = blockIdx.x + i * gridDim.x, row_tile = unit;
        const unsigned char *from = p.shared[turn];
        if (unit >= p.shared_tiles) {
            unit -= p.shared_tiles;
            row_tile = (uint32_t)ids[unit / p.expert_tiles] * p.expert_tiles + unit % p.expert_tiles;
            from = p.matrices[turn];
        }
        copy_expect(&barriers[warp][i % SLOTS], QUAD);
        copy_start(slots + i % SLOTS * QUAD, from + ((uint64_t)row_tile * p.quads + quad) * QUAD, QUAD,
                   &barriers[warp][i % SLOTS], evict_first_policy());
    };
    if (lane == 0) {
#pragma unroll
        for (uint32_t i = 0; i < SLOTS; i++)
            barrier_init(&barriers[warp][i], 1);
        if (warp == 0)
            barrier_init(&received, 1);
        barrier_fence();
        if (warp == 0)
            copy_expect(&received,
                        (p.router.experts + (blockIdx.x == 0 ? p.quads : 0)) * (uint32_t)sizeof(float));
        if (works)
            for (uint32_t i = 0; i < SLOTS && i < count && is_shared(i); i++)
                start_copy(i);
    }
    __syncwarp();
    cluster_arrive();
    router_codes loaded;
    float norm[8], gate_weights[8];
    if (routes)
        loaded = router_load(p.router.codes, p.router.pairs, router_row, columns, quad, lane);
    if (NORMALISE && works)
        quad_load(p.router.norm + quad * QUAD_COLUMNS, lane, norm);
    cluster_wait();
    cuda_await_previous();

    float x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (works)
        quad_load(p.router.x + quad * QUAD_COLUMNS, lane, x);
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
    float router_scale = NORMALISE ? rsqrtf(mean + p.router.epsilon) : 1;
    /* Warp w sends the sums of all rows to block w. */
    if (warp < ROUTER_CLUSTER && rank * ROUTER_ROWS + lane < p.router.experts) {
        float sum = 0;
        for (uint32_t i = 0; i < p.quads; i++)
            sum += router_partials[i][lane];
        send(&logits[rank * ROUTER_ROWS + lane], sum * router_scale, &received, warp);
    }
    if (gates) {
        gate_load(p.router.gate_codes, p.router.gate_pairs, NULL, quad, lane, gate_weights);
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
        choose(logits, p.router.experts, p.router.chosen, lane, ids, scores);
    }
    quad_input input;
    if (warp != 0)
        input = quad_prepare(x, lane);
    __syncthreads();
    if (lane == 0 && works)
        for (uint32_t i = 0; i < SLOTS && i < count; i++)
            if (!is_shared(i))
                start_copy(i);
    if (blockIdx.x == 0 && warp == 0) {
        if (lane < p.router.chosen) {
            p.router.ids[lane] = ids[lane];
            p.router.scores[lane] = scores[lane];
        }
        float sum = 0;
        for (uint32_t i = 0; i < p.quads; i++)
            sum += gate_parts[i];
        if (lane == 0)
            p.router.scores[p.router.chosen] = 1 / (1 + expf(-sum * router_scale));
        __threadfence();
        __syncwarp();
    }
    cuda_let_next_start();
    if (warp == 0)
        input = quad_prepare(x, lane);
    for (uint32_t i = 0; i < count && works; i++) {
        barrier_wait(&barriers[warp][i % SLOTS], i / SLOTS % 2);
        const unsigned char *from[1] = {slots + i % SLOTS * QUAD};
        float sums[1][2] = {{0, 0}};
        quad_products<1, WIDE_SCALES>(from, input, lane, sums);
        __syncwarp();
        if (lane == 0 && i + SLOTS < count)
            start_copy(i + SLOTS);
        float sum0 = sum_of_groups(sums[0][0]), sum1 = sum_of_groups(sums[0][1]);
        if (lane % 4 < 2)
            partials[i][turn][quad][lane / 4 + lane % 4 * 8] = lane % 4 ? sum1 : sum0;
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
            p.shared_y[unit * CUDA_TILE_ROWS + row] = result;
        else
            p.routed[(unit - p.shared_tiles) * CUDA_TILE_ROWS + row] = result;
    }
}

static auto kernel_for(const struct cuda_op *gate_up) {
    bool normalise = gate_up->op.constants.normalise, wide_scales = wide(&gate_up->views[normalise ? 3 : 2]);
    return wide_scales ? (normalise ? decode_route<true, true> : decode_route<true, false>)
                       : (normalise ? decode_route<false, true> : decode_route<false, false>);
}

static size_t shared_bytes_for(const struct cuda_op *gate_up) {
    const struct cuda_view *gate = &gate_up->views[gate_up->op.constants.normalise ? 3 : 2];
    return (size_t)WARPS * SLOTS * QUAD_TILES * cuda_tile_bytes((enum dtype)gate->scale_dtype);
}

bool cuda_decode_route_fits(const struct cuda_op *ops, const struct cuda_device *device) {
    const struct cuda_op *router = &ops[0], *gate_up = &ops[1];
    bool normalise = router->op.constants.normalise;
    if (router->op.kind != OP_ROUTER || gate_up->op.kind != OP_EXPERT_GATE_UP ||
        gate_up->op.constants.normalise != normalise || !decode_on_hopper(device) ||
        !cuda_decode_router_fits(router, device) || !cuda_decode_gate_up_fits(gate_up, device))
        return false;
    const struct cuda_view *chosen = &router->views[normalise ? 4 : 3],
                           *ids = &gate_up->views[normalise ? 2 : 1];
    const struct cuda_view *routed = &ids[5], *shared = &ids[6];
    uint32_t units = (routed->rows * routed->columns + shared->columns) / CUDA_TILE_ROWS;
    if (router->views[0].data != gate_up->views[0].data ||
        router->views[0].columns != gate_up->views[0].columns || chosen->data != ids->data ||
        chosen->columns != ids->columns || (normalise && router->views[1].data != gate_up->views[1].data) ||
        units > MAX_UNITS * BLOCKS)
        return false;
    auto kernel = kernel_for(gate_up);
    size_t shared_bytes = shared_bytes_for(gate_up);
    return shared_bytes + 32 * 1024 < (size_t)device->shared_bytes &&
           clusters_fit(kernel, ROUTER_CLUSTER, CLUSTERS, 32 * WARPS, shared_bytes);
}

cudaError_t cuda_decode_route_launch(const struct cuda_op *op, const struct cuda_device *device,
                                     void *workspace, cudaStream_t stream) {
    const struct cuda_view *ids = &op[1].views[op[1].op.constants.normalise ? 2 : 1];
    route_parameters p = {};
    p.router = router_parameters_of(op);
    p.matrices[0] = (const unsigned char *)ids[1].data;
    p.matrices[1] = (const unsigned char *)ids[2].data;
    p.shared[0] = (const unsigned char *)ids[3].data;
    p.shared[1] = (const unsigned char *)ids[4].data;
    p.routed = (float *)ids[5].data;
    p.shared_y = (float *)ids[6].data;
    p.quads = p.router.columns / QUAD_COLUMNS;
    p.expert_tiles = ids[5].columns / CUDA_TILE_ROWS;
    p.shared_tiles = ids[6].columns / CUDA_TILE_ROWS;
    p.epsilon = op[1].op.constants.epsilon;
    (void)workspace;
    return decode_launch(kernel_for(&op[1]), device, ROUTER_CLUSTER, BLOCKS, 32 * WARPS,
                         shared_bytes_for(&op[1]), stream, p);
}
