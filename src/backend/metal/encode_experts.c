/* The mixture of experts: routing, sorting by expert, the experts' products. */
#include "backend/metal/encode_products.h"

/* ---- The router: logits of all experts and of the shared gate, [T, E+1] in the workspace; then the choice.
 */

static uint64_t router_workspace(const struct metal_op *op, const struct metal_encoder *encoder) {
    (void)encoder;
    return sizeof(float) * op->operands[0].rows * ((uint64_t)op->op->constants.experts + 1);
}

static void encode_router(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct op_constants *constants = &op->op->constants;
    const struct metal_operand *x = &op->operands[0], *rest = metal_after_input(op);
    const struct metal_operand *ids = &rest[2], *scores = &rest[3];
    uint32_t experts = constants->experts;
    struct metal_operand logits =
        workspace_view(&op->workspace, 0, DTYPE_F32, x->rows, experts + 1, ACCESS_WRITE);
    struct metal_operand pairs[4] = {rest[0], logits, rest[1], logits};
    pairs[1].columns = experts;
    pairs[3].columns = 1;
    pairs[3].offset += sizeof(float) * experts;
    const struct linear_products products = {.x = x,
                                             .norm = constants->normalise ? &op->operands[1] : NULL,
                                             .pairs = pairs,
                                             .count = 2,
                                             .epsilon = constants->epsilon};
    encode_linear_rows(&products, encoder);
    metal_phase(encoder);
    const struct route_parameters given = {experts, constants->experts_per_token, ids->stride,
                                           scores->stride};
    metal_use(encoder, "route", NULL, 0);
    metal_bind_bytes(encoder, 0, &given, sizeof given);
    logits.access = ACCESS_READ;
    metal_bind(encoder, 1, &logits);
    metal_bind_output(encoder, 2, ids);
    metal_bind_output(encoder, 3, scores);
    metal_bind_memory(encoder, 0, 4 * 32 * (divide_up(experts, 32) + divide_up(given.chosen, 32)));
    metal_launch(encoder, (struct metal_size){x->rows, 1, 1}, (struct metal_size){METAL_SIMD_WIDTH, 1, 1});
}

const struct metal_kernel metal_router[] = {{NULL, router_workspace, encode_router}};

/* ---- Sorting */

static void encode_expert_sort(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *ids = &op->operands[0];
    const struct expert_sort_parameters given = {op->op->constants.experts, ids->rows * ids->columns,
                                                 ids->columns, ids->stride};
    metal_use(encoder, "expert_sort", NULL, 0);
    metal_bind_bytes(encoder, 0, &given, sizeof given);
    metal_bind(encoder, 1, ids);
    metal_bind_output(encoder, 2, &op->operands[1]);
    metal_bind_output(encoder, 3, &op->operands[2]);
    metal_launch(encoder, (struct metal_size){given.experts + 1, 1, 1},
                 (struct metal_size){METAL_SIMD_WIDTH, 1, 1});
}

const struct metal_kernel metal_expert_sort[] = {{NULL, NULL, encode_expert_sort}};

/* ---- Products a pair at a time, in whatever order */

static void launch_pairs(struct metal_encoder *encoder, uint32_t out, uint32_t simdgroups, uint32_t pairs) {
    metal_launch(encoder, (struct metal_size){divide_up(out, VECTOR_ROWS * simdgroups), pairs, 1},
                 (struct metal_size){METAL_SIMD_WIDTH * simdgroups, 1, 1});
}

static void encode_linear_pairs(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *x = &op->operands[0], *ids = &op->operands[1];
    const struct metal_operand *y = &op->operands[op->op->operand_count - 1], *matrix = y - 1;
    const struct metal_constant constants[] = {metal_uint(CONSTANT_KIND_A, weight_kind(matrix)),
                                               metal_bool(CONSTANT_NORMALISE, false),
                                               metal_bool(CONSTANT_X_VECTORS, vectors_fit(x))};
    const struct expert_parameters given = {.rows = ids->rows,
                                            .chosen = ids->columns,
                                            .columns = x->columns,
                                            .x_stride = x->stride,
                                            .ids_stride = ids->stride,
                                            .x_of_pairs = x->rows != ids->rows,
                                            .out = y->columns,
                                            .y_stride = y->stride};
    metal_use(encoder, "expert_linear", constants, sizeof constants / sizeof *constants);
    metal_bind_bytes(encoder, 0, &given, sizeof given);
    metal_bind(encoder, 1, x);
    metal_bind(encoder, 2, ids);
    bind_weight(encoder, 3, matrix);
    metal_bind_output(encoder, 6, y);
    launch_pairs(encoder, given.out, simdgroups_of(encoder, 2), given.rows * given.chosen);
}

const struct metal_kernel metal_expert_linear[] = {{NULL, NULL, encode_linear_pairs}};

static void encode_gate_up_pairs(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct op_constants *constants = &op->op->constants;
    const struct metal_operand *x = &op->operands[0], *ids = metal_after_input(op);
    const struct metal_operand *shared = &op->operands[op->op->operand_count - 1], *routed = shared - 1;
    const struct metal_operand *matrices = shared - 5;
    struct metal_constant kernel_constants[6] = {metal_bool(CONSTANT_NORMALISE, constants->normalise),
                                                 metal_bool(CONSTANT_X_VECTORS, vectors_fit(x))};
    for (uint32_t i = 0; i < 4; i++)
        kernel_constants[2 + i] = metal_uint(CONSTANT_KIND_A + i, weight_kind(&matrices[i]));
    const struct expert_parameters given = {.rows = x->rows,
                                            .chosen = ids->columns,
                                            .columns = x->columns,
                                            .x_stride = x->stride,
                                            .ids_stride = ids->stride,
                                            .out = routed->columns,
                                            .y_stride = routed->stride,
                                            .epsilon = constants->epsilon,
                                            .shared_out = shared->columns,
                                            .shared_y_stride = shared->stride};
    metal_use(encoder, "expert_gate_up", kernel_constants, 6);
    metal_bind_bytes(encoder, 0, &given, sizeof given);
    metal_bind(encoder, 1, x);
    metal_bind(encoder, 2, constants->normalise ? &op->operands[1] : x);
    metal_bind(encoder, 3, ids);
    for (uint32_t i = 0; i < 4; i++)
        bind_weight(encoder, 4 + 3 * i, &matrices[i]);
    metal_bind_output(encoder, 16, routed);
    metal_bind_output(encoder, 17, shared);
    launch_pairs(encoder, given.out > given.shared_out ? given.out : given.shared_out,
                 simdgroups_of(encoder, 2), given.rows * (given.chosen + 1));
}

const struct metal_kernel metal_expert_gate_up[] = {{NULL, NULL, encode_gate_up_pairs}};

static void encode_down_pairs(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *routed = &op->operands[0], *shared = &op->operands[1],
                               *ids = &op->operands[2];
    const struct metal_operand *scores = &op->operands[3], *y = &op->operands[op->op->operand_count - 1];
    const struct metal_constant constants[] = {
        metal_uint(CONSTANT_KIND_A, weight_kind(y - 2)), metal_uint(CONSTANT_KIND_B, weight_kind(y - 1)),
        metal_bool(CONSTANT_NORMALISE, false),
        metal_bool(CONSTANT_X_VECTORS, vectors_fit(routed) && vectors_fit(shared))};
    const struct expert_down_parameters given = {.chosen = ids->columns,
                                                 .hidden = y->columns,
                                                 .width = routed->columns,
                                                 .shared_width = shared->columns,
                                                 .routed_stride = routed->stride,
                                                 .shared_stride = shared->stride,
                                                 .ids_stride = ids->stride,
                                                 .scores_stride = scores->stride,
                                                 .y_stride = y->stride};
    metal_use(encoder, "expert_down", constants, sizeof constants / sizeof *constants);
    metal_bind_bytes(encoder, 0, &given, sizeof given);
    metal_bind(encoder, 1, routed);
    metal_bind(encoder, 2, shared);
    metal_bind(encoder, 3, ids);
    metal_bind(encoder, 4, scores);
    bind_weight(encoder, 5, y - 2);
    bind_weight(encoder, 8, y - 1);
    metal_bind(encoder, 11, y);
    metal_bind_memory(encoder, 0, sizeof(float) * VECTOR_ROWS * (given.chosen + 1));
    metal_launch(encoder, (struct metal_size){divide_up(given.hidden, VECTOR_ROWS), y->rows, 1},
                 (struct metal_size){METAL_SIMD_WIDTH * simdgroups_of(encoder, given.chosen + 1), 1, 1});
}

const struct metal_kernel metal_expert_down[] = {{NULL, NULL, encode_down_pairs}};
