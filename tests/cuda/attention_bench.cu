/* Speed and exactness of attention while a prompt is read. */
#include "bench.cuh"

#include "backend/cuda/kernels/prefill_attention.cuh"
#include "backend/cuda/kernels/prefill_attention_warps.cuh"

/* 16 heads of 256, 2 KV heads; `tokens` rows after `position` others; queue(arguments) launches a kernel. */
template <typename QUEUE>
static void bench_attention(uint32_t tokens, uint32_t position, const char *how, QUEUE queue) {
    uint32_t heads = 16, kv_heads = 2, size = 256, limit = position + tokens + 100;
    float *q = random_float((uint64_t)tokens * heads * size, 1),
          *gate = random_float((uint64_t)tokens * heads * 512, 1);
    __nv_bfloat16 *keys = random_bf16((uint64_t)limit * kv_heads * size, 1);
    __nv_bfloat16 *values = random_bf16((uint64_t)limit * kv_heads * size, 1);
    float *y = device_array<float>((uint64_t)tokens * heads * size);
    uint32_t *record = to_device(std::vector<uint32_t>{position});
    struct attention_arguments arguments = {record, q,    gate + 256,      keys,   values, y,        size,
                                            512,    size, kv_heads * size, tokens, heads,  kv_heads, limit};
    auto launch = [&](int) { check(queue(arguments)); };
    poison(y, (uint64_t)tokens * heads * size * 4, 0xff);
    launch(0);
    check(cudaDeviceSynchronize());
    auto host_q = to_host(q, (uint64_t)tokens * heads * size),
         host_gate = to_host(gate, (uint64_t)tokens * heads * 512);
    auto host_k = to_host(keys, (uint64_t)limit * kv_heads * size);
    auto host_v = to_host(values, (uint64_t)limit * kv_heads * size);
    auto found = to_host(y, (uint64_t)tokens * heads * size);
    struct distance distance = {};
    for (int i = 0; i < 24; i++) {
        uint32_t t = i == 0 ? 0 : i == 1 ? tokens - 1 : random_below(tokens), head = random_below(heads);
        uint32_t seen = position + t + 1, kv = head / (heads / kv_heads);
        std::vector<double> weights(seen), sum(size);
        double most = -INFINITY, total = 0;
        for (uint32_t p = 0; p < seen; p++) {
            for (uint32_t d = 0; d < size; d++)
                weights[p] += (double)host_q[((uint64_t)t * heads + head) * size + d] *
                              __bfloat162float(host_k[((uint64_t)p * kv_heads + kv) * size + d]) / 16;
            most = std::max(most, weights[p]);
        }
        for (uint32_t p = 0; p < seen; p++) {
            double w = exp(weights[p] - most);
            total += w;
            for (uint32_t d = 0; d < size; d++)
                sum[d] += w * __bfloat162float(host_v[((uint64_t)p * kv_heads + kv) * size + d]);
        }
        for (uint32_t d = 0; d < size; d++)
            distance.add(found[((uint64_t)t * heads + head) * size + d],
                         sum[d] / total /
                             (1 + exp(-host_gate[((uint64_t)t * heads + head) * 512 + 256 + d])));
    }
    for (auto value : found)
        distance.finite &= std::isfinite(value);
    double pairs = (double)tokens * position + tokens * (tokens + 1.0) / 2;
    char name[96];
    snprintf(name, sizeof name, "attention %s T=%u at %u", how, tokens, position);
    report(name, time_of(launch), pairs * heads * size * 4, tokens * heads * size * 12.0 + limit * 2048.0,
           distance);
    cudaFree(q);
    cudaFree(gate);
    cudaFree(keys);
    cudaFree(values);
    cudaFree(y);
}

static void hopper(uint32_t tokens, uint32_t position) {
    bench_attention(tokens, position, "hopper", [](const struct attention_arguments &arguments) {
        return attention_launch<float>(arguments, CUDA_EXCLUSIVE, 0);
    });
}

/* What other GPUs run. */
static void warps(uint32_t tokens, uint32_t position) {
    bench_attention(tokens, position, "warps", [](const struct attention_arguments &arguments) {
        return attention_warps_launch<float>(arguments, CUDA_EXCLUSIVE, 0);
    });
}

int main(void) {
    for (auto bench : {hopper, warps}) {
        bench(4096, 0);
        bench(1000, 0);
        bench(256, 0);
        bench(2, 61);
        bench(777, 3333);
        bench(4096, 28672);
    }
    return 0;
}
