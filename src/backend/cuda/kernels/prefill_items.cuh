/* What the kernels for products of many rows by 4-bit matrices share: the list of items that their blocks
 * work through, and weights made from codes. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_PREFILL_ITEMS_CUH
#define CALLA_BACKEND_CUDA_KERNELS_PREFILL_ITEMS_CUH

#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/prefill_product.cuh"

#define GEMM_EXPERTS 1024 /* at most */

/* FEATURES by at most TOKENS of a dense product or of an expert's. */
struct gemm_item {
    const struct gemm_matrix *matrix;
    uint32_t feature; /* the first */
    uint32_t expert;  /* 0 for dense matrices */
    const int32_t *order;
    uint32_t divisor;
    uint32_t row, rows; /* of the order */
    uint32_t groups;
};

/* Tiles of `tokens` tokens that `rows` rows take. */
__device__ __forceinline__ uint32_t gemm_tiles(uint32_t rows, uint32_t tokens) {
    return (rows + tokens - 1) / tokens;
}

/* A lane's 4 x 8 codes of a tile, and the scales and biases of its two rows. */
template <int TILE_BYTES> struct gemm_codes {
    uint32_t words[4], pairs[TILE_BYTES == 576 ? 2 : 4];

    __device__ __forceinline__ void load(uint32_t tile, uint32_t lane) {
        uint4 codes = shared_load_16(tile + 16 * lane);
        words[0] = codes.x, words[1] = codes.z, words[2] = codes.y, words[3] = codes.w;
        if constexpr (TILE_BYTES == 576) {
            uint2 both = shared_load_8(tile + 512 + 8 * (lane / 4));
            pairs[0] = both.x, pairs[1] = both.y;
        } else {
            uint4 both = shared_load_16(tile + 512 + 16 * (lane / 4));
            pairs[0] = both.x, pairs[1] = both.y, pairs[2] = both.z, pairs[3] = both.w;
        }
    }

    /* a = bf16(scale * code + bias), the operand A of k16 step j. */
    __device__ __forceinline__ void dequantise(int j, uint32_t *a) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if constexpr (TILE_BYTES == 576) {
                uint32_t scale = __byte_perm(pairs[i & 1], 0, 0x1010),
                         bias = __byte_perm(pairs[i & 1], 0, 0x3232);
                uint32_t raised, code; /* 128 + code; 0xea: (a & b) | c */
                asm("lop3.b32 %0, %1, %2, %3, 0xea;"
                    : "=r"(raised)
                    : "r"(words[i] >> 4 * j), "r"(0x000f000f), "r"(0x43004300));
                asm("fma.rn.bf16x2 %0, %1, %2, %3;"
                    : "=r"(code)
                    : "r"(raised), "r"(0x3f803f80), "r"(0xc300c300));
                asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(a[i]) : "r"(code), "r"(scale), "r"(bias));
            } else {
                float scale = __uint_as_float(pairs[2 * (i & 1)]),
                      bias = __uint_as_float(pairs[2 * (i & 1) + 1]);
                float low = (float)((words[i] >> 4 * j) & 15),
                      high = (float)((words[i] >> (4 * j + 16)) & 15);
                __nv_bfloat162 pair =
                    __floats2bfloat162_rn(__fmaf_rn(scale, low, bias), __fmaf_rn(scale, high, bias));
                a[i] = *(uint32_t *)&pair;
            }
        }
    }
};

/* The matrix of GEMM_LINEAR that a feature belongs to; past the last: the last. */
__device__ __forceinline__ const struct gemm_matrix *gemm_matrix_of(const struct gemm_arguments &arguments,
                                                                    uint32_t feature) {
    uint32_t m = 0;
    while (m + 1 < arguments.matrix_count && feature >= arguments.matrices[m + 1].first)
        m++;
    return &arguments.matrices[m];
}

/* Item `index` of the list; false past the last. prefix[e]: tiles of tokens of the experts before e. */
template <bool DENSE, uint32_t FEATURES, uint32_t TOKENS>
__device__ __forceinline__ bool gemm_find(const struct gemm_arguments &arguments, const uint32_t *prefix,
                                          uint32_t index, struct gemm_item *item) {
    uint32_t token_tiles = gemm_tiles(arguments.tokens, TOKENS);
    item->groups = arguments.groups;
    item->order = NULL;
    item->expert = 0;
    item->divisor = 1;
    if (DENSE) {
        item->matrix = &arguments.matrices[0];
        item->feature = index / token_tiles * FEATURES;
        if (item->feature >= arguments.features)
            return false;
        item->row = index % token_tiles * TOKENS;
        item->rows = min(arguments.tokens - item->row, TOKENS);
        return true;
    }
    uint32_t wide = (arguments.matrices[1].features + FEATURES - 1) / FEATURES;
    if (index < wide * token_tiles) {
        item->groups = arguments.shared_groups;
        item->matrix = &arguments.matrices[1];
        item->feature = index % wide * FEATURES;
        item->row = index / wide * TOKENS;
        item->rows = min(arguments.tokens - item->row, TOKENS);
        return true;
    }
    index -= wide * token_tiles;
    item->matrix = &arguments.matrices[0];
    wide = (item->matrix->features + FEATURES - 1) / FEATURES;
    uint32_t tile = index / wide;
    if (tile >= prefix[arguments.experts])
        return false;
    uint32_t low = 0, high = arguments.experts;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (prefix[middle] <= tile)
            low = middle;
        else
            high = middle;
    }
    item->expert = low;
    item->feature = index % wide * FEATURES;
    uint32_t first = arguments.starts[low], rows = arguments.starts[low + 1] - first;
    /* An expert's rows are spread evenly over its tiles. */
    uint32_t tiles = prefix[low + 1] - prefix[low], even = ((rows + tiles - 1) / tiles + 7) & ~7u;
    uint32_t offset = (tile - prefix[low]) * even;
    item->row = first + offset;
    item->rows = offset < rows ? min(rows - offset, even) : 0;
    item->order = arguments.order;
    item->divisor = arguments.pairs_a_row;
    return true;
}

/* prefix[0 .. experts] of tiles of tokens, by the whole block. */
template <int TOKENS>
__device__ __forceinline__ void gemm_count_tiles(const struct gemm_arguments &arguments, uint32_t *prefix) {
    for (uint32_t e = threadIdx.x; e < arguments.experts; e += blockDim.x)
        prefix[e + 1] = gemm_tiles(arguments.starts[e + 1] - arguments.starts[e], TOKENS);
    __syncthreads();
    if (threadIdx.x < 32) {
        uint32_t total = 0;
        for (uint32_t first = 0; first < arguments.experts; first += 32) {
            uint32_t e = first + threadIdx.x, sum = e < arguments.experts ? prefix[e + 1] : 0;
            for (uint32_t step = 1; step < 32; step *= 2) {
                uint32_t other = __shfl_up_sync(~0u, sum, step);
                sum += threadIdx.x >= step ? other : 0;
            }
            if (e < arguments.experts)
                prefix[e + 1] = total + sum;
            total += __shfl_sync(~0u, sum, 31);
        }
        if (threadIdx.x == 0)
            prefix[0] = 0;
    }
    __syncthreads();
}

/* Counts the features of the matrices of a dense product. */
static inline void gemm_join(struct gemm_arguments *arguments) {
    arguments->features = 0;
    for (uint32_t m = 0; m < arguments->matrix_count; m++) {
        arguments->matrices[m].first = arguments->features;
        arguments->features += arguments->matrices[m].features;
    }
}

#endif
