/* The attention layers on the GPU: rotary positions, the KV cache, attention. */
#include <math.h>

#include "backend/metal/encode_products.h"
#include "backend/metal/kernels/attention_parameters.h"

enum { SIMDGROUPS = 4, GROUP = SIMDGROUPS * METAL_SIMD_WIDTH };
/* Function constants. */
enum {
    CACHE_IS_BFLOAT = 310,
    ATTENTION_BFLOAT = 320,
    DECODE_BFLOAT = 330,
    DECODE_COALESCED,
    DECODE_IN_PARTS,
};

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

const struct metal_kernel metal_rope[] = {{.encode = encode_rope}};

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

const struct metal_kernel metal_kv_write[] = {{.encode = encode_kv_write}};

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

const struct metal_kernel metal_qk_prep[] = {{.encode = encode_qk_prep}};

/* ---- Attention: record, q, gate, K, V, y */

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

/* All but y, which each launch binds for the rows that it writes. */
static void bind_inputs(struct metal_encoder *encoder, const struct metal_operand *operands) {
    for (uint32_t i = 0; i < 5; i++)
        metal_bind(encoder, i, &operands[i]);
}

/* Takes the rows in spans of at most so many products of a query head with a position, and at least `least`
 * rows, so that no dispatch runs for long however much context there is; between spans a command buffer may
 * end. False past the last; `parameters` say which rows. */
static bool next_span(struct attention_parameters *parameters, uint64_t products, uint32_t least,
                      const struct metal_op *op, struct metal_encoder *encoder) {
    uint64_t context = (uint64_t)metal_position(encoder) + parameters->rows;
    uint64_t span = products / (context * parameters->heads) / least * least;
    parameters->first_row = parameters->end_row;
    uint32_t left = parameters->rows - parameters->first_row;
    if (left == 0)
        return false;
    span = span < least ? least : span;
    parameters->end_row += span < left ? (uint32_t)span : left;
    uint32_t rows = parameters->end_row - parameters->first_row, heads = parameters->heads;
    metal_piece(encoder, 4.0 * parameters->head_size * heads * rows * (double)context);
    metal_bind_rows(encoder, 5, &op->operands[5], parameters->first_row * heads, rows * heads,
                    METAL_WRITE | METAL_ALL);
    metal_bind_bytes(encoder, 6, parameters, sizeof *parameters);
    return true;
}

/* Any shape. */
static void encode_attention(const struct metal_op *op, struct metal_encoder *encoder) {
    struct attention_parameters parameters = attention_parameters(op);
    struct metal_constant constants[] = {metal_bool(ATTENTION_BFLOAT, op->operands[3].dtype == DTYPE_BF16)};
    metal_use(encoder, "attention", constants, 1);
    /* A sum for each dimension of a head and each simdgroup, in threadgroup memory. */
    uint32_t simdgroups = parameters.head_size <= 512 ? 8 : parameters.head_size <= 1024 ? 4 : 2;
    simdgroups = simdgroups_of(encoder, simdgroups);
    bind_inputs(encoder, op->operands);
    metal_bind_memory(encoder, 0, (simdgroups * parameters.head_size * 4 + 15) / 16 * 16);
    while (next_span(&parameters, 1u << 24, 1, op, encoder))
        metal_launch(encoder, threads((parameters.end_row - parameters.first_row) * parameters.heads),
                     threads(simdgroups * METAL_SIMD_WIDTH));
}

/* Whether the kernels for heads of 256 can read these operands. */
static bool attention_fits_256(const struct metal_op *op) {
    const struct metal_operand *operands = op->operands;
    for (uint32_t i = 1; i < 6; i++)
        if (operands[i].offset % 16 != 0 || operands[i].stride % 8 != 0)
            return false;
    return op->op->constants.head_size == 256;
}

/* Pairs of a token and a query head that a threadgroup has. */
static uint32_t prefill_rows(const struct metal_op *op) {
    return op->operands[3].dtype == DTYPE_BF16 ? 32 : 16;
}

static bool prefill_fits(const struct metal_op *op, const struct metal_encoder *encoder) {
    (void)encoder;
    const struct op_constants *c = &op->op->constants;
    return attention_fits_256(op) && prefill_rows(op) % (c->heads / c->kv_heads) == 0;
}

static void encode_prefill(const struct metal_op *op, struct metal_encoder *encoder) {
    struct attention_parameters parameters = attention_parameters(op);
    uint32_t tokens = prefill_rows(op) / (parameters.heads / parameters.kv_heads);
    bool rounded = op->operands[3].dtype == DTYPE_BF16;
    metal_use(encoder,
              rounded && metal_tensors(encoder) ? "tensor_attention"
              : rounded                         ? "attention_prefill_bfloat"
                                                : "attention_prefill_float",
              NULL, 0);
    bind_inputs(encoder, op->operands);
    while (next_span(&parameters, 1u << 27, tokens, op, encoder))
        metal_launch(encoder,
                     (struct metal_size){groups_of(parameters.end_row - parameters.first_row, tokens),
                                         parameters.kv_heads, 1},
                     threads(128));
}

/* How the positions of one token are dealt to threadgroups. Below the policy's attention_split, evenly:
 * to one while they are few, to more as there are more. From it on in blocks of one size, so that what a
 * threadgroup does does not grow with the context any more. The results of parts are put together by a second
 * launch. */
#define FEW_POSITIONS 1024
#define POSITIONS_A_PART 256 /* at least, while dealt evenly */
#define MOST_EVEN_PARTS 32
#define BLOCK_POSITIONS 1024
#define MOST_PARTS 256 /* that attention_join can take */

/* Blocks grow where the cache is so long that there would be too many. */
static uint32_t block_positions(const struct metal_op *op) {
    return groups_of(op->operands[3].rows, MOST_PARTS * BLOCK_POSITIONS) * BLOCK_POSITIONS;
}

static uint32_t most_parts(const struct metal_op *op) {
    uint32_t parts = groups_of(op->operands[3].rows, block_positions(op));
    return parts < MOST_EVEN_PARTS ? MOST_EVEN_PARTS : parts;
}

/* Query heads that share a read of the cache: as the policy says, but a divisor of those of a KV head. */
static uint32_t pack_of(const struct metal_op *op, const struct metal_encoder *encoder) {
    uint32_t sharing = op->op->constants.heads / op->op->constants.kv_heads;
    uint32_t pack = metal_policy(encoder)->gqa_pack < 4 ? metal_policy(encoder)->gqa_pack : 4;
    while (pack > 1 && sharing % pack != 0)
        pack /= 2;
    return pack == 4 ? 4 : pack == 2 ? 2 : 1;
}

static bool decode_fits(const struct metal_op *op, const struct metal_encoder *encoder) {
    (void)encoder;
    return op->operands[1].rows == op->op->constants.heads && attention_fits_256(op);
}

/* Sums, maximum and total of each head and part. */
static uint64_t decode_workspace(const struct metal_op *op, const struct metal_encoder *encoder) {
    (void)encoder;
    return (uint64_t)op->op->constants.heads * most_parts(op) * (256 + 2) * sizeof(float);
}

static void encode_decode(const struct metal_op *op, struct metal_encoder *encoder) {
    static const char *const functions[] = {"attention_decode_1", "attention_decode_2", "attention_decode_4"};
    const struct metal_operand *operands = op->operands;
    struct attention_parameters parameters = attention_parameters(op);
    uint32_t pack = pack_of(op, encoder), count = metal_position(encoder) + 1;
    bool blocks = count >= metal_policy(encoder)->attention_split;
    if (blocks) {
        parameters.block = block_positions(op);
        parameters.parts = groups_of(count, parameters.block);
    } else {
        parameters.parts = count < FEW_POSITIONS ? 1 : count / POSITIONS_A_PART;
        if (parameters.parts > MOST_EVEN_PARTS)
            parameters.parts = MOST_EVEN_PARTS;
    }
    bool joins = blocks || parameters.parts > 1;
    struct metal_constant constants[] = {metal_bool(DECODE_BFLOAT, operands[3].dtype == DTYPE_BF16),
                                         metal_bool(DECODE_COALESCED, metal_policy(encoder)->kv_coalesced),
                                         metal_bool(DECODE_IN_PARTS, !joins)};
    const char *function = functions[pack / 2];
    metal_need(encoder, function, constants, 3);
    metal_need(encoder, "attention_join", NULL, 0);
    constants[2] = metal_bool(DECODE_IN_PARTS, joins);
    metal_use(encoder, function, constants, 3);
    uint32_t simdgroups = simdgroups_of(encoder, 8);
    uint64_t partial = (uint64_t)parameters.heads * parameters.parts * (256 + 2) * sizeof(float);
    bind_inputs(encoder, operands);
    metal_bind_bytes(encoder, 6, &parameters, sizeof parameters);
    /* The kernel writes to one of the two. */
    if (joins)
        metal_bind(encoder, 5, &operands[5]);
    else
        metal_bind_output(encoder, 5, &operands[5]);
    metal_bind_part(encoder, 7, &op->workspace, 0, partial, METAL_WRITE | (joins ? METAL_ALL : 0));
    metal_launch(encoder, (struct metal_size){parameters.heads / pack, parameters.parts, 1},
                 threads(simdgroups * METAL_SIMD_WIDTH));
    if (!joins)
        return;
    metal_phase(encoder);
    metal_use(encoder, "attention_join", NULL, 0);
    metal_bind(encoder, 0, &operands[2]);
    metal_bind_part(encoder, 1, &op->workspace, 0, partial, METAL_READ);
    metal_bind_output(encoder, 2, &operands[5]);
    metal_bind_bytes(encoder, 3, &parameters, sizeof parameters);
    metal_launch(encoder, threads(parameters.heads), threads(simdgroups_of(encoder, 8) * METAL_SIMD_WIDTH));
}

const struct metal_kernel metal_attention[] = {
    {.fits = decode_fits, .workspace = decode_workspace, .encode = encode_decode},
    {.fits = prefill_fits, .encode = encode_prefill},
    {.encode = encode_attention}};
