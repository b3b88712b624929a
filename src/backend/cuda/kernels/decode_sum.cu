/* Products whose sums are long and few: OP_EXPERT_DOWN, and OP_LINEAR with one matrix of many columns, for
 * one row.
 *
 * A cluster of blocks has as many rows of tiles as it has blocks, and each block multiplies a part of the
 * columns of all of them: so it reads only a part of x, which all blocks want at the same time and which
 * takes longer to come than the weights, most of which were on their way before. Each block then receives the
 * others' sums of its own 16 rows.
 *
 * Column *quads* (256 columns) are numbered through: those of the chosen experts' matrices one after the
 * other, then the shared one's. Block r of a cluster of C has the quads r, r + C, ... Where there are no
 * clusters a block has a row of tiles and all quads. */
#include "backend/cuda/decode.h"
#include "backend/cuda/kernels/decode.cuh"

#define CLUSTER 4
#define ROWS (CLUSTER * CUDA_TILE_ROWS) /* of a cluster */
#define TURNS 2                         /* warps that have the same quad */
#define MOST 15                         /* quads of a block */
#define MOST_ALONE 32                   /* of one without a cluster */
#define MOST_CHOSEN 32

struct sum_parameters {
    const float *x, *shared_x; /* x: of the chosen experts one after the other */
    const float *scores;       /* NULL: no experts */
    const int32_t *ids;
    const unsigned char *tiles, *shared_tiles;
    float *y;
    uint32_t chosen, experts, row_tiles, quads, shared_quads; /* quads: of one expert */
    uint32_t each;                                            /* quads of a block, at most */
    bool accumulate;
};

/* Where a quad comes from. */
struct sum_source {
    const unsigned char *tiles;
    const float *x;
    uint32_t slot, column, width; /* slot: p.chosen is the shared expert's; column and width in quads */
};

template <bool EXPERTS>
static __device__ __forceinline__ sum_source sum_source_of(const sum_parameters &p, uint32_t quad) {
    uint32_t slot = EXPERTS ? min(quad / p.quads, p.chosen) : 0, column = quad - slot * p.quads;
    if (EXPERTS && slot == p.chosen)
        return {p.shared_tiles, p.shared_x + column * QUAD_COLUMNS, slot, column, p.shared_quads};
    return {p.tiles, p.x + quad * QUAD_COLUMNS, slot, column, p.quads};
}

template <bool EXPERTS>
static __device__ __forceinline__ uint32_t sum_expert_of(const sum_parameters &p, uint32_t slot) {
    uint32_t id = EXPERTS && slot < p.chosen ? (uint32_t)__ldcg(p.ids + slot) : 0;
    return id < p.experts ? id : 0;
}

template <bool EXPERTS, bool WIDE_SCALES>
static __global__ __launch_bounds__(32 * TURNS *
                                    MOST) void decode_sum(const __grid_constant__ sum_parameters p) {
    constexpr uint32_t TILE = CUDA_TILE_CODES + CUDA_TILE_ROWS * (WIDE_SCALES ? 8 : 4),
                       QUAD = QUAD_TILES * TILE;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ uint64_t barriers[MOST], again[MOST], received;
    __shared__ uint32_t early[MOST]; /* which expert's tiles were asked for */
    __shared__ float partials[MOST][ROWS], parts[CLUSTER][CUDA_TILE_ROWS];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, turn = warp / p.each, place = warp % p.each;
    uint32_t rank = cluster_rank(), quad = rank + CLUSTER * place;
    uint32_t all = EXPERTS ? p.chosen * p.quads + p.shared_quads : p.quads;
    uint32_t first_tile = blockIdx.x / CLUSTER * CLUSTER;
    bool works = quad < all;
    unsigned char *tiles = shared + place * CLUSTER * QUAD;

    sum_source source = sum_source_of<EXPERTS>(p, quad);
    auto expert_of = [&]() { return sum_expert_of<EXPERTS>(p, source.slot); };
    auto copy_tiles = [&](uint64_t *barrier, uint32_t expert) {
        uint64_t row_tile = first_tile + (uint64_t)expert * p.row_tiles, policy = evict_first_policy();
        copy_expect(barrier, CLUSTER * QUAD);
#pragma unroll
        for (uint32_t i = 0; i < CLUSTER; i++)
            copy_start(tiles + i * QUAD,
                       source.tiles + ((row_tile + i) * source.width + source.column) * QUAD, QUAD, barrier,
                       policy);
    };
    /* The block's first thread is among these: each block has a quad. */
    if (turn == 0 && lane == 0 && works) {
        barrier_init(&barriers[place], 1);
        barrier_init(&again[place], 1);
        if (place == 0)
            barrier_init(&received, 1);
        barrier_fence();
        if (place == 0)
            copy_expect(&received, CLUSTER * CUDA_TILE_ROWS * sizeof(float));
        early[place] = expert_of();
        copy_tiles(&barriers[place], early[place]);
    }
    __syncthreads();
    cluster_arrive();
    cuda_let_next_start();
    cluster_wait();
    cuda_await_previous();

    float *y = p.y + (first_tile + rank) * CUDA_TILE_ROWS, old = 0;
    if (p.accumulate && threadIdx.x < CUDA_TILE_ROWS)
        old = y[threadIdx.x];
    if (works) {
        float values[8], score = EXPERTS ? p.scores[source.slot] : 1, sums[CLUSTER / TURNS][2];
        uint32_t expert = expert_of();
        quad_load(source.x, lane, values);
        quad_input input = quad_prepare(values, lane);
        const unsigned char *from[CLUSTER / TURNS];
#pragma unroll
        for (uint32_t i = 0; i < CLUSTER / TURNS; i++) {
            from[i] = tiles + (turn + TURNS * i) * QUAD;
            sums[i][0] = sums[i][1] = 0;
        }
        if (!EXPERTS || expert == early[place]) {
            barrier_wait(&barriers[place], 0);
        } else {
            /* The router had not been done when the copies started, which only a generic kernel before
             * allows. */
            if (turn == 0 && lane == 0) {
                barrier_wait(&barriers[place], 0);
                copy_tiles(&again[place], expert);
            }
            __syncwarp();
            barrier_wait(&again[place], 0);
        }
        quad_products<CLUSTER / TURNS, WIDE_SCALES>(from, input, lane, sums);
#pragma unroll
        for (uint32_t i = 0; i < CLUSTER / TURNS; i++) {
            float sum0 = sum_of_groups(sums[i][0]) * score, sum1 = sum_of_groups(sums[i][1]) * score;
            if (lane % 4 < 2)
                partials[place][(turn + TURNS * i) * CUDA_TILE_ROWS + lane / 4 + lane % 4 * 8] =
                    lane % 4 ? sum1 : sum0;
        }
    }
    __syncthreads();
    if (threadIdx.x < ROWS) {
        float sum = 0;
        for (uint32_t i = 0; rank + CLUSTER * i < all; i++)
            sum += partials[i][threadIdx.x];
        send(&parts[rank][threadIdx.x % CUDA_TILE_ROWS], sum, &received, threadIdx.x / CUDA_TILE_ROWS);
    }
    if (threadIdx.x < CUDA_TILE_ROWS) {
        barrier_wait(&received, 0);
        float sum = parts[0][threadIdx.x];
#pragma unroll
        for (uint32_t i = 1; i < CLUSTER; i++)
            sum += parts[i][threadIdx.x];
        y[threadIdx.x] = old + sum;
    }
}

/* The same without clusters: a warp a quad of the block's row of tiles. */
template <bool EXPERTS, bool WIDE_SCALES>
static __global__
__launch_bounds__(32 * MOST_ALONE) void decode_sum_alone(const __grid_constant__ sum_parameters p) {
    constexpr uint32_t QUAD = QUAD_TILES * (CUDA_TILE_CODES + CUDA_TILE_ROWS * (WIDE_SCALES ? 8 : 4));
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ float partials[MOST_ALONE][CUDA_TILE_ROWS];
    uint32_t lane = threadIdx.x % 32, quad = threadIdx.x / 32;
    sum_source source = sum_source_of<EXPERTS>(p, quad);
    const unsigned char *tiles[1] = {shared + quad * QUAD};
    cuda_let_next_start();
    cuda_await_previous();
    uint64_t row_tile = blockIdx.x + (uint64_t)sum_expert_of<EXPERTS>(p, source.slot) * p.row_tiles;
    copy_part(shared + quad * QUAD, source.tiles + (row_tile * source.width + source.column) * QUAD, QUAD,
              lane, 32);
    float *y = p.y + blockIdx.x * CUDA_TILE_ROWS, sum = 0, values[8], sums[1][2] = {{0, 0}};
    if (p.accumulate && threadIdx.x < CUDA_TILE_ROWS)
        sum = y[threadIdx.x];
    float score = EXPERTS ? p.scores[source.slot] : 1;
    quad_load(source.x, lane, values);
    quad_input input = quad_prepare(values, lane);
    wait_for_copies();
    __syncwarp();
    quad_products<1, WIDE_SCALES>(tiles, input, lane, sums);
    float sum0 = sum_of_groups(sums[0][0]) * score, sum1 = sum_of_groups(sums[0][1]) * score;
    if (lane % 4 < 2)
        partials[quad][lane / 4 + lane % 4 * 8] = lane % 4 ? sum1 : sum0;
    __syncthreads();
    if (threadIdx.x < CUDA_TILE_ROWS) {
        float all = 0;
        for (uint32_t i = 0; i < blockDim.x / 32; i++)
            all += partials[i][threadIdx.x];
        y[threadIdx.x] = sum + all;
    }
}

template <bool EXPERTS>
static cudaError_t launch_sum(sum_parameters *p, uint32_t all, const struct cuda_view *matrix,
                              const struct cuda_device *device, cudaStream_t stream) {
    if (!decode_on_hopper(device))
        return decode_launch(
            wide(matrix) ? decode_sum_alone<EXPERTS, true> : decode_sum_alone<EXPERTS, false>, device, 1,
            p->row_tiles, 32 * all,
            (size_t)all * QUAD_TILES * cuda_tile_bytes((enum dtype)matrix->scale_dtype), stream, *p);
    p->each = (all + CLUSTER - 1) / CLUSTER;
    size_t shared_bytes =
        (size_t)p->each * CLUSTER * QUAD_TILES * cuda_tile_bytes((enum dtype)matrix->scale_dtype);
    uint32_t threads = 32 * TURNS * p->each;
    if (wide(matrix))
        return decode_launch(decode_sum<EXPERTS, true>, device, CLUSTER, p->row_tiles, threads, shared_bytes,
                             stream, *p);
    return decode_launch(decode_sum<EXPERTS, false>, device, CLUSTER, p->row_tiles, threads, shared_bytes,
                         stream, *p);
}

/* Whether a cluster, or a block alone, can take `quads` columns of matrices of `rows` rows. */
static bool sum_fits(uint32_t rows, uint32_t quads, const struct cuda_view *matrix,
                     const struct cuda_device *device) {
    uint32_t quad_bytes = QUAD_TILES * cuda_tile_bytes((enum dtype)matrix->scale_dtype);
    if (!decode_on_hopper(device))
        return rows % CUDA_TILE_ROWS == 0 && quads <= MOST_ALONE &&
               quads * quad_bytes + 4096 < (uint32_t)device->shared_bytes;
    uint32_t each = (quads + CLUSTER - 1) / CLUSTER;
    return rows % ROWS == 0 && quads >= CLUSTER && each <= MOST &&
           each * CLUSTER * quad_bytes + 8192 < (uint32_t)device->shared_bytes;
}

bool cuda_decode_down_fits(const struct cuda_op *op, const struct cuda_device *device) {
    const struct cuda_view *routed = &op->views[0], *shared = &op->views[1], *down = &op->views[4];
    if (shared->rows != 1 || op->op.operand_count != 7 || routed->columns % QUAD_COLUMNS != 0 ||
        shared->columns % QUAD_COLUMNS != 0 || !aligned(routed) || !aligned(shared) ||
        routed->stride != routed->columns || routed->rows > MOST_CHOSEN || down[0].dtype != DTYPE_AFFINE4 ||
        down[1].dtype != DTYPE_AFFINE4 || wide(&down[0]) != wide(&down[1]))
        return false;
    return sum_fits(down[2].columns, (routed->rows * routed->columns + shared->columns) / QUAD_COLUMNS,
                    &down[0], device);
}

cudaError_t cuda_decode_down_launch(const struct cuda_op *op, const struct cuda_device *device,
                                    void *workspace, cudaStream_t stream) {
    (void)workspace;
    sum_parameters p = {};
    p.x = (const float *)op->views[0].data;
    p.shared_x = (const float *)op->views[1].data;
    p.ids = (const int32_t *)op->views[2].data;
    p.scores = (const float *)op->views[3].data;
    p.tiles = (const unsigned char *)op->views[4].data;
    p.shared_tiles = (const unsigned char *)op->views[5].data;
    p.y = (float *)op->views[6].data;
    p.chosen = op->views[2].columns;
    p.row_tiles = op->views[6].columns / CUDA_TILE_ROWS;
    p.experts = op->views[4].rows / op->views[6].columns;
    p.quads = op->views[0].columns / QUAD_COLUMNS;
    p.shared_quads = op->views[1].columns / QUAD_COLUMNS;
    p.accumulate = true;
    return launch_sum<true>(&p, p.chosen * p.quads + p.shared_quads, &op->views[4], device, stream);
}

bool cuda_decode_sum_fits(const struct cuda_op *op, const struct cuda_device *device) {
    const struct cuda_view *x = &op->views[0], *matrix = &op->views[1];
    return op->op.constants.matrix_count == 1 && !op->op.constants.normalise && x->rows == 1 &&
           x->columns % QUAD_COLUMNS == 0 && aligned(x) && matrix->dtype == DTYPE_AFFINE4 &&
           matrix->rows <= (uint32_t)device->multiprocessors * CUDA_TILE_ROWS &&
           sum_fits(matrix->rows, x->columns / QUAD_COLUMNS, matrix, device);
}

cudaError_t cuda_decode_sum_launch(const struct cuda_op *op, const struct cuda_device *device,
                                   void *workspace, cudaStream_t stream) {
    (void)workspace;
    sum_parameters p = {};
    p.x = (const float *)op->views[0].data;
    p.tiles = (const unsigned char *)op->views[1].data;
    p.y = (float *)op->views[2].data;
    p.row_tiles = op->views[1].rows / CUDA_TILE_ROWS;
    p.quads = op->views[0].columns / QUAD_COLUMNS;
    p.accumulate = op->op.constants.accumulate;
    return launch_sum<false>(&p, p.quads, &op->views[1], device, stream);
}
