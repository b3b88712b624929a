/* The delta layers on the GPU: convolution, gates, the recurrence, its gated norm, and their fusions. */
#include "backend/metal/encode_rows.h"
#include "backend/metal/kernels/delta_parameters.h"
#include "backend/metal/metal_encode.h"

enum { SIMDGROUPS = 4, GROUP = SIMDGROUPS * METAL_SIMD_WIDTH };
enum { SCAN_GATES = 300, SCAN_128_GATES = 301, STEP_CONVOLVES = 302 }; /* function constants */

static uint32_t groups_of(uint64_t count, uint32_t each) {
    return (uint32_t)((count + each - 1) / each);
}

static struct metal_size threads(uint32_t count) {
    return (struct metal_size){count, 1, 1};
}

/* Whether rows of this operand can be read four floats at a time. */
static bool in_fours(const struct metal_operand *operand) {
    return operand->offset % 16 == 0 && (operand->rows < 2 || operand->stride % 4 == 0);
}

/* ---- Parts of a workspace, as operands */

static struct metal_operand part_of(const struct metal_operand *workspace, uint64_t *offset, uint32_t rows,
                                    uint32_t columns) {
    struct metal_operand part = *workspace;
    part.offset += *offset;
    part.dtype = DTYPE_F32;
    part.rows = rows;
    part.columns = part.stride = columns;
    part.access = ACCESS_READ | ACCESS_WRITE;
    *offset += (uint64_t)rows * columns * sizeof(float);
    return part;
}

static struct metal_operand with_access(struct metal_operand operand, uint32_t access) {
    operand.access = access;
    return operand;
}

/* ---- Convolution */

struct convolution {
    const struct metal_operand *record, *x, *taps, *ring;
    struct metal_operand q, k, v;
};

static bool conv_in_registers(const struct op_constants *c, const struct convolution *conv) {
    return c->key_size == 128 && c->value_size == 128 && c->taps == 4 && in_fours(conv->x) &&
           in_fours(conv->ring) && conv->taps->stride == 4 && in_fours(&conv->q) && in_fours(&conv->k) &&
           in_fours(&conv->v);
}

static void encode_convolution(const struct op_constants *c, const struct convolution *conv,
                               struct metal_encoder *encoder) {
    struct conv_parameters parameters = {.rows = conv->x->rows,
                                         .key_heads = c->key_heads,
                                         .value_heads = c->value_heads,
                                         .key_size = c->key_size,
                                         .value_size = c->value_size,
                                         .taps = c->taps,
                                         .block = c->taps > 16 ? c->taps : 16,
                                         .x_stride = conv->x->stride,
                                         .taps_stride = conv->taps->stride,
                                         .ring_stride = conv->ring->stride,
                                         .q_stride = conv->q.stride,
                                         .k_stride = conv->k.stride,
                                         .v_stride = conv->v.stride,
                                         .epsilon = c->l2_epsilon};
    metal_use(encoder, conv_in_registers(c, conv) ? "delta_conv_128" : "delta_conv", NULL, 0);
    metal_bind(encoder, 0, conv->record);
    metal_bind(encoder, 1, conv->x);
    metal_bind(encoder, 2, conv->taps);
    metal_bind(encoder, 3, conv->ring);
    metal_bind_output(encoder, 4, &conv->q);
    metal_bind_output(encoder, 5, &conv->k);
    metal_bind_output(encoder, 6, &conv->v);
    metal_bind_bytes(encoder, 7, &parameters, sizeof parameters);
    metal_launch(encoder,
                 (struct metal_size){groups_of(2 * (uint64_t)c->key_heads + c->value_heads, SIMDGROUPS),
                                     groups_of(parameters.rows, parameters.block), 1},
                 threads(GROUP));
}

/* record, x, taps, ring, q, k, v */
static void encode_conv_silu(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *operands = op->operands;
    struct convolution conv = {&operands[0], &operands[1], &operands[2], &operands[3],
                               operands[4],  operands[5],  operands[6]};
    encode_convolution(&op->op->constants, &conv, encoder);
}

const struct metal_kernel metal_conv_silu[] = {{.encode = encode_conv_silu}};

/* ---- Gates */

/* a, b, A_log, dt_bias, decay, beta */
static void encode_delta_gates(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *operands = op->operands;
    struct gates_parameters parameters = {.rows = operands[0].rows,
                                          .heads = operands[0].columns,
                                          .a_stride = operands[0].stride,
                                          .b_stride = operands[1].stride,
                                          .decay_stride = operands[4].stride,
                                          .beta_stride = operands[5].stride};
    metal_use(encoder, "delta_gates", NULL, 0);
    for (uint32_t i = 0; i < 4; i++)
        metal_bind(encoder, i, &operands[i]);
    metal_bind_output(encoder, 4, &operands[4]);
    metal_bind_output(encoder, 5, &operands[5]);
    metal_bind_bytes(encoder, 6, &parameters, sizeof parameters);
    metal_launch(encoder, threads(groups_of((uint64_t)parameters.rows * parameters.heads, GROUP)),
                 threads(GROUP));
}

const struct metal_kernel metal_delta_gates[] = {{.encode = encode_delta_gates}};

/* ---- The recurrence, and what is fused with it */

struct scan {
    struct metal_operand q, k, v;
    const struct metal_operand *decay, *beta;    /* or, with A_log and dt_bias, a and b */
    const struct metal_operand *A_log, *dt_bias; /* or NULL */
    const struct metal_operand *state, *y;
};

/* Whether the kernels for keys of 128 can take it. */
static bool scan_fits_128(const struct op_constants *c, const struct scan *scan) {
    return c->key_size == 128 && in_fours(&scan->q) && in_fours(&scan->k) && in_fours(scan->state);
}

enum { REGISTER_THREADS = 256, BLOCK_THREADS = 128, STEP_THREADS = 256 };

/* In registers, in blocks or one row a simdgroup: the policy's choice, or what the pipelines' threads allow.
 */
static void encode_scan(const struct op_constants *c, const struct scan *scan,
                        struct metal_encoder *encoder) {
    struct scan_parameters parameters = {.rows = scan->q.rows,
                                         .key_heads = c->key_heads,
                                         .value_heads = c->value_heads,
                                         .key_size = c->key_size,
                                         .value_size = c->value_size,
                                         .q_stride = scan->q.stride,
                                         .k_stride = scan->k.stride,
                                         .v_stride = scan->v.stride,
                                         .decay_stride = scan->decay->stride,
                                         .beta_stride = scan->beta->stride,
                                         .state_stride = scan->state->stride,
                                         .y_stride = scan->y->stride};
    bool fused = scan->A_log != NULL;
    const struct metal_constant for_128 = metal_bool(SCAN_128_GATES, fused),
                                any = metal_bool(SCAN_GATES, fused);
    /* 32 rows of the state a group: four or, as matrices, eight a simdgroup. */
    bool fits = scan_fits_128(c, scan);
    bool registers = fits && metal_policy(encoder)->delta_scan == 0 &&
                     metal_allows(encoder, "delta_scan_register", &for_128, 1, REGISTER_THREADS);
    bool blocks = fits && !registers && metal_allows(encoder, "delta_scan_block", &for_128, 1, BLOCK_THREADS);
    metal_use(encoder,
              registers ? "delta_scan_register"
              : blocks  ? "delta_scan_block"
                        : "delta_scan",
              registers || blocks ? &for_128 : &any, 1);
    metal_bind(encoder, 0, &scan->q);
    metal_bind(encoder, 1, &scan->k);
    metal_bind(encoder, 2, &scan->v);
    metal_bind(encoder, 3, scan->decay);
    metal_bind(encoder, 4, scan->beta);
    metal_bind(encoder, 5, scan->A_log != NULL ? scan->A_log : scan->decay);
    metal_bind(encoder, 6, scan->dt_bias != NULL ? scan->dt_bias : scan->beta);
    metal_bind(encoder, 7, scan->state);
    metal_bind_output(encoder, 8, scan->y);
    metal_bind_bytes(encoder, 9, &parameters, sizeof parameters);
    if (registers || blocks)
        metal_launch(encoder, (struct metal_size){groups_of(c->value_size, 32), c->value_heads, 1},
                     threads(registers ? REGISTER_THREADS : BLOCK_THREADS));
    else
        metal_launch(encoder, threads(groups_of((uint64_t)c->value_heads * c->value_size, SIMDGROUPS)),
                     threads(GROUP));
}

/* q, k, v, decay, beta, state, y */
static void encode_delta_scan(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *operands = op->operands;
    struct scan scan = {.q = operands[0],
                        .k = operands[1],
                        .v = operands[2],
                        .decay = &operands[3],
                        .beta = &operands[4],
                        .state = &operands[5],
                        .y = &operands[6]};
    encode_scan(&op->op->constants, &scan, encoder);
}

const struct metal_kernel metal_delta_scan[] = {{.encode = encode_delta_scan}};

/* ---- The tail for one token in one launch: q, k and v from `conv`, or there already */

/* record, x, a, b, taps, A_log, dt_bias, z, weight, ring, state, y, q, k, v; slots after them: parameters,
 * the next state */
enum { STEP_STATE = 10, STEP_Y = 11, STEP_OPERANDS = 15, STEP_PARAMETERS = 15, STEP_NEXT_STATE = 16 };

static struct metal_constant step_constant(const struct metal_operand *const *operands) {
    return metal_bool(STEP_CONVOLVES, operands[1] != NULL);
}

/* Whether heads, vectors and threads are what the kernel is made for. */
static bool step_fits(const struct op_constants *c, const struct metal_operand *const *operands,
                      const struct metal_encoder *encoder) {
    if (c->key_size != 128 || c->value_size != 128)
        return false;
    for (uint32_t i = 0; i < STEP_OPERANDS; i++)
        if (i != 0 && i != 2 && i != 3 && operands[i] != NULL && !in_fours(operands[i]))
            return false;
    const struct metal_constant constant = step_constant(operands);
    return metal_allows(encoder, "delta_step", &constant, 1, STEP_THREADS);
}

/* Operands that are NULL are not used. `next`: where the new state goes, the state's own place or another. */
static void encode_step(const struct op_constants *c, const struct metal_operand *const *operands,
                        const struct metal_operand *next, struct metal_encoder *encoder) {
    bool convolves = operands[1] != NULL;
    const struct metal_operand *state = operands[STEP_STATE];
    struct step_parameters parameters = {.key_heads = c->key_heads,
                                         .value_heads = c->value_heads,
                                         .ring_stride = convolves ? operands[9]->stride : 0,
                                         .state_stride = state->stride,
                                         .l2_epsilon = c->l2_epsilon,
                                         .epsilon = c->epsilon};
    const struct metal_constant constant = step_constant(operands);
    metal_use(encoder, "delta_step", &constant, 1);
    struct metal_operand unused = with_access(*operands[2], ACCESS_READ); /* what is read in any case */
    for (uint32_t i = 0; i < STEP_OPERANDS; i++)
        if (i == STEP_Y)
            metal_bind_output(encoder, i, operands[i]);
        else if (i == STEP_STATE)
            metal_bind_rows(encoder, i, state, 0, state->rows, METAL_READ);
        else
            metal_bind(encoder, i, operands[i] != NULL ? operands[i] : &unused);
    metal_bind_bytes(encoder, STEP_PARAMETERS, &parameters, sizeof parameters);
    metal_bind_output(encoder, STEP_NEXT_STATE, next);
    metal_launch(encoder, threads(c->value_heads), threads(STEP_THREADS));
}

/* a, b, A_log, dt_bias, q, k, v, z, weight, state, y of one row */
static void tail_operands(const struct metal_op *op, const struct metal_operand *operands[STEP_OPERANDS]) {
    const struct metal_operand *o = op->operands;
    const struct metal_operand *const found[STEP_OPERANDS] = {
        NULL, NULL, &o[0], &o[1], NULL, &o[2], &o[3], &o[7], &o[8], NULL, &o[9], &o[10], &o[4], &o[5], &o[6]};
    for (uint32_t i = 0; i < STEP_OPERANDS; i++)
        operands[i] = found[i];
}

/* a, b, A_log, dt_bias, q, k, v, z, weight, state, y */
static void encode_delta_tail(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *operands = op->operands, *step[STEP_OPERANDS];
    tail_operands(op, step);
    if (operands[0].rows == 1 && step_fits(&op->op->constants, step, encoder)) {
        encode_step(&op->op->constants, step, step[STEP_STATE], encoder);
        return;
    }
    struct scan scan = {.q = operands[4],
                        .k = operands[5],
                        .v = operands[6],
                        .decay = &operands[0],
                        .beta = &operands[1],
                        .A_log = &operands[2],
                        .dt_bias = &operands[3],
                        .state = &operands[9],
                        .y = &operands[10]};
    encode_scan(&op->op->constants, &scan, encoder);
    encode_gated_norm_of(&op->op->constants, &operands[10], &operands[7], &operands[8], encoder);
}

const struct metal_kernel metal_delta_tail[] = {{.encode = encode_delta_tail}};

/* ---- The whole of it for one token: record, qkv, a, b, taps, A_log, dt_bias, z, weight, ring, state, y */

static void step_operands(const struct metal_op *op, const struct metal_operand *operands[STEP_OPERANDS]) {
    for (uint32_t i = 0; i < STEP_OPERANDS; i++)
        operands[i] = i < 12 ? &op->operands[i] : NULL;
}

static bool delta_step_at_once_fits(const struct metal_op *op, const struct metal_encoder *encoder) {
    const struct metal_operand *operands[STEP_OPERANDS];
    step_operands(op, operands);
    return op->op->constants.taps == 4 && op->operands[4].stride == 4 &&
           step_fits(&op->op->constants, operands, encoder);
}

static void encode_delta_step_at_once(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *operands[STEP_OPERANDS];
    step_operands(op, operands);
    encode_step(&op->op->constants, operands, &op->next_state, encoder);
}

/* q, k and v */
static uint64_t delta_step_workspace(const struct metal_op *op, const struct metal_encoder *encoder) {
    (void)encoder;
    return (uint64_t)op->operands[1].columns * sizeof(float);
}

/* One part after the other. */
static void encode_delta_step(const struct metal_op *op, struct metal_encoder *encoder) {
    const struct metal_operand *operands = op->operands;
    const struct op_constants *c = &op->op->constants;
    uint64_t used = 0;
    struct convolution conv = {&operands[0],
                               &operands[1],
                               &operands[4],
                               &operands[9],
                               part_of(&op->workspace, &used, 1, c->key_heads * c->key_size),
                               part_of(&op->workspace, &used, 1, c->key_heads * c->key_size),
                               part_of(&op->workspace, &used, 1, c->value_heads * c->value_size)};
    encode_convolution(c, &conv, encoder);
    struct scan scan = {.q = with_access(conv.q, ACCESS_READ),
                        .k = with_access(conv.k, ACCESS_READ),
                        .v = with_access(conv.v, ACCESS_READ),
                        .decay = &operands[2],
                        .beta = &operands[3],
                        .A_log = &operands[5],
                        .dt_bias = &operands[6],
                        .state = &operands[10],
                        .y = &operands[11]};
    metal_phase(encoder);
    encode_scan(c, &scan, encoder);
    encode_gated_norm_of(c, &operands[11], &operands[7], &operands[8], encoder);
}

const struct metal_kernel metal_delta_step[] = {
    {.fits = delta_step_at_once_fits, .encode = encode_delta_step_at_once, .moves_state = true},
    {.workspace = delta_step_workspace, .encode = encode_delta_step}};
