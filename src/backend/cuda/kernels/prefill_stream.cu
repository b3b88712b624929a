/* Launches of prefill_stream.cuh. */
#include "backend/cuda/kernels/prefill.cuh"
#include "backend/cuda/kernels/prefill_stream.cuh"

/* By what the device has: 227 KiB of shared memory a block, 163, or 99 (KiB of 1024 bytes). 15 and 7 warps
 * that compute and one that fetches leave each 128 and 255 registers a thread. */
template <int KIND> struct stream_large;
template <> struct stream_large<GEMM_GATE_UP> { typedef stream_shape<11, 4, 2, 2, 3> shape; };
template <> struct stream_large<GEMM_DOWN> { typedef stream_shape<15, 4, 2, 3, 6> shape; };
typedef stream_shape<7, 2, 3, 2, 3> stream_middle;
typedef stream_shape<7, 1, 3, 1, 2> stream_small;

static int tile_bytes_of(uint32_t scale_dtype) {
    return (int)cuda_tile_bytes((enum dtype)scale_dtype);
}

template <int KIND, typename SHAPE>
static bool fits(const struct gemm_arguments &a, uint32_t pairs, uint32_t scale_dtype,
                 const struct cuda_device *device) {
    return stream_fits<KIND, SHAPE>(a, pairs, tile_bytes_of(scale_dtype), device->multiprocessors,
                                    device->shared_bytes);
}

template <int KIND>
static bool takes(const struct gemm_arguments &a, uint32_t pairs, uint32_t scale_dtype,
                  const struct cuda_device *device) {
    return fits<KIND, typename stream_large<KIND>::shape>(a, pairs, scale_dtype, device) ||
           fits<KIND, stream_middle>(a, pairs, scale_dtype, device) ||
           fits<KIND, stream_small>(a, pairs, scale_dtype, device);
}

bool prefill_stream_takes(int kind, const struct gemm_arguments &a, uint32_t pairs, uint32_t scale_dtype,
                          const struct cuda_device *device) {
    return kind == GEMM_GATE_UP ? takes<GEMM_GATE_UP>(a, pairs, scale_dtype, device)
                                : takes<GEMM_DOWN>(a, pairs, scale_dtype, device);
}

template <int KIND, typename OUT, int TILE_BYTES>
static cudaError_t launch(const struct gemm_arguments &a, uint32_t pairs, uint32_t scale_dtype,
                          const struct cuda_device *device, cudaStream_t stream) {
    typedef typename stream_large<KIND>::shape large;
    if (fits<KIND, large>(a, pairs, scale_dtype, device))
        return stream_launch<KIND, TILE_BYTES, OUT, large>(a, device->multiprocessors, cuda_overlap(device),
                                                           stream);
    if (fits<KIND, stream_middle>(a, pairs, scale_dtype, device))
        return stream_launch<KIND, TILE_BYTES, OUT, stream_middle>(a, device->multiprocessors,
                                                                   cuda_overlap(device), stream);
    return stream_launch<KIND, TILE_BYTES, OUT, stream_small>(a, device->multiprocessors,
                                                              cuda_overlap(device), stream);
}

template <int KIND, typename OUT>
static cudaError_t launch_out(const struct gemm_arguments &a, uint32_t pairs, uint32_t scale_dtype,
                              const struct cuda_device *device, cudaStream_t stream) {
    if (scale_dtype == DTYPE_BF16)
        return launch<KIND, OUT, 576>(a, pairs, scale_dtype, device, stream);
    return launch<KIND, OUT, 640>(a, pairs, scale_dtype, device, stream);
}

cudaError_t prefill_stream(int kind, const struct gemm_arguments &a, uint32_t pairs, uint32_t out_dtype,
                           uint32_t scale_dtype, const struct cuda_device *device, cudaStream_t stream) {
    if (kind == GEMM_DOWN)
        return launch_out<GEMM_DOWN, __nv_bfloat16>(a, pairs, scale_dtype, device, stream);
    if (out_dtype == DTYPE_BF16)
        return launch_out<GEMM_GATE_UP, __nv_bfloat16>(a, pairs, scale_dtype, device, stream);
    return launch_out<GEMM_GATE_UP, float>(a, pairs, scale_dtype, device, stream);
}
