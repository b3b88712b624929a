/* Loading the weights: read from the checkpoint's files into pinned memory, copied to the device as they are,
 * and packed there. Two buffers take turns, so that the disk reads one while the device copies the other. */
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/pack.h"

#include <stdlib.h>

#define ALIGNMENT 256
#define STAGE_BYTES ((uint64_t)16 << 20)

/* Vectors and the taps of convolutions are stored as float32. */
#define SMALL_COLUMNS 16

struct stage {
    char *host, *device;
    cudaEvent_t packed;
};

struct upload {
    struct cuda_backend *backend;
    struct weights *weights;
    const struct calla_progress *progress;
    struct stage stages[2];
    uint64_t stage_bytes, done;
    uint32_t next; /* stage */
};

static uint64_t aligned(uint64_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static bool is_affine(const struct weight *weight) {
    return weight->part_count == 3;
}

static uint64_t rows_of(const struct weight *weight) {
    return (uint64_t)weight->matrices * weight->rows;
}

/* How a weight will lie on the device, all but the address; returns its bytes. */
static uint64_t describe(const struct weight *weight, struct cuda_view *view) {
    uint64_t rows = rows_of(weight), groups = weight->columns / DTYPE_AFFINE_GROUP;
    *view = (struct cuda_view){.dtype = weight->dtype,
                               .rows = (uint32_t)rows,
                               .columns = weight->columns,
                               .stride = weight->columns};
    if (weight->dtype == DTYPE_AFFINE4) {
        bool narrow = weight->parts[1].dtype == DTYPE_BF16 && weight->parts[2].dtype == DTYPE_BF16;
        view->scale_dtype = narrow ? DTYPE_BF16 : DTYPE_F32;
        return (rows + CUDA_TILE_ROWS - 1) / CUDA_TILE_ROWS * groups *
               cuda_tile_bytes((enum dtype)view->scale_dtype);
    }
    if (weight->dtype == DTYPE_AFFINE8) {
        view->scale_dtype = DTYPE_F32;
        return aligned(rows * weight->columns) + rows * groups * 2 * sizeof(float);
    }
    if (rows == 1 || weight->columns <= SMALL_COLUMNS)
        view->dtype = DTYPE_F32;
    return rows * dtype_row_bytes((enum dtype)view->dtype, weight->columns);
}

/* Gives every weight its place on the device. */
static bool allocate(struct cuda_backend *backend, const struct weights *weights, struct calla_error *error) {
    uint32_t count = weights->table.count;
    backend->weight_views = calloc(count + (size_t)1, sizeof *backend->weight_views);
    if (backend->weight_views == NULL)
        return error_memory(error, "the list of weights", count * sizeof *backend->weight_views);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += aligned(describe(&weights->table.weights[i], &backend->weight_views[i]));
    struct cuda_memory memory;
    if (!cuda_allocate(&memory, bytes, "the model's weights", error))
        return false;
    backend->weight_memory = memory.data;
    char *next = memory.data;
    for (uint32_t i = 0; i < count; i++) {
        struct cuda_view *view = &backend->weight_views[i];
        view->data = next;
        if (view->dtype == DTYPE_AFFINE8)
            view->scales = next + aligned((uint64_t)view->rows * view->columns);
        next += aligned(describe(&weights->table.weights[i], &(struct cuda_view){.data = NULL}));
    }
    return true;
}

/* Bytes of `rows` rows of a part. */
static uint64_t part_bytes(const struct weight *weight, uint32_t part, uint64_t rows) {
    if (part > 0)
        return rows * dtype_row_bytes(weight->parts[part].dtype, weight->columns / DTYPE_AFFINE_GROUP);
    return rows * (((uint64_t)weight->columns * dtype_bits(weight->dtype) + 7) / 8);
}

static uint64_t staged_bytes(const struct weight *weight, uint64_t rows) {
    uint64_t bytes = 0;
    for (uint32_t part = 0; part < weight->part_count; part++)
        bytes += aligned(part_bytes(weight, part, rows));
    return bytes;
}

/* Large enough for a row of tiles of each weight, and not larger than the largest. */
static uint64_t stage_bytes(const struct weights *weights) {
    uint64_t least = 0, most = 1;
    for (uint32_t i = 0; i < weights->table.count; i++) {
        const struct weight *weight = &weights->table.weights[i];
        uint64_t rows = rows_of(weight), all = staged_bytes(weight, rows);
        uint64_t some = staged_bytes(weight, rows < CUDA_TILE_ROWS ? rows : CUDA_TILE_ROWS);
        least = some > least ? some : least;
        most = all > most ? all : most;
    }
    return least > STAGE_BYTES ? least : most < STAGE_BYTES ? most : STAGE_BYTES;
}

static bool open_stages(struct upload *upload, struct calla_error *error) {
    upload->stage_bytes = stage_bytes(upload->weights);
    for (int i = 0; i < 2; i++) {
        struct stage *stage = &upload->stages[i];
        struct cuda_memory memory;
        cudaError_t status = cudaMallocHost((void **)&stage->host, (size_t)upload->stage_bytes);
        if (status == cudaSuccess)
            status = cudaEventCreateWithFlags(&stage->packed, cudaEventDisableTiming);
        if (status != cudaSuccess)
            return cuda_failed(status, "memory for reading weights", error);
        if (!cuda_allocate(&memory, upload->stage_bytes, "reading weights", error))
            return false;
        stage->device = memory.data;
    }
    return true;
}

static void close_stages(struct upload *upload) {
    cudaStreamSynchronize(upload->backend->stream);
    for (int i = 0; i < 2; i++) {
        if (upload->stages[i].packed != NULL)
            cudaEventDestroy(upload->stages[i].packed);
        cudaFreeHost(upload->stages[i].host);
        cudaFree(upload->stages[i].device);
    }
}

/* Reads rows of a weight into a stage and queues their way to the device. */
static bool upload_rows(struct upload *upload, uint32_t index, uint64_t first, uint64_t rows,
                        struct calla_error *error) {
    const struct weight *weight = &upload->weights->table.weights[index];
    struct stage *stage = &upload->stages[upload->next++ % 2];
    cudaError_t status = cudaEventSynchronize(stage->packed);
    const void *parts[3] = {NULL};
    uint64_t offset = 0;
    for (uint32_t part = 0; part < weight->part_count && status == cudaSuccess; part++) {
        uint64_t bytes = part_bytes(weight, part, rows);
        if (!weights_read_part(upload->weights, index, part, part_bytes(weight, part, first),
                               stage->host + offset, bytes, error))
            return false;
        parts[part] = stage->device + offset;
        offset += aligned(bytes);
    }
    cudaStream_t stream = upload->backend->stream;
    if (status == cudaSuccess)
        status = cudaMemcpyAsync(stage->device, stage->host, (size_t)offset, cudaMemcpyHostToDevice, stream);
    struct cuda_raw_rows raw = {.values = parts[0],
                                .scales = parts[1],
                                .biases = parts[2],
                                .dtype = weight->dtype,
                                .scale_dtype = weight->parts[1].dtype,
                                .bias_dtype = weight->parts[2].dtype,
                                .rows = (uint32_t)rows,
                                .columns = weight->columns};
    if (status == cudaSuccess)
        status = cuda_pack(&raw, &upload->backend->weight_views[index], first, stream);
    if (status == cudaSuccess)
        status = cudaEventRecord(stage->packed, stream);
    return status == cudaSuccess || cuda_lost(upload->backend, status, "loading weights", error);
}

static bool upload_weight(struct upload *upload, uint32_t index, struct calla_error *error) {
    const struct weight *weight = &upload->weights->table.weights[index];
    uint64_t rows = rows_of(weight), at_once = rows;
    while (at_once > CUDA_TILE_ROWS && staged_bytes(weight, at_once) > upload->stage_bytes)
        at_once = (at_once / 2 + CUDA_TILE_ROWS - 1) / CUDA_TILE_ROWS * CUDA_TILE_ROWS;
    for (uint64_t first = 0; first < rows; first += at_once) {
        uint64_t count = rows - first < at_once ? rows - first : at_once;
        if (!upload_rows(upload, index, first, count, error))
            return false;
        for (uint32_t part = 0; part < weight->part_count; part++)
            upload->done += part_bytes(weight, part, count);
        const struct calla_progress *progress = upload->progress;
        if (progress != NULL && progress->report != NULL &&
            !progress->report(progress->user, "reading weights", upload->done, upload->weights->bytes))
            return error_set(error, CALLA_CANCELLED, "Reading the weights was cancelled.");
    }
    return true;
}

bool cuda_load(struct backend *base, struct weights *weights, const struct calla_progress *progress,
               struct calla_error *error) {
    struct cuda_backend *backend = (struct cuda_backend *)base;
    struct upload upload = {.backend = backend, .weights = weights, .progress = progress};
    for (uint32_t i = 0; i < weights->table.count; i++)
        if (is_affine(&weights->table.weights[i]) &&
            weights->table.weights[i].columns % DTYPE_AFFINE_GROUP != 0)
            return error_set(
                error, CALLA_BAD_INPUT, "%s: its %u columns are no multiple of the group size %d.",
                weights->table.weights[i].module, weights->table.weights[i].columns, DTYPE_AFFINE_GROUP);
    if (!allocate(backend, weights, error))
        return false;
    bool ok = open_stages(&upload, error);
    for (uint32_t i = 0; i < weights->table.count && ok; i++)
        ok = upload_weight(&upload, i, error);
    close_stages(&upload);
    backend->weights = weights;
    return ok;
}
