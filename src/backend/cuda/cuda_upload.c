/* Loading the weights: read from the checkpoint's files into pinned memory, copied to the device as they are,
 * and packed there. Several threads take pieces in the order of the files; each has two stages that take
 * turns, so that it reads into one while the device empties the other. */
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/pack.h"
#include "backend/pieces.h"

#include <stdlib.h>

#define STAGE_BYTES ((uint64_t)8 << 20)

/* Vectors and the taps of convolutions are stored as float32. */
#define SMALL_COLUMNS 16

struct stage {
    char *host;
    struct cuda_memory device;
    cudaEvent_t packed;
};

struct reader {
    cudaStream_t stream;
    struct stage stages[2];
    uint32_t next; /* stage */
};

struct upload {
    struct cuda_backend *backend;
    uint64_t stage_bytes;
    struct pieces pieces; /* neighbouring rows of a weight that fit a stage, all its parts */
    struct reader readers[PIECES_MOST_READERS];
    size_t reader_count;
};

static uint64_t aligned(uint64_t bytes) {
    return (bytes + CUDA_ALIGNMENT - 1) / CUDA_ALIGNMENT * CUDA_ALIGNMENT;
}

/* How a weight will lie on the device, all but the address; returns its bytes. */
static uint64_t describe(const struct weight *weight, struct cuda_view *view) {
    uint64_t rows = piece_rows_of(weight), groups = weight->columns / DTYPE_AFFINE_GROUP;
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
        struct cuda_view *view = &backend->weight_views[i], size;
        view->data = next;
        if (view->dtype == DTYPE_AFFINE8)
            view->scales = next + aligned((uint64_t)view->rows * view->columns);
        next += aligned(describe(&weights->table.weights[i], &size));
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
static uint64_t choose_stage_bytes(const struct weights *weights) {
    uint64_t least = 0, most = 1;
    for (uint32_t i = 0; i < weights->table.count; i++) {
        const struct weight *weight = &weights->table.weights[i];
        uint64_t rows = piece_rows_of(weight), all = staged_bytes(weight, rows);
        uint64_t some = staged_bytes(weight, rows < CUDA_TILE_ROWS ? rows : CUDA_TILE_ROWS);
        least = some > least ? some : least;
        most = all > most ? all : most;
    }
    return least > STAGE_BYTES ? least : most < STAGE_BYTES ? most : STAGE_BYTES;
}

/* Whole rows of tiles, except in the last piece of a weight. */
static uint64_t rows_at_once(const struct weight *weight, uint64_t stage) {
    uint64_t rows = piece_rows_of(weight);
    while (rows > CUDA_TILE_ROWS && staged_bytes(weight, rows) > stage)
        rows = (rows / 2 + CUDA_TILE_ROWS - 1) / CUDA_TILE_ROWS * CUDA_TILE_ROWS;
    return rows;
}

static bool cut(struct upload *upload, struct calla_error *error) {
    struct pieces *pieces = &upload->pieces;
    const struct weight_table *table = &pieces->weights->table;
    size_t count = 0;
    for (uint32_t i = 0; i < table->count; i++) {
        uint64_t rows = piece_rows_of(&table->weights[i]),
                 some = rows_at_once(&table->weights[i], upload->stage_bytes);
        count += (size_t)((rows + some - 1) / some);
    }
    pieces->list = calloc(count + 1, sizeof *pieces->list);
    if (pieces->list == NULL)
        return error_memory(error, "reading weights", count * sizeof *pieces->list);
    for (uint32_t i = 0; i < table->count; i++) {
        const struct weight *weight = &table->weights[i];
        uint64_t rows = piece_rows_of(weight), some = rows_at_once(weight, upload->stage_bytes);
        for (uint64_t first = 0; first < rows; first += some) {
            struct piece *piece = &pieces->list[pieces->count++];
            *piece = (struct piece){.weight = i,
                                    .file = weight->parts[0].file,
                                    .place = weight->parts[0].offset + part_bytes(weight, 0, first),
                                    .first = first,
                                    .count = rows - first < some ? rows - first : some};
            for (uint32_t part = 0; part < weight->part_count; part++)
                piece->bytes += part_bytes(weight, part, piece->count);
        }
    }
    return true;
}

static bool open_reader(struct reader *reader, uint64_t stage_bytes, struct calla_error *error) {
    cudaError_t status = cudaStreamCreateWithFlags(&reader->stream, cudaStreamNonBlocking);
    for (int i = 0; i < 2 && status == cudaSuccess; i++) {
        struct stage *stage = &reader->stages[i];
        status = cudaMallocHost((void **)&stage->host, (size_t)stage_bytes);
        if (status == cudaSuccess)
            status = cudaEventCreateWithFlags(&stage->packed, cudaEventDisableTiming);
        if (status == cudaSuccess && !cuda_allocate(&stage->device, stage_bytes, "reading weights", error))
            return false;
    }
    return status == cudaSuccess || cuda_failed(status, "memory for reading weights", error);
}

static void close_reader(struct reader *reader) {
    if (reader->stream != NULL) {
        cudaStreamSynchronize(reader->stream);
        cudaStreamDestroy(reader->stream);
    }
    for (int i = 0; i < 2; i++) {
        if (reader->stages[i].packed != NULL)
            cudaEventDestroy(reader->stages[i].packed);
        cudaFreeHost(reader->stages[i].host);
        cuda_release(&reader->stages[i].device);
    }
}

static bool open_readers(struct upload *upload, struct calla_error *error) {
    size_t count = pieces_readers(upload->pieces.weights->bytes / upload->stage_bytes + 1);
    while (upload->reader_count < count)
        if (!open_reader(&upload->readers[upload->reader_count++], upload->stage_bytes, error))
            return false;
    return true;
}

/* Reads rows of a weight into a stage and queues their way to the device. */
static bool upload_piece(const struct upload *upload, struct reader *reader, const struct piece *piece,
                         struct calla_error *error) {
    const struct weights *weights = upload->pieces.weights;
    const struct weight *weight = &weights->table.weights[piece->weight];
    struct stage *stage = &reader->stages[reader->next++ % 2];
    cudaError_t status = cudaEventSynchronize(stage->packed);
    const void *parts[3] = {NULL};
    uint64_t offset = 0;
    for (uint32_t part = 0; part < weight->part_count && status == cudaSuccess; part++) {
        uint64_t bytes = part_bytes(weight, part, piece->count);
        if (!weights_read_part(weights, piece->weight, part, part_bytes(weight, part, piece->first),
                               stage->host + offset, bytes, error))
            return false;
        parts[part] = (char *)stage->device.data + offset;
        offset += aligned(bytes);
    }
    if (status == cudaSuccess)
        status = cudaMemcpyAsync(stage->device.data, stage->host, (size_t)offset, cudaMemcpyHostToDevice,
                                 reader->stream);
    struct cuda_raw_rows raw = {.values = parts[0],
                                .scales = parts[1],
                                .biases = parts[2],
                                .dtype = weight->dtype,
                                .scale_dtype = weight->parts[1].dtype,
                                .bias_dtype = weight->parts[2].dtype,
                                .rows = (uint32_t)piece->count,
                                .columns = weight->columns};
    if (status == cudaSuccess)
        status = cuda_pack(&raw, &upload->backend->weight_views[piece->weight], piece->first, reader->stream);
    if (status == cudaSuccess)
        status = cudaEventRecord(stage->packed, reader->stream);
    return status == cudaSuccess || cuda_failed(status, "loading weights", error);
}

static bool read_piece(void *owner, size_t number, const struct piece *piece, struct calla_error *error) {
    struct upload *upload = owner;
    struct reader *reader = &upload->readers[number];
    cudaError_t status = cudaSetDevice(upload->backend->device.ordinal);
    if (status == cudaSuccess && piece != NULL)
        return upload_piece(upload, reader, piece, error);
    if (status == cudaSuccess)
        status = cudaStreamSynchronize(reader->stream);
    return status == cudaSuccess || cuda_lost(upload->backend, status, "loading weights", error);
}

bool cuda_load(struct backend *base, struct weights *weights, const struct calla_progress *progress,
               struct calla_error *error) {
    struct cuda_backend *backend = (struct cuda_backend *)base;
    struct upload upload = {
        .backend = backend,
        .stage_bytes = choose_stage_bytes(weights),
        .pieces = {.weights = weights, .progress = progress, .read = read_piece, .owner = &upload}};
    bool ok = pieces_check(weights, error) && allocate(backend, weights, error) && cut(&upload, error) &&
              open_readers(&upload, error) && pieces_read(&upload.pieces, upload.reader_count, error);
    for (size_t i = 0; i < upload.reader_count; i++)
        close_reader(&upload.readers[i]);
    free(upload.pieces.list);
    if (ok)
        backend->weights = weights;
    return ok;
}
