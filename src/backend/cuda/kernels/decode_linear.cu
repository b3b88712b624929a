/* OP_LINEAR and OP_HEAD for one row: y = x W^T for up to four matrices of 4-bit codes.
 *
 * A block takes a run of row tiles of all matrices laid end to end, a *stage* of them at a time: while one
 * stage is multiplied, the copies of the next ones are under way. Its warps divide the columns, so that a
 * warp holds its part of x in registers; the parts of a row are added up in the order of the columns. */
#include "backend/cuda/decode.h"
#include "backend/cuda/kernels/decode.cuh"

#define WARPS 16
#define MAX_MATRICES 4
#define MAX_STAGES 4
#define STAGES 2

struct linear_matrix {
    const unsigned char *tiles;
    float *y;
    uint32_t rows, end; /* end: row tiles of this matrix and those before */
};

struct linear_parameters {
    const float *x, *norm;
    linear_matrix matrices[MAX_MATRICES];
    uint32_t quads, each, longer; /* row tiles of a block; how many blocks have one more */
    uint32_t batch, stages;       /* row tiles a stage */
    float epsilon;
    bool accumulate;
};

struct linear_place {
    const unsigned char *tiles;
    float *y; /* of the first row */
    uint32_t rows;
};

static __device__ __forceinline__ linear_place place_of(const linear_parameters &p, uint32_t row_tile,
                                                        uint32_t row_tile_bytes) {
    uint32_t first = 0, i = 0;
#pragma unroll
    for (; i < MAX_MATRICES - 1; i++) {
        if (row_tile < p.matrices[i].end)
            break;
        first = p.matrices[i].end;
    }
    const linear_matrix &matrix = p.matrices[i];
    uint32_t local = row_tile - first;
    return {matrix.tiles + (uint64_t)local * row_tile_bytes, matrix.y + local * CUDA_TILE_ROWS,
            matrix.rows - local * CUDA_TILE_ROWS};
}

/* QUADS: of 256 columns that a warp multiplies; TOGETHER: row tiles at once; BULK: with bulk copies. */
template <uint32_t QUADS, uint32_t TOGETHER, bool WIDE_SCALES, bool NORMALISE, bool BULK>
static __global__ __launch_bounds__(32 *
                                    WARPS) void decode_linear(const __grid_constant__ linear_parameters p) {
    constexpr uint32_t TILE = CUDA_TILE_CODES + CUDA_TILE_ROWS * (WIDE_SCALES ? 8 : 4);
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ uint64_t barriers[MAX_STAGES];
    __shared__ float squares[WARPS * QUADS];
    uint32_t row_tile_bytes = p.quads * QUAD_TILES * TILE;
    uint32_t stage_bytes = p.batch * row_tile_bytes;
    float *partials = (float *)(shared + p.stages * stage_bytes); /* [2][quads][16 batch] */
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t begin = min(blockIdx.x, p.longer) + blockIdx.x * p.each;
    uint32_t end = begin + p.each + (blockIdx.x < p.longer);
    uint64_t policy = 0;

    auto start_copies = [&](uint32_t first, uint32_t stage) {
        uint32_t count = min(p.batch, end - first);
        if (BULK)
            copy_expect(&barriers[stage], count * row_tile_bytes);
        for (uint32_t i = 0; i < count; i++) {
            unsigned char *to = shared + stage * stage_bytes + i * row_tile_bytes;
            const unsigned char *from = place_of(p, first + i, row_tile_bytes).tiles;
            if (BULK)
                copy_start(to, from, row_tile_bytes, &barriers[stage], policy);
            else
                copy_part(to, from, row_tile_bytes, threadIdx.x, 32 * WARPS);
        }
        if (!BULK)
            arrive_after_copies(&barriers[stage]);
    };
    if (threadIdx.x == 0) {
        policy = evict_first_policy();
#pragma unroll
        for (uint32_t stage = 0; stage < MAX_STAGES; stage++)
            barrier_init(&barriers[stage], BULK ? 1 : 32 * WARPS);
        barrier_fence();
    }
    if (!BULK)
        __syncthreads();
    if (!BULK || threadIdx.x == 0)
        for (uint32_t stage = 0; stage < p.stages && begin + stage * p.batch < end; stage++)
            start_copies(begin + stage * p.batch, stage);
    cuda_let_next_start();

    /* With few columns several warps have the same ones and take turns at the row tiles. */
    uint32_t sharing = QUADS > 1 || p.quads > WARPS ? 1 : WARPS / p.quads;
    uint32_t turn = sharing > 1 ? warp / p.quads : 0, quad = sharing > 1 ? warp % p.quads : warp;
    float norm[QUADS][8];
    if (NORMALISE) {
#pragma unroll
        for (uint32_t i = 0; i < QUADS; i++)
            if (quad + WARPS * i < p.quads)
                quad_load(p.norm + (quad + WARPS * i) * QUAD_COLUMNS, lane, norm[i]);
    }
    linear_place place = place_of(p, min(begin + threadIdx.x / CUDA_TILE_ROWS, end - 1), row_tile_bytes);
    __syncthreads();
    cuda_await_previous();

    quad_input input[QUADS];
#pragma unroll
    for (uint32_t i = 0; i < QUADS; i++) {
        float x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        bool exists = quad + WARPS * i < p.quads;
        if (exists)
            quad_load(p.x + (quad + WARPS * i) * QUAD_COLUMNS, lane, x);
        if (NORMALISE) {
            float square = 0;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                square = fmaf(x[j], x[j], square);
                x[j] *= norm[i][j];
            }
            square = sum_of_warp(square);
            if (exists && turn == 0 && lane == 0)
                squares[quad + WARPS * i] = square;
        }
        input[i] = quad_prepare(x, lane);
    }

    uint32_t stage = 0, parity = 0, half = 0;
    for (uint32_t first = begin; first < end; first += p.batch) {
        uint32_t count = min(p.batch, end - first), rows = CUDA_TILE_ROWS * p.batch;
        float *partial = partials + half * p.quads * rows;
        float y = 0;
        bool writes = threadIdx.x < count * CUDA_TILE_ROWS;
        if (writes) {
            if (first != begin)
                place = place_of(p, first + threadIdx.x / CUDA_TILE_ROWS, row_tile_bytes);
            writes = threadIdx.x % CUDA_TILE_ROWS < place.rows;
            if (writes && p.accumulate)
                y = place.y[threadIdx.x % CUDA_TILE_ROWS];
        }
        barrier_wait(&barriers[stage], parity);
        const unsigned char *tiles = shared + stage * stage_bytes;
        for (uint32_t i = turn; i < count && turn < sharing; i += sharing * TOGETHER) {
#pragma unroll
            for (uint32_t j = 0; j < QUADS; j++) {
                uint32_t column = quad + WARPS * j;
                if (QUADS > 1 || sharing == 1 ? column >= p.quads : false)
                    break;
                float sums[TOGETHER][2];
                const unsigned char *from[TOGETHER];
#pragma unroll
                for (uint32_t k = 0; k < TOGETHER; k++) {
                    sums[k][0] = sums[k][1] = 0;
                    from[k] =
                        tiles + min(i + k * sharing, count - 1) * row_tile_bytes + column * QUAD_TILES * TILE;
                }
                quad_products<TOGETHER, WIDE_SCALES>(from, input[j], lane, sums);
#pragma unroll
                for (uint32_t k = 0; k < TOGETHER; k++) {
                    uint32_t index = min(i + k * sharing, count - 1);
                    float sum0 = sum_of_groups(sums[k][0]), sum1 = sum_of_groups(sums[k][1]);
                    if (lane % 4 == 0)
                        partial[column * rows + index * CUDA_TILE_ROWS + lane / 4] = sum0;
                    if (lane % 4 == 1)
                        partial[column * rows + index * CUDA_TILE_ROWS + lane / 4 + 8] = sum1;
                }
            }
        }
        __syncthreads();
        if ((!BULK || threadIdx.x == 0) && first + p.stages * p.batch < end)
            start_copies(first + p.stages * p.batch, stage);
        if (writes) {
            float sum = 0, square = 0;
#pragma unroll 8
            for (uint32_t j = 0; j < p.quads; j++) {
                sum += partial[j * rows + threadIdx.x];
                if (NORMALISE)
                    square += squares[j];
            }
            if (NORMALISE) {
                sum *= rsqrtf(square / (float)(p.quads * QUAD_COLUMNS) + p.epsilon);
            }
            place.y[threadIdx.x % CUDA_TILE_ROWS] = y + sum;
        }
        half ^= 1;
        if (++stage == p.stages) {
            stage = 0;
            parity ^= 1;
        }
    }
}

/* The operands of both kinds of op; a head is one matrix. */
static uint32_t first_matrix(const struct op *op) {
    return op->constants.normalise ? 2 : 1;
}

static uint32_t matrix_count(const struct op *op) {
    return op->kind == OP_HEAD ? 1 : op->constants.matrix_count;
}

bool cuda_decode_linear_fits(const struct cuda_op *op, const struct cuda_device *) {
    uint32_t columns = op->views[0].columns, first = first_matrix(&op->op);
    if (op->views[0].rows != 1 || columns % QUAD_COLUMNS != 0 || columns > 2 * WARPS * QUAD_COLUMNS ||
        !aligned(&op->views[0]))
        return false;
    for (uint32_t i = 0; i < matrix_count(&op->op); i++)
        if (op->views[first + 2 * i].dtype != DTYPE_AFFINE4 ||
            wide(&op->views[first + 2 * i]) != wide(&op->views[first]))
            return false;
    return true;
}

template <bool WIDE_SCALES, bool NORMALISE, bool BULK>
static cudaError_t launch_copying(const linear_parameters &p, const struct cuda_device *device,
                                  uint32_t blocks, size_t shared_bytes, cudaStream_t stream) {
    uint32_t threads = 32 * WARPS;
    if (p.quads > WARPS)
        return decode_launch(decode_linear<2, 1, WIDE_SCALES, NORMALISE, BULK>, device, 1, blocks, threads,
                             shared_bytes, stream, p);
    if (p.batch == 1)
        return decode_launch(decode_linear<1, 1, WIDE_SCALES, NORMALISE, BULK>, device, 1, blocks, threads,
                             shared_bytes, stream, p);
    return decode_launch(decode_linear<1, 3, WIDE_SCALES, NORMALISE, BULK>, device, 1, blocks, threads,
                         shared_bytes, stream, p);
}

template <bool WIDE_SCALES, bool NORMALISE>
static cudaError_t launch_linear(const linear_parameters &p, const struct cuda_device *device,
                                 uint32_t blocks, size_t shared_bytes, cudaStream_t stream) {
    if (decode_on_hopper(device))
        return launch_copying<WIDE_SCALES, NORMALISE, true>(p, device, blocks, shared_bytes, stream);
    return launch_copying<WIDE_SCALES, NORMALISE, false>(p, device, blocks, shared_bytes, stream);
}

cudaError_t cuda_decode_linear_launch(const struct cuda_op *op, const struct cuda_device *device,
                                      void *workspace, cudaStream_t stream) {
    (void)workspace;
    linear_parameters p = {};
    uint32_t first = first_matrix(&op->op), tile = cuda_tile_bytes((enum dtype)op->views[first].scale_dtype);
    p.x = (const float *)op->views[0].data;
    p.norm = first == 2 ? (const float *)op->views[1].data : NULL;
    p.epsilon = op->op.constants.epsilon;
    p.accumulate = op->op.kind == OP_LINEAR && op->op.constants.accumulate;
    p.quads = op->views[0].columns / QUAD_COLUMNS;
    uint32_t row_tiles = 0;
    for (uint32_t i = 0; i < MAX_MATRICES; i++) {
        if (i < matrix_count(&op->op)) {
            const struct cuda_view *matrix = &op->views[first + 2 * i], *y = &op->views[first + 2 * i + 1];
            p.matrices[i].tiles = (const unsigned char *)matrix->data;
            p.matrices[i].y = (float *)y->data;
            p.matrices[i].rows = matrix->rows;
            row_tiles += (matrix->rows + CUDA_TILE_ROWS - 1) / CUDA_TILE_ROWS;
        }
        p.matrices[i].end = row_tiles;
    }
    uint32_t row_tile_bytes = p.quads * QUAD_TILES * tile;
    uint32_t blocks = min(row_tiles, (uint32_t)device->multiprocessors);
    uint32_t most = (row_tiles + blocks - 1) / blocks;
    p.each = row_tiles / blocks;
    p.longer = row_tiles % blocks;
    /* All at once where they fit half of the shared memory, otherwise two stages in most of it. */
    uint32_t room = (uint32_t)device->shared_bytes - 8 * 1024;
    p.stages = 1;
    p.batch = most;
    if (most * row_tile_bytes > room / 2 || most * CUDA_TILE_ROWS > 32 * WARPS) {
        p.stages = STAGES;
        p.batch = min(room / p.stages / row_tile_bytes, (uint32_t)(32 * WARPS / CUDA_TILE_ROWS));
    }
    size_t shared_bytes =
        (size_t)p.stages * p.batch * row_tile_bytes + 2 * p.quads * p.batch * CUDA_TILE_ROWS * sizeof(float);
    if (wide(&op->views[first]))
        return p.norm != NULL ? launch_linear<true, true>(p, device, blocks, shared_bytes, stream)
                              : launch_linear<true, false>(p, device, blocks, shared_bytes, stream);
    return p.norm != NULL ? launch_linear<false, true>(p, device, blocks, shared_bytes, stream)
                          : launch_linear<false, false>(p, device, blocks, shared_bytes, stream);
}
