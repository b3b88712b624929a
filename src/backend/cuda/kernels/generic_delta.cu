/* The gated delta layers: causal convolution, gates, the recurrence over the tokens. */
#include "backend/cuda/kernels/generic.cuh"

#define BLOCK 128
#define WARPS (BLOCK / WARP)
#define REGISTERS 8 /* elements of a state row a lane holds; longer rows stay in memory */

struct convolution {
    cuda_view record, x, taps, ring, q, k, v;
    uint32_t key_heads, value_heads, key_size, value_size;
    float epsilon;
};

/* silu(sum_j taps[channel,j] x[t-W+1+j,channel]); rows before the first come from the ring, where row p % W
 * is that of position p. */
__device__ static float convolve(const convolution &c, uint32_t position, uint32_t t, uint32_t channel) {
    uint32_t width = c.taps.columns, history = width - 1;
    float sum = 0;
    for (uint32_t j = 0; j < width; j++) {
        float input = t + j < history ? float_row(c.ring, (position + t + j + 1) % width)[channel]
                                      : float_row(c.x, t + j - history)[channel];
        sum += float_at(c.taps.data, c.taps.dtype, channel * c.taps.stride + j) * input;
    }
    return silu(sum);
}

/* A block a head of q, k or v (blockIdx.x) of a row (blockIdx.y). */
__global__ static void conv_silu(const __grid_constant__ convolution c) {
    begin();
    __shared__ float sums[WARP];
    uint32_t unit = blockIdx.x, t = blockIdx.y, position = record_of(c.record)->position;
    bool is_v = unit >= 2 * c.key_heads;
    uint32_t size = is_v ? c.value_size : c.key_size;
    uint32_t column = is_v ? (unit - 2 * c.key_heads) * size : unit % c.key_heads * size;
    uint32_t first = is_v ? 2 * c.key_heads * c.key_size + column : unit * size;
    const cuda_view &out = is_v ? c.v : unit < c.key_heads ? c.q : c.k;
    float *y = float_row(out, t) + column, squares = 0;
    for (uint32_t i = threadIdx.x; i < size; i += BLOCK) {
        y[i] = convolve(c, position, t, first + i);
        squares += y[i] * y[i];
    }
    if (is_v)
        return;
    float scale = 1.0f / sqrtf(block_sum(squares, sums) + c.epsilon);
    float q_scale = unit < c.key_heads ? 1.0f / sqrtf(static_cast<float>(c.key_size)) : 1.0f;
    for (uint32_t i = threadIdx.x; i < size; i += BLOCK)
        y[i] = y[i] * scale * q_scale;
}

/* Puts the last rows of x into the ring, once they have been read. */
__global__ static void conv_remember(const __grid_constant__ convolution c) {
    begin();
    uint32_t channel = blockIdx.x * BLOCK + threadIdx.x, width = c.ring.rows, rows = c.x.rows;
    if (channel >= c.x.columns)
        return;
    for (uint32_t t = rows > width ? rows - width : 0; t < rows; t++)
        float_row(c.ring, (record_of(c.record)->position + t) % width)[channel] = float_row(c.x, t)[channel];
}

/* decay = exp(-exp(A_log) softplus(a + dt_bias)), beta = sigmoid(b) */
__global__ static void delta_gates(const cuda_view a, const cuda_view b, const cuda_view A_log,
                                   const cuda_view dt_bias, const cuda_view decay, const cuda_view beta) {
    begin();
    uint32_t head = blockIdx.x * BLOCK + threadIdx.x, t = blockIdx.y;
    if (head >= a.columns)
        return;
    float x = float_row(a, t)[head] + vector_at(dt_bias, head);
    float softplus = x > 0 ? x + log1pf(expf(-x)) : log1pf(expf(x));
    float_row(decay, t)[head] = expf(-expf(vector_at(A_log, head)) * softplus);
    float_row(beta, t)[head] = sigmoid(float_row(b, t)[head]);
}

struct delta_scan {
    cuda_view q, k, v, decay, beta, state, y;
    uint32_t key_heads, value_heads, key_size, value_size;
};

/* A row of the state, `Held` elements a lane in registers, or all of it in memory. */
template <int Held> struct state_row {
    float held[Held];
    __device__ void load(const float *row, uint32_t lane, uint32_t size) {
        for (int i = 0; i < Held; i++)
            held[i] = lane + i * WARP < size ? row[lane + i * WARP] : 0.0f;
    }
    __device__ void save(float *row, uint32_t lane, uint32_t size) const {
        for (int i = 0; i < Held; i++)
            if (lane + i * WARP < size)
                row[lane + i * WARP] = held[i];
    }
    /* s = decay s, returns the lane's part of s.k */
    __device__ float decayed_dot(float decay, const float *k, uint32_t lane, uint32_t size) {
        float sum = 0;
        for (int i = 0; i < Held; i++)
            if (lane + i * WARP < size)
                sum += (held[i] *= decay) * k[lane + i * WARP];
        return sum;
    }
    /* s += change k, returns the lane's part of s.q */
    __device__ float changed_dot(float change, const float *k, const float *q, uint32_t lane, uint32_t size) {
        float sum = 0;
        for (int i = 0; i < Held; i++)
            if (lane + i * WARP < size)
                sum += (held[i] += change * k[lane + i * WARP]) * q[lane + i * WARP];
        return sum;
    }
};

template <> struct state_row<0> {
    float *row;
    __device__ void load(float *memory, uint32_t, uint32_t) {
        row = memory;
    }
    __device__ void save(float *, uint32_t, uint32_t) const {}
    __device__ float decayed_dot(float decay, const float *k, uint32_t lane, uint32_t size) {
        float sum = 0;
        for (uint32_t i = lane; i < size; i += WARP)
            sum += (row[i] *= decay) * k[i];
        return sum;
    }
    __device__ float changed_dot(float change, const float *k, const float *q, uint32_t lane, uint32_t size) {
        float sum = 0;
        for (uint32_t i = lane; i < size; i += WARP)
            sum += (row[i] += change * k[i]) * q[i];
        return sum;
    }
};

/* A warp a row of the state; the tokens one after the other. */
template <int Held> __global__ static void scan(const __grid_constant__ delta_scan s) {
    begin();
    uint32_t unit = blockIdx.x * WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (unit >= s.state.rows)
        return;
    uint32_t head = unit / s.value_size, size = s.key_size;
    uint32_t key = head * s.key_heads / s.value_heads * size;
    state_row<Held> row;
    row.load(float_row(s.state, unit), lane, size);
    for (uint32_t t = 0; t < s.q.rows; t++) {
        const float *q = float_row(s.q, t) + key, *k = float_row(s.k, t) + key;
        float projected = warp_sum(row.decayed_dot(float_row(s.decay, t)[head], k, lane, size));
        float change = float_row(s.beta, t)[head] * (float_row(s.v, t)[unit] - projected);
        float out = warp_sum(row.changed_dot(change, k, q, lane, size));
        if (lane == 0)
            float_row(s.y, t)[unit] = out;
    }
    row.save(float_row(s.state, unit), lane, size);
}

static cudaError_t launch_scan(const delta_scan &s, const cuda_device *device, cudaStream_t stream) {
    return cuda_launch(s.key_size <= REGISTERS * WARP ? scan<REGISTERS> : scan<0>, cuda_overlap(device),
                       cuda_blocks(s.state.rows, WARPS), BLOCK, 0, stream, s);
}

static cudaError_t launch_gates(const cuda_view *inputs, const cuda_view &decay, const cuda_view &beta,
                                const cuda_device *device, cudaStream_t stream) {
    return cuda_launch(delta_gates, cuda_overlap(device),
                       dim3(cuda_blocks(inputs[0].columns, BLOCK), inputs[0].rows), BLOCK, 0, stream,
                       inputs[0], inputs[1], inputs[2], inputs[3], decay, beta);
}

static convolution convolution_of(const cuda_op *op) {
    const op_constants &c = op->op.constants;
    convolution conv = {};
    conv.record = op->views[0];
    conv.x = op->views[1];
    conv.key_heads = c.key_heads;
    conv.value_heads = c.value_heads;
    conv.key_size = c.key_size;
    conv.value_size = c.value_size;
    conv.epsilon = c.l2_epsilon;
    return conv;
}

static cudaError_t launch_convolution(const convolution &conv, const cuda_device *device,
                                      cudaStream_t stream) {
    dim3 heads(2 * conv.key_heads + conv.value_heads, conv.x.rows);
    cudaError_t status = cuda_launch(conv_silu, cuda_overlap(device), heads, BLOCK, 0, stream, conv);
    if (status != cudaSuccess)
        return status;
    return cuda_launch(conv_remember, cuda_overlap(device), cuda_blocks(conv.x.columns, BLOCK), BLOCK, 0,
                       stream, conv);
}

extern "C" cudaError_t cuda_generic_conv_silu(const cuda_op *op, const cuda_device *device, void *,
                                              cudaStream_t stream) {
    convolution conv = convolution_of(op);
    conv.taps = op->views[2];
    conv.ring = op->views[3];
    conv.q = op->views[4];
    conv.k = op->views[5];
    conv.v = op->views[6];
    return launch_convolution(conv, device, stream);
}

extern "C" cudaError_t cuda_generic_delta_gates(const cuda_op *op, const cuda_device *device, void *,
                                                cudaStream_t stream) {
    return launch_gates(op->views, op->views[4], op->views[5], device, stream);
}

static delta_scan sizes_of(const cuda_op *op) {
    const op_constants &c = op->op.constants;
    delta_scan s = {};
    s.key_heads = c.key_heads;
    s.value_heads = c.value_heads;
    s.key_size = c.key_size;
    s.value_size = c.value_size;
    return s;
}

extern "C" cudaError_t cuda_generic_delta_scan(const cuda_op *op, const cuda_device *device, void *,
                                               cudaStream_t stream) {
    delta_scan s = sizes_of(op);
    s.q = op->views[0];
    s.k = op->views[1];
    s.v = op->views[2];
    s.decay = op->views[3];
    s.beta = op->views[4];
    s.state = op->views[5];
    s.y = op->views[6];
    return launch_scan(s, device, stream);
}

/* decay and beta */
extern "C" uint64_t cuda_generic_delta_tail_workspace(const cuda_op *op, const cuda_device *) {
    return 2 * sizeof(float) * static_cast<uint64_t>(op->views[0].rows) * op->views[0].columns;
}

/* Gates, scan and gated norm one after the other; `gates` are a, b, A_log and dt_bias. */
static cudaError_t launch_tail(const cuda_view *gates, delta_scan &s, const cuda_view &z,
                               const cuda_view &weight, float epsilon, float *workspace,
                               const cuda_device *device, cudaStream_t stream) {
    uint32_t rows = gates[0].rows, heads = gates[0].columns;
    s.decay = workspace_view(workspace, rows, heads);
    s.beta = workspace_view(workspace + static_cast<uint64_t>(rows) * heads, rows, heads);
    cudaError_t status = launch_gates(gates, s.decay, s.beta, device, stream);
    if (status == cudaSuccess)
        status = launch_scan(s, device, stream);
    if (status == cudaSuccess)
        status = cuda_generic_gated_norm_views(s.y, z, weight, s.y, epsilon, device, stream);
    return status;
}

/* a, b, A_log, dt_bias, q, k, v, z, weight, state -> y */
extern "C" cudaError_t cuda_generic_delta_tail(const cuda_op *op, const cuda_device *device, void *workspace,
                                               cudaStream_t stream) {
    delta_scan s = sizes_of(op);
    s.q = op->views[4];
    s.k = op->views[5];
    s.v = op->views[6];
    s.state = op->views[9];
    s.y = op->views[10];
    return launch_tail(op->views, s, op->views[7], op->views[8], op->op.constants.epsilon,
                       static_cast<float *>(workspace), device, stream);
}

/* q, k, v; decay and beta */
extern "C" uint64_t cuda_generic_delta_step_workspace(const cuda_op *op, const cuda_device *) {
    return sizeof(float) * (static_cast<uint64_t>(op->views[1].columns) + 2 * op->views[2].columns);
}

/* record, qkv, a, b, taps, A_log, dt_bias, z, weight, ring, state -> y: convolution and tail, one row */
extern "C" cudaError_t cuda_generic_delta_step(const cuda_op *op, const cuda_device *device, void *workspace,
                                               cudaStream_t stream) {
    const op_constants &c = op->op.constants;
    uint32_t keys = c.key_heads * c.key_size, values = c.value_heads * c.value_size;
    float *memory = static_cast<float *>(workspace);
    convolution conv = convolution_of(op);
    conv.taps = op->views[4];
    conv.ring = op->views[9];
    conv.q = workspace_view(memory, 1, keys);
    conv.k = workspace_view(memory + keys, 1, keys);
    conv.v = workspace_view(memory + 2 * keys, 1, values);
    cudaError_t status = launch_convolution(conv, device, stream);
    delta_scan s = sizes_of(op);
    s.q = conv.q;
    s.k = conv.k;
    s.v = conv.v;
    s.state = op->views[10];
    s.y = op->views[11];
    cuda_view gates[4] = {op->views[2], op->views[3], op->views[5], op->views[6]};
    if (status != cudaSuccess)
        return status;
    return launch_tail(gates, s, op->views[7], op->views[8], c.epsilon, memory + 2 * keys + values, device,
                       stream);
}
