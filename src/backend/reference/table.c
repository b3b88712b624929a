/* For each op: how many units it has, how much workspace it needs, and its function. */
#include "backend/reference/reference.h"
#include "backend/reference/sample.h"

static size_t one(const struct bound_op *op) {
    (void)op;
    return 1;
}

/* Rows of the op's last operand, its result. */
static size_t result_rows(const struct bound_op *op) {
    return op->views[op->op.operand_count - 1].rows;
}

static size_t result_columns(const struct bound_op *op) {
    return op->views[op->op.operand_count - 1].columns;
}

static size_t second_rows(const struct bound_op *op) {
    return op->views[1].rows;
}

static size_t step_units(const struct bound_op *op) {
    return op->op.constants.key_heads;
}

static size_t embed_units(const struct bound_op *op) {
    return op->views[0].columns;
}

static size_t linear_units(const struct bound_op *op) {
    size_t units = 0;
    for (uint32_t i = 0; i < op->op.constants.matrix_count; i++)
        units += after_input(op)[2 * i].rows;
    return units;
}

static size_t conv_units(const struct bound_op *op) {
    return 2 * (size_t)op->op.constants.key_heads + op->op.constants.value_heads;
}

static size_t scan_units(const struct bound_op *op) {
    return op->views[5].rows;
}

static size_t head_row_units(const struct bound_op *op) {
    return result_rows(op) * op->op.constants.value_heads;
}

static size_t tail_units(const struct bound_op *op) {
    return op->op.constants.value_heads;
}

static size_t qk_prep_units(const struct bound_op *op) {
    return (size_t)op->views[2].rows * (op->op.constants.heads + op->op.constants.kv_heads);
}

/* Output rows of an expert product: of all experts where the pairs are sorted, otherwise of the row's own. */
static size_t expert_rows(const struct bound_op *op, bool sorted, size_t out) {
    return out * (sorted ? op->op.constants.experts : op->op.constants.experts_per_token);
}

static size_t expert_linear_units(const struct bound_op *op) {
    return expert_rows(op, op->op.operand_count == 6, result_columns(op));
}

static size_t gate_up_units(const struct bound_op *op) {
    uint32_t count = op->op.operand_count;
    uint32_t sorted = op->op.constants.normalise ? 11 : 10;
    return op->views[count - 1].columns + expert_rows(op, count == sorted, op->views[count - 2].columns);
}

static size_t row_workspace(const struct bound_op *op) {
    return op->views[0].columns * sizeof(float);
}

/* All rows of x, where the op normalises them. */
static size_t input_workspace(const struct bound_op *op) {
    return op->op.constants.normalise ? op->views[0].rows * row_workspace(op) : 0;
}

static size_t block_workspace(const struct bound_op *op) {
    return BLOCK_ROWS * row_workspace(op) + input_workspace(op);
}

static size_t two_blocks_workspace(const struct bound_op *op) {
    return 2 * BLOCK_ROWS * row_workspace(op) + input_workspace(op);
}

static size_t step_workspace(const struct bound_op *op) {
    return 2 * op->op.constants.key_size * sizeof(float);
}

static size_t qk_prep_workspace(const struct bound_op *op) {
    return op->op.constants.head_size * sizeof(float);
}

static size_t attention_workspace(const struct bound_op *op) {
    return (op->op.constants.head_size + (size_t)op->views[3].rows) * sizeof(float);
}

static size_t router_workspace(const struct bound_op *op) {
    return row_workspace(op) + op->op.constants.experts * sizeof(float) + input_workspace(op);
}

static size_t down_workspace(const struct bound_op *op) {
    size_t routed = op->views[0].columns, shared = op->views[1].columns;
    return ((routed > shared ? routed : shared) + op->views[0].rows) * BLOCK_ROWS * sizeof(float);
}

static size_t sample_workspace(const struct bound_op *op) {
    return op->views[1].columns * sizeof(struct candidate);
}

const struct reference_op reference_ops[OP_KIND_COUNT] = {
    [OP_EMBED] = {embed_units, reference_embed, NULL},
    [OP_RMS_NORM] = {result_rows, reference_rms_norm, NULL},
    [OP_LINEAR] = {linear_units, reference_linear, block_workspace},
    [OP_CONV_SILU] = {conv_units, reference_conv_silu, NULL},
    [OP_DELTA_GATES] = {result_rows, reference_delta_gates, NULL},
    [OP_DELTA_SCAN] = {scan_units, reference_delta_scan, NULL},
    [OP_GATED_NORM] = {head_row_units, reference_gated_norm, NULL},
    [OP_DELTA_TAIL] = {tail_units, reference_delta_tail, NULL},
    [OP_DELTA_STEP] = {step_units, reference_delta_step, step_workspace},
    [OP_HEAD_NORM] = {result_rows, reference_rms_norm, NULL},
    [OP_ROPE] = {result_rows, reference_rope, NULL},
    [OP_KV_WRITE] = {second_rows, reference_kv_write, NULL},
    [OP_QK_PREP] = {qk_prep_units, reference_qk_prep, qk_prep_workspace},
    [OP_ATTENTION] = {result_rows, reference_attention, attention_workspace},
    [OP_ROUTER] = {result_rows, reference_router, router_workspace},
    [OP_EXPERT_SORT] = {one, reference_expert_sort, NULL},
    [OP_EXPERT_LINEAR] = {expert_linear_units, reference_expert_linear, block_workspace},
    [OP_SWIGLU] = {result_rows, reference_swiglu, NULL},
    [OP_EXPERT_COMBINE] = {result_rows, reference_expert_combine, NULL},
    [OP_EXPERT_GATE_UP] = {gate_up_units, reference_expert_gate_up, two_blocks_workspace},
    [OP_EXPERT_DOWN] = {result_columns, reference_expert_down, down_workspace},
    [OP_HEAD] = {result_columns, reference_head, block_workspace},
    [OP_SAMPLE] = {one, reference_sample, sample_workspace},
};

size_t reference_workspace_bytes(const struct bound_op *op) {
    const struct reference_op *reference = &reference_ops[op->op.kind];
    return reference->workspace_bytes == NULL ? 0 : reference->workspace_bytes(op);
}
