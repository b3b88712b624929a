/* The attention layers on the GPU: rotary positions, the KV cache, attention. */
#include <math.h>

#include "backend/metal/kernels/attention_parameters.h"
#include "backend/metal/metal_encode.h"

enum { SIMDGROUPS = 4, GROUP = SIMDGROUPS * METAL_SIMD_WIDTH };
enum { CACHE_IS_BFLOAT = 310, ATTENTION_BFLOAT = 320 }; /* function constants */

static uint32_t groups_of(uint64_t count, uint32_t each) {
    return (uint32_t)((count + each - 1) / each);
}

static struct metal_size threads(uint32_t count) {
    return (struct metal_size){count, 1, 1};
}

/* ---- Before attention */

/* rope_theta^(-2j / rotary_size) for each pair, rounded as in the reference: a GPU's powers are not exact
 * enough for late positions. */
static void bind_frequencies(struct metal_encoder *encoder, uint32_t slot, const struct op_constants *c) {
    float frequencies[METAL_MAX_BYTES / sizeof(float)];
    uint32_t count = c->rotary_size / 2;
    if (count > METAL_MAX_BYTES / sizeof(float)) {
        metal_fail(encoder, "The Metal backend turns up to %u dimensions of a head, not %u.",
                   2 * METAL_MAX_BYTES / (uint32_t)sizeof(float), c->rotary_size);
        return;
    }
    frequencies[0] = 0;
    for (uint32_t j = 0; j < count; j++)
        frequencies[j] = 1.0f / powf(c->rope_theta, (float)(2 * j) / (float)c->rotary_size);
    metal_bind_bytes(encoder, slot, frequencies, (count > 0 ? count : 1) * sizeof(float));
}

/* record, x */
static void encode_rope(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *x = &op->operands[1];
    struct rope_parameters parameters = {.rows = x->rows,
                                         .heads = op->op->constants.heads,
                                         .half_size = op->op->constants.rotary_size / 2,
                                         .stride = x->stride};
    if (parameters.half_size == 0)
        return;
    metal_use(encoder, "rope", NULL, 0);
    metal_bind(encoder, 0, &op->operands[0]);
    metal_bind(encoder, 1, x);
    bind_frequencies(encoder, 2, &op->op->constants);
    metal_bind_bytes(encoder, 3, &parameters, sizeof parameters);
    metal_launch(encoder, threads(groups_of((uint64_t)parameters.rows * parameters.half_size, GROUP)),
                 threads(GROUP));
}

const struct metal_kernel metal_rope[] = {{NULL, NULL, encode_rope}};

/* record, k, v, K, V */
static void encode_kv_write(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *operands = op->operands;
    struct kv_write_parameters parameters = {.rows = operands[1].rows,
                                             .columns = operands[1].columns,
                                             .k_stride = operands[1].stride,
                                             .v_stride = operands[2].stride,
                                             .cache_rows = operands[3].rows,
                                             .key_stride = operands[3].stride,
                                             .value_stride = operands[4].stride};
    struct metal_constant constants[] = {metal_bool(CACHE_IS_BFLOAT, operands[3].dtype == DTYPE_BF16)};
    metal_use(encoder, "kv_write", constants, 1);
    for (uint32_t i = 0; i < 5; i++)
        metal_bind(encoder, i, &operands[i]);
    metal_bind_bytes(encoder, 5, &parameters, sizeof parameters);
    metal_launch(encoder, threads(groups_of((uint64_t)parameters.rows * parameters.columns, GROUP)),
                 threads(GROUP));
}

const struct metal_kernel metal_kv_write[] = {{NULL, NULL, encode_kv_write}};

/* record, q, k, v, q_norm, k_norm, y, K, V */
static void encode_qk_prep(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *operands = op->operands;
    const struct op_constants *c = &op->op->constants;
    struct qk_prep_parameters parameters = {.rows = operands[2].rows,
                                            .heads = c->heads,
                                            .kv_heads = c->kv_heads,
                                            .head_size = c->head_size,
                                            .half_size = c->rotary_size / 2,
                                            .q_stride = operands[1].stride,
                                            .k_stride = operands[2].stride,
                                            .v_stride = operands[3].stride,
                                            .y_stride = operands[6].stride,
                                            .cache_rows = operands[7].rows,
                                            .key_stride = operands[7].stride,
                                            .value_stride = operands[8].stride,
                                            .epsilon = c->epsilon};
    struct metal_constant constants[] = {metal_bool(CACHE_IS_BFLOAT, operands[7].dtype == DTYPE_BF16)};
    metal_use(encoder, "qk_prep", constants, 1);
    for (uint32_t i = 0; i < 9; i++)
        metal_bind(encoder, i, &operands[i]);
    metal_bind_output(encoder, 6, &operands[6]);
    bind_frequencies(encoder, 9, c);
    metal_bind_bytes(encoder, 10, &parameters, sizeof parameters);
    uint64_t units = (uint64_t)parameters.rows * (c->heads + 2 * c->kv_heads);
    metal_launch(encoder, threads(groups_of(units, SIMDGROUPS)), threads(GROUP));
}

const struct metal_kernel metal_qk_prep[] = {{NULL, NULL, encode_qk_prep}};

/* ---- Attention: record, q, gate, K, V, y */

/* How many rows (of T) one launch takes: at most this many products of a query head with a position, so that
 * no dispatch runs for long however much context there is. */
static uint32_t row_span(const struct metal_op *op, const struct metal_encoder *encoder, uint64_t products) {
    const struct op_constants *c = &op->op->constants;
    uint32_t rows = op->operands[1].rows / c->heads;
    uint64_t context = (uint64_t)metal_position(encoder) + rows;
    uint64_t span = products / (context * c->heads);
    return span < 1 ? 1 : span > rows ? rows : (uint32_t)span;
}

static struct attention_parameters attention_parameters(const struct metal_op *op) {
    const struct metal_operand *operands = op->operands;
    const struct op_constants *c = &op->op->constants;
    return (struct attention_parameters){.rows = operands[1].rows / c->heads,
                                         .heads = c->heads,
                                         .kv_heads = c->kv_heads,
                                         .head_size = c->head_size,
                                         .q_stride = operands[1].stride,
                                         .gate_stride = operands[2].stride,
                                         .y_stride = operands[5].stride,
                                         .cache_rows = operands[3].rows,
                                         .key_stride = operands[3].stride,
                                         .value_stride = operands[4].stride,
                                         .scale = 1.0f / sqrtf((float)c->head_size)};
}

/* Any shape. */
static void encode_attention(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *operands = op->operands;
    struct attention_parameters parameters = attention_parameters(op);
    uint32_t span = row_span(op, encoder, 1u << 24);
    /* A sum for each dimension of a head and each simdgroup, in threadgroup memory. */
    uint32_t simdgroups = parameters.head_size <= 512 ? 8 : parameters.head_size <= 1024 ? 4 : 2;
    struct metal_constant constants[] = {metal_bool(ATTENTION_BFLOAT, operands[3].dtype == DTYPE_BF16)};
    metal_use(encoder, "attention", constants, 1);
    for (uint32_t i = 0; i < 5; i++)
        metal_bind(encoder, i, &operands[i]);
    metal_bind_memory(encoder, 0, (simdgroups * parameters.head_size * 4 + 15) / 16 * 16);
    for (uint32_t row = 0; row < parameters.rows; row += span) {
        uint32_t rows = parameters.rows - row < span ? parameters.rows - row : span;
        parameters.first_row = row;
        if (row > 0)
            metal_phase(encoder);
        metal_bind(encoder, 5, &operands[5]);
        metal_bind_bytes(encoder, 6, &parameters, sizeof parameters);
        metal_launch(encoder, threads(rows * parameters.heads), threads(simdgroups * METAL_SIMD_WIDTH));
    }
}

const struct metal_kernel metal_attention[] = {{NULL, NULL, encode_attention}};
