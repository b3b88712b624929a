/* Ops on single rows: the embedding, the norms, and what is element by element. */
#include "backend/metal/encode_rows.h"
#include "backend/metal/kernels/row_parameters.h"

_Static_assert(EMBED_F32 == DTYPE_F32 && EMBED_F16 == DTYPE_F16 && EMBED_BF16 == DTYPE_BF16 &&
                   EMBED_AFFINE4 == DTYPE_AFFINE4 && EMBED_AFFINE8 == DTYPE_AFFINE8,
               "types have the same numbers in the kernels");

#define ELEMENT_THREADS 256
#define NORM_THREADS 256

/* A grid of a thread for each element. */
static void launch_elements(struct metal_encoder *encoder, uint32_t rows, uint32_t columns) {
    uint32_t threads = metal_use_limits(encoder)->max_threads;
    threads = threads < ELEMENT_THREADS ? threads : ELEMENT_THREADS;
    metal_launch(encoder, (struct metal_size){(columns + threads - 1) / threads, rows, 1},
                 (struct metal_size){threads, 1, 1});
}

/* A threadgroup for each row, of whole simdgroups, and no more of them than have work. */
static void launch_rows(struct metal_encoder *encoder, uint32_t rows, uint32_t size) {
    uint32_t most = metal_use_limits(encoder)->max_threads / METAL_SIMD_WIDTH * METAL_SIMD_WIDTH;
    uint32_t threads = (size + METAL_SIMD_WIDTH - 1) / METAL_SIMD_WIDTH * METAL_SIMD_WIDTH;
    threads = threads < NORM_THREADS ? threads : NORM_THREADS;
    threads = threads < most ? threads : most;
    metal_launch(encoder, (struct metal_size){rows, 1, 1}, (struct metal_size){threads, 1, 1});
}

/* tokens, table, y */
static void encode_embed(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *tokens = &op->operands[0], *table = &op->operands[1], *y = &op->operands[2];
    bool affine = table->dtype == DTYPE_AFFINE4 || table->dtype == DTYPE_AFFINE8;
    const struct metal_constant constants[] = {metal_uint(0, table->dtype),
                                               metal_uint(1, affine ? table->scale_dtype : table->dtype),
                                               metal_bool(2, affine)};
    struct embed_parameters parameters = {
        .rows = table->rows, .columns = table->columns, .y_stride = y->stride};
    metal_use(encoder, "embed", constants, 3);
    metal_bind(encoder, 0, tokens);
    metal_bind(encoder, 1, table);
    if (affine) {
        metal_bind_scales(encoder, 2, table);
        metal_bind_biases(encoder, 3, table);
    }
    metal_bind_output(encoder, 4, y);
    metal_bind_bytes(encoder, 5, &parameters, sizeof parameters);
    launch_elements(encoder, tokens->columns, table->columns);
}

/* x, weight, y */
static void encode_rms_norm(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *x = &op->operands[0], *y = &op->operands[2];
    struct norm_parameters parameters = {.rows = x->rows,
                                         .heads = 1,
                                         .size = x->columns,
                                         .x_stride = x->stride,
                                         .y_stride = y->stride,
                                         .epsilon = op->op->constants.epsilon};
    metal_use(encoder, "rms_norm", NULL, 0);
    metal_bind(encoder, 0, x);
    metal_bind(encoder, 1, &op->operands[1]);
    metal_bind_output(encoder, 2, y);
    metal_bind_bytes(encoder, 3, &parameters, sizeof parameters);
    launch_rows(encoder, x->rows, x->columns);
}

static void use_gated_norm(const struct op_constants *constants, const struct metal_operand *x,
                           const struct metal_operand *z, const struct metal_operand *weight,
                           const struct metal_operand *y, struct metal_encoder *encoder) {
    struct norm_parameters parameters = {.rows = x->rows,
                                         .heads = constants->value_heads,
                                         .size = constants->value_size,
                                         .x_stride = x->stride,
                                         .z_stride = z->stride,
                                         .y_stride = y->stride,
                                         .epsilon = constants->epsilon};
    metal_use(encoder, "gated_norm", NULL, 0);
    metal_bind(encoder, 0, x);
    metal_bind(encoder, 1, z);
    metal_bind(encoder, 2, weight);
    metal_bind_bytes(encoder, 4, &parameters, sizeof parameters);
}

/* x, z, weight, y */
static void encode_gated_norm(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *x = &op->operands[0], *y = &op->operands[3];
    const struct op_constants *constants = &op->op->constants;
    use_gated_norm(constants, x, &op->operands[1], &op->operands[2], y, encoder);
    metal_bind_output(encoder, 3, y);
    launch_rows(encoder, x->rows * constants->value_heads, constants->value_size);
}

void encode_gated_norm_of(const struct op_constants *constants, const struct metal_operand *y,
                          const struct metal_operand *z, const struct metal_operand *weight,
                          struct metal_encoder *encoder) {
    struct metal_operand before = *y, after = *y;
    before.access = ACCESS_READ;
    after.access = ACCESS_WRITE;
    metal_phase(encoder);
    use_gated_norm(constants, &before, z, weight, &after, encoder);
    metal_bind(encoder, 3, &after); /* not as an output, all of which is new: it is read */
    launch_rows(encoder, y->rows * constants->value_heads, constants->value_size);
}

/* gate, up, y */
static void encode_swiglu(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *gate = &op->operands[0], *up = &op->operands[1], *y = &op->operands[2];
    struct swiglu_parameters parameters = {
        .columns = y->columns, .gate_stride = gate->stride, .up_stride = up->stride, .y_stride = y->stride};
    metal_use(encoder, "swiglu", NULL, 0);
    metal_bind(encoder, 0, gate);
    metal_bind(encoder, 1, up);
    metal_bind_output(encoder, 2, y);
    metal_bind_bytes(encoder, 3, &parameters, sizeof parameters);
    launch_elements(encoder, y->rows, y->columns);
}

/* routed, shared, scores, y */
static void encode_expert_combine(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *operands = op->operands, *y = &op->operands[3];
    struct combine_parameters parameters = {.columns = y->columns,
                                            .chosen = op->op->constants.experts_per_token,
                                            .routed_stride = operands[0].stride,
                                            .shared_stride = operands[1].stride,
                                            .scores_stride = operands[2].stride,
                                            .y_stride = y->stride};
    metal_use(encoder, "expert_combine", NULL, 0);
    for (uint32_t i = 0; i < 4; i++)
        metal_bind(encoder, i, &operands[i]);
    metal_bind_bytes(encoder, 4, &parameters, sizeof parameters);
    launch_elements(encoder, y->rows, y->columns);
}

const struct metal_kernel metal_embed[] = {{.encode = encode_embed}};
const struct metal_kernel metal_rms_norm[] = {{.encode = encode_rms_norm}};
const struct metal_kernel metal_head_norm[] = {{.encode = encode_rms_norm}};
const struct metal_kernel metal_gated_norm[] = {{.encode = encode_gated_norm}};
const struct metal_kernel metal_swiglu[] = {{.encode = encode_swiglu}};
const struct metal_kernel metal_expert_combine[] = {{.encode = encode_expert_combine}};
