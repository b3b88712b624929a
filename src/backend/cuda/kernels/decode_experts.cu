/* OP_EXPERT_GATE_UP and OP_EXPERT_DOWN for one row.
 *
 * What the two read depends on the router's choice. The copies of gate and up start as soon as the ids can be
 * read. The down kernel starts only after every block of the gate and up kernel has waited for the router
 * (cuda_let_next_start comes after cuda_await_previous there), so that it reads the ids, and starts its
 * copies, while the products that it waits for are still being computed. */
#include "backend/cuda/decode.h"
#include "backend/cuda/kernels/decode.cuh"

#define WARPS 8
#define MAX_UNITS 3

struct gate_up_parameters {
    const float *x, *norm;
    const int32_t *ids;
    const unsigned char *gate, *up, *shared_gate, *shared_up;
    float *routed, *shared;
    uint32_t chosen, experts, quads;
    uint32_t expert_tiles, shared_tiles; /* row tiles of one expert's matrix, of the shared one's */
    float epsilon;
};

static __device__ __forceinline__ uint32_t id_within(int32_t id, uint32_t experts) {
    return (uint32_t)id < experts ? (uint32_t)id : 0;
}

/* Unit: 16 rows of the gate and the same of the up matrix; the shared expert's first. Block b has the units
 * b, b + blocks, ... BULK: with bulk copies. */
template <bool WIDE_SCALES, bool NORMALISE, bool BULK>
static __global__ __launch_bounds__(32 *
                                    WARPS) void decode_gate_up(const __grid_constant__ gate_up_parameters p) {
    constexpr uint32_t TILE = CUDA_TILE_CODES + CUDA_TILE_ROWS * (WIDE_SCALES ? 8 : 4);
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ uint64_t barriers[MAX_UNITS];
    __shared__ float partials[MAX_UNITS][2][WARPS][CUDA_TILE_ROWS], squares[WARPS];
    uint32_t row_tile_bytes = p.quads * QUAD_TILES * TILE;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t units = p.shared_tiles + p.chosen * p.expert_tiles;
    uint32_t count = (units - blockIdx.x + gridDim.x - 1) / gridDim.x;
    uint64_t policy = evict_first_policy();

    auto start_copies = [&](uint32_t i, const unsigned char *gate, const unsigned char *up,
                            uint32_t row_tile) {
        unsigned char *to = shared + 2 * i * row_tile_bytes;
        gate += (uint64_t)row_tile * row_tile_bytes;
        up += (uint64_t)row_tile * row_tile_bytes;
        if (BULK) {
            copy_expect(&barriers[i], 2 * row_tile_bytes);
            copy_start(to, gate, row_tile_bytes, &barriers[i], policy);
            copy_start(to + row_tile_bytes, up, row_tile_bytes, &barriers[i], policy);
        } else {
            copy_part(to, gate, row_tile_bytes, threadIdx.x, 32 * WARPS);
            copy_part(to + row_tile_bytes, up, row_tile_bytes, threadIdx.x, 32 * WARPS);
            arrive_after_copies(&barriers[i]);
        }
    };
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < count; i++)
            barrier_init(&barriers[i], BULK ? 1 : 32 * WARPS);
        barrier_fence();
    }
    if (!BULK)
        __syncthreads();
    if (!BULK || threadIdx.x == 0)
        for (uint32_t i = 0; i < count; i++)
            if (blockIdx.x + i * gridDim.x < p.shared_tiles)
                start_copies(i, p.shared_gate, p.shared_up, blockIdx.x + i * gridDim.x);
    uint32_t quad = warp % p.quads, turn = warp / p.quads, sharing = WARPS / p.quads;
    float norm[8];
    if (NORMALISE)
        quad_load(p.norm + quad * QUAD_COLUMNS, lane, norm);
    __syncthreads();
    cuda_await_previous();

    /* Each unit's copies are a thread's of its own, or all threads'. */
    for (uint32_t i = BULK ? threadIdx.x : 0; i < count; i += BULK ? 32 * WARPS : 1) {
        uint32_t unit = blockIdx.x + i * gridDim.x;
        if (unit >= p.shared_tiles) {
            unit -= p.shared_tiles;
            uint32_t expert = id_within(__ldcg(p.ids + unit / p.expert_tiles), p.experts);
            start_copies(i, p.gate, p.up, expert * p.expert_tiles + unit % p.expert_tiles);
        }
    }
    float x[8];
    quad_load(p.x + quad * QUAD_COLUMNS, lane, x);
    if (NORMALISE) {
        float square = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            square = fmaf(x[j], x[j], square);
            x[j] *= norm[j];
        }
        square = sum_of_warp(square);
        if (turn == 0 && lane == 0)
            squares[quad] = square;
    }
    quad_input input = quad_prepare(x, lane);
    for (uint32_t i = turn; i < count && turn < sharing; i += sharing) {
        barrier_wait(&barriers[i], 0);
        if (warp == 0 && i + sharing >= count)
            cuda_let_next_start();
        const unsigned char *tiles = shared + 2 * i * row_tile_bytes + quad * QUAD_TILES * TILE;
        const unsigned char *from[2] = {tiles, tiles + row_tile_bytes};
        float sums[2][2] = {{0, 0}, {0, 0}};
        quad_products<2, WIDE_SCALES>(from, input, lane, sums);
        float gate0 = sum_of_groups(sums[0][0]), gate1 = sum_of_groups(sums[0][1]);
        float up0 = sum_of_groups(sums[1][0]), up1 = sum_of_groups(sums[1][1]);
        float *partial = partials[i][0][quad];
        uint32_t part = lane % 4;
        partial[(part & 2 ? WARPS * CUDA_TILE_ROWS : 0) + (part & 1 ? 8 : 0) + lane / 4] = part == 0   ? gate0
                                                                                           : part == 1 ? gate1
                                                                                           : part == 2 ? up0
                                                                                                       : up1;
    }
    __syncthreads();
    if (threadIdx.x < count * CUDA_TILE_ROWS) {
        uint32_t i = threadIdx.x / CUDA_TILE_ROWS, row = threadIdx.x % CUDA_TILE_ROWS;
        uint32_t unit = blockIdx.x + i * gridDim.x;
        float gate = 0, up = 0, scale = 1;
        for (uint32_t j = 0; j < p.quads; j++) {
            gate += partials[i][0][j][row];
            up += partials[i][1][j][row];
        }
        if (NORMALISE) {
            float square = 0;
            for (uint32_t j = 0; j < p.quads; j++)
                square += squares[j];
            scale = rsqrtf(square / (float)(p.quads * QUAD_COLUMNS) + p.epsilon);
        }
        float result = silu(gate * scale) * (up * scale);
        if (unit < p.shared_tiles)
            p.shared[unit * CUDA_TILE_ROWS + row] = result;
        else
            p.routed[(unit - p.shared_tiles) * CUDA_TILE_ROWS + row] = result;
    }
}

/* Two matrices of codes with the same kind of scales. */
static bool alike(const struct cuda_view *a, const struct cuda_view *b) {
    return a->dtype == DTYPE_AFFINE4 && b->dtype == DTYPE_AFFINE4 && wide(a) == wide(b);
}

static uint32_t unit_bytes(const struct cuda_op *op) {
    const struct cuda_view *gate = &op->views[op->op.constants.normalise ? 3 : 2];
    return 2 * op->views[0].columns / CUDA_TILE_COLUMNS * cuda_tile_bytes((enum dtype)gate->scale_dtype);
}

/* What the units of a block can have, beside what the kernel declares. */
static uint32_t shared_room(const struct cuda_device *device) {
    return (uint32_t)device->shared_bytes - 4096;
}

bool cuda_decode_gate_up_fits(const struct cuda_op *op, const struct cuda_device *device) {
    uint32_t first = op->op.constants.normalise ? 3 : 2, columns = op->views[0].columns;
    const struct cuda_view *matrices = &op->views[first], *routed = &matrices[4], *shared = &matrices[5];
    return op->views[0].rows == 1 && op->op.operand_count == first + 6 && columns % QUAD_COLUMNS == 0 &&
           columns <= WARPS * QUAD_COLUMNS && aligned(&op->views[0]) && routed->stride == routed->columns &&
           routed->columns % CUDA_TILE_ROWS == 0 && shared->columns % CUDA_TILE_ROWS == 0 &&
           alike(&matrices[0], &matrices[1]) && alike(&matrices[0], &matrices[2]) &&
           alike(&matrices[0], &matrices[3]) && unit_bytes(op) <= shared_room(device);
}

template <bool BULK>
static cudaError_t launch_gate_up(const gate_up_parameters &p, bool wide_scales,
                                  const struct cuda_device *device, uint32_t blocks, size_t shared_bytes,
                                  cudaStream_t stream) {
    uint32_t threads = 32 * WARPS;
    if (wide_scales)
        return decode_launch(p.norm != NULL ? decode_gate_up<true, true, BULK>
                                            : decode_gate_up<true, false, BULK>,
                             device, 1, blocks, threads, shared_bytes, stream, p);
    return decode_launch(p.norm != NULL ? decode_gate_up<false, true, BULK>
                                        : decode_gate_up<false, false, BULK>,
                         device, 1, blocks, threads, shared_bytes, stream, p);
}

cudaError_t cuda_decode_gate_up_launch(const struct cuda_op *op, const struct cuda_device *device,
                                       void *workspace, cudaStream_t stream) {
    (void)workspace;
    gate_up_parameters p = {};
    bool normalise = op->op.constants.normalise;
    const struct cuda_view *ids = &op->views[normalise ? 2 : 1], *matrices = ids + 1;
    p.x = (const float *)op->views[0].data;
    p.norm = normalise ? (const float *)op->views[1].data : NULL;
    p.ids = (const int32_t *)ids->data;
    p.gate = (const unsigned char *)matrices[0].data;
    p.up = (const unsigned char *)matrices[1].data;
    p.shared_gate = (const unsigned char *)matrices[2].data;
    p.shared_up = (const unsigned char *)matrices[3].data;
    p.routed = (float *)matrices[4].data;
    p.shared = (float *)matrices[5].data;
    p.chosen = ids->columns;
    p.expert_tiles = matrices[4].columns / CUDA_TILE_ROWS;
    p.experts = matrices[0].rows / matrices[4].columns;
    p.shared_tiles = matrices[5].columns / CUDA_TILE_ROWS;
    p.quads = op->views[0].columns / QUAD_COLUMNS;
    p.epsilon = op->op.constants.epsilon;
    uint32_t units = p.shared_tiles + p.chosen * p.expert_tiles;
    uint32_t each = cuda_blocks(units, (unsigned)device->multiprocessors);
    if (each > MAX_UNITS || each * unit_bytes(op) > shared_room(device))
        each = 1; /* then not all blocks run at once */
    uint32_t blocks = cuda_blocks(units, each);
    if (decode_on_hopper(device))
        return launch_gate_up<true>(p, wide(&matrices[0]), device, blocks, each * unit_bytes(op), stream);
    return launch_gate_up<false>(p, wide(&matrices[0]), device, blocks, each * unit_bytes(op), stream);
}
