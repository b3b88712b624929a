/* Products with whole matrices: linear and head. */
#include "backend/metal/encode_gemm.h"

_Static_assert(WEIGHT_F32 == DTYPE_F32 && WEIGHT_F16 == DTYPE_F16 && WEIGHT_BF16 == DTYPE_BF16 &&
                   WEIGHT_AFFINE4 == DTYPE_AFFINE4 && WEIGHT_AFFINE8 == DTYPE_AFFINE8,
               "kernels know weights by their dtype");

static bool is_affine(const struct metal_operand *matrix) {
    return matrix->dtype == DTYPE_AFFINE4 || matrix->dtype == DTYPE_AFFINE8;
}

uint32_t weight_kind(const struct metal_operand *matrix) {
    return matrix->dtype + 16 * (is_affine(matrix) ? matrix->scale_dtype : 0);
}

void bind_weight(struct metal_encoder *encoder, uint32_t slot, const struct metal_operand *matrix) {
    metal_bind(encoder, slot, matrix);
    if (is_affine(matrix)) {
        metal_bind_scales(encoder, slot + 1, matrix);
        metal_bind_biases(encoder, slot + 2, matrix);
    } else {
        metal_bind(encoder, slot + 1, matrix);
        metal_bind(encoder, slot + 2, matrix);
    }
}

bool vectors_fit(const struct metal_operand *x) {
    return x->offset % 16 == 0 && x->stride % 4 == 0 && x->columns % 4 == 0;
}

uint32_t simdgroups_of(const struct metal_encoder *encoder, uint32_t wanted) {
    uint32_t most = metal_use_limits(encoder)->max_threads / METAL_SIMD_WIDTH;
    return most < wanted ? most : wanted;
}

struct metal_operand workspace_place(struct workspace_places *places, enum dtype dtype, uint32_t rows,
                                     uint32_t columns) {
    struct metal_operand place = {.buffer = places->workspace->buffer,
                                  .offset = places->workspace->offset + places->used,
                                  .dtype = dtype,
                                  .rows = rows,
                                  .columns = columns,
                                  .stride = columns,
                                  .access = ACCESS_READ | ACCESS_WRITE};
    uint64_t bytes = (uint64_t)rows * columns * dtype_bits(dtype) / 8;
    places->used += (bytes + METAL_ALIGNMENT - 1) / METAL_ALIGNMENT * METAL_ALIGNMENT;
    return place;
}

/* One launch for matrices of one kind. */
static void encode_linear_kind(const struct linear_products *products, struct metal_encoder *encoder) {
    const struct metal_operand *x = products->x;
    uint32_t block = x->rows == 1 ? 1 : x->rows == 2 ? 2 : 4;
    struct metal_constant constants[4 + LINEAR_MATRICES - 1] = {
        metal_uint(CONSTANT_KIND_A, weight_kind(products->pairs)),
        metal_bool(CONSTANT_NORMALISE, products->norm != NULL),
        metal_bool(CONSTANT_ACCUMULATE, products->accumulate),
        metal_bool(CONSTANT_X_VECTORS, vectors_fit(x)),
    };
    for (uint32_t i = 1; i < LINEAR_MATRICES; i++)
        constants[3 + i] = metal_bool(CONSTANT_HAS_SECOND + i - 1, i < products->count);
    metal_use(encoder,
              block == 1   ? "linear_1"
              : block == 2 ? "linear_2"
                           : "linear_4",
              constants, sizeof constants / sizeof *constants);
    uint32_t simdgroups = simdgroups_of(encoder, 2), groups = 0;
    struct linear_parameters given = {x->rows, x->columns, x->stride, products->epsilon, {{0}}};
    for (uint32_t i = 0; i < products->count; i++) {
        const struct metal_operand *matrix = &products->pairs[2 * i], *y = matrix + 1;
        given.matrices[i] = (struct linear_matrix){matrix->rows, y->stride, groups};
        groups += divide_up(matrix->rows, VECTOR_ROWS * simdgroups);
        bind_weight(encoder, 3 + 4 * i, matrix);
        if (products->accumulate)
            metal_bind(encoder, 6 + 4 * i, y);
        else
            metal_bind_output(encoder, 6 + 4 * i, y);
    }
    metal_bind_bytes(encoder, 0, &given, sizeof given);
    metal_bind(encoder, 1, x);
    metal_bind(encoder, 2, products->norm != NULL ? products->norm : x);
    metal_launch(encoder, (struct metal_size){groups, divide_up(x->rows, block), 1},
                 (struct metal_size){METAL_SIMD_WIDTH * simdgroups, 1, 1});
}

void encode_linear_rows(const struct linear_products *products, struct metal_encoder *encoder) {
    for (uint32_t first = 0, count; first < products->count; first += count) {
        struct linear_products run = *products;
        run.pairs += 2 * first;
        for (count = 1; count < LINEAR_MATRICES && first + count < products->count &&
                        weight_kind(&run.pairs[2 * count]) == weight_kind(run.pairs);)
            count++;
        run.count = count;
        encode_linear_kind(&run, encoder);
    }
}

/* ---- Few rows */

static uint32_t matrix_count(const struct metal_op *op) {
    return op->op->kind == OP_LINEAR ? op->op->constants.matrix_count : 1;
}

static struct linear_products products_of(const struct metal_op *op) {
    const struct op_constants *constants = &op->op->constants;
    return (struct linear_products){.x = &op->operands[0],
                                    .norm = constants->normalise ? &op->operands[1] : NULL,
                                    .pairs = metal_after_input(op),
                                    .count = matrix_count(op),
                                    .epsilon = constants->epsilon,
                                    .accumulate = op->op->kind == OP_LINEAR && constants->accumulate};
}

static void encode_few_rows(const struct metal_op *op, struct metal_encoder *encoder) {
    struct linear_products products = products_of(op);
    encode_linear_rows(&products, encoder);
}

/* ---- Many rows */

static bool many_rows_fit(const struct metal_op *op, const struct metal_encoder *encoder) {
    (void)encoder;
    return gemm_fits(&op->operands[0]);
}

struct many_rows_memory {
    struct metal_operand x, expanded[LINEAR_MATRICES + 1];
    uint64_t bytes;
};

static struct many_rows_memory many_rows_memory(const struct metal_op *op,
                                                const struct metal_encoder *encoder) {
    struct workspace_places places = {&op->workspace, 0};
    struct many_rows_memory memory;
    enum dtype dtype = DTYPE_BF16;
    for (uint32_t i = 0; i < matrix_count(op); i++)
        if (gemm_dtype(&metal_after_input(op)[2 * i], NULL) == DTYPE_F32)
            dtype = DTYPE_F32;
    memory.x = workspace_place(&places, dtype, op->operands[0].rows, op->operands[0].columns);
    /* One after the other they take the same place. */
    uint64_t used = places.used, most = used;
    for (uint32_t i = 0; i < matrix_count(op); i++) {
        places.used = used;
        memory.expanded[i] = expanded_place(&places, encoder, &metal_after_input(op)[2 * i], NULL, 0);
        most = places.used > most ? places.used : most;
    }
    memory.bytes = most;
    return memory;
}

static uint64_t many_rows_workspace(const struct metal_op *op, const struct metal_encoder *encoder) {
    return many_rows_memory(op, encoder).bytes;
}

static void encode_many_rows(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct linear_products products = products_of(op);
    const struct many_rows_memory memory = many_rows_memory(op, encoder);
    encode_prepare(products.x, products.norm, products.epsilon, &memory.x, encoder);
    metal_phase(encoder);
    for (uint32_t i = 0; i < products.count; i++) {
        const struct gemm gemm = {.x = &memory.x,
                                  .matrix = &products.pairs[2 * i],
                                  .y = &products.pairs[2 * i + 1],
                                  .expanded = &memory.expanded[i],
                                  .accumulate = products.accumulate};
        encode_gemm(&gemm, encoder);
    }
}

const struct metal_kernel metal_linear[] = {
    {.fits = many_rows_fit, .workspace = many_rows_workspace, .encode = encode_many_rows},
    {.encode = encode_few_rows}};
const struct metal_kernel metal_head[] = {
    {.fits = many_rows_fit, .workspace = many_rows_workspace, .encode = encode_many_rows},
    {.encode = encode_few_rows}};
