/* What the kernels that route one row share: products with 8-bit codes, and the choice of the largest.
 *
 * A cluster of blocks has all experts. Each block has two row tiles of the router's matrix; a warp multiplies
 * a quad of columns of one of them. The 8-bit codes are multiplied with x in fixed point of 31 bits, four
 * signed bytes, each byte a column of the matrix units' operand B: with four bytes of two groups of 64
 * columns, all eight columns are in use. Only the sums over groups are rounded. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_DECODE_ROUTER_CUH
#define CALLA_BACKEND_CUDA_KERNELS_DECODE_ROUTER_CUH

#include "backend/cuda/decode.h"
#include "backend/cuda/kernels/decode.cuh"

#define ROUTER_QUADS 8 /* at most, of 256 columns */
#define ROUTER_CLUSTER 8
#define ROUTER_TILES 2                                /* of a block */
#define ROUTER_ROWS (ROUTER_TILES * CUDA_TILE_ROWS)   /* of a block */
#define ROUTER_EXPERTS (ROUTER_CLUSTER * ROUTER_ROWS) /* at most */
#define ROUTER_WARPS (ROUTER_QUADS * ROUTER_TILES)
#define ROUTER_CHOSEN 32 /* at most */

/* The op. */
struct router_parameters {
    const float *x, *norm;                   /* norm NULL: x is used as it is */
    const unsigned char *codes, *gate_codes; /* of the router, of the shared expert's gate */
    const float2 *pairs, *gate_pairs;        /* scale and bias of each group */
    int32_t *ids;
    float *scores;
    uint32_t experts, chosen, columns;
    float epsilon;
};

static inline router_parameters router_parameters_of(const struct cuda_op *op) {
    bool normalise = op->op.constants.normalise;
    const struct cuda_view *views = op->views, *matrices = &views[normalise ? 2 : 1];
    router_parameters p = {};
    p.x = (const float *)views[0].data;
    p.norm = normalise ? (const float *)views[1].data : NULL;
    p.codes = (const unsigned char *)matrices[0].data;
    p.pairs = (const float2 *)matrices[0].scales;
    p.gate_codes = (const unsigned char *)matrices[1].data;
    p.gate_pairs = (const float2 *)matrices[1].scales;
    p.ids = (int32_t *)matrices[2].data;
    p.scores = (float *)matrices[3].data;
    p.experts = matrices[0].rows;
    p.chosen = matrices[2].columns;
    p.columns = views[0].columns;
    p.epsilon = op->op.constants.epsilon;
    return p;
}

/* A lane's part of 16 rows and 256 columns: rows lane / 4 and that + 8 of four groups, 16 columns from 16
 * (lane % 4). */
struct router_codes {
    uint4 codes[4][2];
    float2 pairs[2][2]; /* scales and biases of group (lane % 4) / 2 of either half */
};

static __device__ __forceinline__ router_codes router_load(const unsigned char *codes, const float2 *pairs,
                                                           uint32_t first_row, uint32_t columns,
                                                           uint32_t quad, uint32_t lane) {
    router_codes loaded;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint64_t row = first_row + lane / 4 + 8 * i;
        const unsigned char *from = codes + row * columns + quad * QUAD_COLUMNS + 16 * (lane % 4);
#pragma unroll
        for (int group = 0; group < 4; group++)
            loaded.codes[group][i] = __ldg((const uint4 *)(from + 64 * group));
#pragma unroll
        for (int half = 0; half < 2; half++)
            loaded.pairs[half][i] = __ldg(pairs + row * (columns / 64) + 4 * quad + 2 * half + lane % 4 / 2);
    }
    return loaded;
}

/* The bytes of x in fixed point: bytes[digit][lane] has two words of the lane's eight columns. Returns the
 * scale of the lane's group and, in *sum, the sum of its x. */
static __device__ __forceinline__ float spread_bytes(const float x[8], uint32_t lane, uint2 bytes[4][32],
                                                     float *sum) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    *sum = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
        *sum += __shfl_xor_sync(0xffffffffu, *sum, distance);
    }
    const float limit = 126.0f * 16777216.0f;
    float inverse = largest > 1e-25f ? __fdividef(limit, largest) : 0;
    int32_t fixed[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        fixed[i] = __float2int_rn(x[i] * inverse);
#pragma unroll
    for (int digit = 0; digit < 4; digit++) {
        bytes[digit][lane] = make_uint2(low_bytes(fixed[0], fixed[1], fixed[2], fixed[3]),
                                        low_bytes(fixed[4], fixed[5], fixed[6], fixed[7]));
#pragma unroll
        for (int i = 0; i < 8; i++)
            fixed[i] = (fixed[i] + 128) >> 8;
    }
    return largest / limit;
}

/* The sums of a quad in sums[0] (row lane / 4) and sums[1] (that + 8), in all lanes of a row. `bytes`: of the
 * warp. */
static __device__ __forceinline__ void router_product(const router_codes &loaded, const float x[8],
                                                      uint32_t lane, uint2 bytes[4][32], float sums[2]) {
    float sum, scale = spread_bytes(x, lane, bytes, &sum);
    uint32_t column = lane / 4, quarter = lane % 4;
    __syncwarp();
    sums[0] = sums[1] = 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        /* Column c of B: byte c % 4 of group c / 4 of the half. */
        uint4 own = *(const uint4 *)&bytes[column % 4][8 * (2 * half + column / 4) + 2 * quarter];
        int32_t c[4] = {0, 0, 0, 0};
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            bool mine = column / 4 == i;
            uint4 a = loaded.codes[2 * half + i][0], b = loaded.codes[2 * half + i][1];
            multiply_bytes(c, a.x, b.x, a.y, b.y, mine ? own.x : 0, mine ? own.y : 0);
            multiply_bytes(c, a.z, b.z, a.w, b.w, mine ? own.z : 0, mine ? own.w : 0);
        }
        /* The lane's sums: bytes 2 (quarter % 2) and the next of group quarter / 2. */
        uint32_t source = 8 * (2 * half + quarter / 2);
        float weight = __shfl_sync(0xffffffffu, scale, source) * (quarter % 2 ? 65536.0f : 1.0f);
        float offset = __shfl_sync(0xffffffffu, sum, source);
        offset = quarter % 2 ? 0 : offset;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float product = (float)(c[2 * i] + 256 * c[2 * i + 1]) * weight;
            sums[i] = fmaf(loaded.pairs[half][i].y, offset, fmaf(loaded.pairs[half][i].x, product, sums[i]));
        }
    }
    sums[0] = sum_of_groups(sums[0]);
    sums[1] = sum_of_groups(sums[1]);
}

/* The weights of the shared expert's gate for the lane's 8 columns of a quad, times the norm's if there is
 * one. */
static __device__ __forceinline__ void gate_load(const unsigned char *codes, const float2 *pairs,
                                                 const float *norm, uint32_t quad, uint32_t lane,
                                                 float weights[8]) {
    uint2 words = __ldg((const uint2 *)(codes + quad * QUAD_COLUMNS + 8 * lane));
    float2 pair = __ldg(pairs + 4 * quad + lane / 8);
#pragma unroll
    for (int i = 0; i < 8; i++)
        weights[i] = fmaf(pair.x, (float)((i < 4 ? words.x : words.y) >> 8 * (i % 4) & 255), pair.y);
    if (norm != NULL) {
        float factors[8];
        quad_load(norm + quad * QUAD_COLUMNS, lane, factors);
#pragma unroll
        for (int i = 0; i < 8; i++)
            weights[i] *= factors[i];
    }
}

/* A warp: of logits[experts] the chosen largest, the lower id first on a tie, and their softmax, for which
 * only theirs count once they are made to sum to 1. With a NaN all weights are NaN, and the first ids are
 * chosen. */
static __device__ __forceinline__ void choose(const float *logits, uint32_t experts, uint32_t count,
                                              uint32_t lane, int32_t *ids, float *scores) {
    constexpr int EACH = ROUTER_EXPERTS / 32;
    float weights[EACH], largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        weights[i] = lane + 32 * i < experts ? logits[lane + 32 * i] : -INFINITY;
        largest = fmaxf(largest, weights[i]);
    }
    int32_t ordered = __float_as_int(largest); /* bits whose order as integers is that of the numbers */
    ordered = __reduce_max_sync(0xffffffffu, ordered < 0 ? ordered ^ 0x7fffffff : ordered);
    largest = __int_as_float(ordered < 0 ? ordered ^ 0x7fffffff : ordered);
    /* Weights are no less than 0, so their bits are ordered as they are. 0: no such expert, or chosen
     * already. */
    uint32_t keys[EACH];
    bool broken = false;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        weights[i] = expf(weights[i] - largest);
        bool exists = lane + 32 * i < experts;
        broken |= exists && isnan(weights[i]);
        keys[i] = exists ? __float_as_uint(weights[i]) + 1 : 0;
    }
    if (__any_sync(0xffffffffu, broken)) {
        if (lane < count) {
            ids[lane] = (int32_t)lane;
            scores[lane] = NAN;
        }
        return;
    }
    float chosen = 0, sum = 0;
    for (uint32_t k = 0; k < count; k++) {
        uint32_t best[EACH], at[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++)
            best[i] = keys[i], at[i] = (uint32_t)i;
#pragma unroll
        for (int width = EACH / 2; width > 0; width /= 2)
#pragma unroll
            for (int i = 0; i < width; i++) {
                bool later = best[i + width] > best[i];
                bool same = best[i + width] == best[i] && at[i + width] < at[i];
                at[i] = later || same ? at[i + width] : at[i];
                best[i] = later ? best[i + width] : best[i];
            }
        uint32_t of_all = __reduce_max_sync(0xffffffffu, best[0]);
        uint32_t id = lane + 32 * at[0], with_it = __ballot_sync(0xffffffffu, best[0] == of_all);
        bool mine = best[0] == of_all;
        if (with_it & (with_it - 1))
            mine = __reduce_min_sync(0xffffffffu, mine ? id : 0xffffffffu) == id && mine;
        float weight = __uint_as_float(of_all - 1);
        sum += weight;
        if (lane == k)
            chosen = weight;
        if (mine)
            ids[k] = (int32_t)id;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            keys[i] = mine && at[0] == (uint32_t)i ? 0 : keys[i];
    }
    if (lane < count)
        scores[lane] = chosen / sum;
}

/* Whether the cluster can take these matrices; matrices[0] is the router's, matrices[1] the shared gate's. */
static inline bool router_fits(const struct cuda_view *x, const struct cuda_view *matrices, uint32_t chosen) {
    return x->rows == 1 && x->columns % QUAD_COLUMNS == 0 && x->columns <= ROUTER_QUADS * QUAD_COLUMNS &&
           aligned(x) && matrices[0].dtype == DTYPE_AFFINE8 && matrices[1].dtype == DTYPE_AFFINE8 &&
           matrices[0].rows <= ROUTER_EXPERTS && matrices[0].rows % CUDA_TILE_ROWS == 0 &&
           chosen <= ROUTER_CHOSEN;
}

#endif
