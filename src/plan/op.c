#include "plan/op.h"

uint64_t operand_bytes(const struct operand *view) {
    return view->rows * dtype_row_bytes((enum dtype)view->dtype, view->columns);
}

bool op_normalises(enum op_kind kind) {
    return kind == OP_LINEAR || kind == OP_ROUTER || kind == OP_EXPERT_GATE_UP || kind == OP_HEAD;
}

const char *op_name(enum op_kind kind) {
    static const char *const names[OP_KIND_COUNT] = {
        [OP_EMBED] = "embed",
        [OP_RMS_NORM] = "rms_norm",
        [OP_LINEAR] = "linear",
        [OP_CONV_SILU] = "conv_silu",
        [OP_DELTA_GATES] = "delta_gates",
        [OP_DELTA_SCAN] = "delta_scan",
        [OP_GATED_NORM] = "gated_norm",
        [OP_DELTA_TAIL] = "delta_tail",
        [OP_DELTA_STEP] = "delta_step",
        [OP_HEAD_NORM] = "head_norm",
        [OP_ROPE] = "rope",
        [OP_KV_WRITE] = "kv_write",
        [OP_QK_PREP] = "qk_prep",
        [OP_ATTENTION] = "attention",
        [OP_ROUTER] = "router",
        [OP_EXPERT_SORT] = "expert_sort",
        [OP_EXPERT_LINEAR] = "expert_linear",
        [OP_SWIGLU] = "swiglu",
        [OP_EXPERT_COMBINE] = "expert_combine",
        [OP_EXPERT_GATE_UP] = "expert_gate_up",
        [OP_EXPERT_DOWN] = "expert_down",
        [OP_HEAD] = "head",
        [OP_SAMPLE] = "sample",
    };
    return (unsigned)kind < OP_KIND_COUNT ? names[kind] : "unknown";
}

const char *space_name(enum space space) {
    static const char *const names[SPACE_COUNT] = {
        [SPACE_WEIGHT] = "weight", [SPACE_SCRATCH] = "scratch", [SPACE_STATE] = "state",
        [SPACE_KV] = "kv",         [SPACE_STEP] = "step",
    };
    return (unsigned)space < SPACE_COUNT ? names[space] : "unknown";
}
