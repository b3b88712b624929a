/* Speed and exactness of the router over a prompt. */
#include "bench.cuh"

#include "backend/cuda/kernels/prefill_router.cuh"

static void bench_router(uint32_t tokens, bool normalise, bool spread) {
    uint32_t columns = 2048, experts = 256, chosen = 8, groups = columns / 64;
    float *x = random_float((uint64_t)tokens * columns, 3), *norm = random_float(columns, 1);
    std::vector<uint8_t> codes((experts + 1) * columns);
    std::vector<float2> pairs((experts + 1) * groups);
    uint64_t seed = 5;
    for (auto &code : codes)
        code = mixed(seed++);
    for (auto &pair : pairs) {
        pair.x = 0.0003f * (1 + (mixed(seed++) & 255) / 256.0f);
        pair.y = -127.5f * pair.x + 0.001f * normal_of(seed++);
    }
    uint8_t *device_codes = to_device(codes);
    float2 *device_pairs = to_device(pairs);
    int32_t *ids = device_array<int32_t>(tokens * chosen);
    float *scores = device_array<float>(tokens * (chosen + 1));
    struct router_arguments arguments = {x,
                                         normalise ? norm : NULL,
                                         device_codes,
                                         device_codes + experts * columns,
                                         device_pairs,
                                         device_pairs + experts * groups,
                                         ids,
                                         scores,
                                         columns,
                                         chosen,
                                         chosen + 1,
                                         tokens,
                                         columns,
                                         experts,
                                         chosen,
                                         1e-6f};
    float *logits = spread ? device_array<float>((uint64_t)tokens * (experts + 1)) : NULL;
    auto launch = [&](int) {
        check(router_launch(arguments, logits, multiprocessors(), CUDA_OVERLAPPING, 0));
    };
    poison(scores, tokens * (chosen + 1) * 4, 0xff);
    launch(0);
    auto found = to_host(scores, tokens * (chosen + 1));
    auto found_ids = to_host(ids, tokens * chosen);
    auto host_x = to_host(x, (uint64_t)tokens * columns), host_norm = to_host(norm, columns);
    struct distance distance = {};
    uint32_t wrong = 0;
    for (int i = 0; i < 100; i++) {
        uint32_t t = i == 0 ? tokens - 1 : random_below(tokens);
        std::vector<double> row(columns), logits(experts + 1);
        double squares = 0, total = 0;
        for (uint32_t k = 0; k < columns; k++)
            squares += (double)host_x[t * columns + k] * host_x[t * columns + k];
        for (uint32_t k = 0; k < columns; k++)
            row[k] = normalise ? host_x[t * columns + k] / sqrt(squares / columns + 1e-6) * host_norm[k]
                               : host_x[t * columns + k];
        for (uint32_t e = 0; e <= experts; e++)
            for (uint32_t k = 0; k < columns; k++)
                logits[e] += ((double)pairs[e * groups + k / 64].x * codes[e * columns + k] +
                              pairs[e * groups + k / 64].y) *
                             row[k];
        for (uint32_t k = 0; k < chosen; k++)
            total += exp(logits[found_ids[t * chosen + k]]);
        for (uint32_t k = 0; k < chosen; k++) {
            uint32_t id = found_ids[t * chosen + k], above = 0;
            for (uint32_t e = 0; e < experts; e++)
                above += logits[e] > logits[id];
            wrong += above != k;
            distance.add(found[t * (chosen + 1) + k], exp(logits[id]) / total);
        }
        distance.add(found[t * (chosen + 1) + chosen], 1 / (1 + exp(-logits[experts])));
    }
    for (auto value : found)
        distance.finite &= std::isfinite(value);
    char name[96];
    snprintf(name, sizeof name, "router T=%u%s%s, %u misplaced of 800", tokens,
             normalise ? " normalised" : "", spread ? " spread" : "", wrong);
    report(name, time_of(launch), 2.0 * tokens * columns * experts, tokens * columns * 4.0, distance);
}

int main(void) {
    for (uint32_t tokens : {3u, 17u, 64u, 128u, 256u, 257u, 512u, 1000u, 2000u, 4096u})
        for (int i = 0; i < 2; i++)
            bench_router(tokens, tokens != 512, i == 1);
    return 0;
}
