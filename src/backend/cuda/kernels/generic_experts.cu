/* The mixture of experts: routing, sorting by expert, the experts' products, their weighted sum. */
#include "backend/cuda/kernels/generic.cuh"

#define BLOCK 256
#define WARPS (BLOCK / WARP)

/* An expert and its probability; the better one is the larger, of equals (and among NaN) the lower. */
struct choice {
    float p;
    uint32_t id;
};

__device__ static choice better(choice a, choice b) {
    bool first = a.p > b.p || (!(b.p > a.p) && a.id < b.id);
    return first ? a : b;
}

/* The best expert not chosen (p of -1) yet; all threads get it. */
__device__ static choice block_best(const float *p, uint32_t experts, choice *shared) {
    choice mine = {-1.0f, UINT32_MAX};
    for (uint32_t e = threadIdx.x; e < experts; e += BLOCK)
        if (p[e] != -1.0f)
            mine = mine.id == UINT32_MAX ? choice{p[e], e} : better(mine, {p[e], e});
    /* Lanes without a candidate lose to all, NaN included. */
    for (int offset = WARP / 2; offset > 0; offset /= 2) {
        choice other = {__shfl_xor_sync(ALL_LANES, mine.p, offset),
                        __shfl_xor_sync(ALL_LANES, mine.id, offset)};
        if (mine.id == UINT32_MAX || (other.id != UINT32_MAX && mine.id != other.id))
            mine = mine.id == UINT32_MAX ? other : better(mine, other);
    }
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = mine;
    __syncthreads();
    choice best = {-1.0f, UINT32_MAX};
    for (uint32_t w = 0; w < WARPS; w++)
        if (shared[w].id != UINT32_MAX)
            best = best.id == UINT32_MAX ? shared[w] : better(best, shared[w]);
    return best;
}

__device__ static float dot_row(const cuda_view &matrix, uint32_t row, const float *x, uint32_t lane) {
    float sum = 0;
    for (uint32_t i = lane; i < matrix.columns; i += WARP)
        sum += x[i] * matrix_at(matrix, row, i);
    return warp_sum(sum);
}

struct routing {
    cuda_view x, router, shared_gate, ids, scores;
    uint32_t experts, chosen;
};

/* x[T,H], router[E,H], shared_gate[1,H] -> ids[T,K], scores[T,K+1]; a block a row, E values in shared memory.
 */
__global__ static void route(const __grid_constant__ routing r) {
    begin();
    extern __shared__ float p[];
    __shared__ float sums[WARP];
    __shared__ choice choices[WARPS];
    uint32_t t = blockIdx.x, lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint32_t experts = r.experts, chosen = r.chosen;
    const float *x = float_row(r.x, t);
    int32_t *ids = int_row(r.ids, t);
    float *scores = float_row(r.scores, t);
    for (uint32_t e = warp; e < experts; e += WARPS) {
        float logit = dot_row(r.router, e, x, lane);
        if (lane == 0)
            p[e] = logit;
    }
    if (warp == 0) {
        float logit = dot_row(r.shared_gate, 0, x, lane);
        if (lane == 0)
            scores[chosen] = sigmoid(logit);
    }
    __syncthreads();
    float largest = -CUDART_INF_F, total = 0;
    for (uint32_t e = 0; e < experts; e++)
        largest = p[e] > largest ? p[e] : largest;
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < experts; e += BLOCK)
        total += p[e] = expf(p[e] - largest);
    total = block_sum(total, sums);
    for (uint32_t e = threadIdx.x; e < experts; e += BLOCK)
        p[e] /= total;
    __syncthreads();
    float sum = 0;
    for (uint32_t k = 0; k < chosen; k++) {
        choice best = block_best(p, experts, choices);
        sum += best.p;
        __syncthreads();
        if (threadIdx.x == 0) {
            ids[k] = static_cast<int32_t>(best.id);
            scores[k] = best.p;
            p[best.id] = -1.0f;
        }
        __syncthreads();
    }
    for (uint32_t k = threadIdx.x; k < chosen; k += BLOCK)
        scores[k] /= sum;
}

/* ids[T,K] -> starts[E+1], order[T*K]. One block; a thread an expert, so that each one's pairs stay in order.
 */
__global__ static void expert_sort(const cuda_view ids, const cuda_view starts, const cuda_view order,
                                   uint32_t experts) {
    begin();
    uint32_t chosen = ids.columns;
    int32_t *start = int_row(starts, 0), *sorted = int_row(order, 0);
    for (uint32_t e = threadIdx.x; e < experts; e += blockDim.x) {
        int32_t count = 0;
        for (uint32_t t = 0; t < ids.rows; t++)
            for (uint32_t k = 0; k < chosen; k++)
                count += int_row(ids, t)[k] == static_cast<int32_t>(e);
        start[e + 1] = count;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        start[0] = 0;
        for (uint32_t e = 0; e < experts; e++)
            start[e + 1] += start[e];
    }
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < experts; e += blockDim.x) {
        int32_t next = start[e];
        for (uint32_t t = 0; t < ids.rows; t++)
            for (uint32_t k = 0; k < chosen; k++)
                if (int_row(ids, t)[k] == static_cast<int32_t>(e))
                    sorted[next++] = static_cast<int32_t>(t * chosen + k);
    }
}

/* y = silu(gate) up; a block a row. */
__global__ static void swiglu(const cuda_view gate, const cuda_view up, const cuda_view y) {
    begin();
    for (uint32_t i = threadIdx.x; i < y.columns; i += BLOCK)
        float_row(y, blockIdx.x)[i] = silu(float_row(gate, blockIdx.x)[i]) * float_row(up, blockIdx.x)[i];
}

/* routed[T*K,H], shared[T,H], scores[T,K+1]: y += sum_k scores[k] routed[k] + scores[K] shared; a block a
 * row. */
__global__ static void combine(const cuda_view routed, const cuda_view shared, const cuda_view scores,
                               const cuda_view y, uint32_t chosen) {
    begin();
    uint32_t t = blockIdx.x;
    const float *score = float_row(scores, t);
    for (uint32_t i = threadIdx.x; i < y.columns; i += BLOCK) {
        float sum = 0;
        for (uint32_t k = 0; k < chosen; k++)
            sum += score[k] * float_row(routed, static_cast<uint64_t>(t) * chosen + k)[i];
        sum += score[chosen] * float_row(shared, t)[i];
        float_row(y, t)[i] += sum;
    }
}

static cudaError_t launch_swiglu(const cuda_view &gate, const cuda_view &up, const cuda_view &y,
                                 const cuda_device *device, cudaStream_t stream) {
    return cuda_launch(swiglu, cuda_overlap(device), y.rows, BLOCK, 0, stream, gate, up, y);
}

static cudaError_t launch_combine(const cuda_view &routed, const cuda_view &shared, const cuda_view &scores,
                                  const cuda_view &y, const cuda_device *device, cudaStream_t stream) {
    return cuda_launch(combine, cuda_overlap(device), y.rows, BLOCK, 0, stream, routed, shared, scores, y,
                       scores.columns - 1);
}

/* A product with experts' matrices; `order`: starts and order, NULL when there is one row. */
static cudaError_t expert_product(const cuda_op *op, const cuda_view &x, const cuda_view &ids,
                                  const cuda_view *order, const cuda_view &matrix, const cuda_view &y,
                                  const cuda_device *device, cudaStream_t stream) {
    cuda_product product = {};
    product.x = x;
    product.matrix = matrix;
    product.y = y;
    product.ids = ids;
    product.experts = op->op.constants.experts;
    product.chosen = op->op.constants.experts_per_token;
    if (order != nullptr) {
        product.starts = order[0];
        product.order = order[1];
    }
    return cuda_generic_product(product, device, stream);
}

static cudaError_t plain_product(const cuda_view &x, const cuda_view &matrix, const cuda_view &y,
                                 const cuda_device *device, cudaStream_t stream) {
    cuda_product product = {};
    product.x = x;
    product.matrix = matrix;
    product.y = y;
    return cuda_generic_product(product, device, stream);
}

extern "C" cudaError_t cuda_generic_router(const cuda_op *op, const cuda_device *device, void *workspace,
                                           cudaStream_t stream) {
    const cuda_view *rest = after_input(op);
    routing r = {
        {}, rest[0], rest[1], rest[2], rest[3], op->op.constants.experts, op->op.constants.experts_per_token};
    cudaError_t status = cuda_generic_input(op, device, workspace, &r.x, stream);
    if (status != cudaSuccess)
        return status;
    return cuda_launch(route, cuda_overlap(device), r.x.rows, BLOCK, r.experts * sizeof(float), stream, r);
}

extern "C" cudaError_t cuda_generic_expert_sort(const cuda_op *op, const cuda_device *device, void *,
                                                cudaStream_t stream) {
    uint32_t experts = op->op.constants.experts;
    return cuda_launch(expert_sort, cuda_overlap(device), 1,
                       experts < 1024 ? (experts + WARP - 1) / WARP * WARP : 1024, 0, stream, op->views[0],
                       op->views[1], op->views[2], experts);
}

extern "C" cudaError_t cuda_generic_expert_linear(const cuda_op *op, const cuda_device *device, void *,
                                                  cudaStream_t stream) {
    bool sorted = op->op.operand_count == 6;
    const cuda_view *rest = &op->views[sorted ? 4 : 2];
    return expert_product(op, op->views[0], op->views[1], sorted ? &op->views[2] : nullptr, rest[0], rest[1],
                          device, stream);
}

extern "C" cudaError_t cuda_generic_swiglu(const cuda_op *op, const cuda_device *device, void *,
                                           cudaStream_t stream) {
    return launch_swiglu(op->views[0], op->views[1], op->views[2], device, stream);
}

extern "C" cudaError_t cuda_generic_expert_combine(const cuda_op *op, const cuda_device *device, void *,
                                                   cudaStream_t stream) {
    return launch_combine(op->views[0], op->views[1], op->views[2], op->views[3], device, stream);
}

/* Two products of the routed rows and two of the shared ones */
extern "C" uint64_t cuda_generic_expert_gate_up_workspace(const cuda_op *op, const cuda_device *) {
    const cuda_view *routed = &op->views[op->op.operand_count - 2], *shared = routed + 1;
    return cuda_generic_input_workspace(op, nullptr) +
           2 * sizeof(float) *
               (static_cast<uint64_t>(routed->rows) * routed->columns +
                static_cast<uint64_t>(shared->rows) * shared->columns);
}

extern "C" cudaError_t cuda_generic_expert_gate_up(const cuda_op *op, const cuda_device *device,
                                                   void *workspace, cudaStream_t stream) {
    const cuda_view *ids = after_input(op), *shared_out = &op->views[op->op.operand_count - 1];
    const cuda_view *matrices = shared_out - 5, &routed = shared_out[-1], &shared = *shared_out;
    const cuda_view *order = matrices > ids + 1 ? ids + 1 : nullptr;
    cuda_view x;
    cudaError_t status = cuda_generic_input(op, device, workspace, &x, stream);
    float *memory =
        reinterpret_cast<float *>(static_cast<char *>(workspace) + cuda_generic_input_workspace(op, nullptr));
    uint64_t routed_size = static_cast<uint64_t>(routed.rows) * routed.columns;
    uint64_t shared_size = static_cast<uint64_t>(shared.rows) * shared.columns;
    cuda_view gate = workspace_view(memory, routed.rows, routed.columns);
    cuda_view up = workspace_view(memory + routed_size, routed.rows, routed.columns);
    cuda_view shared_gate = workspace_view(memory + 2 * routed_size, shared.rows, shared.columns);
    cuda_view shared_up = workspace_view(memory + 2 * routed_size + shared_size, shared.rows, shared.columns);
    if (status == cudaSuccess)
        status = expert_product(op, x, *ids, order, matrices[0], gate, device, stream);
    if (status == cudaSuccess)
        status = expert_product(op, x, *ids, order, matrices[1], up, device, stream);
    if (status == cudaSuccess)
        status = launch_swiglu(gate, up, routed, device, stream);
    if (status == cudaSuccess)
        status = plain_product(x, matrices[2], shared_gate, device, stream);
    if (status == cudaSuccess)
        status = plain_product(x, matrices[3], shared_up, device, stream);
    if (status == cudaSuccess)
        status = launch_swiglu(shared_gate, shared_up, shared, device, stream);
    return status;
}

/* The products of the routed and of the shared rows */
extern "C" uint64_t cuda_generic_expert_down_workspace(const cuda_op *op, const cuda_device *) {
    uint64_t rows = static_cast<uint64_t>(op->views[0].rows) + op->views[1].rows;
    return sizeof(float) * rows * op->views[op->op.operand_count - 1].columns;
}

extern "C" cudaError_t cuda_generic_expert_down(const cuda_op *op, const cuda_device *device, void *workspace,
                                                cudaStream_t stream) {
    bool sorted = op->op.operand_count == 9;
    const cuda_view &routed = op->views[0], &shared = op->views[1], &ids = op->views[2],
                    &scores = op->views[3];
    const cuda_view *matrices = &op->views[sorted ? 6 : 4], &y = matrices[2];
    float *memory = static_cast<float *>(workspace);
    cuda_view products = workspace_view(memory, routed.rows, y.columns);
    cuda_view shared_product =
        workspace_view(memory + static_cast<uint64_t>(routed.rows) * y.columns, shared.rows, y.columns);
    cudaError_t status = expert_product(op, routed, ids, sorted ? &op->views[4] : nullptr, matrices[0],
                                        products, device, stream);
    if (status == cudaSuccess)
        status = plain_product(shared, matrices[1], shared_product, device, stream);
    if (status == cudaSuccess)
        status = launch_combine(products, shared_product, scores, y, device, stream);
    return status;
}
