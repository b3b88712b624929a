/* OP_DELTA_STEP: a gated delta layer's token from its projections to the input of its output projection.
 *
 * A cluster of blocks, or a single block, has a value head, each block a part of the state's rows. The state
 * is read before the kernels before have ended, for it was last written a step ago; so are the convolution's
 * earlier rows. With S the state, k and q as the convolution gives them and k' and q' normalised, one pass
 * over S gives everything: S k' and S q' are S k and S q times factors that need the whole k and q, so that
 * these can follow change = beta (v - decay S k'),   S := decay S + change k'^T,   y = decay S q' + change
 * (k' q') */
#include "backend/cuda/decode.h"
#include "backend/cuda/kernels/decode.cuh"

#define SIZE 128 /* of a key head and of a value head */
#define WARPS 8
#define TAPS 4

struct delta_parameters {
    const struct step_record *record;
    const float *qkv, *a, *b, *taps, *A_log, *dt_bias, *z, *weight;
    float *history, *state, *y;
    uint32_t key_heads, value_heads, channels; /* channels: of a row of the history */
    float epsilon, l2_epsilon;
};

static __device__ __forceinline__ float sigmoid(float x) {
    return 1 / (1 + expf(-x));
}

static __device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
    return fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
}

static __device__ __forceinline__ float sum_of_eight(float sum) {
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    return sum;
}

/* A channel of the convolution but for the newest input: what the earlier ones, rows of a ring, add up to. */
static __device__ __forceinline__ float convolve_history(const delta_parameters &p, uint32_t channel,
                                                         uint32_t position, float4 taps) {
    const float *column = p.history + channel;
    float oldest = column[(uint64_t)((position + 1) % TAPS) * p.channels];
    float older = column[(uint64_t)((position + 2) % TAPS) * p.channels];
    float old = column[(uint64_t)((position + 3) % TAPS) * p.channels];
    return fmaf(taps.z, old, fmaf(taps.y, older, taps.x * oldest));
}

template <uint32_t CLUSTER>
static __global__
__launch_bounds__(32 * WARPS) void decode_delta_step(const __grid_constant__ delta_parameters p) {
    constexpr uint32_t ROWS = SIZE / CLUSTER;       /* of the state, in a block */
    constexpr uint32_t PASSES = ROWS / (4 * WARPS); /* a warp takes four rows at once, eight lanes each */
    __shared__ __align__(16) float keys[SIZE], queries[SIZE];
    __shared__ float values[ROWS], squares[WARPS], outputs[ROWS], output_squares[CLUSTER];
    __shared__ uint64_t received;
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, eighth = lane % 8;
    uint32_t head = blockIdx.x / CLUSTER, part = blockIdx.x % CLUSTER;
    uint32_t key_head = head * p.key_heads / p.value_heads, heads_per_key = p.value_heads / p.key_heads;
    if (CLUSTER > 1) {
        if (threadIdx.x == 0) {
            barrier_init(&received, 1);
            barrier_fence();
            copy_expect(&received, CLUSTER * sizeof(float));
        }
        __syncwarp();
        cluster_arrive();
    }
    uint32_t position = p.record->position;

    float4 state[PASSES][4];
    float4 *rows = (float4 *)(p.state + ((uint64_t)head * SIZE + part * ROWS) * SIZE);
#pragma unroll
    for (uint32_t pass = 0; pass < PASSES; pass++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            state[pass][i] = rows[((pass * WARPS + warp) * 4 + lane / 8) * (SIZE / 4) + 8 * i + eighth];

    /* Thread c < 128 has channel c of q, the others of k; the first ones also a channel of v. */
    bool is_key = threadIdx.x >= SIZE;
    uint32_t channel = (is_key ? p.key_heads * SIZE : 0) + key_head * SIZE + threadIdx.x % SIZE;
    uint32_t value_channel = 2 * p.key_heads * SIZE + head * SIZE + part * ROWS + threadIdx.x;
    float4 taps = __ldg((const float4 *)p.taps + channel), value_taps = {0, 0, 0, 0};
    float sum = convolve_history(p, channel, position, taps), value_sum = 0, norm_weight = 0;
    if (threadIdx.x < ROWS) {
        value_taps = __ldg((const float4 *)p.taps + value_channel);
        value_sum = convolve_history(p, value_channel, position, value_taps);
        norm_weight = __ldg(p.weight + part * ROWS + threadIdx.x);
    }
    float rate = -expf(__ldg(p.A_log + head)), step_bias = __ldg(p.dt_bias + head);
    if (CLUSTER > 1)
        cluster_wait();
    cuda_let_next_start();
    cuda_await_previous();

    float input = p.qkv[channel], value_input = 0, gate = 0;
    if (threadIdx.x < ROWS) {
        value_input = p.qkv[value_channel];
        gate = p.z[head * SIZE + part * ROWS + threadIdx.x];
    }
    float step = p.a[head] + step_bias, beta = sigmoid(p.b[head]);
    float decay = expf(rate * (step > 0 ? step + log1pf(expf(-step)) : log1pf(expf(step))));
    float convolved = fmaf(taps.w, input, sum);
    convolved *= sigmoid(convolved);
    (is_key ? keys : queries)[threadIdx.x % SIZE] = convolved;
    float square = sum_of_warp(convolved * convolved);
    if (lane == 0)
        squares[warp] = square;
    uint64_t written = (uint64_t)(position % TAPS) * p.channels;
    if (part == 0 && head % heads_per_key == 0)
        p.history[written + channel] = input;
    if (threadIdx.x < ROWS) {
        value_sum = fmaf(value_taps.w, value_input, value_sum);
        values[threadIdx.x] = value_sum * sigmoid(value_sum);
        p.history[written + value_channel] = value_input;
    }
    __syncthreads();

    float query_factor =
        rsqrtf((squares[0] + squares[1]) + (squares[2] + squares[3]) + p.l2_epsilon) * rsqrtf((float)SIZE);
    float key_factor = rsqrtf((squares[4] + squares[5]) + (squares[6] + squares[7]) + p.l2_epsilon);
    float4 k[4];
    float match = 0, by_key[PASSES], by_query[PASSES];
#pragma unroll
    for (uint32_t pass = 0; pass < PASSES; pass++)
        by_key[pass] = by_query[pass] = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        k[i] = ((const float4 *)keys)[8 * i + eighth];
        float4 q = ((const float4 *)queries)[8 * i + eighth];
        match = dot4(k[i], q, match);
#pragma unroll
        for (uint32_t pass = 0; pass < PASSES; pass++) {
            by_key[pass] = dot4(state[pass][i], k[i], by_key[pass]);
            by_query[pass] = dot4(state[pass][i], q, by_query[pass]);
        }
    }
    match = sum_of_eight(match) * key_factor * query_factor;
#pragma unroll
    for (uint32_t pass = 0; pass < PASSES; pass++) {
        uint32_t row = (pass * WARPS + warp) * 4 + lane / 8;
        float seen = sum_of_eight(by_key[pass]) * key_factor,
              recalled = sum_of_eight(by_query[pass]) * query_factor;
        float change = beta * (values[row] - decay * seen), scaled = change * key_factor;
        if (eighth == 0)
            outputs[row] = fmaf(decay, recalled, change * match);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float4 s = state[pass][i];
            s.x = fmaf(decay, s.x, scaled * k[i].x), s.y = fmaf(decay, s.y, scaled * k[i].y);
            s.z = fmaf(decay, s.z, scaled * k[i].z), s.w = fmaf(decay, s.w, scaled * k[i].w);
            rows[row * (SIZE / 4) + 8 * i + eighth] = s;
        }
    }
    __syncthreads();
    /* The mean square is one of the whole head; every warp adds its part up the same way. */
    float total = 0;
#pragma unroll
    for (uint32_t i = 0; i < ROWS; i += 32) {
        float output = outputs[i + lane];
        total = fmaf(output, output, total);
    }
    total = sum_of_warp(total);
    if (CLUSTER > 1) {
        if (threadIdx.x < CLUSTER)
            send(&output_squares[part], total, &received, threadIdx.x);
        barrier_wait(&received, 0);
        total = 0;
#pragma unroll
        for (uint32_t i = 0; i < CLUSTER; i++)
            total += output_squares[i];
    }
    if (threadIdx.x < ROWS)
        p.y[head * SIZE + part * ROWS + threadIdx.x] = outputs[threadIdx.x] *
                                                       rsqrtf(total / (float)SIZE + p.epsilon) * norm_weight *
                                                       (gate * sigmoid(gate));
}

bool cuda_decode_delta_step_fits(const struct cuda_op *op, const struct cuda_device *) {
    const struct op_constants *c = &op->op.constants;
    return c->key_size == SIZE && c->value_size == SIZE && c->taps == TAPS &&
           c->value_heads % c->key_heads == 0 && op->views[10].stride == SIZE && aligned(&op->views[10]) &&
           op->views[4].dtype == DTYPE_F32;
}

cudaError_t cuda_decode_delta_step_launch(const struct cuda_op *op, const struct cuda_device *device,
                                          void *workspace, cudaStream_t stream) {
    (void)workspace;
    const struct op_constants *c = &op->op.constants;
    const struct cuda_view *views = op->views;
    delta_parameters p = {};
    p.record = (const struct step_record *)views[0].data;
    p.qkv = (const float *)views[1].data;
    p.a = (const float *)views[2].data;
    p.b = (const float *)views[3].data;
    p.taps = (const float *)views[4].data;
    p.A_log = (const float *)views[5].data;
    p.dt_bias = (const float *)views[6].data;
    p.z = (const float *)views[7].data;
    p.weight = (const float *)views[8].data;
    p.history = (float *)views[9].data;
    p.state = (float *)views[10].data;
    p.y = (float *)views[11].data;
    p.key_heads = c->key_heads;
    p.value_heads = c->value_heads;
    p.channels = (uint32_t)views[9].stride;
    p.epsilon = c->epsilon;
    p.l2_epsilon = c->l2_epsilon;
    if (decode_on_hopper(device))
        return decode_launch(decode_delta_step<4>, device, 4, c->value_heads * 4, 32 * WARPS, 0, stream, p);
    return decode_launch(decode_delta_step<1>, device, 1, c->value_heads, 32 * WARPS, 0, stream, p);
}
