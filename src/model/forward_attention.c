/* The attention mixer of a layer: projections, head norms and rotary positions, the KV cache, attention with
 * an output gate. The query matrix gives each head its query and its gate, side by side. */
#include "model/forward_emit.h"

void attention_scratch(struct emitter *emitter) {
    const struct config *config = emitter->config;
    uint32_t rows = emitter->rows;
    uint32_t query_width = emit_product(emitter, config->heads, config->head_size);
    uint32_t kv_width = emit_product(emitter, config->kv_heads, config->head_size);
    emitter->attention.q_and_gate = emit_scratch(emitter, "attention q and gate", rows, 2 * query_width);
    emitter->attention.k = emit_scratch(emitter, "attention k", rows, kv_width);
    emitter->attention.v = emit_scratch(emitter, "attention v", rows, kv_width);
    emitter->attention.query = emit_scratch(emitter, "attention query", rows, query_width);
    emitter->attention.mixed = emit_scratch(emitter, "attention mixed", rows, query_width);
    if (!emitter->policy->fuse_qk_prep)
        emitter->attention.key = emit_scratch(emitter, "attention key", rows, kv_width);
}

void attention_emit(struct emitter *emitter, const struct layer_weights *weights, struct input input) {
    const struct config *config = emitter->config;
    uint32_t size = config->head_size;
    struct operand q_and_gate = view_in_rows_of(emitter->attention.q_and_gate, 2 * size);
    struct operand q = view_of_columns(q_and_gate, 0, size), gate = view_of_columns(q_and_gate, size, size);
    struct operand k = emitter->attention.k, v = emitter->attention.v;
    struct operand query = view_in_rows_of(emitter->attention.query, size);
    struct operand record = view_of_step(STEP_RECORD, 1, sizeof(struct step_record));
    struct operand keys = {.space = SPACE_KV,
                           .dtype = (uint8_t)emitter->policy->kv_dtype,
                           .buffer = 2 * emitter->attention_layers++,
                           .rows = emitter->context,
                           .columns = k.columns,
                           .stride = k.columns};
    struct operand values = keys;
    values.buffer++;

    const struct projection projections[] = {
        {weights->q, emitter->attention.q_and_gate}, {weights->k, k}, {weights->v, v}};
    emit_projections(emitter, input, projections, 3);
    if (emitter->policy->fuse_qk_prep) {
        EMIT(emitter, OP_QK_PREP, reading(record), reading(q), reading(k), reading(v),
             emit_weight(emitter, weights->q_norm), emit_weight(emitter, weights->k_norm), writing(query),
             writing(keys), writing(values));
    } else {
        struct operand key = view_in_rows_of(emitter->attention.key, size);
        EMIT(emitter, OP_HEAD_NORM, reading(q), emit_weight(emitter, weights->q_norm), writing(query));
        EMIT(emitter, OP_HEAD_NORM, reading(view_in_rows_of(k, size)), emit_weight(emitter, weights->k_norm),
             writing(key));
        EMIT(emitter, OP_ROPE, reading(record), updating(query))->constants.heads = config->heads;
        EMIT(emitter, OP_ROPE, reading(record), updating(key))->constants.heads = config->kv_heads;
        EMIT(emitter, OP_KV_WRITE, reading(record), reading(emitter->attention.key), reading(v),
             writing(keys), writing(values));
    }
    EMIT(emitter, OP_ATTENTION, reading(record), reading(query), reading(gate), reading(keys),
         reading(values), writing(view_in_rows_of(emitter->attention.mixed, size)));
    emit_linear_add(emitter, emitter->attention.mixed, weights->o, emitter->hidden);
}
