/* Measures the decode kernels without a model: a step of the full-size shape with random weights, every layer
 * its own, so that the L2 cache holds none of them; and each kind of op alone. Checks the kernels' results
 * against loops in double on the processor.
 *
 *   decode_bench [layers] [context] [check]: the latter checks only */
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

static cuda_device device;
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
        timed_op route = ops[ops.size() - 2];
        route.second = op;
        if (cuda_decode_route_fits(&route.op, &route.second, &device)) {
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

/* Median milliseconds of a graph of the ops that `wanted` says. */
template <typename Wanted>
static double time_graph(const std::vector<timed_op> &ops, Wanted wanted, int repeats = 30) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (const timed_op &op : ops)
        if (wanted(op))
            CHECK(op.launch(&op.op, &device, workspace, stream));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&executable, graph, 0));
    cudaEvent_t start, stop;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&stop));
    std::vector<float> times;
    for (int i = -5; i < repeats; i++) {
        CHECK(cudaEventRecord(start, stream));
        CHECK(cudaGraphLaunch(executable, stream));
        CHECK(cudaEventRecord(stop, stream));
        CHECK(cudaStreamSynchronize(stream));
        float time;
        CHECK(cudaEventElapsedTime(&time, start, stop));
        if (i >= 0)
            times.push_back(time);
    }
    CHECK(cudaGraphExecDestroy(executable));
    CHECK(cudaGraphDestroy(graph));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

/* ---- Checks ---- */

template <typename T> static std::vector<T> fetch(const void *data, uint64_t count) {
    std::vector<T> values(count);
    CHECK(cudaMemcpy(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
}

static std::vector<float> fetch(const cuda_view &view) {
    return fetch<float>(view.data, (uint64_t)view.rows * view.columns);
}

static float bf16(uint32_t bits) {
    bits <<= 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Rows first .. first + rows of a packed matrix, in double. */
static std::vector<double> unpacked(const cuda_view &view, uint32_t first, uint32_t rows) {
    uint32_t tile_bytes = cuda_tile_bytes((enum dtype)view.scale_dtype), tiles = view.columns / 64;
    uint64_t begin = (uint64_t)(first / 16) * tiles * tile_bytes;
    std::vector<unsigned char> bytes =
        fetch<unsigned char>((char *)view.data + begin, (uint64_t)(rows + 15) / 16 * tiles * tile_bytes);
    std::vector<double> values((uint64_t)rows * view.columns);
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t column = 0; column < view.columns; column++) {
            const unsigned char *tile = &bytes[((uint64_t)(row / 16) * tiles + column / 64) * tile_bytes];
            uint32_t r = row % 16, c = column % 64, j = c / 16, within = c % 16;
            uint32_t lane = 4 * (r % 8) + within % 8 / 2, word = (r >= 8 ? 2 : 0) + (within >= 8 ? 1 : 0);
            uint32_t w;
            memcpy(&w, tile + 16 * lane + 4 * word, 4);
            uint32_t code = w >> 4 * (j + (within % 2 ? 4 : 0)) & 15;
            float scale, bias;
            if (tile_bytes == 576) {
                uint32_t pair;
                memcpy(&pair, tile + 512 + 8 * (r % 8) + (r >= 8 ? 4 : 0), 4);
                scale = bf16(pair & 0xffff), bias = bf16(pair >> 16);
            } else {
                memcpy(&scale, tile + 512 + 16 * (r % 8) + (r >= 8 ? 8 : 0), 4);
                memcpy(&bias, tile + 512 + 16 * (r % 8) + (r >= 8 ? 8 : 0) + 4, 4);
            }
            values[(uint64_t)row * view.columns + column] = (double)scale * code + bias;
        }
    return values;
}

static std::vector<double> normalised(const cuda_view &x, const cuda_view *weight) {
    std::vector<float> values = fetch(x);
    std::vector<double> result(values.begin(), values.end());
    if (weight != NULL) {
        std::vector<float> w = fetch(*weight);
        double square = 0;
        for (double value : result)
            square += value * value;
        for (size_t i = 0; i < result.size(); i++)
            result[i] *= w[i] / sqrt(square / (double)result.size() + 1e-6);
    }
    return result;
}

static std::vector<double> product(const std::vector<double> &matrix, const double *x, size_t columns) {
    std::vector<double> y(matrix.size() / columns);
    for (size_t row = 0; row < y.size(); row++)
        for (size_t i = 0; i < columns; i++)
            y[row] += matrix[row * columns + i] * x[i];
    return y;
}

static void compare(const char *what, const std::vector<double> &expected, const std::vector<float> &found) {
    double difference = 0, norm = 0, worst = 0;
    for (size_t i = 0; i < expected.size(); i++) {
        difference += (expected[i] - found[i]) * (expected[i] - found[i]);
        norm += expected[i] * expected[i];
        worst = std::max(worst, fabs(expected[i] - found[i]));
    }
    double relative = sqrt(difference / norm);
    printf("check %-28s relative L2 %.2e, worst %.2e of rms %.2e%s\n", what, relative, worst,
           sqrt(norm / (double)expected.size()), relative < 3e-3 ? "" : "  WRONG");
}

static void run_one(const timed_op &op) {
    CHECK(op.launch(&op.op, &device, workspace, stream));
    CHECK(cudaStreamSynchronize(stream));
}

static double silu(double x) {
    return x / (1 + exp(-x));
}

static void check_linear(const timed_op &op) {
    const cuda_view *views = op.op.views;
    bool normalise = op.op.op.constants.normalise;
    std::vector<double> x = normalised(views[0], normalise ? &views[1] : NULL);
    uint32_t first = normalise ? 2 : 1, count = op.kind == HEAD ? 1 : op.op.op.constants.matrix_count;
    std::vector<std::vector<float>> before;
    for (uint32_t i = 0; i < count; i++)
        before.push_back(fetch(views[first + 2 * i + 1]));
    run_one(op);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t rows = std::min(views[first + 2 * i].rows, 20000u);
        std::vector<double> y = product(unpacked(views[first + 2 * i], 0, rows), x.data(), x.size());
        if (op.op.op.constants.accumulate)
            for (size_t row = 0; row < y.size(); row++)
                y[row] += before[i][row];
        compare(part_names[op.kind], y, fetch(views[first + 2 * i + 1]));
    }
    if (op.kind == HEAD) {
        uint32_t rows = 4096, start = VOCABULARY - rows;
        std::vector<float> all = fetch(views[first + 1]);
        compare("head, last rows", product(unpacked(views[first], start, rows), x.data(), x.size()),
                std::vector<float>(all.begin() + start, all.end()));
    }
}

static std::vector<double> dequantised8(const cuda_view &view) {
    std::vector<unsigned char> codes = fetch<unsigned char>(view.data, (uint64_t)view.rows * view.columns);
    std::vector<float> pairs = fetch<float>(view.scales, (uint64_t)view.rows * view.columns / 32);
    std::vector<double> values(codes.size());
    for (size_t i = 0; i < values.size(); i++)
        values[i] = (double)pairs[i / 64 * 2] * codes[i] + pairs[i / 64 * 2 + 1];
    return values;
}

static void check_router(const timed_op &op) {
    const cuda_view *views = op.op.views;
    std::vector<double> x = normalised(views[0], &views[1]);
    CHECK(cudaMemset(views[4].data, 255, CHOSEN * 4));
    run_one(op);
    std::vector<double> logits = product(dequantised8(views[2]), x.data(), x.size());
    double gate = product(dequantised8(views[3]), x.data(), x.size())[0];
    std::vector<int32_t> ids = fetch<int32_t>(views[4].data, CHOSEN);
    std::vector<uint32_t> order(EXPERTS);
    for (uint32_t i = 0; i < EXPERTS; i++)
        order[i] = i;
    std::sort(order.begin(), order.end(), [&](uint32_t i, uint32_t j) { return logits[i] > logits[j]; });
    std::vector<double> scores;
    double sum = 0;
    int wrong = 0;
    for (uint32_t i = 0; i < CHOSEN; i++) {
        scores.push_back(exp(logits[order[i]] - logits[order[0]]));
        sum += scores[i];
        wrong += ids[i] != (int32_t)order[i];
    }
    for (double &score : scores)
        score /= sum;
    scores.push_back(1 / (1 + exp(-gate)));
    printf("check router ids: %d wrong; logits %.4f .. %.4f\n", wrong, logits[order[0]],
           logits[order[CHOSEN]]);
    compare("router scores", scores, fetch(views[5]));
}

/* gate_up: the op, or the pair of the router and it. */
static void check_experts(const timed_op &gate_up, const timed_op &down) {
    const cuda_view *views = gate_up.kind == ROUTE ? gate_up.second.views : gate_up.op.views;
    std::vector<double> x = normalised(views[0], &views[1]);
    std::vector<float> before = fetch(down.op.views[6]);
    run_one(gate_up);
    run_one(down);
    std::vector<int32_t> ids = fetch<int32_t>(views[2].data, CHOSEN);
    std::vector<float> scores = fetch(down.op.views[3]);
    std::vector<double> expected, y(before.begin(), before.end());
    for (uint32_t i = 0; i <= CHOSEN; i++) {
        bool is_shared = i == CHOSEN;
        uint32_t first = is_shared ? 0 : (uint32_t)ids[i] * WIDTH;
        std::vector<double> gate =
            product(unpacked(views[is_shared ? 5 : 3], first, WIDTH), x.data(), HIDDEN);
        std::vector<double> up = product(unpacked(views[is_shared ? 6 : 4], first, WIDTH), x.data(), HIDDEN);
        for (uint32_t row = 0; row < WIDTH; row++)
            gate[row] = silu(gate[row]) * up[row];
        std::vector<double> out = product(
            unpacked(down.op.views[is_shared ? 5 : 4], is_shared ? 0 : (uint32_t)ids[i] * HIDDEN, HIDDEN),
            gate.data(), WIDTH);
        for (uint32_t row = 0; row < HIDDEN; row++)
            y[row] += scores[i] * out[row];
        if (is_shared)
            compare("gate up, shared", gate, fetch(views[8]));
        else
            expected.insert(expected.end(), gate.begin(), gate.end());
    }
    compare("gate up, routed", expected, fetch(views[7]));
    compare("down", y, fetch(down.op.views[6]));
}

static void check_delta(const timed_op &op, uint32_t position) {
    const cuda_view *views = op.op.views;
    std::vector<float> qkv = fetch(views[1]), a = fetch(views[2]), b = fetch(views[3]),
                       taps = fetch(views[4]), A_log = fetch(views[5]), dt_bias = fetch(views[6]),
                       z = fetch(views[7]), weight = fetch(views[8]), history = fetch(views[9]),
                       state = fetch(views[10]);
    run_one(op);
    std::vector<double> convolved(CHANNELS), y(VALUES), new_state(state.size()),
        new_history(history.begin(), history.end());
    for (uint32_t c = 0; c < CHANNELS; c++) {
        double sum = (double)taps[c * TAPS + TAPS - 1] * qkv[c];
        for (uint32_t j = 1; j < TAPS; j++)
            sum += (double)taps[c * TAPS + TAPS - 1 - j] * history[(position - j) % TAPS * CHANNELS + c];
        convolved[c] = silu(sum);
        new_history[position % TAPS * CHANNELS + c] = qkv[c];
    }
    for (uint32_t head = 0; head < VALUE_HEADS; head++) {
        const double *q = &convolved[head / 2 * SIZE], *k = q + KEY_HEADS * SIZE,
                     *v = &convolved[2 * KEY_HEADS * SIZE + head * SIZE];
        double qq = 0, kk = 0, squares = 0, out[SIZE];
        for (uint32_t i = 0; i < SIZE; i++)
            qq += q[i] * q[i], kk += k[i] * k[i];
        double q_scale = 1 / sqrt(qq + 1e-6) / sqrt((double)SIZE), k_scale = 1 / sqrt(kk + 1e-6);
        double decay = exp(-exp((double)A_log[head]) * log1p(exp((double)a[head] + dt_bias[head]))),
               beta = 1 / (1 + exp(-(double)b[head]));
        for (uint32_t row = 0; row < SIZE; row++) {
            const float *old = &state[(head * SIZE + row) * SIZE];
            double *now = &new_state[(head * SIZE + row) * SIZE], seen = 0;
            out[row] = 0;
            for (uint32_t i = 0; i < SIZE; i++)
                seen += decay * old[i] * k[i] * k_scale;
            for (uint32_t i = 0; i < SIZE; i++) {
                now[i] = decay * old[i] + beta * (v[row] - seen) * k[i] * k_scale;
                out[row] += now[i] * q[i] * q_scale;
            }
            squares += out[row] * out[row];
        }
        for (uint32_t row = 0; row < SIZE; row++)
            y[head * SIZE + row] =
                out[row] / sqrt(squares / SIZE + 1e-6) * weight[row] * silu(z[head * SIZE + row]);
    }
    compare("delta step", y, fetch(views[11]));
    compare("delta step, state", new_state, fetch(views[10]));
    compare("delta step, history", new_history, fetch(views[9]));
}

static void turn(std::vector<double> &x, uint32_t position) {
    for (uint32_t j = 0; j < 32; j++) {
        float frequency = 1.0f / powf(1e7f, (float)(2 * j) / 64), angle = (float)position * frequency;
        double first = x[j], second = x[j + 32];
        x[j] = first * cos((double)angle) - second * sin((double)angle);
        x[j + 32] = second * cos((double)angle) + first * sin((double)angle);
    }
}

static std::vector<double> head_normalised(const float *x, const std::vector<float> &weight) {
    std::vector<double> y(HEAD_SIZE);
    double square = 0;
    for (uint32_t i = 0; i < HEAD_SIZE; i++)
        square += (double)x[i] * x[i];
    for (uint32_t i = 0; i < HEAD_SIZE; i++)
        y[i] = x[i] / sqrt(square / HEAD_SIZE + 1e-6) * weight[i];
    return y;
}

static void check_attention(const timed_op &prepare, const timed_op &attention, uint32_t position) {
    const cuda_view *views = prepare.op.views;
    std::vector<float> q_and_gate = fetch<float>(views[1].data, 2 * HEADS * HEAD_SIZE), k = fetch(views[2]),
                       v = fetch(views[3]);
    run_one(prepare);
    run_one(attention);
    std::vector<double> expected;
    for (uint32_t head = 0; head < HEADS; head++) {
        std::vector<double> y = head_normalised(&q_and_gate[head * 2 * HEAD_SIZE], fetch(views[4]));
        turn(y, position);
        expected.insert(expected.end(), y.begin(), y.end());
    }
    std::vector<float> query = fetch(views[6]);
    compare("qk prep, query", expected, query);
    uint32_t width = KV_HEADS * HEAD_SIZE;
    std::vector<uint16_t> keys = fetch<uint16_t>(views[7].data, (uint64_t)(position + 1) * width),
                          values = fetch<uint16_t>(views[8].data, (uint64_t)(position + 1) * width);
    std::vector<double> row(width);
    std::vector<float> written(width), written_v(width);
    int differs = 0;
    for (uint32_t head = 0; head < KV_HEADS; head++) {
        std::vector<double> y = head_normalised(&k[head * HEAD_SIZE], fetch(views[5]));
        turn(y, position);
        for (uint32_t i = 0; i < HEAD_SIZE; i++) {
            row[head * HEAD_SIZE + i] = y[i];
            written[head * HEAD_SIZE + i] = bf16(keys[(uint64_t)position * width + head * HEAD_SIZE + i]);
            written_v[head * HEAD_SIZE + i] = bf16(values[(uint64_t)position * width + head * HEAD_SIZE + i]);
            differs += fabs(written_v[head * HEAD_SIZE + i] - v[head * HEAD_SIZE + i]) >
                       0.004 * fabs(v[head * HEAD_SIZE + i]);
        }
    }
    compare("qk prep, key (bfloat16)", row, written);
    if (differs > 0)
        printf("check qk prep, value: %d WRONG\n", differs);
    expected.assign(HEADS * HEAD_SIZE, 0);
    for (uint32_t head = 0; head < HEADS; head++) {
        std::vector<double> scores(position + 1);
        double largest = -1e300, total = 0;
        uint32_t column = head / 8 * HEAD_SIZE;
        for (uint32_t i = 0; i <= position; i++) {
            double sum = 0;
            for (uint32_t j = 0; j < HEAD_SIZE; j++)
                sum += (double)query[head * HEAD_SIZE + j] * bf16(keys[(uint64_t)i * width + column + j]);
            scores[i] = sum / 16;
            largest = std::max(largest, scores[i]);
        }
        for (uint32_t i = 0; i <= position; i++) {
            double weight = exp(scores[i] - largest);
            total += weight;
            for (uint32_t j = 0; j < HEAD_SIZE; j++)
                expected[head * HEAD_SIZE + j] += weight * bf16(values[(uint64_t)i * width + column + j]);
        }
        for (uint32_t j = 0; j < HEAD_SIZE; j++)
            expected[head * HEAD_SIZE + j] *=
                1 / total / (1 + exp(-(double)q_and_gate[(head * 2 + 1) * HEAD_SIZE + j]));
    }
    compare("attention", expected, fetch(attention.op.views[5]));
}

static const timed_op &first_of(const std::vector<timed_op> &ops, part kind) {
    for (const timed_op &op : ops)
        if (op.kind == kind)
            return op;
    exit(2);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    uint32_t layers = argc > 1 ? (uint32_t)atoi(argv[1]) : 40,
             context = argc > 2 ? (uint32_t)atoi(argv[2]) : 0;
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    device.major = properties.major, device.minor = properties.minor,
    device.multiprocessors = properties.multiProcessorCount;
    device.shared_bytes = (int)properties.sharedMemPerBlockOptin;
    struct policy policy = {};
    policy.concurrent = true;
    device.policy = &policy;
    CHECK(cudaStreamCreate(&stream));
    workspace = device_memory(64 << 20);
    cuda_view record = floats(1, 64);
    struct step_record step = {};
    step.position = context > 0 ? context - 1 : 301, step.rows = 1;
    CHECK(cudaMemcpy(record.data, &step, sizeof step, cudaMemcpyHostToDevice));
    std::vector<timed_op> ops = build_step(layers, context, record);
    CHECK(cudaDeviceSynchronize());

    check_linear(first_of(ops, PROJECTIONS));
    check_delta(first_of(ops, DELTA), step.position);
    check_linear(first_of(ops, OUT));
    check_router(first_of(ops, ROUTER));
    check_experts(first_of(ops, GATE_UP), first_of(ops, DOWN));
    check_router(first_of(ops, ROUTE));
    check_experts(first_of(ops, ROUTE), first_of(ops, DOWN));
    check_linear(first_of(ops, HEAD));
    if (context > 0 && context <= 8192)
        check_attention(first_of(ops, QK_PREP), first_of(ops, ATTENTION), step.position);
    if (argc > 3)
        return 0;

    double bytes[PARTS + 1] = {0};
    uint32_t count[PARTS + 1] = {0};
    for (const timed_op &op : ops) {
        bytes[op.kind] += op.bytes, bytes[PARTS] += op.bytes;
        count[op.kind]++, count[PARTS]++;
    }
    double apart = time_graph(ops, [](const timed_op &op) { return op.kind != ROUTE; });
    printf("step with router and gate and up apart: %.1f us\n", apart * 1e3);
    bytes[PARTS] -= bytes[ROUTE];
    auto fused = [](const timed_op &op) { return op.kind != ROUTER && op.kind != GATE_UP; };
    double all = time_graph(ops, fused);
    printf("%-12s %9.1f us, %7.1f MB, %5.2f TB/s, %5.1f %% of the limit, %.0f steps/s\n", "step", all * 1e3,
           bytes[PARTS] / 1e6, bytes[PARTS] / all / 1e9, 100 * bytes[PARTS] / (all * 1e-3) / LIMIT,
           1e3 / all);
    for (int kind = 0; kind < PARTS; kind++) {
        if (count[kind] == 0)
            continue;
        double alone = time_graph(ops, [&](const timed_op &op) { return op.kind == kind; });
        double without = time_graph(ops, [&](const timed_op &op) { return op.kind != kind && fused(op); });
        printf(
            "%-12s alone %6.2f us each, %5.2f TB/s, %5.1f %% of the limit; step without it -%6.2f us each\n",
            part_names[kind], alone * 1e3 / count[kind], bytes[kind] / alone / 1e9,
            100 * bytes[kind] / (alone * 1e-3) / LIMIT, (all - without) * 1e3 / count[kind]);
    }
    return 0;
}
