/* OP_QK_PREP and OP_ATTENTION for one row, with keys and values in bfloat16, heads of 256 and eight query
 * heads for each KV head.
 *
 * The context is cut into runs of positions, a block for each; how many blocks have work depends on the
 * position, the grid does not. A warp takes 16 positions at a time. Both products are the matrix units': S =
 * Q K^T, whose 16 rows are the eight heads twice, once with the high and once with the low half of q in
 * bfloat16, and O^T = V^T P^T with P in two halves as well, so that only the rounding of float32 sums is
 * left. Lanes load 16 bytes of a row of K or V each; the order of the columns is that of the loads, and q
 * follows. A last kernel adds the blocks' results up. */
#include "backend/cuda/decode.h"
#include "backend/cuda/kernels/decode.cuh"
#include "backend/cuda/kernels/mma.cuh"

#define SIZE 256  /* of a head */
#define GROUP 8   /* query heads of a KV head */
#define ROTARY 64 /* turned dimensions */
#define WARPS 8
#define POSITIONS 16 /* of a warp at once: a unit */
#define LEAST_UNITS 4
#define PITCH (SIZE + 8)

static __device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/* Two values as two pairs of bfloat16 whose sums they are, nearly. */
static __device__ __forceinline__ void split_bf16(float a, float b, uint32_t *high, uint32_t *low) {
    *high = pack_bf16(a, b);
    *low = pack_bf16(a - __uint_as_float(*high << 16), b - __uint_as_float(*high & 0xffff0000u));
}

/* ---- QK_PREP ---- */

struct prepare_parameters {
    const struct step_record *record;
    const float *q, *k, *v, *q_norm, *k_norm;
    float *y;
    uint16_t *keys, *values;
    uint64_t q_stride, cache_stride;
    uint32_t heads, kv_heads;
    float rope_theta, epsilon;
};

/* Warp: a head of q, of k, or of v; the lane has dimensions lane + 32 i. */
static __global__ void decode_qk_prep(const __grid_constant__ prepare_parameters p) {
    uint32_t lane = threadIdx.x % 32, head = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    uint32_t position = p.record->position;
    bool is_query = head < p.heads, is_value = head >= p.heads + p.kv_heads;
    uint32_t column = (is_value ? head - p.heads - p.kv_heads : head - p.heads) * SIZE;
    float frequency = 1.0f / powf(p.rope_theta, (float)(2 * lane) / (float)ROTARY), sine, cosine;
    sincosf((float)position * frequency, &sine, &cosine);
    float weights[8], x[8], square = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        weights[i] = __ldg((is_query ? p.q_norm : p.k_norm) + lane + 32 * i);
    cuda_let_next_start();
    cuda_await_previous();
    const float *from = is_query ? p.q + head * p.q_stride : (is_value ? p.v : p.k) + column;
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = from[lane + 32 * i];
    if (is_value) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            p.values[position * p.cache_stride + column + lane + 32 * i] = (uint16_t)pack_bf16(x[i], 0);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        square = fmaf(x[i], x[i], square);
    float scale = rsqrtf(sum_of_warp(square) / (float)SIZE + p.epsilon);
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] *= scale * weights[i];
    float first = x[0], second = x[1];
    x[0] = first * cosine - second * sine;
    x[1] = second * cosine + first * sine;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (is_query)
            p.y[head * SIZE + lane + 32 * i] = x[i];
        else
            p.keys[position * p.cache_stride + column + lane + 32 * i] = (uint16_t)pack_bf16(x[i], 0);
}

bool cuda_decode_qk_prep_fits(const struct cuda_op *op, const struct cuda_device *) {
    const struct op_constants *c = &op->op.constants;
    return op->views[2].rows == 1 && c->head_size == SIZE && c->rotary_size == ROTARY &&
           op->views[6].stride == SIZE && op->views[7].dtype == DTYPE_BF16 &&
           op->views[8].dtype == DTYPE_BF16 && op->views[7].stride == op->views[8].stride;
}

cudaError_t cuda_decode_qk_prep_launch(const struct cuda_op *op, const struct cuda_device *device,
                                       void *workspace, cudaStream_t stream) {
    (void)workspace;
    const struct op_constants *c = &op->op.constants;
    const struct cuda_view *views = op->views;
    prepare_parameters p = {};
    p.record = (const struct step_record *)views[0].data;
    p.q = (const float *)views[1].data;
    p.k = (const float *)views[2].data;
    p.v = (const float *)views[3].data;
    p.q_norm = (const float *)views[4].data;
    p.k_norm = (const float *)views[5].data;
    p.y = (float *)views[6].data;
    p.keys = (uint16_t *)views[7].data;
    p.values = (uint16_t *)views[8].data;
    p.q_stride = views[1].stride;
    p.cache_stride = views[7].stride;
    p.heads = c->heads;
    p.kv_heads = c->kv_heads;
    p.rope_theta = c->rope_theta;
    p.epsilon = c->epsilon;
    return decode_launch(decode_qk_prep, device, 1, c->heads + 2 * c->kv_heads, 32, 0, stream, p);
}

/* ---- ATTENTION ---- */

struct attention_parameters {
    const struct step_record *record;
    const float *q, *gate;
    const uint16_t *keys, *values;
    float *y, *sums, *weights; /* sums[heads][splits][SIZE]; weights[heads][splits][2]: largest score, sum */
    uint64_t q_stride, gate_stride, cache_stride;
    uint32_t heads, splits;
};

/* Blocks that have work, and the units of block `index`. */
static __device__ __forceinline__ uint32_t working_splits(uint32_t units, uint32_t splits) {
    return min(splits, (units + LEAST_UNITS - 1) / LEAST_UNITS);
}

static __device__ __forceinline__ uint4 load_row(const uint16_t *row) {
    uint4 words;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(row));
    return words;
}

static __device__ __forceinline__ void load_keys(const attention_parameters &p, const uint16_t *keys,
                                                 uint32_t unit, uint32_t count, uint32_t lane,
                                                 uint4 words[2][8]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t position = min(unit * POSITIONS + 8 * half + lane / 4, count - 1);
        const uint16_t *row = keys + position * p.cache_stride + 8 * (lane % 4);
#pragma unroll
        for (int i = 0; i < 8; i++)
            words[half][i] = load_row(row + 32 * i);
    }
}

static __global__ __launch_bounds__(32 * WARPS,
                                    1) void decode_attention(const __grid_constant__ attention_parameters p) {
    extern __shared__ __align__(128) unsigned char shared[];
    uint4(*queries)[2][32] = (uint4(*)[2][32])shared;               /* [8][high, low][lane] */
    float *merged = (float *)(shared + 8 * 2 * 32 * sizeof(uint4)); /* [WARPS][GROUP][PITCH] */
    __shared__ float largest_of[WARPS][GROUP], total_of[WARPS][GROUP];
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, kv_head = blockIdx.y;
    uint32_t count = p.record->position + 1, units = (count + POSITIONS - 1) / POSITIONS;
    uint32_t splits = working_splits(units, p.splits);
    cuda_let_next_start();
    if (blockIdx.x >= splits)
        return;
    uint32_t begin = (uint32_t)((uint64_t)units * blockIdx.x / splits);
    uint32_t end = (uint32_t)((uint64_t)units * (blockIdx.x + 1) / splits);
    const uint16_t *keys = p.keys + kv_head * SIZE, *values = p.values + kv_head * SIZE;
    uint4 key_words[2][8];
    uint32_t unit = begin + warp;
    /* All rows but the newest are there already. */
    bool early = unit < end && (unit + 1) * POSITIONS < count;
    if (early)
        load_keys(p, keys, unit, count, lane, key_words);
    cuda_await_previous();

    /* Warp w turns columns 32 w .. 32 w + 31 of q into operand A: of head lane / 4 those from 8 (lane % 4).
     */
    {
        const float *q = p.q + (kv_head * GROUP + lane / 4) * p.q_stride + 32 * warp + 8 * (lane % 4);
        float4 a = *(const float4 *)q, b = *(const float4 *)(q + 4);
        const float scale = 1.4426950408889634f / 16.0f; /* log2(e) / sqrt(SIZE) */
        uint4 high, low;
        split_bf16(a.x * scale, a.y * scale, &high.x, &low.x);
        split_bf16(a.z * scale, a.w * scale, &high.y, &low.y);
        split_bf16(b.x * scale, b.y * scale, &high.z, &low.z);
        split_bf16(b.z * scale, b.w * scale, &high.w, &low.w);
        queries[warp][0][lane] = high;
        queries[warp][1][lane] = low;
    }
    if (unit < end && !early)
        load_keys(p, keys, unit, count, lane, key_words);
    __syncthreads();

    float largest = -INFINITY, total = 0, out[4][4][4];
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                out[c][e][i] = 0;
    for (; unit < end; unit += WARPS) {
        uint4 value_words[4][4]; /* [columns from 64 c][position] */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t position = min(unit * POSITIONS + 2 * (lane % 4) + (i & 1) + 4 * (i & 2), count - 1);
            const uint16_t *row = values + position * p.cache_stride + 8 * (lane / 4);
#pragma unroll
            for (int c = 0; c < 4; c++)
                value_words[c][i] = load_row(row + 64 * c);
        }
        float scores[2][2][4]; /* in two sums each, so that no product waits for the one before */
#pragma unroll
        for (int i = 0; i < 16; i++)
            scores[i / 8][i / 4 % 2][i % 4] = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint4 high = queries[i][0][lane], low = queries[i][1][lane];
            const uint32_t first[4] = {high.x, low.x, high.y, low.y},
                           second[4] = {high.z, low.z, high.w, low.w};
#pragma unroll
            for (int half = 0; half < 2; half++) {
                multiply_bf16(scores[half][0], first, key_words[half][i].x, key_words[half][i].y);
                multiply_bf16(scores[half][1], second, key_words[half][i].z, key_words[half][i].w);
            }
        }
        if (unit + WARPS < end)
            load_keys(p, keys, unit + WARPS, count, lane, key_words);

        /* The lane's scores: head lane / 4, positions 2 (lane % 4) and the next, and those 8 on. */
        float weights[4], now = largest;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t position = unit * POSITIONS + 8 * (i / 2) + 2 * (lane % 4) + i % 2;
            const float(*score)[4] = scores[i / 2];
            weights[i] = position < count ? (score[0][i % 2] + score[1][i % 2]) +
                                                (score[0][2 + i % 2] + score[1][2 + i % 2])
                                          : -INFINITY;
            now = fmaxf(now, weights[i]);
        }
        now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
        now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
        if (__any_sync(0xffffffffu, now != largest)) {
            float factor = exp2f(largest - now); /* 0 the first time */
            total *= factor;
            float even = __shfl_sync(0xffffffffu, factor, 8 * (lane % 4));
            float odd = __shfl_sync(0xffffffffu, factor, 8 * (lane % 4) + 4);
#pragma unroll
            for (int c = 0; c < 4; c++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    out[c][e][0] *= even, out[c][e][2] *= even;
                    out[c][e][1] *= odd, out[c][e][3] *= odd;
                }
            largest = now;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            weights[i] = exp2f(weights[i] - largest);
            total += weights[i];
        }
        uint32_t high[2], low[2];
        split_bf16(weights[0], weights[1], &high[0], &low[0]);
        split_bf16(weights[2], weights[3], &high[1], &low[1]);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const uint32_t *v0 = &value_words[c][0].x, *v1 = &value_words[c][1].x, *v2 = &value_words[c][2].x,
                           *v3 = &value_words[c][3].x;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const uint32_t a[4] = {__byte_perm(v0[e], v1[e], 0x5410), __byte_perm(v0[e], v1[e], 0x7632),
                                       __byte_perm(v2[e], v3[e], 0x5410), __byte_perm(v2[e], v3[e], 0x7632)};
                multiply_bf16(out[c][e], a, high[0], high[1]);
                multiply_bf16(out[c][e], a, low[0], low[1]);
            }
        }
    }
    total = sum_of_groups(total);
    if (lane % 4 == 0) {
        largest_of[warp][lane / 4] = largest;
        total_of[warp][lane / 4] = total;
    }
    /* The lane's sums: dimensions 64 c + 8 (lane / 4) + 2 e and the next, heads 2 (lane % 4) and the next. */
    float *own = merged + (warp * GROUP + 2 * (lane % 4)) * PITCH + 8 * (lane / 4);
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            *(float2 *)(own + 64 * c + 2 * e) = make_float2(out[c][e][0], out[c][e][2]);
            *(float2 *)(own + PITCH + 64 * c + 2 * e) = make_float2(out[c][e][1], out[c][e][3]);
        }
    __syncthreads();
    /* Warp h adds up head h. */
    uint32_t working = min(end - begin, (uint32_t)WARPS);
    float best = -INFINITY, sum = 0, sums[SIZE / 32];
    for (uint32_t i = 0; i < working; i++)
        best = fmaxf(best, largest_of[i][warp]);
#pragma unroll
    for (int j = 0; j < SIZE / 32; j++)
        sums[j] = 0;
    for (uint32_t i = 0; i < working; i++) {
        float factor = exp2f(largest_of[i][warp] - best);
        sum = fmaf(factor, total_of[i][warp], sum);
#pragma unroll
        for (int j = 0; j < SIZE / 32; j++)
            sums[j] = fmaf(factor, merged[(i * GROUP + warp) * PITCH + lane + 32 * j], sums[j]);
    }
    uint64_t place = (uint64_t)(kv_head * GROUP + warp) * p.splits + blockIdx.x;
#pragma unroll
    for (int j = 0; j < SIZE / 32; j++)
        p.sums[place * SIZE + lane + 32 * j] = sums[j];
    if (lane == 0)
        *(float2 *)(p.weights + 2 * place) = make_float2(best, sum);
}

#define PARTS 16
#define SPLITS 96 /* at most */

/* Block: a head. Thread: four dimensions of every PARTS-th split. */
static __global__ __launch_bounds__(PARTS *SIZE / 4) void decode_attention_combine(
    const __grid_constant__ attention_parameters p) {
    __shared__ float4 parts[PARTS][SIZE / 4];
    uint32_t lane = threadIdx.x % 32, head = blockIdx.x, column = threadIdx.x % (SIZE / 4),
             part = threadIdx.x / (SIZE / 4);
    uint32_t count = p.record->position + 1;
    uint32_t splits = working_splits((count + POSITIONS - 1) / POSITIONS, p.splits);
    cuda_let_next_start();
    cuda_await_previous();
    uint64_t place = (uint64_t)head * p.splits;
    float gate = threadIdx.x < SIZE ? p.gate[head * p.gate_stride + threadIdx.x] : 0;
    const float4 *sums = (const float4 *)(p.sums + place * SIZE) + column;
    float4 values[SPLITS / PARTS];
#pragma unroll
    for (uint32_t i = 0; i < SPLITS / PARTS; i++)
        if (part + PARTS * i < splits)
            values[i] = sums[(uint64_t)(part + PARTS * i) * (SIZE / 4)];
    /* Each warp finds all factors: lane l those of the splits l, l + 32, ... */
    float factors[SPLITS / 32], best = -INFINITY, total = 0;
    float2 weights[SPLITS / 32];
#pragma unroll
    for (uint32_t i = 0; i < SPLITS / 32; i++) {
        weights[i] = make_float2(-INFINITY, 0);
        if (lane + 32 * i < splits)
            weights[i] = *(const float2 *)(p.weights + 2 * (place + lane + 32 * i));
        best = fmaxf(best, weights[i].x);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, distance));
#pragma unroll
    for (uint32_t i = 0; i < SPLITS / 32; i++) {
        factors[i] = exp2f(weights[i].x - best);
        total = fmaf(factors[i], weights[i].y, total);
    }
    total = sum_of_warp(total);
    float4 sum = {0, 0, 0, 0};
#pragma unroll
    for (uint32_t i = 0; i < SPLITS / PARTS; i++) {
        float factor = __shfl_sync(0xffffffffu, factors[PARTS * i / 32], (part + PARTS * i) % 32);
        if (part + PARTS * i < splits) {
            sum.x = fmaf(factor, values[i].x, sum.x), sum.y = fmaf(factor, values[i].y, sum.y);
            sum.z = fmaf(factor, values[i].z, sum.z), sum.w = fmaf(factor, values[i].w, sum.w);
        }
    }
    parts[part][column] = sum;
    __syncthreads();
    if (threadIdx.x < SIZE) {
        float result = 0;
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            result += ((const float *)parts[i])[threadIdx.x];
        p.y[head * SIZE + threadIdx.x] = result / total / (1 + expf(-gate));
    }
}

static uint32_t splits_of(const struct cuda_op *op, const struct cuda_device *device) {
    uint32_t splits = (uint32_t)device->multiprocessors / op->op.constants.kv_heads;
    return splits > SPLITS ? SPLITS : splits > 0 ? splits : 1;
}

bool cuda_decode_attention_fits(const struct cuda_op *op, const struct cuda_device *) {
    const struct op_constants *c = &op->op.constants;
    return op->views[1].rows == c->heads && c->head_size == SIZE && c->heads == GROUP * c->kv_heads &&
           op->views[3].dtype == DTYPE_BF16 && op->views[4].dtype == DTYPE_BF16 &&
           op->views[3].stride == op->views[4].stride && op->views[3].stride % 8 == 0 &&
           aligned(&op->views[1]) && op->views[1].stride % 4 == 0 && aligned(&op->views[3]) &&
           aligned(&op->views[4]) && op->views[5].stride == SIZE;
}

uint64_t cuda_decode_attention_workspace(const struct cuda_op *op, const struct cuda_device *device) {
    return (uint64_t)op->op.constants.heads * splits_of(op, device) * (SIZE + 2) * sizeof(float);
}

cudaError_t cuda_decode_attention_launch(const struct cuda_op *op, const struct cuda_device *device,
                                         void *workspace, cudaStream_t stream) {
    const struct op_constants *c = &op->op.constants;
    const struct cuda_view *views = op->views;
    attention_parameters p = {};
    p.record = (const struct step_record *)views[0].data;
    p.q = (const float *)views[1].data;
    p.gate = (const float *)views[2].data;
    p.keys = (const uint16_t *)views[3].data;
    p.values = (const uint16_t *)views[4].data;
    p.y = (float *)views[5].data;
    p.q_stride = views[1].stride;
    p.gate_stride = views[2].stride;
    p.cache_stride = views[3].stride;
    p.heads = c->heads;
    p.splits = splits_of(op, device);
    p.sums = (float *)workspace;
    p.weights = p.sums + (uint64_t)p.heads * p.splits * SIZE;
    size_t shared_bytes = 8 * 2 * 32 * sizeof(uint4) + WARPS * GROUP * PITCH * sizeof(float);
    cudaError_t status = decode_launch(decode_attention, device, 1, dim3(p.splits, c->kv_heads), 32 * WARPS,
                                       shared_bytes, stream, p);
    if (status != cudaSuccess)
        return status;
    return decode_launch(decode_attention_combine, device, 1, c->heads, PARTS * SIZE / 4, 0, stream, p);
}
