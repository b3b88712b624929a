/* Embedding rows and matrix products of any shape and type, in float32: a warp an output for few rows, tiles
 * in shared memory for more. A sum runs over the columns in one order whatever the other rows are. */
#include "backend/cuda/kernels/generic.cuh"

#define WARPS 8
#define FEW_ROWS 8
#define TILE 64
#define DEPTH 32
#define EACH 4 /* a thread computes EACH x EACH outputs */

/* tokens[T], table[V,H] -> y[T,H]; a block a row. */
__global__ static void embed(const cuda_view tokens, const cuda_view table, const cuda_view y) {
    begin();
    int32_t id = int_row(tokens, 0)[blockIdx.x];
    uint32_t row = id >= 0 && static_cast<uint32_t>(id) < table.rows ? id : 0;
    for (uint32_t i = threadIdx.x; i < y.columns; i += blockDim.x)
        float_row(y, blockIdx.x)[i] = matrix_at(table, row, i);
}

__device__ static void store(const cuda_product &product, uint64_t row, uint32_t column, float sum) {
    float *y = float_row(product.y, row) + column;
    *y = product.accumulate ? *y + sum : sum;
}

/* A warp a column of y, blockIdx.y a row. */
__global__ static void product_of_rows(const cuda_product product) {
    begin();
    uint32_t lane = threadIdx.x % WARP, row = blockIdx.y;
    uint32_t column = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (column >= product.y.columns)
        return;
    uint64_t matrix_row = column;
    const float *x = float_row(product.x, product.x.rows > 1 ? row : 0);
    if (product.experts > 0)
        matrix_row += static_cast<uint64_t>(int_row(product.ids, 0)[row]) * product.y.columns;
    float sum = 0;
    for (uint32_t i = lane; i < product.x.columns; i += WARP)
        sum += x[i] * matrix_at(product.matrix, matrix_row, i);
    sum = warp_sum(sum);
    if (lane == 0)
        store(product, row, column, sum);
}

/* Rows of x and y that a block works on: all of them, or an expert's. */
struct rows {
    const int32_t *pairs; /* NULL: rows as they come */
    uint32_t count, divisor;
    __device__ uint32_t of_y(uint32_t i) const {
        return pairs == nullptr ? i : pairs[i];
    }
    __device__ uint32_t of_x(uint32_t i) const {
        return of_y(i) / divisor;
    }
};

__device__ static rows rows_of(const cuda_product &product) {
    if (product.experts == 0)
        return {nullptr, product.x.rows, 1};
    const int32_t *starts = int_row(product.starts, 0) + blockIdx.z;
    return {int_row(product.order, 0) + starts[0], static_cast<uint32_t>(starts[1] - starts[0]),
            product.x.rows == product.ids.rows ? product.chosen : 1};
}

/* A block: TILE columns of y, every gridDim.y'th TILE rows, blockIdx.z the expert. */
__global__ static void product_in_tiles(const cuda_product product) {
    begin();
    __shared__ float x_tile[DEPTH][TILE + 1], w_tile[DEPTH][TILE + 1];
    rows rows = rows_of(product);
    uint32_t first_column = blockIdx.x * TILE, out = product.y.columns, in = product.x.columns;
    uint64_t first_matrix_row = static_cast<uint64_t>(blockIdx.z) * out + first_column;
    uint32_t my_column = threadIdx.x % (TILE / EACH) * EACH, my_row = threadIdx.x / (TILE / EACH) * EACH;
    for (uint32_t first_row = blockIdx.y * TILE; first_row < rows.count; first_row += gridDim.y * TILE) {
        float sums[EACH][EACH] = {};
        for (uint32_t depth = 0; depth < in; depth += DEPTH) {
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < TILE * DEPTH; i += blockDim.x) {
                uint32_t line = i / DEPTH, column = depth + i % DEPTH;
                bool has_x = column < in && first_row + line < rows.count;
                bool has_w = column < in && first_column + line < out;
                x_tile[i % DEPTH][line] =
                    has_x ? float_row(product.x, rows.of_x(first_row + line))[column] : 0.0f;
                w_tile[i % DEPTH][line] =
                    has_w ? matrix_at(product.matrix, first_matrix_row + line, column) : 0.0f;
            }
            __syncthreads();
            for (uint32_t i = 0; i < DEPTH; i++)
                for (uint32_t r = 0; r < EACH; r++)
                    for (uint32_t c = 0; c < EACH; c++)
                        sums[r][c] += x_tile[i][my_row + r] * w_tile[i][my_column + c];
        }
        for (uint32_t r = 0; r < EACH; r++)
            for (uint32_t c = 0; c < EACH; c++)
                if (first_row + my_row + r < rows.count && first_column + my_column + c < out)
                    store(product, rows.of_y(first_row + my_row + r), first_column + my_column + c,
                          sums[r][c]);
    }
}

cudaError_t cuda_generic_product(const cuda_product &product, const cuda_device *device,
                                 cudaStream_t stream) {
    uint32_t rows = product.y.rows, out = product.y.columns;
    bool sorted = product.experts > 0 && product.starts.data != nullptr;
    if (!sorted && (product.experts > 0 || rows <= FEW_ROWS))
        return cuda_launch(product_of_rows, cuda_overlap(device), dim3(cuda_blocks(out, WARPS), rows),
                           WARPS * WARP, 0, stream, product);
    uint32_t row_tiles = cuda_blocks(rows, TILE), most = sorted ? 4 : 32768;
    dim3 grid(cuda_blocks(out, TILE), row_tiles < most ? row_tiles : most, sorted ? product.experts : 1);
    return cuda_launch(product_in_tiles, cuda_overlap(device), grid, (TILE / EACH) * (TILE / EACH), 0, stream,
                       product);
}

extern "C" cudaError_t cuda_generic_embed(const cuda_op *op, const cuda_device *device, void *,
                                          cudaStream_t stream) {
    return cuda_launch(embed, cuda_overlap(device), op->views[2].rows, 256, 0, stream, op->views[0],
                       op->views[1], op->views[2]);
}

extern "C" cudaError_t cuda_generic_linear(const cuda_op *op, const cuda_device *device, void *workspace,
                                           cudaStream_t stream) {
    cuda_product product = {};
    cudaError_t status = cuda_generic_input(op, device, workspace, &product.x, stream);
    product.accumulate = op->op.constants.accumulate;
    for (uint32_t i = 0; i < op->op.constants.matrix_count && status == cudaSuccess; i++) {
        product.matrix = after_input(op)[2 * i];
        product.y = after_input(op)[2 * i + 1];
        status = cuda_generic_product(product, device, stream);
    }
    return status;
}

extern "C" cudaError_t cuda_generic_head(const cuda_op *op, const cuda_device *device, void *workspace,
                                         cudaStream_t stream) {
    cuda_product product = {};
    cudaError_t status = cuda_generic_input(op, device, workspace, &product.x, stream);
    product.matrix = after_input(op)[0];
    product.y = after_input(op)[1];
    return status == cudaSuccess ? cuda_generic_product(product, device, stream) : status;
}
