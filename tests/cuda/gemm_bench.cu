/* Speed and exactness of the matrix products that read a prompt, at the full model's sizes: random weights
 * and activations, a sample of the outputs checked against plain sums, weights in rotation.
 *
 *   gemm_bench [linear] [experts] [streams] [warps]      all without one */
#include "bench.cuh"

#include "backend/cuda/kernels/prefill_gemm.cuh"
#include "backend/cuda/kernels/prefill_stream.cuh"
#include "backend/cuda/kernels/prefill_warps.cuh"

static uint8_t *random_tiles(uint64_t rows, uint64_t columns) {
    uint64_t tiles = rows / 16 * (columns / 64);
    uint8_t *data = device_array<uint8_t>(tiles * 576);
    fill_tiles<<<4096, 256>>>(data, tiles);
    check(cudaGetLastError());
    return data;
}

/* The tiles of random_tiles, which all have the same contents. */
static const uint8_t *host_tiles_of(const uint8_t *tiles, uint64_t rows, uint64_t columns) {
    static std::vector<uint8_t> host;
    uint64_t bytes = rows / 16 * (columns / 64) * 576;
    if (host.size() < bytes)
        host = to_host(tiles, bytes);
    return host.data();
}

/* scale * code + bias of an element of tiles on the host, or that rounded to bf16. */
static float weight_of(const uint8_t *tiles, uint64_t columns, uint64_t row, uint64_t column, bool rounded) {
    const uint8_t *tile = tiles + (row / 16 * (columns / 64) + column / 64) * 576;
    uint32_t g = row % 8, below = row % 16 / 8, j = column % 64 / 16, rest = column % 16;
    uint32_t lane = 4 * g + rest % 8 / 2, word = 2 * below + rest / 8, nibble = j + 4 * (rest & 1);
    uint32_t code = (*(const uint32_t *)(tile + 16 * lane + 4 * word) >> 4 * nibble) & 15;
    const __nv_bfloat16 *pair = (const __nv_bfloat16 *)(tile + 512 + 8 * g + 4 * below);
    float weight = __bfloat162float(pair[0]) * code + __bfloat162float(pair[1]);
    return rounded ? __bfloat162float(__float2bfloat16(weight)) : weight;
}

static double sum_of(const uint8_t *tiles, uint64_t columns, uint64_t row, const __nv_bfloat16 *x,
                     bool rounded) {
    double sum = 0;
    for (uint64_t k = 0; k < columns; k++)
        sum += (double)weight_of(tiles, columns, row, k, rounded) * __bfloat162float(x[k]);
    return sum;
}

/* queue(arguments) launches a kernel. */
template <typename QUEUE>
static void bench_product(uint32_t features, uint32_t columns, uint32_t tokens, const char *how,
                          QUEUE queue) {
    enum { COPIES = 6 };
    uint8_t *tiles[COPIES];
    for (int i = 0; i < COPIES; i++)
        tiles[i] = random_tiles(features, columns);
    __nv_bfloat16 *x = random_bf16((uint64_t)tokens * columns, 1);
    float *y = device_array<float>((uint64_t)tokens * features);
    struct gemm_arguments arguments = {};
    arguments.matrices[0] = {tiles[0], NULL, x, y, features, columns, features, 0, 1};
    arguments.matrix_count = 1;
    arguments.groups = columns / 64;
    arguments.tokens = tokens;
    auto launch = [&](int i) {
        arguments.matrices[0].tiles = tiles[i % COPIES];
        check(queue(arguments));
    };
    poison(y, (uint64_t)tokens * features * 4, 0);
    launch(0);
    auto found = to_host(y, (uint64_t)tokens * features);
    const uint8_t *host_tiles = host_tiles_of(tiles[0], features, columns);
    auto host_x = to_host(x, (uint64_t)tokens * columns);
    struct distance distance = {};
    for (int i = 0; i < 2000; i++) {
        uint32_t t = random_below(tokens), f = random_below(features);
        distance.add(found[(uint64_t)t * features + f],
                     sum_of(host_tiles, columns, f, &host_x[(uint64_t)t * columns], true));
    }
    char name[96];
    snprintf(name, sizeof name, "%ux%u T=%u %s", features, columns, tokens, how);
    arguments.matrices[0].accumulate = 0;
    report(name, time_of(launch), 2.0 * features * columns * tokens,
           (double)features * columns * 0.5625 + (double)tokens * (columns * 2 + features * 4), distance);
    for (int i = 0; i < COPIES; i++)
        cudaFree(tiles[i]);
    cudaFree(x);
    cudaFree(y);
}

template <int CONSUMERS, int TILES, int TOKENS, int KIND = GEMM_LINEAR>
static void bench_linear(uint32_t features, uint32_t columns, uint32_t tokens) {
    char how[64];
    snprintf(how, sizeof how, "%s <%d,%d,%d>", KIND == GEMM_SPLIT ? "split" : "linear", CONSUMERS, TILES,
             TOKENS);
    bench_product(features, columns, tokens, how, [](const struct gemm_arguments &arguments) {
        return gemm_launch<KIND, CONSUMERS, TILES, 576, float, TOKENS, TOKENS>(arguments, multiprocessors(),
                                                                               CUDA_EXCLUSIVE, 0);
    });
}

struct routing {
    std::vector<int32_t> starts, order;
    int32_t *device_starts, *device_order;
};

static struct routing random_routing(uint32_t tokens, uint32_t experts, uint32_t chosen) {
    struct routing r;
    std::vector<std::vector<int32_t>> of(experts);
    for (uint32_t t = 0; t < tokens; t++) {
        std::vector<bool> taken(experts);
        for (uint32_t k = 0; k < chosen;) {
            uint32_t e = random_below(experts);
            if (taken[e])
                continue;
            taken[e] = true;
            of[e].push_back(t * chosen + k++);
        }
    }
    for (auto &list : of) {
        r.starts.push_back(r.order.size());
        r.order.insert(r.order.end(), list.begin(), list.end());
    }
    r.starts.push_back(r.order.size());
    r.device_starts = to_device(r.starts);
    r.device_order = to_device(r.order);
    return r;
}

/* gate_up or down of 256 experts, 8 a token, and the shared one; queue(arguments) launches a kernel, whose
 * weights are rounded to bf16 or not. */
template <int KIND, typename QUEUE>
static void bench_experts(uint32_t tokens, const char *how, bool rounded, QUEUE queue) {
    enum { COPIES = 2, EXPERTS = 256, CHOSEN = 8 };
    uint32_t hidden = 2048, width = 512;
    uint32_t in = KIND == GEMM_GATE_UP ? hidden : width, out = KIND == GEMM_GATE_UP ? width : hidden;
    uint32_t pairs = tokens * CHOSEN, source_rows = KIND == GEMM_GATE_UP ? tokens : pairs;
    uint8_t *tiles[COPIES], *more[COPIES];
    for (int i = 0; i < COPIES; i++) {
        tiles[i] = random_tiles((uint64_t)EXPERTS * out, in);
        more[i] = random_tiles((uint64_t)EXPERTS * out, in);
    }
    uint8_t *shared = random_tiles(out, in), *shared_more = random_tiles(out, in);
    __nv_bfloat16 *x = random_bf16((uint64_t)source_rows * in, 1);
    __nv_bfloat16 *y = device_array<__nv_bfloat16>((uint64_t)pairs * out);
    __nv_bfloat16 *shared_y = device_array<__nv_bfloat16>((uint64_t)tokens * out);
    struct routing routing = random_routing(tokens, EXPERTS, CHOSEN);
    struct gemm_arguments arguments = {};
    arguments.matrices[0] = {tiles[0], more[0], x, y, out, in, out, 0, 0};
    arguments.matrices[1] = {shared, shared_more, x, shared_y, out, in, out, 0, 0};
    arguments.matrix_count = 2;
    arguments.groups = arguments.shared_groups = in / 64;
    arguments.tokens = tokens;
    arguments.starts = routing.device_starts;
    arguments.order = routing.device_order;
    arguments.experts = EXPERTS;
    arguments.pairs_a_row = KIND == GEMM_GATE_UP ? CHOSEN : 1;
    auto launch = [&](int i) {
        arguments.matrices[0].tiles = tiles[i % COPIES];
        arguments.matrices[0].more = more[i % COPIES];
        check(queue(arguments));
    };
    poison(y, (uint64_t)pairs * out * 2, 0xff);
    poison(shared_y, (uint64_t)tokens * out * 2, 0xff);
    launch(0);
    auto found = to_host(y, (uint64_t)pairs * out), found_shared = to_host(shared_y, (uint64_t)tokens * out);
    const uint8_t *host_tiles = host_tiles_of(tiles[0], (uint64_t)EXPERTS * out, in);
    auto host_x = to_host(x, (uint64_t)source_rows * in);
    struct distance distance = {};
    for (int i = 0; i < 3000; i++) {
        uint32_t at = random_below(pairs), pair = routing.order[at], f = random_below(out), e = 0;
        while (routing.starts[e + 1] <= (int32_t)at)
            e++;
        bool of_shared = i % 4 == 0;
        uint32_t row = of_shared ? random_below(tokens) : pair;
        const __nv_bfloat16 *from = &host_x[(uint64_t)(of_shared ? row : row / arguments.pairs_a_row) * in];
        uint64_t matrix_row = of_shared ? f : e * out + f;
        double sum = sum_of(host_tiles, in, matrix_row, from, rounded);
        if (KIND == GEMM_GATE_UP)
            sum = sum / (1 + exp(-sum)) * sum_of(host_tiles, in, matrix_row, from, rounded);
        distance.add(__bfloat162float(of_shared ? found_shared[(uint64_t)row * out + f]
                                                : found[(uint64_t)pair * out + f]),
                     sum);
    }
    for (auto &value : found)
        distance.finite &= isfinite(__bfloat162float(value));
    for (auto &value : found_shared)
        distance.finite &= isfinite(__bfloat162float(value));
    char name[96];
    snprintf(name, sizeof name, "%s T=%u %s", KIND == GEMM_GATE_UP ? "gate_up" : "down", tokens, how);
    double matrices = KIND == GEMM_GATE_UP ? 2 : 1;
    report(name, time_of(launch), 2.0 * matrices * in * out * (pairs + tokens),
           matrices * in * out * (EXPERTS + 1) * 0.5625 + 2.0 * source_rows * in +
               2.0 * (pairs + tokens) * out,
           distance);
    for (int i = 0; i < COPIES; i++) {
        cudaFree(tiles[i]);
        cudaFree(more[i]);
    }
    cudaFree(shared);
    cudaFree(shared_more);
    cudaFree(x);
    cudaFree(y);
    cudaFree(shared_y);
}

template <int KIND, int CONSUMERS, int TILES, int TOKENS, int... WIDTHS>
static void bench_gemm(uint32_t tokens) {
    char how[64];
    snprintf(how, sizeof how, "<%d,%d,%d>", CONSUMERS, TILES, TOKENS);
    bench_experts<KIND>(tokens, how, true, [](const struct gemm_arguments &arguments) {
        return gemm_launch<KIND, CONSUMERS, TILES, 576, __nv_bfloat16, TOKENS, WIDTHS...>(
            arguments, multiprocessors(), CUDA_EXCLUSIVE, 0);
    });
}

template <int KIND, int WARPS, int GROUPS, int STAGES, int WIDEST, int BLOCKS>
static void bench_stream(uint32_t tokens) {
    char how[64];
    typedef struct stream_shape<WARPS, GROUPS, STAGES, WIDEST, BLOCKS> shape;
    snprintf(how, sizeof how, "stream <%d,%d,%d,%d,%d>", WARPS, GROUPS, STAGES, WIDEST, BLOCKS);
    bench_experts<KIND>(tokens, how, false, [&](const struct gemm_arguments &arguments) {
        if (!stream_fits<KIND, shape>(arguments, 8 * tokens, 576, multiprocessors(), 232448)) {
            printf("%s does not fit\n", how);
            return cudaErrorInvalidValue;
        }
        return stream_launch<KIND, 576, __nv_bfloat16, shape>(arguments, multiprocessors(), CUDA_EXCLUSIVE,
                                                              0);
    });
}

template <int WIDE, int TALL, int TILES, int BLOCKS, int STAGES, int TOGETHER> struct bench_warps {
    typedef warps_shape<WIDE, TALL, TILES, BLOCKS, STAGES, TOGETHER> shape;
    char how[64];

    bench_warps() {
        snprintf(how, sizeof how, "warps <%d,%d,%d,%d,%d,%d>", WIDE, TALL, TILES, BLOCKS, STAGES, TOGETHER);
    }

    void product(uint32_t features, uint32_t columns, uint32_t tokens) const {
        bench_product(features, columns, tokens, how, [](const struct gemm_arguments &arguments) {
            return warps_launch<GEMM_LINEAR, 576, float, shape>(arguments, multiprocessors(), CUDA_EXCLUSIVE,
                                                                0);
        });
    }

    template <int KIND> void experts(uint32_t tokens) const {
        bench_experts<KIND>(tokens, how, true, [](const struct gemm_arguments &arguments) {
            return warps_launch<KIND, 576, __nv_bfloat16, shape>(arguments, multiprocessors(), CUDA_EXCLUSIVE,
                                                                 0);
        });
    }
};

static void linear(void) {
    bench_linear<2, 2, 128>(12352, 2048, 4096);
    bench_linear<2, 2, 128>(2048, 4096, 4096);
    bench_linear<2, 2, 128>(12352, 2048, 256);
    bench_linear<3, 1, 128>(12352, 2048, 256);
    bench_linear<2, 1, 128>(12352, 2048, 128);
    bench_linear<2, 1, 64>(12352, 2048, 64);
    bench_linear<2, 1, 64>(2048, 4096, 512);
    bench_linear<2, 1, 64, GEMM_SPLIT>(2048, 4096, 256);
    bench_linear<4, 1, 32, GEMM_SPLIT>(2048, 4096, 128);
}

static void experts(void) {
    bench_gemm<GEMM_GATE_UP, 2, 2, 160, 32, 64, 96, 112, 128, 144, 160>(4096);
    bench_gemm<GEMM_DOWN, 2, 2, 160, 32, 64, 96, 112, 128, 144, 160>(4096);
    bench_gemm<GEMM_GATE_UP, 2, 2, 32, 16, 32>(256);
    bench_gemm<GEMM_GATE_UP, 4, 2, 32, 16, 32>(256);
    bench_gemm<GEMM_GATE_UP, 4, 2, 16, 16>(256);
    bench_gemm<GEMM_DOWN, 2, 2, 32, 16, 32>(256);
    bench_gemm<GEMM_DOWN, 4, 1, 32, 16, 32>(256);
    bench_gemm<GEMM_DOWN, 4, 2, 32, 16, 32>(256);
    bench_gemm<GEMM_GATE_UP, 4, 2, 32, 16, 32>(1000);
}

static void streams(void) {
    for (uint32_t tokens : {2u, 24u, 64u, 128u, 256u, 512u, 1024u}) {
        bench_stream<GEMM_GATE_UP, 11, 4, 2, 2, 3>(tokens);
        bench_stream<GEMM_DOWN, 15, 4, 2, 3, 6>(tokens);
    }
}

/* What GPUs other than Hopper's run. */
static void warps(void) {
    struct bench_warps<4, 1, 2, 8, 3, 3> wide;
    struct bench_warps<4, 1, 1, 4, 6, 4> narrow;
    for (uint32_t tokens : {4096u, 1000u, 256u, 64u, 20u}) {
        wide.product(12352, 2048, tokens);
        wide.product(2048, 4096, tokens);
        narrow.product(12352, 2048, tokens);
        narrow.product(2048, 4096, tokens);
    }
    for (uint32_t tokens : {4096u, 1000u, 512u, 384u, 256u, 128u}) {
        wide.experts<GEMM_GATE_UP>(tokens);
        bench_stream<GEMM_GATE_UP, 7, 2, 3, 2, 3>(tokens);
        bench_stream<GEMM_GATE_UP, 7, 1, 3, 1, 2>(tokens);
        wide.experts<GEMM_DOWN>(tokens);
        bench_stream<GEMM_DOWN, 7, 2, 3, 2, 3>(tokens);
        bench_stream<GEMM_DOWN, 7, 1, 3, 1, 2>(tokens);
    }
}

int main(int count, char **names) {
    run_part("linear", linear, count, names);
    run_part("experts", experts, count, names);
    run_part("streams", streams, count, names);
    run_part("warps", warps, count, names);
    return 0;
}
