/* The delta layers for many rows: OP_CONV_SILU, OP_DELTA_SCAN and OP_GATED_NORM with heads of 128. A warp has
 * a head of a row, four neighbouring elements a lane. */
#include "backend/cuda/kernels/prefill.cuh"
#include "backend/cuda/kernels/prefill_chunks.cuh"

#define SIZE 128 /* of a head */
#define TAPS 4
#define WARPS 8

__device__ static float warp_sum(float x) {
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(~0u, x, step);
    return x;
}

__device__ static float silu(float x) {
    return x / (1 + expf(-x));
}

struct conv {
    const struct step_record *record;
    const float *x, *taps;
    float *ring, *q, *k, *v;
    uint64_t x_stride, ring_stride, q_stride, k_stride, v_stride;
    uint32_t rows, span, key_heads, heads; /* span: rows of a warp, heads: of q, k and v */
    float epsilon;
};

/* Grid: 8 heads x `span` rows. The blocks of the first rows, which alone read the ring, also write the last
 * rows of x into it. */
__global__ static void __launch_bounds__(32 * WARPS) conv_silu(const __grid_constant__ struct conv c) {
    uint32_t head = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32,
             first = blockIdx.y * c.span;
    cuda_let_next_start();
    cuda_await_previous();
    if (head >= c.heads)
        return;
    uint32_t channel = head * SIZE + 4 * lane, position = c.record->position;
    const float *x = c.x + channel;
    float4 taps[4]; /* of each channel */
#pragma unroll
    for (int i = 0; i < 4; i++)
        taps[i] = *(const float4 *)(c.taps + (channel + i) * TAPS);
    float4 history[TAPS - 1];
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++)
        history[j] = first > 0
                         ? *(const float4 *)(x + (first + j - (TAPS - 1)) * c.x_stride)
                         : *(const float4 *)(c.ring + (position + 1 + j) % TAPS * c.ring_stride + channel);
    if (first == 0)
        for (uint32_t t = c.rows > TAPS ? c.rows - TAPS : 0; t < c.rows; t++)
            *(float4 *)(c.ring + (position + t) % TAPS * c.ring_stride + channel) =
                *(const float4 *)(x + t * c.x_stride);
    bool is_v = head >= 2 * c.key_heads, is_q = head < c.key_heads;
    uint32_t column = channel - (is_q ? 0 : (is_v ? 2 : 1) * c.key_heads * SIZE);
    float *y = (is_q ? c.q : is_v ? c.v : c.k) + column;
    uint64_t stride = is_q ? c.q_stride : is_v ? c.v_stride : c.k_stride;
    uint32_t count = min(c.rows - first, c.span);
#pragma unroll 4
    for (uint32_t t = 0; t < count; t++) {
        float4 now = *(const float4 *)(x + (uint64_t)(first + t) * c.x_stride);
        float4 a = history[0], b = history[1], d = history[2], sum;
        sum.x = silu(fmaf(taps[0].w, now.x, fmaf(taps[0].z, d.x, fmaf(taps[0].y, b.x, taps[0].x * a.x))));
        sum.y = silu(fmaf(taps[1].w, now.y, fmaf(taps[1].z, d.y, fmaf(taps[1].y, b.y, taps[1].x * a.y))));
        sum.z = silu(fmaf(taps[2].w, now.z, fmaf(taps[2].z, d.z, fmaf(taps[2].y, b.z, taps[2].x * a.z))));
        sum.w = silu(fmaf(taps[3].w, now.w, fmaf(taps[3].z, d.w, fmaf(taps[3].y, b.w, taps[3].x * a.w))));
        if (!is_v) {
            float squares = warp_sum(sum.x * sum.x + sum.y * sum.y + sum.z * sum.z + sum.w * sum.w);
            float scale = 1.0f / sqrtf(squares + c.epsilon) * (is_q ? 0.08838834764831845f : 1.0f);
            sum = make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
        }
        *(float4 *)(y + (uint64_t)(first + t) * stride) = sum;
        history[0] = b;
        history[1] = d;
        history[2] = now;
    }
}

extern "C" bool cuda_prefill_conv_silu_fits(const struct cuda_op *op, const struct cuda_device *) {
    const struct op_constants *c = &op->op.constants;
    const struct cuda_view *v = op->views;
    return v[1].rows > 1 && c->key_size == SIZE && c->value_size == SIZE && v[2].columns == TAPS &&
           v[2].stride == TAPS && prefill_aligned(&v[1]) && prefill_aligned(&v[3]) &&
           prefill_aligned(&v[4]) && prefill_aligned(&v[5]) && prefill_aligned(&v[6]);
}

extern "C" cudaError_t cuda_prefill_conv_silu(const struct cuda_op *op, const struct cuda_device *device,
                                              void *, cudaStream_t stream) {
    const struct op_constants *constants = &op->op.constants;
    const struct cuda_view *v = op->views;
    struct conv c = {};
    c.record = (const struct step_record *)v[0].data;
    c.x = (const float *)v[1].data;
    c.taps = (const float *)v[2].data;
    c.ring = (float *)v[3].data;
    c.q = (float *)v[4].data;
    c.k = (float *)v[5].data;
    c.v = (float *)v[6].data;
    c.x_stride = v[1].stride;
    c.ring_stride = v[3].stride;
    c.q_stride = v[4].stride;
    c.k_stride = v[5].stride;
    c.v_stride = v[6].stride;
    c.rows = v[1].rows;
    c.span = c.rows > 1024 ? 16 : 4; /* long enough to reread little, short enough to fill the GPU */
    c.key_heads = constants->key_heads;
    c.heads = 2 * constants->key_heads + constants->value_heads;
    c.epsilon = constants->l2_epsilon;
    return cuda_launch(conv_silu, cuda_overlap(device),
                       dim3(cuda_blocks(c.heads, WARPS), cuda_blocks(c.rows, c.span)), 32 * WARPS, 0, stream,
                       c);
}

static struct scan_arguments scan_of(const struct cuda_op *op) {
    const struct cuda_view *v = op->views;
    struct scan_arguments a = {};
    a.q = (const float *)v[0].data;
    a.k = (const float *)v[1].data;
    a.v = (const float *)v[2].data;
    a.decay = (const float *)v[3].data;
    a.beta = (const float *)v[4].data;
    a.state = (float *)v[5].data;
    a.y = (float *)v[6].data;
    a.q_stride = v[0].stride;
    a.k_stride = v[1].stride;
    a.v_stride = v[2].stride;
    a.decay_stride = v[3].stride;
    a.beta_stride = v[4].stride;
    a.y_stride = v[6].stride;
    a.tokens = v[0].rows;
    a.heads = op->op.constants.value_heads;
    a.key_heads = op->op.constants.key_heads;
    return a;
}

extern "C" bool cuda_prefill_delta_scan_fits(const struct cuda_op *op, const struct cuda_device *device) {
    const struct op_constants *c = &op->op.constants;
    const struct cuda_view *v = op->views;
    return v[0].rows > 1 && c->key_size == SCAN_SIZE && c->value_size == SCAN_SIZE &&
           prefill_aligned(&v[0]) && prefill_aligned(&v[1]) && prefill_aligned(&v[2]) &&
           prefill_aligned(&v[5]) && prefill_aligned(&v[6]) && v[5].stride == SCAN_SIZE &&
           device->shared_bytes >= (int)sizeof(struct scan_memory);
}

extern "C" cudaError_t cuda_prefill_delta_scan(const struct cuda_op *op, const struct cuda_device *device,
                                               void *, cudaStream_t stream) {
    return scan_launch(scan_of(op), cuda_overlap(device), stream);
}

/* Few tokens are sooner done one by one. */
extern "C" bool cuda_prefill_delta_chunks_fits(const struct cuda_op *op, const struct cuda_device *device) {
    return device->policy->delta_scan == 1 && op->views[0].rows >= CHUNK &&
           op->op.constants.value_heads % op->op.constants.key_heads == 0 &&
           cuda_prefill_delta_scan_fits(op, device) &&
           device->shared_bytes >= (int)sizeof(struct chunks_scan_memory);
}

extern "C" uint64_t cuda_prefill_delta_chunks_workspace(const struct cuda_op *op,
                                                        const struct cuda_device *) {
    struct chunks_memory memory;
    return chunks_bytes(op->views[0].rows, op->op.constants.value_heads, op->op.constants.key_heads, &memory,
                        NULL);
}

extern "C" cudaError_t cuda_prefill_delta_chunks(const struct cuda_op *op, const struct cuda_device *device,
                                                 void *workspace, cudaStream_t stream) {
    return chunks_launch(scan_of(op), workspace, cuda_overlap(device), stream);
}

/* x[T,heads*128], z -> y: per head x rms_scale(x) weight silu(z); a warp a head of a row. */
template <typename OUT>
__global__ static void __launch_bounds__(32 * WARPS)
    gated_norm(const float *x, uint64_t x_stride, const float *z, uint64_t z_stride, const float *weight,
               OUT *y, uint64_t y_stride, uint32_t heads, uint32_t units, float epsilon) {
    uint32_t unit = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    cuda_let_next_start();
    cuda_await_previous();
    if (unit >= units)
        return;
    uint64_t row = unit / heads;
    uint32_t column = unit % heads * SIZE + 4 * lane;
    float4 v = *(const float4 *)(x + row * x_stride + column),
           gate = *(const float4 *)(z + row * z_stride + column);
    float4 w = *(const float4 *)(weight + 4 * lane);
    float scale = 1.0f / sqrtf(warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w) / SIZE + epsilon);
    v = make_float4(v.x * scale * w.x * silu(gate.x), v.y * scale * w.y * silu(gate.y),
                    v.z * scale * w.z * silu(gate.z), v.w * scale * w.w * silu(gate.w));
    if (sizeof(OUT) == 4) {
        *(float4 *)(y + row * y_stride + column) = v;
    } else {
        __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
        *(uint2 *)(y + row * y_stride + column) = *(uint2 *)pairs;
    }
}

extern "C" bool cuda_prefill_gated_norm_fits(const struct cuda_op *op, const struct cuda_device *) {
    const struct cuda_view *v = op->views;
    return v[2].columns == SIZE && prefill_aligned(&v[0]) && prefill_aligned(&v[1]) && prefill_aligned(&v[3]);
}

extern "C" cudaError_t cuda_prefill_gated_norm(const struct cuda_op *op, const struct cuda_device *device,
                                               void *, cudaStream_t stream) {
    const struct cuda_view *v = op->views, *y = &v[3];
    uint32_t heads = v[0].columns / SIZE, units = heads * v[0].rows;
    const float *x = (const float *)v[0].data, *z = (const float *)v[1].data,
                *weight = (const float *)v[2].data;
    float epsilon = op->op.constants.epsilon;
    if (y->dtype == DTYPE_BF16)
        return cuda_launch(gated_norm<__nv_bfloat16>, cuda_overlap(device), cuda_blocks(units, WARPS),
                           32 * WARPS, 0, stream, x, v[0].stride, z, v[1].stride, weight,
                           (__nv_bfloat16 *)y->data, y->stride, heads, units, epsilon);
    return cuda_launch(gated_norm<float>, cuda_overlap(device), cuda_blocks(units, WARPS), 32 * WARPS, 0,
                       stream, x, v[0].stride, z, v[1].stride, weight, (float *)y->data, y->stride, heads,
                       units, epsilon);
}
