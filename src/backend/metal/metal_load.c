/* Loading the weights: each gets a place in buffers that processor and GPU share, aligned, and is read there
 * straight from the checkpoint's files by several threads. Nothing is repacked; only vectors, taps and 32-bit
 * scales, which are small, pass through the processor on their way.
 *
 * A GPU limits the size of one buffer: there are as many as that takes, and no weight lies in two. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backend/metal/metal_backend.h"
#include "backend/pieces.h"

#define PIECE_BYTES ((uint64_t)8 << 20)

/* Elements of a part: scales and biases have one a group. */
static uint64_t elements_of(const struct weight *weight, uint32_t part) {
    return piece_rows_of(weight) * (part > 0 ? weight->columns / DTYPE_AFFINE_GROUP : weight->columns);
}

/* The types of a part in the file and in memory. */
static enum dtype type_in_file(const struct weight *weight, uint32_t part) {
    return part > 0 ? weight->parts[part].dtype : weight->dtype;
}

static enum dtype type_in_memory(const struct metal_operand *place, uint32_t part) {
    return (enum dtype)(part > 0 ? place->scale_dtype : place->dtype);
}

/* Of elements without a row's scales. */
static uint64_t part_bytes(enum dtype dtype, uint64_t elements) {
    return elements * dtype_bits(dtype) / 8;
}

/* How a weight lies in memory, from byte `offset` of its buffer on; returns its bytes. */
static uint64_t describe(const struct weight *weight, uint64_t offset, struct metal_operand *place) {
    uint64_t rows = piece_rows_of(weight);
    *place = (struct metal_operand){.offset = offset,
                                    .dtype = weight->dtype,
                                    .scale_dtype = DTYPE_F32,
                                    .rows = (uint32_t)rows,
                                    .columns = weight->columns,
                                    .stride = weight->columns,
                                    .access = ACCESS_READ};
    bool affine = weight->part_count == 3;
    if (affine && weight->parts[1].dtype == DTYPE_BF16 && weight->parts[2].dtype == DTYPE_BF16)
        place->scale_dtype = DTYPE_BF16;
    if (!affine && (rows == 1 || weight->columns <= METAL_SMALL_COLUMNS))
        place->dtype = DTYPE_F32;
    uint64_t bytes = metal_place(part_bytes((enum dtype)place->dtype, elements_of(weight, 0)));
    if (!affine)
        return bytes;
    uint64_t groups = metal_place(part_bytes((enum dtype)place->scale_dtype, elements_of(weight, 1)));
    place->scales = offset + bytes;
    place->biases = place->scales + groups;
    return bytes + 2 * groups;
}

static bool check_weights(const struct weights *weights, struct calla_error *error) {
    for (uint32_t i = 0; i < weights->table.count; i++)
        if (piece_rows_of(&weights->table.weights[i]) > UINT32_MAX)
            return error_set(error, CALLA_UNSUPPORTED,
                             "%s: its %" PRIu64 " rows are more than a GPU's kernels count.",
                             weights->table.weights[i].module, piece_rows_of(&weights->table.weights[i]));
    return pieces_check(weights, error);
}

/* ---- Places */

/* Before anything is allocated: the weights leave room for a session, or it is said what there is. */
static bool check_memory(const struct metal_backend *backend, uint64_t bytes, struct calla_error *error) {
    const struct metal_facts *facts = backend->facts;
    if (bytes <= facts->working_set)
        return true;
    return error_set(error, CALLA_OUT_OF_MEMORY,
                     "The model's weights take %" PRIu64 " MB, but the GPU %s recommends to use no more than "
                     "%" PRIu64 " MB: take a machine with more memory, a smaller model or --backend cpu, or "
                     "raise the limit where memory is left (sudo sysctl iogpu.wired_limit_mb=%" PRIu64 ").",
                     bytes / 1000000 + 1, facts->name, facts->working_set / 1000000, bytes / 1048576 + 4096);
}

/* Splits the weights over buffers in the order of the table: `first` and `size` of each buffer, or only their
 * number where these are NULL. */
static uint32_t split(const struct metal_backend *backend, const struct weights *weights, uint32_t *first,
                      uint64_t *size) {
    uint32_t count = 0;
    uint64_t filled = 0;
    struct metal_operand unused;
    for (uint32_t i = 0; i < weights->table.count; i++) {
        uint64_t bytes = describe(&weights->table.weights[i], 0, &unused);
        if (count == 0 || (filled > 0 && filled + bytes > backend->facts->max_buffer)) {
            if (first != NULL)
                first[count] = i;
            count++;
            filled = 0;
        }
        filled += bytes;
        if (size != NULL)
            size[count - 1] = filled;
    }
    return count;
}

static bool fill_buffers(struct metal_backend *backend, const struct weights *weights, const uint32_t *first,
                         const uint64_t *size, uint32_t count, struct calla_error *error) {
    for (uint32_t i = 0; i < count; i++) {
        struct metal_buffer *buffer = metal_allocate(backend, size[i], "the model's weights", error);
        if (buffer == NULL)
            return false;
        backend->weight_buffers[backend->weight_buffer_count++] = buffer;
        uint32_t end = i + 1 < count ? first[i + 1] : weights->table.count;
        uint64_t offset = 0;
        for (uint32_t j = first[i]; j < end; j++) {
            struct metal_operand *place = &backend->weight_operands[j];
            offset += describe(&weights->table.weights[j], offset, place);
            place->buffer = buffer;
        }
    }
    return true;
}

static bool allocate(struct metal_backend *backend, const struct weights *weights,
                     struct calla_error *error) {
    uint64_t bytes = 0;
    struct metal_operand unused;
    for (uint32_t i = 0; i < weights->table.count; i++)
        bytes += describe(&weights->table.weights[i], 0, &unused);
    if (!check_memory(backend, bytes, error))
        return false;
    uint32_t count = split(backend, weights, NULL, NULL);
    uint32_t *first = calloc(count + (size_t)1, sizeof *first);
    uint64_t *size = calloc(count + (size_t)1, sizeof *size);
    backend->weight_operands = calloc(weights->table.count + (size_t)1, sizeof *backend->weight_operands);
    backend->weight_buffers = calloc(count + (size_t)1, sizeof *backend->weight_buffers);
    bool ok =
        first != NULL && size != NULL && backend->weight_operands != NULL && backend->weight_buffers != NULL;
    if (ok) {
        split(backend, weights, first, size);
        ok = fill_buffers(backend, weights, first, size, count, error);
    } else {
        error_memory(error, "the list of weights", weights->table.count * sizeof(struct metal_operand));
    }
    free(first);
    free(size);
    return ok;
}

/* ---- Reading */

/* Cuts all parts into pieces of bytes. */
static bool cut(struct pieces *pieces, struct calla_error *error) {
    const struct weight_table *table = &pieces->weights->table;
    for (int fill = 0; fill < 2; fill++) {
        pieces->count = 0;
        for (uint32_t i = 0; i < table->count; i++)
            for (uint32_t part = 0; part < table->weights[i].part_count; part++) {
                const struct weight_part *found = &table->weights[i].parts[part];
                for (uint64_t at = 0; at < found->bytes; at += PIECE_BYTES, pieces->count++) {
                    uint64_t left = found->bytes - at, size = left < PIECE_BYTES ? left : PIECE_BYTES;
                    if (fill)
                        pieces->list[pieces->count] = (struct piece){.weight = i,
                                                                     .part = part,
                                                                     .file = found->file,
                                                                     .place = found->offset + at,
                                                                     .first = at,
                                                                     .count = size,
                                                                     .bytes = size};
                }
            }
        if (!fill && (pieces->list = calloc(pieces->count + 1, sizeof *pieces->list)) == NULL)
            return error_memory(error, "reading weights", pieces->count * sizeof *pieces->list);
    }
    return true;
}

/* Elements of another type than they shall have in memory, which is F32. */
static bool read_converted(const struct weights *weights, const struct piece *piece, enum dtype dtype,
                           float *out, struct calla_error *error) {
    unsigned char *bytes = malloc((size_t)piece->bytes);
    if (bytes == NULL)
        return error_memory(error, "reading weights", (size_t)piece->bytes);
    bool ok =
        weights_read_part(weights, piece->weight, piece->part, piece->first, bytes, piece->bytes, error);
    for (size_t i = 0; ok && i < piece->bytes * 8 / dtype_bits(dtype); i++)
        out[i] = float_load(bytes, dtype, i);
    free(bytes);
    return ok;
}

struct load {
    struct metal_backend *backend;
    struct pieces pieces;
};

static bool read_piece(void *owner, size_t reader, const struct piece *piece, struct calla_error *error) {
    const struct load *load = owner;
    (void)reader;
    if (piece == NULL)
        return true;
    const struct weights *weights = load->pieces.weights;
    const struct weight *weight = &weights->table.weights[piece->weight];
    const struct metal_operand *place = &load->backend->weight_operands[piece->weight];
    enum dtype file = type_in_file(weight, piece->part), memory = type_in_memory(place, piece->part);
    const uint64_t offsets[3] = {place->offset, place->scales, place->biases};
    unsigned char *target = (unsigned char *)metal_buffer_contents(place->buffer) + offsets[piece->part];
    if (file == memory)
        return weights_read_part(weights, piece->weight, piece->part, piece->first, target + piece->first,
                                 piece->bytes, error);
    uint64_t element = piece->first * 8 / dtype_bits(file);
    return read_converted(weights, piece, file, (float *)(void *)target + element, error);
}

bool metal_load(struct backend *base, struct weights *weights, const struct calla_progress *progress,
                struct calla_error *error) {
    struct load load = {
        .backend = (struct metal_backend *)base,
        .pieces = {.weights = weights, .progress = progress, .read = read_piece, .owner = &load}};
    bool ok = check_weights(weights, error) && allocate(load.backend, weights, error) &&
              cut(&load.pieces, error) && pieces_read(&load.pieces, pieces_readers(load.pieces.count), error);
    free(load.pieces.list);
    if (ok)
        load.backend->weights = weights;
    return ok;
}
