/* The gated delta mixer of a layer: projections, causal convolution, the recurrence over tokens, gated norm.
 */
#include "model/forward_emit.h"

void delta_scratch(struct emitter *emitter) {
    const struct config *config = emitter->config;
    uint32_t rows = emitter->rows;
    uint32_t key_width = emit_product(emitter, config->key_heads, config->key_size);
    uint32_t value_width = emit_product(emitter, config->value_heads, config->value_size);
    emitter->delta.qkv = emit_scratch(emitter, "delta qkv", rows, 2 * key_width + value_width);
    emitter->delta.z = emit_scratch(emitter, "delta z", rows, value_width);
    emitter->delta.b = emit_scratch(emitter, "delta b", rows, config->value_heads);
    emitter->delta.a = emit_scratch(emitter, "delta a", rows, config->value_heads);
    emitter->delta.mixed = emit_scratch(emitter, "delta mixed", rows, value_width);
    if (!emitter->delta.fused_step) {
        emitter->delta.q = emit_scratch(emitter, "delta q", rows, key_width);
        emitter->delta.k = emit_scratch(emitter, "delta k", rows, key_width);
        emitter->delta.v = emit_scratch(emitter, "delta v", rows, value_width);
    }
    if (!emitter->delta.fused_tail) {
        emitter->delta.decay = emit_scratch(emitter, "delta decay", rows, config->value_heads);
        emitter->delta.beta = emit_scratch(emitter, "delta beta", rows, config->value_heads);
        emitter->delta.scanned = emit_scratch(emitter, "delta scanned", rows, value_width);
    }
}

static struct operand state_view(uint32_t buffer, uint32_t rows, uint32_t columns) {
    return (struct operand){.space = SPACE_STATE,
                            .dtype = DTYPE_F32,
                            .buffer = buffer,
                            .rows = rows,
                            .columns = columns,
                            .stride = columns};
}

void delta_emit(struct emitter *emitter, const struct layer_weights *weights, struct input input) {
    const struct config *config = emitter->config;
    struct operand qkv = emitter->delta.qkv, z = emitter->delta.z, b = emitter->delta.b, a = emitter->delta.a;
    struct operand q = emitter->delta.q, k = emitter->delta.k, v = emitter->delta.v;
    struct operand mixed = emitter->delta.mixed;
    struct operand record = view_of_step(STEP_RECORD, 1, sizeof(struct step_record));
    uint32_t state = 2 * emitter->delta_layers++;
    struct operand ring = state_view(state, config->taps, qkv.columns);
    struct operand delta_state = state_view(state + 1, mixed.columns, config->key_size);

    const struct projection projections[] = {
        {weights->qkv, qkv}, {weights->z, z}, {weights->b, b}, {weights->a, a}};
    emit_projections(emitter, input, projections, 4);
    if (!emitter->delta.fused_step)
        EMIT(emitter, OP_CONV_SILU, reading(record), reading(qkv), emit_weight(emitter, weights->conv),
             updating(ring), writing(q), writing(k), writing(v));
    if (emitter->delta.fused_step) {
        EMIT(emitter, OP_DELTA_STEP, reading(record), reading(qkv), reading(a), reading(b),
             emit_weight(emitter, weights->conv), emit_weight(emitter, weights->A_log),
             emit_weight(emitter, weights->dt_bias), reading(z), emit_weight(emitter, weights->delta_norm),
             updating(ring), updating(delta_state), writing(mixed));
    } else if (emitter->delta.fused_tail) {
        EMIT(emitter, OP_DELTA_TAIL, reading(a), reading(b), emit_weight(emitter, weights->A_log),
             emit_weight(emitter, weights->dt_bias), reading(q), reading(k), reading(v), reading(z),
             emit_weight(emitter, weights->delta_norm), updating(delta_state), writing(mixed));
    } else {
        struct operand decay = emitter->delta.decay, beta = emitter->delta.beta;
        struct operand scanned = emitter->delta.scanned;
        EMIT(emitter, OP_DELTA_GATES, reading(a), reading(b), emit_weight(emitter, weights->A_log),
             emit_weight(emitter, weights->dt_bias), writing(decay), writing(beta));
        EMIT(emitter, OP_DELTA_SCAN, reading(q), reading(k), reading(v), reading(decay), reading(beta),
             updating(delta_state), writing(scanned));
        EMIT(emitter, OP_GATED_NORM, reading(scanned), reading(z), emit_weight(emitter, weights->delta_norm),
             writing(mixed));
    }
    emit_linear_add(emitter, mixed, weights->delta_out, emitter->hidden);
}
