/* A decoded token of the full-size shape with random weights, every layer its own, so that the L2 cache holds
 * none of them: what the benchmark of the decode kernels times and checks. */
#ifndef CALLA_TESTS_CUDA_DECODE_STEP_CUH
#define CALLA_TESTS_CUDA_DECODE_STEP_CUH

#include "backend/cuda/decode.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <string>
#include <vector>

#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        cudaError_t status_ = (call);                                                                        \
        if (status_ != cudaSuccess) {                                                                        \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(status_));               \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static const uint32_t HIDDEN = 2048, EXPERTS = 256, CHOSEN = 8, WIDTH = 512, VOCABULARY = 248320;
static const uint32_t KEY_HEADS = 16, VALUE_HEADS = 32, SIZE = 128, TAPS = 4, HEADS = 16, KV_HEADS = 2,
                      HEAD_SIZE = 256;
static const uint32_t CHANNELS = 2 * KEY_HEADS * SIZE + VALUE_HEADS * SIZE, VALUES = VALUE_HEADS * SIZE;
static const double LIMIT = 4.47e12; /* bytes a second that the device can read */

static __device__ uint32_t hash(uint64_t x) {
    x ^= x >> 33, x *= 0xff51afd7ed558ccdull, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ull, x ^= x >> 33;
    return (uint32_t)x;
}

static __device__ float uniform(uint64_t x) {
    return hash(x) * 0x1p-32f;
}

static __global__ void fill_tiles(uint32_t *words, uint64_t count, uint64_t seed, uint32_t tile_words) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint32_t within = i % tile_words;
        if (within < 128) {
            words[i] = hash(seed + i);
        } else if (tile_words == 144) {
            float scale = 0.006f * (0.5f + uniform(seed + i)),
                  bias = -scale * (6 + 3 * uniform(seed + i + 7777));
            words[i] = __float_as_uint(scale) >> 16 | (__float_as_uint(bias) & 0xffff0000u);
        } else {
            float scale = 0.006f * (0.5f + uniform(seed + i / 2)),
                  bias = -scale * (6 + 3 * uniform(seed + i / 2 + 7777));
            words[i] = __float_as_uint(i % 2 ? bias : scale);
        }
    }
}

static __global__ void fill_bytes(uint32_t *words, uint64_t count, uint64_t seed) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x)
        words[i] = hash(seed + i);
}

static __global__ void fill_floats(float *values, uint64_t count, uint64_t seed, float low, float high) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x)
        values[i] = low + (high - low) * uniform(seed + i);
}

static __global__ void fill_pairs(float2 *pairs, uint64_t count, uint64_t seed) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x) {
        float scale = 0.0004f * (0.5f + uniform(seed + i));
        pairs[i] = make_float2(scale, -scale * (120 + 16 * uniform(seed + i + 999)));
    }
}

static __global__ void fill_bf16(uint16_t *values, uint64_t count, uint64_t seed) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x)
        values[i] = (uint16_t)(__float_as_uint(2 * uniform(seed + i) - 1) >> 16);
}

static uint64_t next_seed = 1;

static void *device_memory(uint64_t bytes) {
    void *memory;
    CHECK(cudaMalloc(&memory, bytes));
    return memory;
}

static cuda_view matrix4(uint32_t rows, uint32_t columns, enum dtype scale_dtype = DTYPE_BF16) {
    uint64_t bytes = (uint64_t)(rows + 15) / 16 * (columns / 64) * cuda_tile_bytes(scale_dtype);
    cuda_view view = {};
    view.data = device_memory(bytes);
    view.dtype = DTYPE_AFFINE4, view.scale_dtype = scale_dtype, view.rows = rows, view.columns = columns;
    view.stride = columns;
    fill_tiles<<<1024, 256>>>((uint32_t *)view.data, bytes / 4, next_seed++ << 32,
                              cuda_tile_bytes(scale_dtype) / 4);
    return view;
}

static cuda_view matrix8(uint32_t rows, uint32_t columns) {
    cuda_view view = {};
    view.data = device_memory((uint64_t)rows * columns);
    view.scales = device_memory((uint64_t)rows * columns / 8);
    view.dtype = DTYPE_AFFINE8, view.scale_dtype = DTYPE_F32, view.rows = rows, view.columns = columns;
    view.stride = columns;
    fill_bytes<<<1024, 256>>>((uint32_t *)view.data, (uint64_t)rows * columns / 4, next_seed++ << 32);
    fill_pairs<<<1024, 256>>>((float2 *)view.scales, (uint64_t)rows * columns / 64, next_seed++ << 32);
    return view;
}

static cuda_view floats(uint32_t rows, uint32_t columns, float low = -1, float high = 1) {
    cuda_view view = {};
    view.data = device_memory((uint64_t)rows * columns * 4);
    view.dtype = DTYPE_F32, view.rows = rows, view.columns = columns, view.stride = columns;
    fill_floats<<<1024, 256>>>((float *)view.data, (uint64_t)rows * columns, next_seed++ << 32, low, high);
    return view;
}

static cuda_view cache(uint32_t rows, uint32_t columns) {
    cuda_view view = {};
    view.data = device_memory((uint64_t)rows * columns * 2);
    view.dtype = DTYPE_BF16, view.rows = rows, view.columns = columns, view.stride = columns;
    fill_bf16<<<1024, 256>>>((uint16_t *)view.data, (uint64_t)rows * columns, next_seed++ << 32);
    return view;
}

enum part { PROJECTIONS, DELTA, QK_PREP, ATTENTION, OUT, ROUTER, GATE_UP, ROUTE, DOWN, HEAD, PARTS };
static const char *const part_names[] = {"projections", "delta step", "qk prep", "attention", "out",
                                         "router",      "gate up",    "route",   "down",      "head"};

static cuda_device device;

/* Router and gate and up products have kernels of their own, but a step takes the one for both where there is
 * one. */
static bool in_step(part kind) {
    return device.major < 9 || (kind != ROUTER && kind != GATE_UP);
}

struct timed_op {
    cuda_op op, second; /* second: of a pair that one kernel computes */
    part kind;
    cuda_launcher *launch;
    double bytes;
};

static double view_bytes(const cuda_view &view) {
    double elements = (double)view.rows * view.columns;
    if (view.dtype == DTYPE_AFFINE4)
        return elements / 2 + elements / 64 * (cuda_tile_bytes((enum dtype)view.scale_dtype) - 512) / 16;
    if (view.dtype == DTYPE_AFFINE8)
        return elements + elements / 8;
    return elements * 4;
}

static cuda_op make_op(op_kind kind, std::vector<cuda_view> views) {
    cuda_op op = {};
    op.op.kind = kind;
    op.op.operand_count = (uint32_t)views.size();
    for (size_t i = 0; i < views.size(); i++) {
        op.views[i] = views[i];
        op.op.operands[i].rows = views[i].rows;
        op.op.operands[i].columns = views[i].columns;
    }
    op_constants &c = op.op.constants;
    c.epsilon = 1e-6f, c.l2_epsilon = 1e-6f;
    c.key_heads = KEY_HEADS, c.value_heads = VALUE_HEADS, c.key_size = SIZE, c.value_size = SIZE,
    c.taps = TAPS;
    c.heads = HEADS, c.kv_heads = KV_HEADS, c.head_size = HEAD_SIZE, c.rotary_size = 64, c.rope_theta = 1e7f;
    c.experts = EXPERTS, c.experts_per_token = CHOSEN;
    return op;
}

static cudaStream_t stream;
static void *workspace;

static std::vector<timed_op> build_step(uint32_t layers, uint32_t context, cuda_view record) {
    std::vector<timed_op> ops;
    cuda_view hidden = floats(1, HIDDEN), qkv = floats(1, CHANNELS), z = floats(1, VALUES),
              a = floats(1, VALUE_HEADS), b = floats(1, VALUE_HEADS), mixed = floats(1, VALUES);
    cuda_view q_and_gate = floats(1, 2 * HEADS * HEAD_SIZE), k = floats(1, KV_HEADS * HEAD_SIZE),
              v = floats(1, KV_HEADS * HEAD_SIZE), query = floats(HEADS, HEAD_SIZE);
    cuda_view ids = floats(1, CHOSEN), scores = floats(1, CHOSEN + 1), routed = floats(CHOSEN, WIDTH),
              shared = floats(1, WIDTH), logits = floats(1, VOCABULARY);
    cuda_view q = q_and_gate, gate = q_and_gate, attended = mixed;
    q.rows = gate.rows = HEADS, q.columns = gate.columns = HEAD_SIZE, q.stride = gate.stride = 2 * HEAD_SIZE;
    gate.data = (float *)gate.data + HEAD_SIZE;
    attended.rows = HEADS, attended.columns = HEAD_SIZE, attended.stride = HEAD_SIZE;
    auto add = [&](part kind, cuda_launcher *launch, cuda_op op, double bytes) {
        ops.push_back({op, {}, kind, launch, bytes});
    };
    auto linear = [&](part kind, cuda_view x, std::vector<std::pair<uint32_t, cuda_view>> outputs,
                      bool normalise, bool accumulate) {
        std::vector<cuda_view> views = {x};
        double bytes = 0;
        if (normalise)
            views.push_back(floats(1, x.columns));
        for (auto &output : outputs) {
            views.push_back(matrix4(output.first, x.columns));
            bytes += view_bytes(views.back());
            views.push_back(output.second);
        }
        cuda_op op = make_op(kind == HEAD ? OP_HEAD : OP_LINEAR, views);
        op.op.constants.normalise = normalise, op.op.constants.accumulate = accumulate;
        op.op.constants.matrix_count = (uint32_t)outputs.size();
        add(kind,
            kind != HEAD && cuda_decode_sum_fits(&op, &device) ? cuda_decode_sum_launch
                                                               : cuda_decode_linear_launch,
            op, bytes);
    };
    for (uint32_t layer = 0; layer < layers; layer++) {
        if (layer % 4 != 3) {
            linear(PROJECTIONS, hidden, {{CHANNELS, qkv}, {VALUES, z}, {VALUE_HEADS, b}, {VALUE_HEADS, a}},
                   true, false);
            add(DELTA, cuda_decode_delta_step_launch,
                make_op(OP_DELTA_STEP, {record, qkv, a, b, floats(CHANNELS, TAPS), floats(1, VALUE_HEADS),
                                        floats(1, VALUE_HEADS), z, floats(1, SIZE), floats(TAPS, CHANNELS),
                                        floats(VALUES, SIZE), mixed}),
                2.0 * VALUES * SIZE * 4);
        } else {
            linear(
                PROJECTIONS, hidden,
                {{2 * HEADS * HEAD_SIZE, q_and_gate}, {KV_HEADS * HEAD_SIZE, k}, {KV_HEADS * HEAD_SIZE, v}},
                true, false);
            if (context > 0) {
                cuda_view keys = cache(context, KV_HEADS * HEAD_SIZE),
                          values = cache(context, KV_HEADS * HEAD_SIZE);
                add(QK_PREP, cuda_decode_qk_prep_launch,
                    make_op(OP_QK_PREP, {record, q, k, v, floats(1, HEAD_SIZE), floats(1, HEAD_SIZE), query,
                                         keys, values}),
                    0);
                add(ATTENTION, cuda_decode_attention_launch,
                    make_op(OP_ATTENTION, {record, query, gate, keys, values, attended}),
                    2.0 * context * KV_HEADS * HEAD_SIZE * 2);
            }
        }
        linear(OUT, mixed, {{HIDDEN, hidden}}, false, true);
        cuda_op op = make_op(OP_ROUTER, {hidden, floats(1, HIDDEN), matrix8(EXPERTS, HIDDEN),
                                         matrix8(1, HIDDEN), ids, scores});
        op.op.constants.normalise = true;
        add(ROUTER, cuda_decode_router_launch, op, view_bytes(op.views[2]));
        op = make_op(OP_EXPERT_GATE_UP, {hidden, op.views[1], ids, matrix4(EXPERTS * WIDTH, HIDDEN),
                                         matrix4(EXPERTS * WIDTH, HIDDEN), matrix4(WIDTH, HIDDEN),
                                         matrix4(WIDTH, HIDDEN), routed, shared});
        op.op.constants.normalise = true;
        add(GATE_UP, cuda_decode_gate_up_launch, op, (CHOSEN + 1) * 2 * view_bytes(op.views[5]));
        if (device.major >= 9) {
            timed_op route = ops[ops.size() - 2];
            route.second = op;
            if (!cuda_decode_route_fits(&route.op, &device)) {
                printf("no room for the kernel that routes and multiplies\n");
                exit(2);
            }
            route.kind = ROUTE;
            route.launch = cuda_decode_route_launch;
            route.bytes += ops.back().bytes;
            ops.push_back(route);
        }
        op = make_op(OP_EXPERT_DOWN, {routed, shared, ids, scores, matrix4(EXPERTS * HIDDEN, WIDTH),
                                      matrix4(HIDDEN, WIDTH), hidden});
        add(DOWN, cuda_decode_down_launch, op, (CHOSEN + 1) * view_bytes(op.views[5]));
    }
    linear(HEAD, hidden, {{VOCABULARY, logits}}, true, false);
    return ops;
}

#endif
