/* OP_LINEAR and OP_HEAD for many rows: all matrices of the op in one launch. */
#include "backend/cuda/kernels/prefill.cuh"
#include "backend/cuda/kernels/prefill_gemm.cuh"

static const struct cuda_view *matrices_of(const struct cuda_op *op) {
    return &op->views[op->op.constants.normalise ? 2 : 1];
}

static const struct cuda_view *norm_of(const struct cuda_op *op) {
    return op->op.constants.normalise ? &op->views[1] : NULL;
}

/* A head is one matrix. */
static uint32_t count_of(const struct cuda_op *op) {
    return op->op.kind == OP_HEAD ? 1 : op->op.constants.matrix_count;
}

extern "C" bool cuda_prefill_linear_fits(const struct cuda_op *op, const struct cuda_device *) {
    const struct cuda_view *x = &op->views[0], *matrices = matrices_of(op);
    uint32_t count = count_of(op);
    if (x->rows < 2 || count > GEMM_MATRICES || !prefill_aligned(x) ||
        (x->dtype == DTYPE_BF16 && norm_of(op) != NULL))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const struct cuda_view *matrix = &matrices[2 * i], *y = &matrices[2 * i + 1];
        if (!prefill_matrix(matrix, matrix->rows) || matrix->scale_dtype != matrices[0].scale_dtype ||
            y->dtype != DTYPE_F32 || !prefill_aligned(y))
            return false;
    }
    return true;
}

extern "C" uint64_t cuda_prefill_linear_workspace(const struct cuda_op *op, const struct cuda_device *) {
    return prefill_rows_bytes(&op->views[0]);
}

/* Tiles of features times tokens; what a tile takes on an H200 once and for 64 columns, in nanoseconds; the
 * parts in which its columns are multiplied at the same time. */
static const struct {
    uint32_t features, tokens, once, time, parts;
} linear_tiles[] = {{256, 128, 3000, 1000, 1}, {192, 128, 3000, 844, 1}, {128, 128, 3000, 531, 1},
                    {128, 64, 3500, 300, 1},   {64, 64, 2900, 156, 2},   {64, 32, 3000, 106, 4}};

/* The tile with which the multiprocessor that has the most of them is done first. */
static uint32_t best_tile(const struct gemm_arguments &arguments, int multiprocessors) {
    uint64_t features = 0, best_time = UINT64_MAX;
    uint32_t best = 0;
    for (uint32_t m = 0; m < arguments.matrix_count; m++)
        features += arguments.matrices[m].features;
    for (uint32_t i = 0; i < sizeof linear_tiles / sizeof linear_tiles[0]; i++) {
        uint64_t items = (features + linear_tiles[i].features - 1) / linear_tiles[i].features *
                         ((arguments.tokens + linear_tiles[i].tokens - 1) / linear_tiles[i].tokens);
        uint64_t each = (items + multiprocessors - 1) / multiprocessors;
        uint64_t time = linear_tiles[i].once + each * linear_tiles[i].time * arguments.groups;
        if (time < best_time && arguments.groups % linear_tiles[i].parts == 0) {
            best = i;
            best_time = time;
        }
    }
    return best;
}

template <int TILE_BYTES>
static cudaError_t launch(const struct gemm_arguments &arguments, int multiprocessors, enum cuda_start start,
                          cudaStream_t stream) {
    if constexpr (TILE_BYTES != 576) { /* float32 scales are rare: not worth a kernel for each size */
        return gemm_launch<GEMM_LINEAR, 2, 1, TILE_BYTES, float, 64, 64>(arguments, multiprocessors, start,
                                                                         stream);
    } else {
        switch (best_tile(arguments, multiprocessors)) {
        case 0:
            return gemm_launch<GEMM_LINEAR, 2, 2, TILE_BYTES, float, 128, 128>(arguments, multiprocessors,
                                                                               start, stream);
        case 1:
            return gemm_launch<GEMM_LINEAR, 3, 1, TILE_BYTES, float, 128, 128>(arguments, multiprocessors,
                                                                               start, stream);
        case 2:
            return gemm_launch<GEMM_LINEAR, 2, 1, TILE_BYTES, float, 128, 128>(arguments, multiprocessors,
                                                                               start, stream);
        case 3:
            return gemm_launch<GEMM_LINEAR, 2, 1, TILE_BYTES, float, 64, 64>(arguments, multiprocessors,
                                                                             start, stream);
        case 4:
            return gemm_launch<GEMM_SPLIT, 2, 1, TILE_BYTES, float, 64, 64>(arguments, multiprocessors, start,
                                                                            stream);
        default:
            return gemm_launch<GEMM_SPLIT, 4, 1, TILE_BYTES, float, 32, 32>(arguments, multiprocessors, start,
                                                                            stream);
        }
    }
}

extern "C" cudaError_t cuda_prefill_linear(const struct cuda_op *op, const struct cuda_device *device,
                                           void *workspace, cudaStream_t stream) {
    struct cuda_view x;
    cudaError_t status = prefill_rows(&op->views[0], norm_of(op), op->op.constants.epsilon, workspace, &x,
                                      cuda_overlap(device), stream);
    if (status != cudaSuccess)
        return status;
    const struct cuda_view *matrices = matrices_of(op);
    struct gemm_arguments arguments = {};
    arguments.matrix_count = count_of(op);
    arguments.groups = x.columns / 64;
    arguments.tokens = x.rows;
    for (uint32_t i = 0; i < arguments.matrix_count; i++) {
        const struct cuda_view *matrix = &matrices[2 * i], *y = &matrices[2 * i + 1];
        arguments.matrices[i].tiles = (const uint8_t *)matrix->data;
        arguments.matrices[i].x = (const __nv_bfloat16 *)x.data;
        arguments.matrices[i].y = y->data;
        arguments.matrices[i].features = matrix->rows;
        arguments.matrices[i].x_stride = (uint32_t)x.stride;
        arguments.matrices[i].y_stride = (uint32_t)y->stride;
        arguments.matrices[i].accumulate = op->op.kind == OP_LINEAR && op->op.constants.accumulate;
    }
    if (!prefill_on_hopper(device))
        return prefill_warps_linear(arguments, matrices[0].scale_dtype, device, stream);
    if (matrices[0].scale_dtype == DTYPE_BF16)
        return launch<576>(arguments, device->multiprocessors, cuda_overlap(device), stream);
    return launch<640>(arguments, device->multiprocessors, cuda_overlap(device), stream);
}
