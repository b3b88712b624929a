/* y[token, feature] = sum_k W[feature, k] x[token, k] for many tokens: 4-bit weights are dequantised into
 * registers, the matrix units' operand A, right from their tiles (cuda.h), and multiplied by bf16 activations
 * in shared memory.
 *
 * A block stays on its multiprocessor and works through a list of items: 64 features times TILES times
 * CONSUMERS by at most TOKENS tokens. One warpgroup of it only fetches: for each group of 64 columns, a
 * *stage* of the tokens' rows (gathered, swizzled) and the features' tiles, many stages ahead and across
 * items. The others compute: while the matrix units multiply one batch of four k16 steps, the next batch is
 * dequantised. Sums run over rising columns, so an element does not depend on the others of its item. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_PREFILL_GEMM_CUH
#define CALLA_BACKEND_CUDA_KERNELS_PREFILL_GEMM_CUH

#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/launch.cuh"
#include "backend/cuda/kernels/prefill_items.cuh"
#include "backend/cuda/kernels/wgmma.cuh"

#define GEMM_SHARED_LIMIT (226 * 1024)

template <int KIND, int CONSUMERS, int TILES, int TOKENS, int TILE_BYTES> struct gemm_shape {
    static constexpr bool dense = KIND == GEMM_LINEAR || KIND == GEMM_SPLIT;
    static constexpr int parts = KIND == GEMM_SPLIT ? CONSUMERS : 1; /* groups of columns a stage */
    static constexpr int features = KIND == GEMM_GATE_UP ? 64 * CONSUMERS : 64 * CONSUMERS * TILES / parts;
    static constexpr int slots = 4 * CONSUMERS * TILES; /* tiles of weights a stage, part after part */
    static constexpr int token_bytes = TOKENS * 128 * parts;
    static constexpr int stage_bytes = (token_bytes + slots * TILE_BYTES + 1023) / 1024 * 1024;
    static constexpr int head_bytes = 1024 + (dense ? 0 : GEMM_EXPERTS * 4 + 1024);
    static constexpr int turn_bytes = 4 * CONSUMERS * 2560;
    static constexpr int sum_bytes = TILES * 64 * TOKENS * 4; /* of another warpgroup's part */
    static constexpr int fitting =
        (GEMM_SHARED_LIMIT - head_bytes - turn_bytes - 1024 - (parts - 1) * sum_bytes) / stage_bytes;
    static constexpr int stages = fitting < 16 ? fitting : 16;
    static constexpr int shared_bytes =
        head_bytes + 1024 + stages * stage_bytes + turn_bytes + (parts - 1) * sum_bytes;
};

#ifdef CALLA_HOPPER

struct gemm_pipeline {
    uint32_t full, empty; /* addresses of the first barriers, 8 bytes apart */
    uint32_t stage, parity;
    uint32_t address; /* of stage 0 */
    uint32_t turn;    /* of the warps' memory for turning */
};

template <int STAGES> __device__ __forceinline__ void gemm_next(struct gemm_pipeline *p) {
    if (++p->stage == STAGES) {
        p->stage = 0;
        p->parity ^= 1;
    }
}

/* The fetching warpgroup's part of an item: 16 bytes a thread and copy, many copies in flight. */
template <int KIND, int CONSUMERS, int TILES, int TOKENS, int TILE_BYTES>
__device__ __forceinline__ void gemm_fetch(const struct gemm_item &item,
                                           const struct gemm_arguments &arguments, struct gemm_pipeline *p) {
    typedef gemm_shape<KIND, CONSUMERS, TILES, TOKENS, TILE_BYTES> shape;
    constexpr int ROW_COPIES = (TOKENS + 15) / 16, PIECES = TILE_BYTES / 16;
    constexpr int TILE_COPIES = (shape::slots * PIECES + 127) / 128;
    const struct gemm_matrix &matrix = *item.matrix;
    uint32_t thread = threadIdx.x % 128, piece = thread % 8;
    uint32_t rows[ROW_COPIES]; /* offsets in 16 bytes */
#pragma unroll
    for (int i = 0; i < ROW_COPIES; i++) {
        uint32_t row = item.row + min(thread / 8 + 16 * i, item.rows - 1);
        uint32_t source = item.order != NULL ? (uint32_t)item.order[row] / item.divisor : row;
        rows[i] = source * (matrix.x_stride / 8) + piece;
    }
    const uint4 *x = (const uint4 *)matrix.x, *weights[TILE_COPIES];
    uint32_t row_tiles = matrix.features / 16;
#pragma unroll
    for (int i = 0; i < TILE_COPIES; i++) {
        uint32_t slot = (thread + 128 * i) / PIECES, part = slot / (shape::slots / shape::parts);
        uint32_t row_tile = item.feature / 16 + slot % (shape::slots / shape::parts);
        const uint8_t *first = matrix.tiles;
        if (shape::dense) {
            const struct gemm_matrix *of_slot = gemm_matrix_of(arguments, 16 * row_tile);
            first = of_slot->tiles;
            row_tile = min(row_tile - of_slot->first / 16, of_slot->features / 16 - 1);
        } else {
            if (KIND == GEMM_GATE_UP) {
                row_tile = item.feature / 16 + slot / 8 * 4 + slot % 4;
                first = slot % 8 < 4 ? matrix.tiles : matrix.more;
            }
            row_tile = min(row_tile, row_tiles - 1) + item.expert * row_tiles;
        }
        weights[i] = (const uint4 *)(first + ((uint64_t)row_tile * item.groups + part) * TILE_BYTES) +
                     (thread + 128 * i) % PIECES;
    }
    uint32_t to = thread / 8 * 128 + ((piece ^ (thread / 8 & 7)) << 4);
    for (uint32_t group = 0; group < item.groups; group += shape::parts) {
        barrier_wait(p->empty + 8 * p->stage, p->parity ^ 1);
        uint32_t stage = p->address + p->stage * shape::stage_bytes;
#pragma unroll
        for (int i = 0; i < TILE_COPIES; i++)
            if (thread + 128 * i < shape::slots * PIECES)
                copy_async_16(stage + shape::token_bytes + (thread + 128 * i) * 16,
                              weights[i] + group * PIECES);
#pragma unroll
        for (int part = 0; part < shape::parts; part++)
#pragma unroll
            for (int i = 0; i < ROW_COPIES; i++)
                if (16 * i < item.rows)
                    copy_async_16(stage + part * TOKENS * 128 + to + 2048 * i, x + rows[i] + 8 * part);
        barrier_arrive_after_copies(p->full + 8 * p->stage);
        x += 8 * shape::parts;
        gemm_next<shape::stages>(p);
    }
}

/* A warp's way out: 16 features of 32 tokens are turned in its part of shared memory, so that a token's
 * features are stored as whole sectors. */
#define GEMM_TURN_BYTES 2560 /* 32 tokens x 16 float32, 80 bytes apart; as bf16 32 bytes apart */

/* Of a lane's sums of 32 tokens (4 blocks of 8). */
template <typename OUT>
__device__ __forceinline__ void gemm_turn(uint32_t memory, const float (&d)[16], uint32_t lane) {
    if constexpr (sizeof(OUT) == 4) {
#pragma unroll
        for (int b = 0; b < 4; b++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                asm volatile("st.shared.f32 [%0], %1;" ::"r"(memory + (8 * b + lane % 4 * 2 + (i & 1)) * 80 +
                                                             (lane / 4 + i / 2 * 8) * 4),
                             "f"(d[4 * b + i])
                             : "memory");
    } else {
        /* Matrices of 8 features x 8 tokens: features 0 .. 7 and 8 .. 15 of a block, then of the next. A
         * token's two pieces of 8 features change places every 4 tokens, which spreads them over the banks.
         */
#pragma unroll
        for (int b = 0; b < 4; b += 2) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                __nv_bfloat162 pair = __floats2bfloat162_rn(d[4 * b + 2 * i], d[4 * b + 2 * i + 1]);
                v[i] = *(uint32_t *)&pair;
            }
            uint32_t token = 8 * b + lane / 16 * 8 + lane % 8, piece = lane / 8 % 2;
            asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                             memory + token * 32 + ((piece ^ (token >> 2 & 1)) << 4)),
                         "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                         : "memory");
        }
    }
}

/* The lane's pieces of 16 bytes of 32 turned tokens: `row(i)` is the row of y of its i-th one's token. What y
 * holds already is loaded first, for the next 32 tokens while these are stored. */
template <typename OUT> struct gemm_pieces {
    static constexpr int count = sizeof(OUT);
    OUT *to[count];
    bool there[count];
    float4 before[count];

    __device__ __forceinline__ void find(OUT *y, uint32_t stride, const uint32_t *rows, uint32_t tokens,
                                         bool accumulate, uint32_t lane) {
#pragma unroll
        for (int i = 0; i < count; i++) {
            uint32_t token = (lane + 32 * i) / count, piece = lane % count;
            to[i] = y + (uint64_t)rows[i] * stride + piece * (16 / sizeof(OUT));
            there[i] = token < tokens;
            before[i] = make_float4(0, 0, 0, 0);
            if (sizeof(OUT) == 4 && accumulate && there[i])
                before[i] = *(const float4 *)to[i];
        }
    }

    __device__ __forceinline__ void store(uint32_t memory, uint32_t lane) const {
#pragma unroll
        for (int i = 0; i < count; i++) {
            uint32_t token = (lane + 32 * i) / count, piece = lane % count;
            uint32_t at =
                sizeof(OUT) == 4 ? token * 80 + piece * 16 : token * 32 + ((piece ^ (token >> 2 & 1)) << 4);
            uint4 v = shared_load_16(memory + at);
            if (sizeof(OUT) == 4) {
                float4 sum =
                    make_float4(before[i].x + __uint_as_float(v.x), before[i].y + __uint_as_float(v.y),
                                before[i].z + __uint_as_float(v.z), before[i].w + __uint_as_float(v.w));
                v = *(uint4 *)&sum;
            }
            if (there[i])
                *(uint4 *)to[i] = v;
        }
    }
};

/* Sums of the parts of the columns that the warpgroups have, in rising order, in the first of them; false in
 * the others. */
template <int CONSUMERS, int TILES, int N>
__device__ __forceinline__ bool gemm_add_parts(float (&sums)[TILES][N / 2], uint32_t memory,
                                               uint32_t warpgroup) {
    uint32_t thread = memory + threadIdx.x % 128 * 4;
    asm volatile("bar.sync 1, %0;" ::"n"(128 * CONSUMERS) : "memory"); /* the first has read those before */
    if (warpgroup > 0)
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < N / 2; j++)
                asm volatile("st.shared.f32 [%0], %1;" ::"r"(
                                 thread + (((warpgroup - 1) * TILES + i) * (N / 2) + j) * 512),
                             "f"(sums[i][j])
                             : "memory");
    asm volatile("bar.sync 1, %0;" ::"n"(128 * CONSUMERS) : "memory");
    if (warpgroup > 0)
        return false;
#pragma unroll
    for (int part = 0; part + 1 < CONSUMERS; part++)
#pragma unroll
        for (int i = 0; i < TILES; i++)
#pragma unroll
            for (int j = 0; j < N / 2; j++) {
                float sum;
                asm volatile("ld.shared.f32 %0, [%1];"
                             : "=f"(sum)
                             : "r"(thread + ((part * TILES + i) * (N / 2) + j) * 512)
                             : "memory");
                sums[i][j] += sum;
            }
    return true;
}

/* A computing warpgroup's part of an item of at most N tokens. */
template <int KIND, int CONSUMERS, int TILES, int TOKENS, int TILE_BYTES, typename OUT, int N>
__device__ __forceinline__ void
gemm_compute(const struct gemm_item &item, const struct gemm_arguments &arguments, struct gemm_pipeline *p) {
    typedef gemm_shape<KIND, CONSUMERS, TILES, TOKENS, TILE_BYTES> shape;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, warpgroup = threadIdx.x / 128 - 1;
    float sums[TILES][N / 2];
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < N / 2; j++)
            sums[i][j] = 0;
    uint32_t a[2][16];
    uint32_t previous = 0, steps = item.groups / shape::parts;
#pragma unroll 2
    for (uint32_t step = 0; step < steps; step++) {
        barrier_wait(p->full + 8 * p->stage, p->parity);
        fence_for_matrix_units();
        uint64_t b = matrix_of_rows(p->address + p->stage * shape::stage_bytes +
                                    (shape::parts > 1 ? warpgroup * TOKENS * 128 : 0));
        uint32_t tiles = p->address + p->stage * shape::stage_bytes + shape::token_bytes +
                         (warpgroup * TILES * 4 + warp) * TILE_BYTES;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            uint32_t(&registers)[16] = a[TILES == 2 ? i : step & 1];
            wgmma_wait<1>();
            if (i == TILES - 1 && step >= (TILES == 2 ? 1 : 2)) {
                /* The batch before the one in flight is done, and with it its stage. */
                barrier_arrive(p->empty + 8 * previous);
                if (++previous == shape::stages)
                    previous = 0;
            } else if (i == TILES - 1 && step == 0) {
                previous = p->stage;
            }
            struct gemm_codes<TILE_BYTES> codes;
            codes.load(tiles + i * 4 * TILE_BYTES, lane);
#pragma unroll
            for (int j = 0; j < 4; j++)
                codes.dequantise(j, registers + 4 * j);
            wgmma_begin();
#pragma unroll
            for (int j = 0; j < 4; j++)
                wgmma_registers(sums[i], registers + 4 * j, b + 2 * j);
            wgmma_commit();
        }
        gemm_next<shape::stages>(p);
    }
    wgmma_wait<0>();
    for (uint32_t left = min(steps, TILES == 2 ? 1u : 2u); left > 0; left--) {
        barrier_arrive(p->empty + 8 * previous);
        if (++previous == shape::stages)
            previous = 0;
    }
#pragma unroll
    for (int i = 0; i < TILES; i++)
        wgmma_hold(sums[i]);
    if constexpr (KIND == GEMM_SPLIT) {
        if (!gemm_add_parts<CONSUMERS, TILES, N>(sums, p->turn + shape::turn_bytes, warpgroup))
            return;
        warpgroup = 0;
    }

    constexpr int OUTPUTS = KIND == GEMM_GATE_UP ? 1 : TILES, PIECES = sizeof(OUT), BLOCKS = (N + 31) / 32;
    uint32_t turn = p->turn + threadIdx.x / 32 % (4 * CONSUMERS) * GEMM_TURN_BYTES;
    const struct gemm_matrix *matrices[OUTPUTS];
    OUT *y[OUTPUTS];
    uint32_t tokens[OUTPUTS]; /* none for features past the last */
#pragma unroll
    for (int i = 0; i < OUTPUTS; i++) {
        uint32_t feature = item.feature + (warpgroup * OUTPUTS + i) * 64 + warp * 16;
        matrices[i] = shape::dense ? gemm_matrix_of(arguments, feature) : item.matrix;
        feature -= shape::dense ? matrices[i]->first : 0;
        y[i] = (OUT *)matrices[i]->y + feature;
        tokens[i] = feature < matrices[i]->features ? item.rows : 0;
    }
    uint32_t rows[BLOCKS][PIECES];
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            uint32_t token = 32 * b + (lane + 32 * i) / PIECES;
            rows[b][i] = item.row + token;
            if (item.order != NULL && token < item.rows)
                rows[b][i] = item.order[rows[b][i]];
        }
    struct gemm_pieces<OUT> pieces[2];
    pieces[0].find(y[0], matrices[0]->y_stride, rows[0], tokens[0], shape::dense && matrices[0]->accumulate,
                   lane);
#pragma unroll
    for (int step = 0; step < BLOCKS * OUTPUTS; step++) {
        int b = step / OUTPUTS, i = step % OUTPUTS, next = step + 1;
        if (next < BLOCKS * OUTPUTS) {
            uint32_t first = next / OUTPUTS * 32;
            pieces[next % 2].find(y[next % OUTPUTS], matrices[next % OUTPUTS]->y_stride, rows[next / OUTPUTS],
                                  tokens[next % OUTPUTS] > first ? tokens[next % OUTPUTS] - first : 0,
                                  shape::dense && matrices[next % OUTPUTS]->accumulate, lane);
        }
        float d[16];
#pragma unroll
        for (int j = 0; j < 16; j++) {
            d[j] = 0;
            if (16 * b + j < N / 2) {
                d[j] = sums[i][(16 * b + j) % (N / 2)];
                if (KIND == GEMM_GATE_UP)
                    d[j] = __fdividef(d[j], 1 + __expf(-d[j])) * sums[TILES - 1][(16 * b + j) % (N / 2)];
            }
        }
        gemm_turn<OUT>(turn, d, lane);
        __syncwarp();
        pieces[step % 2].store(turn, lane);
        __syncwarp();
    }
}

/* The block's items whose tokens N takes and the narrower width does not: one loop a width, because ptxas
 * gives up on keeping products in flight when widths are branches of one loop. */
template <int KIND, int CONSUMERS, int TILES, int TOKENS, int TILE_BYTES, typename OUT, int NARROWER, int N>
__device__ __forceinline__ void gemm_compute_items(const struct gemm_arguments &arguments,
                                                   const uint32_t *prefix, struct gemm_pipeline *p) {
    typedef gemm_shape<KIND, CONSUMERS, TILES, TOKENS, TILE_BYTES> shape;
    struct gemm_item item;
    for (uint32_t index = blockIdx.x;
         gemm_find<shape::dense, shape::features, TOKENS>(arguments, prefix, index, &item);
         index += gridDim.x)
        if (item.rows > NARROWER && item.rows <= N)
            gemm_compute<KIND, CONSUMERS, TILES, TOKENS, TILE_BYTES, OUT, N>(item, arguments, p);
}

template <int KIND, int CONSUMERS, int TILES, int TOKENS, int TILE_BYTES, typename OUT, int NARROWER, int N,
          int... WIDER>
__device__ __forceinline__ void gemm_compute_widths(const struct gemm_arguments &arguments,
                                                    const uint32_t *prefix, struct gemm_pipeline *p) {
    gemm_compute_items<KIND, CONSUMERS, TILES, TOKENS, TILE_BYTES, OUT, NARROWER, N>(arguments, prefix, p);
    if constexpr (sizeof...(WIDER) > 0)
        gemm_compute_widths<KIND, CONSUMERS, TILES, TOKENS, TILE_BYTES, OUT, N, WIDER...>(arguments, prefix,
                                                                                          p);
}

#endif

/* The kernel; WIDTHS: the tokens an item may be computed with, rising, the last is TOKENS. */
template <int KIND, int CONSUMERS, int TILES, int TILE_BYTES, typename OUT, int TOKENS, int... WIDTHS>
__global__ void __launch_bounds__(128 * (CONSUMERS + 1), 1)
    gemm_kernel(const __grid_constant__ struct gemm_arguments arguments) {
#ifdef CALLA_HOPPER
    typedef gemm_shape<KIND, CONSUMERS, TILES, TOKENS, TILE_BYTES> shape;
    extern __shared__ uint8_t shared[];
    uint8_t *memory = (uint8_t *)(((uintptr_t)shared + 1023) & ~(uintptr_t)1023);
    uint32_t *prefix = (uint32_t *)(memory + 1024);
    struct gemm_pipeline pipeline = {shared_address(memory),
                                     shared_address(memory) + 8 * shape::stages,
                                     0,
                                     0,
                                     shared_address(memory) + shape::head_bytes,
                                     shared_address(memory) + shape::head_bytes +
                                         shape::stages * shape::stage_bytes};
    if (threadIdx.x == 0) {
        for (int i = 0; i < shape::stages; i++) {
            barrier_init(pipeline.full + 8 * i, 128);
            barrier_init(pipeline.empty + 8 * i, 128 * CONSUMERS);
        }
        fence_for_matrix_units();
    }
    cuda_let_next_start();
    cuda_await_previous();
    if (!shape::dense)
        gemm_count_tiles<TOKENS>(arguments, prefix);
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_fewer<56>();
        constexpr uint32_t widths[] = {0, WIDTHS...};
        struct gemm_item item;
        for (uint32_t w = 0; w < sizeof...(WIDTHS); w++)
            for (uint32_t index = blockIdx.x;
                 gemm_find<shape::dense, shape::features, TOKENS>(arguments, prefix, index, &item);
                 index += gridDim.x)
                if (item.rows > widths[w] && item.rows <= widths[w + 1])
                    gemm_fetch<KIND, CONSUMERS, TILES, TOKENS, TILE_BYTES>(item, arguments, &pipeline);
    } else {
        registers_more<CONSUMERS == 1 ? 232 : CONSUMERS == 2 ? 224 : CONSUMERS == 3 ? 152 : 104>();
        gemm_compute_widths<KIND, CONSUMERS, TILES, TOKENS, TILE_BYTES, OUT, 0, WIDTHS...>(arguments, prefix,
                                                                                           &pipeline);
    }
#endif
}

/* Queues a product: as many blocks as multiprocessors, or as items of GEMM_LINEAR if those are fewer. */
template <int KIND, int CONSUMERS, int TILES, int TILE_BYTES, typename OUT, int TOKENS, int... WIDTHS>
cudaError_t gemm_launch(struct gemm_arguments arguments, int multiprocessors, enum cuda_start start,
                        cudaStream_t stream) {
    typedef gemm_shape<KIND, CONSUMERS, TILES, TOKENS, TILE_BYTES> shape;
    auto kernel = gemm_kernel<KIND, CONSUMERS, TILES, TILE_BYTES, OUT, TOKENS, WIDTHS...>;
    uint32_t blocks = multiprocessors;
    if (shape::dense) {
        gemm_join(&arguments);
        uint32_t items = (arguments.features + shape::features - 1) / shape::features *
                         ((arguments.tokens + TOKENS - 1) / TOKENS);
        blocks = items < blocks ? items : blocks;
    }
    return cuda_launch(kernel, start, blocks, 128 * (CONSUMERS + 1), shape::shared_bytes, stream, arguments);
}

#endif
