/* Measures the decode kernels without a model: a step of the full-size shape with random weights, every layer
 * its own, so that the L2 cache holds none of them; and each kind of op alone. Checks the kernels' results
 * against loops in double on the processor.
 *
 *   decode_bench [layers] [context] [check] [older]
 *
 * check: does not measure; older: as on a GPU before Hopper, with the least shared memory that any has */
#include "decode_check.cuh"

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
    bool only_check = false;
    for (int i = 3; i < argc; i++) {
        only_check |= strcmp(argv[i], "check") == 0;
        if (strcmp(argv[i], "older") == 0)
            device.major = 8, device.minor = 6, device.shared_bytes = 99 * 1024;
    }
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
    check_experts(first_of(ops, GATE_UP), first_of(ops, GATE_UP), first_of(ops, DOWN));
    if (device.major >= 9) {
        check_router(first_of(ops, ROUTE));
        check_experts(first_of(ops, ROUTE), first_of(ops, GATE_UP), first_of(ops, DOWN));
    }
    check_linear(first_of(ops, HEAD));
    if (context > 0 && context <= 8192)
        check_attention(first_of(ops, QK_PREP), first_of(ops, ATTENTION), step.position);
    if (only_check)
        return 0;

    double bytes[PARTS + 1] = {0};
    uint32_t count[PARTS] = {0};
    for (const timed_op &op : ops) {
        bytes[op.kind] += op.bytes;
        bytes[PARTS] += in_step(op.kind) ? op.bytes : 0;
        count[op.kind]++;
    }
    double all = time_graph(ops, [](const timed_op &op) { return in_step(op.kind); });
    printf("%-12s %9.1f us, %7.1f MB, %5.2f TB/s, %5.1f %% of the limit, %.0f steps/s\n", "step", all * 1e3,
           bytes[PARTS] / 1e6, bytes[PARTS] / all / 1e9, 100 * bytes[PARTS] / (all * 1e-3) / LIMIT,
           1e3 / all);
    for (int kind = 0; kind < PARTS; kind++) {
        if (count[kind] == 0)
            continue;
        double alone = time_graph(ops, [&](const timed_op &op) { return op.kind == kind; });
        printf("%-12s alone %6.2f us each, %5.2f TB/s, %5.1f %% of the limit", part_names[kind],
               alone * 1e3 / count[kind], bytes[kind] / alone / 1e9,
               100 * bytes[kind] / (alone * 1e-3) / LIMIT);
        if (in_step((part)kind)) {
            double without =
                time_graph(ops, [&](const timed_op &op) { return in_step(op.kind) && op.kind != kind; });
            printf("; step without it -%6.2f us each", (all - without) * 1e3 / count[kind]);
        }
        printf("\n");
    }
    return 0;
}
