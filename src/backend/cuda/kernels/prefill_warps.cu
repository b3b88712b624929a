/* Launches of prefill_warps.cuh. */
#include "backend/cuda/kernels/prefill.cuh"
#include "backend/cuda/kernels/prefill_warps.cuh"

typedef warps_shape<4, 1, 2, 8, 3, 3> wide;
typedef warps_shape<4, 1, 1, 4, 6, 4> narrow;

/* Whether the narrow tiles are done first. For 64 columns a multiprocessor takes at least `once`, and `each`
 * for every tile that it has (nanoseconds on an H200). */
static bool narrow_is_faster(const struct gemm_arguments &arguments, int multiprocessors) {
    static const struct {
        uint32_t features, tokens, once, each;
    } tiles[] = {{wide::features(GEMM_LINEAR), wide::tokens, 530, 400},
                 {narrow::features(GEMM_LINEAR), narrow::tokens, 300, 150}};
    uint64_t features = 0, times[2];
    for (uint32_t m = 0; m < arguments.matrix_count; m++)
        features += arguments.matrices[m].features;
    for (int i = 0; i < 2; i++) {
        uint64_t items = cuda_blocks(features, tiles[i].features) *
                         (uint64_t)cuda_blocks(arguments.tokens, tiles[i].tokens);
        uint64_t time = cuda_blocks(items, multiprocessors) * (uint64_t)tiles[i].each;
        times[i] = time > tiles[i].once ? time : tiles[i].once;
    }
    return times[1] < times[0];
}

cudaError_t prefill_warps_linear(const struct gemm_arguments &arguments, uint32_t scale_dtype,
                                 const struct cuda_device *device, cudaStream_t stream) {
    int multiprocessors = device->multiprocessors;
    enum cuda_start start = cuda_overlap(device);
    if (scale_dtype != DTYPE_BF16) /* float32 scales are rare: not worth a kernel for each size */
        return warps_launch<GEMM_LINEAR, 640, float, wide>(arguments, multiprocessors, start, stream);
    if (narrow_is_faster(arguments, multiprocessors))
        return warps_launch<GEMM_LINEAR, 576, float, narrow>(arguments, multiprocessors, start, stream);
    return warps_launch<GEMM_LINEAR, 576, float, wide>(arguments, multiprocessors, start, stream);
}

cudaError_t prefill_warps_experts(int kind, const struct gemm_arguments &arguments,
                                  const struct cuda_device *device, cudaStream_t stream) {
    int multiprocessors = device->multiprocessors;
    enum cuda_start start = cuda_overlap(device);
    if (kind == GEMM_GATE_UP)
        return warps_launch<GEMM_GATE_UP, 576, float, wide>(arguments, multiprocessors, start, stream);
    return warps_launch<GEMM_DOWN, 576, __nv_bfloat16, wide>(arguments, multiprocessors, start, stream);
}
