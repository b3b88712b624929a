/* The mixture of experts: routing, sorting by expert, the experts' products. */
#include "backend/metal/encode_gemm.h"
#include "backend/pair_order.h"

/* Of the experts' down products at a time. */
#define PRODUCT_BYTES ((uint64_t)64 << 20)

/* ---- The router: logits of all experts and of the shared gate, [T, E+1] in the workspace; then the choice.
 * Nothing is rounded to 16 bits here: nearly equal experts would change places. */

struct router_memory {
    struct metal_operand logits, x; /* x: prepared, for many rows */
    uint64_t bytes;
};

static struct router_memory router_memory(const struct metal_op *op) {
    struct workspace_places places = {&op->workspace, 0};
    struct router_memory memory;
    const struct metal_operand *x = &op->operands[0];
    memory.logits = workspace_place(&places, DTYPE_F32, x->rows, op->op->constants.experts + 1);
    if (gemm_fits(x))
        memory.x = workspace_place(&places, DTYPE_F32, x->rows, x->columns);
    memory.bytes = places.used;
    return memory;
}

static uint64_t router_workspace(const struct metal_op *op, const struct metal_encoder *encoder) {
    (void)encoder;
    return router_memory(op).bytes;
}

/* Threadgroup memory of a choice. */
static void bind_choice_memory(struct metal_encoder *encoder, uint32_t experts, uint32_t chosen) {
    uint32_t line = METAL_SIMD_WIDTH * sizeof(float);
    metal_bind_memory(encoder, 0,
                      line * (divide_up(experts, METAL_SIMD_WIDTH) + divide_up(chosen, METAL_SIMD_WIDTH)));
    metal_bind_memory(encoder, 1, line * divide_up(chosen, METAL_SIMD_WIDTH));
}

/* logits -> ids, scores */
static void encode_route(const struct metal_operand *logits, const struct metal_operand *ids,
                         const struct metal_operand *scores, struct metal_encoder *encoder) {
    struct metal_operand in = *logits;
    const struct route_parameters given = {in.columns - 1, ids->columns, ids->stride, scores->stride};
    in.access = ACCESS_READ;
    metal_use(encoder, "route", NULL, 0);
    metal_bind_bytes(encoder, 0, &given, sizeof given);
    metal_bind(encoder, 1, &in);
    metal_bind_output(encoder, 2, ids);
    metal_bind_output(encoder, 3, scores);
    bind_choice_memory(encoder, given.experts, given.chosen);
    metal_launch(encoder, (struct metal_size){in.rows, 1, 1}, (struct metal_size){METAL_SIMD_WIDTH, 1, 1});
}

static void encode_logits(const struct metal_op *op, const struct router_memory *memory,
                          struct metal_encoder *encoder) {
    const struct op_constants *constants = &op->op->constants;
    const struct metal_operand *rest = metal_after_input(op);
    struct metal_operand pairs[4] = {rest[0], memory->logits, rest[1], memory->logits};
    pairs[1].columns = constants->experts;
    pairs[3].columns = 1;
    pairs[3].offset += sizeof(float) * constants->experts;
    struct linear_products products = {.x = &op->operands[0],
                                       .norm = constants->normalise ? &op->operands[1] : NULL,
                                       .pairs = pairs,
                                       .count = 2,
                                       .epsilon = constants->epsilon};
    if (gemm_fits(products.x)) {
        encode_prepare(products.x, products.norm, products.epsilon, &memory->x, encoder);
        metal_phase(encoder);
        const struct gemm gemm = {.x = &memory->x, .matrix = &pairs[0], .y = &pairs[1]};
        encode_gemm(&gemm, encoder);
        products.pairs += 2; /* the shared gate is one row */
        products.count = 1;
    }
    encode_linear_rows(&products, encoder);
}

static void encode_router(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct router_memory memory = router_memory(op);
    const struct metal_operand *ids = metal_after_input(op) + 2;
    encode_logits(op, &memory, encoder);
    metal_phase(encoder);
    encode_route(&memory.logits, &ids[0], &ids[1], encoder);
}

/* For one token the choice is left to the launch of the gate and up products that come next, which spares a
 * phase. Nobody sees ids and scores earlier: what else reads them reads those products too. */

static const struct operand *ids_of(const struct op *op) {
    return &op->operands[(op->constants.normalise ? 2 : 1) + (op->kind == OP_ROUTER ? 2 : 0)];
}

static bool same_ids(const struct op *a, const struct op *b) {
    const struct operand *ids = ids_of(a), *others = ids_of(b);
    return ids->space == others->space && ids->buffer == others->buffer && ids->offset == others->offset;
}

static bool chooses_later(const struct metal_op *router, const struct metal_op *gate_up) {
    return router != NULL && gate_up != NULL && router->op->kind == OP_ROUTER &&
           gate_up->op->kind == OP_EXPERT_GATE_UP && router->operands[0].rows == 1 &&
           gate_up->operands[0].rows == 1 && gate_up->op->phase == router->op->phase + 1 &&
           same_ids(router->op, gate_up->op);
}

static bool logits_fit(const struct metal_op *op, const struct metal_encoder *encoder) {
    (void)encoder;
    return chooses_later(op, op->after);
}

static void encode_logits_alone(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct router_memory memory = router_memory(op);
    encode_logits(op, &memory, encoder);
}

const struct metal_kernel metal_router[] = {
    {.fits = logits_fit, .workspace = router_workspace, .encode = encode_logits_alone, .keeps = true},
    {.workspace = router_workspace, .encode = encode_router}};

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

static bool host_sort_fits(const struct metal_op *op, const struct metal_encoder *encoder) {
    (void)op;
    return !metal_policy(encoder)->device_routing;
}

/* The GPU stands still until the host has sorted them: what that costs is what sorting on the GPU is worth.
 */
static void encode_host_sort(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *ids = &op->operands[0];
    if (metal_wait(encoder))
        pair_order(metal_operand_bytes(ids), ids->rows, ids->columns, ids->stride, op->op->constants.experts,
                   metal_operand_bytes(&op->operands[1]), metal_operand_bytes(&op->operands[2]));
}

const struct metal_kernel metal_expert_sort[] = {{.fits = host_sort_fits, .encode = encode_host_sort},
                                                 {.encode = encode_expert_sort}};

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

/* The launch of `kernel` but for what tells it the experts. */
static struct expert_parameters use_gate_up(const struct metal_op *op, const char *kernel,
                                            struct metal_encoder *encoder) {
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
                                            .shared_y_stride = shared->stride,
                                            .experts = constants->experts};
    metal_use(encoder, kernel, kernel_constants, 6);
    metal_bind_bytes(encoder, 0, &given, sizeof given);
    metal_bind(encoder, 1, x);
    metal_bind(encoder, 2, constants->normalise ? &op->operands[1] : x);
    for (uint32_t i = 0; i < 4; i++)
        bind_weight(encoder, 4 + 3 * i, &matrices[i]);
    metal_bind_output(encoder, 16, routed);
    metal_bind_output(encoder, 17, shared);
    return given;
}

static void encode_gate_up_pairs(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct expert_parameters given = use_gate_up(op, "expert_gate_up", encoder);
    metal_bind(encoder, 3, metal_after_input(op));
    launch_pairs(encoder, given.out > given.shared_out ? given.out : given.shared_out,
                 simdgroups_of(encoder, 2), given.rows * (given.chosen + 1));
}

static bool choosing_fits(const struct metal_op *op, const struct metal_encoder *encoder) {
    (void)encoder;
    return chooses_later(op->before, op);
}

/* Larger threadgroups, so that fewer of them choose. */
static void encode_gate_up_choosing(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct expert_parameters given = use_gate_up(op, "expert_route_gate_up", encoder);
    struct metal_operand logits = router_memory(op->before).logits;
    const struct metal_operand *ids = metal_after_input(op->before) + 2;
    logits.access = ACCESS_READ;
    metal_bind(encoder, 3, &logits);
    metal_bind_output(encoder, 18, &ids[0]);
    metal_bind_output(encoder, 19, &ids[1]);
    bind_choice_memory(encoder, given.experts, given.chosen);
    launch_pairs(encoder, given.out > given.shared_out ? given.out : given.shared_out,
                 simdgroups_of(encoder, 8), given.chosen + 1);
}

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

/* ---- Many rows, expert by expert */

/* Whether x, of so many tokens, can be multiplied sorted; starts and order follow ids, where there are any.
 */
static bool sorted_fits(const struct metal_operand *x, uint32_t tokens) {
    struct metal_operand rows = *x;
    rows.rows = tokens;
    return gemm_fits(&rows);
}

static bool linear_sorted_fits(const struct metal_op *op, const struct metal_encoder *encoder) {
    (void)encoder;
    return op->op->operand_count == 6 && sorted_fits(&op->operands[0], op->operands[1].rows);
}

struct linear_memory {
    struct metal_operand x, expanded;
    struct gemm_groups groups;
    uint64_t bytes;
};

static struct linear_memory linear_memory(const struct metal_op *op, const struct metal_encoder *encoder) {
    struct workspace_places places = {&op->workspace, 0};
    const struct metal_operand *x = &op->operands[0], *ids = &op->operands[1];
    struct linear_memory memory;
    memory.x = workspace_place(&places, gemm_dtype(&op->operands[4], NULL), x->rows, x->columns);
    memory.groups = gemm_groups_place(&places, encoder, &op->operands[2], &op->operands[3]);
    memory.groups.pairs_of_row = x->rows == ids->rows ? ids->columns : 1;
    memory.expanded = expanded_place(&places, encoder, &op->operands[4], NULL, memory.groups.experts);
    memory.bytes = places.used;
    return memory;
}

static uint64_t linear_sorted_workspace(const struct metal_op *op, const struct metal_encoder *encoder) {
    return linear_memory(op, encoder).bytes;
}

static void encode_linear_sorted(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct linear_memory memory = linear_memory(op, encoder);
    const struct metal_operand *y = &op->operands[5];
    encode_prepare(&op->operands[0], NULL, 0, &memory.x, encoder);
    encode_expert_tiles(&memory.groups, &memory.x, y->columns, false, encoder);
    metal_phase(encoder);
    const struct gemm gemm = {.x = &memory.x,
                              .matrix = &op->operands[4],
                              .y = y,
                              .groups = &memory.groups,
                              .expanded = &memory.expanded};
    encode_gemm(&gemm, encoder);
}

static bool gate_up_sorted_fits(const struct metal_op *op, const struct metal_encoder *encoder) {
    (void)encoder;
    const struct metal_operand *matrices = &op->operands[op->op->operand_count - 6];
    return matrices - metal_after_input(op) == 3 && gemm_fits(&op->operands[0]);
}

struct gate_up_memory {
    struct metal_operand x, expanded[2]; /* the experts' matrices, the shared ones */
    struct gemm_groups groups;
    uint64_t bytes;
};

static struct gate_up_memory gate_up_memory(const struct metal_op *op, const struct metal_encoder *encoder) {
    struct workspace_places places = {&op->workspace, 0};
    const struct metal_operand *x = &op->operands[0], *ids = metal_after_input(op), *matrices = ids + 3;
    struct gate_up_memory memory;
    bool precise = gemm_dtype(&matrices[0], &matrices[1]) == DTYPE_F32 ||
                   gemm_dtype(&matrices[2], &matrices[3]) == DTYPE_F32;
    memory.x = workspace_place(&places, precise ? DTYPE_F32 : DTYPE_BF16, x->rows, x->columns);
    memory.groups = gemm_groups_place(&places, encoder, &ids[1], &ids[2]);
    memory.groups.pairs_of_row = ids->columns;
    memory.expanded[0] = expanded_place(&places, encoder, &matrices[0], &matrices[1], memory.groups.experts);
    memory.expanded[1] = expanded_place(&places, encoder, &matrices[2], &matrices[3], 0);
    memory.bytes = places.used;
    return memory;
}

static uint64_t gate_up_sorted_workspace(const struct metal_op *op, const struct metal_encoder *encoder) {
    return gate_up_memory(op, encoder).bytes;
}

static void encode_gate_up_sorted(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct op_constants *constants = &op->op->constants;
    const struct gate_up_memory memory = gate_up_memory(op, encoder);
    const struct metal_operand *matrices = metal_after_input(op) + 3, *routed = &matrices[4];
    encode_prepare(&op->operands[0], constants->normalise ? &op->operands[1] : NULL, constants->epsilon,
                   &memory.x, encoder);
    encode_expert_tiles(&memory.groups, &memory.x, routed->columns, true, encoder);
    metal_phase(encoder);
    const struct gemm products[2] = {{.x = &memory.x,
                                      .matrix = &matrices[0],
                                      .up = &matrices[1],
                                      .y = routed,
                                      .groups = &memory.groups,
                                      .expanded = &memory.expanded[0]},
                                     {.x = &memory.x,
                                      .matrix = &matrices[2],
                                      .up = &matrices[3],
                                      .y = &matrices[5],
                                      .expanded = &memory.expanded[1]}};
    encode_gemm(&products[0], encoder);
    encode_gemm(&products[1], encoder);
}

static bool down_sorted_fits(const struct metal_op *op, const struct metal_encoder *encoder) {
    (void)encoder;
    const struct metal_operand *routed = &op->operands[0], *shared = &op->operands[1];
    return op->op->operand_count == 9 && sorted_fits(routed, shared->rows) && gemm_fits(shared);
}

/* Columns of y that are computed at a time: products of all pairs with all of y would take half a gigabyte
 * for 8,192 rows of the full-size model. A GPU that has only small buffers gets smaller parts. */
static uint32_t down_columns(const struct metal_op *op, const struct metal_encoder *encoder) {
    uint64_t most = metal_facts(encoder)->max_buffer / 64;
    uint64_t unit = (uint64_t)op->operands[0].rows * GEMM_COLUMNS * sizeof(float);
    uint64_t units = (most < PRODUCT_BYTES ? most : PRODUCT_BYTES) / unit;
    uint64_t columns = (units > 0 ? units : 1) * GEMM_COLUMNS;
    return columns < op->operands[8].columns ? (uint32_t)columns : op->operands[8].columns;
}

struct down_memory {
    struct metal_operand x[2], products[2], expanded[2]; /* routed, shared */
    struct gemm_groups groups;
    uint32_t columns;
    uint64_t bytes;
};

static struct down_memory down_memory(const struct metal_op *op, const struct metal_encoder *encoder) {
    struct workspace_places places = {&op->workspace, 0};
    struct down_memory memory = {.columns = down_columns(op, encoder)};
    memory.groups = gemm_groups_place(&places, encoder, &op->operands[4], &op->operands[5]);
    for (uint32_t i = 0; i < 2; i++) {
        const struct metal_operand *x = &op->operands[i];
        memory.x[i] = workspace_place(&places, gemm_dtype(&op->operands[6 + i], NULL), x->rows, x->columns);
        memory.products[i] = workspace_place(&places, DTYPE_F32, x->rows, memory.columns);
        memory.expanded[i] =
            expanded_place(&places, encoder, &op->operands[6 + i], NULL, i == 0 ? memory.groups.experts : 0);
    }
    memory.bytes = places.used;
    return memory;
}

static uint64_t down_sorted_workspace(const struct metal_op *op, const struct metal_encoder *encoder) {
    return down_memory(op, encoder).bytes;
}

/* Columns first .. first + count - 1 of y. */
static void encode_down_part(const struct metal_op *op, const struct down_memory *memory, uint32_t first,
                             uint32_t count, struct metal_encoder *encoder) {
    struct metal_operand products[2] = {memory->products[0], memory->products[1]}, y = op->operands[8];
    for (uint32_t i = 0; i < 2; i++) {
        products[i].columns = count;
        const struct gemm gemm = {.x = &memory->x[i],
                                  .matrix = &op->operands[6 + i],
                                  .y = &products[i],
                                  .first_out = first,
                                  .groups = i == 0 ? &memory->groups : NULL,
                                  .expanded = &memory->expanded[i]};
        encode_gemm(&gemm, encoder);
        products[i].access = ACCESS_READ;
    }
    metal_phase(encoder);
    y.offset += sizeof(float) * first;
    y.columns = count;
    /* What is left is what expert_combine does. */
    const struct metal_op combine = {.op = op->op,
                                     .operands = {products[0], products[1], op->operands[3], y}};
    metal_expert_combine[0].encode(&combine, encoder);
}

static void encode_down_sorted(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct down_memory memory = down_memory(op, encoder);
    uint32_t hidden = op->operands[8].columns;
    for (uint32_t i = 0; i < 2; i++)
        encode_prepare(&op->operands[i], NULL, 0, &memory.x[i], encoder);
    encode_expert_tiles(&memory.groups, &memory.x[0], memory.columns, false, encoder);
    for (uint32_t first = 0; first < hidden; first += memory.columns) {
        metal_phase(encoder);
        encode_down_part(op, &memory, first,
                         memory.columns < hidden - first ? memory.columns : hidden - first, encoder);
    }
}

const struct metal_kernel metal_expert_linear[] = {
    {.fits = linear_sorted_fits, .workspace = linear_sorted_workspace, .encode = encode_linear_sorted},
    {.encode = encode_linear_pairs}};
const struct metal_kernel metal_expert_gate_up[] = {
    {.fits = gate_up_sorted_fits, .workspace = gate_up_sorted_workspace, .encode = encode_gate_up_sorted},
    {.fits = choosing_fits, .encode = encode_gate_up_choosing},
    {.encode = encode_gate_up_pairs}};
const struct metal_kernel metal_expert_down[] = {
    {.fits = down_sorted_fits, .workspace = down_sorted_workspace, .encode = encode_down_sorted},
    {.encode = encode_down_pairs}};
