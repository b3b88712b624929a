/* The attention layers: rotary positions, the KV cache, causal attention with an output gate. The host checks
 * positions before it queues a plan; rows outside the cache are left out here as well. */
#include "backend/cuda/kernels/generic.cuh"

#define BLOCK 128
#define WARPS (BLOCK / WARP)

__device__ static void cache_write(const cuda_view &cache, uint64_t row, uint32_t column, float value) {
    if (row >= cache.rows)
        return;
    uint64_t index = row * cache.stride + column;
    if (cache.dtype == DTYPE_BF16)
        static_cast<__nv_bfloat16 *>(cache.data)[index] = __float2bfloat16_rn(value);
    else
        static_cast<float *>(cache.data)[index] = value;
}

/* Element i of x[D] turned to `position`, as in the reference: frequency and angle rounded to float32. */
__device__ static float rotated(const float *x, uint32_t i, uint32_t position, const op_constants &c) {
    uint32_t half = c.rotary_size / 2;
    if (i >= 2 * half)
        return x[i];
    uint32_t j = i % half;
    float frequency =
        1.0f / powf(c.rope_theta, static_cast<float>(2 * j) / static_cast<float>(c.rotary_size));
    float sine, cosine, first = x[j], second = x[j + half];
    sincosf(static_cast<float>(position) * frequency, &sine, &cosine);
    return i < half ? first * cosine - second * sine : second * cosine + first * sine;
}

/* x[T*heads,D] in place; a block a row, D values in shared memory. */
__global__ static void rope(const cuda_view record, const cuda_view x, const op_constants c) {
    begin();
    extern __shared__ float row[];
    float *data = float_row(x, blockIdx.x);
    uint32_t position = record_of(record)->position + blockIdx.x / c.heads;
    for (uint32_t i = threadIdx.x; i < c.rotary_size; i += BLOCK)
        row[i] = data[i];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < c.rotary_size; i += BLOCK)
        data[i] = rotated(row, i, position, c);
}

/* k[T,G*D], v[T,G*D] into rows position .. of the caches; a block a row. */
__global__ static void kv_write(const cuda_view record, const cuda_view k, const cuda_view v,
                                const cuda_view keys, const cuda_view values) {
    begin();
    uint64_t row = static_cast<uint64_t>(record_of(record)->position) + blockIdx.x;
    for (uint32_t i = threadIdx.x; i < k.columns; i += BLOCK) {
        cache_write(keys, row, i, float_row(k, blockIdx.x)[i]);
        cache_write(values, row, i, float_row(v, blockIdx.x)[i]);
    }
}

/* A block a head (blockIdx.x: query heads, then KV heads) of a row (blockIdx.y); D values in shared memory.
 */
__global__ static void qk_prep(const __grid_constant__ cuda_op op) {
    begin();
    extern __shared__ float normed[];
    __shared__ float sums[WARP];
    const op_constants &c = op.op.constants;
    const cuda_view *views = op.views;
    uint32_t head = blockIdx.x, t = blockIdx.y, size = c.head_size;
    uint32_t position = record_of(views[0])->position + t;
    bool is_query = head < c.heads;
    uint32_t column = is_query ? 0 : (head - c.heads) * size;
    const float *x = is_query ? float_row(views[1], static_cast<uint64_t>(t) * c.heads + head)
                              : float_row(views[2], t) + column;
    float sum = 0;
    for (uint32_t i = threadIdx.x; i < size; i += BLOCK)
        sum += x[i] * x[i];
    float scale = 1.0f / sqrtf(block_sum(sum, sums) / size + c.epsilon);
    for (uint32_t i = threadIdx.x; i < size; i += BLOCK)
        normed[i] = x[i] * scale * vector_at(views[is_query ? 4 : 5], i);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < size; i += BLOCK) {
        float value = rotated(normed, i, position, c);
        if (is_query) {
            float_row(views[6], static_cast<uint64_t>(t) * c.heads + head)[i] = value;
        } else {
            cache_write(views[7], position, column + i, value);
            cache_write(views[8], position, column + i, float_row(views[3], t)[column + i]);
        }
    }
}

/* A block a query head of a row. Each warp takes every WARPS'th position and keeps its own maximum, sum and
 * weighted values (online softmax); they are put together at the end. Shared memory: q[D], then the values
 * [WARPS,D].
 */
__global__ static void attention(const __grid_constant__ cuda_op op) {
    begin();
    extern __shared__ float shared[];
    __shared__ float maxima[WARPS], totals[WARPS];
    const op_constants &c = op.op.constants;
    const cuda_view &keys = op.views[3], &values = op.views[4];
    uint32_t row = blockIdx.x, size = c.head_size, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    uint64_t count = static_cast<uint64_t>(record_of(op.views[0])->position) + row / c.heads + 1;
    uint32_t column = row % c.heads * c.kv_heads / c.heads * size;
    float *q = shared, *sums = shared + size + warp * size;
    float scale = 1.0f / sqrtf(static_cast<float>(size));
    if (count > keys.rows)
        count = keys.rows;
    for (uint32_t i = threadIdx.x; i < size; i += BLOCK)
        q[i] = float_row(op.views[1], row)[i];
    for (uint32_t i = lane; i < size; i += WARP)
        sums[i] = 0;
    __syncthreads();
    float largest = -CUDART_INF_F, total = 0;
    for (uint64_t p = warp; p < count; p += WARPS) {
        uint64_t key = p * keys.stride + column, value = p * values.stride + column;
        float product = 0;
        for (uint32_t i = lane; i < size; i += WARP)
            product += q[i] * float_at(keys.data, keys.dtype, key + i);
        float score = warp_sum(product) * scale;
        float before = largest;
        largest = fmaxf(largest, score);
        float shrink = expf(before - largest), weight = expf(score - largest);
        total = total * shrink + weight;
        for (uint32_t i = lane; i < size; i += WARP)
            sums[i] = sums[i] * shrink + weight * float_at(values.data, values.dtype, value + i);
    }
    if (lane == 0) {
        maxima[warp] = largest;
        totals[warp] = total;
    }
    __syncthreads();
    for (uint32_t w = 0; w < WARPS; w++)
        largest = fmaxf(largest, maxima[w]);
    total = 0;
    for (uint32_t w = 0; w < WARPS; w++)
        total += maxima[w] == -CUDART_INF_F ? 0.0f : totals[w] * expf(maxima[w] - largest);
    for (uint32_t i = threadIdx.x; i < size; i += BLOCK) {
        float sum = 0;
        for (uint32_t w = 0; w < WARPS; w++)
            if (maxima[w] != -CUDART_INF_F)
                sum += shared[size + w * size + i] * expf(maxima[w] - largest);
        float_row(op.views[5], row)[i] = sum / total * sigmoid(float_row(op.views[2], row)[i]);
    }
}

extern "C" cudaError_t cuda_generic_rope(const cuda_op *op, const cuda_device *device, void *,
                                         cudaStream_t stream) {
    return cuda_launch(rope, cuda_overlap(device), op->views[1].rows, BLOCK,
                       op->op.constants.rotary_size * sizeof(float), stream, op->views[0], op->views[1],
                       op->op.constants);
}

extern "C" cudaError_t cuda_generic_kv_write(const cuda_op *op, const cuda_device *device, void *,
                                             cudaStream_t stream) {
    return cuda_launch(kv_write, cuda_overlap(device), op->views[1].rows, BLOCK, 0, stream, op->views[0],
                       op->views[1], op->views[2], op->views[3], op->views[4]);
}

extern "C" cudaError_t cuda_generic_qk_prep(const cuda_op *op, const cuda_device *device, void *,
                                            cudaStream_t stream) {
    const op_constants &c = op->op.constants;
    return cuda_launch(qk_prep, cuda_overlap(device), dim3(c.heads + c.kv_heads, op->views[2].rows), BLOCK,
                       c.head_size * sizeof(float), stream, *op);
}

extern "C" cudaError_t cuda_generic_attention(const cuda_op *op, const cuda_device *device, void *,
                                              cudaStream_t stream) {
    return cuda_launch(attention, cuda_overlap(device), op->views[1].rows, BLOCK,
                       (WARPS + 1) * op->op.constants.head_size * sizeof(float), stream, *op);
}
