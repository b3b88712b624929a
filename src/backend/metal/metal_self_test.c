/* Whether tensor operations compute what simdgroup matrices compute. Nobody has published all of what a GPU
 * makes of them, and kernels with them have been wrong without an error on some systems. So whenever a GPU
 * that claims them is opened, small ops of each kind that would use them run both ways, on random operands,
 * by the same encode functions and kernels as a prompt's, and the results are compared. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/metal/metal_backend.h"

#define MEMORY_BYTES (1u << 20) /* of all operands and workspaces of a trial */

/* Largest differences, as a part of the largest result. Both ways multiply the same bfloats and add floats,
 * in other orders. Attention also rounds its weights, which are relative to the largest score so far. */
#define PRODUCTS_DIFFER 1e-3
#define ATTENTION_DIFFERS 2e-2

enum {
    TOKENS = 20,
    CHOSEN = 2,
    EXPERTS = 3,
    HIDDEN = 128,
    WIDTH = 64,
    OUT = 60,
    HEADS = 4,
    HEAD_SIZE = 256,
    QUERIES = 8,
    POSITION = 30,
    CACHE_ROWS = 48
};

/* One op, and which of its operands are results. */
struct trial {
    const char *name;
    struct op op;
    struct metal_op bound;
    uint32_t first_result, result_count;
    double bound_of_difference;
};

struct self_test {
    struct metal_backend *backend;
    struct metal_buffer *memory;
    struct metal_commands *commands;
    uint64_t used, random;
};

/* ---- Operands */

static unsigned char *bytes_of(const struct metal_operand *operand) {
    return (unsigned char *)metal_buffer_contents(operand->buffer) + operand->offset;
}

static uint32_t random_bits(struct self_test *test) {
    test->random = test->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(test->random >> 32);
}

static float random_between(struct self_test *test, float least, float most) {
    return least + (most - least) * (float)(random_bits(test) >> 8) * 0x1p-24f;
}

static uint64_t take(struct self_test *test, uint64_t bytes) {
    uint64_t offset = test->used;
    test->used += metal_place(bytes);
    return offset;
}

static struct metal_operand place(struct self_test *test, enum dtype dtype, uint32_t rows, uint32_t columns,
                                  uint32_t access) {
    return (struct metal_operand){.buffer = test->memory,
                                  .offset = take(test, (uint64_t)rows * columns * dtype_bits(dtype) / 8),
                                  .dtype = dtype,
                                  .scale_dtype = DTYPE_BF16,
                                  .rows = rows,
                                  .columns = columns,
                                  .stride = columns,
                                  .access = access};
}

static struct metal_operand output(struct self_test *test, uint32_t rows, uint32_t columns) {
    return place(test, DTYPE_F32, rows, columns, ACCESS_WRITE);
}

/* F32 or BF16, in (-1, 1). */
static struct metal_operand input(struct self_test *test, enum dtype dtype, uint32_t rows, uint32_t columns) {
    struct metal_operand operand = place(test, dtype, rows, columns, ACCESS_READ);
    for (uint32_t i = 0; i < rows * columns; i++) {
        float value = random_between(test, -1, 1);
        uint16_t half = float_to_bf16(value);
        if (dtype == DTYPE_F32)
            memcpy(bytes_of(&operand) + 4 * i, &value, sizeof value);
        else
            memcpy(bytes_of(&operand) + 2 * i, &half, sizeof half);
    }
    return operand;
}

/* Codes of 4 bits, with scales of either sign and biases that centre them. */
static struct metal_operand weight(struct self_test *test, uint32_t rows, uint32_t columns) {
    struct metal_operand operand = place(test, DTYPE_AFFINE4, rows, columns, ACCESS_READ);
    uint32_t groups = rows * columns / DTYPE_AFFINE_GROUP;
    operand.scales = take(test, 2 * groups);
    operand.biases = take(test, 2 * groups);
    for (uint32_t i = 0; i < rows * columns / 2; i++)
        bytes_of(&operand)[i] = (unsigned char)random_bits(test);
    unsigned char *memory = metal_buffer_contents(test->memory);
    for (uint32_t i = 0; i < groups; i++) {
        float scale = random_between(test, -0.05f, 0.05f);
        const uint16_t halves[2] = {float_to_bf16(scale), float_to_bf16(-7.5f * scale)};
        memcpy(memory + operand.scales + 2 * i, &halves[0], 2);
        memcpy(memory + operand.biases + 2 * i, &halves[1], 2);
    }
    return operand;
}

static struct metal_operand integers(struct self_test *test, const int32_t *values, uint32_t rows,
                                     uint32_t columns) {
    struct metal_operand operand = place(test, DTYPE_I32, rows, columns, ACCESS_READ);
    memcpy(bytes_of(&operand), values, sizeof(int32_t) * rows * columns);
    return operand;
}

/* ids, starts, order: many rows for one expert, few for another, so that tiles are full and not. */
static void choose_experts(struct self_test *test, struct metal_operand operands[3]) {
    int32_t ids[TOKENS * CHOSEN], starts[EXPERTS + 1], order[TOKENS * CHOSEN], count = 0;
    for (int32_t t = 0; t < TOKENS; t++) {
        ids[CHOSEN * t] = t % 5 == 0 ? 1 : 0;
        ids[CHOSEN * t + 1] = 2;
    }
    for (int32_t e = 0; e < EXPERTS; e++) {
        starts[e] = count;
        for (int32_t pair = 0; pair < TOKENS * CHOSEN; pair++)
            if (ids[pair] == e)
                order[count++] = pair;
    }
    starts[EXPERTS] = count;
    operands[0] = integers(test, ids, TOKENS, CHOSEN);
    operands[1] = integers(test, starts, 1, EXPERTS + 1);
    operands[2] = integers(test, order, 1, TOKENS * CHOSEN);
}

/* ---- Trials */

static void linear_trial(struct self_test *test, struct trial *trial, uint32_t rows) {
    *trial = (struct trial){.name = "products of many rows",
                            .op = {.kind = OP_LINEAR, .operand_count = 3, .constants = {.matrix_count = 1}},
                            .first_result = 2,
                            .result_count = 1,
                            .bound_of_difference = PRODUCTS_DIFFER};
    struct metal_operand *operands = trial->bound.operands;
    operands[0] = input(test, DTYPE_F32, rows, HIDDEN);
    operands[1] = weight(test, OUT, HIDDEN);
    operands[2] = output(test, rows, OUT);
}

static const struct op_constants expert_constants = {.experts = EXPERTS, .experts_per_token = CHOSEN};

static void gate_up_trial(struct self_test *test, struct trial *trial) {
    *trial =
        (struct trial){.name = "the experts' gate and up products",
                       .op = {.kind = OP_EXPERT_GATE_UP, .operand_count = 10, .constants = expert_constants},
                       .first_result = 8,
                       .result_count = 2,
                       .bound_of_difference = PRODUCTS_DIFFER};
    struct metal_operand *operands = trial->bound.operands;
    operands[0] = input(test, DTYPE_F32, TOKENS, HIDDEN);
    choose_experts(test, &operands[1]);
    for (int i = 0; i < 2; i++) {
        operands[4 + i] = weight(test, EXPERTS * WIDTH, HIDDEN);
        operands[6 + i] = weight(test, OUT, HIDDEN);
    }
    operands[8] = output(test, TOKENS * CHOSEN, WIDTH);
    operands[9] = output(test, TOKENS, OUT);
}

static void down_trial(struct self_test *test, struct trial *trial) {
    *trial = (struct trial){.name = "the experts' down products",
                            .op = {.kind = OP_EXPERT_DOWN, .operand_count = 9, .constants = expert_constants},
                            .first_result = 8,
                            .result_count = 1,
                            .bound_of_difference = PRODUCTS_DIFFER};
    struct metal_operand *operands = trial->bound.operands;
    operands[0] = input(test, DTYPE_F32, TOKENS * CHOSEN, WIDTH);
    operands[1] = input(test, DTYPE_F32, TOKENS, WIDTH);
    struct metal_operand chosen[3];
    choose_experts(test, chosen);
    operands[2] = chosen[0];
    operands[3] = input(test, DTYPE_F32, TOKENS, CHOSEN + 1);
    operands[4] = chosen[1];
    operands[5] = chosen[2];
    operands[6] = weight(test, EXPERTS * OUT, WIDTH);
    operands[7] = weight(test, OUT, WIDTH);
    operands[8] = output(test, TOKENS, OUT);
    operands[8].access = ACCESS_READ | ACCESS_WRITE;
}

static void attention_trial(struct self_test *test, struct trial *trial) {
    *trial = (struct trial){.name = "attention",
                            .op = {.kind = OP_ATTENTION,
                                   .operand_count = 6,
                                   .constants = {.heads = HEADS, .kv_heads = 1, .head_size = HEAD_SIZE}},
                            .first_result = 5,
                            .result_count = 1,
                            .bound_of_difference = ATTENTION_DIFFERS};
    struct metal_operand *operands = trial->bound.operands;
    const struct step_record record = {.position = POSITION, .rows = QUERIES};
    operands[0] = place(test, DTYPE_U8, 1, sizeof record, ACCESS_READ);
    memcpy(bytes_of(&operands[0]), &record, sizeof record);
    operands[1] = input(test, DTYPE_F32, QUERIES * HEADS, HEAD_SIZE);
    operands[2] = input(test, DTYPE_F32, QUERIES * HEADS, HEAD_SIZE);
    operands[3] = input(test, DTYPE_BF16, CACHE_ROWS, HEAD_SIZE);
    operands[4] = input(test, DTYPE_BF16, CACHE_ROWS, HEAD_SIZE);
    operands[5] = output(test, QUERIES * HEADS, HEAD_SIZE);
}

enum { TRIAL_COUNT = 5 };

static void make_trial(struct self_test *test, struct trial *trial, int number) {
    test->used = 0;
    switch (number) {
    case 0: /* in tiles of 64 rows */
        linear_trial(test, trial, 40);
        break;
    case 1: /* of 32 */
        linear_trial(test, trial, 20);
        break;
    case 2:
        gate_up_trial(test, trial);
        break;
    case 3:
        down_trial(test, trial);
        break;
    default:
        attention_trial(test, trial);
        break;
    }
    trial->bound.op = &trial->op;
}

/* ---- Running */

static bool encode(struct metal_encoder *encoder, const struct metal_kernel *kernel,
                   const struct metal_op *op, struct calla_error *error) {
    encoder->position = POSITION;
    encoder->failed = encoder->stopped = false;
    encoder->budget = (double)INFINITY;
    metal_encoder_op(encoder, 0, 0);
    kernel->encode(op, encoder);
    if (encoder->failed)
        *error = encoder->error;
    return !encoder->failed;
}

/* Runs the trial's op one way: pipelines first, as when a plan is compiled. */
static bool run(struct self_test *test, struct trial *trial, bool tensors, struct calla_error *error) {
    struct metal_encoder *encoder = test->backend->encoder;
    struct metal_op *op = &trial->bound;
    test->backend->tensors = tensors;
    metal_encoder_begin(encoder, NULL);
    const struct metal_kernel *kernel = metal_kernel_of(op, encoder);
    uint64_t size = kernel->workspace != NULL ? kernel->workspace(op, encoder) : 0, used = test->used;
    if (size > MEMORY_BYTES || used + size > MEMORY_BYTES)
        return error_memory(error, "the self-test of tensor operations", (size_t)size);
    op->workspace = (struct metal_operand){.buffer = test->memory,
                                           .offset = used,
                                           .dtype = DTYPE_U8,
                                           .rows = size > 0,
                                           .columns = (uint32_t)size,
                                           .stride = (uint32_t)size,
                                           .access = ACCESS_READ | ACCESS_WRITE};
    for (uint32_t i = 0; i < trial->result_count; i++) {
        const struct metal_operand *result = &op->operands[trial->first_result + i];
        memset(bytes_of(result), 0, sizeof(float) * result->rows * result->columns);
    }
    bool ok = encode(encoder, kernel, op, error) &&
              metal_commands_begin(test->commands, test->backend->policy.concurrent, error);
    if (!ok)
        return false;
    metal_encoder_begin(encoder, test->commands);
    return encode(encoder, kernel, op, error) && metal_commands_commit(test->commands, error) &&
           metal_commands_wait(test->commands, error);
}

static bool compare(const struct trial *trial, const float *expected, const float *found, uint32_t count,
                    struct calla_error *error) {
    double largest = 0, difference = 0;
    for (uint32_t i = 0; i < count; i++) {
        double apart = fabs((double)found[i] - (double)expected[i]);
        largest = fmax(largest, fabs((double)expected[i]));
        difference = apart <= difference ? difference : apart; /* so that a NaN stays */
    }
    if (difference <= trial->bound_of_difference * largest)
        return true;
    return error_set(error, CALLA_DEVICE,
                     "with them, %s differ by %.2g of the largest result from those with simdgroup matrices, "
                     "%.2g is allowed",
                     trial->name, difference / largest, trial->bound_of_difference);
}

static bool try_out(struct self_test *test, struct trial *trial, struct calla_error *error) {
    float *expected[2] = {NULL, NULL};
    bool ok = run(test, trial, false, error);
    for (uint32_t i = 0; ok && i < trial->result_count; i++) {
        const struct metal_operand *result = &trial->bound.operands[trial->first_result + i];
        size_t size = sizeof(float) * result->rows * result->columns;
        expected[i] = malloc(size);
        ok = expected[i] != NULL || error_memory(error, "the self-test of tensor operations", size);
        if (ok)
            memcpy(expected[i], bytes_of(result), size);
    }
    ok = ok && run(test, trial, true, error);
    for (uint32_t i = 0; ok && i < trial->result_count; i++) {
        const struct metal_operand *result = &trial->bound.operands[trial->first_result + i];
        ok = compare(trial, expected[i], (const float *)(const void *)bytes_of(result),
                     result->rows * result->columns, error);
    }
    free(expected[0]);
    free(expected[1]);
    return ok;
}

bool metal_self_test(struct metal_backend *backend, struct calla_error *error) {
    struct self_test test = {.backend = backend, .random = 0x9e3779b97f4a7c15u};
    struct trial trial;
    test.memory = metal_allocate(backend, MEMORY_BYTES, "the self-test of tensor operations", error);
    test.commands = test.memory == NULL
                        ? NULL
                        : metal_commands_new(backend->device, "self-test of tensor operations", error);
    bool ok = test.commands != NULL;
    for (int i = 0; ok && i < TRIAL_COUNT; i++) {
        make_trial(&test, &trial, i);
        ok = try_out(&test, &trial, error);
    }
    backend->tensors = false;
    metal_encoder_begin(backend->encoder, NULL);
    metal_pipelines_free(&backend->pipelines);
    metal_commands_free(test.commands);
    metal_release(backend, test.memory);
    return ok;
}
