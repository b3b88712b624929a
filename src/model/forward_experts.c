/* The mixture of experts of a layer: the router picks K of E experts for each row, which run beside one
 * shared expert; the outcomes are added to the residual stream. More than one row is sorted by expert first,
 * so that a matrix is read once for all rows that chose it. */
#include "model/forward_emit.h"

void experts_scratch(struct emitter *emitter) {
    const struct config *config = emitter->config;
    uint32_t rows = emitter->rows;
    uint32_t pairs = emit_product(emitter, rows, config->experts_per_token);
    if (!emitter->policy->fuse_norm || !emitter->policy->fuse_expert_gate_up)
        emitter->experts.input = emit_scratch(emitter, "expert input", rows, config->hidden_size);
    emitter->experts.ids =
        plan_scratch(emitter->plan, "expert ids", DTYPE_I32, rows, config->experts_per_token);
    emitter->experts.scores = emit_scratch(emitter, "expert scores", rows, config->experts_per_token + 1);
    if (rows > 1) {
        emitter->experts.starts =
            plan_scratch(emitter->plan, "expert starts", DTYPE_I32, 1, config->experts + 1);
        emitter->experts.order = plan_scratch(emitter->plan, "expert order", DTYPE_I32, 1, pairs);
    }
    emitter->experts.routed = emit_scratch(emitter, "routed", pairs, config->expert_width);
    emitter->experts.shared = emit_scratch(emitter, "shared", rows, config->shared_width);
    if (!emitter->policy->fuse_expert_gate_up) {
        emitter->experts.gate = emit_scratch(emitter, "routed gate", pairs, config->expert_width);
        emitter->experts.up = emit_scratch(emitter, "routed up", pairs, config->expert_width);
        emitter->experts.shared_gate = emit_scratch(emitter, "shared gate", rows, config->shared_width);
        emitter->experts.shared_up = emit_scratch(emitter, "shared up", rows, config->shared_width);
    }
    if (!emitter->policy->fuse_expert_down) {
        emitter->experts.routed_out = emit_scratch(emitter, "routed out", pairs, config->hidden_size);
        emitter->experts.shared_out = emit_scratch(emitter, "shared out", rows, config->hidden_size);
    }
}

/* starts and order, which one row has no use for. */
static void list_add_sorting(struct operand_list *list, const struct emitter *emitter) {
    if (emitter->rows > 1) {
        list_add(list, reading(emitter->experts.starts));
        list_add(list, reading(emitter->experts.order));
    }
}

static void emit_expert_linear(struct emitter *emitter, struct operand x, uint32_t weight, struct operand y) {
    struct operand_list list = {.count = 0};
    list_add(&list, reading(x));
    list_add(&list, reading(emitter->experts.ids));
    list_add_sorting(&list, emitter);
    list_add(&list, emit_weight(emitter, weight));
    list_add(&list, writing(y));
    emit(emitter, OP_EXPERT_LINEAR, list.items, list.count);
}

static void emit_gate_up(struct emitter *emitter, const struct layer_weights *weights, struct input input) {
    struct operand routed = emitter->experts.routed, shared = emitter->experts.shared;
    if (emitter->policy->fuse_expert_gate_up) {
        struct operand_list list = {.count = 0};
        list_add_input(&list, emitter, input);
        list_add(&list, reading(emitter->experts.ids));
        list_add_sorting(&list, emitter);
        list_add(&list, emit_weight(emitter, weights->expert_gate));
        list_add(&list, emit_weight(emitter, weights->expert_up));
        list_add(&list, emit_weight(emitter, weights->shared_gate));
        list_add(&list, emit_weight(emitter, weights->shared_up));
        list_add(&list, writing(routed));
        list_add(&list, writing(shared));
        emit_with_input(emitter, OP_EXPERT_GATE_UP, input, &list);
        return;
    }
    struct operand gate = emitter->experts.gate, up = emitter->experts.up;
    struct operand shared_gate = emitter->experts.shared_gate, shared_up = emitter->experts.shared_up;
    emit_expert_linear(emitter, input.x, weights->expert_gate, gate);
    emit_expert_linear(emitter, input.x, weights->expert_up, up);
    EMIT(emitter, OP_SWIGLU, reading(gate), reading(up), writing(routed));
    const struct projection projections[] = {{weights->shared_gate, shared_gate},
                                             {weights->shared_up, shared_up}};
    emit_projections(emitter, input, projections, 2);
    EMIT(emitter, OP_SWIGLU, reading(shared_gate), reading(shared_up), writing(shared));
}

static void emit_down(struct emitter *emitter, const struct layer_weights *weights) {
    struct operand routed = emitter->experts.routed, shared = emitter->experts.shared;
    if (emitter->policy->fuse_expert_down) {
        struct operand_list list = {.count = 0};
        list_add(&list, reading(routed));
        list_add(&list, reading(shared));
        list_add(&list, reading(emitter->experts.ids));
        list_add(&list, reading(emitter->experts.scores));
        list_add_sorting(&list, emitter);
        list_add(&list, emit_weight(emitter, weights->expert_down));
        list_add(&list, emit_weight(emitter, weights->shared_down));
        list_add(&list, updating(emitter->hidden));
        emit(emitter, OP_EXPERT_DOWN, list.items, list.count);
        return;
    }
    struct operand routed_out = emitter->experts.routed_out, shared_out = emitter->experts.shared_out;
    emit_expert_linear(emitter, routed, weights->expert_down, routed_out);
    const struct projection down = {weights->shared_down, shared_out};
    emit_projections(emitter, (struct input){.x = shared}, &down, 1);
    EMIT(emitter, OP_EXPERT_COMBINE, reading(routed_out), reading(shared_out),
         reading(emitter->experts.scores), updating(emitter->hidden));
}

static void emit_router(struct emitter *emitter, const struct layer_weights *weights, struct input input) {
    struct operand_list list = {.count = 0};
    list_add_input(&list, emitter, input);
    list_add(&list, emit_weight(emitter, weights->router));
    list_add(&list, emit_weight(emitter, weights->shared_expert_gate));
    list_add(&list, writing(emitter->experts.ids));
    list_add(&list, writing(emitter->experts.scores));
    emit_with_input(emitter, OP_ROUTER, input, &list);
}

void experts_emit(struct emitter *emitter, const struct layer_weights *weights) {
    const struct policy *policy = emitter->policy;
    struct operand ids = emitter->experts.ids;
    /* An expert_linear cannot normalise: its input is there for all but the router, which need not wait. */
    struct input fused = normalised_within(emitter->hidden, weights->post_norm), input = fused;
    if (!policy->fuse_norm || !policy->fuse_expert_gate_up)
        input = emit_norm(emitter, emitter->hidden, weights->post_norm, emitter->experts.input);
    emit_router(emitter, weights, policy->fuse_norm ? fused : input);
    if (emitter->rows > 1)
        EMIT(emitter, OP_EXPERT_SORT, reading(ids), writing(emitter->experts.starts),
             writing(emitter->experts.order));
    emit_gate_up(emitter, weights, input);
    emit_down(emitter, weights);
}
