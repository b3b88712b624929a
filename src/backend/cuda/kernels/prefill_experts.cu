/* The experts for many rows: OP_ROUTER, OP_EXPERT_SORT, OP_EXPERT_GATE_UP and OP_EXPERT_DOWN. Everything
 * about which expert has which rows stays on the device. A pair p is slot p % K of row p / K. */
#include "backend/cuda/kernels/prefill.cuh"
#include "backend/cuda/kernels/prefill_gemm.cuh"
#include "backend/cuda/kernels/prefill_router.cuh"

extern "C" bool cuda_prefill_router_fits(const struct cuda_op *op, const struct cuda_device *) {
    bool normalise = op->op.constants.normalise;
    const struct cuda_view *x = &op->views[0], *router = &op->views[normalise ? 2 : 1], *gate = router + 1;
    return x->rows > 1 && x->dtype == DTYPE_F32 && prefill_aligned(x) && router->dtype == DTYPE_AFFINE8 &&
           gate->dtype == DTYPE_AFFINE8 && router->rows <= ROUTER_EXPERTS &&
           op->op.constants.experts_per_token <= ROUTER_CHOSEN;
}

/* The logits, where they are computed by more blocks than choose. */
extern "C" uint64_t cuda_prefill_router_workspace(const struct cuda_op *op,
                                                  const struct cuda_device *device) {
    const struct cuda_view *x = &op->views[0], *router = &op->views[op->op.constants.normalise ? 2 : 1];
    return router_spreads(x->rows, x->columns, device->multiprocessors)
               ? (uint64_t)x->rows * (router->rows + 1) * sizeof(float)
               : 0;
}

extern "C" cudaError_t cuda_prefill_router(const struct cuda_op *op, const struct cuda_device *device,
                                           void *workspace, cudaStream_t stream) {
    bool normalise = op->op.constants.normalise;
    const struct cuda_view *x = &op->views[0], *router = &op->views[normalise ? 2 : 1], *gate = router + 1;
    const struct cuda_view *ids = router + 2, *scores = router + 3;
    struct router_arguments arguments = {};
    arguments.x = (const float *)x->data;
    arguments.norm = normalise ? (const float *)op->views[1].data : NULL;
    arguments.codes = (const uint8_t *)router->data;
    arguments.gate_codes = (const uint8_t *)gate->data;
    arguments.pairs = (const float2 *)router->scales;
    arguments.gate_pairs = (const float2 *)gate->scales;
    arguments.ids = (int32_t *)ids->data;
    arguments.scores = (float *)scores->data;
    arguments.x_stride = x->stride;
    arguments.ids_stride = ids->stride;
    arguments.scores_stride = scores->stride;
    arguments.tokens = x->rows;
    arguments.columns = x->columns;
    arguments.experts = router->rows;
    arguments.chosen = op->op.constants.experts_per_token;
    arguments.epsilon = op->op.constants.epsilon;
    bool spread = router_spreads(x->rows, x->columns, device->multiprocessors);
    return router_launch(arguments, spread ? (float *)workspace : NULL, device->multiprocessors,
                         cuda_overlap(device), stream);
}

#define SORT_BLOCK 256
#define SORT_WARPS (SORT_BLOCK / 32)

/* ids[P] -> starts[E+1], order[P], stable. A block an expert: it counts the pairs of lower experts, which is
 * where its own begin, and its own, each warp those of its part of the ids; then it writes them down in
 * order. */
__global__ static void __launch_bounds__(SORT_BLOCK)
    expert_sort(const int32_t *ids, uint32_t pairs, int32_t *starts, int32_t *order) {
    __shared__ uint32_t lower[SORT_WARPS], own[SORT_WARPS];
    int32_t expert = blockIdx.x;
    cuda_let_next_start();
    cuda_await_previous();
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t part = (pairs + SORT_WARPS - 1) / SORT_WARPS, first = warp * part,
             end = min(first + part, pairs);
    uint32_t less = 0, equal = 0;
    for (uint32_t p = first + lane; p < end; p += 32) {
        int32_t id = ids[p];
        less += id < expert;
        equal += id == expert;
    }
    for (int step = 16; step > 0; step /= 2) {
        less += __shfl_xor_sync(~0u, less, step);
        equal += __shfl_xor_sync(~0u, equal, step);
    }
    if (lane == 0) {
        lower[warp] = less;
        own[warp] = equal;
    }
    __syncthreads();
    uint32_t start = 0, next = 0;
    for (uint32_t w = 0; w < SORT_WARPS; w++) {
        start += lower[w];
        next += w < warp ? own[w] : 0;
    }
    if (threadIdx.x == 0) {
        starts[expert] = start;
        if (expert + 1 == (int32_t)gridDim.x)
            starts[gridDim.x] = pairs;
    }
    next += start;
    if (equal == 0)
        return;
    for (uint32_t p = first; p < end; p += 32) {
        bool mine = p + lane < end && ids[p + lane] == expert;
        uint32_t all = __ballot_sync(~0u, mine);
        if (mine)
            order[next + __popc(all & ((1u << lane) - 1))] = p + lane;
        next += __popc(all);
    }
}

extern "C" bool cuda_prefill_expert_sort_fits(const struct cuda_op *op, const struct cuda_device *) {
    return op->views[0].stride == op->views[0].columns;
}

extern "C" cudaError_t cuda_prefill_expert_sort(const struct cuda_op *op, const struct cuda_device *device,
                                                void *, cudaStream_t stream) {
    return cuda_launch(expert_sort, cuda_overlap(device), op->op.constants.experts, SORT_BLOCK, 0, stream,
                       (const int32_t *)op->views[0].data, op->views[0].rows * op->views[0].columns,
                       (int32_t *)op->views[1].data, (int32_t *)op->views[2].data);
}

/* The narrowest tiles that take most experts' rows at once: weights are read once for each tile. */
template <int KIND, int TILE_BYTES, typename OUT>
static cudaError_t launch_tiles(const struct gemm_arguments &arguments, uint32_t pairs,
                                const struct cuda_device *device, cudaStream_t stream) {
    uint32_t mean = pairs / arguments.experts;
    int processors = device->multiprocessors;
    if constexpr (TILE_BYTES != 576) /* float32 scales are rare: not worth a kernel for each size */
        return gemm_launch<KIND, 2, 2, TILE_BYTES, OUT, 64, 16, 32, 48, 64>(arguments, processors,
                                                                            cuda_overlap(device), stream);
    else if (mean <= 12)
        return gemm_launch<KIND, 4, 2, TILE_BYTES, OUT, 32, 16, 32>(arguments, processors,
                                                                    cuda_overlap(device), stream);
    else if (mean <= 48)
        return gemm_launch<KIND, 2, 2, TILE_BYTES, OUT, 64, 16, 32, 48, 64>(arguments, processors,
                                                                            cuda_overlap(device), stream);
    else
        return gemm_launch<KIND, 2, 2, TILE_BYTES, OUT, 160, 32, 64, 96, 112, 128, 144, 160>(
            arguments, processors, cuda_overlap(device), stream);
}

/* Which kernel multiplies. */
enum way { NO_WAY, STREAM, WARPGROUPS, WARPS };

/* STREAM where experts have so few rows that reading the weights is what takes the time, or where there is
 * no other kernel for them. */
static enum way way_of(int kind, const struct gemm_arguments &arguments, uint32_t pairs, uint32_t out_dtype,
                       uint32_t scale_dtype, const struct cuda_device *device) {
    /* Rows an expert on average, measured on an H200 for the tiles that fit the shared memory. */
    static const uint32_t few[3][2] = {{20, 40}, {12, 16}, {6, 8}};
    bool hopper = prefill_on_hopper(device);
    uint32_t limit = few[hopper ? 0 : device->shared_bytes >= 160 * 1024 ? 1 : 2][kind == GEMM_DOWN];
    bool usual = scale_dtype == DTYPE_BF16 && out_dtype == (kind == GEMM_DOWN ? DTYPE_BF16 : DTYPE_F32);
    enum way many = hopper ? WARPGROUPS : usual ? WARPS : NO_WAY;
    return (many == NO_WAY || pairs <= limit * arguments.experts) &&
                   prefill_stream_takes(kind, arguments, pairs, scale_dtype, device)
               ? STREAM
               : many;
}

template <int KIND, typename OUT>
static cudaError_t launch_experts(const struct gemm_arguments &arguments, uint32_t pairs,
                                  uint32_t scale_dtype, const struct cuda_device *device,
                                  cudaStream_t stream) {
    uint32_t out_dtype = sizeof(OUT) == 2 ? DTYPE_BF16 : DTYPE_F32;
    enum way way = way_of(KIND, arguments, pairs, out_dtype, scale_dtype, device);
    if (way == STREAM)
        return prefill_stream(KIND, arguments, pairs, out_dtype, scale_dtype, device, stream);
    if (way == WARPS)
        return prefill_warps_experts(KIND, arguments, device, stream);
    if (scale_dtype == DTYPE_BF16)
        return launch_tiles<KIND, 576, OUT>(arguments, pairs, device, stream);
    return launch_tiles<KIND, 640, OUT>(arguments, pairs, device, stream);
}

struct gate_up {
    const struct cuda_view *x, *norm, *ids, *starts, *order, *gate, *up, *shared_gate, *shared_up, *routed,
        *shared;
};

static struct gate_up gate_up_of(const struct cuda_op *op) {
    const struct cuda_view *v = op->views, *rest = v + (op->op.constants.normalise ? 2 : 1);
    return {v,        op->op.constants.normalise ? &v[1] : NULL,
            &rest[0], &rest[1],
            &rest[2], &rest[3],
            &rest[4], &rest[5],
            &rest[6], &rest[7],
            &rest[8]};
}

static struct gemm_matrix expert_matrix(const struct cuda_view *tiles, const struct cuda_view *more,
                                        const struct cuda_view *x, const struct cuda_view *y) {
    struct gemm_matrix matrix = {};
    matrix.tiles = (const uint8_t *)tiles->data;
    matrix.more = more == NULL ? NULL : (const uint8_t *)more->data;
    matrix.x = (const __nv_bfloat16 *)x->data;
    matrix.y = y->data;
    matrix.features = y->columns;
    matrix.x_stride = (uint32_t)x->stride;
    matrix.y_stride = (uint32_t)y->stride;
    return matrix;
}

/* What the products of OP_EXPERT_GATE_UP are, for its input x as it is to be read. */
static struct gemm_arguments gate_up_arguments(const struct cuda_op *op, const struct cuda_view *x) {
    struct gate_up v = gate_up_of(op);
    struct gemm_arguments arguments = {};
    arguments.matrices[0] = expert_matrix(v.gate, v.up, x, v.routed);
    arguments.matrices[1] = expert_matrix(v.shared_gate, v.shared_up, x, v.shared);
    arguments.matrix_count = 2;
    arguments.groups = x->columns / 64;
    arguments.shared_groups = arguments.groups;
    arguments.tokens = x->rows;
    arguments.starts = (const int32_t *)v.starts->data;
    arguments.order = (const int32_t *)v.order->data;
    arguments.experts = op->op.constants.experts;
    arguments.pairs_a_row = op->op.constants.experts_per_token;
    return arguments;
}

extern "C" bool cuda_prefill_expert_gate_up_fits(const struct cuda_op *op, const struct cuda_device *device) {
    if (op->op.operand_count != (op->op.constants.normalise ? 11 : 10))
        return false;
    struct gate_up v = gate_up_of(op);
    uint32_t scales = v.gate->scale_dtype;
    return op->op.constants.experts <= GEMM_EXPERTS && prefill_aligned(v.x) && v.x->dtype == DTYPE_F32 &&
           prefill_matrix(v.gate, v.routed->columns) && prefill_matrix(v.up, v.routed->columns) &&
           prefill_matrix(v.shared_gate, v.shared->columns) &&
           prefill_matrix(v.shared_up, v.shared->columns) && v.up->scale_dtype == scales &&
           v.shared_gate->scale_dtype == scales && v.shared_up->scale_dtype == scales &&
           v.routed->dtype == v.shared->dtype && prefill_aligned(v.routed) && prefill_aligned(v.shared) &&
           way_of(GEMM_GATE_UP, gate_up_arguments(op, v.x), v.routed->rows, v.routed->dtype, scales,
                  device) != NO_WAY;
}

extern "C" uint64_t cuda_prefill_expert_gate_up_workspace(const struct cuda_op *op,
                                                          const struct cuda_device *) {
    return prefill_rows_bytes(&op->views[0]);
}

extern "C" cudaError_t cuda_prefill_expert_gate_up(const struct cuda_op *op, const struct cuda_device *device,
                                                   void *workspace, cudaStream_t stream) {
    struct gate_up v = gate_up_of(op);
    struct cuda_view x;
    cudaError_t status =
        prefill_rows(v.x, v.norm, op->op.constants.epsilon, workspace, &x, cuda_overlap(device), stream);
    if (status != cudaSuccess)
        return status;
    struct gemm_arguments arguments = gate_up_arguments(op, &x);
    if (v.routed->dtype == DTYPE_BF16)
        return launch_experts<GEMM_GATE_UP, __nv_bfloat16>(arguments, v.routed->rows, v.gate->scale_dtype,
                                                           device, stream);
    return launch_experts<GEMM_GATE_UP, float>(arguments, v.routed->rows, v.gate->scale_dtype, device,
                                               stream);
}

/* routed[T*K,H], shared[T,H] (bf16), scores[T,K+1]: y[T,H] += sum_k scores[k] routed[k] + scores[K] shared,
 * in this order. A block a row; H % 8 == 0. */
__global__ static void __launch_bounds__(256)
    combine(const __nv_bfloat16 *routed, const __nv_bfloat16 *shared, const float *scores,
            uint64_t scores_stride, float *y, uint64_t y_stride, uint32_t chosen, uint32_t columns) {
    uint64_t t = blockIdx.x;
    const float *score = scores + t * scores_stride;
    cuda_let_next_start();
    cuda_await_previous();
    for (uint32_t i = 8 * threadIdx.x; i < columns; i += 8 * 256) {
        float sum[8] = {};
#pragma unroll 4
        for (uint32_t k = 0; k <= chosen; k++) {
            const __nv_bfloat16 *row =
                k < chosen ? routed + (t * chosen + k) * columns : shared + t * columns;
            uint4 v = *(const uint4 *)(row + i);
            float s = score[k];
            const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                sum[2 * j] = fmaf(s, __uint_as_float(words[j] << 16), sum[2 * j]);
                sum[2 * j + 1] = fmaf(s, __uint_as_float(words[j] & 0xffff0000), sum[2 * j + 1]);
            }
        }
        float4 *out = (float4 *)(y + t * y_stride + i), low = out[0], high = out[1];
        out[0] = make_float4(low.x + sum[0], low.y + sum[1], low.z + sum[2], low.w + sum[3]);
        out[1] = make_float4(high.x + sum[4], high.y + sum[5], high.z + sum[6], high.w + sum[7]);
    }
}

static uint64_t bf16_bytes(uint64_t rows, uint64_t columns) {
    return (rows * columns * 2 + 255) / 256 * 256;
}

/* What the products of OP_EXPERT_DOWN are: from its inputs as they are to bf16 rows in `memory`. */
static struct gemm_arguments down_arguments(const struct cuda_op *op, uint8_t *memory) {
    const struct cuda_view *v = op->views, *y = &v[8];
    struct cuda_view routed = *y, shared = *y;
    routed.data = memory;
    shared.data = memory + bf16_bytes(v[0].rows, y->columns);
    routed.stride = shared.stride = y->columns;
    struct gemm_arguments arguments = {};
    arguments.matrices[0] = expert_matrix(&v[6], NULL, &v[0], &routed);
    arguments.matrices[1] = expert_matrix(&v[7], NULL, &v[1], &shared);
    arguments.matrix_count = 2;
    arguments.groups = v[0].columns / 64;
    arguments.shared_groups = v[1].columns / 64;
    arguments.tokens = v[1].rows;
    arguments.starts = (const int32_t *)v[4].data;
    arguments.order = (const int32_t *)v[5].data;
    arguments.experts = op->op.constants.experts;
    arguments.pairs_a_row = 1;
    return arguments;
}

extern "C" bool cuda_prefill_expert_down_fits(const struct cuda_op *op, const struct cuda_device *device) {
    if (op->op.operand_count != 9)
        return false;
    const struct cuda_view *v = op->views, *routed = &v[0], *shared = &v[1], *down = &v[6],
                           *shared_down = &v[7];
    const struct cuda_view *y = &v[8];
    return op->op.constants.experts <= GEMM_EXPERTS && prefill_aligned(routed) && prefill_aligned(shared) &&
           prefill_matrix(down, y->columns) && prefill_matrix(shared_down, y->columns) &&
           down->scale_dtype == shared_down->scale_dtype && prefill_aligned(y) &&
           way_of(GEMM_DOWN, down_arguments(op, NULL), routed->rows, DTYPE_BF16, down->scale_dtype, device) !=
               NO_WAY;
}

extern "C" uint64_t cuda_prefill_expert_down_workspace(const struct cuda_op *op, const struct cuda_device *) {
    const struct cuda_view *routed = &op->views[0], *shared = &op->views[1], *y = &op->views[8];
    return prefill_rows_bytes(routed) + prefill_rows_bytes(shared) + bf16_bytes(routed->rows, y->columns) +
           bf16_bytes(shared->rows, y->columns);
}

/* The products of all pairs and of the shared expert as bf16 rows, then their weighted sum: fixed order, no
 * atomics. */
extern "C" cudaError_t cuda_prefill_expert_down(const struct cuda_op *op, const struct cuda_device *device,
                                                void *workspace, cudaStream_t stream) {
    const struct cuda_view *v = op->views, *scores = &v[3], *y = &v[8];
    struct gemm_arguments arguments =
        down_arguments(op, (uint8_t *)workspace + prefill_rows_bytes(&v[0]) + prefill_rows_bytes(&v[1]));
    cudaError_t status = cudaSuccess;
    for (int i = 0; i < 2 && status == cudaSuccess; i++) {
        struct cuda_view rows;
        status = prefill_rows(&v[i], NULL, 0, (uint8_t *)workspace + (i > 0 ? prefill_rows_bytes(&v[0]) : 0),
                              &rows, cuda_overlap(device), stream);
        arguments.matrices[i].x = (const __nv_bfloat16 *)rows.data;
        arguments.matrices[i].x_stride = (uint32_t)rows.stride;
    }
    if (status != cudaSuccess)
        return status;
    status = launch_experts<GEMM_DOWN, __nv_bfloat16>(arguments, v[0].rows, v[6].scale_dtype, device, stream);
    if (status != cudaSuccess)
        return status;
    return cuda_launch(combine, cuda_overlap(device), y->rows, 256, 0, stream,
                       (const __nv_bfloat16 *)arguments.matrices[0].y,
                       (const __nv_bfloat16 *)arguments.matrices[1].y, (const float *)scores->data,
                       scores->stride, (float *)y->data, y->stride, op->op.constants.experts_per_token,
                       y->columns);
}
