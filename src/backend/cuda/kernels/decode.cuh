/* Matrix times vector with 4-bit codes, for one row of input: what the decode kernels share.
 *
 * The matrix units multiply the codes, as unsigned bytes, with x in fixed point: per group of 64 columns, x =
 * scale (256 high + low) with signed bytes high and low, which is exact to 1/65,000 of the group's largest
 * |x|. A product of 16 rows and 256 columns (four tiles, a *quad*) is one accumulator: of its eight columns,
 * number 2 i is the sum over group i with the high bytes and 2 i + 1 with the low ones, the operand B being
 * zero where column and group do not belong together. So a lane ends with the sums of one group and two rows,
 * and applies their scales and biases once for four tiles. Integer sums are exact in any order.
 *
 * The order of the codes within a tile suits 16-bit operands (cuda.h). As the bytes of a 32-bit word, masked
 * with 0x0f0f0f0f, they come in the order of columns 2 t, 2 t + 32, 2 t + 1, 2 t + 33, and the operand B
 * follows.
 *
 * Tiles come to shared memory by bulk copies that one thread issues before it waits for the kernel before:
 * what a kernel needs of the weights is on its way while its input is still being computed. GPUs before
 * Hopper have neither bulk copies, nor kernels that begin early, nor clusters. There all threads copy, and a
 * block does alone what a cluster does; these variants of the kernels run anywhere. */
#ifndef CALLA_BACKEND_CUDA_KERNELS_DECODE_CUH
#define CALLA_BACKEND_CUDA_KERNELS_DECODE_CUH

#include "backend/cuda/kernels/launch.cuh"

#include <stdint.h>

#define QUAD_COLUMNS 256
#define QUAD_TILES 4

/* ---- Bulk copies into shared memory ---- */

static __device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

static __device__ __forceinline__ void barrier_init(uint64_t *barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
                 : "memory");
}

/* Makes initialised barriers visible to the copy engine. */
static __device__ __forceinline__ void barrier_fence() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

static __device__ __forceinline__ void barrier_wait(uint64_t *barrier, uint32_t parity) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
#define BARRIER_TEST "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#else
#define BARRIER_TEST "mbarrier.test_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#endif
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n" BARRIER_TEST "@!done bra again;\n"
                 "}" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
#undef BARRIER_TEST
}

/* Weights are read once a step: they shall be the first to leave the L2 cache. */
static __device__ __forceinline__ uint64_t evict_first_policy() {
    uint64_t policy = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

/* Expects `bytes` more on the barrier, and copies them; a multiple of 16, as the addresses are. */
static __device__ __forceinline__ void copy_expect(uint64_t *barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
#endif
}

static __device__ __forceinline__ void copy_start(void *shared, const void *global, uint32_t bytes,
                                                  uint64_t *barrier, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
                 : "memory");
#endif
}

/* A thread's part of the same copy where there is no copy engine, of `threads`; then it arrives or waits. */
static __device__ __forceinline__ void copy_part(void *shared, const void *global, uint32_t bytes,
                                                 uint32_t thread, uint32_t threads) {
    for (uint32_t i = 16 * thread; i < bytes; i += 16 * threads)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared) + i),
                     "l"((const char *)global + i)
                     : "memory");
}

static __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Arrives at a barrier when the thread's copies so far are there. */
static __device__ __forceinline__ void arrive_after_copies(uint64_t *barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

/* ---- Clusters: blocks that write to each other's shared memory ----
 *
 * cluster_arrive and cluster_wait, which every thread calls, come before the first message: all blocks have
 * started then and what barrier_init did is known to all. A message counts its 4 bytes down on the receiver's
 * barrier, which needs no fence and no further meeting. */

static __device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

static __device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}

static __device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

static __device__ __forceinline__ uint32_t address_in_block(const void *shared, uint32_t rank) {
    uint32_t address = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(address)
                 : "r"(shared_address(shared)), "r"(rank));
#endif
    return address;
}

/* *to in the block `rank` becomes value. */
static __device__ __forceinline__ void send(float *to, float value, uint64_t *barrier, uint32_t rank) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(
                     address_in_block(to, rank)),
                 "r"(__float_as_uint(value)), "r"(address_in_block(barrier, rank))
                 : "memory");
#endif
}

/* ---- x in fixed point ---- */

/* A quad's x as operand B: the words of the lane's own column (group lane / 8, digit lane / 4 % 2), and, for
 * the sums of group lane % 4, a 16th of the scale and the sum of x. */
struct quad_input {
    uint32_t words[4];
    float scale, sum;
};

static __device__ __forceinline__ uint32_t exchange(uint32_t value, int distance) {
    return __shfl_xor_sync(0xffffffffu, value, distance);
}

static __device__ __forceinline__ uint32_t low_bytes(int32_t a, int32_t b, int32_t c, int32_t d) {
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}

static __device__ __forceinline__ uint32_t second_bytes(int32_t a, int32_t b, int32_t c, int32_t d) {
    return __byte_perm(__byte_perm(a, b, 0x0051), __byte_perm(c, d, 0x0051), 0x5410);
}

/* x[256], columns 8 lane .. 8 lane + 7 in each lane. */
static __device__ __forceinline__ quad_input quad_prepare(const float x[8], uint32_t lane) {
    float largest = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    sum = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    }
    /* 32512 = 127 * 256: the high byte of the largest is 127. */
    float inverse = largest > 1e-30f ? __fdividef(32512.0f, largest) : 0;
    int32_t fixed[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        fixed[i] = __float2int_rn(x[i] * inverse);
    uint32_t low[2] = {low_bytes(fixed[0], fixed[1], fixed[2], fixed[3]),
                       low_bytes(fixed[4], fixed[5], fixed[6], fixed[7])};
#pragma unroll
    for (int i = 0; i < 8; i++)
        fixed[i] += 128; /* the low byte is signed */
    uint32_t high[2] = {second_bytes(fixed[0], fixed[1], fixed[2], fixed[3]),
                        second_bytes(fixed[4], fixed[5], fixed[6], fixed[7])};

    /* Lanes of columns below 32 of a group go on with its high bytes, the others with its low ones. */
    bool upper = lane & 4;
    uint32_t first[2], second[2]; /* of columns c .. c + 7 and 32 + c .. 32 + c + 7 */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t kept = upper ? low[i] : high[i];
        uint32_t received = exchange(upper ? high[i] : low[i], 4);
        first[i] = upper ? received : kept;
        second[i] = upper ? kept : received;
    }
    uint32_t w0 = __byte_perm(first[0], second[0], 0x5140), w1 = __byte_perm(first[0], second[0], 0x7362);
    uint32_t w2 = __byte_perm(first[1], second[1], 0x5140), w3 = __byte_perm(first[1], second[1], 0x7362);

    /* Lane r of four has word t of register r; lane t wants all its registers: a transposition. */
    bool odd = lane & 1, far = lane & 2;
    uint32_t received = exchange(odd ? w0 : w1, 1);
    w0 = odd ? received : w0;
    w1 = odd ? w1 : received;
    received = exchange(odd ? w2 : w3, 1);
    w2 = odd ? received : w2;
    w3 = odd ? w3 : received;
    received = exchange(far ? w0 : w2, 2);
    w0 = far ? received : w0;
    w2 = far ? w2 : received;
    received = exchange(far ? w1 : w3, 2);
    w1 = far ? received : w1;
    w3 = far ? w3 : received;

    quad_input input = {{w0, w1, w2, w3}, 0, 0};
    float scale = largest * (1.0f / (16 * 32512.0f));
    input.scale = __shfl_sync(0xffffffffu, scale, 8 * (lane & 3));
    input.sum = __shfl_sync(0xffffffffu, sum, 8 * (lane & 3));
    return input;
}

/* The lane's eight values of a quad. */
static __device__ __forceinline__ void quad_load(const float *x, uint32_t lane, float values[8]) {
    float4 a = *(const float4 *)(x + 8 * lane), b = *(const float4 *)(x + 8 * lane + 4);
    values[0] = a.x, values[1] = a.y, values[2] = a.z, values[3] = a.w;
    values[4] = b.x, values[5] = b.y, values[6] = b.z, values[7] = b.w;
}

/* ---- The product ---- */

static __device__ __forceinline__ void multiply_bytes(int32_t c[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                                      uint32_t a3, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Adds the products of a quad of tiles of each of COUNT rows of tiles to sums[][0] (row lane / 4) and
 * sums[][1] (row lane / 4 + 8): each lane the part of group lane % 4. The order of the products is that in
 * which none waits for the one before. */
template <uint32_t COUNT, bool WIDE_SCALES>
static __device__ __forceinline__ void quad_products(const unsigned char *const tiles[COUNT],
                                                     const quad_input &x, uint32_t lane,
                                                     float sums[COUNT][2]) {
    constexpr uint32_t TILE = CUDA_TILE_CODES + CUDA_TILE_ROWS * (WIDE_SCALES ? 8 : 4);
    int32_t c[COUNT][2][4];
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++)
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            c[i][0][j] = c[i][1][j] = 0;
#pragma unroll
    for (uint32_t tile = 0; tile < QUAD_TILES; tile++) {
        bool own = lane >> 3 == tile;
        uint32_t b0 = own ? x.words[0] : 0, b1 = own ? x.words[1] : 0;
        uint32_t b2 = own ? x.words[2] : 0, b3 = own ? x.words[3] : 0;
        const uint32_t low = 0x0f0f0f0f, high = 0xf0f0f0f0;
        uint4 w[COUNT];
#pragma unroll
        for (uint32_t i = 0; i < COUNT; i++)
            w[i] = *(const uint4 *)(tiles[i] + tile * TILE + 16 * lane);
#pragma unroll
        for (uint32_t i = 0; i < COUNT; i++) {
            multiply_bytes(c[i][0], w[i].x & low, w[i].z & low, w[i].y & low, w[i].w & low, b0, b1);
            multiply_bytes(c[i][1], w[i].x & high, w[i].z & high, w[i].y & high, w[i].w & high, b2, b3);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < COUNT; i++) {
        const unsigned char *pairs = tiles[i] + (lane & 3) * TILE + CUDA_TILE_CODES;
        float scale0, bias0, scale1, bias1;
        if (WIDE_SCALES) {
            float4 pair = *(const float4 *)(pairs + 16 * (lane >> 2));
            scale0 = pair.x, bias0 = pair.y, scale1 = pair.z, bias1 = pair.w;
        } else {
            uint2 pair = *(const uint2 *)(pairs + 8 * (lane >> 2));
            scale0 = __uint_as_float(pair.x << 16), bias0 = __uint_as_float(pair.x & 0xffff0000u);
            scale1 = __uint_as_float(pair.y << 16), bias1 = __uint_as_float(pair.y & 0xffff0000u);
        }
        int32_t sum[4]; /* 16 times the sums: the upper codes of a byte are not shifted down */
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            sum[j] = c[i][0][j] * 16 + c[i][1][j];
        float product0 = (float)(sum[0] * 256 + sum[1]) * x.scale;
        float product1 = (float)(sum[2] * 256 + sum[3]) * x.scale;
        sums[i][0] = fmaf(bias0, x.sum, fmaf(scale0, product0, sums[i][0]));
        sums[i][1] = fmaf(bias1, x.sum, fmaf(scale1, product1, sums[i][1]));
    }
}

/* The sum over the four lanes of a row, in each of them. */
static __device__ __forceinline__ float sum_of_groups(float sum) {
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
}

static __device__ __forceinline__ float sum_of_warp(float sum) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    return sum;
}

/* ---- For launchers ---- */

/* Whether there are bulk copies and clusters. */
static inline bool decode_on_hopper(const struct cuda_device *device) {
    return device->major >= 9;
}

/* Whether a view can be read 16 bytes at once. */
static inline bool aligned(const struct cuda_view *view) {
    return (uintptr_t)view->data % 16 == 0;
}

/* As cuda_launch_clusters, may overlap where the device can. All of these kernels ask for the same, the
 * largest, share of an SM's memory to be shared memory: one that asks for another waits until the SM is
 * empty. */
template <typename... Parameters, typename... Arguments>
static inline cudaError_t decode_launch(void (*kernel)(Parameters...), const cuda_device *device,
                                        unsigned cluster, dim3 grid, unsigned threads, size_t shared_bytes,
                                        cudaStream_t stream, Arguments &&...arguments) {
    cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                              cudaSharedmemCarveoutMaxShared);
    return status != cudaSuccess
               ? status
               : cuda_launch_clusters(kernel, cuda_overlap(device), cluster, grid, threads, shared_bytes,
                                      stream, static_cast<Arguments &&>(arguments)...);
}

/* Whether the device has room for `count` clusters at once. */
template <typename Kernel>
static inline bool clusters_fit(Kernel *kernel, unsigned cluster, unsigned count, unsigned threads,
                                size_t shared_bytes) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = count * cluster;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared_bytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(shared_bytes));
    if (status == cudaSuccess)
        status = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
    if (status != cudaSuccess)
        cudaGetLastError(); /* shall not be found by the next call */
    return status == cudaSuccess && clusters >= static_cast<int>(count);
}

/* Whether scales and biases are float32. */
static inline bool wide(const struct cuda_view *matrix) {
    return matrix->scale_dtype != DTYPE_BF16;
}

static __device__ __forceinline__ float silu(float x) {
    return x / (1 + __expf(-x));
}

#endif
