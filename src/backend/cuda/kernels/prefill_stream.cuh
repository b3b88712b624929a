/* The experts' products where each expert has few rows: what limits them is reading the weights, so each tile
 * (cuda.h) is read once, straight through, while the matrix units multiply what has come.
 *
 * A *pass* is an expert (the shared one or a chosen one) with at most 8 * WIDEST of its rows; a *unit* is two
 * tiles side by side in a pass: of 16 features the gate and the up matrix, or of 32 features the down matrix.
 * The units of all passes form one list, of which each block has an equal part and each of its computing
 * warps every WARPS-th: experts without rows cost nothing, and no block waits for another. A warp copies its
 * tiles into a ring of its own and meets nobody; one more warp fetches the rows of the passes, 8 at a time,
 * into a ring that all read, so that the next pass's rows are there when a warp gets there.
 *
 * A bf16 number whose bits are an integer n below 256 is n * 2^-133, exactly. So a word of codes, masked, is
 * an operand of the matrix units as it is: code * 2^-133 or, four bits further up, 16 times that. What meets
 * the latter, every other 16 columns of x, is divided by 16, and all of x is raised by 2^64. Per group of 64
 * columns follows scale * sum + bias * sum of x. Sums run over rising columns, so a row depends on no other.
 * Everything here runs on any GPU from 8.0 on. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_PREFILL_STREAM_CUH
#define CALLA_BACKEND_CUDA_KERNELS_PREFILL_STREAM_CUH

#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/launch.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/prefill_stream_plan.cuh"

#define STREAM_ONES 0x3f803f80u     /* pairs of bf16 */
#define STREAM_RAISE 0x5f805f80u    /* 2^64 */
#define STREAM_RAISE_16 0x5d805d80u /* 2^60 */
#define STREAM_LOWER 0x1p-69f       /* what sums of codes times x are too small by */

/* WARPS that compute; a step of a warp's ring: GROUPS groups of two tiles; STAGES steps in a ring; WIDEST
 * blocks of 8 rows in a pass; BLOCKS in the rows' ring. */
template <int WARPS_, int GROUPS_, int STAGES_, int WIDEST_, int BLOCKS_> struct stream_shape {
    static constexpr int warps = WARPS_, groups = GROUPS_, stages = STAGES_, widest = WIDEST_,
                         blocks = BLOCKS_;
    static constexpr int threads = 32 * (WARPS_ + 1);
    static constexpr int barrier_bytes = (8 * (3 * BLOCKS_ + WARPS_ * STAGES_) + 127) / 128 * 128;
    static constexpr int head_bytes =
        barrier_bytes + STREAM_PLAN_BYTES + STREAM_PASSES * (int)sizeof(struct stream_pass);

    CUDA_EVERYWHERE static constexpr int step_bytes(int tile_bytes) {
        return 2 * GROUPS_ * tile_bytes;
    }
    CUDA_EVERYWHERE static constexpr int row_bytes(int columns) { /* no bank is hit twice */
        return 2 * columns + 16;
    }
    CUDA_EVERYWHERE static constexpr int block_bytes(int columns) { /* rows, and their sums by group */
        return 8 * row_bytes(columns) + 8 * 4 * (columns / 64);
    }
    CUDA_EVERYWHERE static constexpr int shared_bytes(int columns, int tile_bytes) {
        return head_bytes + WARPS_ * STAGES_ * step_bytes(tile_bytes) + BLOCKS_ * block_bytes(columns);
    }
};

__device__ __forceinline__ const struct gemm_matrix &stream_matrix(const struct gemm_arguments &a,
                                                                   const struct stream_pass &pass) {
    return a.matrices[pass.expert == a.experts ? 1 : 0];
}

/* ---- Copies ---- */

#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900 && !defined STREAM_PLAIN
#define STREAM_BULK 1
#endif

/* Where a warp's copies are in its units. */
struct stream_source {
    const uint8_t *left, *right;
    uint32_t unit, group, groups;
    const struct stream_pass *pass;
};

template <int KIND, int TILE_BYTES>
__device__ __forceinline__ void stream_seek(const struct gemm_arguments &a, uint32_t end,
                                            struct stream_source *s) {
    s->group = 0;
    if (s->unit >= end)
        return;
    while (s->unit >= s->pass->end)
        s->pass++;
    const struct gemm_matrix &matrix = stream_matrix(a, *s->pass);
    bool shared = s->pass->expert == a.experts;
    uint32_t row_tile = (s->pass->unit + s->unit - s->pass->start) * (KIND == GEMM_GATE_UP ? 1 : 2);
    s->groups = shared ? a.shared_groups : a.groups;
    uint64_t at = (uint64_t)row_tile + (shared ? 0 : (uint64_t)s->pass->expert * (matrix.features / 16));
    s->left = matrix.tiles + at * s->groups * TILE_BYTES;
    s->right = KIND == GEMM_GATE_UP ? matrix.more + at * s->groups * TILE_BYTES
                                    : s->left + (uint64_t)s->groups * TILE_BYTES;
}

/* Starts copying the warp's next step into `to`. */
template <int KIND, int TILE_BYTES, typename SHAPE>
__device__ __forceinline__ void stream_copy(const struct gemm_arguments &a, uint32_t end, uint32_t to,
                                            uint32_t barrier, uint32_t lane, struct stream_source *s) {
    constexpr uint32_t half = SHAPE::groups * TILE_BYTES;
    if (s->unit < end) {
#ifdef STREAM_BULK
        if (lane == 0) {
            barrier_arrive_expecting(barrier, 2 * half);
            bulk_copy(to, s->left, half, barrier);
            bulk_copy(to + half, s->right, half, barrier);
        }
#else
#pragma unroll
        for (uint32_t i = 0; i < half / 16; i += 32)
            if (i + lane < half / 16) {
                copy_async_16(to + 16 * (i + lane), s->left + 16 * (i + lane));
                copy_async_16(to + half + 16 * (i + lane), s->right + 16 * (i + lane));
            }
#endif
        s->left += half;
        s->right += half;
        s->group += SHAPE::groups;
        if (s->group >= s->groups) {
            s->unit += SHAPE::warps;
            stream_seek<KIND, TILE_BYTES>(a, end, s);
        }
    }
#ifndef STREAM_BULK
    copy_async_commit();
#endif
}

/* Returns when the oldest step of the warp's ring is there. */
template <typename SHAPE> __device__ __forceinline__ void stream_wait(uint32_t barrier, uint32_t parity) {
#ifdef STREAM_BULK
    barrier_wait(barrier, parity);
#else
    copy_async_wait<SHAPE::stages - 1>();
    __syncwarp();
#endif
}

/* A place in the ring of rows. */
struct stream_rows {
    uint32_t block, parity;
};

template <typename SHAPE> __device__ __forceinline__ void stream_next(struct stream_rows *r) {
    if (++r->block == SHAPE::blocks) {
        r->block = 0;
        r->parity ^= 1;
    }
}

/* ---- Products ---- */

/* d = a b */
__device__ __forceinline__ void stream_multiply_first(float (&d)[4], const uint32_t *a, uint32_t b0,
                                                      uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%10, %10, %10, %10};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

/* Codes, two a word, those of odd 16 columns times 16. */
__device__ __forceinline__ void stream_codes(uint32_t tile, uint32_t lane, uint32_t (&a)[16]) {
    uint4 codes = shared_load_16(tile + 16 * lane);
    uint32_t words[4] = {codes.x, codes.z, codes.y, codes.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            a[4 * j + i] = words[i] >> 8 * (j / 2) & (j % 2 == 0 ? 0x000f000fu : 0x00f000f0u);
}

/* Scale and bias of the lane's rows g and g + 8. */
template <int TILE_BYTES>
__device__ __forceinline__ void stream_pairs(uint32_t tile, uint32_t lane, float (&scale)[2],
                                             float (&bias)[2]) {
    if (TILE_BYTES == 576) {
        uint2 pairs = shared_load_8(tile + 512 + 8 * (lane / 4));
        scale[0] = __uint_as_float(pairs.x << 16);
        bias[0] = __uint_as_float(pairs.x & 0xffff0000);
        scale[1] = __uint_as_float(pairs.y << 16);
        bias[1] = __uint_as_float(pairs.y & 0xffff0000);
    } else {
        uint4 pairs = shared_load_16(tile + 512 + 16 * (lane / 4));
        scale[0] = __uint_as_float(pairs.x);
        bias[0] = __uint_as_float(pairs.y);
        scale[1] = __uint_as_float(pairs.z);
        bias[1] = __uint_as_float(pairs.w);
    }
}

__device__ __forceinline__ uint32_t stream_raise(uint32_t pair, uint32_t by) {
    uint32_t raised;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(raised) : "r"(pair), "r"(by), "r"(0x80008000));
    return raised;
}

/* The addresses of a ring of rows. */
struct stream_ring {
    uint32_t full, ready,
        empty; /* barriers, 8 bytes apart: the rows are there, their sums too, all is free */
    uint32_t rows, row_bytes, block_bytes;
};

/* What the multiplying warps need of a group of 8 rows (x: the operand B of four k16 steps): raised x, and
 * the sums, lowered. */
__device__ __forceinline__ void stream_prepare(const uint32_t (&x)[8], uint32_t own, uint32_t sums_at,
                                               uint32_t lane) {
    const uint32_t ones[4] = {STREAM_ONES, STREAM_ONES, STREAM_ONES, STREAM_ONES};
    float sums[4];
    stream_multiply_first(sums, ones, x[0], x[1]);
#pragma unroll
    for (int j = 1; j < 4; j++)
        multiply_bf16(sums, ones, x[2 * j], x[2 * j + 1]);
    if (lane < 4)
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(sums_at + 8 * lane),
                     "f"(sums[0] * STREAM_LOWER), "f"(sums[1] * STREAM_LOWER)
                     : "memory");
#pragma unroll
    for (int i = 0; i < 8; i++)
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(own + 16 * i),
                     "r"(stream_raise(x[i], i / 2 % 2 == 0 ? STREAM_RAISE : STREAM_RAISE_16))
                     : "memory");
}

/* The fetching warp. */
template <typename SHAPE>
__device__ __forceinline__ void stream_fetch(const struct gemm_arguments &a, const struct stream_pass *pass,
                                             uint32_t passes, const struct stream_ring &ring, uint32_t lane) {
    struct stream_rows place = {0, 0};
    for (; passes > 0; passes--, pass++) {
        if (pass->start == pass->end)
            continue;
        bool shared = pass->expert == a.experts;
        const struct gemm_matrix &matrix = stream_matrix(a, *pass);
        uint32_t groups = shared ? a.shared_groups : a.groups, bytes = groups * 128;
        struct stream_rows fetched = place;
        for (uint32_t first = 0; first < pass->rows; first += 8) {
            uint32_t count = min(pass->rows - first, 8u), row = pass->row + first + lane % 8;
            if (lane % 8 < count && !shared)
                row = (uint32_t)a.order[row] / a.pairs_a_row;
            const uint8_t *from = (const uint8_t *)(matrix.x + (uint64_t)row * matrix.x_stride);
            uint32_t to = ring.rows + fetched.block * ring.block_bytes,
                     barrier = ring.full + 8 * fetched.block;
            barrier_wait(ring.empty + 8 * fetched.block, fetched.parity ^ 1);
#ifdef STREAM_BULK
            fence_for_matrix_units(); /* what this warp wrote there before comes before the copies */
            if (lane == 0)
                barrier_arrive_expecting(barrier, count * bytes);
            __syncwarp();
            if (lane < count)
                bulk_copy(to + lane * ring.row_bytes, from, bytes, barrier);
#else
            if (lane % 8 < count)
                for (uint32_t i = lane / 8 * 16; i < bytes; i += 64)
                    copy_async_16(to + lane % 8 * ring.row_bytes + i, from + i);
            barrier_arrive_after_copies(barrier);
#endif
            stream_next<SHAPE>(&fetched);
        }
        for (uint32_t first = 0; first < pass->rows; first += 8) {
            uint32_t to = ring.rows + place.block * ring.block_bytes,
                     from = to + lane % 8 * ring.row_bytes + lane / 8 * 16,
                     own = to + lane / 4 * ring.row_bytes + lane % 4 * 4;
            barrier_wait(ring.full + 8 * place.block, place.parity);
#pragma unroll 2
            for (uint32_t group = 0; group < groups; group++) {
                uint32_t x[8];
                load_matrices(x, from + 128 * group);
                load_matrices(x + 4, from + 128 * group + 64);
                __syncwarp(); /* all lanes have read what each now writes over */
                stream_prepare(x, own + 128 * group, to + 8 * ring.row_bytes + 32 * group, lane);
            }
            barrier_arrive(ring.ready + 8 * place.block);
            stream_next<SHAPE>(&place);
        }
    }
}

/* Stores a lane's results of two blocks of 8 features (above and below) and 8 rows; feature, row: the first.
 */
__device__ __forceinline__ void stream_store(float *y, uint64_t stride, const float (&d)[4],
                                             const int32_t *to, uint32_t there, uint32_t lane) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int32_t row = __shfl_sync(~0u, *to, (lane % 4 * 2 + (i & 1)) * 4);
        bool is = __shfl_sync(~0u, there, (lane % 4 * 2 + (i & 1)) * 4);
        if (is)
            y[row * stride + lane / 4 + i / 2 * 8] = d[i];
    }
}

__device__ __forceinline__ void stream_store(__nv_bfloat16 *y, uint64_t stride, const float (&d)[4],
                                             const int32_t *to, uint32_t there, uint32_t lane) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(d[2 * i], d[2 * i + 1]);
        uint32_t turned = transpose_matrix(*(uint32_t *)&pair);
        if (there)
            *(uint32_t *)(y + *to * stride + 8 * i + lane % 4 * 2) = turned;
    }
}

/* What a computing warp keeps from unit to unit. */
struct stream_warp {
    uint32_t ring, barriers; /* addresses */
    uint32_t slot, parity;
    struct stream_source source;
};

/* One unit of a pass of 8 * (COUNT - 1) + 1 .. 8 * COUNT rows, which lie at `rows`. */
template <int KIND, int TILE_BYTES, typename OUT, typename SHAPE, int COUNT>
__device__ __forceinline__ void stream_unit(const struct gemm_arguments &a, const struct stream_pass &pass,
                                            uint32_t unit, uint32_t end, const uint32_t (&rows)[COUNT],
                                            const uint32_t (&sums_of_x)[COUNT], uint32_t lane,
                                            struct stream_warp *w) {
    constexpr uint32_t step = SHAPE::step_bytes(TILE_BYTES);
    const struct gemm_matrix &matrix = stream_matrix(a, pass);
    bool shared = pass.expert == a.experts;
    uint32_t groups = shared ? a.shared_groups : a.groups;
    int32_t to[COUNT]; /* row of y of the lane's row lane / 4 of each block */
#pragma unroll
    for (int b = 0; b < COUNT; b++) {
        uint32_t row = pass.row + min(8 * b + lane / 4, pass.rows - 1);
        to[b] = shared ? (int32_t)row : a.order[row];
    }
    float totals[2][COUNT][4];
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int b = 0; b < COUNT; b++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                totals[i][b][j] = 0;
    for (uint32_t group = 0; group < groups; group += SHAPE::groups) {
        uint32_t ring = w->ring + w->slot * step, barrier = w->barriers + 8 * w->slot;
        stream_wait<SHAPE>(barrier, w->parity);
#pragma unroll
        for (int i = 0; i < SHAPE::groups; i++) {
            uint32_t codes[2][16];
            float scale[2][2], bias[2][2];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                uint32_t tile = ring + (m * SHAPE::groups + i) * TILE_BYTES;
                stream_codes(tile, lane, codes[m]);
                stream_pairs<TILE_BYTES>(tile, lane, scale[m], bias[m]);
            }
#pragma unroll
            for (int b = 0; b < COUNT; b++) {
                uint32_t x[8];
                load_matrices(x, rows[b] + (group + i) * 128);
                load_matrices(x + 4, rows[b] + (group + i) * 128 + 64);
                uint2 pair = shared_load_8(sums_of_x[b] + (group + i) * 32);
                float sums[2][4], of_x[2] = {__uint_as_float(pair.x), __uint_as_float(pair.y)};
                stream_multiply_first(sums[0], codes[0], x[0], x[1]);
                stream_multiply_first(sums[1], codes[1], x[0], x[1]);
#pragma unroll
                for (int j = 1; j < 4; j++) {
                    multiply_bf16(sums[0], codes[0] + 4 * j, x[2 * j], x[2 * j + 1]);
                    multiply_bf16(sums[1], codes[1] + 4 * j, x[2 * j], x[2 * j + 1]);
                }
#pragma unroll
                for (int m = 0; m < 2; m++)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        totals[m][b][j] = fmaf(bias[m][j / 2], of_x[j & 1], totals[m][b][j]);
                        totals[m][b][j] = fmaf(scale[m][j / 2], sums[m][j], totals[m][b][j]);
                    }
            }
        }
        __syncwarp();
        stream_copy<KIND, TILE_BYTES, SHAPE>(a, end, ring, barrier, lane, &w->source);
        if (++w->slot == SHAPE::stages) {
            w->slot = 0;
            w->parity ^= 1;
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int b = 0; b < COUNT; b++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                totals[i][b][j] *= 1 / STREAM_LOWER;
    constexpr uint32_t width = KIND == GEMM_GATE_UP ? 16 : 32;
    uint32_t feature = (pass.unit + unit - pass.start) * width;
    OUT *y = (OUT *)matrix.y + feature;
#pragma unroll
    for (int b = 0; b < COUNT; b++) {
        bool there = 8 * b + lane / 4 < pass.rows;
        if (KIND == GEMM_GATE_UP) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float gate = totals[0][b][j];
                totals[0][b][j] = __fdividef(gate, 1 + __expf(-gate)) * totals[1][b][j];
            }
            stream_store(y, matrix.y_stride, totals[0][b], &to[b], there, lane);
        } else {
            stream_store(y, matrix.y_stride, totals[0][b], &to[b], there, lane);
            stream_store(y + 16, matrix.y_stride, totals[1][b], &to[b], there, lane);
        }
    }
}

/* The warp's units of a pass of at most 8 * COUNT rows, the first 8 of them at `place`. */
template <int KIND, int TILE_BYTES, typename OUT, typename SHAPE, int COUNT>
__device__ __forceinline__ void
stream_units(const struct gemm_arguments &a, const struct stream_pass &pass, uint32_t *unit, uint32_t end,
             struct stream_rows place, const struct stream_ring &ring, uint32_t lane, struct stream_warp *w) {
    if constexpr (COUNT > 1)
        if (pass.rows <= 8 * (COUNT - 1)) {
            stream_units<KIND, TILE_BYTES, OUT, SHAPE, COUNT - 1>(a, pass, unit, end, place, ring, lane, w);
            return;
        }
    uint32_t rows[COUNT], sums[COUNT];
#pragma unroll
    for (int b = 0; b < COUNT; b++) {
        uint32_t block = ring.rows + place.block * ring.block_bytes;
        rows[b] = block + lane % 8 * ring.row_bytes + lane / 8 * 16;
        sums[b] = block + 8 * ring.row_bytes + lane % 4 * 8;
        stream_next<SHAPE>(&place);
    }
    for (; *unit < pass.end; *unit += SHAPE::warps)
        stream_unit<KIND, TILE_BYTES, OUT, SHAPE, COUNT>(a, pass, *unit, end, rows, sums, lane, w);
}

template <int KIND, int TILE_BYTES, typename OUT, typename SHAPE>
__global__ void __launch_bounds__(SHAPE::threads)
    stream_kernel(const __grid_constant__ struct gemm_arguments a, uint32_t columns) {
    extern __shared__ __align__(128) uint8_t memory[];
    constexpr uint32_t ring_bytes = SHAPE::stages * SHAPE::step_bytes(TILE_BYTES);
    struct stream_pass *passes = (struct stream_pass *)(memory + SHAPE::barrier_bytes + STREAM_PLAN_BYTES);
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, address = shared_address(memory);
    struct stream_ring ring = {address,
                               address + 8 * SHAPE::blocks,
                               address + 16 * SHAPE::blocks,
                               address + SHAPE::head_bytes + SHAPE::warps * ring_bytes,
                               (uint32_t)SHAPE::row_bytes(columns),
                               (uint32_t)SHAPE::block_bytes(columns)};
    uint32_t barriers = address + 24 * SHAPE::blocks; /* of the warps' rings */
    if (threadIdx.x == 0) {
        for (int i = 0; i < SHAPE::blocks; i++) {
#ifdef STREAM_BULK
            barrier_init(ring.full + 8 * i, 1);
#else
            barrier_init(ring.full + 8 * i, 32);
#endif
            barrier_init(ring.ready + 8 * i, 32);
            barrier_init(ring.empty + 8 * i, 32 * SHAPE::warps);
        }
        for (int i = 0; i < SHAPE::warps * SHAPE::stages; i++)
            barrier_init(barriers + 8 * i, 1);
#ifdef STREAM_BULK
        fence_for_matrix_units();
#endif
    }
    cuda_let_next_start();
    cuda_await_previous();
    uint32_t count =
        stream_plan<KIND, SHAPE>(a, (struct stream_count *)(memory + SHAPE::barrier_bytes), passes);
    if (count == 0)
        return;
    if (warp == SHAPE::warps) {
        stream_fetch<SHAPE>(a, passes, count, ring, lane);
        return;
    }
    uint32_t end = passes[count - 1].end, unit = warp;
    struct stream_warp w = {address + SHAPE::head_bytes + warp * ring_bytes,
                            barriers + 8 * warp * SHAPE::stages,
                            0,
                            0,
                            {NULL, NULL, unit, 0, 0, passes}};
    stream_seek<KIND, TILE_BYTES>(a, end, &w.source);
    for (int i = 0; i < SHAPE::stages; i++)
        stream_copy<KIND, TILE_BYTES, SHAPE>(a, end, w.ring + i * SHAPE::step_bytes(TILE_BYTES),
                                             w.barriers + 8 * i, lane, &w.source);
    /* Every warp waits for every pass's rows before it gives them back, so that none is a turn ahead. */
    struct stream_rows place = {0, 0};
    for (const struct stream_pass *pass = passes; pass < passes + count; pass++) {
        if (pass->start == pass->end)
            continue;
        struct stream_rows waited = place;
        for (uint32_t i = 0; i < pass->rows; i += 8) {
            barrier_wait(ring.ready + 8 * waited.block, waited.parity);
            stream_next<SHAPE>(&waited);
        }
        stream_units<KIND, TILE_BYTES, OUT, SHAPE, SHAPE::widest>(a, *pass, &unit, end, place, ring, lane,
                                                                  &w);
        for (uint32_t i = 0; i < pass->rows; i += 8) {
            barrier_arrive(ring.empty + 8 * place.block);
            stream_next<SHAPE>(&place);
        }
    }
}

/* Whether the shape's memory is there and its steps fit the matrices. */
template <int KIND, typename SHAPE>
static inline bool stream_fits(const struct gemm_arguments &a, uint32_t pairs, int tile_bytes, int blocks,
                               int shared_bytes) {
    uint32_t columns = 64 * (a.groups > a.shared_groups ? a.groups : a.shared_groups);
    uint32_t width = KIND == GEMM_GATE_UP ? 16 : 32, most = 8 * SHAPE::widest;
    uint64_t passes = (uint64_t)a.experts + (pairs + a.tokens) / most + 1;
    return a.groups % SHAPE::groups == 0 && a.shared_groups % SHAPE::groups == 0 &&
           a.matrices[0].features % width == 0 && a.matrices[1].features % width == 0 &&
           3 * passes / blocks + 2 < STREAM_PASSES &&
           SHAPE::shared_bytes(columns, tile_bytes) <= shared_bytes;
}

template <int KIND, int TILE_BYTES, typename OUT, typename SHAPE>
cudaError_t stream_launch(const struct gemm_arguments &a, int multiprocessors, enum cuda_start start,
                          cudaStream_t stream) {
    uint32_t columns = 64 * (a.groups > a.shared_groups ? a.groups : a.shared_groups);
    return cuda_launch(stream_kernel<KIND, TILE_BYTES, OUT, SHAPE>, start, multiprocessors, SHAPE::threads,
                       SHAPE::shared_bytes(columns, TILE_BYTES), stream, a, columns);
}

#endif
