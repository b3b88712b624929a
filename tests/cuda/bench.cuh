/* What the benchmarks of kernels share: random data on the device, times of launches, distances from what was
 * expected. Any error of CUDA ends the program. */
#ifndef CALLA_TESTS_CUDA_BENCH_CUH
#define CALLA_TESTS_CUDA_BENCH_CUH

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#define check(...)                                                                                           \
    do {                                                                                                     \
        cudaError_t error_ = (__VA_ARGS__);                                                                  \
        if (error_ != cudaSuccess) {                                                                         \
            printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error_));                           \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

static inline int multiprocessors(void) {
    static int count;
    if (count == 0)
        check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0));
    return count;
}

template <typename T> static T *device_array(uint64_t count) {
    T *data;
    check(cudaMalloc(&data, count * sizeof(T) + 256));
    return data;
}

template <typename T> static std::vector<T> to_host(const T *data, uint64_t count) {
    std::vector<T> host(count);
    check(cudaMemcpy(host.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
}

template <typename T> static T *to_device(const std::vector<T> &host) {
    T *data = device_array<T>(host.size());
    check(cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    return data;
}

static inline void poison(void *data, uint64_t bytes, int value) {
    check(cudaMemset(data, value, bytes));
}

__host__ __device__ static inline uint32_t mixed(uint64_t x) {
    x = (x + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32);
}

/* Roughly normal. */
__host__ __device__ static inline float normal_of(uint64_t x) {
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += mixed(x * 4 + i) * 0x1p-32f;
    return (sum - 2) * 1.7320508f;
}

static inline uint32_t random_below(uint32_t limit) {
    static uint64_t counter = 12345;
    return mixed(counter++) % limit;
}

__global__ static void fill_float(float *data, uint64_t count, float scale, uint64_t seed) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x)
        data[i] = scale * normal_of(i + seed * 0x100000000u);
}

__global__ static void fill_bf16(__nv_bfloat16 *data, uint64_t count, float scale, uint64_t seed) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x)
        data[i] = __float2bfloat16(scale * normal_of(i + seed * 0x100000000u));
}

/* Tiles of 4-bit weights with bf16 scales: weights of deviation about 0.02. */
__global__ static void fill_tiles(uint8_t *data, uint64_t tiles) {
    static uint64_t const words = 576 / 4;
    uint32_t *word = (uint32_t *)data;
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < tiles * words;
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint32_t bits = mixed(i * 3 + 1);
        if (i % words >= 128) {
            float scale = 0.002f + 0.004f * (bits & 0xffff) / 65536.0f;
            __nv_bfloat162 pair =
                __floats2bfloat162_rn(scale, -7.5f * scale + 0.002f * (bits >> 16) / 65536.0f);
            bits = *(uint32_t *)&pair;
        }
        word[i] = bits;
    }
}

static inline float *random_float(uint64_t count, float scale) {
    static uint64_t seed = 1;
    float *data = device_array<float>(count);
    fill_float<<<4096, 256>>>(data, count, scale, seed++);
    check(cudaGetLastError());
    return data;
}

static inline __nv_bfloat16 *random_bf16(uint64_t count, float scale) {
    static uint64_t seed = 1000;
    __nv_bfloat16 *data = device_array<__nv_bfloat16>(count);
    fill_bf16<<<4096, 256>>>(data, count, scale, seed++);
    check(cudaGetLastError());
    return data;
}

/* Relative L2 and largest distance of what was found from what was expected. */
struct distance {
    double squares, expected_squares, largest;
    bool bad, finite = true;

    void add(double found, double expected) {
        double d = found - expected;
        bad |= !std::isfinite(found);
        squares += d * d;
        expected_squares += expected * expected;
        largest = std::max(largest, fabs(d));
    }
    double relative() const {
        return expected_squares > 0 ? sqrt(squares / expected_squares) : 0;
    }
};

/* Median microseconds of a launch; launch(i) queues run i on stream 0. */
template <typename LAUNCH> static double time_of(LAUNCH launch) {
    enum { RUNS = 15 };
    cudaEvent_t events[RUNS + 1];
    for (auto &event : events)
        check(cudaEventCreate(&event));
    for (int i = 0; i < 3; i++)
        launch(i);
    for (int i = 0; i < RUNS; i++) {
        check(cudaEventRecord(events[i]));
        launch(i);
    }
    check(cudaEventRecord(events[RUNS]));
    check(cudaDeviceSynchronize());
    std::vector<float> times(RUNS);
    for (int i = 0; i < RUNS; i++)
        check(cudaEventElapsedTime(&times[i], events[i], events[i + 1]));
    for (auto &event : events)
        check(cudaEventDestroy(event));
    std::sort(times.begin(), times.end());
    return times[RUNS / 2] * 1000;
}

static inline void report(const char *name, double microseconds, double flops, double bytes,
                          const struct distance &distance) {
    printf("%-44s %9.1f us %7.1f TFLOP/s (%4.1f %%) %6.2f TB/s  off %.1e, largest %.1e%s%s\n", name,
           microseconds, flops / microseconds * 1e-6, flops / microseconds * 1e-6 / 7.9,
           bytes / microseconds * 1e-6, distance.relative(), distance.largest,
           distance.bad ? " NOT A NUMBER" : "", distance.finite ? "" : " NOT ALL WRITTEN");
    fflush(stdout);
}

static inline void run_part(const char *name, void (*part)(void), int count, char **names) {
    bool wanted = count < 2;
    for (int i = 1; i < count; i++)
        wanted |= strcmp(names[i], name) == 0;
    if (wanted)
        part();
}

#endif
