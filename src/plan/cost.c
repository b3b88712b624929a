/* Costs by formula. Bytes follow from the operands: each is read or written once, as a whole, except where an
 * op touches only a part of it (a row of the embedding, the chosen experts, the filled part of the cache).
 * FLOPs are those of the op's formula; exp, division and square root count as one, dequantisation as none. */
#include "plan/cost.h"

#include <math.h>

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* T, from the operand that has it. */
static uint32_t op_rows(const struct op *op) {
    const struct operand *operands = op->operands;
    switch (op->kind) {
    case OP_EMBED:
        return operands[0].columns;
    case OP_ATTENTION:
        return operands[1].rows / op->constants.heads;
    case OP_QK_PREP:
        return operands[2].rows;
    case OP_CONV_SILU:
    case OP_KV_WRITE:
    case OP_EXPERT_LINEAR:
    case OP_EXPERT_COMBINE:
    case OP_EXPERT_DOWN:
        return operands[1].rows;
    default:
        return operands[0].rows;
    }
}

/* How many of the op's matrices, counted in order, are those of routed experts. */
static uint32_t routed_matrices(enum op_kind kind) {
    return kind == OP_EXPERT_GATE_UP ? 2 : kind == OP_EXPERT_LINEAR || kind == OP_EXPERT_DOWN ? 1 : 0;
}

/* Whether operand `index` is the weight of the norm that the op applies to its input. */
static bool is_norm(const struct op *op, uint32_t index) {
    return op->constants.normalise && index == 1;
}

/* Whether operand `index` is the ring of the convolution: W - 1 rows are read, and each of T written once at
 * most. */
static bool is_ring(const struct op *op, uint32_t index) {
    return (op->kind == OP_CONV_SILU && index == 3) || (op->kind == OP_DELTA_STEP && index == 9);
}

/* Expected number of distinct experts when each of T rows picks K of E, all choices equally likely. */
static double distinct_experts(const struct op *op, uint32_t rows) {
    double experts = op->constants.experts, share = op->constants.experts_per_token / experts;
    return experts * (1 - pow(1 - share, rows));
}

static uint64_t weight_operand_bytes(const struct op *op, const struct operand *view, uint32_t nth,
                                     uint32_t rows) {
    if (op->kind == OP_EMBED)
        return dtype_row_bytes((enum dtype)view->dtype, view->columns) * least(rows, view->rows);
    if (nth < routed_matrices(op->kind))
        return (uint64_t)llround((double)operand_bytes(view) / op->constants.experts *
                                 distinct_experts(op, rows));
    return operand_bytes(view);
}

static void add_bytes(struct cost *cost, const struct op *op, uint32_t position) {
    uint32_t rows = op_rows(op), matrices = 0;
    for (uint32_t i = 0; i < op->operand_count; i++) {
        const struct operand *view = &op->operands[i];
        uint64_t bytes = operand_bytes(view), row = dtype_row_bytes((enum dtype)view->dtype, view->columns);
        uint64_t times = (view->access & ACCESS_READ ? 1 : 0) + (view->access & ACCESS_WRITE ? 1 : 0);
        switch ((enum space)view->space) {
        case SPACE_WEIGHT:
            cost->weight_bytes += is_norm(op, i) ? bytes : weight_operand_bytes(op, view, matrices++, rows);
            break;
        case SPACE_STATE:
            cost->state_bytes +=
                is_ring(op, i) ? row * (view->rows - 1 + least(rows, view->rows)) : bytes * times;
            break;
        case SPACE_KV:
            cost->kv_bytes +=
                row * least(view->rows, view->access & ACCESS_WRITE ? rows : (uint64_t)position + rows);
            break;
        case SPACE_STEP:
            /* Sampling reads all counts and moves one. */
            if (view->buffer == STEP_COUNTS && times == 2)
                cost->scratch_bytes += bytes + sizeof(int32_t);
            else
                cost->scratch_bytes += bytes * times;
            break;
        case SPACE_SCRATCH:
        case SPACE_COUNT:
            cost->scratch_bytes += bytes * times;
            break;
        }
    }
}

/* A matrix product of `rows` rows with a matrix of these many elements. */
static uint64_t product_flops(uint64_t rows, const struct operand *matrix) {
    return 2 * rows * matrix->rows * matrix->columns;
}

static uint64_t op_flops(const struct op *op, uint32_t position) {
    const struct operand *operands = op->operands;
    const struct op_constants *c = &op->constants;
    uint64_t rows = op_rows(op), elements = (uint64_t)operands[0].rows * operands[0].columns, flops = 0;
    uint64_t pairs = rows * c->experts_per_token;
    uint64_t keys = (uint64_t)c->key_heads * c->key_size, values = (uint64_t)c->value_heads * c->value_size;
    uint64_t gates = 8 * rows * c->value_heads;
    uint64_t scan = rows * (7 * values * c->key_size + 2 * values);
    uint64_t gated_norm = 8 * rows * values;
    uint64_t convolution = rows * ((2 * keys + values) * (2 * c->taps + 4) + 3 * 2 * keys + keys);
    /* The first matrix, after the norm and the optional starts and order. */
    const struct operand *matrix = operands;
    while (matrix < operands + op->operand_count - 1 &&
           (matrix->space != SPACE_WEIGHT || is_norm(op, (uint32_t)(matrix - operands))))
        matrix++;
    if (c->normalise)
        flops = 4 * elements;
    switch (op->kind) {
    case OP_EMBED:
    case OP_KV_WRITE:
    case OP_EXPERT_SORT:
    case OP_KIND_COUNT:
        return 0;
    case OP_RMS_NORM:
    case OP_HEAD_NORM:
        return 4 * elements;
    case OP_LINEAR:
        for (; matrix + 1 < operands + op->operand_count; matrix += 2)
            flops += product_flops(rows, matrix) + (c->accumulate ? rows * matrix->rows : 0);
        return flops;
    case OP_CONV_SILU:
        return convolution;
    case OP_DELTA_GATES:
        return gates;
    case OP_DELTA_SCAN:
        return scan;
    case OP_GATED_NORM:
        return gated_norm;
    case OP_DELTA_TAIL:
        return gates + scan + gated_norm;
    case OP_DELTA_STEP:
        return convolution + gates + scan + gated_norm;
    case OP_ROPE:
        return 3 * (uint64_t)operands[1].rows * c->rotary_size;
    case OP_QK_PREP:
        return rows * (c->heads + c->kv_heads) * (4 * (uint64_t)c->head_size + 3 * c->rotary_size);
    case OP_ATTENTION: {
        /* Row t sees position + t + 1 rows of the cache. */
        uint64_t seen = rows * position + rows * (rows + 1) / 2;
        return c->heads * (seen * (4 * (uint64_t)c->head_size + 4) + rows * 4 * c->head_size);
    }
    case OP_ROUTER:
        return flops + product_flops(rows, &matrix[0]) + product_flops(rows, &matrix[1]) +
               3 * rows * c->experts + 2 * pairs;
    case OP_EXPERT_LINEAR:
        return product_flops(pairs, matrix) / c->experts;
    case OP_SWIGLU:
        return 5 * elements;
    case OP_EXPERT_COMBINE:
        return 2 * (pairs + rows) * operands[1].columns;
    case OP_EXPERT_GATE_UP:
        for (int i = 0; i < 2; i++)
            flops += product_flops(pairs, &matrix[i]) / c->experts + product_flops(rows, &matrix[2 + i]);
        return flops + 5 * (pairs * matrix[4].columns + rows * matrix[5].columns);
    case OP_EXPERT_DOWN:
        return product_flops(pairs, &matrix[0]) / c->experts + product_flops(rows, &matrix[1]) +
               2 * (pairs + rows) * matrix[1].rows;
    case OP_HEAD:
        return flops + product_flops(rows, matrix);
    case OP_SAMPLE:
        /* Penalties, bias, softmax and its running sum. */
        return 8 * (uint64_t)operands[1].columns;
    }
    return 0;
}

struct cost op_cost(const struct op *op, uint32_t position) {
    struct cost cost = {.flops = op_flops(op, position)};
    add_bytes(&cost, op, position);
    return cost;
}

void cost_add(struct cost *total, const struct cost *more) {
    total->weight_bytes += more->weight_bytes;
    total->state_bytes += more->state_bytes;
    total->kv_bytes += more->kv_bytes;
    total->scratch_bytes += more->scratch_bytes;
    total->flops += more->flops;
}

struct cost plan_cost(const struct plan *plan, uint32_t position) {
    struct cost total = {0};
    for (uint32_t i = 0; i < plan->op_count; i++) {
        struct cost cost = op_cost(&plan->ops[i], position);
        cost_add(&total, &cost);
    }
    return total;
}

uint64_t cost_bytes(const struct cost *cost) {
    return cost->weight_bytes + cost->state_bytes + cost->kv_bytes + cost->scratch_bytes;
}

double cost_seconds(const struct cost *cost, double bandwidth, double rate) {
    double moving = bandwidth > 0 ? (double)cost_bytes(cost) / bandwidth : 0;
    double computing = rate > 0 ? (double)cost->flops / rate : 0;
    return moving > computing ? moving : computing;
}
