/* Speed and exactness of the delta rule over a prompt. */
#include "bench.cuh"

#include "backend/cuda/kernels/prefill_chunks.cuh"

/* 32 value heads, 16 key heads of 128: l2-normalised q and k, decays of 0.8 to 1. */
static void bench_scan(uint32_t tokens, bool chunks) {
    enum { HEADS = 32, KEY_HEADS = 16, SIZE = 128 };
    std::vector<float> q((uint64_t)tokens * KEY_HEADS * SIZE), k(q.size()),
        v((uint64_t)tokens * HEADS * SIZE);
    std::vector<float> decay((uint64_t)tokens * HEADS), beta(decay.size()),
        state((uint64_t)HEADS * SIZE * SIZE);
    uint64_t seed = 77;
    for (auto *array : {&q, &k, &v, &state})
        for (auto &value : *array)
            value = normal_of(seed++);
    for (uint64_t i = 0; i < q.size(); i += SIZE)
        for (auto *array : {&q, &k}) {
            double squares = 1e-6;
            for (int j = 0; j < SIZE; j++)
                squares += (*array)[i + j] * (*array)[i + j];
            for (int j = 0; j < SIZE; j++)
                (*array)[i + j] *= (array == &q ? 0.0883883f : 1) / sqrt(squares);
        }
    for (uint64_t i = 0; i < decay.size(); i++) {
        decay[i] = expf(-0.2f * (mixed(seed++) & 0xffff) / 65536.0f);
        beta[i] = (mixed(seed++) & 0xffff) / 65536.0f;
    }
    float *y = device_array<float>(v.size()), *device_state = to_device(state);
    struct scan_arguments arguments = {to_device(q),
                                       to_device(k),
                                       to_device(v),
                                       to_device(decay),
                                       to_device(beta),
                                       device_state,
                                       y,
                                       KEY_HEADS * SIZE,
                                       KEY_HEADS * SIZE,
                                       HEADS * SIZE,
                                       HEADS,
                                       HEADS,
                                       HEADS * SIZE,
                                       tokens,
                                       HEADS,
                                       KEY_HEADS};
    struct chunks_memory memory;
    uint8_t *workspace = device_array<uint8_t>(chunks_bytes(tokens, HEADS, KEY_HEADS, &memory, NULL));
    auto launch = [&](int) {
        check(chunks ? chunks_launch(arguments, workspace, CUDA_EXCLUSIVE, 0)
                     : scan_launch(arguments, CUDA_EXCLUSIVE, 0));
    };
    poison(y, v.size() * 4, 0xff);
    launch(0);
    check(cudaDeviceSynchronize());
    auto found = to_host(y, v.size()), found_state = to_host(device_state, state.size());
    struct distance distance = {};
    for (int i = 0; i < 16; i++) {
        uint32_t head = random_below(HEADS), row = random_below(SIZE);
        std::vector<double> s(state.begin() + (head * SIZE + row) * SIZE,
                              state.begin() + (head * SIZE + row + 1) * SIZE);
        for (uint32_t t = 0; t < tokens; t++) {
            const float *kt = &k[((uint64_t)t * KEY_HEADS + head / 2) * SIZE];
            const float *qt = &q[((uint64_t)t * KEY_HEADS + head / 2) * SIZE];
            double sk = 0, sq = 0, d = decay[(uint64_t)t * HEADS + head];
            for (int j = 0; j < SIZE; j++)
                sk += (s[j] *= d) * kt[j];
            double change =
                beta[(uint64_t)t * HEADS + head] * (v[((uint64_t)t * HEADS + head) * SIZE + row] - sk);
            for (int j = 0; j < SIZE; j++)
                sq += (s[j] += change * kt[j]) * qt[j];
            distance.add(found[((uint64_t)t * HEADS + head) * SIZE + row], sq);
        }
        for (int j = 0; j < SIZE; j++)
            distance.add(found_state[(head * SIZE + row) * SIZE + j], s[j]);
    }
    for (auto value : found)
        distance.finite &= std::isfinite(value);
    char name[96];
    snprintf(name, sizeof name, "delta scan T=%u, %s", tokens, chunks ? "chunks" : "registers");
    report(name, time_of(launch), 7.0 * tokens * HEADS * SIZE * SIZE, v.size() * 8.0 + q.size() * 8.0,
           distance);
}

int main(void) {
    for (bool chunks : {false, true})
        for (uint32_t tokens : {4096, 1000, 256, 64, 33, 2})
            bench_scan(tokens, chunks);
    return 0;
}
